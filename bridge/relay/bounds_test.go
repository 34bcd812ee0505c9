package relay_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

// The history in memory is bounded: of more than 4,000 events that are over, the older ones are forgotten, and the
// status says that there are more.
func TestWhatEndedLongAgoIsForgotten(t *testing.T) {
	systemtest.Alone(t)
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		r, stop := s.run()
		template := eventNo(1).in(24*time.Hour).say(t, imds.Vanished, "vm-1")
		body, err := json.Marshal(template)
		if err != nil {
			t.Fatal(err)
		}
		const events = 4001
		first := eventNo(1).id
		for n := range events {
			id := fmt.Sprintf("00000000-0000-4000-8000-%012d", n+1)
			_, err := s.js.PublishMsgAsync(&nats.Msg{Subject: "forewarn.events._.web.vm-1.test." + id,
				Header: nats.Header{"Content-Type": {"application/cloudevents+json"}}, Data: bytes.ReplaceAll(body, []byte(first), []byte(id))})
			if err != nil {
				t.Fatal(err)
			}
			if n%500 == 499 {
				<-s.js.PublishAsyncComplete()
			}
		}
		<-s.js.PublishAsyncComplete()
		pause(10 * time.Second)
		histories, more, _ := r.Histories(t.Context(), bridge.Period{})
		if n := len(histories); n < 1750 || n > 2000 || !more { // an eighth is forgotten at a time
			t.Fatalf("of %d events it remembers %d, and that there were more: %v; want up to 2000", events, n, more)
		}
		if got, want := histories[len(histories)-1].Event, fmt.Sprintf("00000000-0000-4000-8000-%012d", events); got != want {
			t.Errorf("the newest that it remembers is %s, want %s", got, want)
		}
		stop()
	})
}

// However many CloudEvents about bridges a sink remembers, a restarted relay has its records of events in the history.
func TestRecordsAboutBridgesKeepNoEventOutOfTheHistory(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		const bridges = 8000
		var body []byte
		add := func(record string) {
			if _, err := s.js.PublishAsync("$KV.FOREWARN_records.record.hook."+record+"._.web.vm-1", body); err != nil {
				t.Fatal(err)
			}
		}
		at := time.Now().UTC().Format(time.RFC3339)
		for n := range bridges {
			body = fmt.Appendf(nil, `{"settled":{"started-%d":{"at":%q,"state":"accepted"}}}`, n, at)
			add(fmt.Sprint("started-", n))
			if n%500 == 499 {
				<-s.js.PublishAsyncComplete()
			}
		}
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		body = fmt.Appendf(nil, `{"matched":true,"settled":{%q:{"at":%q,"state":"accepted"}}}`, ce.ID(), at)
		add(eventNo(1).id)
		<-s.js.PublishAsyncComplete()
		r, stop := s.run()
		s.publish(ce)
		pause(time.Second)
		histories, _, _ := r.Histories(t.Context(), bridge.Period{})
		if len(histories) != 1 || len(histories[0].Changes[0].Deliveries) != 1 {
			t.Errorf("the history is %+v, want one event with one delivery", histories)
		}
		stop()
	})
}

// What a sink remembers of an event is bounded: of more than a thousand CloudEvents about it, the newest.
func TestARecordOfManyChangesIsBounded(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		_, stop := s.run(route("hook", sink))
		const changes = 1010
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		id := ce.ID()
		for n := range changes {
			if n > 0 {
				ce.SetID(fmt.Sprintf("%s-r%d", id, n+1))
			}
			s.publish(ce)
		}
		pause(time.Minute)
		if got := len(sink.all()); got != changes {
			t.Errorf("the sink heard %d of %d", got, changes)
		}
		bucket, err := s.js.KeyValue(t.Context(), "FOREWARN_records")
		if err != nil {
			t.Fatal(err)
		}
		keys, err := bucket.Keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		most := 0
		for _, key := range keys {
			entry, err := bucket.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			var rec struct {
				Settled map[string]json.RawMessage `json:"settled"`
			}
			if json.Unmarshal(entry.Value(), &rec) == nil {
				most = max(most, len(rec.Settled))
			}
		}
		if most != 1000 {
			t.Errorf("a record has %d of %d deliveries, want 1000", most, changes)
		}
		stop()
	})
}

// A record holds the results of a thousand deliveries with ids of any length that is allowed. The sink gets each once,
// and the history shows them.
func TestARecordOfLongIdsIsBounded(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r, stop := s.run(route("hook", sink))
		const changes = 300
		a := eventNo(1).in(24 * time.Hour)
		ce := a.say(t, imds.Scheduled, "vm-1")
		publish := func(changes int) {
			for n := range changes {
				ce.SetID(fmt.Sprintf("%s%d", strings.Repeat("<", 4000), n))
				s.publish(ce)
			}
		}
		publish(changes)
		pause(time.Minute)
		if st := r.Status(); len(sink.all()) != changes || !st.Ready {
			t.Errorf("the sink heard %d of %d; ready %v because of %.200q", len(sink.all()), changes, st.Ready, st.Reasons)
		}
		histories, _, _ := r.Histories(t.Context(), bridge.Period{})
		if len(histories) != 1 || len(histories[0].Changes[0].Deliveries) != 1 {
			t.Errorf("the history is %d events, the first change without its delivery", len(histories))
		}
		stop()
		_, stop = s.run(route("hook", sink))
		publish(3) // another VM's copies
		pause(time.Minute)
		if n := len(sink.all()); n != changes {
			t.Errorf("after a restart the sink has heard %d, want %d", n, changes)
		}
		stop()
	})
}
