package relay_test

import (
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// A sink that fails once, and at which nothing is tried after that, stays with its relay: another one could do no better.
func TestASinkAtWhichNothingIsTriedStaysWithItsRelay(t *testing.T) {
	for what, c := range map[string]struct {
		answer error
		after  func(t *testing.T, s *stage, r *relay.Relay, a azure)
	}{
		"muted": {answer: errRefused, after: func(t *testing.T, _ *stage, r *relay.Relay, _ azure) {
			if _, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, time.Hour); err != nil {
				t.Fatal(err)
			}
		}},
		"its event over": {answer: errRefused, after: func(t *testing.T, s *stage, _ *relay.Relay, a azure) {
			s.publish(a.say(t, imds.Vanished, "vm-1"))
		}},
		"asked to wait": {answer: &delivery.RetryAfter{Err: errRefused, After: 10 * time.Minute}},
	} {
		t.Run(what, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				var log systemtest.Log
				first := newRecorder()
				first.answer = func([]delivery.Delivery) (delivery.Answer, error) { return delivery.Answer{}, c.answer }
				hook := with(route("hook", first), func(terms *bridge.Terms) { terms.Late = delivery.LateDrop })
				hook.Filter.Only.Changes = []string{"scheduled"}
				routes := []bridge.Route{hook}
				r, stop := s.start(relay.Options{Name: "relay-1", Routes: routes, Log: log.Logger()})
				pause(2 * time.Second)
				_, stopOther := s.start(relay.Options{Name: "relay-2", Routes: routes})
				pause(10 * time.Second)
				a := eventNo(1).in(24 * time.Hour)
				s.publish(a.say(t, imds.Scheduled, "vm-1"))
				pause(10 * time.Millisecond)
				if c.after != nil {
					c.after(t, s, r, a)
				}
				pause(9 * time.Minute)
				if n := len(first.attempts()); n != 1 {
					t.Errorf("%d attempts were made, want 1", n)
				}
				if n := log.Count("this sink fails here"); n > 0 {
					t.Error("it was given up for the other relay")
				}
				stop()
				stopOther()
			})
		})
	}
}
