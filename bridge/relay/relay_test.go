package relay_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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

// ackFloorOf returns up to where everything is settled for a sink.
func ackFloorOf(ctx context.Context, js jetstream.JetStream, sink string) (uint64, error) {
	consumer, err := js.Consumer(ctx, "FOREWARN", "forewarn-"+sink)
	if err != nil {
		return 0, err
	}
	return consumer.CachedInfo().AckFloor.Stream, nil
}

// byEvent returns ids by the Azure event that they are about.
func byEvent(ids []string) map[string][]string {
	events := map[string][]string{}
	for _, id := range ids {
		events[id[:36]] = append(events[id[:36]], id)
	}
	return events
}

// begin waits until the relay serves the sink, so that what is published from then on is new to it.
func (f *fleet) begin(sink string) {
	f.Helper()
	f.until(sink+" is served", func() bool {
		kv, err := f.js.KeyValue(f.Context(), "FOREWARN_records")
		if err != nil {
			return false
		}
		_, err = kv.Get(f.Context(), "sink."+sink)
		return err == nil
	}, nil)
}

// Every VM of a set publishes each change; a sink hears each once, in order.
func TestManyCopiesAreToldOnceInOrder(t *testing.T) {
	f := newFleet(t)
	sink := newRecorder()
	f.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}})
	f.begin("hook")
	want := map[string][]string{}
	for n := range 3 {
		a := eventNo(n)
		for _, kind := range []imds.ChangeKind{imds.Scheduled, imds.Started, imds.Vanished} {
			for vm := range 5 {
				ce := a.say(t, kind, fmt.Sprintf("vm-%d", vm))
				f.publish(ce)
				if vm == 0 {
					want[a.id] = append(want[a.id], ce.ID())
				}
			}
		}
	}
	f.hears(sink, 9)
	f.settled("hook")
	if got := byEvent(sink.all()); !reflect.DeepEqual(got, want) {
		t.Errorf("the sink heard %q, want %q", got, want)
	}
}

// What one relay has told, another never tells again, whoever publishes it again.
func TestAnotherRelayContinuesWhereTheRecordsSay(t *testing.T) {
	systemtest.LeftToGate(t)
	f := newFleet(t)
	sink := newRecorder()
	_, stop := f.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}})
	f.begin("hook")
	a, b := eventNo(1), eventNo(2)
	first := a.say(t, imds.Scheduled, "vm-1")
	f.publish(first)
	f.hears(sink, 1)
	stop()
	again, news, other := a.say(t, imds.Scheduled, "vm-2"), a.say(t, imds.Started, "vm-2"), b.say(t, imds.Scheduled,
		"vm-1")
	f.publish(again, news, other)
	second := newRecorder()
	f.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{route("hook", second)}})
	f.settled("hook")
	if got, want := f.hears(second, 2), ids(news, other); !slices.Equal(got, want) {
		t.Errorf("the second relay told %q, want %q", got, want)
	}
}

// Attempts, progress and receipts outlive a relay.
func TestProgressAndReceiptsOutliveARelay(t *testing.T) {
	f := newFleet(t)
	sink := newRecorder()
	failing := errors.New("half of it")
	sink.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
		if batch[0].Event.Type() == "dev.forewarn.scheduledevent.scheduled" {
			return delivery.Answer{Receipt: []byte("ts-1")}, nil
		}
		return delivery.Answer{Progress: []byte("root posted")}, failing
	}
	r, stop := f.start(relay.Options{Routes: []bridge.Route{route("chat", sink)}})
	f.begin("chat")
	a := eventNo(1)
	scheduled, started := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1")
	f.publish(scheduled, started)
	f.until("the second fails", func() bool { return slices.Contains(sink.attempts(), started.ID()) }, sink.news)
	f.until("it is on record", func() bool { return r.Status().Sinks[0].State == bridge.SinkRetrying }, nil)
	stop()

	second := newRecorder()
	var got delivery.Delivery
	second.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
		got = batch[0]
		return delivery.Answer{}, nil
	}
	f.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{route("chat", second)}})
	if heard := f.hears(second, 1); !slices.Equal(heard, ids(started)) {
		t.Fatalf("the second relay told %q, want %q", heard, ids(started))
	}
	if got.Attempt < 2 || string(got.Progress) != "root posted" || string(got.Receipt) != "ts-1" {
		t.Errorf("attempt %d with progress %q and receipt %q, want the second at least, %q and %q", got.Attempt,
			got.Progress,
			got.Receipt, "root posted", "ts-1")
	}
}

// A sink that is new to the stream is owed the latest change of each event that is open, what came of its approval since,
// and nothing older.
func TestNewSinkBeginsNow(t *testing.T) {
	f := newFleet(t)
	over, open := eventNo(1), eventNo(2)
	f.publish(over.say(t, imds.Scheduled, "vm-1"), over.say(t, imds.Vanished, "vm-1"))
	f.publish(open.say(t, imds.Scheduled, "vm-1"))
	f.publish(open.answer(t, 1)) // of an older change
	latest := open.say(t, imds.Updated, "vm-1")
	f.publish(latest)
	answer := open.answer(t, 2)
	f.publish(answer)
	sink := newRecorder()
	f.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}})
	f.hears(sink, 2)
	news := open.say(t, imds.Vanished, "vm-1")
	f.publish(news)
	f.settled("hook")
	if got, want := f.hears(sink, 3), ids(latest, answer, news); !slices.Equal(got, want) {
		t.Errorf("the sink heard %q, want %q", got, want)
	}
}

// What a VM says late, because it had no connection, is not the latest of an event: other VMs have said more.
func TestNewSinkHearsNothingOutdated(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		over, begun := eventNo(1), eventNo(2)
		late := []event.Event{over.say(t, imds.Scheduled, "vm-1"), begun.say(t, imds.Scheduled, "vm-1")}
		pause(time.Minute)
		started := begun.say(t, imds.Started, "vm-2")
		s.publish(over.say(t, imds.Started, "vm-2"), started)
		pause(time.Minute)
		s.publish(over.say(t, imds.Vanished, "vm-2"))
		s.publish(late...)
		sink := newRecorder()
		_, stop := s.run(route("hook", sink))
		pause(time.Minute)
		wantIDs(t, "told", sink.all(), started)
		stop()
	})
}

// With --from a new sink gets what came since.
func TestNewSinkBeginsWhereItIsTold(t *testing.T) {
	f := newFleet(t)
	a := eventNo(1)
	want := []event.Event{a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1"), a.say(t, imds.Vanished,
		"vm-1")}
	f.publish(want...)
	sink := newRecorder()
	f.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}, From: time.Now().Add(-time.Hour)})
	if got := f.hears(sink, 3); !slices.Equal(got, ids(want...)) {
		t.Errorf("the sink heard %q, want %q", got, ids(want...))
	}
}

// Filters are asked once per event: from the first change that one accepts, the sink gets all later ones, also from
// another relay.
func TestFilterDecidesOncePerEventAcrossRelays(t *testing.T) {
	f := newFleet(t)
	sink := newRecorder()
	freezes := route("hook", sink)
	freezes.Filter.Only.Types = []string{"Freeze"}
	ends := route("ends", sink)
	ends.Filter.Only = bridge.Only{VMs: "all", Types: []string{"Reboot"}, Changes: []string{"vanished"}}
	_, stop := f.start(relay.Options{Routes: []bridge.Route{freezes, ends}})
	f.begin("hook")
	f.begin("ends")
	reboot := eventNo(1)
	f.publish(reboot.say(t, imds.Scheduled, "vm-1"))
	f.settled("hook")
	f.settled("ends")
	stop()
	reboot.typ = "Freeze" // as if Azure had thought better of it
	gone := reboot.say(t, imds.Vanished, "vm-1")
	f.publish(gone)
	f.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{ends}})
	if got := f.hears(sink, 1); !slices.Equal(got, ids(gone)) {
		t.Errorf("the sinks heard %q, want %q", got, ids(gone))
	}
}

// What is no CloudEvent is kept as a dead letter, once however many sinks read it, and what follows is told.
func TestWhatIsNoCloudEventIsADeadLetterAndTheNextIsTold(t *testing.T) {
	f := newFleet(t)
	sinks := []*recorder{newRecorder(), newRecorder()}
	r, _ := f.start(relay.Options{Routes: []bridge.Route{route("one", sinks[0]), route("two", sinks[1])}})
	f.begin("one")
	f.begin("two")
	structured := nats.Header{"Content-Type": {"application/cloudevents+json"}}
	bad := map[string]func(){
		"nothing": func() { f.publishRaw("forewarn.events.a", nil, nil) },
		"text":    func() { f.publishRaw("forewarn.events.b", nil, []byte("hello")) },
		"1 MiB":   func() { f.publishRaw("forewarn.events.c", nil, []byte(strings.Repeat("x", 1<<20-100))) },
		"no JSON": func() { f.publishRaw("forewarn.events.d", structured, []byte(`{"id":`)) },
		"no id": func() {
			f.publishRaw("forewarn.events.e", structured, []byte(`{"specversion":"1.0","type":"a","source":"b"}`))
		},
		"a strange time": func() {
			f.publishRaw("forewarn.events.f", nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-type": {"a"},
				"ce-source": {"b"}, "ce-time": {"noon"}}, nil)
		},
		"a strange value": func() {
			f.publishRaw("forewarn.events.g", nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"%zz"}, "ce-type": {"a"},
				"ce-source": {"b"}}, nil)
		},
	}
	for _, publish := range bad {
		publish()
	}
	ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
	f.publish(ce)
	for _, s := range sinks {
		if got := f.hears(s, 1); !slices.Equal(got, ids(ce)) {
			t.Errorf("a sink heard %q, want %q", got, ids(ce))
		}
	}
	list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != len(bad) {
		t.Errorf("%d dead letters, want %d: %v", len(list), len(bad), list)
	}
}

// A message in binary mode is the same CloudEvent as one in structured mode.
func TestBinaryAndStructuredMessagesAreTheSame(t *testing.T) {
	f := newFleet(t)
	sink := newRecorder()
	var got []event.Event
	sink.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
		got = append(got, batch[0].Event)
		return delivery.Answer{}, nil
	}
	severe := route("hook", sink)
	when, err := bridge.ParseWhen(`severitynumber >= 17 && azeventtype == "Reboot" && duration == -1`)
	if err != nil {
		t.Fatal(err)
	}
	severe.Filter.When = when
	f.start(relay.Options{Routes: []bridge.Route{severe}})
	f.begin("hook")
	one, two := eventNo(1).say(t, imds.Scheduled, "vm-1"), eventNo(2).say(t, imds.Scheduled, "vm ü%")
	f.publish(one)
	h := nats.Header{}
	for name, value := range map[string]string{
		"specversion": "1.0", "id": two.ID(), "type": two.Type(), "source": two.Source(), "subject": two.Subject(),
		"time": two.Time().Format(time.RFC3339Nano), "dataschema": two.DataSchema(), "datacontenttype": "application/json",
		"azeventtype": "Reboot", "severitynumber": "17", "severitytext": "ERROR", "azduration": "-1",
		"observer": "vm%20%C3%BC%25",
		"azself":   "false",
	} {
		h["ce-"+name] = []string{value}
	}
	f.publishRaw(ownSubject(two), h, two.Data())
	f.hears(sink, 2)
	if got[1].Extensions()["observer"] != "vm ü%" || got[1].Extensions()["severitynumber"] != int32(17) {
		t.Errorf("extensions %v, want the observer %q and the severity 17", got[1].Extensions(), "vm ü%")
	}
	if string(got[1].Data()) != string(two.Data()) || !got[1].Time().Equal(two.Time()) {
		t.Errorf("got %v, want %v", got[1], two)
	}
}
