package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// These tests are about the delivery loop on a relay: it has to be the one that a bridge has. They have the time of a
// bubble, so they aren't parallel.

// onStage runs f with a server, and a connection to publish over.
func onStage(t *testing.T, f func(t *testing.T, s *stage)) {
	t.Helper()
	inBubble(t, func(t *testing.T) {
		s := &stage{fleet: &fleet{T: t, look: 200 * time.Millisecond}, server: startServer(t)}
		s.connect = (&cable{server: s.server}).dial
		s.join()
		defer func() { s.conn.Close() }()
		f(t, s)
	})
}

// A stage is a fleet in a bubble.
type stage struct {
	*fleet
	server *bubbleServer
}

// join connects the test to the server.
func (s *stage) join() {
	s.Helper()
	s.conn = s.server.connect(&cable{server: s.server})
	var err error
	if s.js, err = jetstream.New(s.conn); err != nil {
		s.Fatal(err)
	}
}

// rest lets a long time pass without a server, which would wake up every few seconds of it. Nobody else may be connected.
func (s *stage) rest(d time.Duration) {
	s.Helper()
	s.conn.Close()
	s.server.off()
	pause(d)
	s.server.on()
	s.join()
}

// over connects over a cable.
func (s *stage) over(c *cable) func(context.Context) (*nats.Conn, error) {
	c.server = s.server
	return c.dial
}

// run starts a relay, and waits until it serves its sinks. stop ends it.
func (s *stage) run(routes ...bridge.Route) (r *relay.Relay, stop func()) {
	s.Helper()
	r, stop = s.start(relay.Options{Routes: routes})
	pause(2 * time.Second)
	return r, stop
}

// pause lets time pass, and everything happen that is due.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantIDs(t *testing.T, what string, got []string, want ...event.Event) {
	t.Helper()
	if !slices.Equal(got, ids(want...)) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, ids(want...))
	}
}

func with(r bridge.Route, change func(*bridge.Terms)) bridge.Route {
	change(&r.Terms)
	return r
}

// What is over by the time that a relay takes a sink over is told as what it is: it reads all that waits before it
// sends the first of it.
func TestATakeoverKnowsAllThatWaits(t *testing.T) {
	for _, late := range []delivery.Late{delivery.LateLatest, delivery.LateDrop} {
		t.Run(string(late), func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				r := with(route("hook", sink), func(t *bridge.Terms) { t.Late = late })
				_, stop := s.run(r)
				stop()
				var ends []event.Event
				for n := range 20 {
					a := eventNo(n)
					ends = append(ends, a.say(t, imds.Vanished, "vm-1"))
					s.publish(a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1"))
				}
				s.publish(ends...)
				_, stop = s.run(r)
				pause(20 * time.Second)
				wantIDs(t, "told", sink.all(), ends...)
				stop()
			})
		})
	}
}

var errRefused = errors.New("connection refused")

// say makes a recorder answer as f says.
func (s *recorder) say(f func([]delivery.Delivery) (delivery.Answer, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

func fails(err error) func([]delivery.Delivery) (delivery.Answer, error) {
	return func([]delivery.Delivery) (delivery.Answer, error) { return delivery.Answer{}, err }
}

// in returns an event that begins so much later.
func (a azure) in(d time.Duration) azure {
	a.notBefore = time.Now().Add(d).UTC().Truncate(time.Second)
	return a
}

// updated returns the CloudEvent of a change of NotBefore, which was another one.
func (a azure) updated(t *testing.T, was azure) event.Event {
	t.Helper()
	previous := was.event(imds.StatusScheduled)
	c := imds.Change{Kind: imds.Updated, Event: a.event(imds.StatusScheduled), Previous: &previous, Fields: []string{"NotBefore"}}
	ce, err := changeSaid(c, "vm-1")(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ce
}

// A change that a filter refused stays refused when a relay reads it again, after one that the filter let pass.
func TestARefusedChangeStaysRefusedWhenItIsReadAgain(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r := route("hook", sink)
		var err error
		if r.Filter.When, err = bridge.ParseWhen(`azeventtype == "Reboot"`); err != nil {
			t.Fatal(err)
		}
		sink.answer = fails(errRefused)
		_, stop := s.run(r)
		a := eventNo(1)
		a.typ = "Freeze"
		reboot := eventNo(1)
		waits, told := eventNo(2).say(t, imds.Scheduled, "vm-1"), reboot.updated(t, a)
		s.publish(waits) // so that the ack floor stays before the others
		s.publish(a.say(t, imds.Scheduled, "vm-1"))
		pause(time.Second)
		s.publish(told)
		sink.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			if batch[0].Event.ID() == waits.ID() {
				return delivery.Answer{}, errRefused
			}
			return delivery.Answer{}, nil
		})
		pause(10 * time.Minute)
		wantIDs(t, "at first", sink.all(), told)
		stop()
		_, stop = s.run(r)
		pause(10 * time.Minute)
		wantIDs(t, "after a restart", sink.all(), told)
		sink.say(nil)
		pause(10 * time.Minute)
		wantIDs(t, "in the end", sink.all(), told, waits)
		stop()
	})
}

// Forty events while the destination is down are one message once it is back, and what it gave back for them comes with
// each of them later.
func TestAWaveDoesNotFillAChannelOnARelay(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink, most := newRecorder(), 0
		sink.answer = fails(errRefused)
		_, stop := s.run(with(route("chat", sink), func(t *bridge.Terms) {
			t.Late, t.DigestAbove = delivery.LateLatest, 5
		}))
		for n := range 40 {
			s.publish(eventNo(n).in(48*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		pause(time.Minute)
		sink.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			most = max(most, len(batch))
			return delivery.Answer{Receipt: []byte("thread 1")}, nil
		})
		pause(6 * time.Minute) // longer than any wait between two attempts
		if n := len(sink.all()); n != 40 || most != 40 {
			t.Errorf("%d of 40 were told, at most %d in one message; want all, in one", n, most)
		}
		receipt := ""
		sink.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			receipt = string(batch[0].Receipt)
			return delivery.Answer{}, nil
		})
		s.publish(eventNo(7).say(t, imds.Started, "vm-1"))
		pause(2 * time.Second)
		if receipt != "thread 1" {
			t.Errorf("the next change came with the receipt %q, want that of the digest", receipt)
		}
		stop()
	})
}

// What a sink can't take for long its fallback is told, with the reason, once, and also what the sink rejects; what
// came as a fallback falls back no further.
func TestWhatASinkCannotTellItsFallbackDoesOnARelay(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		first, second, third := newRecorder(), newRecorder(), newRecorder()
		first.answer = fails(errRefused)
		var instead []delivery.FallbackFor
		second.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
			if batch[0].FallbackFor != nil {
				instead = append(instead, *batch[0].FallbackFor)
			}
			return delivery.Answer{}, fmt.Errorf("%w: 422", delivery.ErrRejected)
		}
		fall := func(r bridge.Route, to string) bridge.Route {
			r.Terms.Fallback = delivery.Fallback{Sink: to, After: 5 * time.Minute}
			return r
		}
		nothing := route("second", second)
		nothing.Filter.Only.Types = []string{"Preempt"}
		last := route("third", third)
		last.Filter.Only.Types = []string{"Preempt"}
		st, stop := s.run(fall(route("first", first), "second"), fall(nothing, "third"), last)
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(4 * time.Minute)
		wantIDs(t, "before its time", second.attempts())
		pause(2 * time.Minute)
		wantIDs(t, "after its time", second.attempts(), ce)
		if len(instead) != 1 || instead[0].Sink != "first" || instead[0].Error != "connection refused" {
			t.Errorf("it was told instead of %v", instead)
		}
		first.say(fails(fmt.Errorf("%w: 400", delivery.ErrRejected)))
		pause(10 * time.Minute)
		wantIDs(t, "what was handed over is handed over once", second.attempts(), ce)
		wantIDs(t, "nothing falls back twice", third.attempts())
		list, _, err := st.List(t.Context(), relay.Selection{State: "dead"}, 10)
		if err != nil || len(list) != 2 {
			t.Errorf("%d dead letters, %v; want one of each sink", len(list), err)
		}
		stop()
	})
}

// What is due in less than 15 minutes is tried at once, also at a sink that is blocked; other events in turn, once a
// minute.
func TestUrgencyBeatsABlockedSinkOnARelay(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		sink.answer = fails(fmt.Errorf("%w: 401", delivery.ErrBlocked))
		st, stop := s.run(route("hook", sink))
		for n := range 2 {
			s.publish(eventNo(n).in(72*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		pause(20 * time.Minute)
		if k := st.Status().Sinks[0]; k.State != bridge.SinkIsBlocked {
			t.Errorf("the sink is %s", k.State)
		}
		before := len(sink.attempts())
		pause(10 * time.Minute)
		probes := sink.attempts()[before:]
		if len(probes) < 9 || len(probes) > 11 || probes[0] == probes[1] {
			t.Errorf("probes in 10 minutes: %q", probes)
		}
		before = len(sink.attempts())
		urgent := eventNo(9).in(time.Minute).say(t, imds.Scheduled, "vm-1")
		s.publish(urgent)
		pause(2 * time.Second)
		if tried := sink.attempts()[before:]; len(tried) == 0 || tried[0] != urgent.ID() {
			t.Errorf("tried within 2 s: %q, want %s first", tried, urgent.ID())
		}
		stop()
	})
}

// What the stream holds can be sent to a sink again: what its filter took, one of all copies, marked with when, in the
// order of the stream, in parts.
func TestThePastCanBeReplayed(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink, other := newRecorder(), newRecorder()
		marked := 0
		sink.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
			if _, ok := batch[0].Event.Extensions()["recordedtime"]; ok {
				marked++
			}
			return delivery.Answer{}, nil
		}
		reboots := route("hook", sink)
		reboots.Filter.Only.Types = []string{"Reboot"}
		r, stop := s.run(reboots, route("other", other))
		a, b, old := eventNo(1), eventNo(2), eventNo(3)
		b.typ = "Freeze"
		s.publish(old.say(t, imds.Scheduled, "vm-1"))
		pause(time.Minute)
		began := time.Now()
		first, second := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Vanished, "vm-1")
		s.publish(first, b.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Scheduled, "vm-2"))
		for range 1500 { // more than one part looks at
			s.publish(b.say(t, imds.Scheduled, "vm-1"))
		}
		s.publish(second)
		s.publishRaw("forewarn.events.junk", nil, []byte("junk"))
		pause(time.Minute)
		before, heard := len(sink.all()), len(other.all())
		p, parts := relay.ReplayRequest{Sink: "hook", Since: began, Run: "one"}, 0
		for more := true; more; parts++ {
			part, err := r.ReplayPast(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			p.After, more = part.After, part.After > 0
		}
		pause(time.Minute)
		wantIDs(t, "again", sink.all()[before:], first, second)
		if marked != 2 || parts != 2 || len(other.all()) != heard {
			t.Errorf("%d are marked with recordedtime, want 2; %d parts, want 2; another sink heard %d more", marked, parts,
				len(other.all())-heard)
		}
		p = relay.ReplayRequest{Sink: "hook", Since: began, Run: "two", Event: strings.ToLower(a.id)}
		if part, err := r.ReplayPast(t.Context(), p); err != nil || len(part.Replayed) != 1 {
			t.Errorf("of one event %v, %v", part, err)
		}
		pause(time.Minute)
		wantIDs(t, "a second time", sink.all()[before:], first, second, first)
		if _, err := r.ReplayPast(t.Context(), relay.ReplayRequest{Sink: "nobody", Since: began}); err == nil {
			t.Error("a sink that isn't there gets the past")
		}
		stop()
	})
}

// A relay knows the VMs that it heard of and the events that aren't over: first the VMs whose event has begun, then
// those with an event by when it begins, then the others, silent for longest first. A relay is no VM.
func TestARelayKnowsItsFleet(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		r, stop := s.run(route("hook", newRecorder()))
		near, far, begun, over := eventNo(1).in(20*time.Minute), eventNo(2).in(50*time.Minute), eventNo(3), eventNo(4)
		about := func(typ string, o imds.Observer) event.Event {
			ce, err := cloudevent.WrapBridge(typ, nil, o, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return ce
		}
		s.publish(about(cloudevent.BridgeHeartbeat, imds.Observer{Name: "vm-8", VMID: "8"}))
		pause(time.Second)
		s.publish(about(cloudevent.BridgeStarted, imds.Observer{Name: "VM-7", ResourceID: "/7", ScaleSet: "web"}),
			about(cloudevent.SinkBlocked, imds.Observer{Name: "relay-2"}))
		s.publish(far.say(t, imds.Scheduled, "vm-1"), near.say(t, imds.Scheduled, "vm-1"), begun.say(t, imds.Started, "vm-1"),
			over.say(t, imds.Scheduled, "vm-1"), over.say(t, imds.Vanished, "vm-1"))
		pause(time.Second)
		st := r.Status()
		var open, vms []string
		for _, e := range st.Events {
			open = append(open, e.Known.ID)
		}
		for _, v := range st.Relay.VMs {
			vms = append(vms, v.Name)
		}
		slices.Sort(open)
		if want := []string{near.id, far.id, begun.id}; !slices.Equal(open, want) {
			t.Errorf("open are %q, want %q", open, want)
		}
		if want := []string{"vm-3", "vm-1", "vm-2", "vm-8", "VM-7"}; !slices.Equal(vms, want) {
			t.Errorf("the VMs are %q, want %q", vms, want)
		}
		for _, v := range st.Relay.VMs {
			switch {
			case v.Name == "VM-7" && (v.Set != "web" || len(v.Events) > 0 || v.LastHeard.IsZero()),
				v.Name == "vm-1" && (!slices.Equal(v.Events, []string{near.id}) || v.Started || v.LastHeard.IsZero() ||
					!v.NotBefore.Equal(near.notBefore)),
				v.Name == "vm-3" && (!v.Started || !v.LastHeard.IsZero()):
				t.Errorf("%s is %+v", v.Name, v)
			}
		}
		if len(st.Relay.Relays) != 1 || st.Relay.Relays[0].Name != "relay-1" {
			t.Errorf("the relays are %+v", st.Relay.Relays)
		}
		histories, more, _ := r.Histories(t.Context(), bridge.Period{})
		if len(histories) != 4 || more {
			t.Errorf("%d lives, more %v; want 4 and no more", len(histories), more)
		}
		for _, h := range histories {
			for _, c := range h.Changes {
				if len(c.Deliveries) != 1 || c.Deliveries[0].State != "accepted" || c.Deliveries[0].Route != "hook" {
					t.Errorf("%s was told to %+v", c.ID, c.Deliveries)
				}
			}
		}
		stop()
	})
}

// A fallback that was told anyway is not told again.
func TestAFallbackThatKnowsIsNotToldAgainOnARelay(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		first, second := newRecorder(), newRecorder()
		first.answer = fails(errRefused)
		down := with(route("first", first), func(t *bridge.Terms) {
			t.Fallback = delivery.Fallback{Sink: "second", After: time.Minute}
		})
		_, stop := s.run(down, route("second", second))
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(10 * time.Minute)
		wantIDs(t, "the fallback", second.attempts(), ce)
		stop()
	})
}
