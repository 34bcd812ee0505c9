package bridge_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// What a rule names is approved when the sinks have accepted that it waits for, and not before; the approval is told
// and on record.
func TestAnEventIsApprovedAfterItsSinks(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.drain.say(always(errSinkDown))
		s.announce(drainRule)
		pause(20 * time.Second)
		wantIDs(t, s.approvals())
		s.drain.say(nil)
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, s.audit.ids(), idA+"-scheduled", idA+"-approved")
		s.wantLogged("to=drain,audit")
		a := s.audit.lastApproval(t)
		if a.Result != cloudevent.ResultApproved || a.By != "rule 1" || a.Status != "200 OK" || a.Attempts != 1 {
			t.Errorf("the approval is told as %+v", a)
		}
		wantWithin(t, "seconds until it was approved", a.After, 25, 60)
		wantEqual(t, "these seconds, in tenths", fmt.Sprint(a.After), strings.TrimSuffix(fmt.Sprintf("%.1f", a.After), ".0"))
		s.azure.End(idA)
		pause(3 * time.Second)
		s.wantLoggedTimes(0, `why=""`)
		s.wantLoggedTimes(0, "approval not sent")
	})
}

// A delivery that somebody dropped was not accepted: no drain ran, so the event is not approved, whether the delivery
// was still pending or a dead letter.
func TestADroppedDeliveryMeansNoApproval(t *testing.T) {
	for claim, answer := range map[string]error{"pending": errSinkDown, "a dead letter": delivery.ErrRejected} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.drain.say(always(answer))
			s.announce(drainRule)
			pause(10 * time.Second)
			entries := slices.DeleteFunc(s.Outbox.List(outbox.Selection{Route: "drain", Group: idA}),
				func(d outbox.Delivery) bool { return d.Change != string(imds.Scheduled) })
			if len(entries) != 1 {
				t.Fatalf("the outbox has %d deliveries for drain, want 1", len(entries))
			}
			s.drop(entries[0])
			pause(10 * time.Minute)
			wantIDs(t, s.approvals())
			s.wantLogged(`rule 1: sink \"drain\" failed: somebody dropped what it was to do`)
		})
	}
}

// A sink that somebody has do its work once more is waited for again, and the wait is counted from when it is done.
func TestAWaitIsCountedFromTheLastAcceptanceOfASink(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.drain.say(always(errDrainFailed))
		s.opts.Rules = []bridge.Rule{waiting(drainRule, 10*time.Minute, "drain")}
		s.up()
		s.userRebootIn(time.Hour, idA)
		pause(10 * time.Second)
		s.drain.say(nil)
		s.postpone(idA, time.Minute)
		pause(9 * time.Minute)
		s.drain.say(always(errSinkDown))
		s.replay(s.deadLetters()[0], "") // and the update after it
		pause(3 * time.Minute)
		s.drain.say(nil)
		pause(8 * time.Minute)
		wantIDs(t, s.approvals())
		pause(8 * time.Minute)
		wantIDs(t, s.approvals(), idA)
	})
}

// What the sink took is what is approved: an event that changes is approved only when the sink has taken the change.
func TestAChangedEventIsDecidedAnew(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.announce(drainRule)
		s.drain.say(always(errSinkDown))
		s.postpone(idA, 5*time.Minute)
		pause(time.Minute)
		wantIDs(t, s.approvals())
		s.drain.say(nil)
		pause(6 * time.Minute)
		wantIDs(t, s.approvals(), idA)
	})
}

// An approval that does not get through is sent again; one that Azure refuses is not, and who hears of trouble hears of
// the event then.
func TestAnApprovalIsSentUntilItIsAnswered(t *testing.T) {
	for _, tt := range []struct {
		claim   string
		status  int
		tries   int
		result  string
		trouble []string // what is heard by who hears of trouble only
	}{
		{"it is refused", 400, 1, cloudevent.ResultRefused, []string{"scheduled", "approved"}},
		{"Azure has a bad moment", 503, 3, cloudevent.ResultApproved, nil},
		{"it is throttled", 429, 3, cloudevent.ResultApproved, nil},
	} {
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			tries := 0
			s.afterApprovals(func(resp *http.Response) error {
				tries++
				if tries < 3 {
					resp.StatusCode = tt.status
				}
				return nil
			})
			chat := &recorder{}
			ofTrouble := func(terms *bridge.Terms) { terms.Bridge = bridge.LevelTrouble }
			s.routes = append(s.routes, chat.all("chat").With(ofTrouble).OnlyTypes("Freeze"))
			s.announce(rebootRule)
			pause(time.Minute)
			wantEqual(t, "times it was sent", tries, tt.tries)
			wantIDs(t, s.audit.results(t), tt.result)
			wantIDs(t, chat.types(), tt.trouble...)
		})
	}
}

// While the endpoint does not answer, the last look before an approval is taken as seldom as polls are, and the
// approval is sent once it answers.
func TestAnApprovalWaitsForTheEndpointAsPollsDo(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.announce(drainRule)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(10 * time.Minute)
		wantWithin(t, "tries in ten minutes", s.log.Count("approval not sent; trying again"), 30, 100)
		s.azure.ClearFaults()
		pause(20 * time.Second)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, s.audit.results(t), cloudevent.ResultWithheld, cloudevent.ResultApproved)
		wantEqual(t, "attempts that are told", s.audit.lastApproval(t).Attempts, 1)
	})
}

// However many approvals take their longest, the approval loop counts as alive.
func TestManySlowApprovalsAreNoStandstill(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		for n := range 40 {
			s.userReboot(fmt.Sprintf("%s-%d", idA, n))
		}
		s.opts.Rules = []bridge.Rule{waiting(rebootRule, 10*time.Second)}
		s.up()
		pause(3 * time.Second)
		s.azure.SetFault(imdstest.Fault{Path: imdstest.ScheduledEvents, Hang: true})
		for range 50 {
			pause(10 * time.Second)
			if err := s.Alive(); err != nil {
				t.Fatalf("Alive = %v", err)
			}
		}
		s.wantLogged("approval not sent; trying again")
		s.azure.ClearFaults()
	})
}

// Two VMs of one set that both run with a rule for the leader approve once. Who hears of it from the other VM only must
// know that it may begin before its time; what became of the rule the other VM can't know.
func TestOnlyTheLeaderApproves(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{{Only: bridge.Match{VMs: "leader", Types: bridge.TypesValues}, Others: true}}
		s.beginsLate()
		s.start((&recorder{}).all("a"))
		other := newStage(t)
		other.azure, other.vm, other.opts.Rules = s.azure, "vm-1", s.opts.Rules
		audit := &recorder{}
		other.up(audit.reminds("a", 10*time.Minute))
		s.rebootOf(25*time.Minute, idA, "vm-0", "vm-1")
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantEqual(t, "the VM that approved", s.azure.Approvals()[0].VM, "vm-0")
		pause(16 * time.Minute)
		wantIDs(t, audit.types(), "scheduled", "reminder")
		for _, d := range audit.data(t) {
			if len(d.Rules) != 1 || d.Rules[0].VM != "vm-0" {
				t.Errorf("the other VM says %s with the rules %+v, want that of vm-0", d.Change, d.Rules)
			}
		}
	})
}

// A rule goes by the name that instance metadata gives in this run, not by that on the disk: a machine that was given a
// copy of the disk would approve for another. A name that is set is the operator's word.
func TestARuleWaitsUntilItIsKnownWhichVMThisIs(t *testing.T) {
	for set, atOnce := range map[string][]string{"": nil, "vm-1": {idB}} {
		subtest(t, "imds.vm_name: "+set, func(t *testing.T, s *stage) {
			s.opts.Rules, s.opts.VMName = []bridge.Rule{rebootRule}, set
			b := s.up((&recorder{}).all("a"))
			b.end()

			s.vm = "vm-1"
			s.metadata(imdstest.Fault{Status: 503, For: 2 * time.Minute})
			s.userReboot(idA)
			s.azure.Schedule(imdstest.Event{ID: idB, Type: "Reboot", Resources: []string{"vm-1"}})
			s.start((&recorder{}).all("a"))
			pause(time.Minute)
			wantIDs(t, s.approvals(), atOnce...)
			pause(3 * time.Minute)
			wantIDs(t, s.approvals(), idB)
		})
	}
}

// A rule that a reload takes away while its approval is still to be sent, and that another brings back, approves the
// event.
func TestARuleThatComesBackApprovesThoughItsDecisionWasGivenUp(t *testing.T) {
	for claim, sent := range map[string]bool{"nothing was sent": false, "Azure didn't answer": true} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			refuses := s.refusesLooks()
			s.up()
			if sent {
				s.answersApprovals(503)
			}
			s.userReboot(idA)
			pause(1500 * time.Millisecond)
			refuses.Store(!sent)
			s.setRules(rebootRule)
			pause(5 * time.Second)
			s.setRules()
			pause(20 * time.Second)
			refuses.Store(false)
			s.azure.ClearFaults()
			s.setRules(rebootRule)
			pause(3 * time.Minute)
			wantIDs(t, s.approvals(), idA)
		})
	}
}

// What is told of an approval keeps to the schema though the clock was set back since the event was first seen.
func TestAnApprovalAfterTheClockWasSetBackKeepsToTheSchema(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.announce()
		s.step(-time.Hour)
		s.end()
		s.up()
		s.approve(idA, cloudevent.ResultApproved)
		pause(5 * time.Second)
		_, data := schemas(t)
		if err := breaks(t, data, s.audit.accepted()[1].Event.Data()); err != nil {
			t.Error(err)
		}
	})
}
