package bridge_test

import (
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
)

// What a sink got only as a fallback, though its filter refuses the event or the change, counts for no rule.
func TestWhatASinkGetsAsAFallbackCountsForNoRule(t *testing.T) {
	for claim, only := range map[string]bridge.Only{
		"an event": {VMs: "all", Types: []string{"Freeze"}},
		"a change": {VMs: "all", Changes: []string{"scheduled"}},
	} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			s.beginsLate()
			rule := drainRule
			rule.Wait = 10 * time.Minute
			s.opts.Rules = []bridge.Rule{rule}
			drain := (&recorder{}).all("drain")
			drain.Filter.Only = only
			audit := answering(errSinkDown).all("audit").With(func(x *bridge.Terms) {
				x.Fallback = delivery.Fallback{Sink: "drain", After: time.Minute}
			})
			b := s.up(drain, audit)
			s.userReboot(idA)
			pause(5 * time.Second)
			s.postpone(idA, time.Hour)
			pause(20 * time.Minute)
			wantIDs(t, s.approvals())
			b.cancel()
			<-b.done
		})
	}
}

// A route of a name that the settings had before is another one: what that had accepted counts for no rule, if the new one's
// filter leaves the event out.
func TestWhatAnEarlierRouteAcceptedCountsForNoRule(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		routes := []bridge.Route{(&recorder{}).all("drain"), (&recorder{}).all("audit")}
		b := s.up(routes...)
		s.userReboot(idA)
		s.postpone(idA, 72*time.Hour)
		pause(5 * time.Second)
		b.Reload(routes[1:], nil, bridge.SettingsInfo{})
		pause(25 * time.Hour)
		other := (&recorder{}).all("drain").OnlyTypes("Freeze")
		b.Reload([]bridge.Route{other, routes[1]}, []bridge.Rule{drainRule}, bridge.SettingsInfo{})
		pause(time.Minute)
		wantIDs(t, s.approvals())
	})
}
