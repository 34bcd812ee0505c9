package bridge_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// namedRule is drainRule with a name.
func namedRule() bridge.Rule {
	r := drainRule
	r.Name = "drain first"
	return r
}

// promised returns the names of the rules that each CloudEvent about an event says will approve it, "-" for none.
func (e *recorder) promised(t *testing.T) (list []string) {
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
		s.opts.Rules = []bridge.Rule{namedRule()}
		drain, audit := &recorder{answer: always(errSinkDown)}, &recorder{}
		b := s.start(drain.all("drain"), audit.all("audit").With(func(r *bridge.Terms) { r.Remind = []time.Duration{time.Minute} }))
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
	filtered := func(r bridge.Route) bridge.Route { r.Filter.Only.Changes = []string{"started"}; return r }
	for _, tt := range []struct {
		claim string
		event imdstest.Event
		rule  func(*bridge.Rule)
		drain func(bridge.Route) bridge.Route
		spoil func(*stage)
	}{
		{claim: "it also names another VM", event: imdstest.Event{Resources: []string{"vm-0", "vm-1"}}},
		{claim: "its type is not named", event: imdstest.Event{Type: "Redeploy"}},
		{claim: "its source is not named", event: imdstest.Event{Source: "Platform"}},
		{claim: "the sink does not get it", drain: filtered},
		{claim: "there is no such sink", rule: func(r *bridge.Rule) { r.After = []string{"nobody"} }},
		{claim: "the disk is full", spoil: func(s *stage) {
			s.disk.fail(errFull)
			s.azure.Schedule(imdstest.Event{ID: idB, Type: "Freeze", Resources: []string{"vm-0"}})
			pause(2 * time.Second)
		}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				rule, audit := namedRule(), &recorder{}
				rule.Only.Types = []string{"Reboot"}
				if tt.rule != nil {
					tt.rule(&rule)
				}
				s.opts.Rules = []bridge.Rule{rule}
				drain := (&recorder{answer: always(errSinkDown)}).all("drain")
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
		s.opts.Rules = []bridge.Rule{namedRule()}
		failed := fmt.Errorf("%w: exit 75: 3 sessions left", delivery.ErrRejected)
		drain, audit, trouble := &recorder{answer: always(errSinkDown)}, &recorder{}, &recorder{}
		acts := func(r *bridge.Terms) { r.Acts = true }
		onCall := trouble.all("on-call").With(func(r *bridge.Terms) { r.Bridge = bridge.LevelTrouble })
		onCall.Filter.Only.Types = []string{"Freeze"}
		b := s.start(drain.all("drain").With(acts), audit.all("audit"), onCall)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		b.crash()
		drain.say(always(failed))
		b = s.start(drain.all("drain").With(acts), audit.all("audit"), onCall)
		pause(time.Minute)
		b.end()
		b = s.start(drain.all("drain").With(acts), audit.all("audit"), onCall)
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
		s.opts.Rules = []bridge.Rule{namedRule()}
		drain, audit := &recorder{answer: always(errors.New("exit 75: 3 sessions left"))}, &recorder{}
		b := s.start(drain.all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(bridge.FailingFor - time.Second)
		wantIDs(t, audit.results(t))
		pause(5 * time.Minute)
		wantIDs(t, audit.results(t), cloudevent.ResultWithheld)
		a := dataIn(t, audit.accepted()[1].Event).Approval
		if a.Sink != "drain" || a.Error != "exit 75: 3 sessions left" || !a.NotYet {
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

// Who was told that a rule doesn't approve the event yet is told once more when that is for good: because the drain failed
// for good, or the rule is gone. A restart between doesn't make it forgotten, or told twice.
func TestWhatMayPassIsToldAgainWhenItIsForGood(t *testing.T) {
	for claim, tt := range map[string]struct {
		end  func(b *running, drain *recorder, routes []bridge.Route)
		want string
	}{
		"the drain fails for good": {
			func(_ *running, drain *recorder, _ []bridge.Route) { drain.say(always(delivery.ErrRejected)) }, "drain: rejected",
		},
		"the rule is gone": {
			func(b *running, _ *recorder, routes []bridge.Route) {
				b.Reload(b.killable(routes), nil, bridge.SettingsInfo{})
			},
			`: rule "drain first" was removed from the settings`,
		},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Rules = []bridge.Rule{namedRule()}
				drain, audit := &recorder{answer: always(errors.New("exit 75: 3 sessions left"))}, &recorder{}
				routes := []bridge.Route{drain.all("drain"), audit.all("audit")}
				b := s.start(routes...)
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(2 * time.Minute)
				b.crash()
				b = s.start(routes...)
				pause(2 * time.Minute)
				tt.end(b, drain, routes)
				pause(6 * time.Minute)
				var told []string
				for _, h := range audit.accepted() {
					if d := dataIn(t, h.Event); d.Approval != nil {
						told = append(told, fmt.Sprintf("not yet: %t, rules: %d, %s: %s", d.Approval.NotYet, len(d.Rules), d.Approval.Sink,
							d.Approval.Error))
					}
				}
				wantIDs(t, told, "not yet: true, rules: 0, drain: exit 75: 3 sessions left", "not yet: false, rules: 0, "+tt.want)
				wantIDs(t, s.approvals())
				b.cancel()
				<-b.done
			})
		})
	}
}

// Only what no rule will ever approve is said to be so: what may pass isn't.
func TestOnlyWhatIsForGoodIsSaidFirmly(t *testing.T) {
	for claim, tt := range map[string]struct {
		answer error // of the drain; nil if it is done
		begin  func(*stage, *running)
		firmly bool
	}{
		"the drain asks to be run again": {answer: errors.New("exit 75")},
		"the drain fails for good":       {answer: delivery.ErrRejected, firmly: true},
		"the disk is full":               {begin: func(s *stage, _ *running) { s.disk.fail(errFull) }},
		"Azure doesn't take it": {begin: func(s *stage, _ *running) {
			s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
		}},
		"the wait lasts too long": {firmly: true, begin: func(_ *stage, b *running) {
			rule := namedRule()
			rule.Wait = time.Hour
			b.Reload(b.Routes, []bridge.Rule{rule}, bridge.SettingsInfo{})
		}},
		"the drain is muted": {answer: errSinkDown, begin: func(s *stage, b *running) {
			if _, err := b.Mute(bridge.Mute{Sink: "drain", Reason: "repairs", By: "alice"}, time.Hour); err != nil {
				s.t.Fatal(err)
			}
		}},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{namedRule()}
				drain, audit := &recorder{answer: always(tt.answer)}, &recorder{}
				b := s.start(drain.all("drain"), audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(1200 * time.Millisecond)
				if tt.begin != nil {
					tt.begin(s, b)
				}
				pause(3 * time.Minute)
				told := 0
				for _, h := range audit.accepted() {
					a := dataIn(t, h.Event).Approval
					if a != nil && a.Result == cloudevent.ResultWithheld {
						told++
						if a.NotYet == tt.firmly {
							t.Errorf("it is told as %+v", a)
						}
					}
				}
				if told != 1 {
					t.Errorf("it is told %d times", told)
				}
				b.cancel()
				<-b.done
			})
		})
	}
}

// When the rule that was announced is off for good and another one may approve the event yet, people read why each of them
// doesn't, and not that what has failed is tried again.
func TestWhatMayPassIsSaidOfTheRuleOfWhichItIsTrue(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		second := namedRule()
		second.Name, second.After = "after backup", []string{"backup"}
		s.opts.Rules = []bridge.Rule{namedRule(), second}
		drain, backup, audit := &recorder{answer: always(fmt.Errorf("%w: exit 1", delivery.ErrRejected))}, &recorder{}, &recorder{}
		b := s.start(drain.all("drain"), backup.all("backup"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		if _, err := b.Mute(bridge.Mute{Sink: "backup", Reason: "repairs", By: "alice"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		s.userReboot(idA)
		pause(2 * time.Minute)
		wantIDs(t, audit.withheld(t), `rule "drain first": sink "drain" failed: exit 1; `+
			`rule "after backup": sink "backup" is muted until 01:00:01 UTC`)
		a := dataIn(t, audit.accepted()[1].Event).Approval
		if !a.NotYet || a.Sink != "" || a.By != `rule "drain first"` {
			t.Errorf("it is told as %+v", a)
		}
		b.end()
	})
}

// As long as one of the rules may approve the event, nobody is told that none does.
func TestOneOfTheRulesIsEnough(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		anyway := namedRule()
		anyway.Name, anyway.After, anyway.Wait = "anyway", nil, 10*time.Minute
		s.opts.Rules = []bridge.Rule{namedRule(), anyway}
		drain, audit := &recorder{answer: always(delivery.ErrRejected)}, &recorder{}
		b := s.start(drain.all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(11 * time.Minute)
		wantIDs(t, audit.results(t), cloudevent.ResultApproved)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// withheld returns why each CloudEvent says that an event is not started early after all.
func (e *recorder) withheld(t *testing.T) (whys []string) {
	for _, h := range e.accepted() {
		if a := dataIn(t, h.Event).Approval; a != nil && a.Result == cloudevent.ResultWithheld {
			whys = append(whys, a.Error)
		}
	}
	return whys
}

// asked returns who had asked Azure without an answer, of each withheld approval that was told.
func (e *recorder) asked(t *testing.T) (by []string) {
	for _, h := range e.accepted() {
		data := dataIn(t, h.Event)
		if data.Approval == nil || data.Approval.Result != cloudevent.ResultWithheld {
			continue
		}
		who := ""
		if data.Asked != nil {
			who = data.Asked.By
		}
		by = append(by, who)
	}
	return by
}

// What rules say of an event knows what somebody asked of Azure by hand: without an answer the event may begin at any time,
// though the drain fails; and a refusal leaves what rules will do as it is.
func TestRulesAndAnApprovalByHandKnowOfEachOther(t *testing.T) {
	for what, tt := range map[string]struct {
		fault imdstest.Fault
		asked []string
		rules string
	}{
		"without an answer": {imdstest.Fault{Path: imdstest.Approvals, Status: 503}, []string{"root"}, "-"},
		"refused":           {imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveRefuse}, []string{""}, `rule "drain first" after drain and 5s;`},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{namedRule()}
				s.azure.SetFault(tt.fault)
				drain, audit := &recorder{answer: always(errSinkDown)}, &recorder{}
				b := s.start(drain.all("drain"), audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(3 * time.Second)
				b.ApproveNow(t.Context(), idA, s.shown(idA), "root")
				pause(2 * time.Minute)
				if asked := b.Status().Events[0].Asked; (asked != nil && asked.By == "root" && !asked.Answered) != (what == "without an answer") {
					t.Errorf("the status says %+v", asked)
				}
				wantIDs(t, audit.asked(t), tt.asked...)
				wantIDs(t, audit.promised(t)[:2], `rule "drain first" after drain and 5s;`, tt.rules)
				b.end()
			})
		})
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
				s.opts.Rules = []bridge.Rule{namedRule()}
				s.beginsLate()
				audit := &recorder{}
				b := s.start((&recorder{}).all("drain"), audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(2 * time.Second)
				doubtful.Store(true)
				pause(bridge.FailingFor - time.Second)
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

// That Azure doesn't answer the approval stands in the status at once, and is told after a minute: Azure may have taken it.
func TestAnApprovalThatAzureDoesNotTakeIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{namedRule()}
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
		audit := &recorder{}
		b := s.start((&recorder{}).all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(30 * time.Second)
		status := b.Status().Events[0].Approval
		if !strings.Contains(status, "Azure hasn't answered the approval") || !strings.Contains(status, "503") {
			t.Errorf("the status says %q", status)
		}
		wantIDs(t, audit.withheld(t))
		pause(5 * time.Minute)
		told := audit.withheld(t)
		if len(told) != 1 || !strings.Contains(told[0], "503") || !strings.HasSuffix(told[0], "; it is tried again") {
			t.Errorf("told %q", told)
		}
		wantIDs(t, audit.asked(t), `rule "drain first"`)
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
		s.opts.Rules = []bridge.Rule{rule}
		s.beginsLate()
		audit := &recorder{}
		b := s.start((&recorder{}).all("drain"), audit.all("audit"))
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

// A promise that can't be kept before the event may begin is not made, whether a mute, a lead or the rule's own wait is
// longer than the notice. One that can be kept all the same is.
func TestWhatWouldComeTooLateIsNotPromised(t *testing.T) {
	const rule = `rule "drain first" after drain and %vs;`
	for _, tt := range []struct {
		claim string
		wait  time.Duration
		lead  time.Duration
		mute  *bridge.Mute
		until time.Duration // of the mute
		want  string
	}{
		{claim: "a wait within the notice", wait: 14 * time.Minute, want: fmt.Sprintf(rule, 840)},
		{claim: "a wait longer than the notice", wait: 16 * time.Minute, want: "-"},
		{claim: "a lead", lead: 5 * time.Minute, want: fmt.Sprintf(rule, 0)},
		{claim: "a lead, and a wait longer than that", lead: 5 * time.Minute, wait: 6 * time.Minute, want: "-"},
		{claim: "a mute within the notice", mute: &bridge.Mute{Sink: "drain"}, until: 10 * time.Minute, want: fmt.Sprintf(rule, 0)},
		{claim: "a mute within the notice, and a wait that is not", mute: &bridge.Mute{Sink: "drain"}, wait: 10 * time.Minute,
			until: 10 * time.Minute, want: "-"},
		{claim: "a mute longer than the notice", mute: &bridge.Mute{Sink: "drain"}, until: time.Hour, want: "-"},
		{claim: "a mute of everything", mute: &bridge.Mute{}, until: time.Hour, want: "-"},
		{claim: "a mute of such events", mute: &bridge.Mute{Types: []string{"Reboot"}, VM: "vm-*"}, until: time.Hour, want: "-"},
		{claim: "a mute of other events", mute: &bridge.Mute{Types: []string{"Freeze"}}, until: time.Hour, want: fmt.Sprintf(rule, 0)},
		{claim: "a mute of sinks for people", mute: &bridge.Mute{People: true}, until: time.Hour, want: fmt.Sprintf(rule, 0)},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				r, audit := namedRule(), &recorder{}
				r.Wait = tt.wait
				s.opts.Rules = []bridge.Rule{r}
				drain := (&recorder{answer: always(errSinkDown)}).all("drain").With(func(x *bridge.Terms) { x.Lead = tt.lead })
				b := s.start(drain, audit.all("audit"))
				pause(1500 * time.Millisecond)
				if tt.mute != nil {
					tt.mute.Reason, tt.mute.By = "repairs", "alice"
					if _, err := b.Mute(*tt.mute, tt.until); err != nil {
						t.Fatal(err)
					}
				}
				s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User", Resources: []string{"vm-0"},
					NotBefore: time.Now().Add(15 * time.Minute)})
				pause(2 * time.Second)
				if _, err := b.Unmute(nil, true, "alice"); err != nil {
					t.Fatal(err)
				}
				pause(2 * time.Second)
				wantIDs(t, audit.promised(t)[:1], tt.want)
				b.cancel()
				<-b.done
			})
		})
	}
}

// A reminder says which rules will approve the event by now, not which were to.
func TestAReminderPromisesWhatStillHolds(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		drain, anyway := namedRule(), namedRule()
		anyway.Name, anyway.After, anyway.Wait = "anyway", nil, 14*time.Minute
		s.opts.Rules = []bridge.Rule{drain, anyway}
		sink, audit := &recorder{answer: always(delivery.ErrRejected)}, &recorder{}
		routes := []bridge.Route{sink.all("drain"), audit.all("audit").With(func(r *bridge.Terms) { r.Remind = []time.Duration{2 * time.Minute} })}
		b := s.start(routes...)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(5 * time.Second)
		anyway.Name, anyway.Wait = "in any case", 14*time.Minute+30*time.Second
		b.Reload(b.killable(routes), []bridge.Rule{drain, anyway}, bridge.SettingsInfo{})
		pause(13 * time.Minute)
		wantIDs(t, audit.promised(t), `rule "drain first" after drain and 5s;rule "anyway" after  and 840s;`,
			`rule "in any case" after  and 870s;`)
		b.Reload(b.killable(routes), []bridge.Rule{drain}, bridge.SettingsInfo{})
		pause(5 * time.Second)
		wantIDs(t, audit.withheld(t), `rule "in any case" was removed from the settings`)
		b.end()
	})
}
