package delivery

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

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
		n := len(p.index) + len(p.lanes) + len(p.partialBatches) + len(p.underWay) + p.retrying
		if n != 0 {
			t.Errorf("%d are left: %+v", n, p.schedule)
		}
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

// An item that comes late but belongs before others, as when a lead has come, is attempted before them.
func TestAnEarlierItemComesFirst(t *testing.T) {
	p := newPlan(Terms{Batch: 5})
	p.seq = 10
	p.owe("A", approved, far)
	p.put(&Item{Message: &Message{Seq: 1, Group: "A", Change: scheduled, ID: "earlier"}, PendingSince: p.now}, p.now)
	p.want(t, "both", p.try(), "earlier", "A-approved")
}
