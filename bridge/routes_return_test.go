package bridge_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
)

// A route whose name returns gets the newest change of every open event, unless it had it before, or its `when` refuses
// the event.
func TestARouteThatReturnsHearsWhatItMissed(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		audit, ops, picky := &recorder{}, &recorder{}, &recorder{}
		one := []bridge.Route{audit.all("audit")}
		both := []bridge.Route{audit.all("audit"), ops.all("ops"), picky.all("picky").OnlyWhen("severity > 20")}
		b := s.up(both...)
		s.reboot(idA)
		pause(2 * time.Second)
		b.reload(one...)
		pause(2 * time.Second)
		wantIDs(t, b.Sinks(), "audit", "ops", "picky") // what it has pending may be replayed and dropped
		b.reload(both...)
		pause(2 * time.Second)
		wantIDs(t, ops.ids(), idA+"-scheduled") // it missed nothing

		b.reload(one...)
		s.reboot(idB)
		s.azure.Start(idA)
		pause(2 * time.Second)
		b.reload(both...)
		pause(2 * time.Second)
		wantIDs(t, ops.ids(), idA+"-scheduled", idA+"-started", idB+"-scheduled")

		b.end() // and when it is away from one start to the next
		b = s.up(one...)
		s.azure.Start(idB)
		pause(2 * time.Second)
		b.end()
		s.start(both...)
		pause(3 * time.Second)
		wantIDs(t, ops.ids(), idA+"-scheduled", idA+"-started", idB+"-scheduled", idB+"-started")
		wantIDs(t, picky.ids())
	})
}

// What a removed sink holds, such as its connections and templates, is freed.
func TestARemovedSinkIsFreed(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		kept := (&recorder{}).all("kept")
		b := s.up(kept)
		added := func() weak.Pointer[recorder] {
			e := &recorder{}
			b.reload(kept, e.all("removed"))
			pause(time.Minute)
			b.reload(kept)
			return weak.Make(e)
		}()
		pause(time.Minute)
		runtime.GC()
		if added.Value() != nil {
			t.Error("the sink is still held")
		}
	})
}

// What an earlier sink of that name was told says nothing about a new one: its own filter decides.
func TestANewSinkUnderAnOldNameIsDecidedAnew(t *testing.T) {
	for _, late := range []bool{false, true} {
		subtest(t, fmt.Sprintf("with a late file %t", late), func(t *testing.T, s *stage) {
			s.opts.Interval = seldom
			kept, before, after := (&recorder{}).all("kept"), &recorder{}, &recorder{}
			b := s.up(kept, before.all("ops"))
			s.redeploy(idA, 7*24*time.Hour)
			pause(time.Minute)
			b.reload(kept)
			pause(time.Minute)
			b.end()
			pause(25 * time.Hour)
			b = s.start(kept)
			pause(15 * time.Minute)
			s.azure.Schedule(imdstest.Event{ID: idB, Type: "Freeze"})
			pause(time.Minute)
			freezes := after.all("ops").OnlyTypes("Freeze")
			if late {
				s.missesFile(b, func() {}, kept, freezes)
			} else {
				b.reload(kept, freezes)
			}
			pause(time.Minute)
			s.azure.Start(idA)
			pause(time.Minute)
			wantIDs(t, before.ids(), idA+"-scheduled")
			wantIDs(t, after.ids(), idB+"-scheduled")
		})
	}
}

// A name removed from the settings keeps its backlog for a day, in case it returns.
func TestARemovedNameKeepsItsBacklogForADay(t *testing.T) {
	for away, kept := range map[time.Duration]bool{23 * time.Hour: true, 25 * time.Hour: false} {
		subtest(t, fmt.Sprint("away for ", away), func(t *testing.T, s *stage) {
			e, other := answering(errSinkDown), &recorder{}
			b := s.start(e.all("a"), other.all("other"))
			s.reboot(idA)
			pause(10 * time.Second)
			b.reload(other.all("other"))
			pause(10 * time.Second)
			wantEqual(t, "the sink", b.sink("a").State, bridge.SinkOrphaned)
			wantEqual(t, "pending", b.sink("a").Pending, 1)
			b.end()
			pause(away)
			b = s.start(other.all("other"))
			pause(5 * time.Second)
			if kept {
				wantIDs(t, deadIDs(b.Outbox))
			} else {
				b.wantDead(delivery.ReasonRemoved, idA+"-scheduled")
			}
			e.say(nil)
			tries := len(e.tried())
			b.reload(e.all("a"), other.all("other"))
			pause(2 * time.Second)
			wantIDs(t, e.ids(), idA+"-scheduled") // from the backlog, or because it is open and the name is new
			wantEqual(t, "the sink that is back", b.sink("a").State, bridge.SinkOK)
			wantEqual(t, "pending for it", b.sink("a").Pending, 0)
			wantEqual(t, "the attempt is not its first", e.tried()[tries].Attempt > 1, kept)
		})
	}
}

// A name that is gone from the settings when an event that it was told of ends is told so once it returns, also across
// restarts: what it did about the event can be undone. Its filter of changes counts, whatever became pending meanwhile.
func TestAReturningNameIsToldOfTheEnd(t *testing.T) {
	for claim, tt := range map[string]struct {
		changes  []string
		restarts bool
		want     []string
	}{
		"a reload":               {want: []string{"scheduled", "started", "vanished"}},
		"a restart":              {restarts: true, want: []string{"scheduled", "started", "vanished"}},
		"it doesn't ask for all": {changes: []string{"scheduled", "started"}, want: []string{"scheduled", "started"}},
		"only for what comes":    {changes: []string{"first"}, want: []string{"scheduled"}},
	} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			e, other := &recorder{}, &recorder{}
			r := e.all("a")
			r.Filter.Only.Changes = tt.changes
			without, with := []bridge.Route{other.all("other")}, []bridge.Route{r, other.all("other")}
			b := s.start(with...)
			turn := func(routes []bridge.Route) {
				if !tt.restarts {
					b.reload(routes...)
					return
				}
				b.end()
				b = s.start(routes...)
			}
			pause(1500 * time.Millisecond)
			s.reboot(idA)
			pause(5 * time.Second)
			turn(without)
			pause(5 * time.Second)
			s.azure.Start(idA)
			pause(5 * time.Second)
			s.azure.End(idA)
			pause(5 * time.Second)
			turn(with)
			pause(10 * time.Second)
			wantIDs(t, e.types(), tt.want...)
			turn(with)
			pause(10 * time.Second)
			wantIDs(t, e.types(), tt.want...)
		})
	}
}
