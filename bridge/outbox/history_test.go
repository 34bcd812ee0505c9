package outbox_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// History and dead letters are kept for 90 days; marks and receipts for 30 days after their group has ended. Open
// groups and pending deliveries are kept whatever their age.
func TestRetention(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		deliver := func() {
			a := o.reader("a")
			a.Report(delivery.Report{Now: time.Now(), Accepted: a.items(), Answer: delivery.Answer{Receipt: []byte("r")}})
		}
		day := 0
		check := func(on int, marks, receipts, settled, events, dead int) {
			t.Helper()
			time.Sleep(time.Duration(on-day)*24*time.Hour + time.Second)
			day = on
			o.maintain()
			for bucket, n := range map[string]int{
				"marks": marks, "receipts": receipts, "settled": settled, "events": events, "dead": dead,
			} {
				equal(t, fmt.Sprintf("%s after %d days", bucket, day), o.disk.count(bucket), n)
			}
		}
		o.routesAre("a", "b")
		o.add("A", "scheduled", "a", "b") // stays open, and pending for b
		o.add("B", "scheduled", "a")
		o.add("B", "vanished", "a")
		deliver()
		o.add("D", "vanished", "a")
		o.reject("a")
		check(0, 4, 2, 3, 4, 1)
		check(29, 4, 2, 3, 4, 1)
		check(31, 1, 1, 3, 4, 1)
		check(89, 1, 1, 3, 4, 1)
		check(91, 1, 1, 1, 1, 0) // the outcome of A's latest change is still asked for
		o.add("A", "vanished", "a", "b")
		b := o.reader("b")
		for n, i := range b.items() {
			d, err := b.Read(i)
			if wantID := []string{"A-scheduled", "A-vanished"}[n]; err != nil || d.Event.ID() != wantID {
				t.Errorf("pending since 91 days is %s: %v, want %s", d.Event.ID(), err, wantID)
			}
		}
	})
}

// History that is exactly KeepHistory old is kept; what is older by a microsecond is not. While the clock of the VM is
// wrong and says 1970, no history is old.
func TestHistoryIsKeptForItsWholeTime(t *testing.T) {
	for _, tt := range []struct {
		claim string
		now   func(end time.Time) time.Time
		kept  int
	}{
		{"at the end of its time", func(end time.Time) time.Time { return end }, 1},
		{"just after it", func(end time.Time) time.Time { return end.Add(time.Microsecond) }, 0},
		{"in 1970", func(time.Time) time.Time { return time.Unix(0, 0) }, 1},
	} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			a := o.add("A", "vanished", "hook")
			o.accept("hook")
			must(t, <-o.Maintain(tt.now(time.UnixMicro(int64(a.Seq)).Add(outbox.KeepHistory))))
			equal(t, tt.claim+" CloudEvents", o.disk.count("events"), tt.kept)
			equal(t, tt.claim+" results", o.disk.count("settled"), tt.kept)
		})
	}
}

// The history is bounded too, except CloudEvents that something refers to. What is dropped because of the bounds is
// counted, once, and logged; what is only old isn't.
func TestHistoryIsBounded(t *testing.T) {
	for _, bounds := range []outbox.Bounds{{History: 5}, {HistoryBytes: 5 * len(body("E0-vanished"))}} {
		inBubble(t, bounds, func(t *testing.T, o *box) {
			forgot := map[string]int{}
			o.SetCallbacks(outbox.Callbacks{Forgot: func(what string, n int) { forgot[what] += n }})
			check := func(when string, kept int) {
				t.Helper()
				for range 3 {
					time.Sleep(10 * time.Minute)
					o.maintain()
				}
				when = fmt.Sprintf("%s, with %+v: ", when, bounds)
				equal(t, when+"CloudEvents", o.disk.count("events"), kept)
				equal(t, when+"dropped", fmt.Sprint(forgot), "map[history:4]")
				equal(t, when+"lines in the log", o.log.Count("oldest history dropped"), 1)
			}
			o.add("XX", "vanished", "b") // which never takes it
			for i := range 9 {
				o.add(fmt.Sprint("E", i), "vanished")
			}
			check("at first", 6)
			b := o.reader("b")
			if _, err := b.Read(b.items()[0]); err != nil {
				t.Errorf("what is pending: %v", err)
			}
			time.Sleep(outbox.KeepHistory)
			check("when all are old", 1)
		})
	}
}

// The results of deliveries are bounded like CloudEvents.
func TestResultsAreBounded(t *testing.T) {
	inBubble(t, outbox.Bounds{History: 5}, func(t *testing.T, o *box) {
		for i := range 19 {
			o.add(fmt.Sprint("E", i), "vanished", "a")
		}
		o.accept("a")
		time.Sleep(time.Second)
		o.maintain()
		equal(t, "CloudEvents", o.disk.count("events"), 5)
		equal(t, "results", o.disk.count("settled"), 5)
	})
}

// History on disk is bounded every ten minutes, and sooner once it has grown by a sixteenth of its bound.
func TestHistoryIsBoundedSoonerWhenItGrows(t *testing.T) {
	inBubble(t, outbox.Bounds{History: 160}, func(t *testing.T, o *box) {
		maintained := func(when string, more, kept int) {
			t.Helper()
			for range more {
				o.add("", "test")
			}
			time.Sleep(time.Second)
			o.maintain()
			equal(t, "CloudEvents "+when, o.disk.count("events"), kept)
		}
		maintained("at first", 160, 160)
		maintained("with ten more", 10, 170)
		maintained("with eleven more", 1, 160)
		maintained("with two more", 2, 162)
		time.Sleep(10 * time.Minute)
		maintained("ten minutes later", 0, 160)
	})
}

// Upkeep that becomes due while the disk hangs doesn't pile up: the history is walked through once for it, not once for
// each second of the hang.
func TestUpkeepDoesNotPileUpWhileTheDiskHangs(t *testing.T) {
	inBubble(t, outbox.Bounds{History: 160}, func(t *testing.T, o *box) {
		o.maintain()
		for range 11 { // as many as make the next upkeep due
			o.add("", "test")
		}
		release := o.disk.hangs("write")
		o.addInMemory("", "test")
		before := o.disk.called("walk")
		for range 9 * 60 {
			time.Sleep(time.Second)
			o.Maintain(time.Now())
		}
		release()
		time.Sleep(time.Minute)
		if n := o.disk.called("walk") - before; n > 8 { // two buckets, each twice, and what the last minute may add
			t.Errorf("after a hang of nine minutes the history is walked through %d times", n)
		}
	})
}

// If shrinking the file fails, Maintain says so, and the next write opens the file again and uses it.
func TestFileIsUsedAgainAfterFailedCompact(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("A", "scheduled", "hook")
		o.disk.fails("compact", errFull)
		wantError(t, "Maintain", <-o.Maintain(time.Now()), errFull)
		before := o.disk.called("open")
		o.add("B", "scheduled", "hook")
		if o.disk.called("open") == before {
			t.Error("the file wasn't opened again")
		}
		want(t, "pending", o.pending("hook"), "A-scheduled", "B-scheduled")
	})
}

// Heartbeats leave no history.
func TestTransientMessagesLeaveNoHistory(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.setRoutes(outbox.Route{Name: "a", Fallback: "b"})
		beat := o.heartbeat("a", "b")
		o.accept("a")
		equal(t, "its CloudEvent is there until all have it", o.holds(beat), true)
		o.accept("b")
		for _, bucket := range []string{"events", "settled", "pending"} {
			equal(t, "left of it in "+bucket, o.disk.count(bucket), 0)
		}
	})
}

// A new heartbeat takes the place of the one that is pending for its route, and of nothing else.
func TestATransientMessageReplacesTheOneBefore(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("", "started", "a")
		kept := o.heartbeat("b")
		for range 3 {
			o.heartbeat("a")
		}
		last := o.heartbeat("a")
		a, b := o.reader("a").items(), o.reader("b").items()
		if len(a) != 2 || a[0].Transient || a[1].Seq != last.Seq || len(b) != 1 || b[0].Seq != kept.Seq {
			t.Errorf("pending are %v for a and %v for b, want the last heartbeat of each", a, b)
		}
		equal(t, "stored deliveries", o.disk.count("pending"), 3)
	})
}

// However long the history is, Walk returns each CloudEvent once, with the results of its deliveries.
func TestWalkOfALongHistory(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		const n = 1200
		var b outbox.Batch
		for i := range n {
			b.Add = append(b.Add, o.addition("", fmt.Sprint("E", i), "a", "b"))
		}
		o.apply(b)
		o.accept("a")
		for _, from := range []int{0, n - 501, n - 500, n - 499} {
			var seqs []uint64
			must(t, o.Walk(b.Add[from].Seq, func(r outbox.Record) error {
				seqs = append(seqs, r.Seq)
				d := r.Deliveries
				if len(d) != 2 || d[0].State != outbox.StateAccepted || d[1].State != outbox.StatePending {
					t.Fatalf("of %d it says %+v", r.Seq, d)
				}
				return nil
			}))
			if len(seqs) != n-from || !slices.IsSorted(seqs) || len(slices.Compact(seqs)) != n-from {
				t.Errorf("from %d on it has %d, want %d in order", from, len(seqs), n-from)
			}
		}
	})
}

// Walk ends with the error of its callback. It includes records that are not on disk yet.
func TestWalkEndsWithTheErrorOfItsCallback(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		first := o.add("A", "scheduled", "a")
		o.add("B", "scheduled", "a")
		o.disk.fails("write", errFull)
		o.addInMemory("C", "scheduled", "a")
		enough := errors.New("enough")
		for _, tt := range []struct{ from, atMost, seen int }{{0, 1, 1}, {0, 2, 2}, {0, 3, 3}, {0, 4, 3}, {1, 4, 2}} {
			seen := 0
			err := o.Walk(first.Seq+uint64(tt.from), func(outbox.Record) error {
				seen++
				if seen == tt.atMost {
					return enough
				}
				return nil
			})
			if seen != tt.seen || errors.Is(err, enough) != (seen == tt.atMost) {
				t.Errorf("from %d on, and at most %d, it shows %d, and ends with %v; want %d",
					tt.from, tt.atMost, seen, err, tt.seen)
			}
		}
	})
}

// The history stays in the file that was set aside, and can be read there as far as the damage allows, also while the
// outbox that set it aside goes on.
func TestTheHistoryOfAFileThatWasSetAsideCanBeRead(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not let a mapped file be cut; CI runs this on Linux")
	}
	dir := t.TempDir()
	used(t, dir)
	o := open(t, dir, outbox.Options{})
	data, err := os.ReadFile(o.Path())
	whole := filepath.Join(t.TempDir(), "outbox.db")
	must(t, errors.Join(err, os.WriteFile(whole, data, 0o600), os.Truncate(o.Path(), 2*int64(os.Getpagesize()))))
	o.add("NEW", "scheduled", "a")
	err = outbox.ReadHistory(asides(t, dir, "damaged")[0], ignore)
	wantError(t, "reading the one that was cut", err, outbox.ErrDamaged)
	read, accepted := 0, 0
	must(t, outbox.ReadHistory(whole, func(r outbox.Record) error {
		read++
		accepted += strings.Count(fmt.Sprint(r.Deliveries), outbox.StateAccepted)
		return nil
	}))
	equal(t, "CloudEvents", read, 18)
	equal(t, "accepted deliveries", accepted, 12)
}

// The history of a damaged file whose pages lead in a circle ends too, with an error.
func TestTheHistoryOfAFileWithACircleEnds(t *testing.T) {
	o := open(t, t.TempDir(), outbox.Options{})
	o.apply(wave(o, 300, "a"))
	must(t, o.Close())
	data, err := os.ReadFile(o.Path())
	must(t, err)
	size, circles := os.Getpagesize(), 0
	for at := 2 * size; at < len(data); at += size {
		page := data[at:]
		if binary.NativeEndian.Uint64(page) == uint64(at/size) && binary.NativeEndian.Uint16(page[8:]) == 1 { // a branch
			binary.NativeEndian.PutUint64(page[16+8:], uint64(at/size))
			circles++
		}
	}
	if circles == 0 {
		t.Fatal("the file has no branches")
	}
	must(t, os.WriteFile(o.Path(), data, 0o600))
	wantError(t, "ReadHistory", outbox.ReadHistory(o.Path(), ignore), outbox.ErrDamaged)
}

// Of a damaged file the history is read up to the damage.
func TestTheHistoryBeforeTheDamageIsRead(t *testing.T) {
	o := open(t, t.TempDir(), outbox.Options{})
	for i := range 300 {
		o.add(fmt.Sprintf("E%04d", i), "scheduled", "a")
	}
	o.accept("a")
	must(t, o.Close())
	data, err := os.ReadFile(o.Path())
	must(t, err)
	size := os.Getpagesize()
	for at := 2 * size; at < len(data); at += size {
		page := data[at : at+size]
		if bytes.Contains(page, body("E0299-scheduled")) {
			binary.NativeEndian.PutUint16(page[8:], 0) // it is of no kind any more
		}
	}
	must(t, os.WriteFile(o.Path(), data, 0o600))
	read, accepted := 0, 0
	err = outbox.ReadHistory(o.Path(), func(r outbox.Record) error {
		read++
		accepted += strings.Count(fmt.Sprint(r.Deliveries), outbox.StateAccepted)
		return nil
	})
	wantError(t, "ReadHistory", err, outbox.ErrDamaged)
	if read < 200 || accepted != read {
		t.Errorf("%d CloudEvents are read, and %d that were accepted, want what comes before the damage", read, accepted)
	}
}

// A change doesn't wait until a slow disk has been looked through for history that is to be dropped.
func TestAChangeDoesNotWaitForUpkeep(t *testing.T) {
	inBubble(t, outbox.Bounds{History: 50}, func(t *testing.T, o *box) {
		for i := range 100 {
			o.add("", fmt.Sprint("test-", i))
		}
		o.disk.takes("record", time.Second)
		done := o.Maintain(time.Now())
		for range 3 {
			time.Sleep(time.Second / 2)
			began := time.Now()
			o.add("", "test")
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("a change waits %v", took)
			}
		}
		must(t, <-done)
		equal(t, "CloudEvents kept", o.disk.count("events"), 50)
	})
}
