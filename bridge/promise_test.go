package bridge

import (
	"errors"
	"fmt"
	"strings"
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
		if a := dataIn(t, audit.accepted()[1].Event).Approval; a.Sink != "" || a.Error != "the settings no longer have such a rule" {
			t.Errorf("it is told as %+v", a)
		}
		b.end()
	})
}
