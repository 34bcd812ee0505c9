package relay_test

import (
	"cmp"
	"slices"
	"time"
)

// What relays owe each other, and each its destinations.

// handedBack: receipts, progress and the number of attempts come back with the next attempt, from another relay too; but
// what was given back while a relay broke down may be lost.
func (o *oracle) handedBack(r routePlan) {
	for event, list := range o.tried[r.name] {
		if event == "" {
			continue
		}
		receipt, unsure := "", false
		last, progress := map[string]given{}, map[string]string{}
		for i, t := range list {
			first := i == 0 || list[i-1].attempt != t.attempt // of several of one batch
			if first && i > 0 && o.broken(nil, list[i-1].start, t.start) {
				unsure = true
			}
			if !unsure && t.receipt != receipt {
				o.add("receipts", "%s was told %s at %v with the receipt %q, want %q", r.name, t.id, short(t.start), t.receipt,
					receipt)
			}
			key := t.id + t.instead
			was, again := last[key]
			lost := again && o.broken(nil, was.start, t.start)
			if again && !lost && t.progress != progress[key] {
				o.add("progress", "%s was told %s at %v with the progress %q, want %q", r.name, t.id, short(t.start),
					t.progress, progress[key])
			}
			if want := was.handed.attempt + 1; !lost && t.handed.attempt != want {
				o.add("attempts", "%s was told %s at %v as attempt %d, want %d", r.name, t.id, short(t.start), t.handed.attempt,
					want)
			}
			last[key], progress[key] = t, cmp.Or(t.newProgress, t.progress)
			if i+1 < len(list) && list[i+1].attempt == t.attempt {
				continue
			}
			if t.newReceipt != "" {
				receipt = t.newReceipt
			}
			unsure = unsure && t.newReceipt == "" || o.broken(nil, t.start, t.end)
		}
	}
}

// floors: a destination that asks to wait is left alone until then, by the same relay.
func (o *oracle) floors(r routePlan) {
	for _, a := range o.attempts {
		if a.sink != r.name || a.how != "asks to wait" || !a.ended {
			continue
		}
		for _, next := range o.attempts {
			anew := slices.ContainsFunc(o.changes, func(at time.Duration) bool { return at >= a.end-20*time.Second && at <= next.start })
			back := slices.ContainsFunc(o.attempts, func(x *attempt) bool {
				return x.sink == a.sink && x.settled && x.end >= a.end && x.end <= next.start
			})
			if next.sink == a.sink && next.machine == a.machine && next.start > a.end && next.start < a.end+retryAfter &&
				!anew && !back && !o.broken(nil, a.start-20*time.Second, next.start) {
				o.add("retry", "%s asked to wait at %v and was tried at %v", a.sink, short(a.end), short(next.start))
				return
			}
		}
	}
}

// alone: no two relays deliver to a sink at the same time.
func (o *oracle) alone(r routePlan) {
	var mine []*attempt
	for _, a := range o.attempts {
		if a.sink == r.name {
			mine = append(mine, a)
		}
	}
	for i, a := range mine {
		end := a.end
		if !a.ended {
			continue // it was killed, and another may be quicker than it would have been
		}
		for _, b := range mine[i+1:] {
			if b.machine != a.machine && b.start < end {
				o.add("one relay a sink", "%s was told by %s from %v to %v, and by %s at %v", r.name, a.machine.name,
					short(a.start), short(end), b.machine.name, short(b.start))
			}
		}
	}
}

// ready: a relay that can't reach what it needs doesn't say for long that it is ready.
func (o *oracle) ready() {
	for _, b := range o.breaks {
		for _, m := range o.machines {
			mended := slices.ContainsFunc(o.breaks, func(other breakage) bool { // the end of one fault ends all of a cable
				return other.machine == m && other != b && !other.kill && other.to > b.from && other.from < b.to
			})
			if b.kill || mended || b.machine != nil && b.machine != m {
				continue
			}
			for _, at := range m.ready {
				began := max(b.from, m.began)
				for _, other := range o.breaks {
					if other.machine == nil && other.to <= at {
						began = max(began, other.to) // the server is back, and nothing was asked of it yet
					}
				}
				if at > began+unnoticed && at < b.to && o.needed(m, b) {
					o.add("ready", "%s said that it is ready at %v, and could not reach what it needs from %v to %v", m.name, short(at),
						short(b.from), short(b.to))
					break
				}
			}
		}
	}
}

// unnoticed is how long a relay may not notice that nobody answers.
const unnoticed = 30 * time.Second

// needed reports whether a relay needed what it could not reach: records and messages only if no other relay had the sinks,
// and records only if something came about an event that is not in its memory.
func (o *oracle) needed(m *machine, b breakage) bool {
	if b.how != recordsLost && b.how != requestsLost {
		return true
	}
	known, came := map[string]bool{}, b.how == requestsLost
	for _, s := range o.stream {
		if azures(s.change) && !known[s.event] && s.stored > b.from && s.stored < b.from+unnoticed/2 {
			came = true
		}
		known[s.event] = true
	}
	return came && !slices.ContainsFunc(o.machines, func(x *machine) bool {
		return x != m && x.began < b.to && (!x.ended || x.over > b.from-20*time.Second)
	})
}

// handsOn: a relay that can't reach a destination leaves it to another one that is there, and has not failed there itself in
// the last five minutes.
func (o *oracle) handsOn(r routePlan) {
	const patience = 100 * time.Second
	for _, m := range o.machines {
		var first *attempt
		for _, a := range o.attempts {
			switch {
			case a.sink != r.name || a.machine != m:
			case a.how != cutOff:
				first = nil
			case first == nil:
				first = a
			case a.start > first.start+patience:
				if o.calm(first.start, a.start) && slices.ContainsFunc(o.machines, func(x *machine) bool {
					return x != m && x.began < first.start-20*time.Second && (!x.ended || x.over > a.start) &&
						!o.failed(x, r.name, first.start-5*time.Minute, a.start)
				}) {
					o.add("handed on", "%s could not reach %s from %v to %v, and kept it", m.name, r.name, short(first.start),
						short(a.start))
				}
				first = nil
			}
		}
	}
}

// failed reports whether an attempt of a machine failed that ended in a time.
func (o *oracle) failed(m *machine, sink string, from, to time.Duration) bool {
	return slices.ContainsFunc(o.attempts, func(a *attempt) bool {
		return a.machine == m && a.sink == sink && !a.settled && a.end >= from && a.end <= to
	})
}
