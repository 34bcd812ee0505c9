package delivery

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Backoff grows as documented, and each wait is a random part of its bound.
func TestBackoffIsBoundedWithFullJitter(t *testing.T) {
	want := []time.Duration{1, 2, 4, 8, 15, 30, 60, 120, 240, 300, 300, 300}
	for i, bound := range want {
		for _, random := range []float64{0, 0.25, 0.5, 0.999} {
			if got, want := backoff(i+1, random), time.Duration(random*float64(bound*time.Second)); got != want {
				t.Errorf("backoff after %d failures at %v = %v, want %v", i+1, random, got, want)
			}
		}
	}
}

// A route is blocked after three refusals over at least thirty seconds, and not before.
func TestRouteIsBlockedAfterThreeRefusalsOverThirtySeconds(t *testing.T) {
	for _, tt := range []struct {
		claim   string
		at      []time.Duration // refusals
		blocked bool
	}{
		{"two over a minute", []time.Duration{0, time.Minute}, false},
		{"three over 29 seconds", []time.Duration{0, 10 * time.Second, 29 * time.Second}, false},
		{"three over 30 seconds", []time.Duration{0, 10 * time.Second, 30 * time.Second}, true},
		{"four, of which three are quick", []time.Duration{0, 1, 2, 31 * time.Second}, true},
	} {
		p := newPlan(Terms{})
		p.owe("A", scheduled, far)
		began := p.now
		for _, at := range tt.at {
			p.now = began.Add(at)
			p.waits("A", p.now)
			p.fails(true, 0)
		}
		if got := p.health == blocked; got != tt.blocked {
			t.Errorf("%s: blocked is %v", tt.claim, got)
		}
	}
	p := newPlan(Terms{})
	p.owe("A", scheduled, far)
	for range 10 {
		p.fails(false, 0)
		p.later(10 * time.Minute)
	}
	if p.health == blocked {
		t.Error("failures that are no refusals block")
	}
}

// blockedPlan is blocked over the event A, and just probed.
func blockedPlan(events ...string) *plan {
	p := newPlan(Terms{Batch: 10})
	for _, e := range events {
		p.owe(e, scheduled, far)
	}
	for p.health != blocked {
		p.fails(true, 0)
		p.later(10 * time.Second)
		for _, e := range events {
			p.waits(e, p.now)
		}
	}
	return p
}

// A blocked route is probed once a minute with one delivery, the heads of its events in turn. The first acceptance
// unblocks all of them.
func TestBlockedRouteIsProbedInTurn(t *testing.T) {
	p := blockedPlan("A", "B", "C")
	var probed []string
	began := p.now
	for p.now.Before(began.Add(6*time.Minute + time.Second)) {
		if got := p.fails(true, 0); got != nil {
			if len(got) != 1 {
				t.Errorf("a probe of %v", got)
			}
			probed = append(probed, got...)
		}
		p.later(time.Second)
	}
	if len(probed) != 6 || probed[0] == probed[1] || probed[1] == probed[2] || probed[0] == probed[2] || !slices.Equal(probed[:3], probed[3:]) {
		t.Errorf("probes of six minutes were %v, want the three events in turn", probed)
	}
	p.later(time.Minute)
	if got := p.try(); len(got) != 1 {
		t.Errorf("the probe that succeeds is %v", got)
	}
	for range 2 { // on their own: one may still be refused
		if got := p.try(); len(got) != 1 || p.health != up {
			t.Errorf("after it %v goes, blocked %v; want one of the other two", got, p.health == blocked)
		}
	}
}

// An event that is still refused after the route has recovered waits alone: it doesn't block the route again, and
// acceptances of others don't bring its next attempt forward.
func TestEventStillRefusedWaitsAlone(t *testing.T) {
	p := blockedPlan("A", "B")
	p.terms.Batch = 1
	p.later(time.Minute)
	p.lanes["A"].tried = p.now // so that B is probed
	p.want(t, "the probe", p.try(), "B-scheduled")
	p.want(t, "then the other has its chance", p.fails(true, 0), "A-scheduled")
	tries, accepted := 0, 0
	for i := range 3600 {
		if i%60 == 0 {
			p.owe(fmt.Sprint("EVENT-", i), scheduled, far)
		}
		for {
			a, _ := p.next()
			if len(a.batch) == 0 {
				break
			}
			if a.batch[0].Group == "A" {
				p.planRetry(a, nil, verdict{blocked: true}, p.now)
				tries++
			} else {
				p.accept(a, p.now)
				accepted++
			}
		}
		if p.health == blocked || accepted != i/60+1 {
			t.Fatalf("after %d tries: blocked %v, %d others accepted; want none and %d", tries, (p.health == blocked), accepted, i/60+1)
		}
		p.later(time.Second)
	}
	if tries < 10 || tries > 200 {
		t.Errorf("it was tried %d times in an hour, want what the schedule gives", tries)
	}
}

// After a restart of the schedule, waiting items are attempted at once.
func TestRestartTriesAtOnce(t *testing.T) {
	p := newPlan(Terms{})
	p.owe("A", scheduled, far)
	p.want(t, "first", p.fails(false, time.Minute), "A-scheduled")
	p.waits("A", p.now.Add(5*time.Minute))
	p.want(t, "while it waits", p.try())
	p.restart(p.now)
	p.want(t, "after a restart", p.try(), "A-scheduled")
}

// A Retry-After delays the whole route, for at most an hour.
func TestRetryAfterDelaysTheRoute(t *testing.T) {
	for _, tt := range []struct{ wish, floor time.Duration }{
		{20 * time.Minute, 20 * time.Minute}, {time.Hour, time.Hour}, {24 * time.Hour, time.Hour},
	} {
		p := newPlan(Terms{})
		p.owe("A", scheduled, far)
		p.fails(false, tt.wish)
		p.owe("B", scheduled, far)
		p.later(tt.floor - time.Second)
		p.want(t, "before it ends", p.try())
		_, wake := p.next()
		if !wake.Equal(p.now.Add(time.Second)) {
			t.Errorf("the next look is at %v, want when it ends", wake)
		}
		p.later(time.Second)
		if p.try() == nil {
			t.Errorf("nothing after %v", tt.wish)
		}
	}
}

// With attempts in parallel the latest end of a Retry-After counts: neither a shorter one nor an acceptance of an attempt
// that began before it takes it back.
func TestLongestRetryAfterCounts(t *testing.T) {
	p := newPlan(Terms{Parallel: 3})
	p.random = func() float64 { return 0 }
	for _, event := range []string{"A", "B", "C", "D"} {
		p.owe(event, scheduled, far)
	}
	a, _ := p.next()
	b, _ := p.next()
	c, _ := p.next()
	p.planRetry(a, nil, verdict{wish: &RetryAfter{After: time.Minute}}, p.now)
	p.planRetry(b, nil, verdict{wish: &RetryAfter{After: time.Second}}, p.now)
	p.accept(c, p.now)
	p.later(59 * time.Second)
	p.want(t, "before it ends", p.try())
	p.later(time.Second)
	if p.try() == nil {
		t.Error("nothing when it ends")
	}
}

// While stopping, only items that never failed are attempted.
func TestStopMakesOnlyFirstAttempts(t *testing.T) {
	p := newPlan(Terms{})
	p.owe("A", scheduled, far)
	p.fails(false, 0)
	p.later(time.Hour)
	p.owe("B", scheduled, far)
	p.stop(p.now)
	p.want(t, "first", p.try(), "B-scheduled")
	p.want(t, "then", p.try())
}

// Refusals are counted from zero after an acceptance and after a restart, even if events had failed before: it takes
// three over thirty seconds again to block the route.
func TestRefusalsAreCountedFromZeroAgain(t *testing.T) {
	for _, tt := range []struct {
		claim string
		event string // that is refused then; one that was refused before waits alone after an acceptance
		anew  func(p *plan)
	}{
		{"after an acceptance", "C", func(p *plan) {
			p.owe("B", scheduled, time.Minute)
			p.later(5 * time.Second)
			p.want(t, "what is urgent", p.try(), "B-scheduled")
			p.waits("A", p.now.Add(time.Hour))
			p.owe("C", scheduled, far)
		}},
		{"after a restart", "A", func(p *plan) { p.restart(p.now) }},
	} {
		p := blockedPlan("A")
		tt.anew(p)
		if p.health == blocked {
			t.Errorf("%s it is still blocked", tt.claim)
		}
		for n, wait := range []time.Duration{0, 29 * time.Second, 2 * time.Second} {
			p.later(wait)
			p.waits(tt.event, p.now)
			if got := p.fails(true, 0); len(got) != 1 {
				t.Fatalf("%s: attempt %d is of %v", tt.claim, n+1, got)
			}
			if want := n == 2; (p.health == blocked) != want {
				t.Errorf("%s and %d refusals: blocked %v, want %v", tt.claim, n+1, (p.health == blocked), want)
			}
		}
	}
}

// A blocked route with nothing pending causes no wake-up.
func TestBlockedRouteWithNothingPendingSleeps(t *testing.T) {
	p := blockedPlan("A")
	if _, wake := p.next(); wake.IsZero() || !wake.Equal(p.probe) {
		t.Errorf("with one event it wakes at %v, want at the next probe, %v", wake, p.probe)
	}
	p.waits("A", p.now.Add(time.Second))
	if _, wake := p.next(); !wake.Equal(p.probe) {
		t.Errorf("with one event that waits it wakes at %v, want at the next probe, %v", wake, p.probe)
	}
	p.remove(p.seq, p.now)
	p.later(time.Hour)
	if _, wake := p.next(); !wake.IsZero() {
		t.Errorf("it wakes at %v", wake)
	}
}

// A destination that is down gets no storm of attempts: once deliveries of several events have failed, it gets one
// attempt at a time. The first acceptance lets all of them go.
func TestDestinationThatIsDownGetsOneAttemptAtATime(t *testing.T) {
	p := newPlan(Terms{Parallel: 4})
	const events = 1000
	for n := range events {
		p.owe(fmt.Sprint("EVENT-", n), scheduled, far)
	}
	for n := range 8 {
		p.want(t, "before it is to blame", p.fails(false, 0), fmt.Sprintf("EVENT-%d-scheduled", n))
	}
	p.want(t, "when eight events have failed", p.fails(false, 0))
	tried := map[string]int{}
	attempts := 0
	for began := p.now; p.now.Before(began.Add(time.Hour)); {
		p.later(time.Second)
		for ids := p.fails(false, 0); ids != nil; ids = p.fails(false, 0) {
			attempts++
			tried[ids[0]]++
		}
	}
	if attempts < 20 || attempts > 100 {
		t.Errorf("%d attempts in an hour, want what the waits of one destination give", attempts)
	}
	if len(tried) != attempts {
		t.Errorf("%d attempts were of %d events, want the events in turn", attempts, len(tried))
	}
	_, wake := p.next()
	if wait := wake.Sub(p.now); wait < 0 || wait > 5*time.Minute {
		t.Errorf("the next attempt is in %v, want five minutes at most", wait)
	}
	p.owe("URGENT", scheduled, time.Minute)
	p.want(t, "what is urgent", p.fails(false, 0), "URGENT-scheduled")

	p.now = wake
	for n := range events + 1 {
		if p.try() == nil {
			t.Fatalf("after the first acceptance only %d of %d deliveries went at once", n, events+1)
		}
	}
}

// While stopping, a blocked route is not attempted, neither for urgent items nor for a due probe.
func TestStopDoesNotTryABlockedRoute(t *testing.T) {
	p := blockedPlan("A")
	p.owe("URGENT", scheduled, time.Minute)
	p.owe("B", scheduled, far)
	p.stop(p.now)
	p.later(2 * time.Minute)
	p.want(t, "while stopping", p.try())
	if _, wake := p.next(); !wake.IsZero() {
		t.Errorf("it wakes at %v", wake)
	}
}

// After a restart, an event that had failed often waits as after a first failure.
func TestRestartForgetsFailures(t *testing.T) {
	p := newPlan(Terms{})
	p.random = func() float64 { return 1 }
	p.owe("A", scheduled, far)
	for range 8 {
		p.fails(false, 0)
		p.later(10 * time.Minute)
	}
	p.restart(p.now)
	p.fails(false, 0)
	if _, wake := p.next(); !wake.Equal(p.now.Add(time.Second)) {
		t.Errorf("after the next failure it waits for %v, want a second", wake.Sub(p.now))
	}
}

// An event whose last change was accepted doesn't wait alone: refusals of its next change block the route.
func TestRefusalsOfAnAcceptedEventBlockTheRoute(t *testing.T) {
	p := newPlan(Terms{})
	p.owe("A", scheduled, far)
	p.owe("A", updated, far)
	p.want(t, "first", p.try(), "A-scheduled")
	for range 3 {
		p.waits("A", p.now)
		p.want(t, "then", p.fails(true, 0), "A-updated")
		p.later(15 * time.Second)
	}
	if p.health != blocked {
		t.Error("three refusals over 30 seconds did not block")
	}
}

// Failed deliveries that are no longer pending (dropped, late, or over the bounds) still count towards down. Each event
// counts once, however often it fails.
func TestRemovedItemsCountForADestinationThatIsDown(t *testing.T) {
	p := newPlan(Terms{})
	for n := range 20 {
		p.later(5 * time.Minute)
		i := p.owe(fmt.Sprint("EVENT-", max(0, n-12)), scheduled, far)
		p.want(t, "before it is to blame", p.fails(false, 0), i.ID)
		p.remove(i.Seq, p.now)
	}
	p.random = func() float64 { return 1 }
	p.owe("NEXT", scheduled, far)
	p.want(t, "when eight events have failed", p.fails(false, 0))
	p.later(time.Second)
	p.want(t, "a second later", p.try(), "NEXT-scheduled")
	p.owe("LAST", scheduled, far)
	p.want(t, "after an acceptance", p.fails(false, 0), "LAST-scheduled")
	p.owe("MORE", scheduled, far)
	p.want(t, "and a failure", p.fails(false, 0), "MORE-scheduled")
}

// A destination that is down again, after an acceptance or a restart, is tried again after a second, as at first.
func TestDestinationThatIsDownAgainIsTriedSoon(t *testing.T) {
	for _, accepts := range []bool{true, false} {
		p := newPlan(Terms{})
		p.random = func() float64 { return 1 }
		for n := range 30 {
			p.owe(fmt.Sprint("EVENT-", n), scheduled, far)
		}
		wait := func() time.Duration {
			for p.fails(false, 0) != nil {
			}
			_, wake := p.next()
			return wake.Sub(p.now)
		}
		for _, want := range []time.Duration{1, 2, 4} {
			if got := wait(); got != want*time.Second {
				t.Errorf("it is tried again in %v, want %v", got, want*time.Second)
			}
			p.later(want * time.Second)
		}
		if accepts {
			p.try()
		} else {
			p.restart(p.now)
		}
		tried := 0
		for p.fails(false, 0) != nil {
			tried++
		}
		if tried != 8 {
			t.Errorf("%d events are tried until it is down again (after an acceptance: %v), want 8", tried, accepts)
		}
		if got := wait(); got != time.Second {
			t.Errorf("when it is down again (after an acceptance: %v) it is tried in %v, want a second", accepts, got)
		}
	}
}

// downPlan is down over eight of thirty events.
func downPlan(terms Terms) *plan {
	p := newPlan(terms)
	p.random = func() float64 { return 1 }
	for n := range 30 {
		p.owe(fmt.Sprint("EVENT-", n), scheduled, far)
	}
	for p.fails(false, 0) != nil {
	}
	return p
}

// Only one probe is under way at a time, even if the route allows more attempts and an item is urgent.
func TestOneProbeAtATime(t *testing.T) {
	p := downPlan(Terms{Parallel: 4})
	p.now = p.probe
	if a, _ := p.next(); len(a.batch) != 1 {
		t.Fatalf("the probe is of %v", idsIn(a))
	}
	p.later(time.Minute)
	p.owe("URGENT", scheduled, time.Minute)
	p.want(t, "beside it", p.try())
}

// After an acceptance the next change of an event waits as after a first failure.
func TestAcceptanceForgetsFailures(t *testing.T) {
	p := newPlan(Terms{})
	p.random = func() float64 { return 1 }
	p.owe("A", scheduled, far)
	p.owe("A", updated, far)
	for range 4 {
		p.fails(false, 0)
		p.later(10 * time.Minute)
	}
	p.want(t, "taken", p.try(), "A-scheduled")
	p.want(t, "not taken", p.fails(false, 0), "A-updated")
	if _, wake := p.next(); !wake.Equal(p.now.Add(time.Second)) {
		t.Errorf("it waits for %v, want a second", wake.Sub(p.now))
	}
}

// A message about the bridge that was refused by some goes on alone with its failures; the next ones do not wait for it,
// and once it is delivered nothing fails any more.
func TestAMessageThatGoesOnAloneTakesItsFailuresAlong(t *testing.T) {
	p := newPlan(Terms{})
	partly := *p.owe("", "", 0)
	p.fails(false, 0)
	p.owe("", "next", 0)
	partly.Batch = 7
	p.put(&partly, p.now)
	if p.retrying != 1 {
		t.Errorf("%d lanes fail, want 1", p.retrying)
	}
	p.want(t, "the next one", p.try(), "-next")
	if p.retrying != 1 {
		t.Errorf("%d lanes fail after the next one was delivered, want 1", p.retrying)
	}
	p.later(backoff(1, 1))
	p.want(t, "the one that failed", p.try(), "-")
	if p.retrying != 0 {
		t.Errorf("%d lanes fail after all was delivered, want none", p.retrying)
	}
}
