package relay_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
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
