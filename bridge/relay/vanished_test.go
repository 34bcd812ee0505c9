package relay_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// asked returns the requests of a relay that need JetStream, by name.
func asked(t *testing.T, r *relay.Relay, key string) map[string]func() error {
	list := func(sel relay.Selection) func() error {
		return func() error { _, _, err := r.List(t.Context(), sel, 10); return err }
	}
	return map[string]func() error{
		"list":   list(relay.Selection{State: "dead"}),
		"show":   func() error { _, err := r.Show(t.Context(), key); return err },
		"replay": func() error { _, err := r.Replay(t.Context(), []string{key}, "", "alice"); return err },
		"drop":   func() error { _, err := r.Drop(t.Context(), []string{key}, "alice"); return err },
		"past": func() error {
			_, err := r.ReplayPast(t.Context(), relay.ReplayRequest{Sink: "hook", Since: time.Now().Add(-time.Hour)})
			return err
		},
		"mute":   func() error { _, err := r.Mute(delivery.Mute{Reason: "work", By: "alice"}, time.Hour); return err },
		"unmute": func() error { _, err := r.Unmute(nil, true, "alice"); return err },
	}
}

// A stream that vanishes while a relay runs is an error of what needs it, which names the stream.
func TestWhatVanishesIsAnErrorOfWhatNeedsIt(t *testing.T) {
	for name, fails := range map[string][]string{
		"FOREWARN_dead":       {"list", "show", "replay", "drop"},
		"FOREWARN":            {"past", "mute"},
		"KV_FOREWARN_records": {"mute", "past"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			picky := newRecorder()
			picky.answer = func([]delivery.Delivery) (delivery.Answer, error) { return delivery.Answer{}, delivery.ErrRejected }
			r, _ := f.start(relay.Options{Routes: []bridge.Route{route("hook", picky)}})
			f.begin("hook")
			f.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
			var dead []relay.Entry
			f.until("it is a dead letter", func() bool {
				dead, _, _ = r.List(t.Context(), relay.Selection{State: "dead"}, 10)
				return len(dead) == 1
			}, nil)
			if err := f.js.DeleteStream(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			requests := asked(t, r, dead[0].Key)
			for _, what := range fails {
				if err := requests[what](); err == nil {
					t.Errorf("%s succeeds without %s", what, name)
				}
			}
		})
	}
}

// What was open when a sink was new, and was removed from the stream before it could be told, holds up nothing.
func TestAnOpenChangeThatWasRemovedHoldsUpNothing(t *testing.T) {
	f := newFleet(t)
	one, two := eventNo(1).say(t, imds.Scheduled, "vm-1"), eventNo(2).say(t, imds.Scheduled, "vm-2")
	f.publish(one, two)
	hook := newRecorder()
	hook.answer = func([]delivery.Delivery) (delivery.Answer, error) { return delivery.Answer{}, errors.New("no answer") }
	_, stop := f.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}})
	f.until("both were tried", func() bool { return len(count(hook.attempts())) == 2 }, hook.news)
	stop()
	stream, err := f.js.Stream(t.Context(), "FOREWARN")
	if err == nil {
		err = stream.DeleteMsg(t.Context(), 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	after := newRecorder()
	f.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{route("hook", after)}})
	three := eventNo(3).say(t, imds.Scheduled, "vm-3")
	f.publish(three)
	if got := sorted(f.hears(after, 2)); !slices.Equal(got, sorted(ids(two, three))) {
		t.Errorf("the sink heard %q, want %q", got, sorted(ids(two, three)))
	}
}
