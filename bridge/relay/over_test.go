package relay_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// On a relay too, a sink that acts begins nothing about an event that is over, however the announcement has waited, and the
// history says why.
func TestARelayBeginsNothingAboutAnEventThatIsOver(t *testing.T) {
	acts := func(x *bridge.Terms) { x.Late = delivery.LateDrop }
	for name, terms := range map[string]struct{ before, after func(*bridge.Terms) }{
		"for a retry":          {acts, acts},
		"for another relay":    {acts, acts},
		"for the end of mute":  {acts, acts},
		"for its lead":         {func(x *bridge.Terms) { x.Late, x.Lead = delivery.LateDrop, time.Minute }, acts},
		"for other settings":   {func(x *bridge.Terms) { x.Late = delivery.LateSend }, acts},
		"latest, without end":  {latestOnly, latestOnly},
		"told of the end, too": {acts, acts},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "for a retry" && name != "for another relay" {
				systemtest.Alone(t)
			}
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				if name != "for the end of mute" && name != "for its lead" {
					sink.answer = fails(errRefused)
				}
				drain := with(route("drain", sink), terms.before)
				if name != "told of the end, too" {
					drain.Filter.Only.Changes = []string{"scheduled", "updated"}
				}
				st, stop := s.run(drain)
				if name == "for the end of mute" {
					if _, err := st.Mute(delivery.Mute{Sink: "drain", Reason: "repairs", By: "alice"}, 5*time.Minute); err != nil {
						t.Fatal(err)
					}
				}
				a := eventNo(1).in(20 * time.Minute)
				announced := a.say(t, imds.Scheduled, "vm-1")
				s.publish(announced)
				pause(time.Minute)
				s.publish(a.say(t, imds.Vanished, "vm-1"))
				pause(2 * time.Second)
				if name == "for another relay" || name == "for other settings" {
					stop()
					drain.Terms = with(drain, terms.after).Terms
					st, stop = s.run(drain)
				}
				sink.say(nil)
				pause(7 * time.Minute) // longer than each of these waits
				for _, id := range sink.all() {
					if id == announced.ID() {
						t.Errorf("%s was told after the end", id)
					}
				}
				list, _, err := st.List(t.Context(), relay.Selection{}, 10)
				if err != nil || len(list) > 0 {
					t.Errorf("left are %+v, %v", list, err)
				}
				lives, _, _ := st.Histories(t.Context(), bridge.Period{})
				if len(lives) != 1 || !strings.Contains(lives[0].Changes[0].Deliveries[0].Answer, delivery.EventOver) {
					t.Errorf("the history says %+v, want that the event is over", lives)
				}
				stop()
			})
		})
	}
}

// What a VM publishes of an event when it knows the end already begins nothing, though a relay hears of the end only after
// that: it lay on the VM while NATS or forewarn was away, during a mute, or to give way to another VM.
func TestARelayBeginsNothingBecauseOfWhatComesAfterTheEnd(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		drain, audit := newRecorder(), newRecorder()
		st, stop := s.run(with(route("drain", drain), func(x *bridge.Terms) { x.Late = delivery.LateDrop }), route("audit", audit))
		a := eventNo(1).in(20 * time.Minute)
		announced, begun, over := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1"), a.say(t, imds.Vanished, "vm-1")
		for _, ce := range []event.Event{announced, begun} {
			s.deliverAs(delivery.Delivery{Event: ce, Attempt: 2, EventOver: true})
		}
		pause(time.Minute)
		s.deliver(over)
		pause(time.Minute)
		wantIDs(t, "what acts is told", drain.all(), over)
		wantIDs(t, "who wants everything is told", audit.all(), announced, begun, over)
		lives, _, _ := st.Histories(t.Context(), bridge.Period{})
		if len(lives) != 1 || !strings.Contains(lives[0].Changes[0].Deliveries[1].Answer, delivery.EventOver) {
			t.Errorf("the history says %+v, want that the event is over", lives)
		}
		stop()
	})
}

func latestOnly(x *bridge.Terms) { x.Late = delivery.LateLatest }

// A fallback that acts begins nothing about an event that is over on a relay either, also one whose own filter keeps the event
// out, whether it has the announcement before the end, or gets it after that, and whatever restarts in between.
func TestARelaysFallbackBeginsNothingAboutAnEventThatIsOver(t *testing.T) {
	for name, tt := range map[string]struct {
		after    time.Duration // how long hook tries before the fallback gets it
		restart  bool          // between the end and that
		newDrain bool          // only then are there settings with the fallback
		late     delivery.Late // of the fallback; LateDrop if it is empty
	}{
		"people after the end":                      {after: 2 * time.Minute, late: delivery.LateLatest},
		"before the end":                            {after: 10 * time.Second},
		"before the end, with a restart after it":   {after: 10 * time.Second, restart: true},
		"after the end":                             {after: 2 * time.Minute},
		"after the end, with a restart between":     {after: 2 * time.Minute, restart: true},
		"after the end, by settings that come then": {after: 2 * time.Minute, restart: true, newDrain: true},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "after the end, with a restart between" && tt.late == "" {
				systemtest.Alone(t)
			}
			onStage(t, func(t *testing.T, s *stage) {
				sink, other := newRecorder(), newRecorder()
				sink.answer, other.answer = fails(errRefused), fails(errRefused)
				alone := route("hook", sink)
				hook := with(alone, func(x *bridge.Terms) {
					x.Fallback = delivery.Fallback{Sink: "drain", After: tt.after}
				})
				drain := with(route("drain", other), func(x *bridge.Terms) { x.Late = cmp.Or(tt.late, delivery.LateDrop) })
				drain.Filter.Only.Types = []string{"Preempt"}
				if tt.late == "" {
					drain.Filter.Only.Changes = []string{"scheduled"}
				} else {
					alone.Filter.Only.Changes, hook.Filter.Only.Changes = []string{"scheduled"}, []string{"scheduled"}
				}
				routes := []bridge.Route{hook, drain}
				if tt.newDrain {
					routes = []bridge.Route{alone}
				}
				_, stop := s.run(routes...)
				a := eventNo(1).in(time.Hour)
				s.publish(a.say(t, imds.Scheduled, "vm-1"))
				pause(time.Minute)
				s.publish(a.say(t, imds.Vanished, "vm-1"))
				pause(2 * time.Second)
				if tt.restart {
					stop()
					_, stop = s.run(hook, drain)
				}
				other.say(nil)
				pause(10 * time.Minute)
				if told := other.all(); len(told) > 0 && strings.HasSuffix(told[0], "-scheduled") {
					t.Errorf("the fallback was told %s after the end", told)
				}
				stop()
			})
		})
	}
}

// A replay of the past has a sink that acts begin nothing about an event that is over, also right after a start, and says
// which were left out. Who names the event gets it. Other sinks get all.
func TestAReplayOfThePastBeginsNothingAboutAnEventThatIsOver(t *testing.T) {
	announcements := []string{"scheduled", "updated"}
	for name, tt := range map[string]struct {
		late    delivery.Late
		changes []string
		all     bool // it gets the event that is over
	}{
		"drop":                      {late: delivery.LateDrop, changes: announcements},
		"drop, told of the end":     {late: delivery.LateDrop},
		"latest, not told of it":    {late: delivery.LateLatest, changes: announcements},
		"latest, told of the end":   {late: delivery.LateLatest, all: true},
		"send, not told of the end": {late: delivery.LateSend, changes: announcements, all: true},
		"drop, told of its begin":   {late: delivery.LateDrop, changes: []string{"scheduled", "vanished"}},
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				over, open := eventNo(1).in(time.Hour), eventNo(2).in(time.Hour)
				past, present := over.say(t, imds.Scheduled, "vm-1"), open.say(t, imds.Scheduled, "vm-1")
				s.publish(past, over.say(t, imds.Scheduled, "vm-2"), present)
				pause(time.Minute)
				s.publish(over.say(t, imds.Vanished, "vm-1"))
				drain := with(route("drain", newRecorder()), func(x *bridge.Terms) { x.Late = tt.late })
				drain.Filter.Only.Changes = tt.changes
				r, stop := s.run(drain)
				pause(2 * time.Second)
				replay := func(event string) (ids, left []string) {
					part, err := r.ReplayPast(t.Context(), relay.ReplayRequest{Sink: "drain", Event: event, Run: "run" + event})
					if err != nil {
						t.Fatal(err)
					}
					for _, e := range part.Replayed {
						ids = append(ids, e.ID)
					}
					return ids, part.Over
				}
				replayed, left := replay("")
				wantLeft := []string{over.id}
				if tt.all {
					wantLeft = nil
				}
				if slices.Contains(replayed, past.ID()) != tt.all || !slices.Contains(replayed, present.ID()) {
					t.Errorf("replayed are %q", replayed)
				}
				if !slices.Equal(left, wantLeft) {
					t.Errorf("left out are %q, want %q", left, wantLeft)
				}
				named, left := replay(over.id[:8])
				if !slices.Contains(named, past.ID()) || len(left) > 0 {
					t.Errorf("of the event that is named %q are replayed, %q left out", named, left)
				}
				stop()
			})
		})
	}
}

// A reminder, as of a VM that is behind, and what came of an approval are no news to people who have read that the event is
// over; they go to those who are told all.
func TestAReminderOrAnAnswerAfterTheEndIsNoNewsOnARelay(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		chat, audit := newRecorder(), newRecorder()
		_, stop := s.run(with(route("chat", chat), latestOnly), route("audit", audit))
		a := eventNo(1).in(20 * time.Minute)
		announced, over := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Vanished, "vm-1")
		answer, reminder := a.answer(t, 1), a.say(t, imds.Reminder, "vm-2")
		for _, ce := range []event.Event{announced, over, answer, reminder} {
			s.publish(ce)
			pause(time.Second)
		}
		wantIDs(t, "what people read", chat.all(), announced, over)
		wantIDs(t, "what is on record", audit.all(), announced, over, answer, reminder)
		stop()
	})
}

// What a relay that has just started hasn't read yet isn't over, for who waits until it has.
func TestAnEventThatARelayHasNotReadYetIsNotOver(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		acts := with(route("hook", hook), func(terms *bridge.Terms) { terms.Late = delivery.LateDrop })
		before, stop := s.run(acts)
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		pause(5 * time.Second)
		list, _, err := before.List(t.Context(), relay.Selection{State: "dead"}, 10)
		if err != nil || len(list) != 1 {
			t.Fatalf("dead letters are %v, %v; want one", list, err)
		}
		stop()
		r, stop := s.start(relay.Options{Routes: []bridge.Route{acts}})
		pause(time.Millisecond) // it is connected
		err = r.CatchUp(t.Context())
		if err != nil || r.Over(list[0], "hook") {
			t.Errorf("%s is over, as it says, %v", list[0].ID, err)
		}
		stop()
	})
}
