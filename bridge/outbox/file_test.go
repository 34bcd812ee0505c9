package outbox_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
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

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// asides returns the files that were set aside in the directory for that reason.
func asides(t testing.TB, dir, why string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "outbox.db."+why+"-*"))
	must(t, err)
	return list
}

// edit sets a record of the file while nobody has it open.
func edit(t testing.TB, path, bucket, key, value string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	must(t, err)
	err = db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(bucket))
		must(t, err)
		return b.Put([]byte(key), []byte(value))
	})
	must(t, errors.Join(err, db.Close()))
}

// used makes an outbox with records of every kind, and returns the pending deliveries for a.
func used(t testing.TB, dir string) []string {
	t.Helper()
	o := open(t, dir, outbox.Options{})
	o.routesAre("a", "b")
	o.own("vmid-0")
	for i := range 18 {
		o.add(fmt.Sprintf("G%02d", i), "scheduled", "a", "b")
	}
	b := o.reader("b")
	items := b.items()
	b.reject(items[:6]...)
	b.Report(delivery.Report{Now: time.Now(), Accepted: items[6:], Answer: delivery.Answer{Receipt: []byte("r")}})
	must(t, o.Close())
	return o.pending("a")
}

// wantToWork checks that the outbox stores a delivery.
func wantToWork(t *testing.T, o *box) {
	t.Helper()
	o.add("NEW", "scheduled", "z")
	o.restart()
	want(t, "pending after a restart", o.pending("z"), "NEW-scheduled")
	must(t, o.Close())
}

// lastingDir is a directory for a file with which bbolt may panic while it opens it. Such a file stays mapped until the
// program ends, and Windows removes none that is.
func lastingDir(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "windows" {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("", "outbox")
	must(t, err)
	return dir
}

// Whatever damage a closed file gets, the program doesn't end. Either all its content is there, or the file is set
// aside under a name with the date, an error is logged, and the outbox works again.
func TestDamagedFileIsReadOrSetAside(t *testing.T) {
	original := t.TempDir()
	before := used(t, original)
	whole, err := os.ReadFile(filepath.Join(original, "outbox.db"))
	must(t, err)
	damaged := func(claim string, data []byte) {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			readOrSetAside(t, claim, data, before)
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	noise := func(p []byte) {
		for i := range p {
			p[i] = byte(random.Uint32())
		}
	}
	size := os.Getpagesize()
	pages := min(len(whole)/size, 12)
	for _, tt := range []struct {
		claim string
		harm  func(page []byte)
	}{
		{"zeroed", func(page []byte) { clear(page) }},
		{"noise", noise},
		{"all ones", func(page []byte) { copy(page, bytes.Repeat([]byte{0xff}, size)) }},
		{"of another", func(page []byte) { copy(page, whole[random.IntN(pages)*size:][:size]) }},
		{"with noise behind its header", func(page []byte) { noise(page[16:80]) }},
		{"without an end", func(page []byte) { page[14] = 0x7f }},
		{"with too much in it", func(page []byte) { page[11] = 0xff }},
		{"with its first key behind the others", func(page []byte) {
			firstKey := 16 + binary.NativeEndian.Uint32(page[20:]) // of a leaf
			page[int(firstKey)%size] = 0xff
		}},
	} {
		for page := range pages {
			data := bytes.Clone(whole)
			tt.harm(data[page*size:][:size])
			damaged(fmt.Sprintf("page %d %s", page, tt.claim), data)
		}
	}
	for page := range pages {
		damaged(fmt.Sprintf("cut to %d pages", page), whole[:page*size])
		damaged(fmt.Sprintf("cut in page %d", page), whole[:page*size+size/2])
	}
	for range 40 {
		data := bytes.Clone(whole)
		at := random.IntN(pages)*size + random.IntN(64) // where the page's structure is
		data[at] ^= 1 << random.IntN(8)
		damaged(fmt.Sprintf("bit at %d", at), data)
	}
	damaged("no bbolt file", []byte("this is the outbox\n"))
	data := bytes.Clone(whole)
	noise(data)
	damaged("noise", data)
}

func readOrSetAside(t *testing.T, claim string, data []byte, before []string) {
	dir := lastingDir(t)
	must(t, os.WriteFile(filepath.Join(dir, "outbox.db"), data, 0o600))
	o := open(t, dir, outbox.Options{})
	lost := !slices.Equal(o.pending("a"), before)
	if lost && o.log.Count("level=ERROR")+o.log.Count("level=WARN") == 0 {
		t.Error("something is lost, and the log says nothing")
	}
	if n := len(asides(t, dir, "damaged")); lost && n != 1 && !strings.Contains(claim, "cut to 0") &&
		!strings.Contains(claim, "bit") {
		t.Errorf("something is lost, and %d files are set aside", n)
	}
	wantToWork(t, o)
}

// A directory or an empty file in place of the outbox file doesn't prevent a start.
func TestDirectoryOrEmptyFileDoesNotPreventAStart(t *testing.T) {
	for _, tt := range []struct {
		make  func(path string) error
		said  string
		aside int
	}{
		{func(path string) error { return os.MkdirAll(filepath.Join(path, "sub"), 0o700) }, "it is a directory", 1},
		{func(path string) error { return os.WriteFile(path, nil, 0o600) }, "outbox file is empty", 0},
	} {
		dir := t.TempDir()
		must(t, tt.make(filepath.Join(dir, "outbox.db")))
		o := open(t, dir, outbox.Options{})
		wantToWork(t, o)
		equal(t, tt.said+": set aside", len(asides(t, dir, "damaged")), tt.aside)
		equal(t, tt.said+": lines in the log", o.log.Count(tt.said), 1)
	}
}

// Opening a missing outbox for reading fails and creates nothing.
func TestOpenReadOnlyCreatesNothing(t *testing.T) {
	dir := t.TempDir()
	_, err := outbox.OpenReadOnly(dir)
	wantError(t, "OpenReadOnly", err, fs.ErrNotExist)
	list, err := os.ReadDir(dir)
	must(t, err)
	equal(t, "files", len(list), 0)
}

// If a record can't be decoded, the others are written to a new file, and the old one is set aside. A CloudEvent that
// can't be decoded is lost.
func TestUnreadableRecordIsDamage(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	a, _, c := o.add("A", "scheduled", "a"), o.add("B", "scheduled", "a"), o.add("C", "scheduled", "a")
	o.end("A", "C")
	must(t, o.Close())
	unreadable := map[string]string{
		"pending": "a/7", "dead": "odd", "groups": "X", "marks": "X", "ended": "X", "routes": "x", "settled": "x/a",
	}
	for bucket, key := range unreadable {
		edit(t, o.Path(), bucket, key, "{")
	}
	for seq, text := range map[uint64]string{
		a.Seq: `{"id":`,
		c.Seq: strings.Replace(string(c.Body), `"data":{}`, `"datacontenttype":"application/json","data":{"a":b},"x":"y"`, 1),
	} {
		edit(t, o.Path(), "events", fmt.Sprintf("%016d", seq), text)
	}
	o.reopen()
	want(t, "pending", o.pending("a"), "A-scheduled", "B-scheduled", "C-scheduled")
	equal(t, "files set aside", len(asides(t, dir, "damaged")), 1)
	equal(t, "records in the log", o.log.Count("cannot read a record of the outbox"), len(unreadable))
	r := o.reader("a")
	for _, i := range r.items() {
		if d, err := r.Read(i); errors.Is(err, delivery.ErrLost) != (i.Group != "B") || err == nil && d.Event.ID() != i.ID {
			t.Errorf("reading %s = %v, %v; want that all but B are lost", i.ID, d.Event.ID(), err)
		}
	}
}

// A file of another format, be it older or newer, is set aside with one line that says so. The outbox begins anew.
func TestAFileOfAnotherFormatIsSetAside(t *testing.T) {
	for _, format := range []string{"2", "99", ""} {
		const says = "another version of forewarn"
		dir := t.TempDir()
		used(t, dir)
		edit(t, filepath.Join(dir, "outbox.db"), "meta", "format", format)
		if _, err := outbox.OpenReadOnly(dir); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("format %q: OpenReadOnly = %v", format, err)
		}
		o := open(t, dir, outbox.Options{})
		want(t, "pending", o.pending(""))
		wantToWork(t, o)
		equal(t, format+": lines in the log", o.log.Count(says), 1)
		equal(t, format+": files set aside", len(asides(t, dir, "format")), 1)
	}
}

// A file that is damaged while in use, even one that is truncated, is set aside. Everything in memory is written to the
// next one.
func TestDamageWhileRunningLosesNothingInMemory(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not let a mapped file be cut; CI runs this on Linux")
	}
	for claim, damage := range map[string]func(f *os.File, size int64) error{
		"cut":     func(f *os.File, _ int64) error { return f.Truncate(2 * int64(os.Getpagesize())) },
		"emptied": func(f *os.File, _ int64) error { return f.Truncate(0) },
		"overwritten": func(f *os.File, size int64) error {
			_, err := f.WriteAt(make([]byte, size-8192), 8192)
			return err
		},
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				ids := used(t, dir)
				o := open(t, dir, outbox.Options{})
				f, err := os.OpenFile(o.Path(), os.O_RDWR, 0)
				must(t, err)
				must(t, errors.Join(damage(f, o.Totals().FileBytes), f.Close()))
				o.add("NEW", "scheduled", "a") // the change that meets the damage
				o.wantDurable()
				equal(t, "files set aside", len(asides(t, dir, "damaged")), 1)
				before := shown(o)
				o.restart()
				equal(t, "after a restart it shows", shown(o), before)
				want(t, "pending", o.pending("a"), append(ids, "NEW-scheduled")...)
				equal(t, "dead letters", len(o.dead("b")), 6)
				equal(t, "the mark", o.Mark("G00", "G00-scheduled").Times, 1)
				equal(t, "the owner", o.Owner(), "vmid-0")
			})
		})
	}
}

// A mostly empty file is compacted and keeps its content, also for concurrent reads.
func TestMostlyEmptyFileIsCompacted(t *testing.T) {
	o := open(t, t.TempDir(), outbox.Options{})
	kept := o.add("A", "scheduled", "a")
	must(t, o.Close())
	half := o.Path() + ".compact" // of a crash in the middle of the last time
	must(t, os.WriteFile(half, []byte("half"), 0o600))
	for i := range 24 { // older than any history
		edit(t, o.Path(), "events", fmt.Sprintf("%016d", i), string(make([]byte, 1<<20)))
	}
	o.reopen()
	before := o.Totals().FileBytes
	maintained := o.Maintain(time.Now())
	for reading := true; reading; {
		select {
		case err := <-maintained:
			must(t, err)
			reading = false
		default:
			must(t, show(o, kept.Seq))
		}
	}
	if after := o.Totals().FileBytes; before < 16<<20 || after > before/4 {
		t.Errorf("the file had %d bytes and has %d now", before, after)
	}
	equal(t, "failures in the log", o.log.Count("cannot"), 0)
	_, err := os.Stat(half)
	wantError(t, "the rest of the last time", err, fs.ErrNotExist)
	o.add("B", "scheduled", "a")
	o.restart()
	want(t, "pending", o.pending("a"), "A-scheduled", "B-scheduled")
}

// A file is not compacted because it is longer than its used pages (on Windows every file is, because the mapping sets
// its size), nor a small one, however little of it is used.
func TestAFileIsNotCompactedWithoutNeed(t *testing.T) {
	for claim, grow := range map[string]func(o *box){
		"a long file": func(o *box) {
			must(t, o.Close())
			must(t, os.Truncate(o.Path(), 64<<20))
			o.reopen()
		},
		"a small one": func(o *box) {
			for _, value := range [][]byte{make([]byte, 8<<20), nil} {
				o.apply(outbox.Batch{Values: map[string][]byte{"big": value}})
			}
		},
	} {
		o := open(t, t.TempDir(), outbox.Options{})
		o.add("A", "scheduled", "a")
		grow(o)
		before, err := os.Stat(o.Path())
		must(t, err)
		o.maintain()
		after, err := os.Stat(o.Path())
		if err != nil || !os.SameFile(before, after) {
			t.Errorf("%s was rewritten, or is gone: %v", claim, err)
		}
	}
}

// Only its owner can read the file.
func TestFileIsPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no mode; CI runs this on Linux")
	}
	info, err := os.Stat(open(t, t.TempDir(), outbox.Options{}).Path())
	must(t, err)
	equal(t, "the file's mode", info.Mode().Perm(), 0o600)
}

// A value with an unusable name doesn't keep others from being written.
func TestAnUnusableNameHarmsNoOtherValue(t *testing.T) {
	o := open(t, t.TempDir(), outbox.Options{})
	value := []byte("x")
	o.apply(outbox.Batch{Values: map[string][]byte{"": value, "kept": value, strings.Repeat("long", 10_000): value}})
	o.restart()
	equal(t, "the value beside", string(o.Value("kept")), "x")
}

// A CloudEvent may fill several pages, whose bytes can look like anything: that is no damage.
func TestALargeCloudEventIsNoDamage(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	large := o.addition("A", "scheduled", "a")
	large.Body = body(strings.Repeat("long ", 20_000))
	o.apply(outbox.Batch{Add: []outbox.Addition{large}})
	o.restart()
	got, err := o.body("a", large.Seq)
	must(t, err)
	equal(t, "it is whole", bytes.Equal(got, large.Body), true)
	want(t, "set aside", asides(t, dir, "damaged"))
}

// A file that somebody removes or replaces while it is in use is noticed with the next write, whoever makes it, and
// also if the disk was full before. Everything in memory is written to a new file, with the CloudEvents of open events
// and the outcomes of these. The history goes with the old file.
func TestAFileThatIsTakenAwayLosesNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not let a mapped file be removed; CI runs this on Linux")
	}
	remove := func(path, _ string) error { return os.Remove(path) }
	add := func(o *box) { _, _ = o.tryAdd("C", "scheduled", "a") }
	for _, tt := range []struct {
		claim string
		full  bool // when it is taken
		take  func(path, backup string) error
		write func(o *box)
		stops time.Duration // after the write
	}{
		{"it is removed", false, remove, add, time.Minute},
		{"it is removed just before a stop", false, remove, add, 0},
		{"an older one is put in its place", false,
			func(path, backup string) error { return os.Rename(backup, path) }, add, time.Minute},
		{"an older one is written over it", false, func(path, backup string) error {
			data, err := os.ReadFile(backup)
			return errors.Join(err, os.WriteFile(path, data, 0o600))
		}, add, time.Minute},
		{"it is removed from a full disk", true, remove, add, time.Minute},
		{"it is removed before its oldest records are", false, remove, func(o *box) {
			<-o.Maintain(time.Now().Add(outbox.KeepHistory - time.Minute))
			add(o)
		}, time.Minute},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				log := &systemtest.Log{}
				o := open(t, dir, outbox.Options{Storage: diskOn(outbox.File(dir, log.Logger()))})
				o.add("OVER", "vanished", "b")
				time.Sleep(time.Hour)
				told := o.add("A", "scheduled", "a", "b")
				o.accept("b")
				backup := o.Path() + ".backup"
				data, err := os.ReadFile(o.Path())
				must(t, errors.Join(err, os.WriteFile(backup, data, 0o600)))
				o.add("B", "scheduled", "a")
				if tt.full {
					o.disk.fails("write", errFull)
					tt.write(o)
					time.Sleep(time.Minute)
				}
				must(t, tt.take(o.Path(), backup))
				o.disk.works()
				if !tt.full {
					tt.write(o)
				}
				time.Sleep(tt.stops)
				o.wantDurable()
				o.restart()
				equal(t, "lines in the log", log.Count("another program has removed or replaced"), 1)
				want(t, "pending", o.pending("a"), "A-scheduled", "B-scheduled", "C-scheduled")
				want(t, "results", o.results(), "a pending", "b accepted", "a pending", "a pending")
				equal(t, "the outcome of what is open", o.Delivery("b", told.Seq).State, outbox.StateAccepted)
			})
		})
	}
}

// A link in place of the file stays when the file behind it is compacted, or set aside: what is new is behind it too.
func TestALinkToAFileThatIsReplacedIsKept(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("only some users may make a link on Windows; CI runs this on Linux")
	}
	behind := open(t, t.TempDir(), outbox.Options{})
	behind.add("A", "scheduled", "a")
	must(t, behind.Close())
	for i := range 24 { // older than any history
		edit(t, behind.Path(), "events", fmt.Sprintf("%016d", i), string(make([]byte, 1<<20)))
	}
	dir := t.TempDir()
	link := filepath.Join(dir, "outbox.db")
	must(t, os.Symlink(behind.Path(), link))
	o := open(t, dir, outbox.Options{})
	before := o.Totals().FileBytes
	o.maintain()
	if after := o.Totals().FileBytes; after > before/4 {
		t.Errorf("the file had %d bytes and has %d now", before, after)
	}
	o.add("B", "scheduled", "a")
	must(t, o.Close())
	behind.reopen()
	want(t, "pending behind it", behind.pending("a"), "A-scheduled", "B-scheduled")
	must(t, behind.Close())

	must(t, os.Truncate(link, 100))
	o.reopen()
	o.add("C", "scheduled", "a")
	must(t, o.Close())
	equal(t, "files set aside behind it", len(asides(t, behind.dir, "damaged")), 1)
	behind.reopen()
	want(t, "pending behind it after damage", behind.pending("a"), "C-scheduled")
}
