package bridge_test

import (
	"slices"
	"strings"
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
	for i, a := range o.answers {
		if i == 0 || a.boot != o.answers[i-1].boot {
			continue
		}
		was := o.answers[i-1]
		limit := o.plan.interval + 500*time.Millisecond
		if was.what == "failed" {
			limit = 31 * time.Second // of a refusal that somebody has to look at
		}
		if gap := a.askedAt - was.at; gap > limit && !o.ill(was.at-10*time.Second, a.askedAt) {
			o.add("polling", "no poll from %v to %v", short(was.at), short(a.askedAt))
		}
	}
}

// late: latest never tells a change when a newer one waits; drop tells neither that nor a scheduled whose time has passed.
func (o *oracle) late(id string, b belief, r routePlan) {
	if r.late == "send" {
		return
	}
	for _, t := range o.tried[id][r.name] {
		place := slices.IndexFunc(b.changes, func(c change) bool { return c.id == t.id })
		if place < 0 || !azures(t.change) {
			continue
		}
		c := b.changes[place]
		if nb := c.event.notBeforeTime(); r.late == "drop" && c.kind == "scheduled" && !nb.IsZero() &&
			t.began.clock.After(nb.Add(time.Second)) {
			o.add("late", "%s was told %s at %v, after its time", r.name, t.id, short(t.start))
		}
		for _, newer := range b.changes[place+1:] {
			if !newer.routes[r.name] || newer.lost || newer.boot > t.in || newer.at+200*time.Millisecond > t.start ||
				o.ill(newer.at, t.start) || o.doneBefore(newer, r, t) {
				continue
			}
			waits := r.lead > 0 && newer.event.notBefore-r.lead-o.skews[t.in] > t.start && newer.kind != "vanished"
			switch {
			case !waits:
				o.add("late", "%s was told %s at %v though %s waited", r.name, t.id, short(t.start), newer.id)
			case c.kind != "vanished":
				o.add("late with a lead", "%s was told %s at %v though %s is due later", r.name, t.id, short(t.start), newer.id)
			}
		}
	}
}

// doneBefore says whether a change no longer waited when an attempt began.
func (o *oracle) doneBefore(c change, r routePlan, t taken) bool {
	return slices.ContainsFunc(o.tried[c.event.id][r.name], func(x taken) bool {
		return x.id == c.id && x.began.seq < t.began.seq
	}) || slices.ContainsFunc(o.hands, func(h hand) bool { return h.id == c.id && h.sink == r.name }) ||
		slices.ContainsFunc(o.left, func(e entry) bool { return e.dead && e.id == c.id && e.sink == r.name })
}

// lead: a route with a lead is told so long before the event begins, not earlier.
func (o *oracle) lead(id string, b belief, r routePlan) {
	if r.lead == 0 {
		return
	}
	for _, t := range o.tried[id][r.name] {
		i := slices.IndexFunc(b.changes, func(c change) bool { return c.id == t.id })
		if i < 0 {
			continue
		}
		c := b.changes[i]
		due := c.event.notBeforeTime().Add(-r.lead)
		if (c.kind == "scheduled" || c.kind == "updated") && c.event.notBefore >= 0 && due.After(c.clock.Add(time.Second)) &&
			t.began.clock.Before(due) && t.instead == "" {
			o.add("lead", "%s was told %s at %v, more than %v before %v", r.name, t.id, short(t.start), r.lead, short(c.event.notBefore))
		}
	}
}

// leadIsKept: a route with a lead that is well is told when its time has come.
func (o *oracle) leadIsKept(id string, b belief, r routePlan) {
	for i, c := range b.changes {
		due := c.event.notBefore - r.lead - o.skews[c.boot]
		limit := due + r.timeout + 10*time.Second
		if r.lead == 0 || !c.routes[r.name] || c.lost || c.kind != "scheduled" && c.kind != "updated" || c.event.notBefore < 0 ||
			due < c.at || !o.running(c.boot, c.at, limit) || !o.setUp(r.name, c.at, limit) || o.ill(c.at, limit) || o.everTroubled(r.name) {
			continue
		}
		newer := slices.ContainsFunc(b.changes[i+1:], func(x change) bool { return x.at <= limit })
		tried := slices.ContainsFunc(o.tried[id][r.name], func(t taken) bool { return t.id == c.id && t.start <= limit })
		byHand := slices.ContainsFunc(o.hands, func(h hand) bool { return h.id == c.id })
		if !newer && !tried && !byHand {
			o.add("lead", "%s was not told %s by %v", r.name, c.id, short(limit))
		}
	}
}

// everTroubled says whether a destination ever had trouble.
func (o *oracle) everTroubled(sink string) bool {
	return slices.ContainsFunc(o.plan.steps, func(s step) bool {
		x, ok := s.act.(sinkTrouble)
		return ok && x.sink == sink
	})
}

// reminded: nobody who wants to be is not.
func (o *oracle) reminded(id string, b belief, r routePlan) {
	for i, c := range b.changes {
		if c.lost || c.event.status != "Scheduled" || c.kind == "vanished" || c.event.notBefore < 0 || r.acts {
			continue
		}
		for _, lead := range r.remind {
			due := c.event.notBefore - lead - o.skews[c.boot]
			from, limit := due-11*time.Minute, due+10*time.Second
			told := slices.ContainsFunc(b.changes[:i+1], func(x change) bool { return x.at > from }) // something else, just before
			newer := slices.ContainsFunc(b.changes[i+1:], func(x change) bool { return x.at <= limit })
			approved := slices.ContainsFunc(o.posts, func(p *post) bool { return p.id == id })
			owed := false
			for _, x := range b.changes[:i+1] {
				owed = owed || x.routes[r.name] && !x.lost
			}
			if told || newer || !owed || approved || !o.running(c.boot, from, limit) || !o.setUp(r.name, from, limit) ||
				len(o.ills) > 0 || o.everTroubled(r.name) {
				continue
			}
			if !slices.ContainsFunc(o.tried[id][r.name], func(t taken) bool {
				l, _, _ := parseReminder(t.id)
				return t.change == "reminder" && l == lead && t.start >= due-time.Second && t.start <= limit
			}) {
				o.add("reminders", "%s was not reminded of %s %v before its time", r.name, name(id), lead)
			}
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

// reminders: one says truly how long is left, once for each lead, and not when something was told just before.
func (o *oracle) reminders(id string, b belief, r routePlan) {
	told := map[string]taken{}
	for _, t := range o.tried[id][r.name] {
		if t.change != "reminder" {
			continue
		}
		lead, notBefore, ok := parseReminder(t.id)
		switch at := t.time; {
		case r.acts && !slices.Contains(r.changes, "reminder"):
			o.add("reminders", "%s, which acts, was told %s", r.name, t.id)
		case !ok || !slices.Contains(r.remind, lead):
			o.add("reminders", "%s was told %s, and has the leads %v", r.name, t.id, r.remind)
		case at.Before(notBefore.Add(-lead)) || at.After(notBefore):
			o.add("reminders", "%s was told %s, which was made at %v", r.name, t.id, at)
		case t.observer != "vm-0":
			o.add("reminders", "%s names %q as this VM", t.id, t.observer)
		}
		current := -1
		for i, c := range b.changes {
			if !c.lost && !c.clock.After(t.time) && c.boot <= t.in {
				current = i
			}
		}
		if current < 0 {
			continue
		}
		switch c := b.changes[current]; {
		case c.event.status != "Scheduled" || c.kind == "vanished" || !c.event.notBeforeTime().Truncate(time.Second).Equal(notBefore):
			o.add("reminders", "%s was told %s after %s", r.name, t.id, c.id)
		case t.time.Sub(c.clock) < 9*time.Minute && c.boot == t.in:
			o.add("reminders", "%s was told %s just after %s", r.name, t.id, c.id)
		}
		if was, again := told[t.id]; again && was.settled && !o.unsettled(was, t.in) && !o.replayed(t, was) && !o.returned(r, was.at, t.start) {
			o.add("told once", "%s was reminded twice: %s", r.name, t.id)
		}
		told[t.id] = t
	}
	// What is owed is told in order, so no reminder comes before what it reminds of.
	for _, t := range o.taken[id][r.name] {
		if t.change != "reminder" {
			continue
		}
		for _, c := range b.changes {
			if c.kind == "scheduled" && c.routes[r.name] && !c.lost && c.clock.Before(t.time) && c.boot == t.in && !o.toldBefore(c, r, t) {
				o.add("in order", "%s was reminded of %s before it was told of it", r.name, name(id))
			}
		}
	}
}

// toldBefore says whether a change was told, or given up, before another delivery.
func (o *oracle) toldBefore(c change, r routePlan, t taken) bool {
	for _, x := range o.taken[c.event.id][r.name] {
		if x.id == c.id && x.seq <= t.seq || slices.Contains(x.missed, c.kind) {
			return true
		}
	}
	return slices.ContainsFunc(o.hands, func(h hand) bool { return h.id == c.id }) ||
		slices.ContainsFunc(o.left, func(e entry) bool { return e.id == c.id && e.sink == r.name })
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
func (o *oracle) fallback(id string, b belief, r routePlan) {
	for _, t := range o.tried[id][r.name] {
		if t.instead == "" {
			continue
		}
		i := slices.IndexFunc(o.plan.routes, func(x routePlan) bool { return x.name == t.instead })
		if i < 0 || o.plan.routes[i].fallback != r.name {
			o.add("fallback", "%s was told %s instead of %s, whose fallback it is not", r.name, t.id, t.instead)
		}
	}
	if r.fallback == "" {
		return
	}
	for _, c := range b.changes {
		limit := c.at + r.after + 10*time.Second
		if !c.routes[r.name] || c.lost || r.lead > 0 || o.ill(c.at, limit) || !o.running(c.boot, c.at, limit) ||
			!o.setUp(r.name, c.at, limit) || !o.setUp(r.fallback, c.at, limit) || r.late != "send" {
			continue
		}
		told := func(sink string) bool {
			return slices.ContainsFunc(o.taken[id][sink], func(t taken) bool { return t.id == c.id && t.at <= limit })
		}
		tried := slices.ContainsFunc(o.tried[id][r.fallback], func(t taken) bool { return t.id == c.id })
		kept := slices.ContainsFunc(o.left, func(e entry) bool { return e.id == c.id && e.sink == r.fallback })
		byHand := slices.ContainsFunc(o.hands, func(h hand) bool { return h.id == c.id })
		if !told(r.name) && !tried && !kept && !byHand {
			o.add("fallback", "%s could not tell %s by %v, and %s did not", r.name, c.id, short(limit), r.fallback)
		}
	}
}

// approvals: an event is approved only as the rules say, or by hand.
func (o *oracle) approvals(id string, b belief) {
	for _, p := range o.posts {
		if p.id != id {
			continue
		}
		if p.listed.status != "Scheduled" && p.listed.id != "" {
			o.add("approval", "%s was approved at %v although it is %s", name(id), short(p.at), p.listed.status)
		}
		i := slices.IndexFunc(o.hands, func(h hand) bool {
			return h.what == "approve" && h.event_ == id && p.at-h.at < 30*time.Second && p.at >= h.at
		})
		if i >= 0 {
			if shown := o.hands[i].shown; shown != p.listed && p.listed.id != "" {
				o.add("approval", "%s was approved by hand at %v, and was shown as %v", name(id), short(p.at), list{event: shown})
			}
			continue
		}
		if why := o.forbids(p, b); why != "" {
			o.add("approval", "%s was approved at %v although %s", name(id), short(p.at), why)
		}
	}
}

// forbids says why the rules do not approve an event, "" if one does.
func (o *oracle) forbids(p *post, b belief) (why string) {
	why = "there is no rule"
	last := -1
	for i, c := range b.changes {
		if c.seq < p.seq && !c.lost {
			last = i
		}
	}
	if last < 0 || b.changes[last].event != p.listed && p.listed.id != "" {
		return "it is not as it was told"
	}
	c := b.changes[last]
	for _, rule := range o.plan.rules {
		vms := c.event.resources()
		self := slices.ContainsFunc(vms, func(vm string) bool { return strings.EqualFold(vm, "vm-0") })
		from := c.at
		for _, sink := range rule.after {
			if !c.routes[sink] {
				why = sink + " was not owed it"
			}
			took := time.Duration(-1)
			for _, t := range o.taken[c.event.id][sink] {
				if t.id == c.id && t.settled && t.seq < p.seq {
					took = t.at
				}
			}
			if took < 0 {
				why = sink + " has not taken it"
				self = false
			}
			from = max(from, took)
		}
		switch {
		case !slices.Contains(rule.types, c.event.kind):
			why = "no rule names its type"
		case len(rule.sources) > 0 && !slices.Contains(rule.sources, c.event.source):
			why = "no rule names its source"
		case !self:
			why += ", or it does not hit this VM"
		case len(vms) > 1 && !rule.others:
			why = "it hits another VM"
		case p.at-from < rule.wait-time.Second:
			why = "its wait was not over"
		case o.ill(p.at, p.at) && o.ill(p.at-time.Second, p.at-time.Second):
			why = "the disk could not keep the decision"
		default:
			return ""
		}
	}
	return why
}

// outcome: how an event ended is never said wrongly.
func (o *oracle) outcome(id string, b belief) {
	for i, c := range b.changes {
		if c.kind != "vanished" {
			continue
		}
		var from time.Duration // when the life before it ended
		for _, was := range b.changes[:i] {
			if was.kind == "vanished" && !was.lost {
				from = was.at
			}
		}
		began := slices.ContainsFunc(o.azure.begun[id], func(at time.Duration) bool { return at > from && at < c.at-10*time.Second }) ||
			slices.ContainsFunc(b.changes[:i], func(was change) bool { return was.at > from && was.event.status == "Started" })
		for _, list := range o.taken[id] {
			for _, t := range list {
				if t.id == c.id && (t.outcome == "canceled" && began || t.outcome == "completed" && !began) {
					o.add("the outcome is honest", "%s says %s; that it began is %v", t.id, t.outcome, began)
				}
			}
		}
	}
}

// deadLetters: what was given up was given up for the reason that is said.
func (o *oracle) deadLetters() {
	for _, e := range o.left {
		if !e.dead {
			continue
		}
		i := slices.IndexFunc(o.plan.routes, func(r routePlan) bool { return r.name == e.sink })
		r := o.plan.routes[i]
		tries := slices.DeleteFunc(slices.Clone(o.tried[e.event][e.sink]), func(t taken) bool { return t.id != e.id })
		right := false
		switch e.reason {
		case "rejected":
			right = slices.ContainsFunc(tries, func(t taken) bool { return t.how == "rejects" })
		case "expired":
			right = r.maxAge > 0 && len(tries) > 0 && tries[len(tries)-1].at-tries[0].start > r.maxAge-2*time.Minute
		case "late":
			right = r.late == "drop"
		case "removed":
			right = slices.ContainsFunc(o.boots, func(b *boot) bool { return b.how.off > 20*time.Hour || b.how.step > 20*time.Hour })
		case "overflow":
			right = len(o.ills) > 0
		}
		if !right {
			o.add("dead letters", "%s of %s is one, reason %s, after %d attempts", e.id, e.sink, e.reason, len(tries))
		}
	}
}

// leftBehind: when all is well again, nothing waits any more but what waits for its time or its route.
func (o *oracle) leftBehind() {
	for _, e := range o.left {
		there := slices.ContainsFunc(o.routes, func(r routePlan) bool { return r.name == e.sink })
		if !e.dead && e.due.IsZero() && there {
			o.add("nothing is left behind", "%s still owes %s after %d attempts: %s", e.sink, e.id, e.attempts, e.err)
		}
	}
}

// recordIsTrue: what the history says is what happened.
func (o *oracle) recordIsTrue() {
	recorded := map[string]string{}
	for _, d := range o.record {
		recorded[d.sink+" "+d.id] = d.state
		took := slices.ContainsFunc(o.taken[d.event][d.sink], func(t taken) bool { return t.id == d.id && t.settled })
		if d.state == "accepted" && !took {
			o.add("the record is true", "it says that %s accepted %s", d.sink, d.id)
		}
		if d.state == "dropped" && !slices.ContainsFunc(o.hands, func(h hand) bool { return h.what == "drop" && h.id == d.id }) {
			o.add("the record is true", "it says that %s was dropped", d.id)
		}
	}
	for event, sinks := range o.taken {
		for sink, list := range sinks {
			for _, t := range list {
				state := recorded[sink+" "+t.id]
				if event != "" && t.settled && state != "accepted" && !o.unsettled(t, len(o.boots)) && len(o.hands) == 0 {
					o.add("the record is true", "%s took %s at %v, and it says %q", sink, t.id, short(t.at), state)
				}
			}
		}
	}
}
