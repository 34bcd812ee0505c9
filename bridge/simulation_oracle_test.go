package bridge_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/outbox"
)

// A finding is a promise that was not kept in a simulation.
type finding struct{ promise, what string }

func (f finding) String() string { return f.promise + ": " + f.what }

// An oracle knows what truly happened, and finds every promise that was not kept.
type oracle struct {
	*world
	beliefs map[string][]belief
	taken   tellings // in order
	tried   tellings // whatever became of it, by when that began
	// Some of what was told was said without knowing what was told before: the file came late, or is a copy of another
	// machine's. The checks that follow a destination rather than an event (retries, receipts, progress, the record) would
	// need to know what each of the two memories held. They are made of the runs of the program before the first such one:
	// see sharp. Those that follow an event are made of all events whose life does not fall into that time: see blurs.
	blurred  bool
	firstRun int                     // that is blurred; how many there are if none is
	muted    map[[2]string][]*muting // see mutesOf
	findings []finding
}

// A taken is one delivery that a destination has taken.
type taken struct {
	handed
	*attempt
}

// tellings are deliveries by event and sink.
type tellings map[string]map[string][]taken

func (t tellings) note(a *attempt, batch []handed) {
	for _, h := range batch {
		if t[h.event] == nil {
			t[h.event] = map[string][]taken{}
		}
		t[h.event][a.sink] = append(t[h.event][a.sink], taken{h, a})
	}
}

// of returns all that is about an event, whomever it was told.
func (t tellings) of(event string) []taken {
	return slices.Concat(slices.Collect(maps.Values(t[event]))...)
}

// bySeq orders attempts by when they ended.
func bySeq(a, b *attempt) int { return a.seq - b.seq }

// attemptsOf returns the attempts of a route that ended and of which something is true; nil is anything.
func (o *oracle) attemptsOf(route string, is func(a *attempt) bool) (list []*attempt) {
	for _, a := range o.attempts {
		if a.sink == route && a.ended && (is == nil || is(a)) {
			list = append(list, a)
		}
	}
	return list
}

// anyChange reports whether something is true of a change of an event, by any belief.
func (o *oracle) anyChange(event string, is func(c change) bool) bool {
	return slices.ContainsFunc(o.beliefs[event], func(b belief) bool { return slices.ContainsFunc(b.changes, is) })
}

// isLeft reports whether a delivery is pending in the end, or a dead letter.
func (o *oracle) isLeft(sink, id string) bool {
	return slices.ContainsFunc(o.left, func(e outbox.Delivery) bool { return e.Route == sink && e.ID == id })
}

func (o *oracle) isDead(sink, id string) bool {
	return slices.ContainsFunc(o.left, func(e outbox.Delivery) bool {
		return e.State == outbox.StateDead && e.Route == sink && e.ID == id
	})
}

// examine returns the promises that were not kept.
func examine(w *world) []finding {
	o := &oracle{
		world: w, beliefs: truthOf(w), taken: tellings{}, tried: tellings{}, muted: map[[2]string][]*muting{},
	}
	w.workOutMutes()
	for _, a := range w.attempts {
		o.tried.note(a, a.batch)
	}
	for _, a := range slices.SortedFunc(slices.Values(w.attempts), bySeq) {
		o.taken.note(a, a.batch[:a.taken])
	}
	o.firstRun = slices.IndexFunc(w.boots, func(b *boot) bool {
		return b.late > 0 || b.vm > 0 || o.damaged(b.began.at, b.ended.at)
	})
	o.blurred = o.firstRun >= 0
	if !o.blurred {
		o.firstRun = len(w.boots)
	}
	for _, r := range w.plan.routes {
		o.markDown(o.attemptsOf(r.name, nil))
	}
	for id := range o.taken {
		if id != "" && o.beliefs[id] == nil {
			o.add("nothing is made up", "%s was told, and Azure never listed it", id)
		}
	}
	for id, beliefs := range o.beliefs { // the program must be right by one of them
		var best []finding
		for i, b := range beliefs {
			found := o.event(id, b)
			if i == 0 || o.weight(found) < o.weight(best) {
				best = found
			}
			if len(found) == 0 {
				break
			}
		}
		o.findings = append(o.findings, best...)
	}
	o.clones()
	o.bounded()
	o.receipts()
	o.progress()
	o.floors()
	if !o.blurred {
		o.retries()
		o.storms()
		o.secondChances()
	}
	o.probes()
	o.hurries()
	o.behind()
	o.repeats()
	o.digests()
	o.mutesHold()
	o.mutesAreListed()
	o.mutesAreOnRecord()
	o.summaries()
	o.polls()
	o.deadLetters()
	o.leftBehind()
	o.recordIsTrue()
	o.replaysAreTold()
	o.troubleIsTold()
	// While only memory has it there is room for so much, and how much was forgotten is said.
	o.excuse("nothing is lost", o.forgot[forgotDeadLetter])
	o.excuse("the record is true", o.forgot[forgotHistory]*len(o.plan.routes))
	return o.findings
}

// weight returns how much speaks against a belief. What may be excused weighs little.
func (o *oracle) weight(found []finding) (n int) {
	for _, f := range found {
		if f.promise != "nothing is lost" || o.forgot[forgotDeadLetter] == 0 {
			n += 1000
		}
		n++
	}
	return n
}

// excuse takes back so many findings of a promise, at most.
func (o *oracle) excuse(promise string, most int) {
	o.findings = slices.DeleteFunc(o.findings, func(f finding) bool {
		if f.promise != promise || most <= 0 {
			return false
		}
		most--
		return true
	})
}

func (o *oracle) add(promise, format string, args ...any) {
	o.findings = append(o.findings, finding{promise, fmt.Sprintf(format, args...)})
}

// event checks what was told of one event against one belief.
func (o *oracle) event(id string, b belief) []finding {
	x := *o
	x.findings = nil
	for _, p := range o.plan.routes {
		r := p.name
		told := slices.DeleteFunc(slices.Clone(o.taken[id][r]), func(t taken) bool { return !azures(t.change) })
		x.nothingMore(b, r, told)
		x.nothingLess(b, r, told)
		x.once(r, told)
		if o.blurs(id, b) {
			continue
		}
		x.inOrder(b, r, told)
		x.late(id, b, r)
		x.over(id, b, r)
		x.lead(id, b, r)
		x.leadIsKept(id, b, r)
		x.urgent(id, b, r)
		x.firsts(id, b, r)
		x.reminded(id, b, r)
		x.reminders(id, b, r)
		x.fallback(id, b, r)
		x.mutedFallback(id, b, r)
	}
	x.isolation(b)
	x.approvals(id, b)
	x.approvedBy(id, b)
	x.moot(id)
	x.outcome(id, b)
	x.whileAway(id, b)
	return x.findings
}

// sharp reports whether an attempt was made while it was still clear what the program knows.
func (o *oracle) sharp(a *attempt) bool { return a.in < o.firstRun }

// blurs reports whether some of what was told of an event was said, or to be said, while the program did not know what
// was told before: its file had not come, or it did not know whose the file is.
func (o *oracle) blurs(id string, b belief) bool {
	if !o.blurred || len(b.changes) == 0 {
		return o.blurred
	}
	from, to := b.changes[0].at, b.changes[len(b.changes)-1].at
	for _, t := range o.tried.of(id) {
		to = max(to, t.start)
	}
	return o.damaged(from, to) || slices.ContainsFunc(o.boots, func(x *boot) bool {
		if x.late == 0 && x.vm == 0 {
			return false
		}
		known := max(x.learned.at, o.takenUp(x).at) + time.Second
		if x.learned.seq == 0 || x.late > 0 && x.loaded.seq == 0 {
			known = math.MaxInt64
		}
		return from < known && x.began.at < to
	})
}

func azures(kind string) bool { return kind != "reminder" && kind != "approved" }

// nothingMore: a sink is told only what it is owed, under the id of the change, nothing before the program was to decide
// about it, and nothing that a crash made forget.
func (o *oracle) nothingMore(b belief, route string, told []taken) {
	for _, t := range told {
		owed, lost, known, decided := false, true, false, false
		for _, c := range b.changes {
			if c.id != t.id {
				continue
			}
			known, decided = true, decided || c.at <= t.start || o.boots[c.boot].late > 0
			_, is := c.routes[route]
			is = is || slices.Contains(c.orphans, route)
			owed = owed || is
			lost = lost && c.lost && !o.ill(c.at-6*time.Second, t.at) // it tries to write again every five
		}
		// A fallback that took it hears it again behind an older one that somebody replays.
		follows := slices.ContainsFunc(told, func(was taken) bool {
			return was.id == t.id && was.seq < t.seq && o.replayed(t, was)
		})
		switch {
		case !known:
			o.add("the same change has the same id", "%s was told %s, the id of no change: %v", route, t.id, ids(b))
		case !decided:
			o.add("filters", "%s was told %s at %v, when the VM's name could still come", route, t.id, short(t.start))
		case !owed && t.instead == "" && !o.hand("replay", route, t.id) && !follows && !o.blurs(t.event, b) &&
			!o.alerted(t.event, route):
			o.add("filters", "%s was told %s, which it is not owed", route, t.id)
		case lost:
			o.add("owed before sent", "%s was told %s, which was not on the disk", route, t.id)
		}
	}
}

func ids(b belief) (list []string) {
	for _, c := range b.changes {
		s := c.id[len(c.event.id)+1:]
		if c.gone() {
			s += " (lost)"
		}
		list = append(list, s)
	}
	return list
}

// nothingLess: each change is told to each route that is owed it, or it is on record why not.
func (o *oracle) nothingLess(b belief, route string, told []taken) {
	for i, c := range b.changes {
		if !c.routes[route] || c.gone() {
			continue
		}
		has := o.isLeft(route, c.id) || slices.ContainsFunc(told, func(t taken) bool { return t.id == c.id })
		// Which of its terms the route had when something else took the place of this, nobody knows.
		excused := slices.ContainsFunc(o.ways(route, c.at, forever), func(r routePlan) bool {
			covered := r.late == "latest" && slices.ContainsFunc(o.taken[c.event.id][route], func(t taken) bool {
				return t.seq > c.seq && slices.Contains(t.missed, c.kind) // a reminder may stand for it too
			})
			return covered || o.overtaken(b, i, r) || o.toldAnew(b, i, r) || o.stoodFor(b, i, r) ||
				b.overAfter(i, r) >= 0 || o.endDropped(b, i, r)
		})
		byHand := o.hand("drop", route, c.id) || o.hand("take away", route, c.id)
		excused = excused || byHand || o.takenAway(c, route)
		if !has && !excused && !o.neverDue(b, i, route) && !o.replacedByLatest(b, i, route, told) {
			o.add("nothing is lost", "%s was never told %s, seen at %v", route, c.id, short(c.at))
		}
	}
}

// takenAway reports whether a reload may have taken the route away before a change was decided: the first document may wait
// for the VM's name, and a reload for a disk that is ill, so nobody knows which was first.
func (o *oracle) takenAway(c change, route string) bool {
	until := c.at + o.nameless(c)
	return o.setUp(route, c.at, c.at) && o.ill(c.at, until) && slices.ContainsFunc(o.setups, func(s setup) bool {
		has := slices.ContainsFunc(s.routes, func(r routePlan) bool { return r.name == route })
		return !has && c.at <= s.at && s.at <= until
	})
}

// endDropped reports whether somebody dropped the end that was pending for a route with late: latest. What was pending with
// it is over then, like that of a route which isn't told of the end.
func (o *oracle) endDropped(b belief, i int, r routePlan) bool {
	return r.late == "latest" && slices.ContainsFunc(b.changes[i+1:], func(x change) bool {
		return x.kind == "vanished" && o.hand("drop", r.name, x.id)
	})
}

// ways returns each way in which a route was set up in a time, or was last before.
func (o *oracle) ways(route string, from, to time.Duration) (ways []routePlan) {
	for _, s := range o.setups {
		if s.at > to && len(ways) > 0 {
			break
		}
		if r, has := routeOf(s.routes, route); has {
			if s.at <= from {
				ways = nil
			}
			ways = append(ways, r)
		}
	}
	return ways
}

// as returns a route as it was set up at a time, or last before.
func (o *oracle) as(route string, at time.Duration) routePlan {
	if ways := o.ways(route, at, at); len(ways) > 0 {
		return ways[0]
	}
	return routePlan{name: route}
}

// once: a sink takes a delivery again only where an answer or a settle was lost, or somebody replayed it.
func (o *oracle) once(route string, told []taken) {
	last := map[string]taken{}
	for _, t := range told {
		was, again := last[t.id]
		last[t.id] = t
		if again && was.settled && !o.replayed(t, was) && !o.unsettled(was, t.boot) && !o.returned(route, was.at, t.at) &&
			!o.unaware(was, t) && !o.damaged(0, t.at) {
			promise := "told once"
			if t.instead != "" {
				promise = "told once, by the fallback"
			}
			o.add(promise, "%s took %s twice, at %v and %v", route, t.id, short(was.at), short(t.at))
		}
	}
}

// replayed reports whether somebody replayed a delivery between two times that it was told, or to its sink another about
// the event, which it is to follow then, unless the sink acts.
func (o *oracle) replayed(t, was taken) bool {
	return slices.ContainsFunc(o.hands, func(h hand) bool {
		follows := h.sink == t.sink && h.event == t.event && h.event != "" && t.change != "reminder" &&
			slices.ContainsFunc(o.ways(t.sink, h.at, h.at), func(r routePlan) bool { return r.late != "drop" })
		return h.what == "replay" && (h.id == t.id || follows) && h.seq > was.seq && h.seq < t.seq
	})
}

// unaware reports whether the program had no way to know of a delivery when it made another: its file came late, or it
// runs on another machine.
func (o *oracle) unaware(was, t taken) bool {
	learned := o.boots[t.in].learned // maybe in the middle of a run
	if o.boots[was.boot].vm != o.boots[t.in].vm || o.boots[t.in].vm > 0 && was.at <= learned.at && learned.at <= t.at {
		return true
	}
	return slices.ContainsFunc(o.boots, func(b *boot) bool {
		twoOfThem := !t.time.Equal(was.time) // one that the file held, and one from before it came
		return b.late > 0 && b.began.at <= t.at && (twoOfThem || was.at <= b.late+10*time.Second)
	})
}

// gaveUp reports whether a delivery is a dead letter, or somebody had to do with it by hand. If the program forgot dead
// letters, each may be one of those.
func (o *oracle) gaveUp(sink, id string) bool {
	return o.hand("", sink, id) || o.forgot[forgotDeadLetter] > 0 || o.isDead(sink, id)
}

// unsettled reports whether the program may have ended before it was on the disk that a delivery was taken.
func (o *oracle) unsettled(was taken, now int) bool {
	if was.boot == now {
		return false
	}
	end := o.boots[was.boot]
	if !end.how.crash {
		return o.ill(end.ended.at-10*time.Second, end.ended.at)
	}
	ahead := 60 * time.Millisecond // of the disk, at most
	if o.as(was.sink, was.at).sync {
		ahead = time.Millisecond
	}
	const tried = 5 * time.Second // after a failure, the disk is tried again
	return end.ended.at-was.at < ahead || o.ill(was.at-tried, end.ended.at)
}

// returned reports whether a route was away for more than a day in between, by the machine's clock, and so counts as
// new.
func (o *oracle) returned(route string, from, to time.Duration) bool {
	var gone *fact
	for _, s := range o.setups {
		there := hasRoute(s.routes, route)
		switch {
		case there && gone != nil && s.at > from && s.at <= to:
			if apart(*gone, s.fact) > 23*time.Hour {
				return true
			}
			gone = nil
		case there:
			gone = nil
		case gone == nil:
			gone = &s.fact
		}
	}
	return false
}

// inOrder: of one event, a sink hears the changes in their order.
func (o *oracle) inOrder(b belief, route string, told []taken) {
	place := map[string]int{}
	for i, c := range b.changes {
		if at, ok := place[c.id]; !ok || b.changes[at].gone() {
			place[c.id] = i // one that was forgotten may have given its id to a later one
		}
	}
	last, lastOne := -1, taken{}
	seen := map[string]bool{}
	for _, t := range told {
		if seen[t.id] || t.instead != "" || o.hand("replay", t.sink, t.id) { // a replayed one has no place any more
			continue
		}
		seen[t.id] = true
		if i := b.place(t); i >= 0 {
			place[t.id] = i
		} else if _, known := place[t.id]; !known {
			continue // see nothingMore
		}
		forgot := last >= 0 && b.changes[last].gone() && t.in > lastOne.in // that the last one was ever told
		// The program doesn't know that it was told what somebody dropped.
		dropped := last >= 0 && !lastOne.settled && o.hand("drop", route, lastOne.id)
		if place[t.id] < last && !forgot && !dropped {
			o.add("in order", "%s was told %s after %s", route, t.id, lastOne.id)
			continue
		}
		last, lastOne = place[t.id], t
	}
}

// hand reports whether an operator did this to a delivery; "" is anything.
func (o *oracle) hand(what, sink, id string) bool {
	return slices.ContainsFunc(o.hands, func(h hand) bool {
		return (what == "" || h.what == what) && (sink == "" || h.sink == sink) && h.id == id
	})
}

// describe returns a simulation's findings as text: each promise with some examples.
func describe(found []finding) string {
	var b strings.Builder
	for i, f := range found {
		if i == 10 {
			fmt.Fprintf(&b, "\n  and %d more", len(found)-i)
			break
		}
		fmt.Fprintf(&b, "\n  %v", f)
	}
	return b.String()
}
