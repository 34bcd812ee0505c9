package bridge

import "time"

// A wait holds when each acceptance of one change of an event was first seen. Its times come from this run, so they
// have the monotonic clock, which does not jump. Times in the outbox don't; so after a restart a wait is counted anew.
type wait struct {
	seq   uint64               // of the change
	since map[string]time.Time // by route; "" for the change itself
	stuck time.Time            // see stuckFor
}

// firstSeen returns when the route's acceptance of an event's change was first seen in this run, by the monotonic clock,
// and records it if that is now.
func (b *Bridge) firstSeen(id string, change uint64, route string, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waits[id]
	if w.seq != change {
		w = wait{seq: change, since: map[string]time.Time{}}
		b.waits[id] = w
	}
	if w.since[route].IsZero() {
		w.since[route] = now
	}
	return w.since[route]
}

// stuckFor returns for how long no rule has been on course to approve the event's change, and none has.
func (b *Bridge) stuckFor(id string, change uint64, onCourse bool, now time.Time) time.Duration {
	b.firstSeen(id, change, "", now)
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waits[id]
	if onCourse || w.stuck.IsZero() {
		w.stuck = now
	}
	b.waits[id] = w
	return now.Sub(w.stuck)
}
