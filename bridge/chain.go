package bridge

import (
	"slices"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
)

// headEvery is how often the heads of audit logs are reported.
const headEvery = 24 * time.Hour

// reportHeads reports the head of each chained log that has grown since its last report, if that is old enough. What is
// cut off from the end of a log then shows elsewhere.
func (b *Bridge) reportHeads(now time.Time, every time.Duration) {
	b.mu.Lock()
	heads := make(map[string]string)
	for _, r := range b.routes {
		log, ok := r.Sink.(delivery.Chained)
		if !ok {
			continue
		}
		last := b.lastHead[r.Name]
		if head := log.Head(); head != "" && head != last.hash && now.Sub(last.at) >= every {
			heads[r.Name], b.lastHead[r.Name] = head, reportedHead{head, now}
		}
	}
	b.mu.Unlock()
	for sink, head := range heads {
		b.reportBridge(cloudevent.ChainHead, map[string]any{"sink": sink, "head": head}, sink)
	}
}

// awaitChains waits until the chained logs have got what is pending for them, so that the heads reported at a stop cover
// it. That takes milliseconds; a log that can't be written is waited for a second.
func (b *Bridge) awaitChains() {
	b.mu.Lock()
	routes := b.routes
	b.mu.Unlock()
	behind := func() bool {
		stats, muted := b.outbox.Stats(), map[string]int{}
		b.mu.Lock()
		for name, w := range b.workers {
			muted[name] = w.State().Muted
		}
		b.mu.Unlock()
		return slices.ContainsFunc(routes, func(r Route) bool {
			log, chained := r.Sink.(delivery.Chained)
			return chained && log.Head() != "" && stats[r.Name].Pending > muted[r.Name]
		})
	}
	for began := time.Now(); behind() && time.Since(began) < time.Second; {
		time.Sleep(10 * time.Millisecond)
	}
}

// A reportedHead is the last report of a chained log.
type reportedHead struct {
	hash string
	at   time.Time
}
