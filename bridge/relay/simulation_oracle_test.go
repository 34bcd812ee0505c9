package relay_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
	"forewarn/bridge/relay"
)

// A finding is a promise that was not kept in a simulation.
type finding struct{ promise, what string }

// An oracle knows what truly happened, and finds every promise that was not kept. What the sinks are owed it works out
// from what the stream holds; it shares nothing with the relay.
type oracle struct {
	*world
	news     []said                        // what was said for the first time, in the order of the stream
	tried    map[string]map[string][]given // by sink and Azure event, in order
	taken    map[string]map[string][]given // the same, of what the destination took
	findings []finding
}

// A given is one delivery as it was tried.
type given struct {
	handed
	*attempt
}

// examine returns the promises that were not kept.
func examine(w *world) []finding {
	o := &oracle{world: w, tried: map[string]map[string][]given{}, taken: map[string]map[string][]given{}}
	seen, newest := map[string]bool{}, map[string]said{}
	for _, s := range w.stream {
		if key := s.to + " " + s.instead + " " + s.id; !s.junk && !s.forged && !seen[key] {
			seen[key] = true
			was, known := newest[s.event]
			switch earlier := known && s.time < was.time; {
			case s.to != "":
			case s.change == "reminder":
				s.outdated = earlier && (!ahead(was.change) || s.notBefore != was.notBefore)
			case azures(s.change):
				s.outdated = earlier && along(s.change) < along(was.change)
				if !s.outdated {
					newest[s.event] = s
				}
			}
			o.news = append(o.news, s)
		}
	}
	note := func(where map[string]map[string][]given, h handed, a *attempt) {
		if where[a.sink] == nil {
			where[a.sink] = map[string][]given{}
		}
		where[a.sink][h.event] = append(where[a.sink][h.event], given{h, a})
	}
	for _, a := range w.attempts {
		for i, h := range a.batch {
			note(o.tried, h, a)
			if i < a.taken {
				note(o.taken, h, a)
			}
		}
	}
	for _, what := range w.left {
		o.add("it ends well", "%s", what)
	}
	if w.bound > 0 && w.most > w.bound {
		o.add("bounded", "%d deliveries of a sink were pending, the bound is %d", w.most, w.bound)
	}
	o.published()
	for _, r := range w.routes {
		owed := o.owed(r)
		o.nothingMore(r, owed)
		o.nothingLess(r, owed)
		o.once(r)
		o.inOrder(r, owed)
		o.late(r, owed)
		o.over(r, owed)
		o.lead(r, owed)
		o.timely(r, owed)
		o.urgent(r, owed)
		o.handedBack(r)
		o.floors(r)
		o.alone(r)
		o.repeats(r)
		o.handsOn(r)
		o.fallbacks(r, owed)
		o.unharmed(r, owed)
	}
	o.deadLetters()
	o.ready()
	return o.findings
}

func (o *oracle) add(promise, format string, args ...any) {
	o.findings = append(o.findings, finding{promise, fmt.Sprintf(format, args...)})
}

// describe returns some of the findings as text.
func describe(found []finding) string {
	var b strings.Builder
	for i, f := range found {
		if i == 12 {
			fmt.Fprintf(&b, "\n  and %d more", len(found)-i)
			break
		}
		fmt.Fprintf(&b, "\n  %s: %s", f.promise, f.what)
	}
	return b.String()
}

func azures(change string) bool { return change != "" && change != "reminder" && change != "approved" }

// along returns how far along the life of its event a change is.
func along(change string) int {
	return slices.Index([]string{"scheduled", "updated", "started", "vanished"}, change)
}

func ahead(change string) bool { return change == "scheduled" || change == "updated" }

// owed returns what a route is owed, in order: of an event from the first change on that its filter takes.
func (o *oracle) owed(r routePlan) (list []said) {
	has := func(values []string, v string) bool { return len(values) == 0 || slices.Contains(values, v) }
	takes := map[string]bool{}
	for _, s := range o.news {
		switch {
		case s.to != "":
			if s.to == r.name {
				list = append(list, s)
			}
		case s.event == "":
			if r.bridge == "all" && s.typ != "dev.forewarn.bridge.heartbeat" ||
				r.bridge == "trouble" && strings.HasPrefix(s.typ, "dev.forewarn.bridge.imds.") {
				list = append(list, s)
			}
		default:
			takes[s.event] = takes[s.event] || has(r.types, s.kind) && has(r.sources, s.source)
			if takes[s.event] && has(r.changes, s.change) {
				list = append(list, s)
			}
		}
	}
	return list
}

// calm reports whether relays and servers were well for a while before a time, and until its end.
func (o *oracle) calm(from, to time.Duration) bool {
	from -= 20 * time.Second
	return from > 0 && !o.broken(nil, from, to) &&
		!slices.ContainsFunc(o.changes, func(at time.Duration) bool { return at >= from && at <= to }) &&
		slices.ContainsFunc(o.machines, func(m *machine) bool { return m.began < from && (!m.ended || m.over > to) })
}

// broken reports whether the machine, or any with nil, could not reach what it needs at some moment of a time.
func (o *oracle) broken(m *machine, from, to time.Duration) bool {
	return slices.ContainsFunc(o.breaks, func(b breakage) bool {
		return (m == nil || b.machine == nil || b.machine == m) && b.from <= to && from <= b.to+time.Second
	})
}

// troubled reports whether a destination had trouble at some moment of a time.
func (o *oracle) troubled(sink string, from, to time.Duration) bool {
	return slices.ContainsFunc(o.attempts, func(a *attempt) bool {
		return a.sink == sink && a.how != "accepted" && a.start <= to && from <= a.end+retryAfter
	})
}

// nothingMore: a sink is told only what it is owed.
func (o *oracle) nothingMore(r routePlan, owed []said) {
	for _, list := range o.tried[r.name] {
		for _, t := range list {
			if !slices.ContainsFunc(owed, func(s said) bool { return s.id == t.id && s.instead == t.instead }) {
				o.add("filters", "%s was told %s, which it is not owed", r.name, t.id)
			}
		}
	}
}

// letter returns the place of a delivery's dead letter, below 0 if there is none. A fallback that refused the same itself
// has that one.
func (o *oracle) letter(sink string, s said) int {
	return slices.IndexFunc(o.letters, func(e relay.Entry) bool {
		return e.Sink == sink && e.ID == s.id && (s.to == "" || s.instead != "" || e.Seq == s.seq)
	})
}

// nothingLess: each change is told to each route that is owed it, or it is on record why not. A fallback doesn't get what it
// has by itself, whatever became of that; and what a fallback has makes room for others, where there is a bound.
func (o *oracle) nothingLess(r routePlan, owed []said) {
	for i, c := range owed {
		told := slices.ContainsFunc(o.taken[r.name][c.event], func(t given) bool { return t.id == c.id })
		covered := r.late == delivery.LateLatest && c.event != "" &&
			slices.ContainsFunc(owed[i+1:], func(s said) bool { return s.event == c.event && azures(s.change) && !s.outdated })
		covered = covered || slices.ContainsFunc(o.taken[r.name][c.event], func(t given) bool { // by a reminder
			return r.late == delivery.LateLatest && slices.Contains(t.missed, c.change)
		})
		unsent := c.outdated && (r.late != delivery.LateSend || r.lead > 0)
		_, over := o.endOf(r, c)
		has := c.instead != "" && slices.ContainsFunc(owed[:i], func(s said) bool { return s.to == "" && s.id == c.id })
		has = has || o.bound > 0 && o.handedOver(r, c.id)
		if !told && !covered && !has && o.letter(r.name, c) < 0 && !o.overtaken(r, c, ever) && !unsent && !over {
			o.add("nothing is lost", "%s was never told %s, stored at %v", r.name, c.id, short(c.stored))
		}
	}
}

const ever = time.Duration(math.MaxInt64)

// overtaken reports whether a newer change, stored until then, made one out of date before its time: a reminder, or what
// waits for its lead. A reminder of the time that still counts is so only for a sink that is told of the newer change.
func (o *oracle) overtaken(r routePlan, c said, until time.Duration) bool {
	due := c.notBefore - r.lead
	for _, s := range o.news {
		if s.stored > until || s.event != c.event || s.to != "" || s.seq <= c.seq || !azures(s.change) || s.outdated {
			continue
		}
		switch {
		case c.change == "reminder":
			told := len(r.changes) == 0 || slices.Contains(r.changes, s.change)
			if told || !ahead(s.change) || s.notBefore != c.notBefore {
				return true
			}
		case r.lead == 0 || !ahead(c.change):
			return false
		case s.stored <= due+time.Second, ahead(s.change) && s.notBefore-r.lead > s.stored:
			return true
		case ahead(s.change): // it moves with the event
			due = max(due, s.notBefore-r.lead)
		}
	}
	return false
}

// maxRepeated is how many deliveries a relay may be ahead of its records.
const maxRepeated = 32

// once: a sink takes a delivery again only where its answer was lost, or its relay broke down while it was in flight,
// and of one event at most one such attempt is repeated for each, in all not more than a relay may be ahead of its records.
func (o *oracle) once(r routePlan) {
	inAll := map[breakage]int{}
	for event, list := range o.taken[r.name] {
		last := map[string]given{}
		repeated := map[breakage]map[*attempt]bool{}
		for _, t := range list {
			was, again := last[t.id+t.instead]
			last[t.id+t.instead] = t
			if !again || !was.settled {
				continue
			}
			excused := false
			for _, b := range o.breaks {
				if (b.machine == nil || b.machine == was.machine) && b.from <= was.end+time.Second && was.start <= b.to {
					excused = true
					if repeated[b] == nil {
						repeated[b] = map[*attempt]bool{}
					}
					repeated[b][was.attempt] = true
				}
			}
			if !excused {
				o.add("told once", "%s took %s twice, from %s at %v and from %s at %v", r.name, t.id, was.machine.name,
					short(was.end), t.machine.name, short(t.start))
			}
		}
		for b, attempts := range repeated {
			inAll[b] += len(attempts)
			if len(attempts) > 1 && event != "" {
				o.add("told once", "%s took %d deliveries of %s again, after one breakage at %v", r.name, len(attempts), event,
					short(b.from))
			}
		}
	}
	for b, n := range inAll {
		if n > maxRepeated+max(1, r.parallel) { // those in flight
			o.add("told once", "%s took %d deliveries again, after one breakage at %v", r.name, n, short(b.from))
		}
	}
}

// inOrder: of one event, a sink hears the changes in the order of the stream. With a lead, a change may come after what came
// of the approval since.
func (o *oracle) inOrder(r routePlan, owed []said) {
	place := map[string]int{}
	for i, s := range owed {
		if s.to == "" {
			place[s.id] = i
		}
	}
	for event, list := range o.taken[r.name] {
		if event == "" {
			continue
		}
		list = slices.DeleteFunc(slices.Clone(list), func(t given) bool {
			return t.instead != "" || r.lead > 0 && t.change == "approved"
		})
		slices.SortStableFunc(list, func(a, b given) int { return cmp.Compare(a.end, b.end) })
		last, seen := given{}, map[string]bool{}
		for _, t := range list {
			if seen[t.id] {
				continue
			}
			seen[t.id] = true
			if last.attempt != nil && place[t.id] < place[last.id] {
				o.add("in order", "%s was told %s after %s, at %v", r.name, t.id, last.id, short(t.end))
			}
			last = t
		}
	}
}

// late: latest never tells a change when a newer one waits; drop tells neither that nor a scheduled whose time has
// passed.
func (o *oracle) late(r routePlan, owed []said) {
	if r.late == delivery.LateSend {
		return
	}
	for i, c := range owed {
		if !azures(c.change) || c.to != "" {
			continue
		}
		if i := slices.IndexFunc(o.tried[r.name][c.event], func(t given) bool {
			return t.id == c.id && t.instead == ""
		}); c.outdated && i >= 0 {
			o.add("late", "%s was told %s, which is outdated", r.name, c.id)
		}
		for _, t := range o.tried[r.name][c.event] {
			if t.id != c.id || t.instead != "" || t.progress != "" || o.catchingUp(t) ||
				o.broken(nil, t.start-10*time.Second, t.start) {
				continue
			}
			if r.late == delivery.LateDrop && c.change == "scheduled" && !c.begun && t.start > c.notBefore+time.Second {
				o.add("late", "%s was told %s at %v, after its time", r.name, t.id, short(t.start))
			}
			for _, newer := range owed[i+1:] {
				waits := r.lead > 0 && ahead(newer.change) && newer.notBefore-r.lead > t.start
				before := slices.ContainsFunc(o.tried[r.name][c.event], func(x given) bool {
					return x.id == newer.id && x.start < t.start
				})
				if newer.event == c.event && newer.to == "" && azures(newer.change) && !newer.outdated &&
					newer.stored+time.Second < t.start && !waits && !before && o.letter(r.name, newer) < 0 && !o.full(r.name, t.start) &&
					!o.backlog(r, owed, t.start) {
					o.add("late", "%s was told %s at %v though %s waited", r.name, t.id, short(t.start), newer.id)
				}
			}
		}
	}
}

// over: nothing is begun about an event that is known to be over, but what says so.
func (o *oracle) over(r routePlan, owed []said) {
	for _, c := range owed {
		end, over := o.endOf(r, c)
		for _, t := range o.tried[r.name][c.event] {
			if over && t.id == c.id && t.instead == "" && end.stored+time.Second < t.start &&
				!o.broken(nil, t.start-10*time.Second, t.start) && !o.full(r.name, t.start) && !o.backlog(r, owed, t.start) &&
				!o.catchingUp(t) {
				o.add("nothing is begun when it is over", "%s was told %s at %v, which was over at %v", r.name, t.id,
					short(t.start), short(end.stored))
			}
		}
	}
}

// catchingUp reports whether something urgent was told just after a relay came or went: another one may have told it before
// it had read what comes after it.
func (o *oracle) catchingUp(t given) bool {
	return (t.begun || t.notBefore-t.start < 15*time.Minute) && slices.ContainsFunc(o.changes, func(at time.Duration) bool {
		return at <= t.start && at >= t.start-20*time.Second
	})
}

// endOf returns the end of a change's event, if a route is told nothing of the change from then on: it is a reminder and the
// route isn't told everything, or the route acts, or it isn't told of the end. A reminder that comes after the end has that
// one.
func (o *oracle) endOf(r routePlan, c said) (end said, over bool) {
	if c.event == "" || c.change == "vanished" || c.to != "" || r.late == delivery.LateSend {
		return said{}, false
	}
	if azures(c.change) && r.late == delivery.LateLatest && (len(r.changes) == 0 || slices.Contains(r.changes, "vanished")) {
		return said{}, false
	}
	for _, s := range o.news {
		switch {
		case s.event != c.event || s.to != "" || !azures(s.change) || s.outdated:
		case s.change == "vanished" && (s.seq > c.seq || !azures(c.change)):
			end, over = s, true
			if s.seq > c.seq {
				return end, true
			}
		case s.seq < c.seq: // it came back
			over = false
		}
	}
	return end, over
}

// full reports whether so much waited for a sink in trouble that the stream may not have been read on.
func (o *oracle) full(sink string, at time.Duration) bool {
	return o.bound > 0 && o.troubled(sink, at-20*time.Minute, at)
}

// backlog reports whether so much waited just before, as for its time or for a relay, that the stream may not have been
// read on.
func (o *oracle) backlog(r routePlan, owed []said, at time.Duration) bool {
	waiting := 0
	for _, c := range owed {
		sent := slices.ContainsFunc(o.tried[r.name][c.event], func(t given) bool { return t.id == c.id && t.start < at-time.Second })
		if c.stored < at && !sent {
			waiting++
		}
	}
	return o.bound > 0 && waiting >= o.bound
}

// fallbacks: what a route can't tell in time, or gives up, its fallback is told.
func (o *oracle) fallbacks(r routePlan, owed []said) {
	for _, list := range o.tried[r.name] {
		for _, t := range list {
			if t.instead == "" {
				continue
			}
			if i := slices.IndexFunc(o.routes, func(x routePlan) bool { return x.name == t.instead }); o.routes[i].fallback != r.name {
				o.add("fallback", "%s was told %s instead of %s, whose fallback it is not", r.name, t.id, t.instead)
			}
		}
	}
	if r.fallback == "" {
		return
	}
	for _, e := range o.letters {
		if e.Sink == r.name && e.Reason != delivery.ReasonLate && e.Reason != delivery.ReasonOverflow && e.Group != "" && !o.handedOver(r, e.ID) {
			o.add("fallback", "%s gave %s up (%s), and %s was not told", r.name, e.ID, e.Reason, r.fallback)
		}
	}
	for _, c := range owed {
		limit := c.stored + r.after + 10*time.Second
		if c.to != "" || c.event == "" || r.lead > 0 || r.late != delivery.LateSend || limit > o.length ||
			!o.calm(c.stored, limit) || o.full(r.name, c.stored) {
			continue
		}
		told := slices.ContainsFunc(o.taken[r.name][c.event], func(t given) bool { return t.id == c.id && t.end <= limit })
		i := o.letter(r.name, c)
		overflowed := i >= 0 && o.letters[i].Reason == delivery.ReasonOverflow
		if !told && !overflowed && !o.handedOver(r, c.id) && !o.overtaken(r, c, ever) {
			o.add("fallback", "%s could not tell %s by %v, and %s was not told", r.name, c.id, short(limit), r.fallback)
		}
	}
}

// handedOver reports whether a route's fallback was handed a CloudEvent. For which sink does not matter: one message of it is
// enough.
func (o *oracle) handedOver(r routePlan, id string) bool {
	return r.fallback != "" &&
		slices.ContainsFunc(o.stream, func(s said) bool { return s.to == r.fallback && s.instead != "" && s.id == id })
}

// displaced reports whether the dead letter of a message may have given way to that of another: a set has 250.
func (o *oracle) displaced(s said) bool {
	set, n := strings.Split(s.subject, ".")[2:5], 0
	for _, other := range o.stream {
		if (other.junk || other.forged) && slices.Equal(strings.Split(other.subject, ".")[2:5], set) {
			n++
		}
	}
	return n > 250
}

// deadLetters: each has its reason, what is no CloudEvent is one, and what is one is told no more.
func (o *oracle) deadLetters() {
	for _, s := range o.stream {
		n := 0
		for _, e := range o.letters {
			if e.Sink == "-" && e.Seq == s.seq {
				n++
			}
		}
		if refused := s.junk || s.forged; refused && n != 1 && !o.displaced(s) || !refused && n != 0 {
			o.add("dead letters", "message %d (no CloudEvent: %v, forged: %v) is %d", s.seq, s.junk, s.forged, n)
		}
	}
	for _, e := range o.letters {
		if e.Sink == "-" {
			continue
		}
		i := slices.IndexFunc(o.routes, func(r routePlan) bool { return r.name == e.Sink })
		if i < 0 {
			o.add("dead letters", "of a sink %s", e.Sink)
			continue
		}
		r, at, ok := o.routes[i], e.DeadSince.Sub(bubbleEpoch), false
		list := o.tried[r.name][e.Group]
		var ce event.Event
		if json.Unmarshal(e.CloudEvent, &ce) == nil && e.Group != "" {
			list = o.tried[r.name][eventOf(ce)]
		}
		switch e.Reason {
		case delivery.ReasonRejected:
			ok = slices.ContainsFunc(list, func(t given) bool { return t.how == "rejects" }) // maybe of a newer one
		case delivery.ReasonExpired:
			ok = r.maxAge > 0 && at-e.PendingSince.Sub(bubbleEpoch) > r.maxAge && slices.ContainsFunc(list, func(t given) bool { return t.id == e.ID })
		case delivery.ReasonLate:
			ok = r.late == delivery.LateDrop
		case delivery.ReasonOverflow:
			ok = o.bound > 0
		}
		if !ok {
			o.add("dead letters", "%s of %s is one, reason %s", e.ID, e.Sink, e.Reason)
		}
		for _, t := range list {
			same := slices.ContainsFunc(o.stream, func(s said) bool { return s.seq == e.Seq && s.instead == t.instead })
			unsaved := slices.ContainsFunc(o.breaks, func(b breakage) bool { // the letter was stored, and its record was not
				return b.kill && b.from >= at && b.from < at+time.Second && t.start > b.from
			})
			if t.id == e.ID && t.start > at && same && !unsaved {
				o.add("dead letters", "%s was told %s at %v, which it gave up at %v", e.Sink, e.ID, short(t.start), short(at))
			}
		}
	}
}
