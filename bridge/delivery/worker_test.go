package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
)

// A destination records each call and gives the answer that the test sets.
type destination struct {
	mu     sync.Mutex
	calls  [][]delivery.Delivery
	answer func(batch []delivery.Delivery) (delivery.Answer, error) // nil accepts
	hang   bool                                                     // until the attempt ends
}

func (d *destination) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	d.mu.Lock()
	d.calls = append(d.calls, slices.Clone(batch))
	answer, hang := d.answer, d.hang
	d.mu.Unlock()
	if hang {
		<-ctx.Done()
		return delivery.Answer{}, ctx.Err()
	}
	if answer == nil {
		return delivery.Answer{}, nil
	}
	return answer(batch)
}

func (d *destination) say(answer func([]delivery.Delivery) (delivery.Answer, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = answer
}

func fails(err error) func([]delivery.Delivery) (delivery.Answer, error) {
	return func([]delivery.Delivery) (delivery.Answer, error) { return delivery.Answer{}, err }
}

// made returns the ids of each call so far.
func (d *destination) made() (calls []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, batch := range d.calls {
		var list []string
		for _, one := range batch {
			list = append(list, one.Event.ID())
		}
		calls = append(calls, strings.Join(list, " "))
	}
	return calls
}

// last returns the batch of the last call.
func (d *destination) last() []delivery.Delivery {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[len(d.calls)-1]
}

// A route is a worker that runs, over a queue in memory.
type route struct {
	*memory
	*destination
	worker *delivery.Worker
	stop   func()
}

// start runs a worker on the queue until the test ends, or stop is called.
func start(t *testing.T, m *memory, d *destination, terms delivery.Terms) *route {
	return startMetered(t, m, d, terms, nil)
}

func startMetered(t *testing.T, m *memory, d *destination, terms delivery.Terms, meter delivery.Meter) *route {
	return startWith(t, m, d, delivery.Config{Terms: terms, Meter: meter})
}

func startWith(t *testing.T, m *memory, d *destination, c delivery.Config) *route {
	stop, done := make(chan struct{}), make(chan struct{})
	c.Route, c.Sink, c.Queue = "a", d, m
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &route{memory: m, destination: d, worker: delivery.NewWorker(c)}
	r.stop = sync.OnceFunc(func() { close(stop); <-done })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		r.worker.Run(ctx, stop, nil)
	}()
	t.Cleanup(func() { cancel(); r.stop() })
	return r
}

func bubble(t *testing.T, terms delivery.Terms, f func(t *testing.T, r *route)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, start(t, newMemory(), &destination{}, terms)) })
}

// pause lets time pass, and waits until everything due has happened.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func want(t *testing.T, claim string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", claim, got, want)
	}
}

func change(seq uint64, group, change string, notice time.Duration) delivery.Item {
	m := &delivery.Message{Seq: seq, Group: group, Change: change, ID: group + "-" + change, AzureType: "Reboot"}
	return delivery.Item{Message: m, NotBefore: time.Now().Add(notice)}
}

// wave returns the changes of one document with three events.
func wave() (items []delivery.Item) {
	for n, id := range []string{"E1", "E2", "E3"} {
		items = append(items, change(uint64(n+1), id, "scheduled", 2*time.Hour))
	}
	return items
}

var errDown = errors.New("connection refused")

var digest = delivery.Terms{Late: delivery.LateLatest, DigestAbove: 2}

// A worker without a log delivers too.
func TestAWorkerWithoutALogDelivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d, stop := newMemory(), &destination{}, make(chan struct{})
		m.add(change(1, "A", "scheduled", time.Hour))
		close(stop)
		delivery.NewWorker(delivery.Config{Route: "a", Sink: d, Queue: m}).Run(t.Context(), stop, nil)
		want(t, "delivered", d.made(), "A-scheduled")
	})
}

// Items that were not delivered within the time of the terms fall back, once, even while an attempt hangs. Heartbeats
// don't, nor do items that are themselves fallbacks, nor what is about the fallback.
func TestUndeliveredItemsFallBackOnce(t *testing.T) {
	for _, hang := range []bool{false, true} {
		terms := delivery.Terms{Fallback: delivery.Fallback{Sink: "b", After: 10 * time.Minute}}
		bubble(t, terms, func(t *testing.T, r *route) {
			r.say(fails(errDown))
			r.hang = hang
			beat := delivery.Item{Message: &delivery.Message{Seq: 2, ID: "beat", Transient: true}}
			foreign := change(3, "E2", "scheduled", time.Hour)
			foreign.FallbackFor = &delivery.FallbackFor{Sink: "c"}
			about := delivery.Item{Message: &delivery.Message{Seq: 4, ID: "b is blocked", About: "b"}}
			r.add(change(1, "E1", "scheduled", time.Hour), beat, foreign, about)
			pause(10*time.Minute - time.Second)
			want(t, "before", r.ids(&r.fellBack))
			pause(time.Second)
			want(t, "then", r.ids(&r.fellBack), "E1-scheduled")
			pause(time.Hour)
			want(t, "later", r.ids(&r.fellBack), "E1-scheduled")
		})
	}
}

// A CloudEvent that can never be read again becomes a dead letter. The others of its batch don't, and one that can't be
// read at the moment is tried again.
func TestOnlyLostItemsBecomeDeadLetters(t *testing.T) {
	bubble(t, delivery.Terms{Batch: 10}, func(t *testing.T, r *route) {
		r.lost[2] = true
		r.misread(0, errors.New("input/output error"))
		r.add(change(1, "E1", "scheduled", time.Hour), change(2, "E2", "scheduled", time.Hour), change(3, "E3", "scheduled", time.Hour))
		pause(time.Minute)
		want(t, "dead", r.ids(&r.dead), "E2-scheduled")
		want(t, "calls while nothing can be read", r.made())
		r.misread(0, nil)
		pause(10 * time.Minute) // longer than any backoff
		accepted := r.ids(&r.accepted)
		slices.Sort(accepted)
		want(t, "accepted", accepted, "E1-scheduled", "E3-scheduled")
	})
}

// A delivery that could not be read was not attempted: it does not expire for that, and keeps its number of attempts.
func TestUnreadDeliveryIsNoAttempt(t *testing.T) {
	bubble(t, delivery.Terms{MaxAge: time.Hour}, func(t *testing.T, r *route) {
		r.misread(0, errors.New("input/output error"))
		old := change(1, "E1", "scheduled", 24*time.Hour)
		old.PendingSince = time.Now().Add(-2 * time.Hour)
		r.add(old)
		pause(time.Minute)
		want(t, "calls", r.made())
		want(t, "dead", r.ids(&r.dead))
		r.misread(0, nil)
		r.memory.mu.Lock()
		attempts := r.pending[1].Attempts
		r.memory.mu.Unlock()
		if attempts != 0 {
			t.Errorf("%d attempts are counted, want none", attempts)
		}
		pause(10 * time.Minute)
		want(t, "calls once it can be read", r.made(), "E1-scheduled")
	})
}

// One delivery that can't be read for now delays no other of its batch or digest for long, and is delivered later.
func TestAnUnreadDeliveryDelaysNoOther(t *testing.T) {
	for claim, terms := range map[string]delivery.Terms{"in a batch": {Batch: 10},
		"in a digest": {Late: delivery.LateLatest, DigestAbove: 2}} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, terms, func(t *testing.T, r *route) {
				r.misread(2, errors.New("input/output error"))
				r.add(wave()...)
				r.add(change(4, "E4", "scheduled", time.Minute))
				pause(2 * time.Minute)
				accepted := r.ids(&r.accepted)
				slices.Sort(accepted)
				want(t, "accepted while one can't be read", accepted, "E1-scheduled", "E3-scheduled", "E4-scheduled")
				r.misread(0, nil)
				pause(10 * time.Minute) // longer than any backoff
				if n := len(r.ids(&r.accepted)); n != 4 {
					t.Errorf("%d are accepted once all can be read, want 4", n)
				}
			})
		})
	}
}

// However many deliveries can't be read, the destination is not to blame: what can be read goes to it at once.
func TestUnreadDeliveriesDoNotBlameTheDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, newMemory(), &destination{}, delivery.Config{Random: func() float64 { return 1 }})
		r.misread(0, errors.New("input/output error"))
		for n := range 20 {
			r.add(change(uint64(n+1), fmt.Sprint("E", n+1), "scheduled", 24*time.Hour))
		}
		pause(100 * time.Millisecond)
		r.misread(0, nil)
		r.add(change(21, "E21", "scheduled", 24*time.Hour))
		pause(100 * time.Millisecond)
		if made := r.made(); len(made) == 0 || made[0] != "E21-scheduled" {
			t.Errorf("%q were attempted, want first what can be read", made)
		}
	})
}

// A worker never sleeps for more than a minute while something is pending: the clock may be stepped to its time.
func TestWorkerLooksAtTheClockEveryMinute(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(fails(&delivery.RetryAfter{After: time.Hour, Err: errDown}))
		r.add(change(1, "E1", "scheduled", 24*time.Hour))
		pause(time.Second)
		before := r.looks()
		pause(50 * time.Minute)
		if n := r.looks() - before; n < 49 || n > 51 {
			t.Errorf("it looked %d times in 50 minutes, want once a minute", n)
		}
	})
}

// A route with Durable has every result on disk before the next attempt, not only acceptances: progress and rejections
// would be repeated after a crash.
func TestDurableRouteWritesEachResultFirst(t *testing.T) {
	for _, durable := range []bool{true, false} {
		for _, err := range []error{nil, errDown, fmt.Errorf("%w: 422", delivery.ErrRejected), delivery.ErrBlocked} {
			bubble(t, delivery.Terms{Durable: durable}, func(t *testing.T, r *route) {
				r.say(fails(err))
				r.add(change(1, "E1", "scheduled", time.Hour))
				pause(0)
				if got := r.lastReport(); got.Durable != durable {
					t.Errorf("after %v durable is %v, want %v", err, got.Durable, durable)
				}
			})
		}
	}
}

// The caller's Random decides the jitter: each wait is a part of the backoff, which doubles from a second.
func TestRandomIsTheSourceOfJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &destination{answer: fails(errDown)}
		r := startWith(t, newMemory(), d, delivery.Config{Random: func() float64 { return 0.5 }})
		r.add(change(1, "E1", "scheduled", 24*time.Hour))
		pause(1499 * time.Millisecond)
		if n := len(r.made()); n != 2 {
			t.Errorf("after half a second and almost another it was tried %d times, want 2", n)
		}
		pause(2 * time.Millisecond)
		if n := len(r.made()); n != 3 {
			t.Errorf("after half a second and another it was tried %d times, want 3", n)
		}
	})
}

// A changed secret file is noticed within two seconds, and waiting deliveries are attempted at once.
func TestChangedSecretIsTriedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "token")
		write := func(secret string) {
			if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("old")
		r := startWith(t, newMemory(), &destination{}, delivery.Config{Secrets: []string{file}})
		r.say(fails(fmt.Errorf("%w: 401", delivery.ErrBlocked)))
		r.add(change(1, "E1", "scheduled", 24*time.Hour))
		pause(time.Hour)
		tries := len(r.made())
		if tries < 50 || tries > 75 {
			t.Errorf("it was tried %d times in an hour, want once a minute", tries)
		}
		write("new secret")
		r.say(nil)
		pause(2*time.Second + time.Millisecond)
		want(t, "accepted", r.ids(&r.accepted), "E1-scheduled")
	})
}

// One event that is still refused after another was accepted doesn't block the route, even if nothing else is pending.
func TestOneRefusedEventDoesNotBlockTheRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, blocked := &destination{}, 0
		d.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			if batch[0].Event.ID() == "E1-scheduled" {
				return delivery.Answer{}, fmt.Errorf("%w: 403", delivery.ErrBlocked)
			}
			return delivery.Answer{}, nil
		})
		r := startWith(t, newMemory(), d, delivery.Config{
			Random: func() float64 { return 1 },
			Trouble: func(why error) {
				if why != nil {
					blocked++
				}
			},
		})
		r.add(change(1, "E1", "scheduled", 24*time.Hour))
		pause(time.Millisecond)
		r.add(change(2, "E2", "scheduled", 24*time.Hour))
		pause(10 * time.Minute)
		if calls := len(r.made()); calls < 6 {
			t.Errorf("there were %d attempts, want several of E1", calls)
		}
		if st := r.worker.State(); st.Blocked || st.Refused || !st.Retrying || blocked > 0 {
			t.Errorf("the state is %s, and the route was blocked %d times, want a failing route", text(st), blocked)
		}
	})
}

// With LateLatest a delivery lists the older changes that it replaces, each group only its own.
func TestLatestListsTheMissedChanges(t *testing.T) {
	for _, n := range []int{0, 1, 3} {
		bubble(t, digest, func(t *testing.T, r *route) {
			items := wave()
			for i := range n {
				items = append(items, change(uint64(10+i), "E2", []string{"updated", "updated", "started"}[i], 2*time.Hour))
			}
			r.add(items...)
			pause(time.Minute)
			missed := map[string]int{}
			for _, call := range r.calls {
				for _, d := range call {
					missed[d.Event.ID()[:2]] += len(d.Missed)
				}
			}
			if missed["E1"] != 0 || missed["E2"] != n || missed["E3"] != 0 {
				t.Errorf("with %d more changes of E2 the messages stand for %v", n, missed)
			}
		})
	}
}

// An attempted item older than max_age becomes a dead letter, with the older changes that it replaces. One exactly that
// old is tried again.
func TestExpiredItemsTakeTheOlderChangesWithThem(t *testing.T) {
	bubble(t, delivery.Terms{Late: delivery.LateLatest, MaxAge: 10 * time.Second, Timeout: 10 * time.Second}, func(t *testing.T, r *route) {
		r.hang = true
		r.add(change(1, "E1", "scheduled", 24*time.Hour), change(2, "E1", "updated", 24*time.Hour))
		pause(10*time.Second + time.Millisecond)
		want(t, "just as old", r.ids(&r.dead))
		pause(time.Minute)
		dead := r.ids(&r.dead)
		slices.Sort(dead)
		want(t, "older", dead, "E1-scheduled", "E1-updated")
		want(t, "attempts", slices.Compact(r.made()), "E1-updated")
		if got := r.lastReport(); got.Reason != delivery.ReasonExpired {
			t.Errorf("the reason is %q", got.Reason)
		}
	})
}

// A waiting item that is removed is not attempted again, and the worker continues.
func TestRemovedItemIsNotAttemptedAgain(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		r.add(change(1, "E1", "scheduled", time.Hour), change(2, "E1", "started", 0), change(3, "E2", "scheduled", time.Hour))
		pause(30 * time.Second)
		r.remove(1, 3)
		before := len(r.made())
		r.say(nil)
		pause(10 * time.Minute)
		want(t, "then", r.made()[before:], "E1-started")
	})
}

// With LateDrop, older changes are dropped, and a scheduled one whose time has passed, even while the route is blocked.
// An attempt under way is finished.
func TestLateItemsAreDropped(t *testing.T) {
	bubble(t, delivery.Terms{Late: delivery.LateDrop}, func(t *testing.T, r *route) {
		r.say(fails(fmt.Errorf("%w: 401", delivery.ErrBlocked)))
		r.add(change(1, "E1", "scheduled", 3*time.Hour), change(2, "E2", "scheduled", 2*time.Hour))
		pause(time.Hour)
		r.add(change(3, "E1", "updated", 3*time.Hour))
		pause(time.Millisecond)
		want(t, "overtaken", r.ids(&r.dead), "E1-scheduled")
		pause(time.Hour)
		want(t, "too late", r.ids(&r.dead), "E1-scheduled", "E2-scheduled")
		if got := r.lastReport(); got.Reason != delivery.ReasonLate {
			t.Errorf("the reason is %q", got.Reason)
		}
		r.say(nil)
		pause(time.Hour)
		want(t, "accepted", r.ids(&r.accepted), "E1-updated")
	})
}

// The end of a replaced event is delivered before the event that replaced it, also by a sink that takes one delivery at
// a time, and after an outage. It waits no longer than its replacement.
func TestEndOfAReplacedEventComesFirst(t *testing.T) {
	gone := func(seq uint64) delivery.Item {
		i := change(seq, "old", "vanished", time.Hour)
		i.Replaced = true
		return i
	}
	begun := func(seq uint64) delivery.Item {
		i := change(seq, "new", "started", 0)
		i.NotBefore = time.Time{}
		return i
	}
	t.Run("both pending", func(t *testing.T) {
		bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
			r.add(gone(1), begun(2))
			pause(time.Second)
			want(t, "order", r.made(), "old-vanished", "new-started")
		})
	})
	t.Run("behind a change of its own", func(t *testing.T) {
		bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
			r.add(change(1, "old", "scheduled", time.Hour), gone(2), begun(3))
			pause(time.Second)
			want(t, "order", r.made(), "old-scheduled", "old-vanished", "new-started")
		})
	})
	t.Run("a sink that waits", func(t *testing.T) {
		bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
			r.say(fails(&delivery.RetryAfter{After: time.Minute, Err: errDown}))
			r.add(change(1, "other", "scheduled", time.Hour))
			pause(time.Second)
			r.say(nil)
			r.add(gone(2), begun(3))
			pause(2 * time.Minute)
			want(t, "order", r.made(), "other-scheduled", "old-vanished", "new-started", "other-scheduled")
		})
	})
	t.Run("a sink that is blocked", func(t *testing.T) {
		bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
			r.say(fails(delivery.ErrBlocked))
			r.add(change(1, "other", "scheduled", time.Hour))
			pause(10 * time.Minute)
			r.say(nil)
			tried := len(r.made())
			r.add(gone(2), begun(3))
			pause(time.Second)
			want(t, "order", r.made()[tried:], "old-vanished", "new-started", "other-scheduled")
		})
	})
	t.Run("what is only over waits", func(t *testing.T) {
		bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
			r.add(change(1, "old", "vanished", time.Hour), begun(2))
			pause(time.Second)
			want(t, "order", r.made(), "new-started", "old-vanished")
		})
	})
}

// Items that were muted for longer than max_age are still attempted, and their age counts from the end of the mute. The
// sink gets the mute. Older changes are superseded and don't become dead letters, even with LateDrop.
func TestMutedItemsAreDeliveredAfterTheMute(t *testing.T) {
	terms := delivery.Terms{MaxAge: time.Hour, Late: delivery.LateDrop}
	bubble(t, terms, func(t *testing.T, r *route) {
		down := errors.New("down")
		r.say(fails(down))
		mute := &delivery.Mute{Reason: "repairs", Since: time.Now()}
		older := delivery.Item{Message: &delivery.Message{Seq: 1, Group: "A", Change: "scheduled"}}
		newer := delivery.Item{Message: &delivery.Message{Seq: 2, Group: "A", Change: "started"}}
		r.mute(mute)
		r.add(older, newer)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if calls := r.made(); len(calls) != 0 {
			t.Errorf("%v was delivered while it was muted", calls)
		}
		over := *mute
		over.Ended, over.LastSeq = time.Now(), 2
		r.mute(&over)
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if dead := r.ids(&r.dead); len(dead) != 0 {
			t.Errorf("%v are dead letters half an hour after the end", dead)
		}
		if got := r.ids(&r.superseded); !slices.Equal(got, []string{"A-1"}) {
			t.Errorf("superseded are %v, want A-1", got)
		}
		if d := r.last()[0]; d.Event.ID() != "A-2" || d.Mute != &over {
			t.Errorf("the sink got %s, which waited for %+v", d.Event.ID(), d.Mute)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if dead := r.ids(&r.dead); !slices.Equal(dead, []string{"A-2"}) {
			t.Errorf("dead letters are %v after max_age, want A-2", dead)
		}
	})
}
