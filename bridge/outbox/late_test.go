package outbox_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/outbox"
)

// A file that returns is older than memory: records that memory lacks are loaded, the others are kept as they are
// in memory.
func TestFileReadLateOverwritesNothing(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("A", "scheduled", "a")
		first := o.add("B", "scheduled", "a")
		o.add("C", "scheduled", "a")
		old := []byte("old")
		o.apply(outbox.Batch{Values: map[string][]byte{"changed": old, "kept": old, "deleted": old}})
		o.restartLate(o.disk)
		a := o.reader("a")
		second := o.addInMemory("A", "started", "a")
		o.addInMemory("C", "vanished")
		_ = o.submit(outbox.Batch{
			Values: map[string][]byte{"changed": []byte("new"), "deleted": nil},
			Marks:  map[string]outbox.Mark{"B-scheduled": {Times: 2, Group: "B", At: time.Now()}},
		})()
		o.diskRecovers()
		if err := o.Durable(); err == nil {
			t.Error("before Join it counts as durable")
		}
		want(t, "pending before Join", o.pending("a"), "A-started")
		want(t, "the reader hears before Join", a.hears(), "A-started")
		file := o.takeOver()
		want(t, "the file had the values", slices.Sorted(maps.Keys(file.Values)), "changed", "deleted", "kept")
		want(t, "of what is open the file had", slices.Sorted(maps.Keys(file.Groups)), "A", "B")
		synctest.Wait()
		want(t, "the reader hears before it is shown", a.hears())
		o.ShowJoined()
		all := []string{"A-scheduled", "B-scheduled", "C-scheduled", "A-started"}
		want(t, "the reader hears then", a.hears(), all...)
		o.wantDurable()
		for range 2 {
			want(t, "pending", o.pending("a"), all...)
			groups := o.Groups()
			want(t, "groups", slices.Sorted(maps.Keys(groups)), "A", "B")
			equal(t, "the latest of A", groups["A"].Latest, second.Seq)
			equal(t, "the state of A", string(groups["A"].State), `"started"`)
			equal(t, "the latest of B", groups["B"].Latest, first.Seq)
			for name, value := range map[string]string{"changed": "new", "kept": "old", "deleted": ""} {
				equal(t, "the value "+name, string(o.Value(name)), value)
			}
			equal(t, "the mark", o.Mark("B", "B-scheduled").Times, 2)
			o.restart()
		}
	})
}

// What a returned file has pending of a group comes before anything new of that group, even if it is not to be shown
// yet.
func TestWhatAReturnedFileHasPendingComesInOrder(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("A", "scheduled", "a")
		o.add("B", "scheduled", "a")
		o.restartLate(o.disk)
		a := o.reader("a")
		o.diskRecovers()
		<-o.Returned()
		o.takeOver()
		_, _ = o.tryAdd("A", "started", "a") // the disk may not have it yet
		want(t, "the reader hears", a.hears(), "A-scheduled", "A-started")
		o.ShowJoined()
		want(t, "the reader hears then", a.hears(), "A-scheduled", "B-scheduled", "A-started")
	})
}

// A sequence number in a file that returns is not used again, even if the clock was set back since. Otherwise the
// results of the old CloudEvent would be taken for those of a new one.
func TestFileReadLateKeepsItsSequenceNumbers(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		a := o.addition("A", "scheduled", "a")
		a.Seq = o.reserve(time.Now().Add(48 * time.Hour))
		o.apply(outbox.Batch{Add: []outbox.Addition{a}})
		o.accept("a")
		o.restartLate(o.disk)
		o.addInMemory("B", "scheduled", "a")
		o.diskRecovers()
		o.join()
		for _, when := range []string{"at once", "after a restart"} {
			if seq := o.reserve(time.Now()); seq <= a.Seq {
				t.Errorf("%s the next sequence number is %d, and the file has %d", when, seq, a.Seq)
			}
			o.restart()
		}
	})
}

// A link in place of the file stays when it leads nowhere yet, as while the disk behind it isn't mounted. Once it leads
// to a file, that is loaded.
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
				must(t, errors.Join(before(disk), os.Symlink(filepath.Join(disk, "outbox.db"), link)))
				o := open(t, dir, outbox.Options{})
				o.addInMemory("NEW", "scheduled", "a")
				synctest.Wait()
				if info, err := os.Lstat(link); err != nil || info.Mode().Type() != fs.ModeSymlink {
					t.Errorf("the link is gone: %v, %v", info, err)
				}
				must(t, errors.Join(os.RemoveAll(disk), os.Rename(mounted, disk)))
				time.Sleep(6 * time.Second)
				o.join()
				o.wantDurable()
				must(t, o.Close())
				want(t, "pending on the disk", open(t, disk, outbox.Options{}).pending("a"), append(ids, "NEW-scheduled")...)
			})
		})
	}
}

// Another VM's file that returns is set aside, and nothing of it is loaded, even if the owner is known only while it is
// read. A file without an owner is taken over.
func TestAReturnedFileMustBeOfTheOwner(t *testing.T) {
	for _, tt := range []struct {
		claim, owner string // of the file
		whileReading bool
		aside, want  []string
	}{
		{"another VM's", "vm-0", false, []string{"foreign"}, []string{"OURS-scheduled"}},
		{"another VM's, as is known late,", "vm-0", true, []string{"foreign"}, []string{"OURS-scheduled"}},
		{"nobody's", "", false, nil, []string{"THEIRS-scheduled", "OURS-scheduled"}},
		{"the same VM's", "vm-1", false, nil, []string{"THEIRS-scheduled", "OURS-scheduled"}},
	} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			o.own(tt.owner)
			o.add("THEIRS", "scheduled", "a")
			o.restartLate(o.disk)
			o.addInMemory("OURS", "scheduled", "a")
			own := func() error {
				equal(t, tt.claim+": before it returns, the outbox is another VM's", o.own("vm-1"), false)
				return nil
			}
			if tt.whileReading {
				o.disk.on("walk", own)
			} else {
				_ = own()
			}
			o.disk.on("open", nil)
			time.Sleep(10 * time.Second)
			if !tt.whileReading {
				want(t, tt.claim+" is set aside before Join", o.disk.setAside(), tt.aside...)
			}
			o.join()
			o.wantDurable()
			want(t, tt.claim+" is set aside", o.disk.setAside(), tt.aside...)
			for range 2 {
				want(t, tt.claim+": pending", o.pending("a"), tt.want...)
				equal(t, tt.claim+": the owner", o.Owner(), "vm-1")
				equal(t, tt.claim+": groups", len(o.Groups()), len(tt.want))
				o.restart()
			}
		})
	}
}

// What is pending for a route that was removed while the file could not be read becomes dead letters after a day.
func TestARouteRemovedBeforeALateFileIsAnOrphan(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.routesAre("a", "b")
		o.add("A", "scheduled", "a", "b")
		o.restartLate(o.disk)
		_ = o.submit(outbox.Batch{Routes: named([]string{"b"})})()
		o.diskRecovers()
		o.join()
		added, back := o.newRoutes("b", "c")
		want(t, "new to the file", added, "c")
		want(t, "routes that return to the file", back)
		o.routesAre("b")
		want(t, "pending", o.pending("a"), "A-scheduled")
		equal(t, "it counts as in the settings", o.Stats()["a"].Gone.IsZero(), false)
		time.Sleep(25 * time.Hour)
		o.maintain()
		want(t, "pending after a day", o.pending("a"))
		want(t, "dead after a day", o.dead("a"), "A-scheduled")
		want(t, "pending for the other", o.pending("b"), "A-scheduled")
	})
}

// Whichever read fails when the outbox is opened, it works from memory until everything can be read, and loads it then.
// Only a damaged file is set aside.
func TestFailedReadAtTheStartLosesNothing(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.own("vm-0")
		o.add("A", "scheduled", "a")
		o.accept("a")
		o.add("B", "scheduled", "a")
		o.mute(aMute("m", "z"))
		must(t, o.Close())
		time.Sleep(time.Second)
		batches := o.disk.recorded()
		// failsAt opens an outbox whose nth read fails, and reports whether there is one.
		failsAt := func(n int, cause error) bool {
			d := diskOf(batches)
			failed := d.failsRead(n, cause)
			o := open(t, t.TempDir(), outbox.Options{Storage: d})
			late, _ := o.tryAdd("C", "scheduled", "a")
			time.Sleep(10 * time.Second)
			o.join()
			when := fmt.Sprintf("read %d: %v: ", n, cause)
			switch {
			case !failed():
				return false
			case cause == errDamage:
				want(t, when+"pending", o.pending("a"), "C-scheduled")
				want(t, when+"aside", o.disk.setAside(), "damaged")
			default:
				want(t, when+"pending", o.pending("a"), "B-scheduled", "C-scheduled")
				want(t, when+"aside", o.disk.setAside())
				equal(t, when+"the owner", o.Owner(), "vm-0")
				equal(t, when+"mutes", len(o.Mutes()), 1)
				equal(t, when+"groups", len(o.Groups()), 3)
				equal(t, when+"the outcome of A", o.Delivery("a", o.Groups()["A"].Latest).State, outbox.StateAccepted)
			}
			o.wantDurable()
			wantError(t, when+"Show of what was added meanwhile", show(o, late.Seq), nil)
			must(t, o.Close())
			return true
		}
		reads := 0
		for failsAt(reads, errIO) && failsAt(reads, errDamage) {
			reads++
		}
		if reads < 13 {
			t.Errorf("it was opened with %d reads, which leaves something out", reads)
		}
	})
}

// A file that takes the place of the open one, and can't be read at first, is read before anything is written to it.
func TestFileThatIsReplacedIsReadBeforeItIsWritten(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("A", "scheduled", "a")
		must(t, o.disk.Storage.SetAside("", nil))
		o.disk.failsOnce("write", errFull)
		failed := o.disk.failsRead(0, errIO)
		o.addInMemory("B", "scheduled", "a")
		time.Sleep(time.Minute) // it may be read only when the writer tries again
		if !failed() {
			t.Fatal("nothing was read")
		}
		o.wantDurable()
		o.restart()
		want(t, "pending after a restart", o.pending("a"), "A-scheduled", "B-scheduled")
	})
}

// failsRead makes the nth read or walk from now on fail, counted from 0. failed reports whether there was one.
func (d *disk) failsRead(n int, err error) (failed func() bool) {
	before := d.called("read") + d.called("walk")
	since := func() int { return d.called("read") + d.called("walk") - before }
	for _, call := range []string{"read", "walk"} {
		d.on(call, func() error {
			if since() == n+1 {
				return err
			}
			return nil
		})
	}
	return func() bool { return since() > n }
}
