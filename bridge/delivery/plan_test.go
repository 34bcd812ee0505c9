package delivery

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const (
	far     = 2 * time.Hour // so far away that it is not urgent
	updated = "updated"
)

// A plan is a schedule with a clock, and with the longest waits that there are.
//
// An attempt is named by the ids of its deliveries, such as "A-scheduled B-started".
type plan struct {
	*schedule
	t   *testing.T
	now time.Time
	seq uint64

	azureType string // of what becomes pending
}

func newPlan(t *testing.T, terms Terms) *plan {
	p := &plan{t: t, now: time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC), schedule: newSchedule(terms)}
	p.random = func() float64 { return 1 }
	return p
}

// owe makes a change of the event pending, with NotBefore after notice; 0 for none.
func (p *plan) owe(event, change string, notice time.Duration) *Item {
	p.seq++
	return p.oweAs(p.seq, 0, event, change, notice)
}

// oweEarlier makes a scheduled change of the event pending, with a number before all others.
func (p *plan) oweEarlier(event string) *Item { return p.oweAs(0, 0, event, "earlier", far) }

// owePartly makes the scheduled change of an event pending as a part of the batch 7, which made progress.
func (p *plan) owePartly(event string, notice time.Duration) *Item {
	p.seq++
	return p.oweAs(p.seq, 7, event, scheduled, notice)
}

func (p *plan) oweAs(seq, batch uint64, event, change string, notice time.Duration) *Item {
	m := &Message{Seq: seq, Group: event, Change: change, ID: event + "-" + change, AzureType: p.azureType}
	i := &Item{Message: m, PendingSince: p.now, Batch: batch}
	if notice != 0 {
		i.NotBefore = p.now.Add(notice)
	}
	p.put(i, p.now)
	return i
}

// announce makes a scheduled change of each event pending, far away.
func (p *plan) announce(events ...string) (items []*Item) {
	for _, event := range events {
		items = append(items, p.owe(event, scheduled, far))
	}
	return items
}

// numbered returns so many names of events.
func numbered(name string, n int) (events []string) {
	for i := range n {
		events = append(events, fmt.Sprint(name, i))
	}
	return events
}

// later moves the clock.
func (p *plan) later(d time.Duration) { p.now = p.now.Add(d) }

// due makes the event wait no longer.
func (p *plan) due(event string) {
	l := p.lanes[event]
	l.next = p.now
	p.reschedule(l, p.now)
}

func idsIn(items []*Item) string {
	var ids []string
	for _, i := range items {
		ids = append(ids, i.ID)
	}
	return strings.Join(ids, " ")
}

// begins begins the due attempt, which is to be this one.
func (p *plan) begins(want string) attempt {
	p.t.Helper()
	a := p.attempt(p.now)
	if got := idsIn(a.batch); got != want {
		p.t.Fatalf("the attempt is %q, want %q", got, want)
	}
	return a
}

// rests checks that no attempt is due.
func (p *plan) rests() {
	p.t.Helper()
	p.begins("")
}

// restsFor checks that no attempt is due, and when the schedule is to be asked again; 0 for never.
func (p *plan) restsFor(want time.Duration) {
	p.t.Helper()
	p.rests()
	at, _, deadline := p.wake(p.now)
	got := earlier(at, deadline)
	if got.IsZero() != (want == 0) || want > 0 && !got.Equal(p.now.Add(want)) {
		p.t.Errorf("it is to be asked again in %v, want %v", got.Sub(p.now), want)
	}
}

// accepts makes the due attempts, which are to be these. They are accepted.
func (p *plan) accepts(attempts ...string) {
	p.t.Helper()
	for _, want := range attempts {
		p.accept(p.begins(want), p.now)
	}
}

// fails makes the due attempts, which are to be these. They fail.
func (p *plan) fails(attempts ...string) {
	p.t.Helper()
	for _, want := range attempts {
		p.planRetry(p.begins(want), nil, verdict{}, p.now)
	}
}

// refuses makes the due attempts, which are to be these. The destination refuses until somebody acts.
func (p *plan) refuses(attempts ...string) {
	p.t.Helper()
	for _, want := range attempts {
		p.planRetry(p.begins(want), nil, verdict{blocked: true}, p.now)
	}
}

// rejects makes the due attempt, which is to be this one. It is rejected, so that its deliveries go one by one.
func (p *plan) rejects(want string) attempt {
	p.t.Helper()
	a := p.begins(want)
	p.takeApart(a, p.now)
	return a
}

// drains makes all attempts that are due, ends each so, and returns how many there were.
func (p *plan) drains(end func(attempt)) (n int) {
	for a := p.attempt(p.now); len(a.batch) > 0; a = p.attempt(p.now) {
		end(a)
		n++
	}
	return n
}

// allFail makes all attempts that are due, which fail, and returns how many there were.
func (p *plan) allFail() int {
	return p.drains(func(a attempt) { p.planRetry(a, nil, verdict{}, p.now) })
}

// allAccepted makes all attempts that are due, which are accepted, and returns how many there were.
func (p *plan) allAccepted() int {
	return p.drains(func(a attempt) { p.accept(a, p.now) })
}

// drops checks which deliveries are late now, and that none falls back.
func (p *plan) drops(want string) {
	p.t.Helper()
	p.wantOverdue(want, "")
}

// fallsBack checks which deliveries fall back now, and that none is late.
func (p *plan) fallsBack(want string) {
	p.t.Helper()
	p.wantOverdue("", want)
}

func (p *plan) wantOverdue(wantLate, wantFallback string) {
	p.t.Helper()
	late, fallback := p.takeOverdue(p.now)
	if idsIn(late) != wantLate || idsIn(fallback) != wantFallback {
		p.t.Errorf("late are %q and %q fall back, want %q and %q",
			idsIn(late), idsIn(fallback), wantLate, wantFallback)
	}
}

// wantHealth checks whether the destination is up, failing or blocked.
func (p *plan) wantHealth(want health) {
	p.t.Helper()
	if p.health != want {
		p.t.Errorf("the destination is %d, want %d", p.health, want)
	}
}

// wantRetrying checks how many events wait after a failure.
func (p *plan) wantRetrying(want int) {
	p.t.Helper()
	if p.retrying != want {
		p.t.Errorf("%d events wait after a failure, want %d", p.retrying, want)
	}
}
