package outbox_test

import (
	"fmt"
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
	if err := o.Apply(outbox.Batch{Now: time.Now(), Mutes: []delivery.Mute{m}}); err != nil {
		t.Fatal(err)
	}
}

// heard returns the pending deliveries that a reader gets, muted ones in brackets.
func heard(q delivery.Queue) (list []string) {
	for _, i := range q.Changes().Pending {
		if i.Mute.Active() {
			list = append(list, "("+i.ID+")")
		} else {
			list = append(list, i.ID)
		}
	}
	return list
}

// A mute holds back pending and new deliveries of the routes that it names. Stats counts them, and their age counts
// from its end. A restart changes none of this, and an ended mute stays ended.
func TestMuteHoldsBackUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		o := open(t, dir, outbox.Options{})
		qa, qb := o.Queue("a"), o.Queue("b")
		began := time.Now()
		mustAdd(t, o, "A", "scheduled", "a", "b")
		m := delivery.Mute{ID: "m1", Sink: "a", Since: began, Until: began.Add(2 * time.Hour), Reason: "repairs", By: "root"}
		mute(t, o, m)
		mustAdd(t, o, "B", "scheduled", "a", "b")
		mustAdd(t, o, "", "about-the-bridge", "a")
		want(t, "a hears", heard(qa), "(A-scheduled)", "(B-scheduled)", "(about-the-bridge)")
		want(t, "b hears", heard(qb), "A-scheduled", "B-scheduled")
		if s := o.Stats(time.Now())["a"]; s.Muted != 3 || s.Pending != 3 || !s.Oldest.IsZero() {
			t.Errorf("the figures are %+v, want 3 pending, all muted, and none that is old", s)
		}
		list := o.List(outbox.Selection{Route: "a"})
		if !list[0].Muted.Equal(m.Until) {
			t.Errorf("the first is listed as muted until %v, want %v", list[0].Muted, m.Until)
		}
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Hour)
		o = open(t, dir, outbox.Options{})
		q := o.Queue("a")
		want(t, "after a restart a hears", heard(q), "(A-scheduled)", "(B-scheduled)", "(about-the-bridge)")
		m.Ended = time.Now()
		mute(t, o, m)
		want(t, "after the end a hears", heard(q), "A-scheduled", "B-scheduled", "about-the-bridge")
		if s := o.Stats(time.Now())["a"]; s.Muted != 0 || !s.Oldest.Equal(m.Ended) {
			t.Errorf("the figures are %+v, want none muted and the oldest pending since the end", s)
		}
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Hour)
		o = open(t, dir, outbox.Options{})
		defer o.Close()
		q = o.Queue("a")
		mustAdd(t, o, "C", "scheduled", "a")
		for _, i := range q.Changes().Pending {
			waited := i.Group != "C"
			if i.Mute.Active() || waited != i.Since().Equal(m.Ended) {
				t.Errorf("after another restart %s is pending since %v for %+v", i.ID, i.Since(), i.Mute)
			}
		}
		if got := o.Mutes(); len(got) != 1 || got[0].Reason != "repairs" || got[0].By != "root" || got[0].Active() {
			t.Errorf("the mutes are %+v", got)
		}
	})
}

// Muted deliveries are shown to readers once the end of the mute is on disk, so that a crash can't bring the mute back.
// While the disk fails, they are shown at once.
func TestEndOfAMuteIsOnDiskFirst(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		q := o.Queue("a")
		mustAdd(t, o, "A", "scheduled", "a")
		m := delivery.Mute{ID: "m1", Since: time.Now(), Until: time.Now().Add(time.Hour)}
		mute(t, o, m)
		want(t, "muted is", heard(q), "(A-scheduled)")
		m.Ended = time.Now()
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		o.Submit(outbox.Batch{Now: time.Now(), Mutes: []delivery.Mute{m}})
		time.Sleep(4 * time.Second)
		want(t, "before the disk has it", heard(q))
		time.Sleep(2 * time.Second)
		want(t, "when the disk counts as failing", heard(q), "A-scheduled")
		close(hang)
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
		q := o.Queue("a")
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
		list := q.Changes().Pending
		if len(list) != 1 {
			t.Fatalf("%d are pending, want A", len(list))
		}
		if a := list[0]; a.Mute == nil || !a.Since().Equal(long.Ended) {
			t.Errorf("A is pending since %v for %+v, want since the end of its mute, %v", a.Since(), a.Mute, long.Ended)
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

// The mutes of a file that is read late are loaded, and don't undo changes of the same mutes in memory.
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
		qa, qb := o.Queue("a"), o.Queue("b")
		_, _ = add(o, "B", "scheduled", "a")
		ended.Ended = time.Now()
		_ = o.Apply(outbox.Batch{Now: time.Now(), Mutes: []delivery.Mute{ended}})
		want(t, "before the file comes a hears", heard(qa), "B-scheduled")
		comes(t, dir, filepath.Join(older, "outbox.db"))
		time.Sleep(6 * time.Second)
		joins(o)
		want(t, "a hears", heard(qa), "(A-scheduled)", "(B-scheduled)")
		want(t, "b hears", heard(qb), "A-scheduled")
		o.Close()
		o = open(t, dir, outbox.Options{})
		want(t, "after a restart a hears", heard(o.Queue("a")), "(A-scheduled)", "(B-scheduled)")
		want(t, "after a restart b hears", heard(o.Queue("b")), "A-scheduled")
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
		if _, err := o.Own("vmid-0"); err != nil {
			t.Fatal(err)
		}
		mute(t, o, at("old"))
		mute(t, o, at("extended"))
		o.Close()

		o = open(t, dir, outbox.Options{})
		mute(t, o, at("new"))
		mute(t, o, at("extended"))
		if fresh, err := o.Own("vmid-1"); !fresh || err != nil {
			t.Fatalf("Own = %v, %v", fresh, err)
		}
		want(t, "mutes", ids(o), "extended", "new")
		mustAdd(t, o, "A", "scheduled", "hook")
		want(t, "heard", heard(o.Queue("hook")), "(A-scheduled)")
		o.Close()

		o = open(t, dir, outbox.Options{})
		if fresh, err := o.Own("vmid-1"); fresh || err != nil {
			t.Fatalf("Own = %v, %v", fresh, err)
		}
		want(t, "mutes after a restart", ids(o), "extended", "new")
		want(t, "heard after a restart", heard(o.Queue("hook")), "(A-scheduled)")
		o.Close()
	})
}
