package relay_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// These tests are about records that can't be written, beside others that can.

// takesRecordsOf limits how large a record may be; -1 is for any size.
func (s *stage) takesRecordsOf(bytes int32) {
	s.Helper()
	s.change("KV_FOREWARN_records", func(c *jetstream.StreamConfig) { c.MaxMsgSize = bytes })
}

// While one record can't be written, the relay isn't ready, however many others it writes, and says so once.
func TestARecordThatCannotBeWrittenIsSaidUntilItIs(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var log systemtest.Log
		hook, large := newRecorder(), eventNo(0)
		hook.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
			if strings.HasPrefix(batch[0].Event.ID(), large.id) {
				return delivery.Answer{Receipt: []byte(strings.Repeat("x", 2<<10))}, nil
			}
			return delivery.Answer{}, nil
		}
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)},
			Log: log.Logger()})
		pause(2 * time.Second)
		s.takesRecordsOf(2 << 10)
		s.publish(large.in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		pause(2 * time.Second)
		ready := 0
		for n := range 60 {
			s.publish(eventNo(n+1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
			for range 10 {
				pause(100 * time.Millisecond)
				if r.Status().Ready {
					ready++
				}
			}
		}
		if n := log.Count("what was delivered can't be recorded"); n != 1 || ready > 0 {
			t.Errorf("it is logged %d times, and in %d of 600 samples the relay is ready; want once, and never", n, ready)
		}
		s.takesRecordsOf(-1)
		pause(2 * time.Second)
		if st := r.Status(); !st.Ready {
			t.Errorf("then it isn't ready, because of %q", st.Reasons)
		}
		stop()
	})
}

// Once the others can be written again, they are, however many still can't be: all are tried in turn.
func TestNoRecordWaitsForOneThatCannotBeWritten(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(errRefused)
		_, stop := s.run(route("hook", hook))
		s.takesRecordsOf(1)
		const large, small = 200, 40
		var want []string
		for n := range large + small {
			e := eventNo(n).in(24 * time.Hour)
			s.publish(e.say(t, imds.Scheduled, "vm-1"))
			if n >= large {
				want = append(want, e.id)
				continue
			}
			for m := range 4 { // so that its record is large
				s.publish(e.in(time.Duration(25+m)*time.Hour).updated(t, e))
			}
		}
		pause(time.Minute)
		s.takesRecordsOf(600)
		pause(7 * time.Second)
		kv, err := s.js.KeyValue(t.Context(), "FOREWARN_records")
		if err != nil {
			t.Fatal(err)
		}
		keys, err := kv.Keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, key := range keys {
			if id, ok := strings.CutPrefix(key, "record.hook."); ok {
				got = append(got, strings.Split(id, ".")[0])
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("on record are %d events, want the %d whose records are small: %q", len(got), small, got)
		}
		stop()
	})
}

// Nothing urgent waits for longer than one attempt to write a record.
func TestWhatIsUrgentWaitsForOneAttemptToWrite(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, wire := newRecorder(), &cable{}
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, Connect: s.over(wire)})
		pause(2 * time.Second)
		wire.fail("PUB $KV.FOREWARN_records.")
		var worst time.Duration
		for n := range 20 {
			a := eventNo(n).in(5 * time.Minute)
			a.typ = "Preempt"
			ce := a.say(t, imds.Scheduled, "vm-1")
			s.publish(ce)
			began := time.Now()
			for len(hook.attempts()) <= n && time.Since(began) < time.Minute {
				pause(100 * time.Millisecond)
			}
			worst = max(worst, time.Since(began))
			t.Log(n, time.Since(began))
			pause(time.Duration(n) * 700 * time.Millisecond)
		}
		if worst > 5*time.Second {
			t.Errorf("something urgent waited for %v", worst)
		}
		wire.fail("")
		stop()
	})
}
