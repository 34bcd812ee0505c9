package bridge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// A disk is the outbox's storage, which fails and hangs as a test wants.
type faultyDisk struct {
	outbox.Storage
	writing sync.Mutex // held while the file is written
	mu      sync.Mutex
	err     error         // of every write
	gate    chan struct{} // that every write waits for; nil for nothing
	reads   chan struct{} // that every read of a CloudEvent waits for; nil for nothing
	unread  error         // of every read of one value
	writes  int           // that were asked for
	step    time.Duration // by which the clock was stepped: everything on record looks so much older
	wrote   func()        // is called after each write; nil for nothing

	walks, compactions int
}

func (d *faultyDisk) Compact() error {
	d.mu.Lock()
	d.compactions++
	d.mu.Unlock()
	return d.Storage.Compact()
}

// stamped are the times on record, by bucket.
var stamped = map[string][][]string{"events": {{"time"}}, "settled": {{"at"}},
	"groups": {{"state", "announced"}, {"state", "latestAt"}, {"state", "approval", "decided"}, {"state", "approval", "next"},
		{"cloudEvent", "time"}}}

// older returns a record as it looks after the clock was stepped.
func (d *faultyDisk) older(bucket string, value []byte) []byte {
	d.mu.Lock()
	step := d.step
	d.mu.Unlock()
	if step == 0 || stamped[bucket] == nil {
		return value
	}
	var fields map[string]any
	if err := json.Unmarshal(value, &fields); err != nil {
		return value
	}
	for _, path := range stamped[bucket] {
		in, last := fields, len(path)-1
		for _, name := range path[:last] {
			in, _ = in[name].(map[string]any)
		}
		text, _ := in[path[last]].(string)
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			in[path[last]] = at.Add(-step)
		}
	}
	return imds.CompactJSON(fields)
}

func (d *faultyDisk) Read(bucket, key string) ([]byte, error) {
	d.mu.Lock()
	gate, err := d.reads, d.unread
	d.mu.Unlock()
	if gate != nil && bucket == "events" {
		<-gate
	}
	if err != nil {
		return nil, err
	}
	value, err := d.Storage.Read(bucket, key)
	return d.older(bucket, value), err
}

func (d *faultyDisk) Walk(bucket, from string, f func(key string, value []byte) error) error {
	d.mu.Lock()
	d.walks++
	d.mu.Unlock()
	return d.Storage.Walk(bucket, from, func(key string, value []byte) error { return f(key, d.older(bucket, value)) })
}

// step is what a step of the clock by d looks like: only time that is counted by the monotonic clock stays as it is.
func (s *stage) step(d time.Duration) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	s.disk.step = d
}

func (d *faultyDisk) Write(writes []outbox.Write) error {
	d.mu.Lock()
	gate, err := d.gate, d.err
	d.writes++
	d.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if err != nil {
		return err
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	err = d.Storage.Write(writes)
	if d.wrote != nil {
		d.wrote()
	}
	return err
}

// fail makes every write fail, until it is called with nil.
func (d *faultyDisk) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// block makes every write hang until release is called.
func (d *faultyDisk) block() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.gate = gate
	return func() { close(gate) }
}

// hang makes every write, and every read of a CloudEvent, hang until release is called.
func (d *faultyDisk) hang() (release func()) {
	writes := d.block()
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.reads = gate
	return func() { close(gate); writes() }
}

// misread makes every read of one value fail, until it is called with nil.
func (d *faultyDisk) misread(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unread = err
}

var errFull = errors.New("no space left on device")

// diskRetry is how often the outbox tries a disk that failed, diskPatience how long it waits for one that hangs.
const (
	diskRetry    = 5 * time.Second
	diskPatience = 5 * time.Second
)

// pendingIDs returns the ids that are pending for the sink, in order.
func pendingIDs(o *outbox.Outbox, sink string) []string {
	ids := []string{}
	for _, d := range o.List(outbox.Selection{Route: sink, State: outbox.StatePending}) {
		ids = append(ids, d.ID)
	}
	return ids
}

func deadIDs(o *outbox.Outbox) (ids []string) {
	for _, d := range o.List(outbox.Selection{State: outbox.StateDead}) {
		ids = append(ids, d.ID)
	}
	return ids
}

// Where no file can be made the program works from memory, is not ready, says so, and catches up when it can.
func TestWithoutADiskTheProgramWorksFromMemory(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.dir = notADirectory(t)
		e, down := &ear{}, &ear{answer: always(errSinkDown)}
		b := s.start(e.all("a"), down.all("down"))
		pause(2 * time.Second)
		s.reboot(idA)
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started")
		st := b.Status()
		if st.Ready || st.Outbox.Durable || len(st.Reasons) != 1 || !strings.Contains(st.Reasons[0], "outbox") {
			t.Errorf("status is ready %v, durable %v, reasons %v", st.Ready, st.Outbox.Durable, st.Reasons)
		}
		s.wantLogged("running from memory")
		if n := strings.Count(s.log.String(), "level=ERROR"); n != 1 {
			t.Errorf("%d errors are logged, want the one that says so", n)
		}

		if err := os.Remove(filepath.Dir(s.dir)); err != nil {
			t.Fatal(err)
		}
		pause(diskRetry + time.Second)
		if st := b.Status(); !st.Ready || b.Outbox.Durable() != nil {
			t.Errorf("status is ready %v, durable %v", st.Ready, b.Outbox.Durable())
		}
		s.wantLogged("outbox written again")
		b.crash()
		b = s.start(e.all("a"), down.all("down"))
		down.say(nil)
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started")
		wantIDs(t, down.ids(), idA+"-scheduled", idA+"-started")
		b.end()
	})
}

// The disk may come late and bring an older outbox: its backlog is delivered, what was open in it and is over is told,
// and what memory knows stays.
func TestAnOlderOutboxThatComesLateIsTakenUp(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		down := &ear{answer: always(errSinkDown)}
		b := s.start(down.all("a"), (&ear{}).all("gone"))
		s.reboot(idA)
		pause(2 * time.Second)
		s.reboot(idB)
		pause(2 * time.Second)
		b.end()
		older := filepath.Join(s.dir, "outbox.db")

		s.azure.End(idB)
		s.dir = notADirectory(t)
		e := &ear{}
		b = s.start(e.all("a"))
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(20 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started")
		if err := os.Remove(filepath.Dir(s.dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		copyFile(t, older, filepath.Join(s.dir, "outbox.db"))
		pause(20 * time.Second)
		got := e.ids()
		slices.Sort(got)
		// idA's scheduled twice: memory did not know that it was pending already.
		wantIDs(t, got, idA+"-scheduled", idA+"-scheduled", idA+"-started", idB+"-scheduled", idB+"-vanished")
		for _, h := range e.accepted() {
			if h.Event.ID() == idB+"-vanished" && dataIn(t, h.Event).Outcome != cloudevent.OutcomeUnknown {
				t.Error("the end is told as if somebody had watched")
			}
		}
		if err := b.Outbox.Durable(); err != nil {
			t.Errorf("Durable = %v", err)
		}
		s.azure.End(idA)
		pause(2 * time.Second)
		b.end()
		if list := stored(t, s.dir).List(outbox.Selection{Route: "a"}); len(list) != 0 {
			t.Errorf("still pending: %v", list)
		}
	})
}

// lateFile ends the bridge, has something happen, and starts another without its file, which comes when bring is
// called.
func (s *stage) lateFile(b *running, happens func(), routes ...bridge.Route) (after *running, bring func()) {
	b.end()
	happens()
	older := filepath.Join(s.dir, "outbox.db")
	s.dir = notADirectory(s.t)
	return s.start(routes...), func() {
		if err := errors.Join(os.Remove(filepath.Dir(s.dir)), os.MkdirAll(s.dir, 0o700)); err != nil {
			s.t.Fatal(err)
		}
		copyFile(s.t, older, filepath.Join(s.dir, "outbox.db"))
	}
}

// What a late file remembers of an event counts, though the event was told as new before it came: that it was approved,
// had begun, and to which routes it goes. What ended meanwhile ended while nobody watched.
func TestWhatALateFileRemembersOfAnEventCounts(t *testing.T) {
	for _, begun := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			s.beginsLate()
			e, moved := &ear{}, &ear{}
			first := moved.all("first")
			first.Filter.When = mustParseWhen(t, `data.event.Description == "first"`)
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Description: "first", Resources: []string{"vm-0"}})
			s.redeploy(idB, time.Hour)
			b := s.start(e.all("a"), first)
			pause(2500 * time.Millisecond)
			if begun {
				s.azure.Start(idA)
				pause(1500 * time.Millisecond)
			} else if a := b.ApproveNow(t.Context(), idA, s.shown(idA), "somebody"); a.Result != cloudevent.ResultApproved {
				t.Fatalf("approved with %+v", a)
			}
			pause(500 * time.Millisecond)
			watched := time.Now()
			b, bring := s.lateFile(b, func() {
				s.azure.End(idB)
				s.azure.Update(idA, func(e *imdstest.Event) {
					e.Status, e.Description, e.NotBefore = "Scheduled", "second", time.Now().Add(time.Hour)
				})
				pause(30 * time.Second)
			}, e.all("a"), first)
			pause(2500 * time.Millisecond)
			bring()
			pause(4 * time.Second)
			before := len(moved.ids())
			s.azure.End(idA)
			pause(3 * time.Second)
			b.end()
			want := map[string]cloudevent.Outcome{idA: cloudevent.OutcomeUnknown, idB: cloudevent.OutcomeUnknown}
			if begun {
				want[idA] = cloudevent.OutcomeCompleted
			}
			for _, h := range e.accepted() {
				d := dataIn(t, h.Event)
				id := h.Event.Subject()
				if d.Change == imds.Vanished && d.Outcome != want[id] {
					t.Errorf("begun %v: %s ended %s, want %s", begun, id, d.Outcome, want[id])
				}
				if d.Change == imds.Vanished && !d.Announced.Before(watched) {
					t.Errorf("%s was announced at %v, want before %v", id, d.Announced, watched)
				}
				if d.Change == imds.Vanished && id == idB && (!d.WhileAway || d.NotEarlierThan.After(watched)) {
					t.Errorf("%s ended while away %v, not earlier than %v, want before %v", id, d.WhileAway, d.NotEarlierThan, watched)
				}
			}
			if got := moved.types(); got[len(got)-1] != "vanished" || len(got) != before+1 {
				t.Errorf("the route that the event went to heard %v, want its end too", got)
			}
		})
	}
}

// So does that nobody watched it for a while: before the start without the file, or until this.
func TestALateFileRemembersThatNobodyWatched(t *testing.T) {
	for _, when := range []string{"before", "until the start"} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &ear{}
			b := s.start(e.all("a"))
			pause(1500 * time.Millisecond)
			s.redeploy(idA, 5*time.Hour)
			pause(2 * time.Second)
			if when == "before" {
				s.azure.SetFault(imdstest.Fault{Status: 503, For: 30 * time.Second})
				pause(time.Minute)
			}
			b, bring := s.lateFile(b, func() {
				if when != "before" {
					pause(30 * time.Second)
				}
			}, e.all("a"))
			pause(2500 * time.Millisecond)
			bring()
			pause(10 * time.Second)
			s.azure.End(idA)
			pause(3 * time.Second)
			b.end()
			all := e.accepted()
			if d := dataIn(t, all[len(all)-1].Event); d.Change != imds.Vanished || d.Outcome != cloudevent.OutcomeUnknown {
				t.Errorf("nobody watched %s: told %s, outcome %s; want vanished, unknown", when, d.Change, d.Outcome)
			}
		})
	}
}

// What was told as new before a late file came is a first change, as its CloudEvent says, also for routes that are added
// later. What came after it is not.
func TestWhatWasToldAsNewBeforeALateFileIsAFirstChange(t *testing.T) {
	for _, again := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			first, added := &ear{}, &ear{}
			b := s.start(first.all("first"))
			pause(2 * time.Second)
			s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-0"}})
			pause(6 * time.Second)
			b, bring := s.lateFile(b, func() {}, first.all("first"))
			pause(10 * time.Second)
			bring()
			pause(20 * time.Second)
			told, want := []string{idA + "-scheduled", idA + "-scheduled"}, []string{idA + "-scheduled"}
			if again {
				s.azure.Start(idA)
				pause(2 * time.Second)
				told, want = append(told, idA+"-started"), nil
			}
			firstChanges := added.all("added")
			firstChanges.Filter.Only.Changes = []string{"first"}
			b.Reload([]bridge.Route{first.all("first"), firstChanges}, nil, bridge.SettingsInfo{})
			pause(2 * time.Second)
			b.end()
			wantIDs(t, first.ids(), told...)
			wantIDs(t, added.ids(), want...)
		})
	}
}

// A route that is new, or returns, at a start without the file hears what is open in it, also if the file comes before
// the first document.
func TestANewRouteHearsWhatIsOpenInALateFile(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		first, added, returning, mine := &ear{}, &ear{}, &ear{}, &ear{}
		b := s.start(first.all("first"), returning.all("returning"))
		pause(2 * time.Second)
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-1"}})
		pause(2 * time.Second)
		b.Reload([]bridge.Route{first.all("first")}, nil, bridge.SettingsInfo{})
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(6 * time.Second)
		b, bring := s.lateFile(b, func() { s.azure.SetFault(imdstest.Fault{Path: imdstest.ScheduledEvents, Status: 503}) },
			first.all("first"), added.all("added"), returning.all("returning"), mine.self("mine"))
		pause(10 * time.Second)
		bring()
		pause(20 * time.Second)
		s.azure.ClearFaults()
		pause(time.Minute)
		s.azure.End(idA)
		pause(2 * time.Second)
		b.end()
		wantIDs(t, first.ids(), idA+"-scheduled", idA+"-started", idA+"-vanished")
		wantIDs(t, added.ids(), idA+"-started", idA+"-vanished")
		wantIDs(t, returning.ids(), idA+"-scheduled", idA+"-started", idA+"-vanished")
		wantIDs(t, mine.ids())
	})
}

// A route that is new at a start without the file keeps an event that it got then: it is told the end also if the event names
// its VM no longer when the file comes.
func TestANewRouteKeepsWhatItGotBeforeALateFile(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		audit, mine := &ear{}, &ear{}
		b := s.start(audit.all("audit"))
		pause(2 * time.Second)
		b, bring := s.lateFile(b, func() {}, audit.all("audit"), mine.self("mine"))
		pause(10 * time.Second)
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-0"}})
		pause(2 * time.Second)
		s.azure.Update(idA, func(e *imdstest.Event) { e.Resources = []string{"vm-1"} })
		pause(2 * time.Second)
		bring()
		pause(20 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		b.end()
		types := mine.types()
		if len(types) == 0 || types[len(types)-1] != "vanished" {
			t.Errorf("told %q, want the end too", types)
		}
	})
}

// A reboot while the file could not be read yet ended the event in it as one in any other gap.
func TestARebootBeforeALateFileIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &ear{}
		b := s.start(e.all("a"))
		pause(2 * time.Second)
		s.reboot(idA)
		pause(3 * time.Second)
		b, bring := s.lateFile(b, func() {
			pause(30 * time.Second)
			s.opts.Booted = time.Now()
			s.azure.End(idA)
			pause(20 * time.Second)
		}, e.all("a"))
		pause(5 * time.Second)
		bring()
		pause(20 * time.Second)
		b.end()
		wantIDs(t, e.types(), "scheduled", "vanished")
		if d := dataIn(t, e.accepted()[1].Event); d.Outcome != cloudevent.OutcomeCompleted || !d.Back.Equal(s.opts.Booted) {
			t.Errorf("outcome %s, back %v; want completed, back %v", d.Outcome, d.Back, s.opts.Booted)
		}
	})
}

// So did one whose event is still listed, whether the file knows of the reboot or came too late for that.
func TestARebootOfAnEventInALateFileIsKnown(t *testing.T) {
	for _, known := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &ear{}
			reboots := func() {
				pause(2 * time.Minute)
				s.opts.Booted = time.Now()
			}
			b := s.start(e.all("a"))
			pause(2 * time.Second)
			s.redeploy(idA, time.Minute)
			pause(3 * time.Second)
			if known {
				b.end()
				reboots()
				b, reboots = s.start(e.all("a")), func() {}
				pause(5 * time.Second)
			}
			b, bring := s.lateFile(b, reboots, e.all("a"))
			pause(2500 * time.Millisecond)
			bring()
			pause(10 * time.Second)
			s.azure.End(idA)
			pause(3 * time.Second)
			b.end()
			all := e.accepted()
			if d := dataIn(t, all[len(all)-1].Event); d.Outcome != cloudevent.OutcomeCompleted || !d.Back.Equal(s.opts.Booted) {
				t.Errorf("known %v: outcome %s, back %v; want completed, back %v", known, d.Outcome, d.Back, s.opts.Booted)
			}
		})
	}
}

// What is pending in a late file about the bridge is never out of date: nothing newer says it.
func TestALateFileKeepsWhatItHoldsAboutTheBridge(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &ear{answer: always(errSinkDown)}
		route := e.all("a").With(func(x *bridge.Terms) { x.Bridge, x.Late = bridge.LevelAll, delivery.LateLatest })
		b := s.start(route)
		pause(3 * time.Second)
		b, bring := s.lateFile(b, func() { pause(10 * time.Second) }, route)
		pause(3 * time.Second)
		bring()
		pause(20 * time.Second)
		e.say(nil)
		pause(5 * time.Minute)
		b.end()
		told := e.types()
		slices.Sort(told)
		wantIDs(t, told, "started", "started", "stopping", "stopping")
	})
}

// A crash before a late file was taken up leaves it as it was.
func TestACrashWhileALateFileIsTakenUpLosesNothingOfIt(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e, down := &ear{}, (&ear{answer: always(errSinkDown)}).all("down")
		first := e.all("first")
		first.Filter.When = mustParseWhen(t, `data.event.Description == "first"`)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Description: "first", Resources: []string{"vm-0"}})
		b := s.start(first, down)
		pause(3 * time.Second)
		b, bring := s.lateFile(b, func() {
			s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: time.Minute})
			s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "second" })
		}, first, down)
		pause(6 * time.Second)
		bring()
		pause(8 * time.Second) // read, but nobody knows yet whose it is
		b.crash()
		s.azure.End(idA)
		b = s.start(first, down)
		pause(20 * time.Second)
		b.end()
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-vanished")
	})
}

// A stop while a late file is taken up, or before anybody has seen that it is there, loses nothing of it: the event in it
// goes on, and a route that is new hears of it, though its filter has to read it on a slow disk.
func TestAStopWhileALateFileIsTakenUpLosesNothingOfIt(t *testing.T) {
	for _, stopAfter := range []time.Duration{100 * time.Millisecond, 5 * time.Second} {
		bubble(t, func(t *testing.T, s *stage) {
			e, added, down := &ear{}, &ear{}, (&ear{answer: always(errSinkDown)}).all("down")
			choosy := added.all("added")
			choosy.Filter.When = mustParseWhen(t, `data.event.EventId != ""`)
			s.reboot(idA)
			b := s.start(e.all("first"), down)
			pause(3 * time.Second)
			b, bring := s.lateFile(b, func() {
				s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: time.Minute})
				s.azure.SetFault(imdstest.Fault{Path: imdstest.ScheduledEvents, Status: 503, For: time.Minute})
			}, e.all("first"), choosy, down)
			pause(6 * time.Second)
			slow := make(chan struct{})
			s.disk.mu.Lock()
			s.disk.reads = slow
			s.disk.mu.Unlock()
			bring()
			pause(stopAfter)
			time.AfterFunc(time.Second, func() { close(slow) })
			b.end()
			s.azure.ClearFaults()
			b = s.start(e.all("first"), choosy, down)
			pause(20 * time.Second)
			s.azure.End(idA)
			pause(2 * time.Second)
			b.end()
			wantIDs(t, e.ids(), idA+"-scheduled", idA+"-vanished")
			wantIDs(t, added.ids(), idA+"-scheduled", idA+"-vanished")
		})
	}
}

// An id that was used before the file was away isn't used again for another change.
func TestALateFileRemembersHowOftenAnIDWasUsed(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &ear{}
		b := s.start(e.all("a"))
		for range 2 { // it comes, and comes back
			s.reboot(idA)
			pause(2 * time.Second)
			s.azure.End(idA)
			pause(2 * time.Second)
		}
		b, bring := s.lateFile(b, func() { s.reboot(idA) }, e.all("a"))
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		bring()
		pause(10 * time.Second)
		b.crash()
		b = s.start(e.all("a"))
		s.reboot(idA)
		pause(20 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		b.end()
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-vanished", idA+"-scheduled-r2", idA+"-vanished-r2",
			idA+"-scheduled", idA+"-vanished", // nobody could know
			idA+"-scheduled-r3", idA+"-vanished-r3")
	})
}

// A late file's backlog about an event that was delivered anew, or ended, is out of date for sinks that want the latest
// state, and for a lead. Sinks that want everything get it.
func TestALateFilesBacklogIsNotDeliveredAsNews(t *testing.T) {
	systemtest.Alone(t)
	for _, ended := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			s.opts.Interval = seldom
			down := &ear{answer: always(errSinkDown)}
			audit, chat, drain, plan := &ear{}, &ear{}, &ear{}, &ear{}
			chatty := func(e *ear) bridge.Route {
				return e.all("chat").With(func(t *bridge.Terms) { t.Late = delivery.LateLatest })
			}
			drains := drain.leads("drain", 10*time.Minute, "scheduled")
			plans := plan.leads("plan", 10*time.Minute, "scheduled").With(func(t *bridge.Terms) { t.Late = delivery.LateSend })
			s.redeploy(idA, 70*time.Minute)
			b := s.start(down.all("audit"), chatty(down), drains, plans)
			pause(time.Minute)
			b, bring := s.lateFile(b, func() {}, audit.all("audit"), chatty(chat), drains, plans)
			pause(20 * time.Second)
			if ended {
				s.azure.End(idA)
			} else {
				s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Hour) })
			}
			pause(20 * time.Second)
			heard := len(chat.ids())
			bring()
			pause(100 * time.Minute)
			if more := chat.types()[heard:]; len(more) > 0 {
				t.Errorf("ended %v: chat hears %v when the file has come", ended, more)
			}
			if got := audit.types(); len(got) != 3 || got[2] != "scheduled" {
				t.Errorf("ended %v: audit hears %v, want what was pending too", ended, got)
			}
			wantIDs(t, append(drain.types(), plan.types()...))
			pause(time.Hour)
			if want := map[bool]int{false: 1}[ended]; len(drain.types()) != want || len(plan.types()) != want {
				t.Errorf("ended %v: drain hears %v and plan %v, want %d each", ended, drain.types(), plan.types(), want)
			}
			b.end()
		})
	}
}

// So is a reminder in it of an event that was announced anew, whoever gets it: that was told a moment ago.
func TestALateFilesReminderIsNotDeliveredAfterTheNews(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		down, chat := &ear{answer: always(errSinkDown)}, &ear{}
		s.redeploy(idA, 45*time.Minute)
		b := s.start(down.reminds("chat", 30*time.Minute))
		pause(17 * time.Minute) // the reminder is pending
		b, bring := s.lateFile(b, func() {}, chat.reminds("chat", 30*time.Minute))
		pause(20 * time.Second)
		wantIDs(t, chat.types(), "scheduled")
		bring()
		pause(5 * time.Minute)
		wantIDs(t, chat.types(), "scheduled", "scheduled") // what was pending is told too, but for the reminder
		b.end()
	})
}

// A stop does not wait to hear which VM this is, also while a file that came late does.
func TestAStopDoesNotWaitForTheName(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		before, e := &ear{answer: always(errSinkDown)}, &ear{}
		b := s.start(before.all("a"))
		s.reboot(idA)
		pause(3 * time.Second)
		b, bring := s.lateFile(b, func() {
			s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		}, e.all("a"))
		pause(30 * time.Second)
		bring()
		pause(5500 * time.Millisecond) // the file is looked for every five
		s.reboot(idB)                  // which waits until it is known which ids the file has
		pause(1500 * time.Millisecond)
		began := time.Now()
		b.end()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}

// A file that comes late may be another machine's, so its backlog waits until that is known, as at a start.
func TestALateFilesBacklogWaitsForTheName(t *testing.T) {
	for _, tt := range []struct {
		claim   string
		vm      string
		unknown time.Duration
		down    error // that the sink answered before
		want    string
	}{
		{"it is this machine's", "", 6 * time.Second, errSinkDown, idA + "-scheduled"},
		{"it is another's", "vm-1", 6 * time.Second, errSinkDown, ""},
		{"nobody can say", "", time.Minute, errSinkDown, idA + "-scheduled"},
		{"it is this machine's, and only an end is to be told", "", 6 * time.Second, nil, idA + "-vanished"},
		{"it is another's, and only an end would be to be told", "vm-1", 6 * time.Second, nil, ""},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				before, e := &ear{answer: always(tt.down)}, &ear{}
				b := s.start(before.all("a"))
				s.reboot(idA)
				pause(3 * time.Second)
				s.vm = tt.vm
				b, bring := s.lateFile(b, func() {
					s.azure.End(idA)
					s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 2*time.Second + tt.unknown})
				}, e.all("a"))
				pause(4 * time.Second)
				bring()
				pause(3500 * time.Millisecond)
				b.Reload([]bridge.Route{e.all("a")}, nil, bridge.SettingsInfo{}) // whose worker waits too
				pause(100 * time.Millisecond)
				wantIDs(t, e.ids())
				pause(20 * time.Second)
				if got := e.ids(); tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) == 0 || got[0] != tt.want) {
					t.Errorf("told %v, want %q", got, tt.want)
				}
				b.end()
			})
		})
	}
}

// Dead letters in a file that comes late are reported when it is known whose they are, and never by another VM.
func TestALateFilesDeadLettersAreReportedByTheirVM(t *testing.T) {
	for vm, want := range map[string][]string{"": {"delivery.deadlettered"}, "vm-1": {}} {
		bubble(t, func(t *testing.T, s *stage) {
			image := filepath.Join(t.TempDir(), "outbox.db")
			refuses, admin := &ear{answer: always(delivery.ErrRejected)}, &ear{}
			b := s.start(refuses.all("a"))
			pause(1600 * time.Millisecond)
			s.reboot(idA)
			pause(600 * time.Millisecond) // it is dead, and to be reported within the second
			b.snapshot(image)
			older := filepath.Join(s.dir, "outbox.db")
			s.vm = vm
			b, bring := s.lateFile(b, func() {
				copyFile(t, image, older)
				s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 8 * time.Second})
			}, admin.trouble("admin"), (&ear{}).all("a"))
			pause(4 * time.Second)
			bring()
			pause(3500 * time.Millisecond)
			wantIDs(t, admin.types())
			pause(time.Minute)
			wantIDs(t, admin.types(), want...)
			b.end()
		})
	}
}

// An outbox that comes late and is another VM's is set aside all the same.
func TestAForeignOutboxThatComesLateIsSetAside(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.vm = "vm-1"
		b := s.start((&ear{answer: always(errSinkDown)}).all("a"))
		s.reboot(idA)
		pause(5 * time.Second)
		b.end()
		theirs := filepath.Join(s.dir, "outbox.db")
		s.azure.End(idA)
		s.dir, s.vm = notADirectory(t), ""
		e := &ear{}
		b = s.start(e.all("a"))
		pause(2 * time.Second)
		s.reboot(idB)
		pause(2 * time.Second)
		if err := os.Remove(filepath.Dir(s.dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		copyFile(t, theirs, filepath.Join(s.dir, "outbox.db"))
		pause(20 * time.Second)
		wantIDs(t, e.ids(), idB+"-scheduled")
		if n := len(asides(t, s.dir, "foreign")); n != 1 {
			t.Errorf("%d files were set aside, want 1", n)
		}
		b.end()
		if stored(t, s.dir).Owner() == "" {
			t.Error("the outbox belongs to nobody")
		}
	})
}

// While nothing changes the disk is left alone, but for the time of the last answer, once a minute: it is searched for
// what is too old once in ten minutes only, and not made smaller.
func TestPollsThatBringNothingLeaveTheDiskAlone(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start((&ear{}).all("a"))
		s.reboot(idA)
		pause(10 * time.Second)
		s.disk.mu.Lock()
		writes, walks, compactions := s.disk.writes, s.disk.walks, s.disk.compactions
		s.disk.mu.Unlock()
		pause(5 * time.Minute)
		s.disk.mu.Lock()
		if n := s.disk.writes - writes; n < 4 || n > 6 {
			t.Errorf("the disk was written %d times in five minutes, want once a minute", n)
		}
		if s.disk.walks != walks || s.disk.compactions != compactions {
			t.Errorf("in five minutes it was searched %d times and made smaller %d times, want neither",
				s.disk.walks-walks, s.disk.compactions-compactions)
		}
		s.disk.mu.Unlock()
		pause(6 * time.Minute)
		s.disk.mu.Lock()
		if s.disk.walks == walks {
			t.Error("in eleven minutes it was not searched for what is too old, want once in ten")
		}
		s.disk.mu.Unlock()
		b.end()
	})
}

// A stop that loses deliveries says how many, and that what is still open is told again at the next start, which it is.
func TestAStopSaysWhatBecomesOfWhatItLoses(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		down := &ear{answer: always(errSinkDown)}
		b := s.start(down.all("down"))
		pause(1500 * time.Millisecond)
		s.disk.fail(errFull)
		s.reboot("EVENT")
		pause(2 * time.Second)
		b.cancel()
		err := <-b.done
		if err == nil || !strings.Contains(err.Error(), "lost") ||
			!strings.HasSuffix(err.Error(), "; events that are still open are told again at the next start") {
			t.Errorf("Run = %v", err)
		}
		e := &ear{}
		b = s.start(e.all("down"))
		pause(2 * time.Second)
		b.end()
		wantIDs(t, e.ids(), "EVENT-scheduled")
	})
}

// A disk that fails stops nothing. What only memory has is bounded; what the disk had is not touched; and everything is
// on disk when it is back.
func TestAFailingDiskStopsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e, down := &ear{}, &ear{answer: always(errSinkDown)}
		s.bounds.InMemory = 5
		b := s.start(e.all("a"), down.all("down"))
		pause(1500 * time.Millisecond)
		s.reboot("ON-DISK")
		pause(2 * time.Second)
		s.disk.fail(errFull)
		want := []string{"ON-DISK-scheduled"}
		for i := range 8 {
			id := fmt.Sprintf("EVENT-%d", i)
			s.reboot(id)
			want = append(want, id+"-scheduled")
			pause(1100 * time.Millisecond)
		}
		wantIDs(t, e.ids(), want...)
		if err := b.Outbox.Durable(); !errors.Is(err, errFull) {
			t.Errorf("Durable = %v, want that the disk is full", err)
		}
		if st := b.Status(); st.Ready || !strings.Contains(strings.Join(st.Reasons, " "), errFull.Error()) {
			t.Errorf("ready %v: %v", st.Ready, st.Reasons)
		}
		wantIDs(t, pendingIDs(b.Outbox, "down"), append([]string{"ON-DISK-scheduled"}, want[5:]...)...) // the other sink's is the fifth
		dead := b.Outbox.List(outbox.Selection{State: outbox.StateDead})
		if len(dead) != 4 || dead[0].Reason != delivery.ReasonOverflow || dead[0].ID != "EVENT-0-scheduled" {
			t.Errorf("dead letters are %v", dead)
		}
		s.disk.fail(nil)
		pause(diskRetry + time.Second)
		if err := b.Outbox.Durable(); err != nil {
			t.Errorf("Durable = %v", err)
		}
		for i := 8; i < 16; i++ { // and memory has room again
			s.reboot(fmt.Sprintf("EVENT-%d", i))
			pause(1100 * time.Millisecond)
		}
		b.crash()
		o := stored(t, s.dir)
		if n, m, k := len(pendingIDs(o, "down")), len(deadIDs(o)), len(pendingIDs(o, "a")); n != 13 || m != 4 || k != 0 {
			t.Errorf("on disk are %d pending and %d dead to the sink that is down, %d pending to the other; want 13, 4, 0", n, m, k)
		}
	})
}

// A disk that hangs delays a commit by its patience, once, and is caught up with when it is back.
func TestAHangingDiskDelaysOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &ear{}
		b := s.start(e.all("a"))
		pause(1500 * time.Millisecond)
		release := s.disk.block()
		began := time.Now()
		s.reboot(idA)
		pause(7 * time.Second)
		s.reboot(idB)
		pause(1500 * time.Millisecond)
		wantIDs(t, e.ids(), idA+"-scheduled", idB+"-scheduled")
		if d := e.accepted()[0].at.Sub(began); d < diskPatience || d > diskPatience+time.Second {
			t.Errorf("the first was sent after %v, want the disk's patience", d)
		}
		if err := b.Outbox.Durable(); err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("Durable = %v, want that it is slow", err)
		}
		n := s.polls()
		pause(10 * time.Second)
		if got := s.polls() - n; got != 10 {
			t.Errorf("%d polls in ten seconds", got)
		}
		release()
		pause(time.Second)
		if err := b.Outbox.Durable(); err != nil {
			t.Errorf("Durable = %v", err)
		}
		if n := b.Outbox.Totals().InMemory; n != 0 {
			t.Errorf("%d deliveries count as in memory only", n)
		}
		b.crash()
		if list := stored(t, s.dir).List(outbox.Selection{}); len(list) != 0 {
			t.Errorf("pending are %v", list)
		}
	})
	bubble(t, func(t *testing.T, s *stage) { // and a stop does not wait for it
		b := s.start((&ear{answer: always(errSinkDown)}).all("a"))
		pause(1500 * time.Millisecond)
		release := s.disk.block()
		s.reboot(idA)
		pause(7 * time.Second)
		began := time.Now()
		b.cancel()
		if err := <-b.done; err == nil || time.Since(began) > 3*diskPatience {
			t.Errorf("Run = %v after %v, want that a delivery is lost, soon", err, time.Since(began))
		}
		release()
		synctest.Wait()
		if err := s.disk.Close(); err != nil { // the program would end here
			t.Error(err)
		}
	})
}

// A file that is damaged while it is in use is set aside, and what is known is in the next one. Whatever happens to it, a
// sink that was down hears the latest change of every event that is still open, after a crash too.
func TestDamageWhileRunningLosesNoOpenEvent(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not let a mapped file be cut")
	}
	page := int64(os.Getpagesize())
	for claim, damage := range map[string]func(f *os.File, size int64, older []byte) error{
		"it is emptied":            func(f *os.File, _ int64, _ []byte) error { return f.Truncate(0) },
		"it is cut in half":        func(f *os.File, size int64, _ []byte) error { return f.Truncate(size / 2) },
		"it is cut to one page":    func(f *os.File, _ int64, _ []byte) error { return f.Truncate(page) },
		"its meta pages are gone":  func(f *os.File, _ int64, _ []byte) error { return zero(f, 0, 2*page) },
		"its other pages are gone": func(f *os.File, size int64, _ []byte) error { return zero(f, 2*page, size) },
		"all of it is gone":        func(f *os.File, size int64, _ []byte) error { return zero(f, 0, size) },
		"an older one is written over it": func(f *os.File, _ int64, older []byte) error {
			_, err := f.WriteAt(older, 0)
			return err
		},
	} {
		for _, crashes := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, crashes: %t", claim, crashes), func(t *testing.T) {
				if claim != "it is cut in half" {
					systemtest.Alone(t)
				}
				bubble(t, func(t *testing.T, s *stage) {
					down, up := &ear{answer: always(errSinkDown)}, &ear{}
					b := s.start(down.all("down"), up.all("up"))
					pause(2 * time.Second)
					older, err := os.ReadFile(b.Outbox.Path())
					if err != nil {
						t.Fatal(err)
					}
					s.reboot(idA)
					s.reboot(idB)
					pause(5 * time.Second)
					info, err := os.Stat(b.Outbox.Path())
					if err != nil {
						t.Fatal(err)
					}
					f, err := os.OpenFile(b.Outbox.Path(), os.O_RDWR, 0)
					if err != nil {
						t.Fatal(err)
					}
					if err := errors.Join(damage(f, info.Size(), older), f.Close()); err != nil {
						t.Fatal(err)
					}
					s.azure.Start(idA)
					pause(30 * time.Second)
					wantIDs(t, up.ids(), idA+"-scheduled", idB+"-scheduled", idA+"-started")
					if err := b.Outbox.Durable(); err != nil {
						t.Errorf("Durable = %v", err)
					}
					if crashes {
						b.crash()
						b = s.start(down.all("down"), up.all("up"))
					}
					down.say(nil)
					pause(10 * time.Minute)
					heard := idsOf(down.accepted())
					if !slices.Contains(heard, idA+"-started") || !slices.Contains(heard, idB+"-scheduled") {
						t.Errorf("the sink that was down heard %v, want the latest change of both events", heard)
					}
					wantIDs(t, deadIDs(b.Outbox))
					wantIDs(t, pendingIDs(b.Outbox, "down"))
					b.end()
				})
			})
		}
	}
}

// zero overwrites a part of a file with zeros.
func zero(f *os.File, from, to int64) error {
	_, err := f.WriteAt(make([]byte, to-from), from)
	return err
}

// Nothing of a clone's outbox is sent, not even what is open in it, and the new VM's events are told from the start.
func TestNothingOfAClonedOutboxIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		down := &ear{answer: always(errSinkDown)}
		b := s.start(down.all("a"))
		pause(2 * time.Second)
		s.reboot(idA)
		pause(5 * time.Second)
		b.end()
		s.vm = "vm-1"
		s.azure.End(idA)
		s.reboot(idB)
		e := &ear{}
		b = s.start(e.all("a").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }))
		pause(5 * time.Minute)
		if got := strings.Join(e.types(), " "); got != "scheduled started" && got != "started scheduled" {
			t.Errorf("heard %s, want that it started, and what is scheduled", got)
		}
		for _, h := range e.accepted() {
			if strings.Contains(h.Event.ID(), idA) {
				t.Errorf("heard %s of the other VM", h.Event.ID())
			}
			said := tellingOf(t, h.Event)
			if said["gap"] != nil || said["notEarlierThan"] != nil { // since the other VM's last answer
				t.Errorf("%s says %v, want no gap before the first start", h.Event.ID(), said)
			}
		}
		if st := b.Status(); st.Observer.Name != "vm-1" {
			t.Errorf("this VM is %s", st.Observer.Name)
		}
		b.end()
	})
}

// That holds for a sink that comes with a reload in the first seconds too, while it isn't known yet whose the outbox is.
func TestNothingOfAClonedOutboxIsOfferedToASinkThatAReloadBrings(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start((&ear{}).all("a"))
		pause(2 * time.Second)
		s.reboot(idA)
		pause(5 * time.Second)
		b.end()
		s.vm = "vm-1"
		s.azure.End(idA)
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 5 * time.Second})
		b = s.start((&ear{}).all("a"))
		pause(2 * time.Second)
		comes := &ear{}
		b.Reload([]bridge.Route{comes.all("comes")}, nil, bridge.SettingsInfo{})
		pause(time.Minute)
		b.end()
		if got := comes.types(); len(got) > 0 {
			t.Errorf("heard %v of the other VM's event", got)
		}
	})
}

// Whose the outbox is may be known only when the first events are open already. They are the new VM's and go on, though
// the rest of the outbox is forgotten.
func TestTheEventsOfACloneOutliveItsOutbox(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start((&ear{}).all("a"))
		pause(5 * time.Second)
		b.end()
		s.vm = "vm-1"
		s.reboot(idA)
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 20 * time.Second})
		e := &ear{}
		b = s.start(e.all("a"))
		pause(5 * time.Minute)
		if n := len(b.Status().Events); n != 1 {
			t.Errorf("%d events are open, want 1", n)
		}
		s.azure.End(idA)
		pause(5 * time.Second)
		b.end()
		if got := e.types(); len(got) == 0 || got[len(got)-1] != "vanished" {
			t.Errorf("heard %v, want the end too", got)
		}
	})
}

// The outbox is compacted, and searched for what is too old, after the first answer, which that must not delay. Then it
// is compacted once a day.
func TestTheOutboxIsCompactedOnceADay(t *testing.T) {
	systemtest.LeftToGate(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = time.Minute
		s.azure.SetFault(imdstest.Fault{Status: 503, For: 5 * time.Minute})
		began := time.Now()
		b := s.start()
		pause(500 * time.Millisecond)
		s.disk.mu.Lock()
		walks := s.disk.walks
		s.disk.mu.Unlock()
		for _, tt := range []struct {
			after time.Duration
			want  int
		}{{4 * time.Minute, 0}, {10 * time.Minute, 1}, {23 * time.Hour, 1}, {25 * time.Hour, 2}} {
			pause(time.Until(began.Add(tt.after)))
			s.disk.mu.Lock()
			if got := s.disk.compactions; got != tt.want {
				t.Errorf("after %v it was compacted %d times, want %d", tt.after, got, tt.want)
			}
			if searched := s.disk.walks > walks; searched != (tt.want > 0) {
				t.Errorf("after %v it was searched: %v, want %v", tt.after, searched, tt.want > 0)
			}
			s.disk.mu.Unlock()
		}
		b.end()
	})
}

// A history that grows quickly is bounded at once, not only at the next of the regular times, ten minutes apart.
func TestTheHistoryIsBoundedWhenItGrows(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = time.Minute
		s.bounds = outbox.Bounds{History: 32}
		b := s.start((&ear{}).all("a"))
		pause(2 * time.Minute)
		count := func() (n int) {
			if err := b.Outbox.Walk(0, func(outbox.Record) error { n++; return nil }); err != nil {
				t.Error(err)
			}
			return n
		}
		each := func(do func(id string)) {
			for i := range 60 {
				do(fmt.Sprintf("%08d-0000-4000-8000-000000000000", i))
			}
			pause(62 * time.Second)
		}
		each(s.reboot)
		each(func(id string) { s.azure.End(id) }) // what is open is kept
		if n := count(); n > 40 {
			t.Errorf("two seconds after 60 events it has %d changes, want about 32", n)
		}
		b.end()
	})
}

// While the disk hangs in reads too, a change that is in memory is told by a sink that waits for an old delivery's.
func TestAChangeDoesNotWaitForAReadOfTheDisk(t *testing.T) {
	for _, timeout := range []time.Duration{0, 10 * time.Second} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &ear{answer: always(errSinkDown)}
			b := s.start(e.all("a").With(func(x *bridge.Terms) { x.Timeout = timeout }))
			pause(1500 * time.Millisecond)
			s.azure.Schedule(imdstest.Event{ID: idB, Type: "Redeploy", NotBefore: time.Now().Add(72 * time.Hour)})
			pause(10 * time.Second)
			s.azure.End(idB) // what is pending about it is on the disk only
			pause(time.Minute)
			release := s.disk.hang()
			e.say(nil)
			pause(10 * time.Minute) // longer than any backoff
			wantIDs(t, e.ids())
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", NotBefore: time.Now().Add(10 * time.Minute)})
			pause(12 * time.Second)
			wantIDs(t, e.ids(), idA+"-scheduled")
			release()
			pause(10 * time.Minute)
			wantIDs(t, e.ids()[:3], idA+"-scheduled", idB+"-scheduled", idB+"-vanished")
			b.end()
		})
	}
}

// Whenever it crashes after a start, the next start still knows how long nobody had watched before: an answer counts once
// what follows from it is on disk.
func TestACrashAfterAStartHidesNoGap(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		all := func(e *ear) bridge.Route {
			return e.all("a").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll })
		}
		b := s.start(all(&ear{}))
		s.reboot(idA)
		pause(3 * time.Second)
		b.end()
		stopped := time.Now()
		pause(time.Hour)
		s.azure.Start(idA)
		file, images := filepath.Join(s.dir, "outbox.db"), []string{}
		s.wrote = func() {
			images = append(images, filepath.Join(t.TempDir(), "image"))
			copyFile(t, file, images[len(images)-1])
		}
		b = s.start(all(&ear{answer: always(errSinkDown)}))
		pause(5 * time.Second)
		s.wrote = nil
		b.end()
		for n, image := range images {
			copyFile(t, image, file)
			pause(time.Minute)
			e := &ear{}
			b = s.start(all(e))
			pause(5 * time.Second)
			b.end()
			known := 0
			for _, h := range e.accepted() {
				var data struct {
					NotEarlierThan time.Time
					Gap            struct{ From time.Time }
				}
				if err := json.Unmarshal(h.Event.Data(), &data); err != nil {
					t.Fatal(err)
				}
				if from := data.Gap.From; !from.IsZero() && !from.After(stopped) {
					known++
				}
				if from := data.NotEarlierThan; !from.IsZero() && !from.After(stopped) {
					known++
				}
			}
			if known < 2 {
				t.Errorf("after write %d of %d: heard %v, without that nobody had watched since %v", n+1, len(images), e.types(), stopped)
			}
		}
		if len(images) < 3 {
			t.Errorf("there were %d writes, which leaves something out", len(images))
		}
	})
}
