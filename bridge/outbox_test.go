package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// openTest opens an outbox that is closed at the end of the test.
func openTest(t testing.TB, dir string, log *lines) *Outbox {
	t.Helper()
	h := slog.Handler(slog.DiscardHandler)
	if log != nil {
		h = slog.NewTextHandler(log, nil)
	}
	o, err := OpenOutbox(dir, slog.New(h))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// owe commits one change of the event, owed to the routes, and gives its CloudEvent's id.
func owe(t testing.TB, o *Outbox, kind ChangeKind, id string, to ...string) (string, error) {
	t.Helper()
	return oweAt(t, o, kind, id, time.Time{}, to...)
}

func oweAt(t testing.TB, o *Outbox, kind ChangeKind, id string, notBefore time.Time, to ...string) (string, error) {
	t.Helper()
	status := statusScheduled
	if kind == Started {
		status = statusStarted
	}
	raw := fmt.Sprintf(`{"EventId":%q,"EventStatus":%q,"EventType":"Reboot","Resources":["vm-0"]}`, id, status)
	e, err := UnmarshalEvent([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	e.NotBefore = notBefore
	ce, err := Wrap(Change{Kind: kind, Event: e}, Circumstances{Time: time.Now(), Observer: Observer{Name: "vm-0"}})
	if err != nil {
		t.Fatal(err)
	}
	c := Commit{Open: map[string]*Open{id: nil}, Told: map[string]told{id: {Times: 1, Event: id, At: time.Now()}},
		Owed: []Owed{{CloudEvent: ce, Event: id, Change: kind, NotBefore: notBefore, To: to}}}
	if kind != Vanished {
		c.Open[id] = &Open{Event: e.Raw, Life: 1, First: time.Now(), Routes: to, event: e}
	}
	return ce.ID(), o.Commit(c, time.Now())
}

// limit changes the bounds.
func (o *Outbox) limit(change func(*bounds)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change(&o.bounds)
}

// mustOwe is owe on a disk that works.
func mustOwe(t testing.TB, o *Outbox, kind ChangeKind, id string, to ...string) string {
	t.Helper()
	got, err := owe(t, o, kind, id, to...)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// pendingIDs are the ids owed to the route, in order.
func pendingIDs(o *Outbox, route string) []string {
	ids := []string{}
	for _, e := range o.List(Selection{Sink: route, State: StatePending}) {
		ids = append(ids, e.ID)
	}
	return ids
}

// One process has an outbox at a time; while it runs nobody reads it, and afterwards anybody may.
func TestAnOutboxBelongsToOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		o := openTest(t, dir, nil)
		mustOwe(t, o, Scheduled, idA, "a")
		if _, err := OpenOutbox(dir, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrLocked) {
			t.Errorf("opening it again = %v, want ErrLocked", err)
		}
		if _, err := ReadOutbox(dir); !errors.Is(err, ErrLocked) {
			t.Errorf("reading it = %v, want ErrLocked", err)
		}
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
		one, two := stored(t, dir), stored(t, dir)
		wantIDs(t, pendingIDs(one, "a"), idA+"-scheduled")
		wantIDs(t, pendingIDs(two, "a"), idA+"-scheduled")
		one.Close()
		two.Close()
		again := openTest(t, dir, nil)
		wantIDs(t, pendingIDs(again, "a"), idA+"-scheduled")
	})
}

// An outbox that is not there cannot be read, and is not made by trying.
func TestReadingAnOutboxMakesNone(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadOutbox(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadOutbox = %v, want that there is none", err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("there is %v now", list)
	}
}

// What is committed is there after a crash: owed, dead, open, told, with its CloudEvent and its receipt.
func TestWhatIsCommittedSurvivesACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		o := openTest(t, dir, nil)
		now := time.Now()
		o.setRoutes([]string{"a", "b"}, now)
		if _, err := o.Own("vmid-0"); err != nil {
			t.Fatal(err)
		}
		mustOwe(t, o, Scheduled, idA, "a", "b")
		o.answered(lastAnswer{At: now, Incarnation: "7"}, false)
		attached := func(route string) []*Entry { o.attach(route); return o.take(route) }
		a := attached("a")
		o.settle(a, nil, Answer{Status: "204", ID: "x1", Receipt: []byte("thread")}, now, false)
		mustOwe(t, o, Started, idA, "a", "b")
		b := attached("b")
		o.failed(b[:1], errDown, nil, now, now.Add(time.Second))
		o.giveUp(b[1:], ReasonRejected, ErrRejected)
		time.Sleep(groupWait)
		synctest.Wait()

		other := t.TempDir()
		copyFile(t, o.Path(), filepath.Join(other, "outbox.db"))
		c := openTest(t, other, nil)
		wantIDs(t, pendingIDs(c, "a"), idA+"-started")
		wantIDs(t, pendingIDs(c, "b"), idA+"-scheduled")
		if e := c.List(Selection{Sink: "b"}); len(e) != 2 || e[0].Attempts != 1 || e[0].Error != errDown.Error() ||
			e[1].State != StateDead || e[1].Reason != ReasonRejected || e[1].ID != idA+"-started" {
			t.Errorf("b's entries are %+v", e)
		}
		ce, err := c.cloudEvent(c.List(Selection{Sink: "a"})[0].seq)
		if err != nil || ce.ID() != idA+"-started" {
			t.Errorf("the CloudEvent is %v, %v", ce.ID(), err)
		}
		if r := c.receipt(a[0]); string(r) != "thread" {
			t.Errorf("the receipt is %q", r)
		}
		if events, _ := c.known(); len(events) != 1 || events[0].ID != idA || events[0].Status != statusStarted {
			t.Errorf("open are %v", events)
		}
		if _, owner := c.stored(); owner != "vmid-0" {
			t.Errorf("it belongs to %q", owner)
		}
		if at := c.lastAnswer(); !at.At.Equal(now) || at.Incarnation != "7" {
			t.Errorf("the last answer is %+v", at)
		}
		lives, err := c.History(Period{})
		if err != nil || len(lives) != 1 || len(lives[0].Changes) != 2 || lives[0].Changes[0].Deliveries[0].Answer != "204" {
			t.Errorf("the history is %+v, %v", lives, err)
		}
		if added, _ := c.setRoutes([]string{"a", "b", "c"}, now); !slices.Equal(added, []string{"c"}) {
			t.Errorf("new routes are %v, want c", added)
		}
	})
}

// An outbox belongs to a VM. On a machine that was cloned it is set aside, and nothing of it counts any more.
func TestACloneStartsAnew(t *testing.T) {
	dir := t.TempDir()
	o := openTest(t, dir, nil)
	if fresh, err := o.Own("VMID-0"); fresh || err != nil {
		t.Fatal(fresh, err)
	}
	mustOwe(t, o, Scheduled, idA, "a")
	o.setRoutes([]string{"a"}, time.Now())
	o.Close()

	log := &lines{}
	o = openTest(t, dir, log)
	if fresh, err := o.Own("vmid-0"); fresh || err != nil {
		t.Errorf("the same VM in other letters: %v, %v", fresh, err)
	}
	if fresh, err := o.Own(""); fresh || err != nil {
		t.Errorf("a VM that does not know itself: %v, %v", fresh, err)
	}
	wantIDs(t, pendingIDs(o, "a"), idA+"-scheduled")
	o.attach("a")
	taken := o.take("a")
	if fresh, err := o.Own("vmid-1"); !fresh || err != nil {
		t.Errorf("another VM: %v, %v; want fresh", fresh, err)
	}
	if len(taken) != 1 || o.owed(taken[0]) {
		t.Error("what a worker had taken of it is still owed")
	}
	wantIDs(t, pendingIDs(o, "a"))
	if events, _ := o.known(); len(events) != 0 {
		t.Errorf("open are still %v", events)
	}
	if n := len(asides(t, dir, "foreign")); n != 1 {
		t.Errorf("%d files were set aside, want 1", n)
	}
	if !strings.Contains(log.String(), "cloned") {
		t.Errorf("the log does not say why: %s", log)
	}
	mustOwe(t, o, Scheduled, idB, "a")
	o.Close()
	o = openTest(t, dir, nil)
	wantIDs(t, pendingIDs(o, "a"), idB+"-scheduled")
	if _, owner := o.stored(); owner != "vmid-1" {
		t.Errorf("it belongs to %s", owner)
	}
}

// Nothing of a clone's outbox is sent, not even what is open in it, and the new VM's events are told from the start.
func TestNothingOfAClonedOutboxIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		down := &ear{answer: always(errDown)}
		b := s.start(down.all("a"))
		pause(2 * time.Second)
		s.reboot(idA)
		pause(5 * time.Second)
		b.end()
		s.vm = "vm-1"
		s.azure.End(idA)
		s.reboot(idB)
		e := &ear{}
		b = s.start(e.all("a").with(func(x *Terms) { x.Bridge = LevelAll }))
		pause(5 * time.Minute)
		if got := strings.Join(e.types(), " "); got != "scheduled started" && got != "started scheduled" {
			t.Errorf("heard %s, want that it started, and what is scheduled", got)
		}
		for _, h := range e.accepted() {
			if strings.Contains(h.Event.ID(), idA) {
				t.Errorf("heard %s of the other VM", h.Event.ID())
			}
		}
		if st := b.Status(); st.Observer.Name != "vm-1" {
			t.Errorf("this VM is %s", st.Observer.Name)
		}
		b.end()
	})
}

// Over its bounds the outbox gives up the oldest delivery of the route with most, as a dead letter.
func TestOverItsBoundsTheOldestOfTheFullestGoes(t *testing.T) {
	for _, tt := range []struct {
		claim string
		limit func(*bounds, int)
	}{
		{"deliveries", func(b *bounds, _ int) { b.pending = 10 }},
		{"bytes", func(b *bounds, size int) { b.pendingBytes = 10 * size }},
	} {
		synctest.Test(t, func(t *testing.T) { // where all are of one size, because it is the same moment
			o := openTest(t, t.TempDir(), nil)
			var given []Entry
			o.gaveUp = func(e Entry) { given = append(given, e) }
			id := func(i int) string { return fmt.Sprintf("%08d-0000-4000-8000-000000000000", i) }
			mustOwe(t, o, Scheduled, id(0), "few")
			size := o.List(Selection{})[0].Bytes
			o.limit(func(b *bounds) { tt.limit(b, size) })
			for i := 1; i <= 12; i++ {
				mustOwe(t, o, Scheduled, id(i), "many")
			}
			wantIDs(t, pendingIDs(o, "few"), id(0)+"-scheduled")
			if got := pendingIDs(o, "many"); len(got) != 9 || got[0] != id(4)+"-scheduled" {
				t.Errorf("%s: the fullest route keeps %v", tt.claim, got)
			}
			if len(given) != 3 || given[0].ID != id(1)+"-scheduled" || given[0].Reason != ReasonOverflow {
				t.Errorf("%s: given up are %v", tt.claim, given)
			}
			if n := len(o.List(Selection{State: StateDead})); n != 3 {
				t.Errorf("%s: %d dead letters, want 3", tt.claim, n)
			}
			o.Close()
		})
	}
}

// Dead letters are bounded too: the oldest goes, and the log says so.
func TestDeadLettersAreBounded(t *testing.T) {
	for _, tt := range []struct {
		claim string
		limit func(*bounds, int)
	}{
		{"letters", func(b *bounds, _ int) { b.dead = 5 }},
		{"bytes", func(b *bounds, size int) { b.deadBytes = 5 * size }},
	} {
		synctest.Test(t, func(t *testing.T) {
			log := &lines{}
			o := openTest(t, t.TempDir(), log)
			var entries []*Entry
			for i := range 8 {
				mustOwe(t, o, Scheduled, fmt.Sprintf("%08d-0000-4000-8000-000000000000", i), "a")
			}
			o.attach("a")
			entries = o.take("a")
			o.limit(func(b *bounds) { tt.limit(b, entries[0].Bytes) })
			for _, e := range entries {
				o.giveUp([]*Entry{e}, ReasonRejected, ErrRejected)
			}
			dead := o.List(Selection{State: StateDead})
			if len(dead) != 5 || dead[0].ID != entries[3].ID {
				t.Errorf("%s: kept are %v", tt.claim, dead)
			}
			if n := strings.Count(log.String(), "too many dead letters"); n != 3 {
				t.Errorf("%s: the log says so %d times, want 3", tt.claim, n)
			}
			o.Close()
		})
	}
}

// What is delivered is kept for 90 days, dead letters too; ids and receipts for 30 days after the event vanished. What is
// open, or owed, is kept whatever its age.
func TestThePastIsForgottenInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		o := openTest(t, dir, nil)
		o.setRoutes([]string{"a", "b"}, time.Now())
		deliver := func(route string) {
			o.attach(route)
			for _, e := range o.take(route) {
				o.settle([]*Entry{e}, nil, Answer{Receipt: []byte("r")}, time.Now(), false)
			}
		}
		mustOwe(t, o, Scheduled, idA, "a", "b") // stays open, and owed to b
		mustOwe(t, o, Scheduled, idB, "a")      // is over
		mustOwe(t, o, Vanished, idB, "a")
		deliver("a")
		mustOwe(t, o, Vanished, "DEAD", "a")
		o.attach("a")
		o.giveUp(o.take("a"), ReasonRejected, ErrRejected)
		count := func(bucket string) int { return len(o.keys(bucket)) }
		check := func(days, ids, receipts, settled, events, dead int) {
			t.Helper()
			if err := o.maintain(time.Now()); err != nil {
				t.Fatal(err)
			}
			got := []int{count(bucketIDs), count(bucketReceipts), count(bucketSettled), count(bucketEvents), count(bucketDead)}
			if want := []int{ids, receipts, settled, events, dead}; !slices.Equal(got, want) {
				t.Errorf("after %d days: ids, receipts, settled, events, dead = %v, want %v", days, got, want)
			}
		}
		check(0, 3, 2, 3, 4, 1)
		time.Sleep(29 * day)
		check(29, 3, 2, 3, 4, 1)
		time.Sleep(2 * day)
		check(31, 1, 1, 3, 4, 1)
		time.Sleep(58 * day)
		check(89, 1, 1, 3, 4, 1)
		time.Sleep(2 * day)
		check(91, 1, 1, 0, 1, 0)
		if id := mustOwe(t, o, Vanished, idA, "a", "b"); id == "" {
			t.Fatal()
		}
		deliver("a")
		wantIDs(t, pendingIDs(o, "b"), idA+"-scheduled", idA+"-vanished")
		o.attach("b")
		if _, err := o.cloudEvent(o.take("b")[0].seq); err != nil {
			t.Errorf("what is owed for 91 days cannot be read: %v", err)
		}
	})
}

// The history is bounded by number and by size too, and never cut where something refers to it. What goes is said.
func TestTheHistoryIsBounded(t *testing.T) {
	for _, tt := range []struct {
		claim string
		limit func(b *bounds, change int)
	}{
		{"records", func(b *bounds, _ int) { b.history = 5 }},
		{"bytes", func(b *bounds, change int) { b.historyBytes = 5*change + change/2 }},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			log := &lines{}
			o := openTest(t, t.TempDir(), log)
			for i := range 20 {
				route := "a"
				if i == 0 {
					route = "b" // which never takes it
				}
				mustOwe(t, o, Vanished, fmt.Sprintf("%08d-0000-4000-8000-000000000000", i), route)
			}
			o.attach("a")
			for _, e := range o.take("a") {
				o.settle([]*Entry{e}, nil, Answer{}, time.Now(), false)
			}
			change := o.List(Selection{})[0].Bytes
			o.limit(func(b *bounds) { tt.limit(b, change) })
			if err := o.maintain(time.Now()); err != nil {
				t.Fatal(err)
			}
			if n := len(o.keys(bucketEvents)); n != 6 {
				t.Errorf("%d changes are kept, want 5 and the one that is owed", n)
			}
			if n := len(o.keys(bucketSettled)); n > 19 || tt.claim == "records" && n != 5 {
				t.Errorf("%d settled deliveries are kept, want 5 of them when they are counted", n)
			}
			if !strings.Contains(log.String(), "the oldest history was dropped") {
				t.Errorf("nothing says that history was dropped:\n%s", log)
			}
			o.attach("b")
			if _, err := o.cloudEvent(o.take("b")[0].seq); err != nil {
				t.Error(err)
			}
		})
	}
}

// A bridge that runs bounds the history as it grows, and not once a day.
func TestTheHistoryIsBoundedAllDayLong(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start((&ear{}).all("a"))
		b.Outbox.limit(func(x *bounds) { x.history = 5 })
		pause(1500 * time.Millisecond)
		for i := range 20 {
			id := fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)
			s.reboot(id)
			pause(2 * time.Second)
			s.azure.End(id)
			pause(2 * time.Second)
		}
		if n := len(b.Outbox.keys(bucketEvents)); n > 6 {
			t.Errorf("%d changes are kept within a minute, want 5 and those of the last second", n)
		}
		b.end()
	})
}

// The newest changes can be read without all the others, whether they are in the file or not yet, and whatever was told
// about the bridge since.
func TestRecentHistoryIsTheNewest(t *testing.T) {
	o := openTest(t, t.TempDir(), nil)
	for i := range 20 {
		mustOwe(t, o, Scheduled, fmt.Sprintf("%08d-0000-4000-8000-000000000000", i), "a")
	}
	for range 10 {
		ce, err := WrapBridge(BridgeHeartbeat, nil, Observer{Name: "vm-0"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Commit(Commit{Owed: []Owed{{CloudEvent: ce}}}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	change := Change{Kind: Scheduled, Event: Event{ID: idA, Raw: []byte(`{"EventId":"` + idA + `"}`)}}
	ce, err := Wrap(change, Circumstances{Time: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	o.store.write(bucketEvents, seqKey(o.last+1), marshalEvent(ce)) // no disk has it
	for n, want := range map[int]int{1: 1, 5: 5, 21: 21, 100: 21} {
		lives, more, err := o.RecentHistory(Period{}, n)
		if err != nil || len(lives) != want || more != (n < 21) || lives[want-1].Event != idA {
			t.Errorf("the newest %d are %d, more %v (%v); want %d up to %s", n, len(lives), more, err, want, idA)
		}
	}
}

// A delivery that was given up while its attempt was under way, and then was accepted after all, is no dead letter.
func TestWhatWasAcceptedIsNoDeadLetter(t *testing.T) {
	o := openTest(t, t.TempDir(), nil)
	mustOwe(t, o, Scheduled, idA, "a")
	o.attach("a")
	taken := o.take("a")
	o.giveUp(taken, ReasonOverflow, nil)
	o.failed(taken, errDown, nil, time.Now(), time.Now()) // changes nothing
	if list := o.List(Selection{}); len(list) != 1 || list[0].State != StateDead {
		t.Errorf("it is %v", list)
	}
	o.settle(taken, nil, Answer{Status: "204"}, time.Now(), false)
	if list := o.List(Selection{}); len(list) != 0 {
		t.Errorf("it is %v, want that it was delivered", list)
	}
	lives, err := o.History(Period{})
	if err != nil || len(lives) != 1 || lives[0].Changes[0].Deliveries[0].State != settledAccepted {
		t.Errorf("the history says %+v, %v", lives, err)
	}
}

// A worker that begins gets all that is owed, once and in order, but nothing that is just being committed.
func TestAWorkerGetsWhatIsCommittedOnceAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := openTest(t, t.TempDir(), nil)
		mustOwe(t, o, Scheduled, idA, "a")
		mustOwe(t, o, Scheduled, idB, "a")
		o.attach("a")
		mustOwe(t, o, Started, idA, "a")
		ids := func() (list []string) {
			for _, e := range o.take("a") {
				list = append(list, e.ID)
			}
			return list
		}
		wantIDs(t, ids(), idA+"-scheduled", idB+"-scheduled", idA+"-started")
		wantIDs(t, ids())

		release := block(o)
		done := make(chan error)
		go func() { _, err := owe(t, o, Vanished, idA, "a"); done <- err }()
		synctest.Wait()
		o.attach("a") // another worker begins while the disk works
		wantIDs(t, ids(), idA+"-scheduled", idB+"-scheduled", idA+"-started")
		close(release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		wantIDs(t, ids(), idA+"-vanished")
		o.Close()
	})
}

// A selection picks by sink, state and the beginning of the EventId.
func TestListPicksAndShowShows(t *testing.T) {
	o := openTest(t, t.TempDir(), nil)
	mustOwe(t, o, Scheduled, idA, "a", "b")
	mustOwe(t, o, Scheduled, idB, "a")
	o.attach("b")
	o.giveUp(o.take("b"), ReasonRejected, ErrRejected)
	for _, tt := range []struct {
		sel  Selection
		want []string
	}{
		{Selection{}, []string{"a " + idA, "a " + idB, "b " + idA}},
		{Selection{Sink: "a"}, []string{"a " + idA, "a " + idB}},
		{Selection{State: StateDead}, []string{"b " + idA}},
		{Selection{Event: "bbbb"}, []string{"a " + idB}},
		{Selection{Sink: "b", Event: "bbbb"}, nil},
	} {
		var got []string
		for _, e := range o.List(tt.sel) {
			got = append(got, e.Sink+" "+e.Event)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%+v picks %v, want %v", tt.sel, got, tt.want)
		}
	}
	for _, e := range o.List(Selection{}) {
		got, body, found, err := o.Show(e.Key)
		if !found || err != nil || got.ID != e.ID || !strings.Contains(string(body), `"id":"`+e.ID+`"`) {
			t.Errorf("Show(%s) = %v %s %v %v", e.Key, got.ID, body, found, err)
		}
	}
	if _, _, found, _ := o.Show("a/0000000000000001"); found {
		t.Error("a key that is none was found")
	}
}
