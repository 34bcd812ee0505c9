package relay_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// A mute holds back what comes to a sink, whichever relay serves it, also after a takeover. What comes is told at the
// end, and who muted what and why is on record.
func TestAMuteHoldsOnEveryRelay(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink, other, record := newRecorder(), newRecorder(), newRecorder()
		all := with(route("record", record), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll })
		routes := []bridge.Route{route("hook", sink), route("other", other), all}
		first, stop := s.run(routes...)
		second, stopSecond := s.start(relay.Options{Name: "relay-2", Routes: routes})
		pause(5 * time.Second)
		if serves(second, "hook") {
			first, stop, second, stopSecond = second, stopSecond, first, stop
		}
		m, err := second.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, 20*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		pause(time.Second)
		a, b := eventNo(1), eventNo(2)
		scheduled, started := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1")
		another := b.say(t, imds.Scheduled, "vm-1")
		s.publish(scheduled)
		pause(2 * time.Second)
		st := first.Status()
		i := slices.IndexFunc(st.Sinks, func(k bridge.SinkStatus) bool { return k.Name == "hook" })
		if k := st.Sinks[i]; k.Muted != 1 || !k.MutedUntil.Equal(m.Until) || len(st.Mutes) != 1 || k.OldestPendingSeconds != 0 {
			t.Errorf("the status is %+v with %d mutes", k, len(st.Mutes))
		}
		list, _, err := first.List(t.Context(), relay.Selection{Sink: "hook"}, 10)
		if err != nil || len(list) != 1 || list[0].Mute == nil || list[0].Mute.ID != m.ID {
			t.Errorf("listed is %+v, %v", list, err)
		}
		stop()
		s.publish(started, another)
		pause(time.Minute)
		wantIDs(t, "while it is muted", sink.all())
		wantIDs(t, "the other", other.all(), scheduled, started, another)
		pause(20 * time.Minute)
		wantIDs(t, "at the end", sink.all(), scheduled, started, another)
		if left := second.Status().Mutes; len(left) != 0 {
			t.Errorf("there is still %+v", left[0])
		}
		if got := strings.Join(record.all(), " "); !strings.Contains(got, "-sink-muted-") ||
			!strings.Contains(got, "-sink-unmuted-") {
			t.Errorf("on record is %s", got)
		}
		stopSecond()
	})
}

// A mute of the sinks for people holds back those alone, whichever relay serves them, and also one that gets new settings
// meanwhile.
func TestAMuteOfTheSinksForPeopleHoldsOnEveryRelay(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		chat, hook, mail := newRecorder(), newRecorder(), newRecorder()
		people := func(terms *bridge.Terms) { terms.People = true }
		routes := []bridge.Route{with(route("chat", chat), people), route("hook", hook)}
		first, stop := s.run(routes...)
		second, stopSecond := s.start(relay.Options{Name: "relay-2", Routes: routes})
		pause(5 * time.Second)
		if _, err := second.Mute(delivery.Mute{People: true, Reason: "repairs", By: "alice"}, 5*time.Minute); err != nil {
			t.Fatal(err)
		}
		pause(2 * time.Second)
		for _, k := range first.Status().Sinks {
			if k.People != (k.Name == "chat") || k.MutedUntil.IsZero() == k.People {
				t.Errorf("the status is %+v", k)
			}
		}
		routes = append(slices.Clone(routes), with(route("mail", mail), people))
		first.Reload(routes, bridge.SettingsInfo{})
		second.Reload(routes, bridge.SettingsInfo{})
		pause(10 * time.Second)
		scheduled := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(scheduled)
		pause(time.Minute)
		wantIDs(t, "people, while it is muted", chat.all())
		wantIDs(t, "people of the newer settings", mail.all())
		wantIDs(t, "a machine", hook.all(), scheduled)
		pause(5 * time.Minute)
		wantIDs(t, "people, at the end", chat.all(), scheduled)
		wantIDs(t, "people of the newer settings, at the end", mail.all(), scheduled)
		stop()
		stopSecond()
	})
}

// A relay may be killed when a mute is in force and not on record yet. Whichever hears of it puts it there, once.
func TestAMuteOfARelayThatWasKilledIsOnRecord(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		record := newRecorder()
		all := with(route("record", record), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll })
		said := func(when string, want ...string) {
			t.Helper()
			pause(5 * time.Second)
			var got []string
			for _, id := range record.all() {
				for _, what := range []string{"-sink-muted-", "-sink-unmuted-"} {
					if strings.Contains(id, what) {
						got = append(got, what)
					}
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s %q are on record, want %q", when, got, want)
			}
		}
		begun := time.Now().UTC()
		mute := delivery.Mute{ID: "m1", Sink: "hook", Since: begun, Until: begun.Add(time.Hour), Reason: "repairs", By: "alice"}
		put := func(m delivery.Mute) {
			text, err := json.Marshal([]delivery.Mute{m})
			if err != nil {
				t.Fatal(err)
			}
			s.put("FOREWARN_records", "mutes", string(text))
		}
		_, stop := s.run(all, route("hook", newRecorder()))
		stop()
		put(mute)
		_, stop = s.run(all, route("hook", newRecorder()))
		_, stopSecond := s.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{all, route("hook", newRecorder())}})
		said("at the start", "-sink-muted-")
		stop()
		stopSecond()
		_, stop = s.run(all, route("hook", newRecorder()))
		said("after a restart", "-sink-muted-")
		mute.Ended, mute.EndedBy = time.Now().UTC(), "bob"
		put(mute)
		said("at the end", "-sink-muted-", "-sink-unmuted-")
		mute.ID, mute.Since, mute.Ended = "m0", begun.Add(-20*time.Hour), begun.Add(-13*time.Hour)
		put(mute)
		said("of what was half a day ago", "-sink-muted-", "-sink-unmuted-")
		stop()
	})
}

// A mute that begins or ends while the stream takes nothing of it is on record once the stream does.
func TestAMuteIsOnRecordOnceTheStreamTakesIt(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		record, log := newRecorder(), &systemtest.Log{}
		all := with(route("record", record), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll })
		r, stop := s.start(relay.Options{Routes: []bridge.Route{all}, Log: log.Logger()})
		pause(5 * time.Second)
		onRecord := func(when string, muted, unmuted int) {
			t.Helper()
			got := strings.Join(record.all(), " ")
			if m, u := strings.Count(got, "-sink-muted-"), strings.Count(got, "-sink-unmuted-"); m != muted || u != unmuted {
				t.Errorf("%s on record is %q, want %d muted and %d unmuted", when, got, muted, unmuted)
			}
		}
		allow := s.takesNothingForSinks()
		if _, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		pause(10 * time.Minute)
		onRecord("before the stream takes it", 0, 0)
		allow()
		pause(10 * time.Second)
		onRecord("when it is muted", 1, 0)
		allow = s.takesNothingForSinks()
		if _, err := r.Unmute(nil, true, "bob"); err != nil {
			t.Fatal(err)
		}
		pause(10 * time.Minute)
		allow()
		pause(10 * time.Second)
		onRecord("at the end", 1, 1)
		if n := log.Count("not in the stream"); n != 2 {
			t.Errorf("that it isn't on record is logged %d times, want twice", n)
		}
		stop()
	})
}

// The clocks of relays differ a little: a mute that one of them made in the future of another is told once, and its end
// stays where it is.
func TestAMuteOfARelayWhoseClockIsAheadIsToldOnce(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		record := newRecorder()
		r, stop := s.run(with(route("record", record), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }),
			route("hook", newRecorder()))
		since := time.Now().Add(5 * time.Second).UTC()
		mute := delivery.Mute{ID: "m1", Sink: "hook", Since: since, Until: since.Add(time.Hour), Reason: "repairs",
			By: "alice"}
		text, err := json.Marshal([]delivery.Mute{mute})
		if err != nil {
			t.Fatal(err)
		}
		s.put("FOREWARN_records", "mutes", string(text))
		pause(time.Minute)
		if got := strings.Count(strings.Join(record.all(), " "), "-sink-muted-"); got != 1 {
			t.Errorf("it is told %d times, want once", got)
		}
		if left := r.Status().Mutes; len(left) != 1 || !left[0].Until.Equal(mute.Until) {
			t.Errorf("there are %+v, want it until %v", left, mute.Until)
		}
		stop()
	})
}

// serves reports whether the relay is the one that serves the sink.
func serves(r *relay.Relay, sink string) bool {
	return slices.ContainsFunc(r.Status().Sinks, func(k bridge.SinkStatus) bool {
		return k.Name == sink && k.State != bridge.SinkStandby
	})
}

// What waited for a mute falls back, and expires, by the time since its end; a reload without the sink ends it; one
// that has ended does not begin again after a restart.
func TestTheEndOfAMuteOnARelay(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink, spare := newRecorder(), newRecorder()
		sink.answer = fails(errRefused)
		hook := with(route("hook", sink), func(terms *bridge.Terms) {
			terms.MaxAge, terms.Fallback = 20*time.Minute, delivery.Fallback{Sink: "spare", After: 8 * time.Minute}
		})
		instead := route("spare", spare)
		instead.Filter.Only.Types = []string{"Freeze"} // so that it hears nothing by itself
		r, stop := s.run(hook, instead)
		m, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(30 * time.Minute)
		wantIDs(t, "the fallback while it is muted", spare.all())
		if _, err := r.Unmute([]string{"unknown"}, false, "bob"); err == nil {
			t.Error("an unknown mute ended")
		}
		if ended, err := r.Unmute([]string{m.ID}, false, "bob"); err != nil || len(ended) != 1 || ended[0].EndedBy != "bob" {
			t.Errorf("Unmute = %+v, %v", ended, err)
		}
		stop()
		r, stop = s.run(hook, instead)
		pause(6 * time.Minute)
		if wantIDs(t, "the fallback before its time", spare.all()); len(r.Status().Mutes) != 0 {
			t.Error("it is still muted after a restart")
		}
		pause(3 * time.Minute)
		wantIDs(t, "the fallback after its time", spare.all(), ce)
		if list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 10); err != nil || len(list) != 0 {
			t.Errorf("dead letters are %+v, %v", list, err)
		}
		if _, err := r.Mute(delivery.Mute{Sink: "spare", Reason: "repairs", By: "alice"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		r.Reload([]bridge.Route{hook}, bridge.SettingsInfo{})
		pause(5 * time.Second)
		if left := r.Status().Mutes; len(left) != 0 {
			t.Errorf("without the sink there is still %+v", left[0])
		}
		stop()
	})
}

// A reload without a sink doesn't end its mute while another relay still has the sink.
func TestAReloadEndsNoMuteOfASinkThatAnotherRelayHas(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		both := []bridge.Route{route("hook", sink), route("other", newRecorder())}
		fewer := both[1:]
		one, stop := s.start(relay.Options{Routes: both, Settings: bridge.SettingsInfo{Hash: "a"}})
		two, stopSecond := s.start(relay.Options{Name: "relay-2", Routes: both, Settings: bridge.SettingsInfo{Hash: "a"}})
		pause(time.Minute)
		if _, err := one.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		one.Reload(fewer, bridge.SettingsInfo{Hash: "b"})
		s.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
		pause(time.Minute)
		if n := len(two.Status().Mutes); n != 1 {
			t.Errorf("while the other relay has the sink there are %d mutes, want 1", n)
		}
		wantIDs(t, "while it is muted", sink.all())
		two.Reload(fewer, bridge.SettingsInfo{Hash: "b"})
		pause(time.Minute)
		if n := len(two.Status().Mutes); n != 0 {
			t.Errorf("without the sink there are %d mutes, want 0", n)
		}
		stop()
		stopSecond()
	})
}

// A mute that a server loses in a crash holds nothing back for ever, and the next one counts.
func TestAMuteThatIsLostEnds(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r, stop := s.run(route("hook", sink))
		mute := func() {
			t.Helper()
			if _, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, 5*time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		var all []event.Event
		say := func() {
			ce := eventNo(len(all)).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
			s.publish(ce)
			all = append(all, ce)
			pause(time.Minute)
		}
		s.crash("KV_FOREWARN_records", func() {
			for range 100 { // so that the next mute has a lower number
				s.put("FOREWARN_records", "other", "")
			}
			mute()
		})
		pause(time.Minute)
		say()
		wantIDs(t, "after it was lost", sink.all(), all...)
		mute()
		say()
		wantIDs(t, "with another mute", sink.all(), all[:1]...)
		pause(5 * time.Minute)
		wantIDs(t, "after its end", sink.all(), all...)
		stop()
	})
}

// A mute of some VMs holds back what is about them, also what their forewarns say of themselves, and nothing else.
func TestAMuteOfSomeVMsOnARelay(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		hook := with(route("hook", sink), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll })
		r, stop := s.run(hook)
		if _, err := r.Mute(delivery.Mute{VM: "vm-[0-4]", Reason: "repairs", By: "alice"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		pause(time.Second)
		said := len(sink.all())
		about := func(vm string) string {
			ce, err := cloudevent.WrapBridge(cloudevent.BridgeStopping, map[string]any{"pending": 0},
				imds.Observer{Name: vm}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			s.publish(ce)
			return ce.ID()
		}
		muted, told := about("vm-1"), about("vm-9")
		pause(5 * time.Second)
		if got := sink.all()[said:]; !slices.Equal(got, []string{told}) {
			t.Errorf("the sink heard %v, want %s alone", got, told)
		}
		pause(time.Hour)
		if got := sink.all(); !slices.Contains(got, muted) {
			t.Errorf("at the end the sink had heard %v, want %s too", got, muted)
		}
		stop()
	})
}
