package outbox_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// asides returns the files that were set aside in the directory for that reason.
func asides(t testing.TB, dir, why string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "outbox.db."+why+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// edit changes the file while nobody has it open.
func edit(t testing.TB, path string, f func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(f), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// used makes an outbox with records of every kind, and returns the pending deliveries for a.
func used(t testing.TB, dir string) []string {
	t.Helper()
	o := open(t, dir, outbox.Options{})
	if _, _, err := setRoutes(o, time.Now(), []outbox.Route{{Name: "a"}, {Name: "b"}}...); err != nil {
		t.Fatal(err)
	}
	if _, err := own(o, "vmid-0"); err != nil {
		t.Fatal(err)
	}
	for i := range 18 {
		mustAdd(t, o, fmt.Sprintf("G%02d", i), "scheduled", "a", "b")
	}
	q := o.Queue("b")
	items := q.Changes().Pending
	q.Report(delivery.Report{Now: time.Now(), Dead: items[:6], Reason: delivery.ReasonRejected, Error: "no"})
	q.Report(delivery.Report{Now: time.Now(), Accepted: items[6:], Answer: delivery.Answer{Status: "204",
		Receipt: []byte("r")}})
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	return pending(o, "a")
}

// works checks that the outbox stores a delivery and returns it.
func works(t *testing.T, dir string, o *outbox.Outbox) {
	t.Helper()
	mustAdd(t, o, "NEW", "scheduled", "z")
	if err := o.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	again := open(t, dir, outbox.Options{})
	want(t, "pending after a restart", pending(again, "z"), "NEW-scheduled")
	again.Close()
}

// lastingDir is a directory for a file with which bbolt may panic while it opens it. Such a file stays mapped until the
// program ends, and Windows removes none that is.
func lastingDir(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "windows" {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Whatever damage a closed file gets, the program doesn't end. Either all its content is there, or the file is set
// aside under a name with the date, an error is logged, and the outbox works again.
func TestDamagedFileIsReadOrSetAside(t *testing.T) {
	original := t.TempDir()
	before := used(t, original)
	whole, err := os.ReadFile(filepath.Join(original, "outbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	size := os.Getpagesize()
	pages := min(len(whole)/size, 12)
	random := rand.New(rand.NewPCG(1, 2))
	noise := func(p []byte) {
		for i := range p {
			p[i] = byte(random.Uint32())
		}
	}
	damaged := func(claim string, f func(data []byte) []byte) {
		data := f(bytes.Clone(whole))
		t.Run(claim, func(t *testing.T) { t.Parallel(); readOrSetAside(t, claim, data, before) })
	}
	for page := range pages {
		at := func(data []byte) []byte { return data[page*size:][:size] }
		damaged(fmt.Sprintf("cut to %d pages", page), func(data []byte) []byte { return data[:page*size] })
		damaged(fmt.Sprintf("cut in page %d", page), func(data []byte) []byte { return data[:page*size+size/2] })
		damaged(fmt.Sprintf("page %d zeroed", page), func(data []byte) []byte { clear(at(data)); return data })
		damaged(fmt.Sprintf("page %d noise", page), func(data []byte) []byte { noise(at(data)); return data })
		damaged(fmt.Sprintf("page %d all ones", page), func(data []byte) []byte {
			copy(at(data), bytes.Repeat([]byte{0xff}, size))
			return data
		})
		damaged(fmt.Sprintf("page %d of another", page), func(data []byte) []byte {
			copy(at(data), data[random.IntN(pages)*size:][:size])
			return data
		})
		damaged(fmt.Sprintf("page %d with noise behind its header", page),
			func(data []byte) []byte { noise(at(data)[16:80]); return data })
		damaged(fmt.Sprintf("page %d without an end", page), func(data []byte) []byte { at(data)[14] = 0x7f; return data })
		damaged(fmt.Sprintf("page %d with too much in it", page),
			func(data []byte) []byte { at(data)[11] = 0xff; return data })
	}
	for range 40 {
		n := random.IntN(pages)*size + random.IntN(64) // where the page's structure is
		damaged(fmt.Sprintf("bit at %d", n), func(data []byte) []byte { data[n] ^= 1 << random.IntN(8); return data })
	}
	damaged("no bbolt file", func([]byte) []byte { return []byte("this is the outbox\n") })
	damaged("noise", func(data []byte) []byte { noise(data); return data })
}

func readOrSetAside(t *testing.T, claim string, data []byte, before []string) {
	dir := lastingDir(t)
	if err := os.WriteFile(filepath.Join(dir, "outbox.db"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	o := open(t, dir, outbox.Options{Log: log.logger()})
	lost := !slices.Equal(pending(o, "a"), before)
	if said := strings.Contains(log.String(), "level=ERROR") || strings.Contains(log.String(), "level=WARN"); lost &&
		!said {
		t.Errorf("%s: something is lost, and the log says nothing", claim)
	}
	if n := len(asides(t, dir, "damaged")); lost && n != 1 && !strings.Contains(claim, "cut to 0") &&
		!strings.Contains(claim, "bit") {
		t.Errorf("%s: something is lost, and %d files are set aside", claim, n)
	}
	works(t, dir, o)
}

// A directory or an empty file in place of the outbox file doesn't prevent a start.
func TestDirectoryOrEmptyFileDoesNotPreventAStart(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "outbox.db", "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	works(t, dir, open(t, dir, outbox.Options{Log: log.logger()}))
	if n := len(asides(t, dir, "damaged")); n != 1 || !strings.Contains(log.String(), "it is a directory") {
		t.Errorf("%d were set aside, the log says %s", n, log)
	}
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "outbox.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	log = &lines{}
	works(t, dir, open(t, dir, outbox.Options{Log: log.logger()}))
	if !strings.Contains(log.String(), "outbox file is empty") {
		t.Errorf("the log says %s", log)
	}
}

// Opening a missing outbox for reading fails and creates nothing.
func TestOpenReadOnlyCreatesNothing(t *testing.T) {
	dir := t.TempDir()
	if _, err := outbox.OpenReadOnly(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenReadOnly = %v, want that there is none", err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("there is %v now", list)
	}
}

// If a record can't be decoded, the others are written to a new file, and the old one is set aside. A CloudEvent that
// can't be decoded is lost.
func TestUnreadableRecordIsDamage(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	mustAdd(t, o, "A", "scheduled", "a")
	mustAdd(t, o, "B", "scheduled", "a")
	mustAdd(t, o, "C", "scheduled", "a")
	end(t, o, "A", "C")
	o.Close()
	edit(t, o.Path(), func(tx *bolt.Tx) error {
		var errs []error
		for bucket, key := range map[string]string{"pending": "a/7", "dead": "odd", "groups": "X", "marks": "X",
			"ended": "X", "routes": "x", "settled": "x/a"} {
			b, err := tx.CreateBucketIfNotExists([]byte(bucket))
			errs = append(errs, err, b.Put([]byte(key), []byte("{")))
		}
		events := tx.Bucket([]byte("events"))
		first, _ := events.Cursor().First()
		last, body := events.Cursor().Last()
		damaged := strings.Replace(string(body), `"data":{}`, `"datacontenttype":"application/json","data":{"a":b},"x":"y"`, 1)
		return errors.Join(append(errs, events.Put(bytes.Clone(first), []byte(`{"id":`)), events.Put(bytes.Clone(last), []byte(damaged)))...)
	})
	log := &lines{}
	o = open(t, dir, outbox.Options{Log: log.logger()})
	want(t, "pending", pending(o, "a"), "A-scheduled", "B-scheduled", "C-scheduled")
	if n := len(asides(t, dir, "damaged")); n != 1 {
		t.Errorf("%d files were set aside, want 1", n)
	}
	if n := strings.Count(log.String(), "cannot read a record of the outbox"); n != 7 {
		t.Errorf("the log names %d records, want 7:\n%s", n, log)
	}
	q := o.Queue("a")
	items := q.Changes().Pending
	for _, i := range []int{0, 2} {
		if _, err := q.Read(items[i]); !errors.Is(err, delivery.ErrLost) {
			t.Errorf("reading %s, which can't be understood = %v, want ErrLost", items[i].ID, err)
		}
	}
	if d, err := q.Read(items[1]); err != nil || d.Event.ID() != "B-scheduled" {
		t.Errorf("Read = %v, %v", d.Event.ID(), err)
	}
}

// A file of another format, be it older or newer, is set aside with one line that says so. The outbox begins anew.
func TestAFileOfAnotherFormatIsSetAside(t *testing.T) {
	for _, format := range []string{"2", "99", ""} {
		dir, log := t.TempDir(), &lines{}
		path := filepath.Join(dir, "outbox.db")
		used(t, dir)
		edit(t, path, func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte(format))
		})
		if _, err := outbox.OpenReadOnly(dir); err == nil || !strings.Contains(err.Error(), "another version of forewarn") {
			t.Errorf("format %q: OpenReadOnly = %v", format, err)
		}
		o := open(t, dir, outbox.Options{Log: log.logger()})
		want(t, "pending", pending(o, "a"))
		if _, err := add(o, "N", "scheduled", "a"); err != nil {
			t.Errorf("format %q: %v", format, err)
		}
		if err := o.Close(); err != nil {
			t.Errorf("format %q: Close = %v", format, err)
		}
		if n := strings.Count(log.String(), "another version of forewarn"); n != 1 || len(asides(t, dir, "format")) != 1 {
			t.Errorf("format %q: the log says so %d times, and set aside are %q:\n%s", format, n, asides(t, dir, "*"), log)
		}
		o = open(t, dir, outbox.Options{})
		want(t, "pending after a restart", pending(o, "a"), "N-scheduled")
		o.Close()
	}
}

// A file that is damaged while in use, even one that is truncated, is set aside. Everything in memory is written to the
// next one.
func TestDamageWhileRunningLosesNothingInMemory(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not let a mapped file be cut; CI runs this on Linux")
	}
	for claim, damage := range map[string]func(f *os.File, size int64) error{
		"cut":         func(f *os.File, _ int64) error { return f.Truncate(2 * int64(os.Getpagesize())) },
		"emptied":     func(f *os.File, _ int64) error { return f.Truncate(0) },
		"overwritten": func(f *os.File, size int64) error { _, err := f.WriteAt(make([]byte, size-8192), 8192); return err },
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				ids := used(t, dir)
				o := open(t, dir, outbox.Options{})
				before := know(t, o, []string{"G00-scheduled"}, []string{"G07"})
				f, err := os.OpenFile(o.Path(), os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				info, err := f.Stat()
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(damage(f, info.Size()), f.Close()); err != nil {
					t.Fatal(err)
				}
				if _, err := add(o, "NEW", "scheduled", "a"); err != nil {
					t.Errorf("the change that met the damage is not on disk: %v", err)
				}
				if n := len(asides(t, dir, "damaged")); n != 1 {
					t.Errorf("%d files were set aside, want 1", n)
				}
				if err := o.Durable(); err != nil {
					t.Errorf("Durable = %v", err)
				}
				if err := o.Close(); err != nil {
					t.Errorf("Close = %v", err)
				}
				o = open(t, dir, outbox.Options{})
				after := know(t, o, []string{"G00-scheduled"}, []string{"G07"})
				want(t, "pending", pending(o, "a"), append(ids, "NEW-scheduled")...)
				if !maps.Equal(before.dead, after.dead) || !maps.Equal(before.marks, after.marks) || len(after.groups) != len(ids)+1 ||
					o.Owner() != "vmid-0" {
					t.Errorf("it knew\n%s\nand knows\n%s", before, after)
				}
				o.Close()
			})
		})
	}
}

// A mostly empty file is compacted and keeps its content, also for concurrent reads.
func TestMostlyEmptyFileIsCompacted(t *testing.T) {
	dir := t.TempDir()
	var log lines
	o := open(t, dir, outbox.Options{})
	kept := mustAdd(t, o, "A", "scheduled", "a")
	o.Close()
	half := o.Path() + ".compact" // of a crash in the middle of the last time
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	edit(t, o.Path(), func(tx *bolt.Tx) error {
		for i := range 24 {
			if err := tx.Bucket([]byte("events")).Put(fmt.Appendf(nil, "%016d", i), make([]byte, 1<<20)); err != nil {
				return err
			}
		}
		return nil
	})
	o = open(t, dir, outbox.Options{Log: log.logger()})
	before := o.Totals().FileBytes
	stop, read := make(chan struct{}), make(chan error)
	go func() {
		defer close(read)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := bodyOf(o, "a", kept.Seq); err != nil {
				read <- err
				return
			}
		}
	}()
	if err := <-o.Maintain(time.Now()); err != nil { // they are older than any history
		t.Fatal(err)
	}
	close(stop)
	if err := <-read; err != nil {
		t.Errorf("a reader met %v", err)
	}
	if after := o.Totals().FileBytes; before < 16<<20 || after > before/4 {
		t.Errorf("the file had %d bytes and has %d now", before, after)
	}
	if log := log.String(); strings.Contains(log, "cannot") {
		t.Errorf("the log has:\n%s", log)
	}
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", half, err)
	}
	mustAdd(t, o, "B", "scheduled", "a")
	o.Close()
	o = open(t, dir, outbox.Options{})
	want(t, "pending", pending(o, "a"), "A-scheduled", "B-scheduled")
}

// A CloudEvent may fill several pages, whose bytes can look like anything: that is no damage.
func TestALargeCloudEventIsNoDamage(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	large := addition(o, "A", "scheduled", "a")
	large.Body = body(strings.Repeat("long ", 20_000))
	if err := apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{large}}); err != nil {
		t.Fatal(err)
	}
	o.Close()
	o = open(t, dir, outbox.Options{})
	want(t, "pending", pending(o, "a"), "A-scheduled")
	if got, err := bodyOf(o, "a", large.Seq); err != nil || !bytes.Equal(got, large.Body) {
		t.Errorf("%d of %d bytes are read: %v", len(got), len(large.Body), err)
	}
	want(t, "set aside", asides(t, dir, "damaged"))
}

// A file that is merely longer than its used pages is not compacted: on Windows every file is, because the mapping sets
// its size.
func TestFileIsNotCompactedForItsSizeAlone(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	mustAdd(t, o, "A", "scheduled", "a")
	o.Close()
	if err := os.Truncate(o.Path(), 64<<20); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(o.Path())
	if err != nil {
		t.Fatal(err)
	}
	o = open(t, dir, outbox.Options{})
	if err := <-o.Maintain(time.Now()); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(o.Path())
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was rewritten, or is gone: %v", err)
	}
	want(t, "pending", pending(o, "a"), "A-scheduled")
}

// A file that somebody removes or replaces while it is in use is noticed with the next write, whoever makes it, and also
// if the disk was full before. Everything in memory is written to a new file, with the CloudEvents of open events and the
// outcomes of these. The history goes with the old file.
func TestAFileThatIsTakenAwayLosesNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not let a mapped file be removed; CI runs this on Linux")
	}
	remove := func(path, _ string) error { return os.Remove(path) }
	add := func(o *outbox.Outbox) { _, _ = add(o, "C", "scheduled", "a") }
	for _, tt := range []struct {
		claim string
		full  bool
		take  func(path, backup string) error
		write func(o *outbox.Outbox)
		stops time.Duration // after the write
	}{
		{"it is removed", false, remove, add, time.Minute},
		{"it is removed just before a stop", false, remove, add, 0},
		{"an older one is put in its place", false, func(path, backup string) error { return os.Rename(backup, path) }, add, time.Minute},
		{"an older one is written over it", false, func(path, backup string) error {
			data, err := os.ReadFile(backup)
			return errors.Join(err, os.WriteFile(path, data, 0o600))
		}, add, time.Minute},
		{"it is removed from a full disk", true, remove, add, time.Minute},
		{"it is removed before its oldest records are", false, remove, func(o *outbox.Outbox) {
			<-o.Maintain(time.Now().Add(outbox.KeepHistory - time.Minute))
			add(o)
		}, time.Minute},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, "outbox.db")
				log := &lines{}
				disk := &filling{Storage: outbox.File(dir, log.logger())}
				o := open(t, dir, outbox.Options{Storage: disk, Log: log.logger()})
				mustAdd(t, o, "OVER", "vanished", "b")
				time.Sleep(time.Hour)
				told := mustAdd(t, o, "A", "scheduled", "a", "b")
				groups := map[string]*outbox.Group{"A": groupWith(told)}
				q := o.Queue("b")
				q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Durable: true})
				data, err := os.ReadFile(path)
				if err := errors.Join(err, apply(o, time.Now(), outbox.Batch{Groups: groups}),
					os.WriteFile(path+".backup", data, 0o600)); err != nil {
					t.Fatal(err)
				}
				mustAdd(t, o, "B", "scheduled", "a")
				if disk.full.Store(tt.full); tt.full {
					tt.write(o)
					time.Sleep(time.Minute)
				}
				if err := tt.take(path, path+".backup"); err != nil {
					t.Fatal(err)
				}
				disk.full.Store(false)
				if !tt.full {
					tt.write(o)
				}
				time.Sleep(tt.stops)
				if err := errors.Join(o.Durable(), o.Close()); err != nil {
					t.Errorf("a minute later Durable and Close = %v", err)
				}
				if n := strings.Count(log.String(), "another program has removed or replaced"); n != 1 {
					t.Errorf("the log says %d times that the file was taken away:\n%s", n, log)
				}
				o = open(t, dir, outbox.Options{})
				want(t, "after a restart pending", pending(o, "a"), "A-scheduled", "B-scheduled", "C-scheduled")
				for _, d := range o.List(outbox.Selection{State: outbox.StatePending}) {
					if _, err := bodyOf(o, d.Route, d.Seq); err != nil {
						t.Errorf("after a restart: %v", err)
					}
				}
				if got := o.Delivery("b", told.Seq).State; got != outbox.StateAccepted {
					t.Errorf("after a restart the outcome of what was accepted is %q", got)
				}
				if got := bodies(o); len(got) != 3 {
					t.Errorf("after a restart the history has %d CloudEvents, want 3", len(got))
				}
				o.Close()
			})
		})
	}
}

// filling is a storage that can be full.
type filling struct {
	outbox.Storage
	full atomic.Bool
}

func (f *filling) Write(writes []outbox.Write) error {
	if f.full.Load() {
		return errFull
	}
	return f.Storage.Write(writes)
}

// The history stays in the file that was set aside, and can be read there as far as the damage allows, also while the outbox
// that set it aside goes on.
func TestTheHistoryOfAFileThatWasSetAsideCanBeRead(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not let a mapped file be cut; CI runs this on Linux")
	}
	dir := t.TempDir()
	used(t, dir)
	o := open(t, dir, outbox.Options{})
	whole := filepath.Join(t.TempDir(), "outbox.db")
	copyFile(t, o.Path(), whole)
	if err := os.Truncate(o.Path(), 2*int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, o, "NEW", "scheduled", "a")
	list := asides(t, dir, "damaged")
	if len(list) != 1 {
		t.Fatalf("%d files were set aside, want 1", len(list))
	}
	err := outbox.ReadHistory(list[0], func(outbox.Record) error { return nil })
	if !errors.Is(err, outbox.ErrDamaged) {
		t.Errorf("reading the one that was cut = %v, want that it is damaged", err)
	}
	read, accepted := 0, 0
	err = outbox.ReadHistory(whole, func(r outbox.Record) error {
		read++
		for _, d := range r.Deliveries {
			if d.State == outbox.StateAccepted {
				accepted++
			}
		}
		return nil
	})
	if err != nil || read != 18 || accepted != 12 {
		t.Errorf("%d CloudEvents are read, and %d that were accepted: %v; want 18 and 12", read, accepted, err)
	}
}
