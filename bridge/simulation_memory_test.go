package bridge_test

import (
	"slices"
	"time"
)

// clones: what a machine's outbox holds is sent by no other that was given a copy of it, unless that could not find out
// for ten seconds.
func (o *oracle) clones() {
	if o.clockStepped() {
		return
	}
	for _, a := range o.attempts {
		vm := o.boots[a.in].vm
		at := slices.IndexFunc(o.boots, func(x *boot) bool { return x.vm == vm })
		first := o.boots[at]
		owned := slices.ContainsFunc(o.boots[:at], func(x *boot) bool {
			return x.learned.seq > 0 && x.ended.at-x.learned.at > 10*time.Second && !o.ill(x.learned.at, x.ended.at)
		})
		if vm == 0 || !owned || first.learned.seq == 0 { // what is nobody's is taken over
			continue
		}
		start := first.began.at
		if first.loaded.seq > 0 && first.loaded.seq < first.learned.seq {
			start = first.loaded.at // what comes late waits for the name as what is there at the start does
		}
		for _, h := range a.batch {
			theirs := h.time.Before(first.began.clock)
			if theirs && h.event != "" && (a.start > first.learned.at || a.start < start+9*time.Second) {
				o.add("clones", "%s was told %s at %v, which another machine had to tell", a.sink, h.id, short(a.start))
			}
		}
	}
}

// bounded: no more is pending than may be, and nothing is given up while there is room; then it is the oldest of the
// route with most.
func (o *oracle) bounded() {
	limit := o.plan.bounds.pending
	if limit == 0 {
		return
	}
	if o.most > limit {
		o.add("bounds", "%d deliveries were pending, and %d may be", o.most, limit)
	}
	if len(o.hands) > 0 || len(o.boots) > 1 || len(o.ills) > 0 { // what is on record says only how it ended
		return
	}
	ledger, leads := slices.Concat(o.ledger, o.withdrawn()), o.leads()
	for _, v := range ledger {
		if v.reason != "overflow" {
			continue
		}
		all, sure := map[string]int{}, map[string]int{} // by route: what may have been pending, and what was, after that
		total := 0
		early, late := v.to.Add(-time.Millisecond), v.to.Add(time.Millisecond) // times of CloudEvents are made unique
		for _, k := range ledger {
			if k.from.After(late) || k.to.Before(early) && k.state != "pending" {
				continue
			}
			total++
			all[k.sink]++
			stays := k.to.After(late) || k.state == "pending"
			if o.whenBack(k.sink, k.from).Before(early) && stays && k.state != "withdrawn" && !o.underWay(k, v.to) {
				// What waits for its lead, or for trouble, is pending only from then on.
				if !leads[k.sink] && !o.alerted(k.event, k.sink) {
					sure[k.sink]++
				}
				if k.sink == v.sink && k.from.Before(v.from) && k.to.After(late) && !o.waits(k.sink) {
					o.add("bounds", "%s of %s was given up, and %s was older", v.id, v.sink, k.id)
				}
			}
		}
		if total < limit {
			o.add("bounds", "%s of %s was given up at %d of %d", v.id, v.sink, total, limit)
		}
		for sink, n := range sure {
			if n > all[v.sink]+1 {
				o.add("bounds", "%s of %s was given up, which had %d, and %s had %d", v.id, v.sink, all[v.sink], sink, n)
			}
		}
	}
}

// leads returns the routes that ever had a lead.
func (o *oracle) leads() map[string]bool {
	leads := map[string]bool{}
	for _, s := range o.setups {
		for _, r := range s.routes {
			leads[r.name] = leads[r.name] || r.lead > 0
		}
	}
	return leads
}

// withdrawn returns what may have become pending for routes while they were gone, and was taken back when they returned
// because they don't ask for it, of which nothing is on record.
func (o *oracle) withdrawn() (list []kept) {
	known := map[[2]string]bool{}
	for _, k := range o.ledger {
		known[[2]string{k.sink, k.id}] = true
	}
	for _, beliefs := range o.beliefs {
		for _, b := range beliefs {
			for _, c := range b.changes {
				for _, route := range c.orphans {
					if k := [2]string{route, c.id}; !known[k] {
						known[k] = true
						list = append(list, kept{route, c.id, c.event.id, "withdrawn", "", c.clock, o.whenBack(route, c.clock)})
					}
				}
			}
		}
	}
	return list
}

// underWay reports whether a delivery was under way at a time. If it was given up then and accepted after all, it is on
// record as accepted, and nobody can say until when it was pending.
func (o *oracle) underWay(k kept, at time.Time) bool {
	return slices.ContainsFunc(o.attempts, func(a *attempt) bool {
		return a.sink == k.sink && !a.began.clock.After(at) && !a.clock.Before(at) &&
			slices.ContainsFunc(a.batch, func(h handed) bool { return h.id == k.id })
	})
}

// waits reports whether the age of a route's deliveries counts from later than their creation: those of a route that was
// away do too.
func (o *oracle) waits(sink string) bool {
	return slices.ContainsFunc(o.setups, func(s setup) bool {
		return !hasRoute(s.routes, sink) || slices.ContainsFunc(s.routes, func(r routePlan) bool {
			return r.name == sink && r.lead > 0 || r.fallback == sink
		})
	}) || slices.ContainsFunc(o.mutes, func(m *muting) bool { return m.sink == "" || m.sink == sink })
}

// receipts: a destination gets back what it wanted to remember of an event last.
func (o *oracle) receipts() {
	last := map[[2]string][]*attempt{} // by sink and event, those that gave one
	ended := slices.DeleteFunc(slices.Clone(o.attempts), func(a *attempt) bool { return a.newReceipt == "" })
	slices.SortFunc(ended, func(a, b *attempt) int { return a.seq - b.seq })
	for _, a := range ended {
		for _, h := range a.batch {
			key := [2]string{a.sink, h.event}
			last[key] = append(last[key], a)
		}
	}
	for _, a := range o.attempts {
		if !o.sharp(a) {
			continue
		}
		for _, h := range a.batch {
			if h.event == "" {
				if h.receipt != "" {
					o.add("receipts", "%s was given %q back with %s", a.sink, h.receipt, h.id)
				}
				continue
			}
			want, lost := "", false
			for _, x := range last[[2]string{a.sink, h.event}] {
				if x.seq < a.began.seq {
					want = x.newReceipt
					lost = lost || o.unsettled(taken{attempt: x}, a.in)
				}
			}
			if h.receipt != want && !lost {
				o.add("receipts", "%s was given %q back with %s at %v, and last wanted to keep %q", a.sink, h.receipt, h.id,
					short(a.start), want)
			}
		}
	}
}

// replacedAfter reports whether the destination of an attempt was told another change of the event later, which takes the
// place of one that is partly delivered.
func (o *oracle) replacedAfter(a *attempt, h handed) bool {
	isOther := func(other handed) bool { return other.event == h.event && other.id != h.id }
	return h.event != "" && slices.ContainsFunc(o.attempts, func(later *attempt) bool {
		return later.sink == a.sink && later.began.seq > a.began.seq && slices.ContainsFunc(later.batch, isOther)
	})
}

// progress: a batch of which something is done is repeated as it is, but for members that a newer change has replaced,
// and its destination gets back what it said about that last.
func (o *oracle) progress() {
	for i, a := range o.attempts {
		if a.newProgress == "" {
			continue
		}
		for _, next := range o.attempts[i+1:] {
			if next.sink != a.sink || next.began.seq < a.seq || !shareOne(a, next) {
				continue
			}
			if !o.sharp(next) || o.unsettled(taken{attempt: a}, next.in) {
				break
			}
			for _, h := range next.batch {
				if !h.isIn(a) {
					o.add("progress", "%s was told %s together with others at %v than at %v", a.sink, h.id, short(next.start),
						short(a.start))
				} else if h.progress != a.newProgress && !o.replayed(taken{h, next}, taken{h, a}) {
					o.add("progress", "%s was given %q back with %s, and had said %q", a.sink, h.progress, h.id, a.newProgress)
				}
			}
			for _, h := range a.batch {
				if !h.isIn(next) && !o.gaveUp(a.sink, h.id) && !o.hand("", "", h.id) &&
					!o.replacedAfter(a, h) {
					o.add("progress", "%s was not told %s at %v, which was part of the batch at %v", a.sink, h.id,
						short(next.start), short(a.start))
				}
			}
			break
		}
	}
}

func (h handed) same(other handed) bool { return h.id == other.id && h.time.Equal(other.time) }

// sameEvent reports whether an attempt is about the event of the delivery: one event's are made in order.
func (h handed) sameEvent(a *attempt) bool {
	return slices.ContainsFunc(a.batch, func(other handed) bool { return other.event == h.event })
}

// isIn reports whether an attempt is about the delivery.
func (h handed) isIn(a *attempt) bool { return slices.ContainsFunc(a.batch, h.same) }

func shareOne(a, b *attempt) bool {
	return slices.ContainsFunc(a.batch, func(h handed) bool { return h.isIn(b) })
}

// behind: a crash repeats no more of what a destination took than the program may be ahead of the disk.
func (o *oracle) behind() {
	if len(o.ills) > 0 {
		return
	}
	for n, b := range o.boots[:len(o.boots)-1] {
		if !b.how.crash || n+1 >= o.firstRun {
			continue
		}
		for _, r := range o.plan.routes {
			again, most := 0, 1
			for _, a := range o.attempts {
				if a.sink != r.name || a.in != n || !a.settled {
					continue
				}
				most = max(most, len(a.batch))
				for _, h := range a.batch {
					if slices.ContainsFunc(o.attempts, func(x *attempt) bool {
						return x.sink == r.name && x.in > n && o.sharp(x) && h.isIn(x) &&
							!o.hand("replay", r.name, h.id)
					}) {
						again++
					}
				}
			}
			if limit := 32 + most*max(1, o.as(r.name, b.ended.at).parallel); again > limit {
				o.add("told once", "a crash had %d deliveries repeated to %s", again, r.name)
			}
		}
	}
}

// A repeated is what a destination was told once more.
type repeated struct {
	fact
	sink string
	handed
}

// repeat takes what the program repeats.
func (d destination) repeat(h handed) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if !d.w.dead {
		d.w.repeated = append(d.w.repeated, repeated{d.w.fact(), d.name, h})
	}
}

// repeats: what is said once more about an event is the last that the destination has taken of its changes and of what came
// of its approval, so never anything after its end. If a later answer came, which it hasn't taken, it may be the change.
func (o *oracle) repeats() {
	if o.blurred {
		return
	}
	for _, again := range o.repeated {
		if o.forgetsSome(again.event) {
			continue
		}
		first, own := map[string]int{}, map[string]int{} // when something was told first: to anybody, and to this one
		note := func(told map[string]int, t taken) {
			at, known := told[t.id]
			if !known || t.began.seq < at {
				told[t.id] = t.began.seq
			}
		}
		for _, t := range o.tried.of(again.event) {
			note(first, t)
			if t.sink == again.sink {
				note(own, t)
			}
		}
		// What was said first has the earlier time, unless the clock was set back, and was told earlier, unless it had to wait,
		// also to this destination, unless it was replayed.
		byTime := func(a, b handed) bool { return a.time.Before(b.time) }
		byTold := func(a, b handed) bool { return first[a.id] < first[b.id] }
		byOwn := func(a, b handed) bool { return own[a.id] < own[b.id] }
		switch {
		case !o.saidLast(again, byTime) && !o.saidLast(again, byTold) && !o.saidLast(again, byOwn):
			o.add("repeats what is open", "%s was told %s once more", again.sink, again.id)
		case again.change == "vanished":
			o.add("repeats what is open", "%s was told %s once more, and that is the end", again.sink, again.id)
		}
	}
}

// forgetsSome reports whether the program may have forgotten a change of the event, and repeats one before it.
func (o *oracle) forgetsSome(event string) bool {
	return o.anyChange(event, change.gone)
}

// saidLast reports whether what was said once more is what repeats demands, in an order.
func (o *oracle) saidLast(again repeated, before func(a, b handed) bool) bool {
	var newest, change handed
	for _, t := range o.taken[again.event][again.sink] {
		if t.seq > again.seq || t.change == "reminder" {
			continue
		}
		if newest.id == "" || !before(t.handed, newest) {
			newest = t.handed
		}
		if t.change != "approved" && (change.id == "" || !before(t.handed, change)) {
			change = t.handed
		}
	}
	if newest.id == again.id || newest.change != "approved" || change.id != again.id {
		return newest.id == again.id
	}
	return slices.ContainsFunc(o.tried.of(again.event), func(t taken) bool {
		return t.change == "approved" && before(newest, t.handed)
	})
}
