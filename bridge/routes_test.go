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
			s.azure.Schedule(imdstest.Event{ID: idB, Resources: []string{"vm-1"}})
			pause(2 * time.Second)
			s.azure.Schedule(imdstest.Event{ID: "over"})
			pause(2 * time.Second)
			s.azure.End("over")
			pause(2 * time.Second)
			n := len(first.ids())
			routes := []bridge.Route{first.all("first"), second.all("second"), mine.self("mine")}
			if how == "restart" {
				b.end()
				b = s.start(routes...)
			} else {
				b.reload(routes...)
			}
			pause(2 * time.Second)
			wantIDs(t, second.ids(), idA+"-started", idB+"-scheduled")
			wantIDs(t, mine.ids(), idA+"-started")
			if len(first.ids()) != n {
				t.Errorf("the route that was there heard %v again", first.ids()[n:])
			}
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
			routes := []bridge.Route{first.all("first"), all.all("all"), picky.all("picky"), freezes.all("freezes")}
			routes[2].Filter.When = mustParseWhen(t, "severity > 20")
			routes[3].Filter.Only.Types = []string{"Freeze"}
			over := failing(s.disk)
			b.reload(routes...)
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
		freezes := func(e *recorder, name string) bridge.Route {
			r := e.all(name).OnlyTypes("Freeze")
			return r
		}
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
		e := &recorder{}
		fails := 0
		e.say(func(d delivery.Delivery) error {
			if fails++; fails%3 == 0 {
				return errSinkDown
			}
			return nil
		})
		slow := e.all("a").To(slowSink{e, 300 * time.Millisecond})
		b := s.up(slow)
		want := map[string][]string{}
		for i := range 40 {
			id := fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)
			s.azure.Schedule(imdstest.Event{ID: id})
			want[id] = []string{id + "-scheduled", id + "-started", id + "-vanished"}
			if i >= 2 {
				s.azure.Start(fmt.Sprintf("%08d-0000-4000-8000-000000000000", i-2))
			}
			if i >= 4 {
				s.azure.End(fmt.Sprintf("%08d-0000-4000-8000-000000000000", i-4))
			}
			pause(1100 * time.Millisecond)
			if i%3 == 0 {
				b.reload(slow)
			}
		}
		for i := 36; i < 40; i++ {
			s.azure.Start(fmt.Sprintf("%08d-0000-4000-8000-000000000000", i))
		}
		pause(2 * time.Second)
		for i := 36; i < 40; i++ {
			s.azure.End(fmt.Sprintf("%08d-0000-4000-8000-000000000000", i))
		}
		e.say(nil)
		pause(6 * time.Minute)
		got := map[string][]string{}
		for _, h := range e.accepted() {
			got[h.Event.Subject()] = append(got[h.Event.Subject()], h.Event.ID())
		}
		for id, ids := range want {
			wantIDs(t, got[id], ids...)
		}
	})
}

// A reload while the bridge still waits for the name of its VM starts each route once.
func TestAReloadBeforeDeliveriesBeginStartsEachRouteOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		down := answering(errSinkDown)
		b := s.start(down.all("a"))
		s.reboot(idA)
		pause(5 * time.Second)
		b.end()
		s.nameless()
		e := &recorder{}
		r := e.all("a").To(slowSink{e, time.Second})
		b = s.up((&recorder{}).all("a"))
		b.Reload([]bridge.Route{r}, nil, bridge.SettingsInfo{Hash: "new"})
		pause(5 * time.Second)
		wantIDs(t, e.ids()) // whose backlog it is, is still to be heard
		pause(time.Minute)
		wantIDs(t, e.ids(), idA+"-scheduled")
		wantEqual(t, "the settings", b.Status().Settings.Hash, "new")
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
			if err := b.Reload(t.Context(), []bridge.Route{after.all("after")}, nil, bridge.SettingsInfo{}); err != nil {
				t.Error(err)
			}
			reloaded = true
		}()
		synctest.Wait()
		if reloaded {
			t.Error("a reload took effect before the start")
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- b.Run(ctx) }()
		pause(2 * time.Second)
		s.reboot(idA)
		pause(2 * time.Second)
		wantIDs(t, before.ids())
		wantIDs(t, after.ids(), idA+"-scheduled")
		if sinks := b.Status().Sinks; len(sinks) != 1 || sinks[0].Name != "after" || sinks[0].State != bridge.SinkOK {
			t.Errorf("the sinks are %+v, want only the new one, and it works", sinks)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
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
		if d := time.Since(began); d > 0 {
			t.Errorf("Reload took %v", d)
		}
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
		if cut.Load() {
			t.Error("the attempt was ended by a reload")
		}
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
		b.end()
		close(release)
	})
}

// A sink that is added while an event is open is reminded of it too.
func TestAnAddedSinkIsReminded(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		kept, added := (&recorder{}).all("kept"), &recorder{}
		b := s.up(kept)
		s.redeploy(idA, time.Hour)
		pause(5 * time.Second)
		b.reload(kept, added.reminds("added", 30*time.Minute))
		pause(40 * time.Minute)
		wantIDs(t, added.types(), "scheduled", "reminder")
	})
}

// So is one that was there before, and whose settings ask for reminders only now: at once, if it is time.
func TestASinkThatAsksForRemindersIsReminded(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		b := s.up(e.all("a"))
		s.redeploy(idA, time.Hour)
		pause(20*time.Minute + 10*time.Second)
		b.reload(e.reminds("a", 45*time.Minute))
		pause(2 * time.Second)
		wantIDs(t, e.types(), "scheduled", "reminder")
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
		if n, m := len(before.ids()), len(after.ids()); n != 2 || m != 8 {
			t.Errorf("the old destination got %d and the new one %d, want 2 and 8", n, m)
		}
	})
}

// What is replayed to a sink that gave up the same CloudEvent before is one dead letter there at the end, or none when
// it is taken.
func TestADeadLetterIsCountedOnce(t *testing.T) {
	for _, taken := range []bool{true, false} {
		bubble(t, func(t *testing.T, s *stage) {
			first, second := answering(delivery.ErrRejected), answering(delivery.ErrRejected)
			b := s.up(first.all("first"), second.all("second"))
			s.reboot(idA)
			pause(3 * time.Second)
			want := 1
			if taken {
				second.say(nil)
				want = 0
			}
			b.replay(b.Outbox.List(outbox.Selection{Route: "first"})[0], "second")
			pause(3 * time.Second)
			b.end()
			if left := b.Outbox.List(outbox.Selection{}); len(left) != want || b.Outbox.Totals().Dead != want {
				t.Errorf("left are %+v, counted as %d; want %d", left, b.Outbox.Totals().Dead, want)
			}
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
		letters := b.deadLetters()
		if len(letters) != 2 {
			t.Fatalf("the dead letters are %+v, want two", letters)
		}
		for _, l := range letters {
			made := 0
			for _, try := range e.tried() {
				if try.Event.ID() == l.ID {
					made++
				}
			}
			if l.Attempts != made {
				t.Errorf("%s says %d attempts, want %d", l.ID, l.Attempts, made)
			}
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
		letters := b.deadLetters()
		if len(letters) != 1 || letters[0].Reason != delivery.ReasonLate {
			t.Fatalf("the dead letters are %+v, want one that is late", letters)
		}
		b.replay(letters[0], "")
		pause(time.Minute)
		b.end()
		e.say(nil)
		b = s.start(drain)
		pause(10 * time.Second)
		b.end()
		if got := e.ids(); !slices.Equal(got, []string{idA + "-scheduled", idA + "-started"}) {
			t.Errorf("told %v, want what was replayed, and what came after it", got)
		}
		if left := b.Outbox.List(outbox.Selection{}); len(left) > 0 {
			t.Errorf("left are %+v", left)
		}
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
			slow := e.all("drain").With(func(terms *bridge.Terms) { terms.Timeout, terms.Late = 0, other[late] }).To(slowSink{e, 40 * time.Minute})
			b := s.up(slow)
			s.reboot(idA)
			pause(5 * time.Second)
			s.reboot(idB)
			pause(5 * time.Second)
			b.reload(e.all("drain").With(func(terms *bridge.Terms) { terms.Late = late }))
			s.azure.Start(idA)
			pause(20 * time.Minute) // the time of both has passed
			if dead := b.deadLetters(); len(dead) > 0 {
				t.Errorf("%s: %s is a dead letter while an attempt is under way", late, dead[0].ID)
			}
			pause(25 * time.Minute)
			dead := []string{}
			for _, d := range b.deadLetters() {
				dead = append(dead, d.ID)
			}
			wantIDs(t, dead, want...)
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
