package relay_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// ops is a sink that remembers what it was sent about relays.
type ops struct {
	*recorder
	mu    sync.Mutex
	heard []string // types, and of dead letters how many
}

func newOps() *ops {
	o := &ops{recorder: newRecorder()}
	o.answer = func(batch []delivery.Delivery) (a delivery.Answer, err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, d := range batch {
			var data struct {
				Sink, Error    string
				Stream         string
				StreamCreated  time.Time
				Count, Pending int
				Since          time.Time
				Deliveries     []struct{ Key, Reason, Error string }
			}
			if err := json.Unmarshal(d.Event.Data(), &data); err != nil {
				return a, err
			}
			if (data.Stream != "FOREWARN" || data.StreamCreated.IsZero()) && d.Event.Type() != cloudevent.EventPrefix+string(imds.Scheduled) {
				return a, fmt.Errorf("%s names the stream %q of %v", d.Event.Type(), data.Stream, data.StreamCreated)
			}
			switch d.Event.Type() {
			case cloudevent.SinkBlocked:
				o.heard = append(o.heard, fmt.Sprintf("blocked %s since %s with %d pending: %s", data.Sink,
					data.Since.Format(time.TimeOnly), data.Pending, data.Error))
			case cloudevent.SinkRecovered:
				o.heard = append(o.heard, fmt.Sprintf("recovered %s with %d pending", data.Sink, data.Pending))
			case cloudevent.DeliveryDeadLettered:
				first := data.Deliveries[0]
				o.heard = append(o.heard, fmt.Sprintf("%d dead of %s: %s %s", data.Count, data.Sink, first.Reason, first.Error))
			}
		}
		return a, nil
	}
	return o
}

// news returns what it heard since the last call.
func (o *ops) news() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	heard := o.heard
	o.heard = nil
	return heard
}

func (o *ops) wants(t *testing.T, what string, want ...string) {
	t.Helper()
	if got := o.news(); !slices.Equal(got, want) {
		t.Errorf("%s: ops heard %q, want %q", what, got, want)
	}
}

// route returns the sink's route, on which it hears of trouble.
func (o *ops) route() bridge.Route {
	return with(route("ops", o), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelTrouble })
}

// A mute mends nothing on a relay either: the sink needs somebody, for the same reason, until it accepts.
func TestAMutedSinkStillNeedsSomebodyOnARelay(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(errRefused)
		r, stop := s.run(route("hook", hook))
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		wants := func(needs bool, when string) {
			t.Helper()
			k := r.Status().Sinks[0]
			if got := k.NeedsSomebody(time.Now()); got != needs || needs && k.LastError != errRefused.Error() {
				t.Errorf("%s: needs somebody is %v, want %v: %+v", when, got, needs, k)
			}
		}
		pause(time.Minute)
		wants(false, "after a minute")
		pause(6 * time.Minute)
		wants(true, "after 7 minutes")
		if _, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, 20*time.Minute); err != nil {
			t.Fatal(err)
		}
		pause(10 * time.Minute)
		wants(true, "while it is muted")
		pause(11 * time.Minute)
		wants(true, "after the mute")
		hook.say(nil)
		pause(10 * time.Minute)
		wants(false, "once it accepts")
		stop()
	})
}

// Whoever wants to hear of trouble hears once that a sink has accepted nothing for five minutes, and that it is back.
func TestASinkThatIsDownIsReportedOnARelay(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		hook, o := newRecorder(), newOps()
		hook.answer = fails(errRefused)
		_, stop := s.run(route("hook", hook), o.route())
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(4 * time.Minute)
		o.wants(t, "after 4 minutes")
		pause(6 * time.Minute)
		o.wants(t, "after 10 minutes", "blocked hook since 00:00:02 with 1 pending: connection refused")
		if n := len(o.all()); n != 2 {
			t.Errorf("ops got %d CloudEvents, want the change and one about the sink", n)
		}
		hook.say(nil)
		pause(10 * time.Minute)
		o.wants(t, "when it is back", "recovered hook with 0 pending")
		stop()
	})
}

// That a sink is down, and that it is back, is told once, whichever relays serve it, and again when it is down again.
func TestASinkThatIsDownIsReportedOnceByAllRelays(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		hook, o := newRecorder(), newOps()
		hook.answer = fails(errRefused)
		routes := []bridge.Route{route("hook", hook), o.route()}
		wire := &cable{}
		_, stop := s.start(relay.Options{Name: "relay-1", Routes: routes, Connect: s.over(wire)})
		pause(2 * time.Second)
		_, stopSecond := s.start(relay.Options{Name: "relay-2", Routes: routes})
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		pause(10 * time.Minute)
		o.wants(t, "from the first relay", "blocked hook since 00:00:02 with 1 pending: connection refused")
		wire.fail("hangs")
		pause(10 * time.Minute)
		o.wants(t, "after a takeover")
		hook.say(nil)
		pause(10 * time.Minute)
		o.wants(t, "when it is back", "recovered hook with 0 pending")
		wire.fail("")
		pause(time.Minute)
		hook.say(fails(errRefused))
		s.publish(eventNo(2).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		stopSecond()
		pause(20 * time.Minute)
		o.wants(t, "from the first relay again", "blocked hook since 00:31:02 with 1 pending: connection refused")
		stop()
		hook.say(nil)
		_, stop = s.run(routes...)
		pause(10 * time.Minute)
		o.wants(t, "after a restart", "recovered hook with 0 pending")
		stop()
	})
}

// That a sink is back is told also if its relay stops at that moment, or can't publish it just then.
func TestThatASinkIsBackIsToldAtAStop(t *testing.T) {
	systemtest.Alone(t)
	for name, cut := range map[string]bool{"stop": false, "cut": true} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				o, wire := newOps(), &cable{latency: 20 * time.Millisecond}
				hook := newRecorder()
				hook.answer = fails(errRefused)
				routes := []bridge.Route{route("hook", hook), o.route()}
				_, stop := s.start(relay.Options{Name: "relay-1", Routes: routes, Connect: s.over(wire)})
				pause(2 * time.Second)
				s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
				pause(10 * time.Minute)
				o.wants(t, "while it is down", "blocked hook since 00:00:02 with 1 pending: connection refused")
				accepted := make(chan struct{})
				hook.say(func([]delivery.Delivery) (delivery.Answer, error) {
					close(accepted)
					return delivery.Answer{}, nil
				})
				if cut {
					wire.fail("forewarn.relay.ops")
				}
				<-accepted
				pause(time.Millisecond)
				if cut {
					pause(8 * time.Second)
					wire.fail("")
					pause(8 * time.Second)
				}
				stop()
				_, stop = s.run(routes...)
				pause(10 * time.Second)
				o.wants(t, "when it is back", "recovered hook with 0 pending")
				stop()
			})
		})
	}
}

// A sink is not reported as down while what is pending for it is muted or new.
func TestASinkThatOnlyWaitsIsNotReportedOnARelay(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		hook, o := newRecorder(), newOps()
		hook.answer = fails(errRefused)
		r, stop := s.run(route("hook", hook), o.route())
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		pause(time.Minute)
		if _, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, 20*time.Minute); err != nil {
			t.Fatal(err)
		}
		pause(20 * time.Minute)
		o.wants(t, "while it is muted")
		pause(4 * time.Minute)
		o.wants(t, "4 minutes later")
		pause(6 * time.Minute)
		o.wants(t, "10 minutes later", "blocked hook since 00:21:02 with 1 pending: connection refused")
		stop()
	})
}

// The first dead letter of a sink is reported at once, further ones together after a minute, those that are about a
// relay never.
func TestDeadLettersAreReportedOnARelay(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, o := newRecorder(), newOps()
		hook.answer = fails(fmt.Errorf("%w: 422", delivery.ErrRejected))
		_, stop := s.run(with(route("hook", hook), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }), o.route())
		s.publish(eventNo(0).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		pause(5 * time.Second)
		o.wants(t, "at once", "1 dead of hook: rejected rejected: 422")
		for n := range 3 {
			s.publish(eventNo(n+1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
			pause(5 * time.Second)
		}
		o.wants(t, "within a minute")
		pause(time.Minute)
		o.wants(t, "after a minute", "3 dead of hook: rejected rejected: 422")
		pause(10 * time.Minute)
		o.wants(t, "later")
		s.publish(eventNo(9).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		pause(500 * time.Millisecond)
		stop()
		_, stop = s.run(o.route())
		pause(5 * time.Second)
		o.wants(t, "just before a stop", "1 dead of hook: rejected rejected: 422")
		stop()
	})
}

// Dead letters whose report can't be published are reported when that works again, once to each sink.
func TestDeadLettersAreReportedWhenTheStreamTakesIt(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, o, p, wire := newRecorder(), newOps(), newOps(), &cable{}
		hook.answer = fails(fmt.Errorf("%w: 422", delivery.ErrRejected))
		second := p.route()
		second.Name = "second"
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook), o.route(), second}, Connect: s.over(wire)})
		pause(2 * time.Second)
		wire.fail("forewarn.relay.second")
		for n := range 3 {
			s.publish(eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
			pause(time.Minute)
		}
		wire.fail("")
		pause(5 * time.Second)
		pause(time.Minute)
		for who, heard := range map[string]*ops{"ops": o, "second": p} {
			first, more := "1 dead of hook: rejected rejected: 422", "2 dead of hook: rejected rejected: 422"
			if got := heard.news(); !slices.Equal(got, []string{first, more}) {
				t.Errorf("%s heard %q, want of the first dead letter, and then of the others", who, got)
			}
			if got := sorted(heard.all()); len(slices.Compact(slices.Clone(got))) != len(got) {
				t.Errorf("%s heard %q, want each once", who, got)
			}
		}
		stop()
	})
}

// That a sink accepts nothing is no news while only messages about bridges and relays are pending for it. Once it is
// blocked, it is news as soon as the sink refuses a change too.
func TestASinkThatOnlyRefusesWhatIsAboutBridgesIsNotReportedOnARelay(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		hook, o := newRecorder(), newOps()
		hook.answer = fails(fmt.Errorf("%w: 401", delivery.ErrBlocked))
		_, stop := s.run(with(route("hook", hook), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }), o.route())
		ce, err := bridgeSaid("imds.recovered", "vm-1")(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		s.publish(ce)
		pause(20 * time.Minute)
		if n := len(hook.attempts()); n < 3 {
			t.Fatalf("the sink was tried %d times, want more", n)
		}
		o.wants(t, "with a message about a bridge")
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		pause(time.Minute + 5*time.Second)
		if heard := o.news(); len(heard) != 1 {
			t.Errorf("with a change ops heard %q, want that the sink is blocked", heard)
		}
		stop()
	})
}

// Nobody is told by way of a sink that this sink accepts nothing.
func TestAReportAboutASinkDoesNotFallBackToItOnARelay(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		hook, o := newRecorder(), newOps()
		hook.answer = fails(errRefused)
		o.answer = fails(errRefused)
		_, stop := s.run(route("hook", hook), with(o.route(), func(terms *bridge.Terms) {
			terms.Fallback = delivery.Fallback{Sink: "hook", After: time.Minute}
		}))
		change := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(change)
		pause(10 * time.Minute)
		hook.say(nil)
		pause(10 * time.Minute)
		wantIDs(t, "the sink that was down was told", hook.all(), change)
		stop()
	})
}

// Whoever was told that a sink is down is told that it is back, also if not everybody could be told before it was.
func TestWhoWasToldThatASinkIsDownIsToldThatItIsBack(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, o, p, wire := newRecorder(), newOps(), newOps(), &cable{}
		hook.answer = fails(errRefused)
		second := p.route()
		second.Name = "second"
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook), o.route(), second}, Connect: s.over(wire)})
		pause(2 * time.Second)
		wire.fail("forewarn.relay.second")
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		for len(o.all()) < 2 { // the change, and that the sink is down
			pause(time.Second)
		}
		hook.say(nil)
		for hook.all() == nil {
			pause(time.Second)
		}
		wire.fail("")
		pause(time.Minute)
		want := []string{"blocked hook since 00:00:02 with 1 pending: connection refused", "recovered hook with 0 pending"}
		o.wants(t, "who was told", want...)
		p.wants(t, "who could not be told", want...)
		stop()
	})
}

// So it is when the stream takes both only at the stop.
func TestThatASinkWasDownAndIsBackIsToldAtAStop(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, o, wire := newRecorder(), newOps(), &cable{}
		hook.answer = fails(errRefused)
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook), o.route()}, Connect: s.over(wire)})
		pause(2 * time.Second)
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		pause(4 * time.Minute)
		wire.fail("forewarn.relay.ops")
		pause(2 * time.Minute)
		hook.say(nil)
		for hook.all() == nil {
			pause(time.Second)
		}
		pause(time.Minute)
		wire.fail("")
		stop()
		_, stop = s.run(route("hook", hook), o.route())
		pause(time.Minute)
		o.wants(t, "in the end", "blocked hook since 00:00:02 with 1 pending: connection refused", "recovered hook with 0 pending")
		stop()
	})
}

// A sink that is removed during the attempt that blocks it is no trouble any more.
func TestTheTroubleOfASinkThatIsRemovedIsNotReportedOnARelay(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, o := newRecorder(), newOps()
		began := make(chan struct{}, 100)
		hook.answer = func([]delivery.Delivery) (delivery.Answer, error) {
			began <- struct{}{}
			time.Sleep(8 * time.Second)
			return delivery.Answer{}, fmt.Errorf("%w: 401", delivery.ErrBlocked)
		}
		r, stop := s.run(route("hook", hook), o.route())
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		<-began
		for start := time.Now(); time.Since(start) < 30*time.Second; { // until an attempt can be the one that blocks it
			<-began
		}
		pause(time.Second)
		r.Reload([]bridge.Route{o.route()}, bridge.SettingsInfo{})
		pause(10 * time.Minute)
		o.wants(t, "after it was removed")
		stop()
	})
}
