package relay_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// These tests are about the delivery loop on a relay: it has to be the one that a bridge has. They have the time of a
// bubble, so they aren't parallel.

// onStage runs f with a server, and a connection to publish over.
func onStage(t *testing.T, f func(s *stage)) {
	t.Helper()
	inBubble(t, func(t *testing.T) {
		s := &stage{fleet: &fleet{T: t}, server: startServer(t)}
		s.conn = s.server.connect(&cable{server: s.server})
		defer s.conn.Close()
		var err error
		if s.js, err = jetstream.New(s.conn); err != nil {
			t.Fatal(err)
		}
		f(s)
	})
}

// A stage is a fleet in a bubble.
type stage struct {
	*fleet
	server *bubbleServer
}

// run starts a relay, and waits until it serves its sinks. stop ends it.
func (s *stage) run(routes ...bridge.Route) (r *relay.Relay, stop func()) {
	s.Helper()
	r, stop = s.start(relay.Options{
		Routes: routes, Connect: func(ctx context.Context) (*nats.Conn, error) { return (&cable{server: s.server}).dial(ctx) },
	})
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

// What is over by the time that a relay takes a sink over is told as what it is: it reads all that waits before it sends
// the first of it.
func TestATakeoverKnowsAllThatWaits(t *testing.T) {
	for _, late := range []delivery.Late{delivery.LateLatest, delivery.LateDrop} {
		t.Run(string(late), func(t *testing.T) {
			onStage(t, func(s *stage) {
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
