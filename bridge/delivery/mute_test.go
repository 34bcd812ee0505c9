package delivery

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// mute mutes the items. end ends the mute.
func (p *plan) mute(items ...*Item) (end func()) {
	for _, i := range items {
		i.AzureType = "muted"
	}
	m := &Mute{Types: []string{"muted"}, Since: p.now}
	p.setMutes([]*Mute{m}, p.now)
	return func() {
		ended := *m
		ended.Ended, ended.LastSeq = p.now, p.seq
		p.setMutes([]*Mute{&ended}, p.now)
	}
}

// Muted items are not attempted, however urgent they are, and cause no wake-up. Other events continue; later items of
// the same event wait too. When the mute ends they are attempted at once, even if they had failed before.
func TestMutedItemsWait(t *testing.T) {
	p := newPlan(Terms{})
	first := p.owe("A", scheduled, time.Minute)
	p.want(t, "before", p.fails(false, 0), "A-scheduled")
	second := p.owe("A", "started", 0)
	end := p.mute(first)
	p.owe("B", scheduled, far)
	p.want(t, "another event", p.try(), "B-scheduled")
	p.later(time.Hour)
	if got, wake := p.next(); len(got.batch) != 0 || !wake.IsZero() || p.retrying != 0 {
		t.Errorf("%v is attempted while it is muted, and it wakes at %v with %d failing", idsIn(got), wake, p.retrying)
	}
	end()
	p.want(t, "at the end", p.try(), first.ID)
	p.want(t, "and then", p.try(), second.ID)
}

// What comes before a muted item of the same event does not wait for it, and after a failure only as long as always.
func TestItemBeforeAMutedOneIsAttempted(t *testing.T) {
	p := newPlan(Terms{})
	p.random = func() float64 { return 1 }
	first, second := p.owe("A", scheduled, far), p.owe("A", "started", 0)
	end := p.mute(second)
	p.want(t, "the first", p.fails(false, 0), first.ID)
	p.want(t, "right after its failure", p.try())
	p.later(backoff(1, 1))
	p.want(t, "the first again", p.try(), first.ID)
	p.want(t, "the muted one", p.try())
	end()
	p.want(t, "at the end", p.try(), second.ID)
}

// What failed before a mute is attempted as soon as that ends.
func TestEndOfAMuteWaitsForNoBackoff(t *testing.T) {
	p := newPlan(Terms{})
	p.random = func() float64 { return 1 }
	item := p.owe("A", scheduled, far)
	p.want(t, "before", p.fails(false, 0), item.ID)
	end := p.mute(item)
	p.want(t, "meanwhile", p.try())
	end()
	p.want(t, "at the end", p.try(), item.ID)
}

// An attempt under way is finished. Items that it leaves pending are muted.
func TestMuteDoesNotStopAnAttemptUnderWay(t *testing.T) {
	p := newPlan(Terms{})
	first := p.owe("A", scheduled, far)
	second := p.owe("A", "started", 0)
	a, _ := p.next()
	end := p.mute(first, second)
	p.accept(a, p.now)
	p.want(t, "what it leaves", p.try())
	p.remove(second.Seq, p.now)
	if len(p.lanes)+len(p.index) != 0 {
		t.Errorf("%d lanes are left", len(p.lanes))
	}
	end()
	p.want(t, "nothing is left", p.try())
}

// A partly delivered batch is finished with the same members. Later items wait for the mute.
func TestMutedBatchWithProgressIsFinished(t *testing.T) {
	p := newPlan(Terms{Batch: 5})
	var items []*Item
	for _, event := range []string{"A", "B"} {
		item := *p.owe(event, scheduled, far)
		item.Batch = 7
		p.put(&item, p.now)
		items = append(items, &item)
	}
	items = append(items, p.owe("A", "started", 0))
	end := p.mute(items[0], items[2])
	p.want(t, "the batch", p.try(), "A-scheduled", "B-scheduled")
	p.want(t, "what comes after it", p.try())
	end()
	p.want(t, "at the end", p.try(), "A-started")
}

// A muted change that a partly delivered one replaces does not hold that up.
func TestMutedItemBelowAPartlyDeliveredOneHoldsNothingUp(t *testing.T) {
	p := newPlan(Terms{Late: LateLatest})
	older, part := p.owe("A", scheduled, far), *p.owe("A", updated, far)
	part.Batch = part.Seq
	p.put(&part, p.now)
	p.mute(older)
	p.want(t, "the partly delivered one", p.try(), "A-updated")
}

// After a mute, items fall back after the usual time, counted from its end.
func TestMutedItemsDoNotFallBack(t *testing.T) {
	p := newPlan(Terms{Fallback: Fallback{Sink: "other", After: 10 * time.Minute}})
	item := p.owe("A", scheduled, far)
	end := p.mute(item)
	p.later(time.Hour)
	fallen := func() int { _, fallback := p.takeOverdue(p.now); return len(fallback) }
	if n := fallen(); n != 0 {
		t.Errorf("%d fall back while they are muted", n)
	}
	end()
	p.later(10*time.Minute - 1)
	if n := fallen(); n != 0 {
		t.Errorf("%d fall back before 10 minutes have passed since the end", n)
	}
	p.later(1)
	if n := fallen(); n != 1 {
		t.Errorf("%d fall back 10 minutes after the end, want 1", n)
	}
}

// Items that become late while muted are not dropped: the latest change is delivered when the mute ends. After that it
// may become late.
func TestMutedItemsAreNotLate(t *testing.T) {
	p := newPlan(Terms{Late: LateDrop})
	begins := p.owe("A", scheduled, 10*time.Minute)
	overtaken := p.owe("B", scheduled, 10*time.Minute)
	latest := p.owe("B", "started", 0)
	soon := p.owe("C", scheduled, 2*time.Hour)
	end := p.mute(begins, overtaken, latest, soon)
	p.later(time.Hour)
	if late, _ := p.takeOverdue(p.now); len(late) != 0 {
		t.Errorf("%d are late while they are muted", len(late))
	}
	end()
	late, _ := p.takeOverdue(p.now)
	if len(late) != 1 || late[0].ID != overtaken.ID || !p.waited(late[0]) {
		t.Errorf("late are %v, want %s alone, which the worker then supersedes", late, overtaken.ID)
	}
	p.want(t, "the latest", p.try(), latest.ID)
	p.want(t, "what should have begun", p.try(), begins.ID)
	p.later(time.Hour)
	if late, _ := p.takeOverdue(p.now); len(late) != 1 || late[0].ID != soon.ID {
		t.Errorf("late are %v, want %s, which became so after the end", late, soon.ID)
	}
}

// Items that waited for a mute become one batch, the most important first, and that batch is repeated as a whole. Items
// that were not muted are delivered on their own.
func TestMutedItemsBecomeOneBatch(t *testing.T) {
	p := newPlan(grouped)
	var items []*Item
	for _, one := range []struct {
		event, change string
		notice        time.Duration
	}{
		{"", "", 0}, {"OVER", vanished, -time.Hour}, {"A", scheduled, far}, {"A", "started", 0}, {"B", scheduled, far},
	} {
		items = append(items, p.owe(one.event, one.change, one.notice))
	}
	end := p.mute(items...)
	p.later(time.Minute)
	end()
	want := []string{"A-started", "B-scheduled", "OVER-vanished", "-"}
	p.want(t, "all that waited", p.fails(false, 0), want...)
	p.later(time.Second)
	p.want(t, "all that waited, again", p.fails(false, 0), want...)
	p.later(time.Minute)
	p.owe("NEW", scheduled, 20*time.Minute)
	p.want(t, "all that waited, at last", p.try(), want...)
	p.want(t, "what did not", p.try(), "NEW-scheduled")

	p = newPlan(grouped)
	end = p.mute(p.owe("A", scheduled, far))
	end()
	p.owe("B", scheduled, far+time.Hour)
	p.want(t, "what waited, without another of its type that did not", p.try(), "A-scheduled")

	p = newPlan(Terms{Late: LateLatest})
	end = p.mute(p.owe("A", scheduled, far), p.owe("B", scheduled, far))
	end()
	p.want(t, "without groups", p.try(), "A-scheduled")

	p = newPlan(Terms{Late: LateLatest})
	end = p.mute(p.owe("", "first", 0), p.owe("", "second", 0))
	end()
	p.want(t, "about the bridge, without groups", p.try(), "-first")
}

// A rejected batch of what waited for a mute comes apart too, also that of one lane.
func TestRejectedSummaryComesApart(t *testing.T) {
	p := newPlan(grouped)
	p.mute(p.owe("", "first", 0), p.owe("", "second", 0))()
	p.want(t, "what is rejected", idsIn(p.rejects()), "-first", "-second")
	p.want(t, "then", p.try(), "-first")
	p.want(t, "and then", p.try(), "-second")
}

// More items than fit into one batch are delivered in several.
func TestSummaryIsBounded(t *testing.T) {
	p := newPlan(grouped)
	var items []*Item
	for n := range maxDigest + 1 {
		items = append(items, p.owe(fmt.Sprint("E", n), scheduled, far))
	}
	p.mute(items...)()
	p.later(20 * time.Second)
	if first, second := len(p.try()), len(p.try()); first != maxDigest || second != 1 {
		t.Errorf("the batches hold %d and %d, want %d and 1", first, second, maxDigest)
	}
}

// Messages about one bridge don't wait for muted ones about another.
func TestBridgesDoNotWaitForEachOther(t *testing.T) {
	p := newPlan(Terms{})
	about := func(vm string) *Item {
		p.seq++
		i := &Item{Message: &Message{Seq: p.seq, ID: vm, VMs: []string{vm}}, PendingSince: p.now}
		p.put(i, p.now)
		return i
	}
	end := p.mute(about("vm_0"))
	about("vm_1")
	p.want(t, "another bridge", p.try(), "vm_1")
	end()
	p.want(t, "at the end", p.try(), "vm_0")
}

// A mute covers what it names. Preempt and Terminate are covered only if named, heartbeats never. A mute of one VM
// doesn't cover an event that names other VMs too. One for people covers nothing for a machine.
func TestMuteCovers(t *testing.T) {
	reboot := Message{AzureType: "Reboot", VMs: []string{"vm-db-1", "VM-DB-2"}}
	preempt, bridge := Message{AzureType: "Preempt", VMs: []string{"vm-db-1"}}, Message{}
	for _, c := range []struct {
		mute Mute
		msg  Message
		want bool
	}{
		{Mute{}, reboot, true}, {Mute{}, bridge, true}, {Mute{}, preempt, false},
		{Mute{}, Message{AzureType: "terminate"}, false}, {Mute{}, Message{AzureType: "New"}, true},
		{Mute{}, Message{Transient: true}, false},
		{Mute{Sink: "ops"}, reboot, true}, {Mute{Sink: "other"}, reboot, false},
		{Mute{Types: []string{"preempt"}}, preempt, true}, {Mute{Types: []string{"Preempt"}}, reboot, false},
		{Mute{Types: []string{"Reboot"}}, bridge, false},
		{Mute{VM: "vm-db-*"}, reboot, true}, {Mute{VM: "vm-db-1"}, reboot, false}, {Mute{VM: "vm-db-*"}, bridge, false},
		{Mute{VM: "vm-db-*"}, preempt, false},
		{Mute{People: true}, reboot, true}, {Mute{People: true}, bridge, true}, {Mute{People: true}, preempt, false},
		{Mute{People: true, VM: "vm-db-1"}, reboot, false},
	} {
		if got := c.mute.Covers("ops", true, &c.msg); got != c.want {
			t.Errorf("%+v covers %+v: %v, want %v", c.mute, c.msg, got, c.want)
		}
		wantMachine := c.want && !c.mute.People
		if got := c.mute.Covers("ops", false, &c.msg); got != wantMachine {
			t.Errorf("%+v covers %+v for a machine: %v, want %v", c.mute, c.msg, got, wantMachine)
		}
	}
}

// Of several mutes, the one that lasts longest counts; after they have ended, the last one that the item waited for. A
// mute that ended before the item arrived doesn't count, even if the clock was set back since.
func TestMuteOf(t *testing.T) {
	at := func(minutes int) time.Time { return time.Unix(0, 0).Add(time.Duration(minutes) * time.Minute) }
	short, long := &Mute{ID: "short", Until: at(10)}, &Mute{ID: "long", Until: at(20)}
	early := &Mute{ID: "early", Until: at(60), Ended: at(5), LastSeq: 7}
	late := &Mute{ID: "late", Until: at(7), Ended: at(6), LastSeq: 8}
	item := func(seq uint64, minute int) *Item {
		return &Item{Message: &Message{Seq: seq}, PendingSince: at(minute)}
	}
	for _, c := range []struct {
		mutes []*Mute
		item  *Item
		want  *Mute
	}{
		{[]*Mute{short, long, early}, item(1, 1), long}, {[]*Mute{early, long, short}, item(1, 1), long},
		{[]*Mute{early, late}, item(1, 1), late}, {[]*Mute{late, early}, item(1, 1), late},
		{[]*Mute{late, early}, item(9, 1), nil}, {[]*Mute{late, early}, item(1, 7), nil},
		{[]*Mute{early, late}, item(8, 1), late}, {nil, item(1, 1), nil},
	} {
		for range 2 {
			if got := MuteOf(c.mutes, c.item); got != c.want {
				t.Errorf("of %d mutes %+v counts, want %+v", len(c.mutes), got, c.want)
			}
			slices.Reverse(c.mutes)
		}
	}
}
