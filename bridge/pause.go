package bridge

import (
	"sync"
	"time"
)

// shortestPause is the shortest standstill that counts. On a busy machine, ticks are delayed by less.
const shortestPause = 500 * time.Millisecond

// A pauseDetector notices that the machine stood still, as in a freeze: nothing in the program ran, so its tick is
// delayed. It does not depend on the endpoint or the disk, whose slowness is no pause.
type pauseDetector struct {
	every time.Duration

	mu   sync.Mutex // taken before Bridge.deciding
	last time.Time
}

// standstill records a tick at now, and returns how long nothing ran before it; 0 below shortestPause. The caller holds mu.
func (p *pauseDetector) standstill(now time.Time) time.Duration {
	d := elapsed(p.last, now) - p.every
	p.last = now
	if d < shortestPause {
		return 0
	}
	return d
}

// notePause records with the open events a pause that just ended, if there was one. The poll loop calls it too, so that
// the first answer after a freeze cannot end an event before its pause is recorded.
func (b *Bridge) notePause() {
	b.pauses.mu.Lock()
	defer b.pauses.mu.Unlock()
	if d := b.pauses.standstill(time.Now()); d > 0 {
		b.notePaused(d)
	}
}

// notePaused records a pause with the open events.
func (b *Bridge) notePaused(d time.Duration) {
	b.update(func() (c commit) {
		for _, op := range b.events.all() {
			if d > op.LongestPause {
				c.change(op).LongestPause = d
			}
		}
		return c
	})
}
