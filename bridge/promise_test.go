package bridge

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// namedRule is drainRule with a name.
func namedRule() Rule {
	r := drainRule
	r.Name = "drain first"
	return r
}

// promised returns the names of the rules that each CloudEvent about an event says will approve it, "-" for none.
func (e *ear) promised(t *testing.T) (list []string) {
	for _, h := range e.accepted() {
		names := "-"
		for i, r := range dataIn(t, h.Event).Rules {
			if i == 0 {
				names = ""
			}
			names += fmt.Sprintf("%s after %s and %vs;", r.Name, strings.Join(r.After, "+"), r.Wait)
		}
		list = append(list, names)
	}
	return list
}

// What a rule will approve is announced with the rule's name and what it waits for, also when the event changes and in
// a reminder. Of the approval its name is told, too.
func TestAnEventIsAnnouncedWithTheRulesThatWillApproveIt(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []Rule{namedRule()}
		drain, audit := &ear{answer: always(errDown)}, &ear{}
		b := s.start(drain.all("drain"), audit.all("audit").with(func(r *Terms) { r.Remind = []time.Duration{time.Minute} }))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(2 * time.Second)
		later := time.Now().Add(20 * time.Minute)
		s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = later })
		pause(19*time.Minute + 10*time.Second)
		drain.say(nil)
		pause(40 * time.Second)
		b.end()
		const rule = `rule "drain first" after drain and 5s;`
		wantIDs(t, audit.promised(t), rule, rule, rule, "-", "-")
		s.wantLogged(`by="rule \"drain first\""`)
	})
}

// What no rule will approve is not said to start by itself, whatever the doubt.
func TestWhatIsInDoubtIsNotPromised(t *testing.T) {
	filtered := func(r Route) Route { r.Filter.Only.Changes = []string{"started"}; return r }
	for _, tt := range []struct {
		claim string
		event imdstest.Event
		rule  func(*Rule)
		drain func(Route) Route
		spoil func(*stage)
	}{
		{claim: "it also names another VM", event: imdstest.Event{Resources: []string{"vm-0", "vm-1"}}},
		{claim: "its type is not named", event: imdstest.Event{Type: "Redeploy"}},
		{claim: "its source is not named", event: imdstest.Event{Source: "Platform"}},
		{claim: "the sink does not get it", drain: filtered},
		{claim: "there is no such sink", rule: func(r *Rule) { r.After = []string{"nobody"} }},
		{claim: "the disk is full", spoil: func(s *stage) {
			s.disk.fail(errFull)
			s.azure.Schedule(imdstest.Event{ID: idB, Type: "Freeze", Resources: []string{"vm-0"}})
			pause(2 * time.Second)
		}},
		{claim: "it is another VM's first", event: imdstest.Event{Resources: []string{"vm-1", "vm-0"}},
			rule: func(r *Rule) { r.Others, r.Filter.Only.VMs = true, "leader" }},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				rule, audit := namedRule(), &ear{}
				rule.Filter.Only.Types = []string{"Reboot"}
				if tt.rule != nil {
					tt.rule(&rule)
				}
				s.opts.Rules = []Rule{rule}
				drain := (&ear{answer: always(errDown)}).all("drain")
				if tt.drain != nil {
					drain = tt.drain(drain)
				}
				b := s.start(drain, audit.all("audit"))
				pause(2 * time.Second)
				if tt.spoil != nil {
					tt.spoil(s)
				}
				e := tt.event
				e.ID, e.NotBefore = idA, time.Now().Add(15*time.Minute)
				if e.Type == "" {
					e.Type = "Reboot"
				}
				if e.Source == "" {
					e.Source = "User"
				}
				if e.Resources == nil {
					e.Resources = []string{"vm-0"}
				}
				s.azure.Schedule(e)
				pause(2 * time.Second)
				told := audit.promised(t)
				wantIDs(t, told[len(told)-1:], "-")
				b.cancel()
				<-b.done
			})
		})
	}
}

// When the drain fails, those who were told that the event starts by itself are told once that it does not, and why:
// those of the event, and those of trouble. A restart does not make them forget it, or be told twice.
func TestAFailedDrainIsToldWithItsReason(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []Rule{namedRule()}
		failed := fmt.Errorf("%w: exit 75: 3 sessions left", delivery.ErrRejected)
		drain, audit, trouble := &ear{answer: always(errDown)}, &ear{}, &ear{}
		acts := func(r *Terms) { r.Acts = true }
		onCall := trouble.all("on-call").with(func(r *Terms) { r.Bridge = LevelTrouble })
		onCall.Filter.Only.Types = []string{"Freeze"}
		b := s.start(drain.all("drain").with(acts), audit.all("audit"), onCall)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		b.crash()
		drain.say(always(failed))
		b = s.start(drain.all("drain").with(acts), audit.all("audit"), onCall)
		pause(time.Minute)
		b.end()
		b = s.start(drain.all("drain").with(acts), audit.all("audit"), onCall)
		pause(time.Minute)
		var told []string
		for _, h := range append(audit.accepted(), trouble.accepted()...) {
			if a := dataIn(t, h.Event).Approval; a != nil {
				told = append(told, fmt.Sprintf("%s by %s: %s: %s", a.Result, a.By, a.Sink, a.Error))
			}
		}
		const want = `withheld by rule "drain first": drain: rejected: exit 75: 3 sessions left`
		wantIDs(t, told, want, want)
		wantIDs(t, s.approvals())

		// Whoever mends the drain and replays the dead letter has the event approved after all.
		drain.say(nil)
		for _, d := range b.Outbox.List(outbox.Selection{Route: "drain", State: outbox.StateDead}) {
			if _, err := b.Replay([]string{d.Key}, "", "alice"); err != nil {
				t.Fatal(err)
			}
		}
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, audit.results(t), cloudevent.ResultWithheld, cloudevent.ResultApproved)
		b.end()
	})
}

// A drain that asks again and again to be run again is told of after a minute, and that it is tried again. When it is
// done at last, the event is approved.
func TestADrainThatIsNotDoneIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []Rule{namedRule()}
		drain, audit := &ear{answer: always(errors.New("exit 75: 3 sessions left"))}, &ear{}
		b := s.start(drain.all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(failingFor - time.Second)
		wantIDs(t, audit.results(t))
		pause(5 * time.Minute)
		wantIDs(t, audit.results(t), cloudevent.ResultWithheld)
		a := dataIn(t, audit.accepted()[1].Event).Approval
		if a.Sink != "drain" || a.Error != "exit 75: 3 sessions left; it is tried again" {
			t.Errorf("it is told as %+v", a)
		}
		wantIDs(t, s.approvals())
		drain.say(nil)
		pause(5 * time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, audit.results(t), cloudevent.ResultWithheld, cloudevent.ResultApproved)
		b.end()
	})
}

// As long as one of the rules may approve the event, nobody is told that none does.
func TestOneOfTheRulesIsEnough(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		anyway := namedRule()
		anyway.Name, anyway.After, anyway.Wait = "anyway", nil, 10*time.Minute
		s.opts.Rules = []Rule{namedRule(), anyway}
		drain, audit := &ear{answer: always(delivery.ErrRejected)}, &ear{}
		b := s.start(drain.all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(11 * time.Minute)
		wantIDs(t, audit.results(t), cloudevent.ResultApproved)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// A disk that fails takes the promise back, because nothing is approved that a crash would forget.
func TestWhileTheDiskFailsThePromiseIsTakenBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []Rule{namedRule()}
		drain, audit := &ear{}, &ear{}
		b := s.start(drain.all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.disk.fail(errFull)
		s.userReboot(idA)
		pause(20 * time.Second)
		wantIDs(t, audit.results(t), cloudevent.ResultWithheld)
		wantIDs(t, s.approvals())
		s.disk.fail(nil)
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// A reload that takes the rule away takes its promise back.
func TestARuleThatIsTakenAwayTakesItsPromiseBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []Rule{namedRule()}
		drain, audit := &ear{answer: always(errors.New("busy"))}, &ear{}
		routes := []Route{drain.all("drain"), audit.all("audit")}
		b := s.start(routes...)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		b.Reload(b.mortal(routes), nil, SettingsInfo{})
		pause(3 * time.Second)
		wantIDs(t, audit.results(t), cloudevent.ResultWithheld)
		if a := dataIn(t, audit.accepted()[1].Event).Approval; a.Sink != "" || a.Error != `rule "drain first" was removed from the settings` {
			t.Errorf("it is told as %+v", a)
		}
		b.end()
	})
}

// withheld returns why each CloudEvent says that an event is not started early after all.
func (e *ear) withheld(t *testing.T) (whys []string) {
	for _, h := range e.accepted() {
		if a := dataIn(t, h.Event).Approval; a != nil && a.Result == cloudevent.ResultWithheld {
			whys = append(whys, a.Error)
		}
	}
	return whys
}

// Those who were told that the event starts by itself are told why it does not when it has changed so that no rule
// approves it any more. The reason is that of the rule that was to.
func TestAnUpdateThatEndsAPromiseIsTold(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		change func(*imdstest.Event)
		why    string
	}{
		{"the drain does not get it", func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Hour) },
			"drain did not get the latest change"},
		{"it names another VM, too", func(e *imdstest.Event) { e.Resources = []string{"vm-0", "vm-1"} },
			"it also names vm-1, and the rule has no others: true"},
		{"it names another VM", func(e *imdstest.Event) { e.Resources = []string{"vm-1"} }, "it does not name this VM"},
		{"its type is not the rule's", func(e *imdstest.Event) { e.Type = "Freeze" }, "only.types: it is a Freeze"},
	} {
		for claim, busy := range map[string]bool{"while the drain runs": true, "while Azure is asked": false} {
			t.Run(tt.claim+", "+claim, func(t *testing.T) {
				bubble(t, func(t *testing.T, s *stage) {
					rule := namedRule()
					rule.Filter.Only.Types = []string{"Reboot"}
					s.opts.Rules = []Rule{rule}
					drain, audit := &ear{}, &ear{}
					if busy {
						drain.say(always(errors.New("busy")))
					} else {
						s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
					}
					route := drain.all("drain")
					route.Filter.Only.Changes = []string{"scheduled"}
					b := s.start(route, audit.all("audit"))
					pause(1500 * time.Millisecond)
					s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User", Resources: []string{"vm-0"},
						NotBefore: time.Now().Add(2 * time.Hour)})
					pause(15 * time.Second)
					wantIDs(t, audit.withheld(t))
					s.azure.Update(idA, tt.change)
					pause(3 * time.Second)
					wantIDs(t, audit.withheld(t), tt.why)
					pause(2 * time.Minute)
					wantIDs(t, audit.withheld(t), tt.why)
					wantIDs(t, s.approvals())
					b.end()
				})
			})
		}
	}
}

// A doubt that lasts is told after a minute, whether the poll loop sees it or only the last look does. One that is over
// soon is not. When it is over the event is approved, and that is told.
func TestADoubtThatLastsIsTold(t *testing.T) {
	for seenBy, quietly := range map[string]bool{"polls": false, "the last look": true} {
		t.Run(seenBy, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				var doubtful atomic.Bool
				s.rewritesDocuments(quietly, func(body string) string {
					if doubtful.Load() {
						return sourceField.ReplaceAllString(body, ``)
					}
					return body
				})
				s.opts.Rules = []Rule{namedRule()}
				s.beginsLate()
				audit := &ear{}
				b := s.start((&ear{}).all("drain"), audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(2 * time.Second)
				doubtful.Store(true)
				pause(failingFor - time.Second)
				wantIDs(t, audit.withheld(t))
				pause(20 * time.Second)
				wantIDs(t, audit.withheld(t), "Azure's newest document differs in EventSource")
				if status := b.Status().Events[0].Approval; !strings.Contains(status, "differs in EventSource") {
					t.Errorf("the status says %q", status)
				}
				pause(5 * time.Minute)
				doubtful.Store(false)
				pause(2 * time.Minute)
				wantIDs(t, s.approvals(), idA)
				wantIDs(t, audit.results(t), cloudevent.ResultWithheld, cloudevent.ResultApproved)
				b.end()
			})
		})
	}
}

// That Azure doesn't take the approval stands in the status at once, and is told after a minute.
func TestAnApprovalThatAzureDoesNotTakeIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []Rule{namedRule()}
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
		audit := &ear{}
		b := s.start((&ear{}).all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(30 * time.Second)
		status := b.Status().Events[0].Approval
		if !strings.Contains(status, "Azure doesn't take the approval") || !strings.Contains(status, "503") {
			t.Errorf("the status says %q", status)
		}
		wantIDs(t, audit.withheld(t))
		pause(5 * time.Minute)
		told := audit.withheld(t)
		if len(told) != 1 || !strings.Contains(told[0], "503") || !strings.HasSuffix(told[0], "; it is tried again") {
			t.Errorf("told %q", told)
		}
		s.azure.ClearFaults()
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, audit.results(t), cloudevent.ResultWithheld, cloudevent.ResultApproved)
		if status = b.Status().Events[0].Approval; status != "" {
			t.Errorf("the status still says %q", status)
		}
		b.end()
	})
}

// A failure that lasts less than a minute is not told, however long the event has been known.
func TestAShortDoubtIsNotTold(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		var doubtful atomic.Bool
		s.rewritesDocuments(false, func(body string) string {
			if doubtful.Load() {
				return sourceField.ReplaceAllString(body, ``)
			}
			return body
		})
		rule := namedRule()
		rule.Wait = 10 * time.Minute
		s.opts.Rules = []Rule{rule}
		s.beginsLate()
		audit := &ear{}
		b := s.start((&ear{}).all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Minute)
		for range 3 { // together more than a minute
			doubtful.Store(true)
			pause(40 * time.Second)
			doubtful.Store(false)
			pause(40 * time.Second)
		}
		pause(10 * time.Minute)
		wantIDs(t, audit.results(t), cloudevent.ResultApproved)
		b.end()
	})
}
