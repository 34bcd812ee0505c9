package delivery_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"forewarn/bridge/delivery"
)

// A tally is a Meter for tests.
type tally struct {
	mu        sync.Mutex
	counts    map[string]int
	took, lag time.Duration
}

func newTally() *tally { return &tally{counts: map[string]int{}} }

func (c *tally) Attempted(_ string, took time.Duration) { c.add("attempted", 1, took, 0) }
func (c *tally) Accepted(_ string, lag time.Duration)   { c.add("accepted", 1, 0, lag) }
func (c *tally) Superseded(_ string, n int)             { c.add("superseded", n, 0, 0) }
func (c *tally) Failed(_ string, reason string)         { c.add(reason, 1, 0, 0) }

func (c *tally) add(what string, n int, took, lag time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took += took
	c.lag += lag
	if n > 0 {
		c.counts[what] += n
	}
}

// Each delivery is counted once per attempt. Members of a rejected batch count as tried again, a delivery rejected
// alone is a dead letter and no failure, and older changes count as superseded only with an acceptance.
func TestEachOutcomeIsCounted(t *testing.T) {
	rejected := fails(fmt.Errorf("%w: 422", delivery.ErrRejected))
	rejectedInPart := func([]delivery.Delivery) (delivery.Answer, error) {
		return delivery.Answer{Progress: []byte("half")}, fmt.Errorf("%w: 554", delivery.ErrRejected)
	}
	batch, latest := delivery.Terms{Batch: 5}, delivery.Terms{Late: delivery.LateLatest, DigestAbove: 1}
	two := []string{"E1", "E2"}
	for _, tt := range []struct {
		claim string
		terms delivery.Terms
		first answer
		of    []string
		want  string
	}{
		{"a batch is accepted", batch, takes(0), two, "accepted:2 attempted:1"},
		{"a batch is rejected", batch, rejected, two, "accepted:2 again:2 attempted:3"},
		{"one is rejected", batch, rejected, two[:1], "attempted:1"},
		{"one fails", batch, fails(errDown), two[:1], "accepted:1 again:1 attempted:2"},
		{"the latest fails", latest, fails(errDown), []string{"E1", "E1", "E1"},
			"accepted:1 again:1 attempted:2 superseded:2"},
		{"a batch with progress is rejected", latest, rejectedInPart, two, "attempted:1"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			count := newTally()
			play(t, delivery.Config{Terms: tt.terms, Meter: count}, func(t *testing.T, r *route) {
				r.say(first(1, tt.first, takes(0)))
				var items []delivery.Item
				for n, group := range tt.of {
					items = append(items, change(uint64(n+1), group, "updated", 2*time.Hour))
				}
				r.add(items...)
				pause(10 * time.Minute)
			})
			if got := fmt.Sprint(count.counts); got != "map["+tt.want+"]" {
				t.Errorf("counted %s, want %s", got, tt.want)
			}
		})
	}
}

// The duration of an attempt is measured, and the time from due to accepted.
func TestTimesAreCounted(t *testing.T) {
	count := newTally()
	play(t, delivery.Config{Meter: count}, func(t *testing.T, r *route) {
		r.say(takes(3 * time.Second))
		r.add(announced(2)...)
		pause(time.Minute)
	})
	if count.took != 6*time.Second || count.lag != (3+6)*time.Second {
		t.Errorf("two attempts took %v and the deliveries %v, want 6 s, and 3 and 6 s", count.took, count.lag)
	}
}

// A settlingQueue settles each item in the moment in which it is read.
type settlingQueue struct{ *memory }

func (q settlingQueue) Read(i *delivery.Item) (delivery.Delivery, error) {
	q.remove(i.Seq)
	return delivery.Delivery{}, delivery.ErrSettled
}

// What was settled before its attempt began is counted neither as an attempt nor as a failure.
func TestWhatWasNotAttemptedIsNotCounted(t *testing.T) {
	count := newTally()
	play(t, delivery.Config{Meter: count}, func(t *testing.T, r *route) {
		w := delivery.NewWorker(delivery.Config{Sink: r.destination, Queue: settlingQueue{r.memory}, Meter: count})
		r.ends()
		r.add(announced(1)...)
		stop := make(chan struct{})
		close(stop)
		w.Run(t.Context(), stop, nil)
	})
	if len(count.counts) > 0 {
		t.Errorf("counted are %v, want nothing", count.counts)
	}
}

// While an attempt is under way, State names no other, whenever it falls back or others come.
func TestStateNamesNoNextAttemptDuringOne(t *testing.T) {
	terms := delivery.Terms{Fallback: delivery.Fallback{Sink: "b", After: 10 * time.Minute}}
	bubble(t, terms, func(t *testing.T, r *route) {
		r.hang = true
		r.add(announced(2)...)
		pause(time.Second)
		if s := r.worker.State(); !s.Next.IsZero() || time.Since(s.Since) != time.Second {
			t.Errorf("the next attempt is at %v, and one began %v ago; want none and 1s", s.Next, time.Since(s.Since))
		}
	})
}

// The next attempt is not what comes before it, such as the time at which the fallback takes over.
func TestStateNamesTheNextAttempt(t *testing.T) {
	terms := delivery.Terms{Fallback: delivery.Fallback{Sink: "b", After: 3 * time.Minute}}
	bubble(t, terms, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		r.add(announced(1)...)
		pause(2*time.Minute + 59*time.Second)
		r.forget()
		pause(time.Until(r.worker.State().Next) - time.Millisecond)
		want(t, "attempts before the time that it names", r.made())
		pause(2 * time.Millisecond)
		want(t, "attempts with it", r.made(), "E1-scheduled")
	})
}

// State tells whether the destination refuses, and the error of a waiting delivery or, if none waits, of the last dead
// letter until an acceptance.
func TestStateSaysWhatIsWrong(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		rejected := fmt.Errorf("%w: 422", delivery.ErrRejected)
		r.say(fails(rejected))
		r.add(change(1, "E1", "scheduled", 24*time.Hour))
		pause(time.Second)
		want(t, "after a dead letter", r.trouble(), "rejected: 422")
		r.say(nil)
		r.add(change(2, "E2", "scheduled", 24*time.Hour))
		pause(time.Second)
		want(t, "after an acceptance", r.trouble())
		r.say(first(1, fails(errDown), failsOf("E4-scheduled", rejected)))
		r.add(change(3, "E3", "scheduled", 24*time.Hour))
		pause(0)
		r.add(change(4, "E4", "scheduled", time.Minute))
		pause(0)
		want(t, "after another dead letter while one waits", r.trouble(), "retrying", "connection refused")
		r.say(fails(fmt.Errorf("%w: 401", delivery.ErrBlocked)))
		pause(10 * time.Minute)
		want(t, "after refusals", r.trouble(), "blocked", "refused", "retrying", "blocked: 401")
	})
}

// The error of the last dead letter is told whatever made it one.
func TestStateTellsWhyTheLastDeadLetterDied(t *testing.T) {
	bubble(t, delivery.Terms{MaxAge: time.Minute}, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		r.add(change(1, "E1", "scheduled", 24*time.Hour))
		pause(10 * time.Minute)
		want(t, "after one became too old", r.trouble(), "connection refused")
		r.misread(2, delivery.ErrLost)
		r.add(change(2, "E2", "scheduled", 24*time.Hour))
		pause(time.Second)
		want(t, "after one was lost", r.trouble(), "lost")
	})
}

// An error goes with the delivery that it is about.
func TestStateForgetsTheErrorOfWhatWasRemoved(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		r.add(announced(1)...)
		pause(time.Minute)
		r.remove(1)
		pause(time.Second)
		want(t, "with nothing pending", r.trouble())
	})
}

// State counts what a mute holds back, and says since when the oldest of the rest waits: what waited for a mute, since
// its end.
func TestStateSaysWhatIsMutedAndHowOldTheRestIs(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		wantState := func(claim string, muted int, ofGroup bool, oldest time.Time) {
			t.Helper()
			s := r.worker.State()
			if s.Muted != muted || s.OfGroup != ofGroup || !s.Oldest.Equal(oldest) {
				t.Errorf("%s: %d muted, the oldest since %v, of a group %v; want %d, %v, %v",
					claim, s.Muted, s.Oldest, s.OfGroup, muted, oldest, ofGroup)
			}
		}
		r.say(fails(errDown))
		began := time.Now()
		r.add(delivery.Item{Message: &delivery.Message{Seq: 1, ID: "about-the-bridge"}})
		pause(time.Minute)
		r.add(change(2, "E2", "scheduled", 24*time.Hour))
		pause(time.Second)
		r.add(change(3, "E3", "scheduled", 24*time.Hour))
		pause(time.Second)
		wantState("the older of two events", 0, true, began.Add(time.Minute))
		mute := delivery.Mute{Types: []string{"Reboot"}, Since: time.Now()}
		r.mute(&mute)
		pause(time.Hour)
		wantState("with the events muted", 2, false, began)
		ended := mute
		ended.Ended, ended.LastSeq = time.Now(), 3
		r.mute(&ended)
		pause(time.Second)
		wantState("after the mute", 0, true, ended.Ended)
		r.say(nil)
		pause(10 * time.Minute)
		wantState("with nothing pending", 0, false, time.Time{})
	})
}

// logging is play with what the route logs.
func logging(t *testing.T, story func(t *testing.T, r *route, log *strings.Builder)) {
	t.Helper()
	var log strings.Builder
	play(t, delivery.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, r *route) {
		story(t, r, &log)
	})
}

// That a sink is blocked is one line in the log, at the refusal after which it is.
func TestABlockIsLoggedOnce(t *testing.T) {
	logging(t, func(t *testing.T, r *route, log *strings.Builder) {
		r.say(fails(fmt.Errorf("%w: 401", delivery.ErrBlocked)))
		r.add(announced(1)...)
		blocked := 0
		for range 600 {
			pause(time.Second)
			n := strings.Count(log.String(), "sink blocked")
			if r.worker.State().Blocked { // only now, so that the worker may log again
				blocked = 1
			}
			if n != blocked {
				t.Fatalf("blocked %d times, and logged %d times:\n%s", blocked, n, log)
			}
		}
		if blocked == 0 {
			t.Error("it is not blocked after ten minutes")
		}
	})
}

// The recovery of a sink is one line in the log, with the number of failed attempts.
func TestRecoveryIsLogged(t *testing.T) {
	for _, failures := range []int{1, 3} {
		logging(t, func(t *testing.T, r *route, log *strings.Builder) {
			r.say(first(failures, fails(errDown), takes(0)))
			r.add(change(1, "E1", "scheduled", 24*time.Hour), change(2, "E1", "updated", 24*time.Hour))
			pause(time.Hour)
			line := fmt.Sprintf(`"sink recovered" sink=a after=%d`, failures)
			if n := strings.Count(log.String(), line); n != 1 {
				t.Errorf("the log says %d times that it recovered after %d:\n%s", n, failures, log)
			}
		})
	}
}

// What somebody replayed is older by its number, and newer by its time: it hides nothing that has waited for longer.
func TestStateSaysHowOldIsWhatWaitsBehindAReplay(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		began := time.Now()
		r.add(change(2, "E", "updated", time.Hour))
		pause(10 * time.Minute)
		replayed := change(1, "E", "scheduled", time.Hour)
		replayed.Replayed = true
		r.add(replayed)
		pause(time.Minute)
		if got := r.worker.State().Oldest; !got.Equal(began) {
			t.Errorf("the oldest waits since %v, want %v", got, began)
		}
	})
}
