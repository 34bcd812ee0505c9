package delivery

import (
	"cmp"
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

// A plan is a schedule with a clock.
type plan struct {
	*schedule
	now time.Time
	seq uint64

	azureType string // of what becomes pending
}

func newPlan(terms Terms) *plan {
	return &plan{now: time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC), schedule: newSchedule(terms)}
}

// owe makes a change of the event pending, with NotBefore after notice; 0 for none.
func (p *plan) owe(event, change string, notice time.Duration) *Item {
	p.seq++
	m := &Message{Seq: p.seq, Group: event, Change: change, ID: event + "-" + change, AzureType: p.azureType}
	i := &Item{Message: m, PendingSince: p.now}
	if notice != 0 {
		i.NotBefore = p.now.Add(notice)
	}
	p.put(i, p.now)
	return i
}

// next begins the due attempt, if any, and returns when to ask again.
func (p *plan) next() (a attempt, again time.Time) {
	if a = p.attempt(p.now); len(a.batch) > 0 {
		return a, time.Time{}
	}
	at, _, deadline := p.wake(p.now)
	return a, earlier(at, deadline)
}

// try makes the due attempt, which is accepted, and returns its ids; nil if none is due.
func (p *plan) try() []string {
	a, _ := p.next()
	if len(a.batch) == 0 {
		return nil
	}
	p.accept(a, p.now)
	return idsIn(a)
}

// fails makes the due attempt, which is refused, and returns its ids; nil if none is due.
func (p *plan) fails(blocked bool, wish time.Duration) []string {
	a, _ := p.next()
	if len(a.batch) == 0 {
		return nil
	}
	v := verdict{blocked: blocked}
	if wish > 0 {
		v.wish = &RetryAfter{After: wish}
	}
	p.planRetry(a, nil, v, p.now)
	return idsIn(a)
}

// rejects makes the due attempt, which is rejected, so that its items go one by one.
func (p *plan) rejects() attempt {
	a, _ := p.next()
	p.takeApart(a, p.now)
	return a
}

// waits sets when an event is tried next.
func (p *plan) waits(event string, until time.Time) {
	l := p.lanes[event]
	l.next = until
	p.reschedule(l, p.now)
}

func idsIn(a attempt) (ids []string) {
	for _, i := range a.batch {
		ids = append(ids, i.ID)
	}
	return ids
}

// later moves the clock.
func (p *plan) later(d time.Duration) { p.now = p.now.Add(d) }

func (p *plan) want(t *testing.T, claim string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: attempted %v, want %v", claim, got, want)
	}
}

const (
	far     = 2 * time.Hour // so far away that it is not urgent
	updated = "updated"
)

// The event that starts soonest is attempted first; ended events and messages about the bridge come last.
func TestNearestNotBeforeGoesFirst(t *testing.T) {
	p := newPlan(Terms{})
	p.owe("", "", 0)
	p.owe("OVER", vanished, -time.Hour)
	p.owe("FAR", scheduled, 40*time.Minute)
	p.owe("NEAR", scheduled, 20*time.Second)
	p.owe("BEGUN", "started", 0)
	p.owe("NEXT", scheduled, 30*time.Minute)
	for _, want := range []string{"BEGUN-started", "NEAR-scheduled", "NEXT-scheduled", "FAR-scheduled", "OVER-vanished", "-"} {
		p.want(t, "in order", p.try(), want)
	}
}

// The changes of one event are attempted in order, one after the other. A lane that waits doesn't hold up others.
func TestLanesDoNotWaitForEachOther(t *testing.T) {
	p := newPlan(Terms{})
	p.owe("A", scheduled, far)
	p.want(t, "first", p.fails(false, 0), "A-scheduled")
	p.waits("A", p.now.Add(time.Minute))
	p.owe("A", updated, far)
	p.want(t, "while it waits", p.try())
	p.owe("B", scheduled, far)
	p.want(t, "another event", p.try(), "B-scheduled")
	p.want(t, "and its acceptance gives A another chance", p.try(), "A-scheduled")
	p.want(t, "then", p.try(), "A-updated")
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

// Urgent items are attempted at once while the route waits or is blocked, but at most every five seconds, and never
// before a Retry-After ends. Other items wait.
func TestUrgentLanesGoAtOnce(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		kind   string
		notice time.Duration
		urgent bool
	}{
		{"a Preempt with 15 s of notice", scheduled, 15 * time.Second, true},
		{"just less than 15 minutes", scheduled, 15*time.Minute - time.Second, true},
		{"15 minutes", scheduled, 15 * time.Minute, false},
		{"no time at all", "started", 0, true},
		{"a time that has passed", updated, -time.Minute, true},
		{"two hours", scheduled, far, false},
	} {
		for _, blocked := range []bool{false, true} {
			claim := fmt.Sprintf("%s, blocked %v", tt.claim, blocked)
			p := blockedPlan("A")
			if !blocked {
				p.health = up
			}
			p.waits("A", p.now.Add(5*time.Minute))
			p.probe = p.now.Add(time.Minute)
			p.owe("A", tt.kind, tt.notice)
			want := []string(nil)
			if tt.urgent {
				want = []string{"A-scheduled"}
				if !blocked {
					want = append(want, "A-"+tt.kind)
				}
			}
			p.want(t, claim, p.fails(true, 0), want...)
			p.want(t, claim+", once", p.fails(true, 0))
			if !tt.urgent {
				continue
			}
			p.owe("A", updated, time.Minute)
			p.later(4 * time.Second)
			p.want(t, claim+", not within five seconds", p.fails(true, 0))
			p.later(time.Second)
			if p.fails(true, 0) == nil {
				t.Errorf("%s: nothing was attempted after five seconds", claim)
			}
		}
	}

	p := newPlan(Terms{})
	p.owe("A", scheduled, far)
	p.fails(false, 30*time.Second)
	p.owe("B", scheduled, time.Minute)
	p.later(29 * time.Second)
	p.want(t, "before a Retry-After ends", p.try())
	p.later(time.Second)
	p.want(t, "when it ends", p.try(), "B-scheduled")
}

// A hanging destination gets each new urgent event once before failed ones are repeated, even if those start sooner.
// Otherwise two failed events could alternate and keep it busy.
func TestNewUrgentItemsGoBeforeFailedOnes(t *testing.T) {
	p := newPlan(Terms{})
	p.owe("FIRST", scheduled, time.Minute)
	p.owe("SECOND", scheduled, 2*time.Minute)
	p.owe("THIRD", scheduled, 10*time.Minute)
	p.owe("FAR", scheduled, far)
	for _, want := range []string{"FIRST", "SECOND", "THIRD"} {
		p.want(t, "while others failed", p.fails(false, 0), want+"-scheduled")
		p.later(10 * time.Second) // each takes its time, so that what failed before may be tried again
	}
	p.want(t, "when nothing is new and urgent", p.fails(false, 0), "FIRST-scheduled")
}

// An urgent item that arrives while an attempt is under way is still urgent when that attempt fails.
func TestUrgencyDuringAnAttemptIsKept(t *testing.T) {
	p := newPlan(Terms{})
	p.owe("A", scheduled, far)
	p.lanes["A"].failures = 9
	a, _ := p.next()
	p.owe("A", "started", 0)
	p.planRetry(a, nil, verdict{}, p.now)
	p.later(urgentEvery)
	p.want(t, "at once", p.fails(false, 0), "A-scheduled")
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

// A batch holds at most as many deliveries as the route allows, oldest first, those of each event in order.
func TestBatchesAreBoundedAndInOrder(t *testing.T) {
	p := newPlan(Terms{Batch: 4})
	p.owe("A", scheduled, 30*time.Minute)
	p.owe("B", scheduled, 20*time.Minute)
	p.owe("A", updated, 30*time.Minute)
	p.owe("B", "started", 0)
	p.owe("C", scheduled, far)
	p.want(t, "the first", p.try(), "A-scheduled", "B-scheduled", "A-updated", "B-started")
	p.want(t, "the second", p.try(), "C-scheduled")
	if p.next(); len(p.lanes) != 0 {
		t.Errorf("%d lanes are left", len(p.lanes))
	}
}

// The members of a rejected batch are delivered one by one. Later items are delivered in batches again.
func TestRejectedBatchIsDeliveredOneByOne(t *testing.T) {
	p := newPlan(Terms{Batch: 3})
	for _, event := range []string{"A", "B", "C", "D", "E"} {
		p.owe(event, scheduled, far)
	}
	p.want(t, "the batch", idsIn(p.rejects()), "A-scheduled", "B-scheduled", "C-scheduled")
	for _, event := range []string{"A", "B", "C"} {
		p.want(t, "one by one", p.try(), event+"-scheduled")
	}
	p.want(t, "the rest", p.try(), "D-scheduled", "E-scheduled")
}

// With latest, the newest change of an event replaces the older ones. With drop, older changes are dropped, and a
// scheduled one whose time has passed.
func TestLateChanges(t *testing.T) {
	p := newPlan(Terms{Late: LateLatest, Batch: 5})
	p.owe("A", scheduled, far)
	p.owe("A", updated, far)
	p.owe("A", "started", 0)
	p.owe("B", scheduled, far)
	a, _ := p.next()
	if got := idsIn(a); !slices.Equal(got, []string{"A-started"}) || len(a.superseded) != 2 || a.superseded[0].Change != scheduled {
		t.Errorf("attempted %v for %d others, want the newest for two", got, len(a.superseded))
	}

	p = newPlan(Terms{Late: LateDrop})
	first := p.owe("A", scheduled, far)
	if late, _ := p.takeOverdue(p.now); len(late) != 0 {
		t.Errorf("dropped %v", late)
	}
	second := p.owe("A", updated, far)
	gone := p.owe("B", scheduled, time.Minute)
	ended := p.owe("C", vanished, time.Minute)
	p.owe("", "one", 0)
	p.owe("", "another", 0)
	p.later(2 * time.Minute)
	if late, _ := p.takeOverdue(p.now); !slices.Equal(late, []*Item{first, gone}) {
		t.Errorf("dropped %v, want what was overtaken and what is too late", late)
	}
	p.want(t, "left is", p.try(), second.ID)
	p.want(t, "an end is never too late", p.try(), ended.ID)
	p.want(t, "nor is what is about the bridge", p.try(), "-one")

	p = newPlan(Terms{Late: LateDrop})
	under := p.owe("A", scheduled, far)
	p.next()
	p.owe("A", "started", 0)
	if late, _ := p.takeOverdue(p.now); len(late) != 0 {
		t.Errorf("dropped %v, and %s is under way", late, under.ID)
	}
}

// Removed items are not attempted, wherever they are in the queue.
func TestRemovedItemsAreNotAttempted(t *testing.T) {
	for _, late := range []Late{LateSend, LateLatest} {
		p := newPlan(Terms{Late: late, Batch: 10})
		first, second, third := p.owe("A", scheduled, far), p.owe("A", updated, far), p.owe("A", "started", 0)
		p.remove(first.Seq, p.now)
		p.remove(third.Seq, p.now)
		p.want(t, string(late), p.try(), second.ID)
		if got := p.try(); got != nil {
			t.Errorf("%s: then %v", late, got)
		}
	}
}

// Concurrent attempts on a route are about different events.
func TestParallelAttemptsAreOfDifferentEvents(t *testing.T) {
	p := newPlan(Terms{Parallel: 2})
	p.owe("A", scheduled, far)
	p.owe("A", "started", 0)
	p.owe("B", scheduled, far)
	p.owe("C", scheduled, far)
	one, _ := p.next()
	two, _ := p.next()
	three, _ := p.next()
	p.want(t, "first", idsIn(one), "A-scheduled")
	p.want(t, "beside it", idsIn(two), "B-scheduled")
	p.want(t, "and no third", idsIn(three))
	p.accept(one, p.now)
	p.want(t, "then", p.try(), "A-started")
}

// An event waits for its attempt under way even if the item being attempted is removed.
func TestEventWaitsForItsAttemptEvenIfItsItemWasRemoved(t *testing.T) {
	p := newPlan(Terms{Parallel: 2})
	dropped := p.owe("A", scheduled, far)
	a, _ := p.next()
	p.remove(dropped.Seq, p.now)
	p.owe("A", updated, far)
	p.want(t, "while it is under way", p.try())
	p.accept(a, p.now)
	p.want(t, "then", p.try(), "A-updated")
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

// Replayed items are attempted before newer ones.
func TestReplayedItemsGoInOrder(t *testing.T) {
	p := newPlan(Terms{})
	old := &Item{Message: &Message{Seq: 1, Group: "A", Change: scheduled, ID: "old"}}
	p.seq = 10
	p.owe("A", "started", 0)
	p.put(old, p.now)
	p.want(t, "first", p.try(), "old")
	p.want(t, "then", p.try(), "A-started")
}

// What somebody replayed is never late, and does not keep the route awake. Other items are late as before.
func TestReplayedItemsAreNeverLate(t *testing.T) {
	p := newPlan(Terms{Late: LateDrop})
	p.random = func() float64 { return 1 }
	old := &Item{Message: &Message{Seq: 1, Group: "A", Change: scheduled, ID: "old"}, NotBefore: p.now, Replayed: true}
	p.seq = 10
	overtaken := p.owe("A", updated, far)
	p.put(old, p.now)
	p.owe("A", "started", 0)
	p.later(time.Minute)
	if late, _ := p.takeOverdue(p.now); !slices.Equal(late, []*Item{overtaken}) {
		t.Errorf("late are %v, want only what was not replayed", late)
	}
	p.want(t, "first", p.fails(false, 0), "old")
	if _, wake := p.next(); !wake.After(p.now) {
		t.Errorf("it wakes at %v, and it is %v", wake, p.now)
	}
}

// On a relay, what somebody replayed comes after newer changes of its event. It takes the place of none, and makes none
// late, but is told after them.
func TestReplayedItemTakesNoPlace(t *testing.T) {
	for _, late := range []Late{LateSend, LateLatest, LateDrop} {
		p := newPlan(Terms{Late: late})
		p.owe("A", scheduled, far)
		p.owe("A", "started", 0)
		replayed := p.owe("A", scheduled, far)
		next := *replayed
		next.Replayed, next.Message = true, &Message{Seq: replayed.Seq, Group: "A", Change: scheduled, ID: "old"}
		p.put(&next, p.now)
		dropped, _ := p.takeOverdue(p.now)
		if want := map[Late]int{LateDrop: 1}[late]; len(dropped) != want {
			t.Errorf("%s: %d are late, want %d", late, len(dropped), want)
		}
		if late == LateSend {
			p.want(t, string(late), p.try(), "A-scheduled")
		}
		p.want(t, string(late), p.try(), "A-started")
		p.want(t, string(late), p.try(), "old")
	}
}

// A route with LateDrop doesn't drop an item when it falls back, only once the item is late.
func TestFallingBackDoesNotMakeAnItemLate(t *testing.T) {
	p := newPlan(Terms{Late: LateDrop, Fallback: Fallback{Sink: "b", After: 2 * time.Minute}})
	p.owe("A", scheduled, 5*time.Minute)
	p.fails(false, 0)
	p.later(2 * time.Minute)
	if late, fallback := p.takeOverdue(p.now); len(late) != 0 || len(fallback) != 1 {
		t.Errorf("after two minutes %d are late and %d fall back, want 0 and 1", len(late), len(fallback))
	}
	p.later(3 * time.Minute)
	if late, fallback := p.takeOverdue(p.now); len(late) != 1 || len(fallback) != 0 {
		t.Errorf("after its time %d are late and %d fall back, want 1 and 0", len(late), len(fallback))
	}
}

// On a route with LateDrop, items that can never be late still fall back.
func TestItemsThatAreNeverLateFallBack(t *testing.T) {
	p := newPlan(Terms{Late: LateDrop, Fallback: Fallback{Sink: "b", After: 2 * time.Minute}})
	p.owe("A", updated, far)
	p.fails(false, 0)
	p.later(2 * time.Minute)
	if late, fallback := p.takeOverdue(p.now); len(late) != 0 || len(fallback) != 1 {
		t.Errorf("after two minutes %d are late and %d fall back, want 0 and 1", len(late), len(fallback))
	}
}

// When a change falls back, the newer changes of its event do too: the fallback must not tell what is known to be out of
// date. What comes later falls back at its own time, and other events keep theirs.
func TestChangesFallBackWithAnOlderOneOfTheirEvent(t *testing.T) {
	p := newPlan(Terms{Fallback: Fallback{Sink: "b", After: 2 * time.Minute}})
	first := p.owe("A", scheduled, far)
	p.later(time.Minute)
	second := p.owe("A", updated, far)
	other := p.owe("B", scheduled, far)
	p.later(time.Minute)
	wantFallback := func(want ...*Item) {
		t.Helper()
		if _, fallback := p.takeOverdue(p.now); !slices.Equal(fallback, want) {
			t.Errorf("%d fall back, want %d", len(fallback), len(want))
		}
	}
	wantFallback(first, second)
	third := p.owe("A", updated, far)
	p.later(time.Minute)
	wantFallback(other)
	p.later(time.Minute)
	wantFallback(third)
}

// Messages about forewarn itself each fall back at their own time: they are about different things.
func TestMessagesAboutForewarnFallBackEachAtItsTime(t *testing.T) {
	p := newPlan(Terms{Fallback: Fallback{Sink: "b", After: 2 * time.Minute}})
	first := p.owe("", "sink.blocked", 0)
	p.later(time.Minute)
	second := p.owe("", "sink.blocked", 0)
	for _, want := range []*Item{first, second} {
		p.later(time.Minute)
		if _, fallback := p.takeOverdue(p.now); !slices.Equal(fallback, []*Item{want}) {
			t.Errorf("%v fall back, want %s", fallback, want.ID)
		}
	}
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

// Items that were delivered, dropped or split from their batch leave nothing in the schedule.
func TestFinishedItemsLeaveNothingInMemory(t *testing.T) {
	for _, terms := range []Terms{{Batch: 3}, grouped} {
		p := newPlan(terms)
		for _, batch := range []uint64{0, 7} { // without progress, and with
			for i := range 6 {
				item := *p.owe(fmt.Sprintf("A%d", i), scheduled, far)
				item.Batch = batch
				p.put(&item, p.now)
			}
			p.fails(true, 0)
			p.remove(p.seq, p.now)
			for range 100 {
				p.later(time.Minute)
				p.try()
			}
		}
		n := len(p.index) + len(p.lanes) + len(p.partialBatches) + len(p.underWay) + p.failing
		if n != 0 {
			t.Errorf("%d are left: %+v", n, p.schedule)
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

// A batch that made progress is repeated as it is: no item is added, and none is delivered in another batch.
func TestBatchWithProgressKeepsItsMembers(t *testing.T) {
	p := newPlan(Terms{Batch: 5})
	p.owe("NEAR", scheduled, time.Minute)
	for _, event := range []string{"A", "B"} {
		item := *p.owe(event, scheduled, time.Hour)
		item.Batch = 7
		p.put(&item, p.now)
	}
	p.owe("FAR", scheduled, far)
	p.want(t, "what begins soonest", p.try(), "NEAR-scheduled")
	p.want(t, "the batch", p.try(), "A-scheduled", "B-scheduled")
	p.want(t, "the rest", p.try(), "FAR-scheduled")
}

// Items about the bridge are delivered in order, also one that comes late and is older than a batch with progress.
func TestOlderBridgeItemGoesBeforeABatchWithProgress(t *testing.T) {
	p := newPlan(Terms{Late: LateLatest, Batch: 1})
	p.seq = 10
	partial := *p.owe("", "trouble", 0)
	partial.Batch = 7
	p.put(&partial, p.now)
	p.put(&Item{Message: &Message{Seq: 1, ID: "older"}, PendingSince: p.now}, p.now)
	p.want(t, "the older one", p.try(), "older")
	p.want(t, "then the batch", p.try(), "-trouble")
	if p.full() {
		t.Error("an attempt without items is under way")
	}
}

// When an item of a batch with progress is removed, the others stay together, including other changes of the same
// event.
func TestBatchWithProgressLosesOnlyRemovedItems(t *testing.T) {
	p := newPlan(Terms{Batch: 5})
	var items []*Item
	for n, event := range []string{"A", "A", "B"} {
		item := *p.owe(event, []string{scheduled, updated, scheduled}[n], []time.Duration{far, far, time.Hour}[n])
		item.Batch = 7
		p.put(&item, p.now)
		items = append(items, &item)
	}
	p.remove(items[0].Seq, p.now)
	p.want(t, "the rest", p.try(), "A-updated", "B-scheduled")
	if n := len(p.partialBatches) + len(p.lanes); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A probe takes an urgent item first, even while urgent items may not go ahead of the schedule.
func TestProbeTakesUrgentItemsFirst(t *testing.T) {
	p := blockedPlan("A", "B", "C")
	p.now = p.probe.Add(-2 * time.Second)
	p.owe("U1", scheduled, 5*time.Minute)
	p.want(t, "at once", p.fails(true, 0), "U1-scheduled")
	p.later(time.Second)
	p.owe("U2", scheduled, 6*time.Minute)
	p.want(t, "within five seconds", p.fails(true, 0))
	p.probe = p.now.Add(time.Minute)
	if _, wake := p.next(); wake.Sub(p.now) != 4*time.Second {
		t.Errorf("what is urgent is looked at in %v, want when five seconds are over", wake.Sub(p.now))
	}
	p.probe = p.now.Add(time.Second)
	p.later(time.Second)
	p.want(t, "the probe", p.fails(true, 0), "U2-scheduled")
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

// LateLatest applies only to events: every message about the bridge is delivered.
func TestLatestDeliversAllMessagesAboutTheBridge(t *testing.T) {
	p := newPlan(Terms{Late: LateLatest})
	for _, id := range []string{"first", "second", "third"} {
		p.put(&Item{Message: &Message{Seq: p.seq + 1, ID: id}, PendingSince: p.now}, p.now)
		p.seq++
	}
	for _, want := range []string{"first", "second", "third"} {
		p.want(t, "in order", p.try(), want)
	}
}

// A reminder doesn't change the state of the event, so it doesn't make older changes late.
func TestReminderMakesNothingLate(t *testing.T) {
	p := newPlan(Terms{Late: LateDrop})
	p.owe("A", scheduled, far)
	p.owe("A", reminder, far)
	if late, _ := p.takeOverdue(p.now); len(late) != 0 {
		t.Errorf("dropped %v", late)
	}
	p.want(t, "first", p.try(), "A-scheduled")
	p.want(t, "then", p.try(), "A-reminder")
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
		// After an acceptance the ten events that had failed wait alone, and count no more.
		if want := map[bool]int{true: 10 + 8, false: 8}[accepts]; tried != want {
			t.Errorf("%d events are tried until it is down again (after an acceptance: %v), want %d", tried, accepts, want)
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

// With LateLatest, a message about the bridge is attempted on its own, even when its turn comes before that of events.
func TestMessageAboutTheBridgeIsNoPartOfADigest(t *testing.T) {
	p := newPlan(Terms{Late: LateLatest, Batch: 10})
	for n := range 8 {
		p.owe(fmt.Sprint("EVENT-", n), scheduled, far)
		p.fails(false, 0)
	}
	p.later(10 * time.Minute)
	p.owe("", "", 0)
	p.want(t, "the probe", p.fails(false, 0), "-")
}

// An urgent item stays urgent until it is attempted, even if another change of its event arrives after it.
func TestUrgentItemsStayUrgent(t *testing.T) {
	p := blockedPlan("A")
	p.owe("U", scheduled, time.Minute)
	p.want(t, "at once", p.fails(true, 0), "U-scheduled")
	p.owe("B", "started", 0)
	p.owe("B", updated, far)
	p.later(5 * time.Second)
	p.want(t, "five seconds later", p.fails(true, 0), "B-started")
}

// An urgent item whose event starts sooner goes before one that is ready.
func TestUrgentItemThatStartsSoonerGoesFirst(t *testing.T) {
	p := newPlan(Terms{})
	p.owe("U", scheduled, time.Minute)
	p.fails(false, 0)
	p.waits("U", p.now.Add(5*time.Minute))
	p.later(urgentEvery)
	p.owe("R", scheduled, far)
	p.owe("U", updated, time.Minute)
	p.want(t, "first", p.fails(false, 0), "U-scheduled")
	p.want(t, "then", p.fails(false, 0), "R-scheduled")
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

// If an item is replayed ahead of an event's batch with progress, the event takes no part in the next attempt of the
// batch, and the replayed item is delivered first.
func TestReplayedItemGoesBeforeABatchWithProgress(t *testing.T) {
	p := newPlan(Terms{Batch: 5})
	p.seq = 10
	for n, event := range []string{"A", "B"} {
		item := *p.owe(event, scheduled, time.Duration(n+1)*time.Hour)
		item.Batch = 7
		p.put(&item, p.now)
	}
	p.put(&Item{Message: &Message{Seq: 1, Group: "B", Change: scheduled, ID: "old"}, NotBefore: p.now.Add(far)}, p.now)
	p.want(t, "the batch", p.fails(false, 0), "A-scheduled")
	p.want(t, "what was replayed", p.try(), "old")
}

// A batch with progress is repeated in the order of the first attempt, also when the queue returns its items in another.
func TestBatchWithProgressKeepsItsOrder(t *testing.T) {
	p := newPlan(grouped)
	p.wave("FAR", 3, "Reboot", far)
	p.wave("NEAR", 3, "Reboot", time.Hour)
	a, _ := p.next()
	p.planRetry(a, nil, verdict{}, p.now)
	for _, i := range slices.SortedFunc(slices.Values(a.batch), func(x, y *Item) int { return cmp.Compare(x.Seq, y.Seq) }) {
		next := *i
		next.Batch = a.batch[0].Seq
		p.put(&next, p.now)
	}
	p.later(2 * time.Second)
	p.want(t, "the same order", p.try(), idsIn(a)...)
}

// An item that comes late but belongs before others, as when a lead has come, is attempted before them.
func TestAnEarlierItemComesFirst(t *testing.T) {
	p := newPlan(Terms{Batch: 5})
	p.seq = 10
	p.owe("A", approved, far)
	p.put(&Item{Message: &Message{Seq: 1, Group: "A", Change: scheduled, ID: "earlier"}, PendingSince: p.now}, p.now)
	p.want(t, "both", p.try(), "earlier", "A-approved")
}

// A muted item before a batch with progress waits for the end of the mute.
func TestMutedItemBeforeABatchWithProgressWaits(t *testing.T) {
	p := newPlan(Terms{Batch: 5})
	p.seq = 10
	part := *p.owe("A", updated, far)
	part.Batch = 7
	p.put(&part, p.now)
	old := &Item{Message: &Message{Seq: 1, Group: "A", Change: scheduled, ID: "old"}, PendingSince: p.now}
	p.mute(old)
	p.put(old, p.now)
	if got := p.try(); slices.Contains(got, "old") {
		t.Errorf("%v was delivered while it is muted", got)
	}
}

// With LateLatest, a newer change of an event takes the place of one that is partly delivered. The rest of its batch
// stays together.
func TestNewerChangeReplacesAPartlyDeliveredOne(t *testing.T) {
	p := newPlan(grouped)
	for _, event := range []string{"A", "B"} {
		item := *p.owe(event, scheduled, far)
		item.Batch = 7
		p.put(&item, p.now)
	}
	p.owe("A", "started", 0)
	a, _ := p.next()
	if got := idsIn(a); !slices.Equal(got, []string{"A-started"}) || len(a.superseded) != 1 {
		t.Fatalf("attempted %v and superseded %d, want the newer change instead of the older", got, len(a.superseded))
	}
	p.accept(a, p.now)
	p.want(t, "the rest of the batch", p.try(), "B-scheduled")
}

// A message about the bridge that is partly delivered holds up no other one, and keeps its own wait.
func TestPartlyDeliveredBridgeMessageHoldsUpNoOther(t *testing.T) {
	p := newPlan(Terms{Late: LateLatest, Batch: 1})
	p.random = func() float64 { return 1 }
	first := *p.owe("", "trouble", 0)
	p.want(t, "the first", p.fails(false, 0), "-trouble")
	first.Batch = first.Seq
	p.put(&first, p.now)
	p.owe("", "recovered", 0)
	p.want(t, "the next", p.try(), "-recovered")
	p.want(t, "the first, not yet", p.try())
	p.later(time.Second)
	p.want(t, "the first, after its wait", p.try(), "-trouble")
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
	if p.failing != 1 {
		t.Errorf("%d lanes fail, want 1", p.failing)
	}
	p.want(t, "the next one", p.try(), "-next")
	if p.failing != 1 {
		t.Errorf("%d lanes fail after the next one was delivered, want 1", p.failing)
	}
	p.later(backoff(1, 1))
	p.want(t, "the one that failed", p.try(), "-")
	if p.failing != 0 {
		t.Errorf("%d lanes fail after all was delivered, want none", p.failing)
	}
}
