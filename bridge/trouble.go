package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// When trouble is told.
const (
	SilentFor     = 5 * time.Minute  // a route that accepted nothing for so long counts as blocked
	noAnswerFor   = 5 * time.Minute  // without a valid answer the endpoint counts as unavailable
	noFirstFor    = 10 * time.Minute // before the very first one
	deadNewsEvery = time.Minute      // dead letters of one route are told at most so often
	maintainEvery = 10 * time.Minute
	compactEvery  = 24 * time.Hour
	listedDead    = 20 // dead letters named in one CloudEvent
)

// deadNews are dead letters of a route that were not told yet.
type deadNews struct {
	told  time.Time
	count int
	first []outbox.Delivery // at most listedDead
}

// gap is a time between two valid answers.
type gap struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
}

// tellBridge commits a CloudEvent about the bridge to the routes that hear such, except the one whose trouble it tells.
func (b *Bridge) tellBridge(typ string, data map[string]any, about string) {
	b.mu.Lock()
	var to []outbox.Recipient
	for _, r := range b.routes {
		if r.Name != about && r.Terms.Bridge.Hears(typ) {
			to = append(to, outbox.Recipient{Route: r.Name})
		}
	}
	now := time.Now()
	if !now.After(b.stamp) {
		now = b.stamp.Add(1) // no two have the same time
	}
	b.stamp = now
	b.mu.Unlock()
	ce, err := cloudevent.WrapBridge(typ, data, b.self(), now)
	if err != nil {
		b.Log.Error("a CloudEvent about the bridge is not valid", "type", typ, "err", err)
		return
	}
	var c commit
	c.say(ce, outbox.Addition{Message: delivery.Message{About: about}, To: to})
	_ = b.commit(c, now)() // the outbox says when it can't write
}

// trouble is told by a worker that its route is blocked (why), or that it accepts (nil).
func (b *Bridge) trouble(route string, why error) {
	b.mu.Lock()
	told, c := b.troubled[route], b.workers[route]
	b.mu.Unlock()
	if c == nil || told == (why != nil) {
		return
	}
	st := b.Outbox.Stats(time.Now())[route]
	if why != nil && st.OldestOfGroup.IsZero() {
		return // only about the bridge, and that never causes another
	}
	b.mu.Lock()
	told = b.troubled[route]
	b.troubled[route] = why != nil
	b.mu.Unlock()
	if told == (why != nil) {
		return // somebody else was faster
	}
	data := map[string]any{"sink": route, "kind": c.kind, "pending": st.Pending}
	typ := cloudevent.SinkRecovered
	if why != nil {
		typ, data["since"], data["error"] = cloudevent.SinkBlocked, st.OldestOfGroup, why.Error()
	}
	b.tellBridge(typ, data, route)
}

// deadLettered is called by the outbox with new dead letters.
func (b *Bridge) deadLettered(dead []outbox.Delivery) {
	for _, d := range dead {
		b.Log.Error("a delivery was given up; it is kept as a dead letter", "key", d.Key, "sink", d.Route, "id", d.ID,
			"reason", d.Reason, "err", d.Error)
		b.Meter.Failed(d.Route, d.Reason)
		if d.Group == "" {
			continue // about the bridge: never causes another
		}
		b.mu.Lock()
		n := b.dead[d.Route]
		if n == nil {
			n = &deadNews{}
			b.dead[d.Route] = n
		}
		n.count++
		if len(n.first) < listedDead {
			n.first = append(n.first, d)
		}
		b.mu.Unlock()
	}
}

// tellDead tells of dead letters: the first of a route at once, more of it together, after a while.
func (b *Bridge) tellDead(now time.Time, while time.Duration) {
	b.mu.Lock()
	var due []map[string]any
	for sink, n := range b.dead {
		if now.Sub(n.told) < while {
			continue
		}
		if n.count == 0 {
			delete(b.dead, sink)
			continue
		}
		due = append(due, map[string]any{"sink": sink, "count": n.count, "deliveries": named(n.first)})
		*n = deadNews{told: now}
	}
	b.mu.Unlock()
	for _, data := range due {
		b.tellBridge(cloudevent.DeliveryDeadLettered, data, data["sink"].(string))
	}
}

// named are deliveries that were given up, as a CloudEvent about the bridge names them.
func named(deliveries []outbox.Delivery) (list []map[string]any) {
	for _, d := range deliveries {
		one := map[string]any{"key": d.Key, "id": d.ID, "type": d.Type, "event": d.Group, "attempts": d.Attempts,
			"reason": cmp.Or(d.Reason, outbox.StateDropped)}
		if d.Error != "" {
			one["error"] = d.Error
		}
		list = append(list, one)
	}
	return list
}

// housekeep looks after what only time brings about.
func (b *Bridge) housekeep(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		b.turned(&b.keptHouse)
		now := time.Now()
		b.decideHeld(now)
		b.tellSilent(now)
		b.remind(now)
		b.beat(now)
		b.tellDead(now, deadNewsEvery)
		b.tellUnavailable(now)
		b.tidy(now)
	}
}

// tidy has the outbox forget what is remembered no longer, and makes its file smaller: both for the first time after
// the first valid answer, so that they don't delay it.
func (b *Bridge) tidy(now time.Time) {
	b.Outbox.GiveUpOrphans(now)
	b.mu.Lock()
	answered := !b.imds.lastAnswer.IsZero()
	maintain := answered && (now.Sub(b.maintained) >= maintainEvery || b.Outbox.Grown())
	compact := answered && now.Sub(b.compacted) >= compactEvery
	if maintain {
		b.maintained = now
	}
	if compact {
		b.compacted = now
	}
	b.mu.Unlock()
	if maintain {
		b.Outbox.Maintain(now)
	}
	if compact {
		b.Outbox.Compact()
	}
}

// tellSilent tells of routes that accept nothing though something is pending for them.
func (b *Bridge) tellSilent(now time.Time) {
	b.mu.Lock()
	began := b.began
	b.mu.Unlock()
	for route, st := range b.Outbox.Stats(time.Now()) {
		since := later(later(st.OldestOfGroup, st.Accepted), began)
		if st.OldestOfGroup.IsZero() || !st.Gone.IsZero() || now.Sub(since) < SilentFor {
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
func (c *crew) silent(now time.Time) error {
	switch st := c.State(); {
	case st.Failing:
		return errors.New(st.Error)
	case c.Terms.Timeout > 0 && !st.Since.IsZero() && now.After(st.Since.Add(c.Terms.Timeout+time.Second)):
		return fmt.Errorf("the attempt of %s does not end", ClockTime(st.Since, now, time.UTC))
	}
	return nil
}

// tellUnavailable tells that the endpoint has given no valid answer for long.
func (b *Bridge) tellUnavailable(now time.Time) {
	limit := noAnswerFor
	if b.lastAnswer().At.IsZero() {
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
	b.Log.Error("the endpoint has given no valid answer for long: changes may go unnoticed", "endpoint",
		b.Client.Endpoint(), "since", since.UTC(), "err", lastErr)
	b.tellBridge(cloudevent.IMDSUnavailable, map[string]any{"endpoint": b.Client.Endpoint(),
		"since": since.UTC(), "error": lastErr}, "")
}

// tellRecovered tells that the endpoint answers again, and since when it had not.
func (b *Bridge) tellRecovered(before, now time.Time) {
	b.mu.Lock()
	if before.IsZero() {
		before = b.began
	}
	b.mu.Unlock()
	b.tellBridge(cloudevent.IMDSRecovered, map[string]any{"endpoint": b.Client.Endpoint(),
		"gap": gap{before.UTC(), now.UTC()}}, "")
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
	b.tellBridge(cloudevent.BridgeStarted, data, "")
}
