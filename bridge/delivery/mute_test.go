package delivery

import (
	"slices"
	"testing"
	"time"
)

// mute mutes the deliveries. end ends the mute.
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

// What is muted is not attempted, however urgent it is, and causes no wake-up. Other events continue; later changes of
// the same event wait too. When the mute ends they are attempted at once, even what had failed just before.
func TestMutedDeliveriesWait(t *testing.T) {
	p := newPlan(t, Terms{})
	first := p.owe("A", scheduled, time.Minute)
	p.fails("A-scheduled")
	p.owe("A", started, 0)
	end := p.mute(first)
	p.announce("B")
	p.accepts("B-scheduled")
	p.restsFor(0)
	p.wantRetrying(0)
	end()
	p.accepts("A-scheduled", "A-started")
}

// What comes before a muted change of the same event does not wait for it, and after a failure only as long as always.
func TestAChangeBeforeAMutedOneIsAttempted(t *testing.T) {
	p := newPlan(t, Terms{})
	p.announce("A")
	end := p.mute(p.owe("A", started, 0))
	p.fails("A-scheduled")
	p.restsFor(time.Second)
	p.later(time.Second)
	p.accepts("A-scheduled")
	p.rests()
	end()
	p.accepts("A-started")
}

// An attempt under way is finished. What it leaves pending is muted.
func TestMuteDoesNotStopAnAttemptUnderWay(t *testing.T) {
	p := newPlan(t, Terms{})
	first, second := p.owe("A", scheduled, far), p.owe("A", started, 0)
	a := p.begins("A-scheduled")
	p.mute(first, second)
	p.accept(a, p.now)
	p.rests()
	p.remove(second.Seq, p.now)
	if n := len(p.lanes) + len(p.index); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A partly delivered batch is finished with the same members. Later changes wait for the mute.
func TestMutedBatchWithProgressIsFinished(t *testing.T) {
	p := newPlan(t, Terms{Batch: 5})
	part := p.owePartly("A", far)
	p.owePartly("B", far)
	end := p.mute(part, p.owe("A", started, 0))
	p.accepts("A-scheduled B-scheduled")
	p.rests()
	end()
	p.accepts("A-started")
}

// A muted change that a partly delivered one replaces does not hold that up.
func TestAMutedChangeBelowAPartlyDeliveredOneHoldsNothingUp(t *testing.T) {
	p := newPlan(t, Terms{Late: LateLatest})
	older := p.owe("A", updated, far)
	p.owePartly("A", far)
	p.mute(older)
	p.accepts("A-scheduled")
}

// After a mute, deliveries fall back after the usual time, counted from its end. So does one that the mute doesn't hold
// back, because it is partly delivered.
func TestMutedDeliveriesDoNotFallBack(t *testing.T) {
	for _, batch := range []uint64{0, 7} {
		p := newPlan(t, Terms{Fallback: toB})
		item := *p.owe("A", scheduled, far)
		item.Batch = batch
		p.put(&item, p.now)
		end := p.mute(&item)
		p.later(time.Hour)
		p.fallsBack("")
		end()
		p.later(toB.After - 1)
		p.fallsBack("")
		p.later(1)
		p.fallsBack("A-scheduled")
	}
}

// What waited for a mute becomes one batch, the most important first, and that batch is repeated as a whole. What was
// not muted is delivered on its own.
func TestMutedDeliveriesBecomeOneBatch(t *testing.T) {
	p := newPlan(t, grouped)
	end := p.mute(p.owe("", "", 0), p.owe("OVER", vanished, -time.Hour), p.owe("A", scheduled, far),
		p.owe("A", started, 0), p.owe("B", scheduled, far))
	p.later(time.Minute)
	end()
	const summary = "A-started B-scheduled OVER-vanished -"
	p.fails(summary)
	p.later(5 * time.Second)
	p.fails(summary)
	p.later(time.Minute)
	p.owe("NEW", scheduled, 20*time.Minute)
	p.accepts(summary, "NEW-scheduled")
}

// A single one that waited for a mute makes no digest with another of its type that did not, nor do several where
// nothing is combined.
func TestMutedDeliveriesMayStayApart(t *testing.T) {
	p := newPlan(t, grouped)
	end := p.mute(p.announce("A")...)
	end()
	p.owe("B", scheduled, far+time.Hour)
	p.accepts("A-scheduled", "B-scheduled")

	p = newPlan(t, Terms{Late: LateLatest})
	end = p.mute(p.owe("A", scheduled, far), p.owe("B", scheduled, far), p.owe("", "first", 0), p.owe("", "second", 0))
	end()
	p.accepts("A-scheduled", "B-scheduled", "-first", "-second")
}

// A rejected batch of what waited for a mute comes apart too, also that about the bridge alone.
func TestRejectedSummaryComesApart(t *testing.T) {
	p := newPlan(t, grouped)
	end := p.mute(p.owe("", "first", 0), p.owe("", "second", 0))
	end()
	p.rejects("-first -second")
	p.accepts("-first", "-second")
}

// More than fits into one batch is delivered in several.
func TestSummaryIsBounded(t *testing.T) {
	p := newPlan(t, grouped)
	items := p.announce(numbered("E", maxDigest+1)...)
	end := p.mute(items...)
	end()
	p.accepts(idsIn(items[:maxDigest]), idsIn(items[maxDigest:]))
}

// Messages about one bridge don't wait for muted ones about another.
func TestBridgesDoNotWaitForEachOther(t *testing.T) {
	p := newPlan(t, Terms{})
	about := func(seq uint64, vm string) *Item {
		i := &Item{Message: &Message{Seq: seq, ID: vm, VMs: []string{vm}}, PendingSince: p.now}
		p.put(i, p.now)
		return i
	}
	end := p.mute(about(1, "vm_0"))
	about(2, "vm_1")
	p.accepts("vm_1")
	p.rests()
	p.seq = 2
	end()
	p.accepts("vm_0")
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
