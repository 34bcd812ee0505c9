package bridge_test

import (
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A dead letter about an open event that is replayed is never the last word: what the sink has accepted since is told
// again behind it, the latest change and what came of the approval. A sink that acts does nothing twice.
func TestAReplayedLetterIsNotTheLastWord(t *testing.T) {
	send, latest := delivery.LateSend, delivery.LateLatest
	begins := func(s *stage, _ *running) { s.azure.Start(idA) }
	approves := func(s *stage, b *running) { b.ApproveNow(s.t.Context(), idA, s.shown(idA), "alice") }
	for name, tt := range map[string]struct {
		late    delivery.Late
		to      string
		since   func(s *stage, b *running)
		refuses bool // that as well
		told    []string
	}{
		"of the announcement, after the start":      {send, "", begins, false, []string{"scheduled", "started"}},
		"the start in one message":                  {latest, "", begins, false, []string{"started"}},
		"of the announcement, after the approval":   {send, "", approves, false, []string{"scheduled", "approved"}},
		"the approval in one message":               {latest, "", approves, false, []string{"approved"}},
		"to another sink that has the start":        {send, "other", begins, false, []string{"scheduled", "started"}},
		"to another sink that has the approval":     {latest, "other", approves, false, []string{"approved"}},
		"to one that acts":                          {delivery.LateDrop, "", begins, false, []string{"scheduled"}},
		"when nothing has come since":               {send, "", func(*stage, *running) {}, false, []string{"scheduled"}},
		"when what came since is a dead letter too": {send, "", begins, true, []string{"scheduled"}},
		"when the approval is a dead letter too":    {send, "", approves, true, []string{"scheduled"}},
	} {
		subtest(t, name, func(t *testing.T, s *stage) {
			s.beginsLate()
			first, other := answering(delivery.ErrRejected), &recorder{}
			with := func(r bridge.Route) bridge.Route {
				return r.With(func(x *bridge.Terms) { x.Late = tt.late })
			}
			b := s.up(with(first.all("first")), with(other.all("other")))
			s.userReboot(idA)
			pause(3 * time.Second)
			letter := b.Outbox.List(outbox.Selection{Route: "first", State: outbox.StateDead})[0]
			if !tt.refuses {
				first.say(nil)
			}
			tt.since(s, b)
			pause(10 * time.Second)
			first.say(nil)
			gets := map[string]*recorder{"": first, "other": other}[tt.to]
			before := len(gets.types())
			b.replay(letter, tt.to)
			pause(10 * time.Second)
			wantIDs(t, gets.types()[before:], tt.told...)
		})
	}
}
