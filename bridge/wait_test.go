package bridge_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// wantApprovedIn checks that the reboot is approved after that time, and not much earlier.
func (s *approvalStage) wantApprovedIn(d time.Duration) {
	s.t.Helper()
	pause(d - 5*time.Second)
	wantIDs(s.t, s.approvals())
	pause(10 * time.Second)
	wantIDs(s.t, s.approvals(), idA)
}

// A clock that is stepped makes the wait of a rule neither shorter nor longer.
func TestASteppedClockChangesNoWait(t *testing.T) {
	steps := map[string]time.Duration{"not at all": 0, "an hour forward": time.Hour, "an hour back": -time.Hour}
	for claim, step := range steps {
		for name, after := range map[string][]string{"after a sink": {"drain"}, "after nobody": nil} {
			approvalSubtest(t, claim+", "+name, func(t *testing.T, s *approvalStage) {
				rule := waiting(rebootRule, time.Minute, after...)
				rule.When = mustParseWhen(t, "true") // so that the CloudEvent is read back, with its time
				s.announce(rule)
				s.step(step)
				s.wantApprovedIn(time.Minute)
			})
		}
	}
}

// An approval that failed is sent again within seconds, also if the clock is set back by an hour meanwhile.
func TestAnApprovalIsSentAgainAfterTheClockWasSetBack(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.answersApprovals(503)
		s.announce(rebootRule)
		pause(4 * time.Second)
		s.wantLogged("approval sent, but not answered; trying again")
		s.step(-time.Hour)
		s.end()
		s.azure.ClearFaults()
		s.up()
		pause(30 * time.Second)
		wantIDs(t, s.approvals(), idA)
	})
}

// The wait begins when the last of its sinks accepts the change, however long that takes.
func TestAWaitBeginsWithTheAcceptance(t *testing.T) {
	approvalTest(t, func(_ *testing.T, s *approvalStage) {
		s.drain.say(always(errSinkDown))
		s.announce(waiting(rebootRule, 2*time.Minute, "audit", "drain"))
		pause(3 * time.Minute)
		s.drain.say(nil)
		for len(s.drain.accepted()) == 0 {
			pause(time.Second)
		}
		s.wantApprovedIn(2 * time.Minute)
	})
}

// It begins then also if the rule waits for something else, such as for the name of the VM to be confirmed.
func TestAWaitBeginsThoughTheNameIsMissing(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.opts.Rules = []bridge.Rule{waiting(rebootRule, 10*time.Minute, "drain")}
		s.up()
		s.end()
		s.metadata(imdstest.Fault{Status: 503, For: 12 * time.Minute})
		s.up()
		pause(20 * time.Second)
		s.userReboot(idA)
		pause(11 * time.Minute)
		wantIDs(t, s.approvals())
		pause(3 * time.Minute)
		wantIDs(t, s.approvals(), idA)
	})
}

// After a restart the wait is counted anew: neither the time while nothing ran nor a clock that was stepped meanwhile
// makes it shorter. A crash is no different.
func TestAWaitIsCountedAnewAfterARestart(t *testing.T) {
	systemtest.Alone(t)
	for claim, stop := range map[string]func(*running){"a stop": (*running).end, "a crash": (*running).crash} {
		for _, step := range []time.Duration{0, time.Hour} {
			approvalSubtest(t, fmt.Sprintf("%s and a step of %v", claim, step), func(_ *testing.T, s *approvalStage) {
				s.announce(waiting(rebootRule, 10*time.Minute, "drain"))
				pause(5 * time.Minute)
				s.step(step)
				stop(s.running)
				pause(time.Minute)
				s.up()
				s.wantApprovedIn(10 * time.Minute)
			})
		}
	}
}

// No wait begins before its rule is there, even if another rule has waited for the same sink by then. A reload that
// leaves the rule as it is doesn't begin it anew.
func TestAWaitDoesNotBeginBeforeItsRule(t *testing.T) {
	systemtest.Alone(t)
	const long, short = time.Hour, 6 * time.Minute
	rule := func(s *approvalStage, wait time.Duration) bridge.Rule {
		r := waiting(rebootRule, wait, "drain")
		r.When = mustParseWhen(s.t, "duration < 0") // compiled for each
		return r
	}
	for claim, tt := range map[string]struct {
		first time.Duration          // the wait of the first rule
		then  func(s *approvalStage) // after three minutes
		after time.Duration          // how long after that it is approved
	}{
		"it stays": {short, func(s *approvalStage) { s.setRules(rule(s, short)) }, 3 * time.Minute},
		"it stays under another name and number": {short, func(s *approvalStage) {
			named := rule(s, short)
			named.Name = "by night"
			s.setRules(rule(s, long), named)
		}, 3 * time.Minute},
		"another one comes": {long, func(s *approvalStage) { s.setRules(rule(s, long), rule(s, short)) }, short},
		"it changes":        {long, func(s *approvalStage) { s.setRules(rule(s, short)) }, short},
		"it goes and comes back": {short, func(s *approvalStage) {
			s.setRules()
			pause(time.Minute)
			s.setRules(rule(s, short))
		}, short},
	} {
		approvalSubtest(t, claim, func(_ *testing.T, s *approvalStage) {
			s.announce(rule(s, tt.first))
			pause(3 * time.Minute)
			tt.then(s)
			s.wantApprovedIn(tt.after)
		})
	}
}

// An event that changes is waited for anew.
func TestAChangeBeginsTheWaitAnew(t *testing.T) {
	approvalTest(t, func(_ *testing.T, s *approvalStage) {
		s.announce(waiting(rebootRule, time.Minute, "drain"))
		pause(45 * time.Second)
		s.postpone(idA, time.Minute)
		s.wantApprovedIn(time.Minute)
	})
}

// Rules are asked every second about every open event, so that must cost no look at the disk.
func TestRulesThatWaitDoNotReadTheDisk(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{waiting(rebootRule, time.Hour)}
		counted := &countedReads{Storage: outbox.File(s.dir, s.logger())}
		box, err := outbox.Open(s.dir, outbox.Options{Log: s.logger(), Storage: counted})
		if err != nil {
			t.Fatal(err)
		}
		s.startWith(box, (&recorder{}).all("drain"))
		s.userReboot(idA)
		pause(time.Minute)
		before := counted.reads.Load()
		pause(10 * time.Minute)
		wantEqual(t, "reads of the disk in ten minutes", counted.reads.Load()-before, 0)
		wantIDs(t, s.approvals())
	})
}

// countedReads counts how often a value is read.
type countedReads struct {
	outbox.Storage
	reads atomic.Int64
}

func (c *countedReads) Read(bucket, key string) ([]byte, error) {
	c.reads.Add(1)
	return c.Storage.Read(bucket, key)
}
