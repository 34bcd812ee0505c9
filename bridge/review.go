package bridge

import (
	"sync"
	"time"

	"forewarn/bridge/cloudevent"
)

// reviews holds what this run knows about the approval of events, beside what is stored with them. It is safe for
// concurrent use. The zero value knows nothing.
type reviews struct {
	mu   sync.Mutex
	byID map[string]*review
}

// A review is what is known about the approval of one event.
type review struct {
	why      string            // it is not approved, for the status
	notYet   bool              // why may pass
	ruled    uint64            // the change of which the rules have said what can approve it: possible; 0 for none
	possible []cloudevent.Rule // see verdicts.possible
	doubt    string            // what in the newest document speaks against it

	// When each acceptance of one change of the event was first seen. The times come from this run, so they have the
	// monotonic clock, which does not jump. Times in the outbox don't; so after a restart a wait is counted anew.
	change uint64
	since  map[string]time.Time // by route; "" for the change itself

	onCourse bool      // a rule is on course to approve the change
	turned   time.Time // when that became so, or no longer so
}

// with calls f with the review of an event, which f may change.
func (r *reviews) with(id string, f func(*review)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.byID[id]
	if v == nil {
		v = &review{}
		if r.byID == nil {
			r.byID = map[string]*review{}
		}
		r.byID[id] = v
	}
	f(v)
}

// get returns the review of an event; the zero review if nothing is known.
func (r *reviews) get(id string) review {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.byID[id]
	if v == nil {
		return review{}
	}
	return *v
}

// forget drops the reviews of events that are over, and without rules what those said, and since when.
func (r *reviews) forget(isOpen func(id string) bool, rules bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, v := range r.byID {
		if !isOpen(id) {
			delete(r.byID, id)
		}
		if !rules {
			v.why, v.notYet, v.ruled, v.possible, v.turned = "", false, 0, nil, time.Time{}
		}
	}
}

// setRuling records why an event is not approved, and whether that may pass. It reports whether the reason is new.
func (r *reviews) setRuling(id, why string, notYet bool) (news bool) {
	r.with(id, func(v *review) {
		news = v.why != why
		v.why, v.notYet = why, notYet
	})
	return news
}

// setPossible records which rules still can approve a change of an event in time, for what is told of it next.
func (r *reviews) setPossible(id string, change uint64, rules []cloudevent.Rule) {
	r.with(id, func(v *review) { v.ruled, v.possible = change, rules })
}

// rules returns the rules that will approve the event, by what they say now or, until they are asked, by what was told.
func (v review) rules(op *openEvent) []cloudevent.Rule {
	switch {
	case op.Approval.settles(op.latest.Seq): // perhaps since they were asked
		return nil
	case v.ruled == op.latest.Seq:
		return v.possible
	case op.NotYet, op.Unsaid:
		return nil
	}
	return op.Promised
}

// setDoubt records what speaks against an event; "" for nothing.
func (r *reviews) setDoubt(id, why string) {
	if r.get(id).doubt != why {
		r.with(id, func(v *review) { v.doubt = why })
	}
}

// firstSeen returns when the route's acceptance of an event's change was first seen, and records it if that is now.
func (r *reviews) firstSeen(id string, change uint64, route string, now time.Time) (at time.Time) {
	r.with(id, func(v *review) { at = v.firstSeen(change, route, now) })
	return at
}

func (v *review) firstSeen(change uint64, route string, now time.Time) time.Time {
	if v.change != change || v.since == nil {
		v.change, v.since, v.turned = change, map[string]time.Time{}, time.Time{}
	}
	if v.since[route].IsZero() {
		v.since[route] = now
	}
	return v.since[route]
}

// forgetAcceptance forgets when the route's acceptance was first seen: a replay may have made it pending again.
func (r *reviews) forgetAcceptance(id string, change uint64, route string) {
	r.with(id, func(v *review) {
		if v.change == change {
			delete(v.since, route)
		}
	})
}

// steadyFor records whether a rule of this VM is on course to approve the event's change, and returns for how long the
// answer has been the same.
func (r *reviews) steadyFor(id string, change uint64, onCourse bool, now time.Time) (d time.Duration) {
	r.with(id, func(v *review) {
		v.firstSeen(change, "", now)
		if v.onCourse != onCourse || v.turned.IsZero() {
			v.onCourse, v.turned = onCourse, now
		}
		d = now.Sub(v.turned)
	})
	return d
}
