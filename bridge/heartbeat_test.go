package bridge_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// Heartbeats come while all is well, and stop when the endpoint does not answer; they leave no history, and do not pile
// up at a sink that is down.
func TestHeartbeatsStopWhenSomethingIsWrong(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		watch, down := &recorder{}, answering(errSinkDown)
		beats := func(t *bridge.Terms) { t.Heartbeat = 5 * time.Minute }
		b := s.start(watch.all("watch").With(beats), down.all("down").With(beats))
		pause(21*time.Minute + 2*time.Second)
		wantIDs(t, watch.types(), slices.Repeat([]string{"heartbeat"}, 5)...)
		wantEqual(t, "heartbeats are pending for the sink that is down", len(b.Outbox.List(outbox.Selection{Route: "down"})), 1)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(20 * time.Minute)
		wantEqual(t, "heartbeats, while the endpoint fails", len(watch.types()), 5)
		s.azure.ClearFaults()
		pause(7 * time.Minute)
		again := len(watch.types())
		wantWithin(t, "heartbeats, once it answers", again, 6, 8)
		s.disk.fail(errFull)
		pause(20 * time.Minute)
		// With the first the outbox tries the disk.
		wantWithin(t, "heartbeats while nothing can be stored", len(watch.types())-again, 0, 1)
		s.disk.fail(nil)
		pause(time.Minute)
		b.end()
		wantSays(t, watch.heard[len(watch.heard)-1], map[string]any{"interval": 300.0, "stopping": true})
		recorded := func(r outbox.Record) error {
			if len(r.Deliveries) > 0 && r.Deliveries[0].State != outbox.StatePending {
				return fmt.Errorf("it keeps %s", r.Body)
			}
			return nil
		}
		must(t, stored(t, s.dir).Walk(0, recorded)) // heartbeats leave no history
	})
}

// A heartbeat takes the place of the one before, and of nothing else: neither of another sink's, nor of what its own sink
// is still to hear about forewarn.
func TestAHeartbeatReplacesOnlyItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		often, seldom := answering(errSinkDown), answering(errSinkDown)
		s.start(
			often.all("often").With(func(t *bridge.Terms) { t.Bridge, t.Heartbeat = bridge.LevelAll, time.Minute }),
			seldom.all("seldom").With(func(t *bridge.Terms) { t.Heartbeat = 20 * time.Minute }))
		pause(10 * time.Minute)
		often.say(nil)
		seldom.say(nil)
		pause(5 * time.Minute)
		wantIDs(t, seldom.types(), "heartbeat")
		wantIn(t, "heard", strings.Join(often.types(), " "), "started")
	})
}

// Heartbeats come as often as they promise, so that a monitor may count on it.
func TestHeartbeatsComeAsOftenAsTheyPromise(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		watch, other := &recorder{}, &recorder{}
		beats := func(t *bridge.Terms) { t.Heartbeat = time.Minute }
		s.start(watch.all("watch").With(beats), other.all("other").With(beats))
		pause(3*time.Minute + 30*time.Second)
		all := watch.accepted()
		for n, id := range other.ids() { // one for each sink, so that it is gone when it is delivered
			if id == all[n].Event.ID() {
				t.Errorf("two sinks got the heartbeat %s", id)
			}
		}
		wantEqual(t, "heartbeats", len(all), 4)
		for n := range all[1:] {
			wantEqual(t, "the time between two", all[n+1].at.Sub(all[n].at), time.Minute)
		}
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(4 * time.Minute)
		// The last of them came half a minute after the endpoint had stopped answering.
		wantEqual(t, "heartbeats", len(watch.accepted()), 5)
	})
}

// Before the first answer of the endpoint no heartbeat says that all is well, and so none says at a stop that no other
// will come. After an answer one comes at once, and one at the stop.
func TestNoHeartbeatComesBeforeTheFirstAnswer(t *testing.T) {
	for answers, stopping := range map[bool][]any{false: nil, true: {nil, true}} {
		subtest(t, fmt.Sprintf("it answers %t", answers), func(t *testing.T, s *stage) {
			s.azure.SetFault(imdstest.Fault{Status: 503})
			watch := &recorder{}
			b := s.start(watch.all("watch").With(func(t *bridge.Terms) { t.Heartbeat = time.Hour }))
			pause(3 * time.Minute)
			wantIDs(t, watch.types())
			if answers {
				s.azure.ClearFaults()
				pause(time.Minute)
			}
			b.end()
			wantEqual(t, "heartbeats", len(watch.accepted()), len(stopping))
			for i, h := range watch.accepted() {
				wantSays(t, h, map[string]any{"stopping": stopping[i]})
			}
		})
	}
}

// A monitor is told at once when a reload changes how often heartbeats come, or ends them: it would miss those that it
// was promised, and take the VM for silent.
func TestAReloadThatChangesHeartbeatsIsTold(t *testing.T) {
	systemtest.Alone(t)
	_, schema := schemas(t)
	bubble(t, func(t *testing.T, s *stage) {
		watch := &recorder{}
		every := func(d time.Duration) []bridge.Route {
			return []bridge.Route{watch.all("watch").With(func(t *bridge.Terms) { t.Heartbeat = d })}
		}
		b := s.start(every(time.Minute)...)
		pause(90 * time.Second)
		b.reload(every(time.Hour)...)
		pause(10 * time.Minute)
		b.reload(every(0)...)
		pause(2 * time.Hour)
		var promised []any
		for _, h := range watch.accepted() {
			promised = append(promised, tellingOf(t, h.Event)["interval"])
			must(t, breaks(t, schema, h.Event.Data()))
		}
		if want := []any{60.0, 60.0, 3600.0, nil}; !slices.Equal(promised, want) {
			t.Errorf("the heartbeats promise the next one after %v s, want %v", promised, want)
		}
	})
}

// A heartbeat at a stop is told apart from one of the same moment: a clock may be coarse.
func TestHeartbeatsOfOneMomentAreToldApart(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		watch := &recorder{}
		b := s.start(watch.all("watch").With(func(t *bridge.Terms) { t.Heartbeat = 10 * time.Second }))
		for len(watch.accepted()) == 0 {
			pause(time.Second / 10)
		}
		said := watch.accepted()[0].Event
		pause(time.Until(said.Time().Add(10 * time.Second)))
		b.end()
		ids := watch.ids()
		slices.Sort(ids)
		wantEqual(t, "heartbeats", len(ids), 3)
		wantEqual(t, "ids", len(slices.Compact(ids)), 3)
	})
}
