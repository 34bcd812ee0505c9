package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// When trouble is told.
const (
	SilentFor     = 5 * time.Minute  // a route that accepted nothing for so long counts as blocked
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

// gap is a time between two valid answers.
type gap struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
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

// trouble is told by a worker that its route is blocked (why), or that it accepts (nil).
func (b *Bridge) trouble(route string, why error) {
	b.mu.Lock()
	told, c := b.troubled[route], b.workers[route]
	b.mu.Unlock()
	if c == nil || told == (why != nil) {
		return
	}
	st := b.Outbox.stats()[route]
	if why != nil && st.azure.IsZero() {
		return // only about the bridge, and that never causes another
	}
	b.mu.Lock()
	told = b.troubled[route]
	b.troubled[route] = why != nil
	b.mu.Unlock()
	if told == (why != nil) {
		return // somebody else was faster
	}
	data := map[string]any{"sink": route, "kind": c.route.Kind, "pending": st.pending}
	typ := SinkRecovered
	if why != nil {
		typ, data["since"], data["error"] = SinkBlocked, st.azure, why.Error()
	}
	b.tellBridge(typ, data, route)
}

// deadLettered is told of each dead letter by the outbox.
func (b *Bridge) deadLettered(e Entry) {
	b.Log.Error("a delivery was given up; it is kept as a dead letter", "key", e.Key, "sink", e.Sink, "id", e.ID, "reason", e.Reason, "err", e.Error)
	b.Meter.Failed(e.Sink, e.Reason)
	b.gaveUpTo(e)
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

// tellDead tells of dead letters: the first of a route at once, more of it together, after a while.
func (b *Bridge) tellDead(now time.Time, while time.Duration) {
	b.mu.Lock()
	var due []map[string]any
	for sink, n := range b.dead {
		if now.Sub(n.told) < while {
			continue
		}
		if len(n.entries) == 0 {
			delete(b.dead, sink)
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
		b.turned(&b.keptHouse)
		now := time.Now()
		if b.Outbox.pendingCount() > 0 {
			b.decideHeld(now)
			b.tellSilent(now)
			b.Outbox.dropOrphans(now)
			b.Outbox.release(now)
			b.fallBack(now)
		}
		b.remind(now)
		b.beat(now)
		b.tellDead(now, deadNewsEvery)
		b.tellUnavailable(now)
		if b.Outbox.Durable() != nil {
			b.Outbox.forgetSettled()
		} else {
			b.Outbox.boundGrown(now)
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
	b.mu.Lock()
	began := b.began
	b.mu.Unlock()
	for route, st := range b.Outbox.stats() {
		since := later(later(st.azure, st.accepted), began)
		if st.azure.IsZero() || !st.gone.IsZero() || now.Sub(since) < SilentFor {
			continue
		}
		b.mu.Lock()
		c := b.workers[route]
		b.mu.Unlock()
		if c == nil {
			continue
		}
		if why := c.silent(now); why != nil {
			b.trouble(route, why)
		}
	}
}

// silent says why a worker's route accepts nothing, nil when it is only busy.
func (w *worker) silent(now time.Time) error {
	st := w.snapshot()
	switch over := st.since.Add(w.terms.Timeout + time.Second); {
	case st.failing:
		return errors.New(st.lastErr)
	case w.terms.Timeout > 0 && !st.since.IsZero() && now.After(over):
		return fmt.Errorf("the attempt of %s does not end", st.since.UTC().Format(time.RFC3339))
	}
	return nil
}

// tellUnavailable tells that the endpoint has given no valid answer for long.
func (b *Bridge) tellUnavailable(now time.Time) {
	limit := noAnswerFor
	if b.Outbox.lastAnswer().At.IsZero() {
		limit = noFirstFor
	}
	b.mu.Lock()
	since := later(b.began, b.imds.lastAnswer)
	news := !b.imds.told && now.Sub(since) >= limit
	b.imds.told = b.imds.told || news
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

// tellRecovered tells that the endpoint answers again, and since when it had not.
func (b *Bridge) tellRecovered(before, now time.Time) {
	b.mu.Lock()
	if before.IsZero() {
		before = b.began
	}
	b.mu.Unlock()
	b.tellBridge(IMDSRecovered, map[string]any{"endpoint": b.Client.Endpoint(), "gap": gap{before.UTC(), now.UTC()}}, "")
}

// tellStarted tells that the bridge began to watch.
func (b *Bridge) tellStarted(before, now time.Time) {
	b.mu.Lock()
	data := map[string]any{"version": b.Version, "settingsHash": b.Settings.Hash, "apiVersion": b.Client.APIVersion()}
	b.mu.Unlock()
	if !b.Booted.IsZero() {
		data["bootTime"] = b.Booted.UTC()
	}
	if !before.IsZero() {
		data["gap"] = gap{before.UTC(), now.UTC()}
	}
	b.tellBridge(BridgeStarted, data, "")
}
