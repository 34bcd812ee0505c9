package outbox_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// mute adds a mute, or changes one.
func (o *box) mute(m delivery.Mute) {
	o.t.Helper()
	o.apply(outbox.Batch{Mutes: []delivery.Mute{m}})
}

// aMute is one of a route, from now on for an hour.
func aMute(id, route string) delivery.Mute {
	return delivery.Mute{ID: id, Sink: route, Since: time.Now(), Until: time.Now().Add(time.Hour)}
}

// endMute ends a mute now.
func (o *box) endMute(m delivery.Mute) (ended delivery.Mute) {
	o.t.Helper()
	m.Ended = time.Now()
	o.mute(m)
	return m
}

// muteIDs returns the ids of all mutes.
func (o *box) muteIDs() (list []string) {
	for _, m := range o.Mutes() {
		list = append(list, m.ID)
	}
	return list
}

// A mutable reader keeps what its queue has told it.
type mutable struct {
	reader
	items map[uint64]*delivery.Item
	mutes []*delivery.Mute
}

func (o *box) mutable(route string) *mutable {
	return &mutable{reader: o.reader(route), items: map[uint64]*delivery.Item{}}
}

// heard returns the pending deliveries, muted ones in brackets.
func (m *mutable) heard() (list []string) {
	c := m.Changes()
	m.mutes = c.Mutes
	for _, seq := range c.Gone {
		delete(m.items, seq)
	}
	for _, i := range c.Pending {
		m.items[i.Seq] = i
	}
	for _, seq := range slices.Sorted(maps.Keys(m.items)) {
		id := m.items[seq].ID
		if delivery.MuteOf(m.mutes, m.items[seq]).Active() {
			id = "(" + id + ")"
		}
		list = append(list, id)
	}
	return list
}

// A mute holds back pending and new deliveries of the routes that it names, and their age counts from its end. A
// restart changes none of this, and an ended mute stays ended.
func TestMuteHoldsBackUntilItEnds(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("A", "scheduled", "a", "b")
		m := aMute("m", "a")
		m.Reason, m.By = "repairs", "root"
		o.mute(m)
		o.add("B", "scheduled", "a", "b")
		o.add("", "about-the-bridge", "a")
		for _, when := range []string{"at once", "after a restart"} {
			want(t, when+" a hears", o.mutable("a").heard(), "(A-scheduled)", "(B-scheduled)", "(about-the-bridge)")
			want(t, when+" b hears", o.mutable("b").heard(), "A-scheduled", "B-scheduled")
			if until := o.List(outbox.Selection{Route: "a"})[0].Muted; !until.Equal(m.Until) {
				t.Errorf("%s the first is listed as muted until %v, want %v", when, until, m.Until)
			}
			o.restart()
		}
		time.Sleep(time.Minute)
		m = o.endMute(m)
		want(t, "after the end a hears", o.mutable("a").heard(), "A-scheduled", "B-scheduled", "about-the-bridge")

		time.Sleep(time.Minute)
		o.restart()
		o.add("C", "scheduled", "a")
		a := o.mutable("a")
		want(t, "after another restart a hears", a.heard(), "A-scheduled", "B-scheduled", "about-the-bridge", "C-scheduled")
		for _, i := range a.items {
			waited, of := i.Group != "C", delivery.MuteOf(a.mutes, i)
			if waited != i.Since(of).Equal(m.Ended) {
				t.Errorf("%s is pending since %v, and the mute ended at %v", i.ID, i.Since(of), m.Ended)
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
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		a, b := o.reader("a"), o.reader("b")
		for n := range 100 {
			o.add(fmt.Sprint("E", n), "scheduled", "a", "b")
		}
		a.Changes()
		b.Changes()
		m := aMute("m", "a")
		for _, ended := range []time.Time{{}, time.Now()} {
			m.Ended = ended
			o.mute(m)
			c := a.Changes()
			if len(c.Pending)+len(c.Gone) > 0 || len(c.Mutes) != 1 || c.Mutes[0].Active() != m.Active() {
				t.Errorf("a hears of %d deliveries and %d mutes, want the mute alone", len(c.Pending), len(c.Mutes))
			}
			c = b.Changes()
			if len(c.Pending)+len(c.Gone)+len(c.Mutes) > 0 {
				t.Errorf("b hears of %d deliveries and %d mutes, want nothing", len(c.Pending), len(c.Mutes))
			}
		}
	})
}

// All active mutes are kept, and the hundred that ended last: a long one too, if as many shorter ones began and ended
// meanwhile. What waited for it is pending since its end.
func TestMutesThatEndedLastAreKept(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		a := o.mutable("a")
		o.mute(delivery.Mute{ID: "active", Sink: "b", Since: time.Now()})
		time.Sleep(time.Second)
		long := aMute("long", "a")
		o.mute(long)
		o.add("A", "scheduled", "a")
		for n := range 100 {
			time.Sleep(10 * time.Second)
			short := aMute(fmt.Sprint("short", n), "b")
			o.mute(short)
			time.Sleep(time.Second)
			o.endMute(short)
		}
		long = o.endMute(long)
		want(t, "a hears", a.heard(), "A-scheduled")
		for _, i := range a.items {
			if since := i.Since(delivery.MuteOf(a.mutes, i)); !since.Equal(long.Ended) {
				t.Errorf("A is pending since %v, want since the end of its mute, %v", since, long.Ended)
			}
		}
		kept := o.muteIDs()
		want(t, "the first of those that are kept", kept[:3], "active", "long", "short1")
		equal(t, "with the active one there are", len(kept), 101)
	})
}

// The mutes of a file that returns are loaded, and don't undo changes of the same mutes in memory.
func TestMutesOfAFileReadLateAreLoaded(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		ended := aMute("ended", "b")
		o.mute(aMute("kept", "a"))
		o.mute(ended)
		o.add("A", "scheduled", "a", "b")
		o.restartLate(o.disk)
		a, b := o.mutable("a"), o.mutable("b")
		o.addInMemory("B", "scheduled", "a")
		ended.Ended = time.Now()
		_ = o.submit(outbox.Batch{Mutes: []delivery.Mute{ended}})()
		want(t, "before the file comes a hears", a.heard(), "B-scheduled")
		o.diskRecovers()
		o.join()
		for _, when := range []string{"then", "after a restart"} {
			want(t, when+" a hears", a.heard(), "(A-scheduled)", "(B-scheduled)")
			want(t, when+" b hears", b.heard(), "A-scheduled")
			o.restart()
			a, b = o.mutable("a"), o.mutable("b")
		}
	})
}

// A mute set on this VM is kept even if the file turns out to be another VM's, whose own mutes don't count.
func TestMuteOutlivesTheFileOfAnotherVM(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.own("vmid-0")
		o.mute(aMute("old", ""))
		o.mute(aMute("extended", ""))
		o.restart()
		o.mute(aMute("new", ""))
		o.mute(aMute("extended", ""))
		equal(t, "it is another VM's", o.own("vmid-1"), true)
		o.add("A", "scheduled", "hook")
		for _, when := range []string{"at once", "after a restart"} {
			want(t, when+" there are the mutes", o.muteIDs(), "extended", "new")
			want(t, when+" hook hears", o.mutable("hook").heard(), "(A-scheduled)")
			o.restart()
			equal(t, when+" it is another VM's", o.own("vmid-1"), false)
		}
	})
}
