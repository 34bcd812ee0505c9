package bridge_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

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
		if got := watch.types(); len(got) != 5 || slices.ContainsFunc(got, func(k string) bool { return k != "heartbeat" }) {
			t.Errorf("heard %v in 21 minutes, want five heartbeats", got)
		}
		wantEqual(t, "heartbeats are pending for the sink that is down", len(b.Outbox.List(outbox.Selection{Route: "down"})), 1)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(20 * time.Minute)
		if got := watch.types(); len(got) != 5 {
			t.Errorf("heard %v, want no heartbeat while the endpoint fails", got)
		}
		s.azure.ClearFaults()
		pause(7 * time.Minute)
		again := len(watch.types())
		if again < 6 {
			t.Errorf("heard %v, want them again", watch.types())
		}
		s.disk.fail(errFull)
		pause(20 * time.Minute)
		if got := len(watch.types()) - again; got > 1 { // the first, with which the outbox tries the disk
			t.Errorf("heard %d heartbeats while nothing can be stored", got)
		}
		s.disk.fail(nil)
		pause(time.Minute)
		b.end()
		var last struct {
			Interval float64
			Stopping bool
		}
		if err := json.Unmarshal(watch.heard[len(watch.heard)-1].Event.Data(), &last); err != nil ||
			last.Interval != 300 || !last.Stopping {
			t.Errorf("the last one says %+v (%v), want that heartbeats come every 300 s, and no more of them", last, err)
		}
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
		if got := often.types(); !slices.Contains(got, "started") {
			t.Errorf("heard %v, want that it has started too", got)
		}
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
		if len(all) != 4 {
			t.Fatalf("%d heartbeats came, want 4", len(all))
		}
		for n := range all[1:] {
			if apart := all[n+1].at.Sub(all[n].at); apart != time.Minute {
				t.Errorf("heartbeat %d came after %v, want a minute", n+1, apart)
			}
		}
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(4 * time.Minute)
		wantEqual(t, "with the last of them half a minute after the endpoint stopped answering, heartbeats came", len(watch.accepted()), 5)
	})
}

// Before the first answer of the endpoint no heartbeat says that all is well, and so none says at a stop that no other
// will come. After an answer one comes at once, and one at the stop.
func TestNoHeartbeatComesBeforeTheFirstAnswer(t *testing.T) {
	for _, answers := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			s.azure.SetFault(imdstest.Fault{Status: 503})
			watch := &recorder{}
			b := s.start(watch.all("watch").With(func(t *bridge.Terms) { t.Heartbeat = time.Hour }))
			pause(3 * time.Minute)
			wantIDs(t, watch.types())
			var want []any // of stopping
			if answers {
				want = []any{nil, true}
				s.azure.ClearFaults()
				pause(time.Minute)
			}
			b.end()
			var got []any
			for _, h := range watch.accepted() {
				got = append(got, tellingOf(t, h.Event)["stopping"])
			}
			if !slices.Equal(got, want) {
				t.Errorf("with an answer %v: stopping in the heartbeats is %v, want %v", answers, got, want)
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
		b.end()
		var promised []any
		for _, h := range watch.accepted() {
			promised = append(promised, tellingOf(t, h.Event)["interval"])
			data, err := jsonschema.UnmarshalJSON(bytes.NewReader(h.Event.Data()))
			if err == nil {
				err = schema.Validate(data)
			}
			if err != nil {
				t.Errorf("%s: %v", h.Event.Data(), err)
			}
		}
		if want := []any{60.0, 60.0, 3600.0, nil}; !slices.Equal(promised, want) {
			t.Errorf("the heartbeats promise the next one after %v s, want %v", promised, want)
		}
	})
}
