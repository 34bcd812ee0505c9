package delivery_test

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
)

// A tally is a Meter for tests.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what] += n
}

func (c *tally) Attempted(_ string, took time.Duration) {
	c.add("attempted", 1)
	c.add("seconds", int(took/time.Second))
}

func (c *tally) Accepted(_ string, lag time.Duration) {
	c.add("accepted", 1)
	c.add("lag", int(lag/time.Second))
}

func (c *tally) Superseded(_ string, n int) { c.add("superseded", n) }

func (c *tally) Failed(_ string, reason string) { c.add(reason, 1) }

// Each delivery is counted once per attempt. Members of a rejected batch count as tried again, a delivery rejected
// alone is a dead letter and no failure, and older changes count as superseded only with an acceptance.
func TestEachOutcomeIsCounted(t *testing.T) {
	rejected := fmt.Errorf("%w: 422", delivery.ErrRejected)
	rejectedInPart := fmt.Errorf("%w: 554", delivery.ErrRejected)
	two := []string{"E1", "E2"}
	for _, tt := range []struct {
		claim string
		terms delivery.Terms
		err   error // of the first attempt
		adds  []string
		want  map[string]int
	}{
		{"a batch is accepted", delivery.Terms{Batch: 5}, nil, two, map[string]int{"attempted": 1, "accepted": 2}},
		{"a batch is rejected", delivery.Terms{Batch: 5}, rejected, two, map[string]int{"attempted": 3, "again": 2, "accepted": 2}},
		{"one is rejected", delivery.Terms{}, rejected, two[:1], map[string]int{"attempted": 1}},
		{"one fails", delivery.Terms{}, errDown, two[:1], map[string]int{"attempted": 2, "again": 1, "accepted": 1}},
		{"the latest fails", delivery.Terms{Late: delivery.LateLatest}, errDown, []string{"E1", "E1", "E1"},
			map[string]int{"attempted": 2, "again": 1, "accepted": 1, "superseded": 2}},
		{"a batch with progress is rejected", delivery.Terms{Late: delivery.LateLatest, DigestAbove: 1},
			rejectedInPart, two, map[string]int{"attempted": 1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			count := &tally{counts: map[string]int{}}
			r := startMetered(t, newMemory(), &destination{}, tt.terms, count)
			first := true
			r.say(func([]delivery.Delivery) (a delivery.Answer, err error) {
				defer func() { first = false }()
				if tt.err == rejectedInPart {
					a.Progress = []byte("half")
				}
				if first {
					return a, tt.err
				}
				return delivery.Answer{}, nil
			})
			var items []delivery.Item
			for n, group := range tt.adds {
				items = append(items, change(uint64(n+1), group, "updated", 2*time.Hour))
			}
			r.add(items...)
			pause(10 * time.Minute)
			count.mu.Lock()
			defer count.mu.Unlock()
			maps.DeleteFunc(count.counts, func(_ string, n int) bool { return n == 0 })
			delete(count.counts, "lag")
			if !maps.Equal(count.counts, tt.want) {
				t.Errorf("%s: counted %v, want %v", tt.claim, count.counts, tt.want)
			}
		})
	}
}

// The duration of an attempt is measured, and the time from due to accepted.
func TestTimesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &tally{counts: map[string]int{}}
		r := startMetered(t, newMemory(), &destination{}, delivery.Terms{}, count)
		r.say(func([]delivery.Delivery) (delivery.Answer, error) {
			time.Sleep(3 * time.Second)
			return delivery.Answer{}, nil
		})
		r.add(change(1, "E1", "scheduled", time.Hour), change(2, "E2", "scheduled", 2*time.Hour))
		pause(time.Minute)
		count.mu.Lock()
		defer count.mu.Unlock()
		if got := count.counts["seconds"]; got != 6 {
			t.Errorf("two attempts took %d s, want 6", got)
		}
		if got := count.counts["lag"]; got != 3+6 {
			t.Errorf("the deliveries took %d s, want 3 and 6", got)
		}
	})
}

// While an attempt is under way, State names no other, whenever it falls back or others come.
func TestStateNamesNoNextAttemptDuringOne(t *testing.T) {
	terms := delivery.Terms{Fallback: delivery.Fallback{Sink: "b", After: 10 * time.Minute}}
	bubble(t, terms, func(t *testing.T, r *route) {
		r.hang = true
		later := change(2, "E2", "scheduled", 24*time.Hour)
		r.add(change(1, "E1", "scheduled", 24*time.Hour), later)
		pause(time.Second)
		if s := r.worker.State(); !s.Next.IsZero() || !s.Since.Equal(time.Now().Add(-time.Second)) {
			t.Errorf("the next attempt is in %v, and one began %v ago; want none and 1s", time.Until(s.Next), time.Since(s.Since))
		}
	})
}

// The next attempt is not what comes before it, such as the time at which the fallback takes over.
func TestStateNamesTheNextAttempt(t *testing.T) {
	terms := delivery.Terms{Fallback: delivery.Fallback{Sink: "b", After: 3 * time.Minute}}
	bubble(t, terms, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		r.add(change(1, "E1", "scheduled", 24*time.Hour))
		pause(2*time.Minute + 59*time.Second)
		made := len(r.made())
		next := r.worker.State().Next
		pause(time.Until(next) - time.Millisecond)
		before := len(r.made())
		pause(2 * time.Millisecond)
		if after := len(r.made()); before != made || after != made+1 {
			t.Errorf("before the time that it names there are %d more attempts, and %d with it; want none and 1", before-made, after-made)
		}
	})
}

// That of the last dead letter is told until an acceptance, whatever made it one.
func TestStateTellsWhyTheLastDeadLetterDied(t *testing.T) {
	bubble(t, delivery.Terms{MaxAge: time.Minute}, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		r.add(change(1, "E1", "scheduled", 24*time.Hour))
		pause(10 * time.Minute)
		if st := r.worker.State(); st.Error != errDown.Error() || st.Retrying {
			t.Errorf("after a delivery became too old the state is %s", text(st))
		}
		r.say(nil)
		r.add(change(2, "E2", "scheduled", 24*time.Hour))
		pause(time.Second)
		if st := r.worker.State(); st.Error != "" {
			t.Errorf("after an acceptance the state is %s", text(st))
		}
		r.lost[3] = true
		r.add(change(3, "E3", "scheduled", 24*time.Hour))
		pause(time.Second)
		if st := r.worker.State(); st.Error == "" {
			t.Errorf("after one was lost the state is %s", text(st))
		}
	})
}

// An error goes with the delivery that it is about.
func TestStateForgetsTheErrorOfWhatWasRemoved(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		r.add(change(1, "E1", "scheduled", 24*time.Hour))
		pause(time.Minute)
		r.remove(1)
		pause(time.Second)
		if st := r.worker.State(); st.Error != "" || st.Retrying {
			t.Errorf("with nothing pending the state is %s", text(st))
		}
	})
}

// State tells whether the destination refuses, and the error of a waiting delivery or, if none waits, of the last dead
// letter.
func TestStateSaysWhatIsWrong(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		rejects := func(ids ...string) func([]delivery.Delivery) (delivery.Answer, error) {
			return func(batch []delivery.Delivery) (delivery.Answer, error) {
				if slices.Contains(ids, batch[0].Event.ID()) {
					return delivery.Answer{}, fmt.Errorf("%w: 422", delivery.ErrRejected)
				}
				return delivery.Answer{}, errDown
			}
		}
		r.say(rejects("E1-scheduled"))
		r.add(change(1, "E1", "scheduled", 24*time.Hour))
		pause(time.Second)
		if st := r.worker.State(); st.Error != "rejected: 422" || st.Retrying || st.Refused {
			t.Errorf("after a dead letter the state is %s", text(st))
		}
		r.say(nil)
		r.add(change(4, "E4", "scheduled", 24*time.Hour))
		pause(time.Second)
		if st := r.worker.State(); st.Error != "" {
			t.Errorf("after an acceptance the state is %s", text(st))
		}
		r.say(rejects("E3-scheduled"))
		r.add(change(2, "E2", "scheduled", 24*time.Hour))
		pause(time.Second)
		r.add(change(3, "E3", "scheduled", time.Minute))
		pause(time.Millisecond)
		if st := r.worker.State(); st.Error != errDown.Error() || !st.Retrying || st.Refused {
			t.Errorf("while another waits the state is %s", text(st))
		}
		want(t, "dead", r.ids(&r.dead), "E1-scheduled", "E3-scheduled")
		r.say(fails(fmt.Errorf("%w: 401", delivery.ErrBlocked)))
		pause(10 * time.Minute)
		if st := r.worker.State(); !st.Refused || !st.Blocked {
			t.Errorf("after refusals the state is %s", text(st))
		}
	})
}

// That a sink is blocked is one line in the log, at the refusal after which it is.
func TestABlockIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		r := startWith(t, newMemory(), &destination{}, delivery.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		r.say(fails(fmt.Errorf("%w: 401", delivery.ErrBlocked)))
		r.add(change(1, "E1", "scheduled", 24*time.Hour))
		for range 600 {
			before := r.worker.State().Blocked
			pause(time.Second)
			n := strings.Count(log.String(), "sink blocked")
			if now := r.worker.State().Blocked; n > 1 || (n == 1) != now || before && !now {
				t.Fatalf("blocked %v, then %v, and logged %d times:\n%s", before, now, n, &log)
			}
		}
		if !r.worker.State().Blocked {
			t.Error("it is not blocked after ten minutes")
		}
	})
}

// The recovery of a sink is one line in the log, with the number of failed attempts.
func TestRecoveryIsLogged(t *testing.T) {
	for _, fail := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			r := startWith(t, newMemory(), &destination{}, delivery.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
			failures := 0
			r.say(func([]delivery.Delivery) (delivery.Answer, error) {
				if failures++; failures <= fail {
					return delivery.Answer{}, errDown
				}
				return delivery.Answer{}, nil
			})
			r.add(change(1, "E1", "scheduled", 24*time.Hour), change(2, "E1", "updated", 24*time.Hour))
			pause(time.Hour)
			if n := strings.Count(log.String(), fmt.Sprintf(`"sink recovered" sink=a after=%d`, fail)); n != 1 {
				t.Errorf("the log says %d times that it recovered after %d:\n%s", n, fail, &log)
			}
		})
	}
}

// State counts what a mute holds back, and says since when the oldest of the rest waits: what waited for a mute, since its
// end.
func TestStateSaysWhatIsMutedAndHowOldTheRestIs(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		began := time.Now()
		about := &delivery.Message{Seq: 1, ID: "about-the-bridge"}
		r.add(delivery.Item{Message: about})
		pause(time.Minute)
		r.add(change(2, "E2", "scheduled", 24*time.Hour), change(3, "E3", "scheduled", 24*time.Hour))
		pause(time.Second)
		if st := r.worker.State(); st.Muted != 0 || !st.OfGroup || !st.Oldest.Equal(began.Add(time.Minute)) {
			t.Errorf("the state is %s, want the older of two events", text(st))
		}
		mute := delivery.Mute{Types: []string{"Reboot"}, Since: time.Now()}
		r.mute(&mute)
		pause(time.Hour)
		if st := r.worker.State(); st.Muted != 2 || st.OfGroup || !st.Oldest.Equal(began) {
			t.Errorf("with the events muted the state is %s", text(st))
		}
		ended := mute
		ended.Ended, ended.LastSeq = time.Now(), 3
		r.mute(&ended)
		pause(time.Second)
		if st := r.worker.State(); st.Muted != 0 || !st.OfGroup || !st.Oldest.Equal(ended.Ended) {
			t.Errorf("after the mute the state is %s, want what waits since its end, %v", text(st), ended.Ended)
		}
		r.say(nil)
		pause(10 * time.Minute)
		if st := r.worker.State(); st.Muted != 0 || !st.Oldest.IsZero() {
			t.Errorf("with nothing pending the state is %s", text(st))
		}
	})
}

// What was settled before its attempt began is counted neither as an attempt nor as a failure.
func TestWhatWasNotAttemptedIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count, q := &tally{counts: map[string]int{}}, settlingQueue{newMemory()}
		w := delivery.NewWorker(delivery.Config{Route: "a", Sink: &destination{}, Queue: q, Meter: count})
		go w.Run(t.Context(), nil, nil)
		q.add(change(1, "E1", "scheduled", time.Hour))
		pause(time.Second)
		if n := count.counts["attempted"] + count.counts[delivery.FailedAgain]; n != 0 {
			t.Errorf("counted are %v, want nothing", count.counts)
		}
	})
}

// A settlingQueue settles each item in the moment in which it is read.
type settlingQueue struct{ *memory }

func (q settlingQueue) Read(i *delivery.Item) (delivery.Delivery, error) {
	q.remove(i.Seq)
	return delivery.Delivery{}, delivery.ErrSettled
}
