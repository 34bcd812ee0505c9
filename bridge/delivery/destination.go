package delivery

import "time"

// The rules of the circuit breaker.
const (
	failingAfter = 8                // events that failed, and nothing accepted
	blockedAfter = 3                // blocked answers …
	blockedOver  = 30 * time.Second // … over at least this
	probeEvery   = time.Minute      // while blocked
)

// A health is what the answers of a destination since its last acceptance tell about it.
type health int

const (
	up health = iota
	// Deliveries about so many events failed that the destination is to blame and not an event. Without this each event
	// would keep its own times, and a destination that comes back would get thousands of attempts a second.
	failing
	// The destination refuses until somebody acts.
	blocked
)

// A destination is the circuit breaker of a route. While the destination isn't up it is only probed: it gets one attempt
// at a time, with the lanes in turn, at the time probe or when something urgent can't wait for that. The first acceptance
// makes it up.
type destination struct {
	health   health
	suspects map[string]*lane // those that failed since the last acceptance, by key
	refusals int              // blocked answers since then
	refused  time.Time        // the first of them

	probe   time.Time // the next probe
	probes  int       // those that failed in a row
	hurry   time.Time // when it is tried at the latest, because of what is urgent; zero for never
	hurried time.Time // when the last attempt ahead of a probe began

	retryAfterEnd time.Time // the latest end of a Retry-After; it may have come since an accepted attempt began
}

// accepted notes an acceptance, and returns the lanes that failed before it.
func (d *destination) accepted() (suspects map[string]*lane) {
	suspects = d.suspects
	*d = destination{suspects: map[string]*lane{}, retryAfterEnd: d.retryAfterEnd}
	return suspects
}

// judge decides after a failed attempt what the destination is.
func (d *destination) judge(refused bool, now time.Time) {
	if refused {
		d.refusals++
		if d.refusals == 1 {
			d.refused = now
		}
		if d.health != blocked && d.refusals >= blockedAfter && now.Sub(d.refused) >= blockedOver {
			d.health, d.probe = blocked, now.Add(probeEvery)
		}
	}
	if d.health == up && len(d.suspects) >= failingAfter {
		d.health = failing
	}
}

// begin notes that an attempt begins.
func (d *destination) begin(now time.Time) {
	switch {
	case d.probe.After(now):
		d.hurried = now
	case d.health == blocked:
		d.probe = now.Add(probeEvery)
	}
}

// nextProbe returns when the destination, which isn't up, is tried next.
func (d *destination) nextProbe() time.Time {
	if d.hurry.IsZero() {
		return d.probe
	}
	return earlier(d.probe, later(d.hurry, d.hurried.Add(urgentEvery)))
}
