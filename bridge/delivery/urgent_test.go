package delivery_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
)

// A trial is a destination that answers at once, and notes when it is asked about what.
type trial struct {
	mu     sync.Mutex
	answer error
	asked  []inquiry
}

// say makes it answer so, and forgets what it was asked.
func (s *trial) say(answer error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.asked = answer, nil
}

// all returns what it was asked since.
func (s *trial) all() []inquiry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

type inquiry struct {
	at time.Time
	id string
}

func (s *trial) Deliver(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range batch {
		s.asked = append(s.asked, inquiry{time.Now(), d.Event.ID()})
	}
	return delivery.Answer{}, s.answer
}

// onTrial runs a worker with the longest waits that the schedule allows.
func onTrial(t *testing.T, terms delivery.Terms, f func(m *memory, s *trial)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, s := newMemory(), &trial{}
		c := delivery.Config{Route: "a", Sink: s, Queue: m, Terms: terms, Log: slog.New(slog.DiscardHandler),
			Random: func() float64 { return 1 }}
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			delivery.NewWorker(c).Run(t.Context(), stop, nil)
		}()
		f(m, s)
		close(stop)
		<-done
	})
}

// troubles are ways in which a route waits before an urgent event comes.
var troubles = []struct {
	name string
	err  error
	// others is how many other events have failed by then.
	others int
}{
	{"nothing else", errDown, 0},
	{"one event that fails", errDown, 1},
	{"many events that fail", errDown, 20},
	{"blocked by one event", fmt.Errorf("%w: 404", delivery.ErrBlocked), 1},
	{"blocked by many events", fmt.Errorf("%w: 404", delivery.ErrBlocked), 20},
}

// eachTrouble makes a route wait for minutes, and then runs f with the number of the next delivery.
func eachTrouble(t *testing.T, terms delivery.Terms, f func(t *testing.T, m *memory, s *trial, failure error, next uint64)) {
	for _, trouble := range troubles {
		t.Run(trouble.name, func(t *testing.T) {
			onTrial(t, terms, func(m *memory, s *trial) {
				s.say(trouble.err)
				for n := range trouble.others {
					m.add(change(uint64(n+1), fmt.Sprint("OTHER-", n), "scheduled", 24*time.Hour))
				}
				pause(20 * time.Minute)
				s.say(trouble.err)
				f(t, m, s, trouble.err, uint64(trouble.others+1))
			})
		})
	}
}

// A Preempt leaves 30 seconds. It is tried at once and every five seconds, whatever the sink is waiting for, so that it
// is delivered within five seconds of the destination's return.
func TestWhatIsUrgentWaitsFiveSecondsAtMost(t *testing.T) {
	eachTrouble(t, delivery.Terms{}, func(t *testing.T, m *memory, s *trial, failure error, next uint64) {
		for _, back := range []time.Duration{0, 6 * time.Second, 17 * time.Second, 26 * time.Second} {
			came := time.Now()
			m.add(change(next, fmt.Sprint("PREEMPT-", next), "scheduled", 30*time.Second))
			next++
			pause(back)
			s.say(nil)
			pause(5 * time.Second)
			if got := m.ids(&m.accepted); !slices.Contains(got, fmt.Sprintf("PREEMPT-%d-scheduled", next-1)) {
				t.Errorf("back after %v: %v after it came only %v are delivered", back, time.Since(came), got)
			}
			s.say(failure)
			for n := range uint64(20) { // it waits again
				m.add(change(next+n, fmt.Sprint("MORE-", next+n), "scheduled", 24*time.Hour))
			}
			next += 20
			pause(20 * time.Minute)
		}
	})
}

// The mail server is down, and an event begins in six minutes. No wait is longer than a quarter of what is left, and in
// the last two minutes none is longer than five seconds. After that the schedule counts.
func TestNoWaitIsLongerThanAQuarterOfWhatIsLeft(t *testing.T) {
	eachTrouble(t, delivery.Terms{}, func(t *testing.T, m *memory, s *trial, failure error, next uint64) {
		came := time.Now()
		begins := came.Add(6 * time.Minute)
		m.add(change(next, "SOON", "scheduled", 6*time.Minute))
		pause(6*time.Minute + 40*time.Minute)
		last := came
		for _, one := range s.all() {
			left := begins.Sub(last)
			most := max(5*time.Second, left/4)
			if left <= 2*time.Minute {
				most = 5 * time.Second
			}
			if wait := one.at.Sub(last); left > 0 && wait > most {
				t.Errorf("with %v left it waited %v, want %v at most", left, wait, most)
			}
			last = one.at
		}
		after := 0
		for _, one := range s.all() {
			if one.at.After(begins.Add(time.Minute)) {
				after++
			}
		}
		if after > 150 { // of 20 events, each every five minutes
			t.Errorf("it was tried %d times in the 39 minutes after it began", after)
		}
	})
}

// Urgency spares a destination that doesn't work: however many events are urgent, it gets one attempt every five
// seconds, and each of the events gets one.
func TestUrgentEventsAreFiveSecondsApart(t *testing.T) {
	for _, trouble := range troubles[2:] {
		t.Run(trouble.name, func(t *testing.T) {
			onTrial(t, delivery.Terms{Parallel: 4}, func(m *memory, s *trial) {
				s.say(trouble.err)
				for n := range 20 {
					m.add(change(uint64(n+1), fmt.Sprint("OTHER-", n), "scheduled", 24*time.Hour))
				}
				pause(20 * time.Minute)
				s.say(trouble.err)
				began := time.Now()
				for n := range 30 {
					m.add(change(uint64(n+21), fmt.Sprint("URGENT-", n), "scheduled", 10*time.Minute))
				}
				pause(150 * time.Second)
				tried := map[string]bool{}
				for _, one := range s.all() {
					tried[one.id] = true
				}
				if n := len(s.all()); n < 30 || n > 34 { // one every five seconds, and the probes
					t.Errorf("%d attempts in %v, want one every five seconds", n, time.Since(began))
				}
				for n := range 30 {
					if event := fmt.Sprintf("URGENT-%d-scheduled", n); !tried[event] {
						t.Errorf("%s was not tried", event)
					}
				}
			})
		})
	}
}

// A Retry-After holds back even what is urgent. When it ends, that goes first.
func TestARetryAfterHoldsBackWhatIsUrgent(t *testing.T) {
	onTrial(t, delivery.Terms{}, func(m *memory, s *trial) {
		s.say(&delivery.RetryAfter{After: time.Minute, Err: errDown})
		m.add(change(1, "OTHER", "scheduled", 24*time.Hour))
		pause(time.Second)
		s.say(nil)
		m.add(change(2, "PREEMPT", "scheduled", 90*time.Second))
		pause(59*time.Second - time.Millisecond)
		if asked := s.all(); len(asked) > 0 {
			t.Errorf("attempts are %v before the Retry-After ended, want none", asked)
		}
		pause(2 * time.Millisecond)
		if asked := s.all(); len(asked) != 2 || asked[0].id != "PREEMPT-scheduled" {
			t.Errorf("attempts are %v, want the urgent event as the first of two", asked)
		}
	})
}

// An event that moves closer is tried in time too, and so is one whose sink takes only its latest change.
func TestAnEventThatMovesCloserIsTriedInTime(t *testing.T) {
	for _, late := range []delivery.Late{delivery.LateSend, delivery.LateLatest} {
		eachTrouble(t, delivery.Terms{Late: late}, func(t *testing.T, m *memory, s *trial, failure error, next uint64) {
			m.add(change(next, "E", "scheduled", 24*time.Hour))
			pause(time.Hour)
			s.say(failure)
			m.add(change(next+1, "E", "updated", 20*time.Minute)) // not urgent yet
			pause(5 * time.Minute)
			if len(s.all()) == 0 {
				t.Errorf("with %s it was not tried in a quarter of the time that was left", late)
			}
		})
	}
}

// What is given up takes no wait with it: a destination that works no better is tried no more often because the queue is full
// of an event that changes all the time.
func TestAChangeWaitsThoughTheOneBeforeWasGivenUp(t *testing.T) {
	onTrial(t, delivery.Terms{}, func(m *memory, s *trial) {
		s.say(errDown)
		m.add(change(1, "E", "scheduled", 24*time.Hour))
		pause(10 * time.Minute)
		s.say(errDown)
		for n := range uint64(12) {
			m.remove(n + 1)
			m.add(change(n+2, "E", "updated", 24*time.Hour))
			pause(5 * time.Second)
		}
		if n := len(s.all()); n > 1 {
			t.Errorf("it was tried %d times in a minute, want once at most", n)
		}
		s.say(nil)
		m.add(change(20, "E", "updated", 10*time.Minute)) // urgent
		pause(time.Second)
		if n := len(s.all()); n == 0 {
			t.Errorf("what is urgent was not tried at once")
		}
	})
}

// Events that are equally urgent take turns: one with many changes pending at a slow sink doesn't keep the news of another
// that has begun waiting for them.
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
