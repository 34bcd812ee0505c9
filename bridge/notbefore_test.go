package bridge_test

import (
	"slices"
	"testing"
	"time"

	"forewarn/bridge"
)

// A NotBefore at the edge of the times that can be written is told, and outlives a restart, whatever is taken from it.
func TestANotBeforeAtTheEndOfTimeIsTold(t *testing.T) {
	for _, notBefore := range []string{
		"0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59",
		"0000-01-01T00:00:00+23:59", "Fri, 31 Dec 9999 23:59:59 GMT", "Sat, 01 Jan 0000 00:00:01 GMT",
		"292277026596-01-01T00:00:00Z",
	} {
		subtest(t, notBefore, func(t *testing.T, s *stage) {
			e := &recorder{}
			lead := e.all("lead").With(func(x *bridge.Terms) { x.Lead = time.Hour })
			remind := e.all("remind").With(func(x *bridge.Terms) { x.Remind = []time.Duration{24 * time.Hour, time.Hour} })
			b := s.start(lead, remind)
			s.azure.SetDocument([]byte(`{"DocumentIncarnation":1,"Events":[{"EventId":"` + idA + `","EventType":"Reboot",
				"ResourceType":"VirtualMachine","Resources":["vm_0"],"EventStatus":"Scheduled","NotBefore":"` + notBefore + `"}]}`))
			pause(3 * time.Second)
			b.end()
			s.start(lead, remind)
			pause(2 * time.Minute)
			if !slices.Contains(e.ids(), idA+"-scheduled") {
				t.Errorf("told is %v", e.ids())
			}
		})
	}
}
