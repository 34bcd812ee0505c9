package relay_test

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// What was read just before the servers fell silent is told, also while the sink has not settled what the stream's limits
// have deleted since.
func TestWhatIsReadBeforeTheServersFallSilentIsTold(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, wire := newRecorder(), &cable{}
		var more atomic.Bool // as if more were pending than the server may send
		wire.says = func(text []byte) {
			for rest := text; more.Load(); {
				at := bytes.Index(rest, []byte("$JS.ACK.FOREWARN.forewarn-hook."))
				if at < 0 {
					return
				}
				rest = rest[at+1:]
				word, _, _ := bytes.Cut(rest, []byte(" "))
				word[len(word)-1] = '1'
				go func() { time.Sleep(time.Millisecond); wire.fail("deaf") }()
			}
		}
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, Connect: s.over(wire)})
		pause(2 * time.Second)
		if _, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, 3*24*time.Hour); err != nil {
			t.Fatal(err)
		}
		var old []event.Event
		for n := range 20 {
			old = append(old, eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		s.publish(old...)
		pause(5 * time.Second)
		s.change("FOREWARN", func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 })
		pause(time.Second)
		more.Store(true)
		urgent := eventNo(99).in(5 * time.Minute)
		urgent.typ = "Preempt" // which the mute lets pass
		ce := urgent.say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(2100 * time.Millisecond)
		more.Store(false)
		wire.fail("") // the word that a request has ended is lost with the connection
		pause(2 * time.Hour)
		wantIDs(t, "told in two hours", hook.all(), ce)
		stop()
	})
}

// A narrow line carries a large backlog in its time.
func TestARelayWithANarrowLineGetsOn(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		const messages, line = 150, 1_250_000 // bytes a second
		for n := range messages {
			ce := eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
			ce.DataEncoded = append(bytes.TrimSuffix(ce.DataEncoded, []byte("}")), fmt.Sprintf(`,"padding":"%0100000d"}`, 1)...)
			s.publish(ce)
		}
		hook := newRecorder()
		narrow := &cable{says: func(text []byte) { time.Sleep(time.Duration(len(text)) * time.Second / line) }}
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, Connect: s.over(narrow)})
		pause(time.Minute) // in which the line carries five times as much
		if n := len(hook.all()); n != messages {
			t.Errorf("%d of %d are told", n, messages)
		}
		stop()
	})
}
