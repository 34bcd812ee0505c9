package delivery

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

var grouped = Terms{Late: LateLatest, DigestAbove: 5}

// wave queues so many events of one type at once.
func (p *plan) wave(name string, n int, azureType string, notice time.Duration) {
	p.azureType = azureType
	for i := range n {
		p.owe(fmt.Sprintf("%s%d", name, i), scheduled, notice)
	}
	p.azureType = ""
}

// With more than five pending events of one type, they become one batch, in order of importance; five do not. Other
// types and changes are delivered on their own.
func TestManyEventsOfOneTypeBecomeOneBatch(t *testing.T) {
	p := newPlan(grouped)
	p.wave("A", 5, "Reboot", far)
	for i := range 5 {
		p.want(t, "five", p.try(), fmt.Sprintf("A%d-scheduled", i))
	}

	p = newPlan(grouped)
	p.wave("B", 6, "Freeze", far)
	p.owe("OTHER", scheduled, time.Hour)
	p.owe("B0", "started", 0)
	p.wave("NEAR", 1, "Freeze", time.Hour)
	p.want(t, "what has begun", p.try(), "B0-started")
	p.want(t, "another type", p.try(), "OTHER-scheduled")
	p.want(t, "the wave", p.try(), "NEAR0-scheduled", "B1-scheduled", "B2-scheduled", "B3-scheduled", "B4-scheduled", "B5-scheduled")
	p.want(t, "nothing more", p.try())
}

// With Above 1, two events are already a digest.
func TestDigestAboveOne(t *testing.T) {
	p := newPlan(Terms{Late: LateLatest, DigestAbove: 1})
	p.wave("A", 2, "Reboot", far)
	p.want(t, "both", p.try(), "A0-scheduled", "A1-scheduled")
}

// A digest delivers only the latest change of each event. The older ones are settled with it.
func TestDigestDeliversOnlyTheLatestChanges(t *testing.T) {
	p := newPlan(grouped)
	p.wave("A", 6, "", far)
	for i := range 6 {
		p.owe(fmt.Sprintf("A%d", i), "started", 0)
	}
	a, _ := p.next()
	if got, want := len(a.batch), 6; got != want {
		t.Errorf("the batch holds %d, want %d", got, want)
	}
	if got, want := len(a.superseded), 6; got != want {
		t.Errorf("it stands for %d older changes, want %d", got, want)
	}
}

// A rejected digest is delivered one by one, because one member may be the cause. A digest that failed otherwise is
// tried again as a whole.
func TestRejectedDigestIsDeliveredOneByOne(t *testing.T) {
	p := newPlan(grouped)
	p.wave("A", 6, "Reboot", far)
	if got := p.fails(false, 0); len(got) != 6 {
		t.Errorf("attempted %v, want the six", got)
	}
	p.later(2 * time.Second)
	if got := len(p.rejects().batch); got != 6 {
		t.Errorf("attempted %d again, want the six", got)
	}
	for i := range 6 {
		p.want(t, "one by one", p.try(), fmt.Sprintf("A%d-scheduled", i))
	}
}

// The last member of a rejected digest goes alone too, whatever has come meanwhile: it may be the cause.
func TestLastMemberOfARejectedDigestJoinsNoOther(t *testing.T) {
	p := newPlan(grouped)
	p.wave("A", 6, "Reboot", far)
	p.rejects()
	for range 5 {
		p.try()
	}
	p.wave("B", 6, "Reboot", far)
	p.want(t, "the last", p.try(), "A5-scheduled")
	p.later(20 * time.Second)
	if got := p.try(); len(got) != 6 {
		t.Errorf("then %v, want the six that came", got)
	}
}

// An event that is still refused after the route has recovered is no part of a digest either: it would make that fail.
func TestEventStillRefusedJoinsNoDigest(t *testing.T) {
	p := newPlan(grouped)
	p.wave("REFUSED", 1, "Reboot", time.Hour)
	p.want(t, "refused", p.fails(true, 0), "REFUSED0-scheduled")
	p.owe("OTHER", scheduled, far)
	p.want(t, "accepted", p.try(), "OTHER-scheduled")
	p.wave("A", 6, "Reboot", far)
	p.want(t, "once more", p.try(), "REFUSED0-scheduled")
	p.later(20 * time.Second)
	if got := p.try(); len(got) != 6 || slices.Contains(got, "REFUSED0-scheduled") {
		t.Errorf("then %v, want the six that came", got)
	}
}

// What is partly delivered does not make a digest of others, because it is repeated as it was.
func TestPartlyDeliveredItemMakesNoDigest(t *testing.T) {
	p := newPlan(grouped)
	p.wave("A", 5, "Reboot", far)
	p.later(time.Minute)
	p.wave("PART", 1, "Reboot", far+time.Hour)
	part := *p.lanes["PART0"].items[0]
	part.Batch = part.Seq
	p.put(&part, p.now)
	for n := range 5 {
		p.want(t, "one by one", p.try(), fmt.Sprintf("A%d-scheduled", n))
	}
	p.want(t, "the partly delivered one", p.try(), "PART0-scheduled")
}

// Members of a rejected digest that vanish before their turn, because somebody drops them, have no others told one by one
// in their place.
func TestDroppedMembersOfARejectedDigestLeaveNoTrace(t *testing.T) {
	p := newPlan(grouped)
	p.wave("A", 6, "Reboot", far)
	a := p.rejects()
	for _, i := range a.batch[:5] {
		p.remove(i.Seq, p.now)
	}
	p.want(t, "the one that is left", p.try(), "A5-scheduled")
	p.want(t, "then", p.try())
	p.later(time.Hour)
	p.wave("B", 6, "Reboot", far)
	if got := p.try(); len(got) != 6 {
		t.Errorf("attempted %v, want the six of the next wave", got)
	}
}
