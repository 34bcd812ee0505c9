package bridge_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// kill -9 at each step never loses the approval and never makes one that the rule forbids.
func TestAnApprovalSurvivesACrashAtEachStep(t *testing.T) {
	for _, tt := range []struct {
		claim     string
		at        func(s *approvalStage, die func() error)
		ruleGoes  bool
		approvals []string
		result    string
	}{
		{"before the decision", func(_ *approvalStage, die func() error) {
			time.AfterFunc(4*time.Second, func() { _ = die() })
		}, false, []string{idA}, cloudevent.ResultApproved},
		{"after the decision", func(s *approvalStage, die func() error) {
			s.beforeApprovals(die)
		}, false, []string{idA}, cloudevent.ResultApproved},
		{"after the POST", func(s *approvalStage, die func() error) {
			s.afterApprovals(func(*http.Response) error { return die() })
		}, false, []string{idA, idA}, cloudevent.ResultApproved},
		{"while the rule is taken away", func(s *approvalStage, die func() error) {
			s.beforeApprovals(die)
		}, true, nil, cloudevent.ResultUnanswered}, // the attempt was on record before it was made
	} {
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			s.announceAndCrash(drainRule, func(die func() error) { tt.at(s, die) })
			if tt.ruleGoes {
				s.opts.Rules = nil
			}
			s.up()
			pause(time.Minute)
			wantIDs(t, s.approvals(), tt.approvals...)
			wantIDs(t, s.audit.results(t), tt.result)
		})
	}
}

// A decision that was made before a crash waits until instance metadata has confirmed the VM's name: until then no rule
// approves anything, which must not end it.
func TestADecisionWaitsForTheNameAfterACrash(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.announceAndCrash(drainRule, s.beforeApprovals)
		s.metadata(imdstest.Fault{Status: 503, For: 30 * time.Second})
		s.up()
		pause(20 * time.Second)
		wantIDs(t, s.approvals())
		wantIDs(t, s.audit.ids(), idA+"-scheduled")
		pause(2 * time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, s.audit.results(t), cloudevent.ResultApproved)
	})
}

// An event that changes, begins or ends before its approval is sent is not approved after that, and the record says so.
func TestAnApprovalBecomesMoot(t *testing.T) {
	for _, tt := range []struct {
		claim   string
		change  func(s *approvalStage)
		results []string
	}{
		{"it began", func(s *approvalStage) { s.azure.Start(idA) }, []string{cloudevent.ResultMoot}},
		{"it ended", func(s *approvalStage) { s.azure.End(idA) }, []string{cloudevent.ResultMoot}},
		// The change is announced with the rule that will approve it, whose drain then fails.
		{"it moved", func(s *approvalStage) { s.postpone(idA, time.Hour) },
			[]string{cloudevent.ResultMoot, cloudevent.ResultWithheld}},
	} {
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			refuses := s.refusesLooks()
			s.announce(drainRule)
			refuses.Store(true)
			pause(6 * time.Second)
			s.drain.say(always(errSinkDown)) // so that the change is not approved
			tt.change(s)
			pause(2 * time.Second)
			refuses.Store(false)
			pause(70 * time.Second)
			wantIDs(t, s.approvals())
			wantIDs(t, s.audit.results(t), tt.results...)
		})
	}
}

// An approval whose answer is lost is never told as one without effect, whatever becomes of it: Azure may have taken
// it.
func TestAnApprovalWhoseAnswerIsLostIsUnanswered(t *testing.T) {
	for claim, then := range map[string]func(s *approvalStage){
		"it changes": func(s *approvalStage) {
			s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "another host" })
		},
		"it begins": func(s *approvalStage) { s.azure.Start(idA) },
		"it ends":   func(s *approvalStage) { s.azure.End(idA) },
		"it begins after a crash": func(s *approvalStage) {
			s.crash()
			s.azure.Start(idA)
			s.up()
		},
		"the rules go": func(s *approvalStage) { s.setRules() },
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.afterApprovals(func(*http.Response) error { return errSinkDown })
			s.announce(drainRule)
			pause(7 * time.Second)
			s.drain.say(always(delivery.ErrRejected)) // so that no change is approved
			then(s)
			pause(20 * time.Second)
			if len(s.approvals()) == 0 {
				t.Error("Azure got no approval")
			}
			results := s.audit.results(t)
			first := slices.Index(results, cloudevent.ResultUnanswered)
			if first != 0 || slices.Contains(results, cloudevent.ResultMoot) {
				t.Errorf("told %q, want it unanswered", results)
			}
			s.wantLoggedTimes(0, "approval not sent")
		})
	}
}

// An id is never given twice, also if only memory knew of the first one, as on a full disk, and a crash lost that.
func TestTheIDOfAnApprovalIsNeverUsedAgain(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.afterApprovals(func(*http.Response) error {
			s.disk.fail(errFull)
			return nil
		})
		s.announce(rebootRule)
		pause(10 * time.Second)
		s.crash()
		s.azure.Start(idA)
		s.up()
		pause(10 * time.Second)
		wantIDs(t, s.audit.results(t), cloudevent.ResultApproved, cloudevent.ResultUnanswered)
		seen := map[string]bool{}
		for _, h := range s.audit.accepted() {
			if seen[h.Event.ID()] {
				t.Errorf("two CloudEvents have the id %s", h.Event.ID())
			}
			seen[h.Event.ID()] = true
		}
	})
}

// An event that ends just when the rules decide about it, be it that they approve it or that they give up a decision,
// has one approval on record, and stops nothing.
func TestAnEventThatEndsWhileItIsDecidedHasOneApprovalOnRecord(t *testing.T) {
	for words, broken := range map[string]bool{"approving event": false, "event not approved": true} {
		approvalSubtest(t, words, func(t *testing.T, s *approvalStage) {
			ended := 0
			s.logged = func(said string) {
				if said == words && ended == 0 {
					ended++
					s.azure.End(idA)
					s.Take(&imds.Document{APIVersion: imds.DefaultAPIVersion})
				}
			}
			if broken {
				s.answersApprovals(503)
			}
			s.announce(rebootRule)
			if broken {
				rule := rebootRule
				rule.When = mustParseWhen(t, "data.no.such.thing > 1")
				s.setRules(rule)
			}
			pause(10 * time.Second)
			s.redeploy(idB, time.Hour)
			pause(3 * time.Second)
			wantEqual(t, "times that it ended so", ended, 1)
			wantIDs(t, s.approvals())
			wantIDs(t, s.audit.ids(), idA+"-scheduled", idA+"-approved", idA+"-vanished", idB+"-scheduled")
		})
	}
}
