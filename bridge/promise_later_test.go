package bridge_test

import (
	"slices"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
)

// When people were told of no rule, or that none starts the event early, and one is on course after all, they are told
// that: whether a mute has ended, a reload brought the rule back, or a dead letter was replayed. What a rule approves
// within the minute is told by that.
func TestARuleThatComesIntoCourseLaterIsTold(t *testing.T) {
	const promised, withheld, approved = cloudevent.ResultPromised, cloudevent.ResultWithheld, cloudevent.ResultApproved
	unmute := func(s *approvalStage) { s.unmute() }
	for _, tt := range []struct {
		claim string
		wait  time.Duration
		muted bool  // at first
		drain error // what it answers at first
		then  func(s *approvalStage)
		told  []string
	}{
		{"a mute has ended", 3 * time.Minute, true, nil, unmute, []string{promised, approved}},
		{"and the rule approves at once", 5 * time.Second, true, nil, unmute, []string{approved}},
		{"a reload brings it back", 3 * time.Minute, false, nil, func(s *approvalStage) {
			s.setRules()
			pause(time.Minute)
			s.setRules(s.opts.Rules...)
		}, []string{withheld, promised, approved}},
		{"a dead letter is replayed", 3 * time.Minute, false, errDrainFailed, func(s *approvalStage) {
			s.drain.say(nil)
			s.replay(s.deadLetters()[0], "")
		}, []string{withheld, promised, approved}},
	} {
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			s.opts.Rules = []bridge.Rule{waiting(namedRule(), tt.wait, "drain")}
			s.drain.say(always(tt.drain))
			s.up()
			if tt.muted {
				s.mute("drain", time.Hour)
			}
			s.userReboot(idA)
			pause(10 * time.Second)
			tt.then(s)
			pause(5 * time.Minute)
			wantIDs(t, s.audit.results(t), tt.told...)
			wantIDs(t, s.approvals(), idA)
		})
	}
}

// The minute in which a rule must be on course is counted from when a reload brought it back: what it approves sooner is
// told by that.
func TestARuleThatAReloadBringsBackIsNotToldAtOnce(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.opts.Rules = []bridge.Rule{waiting(namedRule(), 5*time.Minute, "drain")}
		s.up()
		s.mute("drain", time.Hour) // until after NotBefore, so that no rule is announced
		s.userReboot(idA)
		pause(10 * time.Second)
		s.unmute()
		pause(10 * time.Second)
		s.setRules()
		pause(2 * time.Minute)
		s.setRules(waiting(namedRule(), 20*time.Second, "drain"))
		pause(time.Minute)
		wantIDs(t, s.audit.results(t), cloudevent.ResultApproved)
	})
}

// A rule of which only a refusal told is taken back like any other.
func TestARuleThatARefusalNamesIsTakenBack(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.refusesApprovals()
		s.drain.say(func(delivery.Delivery) error {
			time.Sleep(8 * time.Second)
			return errDrainFailed
		})
		s.opts.Rules = []bridge.Rule{namedRule()}
		s.up()
		s.mute("drain", time.Hour)
		s.userReboot(idA)
		pause(5 * time.Second)
		s.unmute()
		pause(3 * time.Second) // the drain is at work, and the rule on course
		s.approve(idA, cloudevent.ResultRefused)
		pause(3 * time.Minute)
		wantIDs(t, s.audit.promised(t), "-", drainedFirst, "-")
		wantIDs(t, s.audit.results(t), cloudevent.ResultRefused, cloudevent.ResultWithheld)
	})
}

// A run that a restart of forewarn has cut off begins again and has not failed: neither the status nor anybody says so.
func TestARunThatARestartCutOffHasNotFailed(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.drain.say(always(errHang))
		s.routes[0].Terms.Timeout = time.Hour
		s.announce(namedRule())
		pause(8 * time.Second)
		s.end()
		s.drain.say(func(d delivery.Delivery) error {
			if d.Event.ID() == idA+"-scheduled" {
				time.Sleep(3 * time.Minute)
			}
			return nil
		})
		s.up()
		pause(2 * time.Minute)
		s.wantWhy(`rule "drain first": it waits for sink "drain"`)
		pause(2 * time.Minute)
		wantIDs(t, s.audit.results(t), cloudevent.ResultApproved)
	})
}

// A sink that a reload adds is told what became of the promise in the announcement that it gets, in this order and
// once, unless it takes announcements only.
func TestASinkThatComesLaterIsToldWhatBecameOfThePromise(t *testing.T) {
	for result, answer := range map[string]error{
		cloudevent.ResultWithheld: errDrainFailed, cloudevent.ResultApproved: nil,
	} {
		approvalSubtest(t, result, func(t *testing.T, s *approvalStage) {
			late, deaf := &recorder{}, &recorder{}
			announcements := deaf.all("deaf")
			announcements.Filter.Only.Changes = []string{"scheduled"}
			s.drain.say(always(answer))
			s.announce(namedRule())
			pause(8 * time.Second)
			s.crash()
			s.up()
			pause(8 * time.Second)
			s.routes = append(s.routes, late.all("late"), announcements)
			for range 2 {
				s.setRules(namedRule())
				pause(10 * time.Second)
			}
			pause(time.Minute)
			wantIDs(t, late.ids(), idA+"-scheduled", idA+"-approved")
			wantIDs(t, late.results(t), result)
			wantIDs(t, deaf.ids(), idA+"-scheduled")
		})
	}
}

// Nor is a sink left with the promise that was gone from the settings when it was taken back, and comes back. One that takes
// announcements only hears nothing of that.
func TestASinkThatReturnsIsToldWhatBecameOfThePromise(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		ops, deaf := &recorder{}, &recorder{}
		announcements := deaf.all("deaf")
		announcements.Filter.Only.Changes = []string{"scheduled"}
		without := s.routes
		with := slices.Concat(without, []bridge.Route{ops.all("ops"), announcements})
		s.routes = with
		s.drain.say(always(errSinkDown))
		s.announce(namedRule())
		pause(8 * time.Second)
		s.routes = without
		s.setRules(namedRule())
		s.drain.say(always(errDrainFailed))
		pause(time.Minute)
		s.routes = with
		for range 2 {
			s.setRules(namedRule())
			pause(10 * time.Second)
		}
		wantIDs(t, ops.ids(), idA+"-scheduled", idA+"-approved")
		wantIDs(t, ops.results(t), cloudevent.ResultWithheld)
		wantIDs(t, deaf.ids(), idA+"-scheduled")
	})
}

// A sink that comes after a change is not told what became of what the change before promised.
func TestASinkThatComesLaterIsNotToldOfOldPromises(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		late := &recorder{}
		s.drain.say(always(errDrainFailed))
		s.announce(namedRule())
		pause(8 * time.Second)
		s.drain.say(always(errSinkDown))
		s.postpone(idA, time.Hour)
		pause(10 * time.Second)
		s.routes = append(s.routes, late.all("late"))
		s.setRules(namedRule())
		pause(10 * time.Second)
		wantIDs(t, late.types(), "updated")
		wantIDs(t, late.promised(t), drainedFirst)
	})
}

// That a newer change of its event overtook what a runbook had failed to do is no news, whether that is tried or done
// by then: nothing is given up, and a replay would do the work twice.
func TestWhatANewerChangeOvertakesIsNotReportedAsGivenUp(t *testing.T) {
	for claim, works := range map[string]bool{"it is tried": false, "it is done": true} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			drain, ops := answering(delivery.ErrRejected), &recorder{}
			b := s.up(drain.all("drain").With(func(r *bridge.Terms) { r.Late = delivery.LateDrop }),
				ops.all("ops").With(func(r *bridge.Terms) { r.Bridge = bridge.LevelTrouble }))
			s.reboot(idB) // given up and reported: the next report comes a minute later
			pause(3 * time.Second)
			drain.say(always(errSinkDown))
			s.userRebootIn(time.Hour, idA)
			pause(10 * time.Second)
			if works {
				drain.say(nil)
			}
			s.postpone(idA, time.Minute)
			pause(2 * time.Minute)
			dead := b.deadLetters()
			if len(dead) != 2 || dead[1].Group != idA || dead[1].Reason != delivery.ReasonLate {
				t.Errorf("the dead letters are %+v, want the announcement as the second", dead)
			}
			b.end()
			wantIDs(t, ops.types(), "scheduled", "delivery.deadlettered", "scheduled", "updated")
		})
	}
}

// leaderRule approves a reboot of several VMs on that which is named first.
var leaderRule = bridge.Rule{Name: "first", Only: bridge.Match{VMs: "leader", Types: []string{"Reboot"}}, Others: true}

// What becomes of a rule to which a VM leaves an event only the VM tells that has it.
func TestOnlyItsVMTellsWhatBecomesOfARule(t *testing.T) {
	for claim, then := range map[string]func(*approvalStage){
		"this VM has the rule no longer":    func(s *approvalStage) { s.setRules() },
		"the event names this VM no longer": func(s *approvalStage) { s.moveTo(idA, "vm-0") },
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.vm = "vm-1"
			s.opts.Rules = []bridge.Rule{leaderRule}
			s.up()
			s.rebootOf(time.Hour, idA, "vm-0", "vm-1")
			pause(2 * time.Second)
			wantIDs(t, s.audit.promised(t), `rule "first" after  and 0s;`)
			then(s)
			pause(2 * time.Minute)
			wantIDs(t, s.audit.results(t))
		})
	}
}

// That another VM may start the event doesn't hide that the rule which stands in for it here won't.
func TestThatTheRuleOfAStandInFailedIsTold(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.vm = "vm-1"
		s.drain.say(always(errDrainFailed))
		own := waiting(rebootRule, 10*time.Minute, "drain")
		own.Name, own.Others = "second", true
		s.opts.Rules = []bridge.Rule{leaderRule, own}
		s.up()
		s.rebootOf(time.Hour, idA, "vm-0", "vm-1")
		pause(10 * time.Second)
		wantIDs(t, s.audit.promised(t), `rule "first" after  and 0s;rule "second" after drain and 600s;`, "-")
		wantIDs(t, s.audit.withheld(t), "drain: "+errDrainFailed.Error())
	})
}

// Of the rules that come into course later, what is told names one of this VM.
func TestWhatIsPromisedLaterIsARuleOfThisVM(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.vm = "vm-1"
		s.up()
		s.rebootOf(time.Hour, idA, "vm-0", "vm-1")
		pause(2 * time.Second)
		own := waiting(rebootRule, 10*time.Minute)
		own.Name, own.Others = "second", true
		s.setRules(leaderRule, own)
		pause(2 * time.Minute)
		wantIDs(t, s.audit.results(t), cloudevent.ResultPromised)
		d := s.audit.last(t)
		if len(d.Rules) != 1 || d.Approval.By != d.Rules[0].Name {
			t.Errorf("told by %s, with the rules %+v", d.Approval.By, d.Rules)
		}
	})
}

// A rule is told too when the announcement named it, and a change came while it was off course: that named none.
func TestARuleThatAnUpdateDoesNotNameIsToldOnceItIsOnCourse(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.drain.say(always(errHang))
		s.routes[0].Terms.Timeout = time.Hour
		s.announce(waiting(namedRule(), 3*time.Minute, "drain"))
		s.mute("drain", time.Hour)
		s.postpone(idA, time.Minute)
		pause(10 * time.Second)
		s.unmute()
		pause(2 * time.Minute)
		const named = `rule "drain first" after drain and 180s;`
		wantIDs(t, s.audit.types(), "scheduled", "updated", "approved")
		wantIDs(t, s.audit.promised(t), named, "-", named)
		wantIDs(t, s.audit.results(t), cloudevent.ResultPromised)
	})
}
