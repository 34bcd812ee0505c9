package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

// A batch that made progress is repeated with the same members and with its progress, whatever arrives meanwhile, also
// after a restart; but where only the latest change is delivered, a newer one of a member's event takes its place, and
// everybody gets that: somebody who refuses the older one must not keep it from the others.
func TestBatchWithProgressIsRepeatedWithTheSameMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := newMemory(), &destination{}
		r := start(t, m, d, digest)
		d.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			return delivery.Answer{Progress: []byte("A has it")}, errors.New("B: 451 try again")
		})
		m.add(wave()...)
		pause(time.Second)
		want(t, "one batch", d.made()[:1], "E1-scheduled E2-scheduled E3-scheduled")

		m.add(change(4, "E2", "started", 0), change(5, "E4", "scheduled", 2*time.Hour))
		told := len(d.made())
		pause(time.Minute)
		for _, call := range d.made()[told:] {
			if call != "E1-scheduled E3-scheduled" && call != "E2-started" && call != "E4-scheduled" {
				t.Errorf("attempted %q, want the rest of the batch as it was", call)
			}
		}
		r.stop()
		m.restart()
		start(t, m, d, digest)
		before := len(d.made())
		d.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			if len(batch) == 2 && string(batch[0].Progress) != "A has it" {
				return delivery.Answer{}, fmt.Errorf("%w: the progress is %q", delivery.ErrRejected, batch[0].Progress)
			}
			return delivery.Answer{}, nil
		})
		pause(5 * time.Minute)
		calls := d.made()[before:]
		slices.Sort(calls)
		want(t, "after a restart", calls, "E1-scheduled E3-scheduled", "E2-started", "E4-scheduled")
		if len(m.dead) != 0 || len(m.pending) != 0 {
			t.Errorf("%d dead letters and %d pending are left, want none", len(m.dead), len(m.pending))
		}
	})
}

// What a sink left half delivered is taken over, after a reload, by one of another kind that takes one delivery at a
// time.
func TestHalfDeliveredBatchIsNoLargerThanItsSinkTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := newMemory(), &destination{}
		r := start(t, m, d, digest)
		d.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			return delivery.Answer{Progress: []byte("A has it")}, errors.New("B: 451 try again")
		})
		m.add(wave()...)
		pause(time.Second)
		r.stop()
		m.restart()
		for _, answer := range []error{errDown, nil} {
			d.say(fails(answer))
			before := len(d.made())
			r = start(t, m, d, delivery.Terms{Late: delivery.LateSend, Batch: 1})
			pause(time.Minute)
			for _, call := range d.made()[before:] {
				if strings.Contains(call, " ") {
					t.Fatalf("a sink that takes one delivery at a time got %q", call)
				}
			}
			r.stop()
			m.restart()
		}
		want(t, "accepted", m.ids(&m.accepted), "E1-scheduled", "E2-scheduled", "E3-scheduled")
	})
}

// A route that delivers every change, in order, combines nothing.
func TestDigestNeedsLateLatest(t *testing.T) {
	for _, late := range []delivery.Late{"", delivery.LateSend, delivery.LateDrop} {
		bubble(t, delivery.Terms{Late: late, DigestAbove: digest.DigestAbove}, func(t *testing.T, r *route) {
			r.add(wave()...)
			pause(time.Second)
			want(t, string(late), r.made(), "E1-scheduled", "E2-scheduled", "E3-scheduled")
		})
	}
}

// A rejected batch is split if it made no progress. One with progress is not, because some recipients have it already.
func TestRejectedBatchIsSplitUnlessItMadeProgress(t *testing.T) {
	reject := func(batch []delivery.Delivery) (delivery.Answer, error) {
		for _, d := range batch {
			if d.Event.ID() == "E2-scheduled" {
				return delivery.Answer{}, fmt.Errorf("%w: 400", delivery.ErrRejected)
			}
		}
		return delivery.Answer{}, nil
	}
	for _, progress := range []bool{false, true} {
		bubble(t, digest, func(t *testing.T, r *route) {
			r.say(reject)
			if progress {
				first := true
				r.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
					if first {
						first = false
						return delivery.Answer{Progress: []byte("A")}, errDown
					}
					return reject(batch)
				})
			}
			r.add(wave()...)
			pause(time.Minute)
			if progress {
				want(t, "calls with progress", r.made(), "E1-scheduled E2-scheduled E3-scheduled", "E1-scheduled E2-scheduled E3-scheduled")
				want(t, "dead with progress", r.ids(&r.dead), "E1-scheduled", "E2-scheduled", "E3-scheduled")
				return
			}
			want(t, "calls", r.made(), "E1-scheduled E2-scheduled E3-scheduled", "E1-scheduled", "E2-scheduled", "E3-scheduled")
			want(t, "dead", r.ids(&r.dead), "E2-scheduled")
			want(t, "accepted", r.ids(&r.accepted), "E1-scheduled", "E3-scheduled")
			if n := r.last()[0].Attempt; n != 2 {
				t.Errorf("after the batch it is attempt %d, want 2", n)
			}
		})
	}
}

// Items that were not delivered within the time of the terms fall back, once, even while an attempt hangs. Heartbeats
// don't, nor do items that are themselves fallbacks.
func TestUndeliveredItemsFallBackOnce(t *testing.T) {
	for _, hang := range []bool{false, true} {
		terms := delivery.Terms{Fallback: delivery.Fallback{Sink: "b", After: 10 * time.Minute}}
		bubble(t, terms, func(t *testing.T, r *route) {
			r.say(fails(errDown))
			r.hang = hang
			beat := delivery.Item{Message: &delivery.Message{Seq: 2, ID: "beat", Transient: true}}
			foreign := change(3, "E2", "scheduled", time.Hour)
			foreign.FallbackFor = &delivery.FallbackFor{Sink: "c"}
			r.add(change(1, "E1", "scheduled", time.Hour), beat, foreign)
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

func (c *tally) Superseded(_ string, n int)     { c.add("superseded", n) }
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

// A stop waits for an attempt under way, and its result counts.
func TestStopWaitsForTheAttemptUnderWay(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(func([]delivery.Delivery) (delivery.Answer, error) {
			time.Sleep(time.Minute)
			return delivery.Answer{}, nil
		})
		r.add(change(1, "E1", "scheduled", time.Hour))
		pause(time.Second)
		r.stop()
		want(t, "accepted", r.ids(&r.accepted), "E1-scheduled")
	})
}

// A worker that another one takes over from finishes its attempt under way and begins no other.
func TestLeavingWorkerBeginsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := newMemory(), &destination{}
		d.say(func([]delivery.Delivery) (delivery.Answer, error) {
			time.Sleep(time.Minute)
			return delivery.Answer{}, nil
		})
		w := delivery.NewWorker(delivery.Config{Route: "a", Sink: d, Queue: m, Log: slog.New(slog.DiscardHandler)})
		leave, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			w.Run(t.Context(), nil, leave)
		}()
		m.add(wave()...)
		pause(time.Second)
		close(leave)
		<-done
		want(t, "accepted", m.ids(&m.accepted), "E1-scheduled")
		want(t, "calls", d.made(), "E1-scheduled")
	})
}

// A canceled attempt that still succeeds counts as accepted.
func TestCanceledAttemptMayBeAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ctx, cancel := context.WithCancel(t.Context())
		w := delivery.NewWorker(delivery.Config{Route: "a", Sink: lastMoment{}, Queue: m, Log: slog.New(slog.DiscardHandler)})
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx, nil, nil)
		}()
		m.add(wave()[0])
		pause(time.Second)
		began := time.Now()
		cancel()
		<-done
		want(t, "accepted", m.ids(&m.accepted), "E1-scheduled")
		if took := time.Since(began); took > 0 {
			t.Errorf("the worker needs %v more to end", took)
		}
	})
}

// lastMoment accepts when the attempt is canceled.
type lastMoment struct{}

func (lastMoment) Deliver(ctx context.Context, _ []delivery.Delivery) (delivery.Answer, error) {
	<-ctx.Done()
	return delivery.Answer{}, nil
}

// An attempt may take as long as its timeout, and any time without one. An acceptance after the timeout still counts.
func TestAttemptEndsAtItsTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{0, 5 * time.Second} {
		for _, obeys := range []bool{true, false} {
			bubble(t, delivery.Terms{Timeout: timeout}, func(t *testing.T, r *route) {
				r.hang = obeys
				r.say(func([]delivery.Delivery) (delivery.Answer, error) {
					time.Sleep(time.Hour)
					return delivery.Answer{}, nil
				})
				r.add(change(1, "E1", "scheduled", 24*time.Hour))
				pause(59 * time.Minute)
				if tries := len(r.made()); tries > 1 != (obeys && timeout > 0) {
					t.Errorf("timeout %v, obeyed %v: %d attempts in an hour", timeout, obeys, tries)
				}
				pause(2 * time.Minute)
				if accepted := len(r.ids(&r.accepted)); accepted > 0 == obeys {
					t.Errorf("timeout %v, obeyed %v: %d are accepted", timeout, obeys, accepted)
				}
			})
		}
	}
}

// What a sink says about its destination is the error, also if it says that when its time is over.
func TestRefusalAtTheTimeoutKeepsItsWords(t *testing.T) {
	for _, class := range []error{delivery.ErrRejected, delivery.ErrBlocked} {
		bubble(t, delivery.Terms{Timeout: 5 * time.Second}, func(t *testing.T, r *route) {
			r.say(func([]delivery.Delivery) (delivery.Answer, error) {
				time.Sleep(5 * time.Second)
				return delivery.Answer{}, fmt.Errorf("%w: no such channel", class)
			})
			r.add(wave()[0])
			pause(10 * time.Second)
			if got, want := r.worker.State().Error, class.Error()+": no such channel"; got != want {
				t.Errorf("the error is %q, want %q", got, want)
			}
		})
	}
}

// A worker that must leave lets what is pending fall back for as long as its attempt takes, and begins nothing else.
func TestLeavingWorkerLetsDeliveriesFallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d, leave, done := newMemory(), &destination{hang: true}, make(chan struct{}), make(chan struct{})
		ctx, cut := context.WithCancel(t.Context())
		w := delivery.NewWorker(delivery.Config{Route: "a", Sink: d, Queue: m, Log: slog.New(slog.DiscardHandler),
			Terms: delivery.Terms{Parallel: 2, Fallback: delivery.Fallback{Sink: "b", After: 10 * time.Minute}}})
		go func() {
			defer close(done)
			w.Run(ctx, nil, leave)
		}()
		m.add(change(1, "E1", "scheduled", 24*time.Hour))
		pause(time.Second)
		close(leave)
		m.add(change(2, "E2", "scheduled", 24*time.Hour))
		pause(9 * time.Minute)
		want(t, "before its time fell back", m.ids(&m.fellBack))
		pause(time.Hour)
		want(t, "fell back", m.ids(&m.fellBack), "E1-scheduled", "E2-scheduled")
		want(t, "attempted", d.made(), "E1-scheduled")
		cut()
		<-done
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
		if st := r.worker.State(); st.Error != errDown.Error() || st.Failing {
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
		if st := r.worker.State(); st.Error != "" || st.Failing {
			t.Errorf("with nothing pending the state is %s", text(st))
		}
	})
}

// Messages about the bridge that become a partly delivered batch wait as long as the failure before asks for.
func TestPartlyDeliveredMessagesKeepTheirWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, newMemory(), &destination{}, delivery.Config{Terms: digest, Random: func() float64 { return 1 }})
		var at []time.Duration
		began := time.Now()
		r.say(func([]delivery.Delivery) (a delivery.Answer, err error) {
			if at = append(at, time.Since(began)); len(at) == 5 {
				a.Progress = []byte("one of three")
			}
			return a, errDown
		})
		r.mute(&delivery.Mute{Since: began, Ended: began, LastSeq: 9})
		for n := range uint64(3) {
			m := &delivery.Message{Seq: n + 1, ID: fmt.Sprint("trouble-", n)}
			r.add(delivery.Item{Message: m, PendingSince: began})
		}
		pause(time.Minute)
		if len(at) < 6 || at[5]-at[4] < at[4]-at[3] {
			t.Errorf("attempts were made after %v, want no shorter wait after the progress", at)
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
		if st := r.worker.State(); st.Error != "rejected: 422" || st.Failing || st.Refused {
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
		if st := r.worker.State(); st.Error != errDown.Error() || !st.Failing || st.Refused {
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
		if st := r.worker.State(); st.Blocked || st.Refused || !st.Failing || blocked > 0 {
			t.Errorf("the state is %s, and the route was blocked %d times, want a failing route", text(st), blocked)
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

// A receipt is returned with the next delivery of its group, whichever answer it was in, and with no other group.
func TestReceiptsBelongToTheirGroup(t *testing.T) {
	for _, err := range []error{nil, errDown, fmt.Errorf("%w: 422", delivery.ErrRejected)} {
		bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
			r.say(func([]delivery.Delivery) (delivery.Answer, error) {
				return delivery.Answer{Receipt: []byte("thread 1")}, err
			})
			r.add(change(1, "E1", "scheduled", time.Hour))
			pause(time.Millisecond)
			r.say(nil)
			r.add(change(2, "E2", "scheduled", time.Hour))
			pause(time.Minute)
			if got := r.receipt("E2"); got != nil {
				t.Errorf("after %v E2 has the receipt %q", err, got)
			}
			r.add(change(3, "E1", "started", 0))
			pause(time.Minute)
			if got := string(r.last()[0].Receipt); got != "thread 1" {
				t.Errorf("after %v the receipt is %q", err, got)
			}
		})
	}
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

// A panic in a sink is a failed attempt. A sink that does not return delays neither the stop nor the program.
func TestSinkCannotEndTheWorker(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(func([]delivery.Delivery) (delivery.Answer, error) { panic("oh") })
		r.add(change(1, "E1", "scheduled", time.Hour))
		pause(time.Minute)
		if st := r.worker.State(); !st.Failing || st.Error != "the sink panicked: oh" {
			t.Errorf("the state is %s", text(st))
		}
		r.say(nil)
		pause(10 * time.Minute)
		want(t, "accepted", r.ids(&r.accepted), "E1-scheduled")
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

// Members of a batch that have come a different way, because they were delivered one by one for a while, are not in one
// batch again: its progress would be that of only some of them.
func TestMembersWithDifferentProgressAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := newMemory(), &destination{}
		terms := delivery.Terms{Late: delivery.LateLatest, Batch: 1, DigestAbove: 1}
		single := terms
		single.DigestAbove = 0
		d.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			switch string(batch[0].Progress) + batch[0].Event.ID() {
			case "A-scheduled":
				return delivery.Answer{Progress: []byte("one ")}, errDown
			case "one A-scheduled":
				return delivery.Answer{Progress: []byte("one, two ")}, errDown
			}
			return delivery.Answer{}, errDown
		})
		m.add(change(1, "A", "scheduled", time.Hour), change(2, "B", "scheduled", 2*time.Hour))
		for n, terms := range []delivery.Terms{terms, single, terms} { // the settings change twice
			if n == 2 {
				d.say(nil)
			}
			r := start(t, m, d, terms)
			pause(0)
			r.stop()
			m.restart()
		}
		want(t, "attempts", d.made(), "A-scheduled B-scheduled", "A-scheduled", "B-scheduled", "A-scheduled", "B-scheduled")
		if got := d.last()[0]; string(got.Progress) != "one " {
			t.Errorf("B is delivered with the progress %q, want its own", got.Progress)
		}
	})
}
