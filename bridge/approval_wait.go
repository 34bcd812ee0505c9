package bridge

import (
	"time"

	"forewarn/bridge/outbox"
)

// A wait holds when each acceptance of one change of an event was first seen. Its times come from this run, so they
// have the monotonic clock, which does not jump. Times in the outbox don't.
type wait struct {
	seq   uint64               // of the change
	since map[string]time.Time // by route; "" for the change itself
	stuck time.Time            // see stuckFor
}

// waited holds how long each acceptance has been known. It is stored for the next run, which continues to count from
// there. It is written with the event's next commit, within a minute, or at the end of the run.
type waited struct {
	Seq uint64                   `json:"seq"`
	For map[string]time.Duration `json:"for"`
}

// firstSeen returns when the route's acceptance of the event's latest change was first seen, by the monotonic clock,
// and records it if that is now. Time before a restart counts; time while the program was down does not.
func (b *Bridge) firstSeen(id string, op openEvent, route string, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waits[id]
	if w.seq != op.Latest {
		w = wait{seq: op.Latest, since: map[string]time.Time{}}
		if op.Waited != nil && op.Waited.Seq == op.Latest {
			for route, d := range op.Waited.For {
				w.since[route] = now.Add(-d)
			}
		}
		b.waits[id] = w
	}
	if w.since[route].IsZero() {
		w.since[route] = now
	}
	return w.since[route]
}

// stuckFor returns for how long no rule has been on course to approve the event's latest change, and none has.
func (b *Bridge) stuckFor(id string, op openEvent, onCourse bool, now time.Time) time.Duration {
	b.firstSeen(id, op, "", now)
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waits[id]
	if onCourse || w.stuck.IsZero() {
		w.stuck = now
	}
	b.waits[id] = w
	return now.Sub(w.stuck)
}

// keepWaited stores with the event how long the rules have waited. It writes to the outbox once a minute.
func (b *Bridge) keepWaited(id string, now time.Time) {
	b.mu.Lock()
	w, counts := b.waits[id]
	kept := &waited{w.seq, make(map[string]time.Duration, len(w.since))}
	for route, since := range w.since {
		kept.For[route] = now.Sub(since)
	}
	b.mu.Unlock()
	if !counts {
		return
	}
	b.deciding.Lock()
	defer b.deciding.Unlock()
	group := b.events.noteOne(id, func(op *openEvent) bool {
		op.Waited = kept
		return now.Sub(op.submitted) >= touchEvery
	})
	if group != nil {
		b.Outbox.Submit(outbox.Batch{Now: now, Groups: map[string]*outbox.Group{id: group}})
	}
}
