package outbox_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// Where no file can be created, the outbox works from memory and says so. Once one can, everything is written.
func TestWithoutADirectoryItWorksFromMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inTheWay := filepath.Join(t.TempDir(), "a-file")
		must(t, os.WriteFile(inTheWay, nil, 0o600))
		o := open(t, filepath.Join(inTheWay, "state"), outbox.Options{})
		a := o.reader("a")
		o.addInMemory("A", "scheduled", "a")
		want(t, "delivered from memory", a.hears(), "A-scheduled")
		synctest.Wait() // the writer may say so after the change has heard of it
		equal(t, "errors in the log", o.log.Count("level=ERROR"), 1)
		must(t, os.Remove(inTheWay))
		time.Sleep(6 * time.Second)
		synctest.Wait()
		o.wantDurable()
		equal(t, "lines in the log", o.log.Count("outbox written again"), 1)
		o.restart()
		want(t, "pending", o.pending("a"), "A-scheduled")
	})
}

// A write costs what waits to be written, so a disk that fails is not tried more often because more comes.
func TestAFailingDiskIsTriedEveryFewSeconds(t *testing.T) {
	inBubble(t, outbox.Bounds{History: 16}, func(t *testing.T, o *box) {
		o.maintain()
		for i := range 3 { // so that the history has grown enough to be shortened
			o.add(fmt.Sprint("A", i), "scheduled", "a")
		}
		o.disk.fails("write", errFull)
		before := o.disk.called("write")
		for i := range 60 { // whatever happens meanwhile
			o.addInMemory(fmt.Sprint("E", i), "scheduled", "a")
			o.Maintain(time.Now())
			time.Sleep(time.Second)
		}
		if n := o.disk.called("write") - before; n > 13 {
			t.Errorf("%d writes were tried in a minute, want one every five seconds", n)
		}
		o.diskRecovers()
		o.wantDurable()
	})
}

// The log says what to do about a disk that can't be written, and when it works again.
func TestLogSaysWhatToDoAboutTheDisk(t *testing.T) {
	for _, tt := range []struct {
		err  error
		hint string
	}{
		{&fs.PathError{Err: fs.ErrPermission}, "let the user that forewarn runs as write there"},
		{fmt.Errorf("write: %w", syscall.ENOSPC), "make room on the disk"},
		{fmt.Errorf("write: %w", syscall.EROFS), "mount it writable"},
		{fmt.Errorf("open: %w", syscall.ENOTDIR), "name a directory with the key state"},
		{errIO, "it is tried again by itself"},
	} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			o.disk.fails("write", tt.err)
			o.addInMemory("A", "scheduled", "hook")
			o.diskRecovers()
			equal(t, "hints", o.log.Count("hint="), 1)
			for _, said := range []string{`hint="` + tt.hint, "outbox written again"} {
				equal(t, fmt.Sprintf("lines in the log of %v: %s", tt.err, said), o.log.Count(said), 1)
			}
		})
	}
}

// A hanging disk delays one change, for at most 5 s, and no read of the outbox. Changes made meanwhile are written when
// the disk works again.
func TestAHangingDiskDelaysOneChange(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("A", "scheduled", "a")
		a := o.reader("a")
		a.hears()
		release := o.disk.hangs("write")
		began := time.Now()
		onDisk := o.submit(changeOf(o.addition("B", "scheduled", "a")))
		equal(t, "the reader is woken", a.isWoken(), true)
		want(t, "delivered before it is on disk", a.hears())
		o.Groups()
		o.Stats()
		o.Totals()
		o.Delivery("a", 1)
		o.Mark("x", "x")
		o.List(outbox.Selection{})
		o.own("vmid-0")
		equal(t, "reads took", time.Since(began), 0)
		if err := onDisk(); err == nil {
			t.Error("the change is said to be on disk")
		}
		equal(t, "the change took", time.Since(began), 5*time.Second)
		equal(t, "the reader is woken again", a.isWoken(), true)
		want(t, "delivered from memory", a.hears(), "B-scheduled")
		o.addInMemory("C", "scheduled", "a")
		equal(t, "the change and the next took", time.Since(began), 5*time.Second)
		release()
		synctest.Wait()
		o.wantDurable()
		o.restart()
		want(t, "pending", o.pending("a"), "A-scheduled", "B-scheduled", "C-scheduled")
		equal(t, "the owner", o.Owner(), "vmid-0")
	})
}

// A disk that begins to hang during Maintain delays nobody for longer than one that hangs at a write.
func TestADiskThatHangsDuringMaintainDelaysOneChange(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("", "once", "a")
		o.accept("a")
		time.Sleep(outbox.KeepHistory + time.Hour)
		release := o.disk.hangs("write")
		maintained := o.Maintain(time.Now()) // what is so old is to be dropped
		time.Sleep(time.Second)
		began := time.Now()
		o.addInMemory("A", "scheduled", "a")
		o.addInMemory("B", "scheduled", "a")
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("two changes took %v", took)
		}
		time.Sleep(time.Minute)
		release()
		must(t, <-maintained)
		time.Sleep(time.Second)
		o.wantDurable()
	})
}

// A delivery that its reader got while the disk was failing is shown with every later change, even if the disk has not
// written it since. A reader that keeps an old attempt would send again to those who have it.
func TestAReaderHearsOfWhatItGotFromMemory(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		a := o.reader("a")
		first := o.disk.hangs("write")
		o.submit(outbox.Batch{Values: map[string][]byte{"x": []byte("y")}})
		time.Sleep(6 * time.Second)
		o.addInMemory("A", "scheduled", "a")
		items := a.items()
		if len(items) != 1 {
			t.Fatalf("while the disk counts as failing, the reader gets %d deliveries, want A", len(items))
		}
		second := o.disk.hangs("write")
		first()
		synctest.Wait()
		a.Report(delivery.Report{
			Now: time.Now(), Failed: items, Error: "451", Answer: delivery.Answer{Progress: []byte("A has it")},
			Batch: items[0].Seq,
		})
		if got := a.items(); len(got) != 1 || got[0].Attempts != 1 || string(got[0].Progress) != "A has it" {
			t.Errorf("after the attempt the reader gets %d deliveries, want A with its attempt and progress", len(got))
		}
		second()
	})
}

// A disk that is slow, so that what is pending counts as in memory only for a while, makes nobody give up anything.
func TestASlowDiskGivesNothingUp(t *testing.T) {
	inBubble(t, outbox.Bounds{InMemory: 5}, func(t *testing.T, o *box) {
		o.disk.takes("write", 8*time.Second)
		var b outbox.Batch
		for i := range 20 {
			b.Add = append(b.Add, o.addition(fmt.Sprint("E", i), "scheduled", "a"))
		}
		if err := o.submit(b)(); err == nil {
			t.Error("the disk counts as quick")
		}
		o.addInMemory("LATER", "scheduled", "a")
		time.Sleep(time.Minute)
		o.wantDurable()
		equal(t, "pending", len(o.pending("a")), 21)
		want(t, "dead", o.dead("a"))
	})
}

// Maintenance may take as long as it needs while the disk answers: nobody takes that for a disk that fails.
func TestLongMaintenanceIsNoFailure(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		for i := range 10 {
			o.add(fmt.Sprint("E", i), "scheduled", "a")
		}
		o.disk.takes("record", time.Second)
		done := o.Maintain(time.Now())
		for range 9 {
			time.Sleep(time.Second)
			o.wantDurable()
		}
		must(t, <-done)
	})
}

// A disk that hangs in a read is waited for once, and reads don't pile up. What is in memory can be read meanwhile.
func TestAReadThatHangsIsWaitedForOnce(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		old := o.add("OLD", "scheduled", "a")
		o.end("OLD")
		release := o.disk.hangs("read", "write")
		before, began := o.disk.called("read"), time.Now()
		for range 100 {
			if err := show(o, old.Seq); err == nil || errors.Is(err, delivery.ErrLost) {
				t.Fatalf("Show = %v, want that the disk is slow", err)
			}
		}
		equal(t, "100 reads took", time.Since(began), 5*time.Second)
		fresh := o.addInMemory("NEW", "scheduled", "a")
		wantError(t, "Show of what is in memory", show(o, fresh.Seq), nil)
		equal(t, "reads of the disk", o.disk.called("read")-before, 1)
		release()
		time.Sleep(time.Second)
		wantError(t, "Show once the disk is back", show(o, old.Seq), nil)
	})
}

// A disk that hangs when the outbox is opened doesn't keep its owner from starting: the outbox works from memory, and
// takes the file up once the disk answers. The bound for a disk that fails gives up nothing that waits for that.
func TestADiskThatHangsAtTheStartIsNotWaitedFor(t *testing.T) {
	for claim, old := range map[string][]string{"a new file": nil, "one that was there": {"OLD-scheduled"}} {
		inBubble(t, outbox.Bounds{InMemory: 2}, func(t *testing.T, o *box) {
			o.add("OLD", "scheduled", "a")
			d := o.disk
			if old == nil {
				d = newDisk()
			}
			release := d.hangs("read")
			began := time.Now()
			o.restartOn(d)
			equal(t, claim+": it took to open", time.Since(began), 15*time.Second)
			new := []string{"A-scheduled", "B-scheduled", "C-scheduled", "D-scheduled"}
			for _, id := range new {
				o.addInMemory(id[:1], "scheduled", "a")
			}
			want(t, claim+": pending meanwhile", o.pending("a"), new...)
			release()
			time.Sleep(10 * time.Second)
			_, _ = o.tryAdd("E", "scheduled", "a")
			o.join()
			all := slices.Concat(old, new, []string{"E-scheduled"})
			want(t, claim+": pending once the disk is back", o.pending("a"), all...)
			want(t, claim+": dead", o.dead("a"))
			o.wantDurable()
			equal(t, claim+": lines in the log", o.log.Count("outbox written again"), 1)
		})
	}
}

// A start waits for a disk that is only slow, however long that takes: from memory it would tell again what was told.
func TestASlowDiskIsWaitedForAtTheStart(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		for i := range 10 {
			o.add(fmt.Sprint("OLD", i), "scheduled", "a")
		}
		o.disk.takes("record", 10*time.Second)
		began := time.Now()
		o.restart()
		if took := time.Since(began); took < time.Minute {
			t.Errorf("it took only %v", took)
		}
		equal(t, "pending", len(o.pending("a")), 10)
		o.wantDurable()
	})
}

// Another process may have the file open where the disk hangs at the start. Once it has ended, the file is taken up.
func TestAFileThatIsLockedAfterTheStartIsWaitedFor(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		must(t, o.Close())
		o.disk.on("open", func() error {
			o.disk.fails("open", outbox.ErrLocked)
			time.Sleep(20 * time.Second)
			return outbox.ErrLocked
		})
		o.reopen()
		time.Sleep(20 * time.Second)
		wantError(t, "Durable", o.Durable(), outbox.ErrLocked)
		equal(t, "lines in the log", o.log.Count("locked by another forewarn"), 1)
		o.diskRecovers()
		o.join()
		o.wantDurable()
	})
}
