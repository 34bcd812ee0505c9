package bridge

import (
	"slices"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
)

// Sinks returns the names of all sinks in the settings or the outbox, sorted.
func (b *Bridge) Sinks() []string {
	all := b.outbox.Routes()
	b.mu.Lock()
	for _, r := range b.routes {
		all = append(all, r.Name)
	}
	b.mu.Unlock()
	slices.Sort(all)
	return slices.Compact(all)
}

// Replay makes dead letters pending again, for their own route or, unless it is "", for to. by names the user, for the
// record.
func (b *Bridge) Replay(keys []string, to, by string) ([]outbox.Delivery, error) {
	replayed, err := b.outbox.Replay(keys, to, by)
	for _, d := range replayed {
		b.log.Info("dead letter replayed", "key", d.Key, "id", d.ID, "by", by)
	}
	return replayed, err
}

// Drop removes deliveries for good. Routes on LevelAll get a CloudEvent about it. by names the user, for the record.
func (b *Bridge) Drop(keys []string, by string) ([]outbox.Delivery, error) {
	var reports outbox.Batch
	dropped, err := b.outbox.Drop(keys, by, func(dropped []outbox.Delivery) outbox.Batch {
		var c commit
		b.addDropped(&c, dropped, by)
		reports = b.batch(c, time.Now())
		return reports
	})
	b.countCommitted(reports)
	for _, d := range dropped {
		b.log.Warn("delivery dropped", "key", d.Key, "id", d.ID, "by", by)
	}
	return dropped, err
}

// addDropped adds one CloudEvent per sink about deliveries that are dropped together.
func (b *Bridge) addDropped(c *commit, dropped []outbox.Delivery, by string) {
	bySink := map[string][]outbox.Delivery{}
	for _, d := range dropped {
		bySink[d.Route] = append(bySink[d.Route], d)
	}
	for sink, list := range bySink {
		data := describeAll(sink, list)
		data["by"] = by
		b.addReport(c, cloudevent.DeliveryDropped, data, sink)
	}
}
