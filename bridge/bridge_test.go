package bridge_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// The whole life of an event is delivered: scheduled, updated, started and vanished, once each and in order.
func TestTheWholeLifeOfAnEventIsDelivered(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		s.up(e.all("a"))
		s.reboot(idA)
		pause(2 * time.Second)
		s.postpone(idA, time.Hour)
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(time.Minute)
		wantIDs(t, e.types(), "scheduled", "updated", "started", "vanished")
		all := e.accepted()
		update := all[1].Event.ID()
		wantIDs(t, e.ids(), idA+"-scheduled", update, idA+"-started", idA+"-vanished")
		wantIDs(t, dataIn(t, all[1].Event).Changed, "NotBefore")
		scheduled, started := all[0].Event.Time(), all[2].Event.Time()
		for i, begun := range []time.Time{{}, {}, started, started} {
			d := dataIn(t, all[i].Event)
			if !d.Announced.Equal(scheduled) || !d.Begun.Equal(begun) {
				t.Errorf("%s says announced %v, begun %v; want %v, %v", all[i].Event.ID(), d.Announced, d.Begun, scheduled, begun)
			}
			if d.WhileAway || !d.NotEarlierThan.IsZero() {
				t.Errorf("%s says that nobody watched", all[i].Event.ID())
			}
		}
	})
}

// At the first document of all, what is open is told once, as found while away, and no one can say since when.
func TestTheFirstStartTellsWhatIsOpen(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.reboot(idA)
		s.azure.Schedule(imdstest.Event{ID: idB, Status: imdstest.Started, Type: "Freeze"})
		e := &recorder{}
		s.start(e.all("a"))
		pause(time.Minute)
		wantIDs(t, e.ids(), idB+"-started", idA+"-scheduled") // what has begun comes first
		for _, h := range e.accepted() {
			if d := dataIn(t, h.Event); !d.WhileAway || !d.NotEarlierThan.IsZero() {
				t.Errorf("%s: whileAway %v, notEarlierThan %v; want true and none", h.Event.ID(), d.WhileAway, d.NotEarlierThan)
			}
		}
	})
}

// A restart tells nothing of events that are as they were, and with the gap what changed meanwhile.
func TestARestartTellsWhatChangedMeanwhile(t *testing.T) {
	for _, tt := range []struct {
		claim     string
		meanwhile func(*stage)
		want      []string
	}{
		{"nothing happened", func(*stage) {}, nil},
		{"one came", func(s *stage) { s.reboot(idB) }, []string{idB + " scheduled"}},
		{"one was moved", func(s *stage) { s.postpone(idA, time.Hour) }, []string{idA + " updated"}},
		{"one began", func(s *stage) { s.azure.Start(idA) }, []string{idA + " started"}},
		{"one ended", func(s *stage) { s.azure.End(idA) }, []string{idA + " vanished"}},
		{"one ended and another came", func(s *stage) {
			s.azure.End(idA)
			s.reboot(idB)
		}, []string{idA + " vanished", idB + " scheduled"}},
		{"the number started over", func(s *stage) { s.azure.ResetIncarnation() }, nil},
	} {
		for name, stop := range map[string]func(*running){"stop": (*running).end, "crash": (*running).crash} {
			subtest(t, tt.claim+" after a "+name, func(t *testing.T, s *stage) {
				b := s.up((&recorder{}).all("a"))
				s.reboot(idA)
				pause(20 * time.Second)
				last := time.Now()
				stop(b)
				pause(time.Minute)
				tt.meanwhile(s)
				again := &recorder{}
				s.start(again.all("a"))
				pause(10 * time.Second)
				var told []string
				for _, h := range again.accepted() {
					d := dataIn(t, h.Event)
					told = append(told, h.Event.Subject()+" "+string(d.Change))
					if !d.WhileAway || d.NotEarlierThan.After(last) || last.Sub(d.NotEarlierThan) > bridge.TouchEvery {
						t.Errorf("whileAway %v, notEarlierThan %v; want the last answer, about %v", d.WhileAway, d.NotEarlierThan, last)
					}
				}
				wantIDs(t, told, tt.want...)
			})
		}
	}
}

// More than a minute without a valid answer is as long as a restart: what is found then was found late.
func TestWhatIsFoundAfterALongGapSaysSo(t *testing.T) {
	for gap, away := range map[time.Duration]bool{30 * time.Second: false, 2 * time.Minute: true} {
		subtest(t, fmt.Sprint(gap), func(t *testing.T, s *stage) {
			e := &recorder{}
			s.start(e.all("a"))
			pause(10500 * time.Millisecond)
			last := time.Now()
			s.azure.SetFault(imdstest.Fault{Status: 503, For: gap})
			s.reboot(idA)
			pause(gap + 20*time.Second)
			wantIDs(t, e.ids(), idA+"-scheduled")
			d := e.last(t)
			wantEqual(t, "whileAway", d.WhileAway, away)
			if away && last.Sub(d.NotEarlierThan) > time.Second || !away && !d.NotEarlierThan.IsZero() {
				t.Errorf("after %v without an answer: notEarlierThan %v", gap, d.NotEarlierThan)
			}
		})
	}
}

// An event that comes back after it vanished, and an update that recurs, have ids of their own, also across a restart.
func TestWhatHappensAgainHasAnotherID(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		b := s.up(e.all("a"))
		at := time.Now().Add(time.Hour)
		come := func() {
			s.azure.Schedule(imdstest.Event{ID: idA, NotBefore: at})
			pause(2 * time.Second)
		}
		move := func(d time.Duration) {
			s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = at.Add(d) })
			pause(2 * time.Second)
		}
		end := func() {
			s.azure.End(idA)
			pause(2 * time.Second)
		}
		come()
		move(time.Minute)
		move(0)
		move(time.Minute)
		end()
		b.end()
		s.up(e.all("a"))
		come()
		move(time.Minute)
		s.azure.Start(idA)
		pause(2 * time.Second)
		end()
		come()
		got := e.ids()
		later, sooner := got[1], got[2]
		wantIDs(t, got, idA+"-scheduled", later, sooner, later+"-r2", idA+"-vanished",
			idA+"-scheduled-r2", later+"-r3", idA+"-started-r2", idA+"-vanished-r2", idA+"-scheduled-r3")
	})
}

// The same change has the same id: told again after a crash, after the outbox is lost, and by another VM.
func TestTheSameChangeHasTheSameIDAfterALossAndFromEveryVM(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		tell := func(s *stage) []string {
			s.azure.End(idA)
			s.reboot(idA)
			e := &recorder{}
			b := s.up(e.all("a"))
			at := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
			s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = at })
			pause(2 * time.Second)
			b.crash()
			wantIDs(t, e.types(), "scheduled", "updated")
			return e.ids()
		}
		first := tell(s)
		must(t, os.Remove(filepath.Join(s.dir, "outbox.db")))
		wantIDs(t, tell(s), first...)

		other := newStage(t)
		other.azure, other.vm = s.azure, "vm-1"
		wantIDs(t, tell(other), first...)
	})
}

// A crash after the destination accepted and before that was noted repeats the delivery, with the same id.
func TestACrashRepeatsWhatWasNotNotedWithTheSameID(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		image := filepath.Join(t.TempDir(), "image")
		e := &recorder{}
		var b *running
		e.say(func(d delivery.Delivery) error {
			if d.Event.ID() == idA+"-started" {
				b.snapshot(image)
			}
			return nil
		})
		b = s.start(e.all("a"))
		s.reboot(idA)
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(2 * time.Second)
		b.end()
		copyFile(t, image, filepath.Join(s.dir, "outbox.db"))
		e.say(nil)
		s.up(e.all("a"))
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started", idA+"-started")
	})
}

// Before a delivery is attempted, it is stored on disk with what was seen.
func TestADeliveryIsStoredBeforeItIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		var b *running
		e.say(func(d delivery.Delivery) error {
			dir := t.TempDir()
			b.snapshot(filepath.Join(dir, "outbox.db"))
			o := stored(t, dir)
			wantIDs(t, pendingIDs(o, "a"), d.Event.ID())
			_, open := o.Groups()[idA]
			wantEqual(t, "open on disk with "+d.Event.ID(), open, d.Event.Type() != cloudevent.EventPrefix+"vanished")
			_, body, err := o.Show(o.List(outbox.Selection{Route: "a"})[0].Key)
			if err != nil || !bytes.Contains(body, []byte(d.Event.ID())) {
				t.Errorf("the disk has %s, %v; want the CloudEvent", body, err)
			}
			return nil
		})
		b = s.up(e.all("a"))
		s.reboot(idA)
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		wantIDs(t, e.types(), "scheduled", "started", "vanished")
	})
}

// A destination that hangs, and one that is dead, delay neither another one nor the polling.
func TestASlowSinkDelaysNeitherOthersNorPolling(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		hung, dead, well := answering(errHang), answering(errSinkDown), &recorder{}
		s.up(hung.all("hung"), dead.all("dead"), well.all("well"))
		before := s.polls()
		scheduled := time.Now()
		s.reboot(idA)
		pause(time.Minute)
		s.azure.Start(idA)
		began := time.Now()
		pause(time.Minute)
		wantIDs(t, well.ids(), idA+"-scheduled", idA+"-started")
		for i, from := range []time.Time{scheduled, began} {
			wantWithin(t, "the delay of "+well.ids()[i], well.accepted()[i].at.Sub(from), 0, time.Second)
		}
		wantEqual(t, "polls in two minutes", s.polls()-before, 120)
		hung.say(nil)
		dead.say(nil)
		pause(5 * time.Minute)
		wantIDs(t, hung.ids(), idA+"-scheduled", idA+"-started")
		wantIDs(t, dead.ids(), idA+"-scheduled", idA+"-started")
	})
}

// A stop finishes what is under way, for a few seconds at most, tries what is new, and keeps the rest.
func TestAStopFinishesWhatIsUnderWay(t *testing.T) {
	for _, tt := range []struct {
		takes time.Duration // an attempt
		stop  time.Duration // the bridge, at most
		kept  []string
	}{
		{0, 0, nil},
		{3 * time.Second, 3 * time.Second, nil},
		{8 * time.Second, bridge.StopTimeout, []string{idA + "-scheduled"}},
	} {
		subtest(t, fmt.Sprint(tt.takes), func(t *testing.T, s *stage) {
			e := &recorder{}
			b := s.up(e.all("a").To(slowSink{e, tt.takes}), answering(errSinkDown).all("down"))
			s.reboot(idA)
			pause(600 * time.Millisecond) // and the attempt is under way
			wantWithin(t, "the stop", b.endsIn(), 0, tt.stop)
			o := stored(t, s.dir)
			wantIDs(t, pendingIDs(o, "a"), tt.kept...)
			wantIDs(t, pendingIDs(o, "down"), idA+"-scheduled")
		})
	}
}

// An attempt that is accepted although it was cut off counts.
func TestWhatWasAcceptedWhileBeingCutOffIsNotRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		s.reboot(idA)
		s.up(e.all("a").To(stubborn{e})).end()
		wantIDs(t, e.ids(), idA+"-scheduled")
		wantIDs(t, pendingIDs(stored(t, s.dir), "a"))
	})
}

// Run returns within five seconds also when a sink does not, and at once when nothing ever answered.
func TestRunReturnsWhateverSinksDo(t *testing.T) {
	subtest(t, "a sink does not return", func(t *testing.T, s *stage) {
		release := make(chan struct{})
		b := s.up((&recorder{}).all("a").To(deaf{release}))
		s.reboot(idA)
		pause(2 * time.Second)
		wantWithin(t, "the stop", b.endsIn(), 0, 5*time.Second)
		close(release)
	})
	subtest(t, "nothing ever answered", func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Hang: true})
		s.nameless()
		b := s.start((&recorder{}).all("a"))
		pause(time.Minute)
		wantEqual(t, "the stop", b.endsIn(), 0)
	})
}

// However often the settings are reloaded, no more goroutines run than before.
func TestReloadsLeaveNothingRunning(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		routes := []bridge.Route{(&recorder{}).all("a"), (&recorder{}).all("b")}
		b := s.start(routes...)
		pause(time.Minute)
		before := runtime.NumGoroutine()
		for range 20 {
			b.reload(routes...)
			pause(10 * time.Second)
		}
		wantWithin(t, "goroutines after 20 reloads", runtime.NumGoroutine(), 0, before)
	})
}

// A sink that can be closed is, once its route has ended: after a reload and at the end.
func TestSinksAreClosedWhenTheirRouteHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		var first, second, other atomic.Int32
		route := func(name string, n *atomic.Int32) bridge.Route {
			return (&recorder{}).all(name).To(closing{&recorder{}, n})
		}
		closed := func() [3]int32 { return [3]int32{first.Load(), other.Load(), second.Load()} }
		b := s.up(route("a", &first), route("b", &other))
		b.reload(route("a", &second))
		pause(2 * time.Second)
		wantEqual(t, "closed after the reload", closed(), [3]int32{1, 1, 0})
		b.end()
		wantEqual(t, "closed after the end", closed(), [3]int32{1, 1, 1})
	})
}

// What a sink is given to guard, and what it must not say, the bridge never prints: it looks at secret files from
// outside only.
func TestTheBridgePrintsNoSecret(t *testing.T) {
	const secret = "hunter2-and-more"
	bubble(t, func(t *testing.T, s *stage) {
		file := filepath.Join(t.TempDir(), "token")
		write := func(text string) {
			must(t, os.WriteFile(file, []byte(text), 0o600))
		}
		write(secret)
		e := answering(delivery.ErrBlocked)
		r := e.all("a")
		r.Secrets = []string{file}
		b := s.start(r)
		s.reboot(idA)
		pause(2 * time.Minute)
		write(secret + secret)
		e.say(always(delivery.ErrRejected))
		pause(time.Minute)
		shown := s.log.String() + string(imds.CompactJSON(b.Status())) + string(imds.CompactJSON(b.Outbox.List(outbox.Selection{})))
		b.end()
		if data, err := os.ReadFile(b.Outbox.Path()); err != nil || strings.Contains(shown+string(data), secret) {
			t.Errorf("a secret is in the log, the status or the outbox (%v)", err)
		}
	})
}

// While it stops, no settings that come late have it begin anything: what is new waits for the next start.
func TestSettingsThatComeDuringAStopBeginNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		slow, late := &recorder{}, &recorder{}
		b := s.up(slow.all("slow").To(slowSink{slow, 3 * time.Second}))
		s.reboot(idA)
		pause(1500 * time.Millisecond)
		b.cancel()
		pause(500 * time.Millisecond)
		b.reload(slow.all("slow"), late.all("late"))
		b.end()
		wantIDs(t, idsOf(late.tried()))
		wantIDs(t, slow.ids(), idA+"-scheduled")
		s.up(slow.all("slow"), late.all("late"))
		wantIDs(t, late.ids(), idA+"-scheduled")
		wantIDs(t, slow.ids(), idA+"-scheduled")
	})
}

// The bridge asks the endpoint and nothing else: it approves nothing by itself, whatever happens.
func TestTheBridgeNeverActsOnTheMachine(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.up((&recorder{}).all("a"))
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User"})
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		asks := func(r imdstest.Request) bool { return r.Method == http.MethodGet }
		if acts := slices.DeleteFunc(s.azure.Requests(), asks); len(acts) > 0 {
			t.Errorf("the bridge made the requests %v", acts)
		}
	})
}
