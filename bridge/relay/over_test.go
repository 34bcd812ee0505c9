package relay_test

import (
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
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
					if _, err := st.Mute(delivery.Mute{Sink: "drain", Why: "repairs", By: "alice"}, 5*time.Minute); err != nil {
						t.Fatal(err)
					}
				}
				a := eventNo(1).in(time.Hour)
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
				pause(2 * time.Hour)
				for _, id := range sink.all() {
					if id == announced.ID() {
						t.Errorf("%s was told after the end", id)
					}
				}
				list, _, err := st.List(t.Context(), relay.Selection{}, 10)
				if err != nil || len(list) > 0 {
					t.Errorf("left are %+v, %v", list, err)
				}
				lives, _ := st.Histories(bridge.Period{})
				if len(lives) != 1 || !strings.Contains(lives[0].Changes[0].Deliveries[0].Answer, delivery.EventOver) {
					t.Errorf("the history says %+v, want that the event is over", lives)
				}
				stop()
			})
		})
	}
}

func latestOnly(x *bridge.Terms) { x.Late = delivery.LateLatest }

// A fallback that acts begins nothing about an event that is over on a relay either, also one whose own filter keeps the event
// out.
func TestARelaysFallbackBeginsNothingAboutAnEventThatIsOver(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink, other := newRecorder(), newRecorder()
		sink.answer, other.answer = fails(errRefused), fails(errRefused)
		hook := with(route("hook", sink), func(x *bridge.Terms) {
			x.Fallback = delivery.Fallback{Sink: "drain", After: 10 * time.Second}
		})
		drain := with(route("drain", other), func(x *bridge.Terms) { x.Late = delivery.LateDrop })
		drain.Filter.Only.Types, drain.Filter.Only.Changes = []string{"Preempt"}, []string{"scheduled"}
		_, stop := s.run(hook, drain)
		a := eventNo(1).in(time.Hour)
		s.publish(a.say(t, imds.Scheduled, "vm-1"))
		pause(time.Minute) // drain has it, and fails
		s.publish(a.say(t, imds.Vanished, "vm-1"))
		pause(2 * time.Second)
		other.say(nil)
		pause(time.Hour)
		if told := other.all(); len(told) > 0 && strings.HasSuffix(told[0], "-scheduled") {
			t.Errorf("the fallback was told %s after the end", told)
		}
		stop()
	})
}
