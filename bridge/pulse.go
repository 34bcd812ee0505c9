package bridge

import (
	"context"
	"sync"
	"time"

	"forewarn/bridge/outbox"
)

// shortestPause is what a standstill has to last at least: a busy machine is late by less than that.
const shortestPause = 500 * time.Millisecond

// A pulse is how the bridge notices that its machine stood still, as it does during a freeze: nothing in the program
// ran, so the pulse comes late. It does not depend on the endpoint or the disk, whose slowness is no pause.
type pulse struct {
	every time.Duration

	mu   sync.Mutex // taken before Bridge.deciding
	last time.Time
}

// stoodStill takes the beat at the time now, and returns by how much it came late, 0 for less than half a second. mu is
// held.
func (p *pulse) stoodStill(now time.Time) time.Duration {
	d := elapsed(p.last, now) - p.every
	p.last = now
	if d < shortestPause {
		return 0
	}
	return d
}

// feelPulse notes pauses until ctx is done.
func (b *Bridge) feelPulse(ctx context.Context) {
	tick := time.NewTicker(b.pulse.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.notePause()
		case <-ctx.Done():
			return
		}
	}
}

// notePause remembers with the open events that the program stood still just now, if it did. The poll loop calls it
// too, so that the first answer after a freeze cannot end an event before its pause is known.
func (b *Bridge) notePause() {
	b.pulse.mu.Lock()
	defer b.pulse.mu.Unlock()
	if d := b.pulse.stoodStill(time.Now()); d > 0 {
		b.notePaused(d)
	}
}

// notePaused remembers with the open events for how long the program stood still.
func (b *Bridge) notePaused(d time.Duration) {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	groups := b.events.note(func(op *openEvent) bool {
		longer := d > op.Pause
		op.Pause = max(op.Pause, d)
		return longer
	})
	if len(groups) > 0 {
		b.Outbox.Submit(outbox.Batch{Now: time.Now(), Groups: groups})
	}
}
