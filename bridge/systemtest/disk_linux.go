package systemtest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// SmallDisk mounts a file system of a megabyte at dir until the test ends. remount changes its flags, such as
// syscall.MS_RDONLY. It skips the test unless root runs it.
func SmallDisk(t *testing.T) (dir string, remount func(flags uintptr)) {
	t.Helper()
	const size = "size=1m"
	dir = t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, size)
	if errors.Is(err, syscall.EPERM) {
		t.Skip("only root may mount a small disk; CI runs this as root")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, func(flags uintptr) {
		t.Helper()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, size); err != nil {
			t.Fatal(err)
		}
	}
}

// FillDisk uses up the free space of the disk that dir is on, to the last byte. free releases it.
func FillDisk(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{64 << 10, 4 << 10, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(bytes.Repeat([]byte("x"), size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}
