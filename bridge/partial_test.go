package bridge_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
)

// A partial document doesn't show whether an event is over that it doesn't list: after a start, nothing is begun about that
// until a document does, and nothing at all if it is over.
func TestAPartialFirstDocumentBeginsNothing(t *testing.T) {
	for _, over := range []bool{true, false} {
		subtest(t, fmt.Sprintf("over %t", over), func(t *testing.T, s *stage) {
			drain := answering(errSinkDown)
			acts := drain.all("drain").With(func(x *bridge.Terms) { x.Late, x.Acts = delivery.LateDrop, true })
			b := s.up(acts)
			s.userReboot(idA)
			pause(3 * time.Second)
			b.end()
			drain.say(nil)
			if over {
				s.azure.End(idA)
			}
			var partial atomic.Bool
			partial.Store(true)
			s.rewritesDocuments(false, func(body string) string {
				if partial.Load() {
					return `{"DocumentIncarnation":9,"Events":[{"EventId":7}]}`
				}
				return body
			})
			s.start(acts)
			pause(30 * time.Second)
			wantIDs(t, drain.ids())
			partial.Store(false)
			pause(30 * time.Second)
			if over {
				wantIDs(t, drain.ids(), idA+"-vanished")
			} else {
				wantIDs(t, drain.ids(), idA+"-scheduled")
			}
		})
	}
}
