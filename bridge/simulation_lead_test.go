package bridge_test

import (
	"slices"
	"time"
)

// lead: a route with a lead is told so long before the event begins, not earlier.
func (o *oracle) lead(id string, b belief, route string) {
	for _, t := range o.tried[id][route] {
		i := b.place(t)
		if i < 0 {
			continue
		}
		c := b.changes[i]
		r := o.as(route, c.at)
		if r.lead == 0 || !o.setUp(r.name, c.at, t.start) || o.hand("replay", r.name, t.id) {
			continue // it heard nothing of how the event moved meanwhile
		}
		due := c.event.notBeforeTime().Add(-r.lead)
		if (c.kind == "scheduled" || c.kind == "updated") && c.event.notBefore >= 0 && due.After(c.clock.Add(time.Second)) &&
			t.began.clock.Before(due) && t.instead == "" && !b.nearer(i, r.lead, t) && !o.cameEarlier(b, i, r, t) {
			o.add("lead", "%s was told %s at %v, before its lead", r.name, t.id, short(t.start))
		}
		if c.kind != "scheduled" && c.kind != "updated" || c.event.notBefore < 0 {
			continue
		}
		for _, newer := range b.changes[i+1:] {
			// What is pending already stays so when the clock is set back, unless the newer one waits: that takes its place.
			stays := !due.After(c.clock) || o.cameEarlier(b, i, r, t)
			waits := ahead(newer) && newer.event.notBeforeTime().Add(-r.lead).After(newer.clock)
			waited := due.After(newer.clock.Add(time.Second)) && (!stays || waits) && newer.boot == t.in &&
				!o.ill(newer.at, t.start)
			if waited && newer.owed(r.name) && !newer.gone() && newer.at+time.Second < t.start &&
				t.attempt.began.boot == t.in && t.handed.attempt == 1 && t.instead == "" && !o.hand("", r.name, t.id) {
				o.add("lead", "%s was told %s at %v, which waited when %s came", r.name, t.id, short(t.start), newer.id)
			}
		}
	}
}

// nearer reports whether the event of a change has come nearer since, so that a delivery of it was due already: it moves
// with the event, also when the route does not hear of that. What has no NotBefore may begin at once.
func (b belief) nearer(i int, lead time.Duration, t taken) bool {
	return slices.ContainsFunc(b.changes[i+1:], func(c change) bool {
		return c.at <= t.start && !c.event.notBeforeTime().Add(-lead).After(t.began.clock)
	})
}

// cameEarlier reports whether the lead for a change came in an earlier run of the program than that of a delivery, maybe
// just when that ended: what became pending then stays so, whatever the clock is set back to.
func (o *oracle) cameEarlier(b belief, i int, r routePlan, t taken) bool {
	c, until := b.changes[i], o.boots[t.in].began.at
	if i+1 < len(b.changes) {
		until = min(until, b.changes[i+1].at)
	}
	return o.leadComesBy(r, c.event, c.at, until, 0)
}

// leadIsKept: a route with a lead that is well is told when its time has come.
func (o *oracle) leadIsKept(id string, b belief, route string) {
	for i, c := range b.changes {
		r := o.as(route, c.at)
		due := c.event.notBefore - r.lead - o.skews[c.boot]
		limit := due + r.timeout + 10*time.Second
		waits := r.lead > 0 && (c.kind == "scheduled" || c.kind == "updated") && c.event.notBefore >= 0 && due >= c.at
		if !waits || !o.due(c, r.name) || !o.undisturbed(c, r.name, limit) || o.ill(c.at, limit) || o.everTroubled(r.name) {
			continue
		}
		newer := slices.ContainsFunc(b.changes[i+1:], func(x change) bool { return x.at <= limit })
		tried := slices.ContainsFunc(o.tried[id][r.name], func(t taken) bool { return t.id == c.id && t.start <= limit })
		if !newer && !tried {
			o.add("lead", "%s was not told %s by %v", r.name, c.id, short(limit))
		}
	}
}

// toldAnew reports whether a change is out of date for the route: a late file brought it when the event had been told
// anew.
func (o *oracle) toldAnew(b belief, i int, r routePlan) bool {
	return (r.late != "send" || r.lead > 0) && slices.ContainsFunc(b.changes[i+1:], func(x change) bool {
		boot := o.boots[x.boot]
		return b.changes[i].boot < x.boot && boot.late > 0 && (boot.loaded.seq == 0 || x.seq < o.takenUp(boot).seq)
	})
}

// neverDue reports whether the lead of the route for a change that lies ahead never came while it was in the settings, before
// the event began or ended, or all ends. It moves with the event.
func (o *oracle) neverDue(b belief, i int, route string) bool {
	if !ahead(b.changes[i]) || o.asFrom(route, b.changes[i].at).lead == 0 {
		return false
	}
	_, came := o.leadCame(b, i, route, o.boots[len(o.boots)-1].ended.at)
	return !came
}

// asFrom returns a route as it was set up at a time, or when it came back.
func (o *oracle) asFrom(route string, at time.Duration) routePlan {
	for i, s := range o.setups {
		inForce := i+1 == len(o.setups) || o.setups[i+1].at > at
		r, has := routeOf(s.routes, route)
		if has && inForce {
			return r
		}
	}
	return routePlan{}
}

// waited reports whether a route began to wait for its lead with a change.
func (o *oracle) waited(c change, route string) bool {
	lead := o.as(route, c.at).lead
	return ahead(c) && lead > 0 && c.event.notBeforeTime().Add(-lead).After(c.clock)
}

// leadCame reports whether the lead of the route for a change that lies ahead came before a time, and how the route was set
// up then. It moves with the event.
func (o *oracle) leadCame(b belief, i int, route string, end time.Duration) (ofThen routePlan, came bool) {
	for n := i; n < len(b.changes) && ahead(b.changes[n]); n++ {
		c, until := b.changes[n], end
		if n+1 < len(b.changes) {
			until = min(end, b.changes[n+1].at)
		}
		for m, s := range o.setups {
			to := until
			if m+1 < len(o.setups) {
				to = min(until, o.setups[m+1].at)
			}
			r, has := routeOf(s.routes, route)
			if has && o.leadComes(r, c.event, max(c.at, s.at), to) {
				return r, true
			}
		}
	}
	return routePlan{}, false
}

// leadComes reports whether the lead of a route for an event came, by the clocks, while a program ran, some seconds before
// the end of a time. It has come where the route has none any more.
func (o *oracle) leadComes(r routePlan, e azureEvent, from, to time.Duration) bool {
	return o.leadComesBy(r, e, from, to, 5*time.Second)
}

// leadComesBy reports whether the lead of a route came so long before the end of a time, and before the program ended.
func (o *oracle) leadComesBy(r routePlan, e azureEvent, from, to, left time.Duration) bool {
	for i, b := range o.boots {
		due := e.notBefore - r.lead - o.skews[i]
		if r.lead == 0 {
			due = from
		}
		if max(due, from, o.ready(r, i)) <= min(to, b.ended.at)-left {
			return true
		}
	}
	return false
}

// ready returns from when on a run of the program tells a route whose lead has come: it asks for its name first, also when
// its file has come late, and what acts waits for Azure's first answer, because the event may be over.
func (o *oracle) ready(r routePlan, boot int) time.Duration {
	b := o.boots[boot]
	named := max(b.began.at, o.takenUp(b).at) + 10*time.Second
	if r.late != "drop" {
		return named
	}
	from, _ := slices.BinarySearchFunc(o.answers, b.began.seq, func(a *answer, seq int) int { return a.seq - seq })
	for i, a := range o.answers[from:] {
		confirmed := a.what == "empty" && i > 0 && o.answers[from+i-1].what == "empty"
		if a.boot == boot && a.polled && (a.what == "document" || a.what == "unchanged" || confirmed) {
			return max(named, a.at+o.nameless(change{fact: a.fact}))
		}
	}
	return forever
}

// ahead reports whether a change says that its event is still to come.
func ahead(c change) bool { return c.kind == "scheduled" || c.kind == "updated" }

// overtaken reports whether a route with a lead need not be told a change that lies ahead: a newer one came before its
// time, or waits for a time of its own, or after a reload it was told the announcement instead.
func (o *oracle) overtaken(b belief, i int, r routePlan) bool {
	c := b.changes[i]
	if r.lead == 0 || !ahead(c) {
		return false
	}
	as := c.event
	for _, later := range b.changes[i+1:] {
		due := as.notBeforeTime().Add(-r.lead)
		began := o.boots[later.boot].began
		if later.boot > c.boot && began.clock.After(due) {
			due = began.clock.Add(10 * time.Second) // its time came while there was no program; its name comes first
		}
		ready := epoch.Add(o.ready(r, later.boot) + o.skews[later.boot])
		if later.boot > c.boot && ready.After(due) && !o.leadComes(r, as, c.at, began.at) {
			due = ready
		}
		due = o.whenBack(r.name, due)
		_, owed := later.routes[r.name]
		inTime := as.notBefore >= 0 && later.clock.Before(due.Add(5*time.Second))
		waits := ahead(later) && later.event.notBeforeTime().Add(-r.lead).After(later.clock)
		if inTime && (owed || !ahead(later)) || waits && owed {
			return true
		}
		if inTime && ahead(later) { // it moves with the event
			as = later.event
		}
	}
	// Its filter may not take updates any more when its lead comes, so that it gets the announcement: or the latest change,
	// if the file has lost that one, or if the route was away when that was seen.
	announced := i
	for announced > 0 && !b.changes[announced].first {
		announced--
	}
	return slices.ContainsFunc(o.taken[c.event.id][r.name], func(t taken) bool {
		at := b.place(t)
		later := at > i && (o.damaged(b.changes[announced].at, t.start) || slices.Contains(b.changes[at].orphans, r.name))
		other := 0 <= at && at < i || later
		return t.seq > c.seq && other && ahead(b.changes[at]) && !o.setUp(r.name, c.at, t.start)
	})
}

// whenBack returns when a route that is away at a time, by the machine's clock, is set up again; that time itself if it isn't
// away, or never comes back.
func (o *oracle) whenBack(route string, at time.Time) time.Time {
	away := false
	for _, s := range o.setups {
		there := hasRoute(s.routes, route)
		switch {
		case !s.clock.After(at):
			away = !there
		case away && there:
			return s.clock
		}
	}
	return at
}
