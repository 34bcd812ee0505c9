package outbox_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A group that is opened again keeps its marks and receipts.
func TestReopenedGroupKeepsItsMarks(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("A", "scheduled")
		o.add("A", "vanished")
		time.Sleep(20 * 24 * time.Hour)
		o.add("A", "again")
		time.Sleep(20 * 24 * time.Hour)
		o.maintain()
		equal(t, "the mark", o.Mark("A", "A-scheduled").Times, 1)
		equal(t, "groups that have ended", o.disk.count("ended"), 0)
	})
}

// A new route gets the latest change of an open group, whole, even if no route wanted it before or all its deliveries
// are settled, also after a restart. Their outcomes stay readable while the group is open, or something of it is
// pending.
func TestLatestChangeOfAnOpenGroupIsKept(t *testing.T) {
	for _, settled := range []string{"", outbox.StateAccepted} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			var to []string
			if settled != "" {
				to = []string{"a"}
			}
			a := o.add("A", "scheduled", to...)
			o.accept("a")
			outcomes := func(when string) {
				t.Helper()
				equal(t, when+" the outcome", o.Delivery("a", a.Seq).State, settled)
				equal(t, when+" the outcome for another route", o.Delivery("b", a.Seq).State, "")
			}
			outcomes("at once")
			o.restart()
			outcomes("after a restart")
			again := a
			again.Body, again.To = nil, []string{"new"}
			o.apply(outbox.Batch{Add: []outbox.Addition{again}})
			for range 2 {
				r := o.reader("new")
				i := r.items()[0]
				if i.ID != a.ID || i.Group != "A" || i.Type != a.Type || i.Change != a.Change {
					t.Errorf("it is %+v, want %+v", i.Message, a.Message)
				}
				if d, err := r.Read(i); err != nil || d.Event.ID() != a.ID {
					t.Errorf("it reads %v, %v", d.Event.ID(), err)
				}
				equal(t, "pending bytes", o.PendingBytes(), len(a.Body))
				o.restart()
			}
			o.add("A", "vanished")
			outcomes("while it is pending for another")
		})
	}
}

// However long the history is and however old, the outcomes of an open group's latest change are still known after a
// restart.
func TestOutcomesOfAnOpenGroupOutliveTheHistory(t *testing.T) {
	inBubble(t, outbox.Bounds{History: 5}, func(t *testing.T, o *box) {
		a := o.add("A", "scheduled", "a")
		for i := range 9 {
			o.add(fmt.Sprint("E", i), "vanished", "a")
		}
		o.accept("a")
		for _, later := range []time.Duration{time.Second, outbox.KeepHistory + time.Hour} {
			time.Sleep(later)
			o.maintain()
			o.restart()
			equal(t, fmt.Sprintf("the outcome after %v", later), o.Delivery("a", a.Seq).State, outbox.StateAccepted)
		}
		o.add("A", "vanished")
		o.maintain()
		equal(t, "outcomes once the group is over", o.disk.count("settled"), 0)
	})
}

// A mark counts how often its id was used, at once and after a restart. If a file returns, the larger count is kept,
// also when the smaller one is recorded again, or an id would be used twice.
func TestLargerCountOfAMarkIsKept(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		record := func(times int) {
			_ = o.submit(outbox.Batch{
				Marks: map[string]outbox.Mark{"A-scheduled": {Times: times, Group: "A", At: time.Now()}},
			})()
		}
		check := func(when string, times int) {
			t.Helper()
			equal(t, when, o.Mark("A", "A-scheduled").Times, times)
		}
		for times := 1; times <= 3; times++ {
			record(times)
			check("with each use", times)
		}
		o.restartLate(o.disk)
		record(1)
		check("without its file", 1)
		o.diskRecovers()
		o.join()
		for _, when := range []string{"once the file is there", "after a restart", "after another one"} {
			check(when, 3)
			record(1)
			o.restart()
		}
	})
}

// The marks and receipts of ended groups are bounded: above a quarter of the bound of the history those of the oldest
// groups are dropped, those of open groups never.
func TestMarksOfEndedGroupsAreBounded(t *testing.T) {
	inBubble(t, outbox.Bounds{History: 40}, func(t *testing.T, o *box) {
		o.add("OPEN", "scheduled", "a")
		for n := range 30 {
			time.Sleep(time.Second)
			o.add(fmt.Sprint("OVER", n), "vanished", "a")
		}
		o.maintain()
		equal(t, "groups that are over", o.disk.count("ended"), 10)
		for group, times := range map[string]int{"OVER29": 1, "OVER20": 1, "OVER19": 0} {
			equal(t, "the mark of "+group, o.Mark(group, group+"-vanished").Times, times)
		}
		equal(t, "the mark of the open group", o.Mark("OPEN", "OPEN-scheduled").Times, 1)
	})
}

// A file that is made after the start has which events are over, and of no open one that it is, so that what is kept
// about them is dropped in its time.
func TestFileMadeAfterTheStartKnowsWhatIsOver(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.restartLate(newDisk())
		o.addInMemory("OPEN", "scheduled")
		o.addInMemory("OVER", "vanished")
		o.diskRecovers()
		o.wantDurable()
		equal(t, "groups that have ended", o.disk.count("ended"), 1)
		equal(t, "marks", o.disk.count("marks"), 2)
		time.Sleep(31 * 24 * time.Hour)
		o.maintain()
		equal(t, "groups that have ended after a month", o.disk.count("ended"), 0)
		equal(t, "marks after a month", o.disk.count("marks"), 1)
	})
}

// That an event is over stays known for as long as something about it is pending, or can become that again: a relay
// behind the sink would begin something because of it.
func TestTheEndOfAnEventIsKnownForAsLongAsSomethingAboutItIs(t *testing.T) {
	for claim, letter := range map[string]bool{"what is pending": false, "a dead letter that is replayed": true} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			o.setRoutes(outbox.Route{Name: "hook", Late: delivery.LateSend})
			o.add("A", "started", "hook")
			hook := o.reader("hook")
			i := hook.items()[0]
			if letter {
				hook.reject(i)
			}
			o.end("A")
			time.Sleep(31 * 24 * time.Hour)
			o.maintain()
			o.replayAll()
			d, err := hook.Read(i)
			must(t, err)
			equal(t, claim+", read a month after the end, is of an event that is over", d.EventOver, true)
		})
	}
}

// A group of which nothing is pending, open or remembered takes no memory.
func TestFinishedGroupsTakeNoMemory(t *testing.T) {
	o := open(t, t.TempDir(), outbox.Options{})
	o.routesAre("a")
	a := o.reader("a")
	heapAfter := func(from int) uint64 {
		const n = 2000
		b := outbox.Batch{}
		for i := range n {
			beat := o.addition(fmt.Sprint("GROUP", from*n+i), "test", "a")
			beat.Transient = true
			b.Add = append(b.Add, beat)
		}
		o.apply(b)
		a.accept(a.items()...)
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	heapAfter(0)
	before := heapAfter(1)
	after := min(heapAfter(2), heapAfter(3), heapAfter(4)) // one may come while the writer still holds some
	if after > before+128<<10 {
		t.Errorf("2,000 finished groups take %d KiB", (after-before)>>10)
	}
}

// Whether a route has accepted what isn't the latest of its group is known from the history, on disk or not, and in
// doubt while the disk hangs.
func TestTheHistoryKnowsWhoAccepted(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		was := o.add("A", "scheduled", "a", "b")
		o.add("A", "updated", "a")
		o.disk.fails("write", errFull)
		a, b := o.reader("a"), o.reader("b")
		a.accept(a.items()[0])
		b.Report(delivery.Report{Now: time.Now(), Superseded: b.items()})
		check := func(when string) {
			t.Helper()
			for _, route := range []string{"a", "b", "c"} {
				got, err := o.Accepted(route, was.Seq)
				if err != nil || got != (route == "a") {
					t.Errorf("%s %s has accepted it: %v, %v", when, route, got, err)
				}
			}
		}
		check("before it is on disk")
		o.diskRecovers()
		check("once it is on disk")
		o.restart()
		check("after a restart")
		release := o.disk.hangs("read")
		if _, err := o.Accepted("a", was.Seq); err == nil {
			t.Error("while the disk hangs it is known")
		}
		release()
		synctest.Wait()
		check("when the disk answers again")
	})
}
