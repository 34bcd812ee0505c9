package relay_test

import (
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

// With a lead, scheduled is told so long before the event begins, moved when the event moves, by another relay too, and
// never when the event began or ended before.
func TestALeadWaitsForItsTimeOnARelay(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r := with(route("drain", sink), func(t *bridge.Terms) { t.Lead = 15 * time.Minute })
		st, stop := s.run(r)
		soon, far, moved, gone := eventNo(1).in(5*time.Minute), eventNo(2).in(40*time.Minute), eventNo(3).in(30*time.Minute),
			eventNo(4).in(30*time.Minute)
		later := moved.in(time.Hour)
		first, second, third := soon.say(t, imds.Scheduled, "vm-1"), far.say(t, imds.Scheduled, "vm-1"),
			later.updated(t, moved)
		s.publish(first, second, moved.say(t, imds.Scheduled, "vm-1"), gone.say(t, imds.Scheduled, "vm-1"))
		pause(10 * time.Second)
		wantIDs(t, "at once", sink.all(), first)
		end := gone.say(t, imds.Vanished, "vm-1")
		s.publish(third, end)
		pause(10 * time.Second)
		wantIDs(t, "an end does not wait", sink.all(), first, end)
		if k := st.Status().Sinks[0]; k.Pending != 2 || k.OldestPendingSeconds > 0 || k.State != bridge.SinkOK {
			t.Errorf("what waits for its lead makes the sink %+v", k)
		}
		stop()
		_, stop = s.run(r)
		pause(24 * time.Minute)
		wantIDs(t, "before its lead", sink.all(), first, end)
		pause(2 * time.Minute)
		wantIDs(t, "when it has come", sink.all(), first, end, second)
		pause(20 * time.Minute)
		wantIDs(t, "what moved", sink.all(), first, end, second, third)
		stop()
	})
}

// What waits for its lead moves with its event, also when the sink isn't told of the move; and what a newer change of
// another VM has made outdated does not wait for it.
func TestALeadMovesWithItsEventOnARelay(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		var known time.Time
		sink.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
			known = batch[0].NotBefore
			return delivery.Answer{}, nil
		}
		r := with(route("drain", sink), func(t *bridge.Terms) { t.Lead = 10 * time.Minute })
		r.Filter.Only.Changes = []string{"scheduled", "started"}
		_, stop := s.run(r)
		a, b := eventNo(1).in(20*time.Minute), eventNo(2).in(20*time.Minute)
		moved := a.in(40 * time.Minute)
		scheduled, outdated := a.say(t, imds.Scheduled, "vm-1"), b.say(t, imds.Scheduled, "vm-1")
		pause(time.Second)
		started := b.say(t, imds.Started, "vm-2")
		over := eventNo(3).in(20 * time.Minute) // nothing of it is left to tell
		s.publish(over.say(t, imds.Scheduled, "vm-1"))
		s.publish(scheduled, moved.updated(t, a), started, over.say(t, imds.Vanished, "vm-1"))
		pause(time.Second)
		s.publish(outdated)
		pause(28 * time.Minute)
		wantIDs(t, "before the time of the move", sink.all(), started)
		pause(3 * time.Minute)
		wantIDs(t, "when it has come", sink.all(), started, scheduled)
		if !known.Equal(moved.notBefore) {
			t.Errorf("it was told with the time %v, want %v", known, moved.notBefore)
		}
		stop()
	})
}

// Also a relay that starts when the time has passed that was announced first waits for the one that counts.
func TestALeadMovesWithItsEventWhileNoRelayRuns(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r := with(route("drain", sink), func(t *bridge.Terms) { t.Lead = 10 * time.Minute })
		r.Filter.Only.Changes = []string{"scheduled", "started"}
		_, stop := s.run(r)
		a := eventNo(1).in(20 * time.Minute)
		scheduled := a.say(t, imds.Scheduled, "vm-1")
		s.publish(scheduled, a.in(40*time.Minute).updated(t, a))
		pause(time.Second)
		stop()
		pause(12 * time.Minute)
		_, stop = s.run(r)
		pause(15 * time.Minute)
		wantIDs(t, "before the time of the move", sink.all())
		pause(4 * time.Minute)
		wantIDs(t, "when it has come", sink.all(), scheduled)
		stop()
	})
}
