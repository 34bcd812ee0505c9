package relay_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// A reload cuts no attempt off and makes no second one beside it. The sink's new settings count from its end on; the
// other sinks don't wait for it.
func TestAReloadLetsAttemptsFinish(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var slow thoroughSink
		patient := route("hook", &slow)
		patient.Terms.Timeout = 0 // such as exec
		r, stop := s.run(patient, route("other", newRecorder()))
		a := eventNo(1)
		scheduled, started, end := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1"),
			a.say(t, imds.Vanished, "vm-1")
		s.publish(scheduled)
		pause(2 * time.Second)
		hook, other := newRecorder(), newRecorder()
		r.Reload(nil, bridge.SettingsInfo{Hash: "b"}) // the sink goes and returns meanwhile
		r.Reload([]bridge.Route{route("hook", newRecorder()), route("other", newRecorder())}, bridge.SettingsInfo{Hash: "c"})
		pause(time.Second)
		r.Reload([]bridge.Route{route("hook", hook), route("other", other)}, bridge.SettingsInfo{Hash: "d"})
		s.publish(started)
		pause(5 * time.Second)
		wantIDs(t, "the other sink, meanwhile", other.all(), started)
		wantIDs(t, "attempts beside the one under way", hook.attempts())
		pause(20 * time.Second)
		slow.wants(t, 1)
		s.publish(end)
		pause(5 * time.Second)
		wantIDs(t, "with the new settings", hook.all(), started, end)
		stop()
	})
}

// While an attempt of before a reload goes on, it and what else is pending for its sink fall back in their time.
func TestWhatWaitsForAnAttemptOfBeforeAReloadFallsBackOnARelay(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		spare := newRecorder()
		hook := with(route("hook", slowSink(func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})), func(terms *bridge.Terms) {
			terms.Timeout, terms.Fallback = 0, delivery.Fallback{Sink: "spare", After: 5 * time.Minute}
		})
		instead := route("spare", spare)
		instead.Filter.Only.Types = []string{"Preempt"} // so that it hears nothing by itself
		r, stop := s.run(hook, instead)
		first := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		second := eventNo(2).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(first)
		pause(2 * time.Second)
		s.publish(second)
		pause(2 * time.Second)
		r.Reload([]bridge.Route{hook, instead}, bridge.SettingsInfo{Hash: "b"})
		pause(4 * time.Minute)
		wantIDs(t, "before its time", spare.all())
		pause(2 * time.Minute)
		wantIDs(t, "after its time", spare.all(), first, second)
		stop()
	})
}

// A sink that heeds no timeout delays its new settings by no more than seconds.
func TestAReloadCutsOffWhatHeedsNoTimeout(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		deaf := slowSink(func(ctx context.Context) error {
			time.Sleep(time.Hour)
			return ctx.Err()
		})
		r, stop := s.run(route("hook", deaf))
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(2 * time.Second)
		hook := newRecorder()
		r.Reload([]bridge.Route{route("hook", hook)}, bridge.SettingsInfo{Hash: "b"})
		pause(time.Minute)
		wantIDs(t, "told", hook.all(), ce)
		stop()
		pause(time.Hour) // until the sink returns
	})
}

// What a reload replaces is closed, also while the relay can't work, and what replaces it is used when it can.
func TestSinksAreClosedByAReloadWhileTheRelayCannotWork(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var sinks []*closing
		routes := func() []bridge.Route {
			sinks = append(sinks, &closing{recorder: newRecorder()})
			return []bridge.Route{route("hook", sinks[len(sinks)-1])}
		}
		r, stop := s.run(routes()...)
		if err := s.js.DeleteStream(t.Context(), "FOREWARN_dead"); err != nil {
			t.Fatal(err)
		}
		pause(20 * time.Second)
		r.Reload(routes(), bridge.SettingsInfo{Hash: "b"})
		r.Reload(routes(), bridge.SettingsInfo{Hash: "c"})
		pause(20 * time.Second)
		if sinks[0].closed != 1 || sinks[1].closed != 1 || sinks[2].closed != 0 {
			t.Errorf("closed %d, %d and %d times; want each but the last once", sinks[0].closed, sinks[1].closed,
				sinks[2].closed)
		}
		s.provision(relay.Retention{})
		pause(20 * time.Second)
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(20 * time.Second)
		wantIDs(t, "told", sinks[2].all(), ce)
		stop()
		for n, sink := range sinks {
			if sink.closed != 1 {
				t.Errorf("sink %d was closed %d times, want once", n, sink.closed)
			}
		}
	})
}

// A relay that can work again doesn't count as hung because it did no housekeeping meanwhile.
func TestARelayThatCouldNotWorkDoesNotHang(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", newRecorder())},
			Connect: s.over(&cable{latency: 20 * time.Millisecond})})
		pause(5 * time.Second)
		if err := s.js.DeleteStream(t.Context(), "FOREWARN_dead"); err != nil {
			t.Fatal(err)
		}
		pause(5 * time.Minute)
		s.provision(relay.Retention{})
		for range 4000 {
			time.Sleep(time.Millisecond)
			if err := r.Alive(); err != nil {
				t.Fatal(err)
			}
		}
		stop()
	})
}

// A sink that a reload adds gets as much of the past as one that was there from the start, counted from when it comes.
func TestASinkThatAReloadAddsBeginsWhenItComes(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		first, added := newRecorder(), newRecorder()
		brief := func(n int) (all []event.Event) { // an event that is over, so that a new sink needs to know nothing of it
			a := eventNo(n).in(24 * time.Hour)
			all = []event.Event{a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Vanished, "vm-1")}
			s.publish(all...)
			pause(2 * time.Minute)
			return all
		}
		before := brief(1)
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("first", first)}, From: time.Now().Add(-10 * time.Minute)})
		pause(2 * time.Second)
		later := brief(2)
		pause(12 * time.Minute)
		last := brief(3)
		r.Reload([]bridge.Route{route("first", first), route("added", added)}, bridge.SettingsInfo{})
		pause(10 * time.Second)
		wantIDs(t, "the first sink", first.all(), slices.Concat(before, later, last)...)
		wantIDs(t, "the one that was added", added.all(), last...)
		stop()
	})
}

// A stop is short also while a relay looks for the open events of a new sink, and so is a reload.
func TestAStopIsShortWhileANewSinkLooksForOpenEvents(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		for n := range 10_000 {
			s.publish(eventNo(n%10).say(t, imds.Scheduled, "vm-1"))
		}
		wire := &cable{}
		r, stop := s.start(relay.Options{Connect: s.over(wire)})
		pause(5 * time.Second)
		wire.slow(time.Second)
		r.Reload([]bridge.Route{route("hook", newRecorder())}, bridge.SettingsInfo{})
		pause(10 * time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the stop took %v, want five seconds at most", took)
		}
	})
}
