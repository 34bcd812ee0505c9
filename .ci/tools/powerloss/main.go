// Powerloss runs a command with a disk that forgets, when the power fails, what was not synced.
//
//	go -C .ci/tools run ./powerloss [-seed N] COMMAND...
//
// The disk is a file system in memory, mounted for the command, which finds it in FOREWARN_DISK. An attempt to make a
// directory named power-loss in its root is a power loss; by then the programs that used the disk must have been
// killed. After an attempt to make power-loss-ahead, the disk answers a random number of writes and syncs more, and
// then no other, so that the power is lost between two of them. What the disk has afterwards is chosen at random among
// all that may be left:
//
//   - What was synced is there. A file that was synced has its name too, as on ext4, XFS and btrfs.
//   - Of the other writes to a file none has survived, or the first few, or any of them, each with any of its sectors
//     of 512 bytes.
//   - Of the other names that came, went or moved none has, or the first few.
//
// It doesn't show what a drive does that lies about a sync, or that damages what it wrote earlier.
//
// It needs Linux, root and /dev/fuse.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

func main() {
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "repeats the choices of an earlier run")
	flag.Parse()
	code, err := run(*seed, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "powerloss:", err)
		code = 2
	}
	os.Exit(code)
}

func run(seed uint64, command []string) (code int, err error) {
	if len(command) == 0 {
		return 0, errors.New("name a command to run")
	}
	at, err := os.MkdirTemp("", "powerloss")
	if err != nil {
		return 0, err
	}
	defer os.Remove(at)
	d := newDisk(rand.New(rand.NewPCG(seed, 0)))
	var never time.Duration // is a name or attribute kept by the kernel: a power loss changes it
	server, err := fs.Mount(at, d.root, &fs.Options{EntryTimeout: &never, AttrTimeout: &never,
		MountOptions: fuse.MountOptions{FsName: "powerloss", Name: "powerloss", DirectMountStrict: true}})
	if err != nil {
		return 0, fmt.Errorf("mount a disk: %w; it needs root and /dev/fuse", err)
	}
	defer func() { err = errors.Join(err, server.Unmount()) }()
	c := exec.Command(command[0], command[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), "FOREWARN_DISK="+at)
	var exit *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	fmt.Printf("-seed %d: %v\n", seed, d)
	if d.losses == 0 {
		return 0, errors.New("the command made no power loss")
	}
	return c.ProcessState.ExitCode(), nil
}
