package bridge

import (
	"time"

	"forewarn/bridge/outbox"
)

// A wait says since when each acceptance of one change of an event is known. Its times were read in this run, so they
// hold the monotonic clock, which nobody can step. Those on record do not.
type wait struct {
	seq   uint64               // of the change
	since map[string]time.Time // by the route that accepted it; "" is the change itself
}

// waited is for how long each acceptance was known. It is kept for the next run, which counts on from there, and
// reaches the disk with the event's next commit, within a minute, or at the end of the run.
type waited struct {
	Seq uint64                   `json:"seq"`
	For map[string]time.Duration `json:"for"`
}

// since is when the route's acceptance of the event's newest change was first seen, by the monotonic clock. What was
// counted before a restart counts, the time while nothing ran does not.
func (b *Bridge) since(id string, op openEvent, route string, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waits[id]
	if w.since == nil || w.seq != op.Latest {
		w = wait{op.Latest, map[string]time.Time{}}
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

// keepWaited remembers with the event how long the rules have waited about it. That reaches the outbox once a minute.
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
		return now.Sub(op.kept) >= touchEvery
	})
	if group != nil {
		b.Outbox.Submit(outbox.Batch{Now: now, Groups: map[string]*outbox.Group{id: group}})
	}
}
