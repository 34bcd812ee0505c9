package bridge_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// trouble returns a route of what administrators must know, and of no Azure event.
func (e *recorder) trouble(name string) bridge.Route {
	r := e.all(name)
	r.Filter.When = never
	r.Filter.Only.VMs = "leader"
	r.Terms.Bridge = bridge.LevelTrouble
	return r
}

var never, _ = bridge.ParseWhen("false")

var errRefused = fmt.Errorf("%w: 401 Unauthorized", delivery.ErrBlocked)

// notSelf schedules an event of another VM, so that only routes of all VMs hear of it.
func (s *stage) notSelf(id string) {
	s.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Resources: []string{"vm-1"}})
}

// That a sink is blocked is reported to the others, once, with what it answers and what is pending; so is that it
// accepts again. The sink concerned does not hear of itself.
func TestABlockedSinkIsReportedToTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin, down := &recorder{}, answering(errRefused)
		concerned := down.all("down").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelTrouble })
		s.up(admin.trouble("admin"), concerned)
		s.notSelf(idA)
		pause(3 * time.Minute)
		if got := strings.Join(admin.types(), " "); got != "sink.blocked" {
			t.Fatalf("told %q, want sink.blocked", got)
		}
		data := tellingOf(t, admin.accepted()[0].Event)
		if data["sink"] != "down" || data["kind"] != "recorder" || data["pending"] != 1.0 || !strings.Contains(fmt.Sprint(data["error"]), "401") {
			t.Errorf("it says %v", data)
		}
		pause(20 * time.Minute)
		down.say(nil)
		pause(2 * time.Minute)
		if got := strings.Join(admin.types(), " "); got != "sink.blocked sink.recovered" {
			t.Errorf("told %q, want that it recovered", got)
		}
		if data := tellingOf(t, admin.accepted()[1].Event); data["sink"] != "down" || data["pending"] != 0.0 {
			t.Errorf("it says %v", data)
		}
		wantIDs(t, down.ids(), idA+"-scheduled")
	})
}

// A sink may be blocked long before that matters to anybody, because it refuses heartbeats. Once it refuses something
// about an Azure event too, the others are told at once, or at the next probe if the event is far off.
func TestASinkThatWasBlockedAlreadyIsReportedOnceAnEventIsPending(t *testing.T) {
	systemtest.Alone(t)
	for notice, within := range map[time.Duration]time.Duration{10 * time.Minute: 5 * time.Second, 24 * time.Hour: time.Minute + 5*time.Second} {
		bubble(t, func(t *testing.T, s *stage) {
			admin, down := &recorder{}, answering(errRefused)
			b := s.start(admin.trouble("admin"), down.all("down").With(func(x *bridge.Terms) { x.Heartbeat = 10 * time.Minute }))
			pause(time.Hour)
			if st := b.Status(); st.Sinks[1].State != bridge.SinkIsBlocked || !st.Ready {
				t.Fatalf("the sink is %s, want it blocked by heartbeats; ready %v: %v", st.Sinks[1].State, st.Ready, st.Reasons)
			}
			wantIDs(t, admin.types())
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Resources: []string{"vm-1"}, NotBefore: time.Now().Add(notice)})
			pause(within)
			if got := strings.Join(admin.types(), " "); got != "sink.blocked" {
				t.Fatalf("%v before an event and %v after its announcement, told %q, want sink.blocked", notice, within, got)
			}
			if data := tellingOf(t, admin.accepted()[0].Event); data["pending"] != 2.0 || !strings.Contains(fmt.Sprint(data["error"]), "401") {
				t.Errorf("it says %v", data)
			}
			down.say(nil)
			pause(2 * time.Minute)
			wantIDs(t, admin.types(), "sink.blocked", "sink.recovered")
		})
	}
}

// The sink concerned does not hear of itself as somebody's fallback either: its trouble waits for who is to hear it.
func TestTroubleDoesNotFallBackToTheSinkThatItIsAbout(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin, page, other := answering(errSinkDown), answering(delivery.ErrRejected), answering(errRefused)
		s.start(admin.trouble("admin").With(func(x *bridge.Terms) { x.Fallback = delivery.Fallback{Sink: "page", After: 2 * time.Minute} }),
			page.all("page"), other.all("other"))
		pause(1500 * time.Millisecond)
		s.notSelf(idA)
		pause(time.Second)
		page.say(nil)
		pause(10 * time.Minute)
		if got := strings.Join(page.types(), " "); got != "sink.blocked" || tellingOf(t, page.accepted()[0].Event)["sink"] != "other" {
			t.Errorf("the fallback is told %q, want the other sink's trouble, not its own", got)
		}
		admin.say(nil)
		pause(6 * time.Minute)
		if got := strings.Join(admin.types(), " "); !strings.Contains(got, "delivery.deadlettered") {
			t.Errorf("told %q, want the dead letter too", got)
		}
	})
}

// A sink that accepts nothing for five minutes, though something is pending, counts as blocked, whatever it answers,
// and even when it never does.
func TestASinkThatAcceptsNothingForFiveMinutesIsReported(t *testing.T) {
	systemtest.LeftToGate(t)
	for _, tt := range []struct {
		claim  string
		answer error
		says   string
	}{
		{"it is down", errSinkDown, "connection refused"},
		{"it hangs", errHang, "no answer within"},
		{"it asks for time", &delivery.RetryAfter{After: 8 * time.Minute, Err: errSinkDown}, "asks for 8m"},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			admin, down := &recorder{}, answering(tt.answer)
			s.up(admin.trouble("admin"), down.all("down"))
			s.notSelf(idA)
			pause(4*time.Minute + 50*time.Second)
			wantIDs(t, admin.types())
			pause(30 * time.Second)
			wantIDs(t, admin.types(), "sink.blocked")
			if data := tellingOf(t, admin.accepted()[0].Event); !strings.Contains(fmt.Sprint(data["error"]), tt.says) {
				t.Errorf("it says %v, want %s", data, tt.says)
			}
			down.say(nil)
			pause(6 * time.Minute)
			wantIDs(t, admin.types(), "sink.blocked", "sink.recovered")
		})
	}
	subtest(t, "it never returns", func(t *testing.T, s *stage) {
		admin, release := &recorder{}, make(chan struct{})
		r := (&recorder{}).all("down")
		r.Sink = deaf{release}
		s.up(admin.trouble("admin"), r)
		s.notSelf(idA)
		pause(6 * time.Minute)
		wantIDs(t, admin.types(), "sink.blocked")
		close(release)
		pause(time.Second)
	})
	subtest(t, "but not one that is only slow", func(t *testing.T, s *stage) {
		admin, slow := &recorder{}, &recorder{}
		r := slow.all("slow").With(func(x *bridge.Terms) { x.Timeout = 15 * time.Minute })
		r.Sink = slowSink{slow, 10 * time.Minute}
		s.up(admin.trouble("admin"), r)
		s.notSelf(idA)
		pause(12 * time.Minute)
		wantIDs(t, slow.ids(), idA+"-scheduled")
		wantIDs(t, admin.types())
	})
}

// That a sink accepts again is reported also when settings were reloaded meanwhile.
func TestRecoveryIsReportedAcrossAReload(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin, down := &recorder{}, answering(errRefused)
		routes := []bridge.Route{admin.trouble("admin"), down.all("down")}
		b := s.up(routes...)
		s.notSelf(idA)
		pause(6 * time.Minute) // blocked is said after five at the latest, whatever the jitter
		down.say(nil)
		b.reload(routes...)
		pause(10 * time.Second)
		wantIDs(t, admin.types(), "sink.blocked", "sink.recovered")
	})
}

// That a sink accepts again, and that the endpoint answers again, is reported also by the next run; that they do not is
// reported once.
func TestRecoveryIsReportedAcrossARestart(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin, down := &recorder{}, answering(errRefused)
		routes := []bridge.Route{admin.trouble("admin"), down.all("down")}
		for range 2 {
			b := s.up(routes...)
			s.notSelf(idA)
			pause(6 * time.Minute)
			b.end()
		}
		down.say(nil)
		s.start(routes...)
		pause(10 * time.Second)
		wantIDs(t, admin.types(), "sink.blocked", "sink.recovered")
	})
	bubble(t, func(t *testing.T, s *stage) {
		admin := &recorder{}
		b := s.start(admin.trouble("admin"))
		pause(time.Minute)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(6 * time.Minute)
		b.end()
		b = s.start(admin.trouble("admin"))
		pause(6 * time.Minute)
		wantIDs(t, admin.types(), "imds.unavailable")
		b.end()
		s.azure.ClearFaults()
		s.start(admin.trouble("admin"))
		pause(10 * time.Second)
		wantIDs(t, admin.types(), "imds.unavailable", "imds.recovered")
	})
}

// A sink that is removed during the attempt that blocks it is no trouble any more.
func TestTheTroubleOfASinkThatIsRemovedIsNotReported(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin, down := &recorder{}, &recorder{}
		began := make(chan struct{}, 100)
		down.answer = func(delivery.Delivery) error {
			began <- struct{}{}
			time.Sleep(8 * time.Second)
			return errRefused
		}
		routes := []bridge.Route{admin.trouble("admin"), down.all("down")}
		b := s.up(routes...)
		s.notSelf(idA)
		<-began
		for start := time.Now(); time.Since(start) < 30*time.Second; { // until an attempt can be the one that blocks it
			<-began
		}
		pause(time.Second)
		b.Reload(routes[:1], nil, bridge.SettingsInfo{})
		pause(10 * time.Minute)
		wantIDs(t, admin.types())
	})
}

// A sink that returns long after it was removed is a new one: its trouble is reported, whatever was reported of the one
// that was removed, and so is that it accepts.
func TestASinkThatReturnsHasTroubleOfItsOwn(t *testing.T) {
	systemtest.LeftToGate(t)
	for _, well := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			s.opts.Interval = time.Minute
			admin, down := &recorder{}, answering(errRefused)
			routes := []bridge.Route{admin.trouble("admin"), down.all("down")}
			b := s.up(routes...)
			s.notSelf(idA)
			pause(8 * time.Minute)
			b.Reload(routes[:1], nil, bridge.SettingsInfo{})
			pause(25 * time.Hour)
			if well {
				down.say(nil)
			}
			b.reload(routes...)
			s.notSelf(idB)
			pause(8 * time.Minute)
			want := []string{"sink.blocked", "delivery.deadlettered", "sink.blocked", "sink.recovered"}
			if well {
				want = slices.Delete(want, 2, 3)
			}
			down.say(nil)
			pause(8 * time.Minute)
			wantIDs(t, admin.types(), want...)
		})
	}
}

// What is said about the bridge never causes more of it: two administrators that are out of reach are not told of each
// other, for ever.
func TestAnEventAboutTheBridgeNeverCausesAnother(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = 10 * time.Second
		one, two := answering(errRefused), answering(delivery.ErrRejected)
		all := &recorder{}
		s.start(one.trouble("one"), two.trouble("two"), all.trouble("all").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }))
		pause(time.Minute)
		s.azure.SetFault(imdstest.Fault{Status: 503, For: 10 * time.Minute})
		pause(time.Hour)
		wantIDs(t, all.types(), "started", "imds.unavailable", "imds.recovered")
	})
}

// An endpoint that never answered was away since the start.
func TestTheGapOfAnEndpointThatNeverAnsweredBeginsWithTheStart(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Status: 503})
		admin, began := &recorder{}, time.Now()
		s.start(admin.trouble("admin"))
		pause(11 * time.Minute)
		s.azure.ClearFaults()
		pause(time.Minute)
		wantIDs(t, admin.types(), "imds.unavailable", "imds.recovered")
		var data struct{ Gap struct{ From time.Time } }
		if err := json.Unmarshal(admin.accepted()[1].Event.Data(), &data); err != nil || !data.Gap.From.Equal(began) {
			t.Errorf("the gap begins at %v (%v), want %v", data.Gap.From, err, began)
		}
	})
}

// That the endpoint gives no valid answer is reported after five minutes, and when it is over, with the gap.
func TestAnEndpointThatIsAwayIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin := &recorder{}
		b := s.start(admin.trouble("admin"))
		pause(10500 * time.Millisecond)
		last := time.Now().Add(-500 * time.Millisecond)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(4*time.Minute + 55*time.Second)
		wantIDs(t, admin.types())
		pause(10 * time.Second)
		wantIDs(t, admin.types(), "imds.unavailable")
		if data := tellingOf(t, admin.accepted()[0].Event); !strings.Contains(fmt.Sprint(data["error"]), "503") || data["endpoint"] != "http://azure.test" {
			t.Errorf("it says %v", data)
		}
		if st := b.Status(); st.Ready || !strings.Contains(strings.Join(st.Reasons, " "), "no valid answer since") {
			t.Errorf("ready %v: %v", st.Ready, st.Reasons)
		}
		pause(10 * time.Minute)
		s.wantLoggedTimes(1, "changes may go unnoticed")
		s.azure.ClearFaults()
		pause(20 * time.Second)
		wantIDs(t, admin.types(), "imds.unavailable", "imds.recovered")
		gap, _ := tellingOf(t, admin.accepted()[1].Event)["gap"].(map[string]any)
		if gap["from"] != last.UTC().Format(time.RFC3339Nano) {
			t.Errorf("the gap is %v, want it from the last valid answer, %v", gap, last.UTC())
		}
		if st := b.Status(); !st.Ready {
			t.Errorf("not ready: %v", st.Reasons)
		}
	})
}

// At the very first start Azure is given ten minutes.
func TestAtTheFirstStartTheEndpointHasTenMinutes(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Status: 503})
		admin := &recorder{}
		s.start(admin.trouble("admin"))
		pause(9*time.Minute + 55*time.Second)
		wantIDs(t, admin.types())
		pause(10 * time.Second)
		wantIDs(t, admin.types(), "imds.unavailable")
	})
	bubble(t, func(t *testing.T, s *stage) { // and five at the second
		b := s.start()
		pause(10 * time.Second)
		b.end()
		pause(time.Hour)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		admin := &recorder{}
		s.start(admin.trouble("admin"))
		pause(5*time.Minute + 10*time.Second)
		wantIDs(t, admin.types(), "imds.unavailable")
	})
}

// Two reports never have the same id or time, though what they report happens at once: a receiver would drop the second
// as a repeat.
func TestReportsOfOneMomentAreToldApart(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin, strict := &recorder{}, answering(delivery.ErrRejected)
		b := s.up(admin.trouble("admin"), strict.all("one"), strict.all("two"), strict.all("three"))
		s.notSelf(idA)
		pause(3 * time.Second)
		b.end()
		told := admin.accepted()
		wantIDs(t, admin.types(), "delivery.deadlettered", "delivery.deadlettered", "delivery.deadlettered")
		for n := range told[1:] {
			was, is := told[n].Event, told[n+1].Event
			if is.ID() == was.ID() || !is.Time().After(was.Time()) {
				t.Errorf("%s of %v follows %s of %v", is.ID(), is.Time(), was.ID(), was.Time())
			}
		}
	})
}

// A sink hears as much about the bridge as its level says.
func TestLevelsSayWhatIsHeardOfTheBridge(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		ears := map[bridge.Level]*recorder{bridge.LevelNone: {}, "": {}, bridge.LevelTrouble: {}, bridge.LevelAll: {}}
		routes := []bridge.Route{answering(errSinkDown).all("down")}
		for level, e := range ears {
			routes = append(routes, e.trouble("level-"+string(level)).With(func(x *bridge.Terms) { x.Bridge = level }))
		}
		b := s.up(routes...)
		s.notSelf(idA)
		pause(6 * time.Minute)
		b.Reload(routes, nil, bridge.SettingsInfo{Hash: "h2"})
		pause(2 * time.Second)
		b.end()
		wantIDs(t, ears[bridge.LevelNone].types())
		wantIDs(t, ears[""].types())
		wantIDs(t, ears[bridge.LevelTrouble].types(), "sink.blocked")
		wantIDs(t, ears[bridge.LevelAll].types(), "started", "sink.blocked", "settings.loaded", "stopping")
		if booted, has := tellingOf(t, ears[bridge.LevelAll].accepted()[0].Event)["bootTime"]; has {
			t.Errorf("nobody knows when it booted, and the start says %v", booted)
		}
	})
}

// The start is reported with the gap since the last valid answer, and everything needed to tell two of them apart.
func TestTheStartIsReportedWithTheGap(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Settings.Hash, s.opts.Booted = "h1", time.Now().Add(-time.Hour)
		e := &recorder{}
		r := e.trouble("a").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll })
		b := s.start(r)
		pause(5500 * time.Millisecond)
		b.end()
		last := time.Now().Add(-500 * time.Millisecond)
		pause(time.Minute)
		b = s.start(r)
		now := time.Now()
		pause(5 * time.Second)
		b.end()
		wantIDs(t, e.types(), "started", "stopping", "started", "stopping")
		first, second := tellingOf(t, e.accepted()[0].Event), tellingOf(t, e.accepted()[2].Event)
		if first["gap"] != nil || first["version"] != "test" || first["settingsHash"] != "h1" || first["apiVersion"] != imds.DefaultAPIVersion ||
			first["bootTime"] != s.opts.Booted.UTC().Format(time.RFC3339Nano) {
			t.Errorf("the first start says %v", first)
		}
		gap, _ := second["gap"].(map[string]any)
		if gap["from"] != last.UTC().Format(time.RFC3339Nano) || gap["to"] != now.UTC().Format(time.RFC3339Nano) {
			t.Errorf("the second start says %v, want the gap from %v to %v", second, last, now)
		}
	})
}

// An endpoint that never came to an answer, nor to an error, is reported all the same.
func TestAnEndpointWithoutAnyAnswerIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		release := make(chan struct{})
		s.proxy = func(http.RoundTripper) http.RoundTripper { return endless{release} }
		admin := &recorder{}
		s.start(admin.trouble("admin"))
		pause(bridge.NoFirstFor - 2*time.Second)
		wantIDs(t, admin.types())
		pause(4 * time.Second)
		wantIDs(t, admin.types(), "imds.unavailable")
		if data := tellingOf(t, admin.accepted()[0].Event); data["error"] != "no answer" {
			t.Errorf("it says %v", data)
		}
		close(release)
	})
}

// endless does not return when its request is over, though every transport must.
type endless struct{ release chan struct{} }

func (e endless) RoundTrip(*http.Request) (*http.Response, error) {
	<-e.release
	return nil, errSinkDown
}
