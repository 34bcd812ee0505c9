package relay_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
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

// These tests are about what others write into the stream and the buckets.

// put writes a value into a bucket, as somebody who is no relay.
func (s *stage) put(bucket, key, value string) {
	s.Helper()
	kv, err := s.js.KeyValue(s.Context(), bucket)
	if err == nil {
		_, err = kv.Put(s.Context(), key, []byte(value))
	}
	if err != nil {
		s.Fatal(err)
	}
}

// Values that no relay can read stop nothing: a lease is nobody's then, a record counts as nothing, and so do mutes.
func TestUnreadableValuesCountAsNothing(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		known, blank := eventNo(1), eventNo(2)
		s.put("FOREWARN_leases", "lease.hook", "{")
		s.put("FOREWARN_records", "mutes", "{")
		s.put("FOREWARN_records", "record.hook."+known.id+"._.web.vm-1", "[1]")
		s.put("FOREWARN_records", "record.hook."+blank.id+"._.web.vm-2", "")
		sink := newRecorder()
		r, stop := s.run(route("hook", sink))
		one, two := known.say(t, imds.Scheduled, "vm-1"), blank.say(t, imds.Scheduled, "vm-1")
		s.publish(one, two)
		pause(5 * time.Second)
		wantIDs(t, "told", sorted(sink.all()), one, two)

		m, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		s.put("FOREWARN_records", "mutes", "{")
		pause(time.Second)
		three := known.say(t, imds.Started, "vm-1")
		s.publish(three)
		pause(5 * time.Second)
		if st := r.Status(); len(st.Mutes) != 1 || st.Mutes[0].ID != m.ID || len(sink.all()) != 2 {
			t.Errorf("what was muted isn't after somebody wrote junk: %+v, and the sink heard %q", st.Mutes, sink.all())
		}
		stop()
	})
}

// A state of a sink that can't be read is said, and nothing is told until somebody has deleted it: the relay
// can't know how far the sink has come. A deleted lease is nobody's.
func TestAnUnreadableStateIsSaid(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.put("FOREWARN_records", "sink.hook", "{")
		sink := newRecorder()
		r, stop := s.run(route("hook", sink))
		st, want := r.Status(), "the sink hook is not served: unreadable: sink.hook"
		if st.Ready || len(st.Reasons) != 1 || !strings.HasPrefix(st.Reasons[0], want) || !slices.Equal(r.Reasons(), st.Reasons) {
			t.Errorf("it is ready %v, because of %q", st.Ready, st.Reasons)
		}
		kv, err := s.js.KeyValue(t.Context(), "FOREWARN_records")
		if err == nil {
			err = kv.Delete(t.Context(), "sink.hook")
		}
		leases, other := s.js.KeyValue(t.Context(), "FOREWARN_leases")
		if other == nil {
			other = leases.Delete(t.Context(), "lease.hook")
		}
		if err := errors.Join(err, other); err != nil {
			t.Fatal(err)
		}
		pause(5 * time.Second)
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(5 * time.Second)
		wantIDs(t, "told", sink.all(), ce)
		if st := r.Status(); !st.Ready {
			t.Errorf("it isn't ready, because of %q", st.Reasons)
		}
		stop()
	})
}

// That a sink is not served is said once, however often the relay takes the lease in vain, and stays in the status
// until a relay serves it.
func TestThatASinkIsNotServedIsSaidOnce(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.put("FOREWARN_records", "sink.hook", "{")
		log, routes := &systemtest.Log{}, []bridge.Route{route("hook", newRecorder())}
		r, stop := s.start(relay.Options{Routes: routes, Log: log.Logger()})
		pause(2 * time.Second)
		for range 100 {
			pause(100 * time.Millisecond)
			if r.Status().Ready {
				t.Fatal("it is ready, without the sink")
			}
		}
		if n := log.Count("this sink is not served"); n != 1 {
			t.Errorf("it is logged %d times, want once", n)
		}
		s.put("FOREWARN_leases", "lease.hook", `{"relay":"other","id":"x"}`)
		pause(3 * time.Second)
		if st := r.Status(); !st.Ready {
			t.Errorf("while another relay serves the sink it isn't ready, because of %q", st.Reasons)
		}
		stop()
	})
}

// A relay that finds that somebody else wrote what only the holder of the lease writes stops serving the sink, takes
// what is there as it is, and tells each change once, or twice if the record of it was overwritten.
func TestARelayThatWasOvertakenBeginsAnew(t *testing.T) {
	a := eventNo(1)
	for name, overtake := range map[string]func(*stage){
		"lease": func(s *stage) { s.put("FOREWARN_leases", "lease.hook", `{"relay":"stranger","id":"x"}`) },
		"state": func(s *stage) {
			kv, err := s.js.KeyValue(s.Context(), "FOREWARN_records")
			if err != nil {
				s.Fatal(err)
			}
			e, err := kv.Get(s.Context(), "sink.hook")
			if err != nil {
				s.Fatal(err)
			}
			s.put("FOREWARN_records", "sink.hook", string(e.Value())+" ")
		},
		"record": func(s *stage) { s.put("FOREWARN_records", "record.hook."+a.id+"._.web.vm-1", `{"matched":true}`) },
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				_, stop := s.run(route("hook", sink))
				first, second, third := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1"),
					a.say(t, imds.Vanished, "vm-1")
				s.publish(first)
				pause(5 * time.Second)
				overtake(s)
				s.publish(second)
				pause(20 * time.Second)
				s.publish(third)
				pause(20 * time.Second)
				got := sink.all()
				if name == "record" { // what became of the second could not be written, so it is told again
					got = slices.Compact(got)
				}
				wantIDs(t, "told", got, first, second, third)
				stop()
			})
		})
	}
}

// What a server or a client makes of a CloudEvent that is none of ours is read as the binding has it, or becomes a dead
// letter that says why. Nothing stops the sink.
func TestStrangeMessages(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		got := map[string]event.Event{}
		sink.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
			got[batch[0].Event.ID()] = batch[0].Event
			return delivery.Answer{}, nil
		}
		r, stop := s.run(with(route("hook", sink), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }))
		publish := func(subject, id string, extra map[string]string) {
			h := nats.Header{
				"ce-specversion": {"1.0"}, "ce-id": {id}, "ce-source": {"/other"}, "ce-type": {"dev.forewarn.bridge.other"},
			}
			for name, value := range extra {
				h[name] = []string{value}
			}
			s.publishRaw(subject, h, nil)
		}
		long := strings.Repeat("long", 100)
		publish("forewarn.events._._._.1", `"quoted"`, nil)
		publish("forewarn.events._._._.2", "words", map[string]string{"ce-severitynumber": "grave"})
		publish("forewarn.events._._._.3", long, nil)
		publish("forewarn.events._._._.4", "with%20space*and.dots", nil)
		publish("forewarn.relay.hook.5", "instead", map[string]string{
			"Forewarn-Fallback-For": "pager", "Forewarn-Fallback-Error": "%zz",
		})
		publish("forewarn.relay.=zz.6", "for nobody", nil)
		for n, bad := range []map[string]string{
			{"ce-x": "%FF"}, {"ce-time": "noon"}, {"ce-specversion": "9"}, {"ce-dataschema": "%20:"},
		} {
			publish(fmt.Sprintf("forewarn.events.bad.%d", n), "bad", bad)
		}
		s.publishRaw("forewarn.events.bad.batch", nats.Header{"Content-Type": {"application/cloudevents-batch+json"}},
			[]byte("[]"))
		pause(5 * time.Second)
		for _, id := range []string{"quoted", "words", long, "with space*and.dots", "instead"} {
			if ce, told := got[id]; !told || ce.Source() != "/other" {
				t.Errorf("%.40s was not told", id)
			}
		}
		if v := got["words"].Extensions()["severitynumber"]; v != "grave" {
			t.Errorf("a severity that is no number came as %v", v)
		}
		if len(got) != 5 {
			t.Errorf("%d are told, want 5", len(got))
		}
		list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 100)
		if err != nil || len(list) != 5 {
			t.Errorf("%d dead letters, %v; want 5", len(list), err)
		}
		for _, e := range list {
			if e.Sink != "-" || e.Reason != delivery.ReasonLost || !strings.Contains(e.Error, "can't be accepted: ") {
				t.Errorf("a dead letter is %+v", e)
			}
		}
		n := len(got)
		stop()
		_, stop = s.run(with(route("hook", sink), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }))
		pause(5 * time.Second)
		if len(sink.all()) != n {
			t.Errorf("after a restart the sink has heard %d, want %d", len(sink.all()), n)
		}
		stop()
	})
}

// Messages with headers that NATS servers use themselves stop nothing: each is a dead letter, or what it says, and what
// follows is told, also by a relay that takes over, and to a sink that is new to the stream.
func TestHeadersOfTheServersStopNothing(t *testing.T) {
	systemtest.Alone(t)
	for _, status := range []string{"100", "400", "404", "408", "409", "503"} {
		t.Run(status, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				_, stop := s.run(route("hook", sink))
				var r *relay.Relay
				var all []event.Event
				say := func() {
					ce := eventNo(len(all)).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
					all = append(all, ce)
					s.publish(ce)
				}
				junk := func() {
					s.publishRaw("forewarn.events.junk", nats.Header{"Status": {status}, "Description": {"x"}}, nil)
				}
				say()
				junk()
				pause(time.Millisecond) // the same message at the same time would be the same dead letter
				junk()
				say()
				pause(time.Minute)
				wantIDs(t, "told", sink.all(), all...)
				junk()
				pause(time.Minute)
				stop()
				spare := newRecorder()
				r, stop = s.run(route("hook", sink), route("spare", spare))
				pause(time.Minute)
				say()
				pause(time.Minute)
				wantIDs(t, "told after a restart", sink.all(), all...)
				wantIDs(t, "told to a new sink", sorted(spare.all()), all...)
				list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 10)
				if err != nil || len(list) != 3 {
					t.Errorf("%d dead letters, %v; want one of each message", len(list), err)
				}
				stop()
			})
		})
	}
	t.Run("what a direct answer has", func(t *testing.T) {
		onStage(t, func(t *testing.T, s *stage) {
			sink := newRecorder()
			_, stop := s.run(route("hook", sink))
			ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
			body, err := ce.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			s.publishRaw(ownSubject(ce), nats.Header{"Content-Type": {"application/cloudevents+json"},
				"Nats-Time-Stamp": {"noon"}, "Nats-Sequence": {"99999999"}, "Nats-Subject": {"x"}, "Nats-Stream": {"x"}}, body)
			pause(time.Minute)
			stop()
			spare := newRecorder()
			_, stop = s.run(route("hook", sink), route("spare", spare))
			pause(time.Minute)
			second := eventNo(2).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
			s.publish(second)
			pause(time.Minute)
			wantIDs(t, "told", sink.all(), ce, second)
			wantIDs(t, "told to a new sink", spare.all(), ce, second)
			stop()
		})
	})
}

// A CloudEvent with an overlong id, type, source or subject is a dead letter, because no record could hold it, and the
// next one is told.
func TestAnOverlongNameStopsNothing(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r, stop := s.run(with(route("hook", sink), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }))
		long := strings.Repeat("<", 200_000)
		overlong := []string{
			"id:" + long, "type:dev.forewarn.bridge." + long, "source:/" + strings.Repeat("x", 5000), "subject:" + long,
			"azeventtype:" + long,
		}
		for n, attribute := range overlong {
			name, value, _ := strings.Cut(attribute, ":")
			ce := map[string]any{"specversion": "1.0", "id": "1", "type": "dev.forewarn.scheduledevent.scheduled.v1", "source": "/x"}
			ce[name] = value
			body := &bytes.Buffer{}
			e := json.NewEncoder(body)
			e.SetEscapeHTML(false)
			if err := e.Encode(ce); err != nil {
				t.Fatal(err)
			}
			s.publishRaw(fmt.Sprint("forewarn.events.", n), nats.Header{"Content-Type": {"application/cloudevents+json"}},
				body.Bytes())
		}
		next := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(next)
		pause(time.Minute)
		wantIDs(t, "told", sink.all(), next)
		if st := r.Status(); !st.Ready || st.Sinks[0].Pending != 0 {
			t.Errorf("ready %v because of %q, pending %d", st.Ready, st.Reasons, st.Sinks[0].Pending)
		}
		list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 10)
		if err != nil || len(list) != len(overlong) {
			t.Fatalf("%d dead letters, %v; want %d", len(list), err, len(overlong))
		}
		for _, e := range list {
			if len(e.Error) > 1000 || !strings.Contains(e.Error, "bytes long; at most 4096 are allowed") {
				t.Errorf("a dead letter says %q", e.Error)
			}
		}
		stop()
	})
}

// Of many deliveries that wait, most are read from the stream again when their turn comes. What the stream deleted
// meanwhile is a dead letter that says so.
func TestWhatIsDeletedWhileItWaitsIsADeadLetter(t *testing.T) {
	systemtest.Alone(t)
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		const messages = 80 // more bytes than are kept in memory, so that the last is read again
		sink := newRecorder()
		sink.answer = fails(errRefused)
		r, stop := s.run(with(route("hook", sink), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }))
		filler := []byte(strconv.Quote(strings.Repeat("x", 900*1024)))
		for n := range messages {
			h := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {fmt.Sprint(n)}, "ce-source": {"/other"},
				"ce-type": {"dev.forewarn.bridge.other"}, "Content-Type": {"application/json"}}
			if _, err := s.js.PublishMsgAsync(&nats.Msg{Subject: "forewarn.events._._._.x", Header: h, Data: filler}); err != nil {
				t.Fatal(err)
			}
		}
		<-s.js.PublishAsyncComplete()
		pause(5 * time.Second)
		if n := r.Status().Sinks[0].Pending; n != messages {
			t.Fatalf("%d are pending, want %d", n, messages)
		}
		stream, err := s.js.Stream(t.Context(), "FOREWARN")
		if err == nil {
			err = stream.DeleteMsg(t.Context(), messages)
		}
		if err != nil {
			t.Fatal(err)
		}
		sink.say(nil)
		pause(10 * time.Minute)
		if st := r.Status(); st.Sinks[0].Pending != 0 || len(sink.all()) != messages-1 {
			t.Errorf("%d are pending, %d were told; want %d", st.Sinks[0].Pending, len(sink.all()), messages-1)
		}
		list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 10)
		if err != nil || len(list) != 1 || list[0].Seq != messages || list[0].Reason != delivery.ReasonLost {
			t.Fatalf("dead letters are %+v, %v; want message %d", list, err, messages)
		}
		if e, err := r.Show(t.Context(), list[0].Key); err != nil || e.CloudEvent != nil {
			t.Errorf("it is shown with %s, %v; want no CloudEvent", e.CloudEvent, err)
		}
		stop()
	})
}

// What was open when a sink was new, and is deleted before a relay reads it, holds nothing up, and is said.
func TestAnOpenEventThatIsDeletedHoldsNothingUp(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		gone, there := eventNo(1), eventNo(2)
		left := there.say(t, imds.Scheduled, "vm-1")
		s.publish(gone.say(t, imds.Scheduled, "vm-1"), left)
		sink := newRecorder()
		sink.answer = fails(errRefused)
		_, stop := s.run(route("hook", sink))
		stop()
		stream, err := s.js.Stream(t.Context(), "FOREWARN")
		if err == nil {
			err = stream.DeleteMsg(t.Context(), 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		sink.say(nil)
		r, stop := s.run(route("hook", sink))
		pause(time.Minute)
		wantIDs(t, "told", sink.all(), left)
		if st := r.Status(); !st.Ready || st.Sinks[0].Pending != 0 ||
			!strings.Contains(strings.Join(st.Warnings, "\n"), "deleted 1 message that") {
			t.Errorf("ready %v because of %q, pending %d, warnings %q", st.Ready, st.Reasons, st.Sinks[0].Pending, st.Warnings)
		}
		stop()
	})
}

// closing is a sink that can be closed, which fails.
type closing struct {
	*recorder
	closed int
}

func (c *closing) Close() error {
	c.closed++
	return errors.New("closed by the other side")
}

// Sinks are closed once, when their settings go or the relay ends, also those that were never used.
func TestSinksAreClosedOnce(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		never := &closing{recorder: newRecorder()}
		unused := relay.New(relay.Options{Log: slog.New(slog.DiscardHandler), Routes: []bridge.Route{route("hook", never)}})
		unused.Reload(nil, bridge.SettingsInfo{})
		first, second := &closing{recorder: newRecorder()}, &closing{recorder: newRecorder()}
		r, stop := s.run(route("hook", first))
		r.Reload([]bridge.Route{route("other", second)}, bridge.SettingsInfo{Hash: "b"})
		pause(5 * time.Second)
		if !slices.Equal(r.Sinks(), []string{"other"}) || first.closed != 1 || second.closed != 0 {
			t.Errorf("the sinks are %q, closed %d and %d times; want the first alone", r.Sinks(), first.closed, second.closed)
		}
		stop()
		if never.closed != 1 || first.closed != 1 || second.closed != 1 {
			t.Errorf("closed %d, %d and %d times, want each once", never.closed, first.closed, second.closed)
		}
	})
}

// Relays whose settings differ say so of each other, and a relay says why newer settings were not taken.
func TestOtherSettingsAreSaid(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		one, stop := s.start(relay.Options{Name: "relay-1", Settings: bridge.SettingsInfo{Hash: "aaa"}})
		_, stopOther := s.start(relay.Options{Name: "relay-2", Settings: bridge.SettingsInfo{Hash: "bbb"}})
		pause(20 * time.Second)
		want := "relay relay-2 has other settings (bbb) than this one (aaa)"
		if got := one.Status().Warnings; !slices.Contains(got, want) {
			t.Errorf("the warnings are %q, want %q among them", got, want)
		}
		one.SettingsFailed(errors.New("line 3: unknown key"))
		if st := one.Status(); st.Settings.LastError != "line 3: unknown key" || one.Alive() != nil {
			t.Errorf("the settings are %+v, and it is alive: %v", st.Settings, one.Alive())
		}
		stop()
		stopOther()
	})
}

// A sink that refuses everything while an event is near makes the relay not ready.
func TestABlockedSinkWithAnEventThatIsNearIsAReason(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		sink.answer = fails(fmt.Errorf("%w: 401 Unauthorized", delivery.ErrBlocked))
		r, stop := s.run(route("hook", sink))
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		pause(5 * time.Second)
		if st := r.Status(); !st.Ready {
			t.Errorf("with a day left it isn't ready, because of %q", st.Reasons)
		}
		s.publish(eventNo(2).in(10*time.Minute).say(t, imds.Scheduled, "vm-1"))
		pause(5 * time.Second)
		if st := r.Status(); st.Ready || len(st.Reasons) != 1 || !strings.Contains(st.Reasons[0], "hook") {
			t.Errorf("with ten minutes left it is ready %v because of %q", st.Ready, st.Reasons)
		}
		stop()
	})
}

// When a relay ends a mute at the same time as somebody sets another, both count.
func TestMutesOfTwoRelaysAtATimeBothCount(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := route("hook", newRecorder())
		one, stop := s.start(relay.Options{Name: "relay-1", Routes: []bridge.Route{hook}})
		two, stopTwo := s.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{hook}})
		pause(5 * time.Second)
		answers := make(chan error)
		for n := range 5 {
			for _, r := range []*relay.Relay{one, two} {
				go func() {
					_, err := r.Mute(delivery.Mute{VM: fmt.Sprintf("%s-%d", r.Name, n), Reason: "repairs", By: "alice"}, time.Hour)
					answers <- err
				}()
			}
		}
		for range 10 {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		pause(time.Second)
		if a, b := len(one.Status().Mutes), len(two.Status().Mutes); a != 10 || b != 10 {
			t.Errorf("%d and %d mutes are in force, want 10", a, b)
		}
		if _, err := one.Mute(delivery.Mute{Sink: "hook"}, time.Hour); err == nil {
			t.Error("a mute without a reason is taken")
		}
		kv, err := s.js.KeyValue(t.Context(), "FOREWARN_records")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Get(t.Context(), "mutes"); errors.Is(err, jetstream.ErrKeyNotFound) {
			t.Error("the mutes are not in the bucket")
		}
		stop()
		stopTwo()
	})
}
