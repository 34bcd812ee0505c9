package bridge_test

import (
	"fmt"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
)

// What rules would decide about an open event is told without approving anything: as if all sinks accepted it that have
// it, and as if its wait were over. Of an event that is not open nothing is told.
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
		approvalSubtest(t, tt.claim, func(t *testing.T, s *approvalStage) {
			s.drain.say(always(tt.answer))
			s.announce()
			got := s.Forecasts(rules, idA)
			wantEqual(t, "number of forecasts", len(got), 3)
			for i, f := range got {
				if f.Rule != fmt.Sprintf("rule %d", i+1) || f.Approves != tt.approves[i] || f.Approves != (f.Why == "") ||
					f.Wait != rules[i].Wait || len(f.After) != len(rules[i].After) {
					t.Errorf("rule %d is forecast as %+v, want %v", i+1, f, tt.approves[i])
				}
			}
			wantEqual(t, "why the rule that waits doesn't approve", got[1].Why, tt.why)
			if got := s.Forecasts(rules, idB); got != nil {
				t.Errorf("of an event that is not open it tells %+v", got)
			}
			pause(time.Minute)
			wantIDs(t, s.approvals())
		})
	}
}
