package outbox_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// After a restart the committed state is there: pending deliveries, dead letters, groups, marks, values, routes,
// receipts, CloudEvents, and the results of their deliveries.
func TestCommittedStateIsThereAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := open(t, t.TempDir(), outbox.Options{})
		now := time.Now()
		o.routesAre("a", "b", "gone")
		o.routesAre("a", "b")
		equal(t, "a new outbox was another VM's", o.own("vmid-0"), false)
		first := o.add("A", "scheduled", "a", "b")
		second := o.add("A", "started", "a", "b")
		replaced := o.addition("B", "vanished", "a")
		replaced.Replaced = true
		o.apply(outbox.Batch{
			Values: map[string][]byte{"observer": []byte("vm-0")}, Add: []outbox.Addition{replaced},
		})
		a, b := o.reader("a"), o.reader("b")
		a.Report(delivery.Report{
			Now: now, Accepted: a.items()[:1], Answer: delivery.Answer{Status: "204", ID: "x", Receipt: []byte("thread")},
		})
		items := b.items()
		b.Report(delivery.Report{
			Now: now, Failed: items[:1], Error: "down", Next: now.Add(time.Second), Batch: 7,
			Answer: delivery.Answer{Progress: []byte("half")},
		})
		b.reject(items[1])
		o.restart()

		equal(t, "the log of a good file", o.log.String(), "")
		want(t, "pending for a", o.pending("a"), "A-started", "B-vanished")
		want(t, "pending for b", o.pending("b"), "A-scheduled")
		want(t, "dead for b", o.dead("b"), "A-started")
		if d := o.Delivery("b", second.Seq); d.State != outbox.StateDead || !d.DeadSince.Equal(now) {
			t.Errorf("the newest is %+v for b, want dead since %v", d, now)
		}
		groups := o.Groups()
		if g := groups["A"]; len(groups) != 1 || string(g.State) != `"started"` || g.Latest != second.Seq {
			t.Errorf("the groups are %+v, want A, which has started", groups)
		}
		if m := o.Mark("A", "A-scheduled"); m.Times != 1 || m.Group != "A" || !m.At.Equal(now) {
			t.Errorf("the mark is %+v", m)
		}
		equal(t, "the value", string(o.Value("observer")), "vm-0")
		equal(t, "the owner", o.Owner(), "vmid-0")
		added, back := o.newRoutes("a", "gone", "c")
		want(t, "new routes", added, "c")
		want(t, "routes that return", back, "gone")
		r := o.history()[0].Deliveries[0]
		equal(t, "its time is now", r.At.Equal(now), true)
		r.At = time.Time{}
		equal(t, "the result", r, outbox.Result{
			Route: "a", State: outbox.StateAccepted, Attempts: 1, Answer: "204", AnswerID: "x",
		})
		a = o.reader("a")
		items = a.items()
		if items[0].Replaced || !items[1].Replaced {
			t.Errorf("the items are %+v, want only the second to be replaced", items)
		}
		d, err := a.Read(items[0])
		if err != nil || d.Event.ID() != "A-started" || string(d.Receipt) != "thread" {
			t.Errorf("Read = %+v, %v", d, err)
		}
		i := o.reader("b").items()[0]
		if i.Seq != first.Seq || i.Attempts != 1 || i.Error != "down" || string(i.Progress) != "half" || i.Batch != 7 ||
			!i.Next.Equal(now.Add(time.Second)) {
			t.Errorf("the item is %+v", i)
		}
		if seq := o.reserve(now.Add(-time.Hour)); seq <= second.Seq {
			t.Errorf("the sequence number went back to %d", seq)
		}
		if file := o.takeOver(); file.Groups != nil || file.Values != nil {
			t.Errorf("it counts as a file that returned, with %+v", file)
		}
	})
}

// Only one process can have an outbox open. Meanwhile no other can read it. Who reads it can't change it.
func TestOnlyOneProcessOpensAnOutbox(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	o.add("A", "scheduled", "a")
	_, err := outbox.Open(dir, outbox.Options{})
	wantError(t, "Open", err, outbox.ErrLocked)
	_, err = outbox.OpenReadOnly(dir)
	wantError(t, "OpenReadOnly", err, outbox.ErrLocked)
	must(t, o.Close())
	for range 2 {
		r, err := outbox.OpenReadOnly(dir)
		must(t, err)
		defer r.Close()
		want(t, "pending", ids(r.List(outbox.Selection{})), "A-scheduled")
		if err := r.Update(time.Now(), func(*outbox.Tx) { t.Error("it can be changed") })(); err == nil {
			t.Error("a change is said to be made")
		}
		if err := <-r.Maintain(time.Now()); err == nil {
			t.Error("it can be maintained")
		}
	}
}

// After Close no change is reported as being on disk, and nothing is written.
func TestNothingIsWrittenAfterClose(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		must(t, o.Close())
		before := o.disk.called("write")
		o.addInMemory("A", "scheduled", "a")
		select {
		case err := <-o.Maintain(time.Now()):
			if err == nil {
				t.Error("it can be maintained")
			}
		default:
			t.Error("Maintain says nothing at once")
		}
		time.Sleep(time.Minute)
		equal(t, "transactions", o.disk.called("write")-before, 0)
	})
}

// Close fails only when deliveries are lost, and says how many: not if nothing was pending, and not if everything is on
// disk but the file could not be closed.
func TestCloseSaysWhatIsLost(t *testing.T) {
	for _, tt := range []struct {
		fails   string // a call of the disk
		pending int
		want    string
	}{
		{"", 1, "<nil>"},
		{"write", 0, "<nil>"},
		{"write", 1, "1 delivery is lost, it was only in memory: no space left on device"},
		{"write", 2, "2 deliveries are lost, they were only in memory: no space left on device"},
		{"close", 1, "<nil>"},
	} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			o.disk.fails(tt.fails, errFull)
			for i := range tt.pending {
				_ = o.submit(changeOf(o.addition(fmt.Sprint("E", i), "scheduled", "a")))
			}
			what := fmt.Sprintf("Close with %d pending, and a failing %q", tt.pending, tt.fails)
			equal(t, what, fmt.Sprint(o.Close()), tt.want)
		})
	}
}

// Close tries once more to write what is only in memory.
func TestCloseWritesWhatIsOnlyInMemory(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.disk.fails("write", errFull)
		o.addInMemory("A", "scheduled", "a")
		o.disk.works()
		must(t, o.Close())
		equal(t, "deliveries on disk", o.disk.count("pending"), 1)
	})
}

// Close doesn't wait long for a disk that hangs.
func TestCloseDoesNotWaitForADiskThatHangs(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("A", "scheduled", "a")
		release := o.disk.hangs("write")
		o.addInMemory("B", "scheduled", "a")
		began := time.Now()
		equal(t, "Close", fmt.Sprint(o.Close()), "1 delivery is lost, it was only in memory: the disk takes too long")
		equal(t, "it waited", time.Since(began), 5*time.Second)
		release()
	})
}

// The sequence number always increases, even if nothing is pending, no history is kept, and the clock is set back.
func TestSequenceNumberAlwaysIncreases(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		last := o.add("A", "vanished", "a").Seq
		o.accept("a")
		must(t, <-o.Maintain(time.Now().Add(91*24*time.Hour)))
		o.restart()
		equal(t, "CloudEvents", o.disk.count("events"), 0)
		for range 3 {
			next := o.reserve(time.Now().Add(-365 * 24 * time.Hour))
			if next <= last {
				t.Errorf("after %d comes %d", last, next)
			}
			last = next
		}
	})
}

// A change is written in one transaction, whatever its size.
func TestOneChangeIsOneTransaction(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		step := func(claim string, f func()) {
			t.Helper()
			synctest.Wait()
			before := o.disk.called("write")
			f()
			time.Sleep(time.Second)
			equal(t, claim, o.disk.called("write")-before, 1)
		}
		step("routes", func() { o.setRoutes(outbox.Route{Name: "a", Fallback: "b"}, outbox.Route{Name: "b"}) })
		step("10,000 events", func() {
			b := wave(o, 20_000, "a", "b")
			b.Values = map[string][]byte{"x": []byte("y")}
			o.apply(b)
		})
		a := o.reader("a")
		items := a.items()[:500]
		step("500 fall back", func() { a.Report(delivery.Report{Now: time.Now(), FellBack: items}) })
		step("500 die", func() { a.reject(items...) })
		keys := o.keys(outbox.Selection{State: outbox.StateDead})
		step("500 are replayed", o.replayAll)
		step("500 are dropped", func() {
			_, err := o.drop(keys...)
			must(t, err)
		})
		step("a route goes", func() { o.routesAre("b") })
		step("its backlog is given up", func() { o.Maintain(time.Now().Add(25 * time.Hour)) })
		equal(t, "dead letters", len(o.dead("a")), 9500)
	})
}

// An outbox belongs to one VM. On a cloned machine it is set aside at once, and nothing of it counts any more, not even
// items that its readers hold or results that they report.
func TestACloneStartsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		used(t, dir)
		o := open(t, dir, outbox.Options{})
		for _, same := range []string{"VMID-0", ""} {
			equal(t, "it was another's than "+same, o.own(same), false)
		}
		o.routesAre("a")
		r := o.reader("a")
		items := r.items()
		equal(t, "it was another's than vmid-1", o.own("vmid-1"), true)
		equal(t, "a route that gets what is over counts as one that acts",
			o.Over(outbox.Delivery{Item: *items[0], Route: "a"}, "a"), false)
		want(t, "deliveries", ids(o.List(outbox.Selection{})))
		equal(t, "gone, as the reader is told,", len(r.Changes().Gone), len(items))
		_, err := r.Read(items[0])
		wantError(t, "Read", err, delivery.ErrSettled)
		r.Report(delivery.Report{Now: time.Now(), Accepted: items[:1], Answer: delivery.Answer{Receipt: []byte("r")}})
		equal(t, "delivered", o.Stats()["a"].Delivered, 0)
		equal(t, "groups", len(o.Groups()), 0)
		equal(t, "marks", o.Mark("G00", "G00-scheduled").Times, 0)
		if a := o.add("A", "scheduled", "a"); a.Seq <= items[len(items)-1].Seq {
			t.Error("the sequence number went back")
		}
		equal(t, "files set aside", len(asides(t, dir, "foreign")), 1)
		equal(t, "lines in the log", o.log.Count("was this machine cloned?"), 1)
		for _, when := range []string{"at once", "after a restart"} {
			want(t, when+" pending", o.pending("a"), "A-scheduled")
			equal(t, when+" the owner", o.Owner(), "vmid-1")
			equal(t, when+" CloudEvents", len(o.history()), 1)
			added, back := o.newRoutes("a")
			want(t, when+" new routes", append(added, back...))
			o.restart()
		}
	})
}

// What is being written when the outbox turns out to be another VM's doesn't count either. The file is set aside as
// such, also if somebody finds meanwhile that it is damaged: the word in its name says where to look.
func TestACloneForgetsWhatIsBeingWritten(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.own("vmid-0")
		release := o.disk.hangs("write")
		o.submit(changeOf(o.addition("A", "scheduled", "a")))
		synctest.Wait()
		o.own("vmid-1")
		equal(t, "CloudEvents", len(o.history()), 0)
		o.disk.failsOnce("walk", errDamage)
		wantError(t, "Walk", o.Walk(0, ignore), outbox.ErrDamaged)
		release()
		time.Sleep(10 * time.Second)
		equal(t, "CloudEvents once it was written", len(o.history()), 0)
		want(t, "set aside", o.disk.setAside(), "foreign")
	})
}
