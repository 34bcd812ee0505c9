package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// What the servers say is shown nowhere as it is: they may repeat the credentials.
func TestErrorsOfTheServersAreShownAsTheyMayBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		r := relay.New(relay.Options{
			Name: "relay-1", Stream: "FOREWARN", Log: slog.New(slog.NewTextHandler(&log, nil)).With("part", "relay"),
			Connect: func(context.Context) (*nats.Conn, error) { return nil, errors.New("no such token: s3cr3t") },
			Shown:   func(error) error { return errors.New("not shown") },
		})
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		_ = r.Run(ctx)
		status := r.Status()
		if text := log.String() + strings.Join(status.Reasons, " ") + status.Outbox.Error; strings.Contains(text, "s3cr3t") ||
			!strings.Contains(text, "not shown") {
			t.Errorf("it says %s", text)
		}
	})
}

// So it is with what the methods of a relay return, whoever asks: the error is still known for what it is.
func TestErrorsOfARelaysMethodsAreShownAsTheyMayBe(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		wire := &cable{}
		s.connect = s.over(wire)
		r, stop := s.start(relay.Options{
			Routes: []bridge.Route{route("hook", newRecorder())}, Shown: func(error) error { return errors.New("not shown") },
		})
		pause(2 * time.Second)
		s.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
		pause(5 * time.Second)
		if _, err := r.Show(t.Context(), "hook/1"); !errors.Is(err, relay.ErrUnknownKey) || err.Error() != "not shown" {
			t.Errorf("of an unknown key it says %v, want an ErrUnknownKey that is not shown", err)
		}
		wire.fail("hangs")
		keys := []string{"hook/1"}
		for name, call := range map[string]func(context.Context) error{
			"Histories": func(ctx context.Context) error { _, _, err := r.Histories(ctx, bridge.Period{}); return err },
			"List":      func(ctx context.Context) error { _, _, err := r.List(ctx, relay.Selection{}, 1); return err },
			"Show":      func(ctx context.Context) error { _, err := r.Show(ctx, keys[0]); return err },
			"Replay":    func(ctx context.Context) error { _, err := r.Replay(ctx, keys, "", ""); return err },
			"Drop":      func(ctx context.Context) error { _, err := r.Drop(ctx, keys, ""); return err },
			"ReplayPast": func(ctx context.Context) error {
				_, err := r.ReplayPast(ctx, relay.ReplayRequest{Sink: "hook"})
				return err
			},
			"Mute":   func(context.Context) error { _, err := r.Mute(delivery.Mute{Sink: "hook"}, time.Hour); return err },
			"Unmute": func(context.Context) error { _, err := r.Unmute(nil, true, ""); return err },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := call(ctx); err == nil || err.Error() != "not shown" {
				t.Errorf("%s returns %v, want an error that is not shown", name, err)
			}
			cancel()
		}
		wire.fail("")
		stop()
	})
}

// What can't be read from the stream again fails for a reason that the servers say, and that stands in the status, the
// records and what other sinks are told.
func TestWhyADeliveryCannotBeReadIsShownAsItMayBe(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink, wire := newRecorder(), &cable{}
		sink.answer = fails(errRefused)
		routes := []bridge.Route{route("hook", sink)}
		for n := range 20 { // with which the memory is shared
			idle := route(fmt.Sprint("idle-", n), newRecorder())
			idle.Filter.Only.Types = []string{"Preempt"}
			routes = append(routes, idle)
		}
		s.connect = s.over(wire)
		r, stop := s.start(relay.Options{Routes: routes, Shown: func(error) error { return errors.New("not shown") }})
		pause(2 * time.Second)
		for n := range 5 {
			ce := eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
			if err := ce.SetData("application/json", map[string]string{"filler": strings.Repeat("x", 900*1024)}); err != nil {
				t.Fatal(err)
			}
			s.publish(ce)
			pause(time.Second) // a server cuts off whom it owes 64 MiB, and each sink gets it
		}
		pause(5 * time.Second)
		wire.fail("STREAM.MSG.GET")
		sink.say(nil)
		pause(3 * time.Minute)
		st := r.Status()
		if k := st.Sinks[0]; k.Pending == 0 || k.LastError != "not shown" {
			t.Errorf("%d are pending because of %q, want some because of an error that is not shown", k.Pending, k.LastError)
		}
		wire.fail("")
		pause(15 * time.Minute)
		if n := len(sink.all()); n != 5 {
			t.Errorf("%d are told at last, want 5", n)
		}
		stop()
	})
}
