package bridge_test

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/outbox"
)

// outcome: how an event ended is never said wrongly.
func (o *oracle) outcome(id string, b belief) {
	for i, c := range b.changes {
		if c.kind != "vanished" {
			continue
		}
		var from, first time.Duration // when the life before it ended, and when this one was seen first
		for _, was := range b.changes[:i] {
			switch {
			case was.kind == "vanished" && !o.forgotten(was, c.boot):
				from, first = was.at, 0
			case first == 0:
				first = was.at
			}
		}
		var ends []time.Duration // of its lives, up to this one
		for _, at := range o.azure.ended[id] {
			if at <= c.at {
				ends = append(ends, at)
			}
		}
		hasBegun := func(from time.Duration) bool {
			seen := func(was change) bool {
				return was.at > from && was.event.status == "Started" && was.kind != "vanished"
			}
			return slices.ContainsFunc(b.changes[:i], seen) ||
				slices.ContainsFunc(o.azure.begun[id], func(x begin) bool { return x.at > from && x.visible < c.at })
		}
		mayHave := hasBegun(from)
		// What another machine saw of it need not count for one that was given a copy of its disk.
		mine := slices.IndexFunc(o.boots, func(x *boot) bool { return x.vm == o.boots[c.boot].vm })
		from = max(from, o.boots[mine].began.at)
		// Nor need what is in a file that hasn't come yet.
		if boot := o.boots[c.boot]; boot.late > 0 && (boot.loaded.seq == 0 || c.seq < o.takenUp(boot).seq) {
			from = max(from, boot.began.at)
		}
		if n := len(ends); n > 1 {
			from = max(from, ends[n-2]) // nobody may have seen the end of the life before it
		}
		for _, end := range ends { // nor that it was listed before
			if end <= first {
				from = max(from, end)
			}
		}
		began := hasBegun(from)
		for _, t := range o.taken.of(id) {
			if b.place(t) == i && (t.outcome == "canceled" && began || t.outcome == "completed" && !mayHave) {
				o.add("the outcome is honest", "%s says %s; that it began is %v", t.id, t.outcome, began)
			}
		}
	}
}

// clockStepped reports whether the machine's clock was ever wrong.
func (o *oracle) clockStepped() bool {
	return slices.ContainsFunc(o.skews, func(d time.Duration) bool { return d != 0 })
}

// place returns that of the change which a delivery is of, -1 for none. One that a crash made the program forget may
// have given its id to another; then it is the one that was seen when the CloudEvent was made.
func (b belief) place(t taken) int {
	place, nearest := -1, 15*time.Second
	for i, c := range b.changes {
		off := t.time.Sub(c.clock).Abs()
		if c.id == t.id && (off < nearest || off == nearest && place >= 0 && b.changes[place].gone()) {
			place, nearest = i, off
		}
	}
	return place
}

// whileAway: what happened while nobody watched is told as that, and nothing else.
func (o *oracle) whileAway(id string, b belief) {
	for i, c := range b.changes {
		if c.away == nil || c.lost || o.clockStepped() {
			continue
		}
		// A copy tells anew what it told before it knew which VM it is, so which of the two a delivery is of is not clear.
		boot := o.boots[c.boot]
		anew := boot.vm > 0 && boot.learned.seq > 0 && c.at < boot.learned.at+15*time.Second
		for _, t := range o.taken.of(id) {
			if b.place(t) == i && !anew && t.whileAway != *c.away {
				o.add("while away", "%s says that it was found while nobody watched: %v, to %s", t.id, t.whileAway, t.sink)
			}
		}
	}
}

// trouble is what a route hears of that wants to hear only of trouble.
var trouble = []string{
	"dev.forewarn.bridge.sink.blocked", "dev.forewarn.bridge.sink.recovered", "dev.forewarn.bridge.imds.unavailable",
	"dev.forewarn.bridge.outbox.unwritable", "dev.forewarn.bridge.outbox.writable",
	"dev.forewarn.bridge.imds.recovered", "dev.forewarn.bridge.delivery.deadlettered",
}

// made returns when the CloudEvent of a delivery was made, 0 if that was in an earlier run of the program: its clock may
// have been another.
func (o *oracle) made(t taken) time.Duration {
	at := t.start - t.began.clock.Sub(t.time)
	if at < o.boots[t.in].began.at || at > t.start+time.Millisecond {
		return 0
	}
	return at
}

// triedInstead reports whether a delivery may be a dead letter because a newer change of its event came: that one was
// tried instead, whatever became of it, so nobody is told that anything was given up.
func (o *oracle) triedInstead(e outbox.Delivery) bool {
	isOther := func(t taken) bool { return t.id != e.ID }
	return e.Reason == "late" && slices.ContainsFunc(o.taken.of(e.Group), isOther)
}

// alerted reports whether a route gets an event whatever its filter says, because it was to be told that the event isn't
// started early, or what Azure refused.
func (o *oracle) alerted(event, route string) bool {
	joins := func(r routePlan) bool { return r.bridge != "none" && r.late != "drop" && !r.acts }
	isApproval := func(sink, id string) bool { return sink == route && strings.HasPrefix(id, event+"-approved-") }
	return slices.ContainsFunc(o.ways(route, 0, forever), joins) &&
		(slices.ContainsFunc(o.tried[event][route], func(t taken) bool {
			return t.change == "approved" || slices.Contains(t.missed, "approved")
		}) ||
			slices.ContainsFunc(o.left, func(e outbox.Delivery) bool { return isApproval(e.Route, e.ID) }) ||
			slices.ContainsFunc(o.hands, func(h hand) bool { return isApproval(h.sink, h.id) }) ||
			slices.ContainsFunc(o.ledger, func(k kept) bool { return isApproval(k.sink, k.id) }))
}

// troubleIsTold: each dead letter is told to who wants to hear of trouble, to nobody else, and never to the sink that
// it is about.
func (o *oracle) troubleIsTold() {
	var news strings.Builder
	for _, t := range o.taken.of("") {
		hears := func(r routePlan) bool {
			return r.bridge == "all" || r.bridge == "trouble" && slices.Contains(trouble, t.change)
		}
		if o.hand("replay", t.sink, t.id) {
			continue
		}
		if !slices.ContainsFunc(o.ways(cmp.Or(t.instead, t.sink), o.made(t), t.start), hears) {
			o.add("trouble", "%s was told %s, and does not want to hear of it", t.sink, t.id)
		}
		if strings.Contains(t.body, `"sink":"`+t.sink+`"`) {
			o.add("trouble", "%s was told of its own trouble: %s", t.sink, t.id)
		}
		if t.sink == well {
			news.WriteString(t.body)
		}
	}
	if !hasRoute(o.plan.routes, well) { // shrink left it out
		return
	}
	for _, e := range o.left {
		if e.State == outbox.StateDead && e.Group != "" && e.Route != well && len(o.boots) == 1 && len(o.ills) == 0 &&
			o.plan.bounds == (bounds{}) && len(o.hands) == 0 &&
			len(o.left) <= 20 && !o.triedInstead(e) && !strings.Contains(news.String(), `"key":"`+e.Key+`"`) {
			o.add("trouble", "nobody was told that %s is a dead letter", e.Key)
		}
	}
}

// deadLetters: what was given up was given up for the reason that is said.
func (o *oracle) deadLetters() {
	for _, e := range o.left {
		if e.State != outbox.StateDead {
			continue
		}
		ways := o.ways(e.Route, 0, forever)
		all := o.tried[e.Group][e.Route]
		tries := slices.DeleteFunc(slices.Clone(all), func(t taken) bool { return t.id != e.ID })
		right := false
		switch e.Reason {
		case "rejected":
			right = slices.ContainsFunc(all, func(t taken) bool { // a newer one may stand for it
				return t.how == "rejects" && (len(t.batch) == 1 || t.handed.progress != "")
			})
		case "expired":
			right = slices.ContainsFunc(all, func(t taken) bool { // of it, or of a newer one that stands for it, whose age counts
				return (t.id == e.ID || slices.Contains(t.missed, e.Change)) && o.expires(t)
			})
		case "late":
			right = slices.ContainsFunc(ways, func(r routePlan) bool { return r.late == "drop" })
		case "removed":
			stepped := func(b *boot) bool { return max(b.how.off, b.how.step) > 20*time.Hour }
			right = slices.ContainsFunc(o.boots, stepped) || o.longAway(e.Route)
		case "lost":
			right = o.mayLose(e)
		case "overflow":
			right = len(o.ills) > 0 || o.plan.bounds.pending > 0
		}
		if !right {
			o.add("dead letters", "%s of %s is one, reason %s, after %d attempts", e.ID, e.Route, e.Reason, len(tries))
		}
	}
}

// expires reports whether a delivery was older than max_age when an attempt of it ended, and so is not tried again.
func (o *oracle) expires(t taken) bool {
	since := o.mutedSince(t)
	return slices.ContainsFunc(o.ways(t.sink, t.start, t.at), func(r routePlan) bool {
		return r.maxAge > 0 && (o.clockStepped() || t.clock.Sub(t.time) > r.maxAge) &&
			(since == 0 || t.at-since > r.maxAge-time.Second)
	})
}

// longAway reports whether a route was away for a day, or nearly.
func (o *oracle) longAway(route string) bool {
	since := forever
	for _, s := range o.setups {
		if s.at-since > 23*time.Hour {
			return true
		}
		if hasRoute(s.routes, route) {
			since = forever
		} else {
			since = min(since, s.at)
		}
	}
	return o.boots[len(o.boots)-1].ended.at-since > 23*time.Hour
}

// replaysAreTold: what somebody replayed is told to the sink that it was replayed to.
func (o *oracle) replaysAreTold() {
	for _, h := range o.hands {
		if h.what != "replay" || h.event == "" || o.blurred || len(o.ills) > 0 || o.plan.bounds != (bounds{}) ||
			strings.Contains(h.id, "-reminder-") || !o.running(h.boot, h.at, h.at+time.Second) {
			continue
		}
		// A newer change stands for all where only the latest is told, and where it was pending already, under a lead.
		latest := slices.ContainsFunc(o.ways(h.sink, h.at, forever), func(r routePlan) bool {
			return r.late == "latest" || r.lead > 0
		})
		told := slices.ContainsFunc(o.taken[h.event][h.sink], func(t taken) bool {
			return t.seq > h.seq && (t.id == h.id || latest)
		})
		byHand := slices.ContainsFunc(o.hands, func(x hand) bool { return x.seq > h.seq && x.sink == h.sink && x.id == h.id })
		if !told && !o.isLeft(h.sink, h.id) && !byHand && !o.overSince(h) {
			o.add("nothing is lost", "%s was replayed to %s at %v, which was not told", h.id, h.sink, short(h.at))
		}
	}
}

// overSince reports whether the event of a replay ended later, so that a sink that had waited with it until then is not told
// it any more.
func (o *oracle) overSince(h hand) bool {
	return o.anyChange(h.event, func(c change) bool {
		_, told := c.routes[h.sink]
		ends := func(r routePlan) bool { return r.late == "drop" || r.late == "latest" && !told }
		return c.kind == "vanished" && c.seq > h.seq && slices.ContainsFunc(o.ways(h.sink, c.at, forever), ends)
	})
}

// leftBehind: when all is well again, nothing waits any more but what waits for its time or its route.
func (o *oracle) leftBehind() {
	for _, e := range o.left {
		if e.State != outbox.StateDead && hasRoute(o.routes, e.Route) {
			o.add("nothing is left behind", "%s still owes %s after %d attempts: %s", e.Route, e.ID, e.Attempts, e.Error)
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
		if d.state == "dropped" && !o.hand("drop", d.sink, d.id) {
			o.add("the record is true", "it says that %s was dropped", d.id)
		}
	}
	for event := range o.taken {
		for _, t := range o.taken.of(event) {
			state := recorded[t.sink+" "+t.id]
			if event != "" && t.settled && state != "accepted" && !o.unsettled(t, len(o.boots)) && len(o.hands) == 0 &&
				!o.blurred {
				o.add("the record is true", "%s took %s at %v, and it says %q", t.sink, t.id, short(t.at), state)
			}
		}
	}
}
