package delivery

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A batch holds at most as many deliveries as the route allows, oldest first, those of each event in order.
func TestBatchesAreBoundedAndInOrder(t *testing.T) {
	p := newPlan(t, Terms{Batch: 4})
	p.owe("A", scheduled, 30*time.Minute)
	p.owe("B", scheduled, 20*time.Minute)
	p.owe("A", updated, 30*time.Minute)
	p.owe("B", started, 0)
	p.announce("C")
	p.accepts("A-scheduled B-scheduled A-updated B-started", "C-scheduled")
	if len(p.lanes) != 0 {
		t.Errorf("%d lanes are left", len(p.lanes))
	}
}

// The members of a rejected batch are delivered one by one. Later ones are delivered in batches again.
func TestRejectedBatchIsDeliveredOneByOne(t *testing.T) {
	p := newPlan(t, Terms{Batch: 3})
	p.announce("A", "B", "C", "D", "E")
	p.rejects("A-scheduled B-scheduled C-scheduled")
	p.accepts("A-scheduled", "B-scheduled", "C-scheduled", "D-scheduled E-scheduled")
}

// What failed as a part of a batch counts for none of its members, once the batch is taken apart.
func TestMembersOfATakenApartBatchBeginAnew(t *testing.T) {
	p := newPlan(t, Terms{Batch: 2})
	p.announce("A", "B")
	for range 4 {
		p.fails("A-scheduled B-scheduled")
		p.later(10 * time.Minute)
	}
	p.rejects("A-scheduled B-scheduled")
	p.fails("A-scheduled")
	if l := p.lanes["A"]; !l.next.Equal(p.now.Add(time.Second)) {
		t.Errorf("it waits for %v, want a second", l.next.Sub(p.now))
	}
}

// A batch that made progress is repeated as it is: nothing is added, and none of it is delivered in another batch.
func TestBatchWithProgressKeepsItsMembers(t *testing.T) {
	p := newPlan(t, Terms{Batch: 5})
	p.owe("NEAR", scheduled, time.Minute)
	p.owePartly("A", time.Hour)
	p.owePartly("B", time.Hour)
	p.announce("FAR")
	p.accepts("NEAR-scheduled", "A-scheduled B-scheduled", "FAR-scheduled")
}

// When a member of a batch with progress is removed, the others stay together, including other changes of its event.
func TestBatchWithProgressLosesOnlyWhatIsRemoved(t *testing.T) {
	p := newPlan(t, Terms{Batch: 5})
	first := p.owePartly("A", far)
	p.owePartly("A", far)
	p.owePartly("B", time.Hour)
	p.remove(first.Seq, p.now)
	p.accepts("A-scheduled B-scheduled")
	if n := len(p.partialBatches) + len(p.lanes); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A batch with progress is repeated in the order of the first attempt, also when the queue returns its members in
// another.
func TestBatchWithProgressKeepsItsOrder(t *testing.T) {
	p := newPlan(t, grouped)
	p.wave("FAR", 3, "Reboot", far)
	p.wave("NEAR", 3, "Reboot", time.Hour)
	const first = "NEAR0-scheduled NEAR1-scheduled NEAR2-scheduled FAR0-scheduled FAR1-scheduled FAR2-scheduled"
	a := p.begins(first)
	p.planRetry(a, nil, verdict{}, p.now)
	slices.SortFunc(a.batch, func(x, y *Item) int { return cmp.Compare(x.Seq, y.Seq) })
	for _, i := range a.batch {
		next := *i
		next.Batch = 7
		p.put(&next, p.now)
	}
	p.later(2 * time.Second)
	p.accepts(first)
}

// Of an event, an older change that comes late goes before a batch with progress, in which the event takes no part
// until then.
func TestAnEarlierChangeGoesBeforeABatchWithProgress(t *testing.T) {
	p := newPlan(t, Terms{Batch: 5})
	p.owePartly("A", time.Hour)
	p.owePartly("B", far)
	p.oweEarlier("B")
	p.fails("A-scheduled")
	p.accepts("B-earlier")
}

// If that one is muted, both wait for the end of the mute.
func TestAMutedChangeBeforeABatchWithProgressWaits(t *testing.T) {
	p := newPlan(t, Terms{Batch: 5})
	p.owePartly("A", far)
	end := p.mute(p.oweEarlier("A"))
	p.rests()
	end()
	p.accepts("A-earlier", "A-scheduled")
}

// Messages about the bridge are delivered in order, also one that comes late and is older than a batch with progress.
func TestAnEarlierMessageAboutTheBridgeGoesBeforeABatchWithProgress(t *testing.T) {
	p := newPlan(t, Terms{Late: LateLatest, Batch: 1})
	partly := *p.owe("", "trouble", 0)
	partly.Batch = 7
	p.put(&partly, p.now)
	p.oweAs(0, 0, "", "earlier", 0)
	p.accepts("-earlier", "-trouble")
	p.rests()
	if p.full() {
		t.Error("an attempt without deliveries is under way")
	}
}

// A message about the bridge that is partly delivered holds up no other one, and keeps its own wait.
func TestPartlyDeliveredBridgeMessageHoldsUpNoOther(t *testing.T) {
	p := newPlan(t, Terms{Late: LateLatest, Batch: 1})
	first := *p.owe("", "trouble", 0)
	p.fails("-trouble")
	first.Batch = first.Seq
	p.put(&first, p.now)
	p.owe("", "recovered", 0)
	p.accepts("-recovered")
	p.restsFor(time.Second)
	p.later(time.Second)
	p.accepts("-trouble")
}

// With LateLatest, a message about the bridge is attempted on its own, even when its turn comes before that of events.
func TestMessageAboutTheBridgeIsNoPartOfADigest(t *testing.T) {
	p := newPlan(t, Terms{Late: LateLatest, Batch: 10})
	p.announce(numbered("EVENT-", 8)...)
	p.allFail()
	p.later(10 * time.Minute)
	p.owe("", "", 0)
	p.fails("-")
}

var grouped = Terms{Late: LateLatest, DigestAbove: 5}

// wave makes scheduled changes of n events of one type pending. It returns their attempt as one batch.
func (p *plan) wave(name string, n int, azureType string, notice time.Duration) (batch string) {
	p.azureType = azureType
	var items []*Item
	for _, event := range numbered(name, n) {
		items = append(items, p.owe(event, scheduled, notice))
	}
	p.azureType = ""
	return idsIn(items)
}

// With more than five pending events of one type, they become one batch, in order of importance; five do not. Other
// types and changes are delivered on their own.
func TestManyEventsOfOneTypeBecomeOneBatch(t *testing.T) {
	p := newPlan(t, grouped)
	five := p.wave("A", 5, "Reboot", far)
	p.accepts(strings.Fields(five)...)

	p = newPlan(t, grouped)
	p.wave("B", 6, "Freeze", far)
	p.owe("OTHER", scheduled, time.Hour)
	p.owe("B0", started, 0)
	p.wave("NEAR", 1, "Freeze", time.Hour)
	p.accepts("B0-started", "OTHER-scheduled",
		"NEAR0-scheduled B1-scheduled B2-scheduled B3-scheduled B4-scheduled B5-scheduled")
	p.rests()

	p = newPlan(t, Terms{Late: LateLatest, DigestAbove: 1})
	p.accepts(p.wave("A", 2, "Reboot", far))
}

// A rejected digest is delivered one by one, because one member may be the cause, and the last one too, whatever has
// come meanwhile. A digest that failed otherwise is tried again as a whole.
func TestRejectedDigestIsDeliveredOneByOne(t *testing.T) {
	p := newPlan(t, grouped)
	digest := p.wave("A", 6, "Reboot", far)
	p.fails(digest)
	p.later(time.Second)
	p.rejects(digest)
	p.accepts(strings.Fields(digest)[:5]...)
	next := p.wave("B", 6, "Reboot", far)
	p.accepts("A5-scheduled", next)
}

// An event that is still refused after the route has recovered is no part of a digest either: it would make that fail.
func TestEventStillRefusedJoinsNoDigest(t *testing.T) {
	p := newPlan(t, grouped)
	p.wave("REFUSED", 1, "Reboot", time.Hour)
	p.refuses("REFUSED0-scheduled")
	p.announce("OTHER")
	p.accepts("OTHER-scheduled")
	digest := p.wave("A", 6, "Reboot", far)
	p.accepts("REFUSED0-scheduled", digest)
}

// What is partly delivered does not make a digest of others, because it is repeated as it was.
func TestPartlyDeliveredEventMakesNoDigest(t *testing.T) {
	p := newPlan(t, grouped)
	five := p.wave("A", 5, "Reboot", far)
	p.azureType = "Reboot"
	p.owePartly("PART", far+time.Hour)
	p.accepts(strings.Fields(five)...)
	p.accepts("PART-scheduled")
}

// Members of a rejected digest that vanish before their turn, because somebody drops them, have no others told one by
// one in their place.
func TestDroppedMembersOfARejectedDigestLeaveNoTrace(t *testing.T) {
	p := newPlan(t, grouped)
	a := p.rejects(p.wave("A", 6, "Reboot", far))
	for _, i := range a.batch[:5] {
		p.remove(i.Seq, p.now)
	}
	p.accepts("A5-scheduled")
	p.rests()
	p.accepts(p.wave("B", 6, "Reboot", far))
}
