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

// A clock that is stepped makes the wait of a rule neither shorter nor longer.
func TestASteppedClockChangesNoWait(t *testing.T) {
	steps := map[string]time.Duration{"not at all": 0, "an hour forward": time.Hour, "an hour back": -time.Hour}
	for claim, step := range steps {
		for name, after := range map[string][]string{"after a sink": {"drain"}, "after nobody": nil} {
			t.Run(claim+", "+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, s *stage) {
					s.beginsLate()
					rule := rebootRule
					rule.After, rule.Wait = after, time.Minute
					rule.When = mustParseWhen(t, "true") // so that the CloudEvent is read back, with its time
					s.opts.Rules = []bridge.Rule{rule}
					b := s.start((&recorder{}).all("drain"))
					pause(1500 * time.Millisecond)
					s.userReboot(idA)
					pause(3 * time.Second)
					s.step(step)
					pause(50 * time.Second)
					wantIDs(t, s.approvals())
					pause(15 * time.Second)
					wantIDs(t, s.approvals(), idA)
					b.end()
				})
			})
		}
	}
}

// An approval that failed is sent again within seconds, also if the clock is set back by an hour meanwhile.
func TestAnApprovalIsSentAgainAfterTheClockWasSetBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
		b := s.start((&recorder{}).all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(5 * time.Second)
		s.wantLogged("approval sent, but not answered; trying again")
		s.step(-time.Hour)
		b.end()
		s.azure.ClearFaults()
		b = s.start((&recorder{}).all("audit"))
		pause(30 * time.Second)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// The wait begins when the last of its sinks accepts the change, however long that takes.
func TestAWaitBeginsWithTheAcceptance(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		rule := rebootRule
		rule.After, rule.Wait = []string{"prompt", "drain"}, 2*time.Minute
		s.opts.Rules = []bridge.Rule{rule}
		drain := &recorder{answer: always(errSinkDown)}
		b := s.start((&recorder{}).all("prompt"), drain.all("drain"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Minute)
		drain.say(nil)
		for len(drain.accepted()) == 0 {
			pause(time.Second)
		}
		pause(2*time.Minute - 2*time.Second)
		wantIDs(t, s.approvals())
		pause(4 * time.Second)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// It begins then also if the rule waits for something else, such as for the name of the VM to be confirmed.
func TestAWaitBeginsThoughTheNameIsMissing(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		rule := rebootRule
		rule.After, rule.Wait = []string{"drain"}, 10*time.Minute
		s.opts.Rules = []bridge.Rule{rule}
		drain := (&recorder{}).all("drain")
		b := s.start(drain)
		pause(2 * time.Second)
		b.end()
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 12 * time.Minute})
		b = s.start(drain)
		pause(20 * time.Second)
		s.userReboot(idA)
		pause(11 * time.Minute)
		wantIDs(t, s.approvals())
		pause(3 * time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// After a restart the wait is counted anew: neither the time while nothing ran nor a clock that was stepped meanwhile makes
// it shorter. A crash is no different.
func TestAWaitIsCountedAnewAfterARestart(t *testing.T) {
	systemtest.Alone(t)
	for claim, stop := range map[string]func(*running){"a stop": (*running).end, "a crash": (*running).crash} {
		for _, step := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprintf("%s and a step of %v", claim, step), func(t *testing.T) {
				bubble(t, func(t *testing.T, s *stage) {
					s.beginsLate()
					rule := rebootRule
					rule.After, rule.Wait = []string{"drain"}, 10*time.Minute
					s.opts.Rules = []bridge.Rule{rule}
					drain := (&recorder{}).all("drain")
					b := s.start(drain)
					pause(1500 * time.Millisecond)
					s.userReboot(idA)
					pause(5 * time.Minute)
					if step != 0 {
						s.step(step)
					}
					stop(b)
					pause(time.Minute)
					b = s.start(drain)
					pause(10*time.Minute - 5*time.Second)
					wantIDs(t, s.approvals())
					pause(15 * time.Second)
					wantIDs(t, s.approvals(), idA)
					b.end()
				})
			})
		}
	}
}

// No wait begins before its rule is there, even if another rule has waited for the same sink by then. A reload that leaves
// the rule as it is doesn't begin it anew.
func TestAWaitDoesNotBeginBeforeItsRule(t *testing.T) {
	systemtest.Alone(t)
	rule := func(t *testing.T, wait time.Duration) bridge.Rule {
		r := rebootRule
		r.After, r.Wait, r.When = []string{"drain"}, wait, mustParseWhen(t, "duration < 0") // compiled for each
		return r
	}
	for claim, tt := range map[string]struct {
		first time.Duration                  // the wait of the first rule
		then  func(*testing.T) []bridge.Rule // the rules after three minutes
		after time.Duration                  // how long after that it is approved
	}{
		"it stays": {6 * time.Minute, func(t *testing.T) []bridge.Rule { return []bridge.Rule{rule(t, 6*time.Minute)} }, 3 * time.Minute},
		"it stays under another name and number": {6 * time.Minute, func(t *testing.T) []bridge.Rule {
			named := rule(t, 6*time.Minute)
			named.Name = "by night"
			return []bridge.Rule{rule(t, time.Hour), named}
		}, 3 * time.Minute},
		"another one comes": {time.Hour, func(t *testing.T) []bridge.Rule {
			return []bridge.Rule{rule(t, time.Hour), rule(t, 6*time.Minute)}
		}, 6 * time.Minute},
		"it changes":             {time.Hour, func(t *testing.T) []bridge.Rule { return []bridge.Rule{rule(t, 6*time.Minute)} }, 6 * time.Minute},
		"it goes and comes back": {6 * time.Minute, nil, 7 * time.Minute},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{rule(t, tt.first)}
				b := s.start((&recorder{}).all("drain"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(3 * time.Minute)
				if tt.then == nil {
					b.Reload(b.Routes, nil, bridge.SettingsInfo{})
					pause(time.Minute)
					b.Reload(b.Routes, []bridge.Rule{rule(t, tt.first)}, bridge.SettingsInfo{})
					pause(-time.Minute + tt.after - 5*time.Second)
				} else {
					b.Reload(b.Routes, tt.then(t), bridge.SettingsInfo{})
					pause(tt.after - 5*time.Second)
				}
				wantIDs(t, s.approvals())
				pause(10 * time.Second)
				wantIDs(t, s.approvals(), idA)
				b.end()
			})
		})
	}
}

// An event that changes is waited for anew.
func TestAChangeBeginsTheWaitAnew(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		rule := rebootRule
		rule.After, rule.Wait = []string{"drain"}, time.Minute
		s.opts.Rules = []bridge.Rule{rule}
		b := s.start((&recorder{}).all("drain"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(45 * time.Second)
		s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Minute) })
		pause(45 * time.Second)
		wantIDs(t, s.approvals())
		pause(20 * time.Second)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// Rules are asked every second about every open event, so that must cost no look at the disk.
func TestRulesThatWaitDoNotReadTheDisk(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		rule := rebootRule
		rule.Wait = time.Hour
		s.opts.Rules = []bridge.Rule{rule}
		counted := &countedReads{Storage: outbox.File(s.dir, s.logger())}
		box, err := outbox.Open(s.dir, outbox.Options{Log: s.logger(), Storage: counted})
		if err != nil {
			t.Fatal(err)
		}
		b := s.startWith(box, (&recorder{}).all("drain"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(time.Minute)
		before := counted.reads.Load()
		pause(10 * time.Minute)
		if n := counted.reads.Load() - before; n != 0 {
			t.Errorf("the disk was read %d times in ten minutes", n)
		}
		wantIDs(t, s.approvals())
		b.end()
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
