package outbox_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// mute adds a mute, or changes one.
func mute(t *testing.T, o *outbox.Outbox, m delivery.Mute) {
	t.Helper()
	if err := apply(o, time.Now(), outbox.Batch{Mutes: []delivery.Mute{m}}); err != nil {
		t.Fatal(err)
	}
}

// A reader keeps what a queue has told it.
type reader struct {
	delivery.Queue
	items map[uint64]*delivery.Item
	mutes []*delivery.Mute
}

func readerOf(o *outbox.Outbox, route string) *reader {
	return &reader{Queue: o.Queue(route), items: map[uint64]*delivery.Item{}}
}

// heard returns the pending deliveries, muted ones in brackets.
func (r *reader) heard() (list []string) {
	c := r.Changes()
	r.mutes = c.Mutes
	for _, seq := range c.Gone {
		delete(r.items, seq)
	}
	for _, i := range c.Pending {
		r.items[i.Seq] = i
	}
	for _, seq := range slices.Sorted(maps.Keys(r.items)) {
		id := r.items[seq].ID
		if delivery.MuteOf(r.mutes, r.items[seq]).Active() {
			id = "(" + id + ")"
		}
		list = append(list, id)
	}
	return list
}

// A mute holds back pending and new deliveries of the routes that it names, and their age counts from its end. A
// restart changes none of this, and an ended mute stays ended.
func TestMuteHoldsBackUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		o := open(t, dir, outbox.Options{})
		qa, qb := readerOf(o, "a"), readerOf(o, "b")
		began := time.Now()
		mustAdd(t, o, "A", "scheduled", "a", "b")
		m := delivery.Mute{ID: "m1", Sink: "a", Since: began, Until: began.Add(2 * time.Hour), Reason: "repairs", By: "root"}
		mute(t, o, m)
		mustAdd(t, o, "B", "scheduled", "a", "b")
		mustAdd(t, o, "", "about-the-bridge", "a")
		want(t, "a hears", qa.heard(), "(A-scheduled)", "(B-scheduled)", "(about-the-bridge)")
		want(t, "b hears", qb.heard(), "A-scheduled", "B-scheduled")
		list := o.List(outbox.Selection{Route: "a"})
		if !list[0].Muted.Equal(m.Until) {
			t.Errorf("the first is listed as muted until %v, want %v", list[0].Muted, m.Until)
		}
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Hour)
		o = open(t, dir, outbox.Options{})
		q := readerOf(o, "a")
		want(t, "after a restart a hears", q.heard(), "(A-scheduled)", "(B-scheduled)", "(about-the-bridge)")
		m.Ended = time.Now()
		mute(t, o, m)
		want(t, "after the end a hears", q.heard(), "A-scheduled", "B-scheduled", "about-the-bridge")
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Hour)
		o = open(t, dir, outbox.Options{})
		defer o.Close()
		q = readerOf(o, "a")
		mustAdd(t, o, "C", "scheduled", "a")
		q.heard()
		for _, i := range q.items {
			waited, of := i.Group != "C", delivery.MuteOf(q.mutes, i)
			if of.Active() || waited != i.Since(of).Equal(m.Ended) {
				t.Errorf("after another restart %s is pending since %v for %+v", i.ID, i.Since(of), of)
			}
		}
		if got := o.Mutes(); len(got) != 1 || got[0].Reason != "repairs" || got[0].By != "root" || got[0].Active() {
			t.Errorf("the mutes are %+v", got)
		}
	})
}

// A mute begins and ends without a change of the deliveries that it holds back, so that it costs nothing for each. Its
// routes' readers hear of it, and no others.
func TestAMuteChangesNoDelivery(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		qa, qb := o.Queue("a"), o.Queue("b")
		for n := range 100 {
			mustAdd(t, o, fmt.Sprint("E", n), "scheduled", "a", "b")
		}
		qa.Changes()
		qb.Changes()
		m := delivery.Mute{ID: "m", Sink: "a", Since: time.Now(), Until: time.Now().Add(time.Hour)}
		for _, ended := range []time.Time{{}, time.Now()} {
			m.Ended = ended
			mute(t, o, m)
			a, b := qa.Changes(), qb.Changes()
			if len(a.Pending)+len(a.Gone) > 0 || len(a.Mutes) != 1 || a.Mutes[0].Active() != m.Active() {
				t.Errorf("a hears of %d deliveries and %d mutes, want the mute alone", len(a.Pending), len(a.Mutes))
			}
			if len(b.Pending)+len(b.Gone)+len(b.Mutes) > 0 {
				t.Errorf("b hears of %d deliveries and %d mutes, want nothing", len(b.Pending), len(b.Mutes))
			}
		}
	})
}

// Of the ended mutes the newest hundred are kept, and all active ones.
func TestOldMutesAreDropped(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		mute(t, o, delivery.Mute{ID: "active", Since: time.Now()})
		for n := range 120 {
			time.Sleep(time.Second)
			mute(t, o, delivery.Mute{ID: fmt.Sprint("m", n), Since: time.Now(), Ended: time.Now()})
		}
		var kept []string
		for _, m := range o.Mutes() {
			kept = append(kept, m.ID)
		}
		if len(kept) != 101 || kept[0] != "active" || kept[1] != "m20" {
			t.Errorf("%d are kept, from %q on", len(kept), kept[:min(2, len(kept))])
		}
	})
}

// The hundred mutes that ended last are kept: a long one too, if as many shorter ones began and ended meanwhile. What
// waited for it is pending since its end.
func TestLongMuteIsKeptWhenItEnds(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		q := readerOf(o, "a")
		long := delivery.Mute{ID: "long", Sink: "a", Since: time.Now(), Until: time.Now().Add(time.Hour)}
		mute(t, o, long)
		mustAdd(t, o, "A", "scheduled", "a")
		for n := range 100 {
			time.Sleep(10 * time.Second)
			short := delivery.Mute{ID: fmt.Sprint("m", n), Sink: "b", Since: time.Now(), Until: long.Until}
			mute(t, o, short)
			time.Sleep(time.Second)
			short.Ended = time.Now()
			mute(t, o, short)
		}
		time.Sleep(time.Until(long.Until))
		long.Ended = time.Now()
		mute(t, o, long)
		want(t, "a hears", q.heard(), "A-scheduled")
		for _, i := range q.items {
			if of := delivery.MuteOf(q.mutes, i); of == nil || !i.Since(of).Equal(long.Ended) {
				t.Errorf("A is pending since %v for %+v, want since the end of its mute, %v", i.Since(of), of, long.Ended)
			}
		}
		var kept []string
		for _, m := range o.Mutes() {
			kept = append(kept, m.ID)
		}
		if len(kept) != 100 || kept[0] != "long" || kept[1] != "m1" {
			t.Errorf("%d are kept, from %q on; want the hundred that ended last", len(kept), kept[:min(2, len(kept))])
		}
	})
}

// The bounds apply to muted deliveries too: the oldest is given up first.
func TestBoundsApplyToMutedDeliveries(t *testing.T) {
	inBubble(t, outbox.Options{Bounds: outbox.Bounds{Pending: 2}}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		mute(t, o, delivery.Mute{ID: "m", Since: time.Now(), Until: time.Now().Add(time.Hour)})
		for _, event := range []string{"A", "B", "C"} {
			mustAdd(t, o, event, "scheduled", "a")
			time.Sleep(time.Second)
		}
		if got := pending(o, "a"); !slices.Equal(got, []string{"B-scheduled", "C-scheduled"}) {
			t.Errorf("pending are %v", got)
		}
	})
}

// The mutes of a file that returns are loaded, and don't undo changes of the same mutes in memory.
func TestMutesOfAFileReadLateAreLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		older := t.TempDir()
		o := open(t, older, outbox.Options{})
		kept := delivery.Mute{ID: "kept", Sink: "a", Since: time.Now(), Until: time.Now().Add(time.Hour)}
		ended := delivery.Mute{ID: "ended", Sink: "b", Since: time.Now(), Until: time.Now().Add(time.Hour)}
		mute(t, o, kept)
		mute(t, o, ended)
		mustAdd(t, o, "A", "scheduled", "a", "b")
		o.Close()
		time.Sleep(time.Minute)

		dir := notADirectory(t)
		o = open(t, dir, outbox.Options{})
		qa, qb := readerOf(o, "a"), readerOf(o, "b")
		_, _ = add(o, "B", "scheduled", "a")
		ended.Ended = time.Now()
		_ = apply(o, time.Now(), outbox.Batch{Mutes: []delivery.Mute{ended}})
		want(t, "before the file comes a hears", qa.heard(), "B-scheduled")
		comes(t, dir, filepath.Join(older, "outbox.db"))
		time.Sleep(6 * time.Second)
		joins(o)
		want(t, "a hears", qa.heard(), "(A-scheduled)", "(B-scheduled)")
		want(t, "b hears", qb.heard(), "A-scheduled")
		o.Close()
		o = open(t, dir, outbox.Options{})
		want(t, "after a restart a hears", readerOf(o, "a").heard(), "(A-scheduled)", "(B-scheduled)")
		want(t, "after a restart b hears", readerOf(o, "b").heard(), "A-scheduled")
		o.Close()
	})
}

// A mute set on this VM is kept even if the file turns out to be another VM's, whose own mutes don't count.
func TestMuteOutlivesTheFileOfAnotherVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ids := func(o *outbox.Outbox) (list []string) {
			for _, m := range o.Mutes() {
				list = append(list, m.ID)
			}
			return list
		}
		at := func(id string) delivery.Mute {
			return delivery.Mute{ID: id, By: "alice", Since: time.Now(), Until: time.Now().Add(time.Hour)}
		}
		o := open(t, dir, outbox.Options{})
		if _, err := own(o, "vmid-0"); err != nil {
			t.Fatal(err)
		}
		mute(t, o, at("old"))
		mute(t, o, at("extended"))
		o.Close()

		o = open(t, dir, outbox.Options{})
		mute(t, o, at("new"))
		mute(t, o, at("extended"))
		if fresh, err := own(o, "vmid-1"); !fresh || err != nil {
			t.Fatalf("Own = %v, %v", fresh, err)
		}
		want(t, "mutes", ids(o), "extended", "new")
		mustAdd(t, o, "A", "scheduled", "hook")
		want(t, "heard", readerOf(o, "hook").heard(), "(A-scheduled)")
		o.Close()

		o = open(t, dir, outbox.Options{})
		if fresh, err := own(o, "vmid-1"); fresh || err != nil {
			t.Fatalf("Own = %v, %v", fresh, err)
		}
		want(t, "mutes after a restart", ids(o), "extended", "new")
		want(t, "heard after a restart", readerOf(o, "hook").heard(), "(A-scheduled)")
		o.Close()
	})
}
