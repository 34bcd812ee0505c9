package outbox_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"forewarn/bridge/outbox"
)

// smallDisk mounts a file system of a megabyte.
func smallDisk(t *testing.T) (dir string, remount func(flags uintptr)) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); errors.Is(err, syscall.EPERM) {
		t.Skip("only root may mount a small disk; CI runs this as root")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, func(flags uintptr) {
		t.Helper()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, "size=1m"); err != nil {
			t.Fatal(err)
		}
	}
}

// fill uses up the free space of the disk. free releases it.
func fill(t *testing.T, dir string) (free func()) {
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

// While the disk is full, from the start or later, the outbox works from memory and says why. Once there is room again,
// everything is written.
func TestFullDiskStopsNothing(t *testing.T) {
	for _, atStart := range []bool{false, true} {
		t.Run(fmt.Sprintf("at the start %v", atStart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, _ := smallDisk(t)
				var free func()
				if atStart {
					free = fill(t, dir)
				}
				o := open(t, dir, outbox.Options{})
				_, _ = add(o, "FIRST", "scheduled", "a")
				if !atStart {
					free = fill(t, dir)
				}
				for i := range 200 { // more than the file's own slack
					_, _ = add(o, fmt.Sprint("E", i), "scheduled", "a")
					time.Sleep(time.Second)
				}
				if err := o.Durable(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "no space left") {
					t.Errorf("Durable = %v", err)
				}
				if got, _ := changes(o.Queue("a")); len(got) != 201 {
					t.Errorf("%d are to be delivered, want 201", len(got))
				}
				free()
				time.Sleep(6 * time.Second)
				if err := o.Durable(); err != nil {
					t.Errorf("with room again Durable = %v", err)
				}
				o.Close()
				o = open(t, dir, outbox.Options{})
				if n, m := len(pending(o, "a")), len(o.Groups()); n != 201 || m != 201 {
					t.Errorf("on disk are %d deliveries of %d groups, want 201", n, m)
				}
				if n := len(asides(t, dir, "*")); n != 0 {
					t.Errorf("%d files were set aside", n)
				}
				o.Close()
			})
		})
	}
}

// A file that may only be read is loaded as well, and written once that is allowed.
func TestFileThatMayOnlyBeReadIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		used(t, dir)
		path := filepath.Join(dir, "outbox.db")
		setImmutable(t, path, true)
		defer setImmutable(t, path, false)
		o := open(t, dir, outbox.Options{})
		if err := o.Durable(); !errors.Is(err, outbox.ErrReadOnly) {
			t.Errorf("Durable = %v, want that it can only be read", err)
		}
		before := pending(o, "a")
		_, _ = add(o, "NEW", "scheduled", "a")
		want(t, "pending while it can only be read", pending(o, "a"), append(before, "NEW-scheduled")...)
		if len(before) == 0 {
			t.Error("nothing was loaded")
		}
		setImmutable(t, path, false)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if err := o.Durable(); err != nil {
			t.Errorf("Durable = %v", err)
		}
		o.Close()
	})
}

// setImmutable sets whether nobody, not even root, may write to a file. A test that may not do so is skipped.
func setImmutable(t *testing.T, path string, to bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		const immutable = 0x10 // FS_IMMUTABLE_FL in linux/fs.h
		if flags &^= immutable; to {
			flags |= immutable
		}
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}
	if err != nil {
		t.Skip("only root may make a file immutable, and not on every file system; CI runs this as root: ", err)
	}
}

// The content of a read-only disk is loaded. Once the disk is writable, the outbox continues as usual.
func TestReadOnlyDiskIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, remount := smallDisk(t)
		used(t, dir)
		remount(syscall.MS_RDONLY)
		o := open(t, dir, outbox.Options{})
		if err := o.Durable(); !errors.Is(err, outbox.ErrReadOnly) {
			t.Errorf("Durable = %v, want that it can only be read", err)
		}
		before := pending(o, "a")
		q := o.Queue("a")
		items := q.Changes().Pending
		if d, err := q.Read(items[0]); err != nil || d.Event.ID() != items[0].ID {
			t.Errorf("Read = %v, %v", d.Event.ID(), err)
		}
		_, _ = drop(o, []string{o.List(outbox.Selection{Route: "a"})[0].Key}, "x")
		_, _ = add(o, "NEW", "scheduled", "a")
		after := append(before[1:], "NEW-scheduled")
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "pending while it can only be read", pending(o, "a"), after...)
		remount(0)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if err := o.Durable(); err != nil {
			t.Errorf("Durable = %v", err)
		}
		want(t, "pending then", pending(o, "a"), after...)
		o.Close()
		o = open(t, dir, outbox.Options{})
		want(t, "pending after a restart", pending(o, "a"), after...)
		o.Close()
	})
}
