package bridge_test

import (
	"maps"
	"slices"
	"time"
)

// running reports whether the program ran all the time, in one run.
func (o *oracle) running(boot int, from, to time.Duration) bool {
	b := o.boots[boot]
	return from >= b.began.at && to <= b.ended.at
}

// setUp reports whether a route was set up all the time, and the same way.
func (o *oracle) setUp(route string, from, to time.Duration) bool {
	there, anew := false, 0
	for _, s := range o.setups {
		if s.at > to {
			break
		}
		r, has := routeOf(s.routes, route)
		if s.at > from && (!has || !there || r.anew != anew) {
			return false
		}
		there, anew = has, r.anew
	}
	return there
}

// due reports whether a route is owed a change, which nobody gave up.
func (o *oracle) due(c change, route string) bool {
	return c.owed(route) && !c.gone() && !o.gaveUp(route, c.id)
}

// undisturbed reports whether from a change on until a time the program ran, the route was set up the same way, and nothing
// of the event was muted for it.
func (o *oracle) undisturbed(c change, route string, limit time.Duration) bool {
	return o.running(c.boot, c.at, limit) && o.setUp(route, c.at, limit) &&
		!o.mayBeMuted(route, c.event.id, c.at, limit)
}

// well is the route that is told everything, at once, and has no trouble.
const well = "well"

// isolation: whatever the other destinations do, one that is well is told at once, or when the mutes end that are about
// it. While the disk fails it is told from memory, a little later. What was pending before may be on the disk alone, so
// that it and what follows it can't be told while that can't be read.
func (o *oracle) isolation(b belief) {
	for n, c := range b.changes {
		limit := o.released(well, c.event.id, c.at+o.nameless(c)+time.Second)
		ill := o.ill(c.at-time.Minute, limit)
		if ill {
			limit += 15 * time.Second
		}
		if !o.due(c, well) || !o.running(c.boot, c.at, limit) ||
			o.damaged(c.at, limit) || // while it was muted; nothingLess knows what it is told instead
			ill && (o.blurred || o.plan.bounds.memory > 0) ||
			(n > 0 || o.mayBeMuted(well, c.event.id, c.at, limit)) && o.hides(c.at-6*time.Minute, limit) {
			continue
		}
		if !slices.ContainsFunc(o.taken[c.event.id][well], func(t taken) bool { return t.id == c.id && t.at <= limit }) {
			promise := "isolation"
			switch {
			case ill:
				promise = "a broken disk silences nobody"
			case len(o.mutes) > 0:
				promise = "what is not muted is told"
			}
			o.add(promise, "%s was not told %s of %v by %v", well, c.id, short(c.at), short(limit))
		}
	}
}

// nameless is for how long the program may have waited for its VM's name before it told a change.
func (o *oracle) nameless(c change) time.Duration {
	if b := o.boots[c.boot]; b.learned.seq > 0 && b.learned.at <= c.at {
		return 0
	}
	return 11 * time.Second
}

// polls: nothing that goes wrong elsewhere keeps the program from polling.
func (o *oracle) polls() {
	polls := slices.DeleteFunc(slices.Clone(o.answers), func(a *answer) bool { return !a.polled })
	for i, a := range polls {
		if i == 0 || a.boot != polls[i-1].boot {
			continue
		}
		was := polls[i-1]
		limit := o.plan.interval + 500*time.Millisecond
		if o.nameless(change{fact: was.fact}) > 0 {
			limit += 11 * time.Second
		}
		if was.what == "failed" {
			limit = 31 * time.Second // of a refusal that somebody has to look at
		}
		if o.ill(was.at-10*time.Second, a.askedAt) {
			limit += 11 * time.Second // of a disk that hangs
		}
		if gap := a.askedAt - was.at; gap > limit {
			o.add("polling", "no poll from %v to %v", short(was.at), short(a.askedAt))
		}
	}
}

// urgent: what leaves less than 15 minutes is tried at once, whatever the destination is waiting for.
func (o *oracle) urgent(id string, b belief, route string) {
	for i, c := range b.changes {
		r := o.as(route, c.at)
		nb := c.event.notBeforeTime()
		leavesTime := !nb.IsZero() && nb.Sub(c.clock) >= 15*time.Minute
		if !o.due(c, r.name) || leavesTime || r.above > 0 || r.lead > 0 || o.ill(c.at-time.Minute, c.at+time.Minute) {
			continue
		}
		// Attempts under way end first, and those that beat the schedule are five seconds apart.
		limit := c.at + time.Second
		if o.nameless(c) > 0 {
			limit = max(limit, o.boots[c.boot].began.at+11*time.Second)
		}
		others := map[string]bool{}
		for _, a := range o.attempts {
			if a.sink != r.name || a.in != c.boot {
				continue
			}
			if a.start <= limit && a.how == "asks to wait" && a.at+retryAfter > c.at {
				limit = max(limit, a.at+retryAfter+time.Second)
			}
			underWay := !a.ended || a.at >= c.at
			if a.start < limit+10*time.Minute && (a.start > c.at || underWay) {
				others[a.batch[0].event] = true
			}
		}
		limit += time.Duration(len(others)+1) * (5*time.Second + r.timeout)
		tried := slices.ContainsFunc(o.tried[id][r.name], func(t taken) bool { return t.start <= limit && t.start >= c.at })
		newer := slices.ContainsFunc(b.changes[i+1:], func(x change) bool { return x.at <= limit })
		byHand := slices.ContainsFunc(o.hands, func(h hand) bool { return h.event == id })
		giveWay := len(others) > 0 && c.kind == "vanished" // to those that lie ahead
		late := r.late == "drop" && c.kind == "scheduled" && nb.Before(c.clock.Add(time.Minute))
		if !tried && !newer && !byHand && !giveWay && !late && o.undisturbed(c, r.name, limit) {
			o.add("urgency", "%s was told nothing of %s from %v to %v", r.name, c.id, short(c.at), short(limit))
		}
	}
}

// firsts: what is new is tried within seconds, unless the destination is busy, blocked, down or asked to wait. That it
// was down once is no reason.
func (o *oracle) firsts(id string, b belief, route string) {
	if o.blurred || len(b.changes) == 0 {
		return
	}
	c := b.changes[0] // later ones may wait for it
	r := o.as(route, c.at)
	if r.lead > 0 || r.above > 0 || c.kind != "scheduled" || !o.due(c, r.name) {
		return
	}
	told := o.tried[id][r.name]
	n := slices.IndexFunc(told, func(t taken) bool { return t.id == c.id && t.in == c.boot && t.start >= c.at })
	from := c.at + o.nameless(c) + time.Second
	if n < 0 || told[n].start <= from+2*time.Second {
		return // other rules say whether it need not be tried at all
	}
	mine := o.attemptsOf(r.name, func(a *attempt) bool { return a.in == c.boot })
	next := slices.Index(mine, told[n].attempt)
	if next < 0 || o.ill(c.at-time.Minute, mine[next].start) {
		return
	}
	before := slices.IndexFunc(mine, func(a *attempt) bool { return a.at >= c.at })
	if o.neglected(id, mine, max(before-1, 0), next, c.fact, from) {
		o.add("retry", "%s is new since %v, and %s was free and was told at %v", c.id, short(c.at), r.name,
			short(mine[next].start))
	}
}

// floors: a destination that asks to wait is left alone until then.
func (o *oracle) floors() {
	for _, a := range o.attempts {
		if a.how != "asks to wait" || !a.ended {
			continue
		}
		for _, next := range o.attempts {
			if next.sink == a.sink && next.start > a.at && next.start < a.at+retryAfter &&
				!o.anew(a.fact, next.began) && !o.acceptedBetween(a, next) {
				o.add("retry", "%s asked to wait at %v and was tried at %v", a.sink, short(a.at), short(next.start))
				return
			}
		}
	}
}

// anew reports whether the program was started or set up anew between two facts.
func (o *oracle) anew(from, to fact) bool {
	return from.boot != to.boot || slices.ContainsFunc(o.setups, func(s setup) bool {
		return from.seq < s.seq && s.seq < to.seq
	})
}

// acceptedBetween reports whether the destination took something after it had asked to wait, which is that it is back.
func (o *oracle) acceptedBetween(a, next *attempt) bool {
	return slices.ContainsFunc(o.attempts, func(x *attempt) bool {
		return x.sink == a.sink && x.settled && x.at >= a.at && x.at <= next.start
	})
}

// waits are the longest times until an attempt is repeated, after the first, second, … that failed.
var waits = []time.Duration{
	1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 30 * time.Second,
	60 * time.Second, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute,
}

// A destination counts as down when so many events have failed since it last accepted something.
const downAfter = 8

// retries: what failed is tried again in time, unless the destination is busy, blocked, down or asked to wait.
func (o *oracle) retries() {
	for _, r := range o.plan.routes {
		failures := map[string]int{} // in a row, by event
		blocked := false             // it may be
		mine := o.attemptsOf(r.name, o.sharp)
		for i, a := range mine {
			if i > 0 && o.anew(mine[i-1].began, a.began) {
				clear(failures)
				blocked = false
			}
			blocked = a.how == "is blocked" || blocked && !a.settled
			for _, h := range a.batch {
				failures[h.event]++
				if a.settled || a.how == "rejects" {
					failures[h.event] = 0
				}
			}
			h := a.batch[0]
			n, r := failures[h.event], o.as(r.name, a.start)
			if n == 0 || blocked || len(a.batch) > 1 || h.event == "" || r.lead > 0 || r.above > 0 || o.hand("", "", h.id) {
				continue
			}
			due := a.at + waits[min(n, len(waits))-1]
			if r.sync && o.ill(a.at, a.at) { // that it failed waits for the disk first
				due += 10 * time.Second
			}
			next := nextOf(mine, i, h)
			if next > 0 && !o.unreadUntil(mine[next]) && o.neglected(h.event, mine, i, next, a.fact, due) {
				o.add("retry", "%s failed to take %s at %v, its %d. time in a row, and was tried again at %v", r.name, h.id,
					short(a.at), n, short(mine[next].start))
			}
		}
	}
}

// nextOf returns the place of the next attempt of the event of a delivery after one at a place; 0 if the delivery is in none.
func nextOf(mine []*attempt, i int, h handed) int {
	if !slices.ContainsFunc(mine[i+1:], h.isIn) {
		return 0
	}
	return i + 1 + slices.IndexFunc(mine[i+1:], h.sameEvent)
}

// neglected reports whether the next attempt of an event could have been made sooner. It was due at a time, which an attempt
// at the place i or a change made so.
func (o *oracle) neglected(event string, mine []*attempt, i, next int, since fact, due time.Duration) bool {
	b := mine[next]
	return !o.anew(since, b.began) && !o.mayBeMuted(b.sink, event, since.at, b.start) &&
		o.freeWhileUp(mine, mine[i:next], due, b.start) >= 0
}

// unreadUntil reports whether CloudEvents could not be read before an attempt of this run. That counts as failures of
// what was to be sent, which no destination has seen.
func (o *oracle) unreadUntil(a *attempt) bool {
	return o.hides(o.boots[a.in].began.at, a.start)
}

// refusedUntil returns when the destination next took something after an attempt that it refused, if by then it had refused
// so often that it was only probed; also if all it did later was to hang.
func refusedUntil(mine []*attempt, a *attempt) time.Duration {
	refusals, until := 0, forever
	for _, x := range mine {
		if x.settled && x.at > a.at {
			until = x.at
			break
		}
		switch {
		case x.settled:
			refusals = 0
		case x.how == "is blocked":
			refusals++
		}
	}
	if refusals < 3 {
		return 0
	}
	return until
}

// free returns the first moment of a time at which a destination could have been told something for two seconds and was
// told nothing; below 0 if there is none.
func (o *oracle) free(mine []*attempt, from, to time.Duration) time.Duration {
	for at := from; at+2*time.Second < to; at += time.Second {
		window := interval{at, at + 2*time.Second}
		if !slices.ContainsFunc(mine, func(a *attempt) bool {
			end := a.at
			switch a.how {
			case "asks to wait":
				end += retryAfter
			case "is blocked":
				end = max(end+2*time.Minute, refusedUntil(mine, a))
			}
			return window.meets(a.start, end)
		}) {
			return at
		}
	}
	return -1
}

// freeWhileUp is like free, but counts only the time in which the destination does not count as down, when all that
// failed may be tried by its own times. between are the attempts of that time.
func (o *oracle) freeWhileUp(mine, between []*attempt, from, to time.Duration) time.Duration {
	isDown := false
	for _, a := range between {
		switch {
		case a.down && !isDown:
			if at := o.free(mine, from, a.at); at >= 0 {
				return at
			}
		case isDown && !a.down: // it took something
			from = max(from, a.at+time.Second)
		}
		isDown = a.down
	}
	if isDown {
		return -1
	}
	return o.free(mine, from, to)
}

// markDown marks the attempts of a route after which the destination may count as down. What failed before it took
// something else, and does so again, is not the destination's trouble.
func (o *oracle) markDown(mine []*attempt) {
	failed := map[string]bool{}                              // events, since something was accepted
	last, before := map[string]string{}, map[string]string{} // by event, what failed since then, and before then
	slices.SortFunc(mine, bySeq)
	for i, a := range mine {
		if i > 0 && o.anew(mine[i-1].began, a.began) {
			clear(failed)
			clear(last)
			clear(before)
		}
		if a.settled {
			clear(failed)
			maps.Copy(before, last)
			clear(last)
		}
		seen := map[string]bool{}
		for _, h := range a.batch {
			switch {
			case seen[h.event]:
			case a.settled, a.how == "rejects":
				delete(last, h.event)
				delete(before, h.event)
			case a.newProgress != "": // it works, and did part of it
			case before[h.event] != h.id:
				last[h.event], failed[h.event] = h.id, true
				delete(before, h.event)
			}
			seen[h.event] = true
		}
		a.down = len(failed) >= downAfter
	}
}

// storms: a destination that accepts nothing, and does not even part of something, is left in peace. Seven events may be
// tried by the times of each, and from the eighth on one is tried by those of the destination, beside what is urgent. In the
// last two minutes before an event begins, and as often as it changes, it is tried every five seconds.
func (o *oracle) storms() {
	const within, most = 10 * time.Minute, 150
	for _, r := range o.plan.routes {
		var row []*attempt               // failed, one after the other
		hurried := map[string]*attempt{} // by event, the last attempt because it is about to begin
		for _, a := range o.attemptsOf(r.name, nil) {
			if a.settled || a.how == "rejects" || a.newProgress != "" || len(row) > 0 &&
				o.anew(row[len(row)-1].began, a.began) {
				row = nil
				continue
			}
			h := a.batch[0]
			last := hurried[h.event]
			mayHurry := waitBefore(h.notBefore, a.began.clock) == 5*time.Second || o.changedJustBefore(h.event, a.start)
			if mayHurry && (last == nil || a.start-last.start >= 5*time.Second) {
				hurried[h.event] = a
				continue
			}
			row = append(row, a)
			for a.start-row[0].start > within {
				row = row[1:]
			}
			if len(row) > most {
				o.add("retry", "%s accepted nothing and was tried %d times from %v to %v", r.name, len(row),
					short(row[0].start), short(a.start))
				break
			}
		}
	}
}

// changedJustBefore reports whether a change of an event was committed right before a time.
func (o *oracle) changedJustBefore(event string, at time.Duration) bool {
	return o.anyChange(event, func(c change) bool { return c.at <= at && at-c.at < time.Second })
}
