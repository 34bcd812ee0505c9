//go:build !windows

package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// What the system says.
const (
	statCall          = "stat"
	noSuchFile        = syscall.ENOENT
	noSuchPath        = syscall.ENOENT
	connectionRefused = syscall.ECONNREFUSED
	addressTaken      = syscall.EADDRINUSE
)

// programsHere returns settings as they are: the paths of their programs are those of this system.
func programsHere(settings string) string { return settings }

// tellsSecrets is the command of an exec sink that prints its variables T and U, and fails.
const tellsSecrets = `[/bin/sh, -c, 'echo "$T $U"; exit 1']`

// controlPath is a place for the control socket.
func controlPath(dir string) string { return filepath.Join(dir, "fw.sock") }

// holdFile is for Windows: here an open file keeps nobody out.
func holdFile(string, bool) (io.Closer, error) { return nil, errors.ErrUnsupported }

// signals are those of the stories. A stopped process is what a frozen machine looks like from inside.
var signals = map[string]syscall.Signal{
	"TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP,
	"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT,
}

// signalProcess sends a process the signal of that name.
func signalProcess(p *os.Process, name string) error { return p.Signal(signals[name]) }

// withConsole changes nothing: a signal goes to one process.
func withConsole(*exec.Cmd) {}

// ctrlC is for Windows.
func ctrlC() {}
