package bridge

import (
	"slices"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
)

// Sinks are the names of all sinks that the settings or the outbox know, sorted.
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

// Replay makes dead letters pending again, for their own route or, if to is not "", for that one. by, who wanted it,
// goes on record.
func (b *Bridge) Replay(keys []string, to, by string) ([]outbox.Delivery, error) {
	replayed, err := b.Outbox.Replay(keys, to)
	for _, d := range replayed {
		b.Log.Info("a dead letter is pending again", "key", d.Key, "id", d.ID, "by", by)
	}
	return replayed, err
}

// Drop gives deliveries up for good. It is also told to the routes that hear all about the bridge. by, who wanted it,
// goes on record.
func (b *Bridge) Drop(keys []string, by string) ([]outbox.Delivery, error) {
	dropped, err := b.Outbox.Drop(keys, by)
	for _, d := range dropped {
		b.Log.Warn("a delivery was dropped", "key", d.Key, "id", d.ID, "by", by)
	}
	b.tellDropped(dropped, by)
	return dropped, err
}

// tellDropped tells of deliveries that were dropped together, by sink.
func (b *Bridge) tellDropped(dropped []outbox.Delivery, by string) {
	bySink := map[string][]outbox.Delivery{}
	for _, d := range dropped {
		bySink[d.Route] = append(bySink[d.Route], d)
	}
	for sink, list := range bySink {
		data := map[string]any{"sink": sink, "by": by, "count": len(list)}
		if d := list[0]; len(list) == 1 {
			data["key"], data["id"], data["type"], data["event"] = d.Key, d.ID, d.Type, d.Group
		} else {
			data["deliveries"] = named(list[:min(len(list), listedDead)])
		}
		b.tellBridge(cloudevent.DeliveryDropped, data, sink)
	}
}
