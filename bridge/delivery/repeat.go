package delivery

import (
	"context"
	"time"
)

// Told is an event that is open, and of which a route may have been told.
type Told struct {
	Group string
	// Read returns what was said last of the event: what came of its approval since the latest change, if the route has
	// accepted that, or else that change. ok is false if the event is over by now, the route hasn't accepted that change
	// either, or it can't be read. No change of the event is delivered while Read runs.
	Read func() (d Delivery, ok bool)
}

// repeats says what is open once more, for a destination that forgets when it restarts. A repeat is no delivery: it is
// made once whatever comes of it, and nothing but the log at level debug knows of it. It goes when nothing else can, and
// while it is under way nothing else does: the end of an event must not come before a repeat of its beginning.
type repeats struct {
	every  time.Duration // 0 for never
	told   func() []Told
	next   time.Time // when to repeat what is open then
	left   []Told    // what is to be repeated now
	active bool      // a repeat is under way
}

// drop drops what is left about a group, because there is something newer.
func (r *repeats) drop(group string) {
	for n, t := range r.left {
		if t.Group == group {
			r.left = append(r.left[:n], r.left[n+1:]...)
			return
		}
	}
}

// fill takes what is to be repeated, whenever that is due. Nothing of it is left while the destination fails.
func (r *repeats) fill(now time.Time, works bool) {
	if r.every <= 0 || r.told == nil {
		return
	}
	due := !r.next.IsZero() && !r.next.After(now)
	if due || r.next.IsZero() {
		r.next = now.Add(r.every)
	}
	switch {
	case !works:
		r.left = nil
	case due:
		r.left = r.told()
	}
}

// repeat begins the next repeat, if the destination works and nothing waits for it.
func (w *Worker) repeat(ctx context.Context, now time.Time, done chan<- result) {
	r := &w.repeats
	r.fill(now, w.health == up && w.retrying == 0 && !w.stopping && !w.leaving && !w.retryAfterEnd.After(now))
	if len(r.left) == 0 || w.working() || w.ready.top() != nil {
		return
	}
	t := r.left[0]
	r.left, r.active = r.left[1:], true
	go func() {
		r := result{repeated: true, attempt: attempt{began: now}}
		d, ok := t.Read()
		if ok {
			d.Attempt, d.Repeated = 1, true
			w.call(ctx, &r, []Delivery{d})
		}
		done <- r
	}()
}
