package bridge_test

import (
	"slices"
	"time"
)

// secondChances: when a destination takes something, what it did not take before is tried at once, unless it goes down
// again before its turn: then when it takes something again.
func (o *oracle) secondChances() {
	for _, r := range o.plan.routes {
		mine := o.attemptsOf(r.name, o.sharp)
		slices.SortFunc(mine, bySeq)
		for i, a := range mine {
			if r := o.as(r.name, a.start); !a.settled || r.lead > 0 || r.above > 0 {
				continue
			}
			waiting := map[string]handed{} // by event, what failed since the acceptance before this one
			inPart := map[string]bool{}    // events of which something is delivered in part, which keep their own times
			for k := i - 1; k >= 0 && !mine[k].settled && mine[k].in == a.in; k-- {
				for _, h := range mine[k].batch {
					_, known := waiting[h.event]
					switch {
					case known, inPart[h.event], mine[k].how == "rejects":
					case mine[k].newProgress != "":
						inPart[h.event] = true
					default:
						waiting[h.event] = h
					}
				}
			}
			for event, h := range waiting {
				next := nextOf(mine, i, h)
				if event == "" || next == 0 || h.isIn(a) || o.hand("", "", h.id) || o.failedBefore(mine[:i], event, a.in) {
					continue
				}
				if !o.unreadUntil(mine[next]) && o.neglected(event, mine, i+1, next, a.fact, a.at+time.Second) {
					o.add("retry", "%s took something at %v, and was given no second chance to take %s until %v", r.name,
						short(a.at), h.id, short(mine[next].start))
				}
			}
		}
	}
}

// failedBefore reports whether an event's deliveries failed already before the destination last took something, so that
// the trouble may be theirs alone.
func (o *oracle) failedBefore(mine []*attempt, event string, boot int) bool {
	accepted := false
	for i := len(mine) - 1; i >= 0 && mine[i].in == boot; i-- {
		a := mine[i]
		accepted = accepted || a.settled
		has := handed{event: event}.sameEvent(a)
		switch {
		case has && a.settled:
			return false
		case has && accepted:
			return true
		}
	}
	return false
}

// longestWait is the longest wait for an event that has not begun: a quarter of the time that is left, and five seconds in
// the last two minutes; 0 for none. It counts what a route is told of the event, or all if that is "".
func (o *oracle) longestWait(route, event string, now fact) (most time.Duration) {
	for _, b := range o.beliefs[event] {
		i := len(b.changes) - 1
		for i >= 0 && (b.changes[i].at > now.at || route != "" && !b.changes[i].owed(route)) {
			i--
		}
		if i < 0 || b.changes[i].kind == "vanished" || b.changes[i].kind == "started" {
			continue
		}
		most = max(most, waitBefore(b.changes[i].event.notBeforeTime(), now.clock))
	}
	return most
}

// waitBefore is the longest wait until an event begins; 0 if there is no such time ahead.
func waitBefore(notBefore, now time.Time) time.Duration {
	left := notBefore.Sub(now)
	if left <= 0 {
		return 0
	}
	return max(5*time.Second, min(left/4, left-2*time.Minute))
}

// hurries: what failed while its event has not begun is tried again in time, or something else is.
func (o *oracle) hurries() {
	for _, r := range o.plan.routes {
		mine := o.attemptsOf(r.name, o.sharp)
		for i, a := range mine {
			h := a.batch[0]
			most := o.longestWait("", h.event, a.fact)
			pending := slices.IndexFunc(mine[i+1:], h.isIn)
			if a.settled || a.how == "rejects" || most == 0 || pending < 0 || mine[i+1].in != a.in ||
				mine[i+1+pending].in != a.in {
				continue
			}
			next := mine[i+1]
			busy := slices.ContainsFunc(mine, func(x *attempt) bool {
				end := x.at
				if x.how == "asks to wait" {
					end += retryAfter
				}
				return x != a && x != next && x.start <= a.at+most && end > a.at || x == a && end > x.at
			})
			moved := o.anyChange(h.event, func(c change) bool {
				return c.id != h.id && c.clock.After(h.time) && c.at <= next.start
			})
			if busy || moved || o.hand("", "", h.id) || o.mayBeMuted(r.name, h.event, a.at, next.start) ||
				o.anew(a.fact, next.began) || o.ill(a.at-time.Minute, next.start) || o.unreadUntil(next) {
				continue
			}
			if next.start-a.at > most+time.Second {
				o.add("urgency", "%s failed to take %s at %v, %v before it begins, and was tried again at %v", r.name, h.id,
					short(a.at), h.notBefore.Sub(a.clock), short(next.start))
			}
		}
	}
}

// probes: while nothing is taken until somebody acts, a destination is asked once a minute, and of what is new or about to
// begin.
func (o *oracle) probes() {
	for _, r := range o.plan.routes {
		var row, mine []*attempt // blocked, one after the other, and all of the route
		flush := func() {
			defer func() { row = nil }()
			from := slices.IndexFunc(row, func(a *attempt) bool { return a.at-row[0].at >= 30*time.Second })
			from = max(from, 2)
			if len(row) <= from || row[from].at-row[0].at < 30*time.Second {
				return
			}
			began, ended := row[from], row[len(row)-1]
			new, n := map[string]bool{}, 0
			for i, a := range row[from+1:] {
				before := row[from+i]
				var waits []time.Duration // of all that is pending by then, of which the oldest may go for one that is urgent
				for _, x := range row[:from+i+2] {
					h := x.batch[0]
					waits = append(waits, o.longestWait("", h.event, before.fact), o.longestWait(r.name, h.event, before.fact))
					if h.change != "vanished" { // it may not be told of the start
						waits = append(waits, waitBefore(h.notBefore, before.clock))
					}
				}
				if slices.ContainsFunc(waits, func(most time.Duration) bool {
					return most > 0 && a.start-before.at >= most-time.Second
				}) {
					n++
				}
				for _, h := range a.batch {
					// Since a start or a reload all is new.
					before := slices.ContainsFunc(mine, func(x *attempt) bool {
						return x.began.seq < a.began.seq && !o.anew(x.began, a.began) && h.isIn(x)
					})
					new[h.id] = new[h.id] || !before
				}
			}
			for _, beliefs := range o.beliefs {
				for _, b := range beliefs[:1] {
					for _, c := range b.changes {
						if c.at >= began.at-time.Minute && c.at <= ended.at {
							n++
						}
					}
				}
			}
			for id := range o.taken { // so does what else was told of an event later
				for _, t := range o.taken[id][r.name] {
					if made := o.made(t); !azures(t.change) && made >= began.at-time.Minute && made <= ended.at {
						n++
					}
				}
			}
			n += o.releases(r.name, began.at, ended.at)
			for _, isNew := range new {
				if isNew {
					n++
				}
			}
			if most := int((ended.start-began.start)/time.Minute) + 1 + n; len(row)-1-from > most {
				o.add("retry", "%s is blocked and was tried %d times from %v to %v", r.name, len(row)-1-from,
					short(began.start), short(ended.start))
			}
		}
		for _, a := range o.attemptsOf(r.name, nil) {
			if len(row) > 0 && o.anew(row[len(row)-1].began, a.began) {
				flush()
			}
			alone := o.failedBefore(mine, a.batch[0].event, a.in) // its trouble counts for nobody else
			mine = append(mine, a)
			switch {
			case a.how == "is blocked" && !alone:
				row = append(row, a)
			case a.how != "is blocked":
				flush()
			}
		}
		flush()
	}
}
