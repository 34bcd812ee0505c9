package bridge

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
)

var grouped = Terms{Late: LateLatest, Group: Group{Above: 5, Within: 20 * time.Second}}

// wave owes so many events of one type at once.
func (p *plan) wave(name string, n int, azureType string, notice time.Duration) {
	p.azureType = azureType
	for i := range n {
		p.owe(fmt.Sprintf("%s%d", name, i), Scheduled, notice)
	}
	p.azureType = ""
}

// More than five events of one type that wait become one batch, in the order in which they matter; five do not, and
// other types and changes are told on their own.
func TestManyEventsOfOneTypeBecomeOneBatch(t *testing.T) {
	p := newPlan(grouped)
	p.wave("A", 5, "Reboot", far)
	for i := range 5 {
		p.want(t, "five", p.try(), fmt.Sprintf("A%d-scheduled", i))
	}

	p = newPlan(grouped)
	p.wave("B", 6, "Freeze", far)
	p.owe("OTHER", Scheduled, time.Hour)
	p.owe("B0", Started, 0)
	p.wave("NEAR", 1, "Freeze", time.Hour)
	p.want(t, "what has begun", p.try(), "B0-started")
	p.want(t, "another type", p.try(), "OTHER-scheduled")
	p.want(t, "the wave", p.try(), "NEAR0-scheduled", "B1-scheduled", "B2-scheduled", "B3-scheduled", "B4-scheduled", "B5-scheduled")
	p.want(t, "nothing more", p.try())
}

// Of an event in a group only the newest change is told, and the older ones are settled with it.
func TestAGroupStandsForWhatItsEventsMissed(t *testing.T) {
	p := newPlan(grouped)
	p.wave("A", 6, "", far)
	for i := range 6 {
		p.owe(fmt.Sprintf("A%d", i), Started, 0)
	}
	a, _ := p.next(p.now, false)
	if got, want := len(a.batch), 6; got != want {
		t.Errorf("the batch holds %d, want %d", got, want)
	}
	if got, want := len(a.superseded), 6; got != want {
		t.Errorf("it stands for %d older changes, want %d", got, want)
	}
}

// Of events that come one by one, the first five are told at once. The next ones wait until 20 s have passed since the
// first of them, and become one batch then. What is due in less than two minutes never waits.
func TestATrickleIsGathered(t *testing.T) {
	p := newPlan(grouped)
	for i := range 5 {
		p.owe(fmt.Sprintf("A%d", i), Scheduled, far)
		p.want(t, "one of the first", p.try(), fmt.Sprintf("A%d-scheduled", i))
		p.later(time.Second)
	}
	var want []string
	for i := range 9 {
		p.owe(fmt.Sprintf("B%d", i), Scheduled, far)
		want = append(want, fmt.Sprintf("B%d-scheduled", i))
		p.want(t, "one of the next", p.try())
		p.later(time.Second)
	}
	p.wave("EVICTED", 1, "Preempt", 90*time.Second)
	p.want(t, "another type", p.try(), "EVICTED0-scheduled")
	_, wake := p.next(p.now, false)
	if in := wake.Sub(p.now); in != 11*time.Second {
		t.Errorf("the batch is due in %v, want 11s", in)
	}
	p.later(11 * time.Second)
	p.want(t, "the gathered", p.try(), want...)

	p = newPlan(grouped)
	for i := range 9 {
		p.owe(fmt.Sprintf("NOW%d", i), Scheduled, 90*time.Second)
		p.want(t, "what is due soon", p.try(), fmt.Sprintf("NOW%d-scheduled", i))
	}
}

// A stop tells what waits for a group, because nobody knows when the next start is.
func TestAStopWaitsForNoGroup(t *testing.T) {
	p := newPlan(grouped)
	for i := range 5 {
		p.owe(fmt.Sprintf("A%d", i), Scheduled, far)
		p.try()
	}
	p.owe("B", Scheduled, far)
	p.want(t, "before the stop", p.try())
	a, _ := p.next(p.now, true)
	p.want(t, "at the stop", idsIn(a), "B-scheduled")
}

// A batch that is rejected is told one by one, because one of it is to blame; one that is refused is tried again as one.
func TestAGroupThatIsRejectedIsToldOneByOne(t *testing.T) {
	p := newPlan(grouped)
	p.wave("A", 6, "Reboot", far)
	if got := p.fails(false, 0); len(got) != 6 {
		t.Errorf("attempted %v, want the six", got)
	}
	p.later(2 * time.Second)
	a, _ := p.next(p.now, false)
	if got := len(a.batch); got != 6 {
		t.Errorf("attempted %d again, want the six", got)
	}
	p.end(a)
	p.single = len(a.batch)
	for i := range 6 {
		p.want(t, "one by one", p.try(), fmt.Sprintf("A%d-scheduled", i))
	}
}

// Forty events that come while the destination is down are one message once it is back, and what it gave back for them
// comes with each of them later.
func TestAWaveDoesNotFillAChannel(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &ear{answer: always(errDown), reply: Answer{Receipt: []byte("thread 1"), Status: "ok"}}
		b := s.start(e.all("a").with(func(terms *Terms) { terms.Late, terms.Group = LateLatest, grouped.Group }))
		pause(1500 * time.Millisecond)
		for i := range 40 {
			id := fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)
			s.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Resources: []string{"vm_0"}, NotBefore: time.Now().Add(48 * time.Hour)})
		}
		pause(time.Minute)
		e.say(nil)
		pause(90 * time.Second)
		sizes := []int{}
		for _, call := range e.calls {
			sizes = append(sizes, len(call))
		}
		if got := e.accepted(); len(got) != 40 || slices.Max(sizes) != 40 {
			t.Errorf("%d of 40 events were told, in batches of %v; want all, in one", len(got), sizes)
		}
		s.azure.Start("00000007-0000-4000-8000-000000000000")
		pause(2 * time.Second)
		last := e.accepted()[len(e.accepted())-1]
		if !bytes.Equal(last.Receipt, []byte("thread 1")) {
			t.Errorf("with the start came the receipt %q, want that of the group", last.Receipt)
		}
		b.end()
	})
}
