package bridge_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// drainedFirst is how namedRule is promised.
const drainedFirst = `rule "drain first" after drain and 5s;`

// What a rule will approve is announced with the rule's name and what it waits for, also when the event changes and in
// a reminder. Of the approval its name is told, too.
func TestAnEventIsAnnouncedWithTheRulesThatWillApproveIt(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.drain.say(always(errSinkDown))
		s.routes[1] = s.audit.reminds("audit", time.Minute)
		s.announce(namedRule())
		s.postpone(idA, 5*time.Minute)
		pause(19*time.Minute + 10*time.Second)
		s.drain.say(nil)
		pause(40 * time.Second)
		wantIDs(t, s.audit.types(), "scheduled", "updated", "reminder", "approved")
		wantIDs(t, s.audit.promised(t), drainedFirst, drainedFirst, drainedFirst, "-")
		s.wantLogged(`by="rule \"drain first\""`)
	})
}

// What no rule will approve is not said to start by itself, whatever the doubt.
func TestWhatIsInDoubtIsNotPromised(t *testing.T) {
	for claim, spoil := range map[string]func(s *approvalStage, rule *bridge.Rule, e *imdstest.Event){
		"it also names another VM": func(_ *approvalStage, _ *bridge.Rule, e *imdstest.Event) {
			e.Resources = []string{"vm-0", "vm-1"}
		},
		"its type is not named":   func(_ *approvalStage, _ *bridge.Rule, e *imdstest.Event) { e.Type = "Redeploy" },
		"its source is not named": func(_ *approvalStage, _ *bridge.Rule, e *imdstest.Event) { e.Source = "Platform" },
		"the sink does not get it": func(s *approvalStage, _ *bridge.Rule, _ *imdstest.Event) {
			s.routes[0].Filter.Only.Changes = []string{"started"}
		},
		"there is no such sink": func(_ *approvalStage, rule *bridge.Rule, _ *imdstest.Event) {
			rule.After = []string{"nobody"}
		},
		"a part of the document can't be read": func(s *approvalStage, _ *bridge.Rule, _ *imdstest.Event) {
			s.rewritesDocuments(false, before(`{"EventId":7}`))
		},
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			rule := namedRule()
			rule.Only.Types = []string{"Reboot"}
			e := imdstest.Event{
				ID: idA, Type: "Reboot", Source: "User", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(15 * time.Minute),
			}
			spoil(s, &rule, &e)
			s.drain.say(always(errSinkDown))
			s.opts.Rules = []bridge.Rule{rule}
			s.up()
			s.azure.Schedule(e)
			pause(2 * time.Second)
			wantIDs(t, s.audit.promised(t), "-")
		})
	}
}

// A promise that can't be kept before the event may begin is not made, whether a mute, a lead or the rule's own wait is
// longer than the notice. One that can be kept all the same is.
func TestWhatWouldComeTooLateIsNotPromised(t *testing.T) {
	for _, tt := range []struct {
		claim      string
		wait, lead time.Duration
		mute       bridge.Mute
		muted      time.Duration // 0 for no mute
		promised   bool
	}{
		{claim: "a wait within the notice", wait: 14 * time.Minute, promised: true},
		{claim: "a wait longer than the notice", wait: 16 * time.Minute},
		{claim: "a lead", lead: 5 * time.Minute, promised: true},
		{claim: "a lead, and a wait longer than that", lead: 5 * time.Minute, wait: 6 * time.Minute},
		{claim: "a mute within the notice", mute: bridge.Mute{Sink: "drain"}, muted: 10 * time.Minute, promised: true},
		{claim: "a mute within the notice, and a wait that is not", mute: bridge.Mute{Sink: "drain"}, muted: 10 * time.Minute,
			wait: 10 * time.Minute},
		{claim: "a mute longer than the notice", mute: bridge.Mute{Sink: "drain"}, muted: time.Hour},
		{claim: "a mute of everything", muted: time.Hour},
		{claim: "a mute of such events", mute: bridge.Mute{Types: []string{"Reboot"}, VM: "vm-*"}, muted: time.Hour},
		{claim: "a mute of other events", mute: bridge.Mute{Types: []string{"Freeze"}}, muted: time.Hour, promised: true},
		{claim: "a mute of sinks for people", mute: bridge.Mute{People: true}, muted: time.Hour, promised: true},
	} {
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			s.drain.say(always(errSinkDown))
			s.routes[0].Terms.Lead = tt.lead
			s.opts.Rules = []bridge.Rule{waiting(namedRule(), tt.wait, "drain")}
			s.up()
			if tt.muted > 0 {
				tt.mute.Reason, tt.mute.By = "repairs", "alice"
				if _, err := s.Mute(tt.mute, tt.muted); err != nil {
					t.Fatal(err)
				}
			}
			s.userReboot(idA)
			pause(2 * time.Second)
			s.unmute() // the audit too
			pause(2 * time.Second)
			want := "-"
			if tt.promised {
				want = fmt.Sprintf(`rule "drain first" after drain and %vs;`, tt.wait.Seconds())
			}
			wantEqual(t, "what is promised", s.audit.promised(t)[0], want)
		})
	}
}

// A rule that waits for a sink with a lead is announced with the time at which that begins.
func TestARuleIsAnnouncedWithTheLeadOfItsSink(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.routes[0].Terms.Lead = 5 * time.Minute
		s.announce(namedRule())
		d := s.audit.last(t)
		if len(d.Rules) != 1 || !d.Rules[0].From.Equal(d.NotBefore.Add(-5*time.Minute)) {
			t.Errorf("announced with %+v, want from five minutes before %v", d.Rules, d.NotBefore)
		}
	})
}

// Half a minute before the eviction of a Spot VM nobody has to read of rules, nor that one failed.
func TestAnEvictionIsToldWithoutRules(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		rule := namedRule()
		rule.Only.Sources = nil
		s.drain.say(always(delivery.ErrRejected))
		s.opts.Rules = []bridge.Rule{rule}
		s.up()
		s.azure.Schedule(imdstest.Event{
			ID: idA, Type: "Preempt", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(30 * time.Second),
		})
		pause(20 * time.Second)
		wantIDs(t, s.audit.promised(t), "-")
	})
}

// A reminder says which rules will approve the event by now, not which were to.
func TestAReminderPromisesWhatStillHolds(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		anyway := waiting(namedRule(), 14*time.Minute)
		anyway.Name = "anyway"
		s.drain.say(always(delivery.ErrRejected))
		s.routes[1] = s.audit.reminds("audit", 2*time.Minute)
		s.announce(namedRule(), anyway)
		pause(5 * time.Second)
		anyway.Name, anyway.Wait = "in any case", 14*time.Minute+30*time.Second
		s.setRules(namedRule(), anyway)
		pause(13 * time.Minute)
		wantIDs(t, s.audit.promised(t), drainedFirst+`rule "anyway" after  and 840s;`, `rule "in any case" after  and 870s;`)
		s.setRules(namedRule())
		pause(5 * time.Second)
		wantIDs(t, s.audit.withheld(t), `rule "in any case" was removed from the settings`)
	})
}

// A reminder names no rule of an event that somebody has approved just before, though the rules haven't had their turn
// since because Azure is long about another one.
func TestAReminderAfterAnApprovalByHandNamesNoRule(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
			if r.Method == http.MethodPost && !isByPerson(r) {
				select {
				case <-time.After(9 * time.Second):
				case <-r.Context().Done():
				}
			}
			return azure.RoundTrip(r)
		})
		slow := waiting(rebootRule, 25*time.Minute-2*time.Second)
		slow.Only.Types = []string{"Redeploy"}
		s.opts.Rules = []bridge.Rule{waiting(namedRule(), 29*time.Minute, "drain"), slow}
		s.routes[1] = s.audit.reminds("audit", 5*time.Minute)
		s.up()
		s.redeploy(idB, time.Hour)
		s.userRebootIn(30*time.Minute, idA)
		pause(24*time.Minute + 59*time.Second)
		s.ApproveNow(byPerson(t), idA, s.shown(idA), "root")
		pause(20 * time.Second)
		reminders := 0
		for _, d := range s.audit.data(t) {
			if d.Change == imds.Reminder {
				reminders++
				wantEqual(t, "rules that the reminder names", len(d.Rules), 0)
			}
		}
		wantEqual(t, "reminders", reminders, 1)
	})
}

// A refusal and a reminder name the rules that may start the event all the same by what those say then: one that came
// by a reload, and one whose sink failed and is tried again.
func TestARefusalAndAReminderNameTheRulesOfThen(t *testing.T) {
	for claim, tried := range map[string]bool{"a reload brought it": false, "its sink is tried again": true} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveRefuse, Times: 1})
			s.routes[0].Terms.Timeout = 0
			s.routes[1] = s.audit.reminds("audit", 5*time.Minute)
			s.drain.say(always(errHang))
			if tried {
				s.drain.say(always(errSinkDown))
				s.opts.Rules = []bridge.Rule{namedRule()}
			}
			s.up()
			s.userRebootIn(time.Hour, idA)
			pause(2 * time.Minute)
			if !tried {
				s.setRules(namedRule())
				pause(5 * time.Second)
			}
			s.approve(idA, cloudevent.ResultRefused)
			pause(55 * time.Minute)
			told := 0
			for _, d := range s.audit.data(t) {
				refused := d.Approval != nil && d.Approval.Result == cloudevent.ResultRefused
				if !refused && d.Change != imds.Reminder {
					continue
				}
				told++
				if len(d.Rules) != 1 || d.Rules[0].Name != `rule "drain first"` || (d.Rules[0].Again != "") != tried {
					t.Errorf("the %s names the rules %+v", d.Change, d.Rules)
				}
			}
			wantEqual(t, "refusals and reminders", told, 2)
		})
	}
}

// Who was told that Azure took the approval isn't told that it is withheld, because the event changed while Azure was asked.
func TestWhatAzureTookIsNotWithheld(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.afterApprovals(func(*http.Response) error {
			s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = time.Now().Add(5 * time.Minute) })
			pause(3 * time.Second)
			return nil
		})
		s.routes[0].Filter.Only.Changes = []string{"scheduled"}
		s.announce(namedRule())
		pause(2 * time.Minute)
		wantIDs(t, s.audit.types(), "scheduled", "updated", "approved")
		wantIDs(t, s.audit.results(t), cloudevent.ResultApproved)
	})
}
