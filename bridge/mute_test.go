package bridge_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/mutes"
)

// A muted sink hears nothing but a Preempt until the end; another hears everything, and who muted it and why. At the end
// the muted one hears the latest of each event, and the status tells all the while.
func TestAMutedSinkWaits(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		ops, audit := &recorder{}, &recorder{}
		heardAll := func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }
		latest := func(terms *bridge.Terms) { terms.Late = delivery.LateLatest }
		b := s.up(ops.all("ops").With(latest), audit.all("audit").With(heardAll))
		began := time.Now()
		m, err := b.Mute(delivery.Mute{Sink: "ops", Reason: "repairs", By: "alice"}, 20*time.Minute)
		must(t, err)
		s.reboot(idA)
		pause(1500 * time.Millisecond)
		s.azure.Start(idA)
		s.azure.Schedule(imdstest.Event{ID: idB, Type: "Preempt", Resources: []string{"vm_0"}})
		pause(1500 * time.Millisecond)
		wantIDs(t, ops.ids(), idB+"-scheduled")
		st := b.Status()
		i := slices.IndexFunc(st.Sinks, func(k bridge.SinkStatus) bool { return k.Name == "ops" })
		if k := st.Sinks[i]; k.Muted != 2 || k.Pending != 2 || k.OldestPendingSeconds != 0 ||
			!k.MutedUntil.Equal(began.Add(20*time.Minute)) {
			t.Errorf("the status of the sink is %+v", k)
		}
		if len(st.Mutes) != 1 || st.Mutes[0].ID != m.ID || st.Mutes[0].By != "alice" || !st.Ready {
			t.Errorf("the status is %+v", st)
		}
		pause(time.Until(began.Add(20*time.Minute - time.Second)))
		wantIDs(t, slices.DeleteFunc(ops.ids(), func(id string) bool { return strings.HasPrefix(id, idB) }))
		pause(5 * time.Second)
		if got := ops.ids(); !slices.Contains(got, idA+"-started") || slices.Contains(got, idA+"-scheduled") {
			t.Errorf("at the end the sink heard %v, want what has begun", got)
		}
		if st := b.Status(); len(st.Mutes) != 0 {
			t.Errorf("it is still muted: %+v", st.Mutes)
		}
		said := map[string]map[string]any{}
		for _, h := range audit.accepted() {
			if typ := h.Event.Type(); strings.Contains(typ, "muted") {
				said[typ] = tellingOf(t, h.Event)
			}
		}
		muted, unmuted := said[cloudevent.SinkMuted], said[cloudevent.SinkUnmuted]
		if muted["reason"] != "repairs" || muted["by"] != "alice" || muted["sink"] != "ops" || unmuted["mute"] != m.ID ||
			unmuted["endedBy"] != nil {
			t.Errorf("on record are %v", said)
		}
		for _, name := range []string{"vm", "types"} {
			if v, has := muted[name]; has {
				t.Errorf("a mute for all VMs and types has the %s %v on record", name, v)
			}
		}
		s.wantLogged("muted; deliveries wait")
		narrow := delivery.Mute{Types: []string{"freeze"}, VM: "vm-*", Reason: "repairs", By: "bob"}
		if _, err := b.Mute(narrow, time.Hour); err != nil {
			t.Fatal(err)
		}
		pause(time.Second)
		told := audit.accepted()
		last := tellingOf(t, told[len(told)-1].Event)
		if fmt.Sprint(last["types"]) != "[Freeze]" || last["vm"] != "vm-*" || last["sink"] != nil {
			t.Errorf("of a mute for the VMs vm-* and Freeze, on record is %v", last)
		}
	})
}

// Heartbeats go on while everything else about the bridge waits for the end of a mute.
func TestHeartbeatsPassAMute(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		ops := &recorder{}
		b := s.start(ops.all("ops").With(func(terms *bridge.Terms) { terms.Bridge, terms.Heartbeat = bridge.LevelAll, time.Minute }))
		pause(90 * time.Second)
		if _, err := b.Mute(delivery.Mute{Reason: "repairs", By: "alice"}, time.Hour); err != nil {
			t.Fatal(err)
		}
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
		mute := func(sink string) string {
			m, err := b.Mute(delivery.Mute{Sink: sink, Reason: "repairs", By: "alice"}, time.Hour)
			must(t, err)
			return m.ID
		}
		mute("other")
		id := mute("")
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
		if left := b.Mutes(); len(left) != 1 || left[0].Sink != "other" {
			t.Errorf("after a restart there are %d mutes", len(left))
		}
		b.reload(ops.all("ops"))
		if left := b.Mutes(); len(left) != 0 {
			t.Errorf("without the sink there are %d mutes", len(left))
		}
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
		if got := pendingIDs(b.Outbox, "audit"); len(got) != 1 {
			t.Fatalf("before the mute is on disk, on record are %v", got)
		}
		pause(3 * time.Second)
		release()
		if err := <-muted; err != nil {
			t.Error(err)
		}
	})
}

// What waited for a mute and is late after that, because the sink was down, becomes a dead letter like any other: nothing
// stands for it.
func TestWhatIsLateAfterAMuteIsADeadLetter(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		ops := &recorder{}
		b := s.up(ops.all("ops").With(func(terms *bridge.Terms) { terms.Late = delivery.LateDrop }))
		if _, err := b.Mute(delivery.Mute{Sink: "ops", Reason: "repairs", By: "alice"}, time.Minute); err != nil {
			t.Fatal(err)
		}
		ops.say(always(errors.New("down")))
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", NotBefore: time.Now().Add(10 * time.Minute)})
		pause(12 * time.Minute)
		if n := len(ops.tried()); n == 0 {
			t.Error("it was never tried")
		}
		wantIDs(t, deadIDs(b.Outbox), idA+"-scheduled")
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
		if _, err := b.Mute(delivery.Mute{People: true, Reason: "repairs", By: "alice"}, time.Hour); err != nil {
			t.Fatal(err)
		}
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
		if _, err := b.Unmute(nil, true, "alice"); err != nil {
			t.Fatal(err)
		}
		pause(1500 * time.Millisecond)
		wantIDs(t, hook.ids(), idA+"-scheduled", idA+"-started")
		wantIDs(t, mail.ids(), idA+"-scheduled", idA+"-started")

		if _, err := b.Mute(delivery.Mute{Reason: "repairs", By: "alice"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		s.azure.End(idA)
		pause(1500 * time.Millisecond)
		wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-started")
	})
}
