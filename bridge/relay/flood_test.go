package relay_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// These tests are about a set that publishes without end: whoever has its credentials takes nothing from the others.

// A flood of messages that can't be accepted takes the place of earlier ones of the same set, and of no other dead letter.
func TestAFloodOfInvalidMessagesPushesOutNoDeadLetter(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.change("FOREWARN_dead", func(c *jetstream.StreamConfig) { c.MaxMsgs = 500 })
		hook := newRecorder()
		hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		r, stop := s.run(route("hook", hook))
		defer stop()
		refused := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(refused)
		s.publishRaw("forewarn.events.sub.rg.db.1", nil, []byte("junk"))
		pause(time.Minute)
		others := keys(t, r, "")
		if len(others) != 2 {
			t.Fatalf("dead letters %q, want that of hook and that of db", others)
		}
		for n := range 600 {
			s.publishRaw(fmt.Sprint([]string{"forewarn.events", "forewarn.bridge"}[n%2], ".sub.rg.web.", n), nil, []byte("junk"))
		}
		pause(time.Minute)
		list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 1000)
		if err != nil || len(list) != len(others)+250 {
			t.Errorf("%d dead letters, %v; want 250 of web beside %q", len(list), err, others)
		}
		for _, key := range others {
			if !slices.ContainsFunc(list, func(e relay.Entry) bool { return e.Key == key }) {
				t.Errorf("%s is pushed out", key)
			}
		}
		if last := list[len(list)-1].Error; !strings.Contains(last, "sub.rg.web.") {
			t.Errorf("the last one is %q, want one of web", last)
		}
	})
}

// Few messages that can't be accepted are all kept, however many others lie between them and whoever reads them.
func TestEachOfFewInvalidMessagesHasADeadLetter(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		r, stop := s.run(route("hook", newRecorder()), route("page", newRecorder()), route("chat", newRecorder()))
		defer stop()
		for n := range 1001 {
			set := "web"
			if n%10 > 0 {
				set = fmt.Sprint("set-", n)
			}
			s.publishRaw("forewarn.events.sub.rg."+set+".1", nil, []byte("junk"))
		}
		pause(time.Minute)
		list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 2000)
		if err != nil || len(list) != 1001 {
			t.Errorf("%d dead letters, %v; want one of each message", len(list), err)
		}
	})
}

// What can't be accepted holds up nothing: it is kept several at a time.
func TestAFloodOfInvalidMessagesDelaysNoEvent(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, wire := newRecorder(), &cable{}
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, Connect: s.over(wire)})
		defer stop()
		pause(2 * time.Second)
		wire.slow(10 * time.Millisecond)
		for n := range 1000 {
			s.publishRaw(fmt.Sprint("forewarn.events.sub.rg.web.", n), nil, []byte("junk"))
		}
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(3 * time.Second)
		wantIDs(t, "told after three seconds", hook.all(), ce)
	})
}

// A sink that is new to the stream is told of at most 2,000 open events of a set, the newest, and of 20,000 in all, of those
// sets fewer that have most. It is logged once for each set.
func TestANewSinkIsToldOfABoundedNumberOfOpenEvents(t *testing.T) {
	systemtest.Alone(t)
	systemtest.LeftToGate(t)
	for _, tt := range []struct {
		name               string
		sets, events, most int // events of each set, of which so many are told
	}{
		{"one set has more than its share", 1, 4_500, 2_000},
		{"many sets have more than there is room for", 15, 1_500, 1_333},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) { testOpenEvents(t, s, tt.sets, tt.events, tt.most) })
		})
	}
}

func testOpenEvents(t *testing.T, s *stage, sets, events, most int) {
	honest := eventNo(1).in(24*time.Hour).sayAs(t, imds.Scheduled, ofSet("db", "db_0"), time.Now())
	s.publishAs(ownSubject(honest), honest)
	want := []string{honest.ID()}
	for set := range sets {
		name := fmt.Sprint("web", set)
		template := eventNo(2).in(24*time.Hour).sayAs(t, imds.Scheduled, ofSet(name, name+"_0"), time.Now())
		body, err := template.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for n := range events {
			id := eventNo(10 + set*events + n).id
			if n >= events-most {
				want = append(want, strings.Replace(template.ID(), eventNo(2).id, id, 1))
			}
			msg := &nats.Msg{Subject: fmt.Sprintf("forewarn.events.sub.rg.%s.%d", name, n),
				Header: nats.Header{"Content-Type": {"application/cloudevents+json"}},
				Data:   bytes.ReplaceAll(body, []byte(eventNo(2).id), []byte(id))}
			if _, err := s.js.PublishMsgAsync(msg); err != nil {
				t.Fatal(err)
			}
		}
	}
	<-s.js.PublishAsyncComplete()
	hook, log := newRecorder(), &systemtest.Log{}
	_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, Log: log.Logger()})
	defer stop()
	pause(time.Minute)
	if got := sorted(hook.all()); !slices.Equal(got, sorted(want)) {
		t.Errorf("it is told of %d, want of the newest %d of each set, and of that of db", len(got), most)
	}
	if n := log.Count("more open events than a new sink is told of"); n != sets {
		t.Errorf("it is logged %d times, want once for each set", n)
	}
}

// What a delivery keeps in memory besides its CloudEvent is bounded too: one that names thousands of VMs takes as much room
// as many others, and its set loses its own first.
func TestADeliveryThatNamesManyVMsTakesMoreRoom(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(errRefused)
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, MaxUnsettled: 40})
		defer stop()
		pause(2 * time.Second)
		honest := eventNo(1).in(24*time.Hour).sayAs(t, imds.Scheduled, ofSet("db", "db_0"), time.Now())
		s.publishAs(ownSubject(honest), honest)
		names := strings.Repeat(`"web_0",`, 999) + `"web_0"`
		var said []string
		for n := range 6 {
			a := eventNo(10 + n).in(24 * time.Hour)
			a.vm = "many"
			ce := a.sayAs(t, imds.Scheduled, ofSet("web", "web_0"), time.Now())
			body, err := ce.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			s.publishRaw(ownSubject(ce), nats.Header{"Content-Type": {"application/cloudevents+json"}},
				bytes.ReplaceAll(body, []byte(`["many"]`), []byte("["+names+"]")))
			said = append(said, keyOf("hook", ce))
		}
		pause(time.Minute)
		dead := keys(t, r, "")
		if len(dead) == 0 || len(dead) > 4 || !slices.Equal(dead, said[:len(dead)]) {
			t.Errorf("the dead letters are %q, want the oldest of %q", dead, said)
		}
		if n := r.Status().Sinks[0].Pending; n != 7-len(dead) {
			t.Errorf("%d are pending, want the other %d", n, 7-len(dead))
		}
	})
}

// A flood of heartbeats of one set pushes out none of another's: a relay that starts then still notices that a VM of that
// is silent. Where an earlier version limited their number, provision lifts that.
func TestAFloodOfHeartbeatsHidesNoSilentVM(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.change("FOREWARN_heartbeats", func(c *jetstream.StreamConfig) { c.MaxMsgs = 20 })
		s.provision(relay.Retention{})
		beat := func(set, vm string) {
			ce, err := cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, map[string]any{"interval": 60}, ofSet(set, vm), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			s.publishAs("forewarn.heartbeat.sub.rg."+set+"."+vm, ce)
		}
		beat("db", "db_0")
		for n := range 50 {
			beat("web", fmt.Sprint("web_", n))
		}
		ops := newEar()
		_, stop := s.run(with(route("ops", ops), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelTrouble }))
		defer stop()
		pause(10 * time.Minute)
		if news := strings.Join(ops.news(), " "); !strings.Contains(news, "db_0") {
			t.Errorf("told %.200q, want that db_0 is silent", news)
		}
		stream, err := s.js.Stream(t.Context(), "FOREWARN_heartbeats")
		if err != nil || stream.CachedInfo().State.Msgs != 51 {
			t.Errorf("%+v, %v; want 51 messages", stream.CachedInfo().State, err)
		}
	})
}
