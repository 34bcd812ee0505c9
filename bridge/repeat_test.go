package bridge_test

import (
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
)

// repeats returns a route that repeats what is open each minute.
func (e *recorder) repeats(name string) bridge.Route {
	return e.all(name).With(func(terms *bridge.Terms) { terms.Repeat = time.Minute })
}

// A route that repeats says what is open once more each minute, also after a restart, until the event is over. Its
// history has each change once.
func TestARouteRepeatsWhatIsOpen(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		e := &recorder{}
		route := e.repeats("a")
		b := s.up(route)
		s.redeploy(idA, 2*time.Hour)
		pause(3*time.Minute + seldom)
		wantEqual(t, "times that it is told, at once and each minute", len(e.ids()), 4)
		wantEqual(t, "deliveries, without the repeats", b.Status().Sinks[0].Delivered, 1)
		b.crash()
		s.start(route)
		pause(2*time.Minute + seldom)
		wantEqual(t, "times that it is told, after a restart too", len(e.ids()), 6)
		s.azure.End(idA)
		pause(10 * time.Minute)
		wantIDs(t, e.ids()[5:], idA+"-scheduled", idA+"-vanished")
	})
}

// What came of an approval is repeated instead of the change before it, which says that a rule will approve the event:
// to a route that has accepted it, also after a restart, and until the event changes.
func TestARouteRepeatsWhatCameOfAnApproval(t *testing.T) {
	for claim, tt := range map[string]struct {
		drain   error
		changes []string
		want    string // what is repeated
	}{
		"approved":                              {nil, nil, "-approved"},
		"its drain fails":                       {delivery.ErrRejected, nil, "-approved"},
		"the route doesn't hear of approvals":   {nil, []string{"scheduled", "started", "vanished"}, "-scheduled"},
		"the route is told only how they ended": {nil, []string{"approved", "started", "vanished"}, "-approved"},
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.drain.say(always(tt.drain))
			s.routes[1] = s.audit.repeats("alerts").OnlyChanges(tt.changes...)
			s.announce(drainRule)
			pause(8 * time.Second)
			repeated := func(want string) {
				t.Helper()
				n := len(s.audit.ids())
				pause(2*time.Minute + 5*time.Second)
				wantIDs(t, s.audit.ids()[n:], idA+want, idA+want)
			}
			repeated(tt.want)
			s.crash()
			s.up()
			pause(8 * time.Second)
			repeated(tt.want)
			s.azure.Start(idA)
			pause(10 * time.Second)
			repeated("-started")
		})
	}
}

// So it is to a route that has both only as the fallback of another.
func TestAFallbackRepeatsWhatCameOfAnApproval(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		chat := answering(delivery.ErrRejected).fallsBack("chat", "alerts", time.Minute)
		s.routes = []bridge.Route{s.drain.all("drain"), chat, s.audit.repeats("alerts").OnlyTypes("Preempt")}
		s.announce(drainRule)
		pause(8 * time.Second)
		n := len(s.audit.ids())
		pause(2*time.Minute + 5*time.Second)
		wantIDs(t, s.audit.ids()[n:], idA+"-approved", idA+"-approved")
	})
}
