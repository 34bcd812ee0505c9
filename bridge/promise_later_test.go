package bridge_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// When people were told of no rule, or that none starts the event early, and one is on course after all, they are told
// that: whether a mute has ended, a reload brought the rule back, or a dead letter was replayed. What a rule approves within
// the minute is told by that.
func TestARuleThatComesIntoCourseLaterIsTold(t *testing.T) {
	rejected := always(fmt.Errorf("%w: exit 75", delivery.ErrRejected))
	for _, tt := range []struct {
		claim  string
		wait   time.Duration
		before func(b *running) // the event is announced
		then   func(b *running, drain *recorder)
		told   []string
	}{
		{"a mute has ended", 3 * time.Minute, func(b *running) { b.mute(time.Hour) },
			func(b *running, _ *recorder) { b.unmute() },
			[]string{cloudevent.ResultPromised, cloudevent.ResultApproved}},
		{"and the rule approves at once", 5 * time.Second, func(b *running) { b.mute(time.Hour) },
			func(b *running, _ *recorder) { b.unmute() },
			[]string{cloudevent.ResultApproved}},
		{"a reload brings it back", 3 * time.Minute, nil,
			func(b *running, _ *recorder) {
				rules := b.s.opts.Rules
				b.Reload(b.Routes, nil, bridge.SettingsInfo{})
				pause(time.Minute)
				b.Reload(b.Routes, rules, bridge.SettingsInfo{})
			},
			[]string{cloudevent.ResultWithheld, cloudevent.ResultPromised, cloudevent.ResultApproved}},
		{"a dead letter is replayed", 3 * time.Minute, nil,
			func(b *running, drain *recorder) {
				drain.say(nil)
				letter := b.Outbox.List(outbox.Selection{State: outbox.StateDead})[0]
				if _, err := b.Replay([]string{letter.Key}, "", "alice"); err != nil {
					panic(err)
				}
			},
			[]string{cloudevent.ResultWithheld, cloudevent.ResultPromised, cloudevent.ResultApproved}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				rule := namedRule()
				rule.Wait = tt.wait
				s.opts.Rules = []bridge.Rule{rule}
				drain, audit := &recorder{}, &recorder{}
				if tt.claim == "a dead letter is replayed" {
					drain.say(rejected)
				}
				b := s.start(drain.all("drain"), audit.all("audit"))
				pause(1500 * time.Millisecond)
				if tt.before != nil {
					tt.before(b)
				}
				s.userReboot(idA)
				pause(10 * time.Second)
				tt.then(b, drain)
				pause(5 * time.Minute)
				wantIDs(t, audit.results(t), tt.told...)
				wantIDs(t, s.approvals(), idA)
				b.end()
			})
		})
	}
}

// What is told of an event that Azure was asked to start says who asked and whether Azure agreed, also when the event has
// changed, and in a reminder. Only then does nobody read that it comes at its own time, or that they are to ask.
func TestWhatIsToldAfterAnApprovalSaysWhoAsked(t *testing.T) {
	for claim, tt := range map[string]struct {
		fault    imdstest.Fault
		answered bool
	}{
		"Azure agreed":        {imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveIgnore}, true},
		"Azure didn't answer": {imdstest.Fault{Path: imdstest.Approvals, Status: 503}, false},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.azure.SetFault(tt.fault)
				audit := &recorder{}
				b := s.start(audit.all("audit").With(func(r *bridge.Terms) { r.Remind = []time.Duration{5 * time.Minute} }))
				pause(1500 * time.Millisecond)
				s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User", Resources: []string{"vm-0"},
					NotBefore: time.Now().Add(time.Hour)})
				pause(10 * time.Second)
				b.ApproveNow(t.Context(), idA, s.shown(idA), "root")
				pause(time.Minute)
				s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "another one" })
				pause(55 * time.Minute)
				wantIDs(t, audit.types(), "scheduled", "approved", "updated", "reminder")
				for i, h := range audit.accepted() {
					asked := dataIn(t, h.Event).Asked
					if i > 0 && (asked == nil || asked.By != "root" || asked.Answered != tt.answered) {
						t.Errorf("%s says %+v, want that root has asked", h.Event.ID(), asked)
					}
				}
				if asked := b.Status().Events[0].Asked; asked == nil || asked.By != "root" {
					t.Errorf("the status says %+v", asked)
				}
				b.end()
			})
		})
	}
}

// A rule that waits for a sink with a lead is announced with the time at which that begins.
func TestARuleIsAnnouncedWithTheLeadOfItsSink(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{namedRule()}
		audit := &recorder{}
		drain := (&recorder{}).all("drain").With(func(r *bridge.Terms) { r.Lead = 5 * time.Minute })
		b := s.start(drain, audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(2 * time.Second)
		data := dataIn(t, audit.accepted()[0].Event)
		if len(data.Rules) != 1 || !data.Rules[0].From.Equal(data.NotBefore.Add(-5*time.Minute)) {
			t.Errorf("announced with %+v, want from five minutes before %v", data.Rules, data.NotBefore)
		}
		b.end()
	})
}

// Half a minute before the eviction of a Spot VM nobody has to read of rules, nor that one failed.
func TestAnEvictionIsToldWithoutRules(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		rule := namedRule()
		rule.Only.Types = bridge.TypesValues
		s.opts.Rules = []bridge.Rule{rule}
		audit := &recorder{}
		drain := &recorder{answer: always(delivery.ErrRejected)}
		b := s.start(drain.all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Preempt", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(30 * time.Second)})
		pause(20 * time.Second)
		wantIDs(t, audit.promised(t), "-")
		b.end()
	})
}

// A refusal and a reminder name the rules that may start the event all the same by what those say then: one that came by a
// reload, and one whose sink failed and is tried again.
func TestARefusalAndAReminderNameTheRulesOfThen(t *testing.T) {
	for claim, tried := range map[string]bool{"a reload brought it": false, "its sink is tried again": true} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveRefuse, Times: 1})
				drain, audit := &recorder{answer: always(errSinkDown)}, &recorder{}
				want, rules := `rule "drain first"`, []bridge.Rule{namedRule()}
				if tried {
					s.opts.Rules = rules
				} else {
					drain.say(always(errHang))
				}
				routes := []bridge.Route{drain.all("drain").With(func(r *bridge.Terms) { r.Timeout = 0 }),
					audit.all("audit").With(func(r *bridge.Terms) { r.Remind = []time.Duration{5 * time.Minute} })}
				b := s.start(routes...)
				pause(1500 * time.Millisecond)
				s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User", Resources: []string{"vm-0"},
					NotBefore: time.Now().Add(time.Hour)})
				pause(2 * time.Minute)
				if !tried {
					b.Reload(b.killable(routes), rules, bridge.SettingsInfo{})
					pause(5 * time.Second)
				}
				b.ApproveNow(t.Context(), idA, s.shown(idA), "root")
				pause(55 * time.Minute)
				for _, h := range audit.accepted() {
					data := dataIn(t, h.Event)
					if data.Lead == "" && (data.Approval == nil || data.Approval.Result != cloudevent.ResultRefused) {
						continue
					}
					if len(data.Rules) != 1 || data.Rules[0].Name != want || (data.Rules[0].Again != "") != tried {
						t.Errorf("%s names the rules %+v", h.Event.ID(), data.Rules)
					}
				}
				if types := audit.types(); types[len(types)-1] != "reminder" {
					t.Errorf("told were %q", types)
				}
				b.cancel()
				<-b.done
			})
		})
	}
}

// That a newer change of its event overtook what a runbook had failed to do is no news, whether that is tried or done by
// then: nothing is given up, and a replay would do the work twice.
func TestWhatANewerChangeOvertakesIsNotReportedAsGivenUp(t *testing.T) {
	for claim, works := range map[string]bool{"it is tried": false, "it is done": true} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				drain, ops := &recorder{answer: always(errSinkDown)}, &recorder{}
				people := ops.all("ops")
				people.Terms.Bridge = bridge.LevelTrouble
				acts := drain.all("drain").With(func(r *bridge.Terms) { r.Late = delivery.LateDrop })
				drain.say(always(delivery.ErrRejected))
				b := s.start(acts, people)
				pause(1500 * time.Millisecond)
				s.reboot(idB) // given up and reported: the next report comes a minute later
				pause(3 * time.Second)
				drain.say(always(errSinkDown))
				s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User", Resources: []string{"vm-0"},
					NotBefore: time.Now().Add(time.Hour)})
				pause(10 * time.Second)
				if works {
					drain.say(nil)
				}
				s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Minute) })
				pause(2 * time.Minute)
				dead := b.Outbox.List(outbox.Selection{State: outbox.StateDead})
				if len(dead) != 2 || dead[1].Group != idA || dead[1].Reason != delivery.ReasonLate {
					t.Errorf("the dead letters are %+v, want the announcement as the second", dead)
				}
				b.end()
				wantIDs(t, ops.types(), "scheduled", "delivery.deadlettered", "scheduled", "updated")
			})
		})
	}
}

// mute mutes the drain.
func (b *running) mute(d time.Duration) {
	if _, err := b.Mute(bridge.Mute{Sink: "drain", Reason: "repairs", By: "alice"}, d); err != nil {
		panic(err)
	}
}

// unmute ends all mutes.
func (b *running) unmute() {
	if _, err := b.Unmute(nil, true, "alice"); err != nil {
		panic(err)
	}
}

// A sink that a reload adds is told what became of the promise in the announcement that it gets, in this order and
// once.
func TestASinkThatComesLaterIsToldWhatBecameOfThePromise(t *testing.T) {
	for name, drained := range map[string]bool{cloudevent.ResultWithheld: false, cloudevent.ResultApproved: true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{namedRule()}
				drain, late := &recorder{answer: always(delivery.ErrRejected)}, &recorder{}
				if drained {
					drain.say(nil)
				}
				deaf := (&recorder{}).all("deaf")
				deaf.Filter.Only.Changes = []string{"scheduled"}
				routes := []bridge.Route{drain.all("drain")}
				b := s.start(routes...)
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(10 * time.Second)
				b.crash()
				b = s.start(routes...)
				pause(10 * time.Second)
				b.Reload(b.killable(append(routes, late.all("late"), deaf)), s.opts.Rules, bridge.SettingsInfo{})
				pause(10 * time.Second)
				b.Reload(b.killable(append(routes, late.all("late"), deaf)), s.opts.Rules, bridge.SettingsInfo{})
				pause(time.Minute)
				wantIDs(t, late.ids(), idA+"-scheduled", idA+"-approved")
				wantIDs(t, late.results(t), name)
				wantIDs(t, deaf.Sink.(*recorder).ids(), idA+"-scheduled")
				b.end()
			})
		})
	}
}

// A sink that comes after a change is not told what became of what the change before promised.
func TestASinkThatComesLaterIsNotToldOfOldPromises(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{namedRule()}
		drain, late := &recorder{answer: always(delivery.ErrRejected)}, &recorder{}
		routes := []bridge.Route{drain.all("drain")}
		b := s.start(routes...)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(10 * time.Second)
		drain.say(always(errSinkDown))
		s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Hour) })
		pause(10 * time.Second)
		b.Reload(b.killable(append(routes, late.all("late"))), s.opts.Rules, bridge.SettingsInfo{})
		pause(10 * time.Second)
		wantIDs(t, late.types(), "updated")
		wantIDs(t, late.promised(t), `rule "drain first" after drain and 5s;`)
		b.cancel()
		<-b.done
	})
}

// Once a drain takes so long that the rule's wait after it can't end in time, people are told, and nobody reads any more
// that the rule starts the event.
func TestThatADrainTakesTooLongForTheWaitIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		rule := namedRule()
		rule.Wait = 5 * time.Minute
		s.opts.Rules = []bridge.Rule{rule}
		drain, audit := &recorder{answer: always(errHang)}, &recorder{}
		slow := drain.all("drain")
		slow.Terms.Timeout = time.Hour
		b := s.start(slow, audit.reminds("audit", 2*time.Minute))
		pause(1500 * time.Millisecond)
		s.userReboot(idA) // in 15 minutes
		pause(9 * time.Minute)
		wantIDs(t, audit.withheld(t))
		pause(2 * time.Minute)
		wantIDs(t, audit.withheld(t), `it waits for sink "drain", and the wait of 5m after that is too long`)
		pause(150 * time.Second)
		reminder := audit.accepted()[2].Event
		if rules := dataIn(t, reminder).Rules; !strings.HasSuffix(reminder.Type(), "reminder") || len(rules) > 0 {
			t.Errorf("%s says that the rules %+v start it", reminder.Type(), rules)
		}
		wantIDs(t, s.approvals())
		b.end()
	})
}

// A run that a restart of forewarn has cut off begins again and has not failed: neither the status nor anybody says so.
func TestARunThatARestartCutOffHasNotFailed(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{namedRule()}
		drain, audit := &recorder{answer: always(errHang)}, &recorder{}
		route := drain.all("drain")
		route.Terms.Timeout = time.Hour
		b := s.start(route, audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(10 * time.Second)
		b.end()
		drain.say(func(d delivery.Delivery) error {
			if d.Event.ID() == idA+"-scheduled" {
				pause(3 * time.Minute)
			}
			return nil
		})
		b = s.start(route, audit.all("audit"))
		pause(2 * time.Minute)
		if got, want := b.Status().Events[0].Approval, `rule "drain first": it waits for sink "drain"`; got != want {
			t.Errorf("the status says %q, want %q", got, want)
		}
		pause(2 * time.Minute)
		wantIDs(t, audit.results(t), cloudevent.ResultApproved)
		b.end()
	})
}

// A rule of which only a refusal told is taken back like any other.
func TestARuleThatARefusalNamesIsTakenBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{namedRule()}
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveRefuse})
		drain, audit := &recorder{answer: func(delivery.Delivery) error {
			time.Sleep(8 * time.Second)
			return fmt.Errorf("%w: exit 1", delivery.ErrRejected)
		}}, &recorder{}
		b := s.start(drain.all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		if _, err := b.Mute(bridge.Mute{Sink: "drain", Reason: "repairs", By: "alice"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		s.userReboot(idA)
		pause(5 * time.Second)
		if _, err := b.Unmute(nil, true, "alice"); err != nil {
			t.Fatal(err)
		}
		pause(3 * time.Second) // the drain is at work, and the rule on course
		b.ApproveNow(t.Context(), idA, s.shown(idA), "root")
		pause(3 * time.Minute)
		wantIDs(t, audit.promised(t)[:2], "-", `rule "drain first" after drain and 5s;`)
		wantIDs(t, audit.results(t), cloudevent.ResultRefused, cloudevent.ResultWithheld)
		b.end()
	})
}
