package bridge_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imdstest"
)

// An approval by hand that takes long is nobody else's meanwhile, and goes to Azure once, whatever the rules say.
func TestAnApprovalByHandIsLeftAlone(t *testing.T) {
	for claim, meanwhile := range map[string]func(s *approvalStage){
		"there are no rules": func(*approvalStage) {},
		"a rule comes":       func(s *approvalStage) { s.setRules(rebootRule) },
		"a rule comes after the approval of a second person came to nothing": func(s *approvalStage) {
			s.ApproveNow(s.t.Context(), idA, "something else", "mistaken")
			s.setRules(rebootRule)
		},
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.beforeApprovals(func() error {
				time.Sleep(5 * time.Second)
				return nil
			})
			s.announce()
			time.AfterFunc(time.Second, func() { meanwhile(s) })
			if a := s.approveNow("root"); a.Result != cloudevent.ResultApproved || a.By != "root" || a.Attempts != 1 {
				t.Errorf("ApproveNow = %+v, want it approved", a)
			}
			pause(time.Minute)
			wantIDs(t, s.approvals(), idA)
			wantIDs(t, s.audit.ids(), idA+"-scheduled", idA+"-approved")
		})
	}
}

// What a sink could not be told yet of an approval is told though the event moves then, and the news of that waits for
// its lead.
func TestAnApprovalIsToldThoughTheEventMovesAway(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.opts.Interval = seldom
		s.answersApprovals(400)
		ops := answering(errSinkDown)
		s.routes = []bridge.Route{ops.all("ops").With(func(x *bridge.Terms) { x.Lead = 10 * time.Minute })}
		s.up()
		s.userRebootIn(30*time.Minute, idA)
		pause(2 * seldom)
		s.approve(idA, cloudevent.ResultRefused)
		pause(time.Minute)
		s.postpone(idA, time.Hour)
		pause(2 * seldom)
		ops.say(nil)
		pause(90 * time.Minute)
		wantIDs(t, ops.types(), "approved", "updated")
	})
}

// By hand, what is approved is what somebody was shown: an event that changed since is not, and neither is one that
// nobody was shown, has begun or is gone. Then Azure isn't asked, and nothing goes on record.
func TestByHandExactlyWhatWasShownIsApproved(t *testing.T) {
	approved, moot := cloudevent.ResultApproved, cloudevent.ResultMoot
	before := func(_ *approvalStage, shown string) string { return shown }
	now := func(s *approvalStage, _ string) string { return s.shown(idA) }
	for _, tt := range []struct {
		claim  string
		then   func(s *approvalStage)
		says   func(s *approvalStage, shown string) string // what somebody says that they were shown
		result string
	}{
		{"nothing changes", func(*approvalStage) {}, before, approved},
		{"it becomes another type for other VMs", func(s *approvalStage) {
			s.azure.Update(idA, func(e *imdstest.Event) { e.Type, e.Resources = "Terminate", []string{"vm-1", "vm-2"} })
		}, before, moot},
		{"it names one more VM", func(s *approvalStage) {
			s.azure.Update(idA, func(e *imdstest.Event) { e.Resources = append(e.Resources, "vm-1") })
		}, before, moot},
		{"it moves", func(s *approvalStage) { s.postpone(idA, time.Minute) }, before, moot},
		{"it has begun, and that was shown", func(s *approvalStage) { s.azure.Start(idA) }, now, moot},
		{"it is gone", func(s *approvalStage) { s.azure.End(idA) }, before, moot},
		{"it is gone, and nobody says what was shown", func(s *approvalStage) { s.azure.End(idA) }, now, moot},
		{"nobody says what was shown", func(*approvalStage) {}, func(*approvalStage, string) string { return "" }, moot},
		{"a part of the digest is no digest", func(*approvalStage) {}, func(_ *approvalStage, shown string) string {
			return shown[:8]
		}, moot},
	} {
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			s.announce()
			shown := s.shown(idA)
			tt.then(s)
			a := s.ApproveNow(t.Context(), idA, tt.says(s, shown), "root")
			wantEqual(t, "the approval", a.Result, tt.result)
			pause(10 * time.Second)
			if tt.result == approved {
				wantIDs(t, s.approvals(), idA)
				return
			}
			wantEqual(t, "attempts", a.Attempts, 0)
			wantEqual(t, "approvals that were sent", s.sent(), 0)
			wantIDs(t, s.audit.results(t))
		})
	}
}

// An approval by hand that fails, or that a crash interrupts, leaves the event to the rules, which approve it then.
func TestAnApprovalByHandThatFailsLeavesTheRules(t *testing.T) {
	for crash, results := range map[bool][]string{
		false: {cloudevent.ResultUnanswered, cloudevent.ResultApproved}, true: {cloudevent.ResultApproved},
	} {
		approvalSubtest(t, fmt.Sprintf("crash %v", crash), func(t *testing.T, s *approvalStage) {
			var failing atomic.Bool
			failing.Store(true)
			s.beforeApprovals(func() error {
				if failing.Load() {
					time.Sleep(3 * time.Second)
					return errSinkDown
				}
				return nil
			})
			s.announce()
			asked := make(chan cloudevent.Approval, 1)
			go func() { asked <- s.approveNow("root") }()
			pause(time.Second)
			if crash {
				s.crash()
				s.up()
				pause(10 * time.Second) // there is nobody to approve it
				wantIDs(t, s.audit.ids(), idA+"-scheduled")
			}
			<-asked
			failing.Store(false)
			s.setRules(rebootRule)
			pause(time.Minute)
			wantIDs(t, s.approvals(), idA)
			wantIDs(t, s.audit.results(t), results...)
			wantEqual(t, "who approved it", s.audit.lastApproval(t).By, "rule 1")
		})
	}
}

// An approval by hand that is under way at SIGTERM is on record before the outbox is closed; one that would take too
// long is given up, and that is on record. A bridge that has stopped approves nothing.
func TestAStopWaitsForTheRecordOfAnApprovalByHand(t *testing.T) {
	for result, takes := range map[string]time.Duration{
		cloudevent.ResultApproved: 3 * time.Second, cloudevent.ResultUnanswered: time.Hour,
	} {
		approvalSubtest(t, result, func(t *testing.T, s *approvalStage) {
			s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
				if r.Method == http.MethodPost {
					select {
					case <-time.After(takes):
					case <-r.Context().Done():
						return nil, context.Cause(r.Context())
					}
				}
				return azure.RoundTrip(r)
			})
			s.announce()
			asked := make(chan cloudevent.Approval, 1)
			go func() { asked <- s.approveNow("root") }()
			pause(time.Second)
			s.end()
			wantEqual(t, "the approval", (<-asked).Result, result)
			s.approve(idA, cloudevent.ResultRefused)
			s.up()
			pause(3 * time.Second)
			wantIDs(t, s.audit.ids(), idA+"-scheduled", idA+"-approved")
			wantIDs(t, s.audit.results(t), result)
		})
	}
}

// An event that no document has shown yet isn't over.
func TestAnEventThatWasNotSeenYetIsNotOver(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.opts.Interval = time.Minute
		s.refusesApprovals()
		stream := &recorder{}
		s.routes = []bridge.Route{stream.all("stream").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelTrouble })}
		s.up()
		pause(90 * time.Second)
		s.userReboot(idA)
		s.approve(idA, cloudevent.ResultRefused)
		pause(time.Second)
		all := stream.accepted()
		wantEqual(t, "number of deliveries", len(all), 1)
		wantEqual(t, "it is delivered as one whose event is over", all[0].EventOver, false)
	})
}

// So it does when that was before forewarn had seen the event, whatever comes of the second approval. The event is then not
// told as called off.
func TestThatAzureAgreedStaysSaidOfAnEventThatWasNotSeenYet(t *testing.T) {
	for result, fault := range map[string]imdstest.Fault{
		cloudevent.ResultRefused:    {Path: imdstest.Approvals, Approve: imdstest.ApproveRefuse},
		cloudevent.ResultUnanswered: {Path: imdstest.Approvals, Status: 503},
	} {
		approvalSubtest(t, result, func(t *testing.T, s *approvalStage) {
			s.opts.Interval = seldom
			s.up()
			pause(seldom)
			s.userReboot(idA)
			wantEqual(t, "the first result", s.approveNow("root").Result, cloudevent.ResultApproved)
			s.azure.SetFault(fault)
			wantEqual(t, "the second result", s.approveNow("jane").Result, result)
			pause(2 * seldom)
			wantAsked(t, "the status", s.Status().Events[0].Asked, "root", true)
			s.azure.End(idA)
			pause(2 * seldom)
			s.audit.wantEnd(t, cloudevent.OutcomeUnknown)
		})
	}
}

// A refusal names no rule that the event, which changed while Azure was asked, no longer has.
func TestARefusalNamesNoRuleOfAnEarlierChange(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.refusesApprovals()
		s.afterApprovals(func(*http.Response) error {
			s.moveTo(idA, "vm-0", "vm-1")
			pause(3 * time.Second)
			return nil
		})
		s.announce(waiting(namedRule(), 10*time.Minute, "drain"))
		wantEqual(t, "the result", s.approveNow("root").Result, cloudevent.ResultRefused)
		pause(5 * time.Second)
		wantIDs(t, s.audit.results(t), cloudevent.ResultRefused, cloudevent.ResultWithheld)
		wantIDs(t, s.audit.promised(t), `rule "drain first" after drain and 600s;`, "-", "-", "-")
	})
}
