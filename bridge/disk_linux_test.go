package bridge_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
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
		must(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, "size=1m"))
	}
}

// fill takes all that is left of the disk, and gives it back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	must(t, err)
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

// A disk that is full, when the program starts or later, does not silence it: it goes on from memory, is not ready and
// says why; and when there is room again everything is on disk.
func TestAFullDiskSilencesNobody(t *testing.T) {
	systemtest.Alone(t)
	for _, atStart := range []bool{false, true} {
		subtest(t, fmt.Sprintf("at the start %v", atStart), func(t *testing.T, s *stage) {
			s.dir, _ = smallDisk(t)
			var free func()
			if atStart {
				free = fill(t, s.dir)
			}
			e, down := &recorder{}, answering(errSinkDown)
			s.bounds.InMemory = 50
			b := s.up(e.all("a"), down.all("down"))
			s.reboot("FIRST")
			pause(2 * time.Second)
			if !atStart {
				free = fill(t, s.dir)
			}
			for i := range 60 { // more than the file's own slack
				s.reboot(fmt.Sprintf("EVENT-%02d", i))
				pause(1100 * time.Millisecond)
			}
			wantEqual(t, "were told", len(e.ids()), 61)
			wantEqual(t, "Durable is that the disk is full", errors.Is(b.Outbox.Durable(), syscall.ENOSPC), true)
			wantEqual(t, "ready", b.Status().Ready, false)
			wantIn(t, "the reasons", strings.Join(b.Status().Reasons, " "), "no space left")
			free()
			pause(diskRetry + time.Second)
			b.wantDurable()
			b.crash()
			o := stored(t, s.dir)
			if n, m := len(pendingIDs(o, "down")), len(deadIDs(o)); n+m != 61 || atStart && m == 0 {
				t.Errorf("on disk are %d pending and %d dead letters, want 61 in all", n, m)
			}
			wantEqual(t, "events are open on disk", len(o.Groups()), 61)
			wantEqual(t, "files were set aside", len(asides(t, s.dir, "*")), 0)
		})
	}
}

// From a disk that can only be read the backlog is delivered, and what was open is known; when it can be written again,
// that goes on as if nothing had been.
func TestADiskThatCanOnlyBeReadIsRead(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		dir, remount := smallDisk(t)
		s.dir = dir
		e := answering(errSinkDown)
		b := s.start(e.all("a"))
		s.reboot(idA)
		pause(5 * time.Second)
		b.end()
		remount(syscall.MS_RDONLY)
		e.say(nil)
		b = s.start(e.all("a"))
		pause(5 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled")
		s.azure.Start(idA)
		pause(20 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started")
		wantEqual(t, "Durable is that it can only be read", errors.Is(b.Outbox.Durable(), outbox.ErrReadOnly), true)
		remount(0)
		pause(diskRetry + time.Second)
		b.wantDurable()
		b.crash()
		wantIDs(t, pendingIDs(stored(t, s.dir), "a"))
	})
}
