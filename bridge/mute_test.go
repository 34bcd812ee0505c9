package bridge_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/mutes"
)

// mutes mutes what it names for repairs.
func (r *running) mutes(m delivery.Mute, d time.Duration) delivery.Mute {
	r.s.t.Helper()
	m.Reason, m.By = "repairs", "alice"
	m, err := r.Mute(m, d)
	must(r.s.t, err)
	return m
}

// A muted sink hears nothing but a Preempt until the end; another hears everything, and who muted it and why. At the end
// the muted one hears the latest of each event, and the status tells all the while.
func TestAMutedSinkWaits(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		ops, audit := &recorder{}, &recorder{}
		heardAll := func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }
		latest := func(terms *bridge.Terms) { terms.Late = delivery.LateLatest }
		b := s.up(ops.all("ops").With(latest), audit.all("audit").With(heardAll))
		until := time.Now().Add(20 * time.Minute)
		m := b.mutes(delivery.Mute{Sink: "ops"}, 20*time.Minute)
		s.reboot(idA)
		pause(1500 * time.Millisecond)
		s.azure.Start(idA)
		s.azure.Schedule(imdstest.Event{ID: idB, Type: "Preempt", Resources: []string{"vm_0"}})
		pause(1500 * time.Millisecond)
		wantIDs(t, ops.ids(), idB+"-scheduled")
		sink := b.sink("ops")
		wantEqual(t, "muted", sink.Muted, 2)
		wantEqual(t, "pending", sink.Pending, 2)
		wantEqual(t, "seconds that the oldest waits", sink.OldestPendingSeconds, 0)
		wantEqual(t, "it is muted until then", sink.MutedUntil.Equal(until), true)
		st := b.Status()
		wantEqual(t, "ready", st.Ready, true)
		wantEqual(t, "mutes", len(st.Mutes), 1)
		wantEqual(t, "the mute", st.Mutes[0].ID, m.ID)
		wantEqual(t, "by", st.Mutes[0].By, "alice")
		pause(time.Until(until.Add(-time.Second)))
		wantIDs(t, slices.DeleteFunc(ops.ids(), func(id string) bool { return strings.HasPrefix(id, idB) }))
		pause(5 * time.Second)
		if got := ops.ids(); !slices.Contains(got, idA+"-started") || slices.Contains(got, idA+"-scheduled") {
			t.Errorf("at the end the sink heard %v, want what has begun", got)
		}
		wantEqual(t, "mutes that are left", len(b.Status().Mutes), 0)
		s.wantLogged("muted; deliveries wait")
		b.mutes(delivery.Mute{Types: []string{"freeze"}, VM: "vm-*"}, time.Hour)
		pause(time.Second)
		told := slices.DeleteFunc(audit.accepted(), func(h heard) bool { return !strings.Contains(h.Event.Type(), "muted") })
		wantEqual(t, "CloudEvents about mutes", len(told), 3)
		wantSays(t, told[0], map[string]any{"sink": "ops", "reason": "repairs", "by": "alice", "vm": nil, "types": nil})
		wantSays(t, told[1], map[string]any{"mute": m.ID, "endedBy": nil})
		wantSays(t, told[2], map[string]any{"sink": nil, "vm": "vm-*", "types": []any{"Freeze"}})
	})
}

// Heartbeats go on while everything else about the bridge waits for the end of a mute.
func TestHeartbeatsPassAMute(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		ops := &recorder{}
		b := s.start(ops.all("ops").With(func(terms *bridge.Terms) { terms.Bridge, terms.Heartbeat = bridge.LevelAll, time.Minute }))
		pause(90 * time.Second)
		b.mutes(delivery.Mute{}, time.Hour)
		b.reload(b.RoutesInForce()...) // which is told about the bridge
		before := len(ops.types())
		pause(10 * time.Minute)
		beats := ops.types()[before:]
		wantIDs(t, beats, slices.Repeat([]string{"heartbeat"}, 10)...)
	})
}

// A mute outlives a restart, and one that has ended doesn't come back. Somebody can end it, and so does a reload of
// settings without the sink.
func TestAMuteEndsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		ops, other := &recorder{}, &recorder{}
		b := s.up(ops.all("ops"), other.all("other"))
		b.mute("other", time.Hour)
		id := b.mutes(delivery.Mute{}, time.Hour).ID
		if _, err := b.Mute(delivery.Mute{Reason: "repairs", By: "alice"}, mutes.Longest+1); err == nil || len(b.Mutes()) != 2 {
			t.Errorf("muting for too long: %v, and there are %d mutes, want an error and 2", err, len(b.Mutes()))
		}
		s.reboot(idA)
		pause(3 * time.Second)
		b.end()
		b = s.start(ops.all("ops"), other.all("other"))
		pause(3 * time.Second)
		wantIDs(t, ops.ids())
		if _, err := b.Unmute([]string{"unknown"}, false, "bob"); err == nil || len(b.Mutes()) != 2 {
			t.Errorf("ending an unknown one: %v, %d are left", err, len(b.Mutes()))
		}
		if ended, err := b.Unmute([]string{id}, false, "bob"); err != nil || len(ended) != 1 || ended[0].EndedBy != "bob" {
			t.Errorf("Unmute = %+v, %v", ended, err)
		}
		pause(3 * time.Second)
		wantIDs(t, ops.ids(), idA+"-scheduled")
		wantIDs(t, other.ids())
		b.end()
		b = s.start(ops.all("ops"), other.all("other"))
		pause(3 * time.Second)
		wantEqual(t, "mutes after a restart", len(b.Mutes()), 1)
		wantEqual(t, "of the sink", b.Mutes()[0].Sink, "other")
		b.reload(ops.all("ops"))
		wantEqual(t, "mutes without the sink", len(b.Mutes()), 0)
		b.reload(ops.all("ops"), other.all("other"))
		pause(3 * time.Second)
		wantIDs(t, other.ids(), idA+"-scheduled")
		if ended, err := b.Unmute(nil, true, "bob"); err != nil || len(ended) != 0 {
			t.Errorf("ending all of none: %v, %v", ended, err)
		}
	})
}

// A mute and the record of it are one change, so that a crash can't keep one of the two. While the disk hangs, the rest
// of the bridge goes on.
func TestAMuteAndItsRecordAreOneChange(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		audit := &recorder{}
		b := s.up(audit.all("audit").With(func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }))
		release := s.disk.block()
		muted := make(chan error)
		go func() {
			_, err := b.Mute(delivery.Mute{Sink: "ops", Reason: "repairs", By: "alice"}, time.Hour)
			muted <- err
		}()
		pause(100 * time.Millisecond)
		wantEqual(t, "on record before the mute is on disk", len(pendingIDs(b.Outbox, "audit")), 1)
		pause(3 * time.Second)
		release()
		must(t, <-muted)
	})
}

// What waited for a mute and is late after that, because the sink was down, becomes a dead letter like any other: nothing
// stands for it.
func TestWhatIsLateAfterAMuteIsADeadLetter(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		ops := &recorder{}
		b := s.up(ops.all("ops").With(func(terms *bridge.Terms) { terms.Late = delivery.LateDrop }))
		b.mute("ops", time.Minute)
		ops.say(always(errors.New("down")))
		s.redeploy(idA, 10*time.Minute)
		pause(12 * time.Minute)
		wantWithin(t, "attempts", len(ops.tried()), 1, 100)
		b.wantDead(delivery.ReasonLate, idA+"-scheduled")
	})
}

// A mute of the sinks for people holds back those alone, also one that a reload brings or makes one; and across a
// restart. A mute of all that was made before there were others stays one of all.
func TestAMuteOfTheSinksForPeopleIsForThoseOfTheSettings(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		chat, audit, mail, hook := &recorder{}, &recorder{}, &recorder{}, &recorder{}
		people := func(terms *bridge.Terms) { terms.People = true }
		routes := []bridge.Route{chat.all("chat").With(people), audit.all("audit"), hook.all("hook")}
		b := s.up(routes...)
		b.mutes(delivery.Mute{People: true}, time.Hour)
		s.reboot(idA)
		pause(1500 * time.Millisecond)
		wantIDs(t, chat.ids())
		wantIDs(t, audit.ids(), idA+"-scheduled")
		for _, k := range b.Status().Sinks {
			if k.People != (k.Name == "chat") || k.MutedUntil.IsZero() == k.People {
				t.Errorf("the status of %s is %+v", k.Name, k)
			}
		}

		routes = []bridge.Route{chat.all("chat"), audit.all("audit"), hook.all("hook").With(people), mail.all("mail").With(people)}
		b.reload(routes...)
		pause(1500 * time.Millisecond)
		wantIDs(t, chat.ids(), idA+"-scheduled") // it is no sink for people now
		wantIDs(t, mail.ids())
		s.azure.Start(idA)
		pause(1500 * time.Millisecond)
		wantIDs(t, hook.ids(), idA+"-scheduled")
		wantIDs(t, mail.ids())

		b.end()
		b = s.up(routes...)
		wantIDs(t, hook.ids(), idA+"-scheduled")
		wantIDs(t, mail.ids())
		wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-started")
		b.unmute()
		pause(1500 * time.Millisecond)
		wantIDs(t, hook.ids(), idA+"-scheduled", idA+"-started")
		wantIDs(t, mail.ids(), idA+"-scheduled", idA+"-started")

		b.mutes(delivery.Mute{}, time.Hour)
		s.azure.End(idA)
		pause(1500 * time.Millisecond)
		wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-started")
	})
}
