package bridge_test

import (
	"fmt"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
)

// The poll loop counts as alive while it comes round, however the endpoint answers, also when that takes two minutes or
// it asks to be left alone for an hour.
func TestAliveMeansThatThePollLoopComesRound(t *testing.T) {
	for _, fault := range []imdstest.Fault{
		{Hang: true}, {Status: 503}, {Status: 403}, {Status: 429, RetryAfter: "3600"}, {Delay: 2 * time.Minute},
	} {
		subtest(t, fmt.Sprintf("%+v", fault), func(t *testing.T, s *stage) {
			s.azure.SetFault(fault)
			b := s.start((&recorder{}).all("a"))
			for range 15 {
				pause(time.Minute)
				must(t, b.Alive())
			}
			b.end()
			pause(time.Hour)
			wantEqual(t, "alive although its loop has ended", b.Alive() == nil, false)
		})
	}
}

// Housekeeping and the approval loop count for being alive as the poll loop does.
func TestAliveMeansThatEveryLoopComesRound(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start((&recorder{}).all("a"))
		for _, loop := range []string{"housekeeping", "approval loop"} {
			pause(bridge.LongestRest + time.Minute)
			must(t, b.Alive())
			b.Rested(loop, time.Now().Add(-bridge.LongestRest-time.Second))
			wantIn(t, "what isn't alive", fmt.Sprint(b.Alive()), loop)
		}
	})
}

// An endpoint that asks for the longest wait and then gives no answer makes the longest turn; the poll loop counts as
// alive all through it.
func TestTheLongestTurnIsAlive(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Status: 429, RetryAfter: "3600"})
		b := s.start((&recorder{}).all("a"))
		pause(time.Second)
		s.azure.SetFault(imdstest.Fault{Hang: true})
		for range 300 {
			pause(time.Second)
			must(t, b.Alive())
		}
	})
}
