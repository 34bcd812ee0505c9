package relay_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// What can't be handed to a fallback, because the stream doesn't take it, is handed over later, also if the sink has
// rejected it meanwhile.
func TestWhatIsRejectedReachesItsFallbackLater(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		first, second := newRecorder(), newRecorder()
		first.answer = fails(errRefused)
		hook := with(route("hook", first), func(terms *bridge.Terms) {
			terms.Fallback = delivery.Fallback{Sink: "second", After: 5 * time.Minute}
		})
		spare := route("second", second)
		spare.Filter.Only.Types = []string{"Preempt"}
		stream, err := s.js.Stream(t.Context(), "FOREWARN")
		if err != nil {
			s.provision(relay.Retention{})
			stream, err = s.js.Stream(t.Context(), "FOREWARN")
		}
		if err != nil {
			t.Fatal(err)
		}
		whole := stream.CachedInfo().Config
		takes := func(c jetstream.StreamConfig) {
			if _, err := s.js.UpdateStream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		_, stop := s.run(hook, spare)
		narrow := whole
		narrow.Subjects = nil
		for _, subject := range whole.Subjects {
			if !strings.HasPrefix(subject, "forewarn.relay.") {
				narrow.Subjects = append(narrow.Subjects, subject)
			}
		}
		takes(narrow)
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(6 * time.Minute)
		first.say(fails(fmt.Errorf("%w: 400", delivery.ErrRejected)))
		pause(10 * time.Minute)
		wantIDs(t, "while the stream does not take it", second.all())
		takes(whole)
		pause(10 * time.Minute)
		wantIDs(t, "when it does", second.all(), ce)
		stop()
	})
}

// A CloudEvent in binary mode whose data is no JSON is delivered as a valid CloudEvent. One that says that its data is
// JSON, and isn't, is a dead letter.
func TestDataThatIsNoJSONIsDeliveredAsWhatItIs(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		var bodies []string
		sink.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
			body, err := json.Marshal(batch[0].Event)
			if err != nil {
				t.Error(err)
			}
			bodies = append(bodies, string(body))
			return delivery.Answer{}, nil
		}
		r, stop := s.run(with(route("hook", sink), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }))
		publish := func(id, content, data string) {
			h := nats.Header{}
			for name, v := range map[string]string{
				"ce-specversion": "1.0", "ce-id": id, "ce-source": "/other", "ce-type": "dev.forewarn.bridge.other",
				"ce-datacontenttype": content,
			} {
				h[name] = []string{v}
			}
			s.publishRaw("forewarn.events._._._.test."+id, h, []byte(data))
		}
		publish("text", "text/plain", "two\nlines")
		publish("bytes", "application/octet-stream", "\x00\xff")
		publish("xml", "application/xml", "<a/>")
		publish("wrong", "application/json", "{")
		publish("right", "application/json; charset=utf-8", `{"a":1}`)
		publish("none", "application/json", "")
		pause(5 * time.Second)
		got := map[string]string{}
		for _, body := range bodies {
			var ce event.Event
			if err := json.Unmarshal([]byte(body), &ce); err != nil {
				t.Errorf("%s is no CloudEvent: %v", body, err)
				continue
			}
			got[ce.ID()] = string(ce.Data())
		}
		want := map[string]string{"text": "two\nlines", "bytes": "\x00\xff", "xml": "<a/>", "right": `{"a":1}`, "none": ""}
		for id, data := range want {
			if was, told := got[id]; !told || was != data {
				t.Errorf("%s came with %q (%v), want %q", id, was, told, data)
			}
		}
		list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 10)
		if err != nil || len(list) != 1 || !strings.Contains(list[0].Error, "JSON") || len(got) != len(want) {
			t.Errorf("dead letters are %+v, %v; %d were told", list, err, len(got))
		}
		stop()
	})
}

// What the stream's limits deleted before a sink could get it is counted in the status.
func TestWhatTheStreamDeletedIsSaid(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		_, stop := s.run(route("hook", sink))
		s.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
		pause(10 * time.Second)
		stop()
		for n := range 5 {
			s.publish(eventNo(n+2).say(t, imds.Scheduled, "vm-1"))
		}
		stream, err := s.js.Stream(t.Context(), "FOREWARN")
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Purge(t.Context(), jetstream.WithPurgeKeep(2)); err != nil {
			t.Fatal(err)
		}
		r, stop := s.run(route("hook", sink))
		pause(10 * time.Second)
		warned := 0
		for _, w := range r.Status().Warnings {
			if strings.Contains(w, "3 messages") && strings.Contains(w, "hook") {
				warned++
			}
		}
		if warned != 1 || len(sink.all()) != 3 {
			t.Errorf("the warnings are %q, and the sink heard %q", r.Status().Warnings, sink.all())
		}
		stop()
	})
}

// So is what they deleted before the first message that a sink could take.
func TestWhatTheStreamDeletedBeforeAnythingWasToldIsSaid(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		_, stop := s.run(route("hook", sink))
		pause(10 * time.Second)
		stop()
		for n := range 5 {
			s.publish(eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		stream, err := s.js.Stream(t.Context(), "FOREWARN")
		if err == nil {
			err = stream.Purge(t.Context(), jetstream.WithPurgeKeep(2))
		}
		if err != nil {
			t.Fatal(err)
		}
		r, stop := s.run(route("hook", sink))
		pause(10 * time.Second)
		want := "deleted 3 messages that the sink hook may not have got"
		if got := r.Status().Warnings; !strings.Contains(strings.Join(got, "\n"), want) || len(sink.all()) != 2 {
			t.Errorf("the warnings are %q, and the sink heard %q; want %q", got, sink.all(), want)
		}
		stop()
	})
}

// So is what they deleted while too much was unsettled.
func TestWhatTheStreamDeletedWhileNothingWasReadIsSaid(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		sink.answer = fails(errRefused)
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}, MaxUnsettled: 3})
		pause(2 * time.Second)
		const changes, kept = 200, 2
		for n := range changes {
			s.publish(eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		pause(10 * time.Second)
		stream, err := s.js.Stream(t.Context(), "FOREWARN")
		if err == nil {
			err = stream.Purge(t.Context(), jetstream.WithPurgeKeep(kept))
		}
		if err != nil {
			t.Fatal(err)
		}
		sink.say(nil)
		pause(10 * time.Minute)
		letters, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, changes)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("deleted %d messages that the sink hook may not have got", changes-len(sink.all())-len(letters))
		if got := r.Status().Warnings; len(sink.all()) == changes || !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("the sink heard %d of %d, and the warnings are %q; want %q among them", len(sink.all()), changes, got, want)
		}
		stop()
	})
}

// A server that crashes may lose the stream's newest messages, and gives their numbers to the next ones. Those are told
// all the same, also when they are more than were lost, by the relay that ran and by one that starts later.
func TestWhatFollowsLostMessagesIsTold(t *testing.T) {
	for name, stops := range map[string]bool{"runs": false, "starts later": true} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				hook := newRecorder()
				r, stop := s.run(route("hook", hook))
				var all []event.Event
				say := func(changes int) {
					for range changes {
						ce := eventNo(len(all)).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
						all = append(all, ce)
						s.publish(ce)
					}
					pause(10 * time.Second)
				}
				say(1)
				s.crash("FOREWARN", func() {
					say(2)
					if stops {
						stop()
					}
				})
				pause(time.Second)
				say(3)
				if stops {
					r, stop = s.run(route("hook", hook))
				}
				pause(time.Minute)
				wantIDs(t, "told", sorted(hook.all()), all...)
				var open []string
				for _, e := range r.Status().Events {
					open = append(open, e.Known.ID+"-scheduled")
				}
				there := append(all[:1:1], all[3:]...) // what the stream has not lost
				wantIDs(t, "open", sorted(open), there...)
				stop()
			})
		})
	}
}

// So it is when the stream can be read again before the relay can ask what became of it.
func TestWhatFollowsLostMessagesIsToldWhenTheStreamTellsNothingOfItself(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, wire := newRecorder(), &cable{}
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, Connect: s.over(wire)})
		pause(2 * time.Second)
		var all []event.Event
		say := func() {
			ce := eventNo(len(all)).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
			all = append(all, ce)
			s.publish(ce)
			pause(10 * time.Second)
		}
		say()
		s.crash("FOREWARN", func() {
			say()
			wire.fail("STREAM.INFO.FOREWARN")
		})
		pause(time.Second)
		say()
		wire.fail("")
		pause(time.Minute)
		wantIDs(t, "told", hook.all(), all...)
		stop()
	})
}

// So it is for a sink that was new to the stream just then, whether it has got what was lost or not.
func TestWhatFollowsLostMessagesIsToldToANewSink(t *testing.T) {
	systemtest.Alone(t)
	for _, tt := range []struct {
		name       string
		answer     error
		lost, more int
	}{{"accepts", nil, 1, 3}, {"is down", errRefused, 1, 3}, {"is down, and more is lost", errRefused, 3, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				hook := newRecorder()
				say := func(n int, kind imds.ChangeKind) event.Event {
					ce := eventNo(n).in(24*time.Hour).say(t, kind, "vm-1")
					s.publish(ce)
					return ce
				}
				var stop func()
				var lost []string
				s.crash("FOREWARN", func() {
					for n := range tt.lost - 1 {
						say(n, imds.Vanished) // so that the sink is not told
					}
					lost = append(lost, say(tt.lost-1, imds.Scheduled).ID())
					hook.say(fails(tt.answer))
					_, stop = s.run(route("hook", hook))
					pause(10 * time.Second)
				})
				pause(time.Second)
				var all []event.Event
				for n := range tt.more {
					all = append(all, say(tt.lost+n, imds.Scheduled))
				}
				pause(time.Minute)
				hook.say(nil)
				pause(5 * time.Minute)
				told := slices.DeleteFunc(hook.all(), func(id string) bool { return slices.Contains(lost, id) })
				wantIDs(t, "told", sorted(told), all...)
				stop()
			})
		})
	}
}

// What waited for long when a server lost messages is told all the same, also beside an event that is still open.
func TestWhatWaitedBeforeMessagesWereLostIsTold(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(errRefused)
		_, stop := s.run(route("hook", hook))
		over := eventNo(1)
		waiting := []event.Event{
			over.say(t, imds.Scheduled, "vm-1"), over.say(t, imds.Vanished, "vm-1"),
			eventNo(3).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"),
		}
		s.publish(waiting...)
		pause(65 * time.Minute) // longer than what is read again after a loss
		s.crash("FOREWARN", func() {
			s.publish(eventNo(2).say(t, imds.Scheduled, "vm-1"))
			pause(10 * time.Second)
		})
		pause(time.Minute)
		hook.say(nil)
		pause(10 * time.Minute)
		wantIDs(t, "told", sorted(hook.all()), waiting...)
		stop()
	})
}

// A sink that was new to the stream gets all that comes after the loss of what was open then, also if the relay stood
// still meanwhile and as much has come as was lost.
func TestWhatFollowsLostMessagesIsToldToASinkThatWaited(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(errRefused)
		say := func(n int, kind imds.ChangeKind) event.Event {
			ce := eventNo(n).in(24*time.Hour).say(t, kind, "vm-1")
			s.publish(ce)
			return ce
		}
		s.crash("FOREWARN", func() {
			say(0, imds.Vanished)
			say(1, imds.Vanished)
			say(2, imds.Scheduled)
			_, stop := s.run(route("hook", hook))
			pause(10 * time.Second)
			stop()
		})
		pause(time.Second)
		var all []event.Event
		for n := range 3 {
			all = append(all, say(3+n, imds.Scheduled))
		}
		hook.say(nil)
		_, stop := s.run(route("hook", hook))
		pause(5 * time.Minute)
		wantIDs(t, "told", sorted(hook.all()), all...)
		stop()
	})
}

// The state of a sink names only open events that may still have to be told, each once, so that it doesn't grow with each
// loss. What waits is told all the same.
func TestTheStateOfASinkDoesNotGrowWithEachLoss(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		open := func() (numbers []uint64) {
			kv, err := s.js.KeyValue(t.Context(), "FOREWARN_records")
			if err != nil {
				t.Fatal(err)
			}
			e, err := kv.Get(t.Context(), "sink.hook")
			if err != nil {
				t.Fatal(err)
			}
			var state struct {
				Open []uint64 `json:"open"`
			}
			if err := json.Unmarshal(e.Value(), &state); err != nil {
				t.Fatal(err)
			}
			return state.Open
		}
		var all []event.Event
		say := func() {
			all = append(all, eventNo(len(all)).in(240*time.Hour).say(t, imds.Scheduled, "vm-1"))
			s.publish(all[len(all)-1])
		}
		hook := newRecorder()
		hook.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
			if batch[0].Event.ID() == all[1].ID() {
				return delivery.Answer{}, errRefused
			}
			return delivery.Answer{}, nil
		}
		for range 3 {
			say()
		}
		_, stop := s.run(route("hook", hook)) // one is settled, one waits, and one is behind it
		for n := range 3 {
			pause(65 * time.Minute) // longer than what is read again after a loss
			if got, want := open(), []uint64{2, 3}; !slices.Equal(got, want) {
				t.Errorf("after %d losses the state names %d, want %d", n, got, want)
			}
			s.crash("FOREWARN", func() {
				s.publish(eventNo(100+n).say(t, imds.Vanished, "vm-1"))
				pause(10 * time.Second)
			})
			pause(time.Minute)
			say()
		}
		hook.say(nil)
		pause(10 * time.Minute)
		told := slices.DeleteFunc(hook.all(), func(id string) bool { return strings.HasSuffix(id, "vanished") })
		wantIDs(t, "told", sorted(told), all...)
		if got := open(); len(got) > 0 {
			t.Errorf("when all is told the state names %d, want none", got)
		}
		stop()
	})
}

// crash restarts the server, which loses what a stream takes while f runs.
func (s *stage) crash(stream string, f func()) {
	s.Helper()
	dir, kept := filepath.Join(s.server.dir, "jetstream", "$G", "streams", stream), s.TempDir()
	s.server.off()
	err := os.CopyFS(kept, os.DirFS(dir))
	s.server.on()
	pause(10 * time.Second)
	f()
	s.server.off()
	err = errors.Join(err, os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(kept)))
	s.server.on()
	if err != nil {
		s.Fatal(err)
	}
}
