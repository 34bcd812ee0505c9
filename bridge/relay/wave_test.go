package relay_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// A wave of 2,000 events becomes a few messages to a chat that takes each in a moment, with all that came meanwhile.
func TestAWaveBecomesAFewMessages(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		chat, messages := newRecorder(), 0
		chat.answer = func([]delivery.Delivery) (delivery.Answer, error) {
			messages++
			time.Sleep(200 * time.Millisecond)
			return delivery.Answer{}, nil
		}
		_, stop := s.run(with(route("chat", chat), func(terms *bridge.Terms) {
			terms.Late, terms.DigestAbove = delivery.LateLatest, 5
		}))
		const events = 2000
		for n := range events {
			ce := eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
			body, err := ce.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			msg := &nats.Msg{Subject: ownSubject(ce), Data: body,
				Header: nats.Header{"Content-Type": {"application/cloudevents+json"}}}
			if _, err := s.js.PublishMsgAsync(msg); err != nil {
				t.Fatal(err)
			}
		}
		<-s.js.PublishAsyncComplete()
		pause(5 * time.Minute)
		if n := len(chat.all()); n != events || messages > 30 {
			t.Errorf("%d events were told in %d messages, want all %d in 30 at most", n, messages, events)
		}
		t.Logf("%d messages", messages)
		stop()
	})
}

// A digest whose records take longer to write than one request may is on record all the same, without a complaint.
func TestTheRecordsOfADigestTakeTheirTime(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		var log systemtest.Log
		chat, wire := newRecorder(), &cable{}
		digests := with(route("chat", chat), func(terms *bridge.Terms) {
			terms.Late, terms.DigestAbove = delivery.LateLatest, 5
		})
		_, stop := s.start(relay.Options{
			Routes: []bridge.Route{digests}, Connect: s.over(wire), Log: log.Logger(),
		})
		pause(5 * time.Second)
		wire.slow(600 * time.Millisecond)
		const events = 400 // 32 of them are written at a time
		for n := range events {
			s.publish(eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		pause(5 * time.Minute)
		if n := len(chat.all()); n != events {
			t.Errorf("%d events are told, want %d", n, events)
		}
		if n := log.Count("can't be recorded"); n > 0 {
			t.Errorf("it complains %d times", n)
		}
		stop()
	})
}
