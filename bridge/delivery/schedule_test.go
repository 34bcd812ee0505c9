package delivery

import (
	"testing"
	"time"
)

// The event that starts soonest is attempted first; ended events and messages about the bridge come last.
func TestNearestNotBeforeGoesFirst(t *testing.T) {
	p := newPlan(t, Terms{})
	p.owe("", "", 0)
	p.owe("OVER", vanished, -time.Hour)
	p.owe("FAR", scheduled, 40*time.Minute)
	p.owe("NEAR", scheduled, 20*time.Second)
	p.owe("BEGUN", started, 0)
	p.owe("NEXT", scheduled, 30*time.Minute)
	p.accepts("BEGUN-started", "NEAR-scheduled", "NEXT-scheduled", "FAR-scheduled", "OVER-vanished", "-")
}

// The changes of one event are attempted in order, one after the other. An event that waits doesn't hold up others, and
// their acceptance gives it another chance.
func TestLanesDoNotWaitForEachOther(t *testing.T) {
	p := newPlan(t, Terms{})
	p.announce("A")
	p.fails("A-scheduled")
	p.owe("A", updated, far)
	p.rests()
	p.announce("B")
	p.accepts("B-scheduled", "A-scheduled", "A-updated")
}

// A change that comes late but belongs before others, as when a lead has come, is attempted before them.
func TestAnEarlierChangeGoesFirst(t *testing.T) {
	p := newPlan(t, Terms{Batch: 5})
	p.owe("A", approved, far)
	p.oweEarlier("A")
	p.accepts("A-earlier A-approved")
}

// Urgent changes are attempted at once even while the route is blocked, but at most every five seconds. Others wait.
func TestUrgentChangesGoAtOnce(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		change string
		notice time.Duration
		urgent bool
	}{
		{"a Preempt with 15 s of notice", scheduled, 15 * time.Second, true},
		{"just less than 15 minutes", scheduled, 15*time.Minute - time.Second, true},
		{"15 minutes", scheduled, 15 * time.Minute, false},
		{"no time at all", started, 0, true},
		{"a time that has passed", updated, -time.Minute, true},
		{"two hours", scheduled, far, false},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			p := blockedPlan(t, "A")
			p.owe("A", tt.change, tt.notice)
			if !tt.urgent {
				p.rests()
				return
			}
			p.refuses("A-scheduled")
			p.owe("A", updated, time.Minute)
			p.restsFor(urgentEvery)
			p.later(urgentEvery)
			p.refuses("A-scheduled")
		})
	}
}

// A hanging destination gets each new urgent event once before failed ones are repeated, even if those start sooner.
// Otherwise two failed events could alternate and keep it busy.
func TestNewUrgentEventsGoBeforeFailedOnes(t *testing.T) {
	p := newPlan(t, Terms{})
	p.owe("FIRST", scheduled, time.Minute)
	p.owe("SECOND", scheduled, 2*time.Minute)
	p.owe("THIRD", scheduled, 10*time.Minute)
	p.announce("FAR")
	for _, want := range []string{"FIRST-scheduled", "SECOND-scheduled", "THIRD-scheduled", "FIRST-scheduled"} {
		p.fails(want)
		p.later(10 * time.Second) // each takes its time, so that what failed before may be tried again
	}
}

// An event with something new and urgent goes before one that is ready, although it waits after a failure.
func TestAnUrgentEventThatWaitsGoesBeforeOneThatIsReady(t *testing.T) {
	p := newPlan(t, Terms{})
	p.owe("U", scheduled, time.Minute)
	p.fails("U-scheduled")
	p.later(urgentEvery)
	p.announce("R")
	p.owe("U", updated, time.Minute)
	p.fails("U-scheduled", "R-scheduled")
}

// An urgent change that arrives while an attempt is under way is still urgent when that attempt fails.
func TestUrgencyDuringAnAttemptIsKept(t *testing.T) {
	p := newPlan(t, Terms{})
	p.announce("A")
	p.lanes["A"].failures = 9
	a := p.begins("A-scheduled")
	p.owe("A", started, 0)
	p.planRetry(a, nil, verdict{}, p.now)
	p.later(urgentEvery)
	p.fails("A-scheduled")
}

// An urgent change stays urgent until it is attempted, even if another change of its event arrives after it.
func TestUrgentChangesStayUrgent(t *testing.T) {
	p := blockedPlan(t, "A")
	p.owe("U", scheduled, time.Minute)
	p.refuses("U-scheduled")
	p.owe("B", started, 0)
	p.owe("B", updated, far)
	p.later(urgentEvery)
	p.refuses("B-started")
}

// A probe takes an urgent event first, even while urgent events may not go ahead of the schedule.
func TestAProbeTakesUrgentEventsFirst(t *testing.T) {
	p := blockedPlan(t, "A", "B", "C")
	p.now = p.probe.Add(-2 * time.Second)
	p.owe("U1", scheduled, 5*time.Minute)
	p.refuses("U1-scheduled")
	p.later(time.Second)
	p.owe("U2", scheduled, 6*time.Minute)
	p.restsFor(time.Second)
	p.later(time.Second)
	p.refuses("U2-scheduled")
}

// What is under way is not dropped.
func TestAnAttemptUnderWayIsNotDropped(t *testing.T) {
	p := newPlan(t, Terms{Late: LateDrop})
	p.announce("A")
	p.begins("A-scheduled")
	p.owe("A", started, 0)
	p.drops("")
}

// A reminder doesn't change the state of the event, so it doesn't make older changes late.
func TestReminderMakesNothingLate(t *testing.T) {
	p := newPlan(t, Terms{Late: LateDrop})
	p.announce("A")
	p.owe("A", reminder, far)
	p.drops("")
	p.accepts("A-scheduled", "A-reminder")
}

// What somebody replayed is never late, and does not keep the route awake. Other changes are late as before.
func TestReplayedChangesAreNeverLate(t *testing.T) {
	p := newPlan(t, Terms{Late: LateDrop})
	p.owe("A", updated, far)
	m := &Message{Group: "A", Change: scheduled, ID: "replayed"}
	p.put(&Item{Message: m, NotBefore: p.now, Replayed: true}, p.now)
	p.owe("A", started, 0)
	p.later(time.Minute)
	p.drops("A-updated")
	p.fails("replayed")
	p.restsFor(time.Second)
}

// On a relay, what somebody replayed comes after newer changes of its event. It takes the place of none, and makes none
// late, but is told after them.
func TestReplayedChangeTakesNoPlace(t *testing.T) {
	for _, tt := range []struct {
		late  Late
		drops string
		then  []string
	}{
		{LateSend, "", []string{"A-scheduled", "A-started", "replayed"}},
		{LateLatest, "", []string{"A-started", "replayed"}},
		{LateDrop, "A-scheduled", []string{"A-started", "replayed"}},
	} {
		p := newPlan(t, Terms{Late: tt.late})
		p.announce("A")
		p.owe("A", started, 0)
		m := &Message{Seq: 3, Group: "A", Change: scheduled, ID: "replayed"}
		p.put(&Item{Message: m, NotBefore: p.now.Add(far), Replayed: true}, p.now)
		p.drops(tt.drops)
		p.accepts(tt.then...)
	}
}

// Attempts at the same time are of different events.
func TestParallelAttemptsAreOfDifferentEvents(t *testing.T) {
	p := newPlan(t, Terms{Parallel: 2})
	p.announce("A")
	p.owe("A", started, 0)
	p.announce("B", "C")
	a := p.begins("A-scheduled")
	p.begins("B-scheduled")
	p.rests()
	p.accept(a, p.now)
	p.accepts("A-started")
}

// An event waits for its attempt under way even if what is attempted is removed.
func TestEventWaitsForItsAttemptEvenIfItsChangeWasRemoved(t *testing.T) {
	p := newPlan(t, Terms{Parallel: 2})
	p.announce("A")
	a := p.begins("A-scheduled")
	p.remove(a.batch[0].Seq, p.now)
	p.owe("A", updated, far)
	p.rests()
	p.accept(a, p.now)
	p.accepts("A-updated")
}

// While stopping, only what never failed is attempted.
func TestStopMakesOnlyFirstAttempts(t *testing.T) {
	p := newPlan(t, Terms{})
	p.announce("A")
	p.fails("A-scheduled")
	p.later(time.Hour)
	p.announce("B")
	p.stop(p.now)
	p.accepts("B-scheduled")
	p.rests()
}

// While stopping, a blocked route is not attempted, neither for what is urgent nor for a due probe.
func TestStopDoesNotTryABlockedRoute(t *testing.T) {
	p := blockedPlan(t, "A")
	p.owe("URGENT", scheduled, time.Minute)
	p.announce("B")
	p.stop(p.now)
	p.later(2 * time.Minute)
	p.restsFor(0)
}

// What was delivered, dropped or split from its batch leaves nothing in the schedule.
func TestFinishedDeliveriesLeaveNothingInMemory(t *testing.T) {
	for _, terms := range []Terms{{Batch: 3}, grouped} {
		p := newPlan(t, terms)
		for _, partly := range []bool{false, true} {
			for _, event := range numbered("A", 6) {
				if partly {
					p.owePartly(event, far)
				} else {
					p.announce(event)
				}
			}
			p.allFail()
			p.remove(p.seq, p.now)
			for range 100 {
				p.later(time.Minute)
				p.allAccepted()
			}
		}
		if n := len(p.index) + len(p.lanes) + len(p.partialBatches) + len(p.underWay) + p.retrying; n != 0 {
			t.Errorf("%d are left: %+v", n, p.schedule)
		}
	}
}
