package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// A new route gets the newest change of every open event, and what comes.
func TestANewRouteHearsWhatIsOpen(t *testing.T) {
	for _, how := range []string{"restart", "reload"} {
		subtest(t, how, func(t *testing.T, s *stage) {
			first, second, mine := &recorder{}, &recorder{}, &recorder{}
			b := s.up(first.all("first"))
			s.reboot(idA)
			pause(2 * time.Second)
			s.azure.Start(idA)
			s.notSelf(idB)
			pause(2 * time.Second)
			s.reboot("over")
			pause(2 * time.Second)
			s.azure.End("over")
			pause(2 * time.Second)
			before := len(first.ids())
			routes := []bridge.Route{first.all("first"), second.all("second"), mine.self("mine")}
			if how == "restart" {
				b.end()
				s.start(routes...)
			} else {
				b.reload(routes...)
			}
			pause(2 * time.Second)
			wantIDs(t, second.ids(), idA+"-started", idB+"-scheduled")
			wantIDs(t, mine.ids(), idA+"-started")
			wantIDs(t, first.ids()[before:]) // nothing again
			s.azure.End(idA)
			s.azure.End(idB)
			pause(2 * time.Second)
			wantIDs(t, second.ids(), idA+"-started", idB+"-scheduled", idA+"-vanished", idB+"-vanished")
			wantIDs(t, mine.ids(), idA+"-started", idA+"-vanished")
		})
	}
}

// It gets that also if the disk can't be read when it comes, and its `when` is asked then too.
func TestANewRouteHearsWhatIsOpenOnADiskThatCannotBeRead(t *testing.T) {
	for how, failing := range map[string]func(*faultyDisk) (over func()){
		"it hangs": (*faultyDisk).hang,
		"it fails": func(d *faultyDisk) (over func()) {
			d.misread(errors.New("input/output error"))
			return func() { d.misread(nil) }
		},
	} {
		subtest(t, how, func(t *testing.T, s *stage) {
			first, all, picky, freezes := &recorder{}, &recorder{}, &recorder{}, &recorder{}
			b := s.up(first.all("first"))
			s.reboot(idA)
			pause(10 * time.Second)
			over := failing(s.disk)
			b.reload(first.all("first"), all.all("all"), picky.all("picky").OnlyWhen("severity > 20"),
				freezes.all("freezes").OnlyTypes("Freeze"))
			pause(10 * time.Second)
			over()
			pause(10 * time.Minute)
			for _, e := range []*recorder{first, all} {
				wantIDs(t, e.ids(), idA+"-scheduled")
			}
			wantIDs(t, picky.ids())
			wantIDs(t, freezes.ids())
		})
	}
}

// What was decided for the routes that there were stays decided when another comes, also if their filters are others now:
// these are for the changes to come.
func TestANewRouteDecidesNothingForTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		wide, narrow, another := &recorder{}, &recorder{}, &recorder{}
		freezes := func(e *recorder, name string) bridge.Route { return e.all(name).OnlyTypes("Freeze") }
		b := s.up(wide.all("wide"), freezes(narrow, "narrow"))
		s.reboot(idA)
		pause(2 * time.Second)
		b.reload(freezes(wide, "wide"), narrow.all("narrow"), another.all("another"))
		pause(2 * time.Second)
		wantIDs(t, narrow.ids())
		wantIDs(t, another.ids(), idA+"-scheduled")
		s.azure.End(idA) // is told to whoever was told of the event, and to whoever takes it now
		s.reboot(idB)
		pause(2 * time.Second)
		wantIDs(t, wide.ids(), idA+"-scheduled", idA+"-vanished")
		wantIDs(t, narrow.ids(), idA+"-vanished", idB+"-scheduled")
		wantIDs(t, another.ids(), idA+"-scheduled", idA+"-vanished", idB+"-scheduled")
	})
}

// Reloads under load, with a destination that comes and goes, lose nothing and reorder nothing of an event.
func TestAReloadUnderLoadLosesAndReordersNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		const events = 40
		e := &recorder{}
		tries := 0
		e.say(func(d delivery.Delivery) error {
			tries++
			if tries%3 == 0 {
				return errSinkDown
			}
			return nil
		})
		slow := e.all("a").To(slowSink{e, 300 * time.Millisecond})
		b := s.up(slow)
		id := func(i int) string { return fmt.Sprintf("%08d-0000-4000-8000-000000000000", i) }
		for i := range events + 4 { // each starts two seconds after it came, and ends after two more
			if i < events {
				s.azure.Schedule(imdstest.Event{ID: id(i)})
			}
			s.azure.Start(id(i - 2))
			s.azure.End(id(i - 4))
			pause(1100 * time.Millisecond)
			if i%3 == 0 {
				b.reload(slow)
			}
		}
		e.say(nil)
		pause(6 * time.Minute)
		got := map[string][]string{}
		for _, h := range e.accepted() {
			got[h.Event.Subject()] = append(got[h.Event.Subject()], h.Event.ID())
		}
		for i := range events {
			wantIDs(t, got[id(i)], id(i)+"-scheduled", id(i)+"-started", id(i)+"-vanished")
		}
	})
}

// A reload while nobody knows yet which VM this is uses each sink once, also if the wait for that ends before the reload
// does.
func TestAReloadDuringTheStartUsesEachSinkOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		b := s.start(answering(errSinkDown).all("a"))
		s.reboot(idA)
		pause(3 * time.Second)
		b.end()
		s.nameless()
		b = s.start(e.all("a"))
		pause(bridge.NameForBacklog - time.Second)
		wantIDs(t, e.ids()) // whose backlog it is, is still to be heard
		release := s.disk.block()
		var closed atomic.Int32
		again := e.all("a").To(closing{slowSink{e, time.Second}, &closed})
		reloaded := make(chan struct{})
		go func() {
			b.Reload([]bridge.Route{again, (&recorder{}).all("b")}, nil, bridge.SettingsInfo{Hash: "new"})
			close(reloaded)
		}()
		pause(3 * time.Second)
		release()
		<-reloaded
		pause(time.Minute)
		wantEqual(t, "closed while it is in use", closed.Load(), 0)
		wantIDs(t, e.ids(), idA+"-scheduled")
		wantEqual(t, "the settings", b.Status().Settings.Hash, "new")
		b.end()
		wantEqual(t, "closed in the end", closed.Load(), 1)
	})
}

// A reload that is asked for before the start has set its routes waits for that: they would take the place of the new
// ones, which then had deliveries pending that nobody makes.
func TestAReloadWaitsForTheStart(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		outbox, err := outbox.Open(s.dir, outbox.Options{Log: s.logger()})
		must(t, err)
		client := imds.NewClient("http://azure.test", imds.DefaultAPIVersion, s.logger(), s.azure.RoundTripper())
		before, after := &recorder{}, &recorder{}
		b, err := bridge.New(bridge.Options{Client: client, Outbox: outbox, Routes: []bridge.Route{before.all("before")}, Log: s.logger()})
		must(t, err)
		reloaded := false
		go func() {
			must(t, b.Reload(t.Context(), []bridge.Route{after.all("after")}, nil, bridge.SettingsInfo{}))
			reloaded = true
		}()
		synctest.Wait()
		wantEqual(t, "reloaded before the start", reloaded, false)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- b.Run(ctx) }()
		pause(2 * time.Second)
		s.reboot(idA)
		pause(2 * time.Second)
		wantIDs(t, before.ids())
		wantIDs(t, after.ids(), idA+"-scheduled")
		wantEqual(t, "sinks", len(b.Status().Sinks), 1)
		wantEqual(t, "the new one", b.Status().Sinks[0].State, bridge.SinkOK)
		stop()
		must(t, <-ended)
	})
}

// A reload whose old attempt hangs waits with that route only, and until the attempt's time is over.
func TestAReloadDoesNotWaitForAnAttemptUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		hung, well := answering(errHang), &recorder{}
		b := s.up(hung.all("hung"), well.all("well"))
		s.reboot(idA)
		pause(1500 * time.Millisecond)
		began := time.Now()
		now, alsoNow := &recorder{}, &recorder{}
		b.reload(now.all("hung"), alsoNow.all("well"))
		wantEqual(t, "the reload", time.Since(began), 0)
		s.azure.Start(idA)
		pause(2 * time.Second)
		wantIDs(t, alsoNow.ids(), idA+"-started")
		wantIDs(t, now.ids())
		pause(10 * time.Second)
		wantIDs(t, now.ids(), idA+"-scheduled", idA+"-started")
	})
}

// An attempt without a timeout, such as a long drain, is waited for. It is neither ended nor begun again beside itself.
func TestAReloadWaitsForAnAttemptWithoutATimeout(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		over := make(chan struct{})
		drain, again := &recorder{}, &recorder{}
		drain.say(func(delivery.Delivery) error { <-over; return nil })
		endless := func(x *bridge.Terms) { x.Timeout = 0 }
		cut := &atomic.Bool{}
		r := drain.all("drain").With(endless).To(watched{drain.all("drain").With(endless).Sink, cut})
		b := s.up(r)
		s.reboot(idA)
		pause(1500 * time.Millisecond)
		for range 3 {
			b.reload(again.all("drain").With(endless))
			pause(20 * time.Minute)
		}
		wantEqual(t, "the attempt was ended by a reload", cut.Load(), false)
		wantIDs(t, again.ids())
		close(over)
		s.azure.Start(idA)
		pause(2 * time.Second)
		wantIDs(t, drain.ids(), idA+"-scheduled")
		wantIDs(t, again.ids(), idA+"-started")
	})
}

// watched is a sink that notes when the context of an attempt ends before the attempt.
type watched struct {
	delivery.Sink
	cut *atomic.Bool
}

func (w watched) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	defer context.AfterFunc(ctx, func() { w.cut.Store(true) })()
	return w.Sink.Deliver(ctx, batch)
}

// A sink that does not return when its time is over, though every sink must, holds its successor up for some seconds
// more, not for ever.
func TestAReloadLeavesASinkThatDoesNotReturn(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		release := make(chan struct{})
		old := (&recorder{}).all("a").To(deaf{release})
		b := s.up(old)
		s.reboot(idA)
		pause(2 * time.Second)
		e := &recorder{}
		b.reload(e.all("a"))
		pause(old.Terms.Timeout + bridge.StopTimeout - time.Second)
		wantIDs(t, e.ids())
		pause(3 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled")
		close(release)
	})
}

// A sink that is added while an event is open is reminded of it too. So is one that was there before, and whose settings
// ask for reminders only now: at once, if it is time.
func TestASinkThatAsksForRemindersIsReminded(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		kept, added := &recorder{}, &recorder{}
		b := s.up(kept.all("kept"))
		s.redeploy(idA, time.Hour)
		pause(20*time.Minute + 10*time.Second)
		b.reload(kept.reminds("kept", 45*time.Minute), added.reminds("added", 30*time.Minute))
		pause(2 * time.Second)
		wantIDs(t, kept.types(), "scheduled", "reminder")
		wantIDs(t, added.types(), "scheduled")
		pause(20 * time.Minute)
		wantIDs(t, added.types(), "scheduled", "reminder")
	})
}

// The backlog of a name goes to its new destination: the old one finishes what is under way, and gets no more.
func TestAChangedDestinationGetsTheBacklog(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		before, after := &recorder{}, &recorder{}
		slow := before.all("a").To(slowSink{before, 3 * time.Second})
		b := s.up(slow)
		for i := range 10 {
			s.reboot(fmt.Sprintf("EVENT-%d", i))
		}
		pause(5 * time.Second) // one was delivered, another is under way
		b.reload(after.all("a"))
		b.reload(after.all("a")) // and nothing is confused by two of them
		pause(10 * time.Second)
		wantEqual(t, "delivered to the old destination", len(before.ids()), 2)
		wantEqual(t, "delivered to the new one", len(after.ids()), 8)
	})
}

// What is replayed to a sink that gave up the same CloudEvent before is one dead letter there at the end, or none when
// it is taken.
func TestADeadLetterIsCountedOnce(t *testing.T) {
	for taken, left := range map[bool][]string{true: nil, false: {idA + "-scheduled"}} {
		subtest(t, fmt.Sprintf("taken %t", taken), func(t *testing.T, s *stage) {
			first, second := answering(delivery.ErrRejected), answering(delivery.ErrRejected)
			b := s.up(first.all("first"), second.all("second"))
			s.reboot(idA)
			pause(3 * time.Second)
			if taken {
				second.say(nil)
			}
			b.replay(b.Outbox.List(outbox.Selection{Route: "first"})[0], "second")
			pause(3 * time.Second)
			wantIDs(t, deadIDs(b.Outbox), left...)
			wantEqual(t, "the count", b.Outbox.Totals().Dead, len(left))
		})
	}
}

// A dead letter counts the attempts that were made of it. What a newer change replaced in a rejected attempt has none of
// that one.
func TestADeadLetterCountsItsOwnAttempts(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := answering(errSinkDown)
		b := s.up(e.all("chat").With(func(terms *bridge.Terms) { terms.Late = delivery.LateLatest }))
		s.reboot(idA)
		pause(time.Minute)
		e.say(always(delivery.ErrRejected))
		s.azure.Start(idA)
		pause(time.Minute)
		b.end()
		wantIDs(t, deadIDs(b.Outbox), idA+"-scheduled", idA+"-started")
		tried := idsOf(e.tried())
		for _, letter := range b.deadLetters() {
			made := len(slices.DeleteFunc(slices.Clone(tried), func(id string) bool { return id != letter.ID }))
			wantEqual(t, "the attempts of "+letter.ID, letter.Attempts, made)
		}
	})
}

// What became a dead letter because it was late is delivered once somebody replays it, in its order and also after a
// restart: asking for it by hand is no less late, and must not make the same dead letter again.
func TestALateDeadLetterIsDeliveredWhenItIsReplayed(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		e := answering(errSinkDown)
		drain := e.all("drain").With(func(terms *bridge.Terms) { terms.Late = delivery.LateDrop })
		b := s.up(drain)
		s.reboot(idA)
		pause(time.Hour)
		s.azure.Start(idA)
		pause(time.Minute)
		b.wantDead(delivery.ReasonLate, idA+"-scheduled")
		b.replay(b.deadLetters()[0], "")
		pause(time.Minute)
		b.end()
		e.say(nil)
		b = s.start(drain)
		pause(10 * time.Second)
		b.end()
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started") // what was replayed, and what came after it
		wantEqual(t, "left", len(b.Outbox.List(outbox.Selection{})), 0)
	})
}

// While an attempt without a timeout goes on after a reload, the new settings say what of the rest is late: nothing, or
// only what is neither under way nor the latest.
func TestWhatWaitsAtAReloadIsLateByTheNewSettings(t *testing.T) {
	systemtest.Alone(t)
	for late, want := range map[delivery.Late][]string{
		delivery.LateSend: {}, delivery.LateDrop: {idB + "-scheduled"},
	} {
		bubble(t, func(t *testing.T, s *stage) {
			other := map[delivery.Late]delivery.Late{delivery.LateSend: delivery.LateDrop, delivery.LateDrop: delivery.LateSend}
			e := &recorder{}
			slow := e.all("drain").To(slowSink{e, 40 * time.Minute}).With(func(terms *bridge.Terms) {
				terms.Timeout, terms.Late = 0, other[late]
			})
			b := s.up(slow)
			s.reboot(idA)
			pause(5 * time.Second)
			s.reboot(idB)
			pause(5 * time.Second)
			b.reload(e.all("drain").With(func(terms *bridge.Terms) { terms.Late = late }))
			s.azure.Start(idA)
			pause(20 * time.Minute)       // the time of both has passed
			wantIDs(t, deadIDs(b.Outbox)) // while an attempt is under way
			pause(25 * time.Minute)
			wantIDs(t, deadIDs(b.Outbox), want...)
		})
	}
}

// What can't be delivered because an attempt of before a reload goes on falls back in its time.
func TestWhatWaitsAtAReloadFallsBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e, other := &recorder{}, &recorder{}
		falls := func(terms *bridge.Terms) {
			terms.Timeout, terms.Fallback = 0, delivery.Fallback{Sink: "other", After: time.Minute}
		}
		second := other.all("other").OnlyTypes("Freeze")
		slow := e.all("drain").With(falls).To(slowSink{e, 2 * time.Hour})
		b := s.up(slow, second)
		s.reboot(idA)
		pause(5 * time.Second)
		b.reload(e.all("drain").With(falls), second)
		b.reload(e.all("drain").With(falls), second)
		s.reboot(idB)
		pause(90 * time.Second)
		wantIDs(t, other.ids(), idA+"-scheduled", idB+"-scheduled")
		wantIDs(t, e.ids())
	})
}
