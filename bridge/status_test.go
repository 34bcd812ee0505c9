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
			st := b.Status()
			if st.Sinks[0].State != tt.state || st.Sinks[1].State != bridge.SinkOK {
				t.Errorf("the sinks are %+v, want refusing %s and well ok", st.Sinks, tt.state)
			}
			if st.Ready != (len(tt.reasons) == 0) || !slices.Equal(st.Reasons, tt.reasons) {
				t.Errorf("ready is %v, reasons %q, want %q", st.Ready, st.Reasons, tt.reasons)
			}
			refusing.say(nil)
			pause(10 * time.Second)
			if st := b.Status(); !st.Ready || st.Sinks[0].State != bridge.SinkOK {
				t.Errorf("once it accepts, ready is %v and the sinks are %+v", st.Ready, st.Sinks)
			}
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
		if st := b.Status(); st.Ready || st.Sinks[0].State != bridge.SinkIsBlocked || st.Sinks[0].OldestPendingSeconds != 0.5 {
			t.Errorf("when it refuses, ready is %v and the sink is %+v", st.Ready, st.Sinks[0])
		}
		b.drop(b.Outbox.List(outbox.Selection{})[0])
		pause(time.Second)
		if st := b.Status(); !st.Ready || st.Sinks[0].State != bridge.SinkOK {
			t.Errorf("with nothing pending, ready is %v (%v) and the sink is %+v", st.Ready, st.Reasons, st.Sinks[0])
		}
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
		var long strings.Builder
		for i := range imds.MaxEvents + 1 {
			fmt.Fprintf(&long, `{"EventId":"%08d-0000-4000-8000-000000000000"},`, i)
		}
		s.azure.SetDocument([]byte(`{"DocumentIncarnation":9,"Events":[` + strings.TrimSuffix(long.String(), ",") + `]}`))
		pause(2 * time.Second)
		st := b.Status()
		known := slices.ContainsFunc(st.Events, func(e bridge.EventStatus) bool { return e.Known.ID == idA })
		if n := len(st.Events); n != imds.MaxEvents || !known {
			t.Errorf("%d events are open, want %d, the one of before among them", n, imds.MaxEvents)
		}
		want := []string{"it lists more than 10000 events; the rest is ignored",
			"changes left out: 10000 events, or 16 MiB of them, are open already"}
		if !slices.Equal(st.IMDS.Problems, want) {
			t.Errorf("the problems are %q, want %q", st.IMDS.Problems, want)
		}
		s.wantLoggedTimes(1, bridge.LeftOut)
		s.azure.SetDocument([]byte(`{"DocumentIncarnation":10,"Events":[]}`))
		pause(2 * time.Second)
		if st := b.Status(); len(st.Events) != 0 || len(st.IMDS.Problems) != 0 {
			t.Errorf("afterwards %d events are open, with problems %q", len(st.Events), st.IMDS.Problems)
		}
	})
}

// Status says what is wrong with the disk, as long as it is.
func TestStatusSaysWhatIsWrongWithTheDisk(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.up((&recorder{}).all("a"))
		s.disk.fail(errFull)
		s.reboot(idA)
		pause(10 * time.Second)
		if got := b.Status().Outbox.Error; !strings.Contains(got, errFull.Error()) {
			t.Errorf("the status says %q of the disk, want %q", got, errFull)
		}
		s.disk.fail(nil)
		pause(30 * time.Second)
		wantEqual(t, "afterwards the status says of the disk", b.Status().Outbox.Error, "")
	})
}

// Status shows what the contract names, with the words of the contract.
func TestStatusShowsHowThingsAre(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Settings = bridge.SettingsInfo{Hash: "h1", LoadedAt: time.Now()}
		well, down, refusing, strict, gone := &recorder{}, answering(errSinkDown), answering(errRefused), answering(delivery.ErrRejected), answering(errSinkDown)
		routes := []bridge.Route{well.all("well"), down.all("down"), refusing.all("refusing"), strict.all("strict")}
		began := time.Now()
		b := s.up(append(routes, gone.all("gone"))...)
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
		if len(st.Events) != 2 {
			t.Fatalf("events are %+v", st.Events)
		}
		a, other := st.Events[0], st.Events[1]
		if left := time.Until(a.NotBefore).Seconds(); !a.AffectsSelf || a.SecondsLeft < left-1 || a.SecondsLeft > left+1 || !strings.Contains(string(a.Event), idA) {
			t.Errorf("the first event is %+v", a)
		}
		if other.AffectsSelf || other.SecondsLeft != 0 || !other.NotBefore.IsZero() {
			t.Errorf("the second event is %+v", other)
		}
		if got := b.Sinks(); !slices.Equal(got, []string{"down", "gone", "refusing", "strict", "well"}) {
			t.Errorf("the names of the sinks are %q", got)
		}
		sinks := map[string]bridge.SinkStatus{}
		for _, s := range st.Sinks {
			sinks[s.Name] = s
		}
		if got := slices.Sorted(maps.Keys(sinks)); !slices.Equal(got, []string{"down", "gone", "refusing", "strict", "well"}) {
			t.Errorf("sinks are %v", got)
		}
		for name, want := range map[string]bridge.SinkStatus{
			"well": {Name: "well", Kind: "recorder", State: bridge.SinkOK, Delivered: 2},
			"down": {Name: "down", Kind: "recorder", State: bridge.SinkRetrying, Pending: 2, LastError: errSinkDown.Error(),
				WaitsFor: delivery.WaitsForRetry},
			"refusing": {Name: "refusing", Kind: "recorder", State: bridge.SinkIsBlocked, Pending: 2, LastError: errRefused.Error(),
				WaitsFor: delivery.WaitsForSomebody},
			"strict": {Name: "strict", Kind: "recorder", State: bridge.SinkOK, DeadLetters: 2},
			"gone":   {Name: "gone", State: bridge.SinkOrphaned, Pending: 2},
		} {
			got := sinks[name]
			if want.Pending > 0 && (got.OldestPendingSeconds < 178 || got.OldestPendingSeconds > 181) {
				t.Errorf("%s: the oldest waits %v s", name, got.OldestPendingSeconds)
			}
			if want.Pending > 0 && time.Since(got.OldestPending).Seconds() != got.OldestPendingSeconds {
				t.Errorf("%s: the oldest waits %v s, since %v", name, got.OldestPendingSeconds, got.OldestPending)
			}
			if waiting := want.State == bridge.SinkRetrying || want.State == bridge.SinkIsBlocked; waiting == got.NextAttempt.IsZero() || waiting && time.Until(got.NextAttempt) > 5*time.Minute {
				t.Errorf("%s: the next attempt is at %v", name, got.NextAttempt)
			}
			if accepted := want.Delivered > 0; accepted == got.LastAccepted.IsZero() {
				t.Errorf("%s: last accepted at %v", name, got.LastAccepted)
			}
			if late := want.State == bridge.SinkRetrying || want.State == bridge.SinkIsBlocked; late && !got.OverdueSince.Equal(got.OldestPending) ||
				!late && !got.OverdueSince.IsZero() {
				t.Errorf("%s: overdue since %v, the oldest waits since %v", name, got.OverdueSince, got.OldestPending)
			}
			got.OldestPendingSeconds, got.OldestPending, got.NextAttempt, got.LastAccepted = 0, time.Time{}, time.Time{}, time.Time{}
			if got.NeededSince.IsZero() == got.NeedsSomebody(time.Now()) {
				t.Errorf("%s needs somebody since %v", name, got.NeededSince)
			}
			got.OverdueSince, got.NeededSince = time.Time{}, time.Time{}
			if got != want {
				t.Errorf("%s is %+v, want %+v", name, got, want)
			}
		}
		if o := st.Outbox; !o.Durable || o.Bytes == 0 || o.Pending != 6 || o.DeadLetters != 2 || o.Error != "" {
			t.Errorf("the outbox is %+v", o)
		}
		var shown map[string]json.RawMessage
		must(t, json.Unmarshal(imds.CompactJSON(st), &shown))
		if got, want := slices.Sorted(maps.Keys(shown)), []string{"events", "imds", "observer", "outbox", "ready", "reasons", "settings", "sinks", "startedAt", "version"}; !slices.Equal(got, want) {
			t.Errorf("status.json has %v, want %v", got, want)
		}
	})
}

// A sink with nothing pending has no next attempt, even if the deliveries that were dropped were to be made together.
func TestStatusNamesNoNextAttemptWithNothingPending(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start(answering(errRefused).all("a").With(func(terms *bridge.Terms) {
			terms.Late, terms.DigestAbove = delivery.LateLatest, 1
		}))
		pause(1500 * time.Millisecond)
		s.azure.Schedule(imdstest.Event{ID: idA, NotBefore: time.Now().Add(time.Hour)})
		s.azure.Schedule(imdstest.Event{ID: idB, NotBefore: time.Now().Add(time.Hour)})
		pause(3 * time.Minute)
		if a := b.Status().Sinks[0]; a.State != bridge.SinkIsBlocked || a.Pending != 2 || !a.NextAttempt.After(time.Now()) {
			t.Errorf("the sink is %+v, want it blocked, with 2 pending and a next attempt", a)
		}
		var keys []string
		for _, d := range b.Outbox.List(outbox.Selection{}) {
			keys = append(keys, d.Key)
		}
		for n := range keys {
			if a := b.Status().Sinks[0]; a.NextAttempt.IsZero() {
				t.Errorf("with %d pending the sink is %+v, want a next attempt", len(keys)-n, a)
			}
			if _, err := b.Drop(keys[n:n+1], "root"); err != nil {
				t.Fatal(err)
			}
			pause(2 * time.Second)
		}
		if a := b.Status().Sinks[0]; a.State != bridge.SinkIsBlocked || a.Pending != 0 || !a.NextAttempt.IsZero() {
			t.Errorf("the sink is %+v, want it blocked, with nothing pending and no next attempt", a)
		}
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
		if st.Ready || len(st.Reasons) != 1 || !strings.Contains(st.Reasons[0], "not answered yet") || b.Alive() != nil {
			t.Errorf("ready %v: %v, alive %v", st.Ready, st.Reasons, b.Alive())
		}
		if text := string(imds.CompactJSON(st)); !strings.Contains(text, `"events":[]`) || !strings.Contains(text, `"sinks":[]`) || !st.StartedAt.Equal(time.Now()) {
			t.Errorf("status.json is %s", text)
		}
		o.Close()
	})
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Status: 503})
		b := s.start((&recorder{}).all("a"))
		pause(5 * time.Second)
		if st := b.Status(); st.Ready || len(st.Reasons) != 1 || !strings.Contains(st.Reasons[0], "503") {
			t.Errorf("ready %v: %v", st.Ready, st.Reasons)
		}
		s.azure.ClearFaults()
		pause(20 * time.Second)
		if st := b.Status(); !st.Ready {
			t.Errorf("not ready: %v", st.Reasons)
		}
	})
}

// The poll loop counts as alive while it comes round, however the endpoint answers, also when that takes two minutes or
// it asks to be left alone for an hour.
func TestAliveMeansThatThePollLoopComesRound(t *testing.T) {
	for _, fault := range []imdstest.Fault{
		{Hang: true}, {Status: 503}, {Status: 403}, {Status: 429, RetryAfter: "3600"}, {Delay: 2 * time.Minute},
	} {
		bubble(t, func(t *testing.T, s *stage) {
			s.azure.SetFault(fault)
			b := s.start((&recorder{}).all("a"))
			for range 15 {
				pause(time.Minute)
				if err := b.Alive(); err != nil {
					t.Errorf("%+v: Alive = %v", fault, err)
				}
			}
			b.cancel()
			<-b.done
			pause(time.Hour)
			if b.Alive() == nil {
				t.Errorf("%+v: a loop that has ended counts as alive", fault)
			}
		})
	}
}

// A forewarn without a timezone, and one with a zone that this machine doesn't know, shows UTC.
func TestWithoutAZoneTimesAreUTC(t *testing.T) {
	for name, want := range map[string]string{"": "UTC", "UTC": "UTC", "Nowhere/Else": "UTC", "Asia/Tokyo": "Asia/Tokyo"} {
		if got := (bridge.SettingsInfo{Timezone: name}).Location().String(); got != want {
			t.Errorf("the zone %q is %s, want %s", name, got, want)
		}
	}
}

// The zone of the people is read from the disk once, by New or Reload, and not under a lock whenever somebody asks.
func TestTheZoneIsKnownWithoutTheDisk(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Settings.Timezone = "Asia/Tokyo"
		b := s.start()
		pause(time.Second)
		if zone := b.Status().Settings.Zone; zone.String() != "Asia/Tokyo" {
			t.Errorf("the zone is %v, want Asia/Tokyo", zone)
		}
		b.Reload(nil, nil, bridge.SettingsInfo{Timezone: "Europe/Berlin"})
		if zone := b.Status().Settings.Zone; zone.String() != "Europe/Berlin" {
			t.Errorf("after a reload the zone is %v, want Europe/Berlin", zone)
		}
	})
}
