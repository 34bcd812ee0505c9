package bridge

import (
	"cmp"
	"slices"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
)

// Sinks returns the names of all sinks in the settings or the outbox, sorted.
func (b *Bridge) Sinks() []string {
	all := b.Outbox.Routes()
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
	replayed, err := b.Outbox.Replay(keys, to)
	for _, d := range replayed {
		b.Log.Info("dead letter replayed", "key", d.Key, "id", d.ID, "by", by)
	}
	return replayed, err
}

// Drop removes deliveries for good. Routes on LevelAll get a CloudEvent about it. by names the user, for the record.
func (b *Bridge) Drop(keys []string, by string) ([]outbox.Delivery, error) {
	dropped, err := b.Outbox.Drop(keys, by)
	for _, d := range dropped {
		b.Log.Warn("delivery dropped", "key", d.Key, "id", d.ID, "by", by)
	}
	b.reportDropped(dropped, by)
	return dropped, err
}

// reportDropped sends one CloudEvent per sink about deliveries that were dropped together.
func (b *Bridge) reportDropped(dropped []outbox.Delivery, by string) {
	bySink := map[string][]outbox.Delivery{}
	for _, d := range dropped {
		bySink[d.Route] = append(bySink[d.Route], d)
	}
	for sink, list := range bySink {
		var named []map[string]any
		for _, d := range list[:min(len(list), ListedDead)] {
			named = append(named, DescribeDead(d.Key, cmp.Or(d.Reason, outbox.StateDropped), d.Item))
		}
		b.reportBridge(cloudevent.DeliveryDropped,
			map[string]any{"sink": sink, "by": by, "count": len(list), "deliveries": named}, sink)
	}
}
