package relay_test

import (
	"slices"
	"time"
)

// lead: a route with a lead is told so long before the event begins, not earlier; and when it has come.
func (o *oracle) lead(r routePlan, owed []said) {
	if r.lead == 0 {
		return
	}
	for i, c := range owed {
		due := c.notBefore - r.lead
		if !ahead(c.change) || c.begun || c.to != "" || c.outdated {
			continue
		}
		tried := slices.ContainsFunc(o.tried[r.name][c.event], func(t given) bool { return t.id == c.id })
		moved := slices.ContainsFunc(owed[i+1:], func(s said) bool { return s.event == c.event })
		earliest := due
		for _, later := range o.news { // also one that the sink is not told of moves it
			if later.event == c.event && later.seq > c.seq && azures(later.change) && later.to == "" {
				moved, earliest = true, min(earliest, later.notBefore-r.lead)
			}
		}
		for _, t := range o.tried[r.name][c.event] {
			if t.id == c.id && t.instead == "" && due > c.stored+time.Second && t.start < earliest {
				o.add("lead", "%s was told %s at %v, before its lead at %v", r.name, t.id, short(t.start), short(earliest))
			}
		}
		limit := max(due, c.stored) + 5*time.Second
		if !tried && !moved && o.calm(limit-10*time.Second, limit) && limit < o.length && !o.troubled(r.name, 0, limit) &&
			!o.overtaken(r, c, ever) && o.letter(r.name, c) < 0 {
			o.add("lead", "%s was not told %s by %v", r.name, c.id, short(limit))
		}
	}
}

// timely: whatever the other destinations do, one that is well is told at once; and within 12 s after a relay was
// killed beside another.
func (o *oracle) timely(r routePlan, owed []said) {
	if r.name != "well" {
		return
	}
	for _, c := range owed {
		limit := c.stored + 5*time.Second
		if !o.calm(c.stored, limit) {
			if limit = o.takeover(c.stored); limit == 0 {
				continue
			}
		}
		told := slices.ContainsFunc(o.taken[r.name][c.event], func(t given) bool { return t.id == c.id && t.start <= limit })
		if !told && !o.overtaken(r, c, limit) {
			o.add("isolation", "%s was not told %s, stored at %v, by %v", r.name, c.id, short(c.stored), short(limit))
		}
	}
}

// takeover is by when a change is told that came after a kill, if nothing else happened then and another relay was
// there; else 0.
func (o *oracle) takeover(stored time.Duration) time.Duration {
	i := slices.IndexFunc(o.breaks, func(b breakage) bool { return b.kill && stored >= b.from && stored < b.from+15*time.Second })
	if i < 0 {
		return 0
	}
	kill, limit := o.breaks[i], o.breaks[i].from+12*time.Second
	rests := slices.ContainsFunc(o.breaks, func(b breakage) bool { // who can't read for a minute leaves a sink to others first
		return (b.how == recordsLost || b.how == requestsLost) && b.to > b.from+time.Minute && b.to > kill.from-5*time.Minute
	})
	if rests {
		limit += 10 * time.Second
	}
	limit = max(limit, stored+5*time.Second)
	from := kill.from - 20*time.Second
	for _, b := range o.breaks {
		if b != kill && b.from <= limit && from <= b.to+time.Second {
			return 0
		}
	}
	for _, at := range o.changes {
		if at != kill.from && at >= from && at <= limit {
			return 0
		}
	}
	if !slices.ContainsFunc(o.machines, func(m *machine) bool {
		return m != kill.machine && m.began < from && (!m.ended || m.over > limit)
	}) {
		return 0
	}
	return limit
}

// urgent: what leaves less than 15 minutes is tried at once, whatever the destination is waiting for.
func (o *oracle) urgent(r routePlan, owed []said) {
	if r.above > 0 || r.lead > 0 {
		return
	}
	for i, c := range owed {
		if !azures(c.change) || c.to != "" || c.outdated || !c.begun && c.notBefore-c.stored >= 15*time.Minute || c.change == "vanished" ||
			o.letter(r.name, c) >= 0 {
			continue
		}
		// Attempts under way end first, and those that beat the schedule are five seconds apart.
		limit, others := c.stored+5*time.Second, map[string]bool{}
		for _, a := range o.attempts {
			if a.sink == r.name && a.start > c.stored-r.timeout && a.start < c.stored+10*time.Minute {
				others[a.batch[0].event] = true
			}
			if a.sink == r.name && a.how == "asks to wait" && a.start <= limit && a.end+retryAfter > c.stored {
				limit = max(limit, a.end+retryAfter+time.Second)
			}
		}
		limit += time.Duration(len(others)+1) * (5*time.Second + r.timeout)
		if o.full(r.name, c.stored) { // until something is given up for it
			limit += 10 * time.Second
		}
		tried := slices.ContainsFunc(o.tried[r.name][c.event], func(t given) bool { return t.start <= limit && t.start >= c.stored })
		newer := slices.ContainsFunc(owed[i+1:], func(s said) bool { return s.event == c.event && s.stored <= limit })
		end, over := o.endOf(r, c)
		settled := over && end.stored <= limit // the route begins nothing about it any more
		if !tried && !newer && !settled && limit < o.length && o.calm(c.stored, limit) {
			o.add("urgency", "%s was told nothing of %s, stored at %v, until %v", r.name, c.id, short(c.stored), short(limit))
		}
	}
}
