package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"
)

// A batch holds at most as many deliveries as the route allows, oldest first, those of each event in order.
func TestBatchesAreBoundedAndInOrder(t *testing.T) {
	p := newPlan(Terms{Batch: 4})
	p.owe("A", scheduled, 30*time.Minute)
	p.owe("B", scheduled, 20*time.Minute)
	p.owe("A", updated, 30*time.Minute)
	p.owe("B", "started", 0)
	p.owe("C", scheduled, far)
	p.want(t, "the first", p.try(), "A-scheduled", "B-scheduled", "A-updated", "B-started")
	p.want(t, "the second", p.try(), "C-scheduled")
	if p.next(); len(p.lanes) != 0 {
		t.Errorf("%d lanes are left", len(p.lanes))
	}
}

// The members of a rejected batch are delivered one by one. Later items are delivered in batches again.
func TestRejectedBatchIsDeliveredOneByOne(t *testing.T) {
	p := newPlan(Terms{Batch: 3})
	for _, event := range []string{"A", "B", "C", "D", "E"} {
		p.owe(event, scheduled, far)
	}
	p.want(t, "the batch", idsIn(p.rejects()), "A-scheduled", "B-scheduled", "C-scheduled")
	for _, event := range []string{"A", "B", "C"} {
		p.want(t, "one by one", p.try(), event+"-scheduled")
	}
	p.want(t, "the rest", p.try(), "D-scheduled", "E-scheduled")
}

// What failed as a part of a batch counts for none of its members, once the batch is taken apart.
func TestMembersOfATakenApartBatchBeginAnew(t *testing.T) {
	p := newPlan(Terms{Batch: 2})
	p.random = func() float64 { return 1 }
	p.owe("A", scheduled, far)
	p.owe("B", scheduled, far)
	for range 4 {
		p.want(t, "the batch", p.fails(false, 0), "A-scheduled", "B-scheduled")
		p.later(10 * time.Minute)
	}
	p.rejects()
	p.want(t, "alone", p.fails(false, 0), "A-scheduled")
	if l := p.lanes["A"]; !l.next.Equal(p.now.Add(time.Second)) {
		t.Errorf("it waits for %v, want a second", l.next.Sub(p.now))
	}
}

// A batch that made progress is repeated as it is: no item is added, and none is delivered in another batch.
func TestBatchWithProgressKeepsItsMembers(t *testing.T) {
	p := newPlan(Terms{Batch: 5})
	p.owe("NEAR", scheduled, time.Minute)
	for _, event := range []string{"A", "B"} {
		item := *p.owe(event, scheduled, time.Hour)
		item.Batch = 7
		p.put(&item, p.now)
	}
	p.owe("FAR", scheduled, far)
	p.want(t, "what begins soonest", p.try(), "NEAR-scheduled")
	p.want(t, "the batch", p.try(), "A-scheduled", "B-scheduled")
	p.want(t, "the rest", p.try(), "FAR-scheduled")
}

// Items about the bridge are delivered in order, also one that comes late and is older than a batch with progress.
func TestOlderBridgeItemGoesBeforeABatchWithProgress(t *testing.T) {
	p := newPlan(Terms{Late: LateLatest, Batch: 1})
	p.seq = 10
	partial := *p.owe("", "trouble", 0)
	partial.Batch = 7
	p.put(&partial, p.now)
	p.put(&Item{Message: &Message{Seq: 1, ID: "older"}, PendingSince: p.now}, p.now)
	p.want(t, "the older one", p.try(), "older")
	p.want(t, "then the batch", p.try(), "-trouble")
	if p.full() {
		t.Error("an attempt without items is under way")
	}
}

// When an item of a batch with progress is removed, the others stay together, including other changes of the same
// event.
func TestBatchWithProgressLosesOnlyRemovedItems(t *testing.T) {
	p := newPlan(Terms{Batch: 5})
	var items []*Item
	for n, event := range []string{"A", "A", "B"} {
		item := *p.owe(event, []string{scheduled, updated, scheduled}[n], []time.Duration{far, far, time.Hour}[n])
		item.Batch = 7
		p.put(&item, p.now)
		items = append(items, &item)
	}
	p.remove(items[0].Seq, p.now)
	p.want(t, "the rest", p.try(), "A-updated", "B-scheduled")
	if n := len(p.partialBatches) + len(p.lanes); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// With LateLatest, a message about the bridge is attempted on its own, even when its turn comes before that of events.
func TestMessageAboutTheBridgeIsNoPartOfADigest(t *testing.T) {
	p := newPlan(Terms{Late: LateLatest, Batch: 10})
	for n := range 8 {
		p.owe(fmt.Sprint("EVENT-", n), scheduled, far)
		p.fails(false, 0)
	}
	p.later(10 * time.Minute)
	p.owe("", "", 0)
	p.want(t, "the probe", p.fails(false, 0), "-")
}

// If an item is replayed ahead of an event's batch with progress, the event takes no part in the next attempt of the
// batch, and the replayed item is delivered first.
func TestReplayedItemGoesBeforeABatchWithProgress(t *testing.T) {
	p := newPlan(Terms{Batch: 5})
	p.seq = 10
	for n, event := range []string{"A", "B"} {
		item := *p.owe(event, scheduled, time.Duration(n+1)*time.Hour)
		item.Batch = 7
		p.put(&item, p.now)
	}
	p.put(&Item{Message: &Message{Seq: 1, Group: "B", Change: scheduled, ID: "old"}, NotBefore: p.now.Add(far)}, p.now)
	p.want(t, "the batch", p.fails(false, 0), "A-scheduled")
	p.want(t, "what was replayed", p.try(), "old")
}

// A batch with progress is repeated in the order of the first attempt, also when the queue returns its items in another.
func TestBatchWithProgressKeepsItsOrder(t *testing.T) {
	p := newPlan(grouped)
	p.wave("FAR", 3, "Reboot", far)
	p.wave("NEAR", 3, "Reboot", time.Hour)
	a, _ := p.next()
	p.planRetry(a, nil, verdict{}, p.now)
	for _, i := range slices.SortedFunc(slices.Values(a.batch), func(x, y *Item) int { return cmp.Compare(x.Seq, y.Seq) }) {
		next := *i
		next.Batch = a.batch[0].Seq
		p.put(&next, p.now)
	}
	p.later(2 * time.Second)
	p.want(t, "the same order", p.try(), idsIn(a)...)
}

// A muted item before a batch with progress waits for the end of the mute.
func TestMutedItemBeforeABatchWithProgressWaits(t *testing.T) {
	p := newPlan(Terms{Batch: 5})
	p.seq = 10
	part := *p.owe("A", updated, far)
	part.Batch = 7
	p.put(&part, p.now)
	old := &Item{Message: &Message{Seq: 1, Group: "A", Change: scheduled, ID: "old"}, PendingSince: p.now}
	p.mute(old)
	p.put(old, p.now)
	if got := p.try(); slices.Contains(got, "old") {
		t.Errorf("%v was delivered while it is muted", got)
	}
}

// With LateLatest, a newer change of an event takes the place of one that is partly delivered. The rest of its batch
// stays together.
func TestNewerChangeReplacesAPartlyDeliveredOne(t *testing.T) {
	p := newPlan(grouped)
	for _, event := range []string{"A", "B"} {
		item := *p.owe(event, scheduled, far)
		item.Batch = 7
		p.put(&item, p.now)
	}
	p.owe("A", "started", 0)
	a, _ := p.next()
	if got := idsIn(a); !slices.Equal(got, []string{"A-started"}) || len(a.superseded) != 1 {
		t.Fatalf("attempted %v and superseded %d, want the newer change instead of the older", got, len(a.superseded))
	}
	p.accept(a, p.now)
	p.want(t, "the rest of the batch", p.try(), "B-scheduled")
}

// A message about the bridge that is partly delivered holds up no other one, and keeps its own wait.
func TestPartlyDeliveredBridgeMessageHoldsUpNoOther(t *testing.T) {
	p := newPlan(Terms{Late: LateLatest, Batch: 1})
	p.random = func() float64 { return 1 }
	first := *p.owe("", "trouble", 0)
	p.want(t, "the first", p.fails(false, 0), "-trouble")
	first.Batch = first.Seq
	p.put(&first, p.now)
	p.owe("", "recovered", 0)
	p.want(t, "the next", p.try(), "-recovered")
	p.want(t, "the first, not yet", p.try())
	p.later(time.Second)
	p.want(t, "the first, after its wait", p.try(), "-trouble")
}
