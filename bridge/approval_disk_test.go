package bridge_test

import (
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
)

// While the outbox is not durable nothing is approved, because a crash would forget it: who was told of a rule is told
// so, and no rule is promised.
func TestWithoutADiskNothingIsApproved(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.opts.Rules = []bridge.Rule{namedRule()}
		s.up()
		s.disk.fail(errFull)
		s.userReboot(idA)
		pause(90 * time.Second)
		wantIDs(t, s.audit.withheld(t), "not yet: the outbox is not durable: no space left on device")
		s.userReboot(idB)
		pause(time.Minute)
		wantIDs(t, s.audit.promised(t), drainedFirst, "-", "-")
		wantIDs(t, s.approvals())
		s.wantLoggedTimes(0, "approval waits until") // so nothing was decided
		s.disk.fail(nil)
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA, idB)
	})
}

// Of an event that no rule is for, a disk that fails changes nothing: neither the status nor the log says that a rule will
// approve it later.
func TestWithoutADiskNothingIsSaidOfAnEventThatNoRuleIsFor(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.opts.Rules = []bridge.Rule{rebootRule}
		s.up()
		s.disk.fail(errFull)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Freeze", Resources: []string{"vm-0"}})
		s.rebootOf(time.Hour, idB, "vm-1")
		pause(5 * time.Second)
		st := s.Status()
		if st.Outbox.Durable || len(st.Events) != 2 {
			t.Fatalf("durable %v, with %d events; want the disk to fail, and 2", st.Outbox.Durable, len(st.Events))
		}
		for _, e := range st.Events {
			wantEqual(t, "why a "+e.Known.Type+" isn't approved, by the status", e.Approval, "")
			wantEqual(t, "that may pass", e.NotYet, false)
		}
		s.wantLoggedTimes(0, "event not approved")
		s.disk.fail(nil)
	})
}

// Nor is anything approved if it is the decision that the disk fails at.
func TestADecisionThatCannotBeWrittenIsNotSent(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		var last atomic.Bool // write that succeeds
		s.wrote = func() {
			if last.Load() {
				s.disk.fail(errFull)
			}
		}
		s.routes = []bridge.Route{s.audit.all("audit").OnlyTypes("Freeze")}
		s.opts.Rules = []bridge.Rule{rebootRule}
		s.up()
		last.Store(true)
		s.userReboot(idA)
		pause(time.Minute)
		wantIDs(t, s.approvals())
		s.wantLogged("approval waits until the outbox can be written")
		s.wantLoggedTimes(0, "approving event")
		last.Store(false)
		s.disk.fail(nil)
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
	})
}

// Nor is a decision sent again that did not get through before the disk failed.
func TestWithoutADiskNoDecisionIsSentAgain(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.answersApprovals(503)
		s.announce(rebootRule)
		pause(5 * time.Second)
		s.disk.fail(errFull)
		s.azure.Schedule(imdstest.Event{ID: idB, Type: "Freeze"}) // which cannot be written
		pause(5 * time.Second)
		before := s.sent()
		pause(2 * time.Minute)
		if again := s.sent() - before; before == 0 || again > 0 {
			t.Errorf("sent %d times, and %d times while the disk failed, want none then", before, again)
		}
		s.disk.fail(nil)
		s.azure.ClearFaults()
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
	})
}
