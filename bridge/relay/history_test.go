package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// A relay reads records for the history when somebody asks for it, and follows none meanwhile. Without an answer it says
// so, instead of a history in which nobody was told.
func TestTheHistoryReadsRecordsOnDemand(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		r, stop := s.run(route("hook", newRecorder()), route("chat", newRecorder()))
		a, b := eventNo(1), eventNo(2)
		s.publish(a.say(t, imds.Scheduled, "vm-1"), b.say(t, imds.Scheduled, "vm-2"), a.say(t, imds.Started, "vm-1"))
		pause(5 * time.Second)
		following := func(when string) {
			t.Helper()
			records, err := s.js.Stream(t.Context(), "KV_FOREWARN_records")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for c := range records.ListConsumers(t.Context()).Info() {
				got = append(got, c.Config.FilterSubject)
			}
			if want := []string{"$KV.FOREWARN_records.mutes"}; !slices.Equal(got, want) {
				t.Errorf("%s the relay follows %q, want %q", when, got, want)
			}
		}
		following("before anybody asks,")
		for event, changes := range map[string]int{"": 3, a.id: 2, b.id: 1} {
			lives, _, err := r.Histories(t.Context(), bridge.Period{Event: event})
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, life := range lives {
				for _, c := range life.Changes {
					n++
					if got := told(c); !slices.Equal(got, []string{"chat accepted", "hook accepted"}) {
						t.Errorf("%s was told to %q, want both sinks", c.ID, got)
					}
				}
			}
			if n != changes {
				t.Errorf("of the event %q there are %d changes, want %d", event, n, changes)
			}
		}
		following("afterwards")
		s.server.off()
		if _, _, err := r.Histories(t.Context(), bridge.Period{}); err == nil {
			t.Error("without a server there is a history, want an error")
		}
		stop()
	})
}

// told returns who got a change, in order.
func told(c bridge.HistoryChange) (all []string) {
	for _, d := range c.Deliveries {
		all = append(all, d.Route+" "+d.State)
	}
	return all
}

// The history has what became of a delivery that failed: that the fallback was told, and that it was told after all when
// somebody had it replayed.
func TestTheHistoryHasFallbacksAndReplays(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		main := with(route("hook", hook), func(t *bridge.Terms) { t.Fallback = delivery.Fallback{Sink: "spare", After: time.Minute} })
		spare := route("spare", newRecorder())
		spare.Filter.Only.Types = []string{"Freeze"} // so that it hears nothing by itself
		r, stop := s.run(main, spare)
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		check := func(want ...string) {
			t.Helper()
			pause(10 * time.Second)
			lives, _, err := r.Histories(t.Context(), bridge.Period{})
			if err != nil || len(lives) != 1 {
				t.Fatalf("the history is %+v, %v; want one event", lives, err)
			}
			if got := told(lives[0].Changes[0]); !slices.Equal(got, want) {
				t.Errorf("the history says %q, want %q", got, want)
			}
		}
		check("hook dead", "spare accepted")
		hook.say(nil)
		if _, err := r.Replay(t.Context(), keys(t, r, "hook"), "", "alice"); err != nil {
			t.Fatal(err)
		}
		check("hook dead", "hook accepted", "spare accepted")
		stop()
	})
}

// The history says how often a delivery was tried, also one that the end of its event settles, as a command that asked to be
// run again until then, and why it became a dead letter.
func TestTheHistorySaysWhatCameOfTheAttempts(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		drain, hook := newRecorder(), newRecorder()
		tried := 0
		drain.answer = func([]delivery.Delivery) (delivery.Answer, error) {
			tried++
			return delivery.Answer{}, errRefused
		}
		hook.answer = fails(fmt.Errorf("%w: 400 no such key", delivery.ErrRejected))
		r, stop := s.run(with(route("drain", drain), func(x *bridge.Terms) { x.Late = delivery.LateDrop }), route("hook", hook))
		a := eventNo(1).in(20 * time.Minute)
		s.publish(a.say(t, imds.Scheduled, "vm-1"))
		pause(time.Minute)
		before := tried
		s.publish(a.say(t, imds.Vanished, "vm-1"))
		pause(2 * time.Second)
		lives, _, err := r.Histories(t.Context(), bridge.Period{})
		if err != nil || len(lives) != 1 || len(lives[0].Changes[0].Deliveries) != 2 {
			t.Fatalf("the history is %+v, %v; want one event, told to two sinks", lives, err)
		}
		over, dead := lives[0].Changes[0].Deliveries[0], lives[0].Changes[0].Deliveries[1]
		if over.Answer != delivery.EventOver || over.Attempts != before || before < 2 {
			t.Errorf("after %d attempts the history says %+v, want them, and that the event is over", before, over)
		}
		if dead.Reason != delivery.ReasonRejected || dead.Attempts != 1 || !strings.Contains(dead.Error, "no such key") {
			t.Errorf("of the dead letter the history says %+v, want one attempt, and what the destination said", dead)
		}
		stop()
	})
}

// An attempt that could not begin doesn't count: here the record of the change before could not be written.
func TestWhatCouldNotBeReadWasNotAttempted(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink, wire := newRecorder(), &cable{}
		drain := with(route("drain", sink), func(x *bridge.Terms) { x.Late = delivery.LateDrop })
		drain.Filter.Only.Changes = []string{"scheduled", "updated"}
		st, stop := s.start(relay.Options{Routes: []bridge.Route{drain}, Connect: s.over(wire)})
		pause(2 * time.Second)
		wire.fail(`"state":"accepted"`)
		a := eventNo(1).in(20 * time.Minute)
		announced := a.say(t, imds.Scheduled, "vm-1")
		s.publish(announced)
		pause(time.Second)
		s.publish(a.in(30*time.Minute).updated(t, a))
		pause(time.Minute)
		s.publish(a.say(t, imds.Vanished, "vm-1"))
		pause(5 * time.Second)
		wire.fail("")
		pause(time.Minute)
		wantIDs(t, "tried", sink.attempts(), announced)
		lives, _, err := st.Histories(t.Context(), bridge.Period{})
		if err != nil || len(lives) != 1 || len(lives[0].Changes) < 2 {
			t.Fatalf("the history says %+v, %v", lives, err)
		}
		if d := lives[0].Changes[1].Deliveries; len(d) != 1 || d[0].State != "superseded" || d[0].Attempts != 0 {
			t.Errorf("the history says %+v of the update, want that it was never attempted", d)
		}
		stop()
	})
}

// What is accepted after its fallback got it, and after its event ended, all in one attempt, is on record as accepted.
func TestALongAttemptThatIsAcceptedAfterAllIsOnRecord(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		slow := newRecorder()
		slow.answer = func([]delivery.Delivery) (delivery.Answer, error) {
			time.Sleep(20 * time.Second)
			return delivery.Answer{}, nil
		}
		drain := with(route("drain", slow), func(x *bridge.Terms) {
			x.Late, x.Timeout = delivery.LateDrop, time.Minute
			x.Fallback = delivery.Fallback{Sink: "spare", After: 5 * time.Second}
		})
		r, stop := s.run(drain, route("spare", newRecorder()))
		a := eventNo(1).in(20 * time.Minute)
		s.publish(a.say(t, imds.Scheduled, "vm-1"))
		pause(10 * time.Second)
		s.publish(a.say(t, imds.Vanished, "vm-1"))
		pause(time.Minute)
		lives, _, err := r.Histories(t.Context(), bridge.Period{})
		if err != nil || len(lives) != 1 {
			t.Fatalf("the history is %+v, %v; want one event", lives, err)
		}
		if d := lives[0].Changes[0].Deliveries[0]; d.Route != "drain" || d.State != "accepted" {
			t.Errorf("the history says %+v, want that the sink accepted it", d)
		}
		stop()
	})
}
