package bridge_test

import (
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
)

// A route that repeats says what is open once more each minute, also after a restart, until the event is over. Its history
// has each change once.
func TestARouteRepeatsWhatIsOpen(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		e := &recorder{}
		route := e.all("a").With(func(terms *bridge.Terms) { terms.Repeat = time.Minute })
		b := s.start(route)
		pause(1500 * time.Millisecond)
		s.redeploy(idA, 2*time.Hour)
		pause(3*time.Minute + seldom)
		if got := len(e.ids()); got != 4 {
			t.Errorf("told %d times, want it at once and each minute: %q", got, e.ids())
		}
		if got := b.Status().Sinks[0].Delivered; got != 1 {
			t.Errorf("%d delivered, want no repeat among them", got)
		}
		b.crash()
		b = s.start(route)
		pause(2*time.Minute + seldom)
		if got := len(e.ids()); got != 6 {
			t.Errorf("told %d times, want it each minute after a restart too: %q", got, e.ids())
		}
		s.azure.End(idA)
		pause(10 * time.Minute)
		if got := e.ids(); len(got) != 7 || got[5] == got[6] {
			t.Errorf("told %q, want the end once and nothing after it", got)
		}
		b.end()
	})
}

// So it is to a route that has both only as the fallback of another.
func TestAFallbackRepeatsWhatCameOfAnApproval(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveIgnore})
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{{Only: rebootRule.Only, After: []string{"drain"}, Wait: 5 * time.Second}}
		alerts := &recorder{}
		spare := alerts.all("alerts").With(func(terms *bridge.Terms) { terms.Repeat = time.Minute })
		spare.Filter.Only.Types = []string{"Preempt"}
		main := (&recorder{answer: always(delivery.ErrRejected)}).all("chat").With(func(terms *bridge.Terms) {
			terms.Fallback = delivery.Fallback{Sink: "alerts", After: time.Minute}
		})
		b := s.start(main, spare, (&recorder{}).all("drain"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(10 * time.Second)
		n := len(alerts.ids())
		pause(2*time.Minute + 5*time.Second)
		wantIDs(t, alerts.ids()[n:], idA+"-approved", idA+"-approved")
		b.end()
	})
}

// What came of an approval is repeated instead of the change before it, which says that a rule will approve the event: to a
// route that has accepted it, also after a restart, and until the event changes.
func TestARouteRepeatsWhatCameOfAnApproval(t *testing.T) {
	for claim, tt := range map[string]struct {
		drain   error
		changes []string
		want    string // how what is repeated ends
	}{
		"approved":                              {nil, nil, "-approved"},
		"its drain fails":                       {delivery.ErrRejected, nil, "-approved"},
		"the route doesn't hear of approvals":   {nil, []string{"scheduled", "started", "vanished"}, "-scheduled"},
		"the route is told only how they ended": {nil, []string{"approved", "started", "vanished"}, "-approved"},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveIgnore})
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{drainRule}
				e := &recorder{}
				route := e.all("alerts").With(func(terms *bridge.Terms) { terms.Repeat = time.Minute })
				route.Filter.Only.Changes = tt.changes
				routes := []bridge.Route{route, (&recorder{answer: always(tt.drain)}).all("drain")}
				b := s.start(routes...)
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(10 * time.Second)
				repeated := func(when, want string) {
					t.Helper()
					n := len(e.ids())
					pause(2*time.Minute + 5*time.Second)
					got := e.ids()[n:]
					if len(got) != 2 || !strings.Contains(got[0], want) || !strings.Contains(got[1], want) {
						t.Errorf("%s it repeats %q, want %q twice", when, got, want)
					}
				}
				repeated("at first", tt.want)
				b.crash()
				b = s.start(routes...)
				pause(10 * time.Second)
				repeated("after a restart", tt.want)
				s.azure.Start(idA)
				pause(10 * time.Second)
				repeated("once it has begun", "-started")
				b.end()
			})
		})
	}
}
