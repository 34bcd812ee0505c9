package relay_test

import (
	"bytes"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// A wallClock is the wall clock of a relay's machine, which may be set. The monotonic one is that of the bubble.
type wallClock struct{ ahead atomic.Int64 }

func (c *wallClock) now() time.Time { return time.Now().Round(0).Add(time.Duration(c.ahead.Load())) }

func (c *wallClock) set(ahead time.Duration) { c.ahead.Store(int64(ahead)) }

// While a VM is frozen its monotonic clock may stand still, and only the wall clock says that its leases are over. Nothing
// is delivered under one that is, nor counted as an attempt; once it is renewed, all is.
func TestARelayWhoseMonotonicClockStoodStillDeliversNothing(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		wall, hook := &wallClock{}, newRecorder()
		var attempts []int
		hook.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
			attempts = append(attempts, batch[0].Attempt)
			return delivery.Answer{}, nil
		}
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, Wall: wall.now})
		pause(2 * time.Second)
		s.renewed("hook")
		pause(100 * time.Millisecond)
		wall.set(time.Minute)
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(1500 * time.Millisecond)
		wantIDs(t, "before the lease is renewed", hook.attempts())
		pause(10 * time.Second)
		wantIDs(t, "after that", hook.attempts(), ce)
		stop()
		if !slices.Equal(attempts, []int{1}) {
			t.Errorf("the sink was told %v. attempts, want the first", attempts)
		}
	})
}

// Nor does a relay whose wall clock was set back believe in its lease for longer.
func TestARelayWhoseWallClockWasSetBackDeliversNothing(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		wall, wire, hook := &wallClock{}, &cable{}, newRecorder()
		hook.answer = fails(errRefused)
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, Wall: wall.now, Connect: s.over(wire)})
		pause(2 * time.Second)
		s.publish(eventNo(1).in(time.Minute).say(t, imds.Scheduled, "vm-1")) // so urgent that it is tried every 5 s
		pause(2 * time.Second)
		s.renewed("hook")
		wire.fail("hangs")
		wall.set(-time.Hour)
		pause(5 * time.Second)
		before := len(hook.attempts())
		pause(time.Minute)
		if n := len(hook.attempts()) - before; n > 0 || before == 0 {
			t.Errorf("%d attempts before the lease was over, and %d after that; want some, and none", before, n)
		}
		wire.fail("")
		stop()
	})
}

// Nor is anything handed to the fallback, or given up, under a lease that is over by the wall clock.
func TestARelayWhoseMonotonicClockStoodStillHandsNothingOver(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		wall, hook, spare := &wallClock{}, newRecorder(), newRecorder()
		hook.answer = fails(errRefused)
		first := with(route("hook", hook), func(terms *bridge.Terms) {
			terms.Fallback = delivery.Fallback{Sink: "spare", After: time.Minute}
		})
		second := route("spare", spare)
		second.Filter.Only.Types = []string{"Freeze"}
		_, stop := s.start(relay.Options{Routes: []bridge.Route{first, second}, Wall: wall.now})
		pause(2 * time.Second)
		s.renewed("hook")
		pause(700 * time.Millisecond)
		last := func() uint64 {
			stream, err := s.js.Stream(t.Context(), "FOREWARN")
			if err != nil {
				t.Fatal(err)
			}
			return stream.CachedInfo().State.LastSeq
		}
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		was := last()
		pause(59*time.Second + 500*time.Millisecond)
		if is := last(); is != was {
			t.Fatal("it is handed over before its time")
		}
		wall.set(time.Hour) // it comes back to life after an hour, in which another relay may have told it
		pause(1500 * time.Millisecond)
		if is := last(); is != was {
			t.Error("it is handed over under a lease that is over")
		}
		pause(10 * time.Second)
		wantIDs(t, "the fallback", spare.all(), ce)
		stop()
	})
}

// A relay whose clock is another one than the servers' knows the others all the same, and gives up for them what fails here.
func TestARelayWhoseClockIsAnotherThanTheServersKnowsTheOthers(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var log systemtest.Log
		hook, other := newRecorder(), newRecorder()
		hook.answer = fails(errRefused)
		r, stop := s.start(relay.Options{Name: "relay-1", Routes: []bridge.Route{route("hook", hook)},
			Log:     log.Logger(),
			Connect: s.over(&cable{says: serverClockBehind})})
		pause(2 * time.Second)
		_, stopOther := s.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{route("hook", other)}})
		pause(10 * time.Second)
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(4 * time.Minute)
		if n := len(r.Status().Relay.Relays); n != 2 {
			t.Errorf("the status knows %d relays, want 2", n)
		}
		wantIDs(t, "told by the other relay", other.all(), ce)
		stop()
		stopOther()
	})
}

// serverClockBehind has the server say that it stored what it is asked for a year ago, when it was asked.
func serverClockBehind(text []byte) {
	replaced(text, `"time":"2000-`, `"time":"1999-`)
	replaced(text, `"ts":"2000-`, `"ts":"1999-`)
}

// The clock of a server decides nothing about when a sink's fallback gets what it can't deliver.
func TestTheClockOfAServerPutsOffNoFallback(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, spare := newRecorder(), newRecorder()
		hook.answer = fails(errRefused)
		first := with(route("hook", hook), func(terms *bridge.Terms) {
			terms.Fallback = delivery.Fallback{Sink: "spare", After: time.Minute}
		})
		second := route("spare", spare)
		second.Filter.Only.Types = []string{"Freeze"}
		_, stop := s.start(relay.Options{Routes: []bridge.Route{first, second}, Connect: s.over(&cable{says: serverClockAhead})})
		pause(2 * time.Second)
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(5 * time.Minute)
		wantIDs(t, "the fallback", spare.all(), ce)
		stop()
	})
}

// serverClockAhead has the server say that it stored what it delivers more than an hour later than it did.
func serverClockAhead(text []byte) {
	for rest := text; ; {
		at := bytes.Index(rest, []byte("$JS.ACK.FOREWARN.forewarn-"))
		if at < 0 {
			return
		}
		rest = rest[at:]
		word, _, _ := bytes.Cut(rest, []byte(" "))
		replaced(word, ".9466", ".9467") // seconds since 1970
		rest = rest[1:]
	}
}

// Nor does such a relay acknowledge anything: the consumer may be another relay's by now.
func TestARelayWhoseMonotonicClockStoodStillAcknowledgesNothing(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		wall, acks := &wallClock{}, &ackWatch{given: map[string]bool{}}
		hook := route("hook", newRecorder())
		hook.Filter.Only.Types = []string{"Freeze"} // what it leaves out is acknowledged when it is read
		_, stop := s.start(relay.Options{Routes: []bridge.Route{hook}, Wall: wall.now,
			Connect: s.over(&cable{says: acks.says, hears: acks.hears})})
		pause(2 * time.Second)
		for _, tt := range []struct {
			ahead time.Duration
			want  int
		}{{0, 1}, {time.Hour, 0}} {
			s.renewed("hook")
			pause(100 * time.Millisecond)
			wall.set(tt.ahead)
			acks.forget()
			s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
			pause(500 * time.Millisecond)
			acks.mu.Lock()
			if acks.own != tt.want || acks.others > 0 {
				t.Errorf("%v after the lease was renewed %d and %d are acknowledged, want %d", tt.ahead, acks.own, acks.others, tt.want)
			}
			acks.mu.Unlock()
		}
		stop()
	})
}
