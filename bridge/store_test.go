package bridge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// block makes the disk hang until the channel is closed.
func block(o *Outbox) (release chan struct{}) {
	release = make(chan struct{})
	o.store.file.Lock()
	defer o.store.file.Unlock()
	o.store.disk = func(write func() error) error {
		<-release
		return write()
	}
	return release
}

// spoil makes every write fail until it is called with nil.
func spoil(o *Outbox) (with func(error)) {
	var failing atomic.Pointer[error]
	o.store.file.Lock()
	defer o.store.file.Unlock()
	o.store.disk = func(write func() error) error {
		if err := failing.Load(); err != nil && *err != nil {
			return *err
		}
		return write()
	}
	return func(err error) { failing.Store(&err) }
}

var errFull = errors.New("no space left on device")

// Where no file can be made the program works from memory, is not ready, says so, and catches up when it can.
func TestWithoutADiskTheProgramWorksFromMemory(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.dir = notADirectory(t)
		e, down := &ear{}, &ear{answer: always(errDown)}
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
		s.wantLogged("going on from memory")
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
		s.wantLogged("the outbox is written again")
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
		down := &ear{answer: always(errDown)}
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
		// idA's scheduled twice: memory did not know that it was owed already.
		wantIDs(t, got, idA+"-scheduled", idA+"-scheduled", idA+"-started", idB+"-scheduled", idB+"-vanished")
		for _, h := range e.accepted() {
			if h.Event.ID() == idB+"-vanished" && dataIn(t, h.Event).Outcome != OutcomeUnknown {
				t.Error("the end is told as if somebody had watched")
			}
		}
		if err := b.Outbox.Durable(); err != nil {
			t.Errorf("Durable = %v", err)
		}
		s.azure.End(idA)
		pause(2 * time.Second)
		b.end()
		if list := stored(t, s.dir).List(Selection{Sink: "a"}); len(list) != 0 {
			t.Errorf("still owed: %v", list)
		}
	})
}

// An outbox that comes late and is another VM's is set aside all the same.
func TestAForeignOutboxThatComesLateIsSetAside(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.vm = "vm-1"
		b := s.start((&ear{answer: always(errDown)}).all("a"))
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
		if _, owner := stored(t, s.dir).stored(); owner == "" {
			t.Error("the outbox belongs to nobody")
		}
	})
}

func deadIDs(o *Outbox) (ids []string) {
	for _, e := range o.List(Selection{State: StateDead}) {
		ids = append(ids, e.ID)
	}
	return ids
}

// A disk that fails stops nothing. What only memory has is bounded; what the disk had is not touched; and everything is
// on disk when it is back.
func TestAFailingDiskStopsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e, down := &ear{}, &ear{answer: always(errDown)}
		b := s.start(e.all("a"), down.all("down"))
		b.Outbox.limit(func(x *bounds) { x.inMemory = 5 })
		pause(1500 * time.Millisecond)
		s.reboot("ON-DISK")
		pause(2 * time.Second)
		fail := spoil(b.Outbox)
		fail(errFull)
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
		dead := b.Outbox.List(Selection{State: StateDead})
		if len(dead) != 4 || dead[0].Reason != ReasonOverflow || dead[0].ID != "EVENT-0-scheduled" {
			t.Errorf("dead letters are %v", dead)
		}
		fail(nil)
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
			t.Errorf("on disk are %d owed and %d dead to the sink that is down, %d owed to the other; want 13, 4, 0", n, m, k)
		}
	})
}

// A disk that hangs delays a commit by its patience, once, and is caught up with when it is back.
func TestAHangingDiskDelaysOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &ear{}
		b := s.start(e.all("a"))
		pause(1500 * time.Millisecond)
		release := block(b.Outbox)
		began := time.Now()
		s.reboot(idA)
		pause(7 * time.Second)
		s.reboot(idB)
		pause(1500 * time.Millisecond)
		wantIDs(t, e.ids(), idA+"-scheduled", idB+"-scheduled")
		if d := e.accepted()[0].at.Sub(began); d < diskPatience || d > diskPatience+time.Second {
			t.Errorf("the first was sent after %v, want the disk's patience", d)
		}
		if err := b.Outbox.Durable(); !errors.Is(err, errSlowDisk) {
			t.Errorf("Durable = %v, want that it is slow", err)
		}
		n := s.polls()
		pause(10 * time.Second)
		if got := s.polls() - n; got != 10 {
			t.Errorf("%d polls in ten seconds", got)
		}
		close(release)
		pause(time.Second)
		if err := b.Outbox.Durable(); err != nil {
			t.Errorf("Durable = %v", err)
		}
		if b.Outbox.volatile != 0 {
			t.Errorf("%d deliveries count as in memory only", b.Outbox.volatile)
		}
		b.crash()
		if list := stored(t, s.dir).List(Selection{}); len(list) != 0 {
			t.Errorf("owed are %v", list)
		}
	})
	bubble(t, func(t *testing.T, s *stage) { // and a stop does not wait for it
		b := s.start((&ear{answer: always(errDown)}).all("a"))
		pause(1500 * time.Millisecond)
		release := block(b.Outbox)
		s.reboot(idA)
		pause(7 * time.Second)
		began := time.Now()
		b.cancel()
		if err := <-b.done; err == nil || time.Since(began) > 3*diskPatience {
			t.Errorf("Run = %v after %v, want that a delivery is lost, soon", err, time.Since(began))
		}
		close(release)
	})
}

// A worker may be 32 settled deliveries or 50 ms ahead of the disk, and one that must not be is never.
func TestSettlingIsGrouped(t *testing.T) {
	for _, sync := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			o := openTest(t, dir, nil)
			for i := range 100 {
				mustOwe(t, o, Scheduled, fmt.Sprintf("%08d-0000-4000-8000-000000000000", i), "a")
			}
			ahead := func() int {
				o.store.mu.Lock()
				defer o.store.mu.Unlock()
				return len(o.store.ahead[bucketSettled]) + len(o.store.under[bucketSettled])
			}
			o.attach("a")
			most := 0
			for _, e := range o.take("a") {
				o.settle([]*Entry{e}, nil, Answer{}, time.Now(), sync)
				most = max(most, ahead())
			}
			if want := settleAhead - 1; !sync && most != want || sync && most != 0 {
				t.Errorf("at once %v: %d settled deliveries were not on disk, want %d, or none", sync, most, want)
			}
			time.Sleep(groupWait)
			synctest.Wait()
			if n := ahead(); n != 0 {
				t.Errorf("%d are not on disk after %v", n, groupWait)
			}
			o.Close()
		})
	}
}

// While the disk fails, history is what memory is not filled with.
func TestWithoutADiskTheHistoryIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := openTest(t, notADirectory(t), nil)
		o.limit(func(x *bounds) { x.inMemory = 10 })
		var open string
		for i := range 100 {
			kind := Vanished
			if i == 0 {
				kind = Scheduled
			}
			id, _ := owe(t, o, kind, fmt.Sprintf("%08d-0000-4000-8000-000000000000", i), "a")
			if i == 0 {
				open = id
			}
			o.attach("a")
			o.settle(o.take("a"), nil, Answer{}, time.Now(), false)
			o.forgetSettled()
		}
		if n, m := len(o.keys(bucketEvents)), len(o.keys(bucketSettled)); n > 21 || m > 21 {
			t.Errorf("memory holds %d changes and %d settled deliveries, want 20 or so", n, m)
		}
		_, states := o.known()
		for _, op := range states {
			if ce, err := o.cloudEvent(op.Latest); err != nil || ce.ID() != open {
				t.Errorf("the newest change of what is open: %v", err)
			}
		}
		o.Close()
	})
}

// Watching and delivering go on while the file is written: what a poll shows is seen by readers at once.
func TestReadsSeeWhatIsBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := openTest(t, t.TempDir(), nil)
		o.store.write("b", "1", []byte("on disk"))
		o.store.write("b", "2", []byte("on disk"))
		o.store.write("b", "3", []byte("on disk"))
		if err := o.store.sync(); err != nil {
			t.Fatal(err)
		}
		release := block(o)
		o.store.write("b", "2", []byte("under way"))
		o.store.write("b", "4", []byte("under way"))
		o.store.wake()
		synctest.Wait()
		o.store.write("b", "4", nil)
		o.store.write("b", "0", []byte("ahead"))
		o.store.write("b", "3", []byte("ahead"))
		see := func() string {
			var all []string
			o.read("b", func(key string, value []byte) {
				all = append(all, key+" "+string(value))
			})
			for _, line := range all {
				key, value, _ := strings.Cut(line, " ")
				if got, err := o.store.get("b", key); err != nil || string(got) != value {
					t.Errorf("get(%s) = %s, %v", key, got, err)
				}
			}
			return strings.Join(all, ", ")
		}
		if got, want := see(), "0 ahead, 1 on disk, 2 under way, 3 ahead"; got != want {
			t.Errorf("reads see %s, want %s", got, want)
		}
		if last, err := o.store.lastKey("b"); err != nil || last < "3" {
			t.Errorf("the last key is %s, %v", last, err)
		}
		close(release)
		o.Close()
	})
}
