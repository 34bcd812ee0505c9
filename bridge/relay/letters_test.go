package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// keys returns those of the dead letters of a sink, the oldest first.
func keys(t *testing.T, r *relay.Relay, sink string) (all []string) {
	t.Helper()
	list, _, err := r.List(t.Context(), relay.Selection{State: "dead", Sink: sink}, 100)
	if err != nil {
		t.Error(err)
	}
	for _, e := range list {
		all = append(all, e.Key)
	}
	return all
}

// keyOf returns the key of what became of a CloudEvent for a sink.
func keyOf(sink string, ce event.Event) string { return sink + "/" + ce.ID() }

// pad makes a CloudEvent so large that the rest of a dead letter has no room beside it.
func pad(ce *event.Event) {
	ce.DataEncoded = slices.Concat(bytes.TrimSuffix(ce.DataEncoded, []byte("}")), []byte(`,"padding":"`),
		bytes.Repeat([]byte("x"), 1<<20-4<<10), []byte(`"}`))
}

// What was given up can be looked at, sent again to its sink or to another, and dropped, which stays on record.
func TestDeadLettersAreShownReplayedAndDropped(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, slow, spare, record := newRecorder(), newRecorder(), newRecorder(), newRecorder()
		hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		slow.answer = fails(errRefused)
		idle := route("spare", spare)
		idle.Filter.Only.Types = []string{"Freeze"} // so that it hears nothing by itself
		all := with(route("record", record), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll })
		r, stop := s.run(route("hook", hook), route("slow", slow), idle, all)
		var said []event.Event
		for n := range 3 {
			said = append(said, eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		large := eventNo(3).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		pad(&large)
		said = append(said, large)
		s.publish(said...)
		s.publishRaw("forewarn.events.junk", nil, []byte("junk"))
		pause(10 * time.Second)

		dead := keys(t, r, "hook")
		if len(dead) != 4 {
			t.Fatalf("dead letters are %q, want 4", dead)
		}
		for n, key := range dead {
			e, err := r.Show(t.Context(), key)
			if err != nil || e.State != "dead" || e.ID != said[n].ID() || !strings.Contains(string(e.CloudEvent), e.ID) {
				t.Errorf("Show(%s) = %s %s with %d bytes, %v; want %s with its CloudEvent", key, e.State, e.ID,
					len(e.CloudEvent), err, said[n].ID())
			}
		}
		waits := strings.Replace(dead[1], "hook", "slow", 1)
		if e, err := r.Show(t.Context(), waits); err != nil || e.State != "pending" || e.ID != said[1].ID() ||
			e.Bytes != len(e.CloudEvent) || e.Bytes == 0 {
			t.Errorf("Show(%s) = %s %s, %v; want %s pending with its CloudEvent", waits, e.State, e.ID, err, said[1].ID())
		}
		list, more, err := r.List(t.Context(), relay.Selection{Sink: "slow"}, 3)
		if err != nil || len(list) != 3 || more != 1 || list[1].Key != waits {
			t.Errorf("List = %+v and %d more, %v; want the first 3 in order and 1 more", list, more, err)
		}
		states := map[string]int{}
		histories, _, _ := r.Histories(t.Context(), bridge.Period{})
		for _, h := range histories {
			for _, d := range h.Changes[0].Deliveries {
				states[d.Route+" "+d.State]++
			}
		}
		if states["hook dead"] != 4 || states["slow pending"] != 4 {
			t.Errorf("the history says %v, want 4 dead and 4 pending", states)
		}

		for _, key := range []string{"hook", "hook/", "hook/x", "hook/*", "hook/>", `hook/x"`, "hook/a.b", dead[0] + "-2"} {
			_, shown := r.Show(t.Context(), key)
			_, replayed := r.Replay(t.Context(), []string{key}, "", "alice")
			for _, err := range []error{shown, replayed} {
				if !errors.Is(err, relay.ErrUnknownKey) {
					t.Errorf("%s: %v, want %v", key, err, relay.ErrUnknownKey)
				}
			}
		}
		junk := keys(t, r, "-")
		_, err = r.Replay(t.Context(), junk, "spare", "alice")
		if err == nil || !strings.Contains(err.Error(), "could not be accepted") {
			t.Errorf("what could not be accepted is replayed: %v", err)
		}
		if e, err := r.Show(t.Context(), junk[0]); err != nil || e.CloudEvent != nil ||
			!strings.Contains(e.Error, "can't be accepted") {
			t.Errorf("of what could not be accepted %+v, %v is shown", e, err)
		}

		hook.say(nil)
		if again, err := r.Replay(t.Context(), []string{dead[0], dead[3]}, "", "alice"); err != nil || len(again) != 2 {
			t.Errorf("Replay = %v, %v", again, err)
		}
		if again, err := r.Replay(t.Context(), dead[1:2], "spare", "alice"); err != nil || len(again) != 1 {
			t.Errorf("Replay = %v, %v", again, err)
		}
		dropped, err := r.Drop(t.Context(), append(dead[2:3:3], "hook/x", junk[0]), "alice")
		if !errors.Is(err, relay.ErrUnknownKey) || len(dropped) != 1 || dropped[0].ID != said[2].ID() {
			t.Errorf("Drop = %+v, %v; want the first, and that the second is unknown", dropped, err)
		}
		pause(10 * time.Second)
		wantIDs(t, "its own sink", hook.all(), said[0], large)
		wantIDs(t, "another sink", spare.all(), said[1])
		if left := keys(t, r, ""); !slices.Equal(left, junk) {
			t.Errorf("left are %q, want %q", left, junk)
		}
		if got := strings.Join(record.all(), " "); !strings.Contains(got, "delivery-dropped") {
			t.Errorf("on record is %s", got)
		}
		stop()
	})
}

// Who replayed a delivery stays with it while it is pending and when it is a dead letter again, and in the stream. A name
// too long for a dead letter is cut.
func TestWhoReplayedADeliveryStaysOnRecord(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		r, stop := s.run(route("hook", hook))
		began := time.Now()
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		pause(10 * time.Second)
		check := func(what, state, by string) {
			t.Helper()
			list, _, err := r.List(t.Context(), relay.Selection{State: state}, 100)
			if err != nil || len(list) != 1 || list[0].ReplayedBy != by {
				t.Fatalf("%s: %s are %d, %v; want one, replayed by %q", what, state, len(list), err, by)
			}
			shown, err := r.Show(t.Context(), list[0].Key)
			if err != nil || shown.State != state || shown.ReplayedBy != by {
				t.Errorf("%s: shown is %s, by %q, %v; want %s, replayed by %q", what, shown.State, shown.ReplayedBy, err, state, by)
			}
		}
		check("before", "dead", "")
		hook.say(fails(errRefused))
		if _, err := r.Replay(t.Context(), keys(t, r, "hook"), "", "root (ålice)"); err != nil {
			t.Fatal(err)
		}
		pause(10 * time.Second)
		check("replayed", "pending", "root (ålice)")
		hook.say(fails(fmt.Errorf("%w: 400", delivery.ErrRejected)))
		pause(10 * time.Minute)
		check("it fails again", "dead", "root (ålice)")
		if _, err := r.Drop(t.Context(), keys(t, r, "hook"), "root"); err != nil {
			t.Fatal(err)
		}
		long := strings.Repeat("b", 1000)
		p := relay.ReplayRequest{Sink: "hook", Since: began, By: long, Run: "one"}
		if _, err := r.ReplayPast(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		pause(time.Minute)
		check("the past is replayed", "dead", long[:200])
		stream, err := s.js.Stream(t.Context(), "FOREWARN")
		if err != nil {
			t.Fatal(err)
		}
		var by []string
		for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
			msg, err := stream.GetMsg(t.Context(), seq)
			if err != nil {
				t.Fatal(err)
			}
			if name := msg.Header.Get("Forewarn-Replayed-By"); name != "" {
				by = append(by, name)
			}
		}
		if want := []string{"root%20(%C3%A5lice)", long}; !slices.Equal(by, want) {
			t.Errorf("the stream says %q replayed, want %q", by, want)
		}
		stop()
	})
}

// When the newest dead letter is gone, the others are still listed, and the past of a stream whose newest message was
// deleted is still replayed.
func TestWhatIsLeftIsReadWhenTheNewestIsGone(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		r, stop := s.run(route("hook", hook))
		began := time.Now()
		first := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		for n := range 3 {
			s.publish(eventNo(n+1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
			pause(5 * time.Second)
		}
		dead := keys(t, r, "hook")
		if dropped, err := r.Drop(t.Context(), dead[1:], "alice"); err != nil || len(dropped) != 2 {
			t.Errorf("Drop = %v, %v", dropped, err)
		}
		if left := keys(t, r, "hook"); !slices.Equal(left, dead[:1]) {
			t.Errorf("left are %q, want %q", left, dead[:1])
		}
		stream, err := s.js.Stream(t.Context(), "FOREWARN")
		if err != nil {
			t.Fatal(err)
		}
		for seq := uint64(2); seq <= stream.CachedInfo().State.LastSeq; seq++ {
			if err := stream.DeleteMsg(t.Context(), seq); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		part, err := r.ReplayPast(ctx, relay.ReplayRequest{Sink: "hook", Since: began, Run: "one"})
		if err != nil || len(part.Replayed) != 1 || part.Replayed[0].ID != first.ID() {
			t.Errorf("ReplayPast = %+v, %v; want %s", part, err, first.ID())
		}
		last := stream.CachedInfo().State.LastSeq
		part, err = r.ReplayPast(ctx, relay.ReplayRequest{Sink: "hook", Since: began, After: last, Run: "one"})
		if err != nil || part.After != 0 || len(part.Replayed) > 0 {
			t.Errorf("after the last message ReplayPast = %+v, %v; want nothing more", part, err)
		}
		if _, err := r.ReplayPast(ctx, relay.ReplayRequest{Sink: "nobody", Since: began}); err == nil {
			t.Error("ReplayPast to a sink that there isn't = nil, want an error")
		}
		stop()
	})
}

// Before the stream of dead letters deletes the oldest, the log and the status say so, until there is room again.
func TestThatTheStreamOfDeadLettersIsFullIsSaid(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.change("FOREWARN_dead", func(c *jetstream.StreamConfig) { c.MaxMsgs = 2 })
		hook, log := newRecorder(), &systemtest.Log{}
		hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)},
			Log: log.Logger()})
		const warning = "the stream of dead letters is full"
		want := func(when string, warned bool, logged int) {
			t.Helper()
			pause(time.Minute)
			got := strings.Join(r.Status().Warnings, " ")
			if n := log.Count(warning); strings.Contains(got, warning) != warned || n != logged {
				t.Errorf("%s the warnings are %q, and it is logged %d times; want it in them %v, and %d", when, got, n, warned,
					logged)
			}
		}
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		want("with room", false, 0)
		s.publish(eventNo(2).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		want("without room", true, 1)
		if _, err := r.Drop(t.Context(), keys(t, r, "hook")[:1], "alice"); err != nil {
			t.Fatal(err)
		}
		want("with room again", false, 1)
		stop()
	})
}

// rejectsLarge runs a relay whose sink has refused a CloudEvent that a dead letter has no room for.
func (s *stage) rejectsLarge() (*relay.Relay, *recorder, func()) {
	hook := newRecorder()
	hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
	r, stop := s.run(route("hook", hook))
	large := eventNo(1).in(24*time.Hour).say(s.T, imds.Scheduled, "vm-1")
	pad(&large)
	s.publish(large)
	pause(5 * time.Second)
	return r, hook, stop
}

// A dead letter that had no room for its CloudEvent can't be replayed once the stream has deleted it: it stays.
func TestADeadLetterWithoutItsCloudEventStays(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		r, _, stop := s.rejectsLarge()
		stream, err := s.js.Stream(t.Context(), "FOREWARN")
		if err == nil {
			err = stream.Purge(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		dead := keys(t, r, "hook")
		if again, err := r.Replay(t.Context(), dead, "", "alice"); err == nil || len(again) != 0 {
			t.Errorf("Replay = %v, %v; want an error", again, err)
		}
		if e, err := r.Show(t.Context(), dead[0]); err != nil || e.CloudEvent != nil || e.Bytes < 1<<19 {
			t.Errorf("Show = %d bytes of %d, %v; want none, and how many there were", len(e.CloudEvent), e.Bytes, err)
		}
		if left := keys(t, r, "hook"); !slices.Equal(left, dead) {
			t.Errorf("left are %q, want %q", left, dead)
		}
		stop()
	})
}

// After the stream was made again, a dead letter without its CloudEvent isn't replayed or shown as the message that has
// its number now: it stays.
func TestADeadLetterIsNotReplayedAsAnotherMessage(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		r, hook, stop := s.rejectsLarge()
		dead := keys(t, r, "hook")
		hook.say(nil)
		if err := s.js.DeleteStream(t.Context(), "FOREWARN"); err != nil {
			t.Fatal(err)
		}
		s.provision(relay.Retention{})
		other := eventNo(2).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(other)
		pause(time.Minute)
		want := "message 1 of the stream is another CloudEvent now"
		if again, err := r.Replay(t.Context(), dead, "", "alice"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Replay = %v, %v; want the error %q", again, err, want)
		}
		if e, err := r.Show(t.Context(), dead[0]); err != nil || e.CloudEvent != nil {
			t.Errorf("Show = %.200s, %v; want no CloudEvent", e.CloudEvent, err)
		}
		pause(5 * time.Second)
		wantIDs(t, "told", hook.all(), other)
		if left := keys(t, r, "hook"); !slices.Equal(left, dead) {
			t.Errorf("left are %q, want %q", left, dead)
		}
		stop()
	})
}

// A relay without a connection says so to whoever asks something of it.
func TestARelayWithoutAConnectionSaysSo(t *testing.T) {
	r := relay.New(relay.Options{Stream: "FOREWARN", Routes: []bridge.Route{route("hook", newRecorder())}})
	ctx, one := t.Context(), []string{"hook/1"}
	_, _, list := r.List(ctx, relay.Selection{}, 10)
	_, show := r.Show(ctx, "hook/1")
	_, again := r.Replay(ctx, one, "", "alice")
	_, drop := r.Drop(ctx, one, "alice")
	_, past := r.ReplayPast(ctx, relay.ReplayRequest{Sink: "hook"})
	_, mute := r.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, time.Hour)
	_, unmute := r.Unmute(nil, true, "alice")
	for what, err := range map[string]error{
		"List": list, "Show": show, "Replay": again, "Drop": drop, "ReplayPast": past, "Mute": mute, "Unmute": unmute,
	} {
		if err == nil || !strings.Contains(err.Error(), "can't reach JetStream: not connected yet") {
			t.Errorf("%s: %v, want that it can't reach JetStream", what, err)
		}
	}
	if st := r.Status(); st.Ready || !slices.Equal(st.Reasons, []string{"not connected yet"}) {
		t.Errorf("ready is %v because of %q", st.Ready, st.Reasons)
	}
}

// A CloudEvent that is too large for a dead letter is given up all the same: the letter has all but the CloudEvent.
func TestADeadLetterThatWouldBeTooLargeLacksItsCloudEvent(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		sink.answer = fails(delivery.ErrRejected)
		r, stop := s.run(with(route("hook", sink), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }))
		// As JSON in JSON, each of these characters takes six bytes.
		s.publishRaw("forewarn.events._._._.x", nats.Header{"Content-Type": {"application/cloudevents+json"}},
			[]byte(`{"specversion":"1.0","id":"1","source":"/x","type":"dev.forewarn.bridge.other","data":"`+
				strings.Repeat("<", 300_000)+`"}`))
		pause(time.Minute)
		list, _, err := r.List(t.Context(), relay.Selection{}, 10)
		if err != nil || len(list) != 1 || list[0].State != "dead" {
			t.Fatalf("listed are %.500s, %v; want one dead letter", fmt.Sprintf("%+v", list), err)
		}
		if e, err := r.Show(t.Context(), list[0].Key); err != nil || e.CloudEvent == nil {
			t.Errorf("it is shown without its CloudEvent, which the stream has: %v", err)
		}
		stop()
	})
}

// A dead letter of a sink that is gone from the settings is replayed only to another one: nobody would read it.
func TestADeadLetterOfARemovedSinkStays(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, other := newRecorder(), newRecorder()
		hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		r, stop := s.run(route("hook", hook))
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(5 * time.Second)
		spare := route("other", other)
		spare.Filter.Only.Types = []string{"Preempt"}
		r.Reload([]bridge.Route{spare}, bridge.SettingsInfo{})
		pause(5 * time.Second)
		_, err := r.Replay(t.Context(), keys(t, r, "hook"), "", "alice")
		if left := keys(t, r, "hook"); err == nil || !strings.Contains(err.Error(), "--to") || len(left) != 1 {
			t.Errorf("Replay = %v, and %q are left; want an error that names --to, and the dead letter", err, left)
		}
		if _, err := r.Replay(t.Context(), keys(t, r, "hook"), "other", "alice"); err != nil {
			t.Error(err)
		}
		pause(5 * time.Second)
		wantIDs(t, "the other sink", other.all(), ce)
		stop()
	})
}

// A dead letter that is replayed while a newer change of its event waits comes after it in the stream. The newer one is
// told all the same.
func TestReplayOfAnOlderChangeTakesNoPlace(t *testing.T) {
	systemtest.Alone(t)
	for _, late := range []delivery.Late{delivery.LateLatest, delivery.LateDrop} {
		t.Run(string(late), func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				sink.answer = fails(delivery.ErrRejected)
				r, stop := s.run(with(route("hook", sink), func(t *bridge.Terms) { t.Late = late }))
				a := eventNo(1).in(10 * time.Minute)
				scheduled, started := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1")
				s.publish(scheduled)
				pause(time.Minute)
				sink.say(fails(errRefused))
				s.publish(started)
				pause(time.Minute)
				if _, err := r.Replay(t.Context(), keys(t, r, "hook"), "", "alice"); err != nil {
					t.Fatal(err)
				}
				pause(15 * time.Minute) // the time of the older one has passed
				sink.say(nil)
				pause(6 * time.Minute)
				wantIDs(t, "told", sink.all(), started, scheduled)
				if left, _, err := r.List(t.Context(), relay.Selection{}, 10); err != nil || len(left) > 0 {
					t.Errorf("left are %v, %v", left, err)
				}
				stop()
			})
		})
	}
}

// A list of dead letters keeps no CloudEvents in memory.
func TestAListOfDeadLettersIsSmall(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(fmt.Errorf("%w: 413", delivery.ErrRejected))
		r, stop := s.run(route("hook", hook))
		const letters = 100
		for n := range letters {
			ce := eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
			ce.DataEncoded = append(bytes.TrimSuffix(ce.DataEncoded, []byte("}")), fmt.Sprintf(`,"padding":"%0900000d"}`, 1)...)
			s.publish([]event.Event{ce}...)
		}
		pause(time.Minute)
		list, more, err := r.List(t.Context(), relay.Selection{State: "dead"}, 10)
		if err != nil || len(list) != 10 || more != letters-10 {
			t.Fatalf("%d letters and %d more, %v", len(list), more, err)
		}
		held := 0
		for _, e := range list[:cap(list)] {
			held += len(e.CloudEvent)
		}
		if held > 8<<20 {
			t.Errorf("a list of 10 letters keeps %d MiB", held>>20)
		}
		stop()
	})
}
