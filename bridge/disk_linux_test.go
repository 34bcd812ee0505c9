package bridge_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// A disk that is full, when the program starts or later, does not silence it: it goes on from memory, is not ready and
// says why; and when there is room again everything is on disk.
func TestAFullDiskSilencesNobody(t *testing.T) {
	systemtest.Alone(t)
	for _, atStart := range []bool{false, true} {
		subtest(t, fmt.Sprintf("at the start %v", atStart), func(t *testing.T, s *stage) {
			s.dir, _ = systemtest.SmallDisk(t)
			var free func()
			if atStart {
				free = systemtest.FillDisk(t, s.dir)
			}
			e, down := &recorder{}, answering(errSinkDown)
			s.bounds.InMemory = 50
			b := s.up(e.all("a"), down.all("down"))
			s.reboot("FIRST")
			pause(2 * time.Second)
			if !atStart {
				free = systemtest.FillDisk(t, s.dir)
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
		dir, remount := systemtest.SmallDisk(t)
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
