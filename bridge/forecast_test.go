package bridge_test

import (
	"fmt"
	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"testing"
	"time"
)

// What rules would decide about an open event is told without approving anything: as if all sinks accepted it that have it,
// and as if its wait were over. Of an event that is not open nothing is told.
func TestWhatRulesWouldDecideIsForecast(t *testing.T) {
	rules := []bridge.Rule{rebootRule, drainRule, {Only: bridge.Match{Types: []string{"Freeze"}}}}
	for _, tt := range []struct {
		claim    string
		answer   error
		approves []bool
		why      string // of the rule that waits for the drain
	}{
		{"it is accepted", nil, []bool{true, true, false}, ""},
		{"it is pending", errSinkDown, []bool{true, true, false}, ""},
		{"it is rejected", delivery.ErrRejected, []bool{true, false, false}, `sink "drain" did not get the latest change`},
	} {
		bubble(t, func(t *testing.T, s *stage) {
			s.beginsLate()
			b := s.start((&recorder{answer: always(tt.answer)}).all("drain"))
			pause(1500 * time.Millisecond)
			s.userReboot(idA)
			pause(1500 * time.Millisecond)
			got := b.Forecasts(rules, idA)
			if len(got) != 3 {
				t.Fatalf("%s: Forecasts = %+v, want three", tt.claim, got)
			}
			for i, f := range got {
				if f.Rule != fmt.Sprintf("rule %d", i+1) || f.Approves != tt.approves[i] || f.Approves != (f.Why == "") || f.Wait != rules[i].Wait ||
					len(f.After) != len(rules[i].After) {
					t.Errorf("%s: rule %d is forecast as %+v, want %v", tt.claim, i+1, f, tt.approves[i])
				}
			}
			if got[1].Why != tt.why {
				t.Errorf("%s: the reason is %q, want %q", tt.claim, got[1].Why, tt.why)
			}
			if got := b.Forecasts(rules, idB); got != nil {
				t.Errorf("%s: of an event that is not open it tells %+v", tt.claim, got)
			}
			pause(time.Minute)
			wantIDs(t, s.approvals())
			b.end()
		})
	}
}
