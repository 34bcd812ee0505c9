package bridge_test

import (
	"testing"
	"time"

	"forewarn/bridge"
)

// A route that repeats says what is open once more each minute, also after a restart, until the event is over. Its history
// has each change once.
func TestARouteRepeatsWhatIsOpen(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		e := &ear{}
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
