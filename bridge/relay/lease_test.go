package relay_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// Two relays share the sinks: whichever is free takes what is free. When one can't reach its leases it sends nothing more,
// and the other has taken its sinks over within 10 s, which continue where they were. Nothing moves back.
func TestOneRelayASinkAndAnotherTakesOver(t *testing.T) {
	onStage(t, testOneRelayASinkAndAnotherTakesOver)
}

func testOneRelayASinkAndAnotherTakesOver(t *testing.T, f *stage) {
	names := []string{"a", "b", "c", "d"}
	wire := &cable{}
	start := func(name string, o relay.Options) (*relay.Relay, map[string]*recorder) {
		sinks := map[string]*recorder{}
		for _, n := range names {
			sinks[n] = newRecorder()
			o.Routes = append(o.Routes, route(n, sinks[n]))
		}
		o.Name = name
		r, _ := f.start(o)
		return r, sinks
	}
	one, first := start("relay-1", relay.Options{Connect: f.over(wire)})
	held := func(r *relay.Relay) (mine []string) {
		for _, k := range r.Status().Sinks {
			if k.State != bridge.SinkStandby {
				mine = append(mine, k.Name)
			}
		}
		return mine
	}
	f.until("the first relay serves all", func() bool { return len(held(one)) == len(names) }, nil)
	two, second := start("relay-2", relay.Options{})
	a := eventNo(1)
	scheduled, started := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1")
	f.publish(scheduled)
	for _, n := range names {
		f.settled(n)
		if got := len(first[n].all()) + len(second[n].all()); got != 1 {
			t.Errorf("%s was told %d times, want once", n, got)
		}
	}

	wire.fail("hangs")
	cut := time.Now()
	f.publish(started)
	f.until("the other relay serves all", func() bool { return len(held(two)) == len(names) }, nil)
	if took := time.Since(cut); took > 10*time.Second {
		t.Errorf("it took %v until the other relay served all, want 10 s at most", took)
	}
	if left := held(one); len(left) > 0 {
		t.Errorf("the relay without its leases still serves %q", left)
	}
	for _, n := range names {
		f.settled(n)
		got := append(first[n].all(), second[n].all()...)
		if !slices.Equal(got, ids(scheduled, started)) {
			t.Errorf("%s heard %q, want %q", n, got, ids(scheduled, started))
		}
	}
	wire.fail("")
	pause(10 * time.Minute)
	if left := held(one); len(left) > 0 {
		t.Errorf("%q moved back", left)
	}
}

// A relay that can't reach a sink for a minute gives it up for one that may: also if that began with something under way,
// which ends first. Where no relay reaches it, each has it for minutes at a time, and it is never without one.
func TestASinkThatFailsHereIsGivenUpForAnotherRelay(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		first, second := newRecorder(), newRecorder()
		first.answer, second.answer = fails(errRefused), fails(errRefused)
		_, stop := s.start(relay.Options{Name: "relay-1", Routes: []bridge.Route{route("hook", first)}})
		pause(2 * time.Second)
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(5 * time.Minute)
		if n := len(first.attempts()); n < 5 {
			t.Errorf("alone it made %d attempts in five minutes, want it to go on", n)
		}
		_, stopOther := s.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{route("hook", second)}})
		pause(20 * time.Second)
		if n := len(second.attempts()); n == 0 {
			t.Error("the other relay made no attempt within 20 s")
		}
		before, of := len(first.attempts()), len(second.attempts())
		for range 30 {
			pause(time.Minute)
		}
		if n, other := len(first.attempts())-before, len(second.attempts())-of; n < 5 || other < 5 {
			t.Errorf("in half an hour one made %d attempts and the other %d, want both to try", n, other)
		}
		second.say(nil)
		pause(11 * time.Minute)
		wantIDs(t, "told", second.all(), ce)
		stop()
		stopOther()
	})
}

// Nor does a relay keep a sink that can hold its lease and not read the stream for it.
func TestASinkWhoseStreamCannotBeReadHereIsGivenUpForAnotherRelay(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		first, second, wire := newRecorder(), newRecorder(), &cable{}
		_, stop := s.start(relay.Options{Name: "relay-1", Routes: []bridge.Route{route("hook", first)}, Connect: s.over(wire)})
		pause(2 * time.Second)
		_, stopOther := s.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{route("hook", second)}})
		pause(time.Minute)
		wire.fail(requestsLost)
		a, b := eventNo(1).in(24*time.Hour), eventNo(2).in(24*time.Hour)
		asked, not := a.say(t, imds.Scheduled, "vm-1"), b.say(t, imds.Scheduled, "vm-1")
		s.publish(asked)
		pause(time.Second)
		s.publish(not)
		pause(2 * time.Minute)
		wantIDs(t, "by the one whose last request was answered", first.all(), asked)
		wantIDs(t, "by the other", second.all(), not)
		stop()
		stopOther()
	})
}

// A relay whose sink was given up for another serves it at once if there is no other any more.
func TestARelayThatRestsServesASinkThatNobodyElseDoes(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		first, second := newRecorder(), newRecorder()
		first.answer = fails(errRefused)
		_, stop := s.start(relay.Options{Name: "relay-1", Routes: []bridge.Route{route("hook", first)}})
		pause(2 * time.Second)
		wire := &cable{}
		_, stopOther := s.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{route("hook", second)}, Connect: s.over(wire)})
		a := eventNo(1).in(24 * time.Hour)
		scheduled, started := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1")
		s.publish(scheduled)
		pause(90 * time.Second)
		wantIDs(t, "by the other", second.all(), scheduled)
		first.say(nil)
		wire.fail("hangs")
		s.publish(started)
		pause(20 * time.Second)
		wantIDs(t, "by the one that rested", first.all(), started)
		stop()
		stopOther()
	})
}

// An attempt that is under way when the lease can't be renewed is cut off before another relay may make it.
func TestLostLeaseCutsAttemptsOff(t *testing.T) { onStage(t, testLostLeaseCutsAttemptsOff) }

func testLostLeaseCutsAttemptsOff(t *testing.T, f *stage) {
	wire := &cable{}
	began, cut := make(chan time.Time, 1), make(chan time.Time, 1)
	slow := slowSink(func(ctx context.Context) error {
		began <- time.Now()
		<-ctx.Done()
		cut <- time.Now()
		return ctx.Err()
	})
	patient := route("hook", slow)
	patient.Terms.Timeout = 0 // such as exec
	f.start(relay.Options{Name: "relay-1", Routes: []bridge.Route{patient}, Connect: f.over(wire)})
	f.begin("hook")
	ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
	f.publish(ce)
	<-began
	wire.fail("hangs")
	second := newRecorder()
	var told time.Time
	second.answer = func([]delivery.Delivery) (delivery.Answer, error) {
		told = time.Now()
		return delivery.Answer{}, nil
	}
	f.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{route("hook", second)}})
	f.hears(second, 1)
	select {
	case at := <-cut:
		if !at.Before(told) {
			t.Errorf("the first relay's attempt ended %v after the second made its own", at.Sub(told))
		}
	default:
		t.Error("the attempt of the relay without its lease goes on")
	}
}

// So it is if the other relay's question who holds the lease took seconds, and the last renewal came meanwhile.
func TestASlowReadTakesNoLeaseTooEarly(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var first thoroughSink
		patient := route("hook", &first)
		patient.Terms.Timeout = 0 // such as exec
		one, two := &cable{}, &cable{}
		s.start(relay.Options{Name: "relay-1", Routes: []bridge.Route{patient}, Connect: s.over(one)})
		pause(2 * time.Second)
		second := newRecorder()
		ended := make(chan int, 1) // attempts of the first when the second makes its own
		second.answer = func([]delivery.Delivery) (delivery.Answer, error) {
			first.mu.Lock()
			defer first.mu.Unlock()
			ended <- first.ended
			return delivery.Answer{}, nil
		}
		s.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{route("hook", second)}, Connect: s.over(two)})
		pause(2 * time.Second)
		s.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
		s.renewed("hook")
		two.slow(4 * time.Second)
		pause(4*time.Second + time.Millisecond) // until the next renewal but one
		one.fail("hangs")
		two.slow(0)
		if n := <-ended; n != 1 {
			t.Error("the first relay's attempt goes on while the second makes its own")
		}
	})
}

// renewed waits until the lease of a sink is renewed.
func (s *stage) renewed(sink string) {
	s.Helper()
	lease, err := s.conn.SubscribeSync("$KV.FOREWARN_leases.lease." + sink)
	if err == nil {
		_, err = lease.NextMsg(time.Minute)
	}
	if err := errors.Join(err, lease.Unsubscribe()); err != nil {
		s.Fatal(err)
	}
}

// A relay keeps a sink when an answer to it gets lost, as when its connection breaks.
func TestALostAnswerCostsNoSink(t *testing.T) {
	for _, what := range []string{"lease", "record", "state"} {
		t.Run(what, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				var log systemtest.Log
				wire, hook := &cable{}, newRecorder()
				_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, Connect: s.over(wire),
					Log: log.Logger()})
				pause(2 * time.Second)
				a, b := eventNo(1), eventNo(2)
				all := []event.Event{a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1"),
					b.say(t, imds.Scheduled, "vm-1")}
				if what == "record" {
					hook.say(func([]delivery.Delivery) (delivery.Answer, error) {
						wire.fail("deaf")
						return delivery.Answer{}, nil
					})
				}
				s.renewed("hook")
				pause(100 * time.Millisecond)
				s.publish(all[0])
				pause(time.Millisecond)
				if what == "lease" {
					pause(1500 * time.Millisecond)
				}
				wire.fail("deaf")
				pause(time.Second)
				hook.say(nil)
				wire.fail("")
				s.publish(all[1:]...)
				pause(20 * time.Second)
				wantIDs(t, "told", sorted(hook.attempts()), all...)
				if n := log.Count("serves the sink no more"); n > 0 {
					t.Errorf("the relay lost the sink %d times", n)
				}
				stop()
			})
		})
	}
}

// While no server can be reached, status says that, and not what the client's library says of its buffer.
func TestARelayWithoutServersSaysSo(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		r, stop := s.run(route("hook", newRecorder()))
		s.server.off()
		pause(2 * time.Minute)
		got := append(r.Status().Reasons, r.Status().Warnings...)
		want := []string{
			"the sink hook is not served: lease: no NATS server can be reached",
			"nobody can be told which VMs fall silent: no NATS server can be reached",
		}
		if !slices.Equal(got, want) {
			t.Errorf("status says\n%q, want\n%q", got, want)
		}
		stop()
	})
}

// A relay keeps its sinks when another one with other settings starts, which may not have them.
func TestARelayWithOtherSettingsGetsNoSinks(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		a, b := newRecorder(), newRecorder()
		a.answer, b.answer = fails(errRefused), fails(errRefused)
		_, stop := s.start(relay.Options{Name: "relay-1", Settings: bridge.SettingsInfo{Hash: "aaa"},
			Routes: []bridge.Route{route("a", a), route("b", b)}})
		_, stopOther := s.start(relay.Options{Name: "relay-2", Settings: bridge.SettingsInfo{Hash: "bbb"},
			Routes: []bridge.Route{route("c", newRecorder())}})
		pause(2 * time.Second)
		s.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
		pause(10 * time.Minute)
		for name, sink := range map[string]*recorder{"a": a, "b": b} {
			if n := len(sink.attempts()); n == 0 || n > 40 {
				t.Errorf("%d attempts at sink %s, want at most 40", n, name)
			}
		}
		stop()
		stopOther()
	})
}

// A server may lose the leases, as it may an hour after a restart. A lease that is lost while a relay holds it stays that
// relay's.
func TestALeaseThatTheServerLosesStaysWithItsHolder(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		routes := []bridge.Route{route("hook", sink)}
		one, stop := s.start(relay.Options{Name: "relay-1", Routes: routes})
		pause(2 * time.Second)
		two, stopOther := s.start(relay.Options{Name: "relay-2", Routes: routes})
		pause(2 * time.Second)
		leases, err := s.js.Stream(t.Context(), "KV_FOREWARN_leases")
		if err == nil {
			err = leases.Purge(t.Context(), jetstream.WithPurgeSubject("$KV.FOREWARN_leases.lease.hook"))
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 300 {
			pause(100 * time.Millisecond)
			a, b := one.Status().Sinks[0].State, two.Status().Sinks[0].State
			if a != bridge.SinkOK || b != bridge.SinkStandby {
				t.Fatalf("the sink is %s at its holder and %s at the other relay, want %s and %s", a, b, bridge.SinkOK,
					bridge.SinkStandby)
			}
		}
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(5 * time.Second)
		wantIDs(t, "told", sink.all(), ce)
		stop()
		pause(time.Second)
		if state := two.Status().Sinks[0].State; state != bridge.SinkOK {
			t.Errorf("after the holder has stopped the sink is %s at the other relay, want %s", state, bridge.SinkOK)
		}
		stopOther()
	})
}

// Or it may come back with what the lease was before. The holder still has it: nobody else serves the sink meanwhile.
func TestALeaseThatTheServerForgetsStaysWithItsHolder(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var attempts, most atomic.Int32
		long := with(route("hook", deliverer(func(ctx context.Context, _ []delivery.Delivery) (delivery.Answer, error) {
			if n := attempts.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer attempts.Add(-1)
			select {
			case <-time.After(30 * time.Second):
				return delivery.Answer{}, nil
			case <-ctx.Done():
				return delivery.Answer{}, ctx.Err()
			}
		})), func(t *bridge.Terms) { t.Timeout = 0 })
		_, stop := s.run(long)
		stop()
		var stops []func()
		s.crash("KV_FOREWARN_leases", func() { // and comes back with the free lease of before
			for _, name := range []string{"relay-1", "relay-2"} {
				_, stop := s.start(relay.Options{Name: name, Routes: []bridge.Route{long}})
				stops = append(stops, stop)
				pause(5 * time.Second)
			}
			s.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
			pause(time.Second)
		})
		pause(time.Minute)
		if most.Load() != 1 {
			t.Errorf("%d attempts were made at a time", most.Load())
		}
		for _, stop := range stops {
			stop()
		}
	})
}

type deliverer func(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error)

func (d deliverer) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	return d(ctx, batch)
}

type slowSink func(ctx context.Context) error

func (s slowSink) Deliver(ctx context.Context, _ []delivery.Delivery) (delivery.Answer, error) {
	return delivery.Answer{}, s(ctx)
}

// A thoroughSink takes 20 s for an attempt, unless that is cut off.
type thoroughSink struct {
	mu         sync.Mutex
	ended, cut int
}

func (s *thoroughSink) Deliver(ctx context.Context, _ []delivery.Delivery) (delivery.Answer, error) {
	err := sleepFor(ctx, 20*time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended++; err != nil {
		s.cut++
	}
	return delivery.Answer{}, err
}

// wants fails the test unless so many attempts have ended by themselves, and none was cut off.
func (s *thoroughSink) wants(t *testing.T, attempts int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != attempts || s.cut > 0 {
		t.Errorf("%d attempts ended, %d of them cut off; want %d, and none cut off", s.ended, s.cut, attempts)
	}
}

func sleepFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A request for messages that gets lost, as at a server that has just started, is noticed within seconds: nobody hears of
// it otherwise.
func TestALostRequestForMessagesIsNoticedSoon(t *testing.T) { onStage(t, testLostRequest) }

func testLostRequest(t *testing.T, f *stage) {
	wire := &cable{fault: "CONSUMER.MSG.NEXT"}
	sink := newRecorder()
	r, stop := f.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}, Connect: f.over(wire)})
	pause(2 * time.Second)
	wire.fail("")
	f.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
	pause(10 * time.Second)
	if n := len(sink.all()); n != 1 {
		t.Errorf("after ten seconds the sink has heard %d CloudEvents, want 1", n)
	}
	if all, _, _ := r.Histories(t.Context(), bridge.Period{}); len(all) != 1 {
		t.Errorf("after ten seconds the history has %d events, want 1", len(all))
	}
	stop()
}

// A relay that stops gives its leases up, so that the other takes over at once.
func TestStoppedRelayHandsOverAtOnce(t *testing.T) {
	f := newFleet(t)
	first, second := newRecorder(), newRecorder()
	_, stop := f.start(relay.Options{Name: "relay-1", Routes: []bridge.Route{route("hook", first)}})
	f.begin("hook")
	two, _ := f.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{route("hook", second)}})
	f.until("the second sees who serves", func() bool { return two.Status().Sinks[0].Relay == "relay-1" }, nil)
	stop()
	stopped := time.Now()
	f.until("the second serves", func() bool { return two.Status().Sinks[0].State == bridge.SinkOK }, nil)
	if took := time.Since(stopped); took > 3*time.Second {
		t.Errorf("it took %v, want it at once", took)
	}
}

// When the stream or a bucket is deleted, the relay says so and isn't ready; when it is there again, it goes on.
func TestDeletedStreamAndBuckets(t *testing.T) {
	systemtest.Alone(t)
	for _, name := range []string{"FOREWARN", "KV_FOREWARN_records", "KV_FOREWARN_leases", "FOREWARN_dead"} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			sink := newRecorder()
			r, _ := f.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}})
			f.begin("hook")
			a := eventNo(1)
			first := a.say(t, imds.Scheduled, "vm-1")
			f.publish(first)
			f.hears(sink, 1)
			f.settled("hook")
			if err := f.js.DeleteStream(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			f.until("it is not ready", func() bool { return !r.Status().Ready }, nil)
			f.provision(relay.Retention{})
			f.until("it is ready again", func() bool {
				st := r.Status()
				return st.Ready && st.Sinks[0].State == bridge.SinkOK
			}, nil)
			second := a.say(t, imds.Started, "vm-1")
			if name == "FOREWARN" {
				f.publish(first) // another observer's copy, which the new stream can't know again
			}
			f.publish(second)
			f.until("the next change is told", func() bool { return slices.Contains(sink.all(), second.ID()) }, sink.news)
			if got := count(sink.all()); name != "KV_FOREWARN_records" && (got[first.ID()] != 1 || got[second.ID()] != 1) {
				t.Errorf("the sink heard %q, want each change once", sink.all())
			}
		})
	}
}

// A record that a slow relay writes as its lease ends doesn't have the next relay repeat what the sink has accepted,
// from either of them.
func TestARecordThatComesLateRepeatsNothing(t *testing.T) {
	for name, first := range map[string]struct {
		takes   time.Duration // its attempt
		refuses bool          // the sink, the second relay's first attempt
		slow    time.Duration // the second relay's link
	}{
		"it knows of a failure":      {time.Minute, false, 0},
		"it knows of an acceptance":  {5 * time.Second, true, 0},
		"the other's link is slow":   {time.Minute, false, 1300 * time.Millisecond},
		"the other's link is slower": {time.Minute, false, 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "it knows of a failure" {
				systemtest.Alone(t)
			}
			onStage(t, func(t *testing.T, s *stage) {
				var accepted atomic.Int32
				hook := func(takes time.Duration, refuses bool) bridge.Route {
					r := route("hook", deliverer(func(ctx context.Context, _ []delivery.Delivery) (delivery.Answer, error) {
						if err := sleepFor(ctx, takes); err != nil {
							return delivery.Answer{Receipt: []byte("cut off")}, err
						}
						if refuses {
							refuses = false
							return delivery.Answer{}, errRefused
						}
						accepted.Add(1)
						return delivery.Answer{}, nil
					}))
					r.Terms.Timeout = 0 // such as exec
					return r
				}
				wire, second := &cable{}, &cable{}
				s.start(relay.Options{Name: "relay-1", Routes: []bridge.Route{hook(first.takes, false)}, Connect: s.over(wire)})
				pause(2 * time.Second)
				s.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{hook(6*time.Second, first.refuses)},
					Connect: s.over(second)})
				pause(2 * time.Second)
				s.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
				pause(time.Second)
				s.renewed("hook")
				pause(100 * time.Millisecond)
				wire.slow(6 * time.Second)
				pause(10 * time.Second)
				wire.slow(0)
				second.slow(first.slow)
				pause(2 * time.Minute)
				second.slow(0)
				pause(2 * time.Minute)
				if n := accepted.Load(); n != 1 {
					t.Errorf("the sink accepted it %d times, want once", n)
				}
			})
		})
	}
}

// Nor does a reload make a relay ready that can't read the stream: it is when it has read something.
func TestAReloadDoesNotEndWhatKeepsARelayFromReading(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		wire, routes := &cable{}, []bridge.Route{route("hook", newRecorder())}
		r, stop := s.start(relay.Options{Routes: routes, Connect: s.over(wire)})
		defer stop()
		pause(2 * time.Second)
		wire.fail(requestsLost)
		pause(30 * time.Second)
		r.Reload(routes, bridge.SettingsInfo{})
		for range 40 {
			pause(100 * time.Millisecond)
			if r.Status().Ready {
				t.Fatal("it is ready although it can't read")
			}
		}
		wire.fail("")
		pause(10 * time.Second)
		if st := r.Status(); !st.Ready {
			t.Errorf("it can read and isn't ready because of %q", st.Reasons)
		}
	})
}

// A relay is ready once somebody serves its sinks: what is published then is told.
func TestARelayIsReadyOnceItsSinksAreServed(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", newRecorder())}, Connect: s.over(&cable{latency: 20 * time.Millisecond})})
		defer stop()
		for !r.Status().Ready {
			pause(5 * time.Millisecond)
		}
		if k := r.Status().Sinks[0]; k.State != bridge.SinkOK {
			t.Errorf("it is ready and its sink is %s", k.State)
		}
	})
}
