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
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
)

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
		for _, n := range []int{page * size, page*size + size/2} {
			damaged(fmt.Sprintf("cut to %d bytes", n), func(data []byte) []byte { return data[:n] })
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
	for range 40 {
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

// A file that is larger than what was ever used of it is not rewritten for that: on Windows every file is, because the
// mapping gives it its size.
func TestOutboxIsNotCompactedForTheSizeOfItsFile(t *testing.T) {
	dir := t.TempDir()
	o := openTest(t, dir, nil)
	mustOwe(t, o, Scheduled, idA, "a")
	o.Close()
	if err := os.Truncate(o.Path(), 4*compactAbove); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(o.Path())
	if err != nil {
		t.Fatal(err)
	}
	o = openTest(t, dir, nil)
	if err := o.maintain(time.Now()); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(o.Path())
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was rewritten, or is gone: %v", err)
	}
	wantIDs(t, pendingIDs(o, "a"), idA+"-scheduled")
}
