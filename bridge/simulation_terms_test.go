package bridge_test

import (
	"slices"
	"strings"
	"time"
)

// late: latest never tells a change when a newer one waits; drop tells neither that nor a scheduled whose time has
// passed, unless somebody replayed it.
func (o *oracle) late(id string, b belief, route string) {
	for _, t := range o.tried[id][route] {
		r, place := o.as(route, t.start), b.place(t)
		if r.late == "send" || !o.setUp(route, t.start-time.Second, t.start) || place < 0 || !azures(t.change) ||
			r.late == "drop" && o.hand("replay", r.name, t.id) {
			continue
		}
		c := b.changes[place]
		nb := c.event.notBeforeTime()
		for _, newer := range b.changes[place+1:] { // a lead counts to the present time, also where no update is told
			if r.lead > 0 && newer.kind == "updated" && !newer.owed(r.name) && newer.at < t.start {
				nb = newer.event.notBeforeTime()
			}
		}
		if r.late == "drop" && c.kind == "scheduled" && !nb.IsZero() &&
			t.began.clock.After(nb.Add(time.Second)) && !o.mayBeMuted(r.name, id, c.at, t.start) {
			o.add("late", "%s was told %s at %v, after its time", r.name, t.id, short(t.start))
		}
		for n, newer := range b.changes {
			if n <= place || !newer.owed(r.name) || newer.gone() || t.progress != "" ||
				newer.boot > t.in || newer.at+200*time.Millisecond > t.start ||
				o.ill(newer.at, t.start) || o.doneBefore(newer, r, t) ||
				o.mayBeMuted(r.name, id, t.start-time.Second, t.start) {
				continue
			}
			ofThen, came := o.leadCame(b, n, route, t.start+5*time.Second)
			if !came {
				ofThen = r
			}
			isDueLater := r.lead > 0 && newer.event.notBefore-r.lead-o.skews[t.in] > t.start && newer.kind != "vanished"
			notYet := !came && o.waited(newer, route) // such as when its time came while there was no program
			waits := isDueLater || notYet
			switch {
			case waits && !ahead(c): // that it began, or ended, is as true as before
			case o.waited(newer, route) && o.waited(c, route) && !ofThen.hears(newer): // so that it gets the announcement
			case waits:
				o.add("late with a lead", "%s was told %s at %v though %s is due later", r.name, t.id, short(t.start), newer.id)
			default:
				o.add("late", "%s was told %s at %v though %s waited", r.name, t.id, short(t.start), newer.id)
			}
		}
	}
}

// over: nothing is begun about an event that is known to be over, but what says so: not by a route with late: drop, nor by
// one with late: latest that is not told of the end.
func (o *oracle) over(id string, b belief, route string) {
	for _, t := range o.tried[id][route] {
		r, place := o.as(route, t.start), b.place(t)
		if place < 0 || !o.setUp(route, t.start-time.Second, t.start) || o.hand("replay", r.name, t.id) {
			continue
		}
		end := b.overAfter(place, r)
		if end < 0 {
			continue
		}
		x := b.changes[end]
		if !x.gone() && x.boot <= t.in && x.at+200*time.Millisecond < t.start {
			o.add("nothing is begun when it is over", "%s was told %s at %v, which was over at %v", r.name, t.id,
				short(t.start), short(x.at))
		}
	}
}

// overAfter returns the place of the first end after a change, if a route that waits with the change until then is not to
// be told it any more; -1 if there is none.
func (b belief) overAfter(place int, r routePlan) int {
	if b.changes[place].kind == "vanished" {
		return -1
	}
	for i := place + 1; i < len(b.changes); i++ {
		x := b.changes[i]
		if x.kind != "vanished" {
			continue
		}
		_, told := x.routes[r.name]
		if r.late == "drop" || r.late == "latest" && !told {
			return i
		}
		return -1
	}
	return -1
}

// doneBefore reports whether a change no longer waited when an attempt began.
func (o *oracle) doneBefore(c change, r routePlan, t taken) bool {
	return slices.ContainsFunc(o.tried[c.event.id][r.name], func(x taken) bool {
		stoodForIt := x.settled && x.began.seq > c.seq && x.seq < t.began.seq && slices.Contains(x.missed, c.kind)
		return x.id == c.id && x.began.seq < t.began.seq || stoodForIt // such as an approval
	}) || o.hand("", r.name, c.id) ||
		o.isDead(r.name, c.id)
}

// everTroubled reports whether a destination ever had trouble.
func (o *oracle) everTroubled(sink string) bool {
	return slices.ContainsFunc(o.plan.steps, func(s step) bool {
		x, ok := s.act.(sinkTrouble)
		return ok && x.sink == sink
	})
}

// reminded: nobody who wants to be is not.
func (o *oracle) reminded(id string, b belief, route string) {
	for i, c := range b.changes {
		if c.gone() || c.event.status != "Scheduled" || c.kind == "vanished" || c.event.notBefore < 0 {
			continue
		}
		r := o.as(route, c.at)
		for _, lead := range r.remind {
			due := c.event.notBefore - lead - o.skews[c.boot]
			from, limit := due-11*time.Minute, due+10*time.Second
			told := slices.ContainsFunc(b.changes[:i+1], func(x change) bool { return x.at > from }) // of something else
			newer := slices.ContainsFunc(b.changes[i+1:], func(x change) bool { return x.at <= limit })
			approved := slices.ContainsFunc(o.posts, func(p *post) bool { return p.id == id })
			owed := false
			for _, x := range b.changes[:i+1] {
				owed = owed && !x.first || x.owed(r.name) && !x.gone()
			}
			hears := !r.acts && r.hears(change{kind: "reminder", event: c.event})
			if !hears || told || newer || !owed || approved || !o.running(c.boot, from, limit) ||
				!o.setUp(r.name, min(c.at, from), limit) || len(o.ills) > 0 || o.plan.bounds != (bounds{}) ||
				o.everTroubled(r.name) || o.mayBeMuted(r.name, id, from, limit) {
				continue
			}
			nb := c.event.notBeforeTime()
			if !slices.ContainsFunc(o.tried[id][r.name], func(t taken) bool { // once, also if the clock is set back after that
				l, of, _ := parseReminder(t.id)
				return t.change == "reminder" && l == lead && of.Equal(nb) && !t.time.Before(nb.Add(-lead)) && t.start <= limit
			}) {
				o.add("reminders", "%s was not reminded of %s %v before its time", r.name, name(id), lead)
			}
		}
	}
}

// reminders: one says truly how long is left, once for each lead, and not when something was told just before.
func (o *oracle) reminders(id string, b belief, route string) {
	told := map[string]taken{}
	for _, t := range o.tried[id][route] {
		if t.change != "reminder" || t.instead != "" || o.hand("replay", route, t.id) {
			continue
		}
		lead, notBefore, ok := parseReminder(t.id)
		wanted := func(r routePlan) bool { return slices.Contains(r.remind, lead) }
		acts := func(r routePlan) bool { return r.acts && !slices.Contains(r.changes, "reminder") }
		ways := o.ways(route, o.made(t)-time.Second, t.start) // after a restart nobody knows when it was made
		switch {
		case !slices.ContainsFunc(ways, func(r routePlan) bool { return !acts(r) }):
			o.add("reminders", "%s, which acts, was told %s", route, t.id)
		case !ok || !slices.ContainsFunc(ways, wanted):
			o.add("reminders", "%s was told %s, and has the leads %v", route, t.id, ways[0].remind)
		case t.time.Before(notBefore.Add(-lead)) || t.time.After(notBefore):
			o.add("reminders", "%s was told %s, which was made at %v", route, t.id, t.time)
		case t.observer != "vm-0" && o.boots[0].learned.seq > 0 && o.boots[0].learned.at < time.Second:
			o.add("reminders", "%s names %q as this VM", t.id, t.observer)
		}
		current, at := -1, false
		for i, c := range b.changes {
			if !c.gone() && c.boot <= t.in && c.clock.Before(t.time) && c.at < t.start { // whatever a clock that was set back says
				current = i
			}
			// Nobody can say which of the two came first, also after a clock that was set back.
			at = at || c.clock.Equal(t.time) ||
				c.boot < t.in && c.clock.After(t.time) && c.clock.After(o.boots[t.in].began.clock)
		}
		if current >= 0 && !at {
			switch c := b.changes[current]; {
			case c.event.status != "Scheduled" || c.kind == "vanished" || !c.event.notBeforeTime().Equal(notBefore):
				o.add("reminders", "%s was told %s after %s", route, t.id, c.id)
			case c.owed(route) && t.time.Sub(c.clock) < 9*time.Minute && c.boot == t.in && !o.mayBeForgotten(c, t) &&
				!o.hand("", route, c.id): // a dead letter that was replayed to another sink was never told to this one
				o.add("reminders", "%s was told %s just after %s", route, t.id, c.id)
			}
		}
		was, again := told[t.id]
		if again && was.settled && !o.unsettled(was, t.in) && !o.replayed(t, was) && !o.returned(route, was.at, t.start) {
			o.add("told once", "%s was reminded twice: %s", route, t.id)
		}
		told[t.id] = t
	}
	o.timelyReminders(id, b, route)
	// What is owed is told in order, so no reminder comes before what it reminds of.
	for _, t := range o.taken[id][route] {
		if t.change != "reminder" || o.hand("replay", route, t.id) {
			continue
		}
		for _, c := range b.changes {
			owed := c.kind == "scheduled" && c.owed(route) && !c.gone() && c.clock.Before(t.time) && c.boot == t.in
			// A newer change took the place of one that waited for its lead until the event ended, or a reload ended that, and
			// of one that became late while it was muted.
			r := o.as(route, c.at)
			replaced := (r.lead > 0 || r.late == "drop") && slices.ContainsFunc(o.taken[id][route], func(x taken) bool {
				return azures(x.change) && c.seq < x.seq && x.seq < t.seq
			})
			if owed && !replaced && !o.toldBefore(c, route, t) && !o.mayBeForgotten(c, t) {
				o.add("in order", "%s was reminded of %s before it was told of it", route, name(id))
			}
		}
	}
}

// timelyReminders: a reminder that waited is out of date when the event changes. Who replays one after that has asked for
// it.
func (o *oracle) timelyReminders(id string, b belief, route string) {
	for _, t := range o.tried[id][route] {
		if t.change != "reminder" {
			continue
		}
		for _, c := range b.changes {
			asked := slices.ContainsFunc(o.hands, func(h hand) bool {
				return h.what == "replay" && h.sink == route && h.id == t.id && h.seq > c.seq
			})
			if c.boot == t.in && !c.gone() && c.clock.After(t.time) && c.at+time.Second < t.start &&
				!o.ill(c.at, t.start) && !asked {
				o.add("reminders", "%s was told %s at %v, after %s", route, t.id, short(t.start), c.id)
			}
		}
	}
}

// mayBeForgotten reports whether a change may have been given up and forgotten before the reminder: memory is bounded
// while the disk fails, and so are the dead letters. The reminder is all that is left then.
func (o *oracle) mayBeForgotten(c change, t taken) bool {
	isTaken := slices.ContainsFunc(o.taken[c.event.id][t.sink], func(x taken) bool { return x.id == c.id && x.seq < t.seq })
	return o.plan.bounds != (bounds{}) && o.ill(c.at-time.Minute, t.start) ||
		!isTaken && o.forgot[forgotDeadLetter] > 0
}

// toldBefore reports whether a change was told, or given up, before another delivery.
func (o *oracle) toldBefore(c change, route string, t taken) bool {
	for _, x := range o.taken[c.event.id][route] {
		if x.id == c.id && x.seq <= t.seq || slices.Contains(x.missed, c.kind) {
			return true
		}
	}
	return o.hand("", "", c.id) || o.isLeft(route, c.id)
}

// parseReminder reads the id of a reminder: …-reminder-30m-20010101T040000Z.
func parseReminder(id string) (lead time.Duration, notBefore time.Time, ok bool) {
	_, rest, _ := strings.Cut(id, "-reminder-")
	words := strings.Split(rest, "-")
	if len(words) < 2 {
		return 0, time.Time{}, false
	}
	lead, err := time.ParseDuration(words[0])
	notBefore, err2 := time.Parse("20060102T150405Z", words[1])
	return lead, notBefore, err == nil && err2 == nil
}

// fallback: what a route cannot tell in time, its fallback tells, and nothing else.
func (o *oracle) fallback(id string, b belief, route string) {
	for _, t := range o.tried[id][route] {
		falls := func(r routePlan) bool { return r.fallback == route }
		if t.instead != "" && !slices.ContainsFunc(o.ways(t.instead, o.made(t), t.start), falls) {
			o.add("fallback", "%s was told %s instead of %s, whose fallback it is not", route, t.id, t.instead)
		}
	}
	for i, c := range b.changes {
		r := o.as(route, c.at)
		limit := c.at + r.after + 10*time.Second
		if r.fallback == "" || r.lead > 0 || r.late != "send" || !o.due(c, r.name) || o.ill(c.at, limit) ||
			!o.undisturbed(c, r.name, limit) || !o.undisturbed(c, r.fallback, limit) {
			continue
		}
		told := func(sink string) bool {
			return slices.ContainsFunc(o.taken[id][sink], func(t taken) bool { return t.id == c.id && t.at <= limit })
		}
		tried := slices.ContainsFunc(o.tried[id][r.fallback], func(t taken) bool {
			return t.id == c.id || b.place(t) > i && slices.Contains(t.missed, c.kind) // what stands for it
		})
		if !told(r.name) && !tried && !o.isLeft(r.fallback, c.id) && !o.hand("", "", c.id) {
			o.add("fallback", "%s could not tell %s by %v, and %s did not", r.name, c.id, short(limit), r.fallback)
		}
	}
}

// digests: a wave of events, which one document shows, does not fill a channel.
func (o *oracle) digests() {
	type wave struct {
		kind, change string
		boot         int
		at           int64
		replays      int // each has a wave of its own
	}
	ofAzure := []string{"scheduled", "updated", "started", "vanished"} // an approval comes by itself
	for _, p := range o.plan.routes {
		if o.everTroubled(p.name) {
			continue
		}
		calls := map[wave]int{}
		for _, a := range o.attempts {
			h, r := a.batch[0], o.as(p.name, a.start)
			if a.sink != p.name || r.above == 0 || r.late != "latest" || !slices.Contains(ofAzure, h.change) {
				continue
			}
			w := wave{h.kind, h.change, a.in, h.time.UnixNano(), 0}
			for _, x := range o.hands {
				if x.what == "replay" && x.sink == a.sink && x.id == h.id && x.seq < a.began.seq {
					w.replays++
				}
			}
			calls[w]++
			if calls[w] > r.above+2 {
				o.add("digest", "%s was told %v in %d calls to %v", r.name, w, calls[w], short(a.start))
				return
			}
		}
	}
}
