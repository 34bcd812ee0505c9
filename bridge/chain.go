package bridge

import (
	"context"
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

// endChained ends the workers of chained logs before the others, so that the heads reported at a stop cover all that the
// logs get. That takes milliseconds; a log that hangs is waited for a second.
func (b *Bridge) endChained() {
	b.mu.Lock()
	var ending []*routeWorker
	for _, r := range b.routes {
		log, chained := r.Sink.(delivery.Chained)
		if chained && log.Head() != "" && b.workers[r.Name] != nil {
			ending = append(ending, b.workers[r.Name])
		}
	}
	b.mu.Unlock()
	patience, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, w := range ending {
		w.stop()
		select {
		case <-w.done:
		case <-patience.Done():
		}
	}
}

// A reportedHead is the last report of a chained log.
type reportedHead struct {
	hash string
	at   time.Time
}
