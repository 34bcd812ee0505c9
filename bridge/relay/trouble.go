package relay

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/internal/streams"
	"forewarn/bridge/internal/trouble"
)

// troubleEvery is how often a relay looks for sinks that accept nothing, and for dead letters to report.
const troubleEvery = 2 * time.Second

// reportTroubles reports sinks that are down, and dead letters, and logs which sinks need somebody, until ctx is done.
func (r *Relay) reportTroubles(ctx context.Context) {
	for streams.Sleep(ctx, troubleEvery) == nil {
		r.reportSilent(time.Now())
		var sinks []bridge.SinkStatus
		r.locked(func() { sinks, _ = r.sinkStatuses(time.Now()) })
		r.needs.Note(r.Log, sinks, time.Now())
		r.reportDead(ctx, trouble.DeadReportEvery)
	}
}

// reportSilent reports sinks that have accepted nothing for long from this relay while deliveries are pending for them.
func (r *Relay) reportSilent(now time.Time) {
	type served struct {
		queue  *queue
		worker *delivery.Worker
		since  time.Time
	}
	var all []served
	var zone *time.Location
	r.locked(func() {
		zone = r.Settings.Location()
		for _, s := range r.services {
			if s.queue != nil {
				all = append(all, served{s.queue, s.worker, s.since})
			}
		}
	})
	for _, s := range all {
		oldest, accepted := s.queue.waitsSince(now)
		if oldest.IsZero() || now.Sub(later(later(oldest, accepted), s.since)) < trouble.SilentAfter {
			continue
		}
		if why := trouble.WhySilent(s.worker.State(), s.queue.route.Terms.Timeout, now, zone); why != nil {
			r.reportTrouble(s.queue, why)
		}
	}
}

// waitsSince returns since when the oldest delivery about an Azure event waits for the destination, zero if none does,
// and when the destination last accepted something.
func (q *queue) waitsSince(now time.Time) (oldest, accepted time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for seq, e := range q.pending {
		mute, u := q.muteOf(e), q.transfers.due[seq]
		since := e.item.Since(mute)
		if e.item.Group == "" || mute.Active() || since.After(now) || u != nil && u.dead {
			continue
		}
		if oldest.IsZero() || since.Before(oldest) {
			oldest = since
		}
	}
	return oldest, q.tally.lastAccepted
}

// deadLettered notes a dead letter that was stored, to report it, unless a newer change overtook it.
func (r *Relay) deadLettered(l deadLetter) {
	if l.Overtaken {
		return
	}
	e := l.entry()
	r.dead.add(e.Sink, e.Key, e.Reason, e.Item)
}

// A deadCollector collects dead letters until they are reported. The zero value has none. It is safe for concurrent
// use.
type deadCollector struct {
	mu     sync.Mutex
	routes map[string]*unreportedDead
}

// unreportedDead holds the dead letters of a route that are not reported yet.
type unreportedDead struct {
	last  time.Time // when the route's dead letters were last reported
	count int
	first []map[string]any // at most trouble.ListedDead, each as trouble.DescribeDead says
}

// add adds a dead letter of a route, unless it is about a bridge or a relay: that never causes another CloudEvent.
func (c *deadCollector) add(route, key, reason string, i delivery.Item) {
	if i.Group == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.routes == nil {
		c.routes = map[string]*unreportedDead{}
	}
	n := c.routes[route]
	if n == nil {
		n = &unreportedDead{}
		c.routes[route] = n
	}
	n.count++
	if len(n.first) < trouble.ListedDead {
		n.first = append(n.first, trouble.DescribeDead(key, reason, i))
	}
}

// take takes what is to be reported, by route, as the data of CloudEvents: the first dead letter of a route at once,
// further ones together, at that interval.
func (c *deadCollector) take(now time.Time, interval time.Duration) map[string]map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := map[string]map[string]any{}
	for route, n := range c.routes {
		if now.Sub(n.last) < interval {
			continue
		}
		if n.count == 0 {
			delete(c.routes, route)
			continue
		}
		due[route] = map[string]any{"sink": route, "count": n.count, "deliveries": n.first}
		*n = unreportedDead{last: now}
	}
	return due
}

// A deadReport is a CloudEvent about dead letters of a sink that the stream doesn't have yet for all others.
type deadReport struct {
	sink   string
	ce     event.Event
	failed bool // to be published
}

// reportDead reports the dead letters that are due, to other sinks than theirs. What can't be published is tried again
// first, and further dead letters are collected until then. It must not be called concurrently.
func (r *Relay) reportDead(ctx context.Context, interval time.Duration) {
	st, err := r.connected()
	if err != nil || !r.publishDeadReports(ctx, st) {
		return // they stay collected
	}
	for sink, data := range r.dead.take(time.Now(), interval) {
		ce, _, err := r.newCloudEvent(cloudevent.DeliveryDeadLettered, data)
		if err != nil {
			r.Log.Warn("the other sinks could not be told of dead letters", "sink", sink, "err", err)
			continue
		}
		r.deadReports = append(r.deadReports, &deadReport{sink: sink, ce: ce})
	}
	r.publishDeadReports(ctx, st)
}

// publishDeadReports publishes the reports that the stream doesn't have, and reports whether none is left. It drops what
// the stream never takes, because it is too large.
func (r *Relay) publishDeadReports(ctx context.Context, st *storage) bool {
	r.deadReports = slices.DeleteFunc(r.deadReports, func(d *deadReport) bool {
		err := r.notifySinks(ctx, st.js, d.ce, d.sink)
		switch {
		case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum):
			r.Log.Error("the other sinks can't be told of dead letters: the report is too large", "sink", d.sink, "err", err)
			return true
		case err != nil && ctx.Err() == nil && !d.failed:
			d.failed = true
			r.Log.Warn("the other sinks could not be told of dead letters, trying again", "sink", d.sink, "err", err)
		}
		return err == nil
	})
	return len(r.deadReports) == 0
}
