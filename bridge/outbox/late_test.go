package outbox_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// notADirectory returns a directory that can't be created, because its parent is a file.
func notADirectory(t testing.TB) (dir string) {
	t.Helper()
	parent := filepath.Join(t.TempDir(), "parent")
	if err := os.WriteFile(parent, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(parent, "state")
}

// comes creates the directory, with the file in it unless that is "".
func comes(t testing.TB, dir, file string) {
	t.Helper()
	synctest.Wait() // or the writer could find it half done
	if err := errors.Join(os.Remove(filepath.Dir(dir)), os.MkdirAll(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	if file != "" {
		copyFile(t, file, filepath.Join(dir, "outbox.db"))
	}
}

// joins takes over a file that has returned, if there is one, and waits until it is written.
func joins(o *outbox.Outbox) {
	join(o)
	o.ShowJoined()
	synctest.Wait()
}

func join(o *outbox.Outbox) (file outbox.Stored) {
	o.Update(time.Now(), func(tx *outbox.Tx) { file = tx.Join() })
	return file
}

// A file that returns is older than memory: records that memory lacks are loaded, the others are kept as they are
// in memory.
func TestFileReadLateOverwritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		older := t.TempDir()
		o := open(t, older, outbox.Options{})
		mustAdd(t, o, "A", "scheduled", "a")
		first := mustAdd(t, o, "B", "scheduled", "a")
		mustAdd(t, o, "C", "scheduled", "a")
		if err := apply(o, time.Now(), outbox.Batch{Values: map[string][]byte{"x": []byte("old"), "z": []byte("old"),
			"y": []byte("old")}}); err != nil {
			t.Fatal(err)
		}
		o.Close()
		time.Sleep(time.Minute)

		dir := notADirectory(t)
		o = open(t, dir, outbox.Options{})
		q := o.Queue("a")
		second, _ := add(o, "A", "started", "a")
		_, _ = add(o, "C", "vanished")
		_ = apply(o, time.Now(), outbox.Batch{Values: map[string][]byte{"x": []byte("new"), "z": nil},
			Marks: map[string]outbox.Mark{"B-scheduled": {Times: 2, Group: "B", At: time.Now()}}})
		comes(t, dir, filepath.Join(older, "outbox.db"))
		time.Sleep(6 * time.Second)
		if err := o.Durable(); err == nil {
			t.Error("before Join it counts as durable")
		}
		want(t, "pending before Join", pending(o, "a"), "A-started")
		changes(q)
		file := join(o)
		if values, groups := slices.Sorted(maps.Keys(file.Values)), slices.Sorted(maps.Keys(file.Groups)); len(values) != 3 ||
			!slices.Equal(groups, []string{"A", "B"}) {
			t.Errorf("the file had the values %v, and of what is open %v", values, groups)
		}
		synctest.Wait()
		check := func() {
			t.Helper()
			want(t, "pending", pending(o, "a"), "A-scheduled", "B-scheduled", "C-scheduled", "A-started")
			g := o.Groups()
			if len(g) != 2 || g["A"].Latest != second.Seq || string(g["A"].State) != `"started"` || g["B"].Latest != first.Seq {
				t.Errorf("groups are %v", g)
			}
			if x, y, z := string(o.Value("x")), string(o.Value("y")), string(o.Value("z")); x != "new" || y != "old" || z != "" {
				t.Errorf("values are %q, %q and %q", x, y, z)
			}
			if n := o.Mark("B", "B-scheduled").Times; n != 2 {
				t.Errorf("the mark is %d", n)
			}
		}
		check()
		ids, _ := changes(q)
		want(t, "the reader hears before it is shown", ids)
		o.ShowJoined()
		ids, _ = changes(q)
		want(t, "the reader hears then", ids, "A-scheduled", "B-scheduled", "C-scheduled", "A-started")
		if err := o.Durable(); err != nil {
			t.Errorf("Durable = %v", err)
		}
		o.Close()
		o = open(t, dir, outbox.Options{})
		check()
		o.Close()
	})
}

// What a returned file has pending of a group comes before anything new of that group, even if it is not to be shown
// yet.
func TestWhatAReturnedFileHasPendingComesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		mustAdd(t, o, "A", "scheduled", "a")
		mustAdd(t, o, "B", "scheduled", "a")
		o.Close()
		release := d.hangReads()
		o = open(t, t.TempDir(), outbox.Options{Storage: d})
		q := o.Queue("a")
		release()
		<-o.Returned()
		join(o)
		_, _ = add(o, "A", "started", "a") // the disk may not have it yet
		ids, _ := changes(q)
		want(t, "the reader hears", ids, "A-scheduled", "A-started")
		o.ShowJoined()
		ids, _ = changes(q)
		want(t, "the reader hears then", ids, "A-scheduled", "B-scheduled", "A-started")
		o.Close()
	})
}

// A sequence number in a file that returns is not used again, even if the clock was set back since. Otherwise the
// results of the old CloudEvent would be taken for those of a new one.
func TestFileReadLateKeepsItsSequenceNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		older := t.TempDir()
		ahead := time.Now().Add(48 * time.Hour)
		o := open(t, older, outbox.Options{})
		a := addition(o, "A", "scheduled", "a")
		a.Seq = reserve(o, ahead)
		if err := apply(o, ahead, outbox.Batch{Add: []outbox.Addition{a}}); err != nil {
			t.Fatal(err)
		}
		q := o.Queue("a")
		q.Report(delivery.Report{Now: ahead, Accepted: q.Changes().Pending, Durable: true})
		o.Close()

		dir := notADirectory(t)
		o = open(t, dir, outbox.Options{})
		_, _ = add(o, "B", "scheduled", "a")
		comes(t, dir, filepath.Join(older, "outbox.db"))
		time.Sleep(6 * time.Second)
		joins(o)
		if seq := reserve(o, time.Now()); seq <= a.Seq {
			t.Errorf("the next sequence number is %d, and the file has %d", seq, a.Seq)
		}
		o.Close()
		o = open(t, dir, outbox.Options{})
		if seq := reserve(o, time.Now()); seq <= a.Seq {
			t.Errorf("after a restart the next sequence number is %d, and the file has %d", seq, a.Seq)
		}
		o.Close()
	})
}

// A link in place of the file stays when it leads nowhere yet, as while the disk behind it isn't mounted. Once it leads to
// a file, that is loaded.
func TestALinkToAFileThatComesLateIsKept(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("only some users may make a link on Windows; CI runs this on Linux")
	}
	for claim, before := range map[string]func(disk string) error{
		"its disk is missing":       func(string) error { return nil },
		"its disk can't be reached": func(disk string) error { return os.Symlink(disk, disk) }, // to itself
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, disk, mounted := t.TempDir(), filepath.Join(t.TempDir(), "disk"), filepath.Join(t.TempDir(), "mounted")
				ids := used(t, mounted)
				time.Sleep(time.Hour)
				link := filepath.Join(dir, "outbox.db")
				err := errors.Join(before(disk), os.Symlink(filepath.Join(disk, "outbox.db"), link))
				if err != nil {
					t.Fatal(err)
				}
				o := open(t, dir, outbox.Options{})
				if o.Durable() == nil {
					t.Error("it counts as durable")
				}
				_, _ = add(o, "NEW", "scheduled", "a")
				synctest.Wait()
				if info, err := os.Lstat(link); err != nil || info.Mode().Type() != fs.ModeSymlink {
					t.Errorf("the link is gone: %v, %v", info, err)
				}
				if err := os.Remove(disk); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				if err := os.Rename(mounted, disk); err != nil {
					t.Fatal(err)
				}
				time.Sleep(6 * time.Second)
				joins(o)
				if err := errors.Join(o.Durable(), o.Close()); err != nil {
					t.Errorf("once the disk is there Durable and Close = %v", err)
				}
				o = open(t, disk, outbox.Options{})
				want(t, "pending on the disk", pending(o, "a"), append(ids, "NEW-scheduled")...)
				o.Close()
			})
		})
	}
}

// Another VM's file that returns is set aside, and nothing of it is loaded.
func TestForeignFileReadLateIsSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs := t.TempDir()
		used(t, theirs)
		dir := notADirectory(t)
		o := open(t, dir, outbox.Options{})
		if fresh, _ := own(o, "vmid-1"); fresh {
			t.Error("it was another's before")
		}
		_, _ = add(o, "A", "scheduled", "a")
		comes(t, dir, filepath.Join(theirs, "outbox.db"))
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if n := len(asides(t, dir, "foreign")); n != 1 || o.Durable() != nil {
			t.Errorf("%d files were set aside, Durable = %v", n, o.Durable())
		}
		want(t, "pending", pending(o, "a"), "A-scheduled")
		o.Close()
		o = open(t, dir, outbox.Options{})
		want(t, "pending", pending(o, "a"), "A-scheduled")
		if o.Owner() != "vmid-1" {
			t.Errorf("it belongs to %q", o.Owner())
		}
		o.Close()
	})
}

// What was being written when the outbox turned out to be another VM's is not in the history either.
func TestCloneForgetsWhatIsBeingWritten(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		own(o, "vmid-0")
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		_ = submit(o, time.Now(), outbox.Batch{Add: []outbox.Addition{addition(o, "A", "scheduled", "a")}})
		synctest.Wait()
		own(o, "vmid-1")
		if list := bodies(o); len(list) != 0 {
			t.Errorf("the history has %v", list)
		}
		d.set(func() { d.hang = nil })
		close(hang)
		time.Sleep(10 * time.Second)
		if list := bodies(o); len(list) != 0 {
			t.Errorf("once it was written, the history has %v", list)
		}
	})
}

// A file that is another VM's is set aside as such, also if somebody finds meanwhile that it is damaged: nothing of it may
// count, and the word in its name says where to look.
func TestADamagedFileOfAnotherVMIsForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: tornHistory{d}})
		own(o, "vmid-0")
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		_ = submit(o, time.Now(), outbox.Batch{Add: []outbox.Addition{addition(o, "A", "scheduled", "a")}})
		synctest.Wait()
		o.Update(time.Now(), func(tx *outbox.Tx) { tx.Own("vmid-1") })
		if err := o.Walk(0, func(outbox.Record) error { return nil }); !errors.Is(err, outbox.ErrDamaged) {
			t.Errorf("Walk = %v, want ErrDamaged", err)
		}
		d.set(func() { d.hang = nil })
		close(hang)
		synctest.Wait()
		want(t, "set aside", d.aside, "foreign")
		o.Close()
	})
}

// tornHistory is a storage whose history can't be read.
type tornHistory struct{ outbox.Storage }

func (s tornHistory) Walk(bucket, from string, f func(key string, value []byte) error) error {
	if bucket == "events" {
		return outbox.ErrDamaged
	}
	return s.Storage.Walk(bucket, from, f)
}

// An outbox belongs to one VM. On a cloned machine it is set aside at once, and nothing of it counts any more, not even
// items that its readers hold or results that they report.
func TestCloneStartsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		used(t, dir)
		log := &lines{}
		o := open(t, dir, outbox.Options{Log: log.logger()})
		for _, same := range []string{"VMID-0", ""} {
			if fresh, err := own(o, same); fresh || err != nil {
				t.Errorf("Own(%q) = %v, %v", same, fresh, err)
			}
		}
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		q := o.Queue("a")
		items := q.Changes().Pending
		if fresh, err := own(o, "vmid-1"); !fresh || err != nil {
			t.Errorf("another VM: %v, %v; want fresh", fresh, err)
		}
		if o.Over(outbox.Delivery{Item: *items[0], Route: "a"}, "a") {
			t.Error("a route that gets what is over counts as one that acts")
		}
		want(t, "pending", pending(o, "a"))
		if _, gone := changes(q); len(gone) != len(items) {
			t.Errorf("the reader is told that %d are gone, want %d", len(gone), len(items))
		}
		if _, err := q.Read(items[0]); !errors.Is(err, delivery.ErrSettled) {
			t.Errorf("Read = %v, want ErrSettled", err)
		}
		q.Report(delivery.Report{Now: time.Now(), Accepted: items[:1], Answer: delivery.Answer{Receipt: []byte("r")}})
		if n := o.Stats()["a"].Delivered; n != 0 {
			t.Errorf("%d count as delivered", n)
		}
		if added, back := newRoutes(o, []outbox.Route{{Name: "a"}}); len(added)+len(back) != 0 {
			t.Errorf("the routes are forgotten: %v, %v", added, back)
		}
		if len(o.Groups()) != 0 || o.Mark("G00", "G00-scheduled").Times != 0 || len(o.List(outbox.Selection{})) != 0 {
			t.Error("something of it is still known")
		}
		a := mustAdd(t, o, "A", "scheduled", "a")
		if a.Seq <= items[len(items)-1].Seq {
			t.Error("the sequence number went back")
		}
		if n := len(asides(t, dir, "foreign")); n != 1 || !strings.Contains(log.String(), "cloned") {
			t.Errorf("%d files were set aside, the log says %s", n, log)
		}
		o.Close()
		o = open(t, dir, outbox.Options{})
		want(t, "pending", pending(o, "a"), "A-scheduled")
		if o.Owner() != "vmid-1" || len(bodies(o)) != 1 {
			t.Errorf("it belongs to %q and holds %v", o.Owner(), bodies(o))
		}
		if added, _ := newRoutes(o, []outbox.Route{{Name: "a"}}); len(added) != 0 {
			t.Error("the routes were not written")
		}
		o.Close()
	})
}

// A file that is made after the start has which events are over, and of no open one that it is, so that what is kept
// about them is dropped in its time.
func TestFileMadeAfterTheStartKnowsWhatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &closed{disk: diskOf(nil)}
		o := open(t, t.TempDir(), outbox.Options{Storage: c})
		_, _ = add(o, "OPEN", "scheduled")
		_, _ = add(o, "OVER", "vanished")
		c.set(func() { c.works = true })
		time.Sleep(6 * time.Second)
		if err := o.Durable(); err != nil || c.count("ended") != 1 || c.count("marks") != 2 {
			t.Errorf("durable: %v; %d groups have ended and %d marks kept, want 1 and 2", err, c.count("ended"), c.count("marks"))
		}
		time.Sleep(31 * 24 * time.Hour)
		if err := <-o.Maintain(time.Now()); err != nil || c.count("ended") != 0 || c.count("marks") != 1 {
			t.Errorf("after a month: %v; %d groups have ended and %d marks kept, want 0 and 1", err, c.count("ended"), c.count("marks"))
		}
		o.Close()
	})
}

// What is pending for a route that was removed while the file could not be read becomes dead letters after a day.
func TestARouteRemovedBeforeALateFileIsAnOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}, outbox.Route{Name: "b"}); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "scheduled", "a", "b")
		o.Close()
		release := d.hangReads()
		o = open(t, t.TempDir(), outbox.Options{Storage: d})
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "b"}); err == nil {
			t.Error("the file can be read at once")
		}
		release()
		time.Sleep(time.Minute)
		joins(o)
		if added, back := newRoutes(o, []outbox.Route{{Name: "b"}, {Name: "c"}}); len(back) > 0 || !slices.Equal(added, []string{"c"}) {
			t.Errorf("to the file the routes %v are new, and %v return", added, back)
		}
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "b"}); err != nil {
			t.Fatal(err)
		}
		want(t, "pending", pending(o, "a"), "A-scheduled")
		if o.Stats()["a"].Gone.IsZero() {
			t.Error("it counts as in the settings")
		}
		time.Sleep(25 * time.Hour)
		o.Maintain(time.Now())
		want(t, "pending after a day", pending(o, "a"))
		want(t, "dead after a day", deadLetters(o, "a"), "A-scheduled")
		want(t, "pending for the other", pending(o, "b"), "A-scheduled")
		o.Close()
	})
}
