package outbox_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/outbox"
)

// addMany commits a change of many events at once, more than what is written in one transaction.
func addMany(o *outbox.Outbox, prefix string, n int) error {
	b := outbox.Batch{Now: time.Now(), Groups: map[string]*outbox.Group{}, Marks: map[string]outbox.Mark{}}
	for i := range n {
		a := addition(o, fmt.Sprint(prefix, i), "scheduled", "a", "b")
		a.Body = append(body(a.ID), strings.Repeat(" ", 300)...)
		b.Add = append(b.Add, a)
		b.Groups[a.Group] = groupWith(a)
		b.Marks[a.ID] = outbox.Mark{Times: 1, Group: a.Group, At: b.Now}
	}
	return o.Apply(b)
}

var small = outbox.Bounds{Transaction: 2000}

// A large change is written in parts, but counts whole or not at all: a crash between two parts leaves nothing of it,
// neither visible nor in the file.
func TestLargeChangeIsWholeOrAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d, Bounds: small})
		mustAdd(t, o, "FIRST", "scheduled", "a")
		before := len(d.recorded())
		if err := addMany(o, "W", 50); err != nil {
			t.Fatal(err)
		}
		o.Close()
		all := d.recorded()
		if n := len(all) - before; n < 10 {
			t.Fatalf("it was written in %d transactions, want many", n)
		}
		for n := before; n <= len(all); n++ {
			left := diskOf(all[:n])
			o := open(t, t.TempDir(), outbox.Options{Storage: left, Bounds: small})
			want := 1
			if n == len(all) {
				want = 51
			}
			if a, b, g, h := len(pending(o, "a")), len(pending(o, "b")), len(o.Groups()), len(bodies(o)); a != want ||
				b != want-1 || g != want || h != want {
				t.Errorf("after %d of %d transactions %d and %d are pending of %d groups, and there are %d CloudEvents; want %d",
					n-before, len(all)-before, a, b, g, h, want)
			}
			if e, h, p := left.count("events"), left.count("heads"), left.count("pending"); e != want || h != want ||
				p != 2*want-1 {
				t.Errorf("after %d of %d transactions the file has %d CloudEvents, %d heads and %d deliveries; want %d",
					n-before, len(all)-before, e, h, p, want)
			}
			if err := addMany(o, "X", 50); err != nil { // it goes on as if nothing had been
				t.Fatal(err)
			}
			o.Close()
			o = open(t, t.TempDir(), outbox.Options{Storage: diskOf(left.recorded()), Bounds: small})
			if a := len(pending(o, "a")); a != want+50 {
				t.Errorf("after another change %d are pending, want %d", a, want+50)
			}
			o.Close()
		}
	})
}

// While a disk writes one part after another it doesn't count as failing, however long a large change takes. Once it
// stops writing it does.
func TestLargeChangeMayTakeLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, log := diskOf(nil), &lines{}
		bounds := small
		bounds.InMemory = 10
		o := open(t, t.TempDir(), outbox.Options{Storage: d, Bounds: bounds, Log: log.logger()})
		d.set(func() { d.takes = time.Second })
		began := time.Now()
		if err := addMany(o, "W", 50); err != nil {
			t.Errorf("the change is said not to be on disk: %v", err)
		}
		if took := time.Since(began); took < 10*time.Second {
			t.Errorf("it took %v, want longer than a disk may be silent", took)
		}
		if n, dead := len(pending(o, "a")), o.Totals().Dead; n != 50 || dead != 0 {
			t.Errorf("%d are pending and %d dead, want 50 and none", n, dead)
		}
		d.set(func() { d.takes = 6 * time.Second })
		if err := addMany(o, "X", 50); err == nil {
			t.Error("a disk that is silent for 6 s is said to be well")
		}
		synctest.Wait()
		if n := strings.Count(log.String(), "level=ERROR msg=\"the outbox cannot be written"); n != 1 {
			t.Errorf("the log says %d times that the disk fails, want once:\n%s", n, log)
		}
		d.set(func() { d.takes = 0 })
		o.Close()
	})
}

// If writing a part fails, or only its answer is lost, the change is written in one transaction: the failed part may
// have been the last, so that the change counts already, and a crash must not undo that.
func TestFailedLargeChangeIsRepeatedInOneTransaction(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for n := range 12 {
			synctest.Test(t, func(t *testing.T) {
				d := diskOf(nil)
				o := open(t, t.TempDir(), outbox.Options{Storage: d, Bounds: small})
				mustAdd(t, o, "FIRST", "scheduled", "a")
				before := d.transactions()
				d.set(func() { d.failIn, d.lose = n+1, lost })
				if err := addMany(o, "W", 20); err == nil {
					t.Skip("it has fewer parts")
				}
				time.Sleep(6 * time.Second)
				synctest.Wait()
				if again := d.transactions() - before - (n + 1); again != 1 || o.Durable() != nil {
					t.Errorf("then it was written in %d transactions, Durable = %v", again, o.Durable())
				}
				o.Close()
				o = open(t, t.TempDir(), outbox.Options{Storage: diskOf(d.recorded())})
				if a, b := len(pending(o, "a")), len(bodies(o)); a != 21 || b != 21 {
					t.Errorf("%d are pending and %d CloudEvents there, want 21", a, b)
				}
				o.Close()
			})
		}
	}
}

// A file with parts of an unfinished change is loaded without them, even if the disk can't be written at the start.
// They are removed once it can.
func TestFileWithPartsIsReadWhileTheDiskFails(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := diskOf(nil)
			o := open(t, t.TempDir(), outbox.Options{Storage: d, Bounds: small})
			mustAdd(t, o, "FIRST", "scheduled", "a")
			before := d.transactions()
			if err := addMany(o, "W", 50); err != nil {
				t.Fatal(err)
			}
			o.Close()

			left := diskOf(d.recorded()[:before+3])
			left.set(func() { left.fail, left.lose = errFull, lost })
			o = open(t, t.TempDir(), outbox.Options{Storage: left, Bounds: small})
			if a, b, g, h := len(pending(o, "a")), len(pending(o, "b")), len(o.Groups()), len(bodies(o)); a != 1 || b != 0 ||
				g != 1 || h != 1 {
				t.Errorf("lost %v: %d and %d are pending of %d groups, %d CloudEvents; want what is whole", lost, a, b, g, h)
			}
			if !lost && o.Durable() == nil { // else there may be nothing left to remove, and to fail
				t.Error("it is durable on a disk that can't be written")
			}
			time.Sleep(time.Second) // or the next CloudEvents get the numbers of those that are to be removed
			if err := addMany(o, "X", 50); err == nil {
				t.Errorf("lost %v: another change is said to be on disk", lost)
			}
			if h := len(bodies(o)); h != 51 {
				t.Errorf("lost %v: meanwhile the history has %d CloudEvents, want 51", lost, h)
			}
			left.set(func() { left.fail, left.lose = nil, false })
			time.Sleep(6 * time.Second)
			synctest.Wait()
			if err := o.Durable(); err != nil {
				t.Errorf("lost %v: then Durable = %v", lost, err)
			}
			if e, h := left.count("events"), left.count("heads"); e != 51 || h != 51 {
				t.Errorf("lost %v: the file has %d CloudEvents and %d heads, want 51", lost, e, h)
			}
			o.Close()
			o = open(t, t.TempDir(), outbox.Options{Storage: diskOf(left.recorded()), Bounds: small})
			if a, h := len(pending(o, "a")), len(bodies(o)); a != 51 || h != 51 {
				t.Errorf("lost %v: after a restart %d are pending and %d CloudEvents there, want 51", lost, a, h)
			}
			o.Close()
		})
	}
}

// Parts of an unfinished change are ignored by OpenReadOnly, also if the file has nothing else.
func TestPartsAreIgnoredWhenReadOnly(t *testing.T) {
	for _, before := range []int{0, 1} {
		dir := t.TempDir()
		o := open(t, dir, outbox.Options{})
		o.Own("vm-0")
		if before > 0 {
			mustAdd(t, o, "FIRST", "scheduled", "a")
		}
		o.Close()
		stop := &stopping{Storage: outbox.File(dir, slog.New(slog.DiscardHandler)), after: 4}
		o = open(t, dir, outbox.Options{Storage: stop, Bounds: small})
		if err := addMany(o, "W", 20); !errors.Is(err, errFull) {
			t.Fatalf("Apply = %v, want that the disk is full", err)
		}
		o.Close()
		o, err := outbox.OpenReadOnly(dir)
		if err != nil {
			t.Fatal(err)
		}
		if a, b, g := len(pending(o, "a")), len(bodies(o)), len(o.Groups()); a != before || b != before || g != before {
			t.Errorf("%d are pending, there are %d CloudEvents and %d groups; want %d", a, b, g, before)
		}
		o.Close()
	}
}

// stopping is a storage that fails after some transactions.
type stopping struct {
	outbox.Storage
	after int
}

func (s *stopping) Write(writes []outbox.Write) error {
	if s.after--; s.after < 0 {
		return errFull
	}
	return s.Storage.Write(writes)
}
