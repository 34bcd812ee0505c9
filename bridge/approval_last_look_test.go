package bridge_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imdstest"
)

// The last look before an approval may see that an event has moved before a poll does. Then nothing is sent: the event
// is decided anew when its change is known.
func TestWhatOnlyTheLastLookFindsMovedIsNotApproved(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.opts.Interval = 5 * time.Minute
		rule := waiting(rebootRule, time.Minute)
		rule.Name = "restart"
		s.opts.Rules = []bridge.Rule{rule}
		s.userReboot(idA)
		s.up()
		pause(30 * time.Second)
		s.postpone(idA, time.Hour)
		pause(4 * time.Minute)
		wantIDs(t, s.approvals())
		wantIDs(t, s.audit.types(), "scheduled", "approved")
		wantIDs(t, s.audit.results(t), cloudevent.ResultWithheld)
		s.wantLogged(`rule \"restart\": Azure's newest document differs in NotBefore`)
		s.wantLoggedTimes(0, "rule 1")
		s.wantLoggedTimes(0, "approval not sent")
		pause(4 * time.Minute)
		wantIDs(t, s.approvals(), idA)
	})
}

// While the attempt is written to a slow disk, the event may change, or the disk fail. Then nothing is sent, and nobody
// reads that Azure was asked.
func TestAnAttemptThatIsNotMadeAfterItsSlowWriteIsNotSaidToBeMade(t *testing.T) {
	for claim, tt := range map[string]struct {
		after time.Duration // the disk is slow: the decision is written in the first two seconds, then the attempt
		spoil func(*approvalStage)
	}{
		"the event changed":        {5 * time.Second, becomesAnothers},
		"the disk is full by then": {3 * time.Second, func(s *approvalStage) { s.disk.fail(errFull) }},
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			var slow atomic.Int64
			s.wrote = func() { time.Sleep(time.Duration(slow.Load())) }
			s.announce(waiting(rebootRule, 3*time.Second))
			pause(500 * time.Millisecond)
			slow.Store(int64(2 * time.Second))
			pause(tt.after)
			tt.spoil(s)
			pause(2 * time.Minute)
			slow.Store(0)
			pause(time.Minute)
			wantIDs(t, s.approvals())
			for _, d := range s.audit.data(t) {
				if d.Approval != nil && (d.Asked != nil || d.Approval.Result == cloudevent.ResultUnanswered) {
					t.Errorf("with %s it is told that %+v has asked, and nobody has", d.Approval.Result, d.Asked)
				}
			}
			if asked := s.Status().Events[0].Asked; asked != nil {
				t.Errorf("the status says that %+v has asked, and nobody has", asked)
			}
			s.disk.fail(nil)
		})
	}
}

// An approval by hand waits for the same write.
func TestWhatChangedWhileAnApprovalByHandWasWrittenIsNotApproved(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.announce()
		time.AfterFunc(1200*time.Millisecond, func() { becomesAnothers(s) })
		time.AfterFunc(3*time.Second, s.disk.block())
		s.approve(idA, cloudevent.ResultMoot)
		wantIDs(t, s.approvals())
	})
}

// becomesAnothers makes the event one of Azure's own, and of another VM too.
func becomesAnothers(s *approvalStage) {
	s.azure.Update(idA, func(e *imdstest.Event) { e.Source, e.Resources = "Platform", []string{"vm-0", "vm-9"} })
}

// While Azure is long about the last look at an event, or about its approval, settings take the rules away, and people
// approve the event, or another one, by hand: what comes next goes by that, and not by what was so when Azure was
// asked.
func TestAnApprovalGoesByWhatIsSoNow(t *testing.T) {
	rulesGo := func(s *approvalStage) { s.setRules() }
	for _, tt := range []struct {
		claim string
		slow  string
		then  func(s *approvalStage)
		want  []string
	}{
		{"nothing happens", http.MethodPost, func(*approvalStage) {}, []string{idA, idB}},
		{"the rules go during the last look", http.MethodGet, rulesGo, nil},
		{"the rules go during the approval", http.MethodPost, rulesGo, []string{idA}},
		{"it is approved by hand during the last look", http.MethodGet, func(s *approvalStage) {
			s.approveNow("root")
		}, []string{idA, idB}},
		{"the other one is approved by hand during the approval", http.MethodPost, func(s *approvalStage) {
			s.ApproveNow(s.t.Context(), idB, s.shown(idB), "root")
		}, []string{idB, idA}},
	} {
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			var slow atomic.Bool
			s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
				if slow.Load() && r.Method == tt.slow && (isLook(r) || r.Method == http.MethodPost) {
					time.Sleep(5 * time.Second)
				}
				return azure.RoundTrip(r)
			})
			s.announce()
			s.userReboot(idB)
			pause(1500 * time.Millisecond)
			slow.Store(true)
			s.setRules(rebootRule)
			pause(2 * time.Second)
			slow.Store(false)
			tt.then(s)
			pause(time.Minute)
			wantIDs(t, s.approvals(), tt.want...)
		})
	}
}

// A decision about an event that Azure moves while the answer of the last look is on its way is moot. The next one is
// about the event as it is by then.
func TestWhatMovesDuringTheLastLookIsDecidedAnew(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		var late atomic.Bool
		s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
			resp, err := azure.RoundTrip(r)
			if late.Load() && isLook(r) {
				time.Sleep(3 * time.Second)
			}
			return resp, err
		})
		s.opts.Rules = []bridge.Rule{rebootRule}
		s.up()
		late.Store(true)
		s.userReboot(idA)
		pause(2 * time.Second)
		s.postpone(idA, time.Hour)
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, s.audit.types(), "scheduled", "updated", "approved", "approved")
		wantIDs(t, s.audit.results(t), cloudevent.ResultMoot, cloudevent.ResultApproved)
	})
}

// A decision that is still to be sent outlives a reload that puts another rule before its own, and waits as long as the
// rules do, be it that a reload made them wait or that the disk failed: it is given up only when none will approve the
// event.
func TestADecisionWaitsWhileTheRulesDo(t *testing.T) {
	longer := waiting(rebootRule, time.Minute)
	approved := []string{cloudevent.ResultApproved}
	for claim, tt := range map[string]struct {
		then    func(s *approvalStage)
		results []string
		by      string
	}{
		"nothing changes": {func(s *approvalStage) { s.setRules(rebootRule) }, approved, "rule 1"},
		"another rule comes before": {func(s *approvalStage) {
			s.setRules(bridge.Rule{Only: bridge.Match{Types: bridge.TypesValues, Sources: []string{"Platform"}}}, rebootRule)
		}, approved, "rule 2"},
		"for another sink, when people were told of none": {func(s *approvalStage) { s.setRules(drainRule) },
			[]string{cloudevent.ResultWithheld, cloudevent.ResultApproved}, "rule 1"},
		"for longer": {func(s *approvalStage) { s.setRules(longer) }, approved, "rule 1"},
		"for longer, but for one that never will": {func(s *approvalStage) {
			s.setRules(longer, bridge.Rule{Only: bridge.Match{Types: []string{"Freeze"}}})
		}, approved, "rule 1"},
		"for a disk that is back before the decision is looked at": {func(s *approvalStage) {
			s.disk.fail(errFull)
			pause(40 * time.Second) // not so long that people are told
		}, approved, "rule 1"},
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.logged = func(words string) {
				if words == "event not approved yet" {
					s.disk.fail(nil)
					time.Sleep(2 * diskRetry)
				}
			}
			s.answersApprovals(503)
			s.drain.say(always(errSinkDown))
			s.announce(rebootRule)
			pause(4 * time.Second)
			tt.then(s)
			s.azure.ClearFaults()
			pause(20 * time.Second)
			s.drain.say(nil)
			pause(2 * time.Minute)
			wantIDs(t, s.approvals(), idA)
			wantIDs(t, s.audit.results(t), tt.results...)
			wantEqual(t, "who approved it", s.audit.lastApproval(t).By, tt.by)
		})
	}
}
