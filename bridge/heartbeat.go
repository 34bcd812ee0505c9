package bridge

import (
	"slices"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// sendHeartbeats sends a heartbeat to each route that wants one, while the endpoint answers and the outbox is durable.
// A monitor that expects them notices when they stop. A new heartbeat replaces one that is still pending.
func (b *Bridge) sendHeartbeats(now time.Time) {
	b.mu.Lock()
	well := len(b.imds.reasons()) == 0 && now.Sub(b.imds.lastAnswer) < awayAbove
	var due []string
	for _, r := range b.routes {
		if every := r.Terms.Heartbeat; every > 0 && well && now.Sub(b.lastHeartbeat[r.Name]) >= every {
			due = append(due, r.Name)
		}
	}
	b.mu.Unlock()
	if len(due) == 0 || b.Outbox.Durable() != nil {
		return
	}
	var c commit
	for i, name := range due { // one CloudEvent per route, so that each is removed as soon as it is delivered
		ce, err := cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, map[string]any{"version": b.Version}, b.self(),
			now.Add(time.Duration(i)))
		if err != nil {
			b.Log.Error("cannot create a heartbeat", "err", err)
			return
		}
		c.add(ce, outbox.Addition{Message: delivery.Message{Transient: true}, To: []outbox.Recipient{{Route: name}}})
	}
	for _, d := range b.Outbox.Pending("") {
		if d.Transient && slices.Contains(due, d.Route) {
			c.Remove = append(c.Remove, outbox.Ref{Route: d.Route, Seq: d.Seq()})
		}
	}
	b.commit(c, now)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range due {
		b.lastHeartbeat[name] = now
	}
}
