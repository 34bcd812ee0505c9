package delivery_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"forewarn/bridge/delivery"
)

var errBlocked = fmt.Errorf("%w: 404", delivery.ErrBlocked)

// troubles are ways in which a route waits before an urgent event comes.
var troubles = []struct {
	name   string
	err    error
	others uint64 // how many other events have failed by then
}{
	{"nothing else", errDown, 0},
	{"one event that fails", errDown, 1},
	{"many events that fail", errDown, 20},
	{"blocked by one event", errBlocked, 1},
	{"blocked by many events", errBlocked, 20},
}

// eachTrouble makes a route wait for minutes, for the longest times that there are, and then tells a story of it. next
// is the number of the next delivery.
func eachTrouble(
	t *testing.T, terms delivery.Terms, story func(t *testing.T, r *route, failure error, next uint64),
) {
	for _, trouble := range troubles {
		t.Run(trouble.name, func(t *testing.T) {
			play(t, delivery.Config{Terms: terms, Random: longest}, func(t *testing.T, r *route) {
				r.say(fails(trouble.err))
				r.add(announced(trouble.others)...)
				pause(20 * time.Minute)
				r.forget()
				story(t, r, trouble.err, trouble.others+1)
			})
		})
	}
}

// A Preempt leaves 30 seconds. It is tried at once and every five seconds, whatever the sink is waiting for, so that it
// is delivered within five seconds of the destination's return.
func TestWhatIsUrgentWaitsFiveSecondsAtMost(t *testing.T) {
	eachTrouble(t, delivery.Terms{}, func(t *testing.T, r *route, failure error, next uint64) {
		for _, back := range []time.Duration{0, 6 * time.Second, 17 * time.Second, 26 * time.Second} {
			preempt := change(next, fmt.Sprint("PREEMPT-", next), "scheduled", 30*time.Second)
			r.add(preempt)
			pause(back)
			r.say(nil)
			pause(5 * time.Second)
			if got := r.ids(&r.accepted); !slices.Contains(got, preempt.ID) {
				t.Errorf("five seconds after the destination was back, %v after it came, only %v are delivered", back, got)
			}
			r.say(fails(failure))
			for n := range uint64(20) { // it waits again
				r.add(change(next+n+1, fmt.Sprint("MORE-", next+n), "scheduled", 24*time.Hour))
			}
			next += 21
			pause(20 * time.Minute)
		}
	})
}

// The mail server is down, and an event begins in six minutes. No wait is longer than a quarter of what is left, and in
// the last two minutes none is longer than five seconds. After that the schedule counts.
func TestNoWaitIsLongerThanAQuarterOfWhatIsLeft(t *testing.T) {
	eachTrouble(t, delivery.Terms{}, func(t *testing.T, r *route, _ error, next uint64) {
		last := time.Now()
		begins := last.Add(6 * time.Minute)
		r.add(change(next, "SOON", "scheduled", 6*time.Minute))
		pause(6*time.Minute + 40*time.Minute)
		after := 0
		for _, at := range r.times {
			left := begins.Sub(last)
			most := max(5*time.Second, left/4)
			if left <= 2*time.Minute {
				most = 5 * time.Second
			}
			if wait := at.Sub(last); left > 0 && wait > most {
				t.Errorf("with %v left it waited %v, want %v at most", left, wait, most)
			}
			if at.After(begins.Add(time.Minute)) {
				after++
			}
			last = at
		}
		if after > 150 { // of 20 events, each every five minutes
			t.Errorf("it was tried %d times in the 39 minutes after it began", after)
		}
	})
}

// Urgency spares a destination that doesn't work: however many events are urgent, it gets one attempt every five
// seconds, and each of the events gets one.
func TestUrgentEventsAreFiveSecondsApart(t *testing.T) {
	eachTrouble(t, delivery.Terms{Parallel: 4}, func(t *testing.T, r *route, failure error, next uint64) {
		if failure == errDown && next < 8 {
			return // the destination still counts as one that works
		}
		urgent := map[string]bool{}
		for n := range uint64(30) {
			i := change(next+n, fmt.Sprint("URGENT-", n), "scheduled", 10*time.Minute)
			urgent[i.ID] = true
			r.add(i)
		}
		pause(150 * time.Second)
		made := r.made()
		if len(made) < 30 || len(made) > 34 { // one every five seconds, and the probes
			t.Errorf("%d attempts in 150 seconds, want one every five seconds", len(made))
		}
		for _, id := range made {
			delete(urgent, id)
		}
		if len(urgent) > 0 {
			t.Errorf("%v were not tried", urgent)
		}
	})
}

// A Retry-After holds back even what is urgent. When it ends, that goes first.
func TestARetryAfterHoldsBackWhatIsUrgent(t *testing.T) {
	play(t, delivery.Config{Random: longest}, func(t *testing.T, r *route) {
		r.say(first(1, fails(&delivery.RetryAfter{After: time.Minute, Err: errDown}), takes(0)))
		r.add(change(1, "OTHER", "scheduled", 24*time.Hour))
		pause(0)
		r.add(change(2, "PREEMPT", "scheduled", 90*time.Second))
		pause(time.Minute - 1)
		want(t, "attempts before the Retry-After ended", r.made(), "OTHER-scheduled")
		pause(1)
		want(t, "then", r.made()[1:], "PREEMPT-scheduled", "OTHER-scheduled")
	})
}

// An event that moves closer is tried in time too, and so is one whose sink takes only its latest change.
func TestAnEventThatMovesCloserIsTriedInTime(t *testing.T) {
	for _, late := range []delivery.Late{delivery.LateSend, delivery.LateLatest} {
		eachTrouble(t, delivery.Terms{Late: late}, func(t *testing.T, r *route, _ error, next uint64) {
			r.add(change(next, "E", "scheduled", 24*time.Hour))
			pause(time.Hour)
			r.forget()
			r.add(change(next+1, "E", "updated", 20*time.Minute)) // not urgent yet
			pause(5 * time.Minute)
			if len(r.made()) == 0 {
				t.Errorf("with %s it was not tried in a quarter of the time that was left", late)
			}
		})
	}
}

// What is given up takes no wait with it: a destination that works no better is tried no more often because the queue
// is full of an event that changes all the time.
func TestAChangeWaitsThoughTheOneBeforeWasGivenUp(t *testing.T) {
	play(t, delivery.Config{Random: longest}, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		r.add(change(1, "E", "scheduled", 24*time.Hour))
		pause(10 * time.Minute)
		r.forget()
		for n := range uint64(12) {
			r.remove(n + 1)
			r.add(change(n+2, "E", "updated", 24*time.Hour))
			pause(5 * time.Second)
		}
		if n := len(r.made()); n > 1 {
			t.Errorf("it was tried %d times in a minute, want once at most", n)
		}
		r.forget()
		r.add(change(20, "E", "updated", 10*time.Minute)) // urgent
		pause(time.Second)
		if len(r.made()) == 0 {
			t.Error("what is urgent was not tried at once")
		}
	})
}

// Events that are equally urgent take turns: one with many changes pending at a slow sink doesn't keep the news of
// another that has begun waiting for them.
func TestEventsThatAreEquallyUrgentTakeTurns(t *testing.T) {
	bubble(t, delivery.Terms{Late: delivery.LateSend}, func(t *testing.T, r *route) {
		begun := func(seq uint64, group, what string) delivery.Item {
			i := change(seq, group, what, 0)
			i.NotBefore = time.Time{}
			return i
		}
		r.say(takes(time.Second))
		for seq := range uint64(60) {
			r.add(begun(seq+1, "busy", "updated"))
		}
		r.add(begun(61, "other", "started"))
		pause(2*time.Second + time.Millisecond)
		if made := r.made(); !slices.Contains(made, "other-started") {
			t.Errorf("of %q none is of the other event", made)
		}
		pause(time.Minute)
		if n := len(r.made()); n != 61 {
			t.Errorf("%d were attempted, want all 61", n)
		}
	})
}
