package bridge

import (
	"context"
	"time"
)

// When trouble is told.
const (
	silentFor     = 5 * time.Minute  // a route that accepted nothing for so long counts as blocked
	noAnswerFor   = 5 * time.Minute  // without a valid answer the endpoint counts as unavailable
	noFirstFor    = 10 * time.Minute // before the very first one
	deadNewsEvery = time.Minute      // dead letters of one route are told at most so often
	maintainEvery = 24 * time.Hour
	listedDead    = 20 // dead letters named in one CloudEvent
)

// deadNews are dead letters of a route that were not told yet.
type deadNews struct {
	told    time.Time
	entries []Entry
}

// tellBridge commits a CloudEvent about the bridge to the routes that hear such, except the one concerned.
func (b *Bridge) tellBridge(typ string, data map[string]any, except string) {
	b.mu.Lock()
	var to []string
	for _, r := range b.routes {
		if r.Name != except && r.Terms.Bridge.hears(typ) {
			to = append(to, r.Name)
		}
	}
	now := time.Now()
	if !now.After(b.stamp) {
		now = b.stamp.Add(1) // no two have the same time
	}
	b.stamp = now
	b.mu.Unlock()
	ce, err := WrapBridge(typ, data, b.self(), now)
	if err != nil {
		b.Log.Error("a CloudEvent about the bridge is not valid", "type", typ, "err", err)
		return
	}
	_ = b.Outbox.Commit(Commit{Owed: []Owed{{CloudEvent: ce, To: to}}}, now) // the store says when it cannot write
}

// blocked is told by a worker that its route is blocked (why), or accepts again (nil).
func (b *Bridge) blocked(route string, why error) {
	st := b.Outbox.stats()[route]
	b.mu.Lock()
	told := b.told[route]
	c := b.workers[route]
	// Only what is owed about Azure's events counts: an event about the bridge never causes another.
	news := why != nil && !told && !st.azure.IsZero() || why == nil && told
	if news {
		b.told[route] = why != nil
	}
	b.mu.Unlock()
	if !news || c == nil {
		return
	}
	data := map[string]any{"sink": route, "kind": c.route.Kind, "pending": st.pending}
	if why == nil {
		b.tellBridge(SinkRecovered, data, route)
		return
	}
	data["since"], data["error"] = st.oldest, why.Error()
	b.tellBridge(SinkBlocked, data, route)
}

// deadLettered is told of each dead letter by the outbox.
func (b *Bridge) deadLettered(e Entry, _ any) {
	b.Log.Error("a delivery was given up; it is kept as a dead letter", "key", e.Key, "sink", e.Sink, "id", e.ID, "reason", e.Reason, "err", e.Error)
	if e.Event == "" {
		return // about the bridge: never causes another
	}
	b.mu.Lock()
	n := b.dead[e.Sink]
	if n == nil {
		n = &deadNews{}
		b.dead[e.Sink] = n
	}
	n.entries = append(n.entries, e)
	b.mu.Unlock()
}

// tellDead tells of dead letters: the first at once, more of the same route together, once a minute.
func (b *Bridge) tellDead(now time.Time) {
	b.mu.Lock()
	var due []map[string]any
	for sink, n := range b.dead {
		if len(n.entries) == 0 {
			if now.Sub(n.told) > deadNewsEvery {
				delete(b.dead, sink)
			}
			continue
		}
		if now.Sub(n.told) < deadNewsEvery {
			continue
		}
		var list []map[string]any
		for _, e := range n.entries[:min(len(n.entries), listedDead)] {
			list = append(list, map[string]any{"key": e.Key, "id": e.ID, "type": e.Type, "event": e.Event,
				"reason": e.Reason, "error": e.Error, "attempts": e.Attempts})
		}
		due = append(due, map[string]any{"sink": sink, "count": len(n.entries), "deliveries": list})
		n.told, n.entries = now, nil
	}
	b.mu.Unlock()
	for _, data := range due {
		b.tellBridge(DeliveryDeadLettered, data, data["sink"].(string))
	}
}

// housekeep looks after what only time brings about.
func (b *Bridge) housekeep(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	tidied := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		b.decideHeld(now)
		b.tellDead(now)
		b.tellSilent(now)
		b.tellUnavailable(now)
		if b.Outbox.Durable() != nil {
			b.Outbox.forgetSettled()
		}
		if now.Sub(tidied) >= maintainEvery {
			tidied = now
			if err := b.Outbox.maintain(now); err != nil {
				b.Log.Warn("the outbox could not be tidied", "err", err)
			}
		}
	}
}

// tellSilent tells of routes that accept nothing though something is owed to them.
func (b *Bridge) tellSilent(now time.Time) {
	for route, st := range b.Outbox.stats() {
		b.mu.Lock()
		c := b.workers[route]
		b.mu.Unlock()
		if c == nil || st.azure.IsZero() {
			continue
		}
		since := later(later(st.azure, st.accepted), b.began)
		status := c.snapshot()
		if status.failing > 0 && now.Sub(since) >= silentFor {
			b.blocked(route, errorText(status.lastErr))
		}
	}
}

type errorText string

func (e errorText) Error() string { return string(e) }

// tellUnavailable tells that the endpoint has given no valid answer for long.
func (b *Bridge) tellUnavailable(now time.Time) {
	b.mu.Lock()
	limit := noAnswerFor
	_, _, before := b.Outbox.known()
	if before.At.IsZero() {
		limit = noFirstFor
	}
	since := later(b.began, b.imds.lastAnswer)
	news := !b.imds.told && now.Sub(since) >= limit
	if news {
		b.imds.told = true
		if b.imds.failing.IsZero() {
			b.imds.failing = since
		}
	}
	lastErr := b.imds.lastErr
	b.mu.Unlock()
	if !news {
		return
	}
	if lastErr == "" {
		lastErr = "no answer"
	}
	b.Log.Error("the endpoint has given no valid answer for long: changes may go unnoticed", "endpoint", b.Client.Endpoint(), "since", since.UTC(), "err", lastErr)
	b.tellBridge(IMDSUnavailable, map[string]any{"endpoint": b.Client.Endpoint(), "since": since.UTC(), "error": lastErr}, "")
}
