package outbox_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A group that is opened again keeps its marks and receipts.
func TestReopenedGroupKeepsItsMarks(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		mustAdd(t, o, "A", "scheduled")
		mustAdd(t, o, "A", "vanished")
		time.Sleep(20 * 24 * time.Hour)
		mustAdd(t, o, "A", "again")
		time.Sleep(20 * 24 * time.Hour)
		if err := <-o.Maintain(time.Now()); err != nil || o.Mark("A", "A-scheduled").Times != 1 || d.count("ended") != 0 {
			t.Errorf("Maintain = %v, the mark is %+v", err, o.Mark("A", "A-scheduled"))
		}
	})
}

// A new route gets the latest change of an open group even if all its deliveries are settled, also after a restart.
// Their outcomes stay readable while the group is open.
func TestLatestChangeOfAnOpenGroupIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		a := mustAdd(t, o, "A", "scheduled", "a")
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending})
		for range 2 {
			if got := o.Delivery("a", a.Seq).State; got != outbox.StateAccepted {
				t.Errorf("the outcome is %q", got)
			}
			if got := o.Delivery("b", a.Seq).State; got != "" {
				t.Errorf("the outcome for another is %q", got)
			}
			o.Close()
			o = open(t, t.TempDir(), outbox.Options{Storage: d})
		}
		again := a
		again.Body, again.To = nil, []string{"new"}
		if err := apply(o, time.Now(), outbox.Batch{Routes: []outbox.Route{{Name: "a"}, {Name: "new"}},
			Add: []outbox.Addition{again}}); err != nil {
			t.Fatal(err)
		}
		i := o.Queue("new").Changes().Pending[0]
		if d, err := o.Queue("new").Read(i); err != nil || d.Event.ID() != a.ID || i.ID != a.ID || i.Group != "A" {
			t.Errorf("it reads %v, %v: %+v", d.Event.ID(), err, i)
		}
		if n := o.PendingBytes(); n != len(a.Body) {
			t.Errorf("%d bytes are pending, want %d", n, len(a.Body))
		}
		o.Close()
		o = open(t, t.TempDir(), outbox.Options{Storage: d})
		if i := o.Queue("new").Changes().Pending[0]; i.ID != a.ID || i.Type != a.Type || i.Change != a.Change {
			t.Errorf("after a restart it is %+v", i)
		}
		mustAdd(t, o, "A", "vanished")
		if got := o.Delivery("a", a.Seq).State; got != outbox.StateAccepted { // it is still pending for new
			t.Errorf("the outcome is %q", got)
		}
		o.Close()
	})
}

// However long the history is and however old, the outcomes of an open group's latest change are still known after a
// restart.
func TestOutcomesOfAnOpenGroupOutliveTheHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		options := outbox.Options{Storage: d, Bounds: outbox.Bounds{History: 5}}
		o := open(t, t.TempDir(), options)
		a := mustAdd(t, o, "A", "scheduled", "a")
		for i := range 9 {
			mustAdd(t, o, fmt.Sprint("E", i), "vanished", "a")
		}
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Durable: true})
		for _, later := range []time.Duration{time.Second, outbox.KeepHistory + time.Hour} {
			time.Sleep(later)
			if err := <-o.Maintain(time.Now()); err != nil {
				t.Fatal(err)
			}
			o.Close()
			o = open(t, t.TempDir(), options)
			if got := o.Delivery("a", a.Seq).State; got != outbox.StateAccepted {
				t.Errorf("after %v and a restart the outcome is %q", later, got)
			}
		}
		mustAdd(t, o, "A", "vanished")
		if err := <-o.Maintain(time.Now()); err != nil {
			t.Fatal(err)
		}
		if n := d.count("settled"); n != 0 {
			t.Errorf("once the group is over %d outcomes are kept", n)
		}
		o.Close()
	})
}

// Nor are they dropped with the history that waits for a disk that fails.
func TestOutcomesOfAnOpenGroupWaitForTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		options := outbox.Options{Storage: d, Bounds: outbox.Bounds{InMemory: 10}}
		o := open(t, t.TempDir(), options)
		a := mustAdd(t, o, "A", "scheduled", "a")
		d.set(func() { d.fail = errFull })
		q := o.Queue("a")
		for i := range 200 {
			q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Durable: true})
			_, _ = add(o, fmt.Sprint("E", i), "vanished", "a")
		}
		d.set(func() { d.fail = nil })
		time.Sleep(time.Minute)
		o.Close()
		o = open(t, t.TempDir(), options)
		if got := o.Delivery("a", a.Seq).State; got != outbox.StateAccepted {
			t.Errorf("after a restart the outcome is %q", got)
		}
		o.Close()
	})
}

// The marks and receipts of ended groups are bounded: above a quarter of the bound of the history those of the oldest
// groups are dropped, those of open groups never.
func TestMarksOfEndedGroupsAreBounded(t *testing.T) {
	inBubble(t, outbox.Options{Bounds: outbox.Bounds{History: 40}}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		mustAdd(t, o, "OPEN", "scheduled", "a")
		for n := range 30 {
			time.Sleep(time.Second)
			mustAdd(t, o, fmt.Sprintf("OVER%02d", n), "vanished", "a")
		}
		if err := <-o.Maintain(time.Now()); err != nil {
			t.Fatal(err)
		}
		if n := d.count("ended"); n != 10 {
			t.Errorf("%d groups that are over are remembered, want 10", n)
		}
		for id, times := range map[string]int{"OPEN-scheduled": 1, "OVER29-vanished": 1, "OVER20-vanished": 1, "OVER19-vanished": 0} {
			if got := o.Mark(groupOf(id), id).Times; got != times {
				t.Errorf("%s was used %d times, want %d", id, got, times)
			}
		}
	})
}

// Whether a route has accepted what isn't the latest of its group is known from the history, on disk or not, and in doubt
// while the disk hangs.
func TestTheHistoryKnowsWhoAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		options := outbox.Options{Storage: d}
		o := open(t, t.TempDir(), options)
		was := mustAdd(t, o, "A", "scheduled", "a", "b")
		mustAdd(t, o, "A", "updated", "a")
		d.set(func() { d.fail = errFull })
		now := time.Now()
		for route, r := range map[string]delivery.Report{
			"a": {Accepted: o.Queue("a").Changes().Pending[:1]}, "b": {Superseded: o.Queue("b").Changes().Pending},
		} {
			r.Now = now
			o.Queue(route).Report(r)
		}
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
		d.set(func() { d.fail = nil })
		time.Sleep(time.Minute)
		check("once it is on disk")
		o.Close()
		o = open(t, t.TempDir(), options)
		check("after a restart")
		release := d.hangReads()
		_, err := o.Accepted("a", was.Seq)
		if err == nil {
			t.Error("while the disk hangs it is known")
		}
		release()
		synctest.Wait()
		check("when the disk answers again")
		o.Close()
	})
}
