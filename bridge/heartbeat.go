package bridge

import (
	"log/slog"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A beat is the last heartbeat of a route, and the interval that it promised.
type beat struct {
	at    time.Time
	every time.Duration
}

// sendHeartbeats sends a heartbeat to each route that wants one, while the endpoint answers and the outbox is durable.
// A monitor that expects them notices when they stop. A new heartbeat replaces one that is still pending. When a reload
// changes their interval, one comes at once; when it ends them, a last one that promises no other.
func (b *Bridge) sendHeartbeats(now time.Time) {
	b.mu.Lock()
	well := now.Sub(b.imds.lastAnswer) < awayAbove
	var due []Route
	for _, r := range b.routes {
		every, last := r.Terms.Heartbeat, b.lastHeartbeat[r.Name]
		changed := every != last.every
		if changed && every == 0 || well && every != 0 && (changed || now.Sub(last.at) >= every) {
			due = append(due, r)
		}
	}
	b.mu.Unlock()
	if len(due) == 0 || b.outbox.Durable() != nil {
		return
	}
	b.update(func() commit { return b.heartbeats(due, false) })
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range due {
		b.lastHeartbeat[r.Name] = beat{now, r.Terms.Heartbeat}
	}
}

// sendLastHeartbeats tells each route that gets heartbeats that no more will come, so that a relay knows the stop for
// one that somebody wanted.
func (b *Bridge) sendLastHeartbeats() {
	b.mu.Lock()
	due := routesThat(func(r Route) bool { return b.lastHeartbeat[r.Name].every != 0 }, b.routes)
	b.mu.Unlock()
	if len(due) > 0 {
		wait := b.update(func() commit { return b.heartbeats(due, true) })
		_ = wait() // the outbox logs its errors
	}
}

// heartbeats returns the commit of a heartbeat for each of the routes. The outbox takes back those still pending.
func (b *Bridge) heartbeats(routes []Route, last bool) (c commit) {
	for _, r := range routes { // one CloudEvent per route, so that each is removed as soon as it is delivered
		data := map[string]any{"version": b.options.Version}
		if r.Terms.Heartbeat > 0 {
			data["interval"] = r.Terms.Heartbeat.Seconds()
		}
		if last {
			data["stopping"] = true
		}
		ce, err := cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, data, b.self(), b.stamps.next())
		if err != nil {
			c.log(slog.LevelError, "cannot create a heartbeat", "err", err)
			continue
		}
		c.add(ce, outbox.Addition{Message: delivery.Message{Transient: true}, To: []string{r.Name}})
	}
	return c
}
