package delivery

import (
	"slices"
	"testing"
	"time"
)

// Backoff grows as documented, and each wait is a random part of its bound.
func TestBackoffIsBoundedWithFullJitter(t *testing.T) {
	for i, bound := range []time.Duration{1, 2, 4, 8, 15, 30, 60, 120, 240, 300, 300, 300} {
		for _, random := range []float64{0, 0.25, 0.5, 0.999} {
			if got, want := backoff(i+1, random), time.Duration(random*float64(bound*time.Second)); got != want {
				t.Errorf("backoff after %d failures at %v = %v, want %v", i+1, random, got, want)
			}
		}
	}
}

// A Retry-After delays the whole route, for at most an hour.
func TestRetryAfterDelaysTheRoute(t *testing.T) {
	for wish, floor := range map[time.Duration]time.Duration{
		20 * time.Minute: 20 * time.Minute, time.Hour: time.Hour, 24 * time.Hour: time.Hour,
	} {
		p := newPlan(t, Terms{})
		p.announce("A")
		p.planRetry(p.begins("A-scheduled"), nil, verdict{wish: &RetryAfter{After: wish}}, p.now)
		p.announce("B")
		p.restsFor(floor)
		p.later(floor)
		p.accepts("B-scheduled", "A-scheduled")
	}
}

// With attempts in parallel the latest end of a Retry-After counts: neither a shorter one nor an acceptance of an
// attempt that began before it takes it back.
func TestLongestRetryAfterCounts(t *testing.T) {
	p := newPlan(t, Terms{Parallel: 3})
	p.announce("A", "B", "C", "D")
	a, b, c := p.begins("A-scheduled"), p.begins("B-scheduled"), p.begins("C-scheduled")
	p.planRetry(a, nil, verdict{wish: &RetryAfter{After: time.Minute}}, p.now)
	p.planRetry(b, nil, verdict{wish: &RetryAfter{After: time.Second}}, p.now)
	p.accept(c, p.now)
	p.restsFor(time.Minute)
	p.later(time.Minute)
	p.accepts("A-scheduled")
}

// After an acceptance the next change of an event waits as after a first failure.
func TestAcceptanceForgetsFailures(t *testing.T) {
	p := newPlan(t, Terms{})
	p.announce("A")
	p.owe("A", updated, far)
	for range 4 {
		p.fails("A-scheduled")
		p.later(10 * time.Minute)
	}
	p.accepts("A-scheduled")
	p.fails("A-updated")
	p.restsFor(time.Second)
}

// After a restart everything is attempted at once, whatever it waited for, and what had failed often waits as after a
// first failure.
func TestRestartForgetsFailures(t *testing.T) {
	p := newPlan(t, Terms{})
	p.announce("A")
	for range 8 {
		p.fails("A-scheduled")
		p.later(10 * time.Minute)
	}
	p.planRetry(p.begins("A-scheduled"), nil, verdict{wish: &RetryAfter{After: time.Hour}}, p.now)
	p.restart(p.now)
	p.fails("A-scheduled")
	p.restsFor(time.Second)
}

// A message about the bridge that was refused by some goes on alone with its failures; the next ones do not wait for
// it, and once it is delivered nothing fails any more.
func TestAMessageThatGoesOnAloneTakesItsFailuresAlong(t *testing.T) {
	p := newPlan(t, Terms{})
	partly := *p.owe("", "first", 0)
	p.fails("-first")
	p.owe("", "next", 0)
	partly.Batch = 7
	p.put(&partly, p.now)
	p.wantRetrying(1)
	p.accepts("-next")
	p.wantRetrying(1)
	p.restsFor(time.Second)
	p.later(time.Second)
	p.accepts("-first")
	p.wantRetrying(0)
}

// A route is blocked after three refusals over at least thirty seconds, and not before; never by other failures.
func TestRouteIsBlockedAfterThreeRefusalsOverThirtySeconds(t *testing.T) {
	for _, tt := range []struct {
		claim    string
		refusals []time.Duration
		want     health
	}{
		{"two over a minute", []time.Duration{0, time.Minute}, up},
		{"three over 29 seconds", []time.Duration{0, 10 * time.Second, 29 * time.Second}, up},
		{"three over 30 seconds", []time.Duration{0, 10 * time.Second, 30 * time.Second}, blocked},
		{"four, of which three are quick", []time.Duration{0, 1, 2, 31 * time.Second}, blocked},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			p := newPlan(t, Terms{})
			p.announce("A")
			began := p.now
			for _, at := range tt.refusals {
				p.now = began.Add(at)
				p.due("A")
				p.refuses("A-scheduled")
			}
			p.wantHealth(tt.want)
		})
	}
	p := newPlan(t, Terms{})
	p.announce("A")
	for range 10 {
		p.fails("A-scheduled")
		p.later(10 * time.Minute)
	}
	p.wantHealth(up)
}

// blockedPlan has been blocked over these events for ten seconds.
func blockedPlan(t *testing.T, events ...string) *plan {
	t.Helper()
	p := newPlan(t, Terms{Batch: 10})
	all := idsIn(p.announce(events...))
	for p.health != blocked {
		p.refuses(all)
		p.later(10 * time.Second)
	}
	return p
}

// A blocked route is probed once a minute with one delivery, the events in turn. The first acceptance unblocks all of
// them; they go on their own, because one may still be refused.
func TestBlockedRouteIsProbedInTurn(t *testing.T) {
	p := blockedPlan(t, "A", "B", "C")
	p.restsFor(50 * time.Second)
	p.later(50 * time.Second)
	for _, want := range []string{"A-scheduled", "B-scheduled", "C-scheduled", "A-scheduled", "B-scheduled"} {
		p.refuses(want)
		p.restsFor(time.Minute)
		p.later(time.Minute)
	}
	p.accepts("C-scheduled", "A-scheduled", "B-scheduled")
	p.wantHealth(up)
}

// A blocked route with nothing pending causes no wake-up.
func TestBlockedRouteWithNothingPendingSleeps(t *testing.T) {
	p := blockedPlan(t, "A")
	p.remove(p.seq, p.now)
	p.restsFor(0)
	p.later(time.Hour)
	p.restsFor(0)
}

// An event whose last change was accepted doesn't wait alone: refusals of its next change block the route.
func TestRefusalsOfAnAcceptedEventBlockTheRoute(t *testing.T) {
	p := newPlan(t, Terms{})
	p.announce("A")
	p.owe("A", updated, far)
	p.accepts("A-scheduled")
	for range 3 {
		p.refuses("A-updated")
		p.later(15 * time.Second)
	}
	p.wantHealth(blocked)
}

// Refusals are counted from zero after an acceptance and after a restart, even if events had failed before: it takes
// three over thirty seconds again to block the route.
func TestRefusalsAreCountedFromZeroAgain(t *testing.T) {
	for event, anew := range map[string]func(*plan){ // what was refused before waits alone after an acceptance
		"C": func(p *plan) {
			p.owe("B", scheduled, time.Minute)
			p.accepts("B-scheduled")
			p.remove(1, p.now)
			p.announce("C")
		},
		"A": func(p *plan) { p.restart(p.now) },
	} {
		p := blockedPlan(t, "A")
		anew(p)
		p.wantHealth(up)
		for _, wait := range []time.Duration{0, 29 * time.Second} {
			p.later(wait)
			p.refuses(event + "-scheduled")
			p.wantHealth(up)
		}
		p.later(2 * time.Second)
		p.refuses(event + "-scheduled")
		p.wantHealth(blocked)
	}
}

// A destination that is down gets no storm of attempts: once deliveries of eight events have failed, it gets one
// attempt at a time, of the events in turn, after the waits of the backoff. What is urgent goes at once. The first
// acceptance lets all of them go.
func TestDestinationThatIsDownGetsOneAttemptAtATime(t *testing.T) {
	p := newPlan(t, Terms{Parallel: 4})
	const events = 1000
	inTurn := numbered("EVENT-", events)
	p.announce(inTurn...)
	for _, event := range inTurn[:8] {
		p.fails(event + "-scheduled")
	}
	for n, wait := range []time.Duration{1, 2, 4, 8, 15, 30, 60, 120, 240, 300, 300} {
		p.restsFor(wait * time.Second)
		p.later(wait * time.Second)
		p.fails(inTurn[8+n] + "-scheduled")
	}
	p.owe("URGENT", scheduled, time.Minute)
	p.fails("URGENT-scheduled")
	p.later(5 * time.Minute)
	if n := p.allAccepted(); n != events+1 {
		t.Errorf("after the first acceptance %d deliveries went at once, want all %d", n, events+1)
	}
}

// Only one probe is under way at a time, even if the route allows more attempts and an event is urgent.
func TestOneProbeAtATime(t *testing.T) {
	p := newPlan(t, Terms{Parallel: 4})
	p.announce(numbered("EVENT-", 30)...)
	p.allFail()
	p.later(time.Second)
	p.begins("EVENT-8-scheduled")
	p.later(time.Minute)
	p.owe("URGENT", scheduled, time.Minute)
	p.rests()
}

// Failed deliveries that are no longer pending (dropped, late, or over the bounds) still count towards down. Each event
// counts once, however often it fails. After an acceptance they are counted from zero again.
func TestRemovedDeliveriesCountForADestinationThatIsDown(t *testing.T) {
	p := newPlan(t, Terms{})
	for _, event := range append(slices.Repeat([]string{"OFTEN"}, 12), numbered("OTHER-", 7)...) {
		p.later(5 * time.Minute)
		p.announce(event)
		p.fails(event + "-scheduled")
		p.remove(p.seq, p.now)
	}
	p.announce("NEXT")
	p.restsFor(time.Second)
	p.later(time.Second)
	p.accepts("NEXT-scheduled")
	p.announce("LAST", "MORE")
	p.fails("LAST-scheduled", "MORE-scheduled")
}

// A destination that is down again, after an acceptance or a restart, is tried again after a second, as at first.
func TestDestinationThatIsDownAgainIsTriedSoon(t *testing.T) {
	for claim, anew := range map[string]func(*plan){
		"after an acceptance": func(p *plan) { p.accepts("EVENT-10-scheduled") },
		"after a restart":     func(p *plan) { p.restart(p.now) },
	} {
		t.Run(claim, func(t *testing.T) {
			p := newPlan(t, Terms{})
			p.announce(numbered("EVENT-", 30)...)
			for _, wait := range []time.Duration{1, 2, 4} {
				p.allFail()
				p.restsFor(wait * time.Second)
				p.later(wait * time.Second)
			}
			anew(p)
			if n := p.allFail(); n != 8 {
				t.Errorf("%d events are tried until it is down again, want 8", n)
			}
			p.restsFor(time.Second)
		})
	}
}
