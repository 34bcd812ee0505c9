package delivery_test

import (
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
)

// What a sink puts off delays nothing else, is no failure, and is delivered at its time, in order. While the destination
// is down it is not asked for again and again.
func TestWhatASinkPutsOffDelaysNothingElse(t *testing.T) {
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, newMemory(), &destination{}, delivery.Terms{Late: delivery.LateSend, Batch: 1})
			if down {
				r.say(fails(errDown))
				for n := range 10 {
					r.add(change(uint64(n+1), string(rune('a'+n)), "scheduled", 5*time.Hour))
				}
				pause(time.Minute)
			}
			until, before := time.Now().Add(3*time.Second), len(r.made())
			r.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
				if batch[0].Event.ID() == "E1-scheduled" && time.Now().Before(until) {
					return delivery.Answer{}, &delivery.NotYet{Until: until}
				}
				return delivery.Answer{}, nil
			})
			r.add(change(21, "E1", "scheduled", 10*time.Minute), change(22, "E2", "scheduled", 10*time.Minute))
			pause(100 * time.Millisecond)
			if s := r.worker.State(); !down && (s.Retrying || s.Error != "") {
				t.Errorf("the state is %+v, want no failure", s)
			}
			r.add(change(23, "E1", "started", 0))
			pause(time.Minute)
			calls := r.made()[before:]
			if len(calls) > 20 {
				t.Errorf("down %v: %d attempts, want it to be waited for", down, len(calls))
			}
			accepted := r.ids(&r.accepted)
			if !down {
				want(t, "accepted", accepted, "E2-scheduled", "E1-scheduled", "E1-started")
			} else if len(accepted) != 13 {
				t.Errorf("accepted are %q, want all 13", accepted)
			}
		})
	}
}
