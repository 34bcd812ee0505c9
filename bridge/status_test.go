package bridge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // Windows has no zones of its own

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// While an event is due within 15 minutes, a sink that refuses is called blocked with its first refusal, and makes the
// bridge not ready, because there is no time to wait for a second one. A sink that is merely down is tried again, and
// while the event is further away, a refusal is too. An event that has begun is no longer due.
func TestARefusalIsNamedAtOnceWhileAnEventIsDue(t *testing.T) {
	for _, tt := range []struct {
		claim   string
		notice  time.Duration
		status  string
		answer  error
		state   string
		reasons []string
	}{
		{"14 minutes away", 14 * time.Minute, imdstest.Scheduled, errRefused, bridge.SinkIsBlocked,
			[]string{"the sink refusing refuses its deliveries: 401 Unauthorized; an event is due within 15 minutes"}},
		{"an hour away", time.Hour, imdstest.Scheduled, errRefused, bridge.SinkRetrying, []string{}},
		{"it has begun", 14 * time.Minute, imdstest.Started, errRefused, bridge.SinkRetrying, []string{}},
		{"the sink is down", 14 * time.Minute, imdstest.Scheduled, errSinkDown, bridge.SinkRetrying, []string{}},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			well, refusing := &recorder{}, answering(tt.answer)
			b := s.up(well.all("well"), refusing.all("refusing"))
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Status: tt.status, NotBefore: time.Now().Add(tt.notice)})
			pause(1500 * time.Millisecond)
			wantEqual(t, "the sink that refuses", b.sink("refusing").State, tt.state)
			wantEqual(t, "the other one", b.sink("well").State, bridge.SinkOK)
			wantEqual(t, "ready", b.Status().Ready, len(tt.reasons) == 0)
			wantIDs(t, b.Status().Reasons, tt.reasons...)
			refusing.say(nil)
			pause(10 * time.Second)
			wantEqual(t, "the sink, once it accepts", b.sink("refusing").State, bridge.SinkOK)
			wantEqual(t, "ready, once it accepts", b.Status().Ready, true)
		})
	}
}

// A sink that refused a delivery which was dropped since has nothing more to refuse: while an event is due it is not
// called blocked.
func TestASinkIsNotBlockedByWhatWasDropped(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.up(answering(errRefused).all("a"))
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", NotBefore: time.Now().Add(14 * time.Minute)})
		pause(time.Second) // of which it is known for half
		wantEqual(t, "the sink, when it refuses", b.sink("a").State, bridge.SinkIsBlocked)
		wantEqual(t, "seconds that the oldest waits", b.sink("a").OldestPendingSeconds, 0.5)
		wantEqual(t, "ready", b.Status().Ready, false)
		b.drop(b.Outbox.List(outbox.Selection{})[0])
		pause(time.Second)
		wantEqual(t, "the sink, with nothing pending", b.sink("a").State, bridge.SinkOK)
		wantEqual(t, "ready, with nothing pending", b.Status().Ready, true)
	})
}

// What of a document is not understood, or not taken because there is too much, is in the status as long as Azure sends
// it, and makes nothing vanish.
func TestStatusSaysWhatOfTheDocumentIsNotTaken(t *testing.T) {
	systemtest.LeftToGate(t)
	bubble(t, func(t *testing.T, s *stage) {
		b := s.up()
		s.reboot(idA)
		pause(2 * time.Second)
		var entries []string
		for i := range imds.MaxEvents + 1 {
			entries = append(entries, fmt.Sprintf(`{"EventId":"%08d-0000-4000-8000-000000000000"}`, i))
		}
		s.document(9, entries...)
		pause(2 * time.Second)
		st := b.Status()
		wantEqual(t, "open events", len(st.Events), imds.MaxEvents)
		isOld := func(e bridge.EventStatus) bool { return e.Known.ID == idA }
		wantEqual(t, "the one of before is open", slices.ContainsFunc(st.Events, isOld), true)
		wantIDs(t, st.IMDS.Problems, "it lists more than 10000 events; the rest is ignored",
			"changes left out: 10000 events, or 16 MiB of them, are open already")
		s.wantLoggedTimes(1, bridge.LeftOut)
		s.document(10)
		pause(2 * time.Second)
		wantEqual(t, "open events afterwards", len(b.Status().Events), 0)
		wantIDs(t, b.Status().IMDS.Problems)
	})
}

// Status says what is wrong with the disk, as long as it is.
func TestStatusSaysWhatIsWrongWithTheDisk(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.up((&recorder{}).all("a"))
		s.disk.fail(errFull)
		s.reboot(idA)
		pause(10 * time.Second)
		wantIn(t, "what it says of the disk", b.Status().Outbox.Error, errFull.Error())
		s.disk.fail(nil)
		pause(30 * time.Second)
		wantEqual(t, "afterwards the status says of the disk", b.Status().Outbox.Error, "")
	})
}

// Status shows what the contract names, with the words of the contract.
func TestStatusShowsHowThingsAre(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Settings = bridge.SettingsInfo{Hash: "h1", LoadedAt: time.Now()}
		routes := []bridge.Route{
			(&recorder{}).all("well"), answering(errSinkDown).all("down"), answering(errRefused).all("refusing"),
			answering(delivery.ErrRejected).all("strict"),
		}
		began := time.Now()
		b := s.up(append(routes, answering(errSinkDown).all("gone"))...)
		s.reboot(idA)
		s.azure.Schedule(imdstest.Event{ID: idB, Resources: []string{"vm-1"}, Status: imdstest.Started})
		pause(90 * time.Second)
		b.Reload(routes, nil, b.Status().Settings)
		b.SettingsFailed(errors.New("line 7: no such key"))
		pause(90 * time.Second)
		st := b.Status()

		if st.Version != "test" || !st.StartedAt.Equal(began) || st.Ready || len(st.Reasons) != 2 || st.Observer.Name != "vm-0" ||
			st.Settings.Hash != "h1" || st.Settings.LastError != "line 7: no such key" {
			t.Errorf("status is %+v", st)
		}
		if i := st.IMDS; i.Endpoint != "http://azure.test" || i.APIVersion != imds.DefaultAPIVersion || string(i.Incarnation) != "3" ||
			time.Since(i.LastAnswer) > time.Second || i.LastError != "" {
			t.Errorf("imds is %+v", i)
		}
		wantEqual(t, "open events", len(st.Events), 2)
		a, other := st.Events[0], st.Events[1]
		wantIn(t, "the first event", string(a.Event), idA)
		wantWithin(t, "seconds left", a.SecondsLeft-time.Until(a.NotBefore).Seconds(), -1, 1)
		if !a.AffectsSelf || other.AffectsSelf || other.SecondsLeft != 0 || !other.NotBefore.IsZero() {
			t.Errorf("the events are %+v, want only the first of this VM, and the other begun", st.Events)
		}
		wantIDs(t, b.Sinks(), "down", "gone", "refusing", "strict", "well")
		for _, want := range []bridge.SinkStatus{
			{Name: "well", Kind: "recorder", State: bridge.SinkOK, Delivered: 2},
			{Name: "down", Kind: "recorder", State: bridge.SinkRetrying, Pending: 2, LastError: errSinkDown.Error(),
				WaitsFor: delivery.WaitsForRetry},
			{Name: "refusing", Kind: "recorder", State: bridge.SinkIsBlocked, Pending: 2, LastError: errRefused.Error(),
				WaitsFor: delivery.WaitsForSomebody},
			{Name: "strict", Kind: "recorder", State: bridge.SinkOK, DeadLetters: 2},
			{Name: "gone", State: bridge.SinkOrphaned, Pending: 2},
		} {
			wantSink(t, b.sink(want.Name), want)
		}
		if o := st.Outbox; !o.Durable || o.Bytes == 0 || o.Pending != 6 || o.DeadLetters != 2 || o.Error != "" {
			t.Errorf("the outbox is %+v", o)
		}
		var shown map[string]json.RawMessage
		must(t, json.Unmarshal(imds.CompactJSON(st), &shown))
		wantIDs(t, slices.Sorted(maps.Keys(shown)), "events", "imds", "observer", "outbox", "ready", "reasons", "settings",
			"sinks", "startedAt", "version")
	})
}

// wantSink fails the test unless a sink whose deliveries came three minutes ago is so, with the times that follow from it.
func wantSink(t *testing.T, got, want bridge.SinkStatus) {
	t.Helper()
	if want.Pending > 0 {
		wantWithin(t, want.Name+": seconds that the oldest waits", got.OldestPendingSeconds, 178, 181)
		wantEqual(t, want.Name+": since when", time.Since(got.OldestPending).Seconds(), got.OldestPendingSeconds)
	}
	waits := want.State == bridge.SinkRetrying || want.State == bridge.SinkIsBlocked
	if waits == got.NextAttempt.IsZero() || time.Until(got.NextAttempt) > 5*time.Minute {
		t.Errorf("%s: the next attempt is at %v", want.Name, got.NextAttempt)
	}
	if waits == got.OverdueSince.IsZero() || waits && !got.OverdueSince.Equal(got.OldestPending) {
		t.Errorf("%s: overdue since %v, the oldest waits since %v", want.Name, got.OverdueSince, got.OldestPending)
	}
	wantEqual(t, want.Name+": it has accepted something", !got.LastAccepted.IsZero(), want.Delivered > 0)
	wantEqual(t, want.Name+": it has needed somebody for a while", !got.NeededSince.IsZero(), got.NeedsSomebody(time.Now()))
	got.OldestPendingSeconds, got.OldestPending, got.NextAttempt, got.LastAccepted = 0, time.Time{}, time.Time{}, time.Time{}
	got.OverdueSince, got.NeededSince = time.Time{}, time.Time{}
	wantEqual(t, want.Name, got, want)
}

// A sink with nothing pending has no next attempt, even if the deliveries that were dropped were to be made together.
func TestStatusNamesNoNextAttemptWithNothingPending(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start(answering(errRefused).all("a").With(func(terms *bridge.Terms) {
			terms.Late, terms.DigestAbove = delivery.LateLatest, 1
		}))
		pause(1500 * time.Millisecond)
		s.redeploy(idA, time.Hour)
		s.redeploy(idB, time.Hour)
		pause(3 * time.Minute)
		wantEqual(t, "the sink", b.sink("a").State, bridge.SinkIsBlocked)
		for n, d := range b.Outbox.List(outbox.Selection{}) {
			wantEqual(t, "pending", b.sink("a").Pending, 2-n)
			wantEqual(t, "there is a next attempt", b.sink("a").NextAttempt.After(time.Now()), true)
			b.drop(d)
			pause(2 * time.Second)
		}
		wantEqual(t, "the sink", b.sink("a").State, bridge.SinkIsBlocked)
		wantEqual(t, "pending", b.sink("a").Pending, 0)
		wantEqual(t, "there is no next attempt", b.sink("a").NextAttempt.IsZero(), true)
	})
}

// A bridge that is just starting is alive and not ready; its status can be asked for before it runs.
func TestStatusBeforeTheFirstAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		o, err := outbox.Open(s.dir, outbox.Options{})
		must(t, err)
		client := imds.NewClient("http://azure.test", imds.DefaultAPIVersion, s.logger(), s.azure.RoundTripper())
		b, err := bridge.New(bridge.Options{Client: client, Outbox: o})
		must(t, err)
		st := b.Status()
		must(t, b.Alive())
		wantEqual(t, "ready", st.Ready, false)
		wantIn(t, "the reasons", strings.Join(st.Reasons, " "), "not answered yet")
		wantEqual(t, "it was started now", st.StartedAt.Equal(time.Now()), true)
		wantIn(t, "status.json", string(imds.CompactJSON(st)), `"events":[]`)
		wantIn(t, "status.json", string(imds.CompactJSON(st)), `"sinks":[]`)
		o.Close()
	})
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Status: 503})
		b := s.start((&recorder{}).all("a"))
		pause(5 * time.Second)
		wantEqual(t, "ready", b.Status().Ready, false)
		wantIn(t, "the reasons", strings.Join(b.Status().Reasons, " "), "503")
		s.azure.ClearFaults()
		pause(20 * time.Second)
		wantEqual(t, "ready, once it answers", b.Status().Ready, true)
	})
}

// A forewarn without a timezone, and one with a zone that this machine doesn't know, shows UTC.
func TestWithoutAZoneTimesAreUTC(t *testing.T) {
	for name, want := range map[string]string{"": "UTC", "UTC": "UTC", "Nowhere/Else": "UTC", "Asia/Tokyo": "Asia/Tokyo"} {
		wantEqual(t, "the zone "+name, bridge.SettingsInfo{Timezone: name}.Location().String(), want)
	}
}

// The zone of the people is read from the disk once, by New or Reload, and not under a lock whenever somebody asks.
func TestTheZoneIsKnownWithoutTheDisk(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Settings.Timezone = "Asia/Tokyo"
		b := s.start()
		pause(time.Second)
		wantEqual(t, "the zone", b.Status().Settings.Zone.String(), "Asia/Tokyo")
		b.Reload(nil, nil, bridge.SettingsInfo{Timezone: "Europe/Berlin"})
		wantEqual(t, "the zone after a reload", b.Status().Settings.Zone.String(), "Europe/Berlin")
	})
}
