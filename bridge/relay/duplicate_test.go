package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
	"forewarn/bridge/relay"
)

// noise has another publisher use an id on a subject of its own, with a message that is for nobody.
func (s *stage) noise(id string) {
	s.Helper()
	beat := bridgeSaid("heartbeat", "noisy-vm")
	ce, err := beat(time.Now())
	if err != nil {
		s.Fatal(err)
	}
	body, err := ce.MarshalJSON()
	if err != nil {
		s.Fatal(err)
	}
	s.publishRaw(ownSubject(ce), nats.Header{
		"Content-Type": {"application/cloudevents+json"}, jetstream.MsgIDHeader: {id},
	}, body)
}

// setHash stands for the set of a CloudEvent in what a relay publishes for one sink.
func setHash(ce event.Event) string { return streams.ShortHash(cloudevent.PlaceOf(ce).String()) }

// A stream knows an id for all its subjects. What a relay hands to a fallback reaches it, although another publisher
// used its id before.
func TestNoiseHidesNothingFromAFallback(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		first, second := newRecorder(), newRecorder()
		first.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		hook := with(route("hook", first), func(terms *bridge.Terms) {
			terms.Fallback = delivery.Fallback{Sink: "second", After: time.Hour}
		})
		spare := route("second", second)
		spare.Filter.Only.Types = []string{"Preempt"}
		_, stop := s.run(hook, spare)
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.noise(ce.ID() + "-fallback-second-" + setHash(ce))
		s.publish(ce)
		pause(time.Minute)
		wantIDs(t, "the fallback", second.all(), ce)
		stop()
	})
}

// Nor does it hide that somebody muted a sink. Each of two relays says so, and one message of that stays.
func TestNoiseHidesNoMute(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		record := newRecorder()
		all := with(route("record", record), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll })
		r, stop := s.run(all, route("hook", newRecorder()))
		pause(5 * time.Second)
		m, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		ended := m
		s.noise(fmt.Sprintf("dev.forewarn.bridge.sink.unmuted.%s.%d", ended.ID, ended.Until.Unix()))
		pause(2 * time.Minute)
		said := slices.DeleteFunc(record.all(), func(id string) bool { return !strings.Contains(id, "muted-") })
		if len(said) != 2 || !strings.Contains(said[0], "-sink-muted-") || !strings.Contains(said[1], "-sink-unmuted-") {
			t.Errorf("%q are on record, want the mute and its end", said)
		}
		stop()
	})
}

// A replay reaches its sink, although another publisher used its id before.
func TestNoiseHidesNoReplay(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		r, stop := s.run(route("hook", hook))
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(10 * time.Second)
		s.noise(ce.ID() + "-replay-run-1-" + setHash(ce))
		for range 2 { // a part is asked for again when its answer is lost: it is replayed once in a run
			part, err := r.ReplayPast(t.Context(), relay.ReplayRequest{Sink: "hook", Run: "run-1"})
			if err != nil || len(part.Replayed) != 1 {
				t.Errorf("ReplayPast = %+v, %v", part, err)
			}
		}
		pause(10 * time.Second)
		wantIDs(t, "the sink", hook.all(), ce, ce)
		stop()
	})
}
