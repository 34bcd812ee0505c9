package bridge

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
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

// wellUsed makes an outbox that holds something of everything, and gives what is owed.
func wellUsed(t *testing.T, dir string) (ids []string) {
	t.Helper()
	o := openTest(t, dir, nil)
	o.setRoutes([]string{"a", "b"}, time.Now())
	if _, err := o.Own("vmid-0"); err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		mustOwe(t, o, Scheduled, fmt.Sprintf("%08d-0000-4000-8000-000000000000", i), "a", "b")
	}
	o.attach("b")
	for i, e := range o.take("b") {
		if i%5 == 0 {
			o.giveUp([]*Entry{e}, ReasonRejected, ErrRejected)
		} else {
			o.settle([]*Entry{e}, nil, Answer{Receipt: []byte("receipt"), Status: "204"}, time.Now(), false)
		}
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	return pendingIDs(o, "a")
}

// works holds that the outbox takes, keeps and gives back.
func works(t *testing.T, dir string, o *Outbox) {
	t.Helper()
	id := mustOwe(t, o, Scheduled, "FFFFFFFF-0000-4000-8000-000000000000", "z")
	if err := o.Durable(); err != nil {
		t.Errorf("Durable = %v", err)
	}
	if err := o.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	again := openTest(t, dir, nil)
	wantIDs(t, pendingIDs(again, "z"), id)
	again.Close()
}

// However the file is damaged while nobody has it: the program does not crash, and either all is still there, or the
// file is set aside under a name with its date, an error is logged, and the outbox works again.
func TestADamagedFileIsReadOrSetAside(t *testing.T) {
	original := t.TempDir()
	owed := wellUsed(t, original)
	whole, err := os.ReadFile(filepath.Join(original, "outbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	size := os.Getpagesize()
	used := func() int { // pages
		db, err := bolt.Open(filepath.Join(original, "outbox.db"), 0o600, &bolt.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var n int64
		if err := db.View(func(tx *bolt.Tx) error { n = tx.Size() / int64(size); return nil }); err != nil {
			t.Fatal(err)
		}
		return int(n)
	}()
	random := rand.New(rand.NewPCG(1, 2))
	noise := func(p []byte) {
		for i := range p {
			p[i] = byte(random.Uint32())
		}
	}
	damaged := func(claim string, f func(data []byte) []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "outbox.db")
		if err := os.WriteFile(path, f(bytes.Clone(whole)), 0o600); err != nil {
			t.Fatal(err)
		}
		log := &lines{}
		o := openTest(t, dir, log)
		lost := !slices.Equal(pendingIDs(o, "a"), owed)
		if said := strings.Contains(log.String(), "level=ERROR") || strings.Contains(log.String(), "level=WARN"); lost && !said {
			t.Errorf("%s: something is lost, and the log says nothing", claim)
		}
		if n := len(asides(t, dir, "damaged")); lost && n != 1 && !strings.Contains(claim, "cut to 0") && !strings.Contains(claim, "stale") {
			t.Errorf("%s: something is lost, and %d files are set aside", claim, n)
		}
		works(t, dir, o)
	}
	for page := range used + 1 {
		for _, n := range []int{page * size, page*size + 1, page*size + size/2} {
			if n < len(whole) {
				damaged(fmt.Sprintf("cut to %d bytes", n), func(data []byte) []byte { return data[:n] })
			}
		}
	}
	for page := range used {
		at := func(data []byte) []byte { return data[page*size:][:size] }
		damaged(fmt.Sprintf("page %d zeroed", page), func(data []byte) []byte { clear(at(data)); return data })
		damaged(fmt.Sprintf("page %d noise", page), func(data []byte) []byte { noise(at(data)); return data })
		damaged(fmt.Sprintf("page %d all ones", page), func(data []byte) []byte {
			copy(at(data), bytes.Repeat([]byte{0xff}, size))
			return data
		})
		damaged(fmt.Sprintf("page %d of another", page), func(data []byte) []byte {
			copy(at(data), data[random.IntN(used)*size:][:size])
			return data
		})
		damaged(fmt.Sprintf("page %d with noise behind its header", page), func(data []byte) []byte { noise(at(data)[16:80]); return data })
		damaged(fmt.Sprintf("page %d without an end", page), func(data []byte) []byte { at(data)[14] = 0x7f; return data })
		damaged(fmt.Sprintf("page %d with too much in it", page), func(data []byte) []byte { at(data)[11] = 0xff; return data })
	}
	for range 60 {
		n := random.IntN(used * size)
		if random.IntN(2) == 0 {
			n = random.IntN(used)*size + random.IntN(64) // where the page's structure is
		}
		damaged(fmt.Sprintf("stale bit at %d", n), func(data []byte) []byte { data[n] ^= 1 << random.IntN(8); return data })
	}
	damaged("no bbolt file", func([]byte) []byte { return []byte("this is the outbox\n") })
	damaged("noise", func(data []byte) []byte { noise(data); return data })
}

// A meta page of before, put back by a disk that forgot a write, is the state of before, or it is damage.
func TestAnOldMetaPageIsReadOrSetAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "outbox.db")
	wellUsed(t, dir)
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	o := openTest(t, dir, nil)
	for i := range 20 {
		mustOwe(t, o, Scheduled, fmt.Sprintf("%08d-0000-4000-8000-000000000000", 100+i), "a")
	}
	o.Close()
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := os.Getpagesize()
	for _, pages := range [][]int{{0}, {1}, {0, 1}} {
		data := bytes.Clone(now)
		for _, p := range pages {
			copy(data[p*size:][:size], old[p*size:])
		}
		other := t.TempDir()
		if err := os.WriteFile(filepath.Join(other, "outbox.db"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		works(t, other, openTest(t, other, nil))
	}
}

// A directory, or an empty file, in the file's place keeps nobody from starting.
func TestWhatIsNoFileIsSetAside(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "outbox.db", "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	works(t, dir, openTest(t, dir, log))
	if n := len(asides(t, dir, "damaged")); n != 1 || !strings.Contains(log.String(), "it is a directory") {
		t.Errorf("%d were set aside, the log says %s", n, log)
	}

	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "outbox.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	log = &lines{}
	works(t, dir, openTest(t, dir, log))
	if !strings.Contains(log.String(), "an empty file") {
		t.Errorf("the log says %s", log)
	}
}

// A record that cannot be understood costs itself alone, and its CloudEvent a dead letter.
func TestARecordThatCannotBeUnderstoodHidesNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		down := &ear{answer: always(errDown)}
		b := s.start(down.all("a"))
		s.reboot(idA)
		s.reboot(idB)
		pause(2 * time.Second)
		b.end()
		change(t, filepath.Join(s.dir, "outbox.db"), func(tx *bolt.Tx) error {
			events := tx.Bucket([]byte(bucketEvents))
			err := events.ForEach(func(k, v []byte) error {
				if strings.Contains(string(v), idA+"-scheduled") {
					return events.Put(bytes.Clone(k), []byte(`{"id":`))
				}
				return nil
			})
			return errors.Join(err, tx.Bucket([]byte(bucketPending)).Put([]byte("a/0000000000000007"), []byte("{")),
				tx.Bucket([]byte(bucketOpen)).Put([]byte("X"), []byte("{")), tx.Bucket([]byte(bucketDead)).Put([]byte("odd"), []byte("{}")))
		})
		e := &ear{}
		b = s.start(e.all("a"))
		pause(5 * time.Second)
		wantIDs(t, e.ids(), idB+"-scheduled")
		if dead := b.Outbox.List(Selection{State: StateDead}); len(dead) != 1 || dead[0].Reason != ReasonLost || dead[0].ID != idA+"-scheduled" {
			t.Errorf("dead letters are %v", dead)
		}
		if n := strings.Count(s.log.String(), "the outbox holds something that cannot be understood"); n < 3 {
			t.Errorf("the log names %d records, want 3", n)
		}
		b.end()
	})
}

// change edits the file while nobody has it.
func change(t *testing.T, path string, f func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(f), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// A file of a newer format is not touched. The program goes on from memory and says what to do.
func TestANewerFormatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, kept := t.TempDir(), filepath.Join(t.TempDir(), "kept")
		path := filepath.Join(dir, "outbox.db")
		wellUsed(t, dir)
		change(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte(bucketMeta)).Put([]byte(metaFormat), []byte("99")) })
		copyFile(t, path, kept)
		log := &lines{}
		o := openTest(t, dir, log)
		if err := o.Durable(); !errors.Is(err, errNewer) || !strings.Contains(err.Error(), "install the newer version") {
			t.Errorf("Durable = %v", err)
		}
		if _, err := owe(t, o, Scheduled, idA, "a"); err == nil {
			t.Error("a commit succeeded")
		}
		wantIDs(t, pendingIDs(o, "a"), idA+"-scheduled")
		time.Sleep(time.Minute)
		if err := o.Close(); err == nil {
			t.Error("Close = nil, and a delivery is lost")
		}
		if !sameFile(t, path, kept) {
			t.Error("the file is not as it was")
		}
		if n := len(asides(t, dir, "*")); n != 0 {
			t.Errorf("%d files were set aside", n)
		}
		if _, err := ReadOutbox(dir); !errors.Is(err, errNewer) {
			t.Errorf("ReadOutbox = %v, want that it is newer", err)
		}
	})
}

// A file of format 0, which holds nothing yet, is brought to the newest.
func TestAnOlderFormatIsMigrated(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "outbox.db")
	change(t, path, func(*bolt.Tx) error { return nil })
	works(t, dir, openTest(t, dir, nil))
	change(t, path, func(tx *bolt.Tx) error {
		if got := string(tx.Bucket([]byte(bucketMeta)).Get([]byte(metaFormat))); got != fmt.Sprint(len(migrations)) {
			t.Errorf("the format is %s", got)
		}
		return nil
	})
}

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

// A file that is damaged while it is in use, even one that is cut under the program, is set aside, and everything that
// is known is in the next one.
func TestDamageWhileRunningLosesNothingThatIsKnown(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		damage func(f *os.File) error
	}{
		{"cut", func(f *os.File) error { return f.Truncate(2 * int64(os.Getpagesize())) }},
		{"emptied", func(f *os.File) error { return f.Truncate(0) }},
		{"overwritten", func(f *os.File) error {
			info, err := f.Stat()
			if err == nil {
				_, err = f.WriteAt(make([]byte, info.Size()-2*int64(os.Getpagesize())), 2*int64(os.Getpagesize()))
			}
			return err
		}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			if runtime.GOOS == "windows" {
				t.Skip("Windows does not let a mapped file be cut")
			}
			bubble(t, func(t *testing.T, s *stage) {
				down, e := &ear{answer: always(errDown)}, &ear{}
				b := s.start(down.all("down"), e.all("a"))
				pause(2 * time.Second)
				s.reboot(idA)
				pause(5 * time.Second)
				f, err := os.OpenFile(b.Outbox.Path(), os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(tt.damage(f), f.Close()); err != nil {
					t.Fatal(err)
				}
				s.azure.Start(idA)
				pause(30 * time.Second)
				wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started")
				if n := len(asides(t, s.dir, "damaged")); n != 1 {
					t.Errorf("%d files were set aside, want 1", n)
				}
				if err := b.Outbox.Durable(); err != nil {
					t.Errorf("Durable = %v", err)
				}
				b.crash()
				o := stored(t, s.dir)
				if events, _ := o.known(); len(events) != 1 {
					t.Errorf("open are %v", events)
				}
				kept := slices.Concat(pendingIDs(o, "down"), deadIDs(o))
				slices.Sort(kept)
				wantIDs(t, kept, idA+"-scheduled", idA+"-started")
				if o.Close(); len(pendingIDs(o, "a")) != 0 {
					t.Errorf("a is owed %v", pendingIDs(o, "a"))
				}
				down.say(nil)
				b = s.start(down.all("down"), e.all("a"))
				pause(5 * time.Second)
				heard := slices.Concat(down.ids(), deadIDs(b.Outbox))
				slices.Sort(heard)
				wantIDs(t, heard, idA+"-scheduled", idA+"-started") // what could not be read of it is a dead letter
				b.end()
			})
		})
	}
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

// A file that is mostly empty is made smaller, and what is in it stays, also for those who read meanwhile.
func TestAFileThatIsMostlyEmptyIsMadeSmaller(t *testing.T) {
	o := openTest(t, t.TempDir(), nil)
	kept := mustOwe(t, o, Scheduled, idA, "a")
	big := bytes.Repeat([]byte("x"), 1<<20)
	for i := range 24 {
		o.store.write(bucketEvents, seqKey(uint64(i)), big)
	}
	if err := o.store.sync(); err != nil {
		t.Fatal(err)
	}
	before := o.store.size()
	stop := make(chan struct{})
	read := make(chan error)
	go func() {
		defer close(read)
		seq := o.List(Selection{})[0].seq
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := o.cloudEvent(seq); err != nil {
				read <- err
				return
			}
		}
	}()
	if err := o.maintain(time.Now()); err != nil { // they are older than any history
		t.Fatal(err)
	}
	close(stop)
	if err := <-read; err != nil {
		t.Errorf("a reader met %v", err)
	}
	if after := o.store.size(); before < compactAbove || after > before/4 {
		t.Errorf("the file had %d bytes and has %d now", before, after)
	}
	wantIDs(t, pendingIDs(o, "a"), kept)
	mustOwe(t, o, Scheduled, idB, "a")
	o.Close()
	again := openTest(t, filepath.Dir(o.Path()), nil)
	wantIDs(t, pendingIDs(again, "a"), kept, idB+"-scheduled")
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
