package outbox_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A player does random things to an outbox and to its model.
type player struct {
	t      *testing.T
	script []byte
	disk   *disk
	o      *outbox.Outbox
	m      *model
	queues map[string]delivery.Queue
	items  map[ref]*delivery.Item // as the readers know them
	last   map[uint64]outbox.Addition
	states []string // of the model, after each thing that was done
	number uint64   // of batches with progress
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

func (p *player) group() string { return fmt.Sprintf("G%d", p.next(3)) }

func (p *player) route() string { return modelRoutes[p.next(len(modelRoutes))] }

// start opens an outbox on the disk as it is.
func (p *player) start() {
	o, err := outbox.Open(p.t.TempDir(), outbox.Options{Storage: p.disk})
	if err != nil {
		p.t.Fatal(err)
	}
	p.o = o
	p.items = map[ref]*delivery.Item{}
	p.queues = map[string]delivery.Queue{}
	for _, name := range modelRoutes {
		p.queues[name] = o.Queue(name)
	}
	synctest.Wait()
}

// hear reads the changes of all readers, and checks that they know exactly the pending deliveries.
func (p *player) hear() {
	for _, name := range modelRoutes {
		c := p.queues[name].Changes()
		for _, seq := range c.Gone {
			delete(p.items, ref{name, seq})
		}
		for _, i := range c.Pending {
			p.items[ref{name, i.Seq}] = i
		}
	}
	for r := range p.items {
		if _, ok := p.m.pending[r]; !ok {
			p.t.Errorf("the reader of %s still has %d", r.route, r.seq)
		}
	}
	for r, want := range p.m.pending {
		i := p.items[r]
		if i == nil {
			p.t.Errorf("the reader of %s hears nothing of %d", r.route, r.seq)
		} else if i.Attempts != want.attempts || string(i.Progress) != want.progress || i.FellBack != want.fellBack {
			p.t.Errorf("the reader of %s has %+v, want %+v", r.route, i, want)
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
	now := time.Now()
	switch op := p.next(16); op {
	case 0, 1, 2, 3: // a change of a group
		p.change(now)
	case 4: // two groups change in one batch, one of them is over
		b := outbox.Batch{Values: map[string][]byte{"x": fmt.Append(nil, p.next(9))},
			Groups: map[string]*outbox.Group{p.group(): nil}}
		p.m.values["x"] = string(b.Values["x"])
		for id := range b.Groups {
			p.endGroup(id)
		}
		p.check(apply(p.o, time.Now(), b))
	case 5, 6:
		p.accept(now)
	case 7: // an attempt fails
		route := p.route()
		items := p.some(route)
		p.number++
		progress := []byte(nil)
		if p.next(2) == 0 {
			progress = fmt.Append(nil, "half ", p.number)
		}
		for _, i := range items {
			m := p.m.pending[ref{route, i.Seq}]
			m.attempts++
			if progress != nil {
				m.progress = string(progress)
			}
			p.m.pending[ref{route, i.Seq}] = m
		}
		p.queues[route].Report(delivery.Report{Now: now, Failed: items, Error: "down", Next: now.Add(time.Minute),
			Answer: delivery.Answer{Progress: progress}, Batch: p.number})
	case 8: // deliveries are given up
		route := p.route()
		items := p.some(route)
		for _, i := range items {
			p.die(ref{route, i.Seq}, delivery.ReasonRejected)
		}
		p.queues[route].Report(delivery.Report{Now: now, Dead: items, Reason: delivery.ReasonRejected, Error: "no"})
	case 9:
		p.byHand()
	case 10: // pending deliveries are superseded, moved, and taken away
		p.rearrange(now)
	case 11: // routes come and go
		var routes []outbox.Route
		for i := range modelled {
			if p.next(4) > 0 {
				routes = append(routes, modelled[i])
			}
		}
		p.setRoutes(routes, now)
	case 12: // the fallback gets it too
		items := p.some("a")
		for _, i := range items {
			p.fellBack(ref{"a", i.Seq})
		}
		p.queues["a"].Report(delivery.Report{Now: now, FellBack: items})
	case 14, 15: // a route is muted, and no longer
		route := p.route()
		m := delivery.Mute{ID: "mute of " + route, Sink: route, Since: now.Truncate(time.Hour),
			Until: now.Add(time.Hour)}
		if p.m.mutes[m.ID] {
			m.Ended = now
		}
		p.m.mutes[m.ID] = m.Ended.IsZero()
		p.check(apply(p.o, now, outbox.Batch{Mutes: []delivery.Mute{m}}))
	case 13: // the disk fails or works
		p.disk.set(func() {
			switch p.next(4) {
			case 0:
				p.disk.fail, p.disk.lose = errFull, false
			case 1:
				p.disk.fail, p.disk.lose = nil, true
			default:
				p.disk.fail, p.disk.lose = nil, false
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
	p.states = append(p.states, p.m.String())
}

func (p *player) check(err error) {
	if err != nil && !errors.Is(err, errFull) && err.Error() != "no answer" {
		p.t.Error(err)
	}
}

// endGroup settles what c is still to begin about a group that ends.
func (p *player) endGroup(id string) {
	delete(p.m.groups, id)
	for r, was := range p.m.pending {
		if r.route == "c" && was.group == id {
			p.settle(r, outbox.StateSuperseded)
		}
	}
}

func (p *player) setRoutes(routes []outbox.Route, now time.Time) {
	_, _, err := setRoutes(p.o, now, routes...)
	p.check(err)
	there := map[string]bool{}
	for _, r := range routes {
		there[r.Name] = true
		p.m.routes[r.Name] = false
	}
	for name, gone := range p.m.routes {
		if !there[name] && !gone {
			p.m.routes[name] = true
		}
	}
}

func (p *player) change(now time.Time) {
	group := p.group()
	a := outbox.Addition{Message: delivery.Message{Seq: reserve(p.o, now), ID: fmt.Sprint(group, "-", len(p.states)),
		Type: "t", Group: group}}
	a.Body = body(a.ID)
	for _, name := range modelRoutes {
		if p.next(6) == 0 {
			continue
		}
		a.To = append(a.To, name)
		p.m.pending[ref{name, a.Seq}] = pendingModel{group: group}
	}
	p.last[a.Seq] = a
	p.m.groups[group] = a.Seq
	p.m.marks[a.ID] = 1
	p.check(apply(p.o, now, outbox.Batch{Add: []outbox.Addition{a}, Groups: map[string]*outbox.Group{group: groupWith(a)},
		Marks: map[string]outbox.Mark{a.ID: {Times: 1, Group: group, At: now}},
	}))
}

func (p *player) accept(now time.Time) {
	route := p.route()
	items := p.some(route)
	receipt := []byte(nil)
	if p.next(2) == 0 {
		receipt = fmt.Append(nil, "receipt ", len(p.states))
	}
	report := delivery.Report{Now: now, Accepted: items, Answer: delivery.Answer{Status: "204", Receipt: receipt},
		Durable: p.next(2) == 0}
	if len(items) > 1 {
		report.Superseded, report.Accepted = items[:1], items[1:]
	}
	for _, i := range report.Superseded {
		p.settle(ref{route, i.Seq}, outbox.StateSuperseded)
	}
	for _, i := range report.Accepted {
		if receipt != nil {
			p.m.receipts[i.Group+"/"+route] = string(receipt)
		}
		p.settle(ref{route, i.Seq}, outbox.StateAccepted)
	}
	p.queues[route].Report(report)
}

func (p *player) settle(r ref, how string) {
	delete(p.m.pending, r)
	p.m.settled[r] = how
}

// die makes a dead letter, and hands it to b if it is a's.
func (p *player) die(r ref, reason string) {
	p.fallTo(r)
	delete(p.m.pending, r)
	delete(p.m.settled, r)
	p.m.dead[r] = reason + unreported
}

func (p *player) fellBack(r ref) {
	was := p.m.pending[r]
	if was.fellBack || !p.hasFallback(r.route) {
		return
	}
	p.fallTo(r)
	was.fellBack = true
	p.m.pending[r] = was
}

func (p *player) fallTo(r ref) {
	to := ref{"b", r.seq}
	was := p.m.pending[r]
	_, isPending := p.m.pending[to]
	_, isDead := p.m.dead[to]
	_, isSettled := p.m.settled[to]
	if !p.hasFallback(r.route) || was.instead != "" || isPending || isDead || isSettled {
		return
	}
	p.m.pending[to] = pendingModel{group: was.group, instead: "a"}
}

// hasFallback reports whether a route has a fallback: only a has one, while it is in the settings.
func (p *player) hasFallback(route string) bool {
	gone, known := p.m.routes[route]
	return route == "a" && known && !gone
}

// byHand replays or drops.
func (p *player) byHand() {
	var keys []string
	for _, r := range slices.SortedFunc(maps.Keys(p.m.dead), func(a, b ref) int {
		return cmp.Or(cmp.Compare(a.seq,
			b.seq), cmp.Compare(a.route, b.route))
	}) {
		if p.next(2) == 0 {
			keys = append(keys, fmt.Sprintf("%s/%016d", r.route, r.seq))
		}
	}
	if p.next(2) == 0 {
		_, err := drop(p.o, keys, "somebody")
		p.check(err)
		for _, key := range keys {
			r := parse(key)
			delete(p.m.dead, r)
			if _, ok := p.m.pending[r]; !ok {
				p.m.settled[r] = outbox.StateDropped
			}
		}
		return
	}
	keys = slices.DeleteFunc(keys, func(key string) bool { // nobody would deliver them
		gone, known := p.m.routes[parse(key).route]
		return gone || !known
	})
	replayed, err := replay(p.o, keys, "", "root")
	p.check(err)
	if len(replayed) != len(keys) {
		p.t.Errorf("%d of %d were replayed", len(replayed), len(keys))
	}
	for _, d := range replayed {
		r := ref{d.Route, d.Seq}
		delete(p.m.dead, r)
		m := pendingModel{group: d.Group, progress: string(d.Progress), fellBack: d.FellBack, attempts: d.Attempts}
		if d.FallbackFor != nil {
			m.instead = d.FallbackFor.Sink
		}
		if _, ok := p.m.pending[r]; !ok && m.attempts != 0 {
			p.t.Errorf("the replayed %s isn't as new: %+v", d.Key, d)
		}
		p.m.pending[r] = m
	}
}

func (p *player) rearrange(now time.Time) {
	p.check(p.o.Update(now, func(tx *outbox.Tx) {
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
