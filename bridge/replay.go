package bridge

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
)

// Sinks returns the names of all sinks in the settings or the outbox, sorted.
func (b *Bridge) Sinks() []string {
	all := slices.Collect(maps.Keys(b.outbox.Stats()))
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
	var replayed []outbox.Delivery
	var err error
	stored := b.outbox.Update(time.Now(), func(tx *outbox.Tx) { replayed, err = tx.Replay(keys, to, by) })()
	for _, d := range replayed {
		b.log.Info("dead letter replayed", "key", d.Key, "id", d.ID, "by", by)
	}
	return replayed, cmp.Or(err, stored)
}

// Drop removes deliveries for good. Routes on LevelAll get a CloudEvent about it. by names the user, for the record.
func (b *Bridge) Drop(keys []string, by string) ([]outbox.Delivery, error) {
	report := b.reporter()
	var dropped []outbox.Delivery
	var err error
	var c commit
	stored := b.outbox.Update(time.Now(), func(tx *outbox.Tx) {
		dropped, err = tx.Drop(keys, by)
		report.addDropped(&c, dropped, by)
		b.apply(tx, c)
	})()
	b.committed(c)
	for _, d := range dropped {
		b.log.Warn("delivery dropped", "key", d.Key, "id", d.ID, "by", by)
	}
	return dropped, cmp.Or(err, stored)
}

// addDropped adds one CloudEvent per sink about deliveries that are dropped together.
func (r reporter) addDropped(c *commit, dropped []outbox.Delivery, by string) {
	bySink := map[string][]outbox.Delivery{}
	for _, d := range dropped {
		bySink[d.Route] = append(bySink[d.Route], d)
	}
	for sink, list := range bySink {
		data := describeAll(sink, list)
		data["by"] = by
		r.add(c, cloudevent.DeliveryDropped, data, sink)
	}
}
