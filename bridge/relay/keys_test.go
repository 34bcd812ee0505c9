package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// A dead letter's key names its CloudEvent. A stream that was made again, or lost messages, gives its number to another
// message: the letters of both can be shown, replayed and dropped.
func TestADeadLetterTakesThePlaceOfNoOther(t *testing.T) {
	for name, renumber := range map[string]func(s *stage, reject func(n int)){
		"made again": func(s *stage, reject func(n int)) {
			reject(1)
			s.remake("FOREWARN")
			reject(2)
		},
		"lost messages": func(s *stage, reject func(n int)) {
			s.crash("FOREWARN", func() { reject(1) })
			pause(time.Minute)
			reject(2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				sink.answer = fails(fmt.Errorf("no: %w", delivery.ErrRejected))
				r, stop := s.run(route("hook", sink))
				said := map[int]event.Event{}
				renumber(s, func(n int) {
					said[n] = eventNo(n).say(t, imds.Scheduled, "vm-1")
					s.publish(said[n])
					pause(time.Minute)
				})
				one, two := keyOf("hook", said[1]), keyOf("hook", said[2])
				if dead := keys(t, r, "hook"); !slices.Equal(dead, []string{one, two}) {
					t.Fatalf("dead letters %q, want %s and %s", dead, one, two)
				}
				if e, err := r.Show(t.Context(), two); err != nil || e.ID != said[2].ID() {
					t.Errorf("Show = %s, %v; want %s", e.ID, err, said[2].ID())
				}
				if dropped, err := r.Drop(t.Context(), []string{one}, "alice"); err != nil || dropped[0].ID != said[1].ID() {
					t.Errorf("Drop = %v, %v; want %s", dropped, err, said[1].ID())
				}
				sink.say(nil)
				if _, err := r.Replay(t.Context(), []string{two}, "", "alice"); err != nil {
					t.Error(err)
				}
				pause(time.Minute)
				wantIDs(t, "told", sink.all(), said[2])
				if left := keys(t, r, "hook"); len(left) > 0 {
					t.Errorf("left are %q, want none", left)
				}
				stop()
			})
		})
	}
}

// A CloudEvent has one dead letter for a sink, however often it is given up: when it is replayed, the sink gets it once.
func TestACloudEventHasOneDeadLetter(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		sink.answer = fails(fmt.Errorf("no: %w", delivery.ErrRejected))
		r, stop := s.run(route("hook", sink))
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(time.Minute)
		for n := range 3 {
			past := relay.ReplayRequest{Sink: "hook", By: "bob", Run: fmt.Sprint(n)}
			if part, err := r.ReplayPast(t.Context(), past); err != nil || len(part.Replayed) != 1 {
				t.Errorf("ReplayPast = %+v, %v", part, err)
			}
			pause(time.Minute)
		}
		dead := keys(t, r, "hook")
		if !slices.Equal(dead, []string{keyOf("hook", ce)}) || len(sink.attempts()) != 4 {
			t.Errorf("after %d attempts the dead letters are %q, want one after 4", len(sink.attempts()), dead)
		}
		sink.say(nil)
		if _, err := r.Replay(t.Context(), dead, "", "alice"); err != nil {
			t.Error(err)
		}
		pause(time.Minute)
		wantIDs(t, "told", sink.all(), ce)
		stop()
	})
}

// Whoever publishes chooses the ids. However many events have a change of the same one, each has a dead letter of its own,
// and none of them takes long: what follows is told in time.
func TestManyEventsWithOneIDHoldNothingUp(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink, wire := newRecorder(), &cable{}
		sink.answer = fails(fmt.Errorf("no: %w", delivery.ErrRejected))
		hook := with(route("hook", sink), func(terms *bridge.Terms) { terms.Late = delivery.LateDrop })
		r, stop := s.start(relay.Options{Routes: []bridge.Route{hook}, Connect: s.over(wire)})
		pause(2 * time.Second)
		const events = 60
		same := func(n int) event.Event {
			ce := eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
			ce.SetID("same")
			return ce
		}
		for n := range events {
			s.publish(same(n))
		}
		pause(time.Minute)
		sink.say(nil)
		wire.slow(100 * time.Millisecond)
		late := same(events)
		pause(time.Minute)
		begun := eventNo(events).say(t, imds.Started, "vm-2")
		s.publish(begun)
		pause(10 * time.Second)
		next := eventNo(events+1).in(5*time.Minute).say(t, imds.Scheduled, "vm-1")
		s.publish(late, next)
		pause(10 * time.Second)
		wantIDs(t, "told", sink.all(), begun, next)
		if dead := keys(t, r, "hook"); len(slices.Compact(sorted(dead))) != events+1 {
			t.Errorf("the dead letters are %q, want one of each of %d events", dead, events+1)
		}
		stop()
	})
}

// remake deletes a stream and makes it again.
func (s *stage) remake(name string) {
	s.Helper()
	if err := s.js.DeleteStream(s.Context(), name); err != nil {
		s.Fatal(err)
	}
	s.provision(relay.Retention{})
	pause(time.Minute)
}

// After the stream was made again, a replay may have the number of an earlier one. It isn't taken for that.
func TestAReplayIsNotTakenForAnEarlierOne(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		sink.answer = fails(fmt.Errorf("no: %w", delivery.ErrRejected))
		r, stop := s.run(route("hook", sink))
		one, two := eventNo(1).say(t, imds.Scheduled, "vm-1"), eventNo(2).say(t, imds.Scheduled, "vm-1")
		s.publish(one)
		pause(time.Minute)
		if _, err := r.Replay(t.Context(), []string{keyOf("hook", one)}, "", "alice"); err != nil {
			t.Fatal(err)
		}
		pause(time.Minute)
		s.remake("FOREWARN")
		sink.say(nil)
		s.publish(two)
		pause(time.Minute)
		if _, err := r.Replay(t.Context(), keys(t, r, "hook"), "", "alice"); err != nil {
			t.Fatal(err)
		}
		pause(time.Minute)
		wantIDs(t, "told", sink.all(), two, one)
		stop()
	})
}

// Nor is the replay of a dead letter that has the number of an earlier one, because the stream of dead letters was made
// again.
func TestAReplayFromAnotherStreamOfDeadLettersIsTold(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		rejects := fails(fmt.Errorf("no: %w", delivery.ErrRejected))
		sink.answer = rejects
		r, stop := s.run(route("hook", sink))
		one := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(one)
		pause(time.Minute)
		sink.say(fails(errRefused))
		if _, err := r.Replay(t.Context(), []string{keyOf("hook", one)}, "", "alice"); err != nil {
			t.Fatal(err)
		}
		s.remake("FOREWARN_dead")
		sink.say(rejects)
		pause(10 * time.Minute)
		sink.say(nil)
		if _, err := r.Replay(t.Context(), keys(t, r, "hook"), "", "alice"); err != nil {
			t.Fatal(err)
		}
		pause(time.Minute)
		wantIDs(t, "told", sink.all(), one)
		stop()
	})
}

// A dead letter has a key whatever its sink and its CloudEvent are called.
func TestADeadLetterOfAnOddSinkHasAKey(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		names := []string{"a/1", "a", "a.b c", "a-2", "é/", strings.Repeat("x", 300)}
		var routes []bridge.Route
		for _, name := range names {
			sink := newRecorder()
			sink.answer = fails(fmt.Errorf("no: %w", delivery.ErrRejected))
			routes = append(routes, route(name, sink))
		}
		r, stop := s.run(routes...)
		for n, id := range []string{"x", "x-2", "é/*.>", strings.Repeat("x", 300)} {
			ce := eventNo(n+1).say(t, imds.Scheduled, "vm-1")
			ce.SetID(id)
			body, err := ce.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			s.publishRaw("forewarn.events."+cloudevent.PlaceOf(ce).String()+".test.x", nats.Header{"Content-Type": {"application/cloudevents+json"}}, body)
		}
		pause(time.Minute)
		for _, name := range names {
			got := keys(t, r, name)
			if len(got) != 4 || got[0] != name+"/x" || got[1] != name+"/x-2" || got[2] != name+"/=C3=A9=2F=2A=2E=3E" {
				t.Errorf("%.20q has %.100q, want four, such as /x", name, got)
			}
			for _, key := range got {
				if e, err := r.Show(t.Context(), key); err != nil || e.Key != key {
					t.Errorf("Show(%.40q) = %.40q, %v", key, e.Key, err)
				}
			}
			if dropped, err := r.Drop(t.Context(), got, "alice"); err != nil || len(dropped) != 4 {
				t.Errorf("Drop = %v, %v", dropped, err)
			}
		}
		stop()
	})
}

// And it is a new attempt: neither the number of those of the earlier one nor whom that reached is its own.
func TestAReplayBeginsAnewWithANumberThatCameBefore(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		sink.answer = fails(fmt.Errorf("no: %w", delivery.ErrRejected))
		r, stop := s.run(route("hook", sink))
		one := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(one)
		pause(time.Minute)
		sink.say(func([]delivery.Delivery) (delivery.Answer, error) {
			return delivery.Answer{Progress: []byte("alice has it")}, errRefused
		})
		if _, err := r.Replay(t.Context(), []string{keyOf("hook", one)}, "", "alice"); err != nil {
			t.Fatal(err)
		}
		pause(10 * time.Minute)
		s.remake("FOREWARN")
		var got []delivery.Delivery
		sink.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			got = append(got, batch...)
			return delivery.Answer{}, nil
		})
		s.publish(one)
		pause(time.Minute)
		again := relay.ReplayRequest{Sink: "hook", Since: time.Now().Add(-2 * time.Minute), By: "bob", Run: "r"}
		if _, err := r.ReplayPast(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		pause(time.Minute)
		if len(got) != 1 || got[0].Attempt != 1 || got[0].Progress != nil {
			t.Errorf("told %+v, want one delivery, at its first attempt, without progress", got)
		}
		stop()
	})
}
