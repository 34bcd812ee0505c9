package outbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// While the disk is full, from the start or later, the outbox works from memory and says why. Once there is room again,
// everything is written.
func TestFullDiskStopsNothing(t *testing.T) {
	for _, atStart := range []bool{false, true} {
		t.Run(fmt.Sprintf("at the start %v", atStart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, _ := systemtest.SmallDisk(t)
				var free func()
				if atStart {
					free = systemtest.FillDisk(t, dir)
				}
				o := open(t, dir, outbox.Options{})
				_, _ = o.tryAdd("FIRST", "scheduled", "a")
				if !atStart {
					free = systemtest.FillDisk(t, dir)
				}
				for i := range 200 { // more than the file's own slack
					_, _ = o.tryAdd(fmt.Sprint("E", i), "scheduled", "a")
					time.Sleep(time.Second)
				}
				wantError(t, "Durable", o.Durable(), syscall.ENOSPC)
				equal(t, "to be delivered", len(o.reader("a").hears()), 201)
				free()
				time.Sleep(6 * time.Second)
				o.wantDurable()
				o.restart()
				equal(t, "deliveries on disk", len(o.pending("a")), 201)
				equal(t, "groups on disk", len(o.Groups()), 201)
				want(t, "set aside", asides(t, dir, "*"))
			})
		})
	}
}

// What is on a disk that is read-only, or in a file that may only be read, is loaded. It is written once that is
// allowed, with what has changed.
func TestWhatMayOnlyBeReadIsRead(t *testing.T) {
	for claim, protected := range map[string]func(t *testing.T) (dir string, protect func(bool)){
		"disk": func(t *testing.T) (string, func(bool)) {
			dir, remount := systemtest.SmallDisk(t)
			return dir, func(to bool) {
				if to {
					remount(syscall.MS_RDONLY)
				} else {
					remount(0)
				}
			}
		},
		"file": func(t *testing.T) (string, func(bool)) {
			dir := t.TempDir()
			return dir, func(to bool) { setImmutable(t, filepath.Join(dir, "outbox.db"), to) }
		},
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, protect := protected(t)
				before := used(t, dir)
				protect(true)
				defer protect(false)
				o := open(t, dir, outbox.Options{})
				wantError(t, "Durable", o.Durable(), outbox.ErrReadOnly)
				a := o.reader("a")
				items := a.items()
				if d, err := a.Read(items[0]); err != nil || d.Event.ID() != items[0].ID {
					t.Errorf("Read = %v, %v", d.Event.ID(), err)
				}
				_, _ = o.drop(o.keys(outbox.Selection{Route: "a"})[0])
				o.addInMemory("NEW", "scheduled", "a")
				after := append(before[1:], "NEW-scheduled")
				time.Sleep(time.Minute)
				want(t, "pending while it can only be read", o.pending("a"), after...)
				protect(false)
				time.Sleep(6 * time.Second)
				synctest.Wait()
				o.wantDurable()
				o.restart()
				want(t, "pending after a restart", o.pending("a"), after...)
			})
		})
	}
}

// setImmutable sets whether nobody, not even root, may write to a file. A test that may not do so is skipped.
func setImmutable(t *testing.T, path string, to bool) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		const immutable = 0x10 // FS_IMMUTABLE_FL in linux/fs.h
		flags &^= immutable
		if to {
			flags |= immutable
		}
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}
	if err != nil {
		t.Skip("only root may make a file immutable, and not on every file system; CI runs this as root: ", err)
	}
}
