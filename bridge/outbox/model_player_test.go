package outbox_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A player does random things to an outbox and to its model.
type player struct {
	o       *box
	script  []byte
	m       *model
	readers map[string]reader
	items   map[ref]*delivery.Item // as the readers know them
	added   map[uint64]outbox.Addition
	states  []string // of the model, after each thing that was done
	number  uint64   // of batches with progress
}

// next returns the next byte of the script as a number below n; 0 after its end.
func (p *player) next(n int) int {
	if len(p.script) == 0 {
		return 0
	}
	x := int(p.script[0]) % n
	p.script = p.script[1:]
	return x
}

func (p *player) group() string { return modelGroups[p.next(len(modelGroups))] }

func (p *player) route() string { return modelRoutes[p.next(len(modelRoutes))].Name }

// listen begins to read all queues.
func (p *player) listen() {
	p.readers, p.items = map[string]reader{}, map[ref]*delivery.Item{}
	for _, r := range modelRoutes {
		p.readers[r.Name] = p.o.reader(r.Name)
	}
}

// hear reads the changes of all queues, and checks that they tell of exactly the pending deliveries.
func (p *player) hear() {
	for name, r := range p.readers {
		c := r.Changes()
		for _, seq := range c.Gone {
			delete(p.items, ref{name, seq})
		}
		for _, i := range c.Pending {
			p.items[ref{name, i.Seq}] = i
		}
	}
	for r := range p.items {
		if _, pending := p.m.pending[r]; !pending {
			p.o.t.Errorf("the reader still has %s", r.key())
		}
	}
	for r, want := range p.m.pending {
		i := p.items[r]
		if i == nil {
			p.o.t.Errorf("the reader hears nothing of %s", r.key())
		} else if i.Attempts != want.attempts || string(i.Progress) != want.progress || i.FellBack != want.fellBack {
			p.o.t.Errorf("the reader has %+v, want %+v", i, want)
		}
	}
}

// some picks pending deliveries of the route, in order.
func (p *player) some(route string) []*delivery.Item {
	var all []*delivery.Item
	for r, i := range p.items {
		if r.route == route {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b *delivery.Item) int { return cmp.Compare(a.Seq, b.Seq) })
	return all[:min(len(all), p.next(4))]
}

// step does one thing.
func (p *player) step() {
	switch p.next(16) {
	case 0, 1, 2, 3:
		p.change()
	case 4:
		p.endGroup()
	case 5, 6:
		p.accept()
	case 7:
		p.fail()
	case 8:
		p.reject()
	case 9:
		p.byHand()
	case 10:
		p.rearrange()
	case 11: // routes come and go
		p.setRoutes(slices.DeleteFunc(slices.Clone(modelRoutes), func(outbox.Route) bool { return p.next(4) == 0 }))
	case 12:
		p.fallBack()
	case 13:
		p.disturb()
	case 14, 15:
		p.mute()
	}
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
	p.states = append(p.states, p.m.String())
}

var errNoAnswer = errors.New("no answer")

func (p *player) check(err error) {
	if err != nil && !errors.Is(err, errFull) && !errors.Is(err, errNoAnswer) {
		p.o.t.Error(err)
	}
}

// disturb makes the disk fail or work. A write that fails may have been made.
func (p *player) disturb() {
	p.o.disk.works()
	switch p.next(4) {
	case 0:
		p.o.disk.fails("write", errFull)
	case 1:
		p.o.disk.fails("written", errNoAnswer)
	}
}

// change adds a change of a group.
func (p *player) change() {
	a := p.o.addition(p.group(), fmt.Sprint(len(p.states)))
	for _, r := range modelRoutes {
		if p.next(6) > 0 {
			a.To = append(a.To, r.Name)
			p.m.pending[ref{r.Name, a.Seq}] = pendingModel{group: a.Group}
		}
	}
	p.added[a.Seq] = a
	p.m.groups[a.Group] = a.Seq
	p.m.marks[a.ID] = 1
	p.check(p.o.submit(changeOf(a))())
}

// endGroup ends a group and sets a value, in one batch. What c is still to begin about the group is settled.
func (p *player) endGroup() {
	value, group := fmt.Append(nil, p.next(9)), p.group()
	p.m.values["x"] = string(value)
	delete(p.m.groups, group)
	for r, was := range p.m.pending {
		if r.route == "c" && was.group == group {
			p.settle(r, outbox.StateSuperseded)
		}
	}
	p.check(p.o.submit(outbox.Batch{
		Values: map[string][]byte{"x": value}, Groups: map[string]*outbox.Group{group: nil},
	})())
}

func (p *player) setRoutes(routes []outbox.Route) {
	p.check(p.o.submit(outbox.Batch{Routes: append([]outbox.Route{}, routes...)})())
	for name := range p.m.routes {
		p.m.routes[name] = true
	}
	for _, r := range routes {
		p.m.routes[r.Name] = false
	}
}

// mute mutes a route, or ends its mute.
func (p *player) mute() {
	route, now := p.route(), time.Now()
	m := delivery.Mute{ID: "mute of " + route, Sink: route, Since: now.Truncate(time.Hour), Until: now.Add(time.Hour)}
	if p.m.mutes[m.ID] {
		m.Ended = now
	}
	p.m.mutes[m.ID] = m.Ended.IsZero()
	p.check(p.o.submit(outbox.Batch{Mutes: []delivery.Mute{m}})())
}

// accept reports that deliveries were accepted, and that of several the first was superseded.
func (p *player) accept() {
	route := p.route()
	items := p.some(route)
	report := delivery.Report{Now: time.Now(), Accepted: items}
	if p.next(2) == 0 {
		report.Answer.Receipt = fmt.Append(nil, "receipt ", len(p.states))
	}
	report.Durable = p.next(2) == 0
	if len(items) > 1 {
		report.Superseded, report.Accepted = items[:1], items[1:]
	}
	for _, i := range report.Superseded {
		p.settle(ref{route, i.Seq}, outbox.StateSuperseded)
	}
	for _, i := range report.Accepted {
		if report.Answer.Receipt != nil {
			p.m.receipts[i.Group+"/"+route] = string(report.Answer.Receipt)
		}
		p.settle(ref{route, i.Seq}, outbox.StateAccepted)
	}
	p.readers[route].Report(report)
}

// fail reports an attempt that has failed.
func (p *player) fail() {
	route, now := p.route(), time.Now()
	p.number++
	report := delivery.Report{
		Now: now, Failed: p.some(route), Error: "down", Next: now.Add(time.Minute), Batch: p.number,
	}
	if p.next(2) == 0 {
		report.Answer.Progress = fmt.Append(nil, "half ", p.number)
	}
	for _, i := range report.Failed {
		r := ref{route, i.Seq}
		m := p.m.pending[r]
		m.attempts++
		if report.Answer.Progress != nil {
			m.progress = string(report.Answer.Progress)
		}
		p.m.pending[r] = m
	}
	p.readers[route].Report(report)
}

// reject reports that deliveries were rejected. The fallback gets what was a's.
func (p *player) reject() {
	route := p.route()
	items := p.some(route)
	for _, i := range items {
		r := ref{route, i.Seq}
		p.fallTo(r)
		delete(p.m.pending, r)
		delete(p.m.settled, r)
		p.m.dead[r] = delivery.ReasonRejected + unreported
	}
	p.readers[route].Report(delivery.Report{Now: time.Now(), Dead: items, Reason: delivery.ReasonRejected, Error: "no"})
}

// fallBack reports that the fallback is to get deliveries too.
func (p *player) fallBack() {
	items := p.some("a")
	for _, i := range items {
		r := ref{"a", i.Seq}
		was := p.m.pending[r]
		if !was.fellBack && p.isThere("a") {
			p.fallTo(r)
			was.fellBack = true
			p.m.pending[r] = was
		}
	}
	p.readers["a"].Report(delivery.Report{Now: time.Now(), FellBack: items})
}

// fallTo makes a delivery pending for the fallback of its route, if there is one that never had it.
func (p *player) fallTo(r ref) {
	to, was := ref{"b", r.seq}, p.m.pending[r]
	_, isPending := p.m.pending[to]
	_, isDead := p.m.dead[to]
	_, isSettled := p.m.settled[to]
	if r.route == "a" && p.isThere("a") && was.instead == "" && !isPending && !isDead && !isSettled {
		p.m.pending[to] = pendingModel{group: was.group, instead: "a"}
	}
}

// isThere reports whether a route is in the settings.
func (p *player) isThere(route string) bool {
	gone, known := p.m.routes[route]
	return known && !gone
}

func (p *player) settle(r ref, how string) {
	delete(p.m.pending, r)
	p.m.settled[r] = how
}

// byHand drops dead letters, or replays those that somebody would deliver.
func (p *player) byHand() {
	var letters []ref
	for _, r := range slices.SortedFunc(maps.Keys(p.m.dead), byRef) {
		if p.next(2) == 0 {
			letters = append(letters, r)
		}
	}
	drops := p.next(2) == 0
	var keys []string
	for _, r := range letters {
		if drops || p.isThere(r.route) {
			keys = append(keys, r.key())
			delete(p.m.dead, r)
		}
		if _, pending := p.m.pending[r]; drops && !pending {
			p.m.settled[r] = outbox.StateDropped
		}
	}
	if drops {
		_, err := p.o.drop(keys...)
		p.check(err)
		return
	}
	replayed, err := p.o.replay("", keys...)
	p.check(err)
	if len(replayed) != len(keys) {
		p.o.t.Errorf("%d of %d were replayed", len(replayed), len(keys))
	}
	for _, d := range replayed {
		r := ref{d.Route, d.Seq}
		if _, pending := p.m.pending[r]; !pending && d.Attempts != 0 {
			p.o.t.Errorf("the replayed %s isn't as new: %+v", d.Key, d)
		}
		p.m.pending[r] = pendingOf(d)
	}
}

// rearrange supersedes pending deliveries, and reports dead letters.
func (p *player) rearrange() {
	p.check(p.o.Update(time.Now(), func(tx *outbox.Tx) {
		for _, d := range tx.Pending(p.group()) {
			if p.next(4) == 0 {
				tx.Supersede(d)
				p.settle(ref{d.Route, d.Seq}, outbox.StateSuperseded)
			}
		}
		for _, d := range tx.Unreported(p.route()) {
			if p.next(3) == 0 {
				tx.SetReported(d)
				r := ref{d.Route, d.Seq}
				p.m.dead[r] = strings.TrimSuffix(p.m.dead[r], unreported)
			}
		}
	})())
}
