package bridge_test

import (
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
)

// What a sink got only as a fallback, though its filter refuses it, counts for no rule.
func TestWhatASinkGetsAsAFallbackCountsForNoRule(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{drainRule}
		drain, audit := &recorder{}, answering(errSinkDown)
		d := drain.all("drain").OnlyTypes("Freeze")
		a := audit.all("audit").With(func(x *bridge.Terms) { x.Fallback = delivery.Fallback{Sink: "drain", After: time.Minute} })
		b := s.up(d, a)
		s.userReboot(idA)
		pause(5 * time.Minute)
		t.Log(drain.ids())
		wantIDs(t, s.approvals())
		b.cancel()
		<-b.done
	})
}

// The same of a change that its filter leaves out.
func TestAChangeThatASinkGetsAsAFallbackCountsForNoRule(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		audit, drain := answering(errSinkDown), &recorder{}
		d := drain.all("drain").OnlyChanges("scheduled")
		a := audit.all("audit").With(func(x *bridge.Terms) { x.Fallback = delivery.Fallback{Sink: "drain", After: time.Minute} })
		r := drainRule
		r.Wait = 10 * time.Minute
		s.opts.Rules = []bridge.Rule{r}
		b := s.up(d, a)
		s.userReboot(idA)
		pause(5 * time.Second)
		s.postpone(idA, time.Hour)
		pause(20 * time.Minute)
		t.Log(drain.ids())
		wantIDs(t, s.approvals())
		b.cancel()
		<-b.done
	})
}

// A route of a name that the settings had before is another one: what that had accepted counts for no rule, if the new one's
// filter leaves the event out.
func TestWhatAnEarlierRouteAcceptedCountsForNoRule(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		drain, audit := &recorder{}, &recorder{}
		routes := []bridge.Route{drain.all("drain"), audit.all("audit")}
		b := s.up(routes...)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(72 * time.Hour)})
		pause(5 * time.Second)
		b.Reload(routes[1:], nil, bridge.SettingsInfo{})
		pause(25 * time.Hour)
		other := (&recorder{}).all("drain").OnlyTypes("Freeze")
		b.Reload([]bridge.Route{other, routes[1]}, []bridge.Rule{drainRule}, bridge.SettingsInfo{})
		pause(time.Minute)
		wantIDs(t, s.approvals())
	})
}
