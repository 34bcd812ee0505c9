package delivery

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

var grouped = Terms{Late: LateLatest, Digest: Digest{Above: 5, Within: 20 * time.Second}}

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
	p := newPlan(Terms{Late: LateLatest, Digest: Digest{Above: 1, Within: 20 * time.Second}})
	p.wave("A", 2, "Reboot", far)
	p.want(t, "both", p.try(), "A0-scheduled", "A1-scheduled")
}

// However large a wave is, only the last Digest.Above arrival times are kept.
func TestArrivalTimesAreBounded(t *testing.T) {
	p := newPlan(grouped)
	p.wave("A", 1000, "Reboot", far)
	if n := len(p.waves[wave{"Reboot", scheduled}].times); n != 5 {
		t.Errorf("%d times are remembered, want 5", n)
	}
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

// Of events that arrive one by one, the first five are delivered at once. The next ones wait until 20 s have passed
// since the first of them, and then become one batch. Events that start in less than two minutes never wait.
func TestEventsThatArriveOneByOneBecomeADigest(t *testing.T) {
	p := newPlan(grouped)
	for i := range 5 {
		p.owe(fmt.Sprintf("A%d", i), scheduled, far)
		p.want(t, "one of the first", p.try(), fmt.Sprintf("A%d-scheduled", i))
		p.later(time.Second)
	}
	var want []string
	for i := range 9 {
		p.owe(fmt.Sprintf("B%d", i), scheduled, far)
		want = append(want, fmt.Sprintf("B%d-scheduled", i))
		p.want(t, "one of the next", p.try())
		p.later(time.Second)
	}
	p.wave("EVICTED", 1, "Preempt", 90*time.Second)
	p.want(t, "another type", p.try(), "EVICTED0-scheduled")
	_, wake := p.next()
	if in := wake.Sub(p.now); in != 11*time.Second {
		t.Errorf("the batch is due in %v, want 11s", in)
	}
	p.later(11 * time.Second)
	p.want(t, "the gathered", p.try(), want...)

	p = newPlan(grouped)
	for i := range 9 {
		p.owe(fmt.Sprintf("NOW%d", i), scheduled, 119*time.Second)
		p.want(t, "what is due soon", p.try(), fmt.Sprintf("NOW%d-scheduled", i))
		p.owe(fmt.Sprintf("MOVED%d", i), updated, 119*time.Second)
		p.want(t, "what moved and is due soon", p.try(), fmt.Sprintf("MOVED%d-updated", i))
	}
	p.owe("SOON", scheduled, 2*time.Minute)
	p.want(t, "what is due in two minutes", p.try())
}

// A digest is complete 20 s after its first item arrived, even if that item is removed.
func TestDigestTimeStaysWhenItsFirstItemIsRemoved(t *testing.T) {
	p := newPlan(grouped)
	for i := range 5 {
		p.owe(fmt.Sprintf("A%d", i), scheduled, far)
		p.try()
	}
	first := p.owe("FIRST", scheduled, far)
	p.later(15 * time.Second)
	p.owe("SECOND", scheduled, far)
	p.remove(first.Seq, p.now)
	p.later(4 * time.Second)
	p.want(t, "before", p.try())
	p.later(time.Second)
	p.want(t, "20 s after the first", p.try(), "SECOND-scheduled")
}

// Messages about the bridge never wait for a digest, however many there are.
func TestMessagesAboutTheBridgeWaitForNoDigest(t *testing.T) {
	p := newPlan(grouped)
	for range 9 {
		p.owe("", "", 0)
		p.want(t, "one of nine", p.try(), "-")
	}
}

// The first five events count for 20 s. An event that arrives after that is delivered at once again.
func TestWaveEndsAfterWithin(t *testing.T) {
	p := newPlan(grouped)
	for i := range 5 {
		p.owe(fmt.Sprintf("A%d", i), scheduled, far)
		p.try()
	}
	p.later(20*time.Second - 1)
	p.owe("STILL", scheduled, far)
	p.want(t, "just before they are over", p.try())
	p = newPlan(grouped)
	for i := range 5 {
		p.owe(fmt.Sprintf("A%d", i), scheduled, far)
		p.try()
	}
	p.later(20 * time.Second)
	p.owe("NEXT", scheduled, far)
	p.want(t, "when they are over", p.try(), "NEXT-scheduled")
}

// A stop delivers what waits for a digest, because the next start may be far away.
func TestStopWaitsForNoDigest(t *testing.T) {
	p := newPlan(grouped)
	for i := range 5 {
		p.owe(fmt.Sprintf("A%d", i), scheduled, far)
		p.try()
	}
	p.owe("B", scheduled, far)
	p.want(t, "before the stop", p.try())
	p.stop(p.now)
	p.want(t, "at the stop", p.try(), "B-scheduled")
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
