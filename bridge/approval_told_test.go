package bridge_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// A sink that acts hears of an approval only when its filter names it; others hear of it with the rest of the event.
func TestWhoActsHearsOfApprovalsOnlyByName(t *testing.T) {
	for _, tt := range []struct {
		acts    bool
		changes []string
		hears   bool
	}{
		{false, nil, true}, {false, []string{"scheduled"}, false}, {false, []string{"approved"}, true},
		{true, nil, false}, {true, []string{"scheduled"}, false}, {true, []string{"scheduled", "approved"}, true},
	} {
		r := bridge.Route{Terms: bridge.Terms{Acts: tt.acts}, Filter: bridge.Filter{Only: bridge.Only{Changes: tt.changes}}}
		if got := r.Hears(imds.Change{Kind: imds.Approved}, "vm-0"); got != tt.hears {
			t.Errorf("acts %v, changes %v: hears of an approval: %v, want %v", tt.acts, tt.changes, got, tt.hears)
		}
	}
}

// The first change of an event is neither an approval nor a reminder: a drain that asks for the first change runs once.
func TestWhatComesFirstIsNoApprovalAndNoReminder(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.opts.Interval = seldom
		route := s.drain.reminds("drain", 10*time.Minute).With(func(terms *bridge.Terms) { terms.Acts = true })
		route.Filter.Only.Changes = []string{"first"}
		s.routes, s.opts.Rules = []bridge.Route{route}, []bridge.Rule{rebootRule}
		s.up()
		s.userRebootIn(time.Hour, idA)
		pause(59 * time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, s.drain.ids(), idA+"-scheduled")
	})
}

// The status says why an event is not approved while that is so: not if it was approved by hand, has begun, or
// that no rule is left for.
func TestStatusSaysWhyAnEventIsNotApprovedWhileItIsNot(t *testing.T) {
	for claim, then := range map[string]func(s *approvalStage){
		"it was approved by hand": func(s *approvalStage) { s.approveNow("root") },
		"it has begun":            func(s *approvalStage) { s.azure.Start(idA) },
		"the rules are gone":      func(s *approvalStage) { s.setRules() },
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.drain.say(always(errSinkDown))
			s.announce(drainRule)
			pause(1500 * time.Millisecond)
			s.wantWhy(`rule 1: sink "drain" failed and is tried again: connection refused`)
			then(s)
			pause(3 * time.Second)
			s.wantWhy("")
		})
	}
}

// The status knows which rules will approve an event, as long as they can.
func TestStatusKnowsWhichRulesWillApprove(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.drain.say(always(errHang))
		s.announce(drainRule)
		running := s.Status().Events[0].Rules
		if len(running) != 1 || running[0].Name != "rule 1" || !slices.Equal(running[0].After, []string{"drain"}) {
			t.Errorf("while the drain runs it knows %v", running)
		}
		s.drain.say(always(delivery.ErrRejected))
		pause(time.Minute)
		if got := s.Status().Events[0].Rules; got != nil {
			t.Errorf("after the drain has failed it knows %v", got)
		}
	})
}

// When the sinks of two promised rules have failed, the status says of each why, and that it may pass if one of them is
// tried again, on the VM and, by what it has told, on a relay.
func TestWhyTwoRulesDoNotApproveIsSaidOfEach(t *testing.T) {
	again, forGood := errors.New("exit 75: 3 sessions left"), fmt.Errorf("%w: exit 1", delivery.ErrRejected)
	const left, failed = "3 sessions left", "exit 1"
	for claim, tt := range map[string]struct {
		drain, cordon       error
		whyDrain, whyCordon string
		notYet              bool
	}{
		"both for good":         {forGood, forGood, failed, failed, false},
		"both are tried again":  {again, again, left, left, true},
		"one is tried again":    {forGood, again, failed, left, true},
		"the other tried again": {again, forGood, left, failed, true},
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			second := namedRule()
			second.Name, second.After = "second", []string{"cordon"}
			s.drain.say(always(tt.drain))
			s.routes = append(s.routes, answering(tt.cordon).all("cordon"))
			s.announce(namedRule(), second)
			pause(3 * time.Minute)
			status := s.Status().Events[0]
			var told bridge.ToldApproval
			for _, h := range s.audit.accepted() {
				told.Note(h.Event)
			}
			relay := bridge.EventStatus{Known: status.Known}
			told.Tell(&relay)
			want := regexp.MustCompile(`^rule "drain first": .*sink "drain".* failed.*: .*` + tt.whyDrain +
				`; rule "second": .*sink "cordon".* failed.*: .*` + tt.whyCordon + `$`)
			for who, said := range map[string]bridge.EventStatus{"the VM": status, "a relay": relay} {
				if !want.MatchString(said.Approval) || said.NotYet != tt.notYet {
					t.Errorf("%s says %q, not yet: %v; want each sink, %v", who, said.Approval, said.NotYet, tt.notYet)
				}
			}
		})
	}
}

// The log says of an event that is not approved whether it may be yet.
func TestTheLogSaysWhetherAnEventMayYetBeApproved(t *testing.T) {
	for _, tt := range []struct {
		claim string
		rule  bridge.Rule
		vms   []string
		want  string
	}{
		{"its drain fails", drainRule, []string{"vm-0"}, `msg="event not approved yet" `},
		{"it hits another VM too", rebootRule, []string{"vm-0", "vm-1"}, `msg="event not approved" `},
	} {
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			s.drain.say(always(errSinkDown))
			s.opts.Rules = []bridge.Rule{tt.rule}
			s.up()
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User", Resources: tt.vms})
			pause(10 * time.Second)
			s.end()
			wantIDs(t, regexp.MustCompile(`msg="event not approved( yet)?" `).FindAllString(s.log.String(), -1), tt.want)
		})
	}
}

// The status of an event that Azure was asked to begin says when and by whom it was approved, also after a restart and
// when the event has changed. One that Azure refused, or that nobody has approved, has no such thing.
func TestStatusSaysWhatWasApproved(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		rule   bridge.Rule
		answer string // of Azure
		by     string
		why    string // it isn't approved
	}{
		{"by a rule", rebootRule, imdstest.ApproveIgnore, "rule 1", ""},
		{"by hand", bridge.Rule{}, imdstest.ApproveIgnore, "root", ""},
		{"refused", rebootRule, imdstest.ApproveRefuse, "", "rule 1: Azure refused the approval"},
		{"no rule is for it", bridge.Rule{Only: bridge.Match{Types: []string{"Freeze"}}}, imdstest.ApproveIgnore, "", ""},
	} {
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: tt.answer})
			s.announce(tt.rule)
			pause(1500 * time.Millisecond)
			if tt.by == "root" {
				s.approve(idA, cloudevent.ResultApproved)
			}
			check := func(when, why string) {
				t.Helper()
				asked := s.Status().Events[0].Asked
				wantAsked(t, when, asked, tt.by, tt.by != "")
				if asked != nil && time.Since(asked.Time) > time.Minute {
					t.Errorf("%s it was asked at %v, want just now", when, asked.Time)
				}
				s.wantWhy(why)
			}
			check("at first", tt.why)
			s.end()
			s.opts.Rules = nil
			s.up()
			check("after a restart", tt.why)
			s.postpone(idA, time.Minute)
			pause(3 * time.Second)
			check("after a change", "")
		})
	}
}

// What is told of an event that Azure was asked to start says who asked and whether Azure agreed, also when the event
// has changed, and in a reminder. Only then does nobody read that it comes at its own time, or that they are to ask.
func TestWhatIsToldAfterAnApprovalSaysWhoAsked(t *testing.T) {
	for claim, answered := range map[string]bool{"Azure agreed": true, "Azure didn't answer": false} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			if !answered {
				s.answersApprovals(503)
			}
			s.routes = []bridge.Route{s.audit.reminds("audit", 5*time.Minute)}
			s.up()
			s.userRebootIn(time.Hour, idA)
			pause(10 * time.Second)
			s.approveNow("root")
			pause(time.Minute)
			s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "another one" })
			pause(55 * time.Minute)
			wantIDs(t, s.audit.types(), "scheduled", "approved", "updated", "reminder")
			for _, d := range s.audit.data(t)[1:] {
				wantAsked(t, string(d.Change), d.Asked, "root", answered)
			}
			wantAsked(t, "the status", s.Status().Events[0].Asked, "root", answered)
		})
	}
}

// Somebody may be quicker than the next poll, or approve while forewarn is stopped. What is told of the event then says
// who asked and that Azure agreed, in the status too, and no rule is promised or asks once more.
func TestWhatWasApprovedBeforeItWasSeenIsToldSo(t *testing.T) {
	for claim, stopped := range map[string]bool{"before the next poll": false, "while forewarn is stopped": true} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.opts.Interval = time.Minute
			s.opts.Rules = []bridge.Rule{waiting(rebootRule, 2*time.Minute)}
			s.up()
			pause(90 * time.Second)
			s.userReboot(idA)
			if stopped {
				s.end()
				s.approveAlone()
				s.up()
			} else {
				s.approve(idA, cloudevent.ResultApproved)
			}
			pause(2 * time.Minute)
			wantAsked(t, "the first that is told", s.audit.data(t)[0].Asked, "root", true)
			wantIDs(t, s.audit.promised(t), "-")
			wantAsked(t, "the status", s.Status().Events[0].Asked, "root", true)
			pause(5 * time.Minute)
			wantIDs(t, s.approvals(), idA)
		})
	}
}

// So it is of an event that is gone and comes back, if somebody approves it then.
func TestWhatWasApprovedBeforeItWasSeenAgainIsToldSo(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.announce()
		s.azure.End(idA)
		pause(3 * time.Second)
		s.end()
		s.userReboot(idA)
		pause(3 * time.Second)
		s.approveAlone()
		s.opts.Rules = []bridge.Rule{rebootRule}
		s.up()
		pause(time.Minute)
		wantAsked(t, "the status", s.Status().Events[0].Asked, "root", true)
		wantIDs(t, s.approvals(), idA)
	})
}

// What somebody asked for is told also if a crash lost the answer.
func TestWhatWasAskedByHandBeforeACrashIsToldSo(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.afterApprovals(func(*http.Response) error {
			time.Sleep(5 * time.Second)
			return errSinkDown
		})
		s.announce()
		go s.approveNow("root")
		pause(2 * time.Second)
		s.crash()
		s.up()
		s.postpone(idA, time.Minute)
		pause(3 * time.Second)
		wantIDs(t, s.approvals(), idA)
		wantAsked(t, "what is told of the change", s.audit.last(t).Asked, "root", false)
	})
}

// That Azure has taken an approval stays said when somebody asks once more and gets no answer.
func TestThatAzureAgreedStaysSaid(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.announce()
		s.approve(idA, cloudevent.ResultApproved)
		s.answersApprovals(503)
		s.approve(idA, cloudevent.ResultUnanswered)
		wantAsked(t, "the status", s.Status().Events[0].Asked, "root", true)
	})
}

// What a rule asked a second time, and Azure then refused, does not hide that Azure has taken what somebody asked
// meanwhile.
func TestARefusalOfARuleDoesNotHideThatAzureAgreed(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		posts := 0
		s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
			if r.Method != http.MethodPost || isByPerson(r) {
				return azure.RoundTrip(r)
			}
			posts++
			if posts == 1 {
				return nil, errSinkDown
			}
			time.Sleep(5 * time.Second)
			s.refusesApprovals()
			return azure.RoundTrip(r)
		})
		s.announce(rebootRule)
		pause(2500 * time.Millisecond)
		s.ApproveNow(byPerson(t), idA, s.shown(idA), "root")
		pause(10 * time.Second)
		wantIDs(t, s.audit.results(t), cloudevent.ResultApproved, cloudevent.ResultRefused)
		wantAsked(t, "the status", s.Status().Events[0].Asked, "root", true)
	})
}

// Azure may have taken an approval whose answer was lost, though it refuses the next one: the event may begin at any
// time.
func TestAnApprovalWhoseAnswerWasLostIsNotForgottenWhenTheNextIsRefused(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		answers := []int{503, 400}
		s.afterApprovals(func(resp *http.Response) error {
			resp.StatusCode, answers = answers[0], answers[1:]
			return nil
		})
		s.announce(rebootRule)
		pause(time.Minute)
		wantIDs(t, s.audit.results(t), cloudevent.ResultRefused)
		wantAsked(t, "the refusal", s.audit.last(t).Asked, "rule 1", false)
	})
}

// Azure's answer to an approval is on record also if it comes after the end of the event. People don't read it: they
// have read that it is over.
func TestAnAnswerAfterTheEndIsOnRecord(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.afterApprovals(func(*http.Response) error {
			time.Sleep(5 * time.Second)
			return nil
		})
		chat := &recorder{}
		people := chat.all("chat").With(func(terms *bridge.Terms) { terms.Late = delivery.LateLatest })
		s.routes = append(s.routes, people)
		s.announce(rebootRule)
		pause(1500 * time.Millisecond)
		s.azure.End(idA)
		pause(time.Minute)
		wantIDs(t, s.audit.types(), "scheduled", "approved", "vanished", "approved")
		wantIDs(t, s.audit.results(t), cloudevent.ResultUnanswered, cloudevent.ResultApproved)
		wantEqual(t, "the last that people read", chat.last(t).Change, imds.Vanished)
	})
}

// What comes of an approval once the event has begun says that it has: nobody must read again that it may begin.
func TestAnAnswerAfterTheStartSaysThatItHasBegun(t *testing.T) {
	for claim, answer := range map[string]error{"Azure agrees": nil, "the answer is lost": errSinkDown} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.afterApprovals(func(*http.Response) error {
				s.azure.Start(idA)
				time.Sleep(5 * time.Second)
				return answer
			})
			s.announce(rebootRule)
			pause(time.Minute)
			wantIDs(t, s.audit.types(), "scheduled", "started", "approved")
			status := s.audit.accepted()[2].Event.Extensions()["azeventstatus"]
			wantEqual[any](t, "the status that is told with the approval", status, imds.StatusStarted)
		})
	}
}
