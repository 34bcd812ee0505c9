package bridge_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
)

// Nobody hears that an event was called off that was approved, or may have been.
func TestWhatWasApprovedIsNotCalledOff(t *testing.T) {
	noAnswer := func(*http.Response) error {
		time.Sleep(5 * time.Second)
		return errSinkDown
	}
	slowly := func() error {
		time.Sleep(3 * time.Second)
		return nil
	}
	for claim, approved := range map[string]func(s *approvalStage){
		"by a rule": func(s *approvalStage) {
			s.announce(rebootRule)
			pause(3 * time.Second)
		},
		"by hand, while it moved": func(s *approvalStage) {
			s.beforeApprovals(slowly)
			s.announce()
			time.AfterFunc(time.Second, func() { s.postpone(idA, time.Minute) })
			s.approve(idA, cloudevent.ResultApproved)
		},
		"by hand, while it was found": func(s *approvalStage) {
			s.beforeApprovals(slowly)
			s.up()
			s.userReboot(idA)
			s.approve(idA, cloudevent.ResultApproved)
		},
		"by hand, with no bridge running, before it was found": func(s *approvalStage) {
			s.up()
			s.end()
			s.userReboot(idA)
			s.approveAlone()
			s.up()
		},
		"by hand, without an answer": func(s *approvalStage) {
			s.afterApprovals(noAnswer)
			s.announce()
			s.approve(idA, cloudevent.ResultUnanswered)
		},
		"by hand, without an answer, before it was found": func(s *approvalStage) {
			s.afterApprovals(noAnswer)
			s.opts.Interval = 3 * time.Second
			s.up()
			s.userReboot(idA)
			s.approve(idA, cloudevent.ResultUnanswered)
		},
		"by a rule, interrupted by a crash": func(s *approvalStage) {
			s.announceAndCrash(rebootRule, func(die func() error) {
				s.afterApprovals(func(*http.Response) error { return die() })
			})
			s.azure.End(idA) // else the decision is the first thing that is looked at
			s.up()
		},
		"by hand, interrupted by a crash": func(s *approvalStage) {
			s.afterApprovals(noAnswer)
			s.announce()
			go s.approveNow("root")
			pause(2 * time.Second)
			s.crash()
			s.up()
		},
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			approved(s)
			s.wantEnd(cloudevent.OutcomeUnknown)
			wantIDs(t, s.approvals(), idA)
		})
	}
}

// Nor that it was called off when it is gone from one document: what was asked for before counts when it is back.
func TestWhatWasApprovedBeforeItCameBackIsNotCalledOff(t *testing.T) {
	for claim, answer := range map[string]func(*http.Response) error{
		"Azure agreed":                 func(*http.Response) error { return nil },
		"nobody answered":              func(*http.Response) error { return errSinkDown },
		"Azure agrees when it is gone": func(*http.Response) error { time.Sleep(4 * time.Second); return nil },
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.afterApprovals(answer)
			s.announce(rebootRule)
			pause(time.Second)
			s.azure.End(idA)
			pause(5 * time.Second)
			s.setRules()
			s.userReboot(idA)
			pause(2 * time.Second)
			s.azure.End(idA)
			pause(2 * time.Second)
			s.audit.wantEnd(t, cloudevent.OutcomeUnknown)
		})
	}
}

// approveAlone approves the reboot for root with the outbox of a bridge that has ended.
func (s *approvalStage) approveAlone() {
	s.t.Helper()
	box, err := outbox.Open(s.dir, outbox.Options{Log: s.logger()})
	if err != nil {
		s.t.Fatal(err)
	}
	o := s.Options()
	o.Outbox = box
	alone, err := bridge.New(o)
	if err != nil {
		s.t.Fatal(err)
	}
	a := alone.ApproveNow(s.t.Context(), idA, s.shown(idA), "root")
	if a.Result != cloudevent.ResultApproved || a.After > 1 {
		s.t.Errorf("ApproveNow = %+v, want it approved, at once", a)
	}
	if err := box.Close(); err != nil {
		s.t.Error(err)
	}
}

// Nor when a second person's approval, which is under way at the same time, comes to nothing, be it that Azure has
// answered the first by then or not.
func TestWhatOneOfTwoPeopleApprovedIsNotCalledOff(t *testing.T) {
	for claim, answer := range map[string]time.Duration{"Azure has answered": 0, "Azure will answer": 8 * time.Second} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			looks := 0
			s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
				if isByPerson(r) && isLook(r) {
					looks++
					if looks == 2 { // the look after the slow write
						time.Sleep(time.Second)
						return nil, errSinkDown
					}
				}
				if r.Method == http.MethodPost {
					defer time.Sleep(answer)
				}
				return azure.RoundTrip(r)
			})
			s.announce()
			shown := s.shown(idA)
			time.AfterFunc(2*time.Second, s.disk.block())
			first, second := make(chan string, 1), make(chan string, 1)
			go func() { second <- s.ApproveNow(byPerson(t), idA, shown, "jane").Result }()
			pause(100 * time.Millisecond)
			go func() { first <- s.ApproveNow(t.Context(), idA, shown, "root").Result }()
			pause(4 * time.Second)
			wantEqual(t, "the second approval", <-second, cloudevent.ResultRefused)
			s.wantEnd(cloudevent.OutcomeUnknown)
			wantEqual(t, "the first approval", <-first, cloudevent.ResultApproved)
		})
	}
}

// slowsAttempt makes the disk hang when the attempt of a rule is written, until release is called.
func (s *approvalStage) slowsAttempt() (release func()) {
	release = func() {}
	var once sync.Once
	s.logged = func(words string) {
		if words == "approving event" {
			once.Do(func() { release = s.disk.block() })
		}
	}
	return func() { release() }
}

// Nor when an attempt of a rule, which was under way at the same time, was not made after all.
func TestWhatWasAskedBesideARuleIsNotCalledOff(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		var down atomic.Bool
		s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
			switch {
			case isByPerson(r) && r.Method == http.MethodPost:
				_, _ = azure.RoundTrip(r)
				return nil, errSinkDown
			case !isByPerson(r) && isLook(r) && down.Load(): // the rule's, after its slow write
				down.Store(false)
				time.Sleep(3 * time.Second)
				return nil, errSinkDown
			}
			return azure.RoundTrip(r)
		})
		release := s.slowsAttempt()
		s.announce(rebootRule)
		time.AfterFunc(2*time.Second, func() {
			down.Store(true)
			release()
		})
		a := s.ApproveNow(byPerson(t), idA, s.shown(idA), "root")
		wantEqual(t, "the approval by hand", a.Result, cloudevent.ResultUnanswered)
		wantIDs(t, s.approvals(), idA)
		pause(3100 * time.Millisecond) // the rule has not tried again
		s.wantEnd(cloudevent.OutcomeUnknown)
	})
}

// Nor while Azure's answer to what somebody asked is still on its way, when an attempt of a rule is taken back.
func TestWhatIsBeingAskedBesideARuleIsNotCalledOff(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.afterApprovals(func(*http.Response) error {
			time.Sleep(8 * time.Second)
			return nil
		})
		release := s.slowsAttempt()
		s.announce(rebootRule)
		time.AfterFunc(700*time.Millisecond, release)
		asked := make(chan string, 1)
		go func() { asked <- s.approveNow("root").Result }()
		pause(3 * time.Second)
		s.wantEnd(cloudevent.OutcomeUnknown)
		wantEqual(t, "the approval by hand", <-asked, cloudevent.ResultApproved)
		wantIDs(t, s.approvals(), idA)
	})
}

// What a rule decided, and was never sent, says nothing about what becomes of the event: it was called off, unless
// somebody asked Azure by hand before and got no answer.
func TestADecisionThatComesToNothingChangesNoOutcome(t *testing.T) {
	for _, tt := range []struct {
		claim           string
		asked, ruleGoes bool
		want            cloudevent.Outcome
	}{
		{"the event ends", false, false, cloudevent.OutcomeCanceled},
		{"the rule goes", false, true, cloudevent.OutcomeCanceled},
		{"the rule goes, and somebody has asked", true, true, cloudevent.OutcomeUnknown},
	} {
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			refuses := s.refusesLooks()
			s.answersApprovals(503)
			s.announce(drainRule)
			if tt.asked {
				s.approve(idA, cloudevent.ResultUnanswered)
			}
			refuses.Store(true)
			pause(8 * time.Second)
			s.wantLogged("approval not sent; trying again")
			if tt.ruleGoes {
				s.setRules()
				pause(2 * time.Second)
				refuses.Store(false)
				pause(2 * time.Second)
			}
			s.wantEnd(tt.want)
			results := s.audit.results(t)
			wantIDs(t, results[len(results)-1:], cloudevent.ResultMoot)
		})
	}
}

// Azure's refusal says for sure that nobody has approved the event: it may still be called off.
func TestWhatAzureRefusedToStartIsCalledOff(t *testing.T) {
	for claim, approve := range map[string]func(s *approvalStage){
		"by hand": func(s *approvalStage) {
			s.announce()
			s.approve(idA, cloudevent.ResultRefused)
		},
		"by a rule": func(s *approvalStage) {
			s.announce(rebootRule)
			pause(3 * time.Second)
		},
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.answersApprovals(400)
			approve(s)
			s.wantEnd(cloudevent.OutcomeCanceled)
		})
	}
}

// What Azure refused before an event was gone and came back doesn't count as approved: its end is told as a
// cancellation.
func TestAnEventThatComesBackAfterARefusalIsNotTakenForApproved(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.answersApprovals(400)
		s.announce()
		s.approve(idA, cloudevent.ResultRefused)
		s.azure.End(idA)
		pause(2 * time.Second)
		s.userReboot(idA)
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		wantIDs(t, s.audit.types(), "scheduled", "approved", "vanished", "scheduled", "vanished")
		s.audit.wantEnd(t, cloudevent.OutcomeCanceled)
	})
}
