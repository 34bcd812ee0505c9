package outbox_test

import (
	"fmt"
	"slices"
	"strings"
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
		inBubble(t, outbox.Options{Bounds: bounds}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
			o.SetCallbacks(outbox.Callbacks{Dead: func(list []outbox.Delivery) { died = append(died, list...) }})
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
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
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
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
		o = open(t, t.TempDir(), outbox.Options{Storage: d})
		added, back = set("a", "b")
		check("b comes after a restart", added, back, "b", "")
		o.Close()
	})
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
