package delivery_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
)

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

// A panic in a sink is a failed attempt. A sink that does not return delays neither the stop nor the program.
func TestSinkCannotEndTheWorker(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(func([]delivery.Delivery) (delivery.Answer, error) { panic("oh") })
		r.add(change(1, "E1", "scheduled", time.Hour))
		pause(time.Minute)
		if st := r.worker.State(); !st.Retrying || st.Error != "the sink panicked: oh" {
			t.Errorf("the state is %s", text(st))
		}
		r.say(nil)
		pause(10 * time.Minute)
		want(t, "accepted", r.ids(&r.accepted), "E1-scheduled")
	})
}
