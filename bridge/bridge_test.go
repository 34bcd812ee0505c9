package bridge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
		s.start(e.all("a"))
		pause(2 * time.Second)
		s.reboot(idA)
		pause(2 * time.Second)
		s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Hour) })
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(time.Minute)
		all := e.accepted()
		if len(all) != 4 {
			t.Fatalf("told %v", e.ids())
		}
		update := all[1].Event.ID()
		wantIDs(t, e.ids(), idA+"-scheduled", update, idA+"-started", idA+"-vanished")
		if d := dataIn(t, all[1].Event); !strings.HasPrefix(update, idA+"-updated-") || !slices.Equal(d.Changed, []string{"NotBefore"}) {
			t.Errorf("a moved NotBefore is told as %s, changed %v", update, d.Changed)
		}
		for _, h := range all {
			if d := dataIn(t, h.Event); d.WhileAway || !d.NotEarlierThan.IsZero() {
				t.Errorf("%s says that nobody watched", h.Event.ID())
			}
		}
		scheduled, started := all[0].Event.Time(), all[2].Event.Time()
		for i, begun := range []time.Time{{}, {}, started, started} {
			if d := dataIn(t, all[i].Event); !d.Announced.Equal(scheduled) || !d.Begun.Equal(begun) {
				t.Errorf("%s says announced %v, begun %v; want %v, %v", all[i].Event.ID(), d.Announced, d.Begun, scheduled, begun)
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
		meanwhile func(*imdstest.Server)
		want      []string
	}{
		{"nothing happened", func(*imdstest.Server) {}, nil},
		{"one came", func(a *imdstest.Server) { a.Schedule(imdstest.Event{ID: idB}) }, []string{idB + "-scheduled"}},
		{"one was moved", func(a *imdstest.Server) {
			a.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Hour) })
		}, []string{idA + "-updated-*"}},
		{"one began", func(a *imdstest.Server) { a.Start(idA) }, []string{idA + "-started"}},
		{"one ended", func(a *imdstest.Server) { a.End(idA) }, []string{idA + "-vanished"}},
		{"one ended and another came", func(a *imdstest.Server) { a.End(idA); a.Schedule(imdstest.Event{ID: idB}) },
			[]string{idA + "-vanished", idB + "-scheduled"}},
		{"the number started over", func(a *imdstest.Server) { a.ResetIncarnation() }, nil},
	} {
		for _, crash := range []bool{false, true} {
			subtest(t, fmt.Sprintf("%s, crash %v", tt.claim, crash), func(t *testing.T, s *stage) {
				e := &recorder{}
				b := s.start(e.all("a"))
				pause(2 * time.Second)
				s.reboot(idA)
				pause(20 * time.Second)
				last := time.Now()
				if crash {
					b.crash()
				} else {
					b.end()
				}
				pause(time.Minute)
				tt.meanwhile(s.azure)
				again := &recorder{}
				s.start(again.all("a"))
				pause(10 * time.Second)
				var ids []string
				for _, h := range again.accepted() {
					id := h.Event.ID()
					if i := strings.Index(id, "-updated-"); i > 0 {
						id = id[:i+len("-updated-")] + "*"
					}
					ids = append(ids, id)
					d := dataIn(t, h.Event)
					if !d.WhileAway || d.NotEarlierThan.After(last) || last.Sub(d.NotEarlierThan) > bridge.TouchEvery {
						t.Errorf("%s: whileAway %v, notEarlierThan %v; want the last answer before, about %v", id, d.WhileAway, d.NotEarlierThan, last)
					}
				}
				wantIDs(t, ids, tt.want...)
			})
		}
	}
}

// More than a minute without a valid answer is as long as a restart: what is found then was found late.
func TestWhatIsFoundAfterALongGapSaysSo(t *testing.T) {
	for _, tt := range []struct {
		gap  time.Duration
		away bool
	}{{30 * time.Second, false}, {2 * time.Minute, true}} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &recorder{}
			s.start(e.all("a"))
			pause(10500 * time.Millisecond)
			last := time.Now()
			s.azure.SetFault(imdstest.Fault{Status: 503, For: tt.gap})
			s.reboot(idA)
			pause(tt.gap + 20*time.Second)
			if len(e.ids()) != 1 {
				t.Fatalf("told %v", e.ids())
			}
			d := dataIn(t, e.accepted()[0].Event)
			if d.WhileAway != tt.away || tt.away && last.Sub(d.NotEarlierThan) > time.Second || !tt.away && !d.NotEarlierThan.IsZero() {
				t.Errorf("after %v without an answer: whileAway %v, notEarlierThan %v", tt.gap, d.WhileAway, d.NotEarlierThan)
			}
		})
	}
}

// An event that comes back after it vanished, and an update that recurs, have ids of their own, also across a restart.
func TestWhatHappensAgainHasAnotherID(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		b := s.start(e.all("a"))
		at := time.Now().Add(time.Hour)
		move := func(d time.Duration) {
			s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = at.Add(d) })
			pause(2 * time.Second)
		}
		pause(2 * time.Second)
		s.azure.Schedule(imdstest.Event{ID: idA, NotBefore: at})
		pause(2 * time.Second)
		move(time.Minute)
		move(0)
		move(time.Minute)
		s.azure.End(idA)
		pause(2 * time.Second)
		b.end()
		b = s.start(e.all("a"))
		pause(2 * time.Second)
		s.azure.Schedule(imdstest.Event{ID: idA, NotBefore: at})
		pause(2 * time.Second)
		move(time.Minute)
		s.azure.Start(idA)
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		s.reboot(idA)
		pause(2 * time.Second)
		b.end()
		got := e.ids()
		if len(got) != 10 {
			t.Fatalf("told %v", got)
		}
		later, sooner := got[1], got[2]
		wantIDs(t, got, idA+"-scheduled", later, sooner, later+"-r2", idA+"-vanished",
			idA+"-scheduled-r2", later+"-r3", idA+"-started-r2", idA+"-vanished-r2", idA+"-scheduled-r3")
	})
}

// The same change has the same id: told again after a crash, after the outbox is lost, and by another VM.
func TestTheSameChangeHasTheSameIDAfterALossAndFromEveryVM(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.reboot(idA)
		tell := func(s *stage) []string {
			e := &recorder{}
			b := s.start(e.all("a"))
			pause(2 * time.Second)
			at := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
			s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = at })
			pause(2 * time.Second)
			b.crash()
			return e.ids()
		}
		first := tell(s)
		if err := os.Remove(filepath.Join(s.dir, "outbox.db")); err != nil {
			t.Fatal(err)
		}
		s.azure.End(idA)
		s.reboot(idA)
		wantIDs(t, tell(s), first...)

		other := newStage(t)
		other.azure, other.vm = s.azure, "vm-1"
		s.azure.End(idA)
		s.reboot(idA)
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
		s.start(e.all("a"))
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started", idA+"-started")
	})
}

// Before a delivery is attempted, it is stored on disk with what was seen.
func TestADeliveryIsStoredBeforeItIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		var b *running
		checked := 0
		e.say(func(d delivery.Delivery) error {
			dir := t.TempDir()
			b.snapshot(filepath.Join(dir, "outbox.db"))
			o, err := outbox.OpenReadOnly(dir)
			if err != nil {
				t.Error(err)
				return nil
			}
			defer o.Close()
			pending := slices.ContainsFunc(o.List(outbox.Selection{Route: "a", State: outbox.StatePending}), func(e outbox.Delivery) bool { return e.ID == d.Event.ID() })
			_, open := o.Groups()[idA]
			if want := d.Event.Type() != cloudevent.EventPrefix+"vanished"; !pending || open != want {
				t.Errorf("when %s is sent, it is pending on disk: %v, and the event open: %v", d.Event.ID(), pending, open)
			}
			_, body, err := o.Show(o.List(outbox.Selection{Route: "a"})[0].Key)
			if err != nil || !bytes.Contains(body, []byte(d.Event.ID())) {
				t.Errorf("the disk has %s, %v; want the CloudEvent", body, err)
			}
			checked++
			return nil
		})
		b = s.start(e.all("a"))
		pause(2 * time.Second)
		s.reboot(idA)
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		if checked != 3 {
			t.Errorf("%d deliveries were looked at, want 3", checked)
		}
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
			if d := well.accepted()[i].at.Sub(from); d > time.Second {
				t.Errorf("%s was heard after %v, want a second at most", well.ids()[i], d)
			}
		}
		if n := s.polls() - before; n != 120 {
			t.Errorf("%d polls in two minutes, want 120", n)
		}
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
		kept  int
	}{
		{0, 0, 0},
		{3 * time.Second, 3 * time.Second, 0},
		{8 * time.Second, bridge.StopTimeout, 1},
	} {
		subtest(t, fmt.Sprint(tt.takes), func(t *testing.T, s *stage) {
			e := &recorder{}
			slow := e.all("a")
			slow.Sink = slowSink{e, tt.takes}
			down := answering(errSinkDown).all("down")
			b := s.up(slow, down)
			s.reboot(idA)
			pause(600 * time.Millisecond) // and the attempt is under way
			began := time.Now()
			b.end()
			if took := time.Since(began); took > tt.stop {
				t.Errorf("the stop took %v, want at most %v", took, tt.stop)
			}
			o := stored(t, s.dir)
			if n := len(o.List(outbox.Selection{Route: "a", State: outbox.StatePending})); n != tt.kept {
				t.Errorf("%d deliveries are kept, want %d", n, tt.kept)
			}
			if n := len(o.List(outbox.Selection{Route: "down", State: outbox.StatePending})); n != 1 {
				t.Errorf("%d deliveries to the sink that is down are kept, want 1", n)
			}
		})
	}
}

// slowSink takes its time, and comes back when its attempt is over.
type slowSink struct {
	delivery.Sink
	takes time.Duration
}

func (s slowSink) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return delivery.Answer{}, ctx.Err()
	}
	return s.Sink.Deliver(ctx, batch)
}

// An attempt that is accepted although it was cut off counts.
func TestWhatWasAcceptedWhileBeingCutOffIsNotRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		r := e.all("a")
		r.Sink = stubborn{e}
		b := s.start(r)
		s.reboot(idA)
		pause(1500 * time.Millisecond)
		b.end()
		wantIDs(t, e.ids(), idA+"-scheduled")
		if list := stored(t, s.dir).List(outbox.Selection{}); len(list) != 0 {
			t.Errorf("it is still pending: %v", list)
		}
	})
}

// stubborn delivers only when it is told to stop.
type stubborn struct{ delivery.Sink }

func (s stubborn) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	<-ctx.Done()
	return s.Sink.Deliver(context.WithoutCancel(ctx), batch)
}

// Run returns within five seconds also when a sink does not, and at once when nothing ever answered.
func TestRunReturnsWhateverSinksDo(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		release := make(chan struct{})
		r := (&recorder{}).all("a")
		r.Sink = deaf{release}
		b := s.start(r)
		s.reboot(idA)
		pause(2 * time.Second)
		began := time.Now()
		b.end()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("Run took %v to return", took)
		}
		close(release)
	})
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Hang: true})
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		b := s.start((&recorder{}).all("a"))
		pause(time.Minute)
		began := time.Now()
		b.end()
		if took := time.Since(began); took > 0 {
			t.Errorf("Run took %v to return", took)
		}
	})
}

// deaf does not return when its attempt is over, though every sink must.
type deaf struct{ release chan struct{} }

func (d deaf) Deliver(context.Context, []delivery.Delivery) (delivery.Answer, error) {
	<-d.release
	return delivery.Answer{}, errors.New("released")
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
		if after := runtime.NumGoroutine(); after > before {
			t.Errorf("%d goroutines run after 20 reloads, %d before", after, before)
		}
	})
}

// A sink that can be closed is, once its route has ended: after a reload and at the end.
func TestSinksAreClosedWhenTheirRouteHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		var first, second, other atomic.Int32
		route := func(name string, n *atomic.Int32) bridge.Route {
			r := (&recorder{}).all(name)
			r.Sink = closing{r.Sink, n}
			return r
		}
		b := s.start(route("a", &first), route("b", &other))
		pause(2 * time.Second)
		b.reload(route("a", &second))
		pause(2 * time.Second)
		if first.Load() != 1 || other.Load() != 1 || second.Load() != 0 {
			t.Errorf("closed %d %d %d times after the reload, want the old ones, once", first.Load(), other.Load(), second.Load())
		}
		b.end()
		if first.Load() != 1 || other.Load() != 1 || second.Load() != 1 {
			t.Errorf("closed %d %d %d times after the end, want each once", first.Load(), other.Load(), second.Load())
		}
	})
}

type closing struct {
	delivery.Sink
	closed *atomic.Int32
}

func (c closing) Close() error { c.closed.Add(1); return nil }

// What a sink is given to guard, and what it must not say, the bridge never prints: it looks at secret files from
// outside only.
func TestTheBridgePrintsNoSecret(t *testing.T) {
	const secret = "hunter2-and-more"
	bubble(t, func(t *testing.T, s *stage) {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		e := answering(delivery.ErrBlocked)
		r := e.all("a")
		r.Secrets = []string{file}
		b := s.start(r)
		s.reboot(idA)
		pause(2 * time.Minute)
		if err := os.WriteFile(file, []byte(secret+secret), 0o600); err != nil {
			t.Fatal(err)
		}
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
		slow.say(func(delivery.Delivery) error { time.Sleep(3 * time.Second); return nil })
		b := s.up(slow.all("slow"))
		s.reboot(idA)
		pause(1500 * time.Millisecond)
		b.cancel()
		pause(500 * time.Millisecond)
		b.reload(slow.all("slow"), late.all("late"))
		pause(time.Second)
		if err := <-b.done; err != nil {
			t.Errorf("Run = %v", err)
		}
		wantIDs(t, idsOf(late.tried()))
		wantIDs(t, slow.ids(), idA+"-scheduled")
		s.up(slow.all("slow"), late.all("late"))
		wantIDs(t, late.ids(), idA+"-scheduled")
		wantIDs(t, slow.ids(), idA+"-scheduled")
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
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		b = s.start(e.all("a"))
		pause(bridge.NameForBacklog - time.Second)
		release := s.disk.block()
		var closed atomic.Int32
		again := e.all("a")
		again.Sink = closing{again.Sink, &closed}
		reloaded := make(chan struct{})
		go func() {
			b.reload(again, (&recorder{}).all("b"))
			close(reloaded)
		}()
		pause(3 * time.Second)
		release()
		<-reloaded
		pause(time.Minute)
		if n := closed.Load(); n != 0 {
			t.Errorf("the sink was closed %d times while it is in use", n)
		}
		wantIDs(t, e.ids(), idA+"-scheduled")
		b.end()
		if n := closed.Load(); n != 1 {
			t.Errorf("the sink was closed %d times, want once", n)
		}
	})
}
