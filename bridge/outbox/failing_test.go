package outbox_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// Where no file can be created, the outbox works from memory and says so. Once one can, everything is written.
func TestWithoutADiskItWorksFromMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, log := notADirectory(t), &lines{}
		o := open(t, dir, outbox.Options{Log: log.logger()})
		if o.Durable() == nil {
			t.Error("Durable = nil")
		}
		q := o.Queue("a")
		if _, err := add(o, "A", "scheduled", "a"); err == nil {
			t.Error("it is said to be on disk")
		}
		ids, _ := changes(q)
		want(t, "delivered from memory", ids, "A-scheduled")
		synctest.Wait() // the writer may say so after add has heard of it
		if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
			t.Errorf("%d errors are logged, want the one that says so:\n%s", n, log)
		}
		comes(t, dir, "")
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if err := o.Durable(); err != nil || !strings.Contains(log.String(), "outbox written again") {
			t.Errorf("Durable = %v, the log says %s", err, log)
		}
		if n := o.InMemory(); n != 0 {
			t.Errorf("%d count as in memory only", n)
		}
		o.Close()
		o = open(t, dir, outbox.Options{})
		want(t, "pending", pending(o, "a"), "A-scheduled")
		o.Close()
	})
}

// A write costs what waits to be written, so a disk that fails is not tried more often because more comes.
func TestAFailingDiskIsTriedEveryFewSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d, Bounds: outbox.Bounds{History: 16}})
		defer o.Close()
		if err := <-o.Maintain(time.Now()); err != nil {
			t.Fatal(err)
		}
		for i := range 3 { // so that the history has grown enough to be shortened
			mustAdd(t, o, fmt.Sprint("A", i), "scheduled", "a")
		}
		d.set(func() { d.fail, d.writes = errFull, 0 })
		for i := range 60 { // whatever happens meanwhile
			_, _ = add(o, fmt.Sprint("E", i), "scheduled", "a")
			o.Maintain(time.Now())
			time.Sleep(time.Second)
		}
		d.set(func() {
			if d.writes > 13 {
				t.Errorf("%d writes were tried in a minute, want one every five seconds", d.writes)
			}
			d.fail = nil
		})
		time.Sleep(6 * time.Second)
		if err := o.Durable(); err != nil {
			t.Errorf("Durable = %v", err)
		}
	})
}

// While the disk fails, deliveries that are only in memory are bounded, those on disk stay, and everything is written
// once the disk works again.
func TestFailingDiskStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		var died []string
		o := open(t, t.TempDir(), outbox.Options{Storage: d, Bounds: outbox.Bounds{InMemory: 5}})
		o.SetCallbacks(outbox.Callbacks{Dead: func(list []outbox.Delivery) { died = append(died, ids(list)...) }})
		mustAdd(t, o, "", "ON-DISK", "down")
		d.set(func() { d.fail = errFull })
		q := o.Queue("a")
		for i := range 8 {
			if _, err := add(o, fmt.Sprint("E", i), "scheduled", "a", "down"); !errors.Is(err, errFull) {
				t.Errorf("Apply = %v, want that the disk is full", err)
			}
			c := q.Changes()
			if len(c.Pending) != 1 {
				t.Fatalf("%d are to be delivered, want 1", len(c.Pending))
			}
			q.Report(delivery.Report{Now: time.Now(), Accepted: c.Pending})
			time.Sleep(time.Second)
		}
		want(t, "pending", pending(o, "down"), "ON-DISK", "E4-scheduled", "E5-scheduled", "E6-scheduled", "E7-scheduled")
		want(t, "dead", deadLetters(o, "down"), "E0-scheduled", "E1-scheduled", "E2-scheduled", "E3-scheduled")
		want(t, "told of", died, "E0-scheduled", "E1-scheduled", "E2-scheduled", "E3-scheduled")
		if n := o.InMemory(); n != 4 { // and there was one for a
			t.Errorf("%d are in memory only, want 4", n)
		}
		down := o.Queue("down")
		down.Report(delivery.Report{Now: time.Now(), Failed: down.Changes().Pending, Error: "down"})
		if n := o.InMemory(); n != 4 {
			t.Errorf("%d are in memory only after an attempt, want 4", n)
		}
		d.set(func() { d.fail = nil })
		time.Sleep(6 * time.Second)
		if err := o.Durable(); err != nil || o.InMemory() != 0 {
			t.Errorf("Durable = %v, %d in memory only", err, o.InMemory())
		}
		for i := range 8 { // memory has room again
			mustAdd(t, o, fmt.Sprint("F", i), "scheduled", "down")
		}
		o.Close()
		o = open(t, t.TempDir(), outbox.Options{Storage: diskOf(d.recorded())})
		if n, m, k := len(pending(o, "down")), len(deadLetters(o, "down")), len(pending(o, "a")); n != 13 || m != 4 ||
			k != 0 {
			t.Errorf("on disk are %d pending and %d dead, and %d pending for the other; want 13, 4, 0", n, m, k)
		}
		o.Close()
	})
}

// A change that is given up because memory is full takes with it what is older of its event, on disk, where only the
// newest counts: people would be told what no longer holds. Elsewhere the older ones stay, as what they are.
func TestWhatIsOlderOfAnEventGoesWithTheChangeThatMemoryHasNoRoomFor(t *testing.T) {
	for late, stays := range map[delivery.Late][]string{
		delivery.LateSend: {"A-vanished", "B-scheduled"}, delivery.LateLatest: {"B-scheduled"}, delivery.LateDrop: {"B-scheduled"},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := diskOf(nil)
			o := open(t, t.TempDir(), outbox.Options{Storage: d, Bounds: outbox.Bounds{InMemory: 1}})
			if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "chat", Late: late}); err != nil {
				t.Fatal(err)
			}
			mustAdd(t, o, "A", "vanished", "chat")
			mustAdd(t, o, "B", "scheduled", "chat")
			d.set(func() { d.fail = errFull })
			_, _ = add(o, "A", "scheduled-r2", "chat")
			_, _ = add(o, "C", "scheduled", "chat")
			want(t, "pending of a route with late: "+string(late), pending(o, "chat"), append(stays, "C-scheduled")...)
			d.set(func() { d.fail = nil })
			o.Close()
		})
	}
}

// While the disk fails, dead letters and history are bounded too, and pending deliveries keep their CloudEvents.
func TestMemoryIsBoundedWhileTheDiskFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		forgot := map[string]int{}
		o := open(t, t.TempDir(), outbox.Options{Storage: d, Bounds: outbox.Bounds{InMemory: 10}})
		o.SetCallbacks(outbox.Callbacks{Forgot: func(what string, n int) { forgot[what] += n }})
		d.set(func() { d.fail = errFull })
		open1, _ := add(o, "OPEN", "scheduled")
		q := o.Queue("a")
		var first outbox.Addition
		for i := range 200 {
			a, _ := add(o, fmt.Sprint("E", i), "vanished", "a")
			if i == 0 {
				first = a
			}
			report := delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending}
			if i%2 == 0 {
				report.Accepted, report.Dead, report.Reason = nil, report.Accepted, delivery.ReasonRejected
			}
			q.Report(report)
			synctest.Wait() // what a try to write has taken is not bounded until it fails
		}
		if n := len(deadLetters(o, "a")); n != 10 || forgot[outbox.ForgotDeadLetter] != 90 {
			t.Errorf("%d dead letters are kept and %d forgotten, want 10 and 90", n, forgot[outbox.ForgotDeadLetter])
		}
		if n := len(bodies(o)); n > 10+2*10+40 || forgot[outbox.ForgotHistory] == 0 {
			t.Errorf("%d CloudEvents are in memory, %d records of history were forgotten", n, forgot[outbox.ForgotHistory])
		}
		if kept := bodies(o); !kept[open1.Seq] || kept[first.Seq] {
			t.Errorf("of what is open the newest change is kept: %v; the oldest change is kept: %v", kept[open1.Seq], kept[first.Seq])
		}
		for _, key := range o.List(outbox.Selection{}) {
			if _, _, err := o.Show(key.Key); err != nil {
				t.Errorf("%s: %v", key.Key, err)
			}
		}
		d.set(func() { d.fail = nil })
		time.Sleep(6 * time.Second)
		o.Close()
		o = open(t, t.TempDir(), outbox.Options{Storage: diskOf(d.recorded())})
		if n := len(deadLetters(o, "a")); n != 10 {
			t.Errorf("%d dead letters are on disk, want 10", n)
		}
		o.Close()
	})
}

// What comes and goes while the file cannot be opened leaves nothing, so that a service without a state directory that
// sends heartbeats doesn't grow. Nobody waits for it to be written.
func TestWhatComesAndGoesWithoutAFileLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		for claim, most := range map[string]int{"a new file": 20, "one that was there": 0} {
			if most == 0 {
				o := open(t, t.TempDir(), outbox.Options{Storage: d})
				mustAdd(t, o, "A", "scheduled", "b")
				o.Close()
				d = diskOf(d.recorded())
			}
			c, before := &closed{disk: d}, len(d.recorded())
			o := open(t, t.TempDir(), outbox.Options{Storage: c})
			q := o.Queue("a")
			for i := range 1000 {
				beat := addition(o, "", fmt.Sprint("heartbeat-", i), "a")
				beat.Transient = true
				_ = apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{beat}})
				q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending})
			}
			d.set(func() { c.works = true })
			time.Sleep(6 * time.Second)
			joins(o)
			n := 0
			for _, writes := range d.recorded()[before:] {
				n += len(writes)
			}
			if n > most+1 || o.Durable() != nil { // 1: the sequence number
				t.Errorf("%s: %d records were kept to be written; durable: %v", claim, n, o.Durable())
			}
			if err := apply(o, time.Now(), outbox.Batch{}); err != nil {
				t.Error(err)
			}
			o.Close()
			d = diskOf(d.recorded())
		}
	})
}

// A group of which nothing is pending, open or remembered takes no memory.
func TestFinishedGroupsTakeNoMemory(t *testing.T) {
	o := open(t, t.TempDir(), outbox.Options{})
	if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	q := o.Queue("a")
	heap := func(from int) uint64 {
		const n = 2000
		b := outbox.Batch{}
		for i := range n {
			a := addition(o, fmt.Sprint("GROUP", from*n+i), "test", "a")
			a.Transient = true
			b.Add = append(b.Add, a)
		}
		if err := apply(o, time.Now(), b); err != nil {
			t.Fatal(err)
		}
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Durable: true})
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	heap(0)
	before := heap(1)
	if after := min(heap(2), heap(3), heap(4)); after > before+128<<10 { // one may come while the writer still holds some
		t.Errorf("2,000 finished groups take %d KiB", (after-before)>>10)
	}
}

// closed is a disk that cannot be opened at first.
type closed struct {
	*disk
	works bool
}

func (c *closed) Open() (bool, error) {
	c.mu.Lock()
	works := c.works
	c.mu.Unlock()
	if !works {
		return false, errFull
	}
	return c.disk.Open()
}

// A hanging disk delays one change, for at most diskPatience, and no read of the outbox. Changes made meanwhile are
// written when the disk works again.
func TestHangingDiskDelaysOneChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		mustAdd(t, o, "A", "scheduled", "a")
		q := o.Queue("a")
		changes(q)
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		began := time.Now()
		wait := submit(o, began, outbox.Batch{Add: []outbox.Addition{addition(o, "B", "scheduled", "a")}})
		synctest.Wait()
		if got, _ := changes(q); len(got) != 0 {
			t.Errorf("%v leave before they are on disk", got)
		}
		o.Groups()
		o.Stats()
		o.Totals()

		o.Delivery("a", 1)
		o.Mark("x", "x")
		o.List(outbox.Selection{})
		o.Queue("other").Changes()
		if _, err := own(o, "vmid-0"); err != nil || !time.Now().Equal(began) {
			t.Errorf("Own = %v after %v", err, time.Since(began))
		}
		if err := wait(); err == nil || time.Since(began) != 5*time.Second {
			t.Errorf("the change = %v after %v", err, time.Since(began))
		}
		got, _ := changes(q)
		want(t, "delivered from memory", got, "B-scheduled")
		if _, err := add(o, "C", "scheduled", "a"); err == nil || time.Since(began) != 5*time.Second {
			t.Errorf("the next change = %v after %v", err, time.Since(began))
		}
		d.set(func() { d.hang = nil })
		close(hang)
		synctest.Wait()
		if err := o.Durable(); err != nil || o.InMemory() != 0 {
			t.Errorf("Durable = %v, %d in memory only", err, o.InMemory())
		}
		o.Close()
		o = open(t, t.TempDir(), outbox.Options{Storage: diskOf(d.recorded())})
		want(t, "pending", pending(o, "a"), "A-scheduled", "B-scheduled", "C-scheduled")
		if o.Owner() != "vmid-0" {
			t.Errorf("it belongs to %q", o.Owner())
		}
		o.Close()
	})
}

// A delivery that its reader got while the disk was failing is shown with every later change, even if the disk has not
// written it since. A reader that keeps an old attempt would send again to those who have it.
func TestReaderHearsOfWhatItGotFromMemory(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		q, first, second := o.Queue("a"), make(chan struct{}), make(chan struct{})
		d.set(func() { d.hang = first })
		submit(o, time.Now(), outbox.Batch{Values: map[string][]byte{"x": []byte("y")}})
		time.Sleep(6 * time.Second)
		_, _ = add(o, "A", "scheduled", "a")
		items := q.Changes().Pending
		if len(items) != 1 {
			t.Fatalf("while the disk counts as failing, the reader gets %d deliveries, want A", len(items))
		}
		d.set(func() { d.hang = second })
		close(first)
		synctest.Wait()
		q.Report(delivery.Report{Now: time.Now(), Failed: items, Error: "451", Batch: items[0].Seq,
			Answer: delivery.Answer{Progress: []byte("A has it")}})
		if got := q.Changes().Pending; len(got) != 1 || got[0].Attempts != 1 || string(got[0].Progress) != "A has it" {
			t.Errorf("after the attempt the reader gets %d deliveries, want A with its attempt and progress", len(got))
		}
		d.set(func() { d.hang = nil })
		close(second)
	})
}

// Close doesn't wait long for a hanging disk, and says how many deliveries are lost.
func TestCloseSaysWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o, err := outbox.Open(t.TempDir(), outbox.Options{Storage: d})
		if err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "scheduled", "a")
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		_, _ = add(o, "B", "scheduled", "a")
		began := time.Now()
		if err := o.Close(); err == nil || !strings.Contains(err.Error(), "1 delivery is lost") ||
			time.Since(began) > 6*time.Second {
			t.Errorf("Close = %v after %v", err, time.Since(began))
		}
		close(hang)
	})
	synctest.Test(t, func(t *testing.T) { // and a last try may save it
		d := diskOf(nil)
		o, _ := outbox.Open(t.TempDir(), outbox.Options{Storage: d})
		d.set(func() { d.fail = errFull })
		_, _ = add(o, "B", "scheduled", "a")
		d.set(func() { d.fail = nil })
		if err := o.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
		if d.count("pending") != 1 {
			t.Error("it isn't on disk")
		}
	})
}

// A worker may be 32 reported deliveries or 50 ms ahead of the disk; one with Durable never is.
func TestReportsAreGrouped(t *testing.T) {
	for _, durable := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := diskOf(nil)
			o := open(t, t.TempDir(), outbox.Options{Storage: d})
			for i := range 100 {
				mustAdd(t, o, fmt.Sprint("E", i), "scheduled", "a")
			}
			q := o.Queue("a")
			before, most := d.transactions(), 0
			for i, item := range q.Changes().Pending {
				q.Report(delivery.Report{Now: time.Now(), Accepted: []*delivery.Item{item}, Durable: durable})
				most = max(most, i+1-d.count("settled"))
			}
			if wantMost := 31; !durable && most != wantMost || durable && most != 0 {
				t.Errorf("durable %v: %d were not on disk", durable, most)
			}
			if n := d.transactions() - before; !durable && n != 3 {
				t.Errorf("%d transactions, want 3", n)
			}
			time.Sleep(50 * time.Millisecond)
			synctest.Wait()
			if n := d.count("settled"); n != 100 {
				t.Errorf("%d are on disk after 50 ms, want 100", n)
			}
			o.Close()
		})
	}
}

// A change is written in one transaction, whatever its size.
func TestOneChangeIsOneTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		step := func(claim string, f func() error) {
			t.Helper()
			synctest.Wait()
			batches, writes := len(d.recorded()), d.transactions()
			if err := f(); err != nil {
				t.Errorf("%s: %v", claim, err)
			}
			time.Sleep(time.Second)
			if n, m := len(d.recorded())-batches, d.transactions()-writes; n != 1 || m != 1 {
				t.Errorf("%s: %d batches in %d transactions, want 1 in 1", claim, n, m)
			}
		}
		step("routes", func() error {
			_, _, err := setRoutes(o, time.Now(), []outbox.Route{{Name: "a", Fallback: "b"}, {Name: "b"}}...)
			return err
		})
		step("10,000 events", func() error {
			b := wave(o, 20_000, "a", "b")
			b.Values = map[string][]byte{"x": []byte("y")}
			return apply(o, time.Now(), b)
		})
		q := o.Queue("a")
		items := q.Changes().Pending
		step("500 fall back", func() error { q.Report(delivery.Report{Now: time.Now(), FellBack: items[:500]}); return nil })
		step("500 die", func() error {
			q.Report(delivery.Report{Now: time.Now(), Dead: items[:500], Reason: delivery.ReasonExpired})
			return nil
		})
		var keys []string
		for _, l := range o.List(outbox.Selection{State: outbox.StateDead}) {
			keys = append(keys, l.Key)
		}
		step("500 are replayed", func() error { _, err := replay(o, keys, "", "root"); return err })
		step("500 are dropped", func() error { _, err := drop(o, keys, "x"); return err })
		step("a route goes", func() error { _, _, err := setRoutes(o, time.Now(), []outbox.Route{{Name: "b"}}...); return err })
		step("its backlog is given up", func() error { o.Maintain(time.Now().Add(25 * time.Hour)); return nil })
		if n := len(deadLetters(o, "a")); n != 9500 {
			t.Errorf("%d dead letters, want 9,500", n)
		}
		o.Close()
	})
}

// A disk that is slow, so that what is pending counts as in memory only for a while, makes nobody give up anything.
func TestASlowDiskGivesNothingUp(t *testing.T) {
	inBubble(t, outbox.Options{Bounds: outbox.Bounds{InMemory: 5}}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		d.set(func() { d.takes = 8 * time.Second })
		batch := outbox.Batch{}
		for i := range 20 {
			batch.Add = append(batch.Add, addition(o, fmt.Sprint("E", i), "scheduled", "a"))
		}
		if err := apply(o, time.Now(), batch); err == nil {
			t.Error("the disk counts as quick")
		}
		_, _ = add(o, "LATER", "scheduled", "a")
		time.Sleep(time.Minute)
		if n, err := len(pending(o, "a")), o.Durable(); n != 21 || err != nil {
			t.Errorf("%d are pending, want 21; Durable = %v", n, err)
		}
		want(t, "dead", deadLetters(o, "a"))
	})
}

// Maintenance may take as long as it needs while the disk answers: nobody takes that for a disk that fails.
func TestLongMaintenanceIsNoFailure(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		for i := range 10 {
			mustAdd(t, o, fmt.Sprint("E", i), "scheduled", "a")
		}
		d.set(func() { d.walks = time.Second })
		done := o.Maintain(time.Now())
		for range 9 {
			time.Sleep(time.Second)
			if err := o.Durable(); err != nil {
				t.Errorf("Durable = %v", err)
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A disk that hangs in a read is waited for once, and reads don't pile up. What is in memory can be read meanwhile.
func TestAReadThatHangsIsWaitedForOnce(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		old := mustAdd(t, o, "OLD", "scheduled", "a")
		end(t, o, "OLD")
		hang := make(chan struct{})
		d.set(func() { d.misses, d.hang = hang, hang })
		began := time.Now()
		for range 100 {
			if _, err := bodyOf(o, "a", old.Seq); err == nil || errors.Is(err, delivery.ErrLost) {
				t.Fatalf("Show = %v, want that the disk is slow", err)
			}
		}
		if waited := time.Since(began); waited > 5*time.Second {
			t.Errorf("100 reads took %v, want 5s", waited)
		}
		fresh, _ := add(o, "NEW", "scheduled", "a")
		if _, err := bodyOf(o, "a", fresh.Seq); err != nil {
			t.Errorf("what is in memory: %v", err)
		}
		d.mu.Lock()
		if d.missing != 1 {
			t.Errorf("%d reads hang, want 1", d.missing)
		}
		d.mu.Unlock()
		d.set(func() { d.misses, d.hang = nil, nil })
		close(hang)
		time.Sleep(time.Second)
		if _, err := bodyOf(o, "a", old.Seq); err != nil {
			t.Errorf("once the disk is back: %v", err)
		}
	})
}
