package bridge_test

import (
	"slices"
	"time"
)

// running says whether the program ran all the time, in one run.
func (o *oracle) running(boot int, from, to time.Duration) bool {
	b := o.boots[boot]
	return from >= b.began.at && (b.ended.seq == 0 || to <= b.ended.at)
}

// setUp says whether a route was set up all the time, and the same way.
func (o *oracle) setUp(route string, from, to time.Duration) bool {
	there := false
	for _, s := range o.setups {
		if s.at > to {
			break
		}
		has := slices.ContainsFunc(s.routes, func(r routePlan) bool { return r.name == route })
		if s.at > from && (!has || !there) {
			return false
		}
		there = has
	}
	return there
}

// isolation: whatever the other destinations do, one that is well is told at once.
func (o *oracle) isolation(b belief) {
	const well = "well"
	for _, c := range b.changes {
		limit := c.at + time.Second
		if !c.routes[well] || c.lost || o.ill(c.at-time.Minute, limit) || !o.running(c.boot, c.at, limit) {
			continue
		}
		if !slices.ContainsFunc(o.taken[c.event.id][well], func(t taken) bool { return t.id == c.id && t.at <= limit }) {
			o.add("isolation", "%s was not told %s within a second of %v", well, c.id, short(c.at))
		}
	}
}

// polls: nothing that goes wrong elsewhere keeps the program from polling.
func (o *oracle) polls() {
	polls := slices.DeleteFunc(slices.Clone(o.answers), func(a *answer) bool { return a.asker == approver })
	for i, a := range polls {
		if i == 0 || a.boot != polls[i-1].boot || a.asker == perhaps || polls[i-1].asker == perhaps {
			continue
		}
		was := polls[i-1]
		limit := o.plan.interval + 500*time.Millisecond
		if was.what == "failed" {
			limit = 31 * time.Second // of a refusal that somebody has to look at
		}
		if gap := a.askedAt - was.at; gap > limit && !o.ill(was.at-10*time.Second, a.askedAt) {
			o.add("polling", "no poll from %v to %v", short(was.at), short(a.askedAt))
		}
	}
}

// urgent: what leaves less than 15 minutes is tried at once, whatever the destination is waiting for.
func (o *oracle) urgent(id string, b belief, r routePlan) {
	for i, c := range b.changes {
		if !c.routes[r.name] || c.lost || r.above > 0 || r.lead > 0 || o.ill(c.at-time.Minute, c.at+time.Minute) {
			continue
		}
		if nb := c.event.notBeforeTime(); !nb.IsZero() && nb.Sub(c.clock) >= 15*time.Minute {
			continue
		}
		// Attempts under way end first, and those that beat the schedule are five seconds apart.
		limit := c.at + time.Second
		others := map[string]bool{}
		for _, a := range o.attempts {
			if a.sink != r.name || a.in != c.boot {
				continue
			}
			if a.start <= limit && a.how == "asks to wait" && a.at+retryAfter > c.at {
				limit = max(limit, a.at+retryAfter+time.Second)
			}
			if a.start <= c.at && (!a.ended || a.at >= c.at) {
				others[a.batch[0].event] = true
			}
			if a.start > c.at && a.start < limit+10*time.Minute {
				others[a.batch[0].event] = true
			}
		}
		limit += time.Duration(len(others)+1) * (5*time.Second + r.timeout)
		tried := slices.ContainsFunc(o.tried[id][r.name], func(t taken) bool { return t.start <= limit && t.start >= c.at })
		newer := slices.ContainsFunc(b.changes[i+1:], func(x change) bool { return x.at <= limit })
		byHand := slices.ContainsFunc(o.hands, func(h hand) bool { return h.event_ == id })
		if !tried && !newer && !byHand && o.running(c.boot, c.at, limit) && o.setUp(r.name, c.at, limit) &&
			!(r.late == "drop" && c.kind == "scheduled" && c.event.notBeforeTime().Before(c.clock.Add(time.Minute))) {
			if len(others) > 0 && (c.kind == "vanished" || !o.passedOver(c, r, limit)) {
				continue // those with a nearer NotBefore go first, and those that lie ahead
			}
			o.add("urgency", "%s was told nothing of %s from %v to %v", r.name, c.id, short(c.at), short(limit))
		}
	}
}

// floors: a destination that asks to wait is left alone until then.
func (o *oracle) floors() {
	for _, a := range o.attempts {
		if a.how != "asks to wait" || !a.ended {
			continue
		}
		for _, next := range o.attempts {
			if next.sink == a.sink && next.in == a.in && next.start > a.at && next.start < a.at+retryAfter &&
				o.setupsBetween(a.at, next.start) == 0 && !o.acceptedBetween(a, next) {
				o.add("retry", "%s asked to wait at %v and was tried at %v", a.sink, short(a.at), short(next.start))
				return
			}
		}
	}
}

func (o *oracle) setupsBetween(from, to time.Duration) (n int) {
	for _, s := range o.setups {
		if s.at >= from && s.at <= to {
			n++
		}
	}
	return n
}

// acceptedBetween says whether the destination took something after it had asked to wait, which is that it is back.
func (o *oracle) acceptedBetween(a, next *attempt) bool {
	return slices.ContainsFunc(o.attempts, func(x *attempt) bool {
		return x.sink == a.sink && x.settled && x.at >= a.at && x.at <= next.start
	})
}

// passedOver says whether a route was told of something that begins later than what the change is about, which waited.
func (o *oracle) passedOver(c change, r routePlan, until time.Duration) bool {
	return slices.ContainsFunc(o.attempts, func(a *attempt) bool {
		h := a.batch[0]
		ahead := h.event != "" && h.change != "vanished" && !h.notBefore.After(c.event.notBeforeTime())
		return a.sink == r.name && a.in == c.boot && a.start > c.at+time.Second && a.start < until && !ahead
	})
}
