package bridge_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

var (
	errDrainFailed = fmt.Errorf("%w: exit 1", delivery.ErrRejected)
	errSessions    = errors.New("exit 75: 3 sessions left")
)

// When the drain fails, those who were told that the event starts by itself are told once that it does not, and why:
// those of the event, and those of trouble. A restart does not make them forget it, or be told twice. Whoever mends the
// drain and replays the dead letter has the event approved after all.
func TestAFailedDrainIsToldWithItsReason(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		trouble := &recorder{}
		onCall := trouble.all("on-call").With(func(r *bridge.Terms) { r.Bridge = bridge.LevelTrouble })
		s.routes[0].Terms.Acts = true
		s.routes = append(s.routes, onCall.OnlyTypes("Freeze"))
		s.drain.say(always(errSinkDown))
		s.announce(namedRule())
		s.crash()
		s.drain.say(always(errDrainFailed))
		s.up()
		pause(time.Minute)
		s.end()
		s.up()
		pause(time.Minute)
		wantIDs(t, s.audit.withheld(t), "drain: rejected: exit 1")
		wantEqual(t, "the rule that doesn't approve it", s.audit.lastApproval(t).By, `rule "drain first"`)
		wantIDs(t, trouble.withheld(t), "drain: rejected: exit 1")
		wantIDs(t, s.approvals())

		s.drain.say(nil)
		s.replay(s.deadLetters()[0], "")
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, s.audit.results(t), cloudevent.ResultWithheld, cloudevent.ResultApproved)
	})
}

// A drain that asks again and again to be run again is told of after a minute, and that it is tried again. When it is
// done at last, the event is approved.
func TestADrainThatIsNotDoneIsTold(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.drain.say(always(errSessions))
		s.opts.Rules = []bridge.Rule{namedRule()}
		s.up()
		s.userReboot(idA)
		pause(bridge.FailingFor - time.Second)
		wantIDs(t, s.audit.results(t))
		pause(5 * time.Minute)
		wantIDs(t, s.audit.withheld(t), "not yet: drain: exit 75: 3 sessions left")
		wantIDs(t, s.approvals())
		s.drain.say(nil)
		pause(5 * time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, s.audit.results(t), cloudevent.ResultWithheld, cloudevent.ResultApproved)
	})
}

// Who was told that a rule doesn't approve the event yet is told once more when that is for good: because the drain
// failed for good, or the rule is gone. A restart between doesn't make it forgotten, or told twice.
func TestWhatMayPassIsToldAgainWhenItIsForGood(t *testing.T) {
	for claim, tt := range map[string]struct {
		end  func(s *approvalStage)
		want string
	}{
		"the drain fails for good": {func(s *approvalStage) {
			s.drain.say(always(errDrainFailed))
		}, "drain: rejected: exit 1"},
		"the rule is gone": {func(s *approvalStage) { s.setRules() }, `rule "drain first" was removed from the settings`},
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.drain.say(always(errSessions))
			s.announce(namedRule())
			pause(2 * time.Minute)
			s.crash()
			s.up()
			pause(2 * time.Minute)
			tt.end(s)
			pause(6 * time.Minute)
			wantIDs(t, s.audit.withheld(t), "not yet: drain: exit 75: 3 sessions left", tt.want)
			wantIDs(t, s.audit.promised(t), drainedFirst, "-", "-")
			wantIDs(t, s.approvals())
		})
	}
}

// When the rule that was announced is off for good and another one may approve the event yet, people read why each of
// them doesn't, and not that what has failed is tried again.
func TestWhatMayPassIsSaidOfTheRuleOfWhichItIsTrue(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		second := namedRule()
		second.Name, second.After = "after backup", []string{"backup"}
		s.drain.say(always(errDrainFailed))
		s.routes = append(s.routes, (&recorder{}).all("backup"))
		s.opts.Rules = []bridge.Rule{namedRule(), second}
		s.up()
		s.mute("backup", time.Hour)
		s.userReboot(idA)
		pause(2 * time.Minute)
		wantIDs(t, s.audit.withheld(t), `not yet: rule "drain first": sink "drain" failed: exit 1; `+
			`rule "after backup": sink "backup" is muted until 01:00:01 UTC`)
		wantEqual(t, "the rule that doesn't approve it", s.audit.lastApproval(t).By, `rule "drain first"`)
	})
}

// As long as one of the rules may approve the event, nobody is told that none does.
func TestOneOfTheRulesIsEnough(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.drain.say(always(delivery.ErrRejected))
		s.announce(namedRule(), waiting(namedRule(), 10*time.Minute))
		pause(11 * time.Minute)
		wantIDs(t, s.audit.results(t), cloudevent.ResultApproved)
		wantIDs(t, s.approvals(), idA)
	})
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
			`sink "drain" did not get the latest change`},
		{"it names another VM, too", func(e *imdstest.Event) { e.Resources = []string{"vm-0", "vm-1"} },
			"it also names vm-1, and the rule has no others: true"},
		{"it names another VM", func(e *imdstest.Event) { e.Resources = []string{"vm-1"} },
			`rule "drain first" is not for events of other VMs`},
		{"its type is not the rule's", func(e *imdstest.Event) { e.Type = "Freeze" },
			`rule "drain first" is not for a Freeze`},
	} {
		for claim, busy := range map[string]bool{"while the drain runs": true, "while Azure is asked": false} {
			approvalSubtest(t, tt.claim+", "+claim, func(t *testing.T, s *approvalStage) {
				rule := namedRule()
				rule.Only.Types = []string{"Reboot"}
				s.opts.Rules = []bridge.Rule{rule}
				if busy {
					s.drain.say(always(errSessions))
				} else {
					s.answersApprovals(503)
				}
				s.routes[0].Filter.Only.Changes = []string{"scheduled"}
				s.up()
				s.userRebootIn(2*time.Hour, idA)
				pause(15 * time.Second)
				wantIDs(t, s.audit.withheld(t))
				s.azure.Update(idA, tt.change)
				pause(3 * time.Second)
				wantIDs(t, s.audit.withheld(t), tt.why)
				pause(2 * time.Minute)
				wantIDs(t, s.audit.withheld(t), tt.why)
				wantIDs(t, s.approvals())
			})
		}
	}
}

// A mute that comes later and lasts too long takes the promise back after a minute. The status names it at once, also
// one that ends in time, which takes nothing back.
func TestAMuteThatLastsTooLongTakesThePromiseBack(t *testing.T) {
	for name, tt := range map[string]struct {
		muted  time.Duration
		status string
		told   []string
		result []string
	}{
		"too long": {time.Hour, `sink "drain" is muted until `, []string{`not yet: sink "drain" is muted until 01:00:03 UTC`},
			[]string{cloudevent.ResultWithheld, cloudevent.ResultApproved}},
		"in time": {10 * time.Minute, `sink "drain" is muted until `, nil,
			[]string{cloudevent.ResultApproved}},
	} {
		approvalSubtest(t, name, func(t *testing.T, s *approvalStage) {
			if name != "in time" {
				systemtest.Alone(t)
			}
			s.drain.say(always(&delivery.RetryAfter{Err: errSinkDown, After: 4 * time.Second}))
			s.announce(namedRule())
			pause(500 * time.Millisecond)
			s.drain.say(nil)
			s.mute("drain", tt.muted)
			pause(bridge.FailingFor / 2)
			if got := s.Status().Events[0].Approval; !strings.HasPrefix(got, `rule "drain first": `+tt.status) {
				t.Errorf("the status says %q, want %q", got, tt.status)
			}
			wantIDs(t, s.audit.withheld(t))
			pause(bridge.FailingFor)
			wantIDs(t, s.audit.withheld(t), tt.told...)
			pause(tt.muted + time.Minute)
			wantIDs(t, s.audit.results(t), tt.result...)
			wantIDs(t, s.approvals(), idA)
		})
	}
}

// After a start nobody is told what becomes of a rule before a document has shown that the event isn't over.
func TestAPromiseAboutAnEventThatIsOverIsNotTakenBack(t *testing.T) {
	for claim, happens := range map[string]func(*approvalStage){
		"the name of the VM is awaited": func(s *approvalStage) { s.nameless() },
		"Azure doesn't answer yet": func(s *approvalStage) {
			s.azure.SetFault(imdstest.Fault{Status: 503, For: time.Minute})
		},
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.announce(waiting(rebootRule, 10*time.Minute))
			s.end()
			s.azure.End(idA)
			happens(s)
			s.opts.Rules = nil
			s.up()
			pause(2 * time.Minute)
			wantIDs(t, s.audit.types(), "scheduled", "vanished")
		})
	}
}

// After a reload people are told once if a rule that they were told of is no longer there, with the rules that still
// are, or if none approves the event any more; with the exact reason. What comes later, within the notice, or sooner,
// is not worth a message, nor is a new name.
func TestAReloadThatBreaksAPromiseIsTold(t *testing.T) {
	drain, anyway := namedRule(), waiting(namedRule(), 10*time.Minute)
	anyway.Name = "anyway"
	changed := func(change func(*bridge.Rule)) []bridge.Rule {
		r := namedRule()
		change(&r)
		return []bridge.Rule{r}
	}
	unnamed := func(r bridge.Rule) bridge.Rule {
		r.Name = ""
		return r
	}
	one, both := []bridge.Rule{drain}, []bridge.Rule{drain, anyway}
	renamed := changed(func(r *bridge.Rule) { r.Name = "empty it" })
	for _, tt := range []struct {
		claim         string
		before, after []bridge.Rule
		drain         error    // when the settings come; nil for one that isn't done
		told          []string // why it isn't approved
		still         string   // the rules that stand
	}{
		{claim: "nothing changed", before: both, after: both},
		{claim: "it is gone", before: one, told: []string{`rule "drain first" was removed from the settings`}},
		{claim: "both are gone", before: both, told: []string{`rule "drain first" was removed from the settings; ` +
			`rule "anyway" was removed from the settings`}},
		{claim: "one of two is gone", before: both, after: one,
			told: []string{`rule "anyway" was removed from the settings`}, still: drainedFirst},
		{claim: "one of two without names is gone",
			before: []bridge.Rule{unnamed(anyway), unnamed(drain)}, after: []bridge.Rule{unnamed(drain)},
			told: []string{"rule 1 was changed in the settings"}, still: "rule 1 after drain and 5s;"},
		{claim: "one failed, and the other is gone", before: both, after: one, drain: errDrainFailed,
			told: []string{`rule "drain first": sink "drain" failed: exit 1; rule "anyway" was removed from the settings`}},
		{claim: "one is tried again, and the other is gone", before: both, after: one, drain: errSessions,
			told: []string{`not yet: rule "drain first": sink "drain" failed and is tried again: exit 75: 3 sessions left; ` +
				`rule "anyway" was removed from the settings`}},
		{claim: "another one comes", before: one, after: both},
		{claim: "it waits for longer", before: one, after: changed(func(r *bridge.Rule) { r.Wait = time.Minute })},
		{claim: "it waits for too long", before: one, after: changed(func(r *bridge.Rule) { r.Wait = time.Hour }),
			told: []string{`it waits for sink "drain", and the wait of 1h after that is too long`}},
		{claim: "it has a new name", before: one, after: renamed},
		{claim: "it has a new name, and the drain failed", before: one, after: renamed, drain: errDrainFailed,
			told: []string{"drain: rejected: exit 1"}},
		{claim: "it is for other events", before: one,
			after: changed(func(r *bridge.Rule) { r.Only.Types = []string{"Freeze"} }),
			told:  []string{`rule "drain first" is not for a Reboot`}},
		{claim: "it waits for another sink, which fails", before: one,
			after: changed(func(r *bridge.Rule) { r.After = []string{"drain-2"} }),
			told:  []string{"drain-2: rejected: exit 1"}},
	} {
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			s.drain.say(always(errHang))
			if tt.drain != nil {
				s.drain.say(always(tt.drain))
			}
			s.routes[0].Terms.Timeout = 0
			s.opts.Rules = tt.before
			s.up()
			s.userReboot(idA)
			pause(1200 * time.Millisecond)
			s.routes = append(s.routes, answering(errDrainFailed).all("drain-2"))
			s.setRules(tt.after...)
			pause(2 * time.Minute)
			wantIDs(t, s.audit.withheld(t), tt.told...)
			told := s.audit.promised(t)
			if tt.still != "" && !slices.Equal(told[len(told)-1:], []string{tt.still}) {
				t.Errorf("told that it starts by %q, want %q at last", told, tt.still)
			}
		})
	}
}

// Once a drain takes so long that the rule's wait after it can't end in time, people are told, and nobody reads any
// more that the rule starts the event.
func TestThatADrainTakesTooLongForTheWaitIsTold(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.drain.say(always(errHang))
		s.routes[0].Terms.Timeout = time.Hour
		s.routes[1] = s.audit.reminds("audit", 2*time.Minute)
		s.announce(waiting(namedRule(), 5*time.Minute, "drain")) // of what comes in 15 minutes
		pause(9 * time.Minute)
		wantIDs(t, s.audit.withheld(t))
		pause(2 * time.Minute)
		wantIDs(t, s.audit.withheld(t), `it waits for sink "drain", and the wait of 5m after that is too long`)
		pause(150 * time.Second)
		wantIDs(t, s.audit.types(), "scheduled", "approved", "reminder")
		wantEqual(t, "rules that the reminder names", len(s.audit.last(t).Rules), 0)
		wantIDs(t, s.approvals())
	})
}

// What rules say of an event knows what somebody asked of Azure by hand: without an answer the event may begin at any
// time, though the drain fails; and a refusal leaves what rules will do as it is.
func TestRulesAndAnApprovalByHandKnowOfEachOther(t *testing.T) {
	for what, tt := range map[string]struct {
		fault imdstest.Fault
		asked string
		rules string // that are told with what came of it
	}{
		"without an answer": {imdstest.Fault{Path: imdstest.Approvals, Status: 503}, "root", "-"},
		"refused":           {imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveRefuse}, "", drainedFirst},
	} {
		approvalSubtest(t, what, func(t *testing.T, s *approvalStage) {
			s.azure.SetFault(tt.fault)
			s.drain.say(always(errSinkDown))
			s.announce(namedRule())
			s.approveNow("root")
			pause(2 * time.Minute)
			wantAsked(t, "the status", s.Status().Events[0].Asked, tt.asked, false)
			wantEqual(t, "what is told at last", s.audit.lastApproval(t).Result, cloudevent.ResultWithheld)
			wantAsked(t, "what is told at last", s.audit.last(t).Asked, tt.asked, false)
			wantIDs(t, s.audit.promised(t), drainedFirst, tt.rules, "-")
		})
	}
}

// That Azure doesn't answer the approval stands in the status at once, and is told after a minute: Azure may have taken
// it.
func TestAnApprovalThatAzureDoesNotTakeIsTold(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.answersApprovals(503)
		s.announce(namedRule())
		pause(30 * time.Second)
		status := s.Status().Events[0].Approval
		wantIn(t, "the status", status, "Azure hasn't answered the approval")
		wantIn(t, "the status", status, "503")
		wantIDs(t, s.audit.withheld(t))
		pause(5 * time.Minute)
		told := s.audit.withheld(t)
		wantEqual(t, "times that it is told", len(told), 1)
		wantIn(t, "what is told", told[0], "not yet: ")
		wantIn(t, "what is told", told[0], "503")
		wantIn(t, "what is told", told[0], "; it is tried again")
		wantAsked(t, "what is told", s.audit.last(t).Asked, `rule "drain first"`, false)
		s.azure.ClearFaults()
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, s.audit.results(t), cloudevent.ResultWithheld, cloudevent.ResultApproved)
		s.wantWhy("")
	})
}

// A doubt that lasts is told after a minute, whether the poll loop sees it or only the last look does. When it is over
// the event is approved, and that is told.
func TestADoubtThatLastsIsTold(t *testing.T) {
	for seenBy, quietly := range map[string]bool{"polls": false, "the last look": true} {
		approvalSubtest(t, seenBy, func(t *testing.T, s *approvalStage) {
			doubtful := s.doubts(quietly, asks(``))
			s.announce(namedRule())
			pause(500 * time.Millisecond)
			doubtful.Store(true)
			pause(bridge.FailingFor - time.Second)
			wantIDs(t, s.audit.withheld(t))
			pause(20 * time.Second)
			wantIDs(t, s.audit.withheld(t), "not yet: Azure's newest document differs in EventSource")
			wantIn(t, "the status", s.Status().Events[0].Approval, "differs in EventSource")
			pause(5 * time.Minute)
			doubtful.Store(false)
			pause(2 * time.Minute)
			wantIDs(t, s.approvals(), idA)
			wantIDs(t, s.audit.results(t), cloudevent.ResultWithheld, cloudevent.ResultApproved)
		})
	}
}

// A failure that lasts less than a minute is not told, however long the event has been known.
func TestAShortDoubtIsNotTold(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		doubtful := s.doubts(false, asks(``))
		s.announce(waiting(namedRule(), 10*time.Minute, "drain"))
		pause(3 * time.Minute)
		for range 3 { // together more than a minute
			doubtful.Store(true)
			pause(40 * time.Second)
			doubtful.Store(false)
			pause(40 * time.Second)
		}
		pause(10 * time.Minute)
		wantIDs(t, s.audit.results(t), cloudevent.ResultApproved)
	})
}
