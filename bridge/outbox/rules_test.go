package outbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// inBubble opens an outbox on a disk in memory, with fake time.
func inBubble(t *testing.T, options outbox.Options, f func(t *testing.T, o *outbox.Outbox, d *disk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		options.Storage = d
		o := open(t, t.TempDir(), options)
		f(t, o, d)
		o.Close()
	})
}

// Above its bounds the outbox gives up the oldest delivery of the route with the most, and no more than needed.
func TestBoundsDropTheOldestOfTheLargestQueue(t *testing.T) {
	size := len(body("E00-scheduled"))
	for claim, bounds := range map[string]outbox.Bounds{"deliveries": {Pending: 10}, "bytes": {PendingBytes: 10 * size}} {
		var died []outbox.Delivery
		options := outbox.Options{Bounds: bounds,
			Callbacks: outbox.Callbacks{Dead: func(list []outbox.Delivery) { died = append(died, list...) }}}
		inBubble(t, options, func(t *testing.T, o *outbox.Outbox, _ *disk) {
			mustAdd(t, o, "E00", "scheduled", "few")
			q := o.Queue("many")
			for i := 1; i <= 12; i++ {
				mustAdd(t, o, fmt.Sprintf("E%02d", i), "scheduled", "many")
				if i == 4 {
					changes(q)
				}
				time.Sleep(time.Second)
			}
			want(t, claim+": few", pending(o, "few"), "E00-scheduled")
			if got := pending(o, "many"); len(got) != 9 || got[0] != "E04-scheduled" {
				t.Errorf("%s: the fullest keeps %v", claim, got)
			}
			want(t, claim+": dead", ids(died), "E01-scheduled", "E02-scheduled", "E03-scheduled")
			if died[0].Reason != delivery.ReasonOverflow || died[0].Attempts != 0 {
				t.Errorf("%s: the reason is %s, after %d attempts; nobody tried it", claim, died[0].Reason, died[0].Attempts)
			}
			if got, gone := changes(q); len(got) != 8 || len(gone) != 3 {
				t.Errorf("%s: the reader hears of %v, and that %v are gone", claim, got, gone)
			}
		})
	}
	// So does what belongs to no group.
	inBubble(t, outbox.Options{Bounds: outbox.Bounds{Pending: 2}}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		for i := range 4 {
			mustAdd(t, o, "", fmt.Sprintf("about-the-bridge-%d", i), "a")
		}
		if got := pending(o, "a"); len(got) != 2 || !strings.HasSuffix(got[0], "-2") {
			t.Errorf("pending are %v, want the last two", got)
		}
	})
	// One change of more than fits keeps what fits.
	inBubble(t, outbox.Options{Bounds: outbox.Bounds{Pending: 100}}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		if err := apply(o, time.Now(), wave(o, 1000, "a", "b")); err != nil {
			t.Fatal(err)
		}
		if s := o.Stats(); s["a"].Pending != 50 || s["b"].Pending != 50 || o.Totals().Dead != 900 {
			t.Errorf("stats are %+v", s)
		}
	})
}

// What the bounds give up goes to no fallback, so that it makes room.
func TestWhatTheBoundsGiveUpGoesToNoFallback(t *testing.T) {
	for claim, bounds := range map[string]outbox.Bounds{"pending": {Pending: 10}, "in memory": {InMemory: 10}} {
		inBubble(t, outbox.Options{Bounds: bounds}, func(t *testing.T, o *outbox.Outbox, d *disk) {
			if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a", Fallback: "b"}, outbox.Route{Name: "b"}); err != nil {
				t.Fatal(err)
			}
			if bounds.InMemory > 0 {
				d.set(func() { d.fail = errFull })
			}
			for i := range 11 {
				_, _ = add(o, fmt.Sprintf("E%02d", i), "scheduled", "a")
				time.Sleep(time.Second)
			}
			want(t, claim+": dead", deadLetters(o, "a"), "E00-scheduled")
			want(t, claim+": the fallback's", pending(o, "b"))
			if n := len(pending(o, "a")); n != 10 {
				t.Errorf("%s: %d are pending, want 10", claim, n)
			}
		})
	}
}

// Dead letters are bounded: the oldest is dropped, and the log says so.
func TestDeadLettersAreBounded(t *testing.T) {
	size := len(body("E0-scheduled"))
	for claim, bounds := range map[string]outbox.Bounds{"letters": {Dead: 5}, "bytes": {DeadBytes: 5 * size}} {
		log, forgot := &lines{}, 0
		options := outbox.Options{Log: log.logger(), Bounds: bounds, Callbacks: outbox.Callbacks{Forgot: func(what string,
			n int) {
			forgot += n
		}}}
		inBubble(t, options, func(t *testing.T, o *outbox.Outbox, _ *disk) {
			for i := range 8 {
				mustAdd(t, o, fmt.Sprint("E", i), "scheduled", "a")
			}
			q := o.Queue("a")
			for _, i := range q.Changes().Pending {
				q.Report(delivery.Report{Now: time.Now(), Dead: []*delivery.Item{i}, Reason: delivery.ReasonRejected})
			}
			want(t, claim, deadLetters(o, "a"), "E3-scheduled", "E4-scheduled", "E5-scheduled", "E6-scheduled", "E7-scheduled")
			if n := strings.Count(log.String(), "oldest dead letters dropped"); n != 3 || forgot != 3 {
				t.Errorf("%s: the log says so %d times, %d are counted, want 3", claim, n, forgot)
			}
		})
	}
}

// History and dead letters are kept for 90 days; marks and receipts for 30 days after their group has ended. Open
// groups and pending deliveries are kept whatever their age.
func TestRetention(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		if _, _, err := setRoutes(o, time.Now(), []outbox.Route{{Name: "a"}, {Name: "b"}}...); err != nil {
			t.Fatal(err)
		}
		deliver := func(name string) {
			q := o.Queue(name)
			q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending,
				Answer: delivery.Answer{Receipt: []byte("r")}})
		}
		mustAdd(t, o, "A", "scheduled", "a", "b") // stays open, and pending for b
		mustAdd(t, o, "B", "scheduled", "a")      // is over
		mustAdd(t, o, "B", "vanished", "a")
		deliver("a")
		mustAdd(t, o, "D", "vanished", "a")
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
		check := func(days, marks, receipts, settled, events, dead int) {
			t.Helper()
			if err := <-o.Maintain(time.Now()); err != nil {
				t.Fatal(err)
			}
			got := []int{d.count("marks"), d.count("receipts"), d.count("settled"), d.count("events"), d.count("dead")}
			if want := []int{marks, receipts, settled, events, dead}; !slices.Equal(got, want) {
				t.Errorf("after %d days: marks, receipts, settled, events, dead = %v, want %v", days, got, want)
			}
		}
		day := 24 * time.Hour
		time.Sleep(time.Second)
		check(0, 4, 2, 3, 4, 1)
		time.Sleep(29 * day)
		check(29, 4, 2, 3, 4, 1)
		time.Sleep(2 * day)
		check(31, 1, 1, 3, 4, 1)
		time.Sleep(58 * day)
		check(89, 1, 1, 3, 4, 1)
		time.Sleep(2 * day)
		check(91, 1, 1, 1, 1, 0) // the outcome of A's latest change is still asked for
		mustAdd(t, o, "A", "vanished", "a", "b")
		deliver("a")
		want(t, "pending", pending(o, "b"), "A-scheduled", "A-vanished")
		q = o.Queue("b")
		for _, i := range q.Changes().Pending {
			if _, _, err := q.Read(i); err != nil {
				t.Errorf("what is pending for 91 days: %v", err)
			}
		}
	})
}

// The receipt of a dead letter that is replayed long after its group has ended is kept for 30 days too, also when a
// restart comes between.
func TestReceiptOfALateReplayIsNotKeptForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, dir, month := diskOf(nil), t.TempDir(), 31*24*time.Hour
		o := open(t, dir, outbox.Options{Storage: d})
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "vanished", "a")
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
		time.Sleep(month)
		if err := <-o.Maintain(time.Now()); err != nil {
			t.Fatal(err)
		}
		if _, err := replay(o, []string{o.List(outbox.Selection{})[0].Key}, "", "root"); err != nil {
			t.Fatal(err)
		}
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Answer: delivery.Answer{Receipt: []byte("r")}})
		for _, left := range []int{1, 0} {
			o.Close()
			o = open(t, dir, outbox.Options{Storage: d})
			if err := <-o.Maintain(time.Now()); err != nil || d.count("receipts") != left || d.count("ended") != left {
				t.Errorf("Maintain = %v, %d receipts are kept, want %d", err, d.count("receipts"), left)
			}
			time.Sleep(month)
		}
		o.Close()
	})
}

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

// The history is bounded by number too, except CloudEvents that something refers to.
func TestHistoryIsBounded(t *testing.T) {
	inBubble(t, outbox.Options{Bounds: outbox.Bounds{History: 5}}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		mustAdd(t, o, "FIRST", "vanished", "b") // which never takes it
		for i := range 19 {
			mustAdd(t, o, fmt.Sprint("E", i), "vanished", "a")
		}
		q := o.Queue("a")
		for _, i := range q.Changes().Pending {
			q.Report(delivery.Report{Now: time.Now(), Accepted: []*delivery.Item{i}})
		}
		time.Sleep(time.Second)
		if err := <-o.Maintain(time.Now()); err != nil {
			t.Fatal(err)
		}
		if n, m := d.count("events"), d.count("settled"); n != 6 || m != 5 {
			t.Errorf("%d CloudEvents and %d settled deliveries are kept, want 5 and the one that is pending, and 5", n, m)
		}
		q = o.Queue("b")
		if _, _, err := q.Read(q.Changes().Pending[0]); err != nil {
			t.Error(err)
		}
	})
}

// A change that no route wanted at first, and that a new route gets later, is complete after a restart.
func TestChangeWithoutRecipientsIsCompleteAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		a := mustAdd(t, o, "A", "scheduled")
		late := a
		late.Body, late.To = nil, []string{"new"}
		if err := apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{late}}); err != nil {
			t.Fatal(err)
		}
		for _, when := range []string{"at once", "after a restart"} {
			list := o.List(outbox.Selection{Route: "new"})
			if len(list) != 1 || list[0].ID != "A-scheduled" || list[0].Group != "A" || list[0].Bytes != len(body("A-scheduled")) {
				t.Errorf("%s pending are %+v, want A-scheduled of group A", when, list)
			}
			o.Close()
			o = open(t, t.TempDir(), outbox.Options{Storage: d})
		}
		o.Close()
	})
}

// History that something still refers to is neither dropped nor counted as dropped.
func TestReferencedHistoryIsNotCountedAsDropped(t *testing.T) {
	forgot := 0
	options := outbox.Options{Bounds: outbox.Bounds{History: 5}, Callbacks: outbox.Callbacks{
		Forgot: func(_ string, n int) { forgot += n },
	}}
	inBubble(t, options, func(t *testing.T, o *outbox.Outbox, d *disk) {
		mustAdd(t, o, "FIRST", "vanished", "b") // which never takes it
		for i := range 5 {
			mustAdd(t, o, fmt.Sprint("E", i), "vanished")
		}
		for range 3 {
			time.Sleep(10 * time.Minute)
			<-o.Maintain(time.Now())
		}
		if n := d.count("events"); n+forgot != 6 {
			t.Errorf("of 6 CloudEvents %d are kept, and %d were counted as dropped", n, forgot)
		}
	})
}

// The sequence number always increases, even if nothing is pending, no history is kept, and the clock is set back.
func TestSequenceNumberAlwaysIncreases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		last := mustAdd(t, o, "A", "vanished", "a").Seq
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending})
		if err := <-o.Maintain(time.Now().Add(91 * 24 * time.Hour)); err != nil {
			t.Fatal(err)
		}
		o.Close()
		if d.count("events") != 0 {
			t.Fatal("there is still history")
		}
		o = open(t, t.TempDir(), outbox.Options{Storage: d})
		for range 3 {
			next := reserve(o, time.Now().Add(-365*24*time.Hour))
			if next <= last {
				t.Errorf("after %d comes %d", last, next)
			}
			last = next
		}
		o.Close()
	})
}

// A delivery that was given up during its attempt, but then accepted, is neither a dead letter nor counted as dropped.
func TestAcceptedDeliveryIsNoDeadLetter(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		one, two := mustAdd(t, o, "A", "scheduled", "a"), mustAdd(t, o, "B", "scheduled", "a")
		q := o.Queue("a")
		items := q.Changes().Pending
		q.Report(delivery.Report{Now: time.Now(), Dead: items[:1], Reason: delivery.ReasonLate})
		if _, err := drop(o, []string{o.List(outbox.Selection{Group: "B"})[0].Key}, "x"); err != nil {
			t.Fatal(err)
		}
		q.Report(delivery.Report{Now: time.Now(), Failed: items, Error: "down"}) // changes nothing
		want(t, "dead", deadLetters(o, "a"), "A-scheduled")
		q.Report(delivery.Report{Now: time.Now(), Accepted: items, Answer: delivery.Answer{Status: "204"}})
		if list := o.List(outbox.Selection{}); len(list) != 0 {
			t.Errorf("there are %v, want that they were delivered", list)
		}
		for _, a := range []outbox.Addition{one, two} {
			if got := o.Delivery("a", a.Seq).State; got != outbox.StateAccepted {
				t.Errorf("%s is %s", a.ID, got)
			}
		}
		err := o.Walk(0, func(r outbox.Record) error {
			if len(r.Deliveries) != 1 || r.Deliveries[0].State != outbox.StateAccepted || r.Deliveries[0].Answer != "204" {
				t.Errorf("the history says %+v", r.Deliveries)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A delivery that became pending again beside its dead letter, and is given up again, is one dead letter.
func TestDeliveryHasOneDeadLetter(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		a := mustAdd(t, o, "A", "scheduled", "a")
		q := o.Queue("a")
		for i := range 3 {
			q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
			if n := o.Totals().Dead; n != 1 || o.Stats()["a"].Dead != 1 {
				t.Errorf("%d dead letters, want 1", n)
			}
			if i == 2 {
				break
			}
			again := a
			again.Body = nil
			if err := apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{again}}); err != nil {
				t.Fatal(err)
			}
			if got := o.Delivery("a", a.Seq).State; got != outbox.StatePending {
				t.Errorf("it is %q", got)
			}
		}
		if _, err := drop(o, []string{o.List(outbox.Selection{})[0].Key}, "x"); err != nil || o.Totals().Dead != 0 {
			t.Errorf("Drop = %v, and %d are dead", err, o.Totals().Dead)
		}
		mustAdd(t, o, "A", "vanished")
	})
}

// A reader gets all pending deliveries, once and in order. Only the latest reader of a route gets later changes.
func TestReaderGetsPendingDeliveriesOnceAndInOrder(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		mustAdd(t, o, "A", "scheduled", "a")
		mustAdd(t, o, "B", "scheduled", "a")
		first := o.Queue("a")
		mustAdd(t, o, "A", "started", "a")
		got, _ := changes(first)
		want(t, "at first", got, "A-scheduled", "B-scheduled", "A-started")
		got, _ = changes(first)
		want(t, "then", got)

		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		wait := submit(o, time.Now(), outbox.Batch{Add: []outbox.Addition{addition(o, "A", "vanished", "a")}})
		synctest.Wait()
		second := o.Queue("a") // another reader begins while the disk works
		got, _ = changes(second)
		want(t, "the second reader", got, "A-scheduled", "B-scheduled", "A-started")
		d.set(func() { d.hang = nil })
		close(hang)
		if err := wait(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-second.Changed():
		default:
			t.Error("the second reader isn't told that there is more")
		}
		got, _ = changes(second)
		want(t, "the second reader then", got, "A-vanished")
		got, _ = changes(first)
		want(t, "the first reader then", got)
	})
}

// The owner can supersede deliveries, even if the reader has them already.
func TestOwnerChangesPendingDeliveries(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		a := addition(o, "A", "scheduled", "a", "b")
		h := addition(o, "", "heartbeat", "a")
		h.Transient = true
		if err := apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{a, h}}); err != nil {
			t.Fatal(err)
		}
		qa, qb := o.Queue("a"), o.Queue("b")
		items := qa.Changes().Pending
		if len(items) != 2 || !items[1].Transient {
			t.Errorf("a has %+v", items)
		}
		qb.Changes()
		time.Sleep(time.Second)
		err := supersede(o, refTo("a", h.Seq), refTo("no", 1))
		if err != nil {
			t.Fatal(err)
		}
		if _, gone := changes(qa); !slices.Equal(gone, []uint64{h.Seq}) {
			t.Errorf("gone are %v", gone)
		}
		if bodies(o)[h.Seq] {
			t.Error("the heartbeat is still there")
		}
		_ = supersede(o, refTo("b", a.Seq))
		if _, gone := changes(qb); !slices.Equal(gone, []uint64{a.Seq}) {
			t.Errorf("gone are %v", gone)
		}
		want(t, "pending for b", pending(o, "b"))
	})
}

// Heartbeats leave no history.
func TestTransientMessagesLeaveNoHistory(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		if _, _, err := setRoutes(o, time.Now(), []outbox.Route{{Name: "a", Fallback: "b"}}...); err != nil {
			t.Fatal(err)
		}
		h := addition(o, "", "heartbeat", "a", "b")
		h.Transient = true
		if err := apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{h}}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			q := o.Queue(name)
			q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Durable: true})
			if name == "a" && !bodies(o)[h.Seq] {
				t.Error("its CloudEvent is gone before all have it")
			}
		}
		if d.count("events")+d.count("settled")+d.count("pending") != 0 {
			t.Error("something of it is left")
		}
	})
}

// A new heartbeat takes the place of the one that is pending for its route, and of nothing else.
func TestATransientMessageReplacesTheOneBefore(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		mustAdd(t, o, "", "started", "a")
		beat := func(routes ...string) uint64 {
			h := addition(o, "", "heartbeat", routes...)
			h.Transient = true
			if err := apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{h}}); err != nil {
				t.Fatal(err)
			}
			return h.Seq
		}
		kept := beat("b")
		for range 3 {
			beat("a")
		}
		last := beat("a")
		a, b := o.Queue("a").Changes().Pending, o.Queue("b").Changes().Pending
		if len(a) != 2 || a[0].Transient || a[1].Seq != last || len(b) != 1 || b[0].Seq != kept {
			t.Errorf("pending are %v for a and %v for b, want the last heartbeat of each", a, b)
		}
		if n := d.count("pending"); n != 3 {
			t.Errorf("%d records are stored, want 3", n)
		}
	})
}

// A fallback that delivers only the latest doesn't get a change once it has told something newer about that event: that
// would be out of date. One that delivers every change does, and so does one that still has the newer one to tell.
func TestFallbackTellsNothingOlderThanItHasTold(t *testing.T) {
	for _, tt := range []struct {
		claim string
		late  delivery.Late
		told  bool
		want  []string
	}{
		{"it has told the newer one", delivery.LateLatest, true, nil},
		{"it is still to tell the newer one", delivery.LateLatest, false, []string{"E-scheduled", "E-started"}},
		{"it delivers every change", delivery.LateSend, true, []string{"E-scheduled"}},
	} {
		inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
			routes := []outbox.Route{{Name: "a", Fallback: "b"}, {Name: "b", Late: tt.late}}
			if _, _, err := setRoutes(o, time.Now(), routes...); err != nil {
				t.Fatal(err)
			}
			mustAdd(t, o, "E", "scheduled", "a")
			mustAdd(t, o, "E", "started", "a", "b")
			qa, qb := o.Queue("a"), o.Queue("b")
			if tt.told {
				qb.Report(delivery.Report{Now: time.Now(), Accepted: qb.Changes().Pending})
			}
			qa.Report(delivery.Report{Now: time.Now(), FellBack: qa.Changes().Pending, Error: "down"})
			want(t, tt.claim+": pending for the fallback", pending(o, "b"), tt.want...)
		})
	}
}

// A fallback gets what its route couldn't deliver, once. A delivery that is itself a fallback doesn't fall back again.
func TestFallbackGetsADeliveryOnce(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		routes := []outbox.Route{{Name: "a", Fallback: "b"}, {Name: "b", Fallback: "c"}, {Name: "c", Fallback: "a"}}
		if _, _, err := setRoutes(o, time.Now(), routes...); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"E0", "E1", "E2", "E3"} {
			mustAdd(t, o, id, "scheduled", "a")
		}
		mustAdd(t, o, "E4", "scheduled", "a", "b")
		qa, qb := o.Queue("a"), o.Queue("b")
		items := qa.Changes().Pending
		had := qb.Changes().Pending
		qb.Report(delivery.Report{Now: time.Now(), Accepted: had}) // E4
		now := time.Now()
		qa.Report(delivery.Report{Now: now, Failed: items, Error: "down", FellBack: items[:1]})
		qa.Report(delivery.Report{Now: now, Dead: items[1:2], Reason: delivery.ReasonLate})
		qa.Report(delivery.Report{Now: now, Dead: items[2:3], Reason: delivery.ReasonExpired, Error: "too old"})
		qa.Report(delivery.Report{Now: now, Dead: items[4:], Reason: delivery.ReasonRejected})
		want(t, "pending for b", pending(o, "b"), "E0-scheduled", "E2-scheduled")
		time.Sleep(time.Second)
		c := qb.Changes()
		if len(c.Pending) != 2 || *c.Pending[0].FallbackFor != (delivery.FallbackFor{Sink: "a", Error: "down"}) ||
			c.Pending[1].FallbackFor.Error != "too old" {
			t.Errorf("b has %+v", c.Pending)
		}
		fell := qa.Changes().Pending
		if i := fell[0]; !i.FellBack || i.Attempts != 1 {
			t.Errorf("a has %+v", i)
		}
		qa.Report(delivery.Report{Now: now, Dead: fell[:1], Reason: delivery.ReasonExpired}) // b has it already
		qb.Report(delivery.Report{Now: now, Dead: c.Pending, Reason: delivery.ReasonRejected})
		want(t, "pending for b", pending(o, "b"))
		want(t, "pending for c", pending(o, "c"))
		want(t, "dead for b", deadLetters(o, "b"), "E0-scheduled", "E2-scheduled")
		for _, d := range o.List(outbox.Selection{State: outbox.StateDead}) {
			if d.ID == "E2-scheduled" && d.Route == "a" && (d.Attempts != 2 || d.Error != "too old") {
				t.Errorf("the dead letter is %+v", d)
			}
			if d.ID == "E1-scheduled" && (d.Attempts != 1 || d.Error != "down") {
				t.Errorf("the dead letter is %+v", d)
			}
		}
	})
}

// Removed routes keep their backlog for a day. A route that returns takes it over.
func TestRemovedRoutesKeepTheirBacklogForADay(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		set := func(names ...string) (added, back []string) {
			t.Helper()
			var routes []outbox.Route
			for _, name := range names {
				routes = append(routes, outbox.Route{Name: name})
			}
			added, back, err := setRoutes(o, time.Now(), routes...)
			if err != nil {
				t.Fatal(err)
			}
			return added, back
		}
		check := func(claim string, added, back []string, wantAdded, wantBack string) {
			t.Helper()
			if got := strings.Join(added, " ") + "|" + strings.Join(back, " "); got != wantAdded+"|"+wantBack {
				t.Errorf("%s: new and back are %s, want %s|%s", claim, got, wantAdded, wantBack)
			}
		}
		added, back := set("a", "b")
		check("at first", added, back, "a b", "")
		mustAdd(t, o, "A", "scheduled", "a", "b")
		added, back = set("a")
		check("b goes", added, back, "", "")
		time.Sleep(23 * time.Hour)
		o.Maintain(time.Now())
		want(t, "pending for b after 23 hours", pending(o, "b"), "A-scheduled")
		added, back = set("a", "b")
		check("b returns", added, back, "", "b")
		time.Sleep(25 * time.Hour)
		o.Maintain(time.Now())
		want(t, "pending for b, which is there", pending(o, "b"), "A-scheduled")
		set("a")
		time.Sleep(25 * time.Hour)
		if err := <-o.Maintain(time.Now()); err != nil {
			t.Fatal(err)
		}
		want(t, "pending for b after 25 hours", pending(o, "b"))
		if dead := o.List(outbox.Selection{Route: "b"}); len(dead) != 1 || dead[0].Reason != delivery.ReasonRemoved {
			t.Errorf("dead are %v", dead)
		}
		want(t, "the routes", routeNames(o), "a", "b")
		if _, err := replay(o, []string{o.List(outbox.Selection{Route: "b"})[0].Key}, "b", "root"); err == nil {
			t.Error("it was replayed to a route that isn't there")
		}
		if added, _ := set("a", "b"); !slices.Equal(added, []string{"b"}) {
			t.Errorf("new are %v, want b", added)
		}
	})
}

// Replay and Drop change all deliveries or none, and each key once.
func TestReplayAndDropAreAtomic(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		if _, _, err := setRoutes(o, time.Now(), []outbox.Route{{Name: "a"}, {Name: "b"}}...); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "scheduled", "a")
		mustAdd(t, o, "B", "scheduled", "a")
		mustAdd(t, o, "C", "scheduled", "a")
		q := o.Queue("a")
		items := q.Changes().Pending
		q.Report(delivery.Report{Now: time.Now(), Failed: items[:2], Error: "half",
			Answer: delivery.Answer{Progress: []byte("p")}, Batch: 3})
		q.Report(delivery.Report{Now: time.Now(), Dead: items[:2], Reason: delivery.ReasonRejected, Error: "no"})
		q.Changes()
		list := o.List(outbox.Selection{})
		alive, dead := list[0].Key, []string{list[1].Key, list[2].Key}
		for _, keys := range [][]string{{dead[0], "a/1"}, {dead[0], "odd"}, {dead[0], alive}} {
			if got, err := replay(o, keys, "", "root"); err == nil || got != nil {
				t.Errorf("Replay(%v) = %v, %v", keys, got, err)
			}
		}
		if _, err := drop(o, []string{alive, "a/1"}, "x"); !errors.Is(err, outbox.ErrUnknownKey) {
			t.Errorf("Drop = %v, want ErrUnknownKey", err)
		}
		if _, err := replay(o, dead, "nobody", "root"); err == nil || !strings.Contains(err.Error(), "no sink nobody") {
			t.Errorf("Replay to nobody = %v", err)
		}
		if got := o.List(outbox.Selection{}); len(got) != 3 || got[0].State != outbox.StatePending ||
			got[1].State != outbox.StateDead {
			t.Errorf("something was done: %v", got)
		}
		time.Sleep(time.Hour)
		got, err := replay(o, []string{dead[0], dead[0]}, "", "root")
		if err != nil || len(got) != 1 || got[0].Attempts != 0 || got[0].Error != "" || !got[0].PendingSince.Equal(time.Now()) ||
			string(got[0].Progress) != "p" || got[0].Batch != 3 {
			t.Errorf("Replay = %+v, %v", got, err)
		}
		if i := q.Changes().Pending; len(i) != 1 || i[0].ID != "A-scheduled" || i[0].Attempts != 0 {
			t.Errorf("the reader hears %+v", i)
		}
		got, err = replay(o, dead[1:], "b", "root")
		if err != nil || len(got) != 1 || got[0].Route != "b" || got[0].Progress != nil || got[0].Batch != 0 {
			t.Errorf("Replay to b = %+v, %v", got, err)
		}
		want(t, "dead", deadLetters(o, ""))
		if got, err := drop(o, []string{alive, alive}, "somebody"); err != nil || len(got) != 1 {
			t.Errorf("Drop = %v, %v", got, err)
		}
		var dropped []string
		err = o.Walk(0, func(r outbox.Record) error {
			for _, d := range r.Deliveries {
				if d.State == outbox.StateDropped {
					dropped = append(dropped, d.Route+" "+d.Answer)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		want(t, "dropped", dropped, "a by somebody")
	})
}

// Who replayed a delivery stays with it, also after a restart: while it is pending, when it has failed, when it is a dead
// letter again, and with its result in the history.
func TestWhoReplayedADeliveryStaysOnRecord(t *testing.T) {
	ends := map[string]func(o *outbox.Outbox, q delivery.Queue, i []*delivery.Item) error{
		outbox.StateAccepted: func(_ *outbox.Outbox, q delivery.Queue, i []*delivery.Item) error {
			q.Report(delivery.Report{Accepted: i, Durable: true})
			return nil
		},
		outbox.StateSuperseded: func(_ *outbox.Outbox, q delivery.Queue, i []*delivery.Item) error {
			q.Report(delivery.Report{Superseded: i, Durable: true})
			return nil
		},
		outbox.StateDead: func(_ *outbox.Outbox, q delivery.Queue, i []*delivery.Item) error {
			q.Report(delivery.Report{Dead: i, Reason: delivery.ReasonRejected, Durable: true})
			return nil
		},
		outbox.StateDropped: func(o *outbox.Outbox, _ delivery.Queue, _ []*delivery.Item) error {
			_, err := drop(o, []string{o.List(outbox.Selection{})[0].Key}, "somebody")
			return err
		},
	}
	for how, end := range ends {
		dir := t.TempDir()
		o := open(t, dir, outbox.Options{})
		reopen := func() {
			t.Helper()
			if err := o.Close(); err != nil {
				t.Fatal(err)
			}
			o = open(t, dir, outbox.Options{})
		}
		check := func(what string) {
			t.Helper()
			var got []string
			err := o.Walk(0, func(r outbox.Record) error {
				for _, d := range r.Deliveries {
					got = append(got, d.State+" "+d.ReplayedBy)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			want(t, how+": "+what, got, what+" alice")
			for _, d := range o.List(outbox.Selection{}) {
				if shown, _, err := o.Show(d.Key); err != nil || shown.ReplayedBy != "alice" {
					t.Errorf("%s: %s: shown is %q, %v; want that alice replayed it", how, what, shown.ReplayedBy, err)
				}
			}
		}
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "scheduled", "a")
		q := o.Queue("a")
		q.Report(delivery.Report{Dead: q.Changes().Pending, Reason: delivery.ReasonRejected, Durable: true})
		if _, err := replay(o, []string{o.List(outbox.Selection{})[0].Key}, "", "alice"); err != nil {
			t.Fatal(err)
		}
		check(outbox.StatePending)
		q.Report(delivery.Report{Failed: q.Changes().Pending, Error: "no", Durable: true})
		reopen()
		check(outbox.StatePending)
		q = o.Queue("a")
		if err := end(o, q, q.Changes().Pending); err != nil {
			t.Fatal(err)
		}
		reopen()
		check(how)
	}
}

// A dead letter is unreported until its owner says otherwise, also after a restart. One about no group never is, and
// none that became pending again.
func TestDeadLettersAreUnreportedUntilTheirOwnerReportsThem(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"A", "B", "C", ""} {
		mustAdd(t, o, group, "scheduled", "a")
	}
	q := o.Queue("a")
	q.Report(delivery.Report{Dead: q.Changes().Pending, Reason: delivery.ReasonRejected, Durable: true})
	check := func(what string, unreported ...string) {
		t.Helper()
		want(t, what, ids(unreportedOf(o, "a")), unreported...)
		if n, of := o.Totals().Unreported, o.Stats()["a"].Unreported; n != len(unreported) || of != n {
			t.Errorf("%s: %d and of the route %d, want %d", what, n, of, len(unreported))
		}
	}
	check("new", "A-scheduled", "B-scheduled", "C-scheduled")
	first := unreportedOf(o, "a")[0]
	err := o.Update(time.Now(), func(tx *outbox.Tx) {
		for _, d := range []outbox.Delivery{first, first, refTo("b", 1)} {
			tx.SetReported(d)
		}
	})()
	if err != nil {
		t.Fatal(err)
	}
	check("one is reported", "B-scheduled", "C-scheduled")
	want(t, "dead", deadLetters(o, ""), "A-scheduled", "B-scheduled", "C-scheduled", "scheduled")
	for range 2 {
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
		o = open(t, dir, outbox.Options{})
		check("after a restart", "B-scheduled", "C-scheduled")
	}
	if _, err := replay(o, []string{unreportedOf(o, "a")[0].Key}, "", "root"); err != nil {
		t.Fatal(err)
	}
	check("one is replayed", "C-scheduled")
	if _, err := drop(o, []string{unreportedOf(o, "a")[0].Key}, "x"); err != nil {
		t.Fatal(err)
	}
	check("one is dropped")
}

// A selection picks by route, state and the beginning of the group. Show returns the CloudEvent too.
func TestListAndShow(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		mustAdd(t, o, "AAA", "scheduled", "a", "b")
		mustAdd(t, o, "BBB", "scheduled", "a")
		q := o.Queue("b")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
		for _, tt := range []struct {
			sel  outbox.Selection
			want []string
		}{
			{outbox.Selection{}, []string{"a AAA", "a BBB", "b AAA"}},
			{outbox.Selection{Route: "a"}, []string{"a AAA", "a BBB"}},
			{outbox.Selection{State: outbox.StateDead}, []string{"b AAA"}},
			{outbox.Selection{Group: "bb"}, []string{"a BBB"}},
			{outbox.Selection{Route: "b", Group: "bb"}, nil},
			{outbox.Selection{Group: "AAAA"}, nil},
		} {
			var got []string
			for _, d := range o.List(tt.sel) {
				got = append(got, d.Route+" "+d.Group)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%+v picks %v, want %v", tt.sel, got, tt.want)
			}
		}
		for _, d := range o.List(outbox.Selection{}) {
			got, ce, err := o.Show(d.Key)
			if err != nil || got.ID != d.ID || !strings.Contains(string(ce), `"id":"`+d.ID+`"`) {
				t.Errorf("Show(%s) = %v %s %v", d.Key, got.ID, ce, err)
			}
			var public struct {
				Key, Sink, ID, Type, Event, State string
				Attempts, Bytes                   *int
			}
			data, _ := json.Marshal(d)
			if err := json.Unmarshal(data, &public); err != nil || public.Key == "" || public.Sink == "" || public.Event == "" ||
				public.State == "" || public.Attempts == nil || *public.Bytes != len(ce) {
				t.Errorf("as JSON it is %s", data)
			}
		}
		if _, _, err := o.Show("a/0000000000000001"); !errors.Is(err, outbox.ErrUnknownKey) {
			t.Errorf("Show of a key that is none = %v", err)
		}
	})
}

// A follower gets every CloudEvent that is added. Its channel is closed when it falls too far behind.
func TestFollow(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		events, stop := o.Follow()
		slow, _ := o.Follow()
		mustAdd(t, o, "A", "scheduled", "a")
		if got := <-events; !strings.Contains(string(got), "A-scheduled") {
			t.Errorf("it sees %s", got)
		}
		stop()
		if err := apply(o, time.Now(), wave(o, 1200, "a")); err != nil {
			t.Fatal(err)
		}
		n := 0
		for range slow {
			n++
		}
		if n != 1000 || len(events) != 0 {
			t.Errorf("the slow one saw %d, the one that stopped %d", n, len(events))
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
		if ce, _, err := o.Queue("new").Read(i); err != nil || ce.ID() != a.ID || i.ID != a.ID || i.Group != "A" {
			t.Errorf("it reads %v, %v: %+v", ce.ID(), err, i)
		}
		if n := o.Totals().Bytes; n != len(a.Body) {
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

// However long the history is, Walk returns each CloudEvent once, with the results of its deliveries.
func TestWalkOfALongHistory(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	const n = 1200
	batch := outbox.Batch{}
	for i := range n {
		batch.Add = append(batch.Add, addition(o, "", fmt.Sprintf("E%04d", i), "a", "b"))
	}
	if err := apply(o, time.Now(), batch); err != nil {
		t.Fatal(err)
	}
	q := o.Queue("a")
	q.Report(delivery.Report{Accepted: q.Changes().Pending, Durable: true})
	for _, from := range []int{0, n - 501, n - 500, n - 499} {
		var seqs []uint64
		err := o.Walk(batch.Add[from].Seq, func(r outbox.Record) error {
			seqs = append(seqs, r.Seq)
			if len(r.Deliveries) != 2 || r.Deliveries[0].State != outbox.StateAccepted ||
				r.Deliveries[1].State != outbox.StatePending {
				t.Fatalf("of %d it says %+v", r.Seq, r.Deliveries)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(seqs) != n-from || !slices.IsSorted(seqs) || len(slices.Compact(seqs)) != n-from {
			t.Errorf("from %d on it has %d, want %d in order", from, len(seqs), n-from)
		}
	}
}

// First and Last return the ends of a list, and how many more there are.
func TestFirstAndLast(t *testing.T) {
	o := open(t, t.TempDir(), outbox.Options{})
	for i := range 3 {
		mustAdd(t, o, fmt.Sprintf("E%d", i), "scheduled", "a")
	}
	for n, more := range map[int]int{0: 3, 2: 1, 3: 0, 4: 0} {
		first, rest := o.First(outbox.Selection{}, n)
		if want := pending(o, "a")[:3-more]; rest != more || !slices.Equal(ids(first), want) {
			t.Errorf("the first %d are %v and %d more", n, ids(first), rest)
		}
		last, rest := o.Last(outbox.Selection{}, n)
		if want := pending(o, "a")[more:]; rest != more || !slices.Equal(ids(last), want) {
			t.Errorf("the last %d are %v and %d more", n, ids(last), rest)
		}
	}
}

// A file without an owner is taken over by the first that is set, also if the file returns.
func TestFileWithoutAnOwnerIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		mustAdd(t, o, "A", "scheduled", "a")
		o.Close()
		storage := &awayStorage{Storage: diskOf(d.batches)}
		storage.away.Store(true)
		o = open(t, t.TempDir(), outbox.Options{Storage: storage})
		if _, err := own(o, "vm-0"); err == nil {
			t.Error("the disk is there")
		}
		storage.away.Store(false)
		time.Sleep(10 * time.Second)
		joins(o)
		if err := o.Durable(); err != nil {
			t.Error(err)
		}
		want(t, "pending", pending(o, "a"), "A-scheduled")
		if o.Owner() != "vm-0" {
			t.Errorf("it belongs to %q", o.Owner())
		}
		o.Close()
	})
}

// If the owner is set while the file is being read, another VM's file is still set aside.
func TestForeignFileIsSetAsideIfTheOwnerIsSetWhileReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		own(o, "vm-0")
		mustAdd(t, o, "A", "scheduled", "a")
		o.Close()
		storage := &awayStorage{Storage: diskOf(d.batches)}
		storage.away.Store(true)
		o = open(t, t.TempDir(), outbox.Options{Storage: storage})
		storage.read = func() { own(o, "vm-1") }
		storage.away.Store(false)
		time.Sleep(10 * time.Second)
		joins(o)
		want(t, "pending", pending(o, "a"))
		if len(o.Groups()) != 0 || o.Owner() != "vm-1" {
			t.Errorf("of %q it has %v", o.Owner(), o.Groups())
		}
		o.Close()
	})
}

// awayStorage cannot be opened while it is away. Something may happen while it is read.
type awayStorage struct {
	outbox.Storage
	away atomic.Bool
	read func()
}

func (s *awayStorage) Walk(bucket, from string, visit func(key string, value []byte) error) error {
	if s.read != nil {
		s.read()
	}
	return s.Storage.Walk(bucket, from, visit)
}

func (s *awayStorage) Open() (bool, error) {
	if s.away.Load() {
		return false, errors.New("not mounted")
	}
	return s.Storage.Open()
}
