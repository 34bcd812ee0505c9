package delivery_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
)

// A stop waits for an attempt under way, and its result counts.
func TestStopWaitsForTheAttemptUnderWay(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(takes(time.Minute))
		r.add(announced(1)...)
		pause(time.Second)
		r.ends()
		want(t, "accepted", r.ids(&r.accepted), "E1-scheduled")
	})
}

// A worker that another one takes over from finishes its attempt under way and begins no other.
func TestLeavingWorkerBeginsNothing(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(takes(time.Minute))
		r.add(announced(3)...)
		pause(time.Second)
		close(r.leave)
		<-r.ended
		want(t, "accepted", r.ids(&r.accepted), "E1-scheduled")
		want(t, "attempts", r.made(), "E1-scheduled")
	})
}

// A worker that must leave lets what is pending fall back for as long as its attempt takes, and begins nothing else.
func TestLeavingWorkerLetsDeliveriesFallBack(t *testing.T) {
	terms := delivery.Terms{Parallel: 2, Fallback: delivery.Fallback{Sink: "b", After: 10 * time.Minute}}
	bubble(t, terms, func(t *testing.T, r *route) {
		r.hang = true
		r.add(announced(1)...)
		pause(time.Second)
		close(r.leave)
		r.add(change(2, "E2", "scheduled", 24*time.Hour))
		pause(9 * time.Minute)
		want(t, "before its time fell back", r.ids(&r.fellBack))
		pause(time.Hour)
		want(t, "fell back", r.ids(&r.fellBack), "E1-scheduled", "E2-scheduled")
		want(t, "attempts", r.made(), "E1-scheduled")
	})
}

// A canceled attempt that still succeeds counts as accepted.
func TestCanceledAttemptMayBeAccepted(t *testing.T) {
	lastMoment := sinkFunc(func(ctx context.Context, _ []delivery.Delivery) (delivery.Answer, error) {
		<-ctx.Done()
		return delivery.Answer{}, nil
	})
	play(t, delivery.Config{Sink: lastMoment}, func(t *testing.T, r *route) {
		r.add(announced(1)...)
		pause(time.Second)
		began := time.Now()
		r.cut()
		<-r.ended
		want(t, "accepted", r.ids(&r.accepted), "E1-scheduled")
		if took := time.Since(began); took > 0 {
			t.Errorf("the worker needs %v more to end", took)
		}
	})
}

// An attempt may take as long as its timeout, and any time without one. An acceptance after the timeout still counts.
func TestAttemptEndsAtItsTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{0, 5 * time.Second} {
		for _, obeys := range []bool{true, false} {
			bubble(t, delivery.Terms{Timeout: timeout}, func(t *testing.T, r *route) {
				r.hang = obeys
				r.say(takes(time.Hour))
				r.add(announced(1)...)
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
				time.Sleep(6 * time.Second)
				return delivery.Answer{}, fmt.Errorf("%w: no such channel", class)
			})
			r.add(announced(1)...)
			pause(6 * time.Second)
			if got, want := r.worker.State().Error, class.Error()+": no such channel"; got != want {
				t.Errorf("the error is %q, want %q", got, want)
			}
		})
	}
}

// A panic in a sink is a failed attempt.
func TestSinkCannotEndTheWorker(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(func([]delivery.Delivery) (delivery.Answer, error) { panic("oh") })
		r.add(announced(1)...)
		pause(time.Minute)
		want(t, "trouble", r.trouble(), "retrying", "the sink panicked: oh")
		r.say(nil)
		pause(10 * time.Minute)
		want(t, "accepted", r.ids(&r.accepted), "E1-scheduled")
	})
}

// untilCanceled answers nothing until the attempt is canceled.
type untilCanceled struct{}

func (untilCanceled) Deliver(ctx context.Context, _ []delivery.Delivery) (delivery.Answer, error) {
	<-ctx.Done()
	return delivery.Answer{}, ctx.Err()
}

// A busyQueue takes its time to say what has changed.
type busyQueue struct{ *memory }

func (q busyQueue) Changes() delivery.Changes {
	time.Sleep(time.Second)
	return q.memory.Changes()
}

// A canceled attempt tells nothing of the destination: what is pending keeps its error, and is no dead letter because of
// it, however old it is. It doesn't matter what the worker is busy with meanwhile.
func TestACanceledAttemptTellsNothing(t *testing.T) {
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			ctx, cancel := context.WithCancel(t.Context())
			w := delivery.NewWorker(delivery.Config{
				Route: "a", Sink: untilCanceled{}, Queue: busyQueue{m}, Terms: delivery.Terms{MaxAge: time.Hour},
			})
			done := make(chan struct{})
			go func() {
				defer close(done)
				w.Run(ctx, nil, nil)
			}()
			old := announced(2)[0]
			old.PendingSince, old.Error = time.Now().Add(-2*time.Hour), "no route to host"
			m.add(old)
			pause(time.Minute)
			m.add(announced(2)[1])
			pause(time.Second / 2)
			cancel()
			<-done
			want(t, "dead", m.ids(&m.dead))
			for _, report := range m.reports {
				if report.Error != "" {
					t.Errorf("the error that is recorded is %q", report.Error)
				}
			}
		})
	}
}
