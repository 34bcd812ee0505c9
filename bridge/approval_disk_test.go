package bridge_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
)

// While the outbox is not durable nothing is approved.
func TestWithoutADiskNothingIsApproved(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{rebootRule}
		b := s.start((&recorder{}).all("a"))
		s.disk.fail(errFull)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(time.Minute)
		wantIDs(t, s.approvals())
		s.wantLogged("the outbox is not durable")
		if tried := "approval waits until"; strings.Contains(s.log.String(), tried) {
			t.Errorf("the log says %q, so something was decided", tried)
		}
		s.disk.fail(nil)
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// Nor is anything approved if it is the decision that the disk fails at.
func TestADecisionThatCannotBeWrittenIsNotSent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		var last atomic.Bool
		s.wrote = func() {
			if last.Load() {
				s.disk.fail(errFull)
			}
		}
		b := s.start((&recorder{}).all("a").OnlyTypes("Freeze"))
		pause(1500 * time.Millisecond)
		last.Store(true)
		s.userReboot(idA)
		pause(time.Minute)
		wantIDs(t, s.approvals())
		s.wantLogged("approval waits until the outbox can be written")
		if sent := "approving event"; strings.Contains(s.log.String(), sent) {
			t.Errorf("the log says %q", sent)
		}
		last.Store(false)
		s.disk.fail(nil)
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// Nor is a decision sent again that did not get through before the disk failed.
func TestWithoutADiskNoDecisionIsSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{rebootRule}
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
		b := s.start((&recorder{}).all("a"))
		sent := func() int {
			return len(slices.DeleteFunc(s.azure.Requests(), func(r imdstest.Request) bool { return r.Method != http.MethodPost }))
		}
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(5 * time.Second)
		s.disk.fail(errFull)
		s.azure.Schedule(imdstest.Event{ID: idB, Type: "Freeze"}) // which cannot be written
		pause(5 * time.Second)
		before := sent()
		pause(2 * time.Minute)
		if again := sent() - before; before == 0 || again > 0 {
			t.Errorf("sent %d times, and %d times while the disk failed, want none then", before, again)
		}
		s.disk.fail(nil)
		s.azure.ClearFaults()
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}
