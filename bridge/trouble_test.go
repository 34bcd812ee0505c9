package bridge_test

import (
	"encoding/json"
	"fmt"
	"net/http"
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
	return e.leader(name).OnlyWhen("false").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelTrouble })
}

var errRefused = fmt.Errorf("%w: 401 Unauthorized", delivery.ErrBlocked)

// That a sink is blocked is reported to the others, once, with what it answers and what is pending; so is that it
// accepts again. The sink concerned does not hear of itself.
func TestABlockedSinkIsReportedToTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin, down := &recorder{}, answering(errRefused)
		s.up(admin.trouble("admin"), down.all("down").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelTrouble }))
		s.notSelf(idA)
		pause(23 * time.Minute)
		wantIDs(t, admin.types(), "sink.blocked")
		down.say(nil)
		pause(2 * time.Minute)
		wantIDs(t, admin.types(), "sink.blocked", "sink.recovered")
		wantSays(t, admin.accepted()[0], map[string]any{
			"sink": "down", "kind": "recorder", "pending": 1.0, "error": errRefused.Error(),
		})
		wantSays(t, admin.accepted()[1], map[string]any{"sink": "down", "pending": 0.0})
		wantIDs(t, down.ids(), idA+"-scheduled")
	})
}

// A sink may be blocked long before that matters to anybody, because it refuses heartbeats. Once it refuses something
// about an Azure event too, the others are told at once, or at the next probe if the event is far off.
func TestASinkThatWasBlockedAlreadyIsReportedOnceAnEventIsPending(t *testing.T) {
	systemtest.Alone(t)
	for notice, within := range map[time.Duration]time.Duration{10 * time.Minute: 5 * time.Second, 24 * time.Hour: 65 * time.Second} {
		subtest(t, fmt.Sprint(notice, " before an event"), func(t *testing.T, s *stage) {
			admin, down := &recorder{}, answering(errRefused)
			b := s.start(admin.trouble("admin"), down.all("down").With(func(x *bridge.Terms) { x.Heartbeat = 10 * time.Minute }))
			pause(time.Hour)
			wantEqual(t, "the sink that refuses heartbeats", b.sink("down").State, bridge.SinkIsBlocked)
			wantEqual(t, "ready", b.Status().Ready, true)
			wantIDs(t, admin.types())
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Resources: []string{"vm-1"}, NotBefore: time.Now().Add(notice)})
			pause(within)
			wantIDs(t, admin.types(), "sink.blocked")
			wantSays(t, admin.accepted()[0], map[string]any{"pending": 2.0, "error": errRefused.Error()})
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
		falls := func(x *bridge.Terms) { x.Fallback = delivery.Fallback{Sink: "page", After: 2 * time.Minute} }
		s.up(admin.trouble("admin").With(falls), page.all("page"), other.all("other"))
		s.notSelf(idA)
		pause(time.Second)
		page.say(nil)
		pause(10 * time.Minute)
		wantIDs(t, page.types(), "sink.blocked") // not its own
		wantSays(t, page.accepted()[0], map[string]any{"sink": "other"})
		admin.say(nil)
		pause(6 * time.Minute)
		wantIn(t, "told", strings.Join(admin.types(), " "), "delivery.deadlettered")
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
			wantIn(t, "it says", fmt.Sprint(tellingOf(t, admin.accepted()[0].Event)["error"]), tt.says)
			down.say(nil)
			pause(6 * time.Minute)
			wantIDs(t, admin.types(), "sink.blocked", "sink.recovered")
		})
	}
	subtest(t, "it never returns", func(t *testing.T, s *stage) {
		admin, release := &recorder{}, make(chan struct{})
		s.up(admin.trouble("admin"), (&recorder{}).all("down").To(deaf{release}))
		s.notSelf(idA)
		pause(6 * time.Minute)
		wantIDs(t, admin.types(), "sink.blocked")
		close(release)
		pause(time.Second)
	})
	subtest(t, "but not one that is only slow", func(t *testing.T, s *stage) {
		admin, slow := &recorder{}, &recorder{}
		r := slow.all("slow").With(func(x *bridge.Terms) { x.Timeout = 15 * time.Minute }).To(slowSink{slow, 10 * time.Minute})
		s.up(admin.trouble("admin"), r)
		s.notSelf(idA)
		pause(12 * time.Minute)
		wantIDs(t, slow.ids(), idA+"-scheduled")
		wantIDs(t, admin.types())
	})
}

// That a sink accepts again, and that the endpoint answers again, is reported also when settings were reloaded meanwhile,
// and by the next run; that they do not is reported once.
func TestRecoveryIsReportedAcrossAReloadAndARestart(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		subtest(t, fmt.Sprintf("restarts %t", restarts), func(t *testing.T, s *stage) {
			admin, down := &recorder{}, answering(errRefused)
			routes := []bridge.Route{admin.trouble("admin"), down.all("down")}
			b := s.up(routes...)
			again := func() {
				if !restarts {
					b.reload(routes...)
					return
				}
				b.end()
				b = s.start(routes...)
			}
			s.notSelf(idA)
			pause(6 * time.Minute) // blocked is said after five at the latest, whatever the jitter
			again()
			pause(6 * time.Minute)
			wantIDs(t, admin.types(), "sink.blocked")
			down.say(nil)
			again()
			pause(10 * time.Second)
			wantIDs(t, admin.types(), "sink.blocked", "sink.recovered")

			s.azure.SetFault(imdstest.Fault{Status: 503})
			pause(6 * time.Minute)
			again()
			pause(6 * time.Minute)
			wantIDs(t, admin.types()[2:], "imds.unavailable")
			s.azure.ClearFaults()
			again()
			pause(20 * time.Second)
			wantIDs(t, admin.types()[2:], "imds.unavailable", "imds.recovered")
		})
	}
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
		for first := time.Now(); time.Since(first) < 30*time.Second; { // until an attempt can be the one that blocks it
			<-began
		}
		pause(time.Second)
		b.reload(routes[0])
		pause(10 * time.Minute)
		wantIDs(t, admin.types())
	})
}

// A sink that returns long after it was removed is a new one: its trouble is reported, whatever was reported of the one
// that was removed, and so is that it accepts.
func TestASinkThatReturnsHasTroubleOfItsOwn(t *testing.T) {
	systemtest.LeftToGate(t)
	for well, want := range map[bool][]string{
		false: {"sink.blocked", "delivery.deadlettered", "sink.blocked", "sink.recovered"},
		true:  {"sink.blocked", "delivery.deadlettered", "sink.recovered"},
	} {
		subtest(t, fmt.Sprintf("it accepts %t", well), func(t *testing.T, s *stage) {
			s.opts.Interval = time.Minute
			admin, down := &recorder{}, answering(errRefused)
			routes := []bridge.Route{admin.trouble("admin"), down.all("down")}
			b := s.up(routes...)
			s.notSelf(idA)
			pause(8 * time.Minute)
			b.reload(routes[0])
			pause(25 * time.Hour)
			if well {
				down.say(nil)
			}
			b.reload(routes...)
			s.notSelf(idB)
			pause(8 * time.Minute)
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
		data := wantSays(t, admin.accepted()[0], map[string]any{"endpoint": "http://azure.test"})
		wantIn(t, "it says", fmt.Sprint(data["error"]), "503")
		wantEqual(t, "ready", b.Status().Ready, false)
		wantIn(t, "the reasons", strings.Join(b.Status().Reasons, " "), "no valid answer since")
		pause(10 * time.Minute)
		s.wantLoggedTimes(1, "changes may go unnoticed")
		s.azure.ClearFaults()
		pause(20 * time.Second)
		wantIDs(t, admin.types(), "imds.unavailable", "imds.recovered")
		recovered := admin.accepted()[1]
		wantGap(t, recovered, last, recovered.Event.Time())
		wantEqual(t, "ready", b.Status().Ready, true)
	})
}

// wantGap fails the test unless a CloudEvent about the bridge names that time in which nobody watched, to the microsecond.
func wantGap(t *testing.T, h heard, from, to time.Time) {
	t.Helper()
	var data struct{ Gap struct{ From, To time.Time } }
	must(t, json.Unmarshal(h.Event.Data(), &data))
	got := data.Gap
	if got.From.Sub(from).Abs() > time.Microsecond || got.To.Sub(to).Abs() > time.Microsecond {
		t.Errorf("%s names the gap from %v to %v, want %v to %v", h.Event.Type(), got.From, got.To, from, to)
	}
}

// At the very first start Azure is given ten minutes, and the gap of an endpoint that never answered begins with it. At
// the second it is given five.
func TestAtTheFirstStartTheEndpointHasTenMinutes(t *testing.T) {
	for claim, patience := range map[string]time.Duration{"first": 10 * time.Minute, "second": 5 * time.Minute} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			if claim == "second" {
				s.up().end()
				pause(time.Hour)
			}
			s.azure.SetFault(imdstest.Fault{Status: 503})
			admin, began := &recorder{}, time.Now()
			s.start(admin.trouble("admin"))
			pause(patience - 5*time.Second)
			wantIDs(t, admin.types())
			pause(15 * time.Second)
			wantIDs(t, admin.types(), "imds.unavailable")
			s.azure.ClearFaults()
			pause(20 * time.Second)
			wantIDs(t, admin.types(), "imds.unavailable", "imds.recovered")
			if claim == "first" {
				recovered := admin.accepted()[1]
				wantGap(t, recovered, began, recovered.Event.Time())
			}
		})
	}
}

// Two reports never have the same id or time, though what they report happens at once: a receiver would drop the second
// as a repeat.
func TestReportsOfOneMomentAreToldApart(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin, strict := &recorder{}, answering(delivery.ErrRejected)
		s.up(admin.trouble("admin"), strict.all("one"), strict.all("two"), strict.all("three"))
		s.notSelf(idA)
		pause(3 * time.Second)
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
		wantSays(t, ears[bridge.LevelAll].accepted()[0], map[string]any{"bootTime": nil}) // nobody knows when it booted
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
		wantSays(t, e.accepted()[0], map[string]any{
			"gap": nil, "version": "test", "settingsHash": "h1", "apiVersion": imds.DefaultAPIVersion,
			"bootTime": s.opts.Booted.UTC().Format(time.RFC3339Nano),
		})
		wantGap(t, e.accepted()[2], last, now)
	})
}

// An endpoint that never came to an answer, nor to an error, is reported all the same.
func TestAnEndpointWithoutAnyAnswerIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		release := make(chan struct{})
		s.proxy = func(http.RoundTripper) http.RoundTripper {
			return roundTrip(func(*http.Request) (*http.Response, error) { // which must return when its time is over
				<-release
				return nil, errSinkDown
			})
		}
		admin := &recorder{}
		s.start(admin.trouble("admin"))
		pause(bridge.NoFirstFor - 2*time.Second)
		wantIDs(t, admin.types())
		pause(4 * time.Second)
		wantIDs(t, admin.types(), "imds.unavailable")
		wantSays(t, admin.accepted()[0], map[string]any{"error": "no answer"})
		close(release)
	})
}
