package bridge

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
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

// Replay makes dead letters pending again, for their own route or, unless it is "", for to. What the route has accepted of
// an open event since the letter was made becomes pending again behind it, so that an old word is never the last: the latest
// change, and what came of its approval. A route with LateDrop acts, so nothing that it has accepted is delivered again. by
// names the user, for the record. An error that comes beside deliveries is the disk's: it is done, but only in memory until
// the disk works. After any other error nothing has changed; for a key that isn't there it wraps outbox.ErrUnknownKey.
func (b *Bridge) Replay(keys []string, to, by string) ([]outbox.Delivery, error) {
	var replayed []outbox.Delivery
	var err error
	now := time.Now()
	b.deciding.Lock()
	s := b.situation(observation{now: now})
	wait := b.outbox.Update(now, func(tx *outbox.Tx) {
		replayed, err = tx.Replay(keys, to, by)
		for _, d := range replayed {
			tx.Apply(outbox.Batch{Add: s.toldSince(tx, d, b.events.get(d.Group))})
		}
	})
	b.deciding.Unlock()
	stored := wait()
	for _, d := range replayed {
		b.log.Info("dead letter replayed", "key", d.Key, "id", d.ID, "by", by)
	}
	return replayed, cmp.Or(err, stored)
}

// toldSince returns what the route of a replayed dead letter has accepted of its event since, for that route: the latest
// change, and what came of its approval. op is the event's state; nil if the letter is about none, or it is over. The
// outbox may no longer know who accepted what came of the approval, so whoever was to hear of it hears of it again.
func (s situation) toldSince(tx *outbox.Tx, letter outbox.Delivery, op *openEvent) (add []outbox.Addition) {
	routes := routesThat(func(r Route) bool {
		return r.Name == letter.Route && r.Terms.Late != delivery.LateDrop
	}, s.routes)
	if op == nil || len(routes) == 0 {
		return nil
	}
	tell := func(k kept) {
		a, _ := again(op.event, k)
		a.To = []string{letter.Route}
		add = append(add, a)
	}
	latest := tx.Delivery(letter.Route, op.latest.Seq).State
	told := latest == outbox.StateAccepted || latest == outbox.StateSuperseded // with something newer
	if letter.Seq < op.latest.Seq && told {
		tell(op.latest)
	}
	if op.Answer == nil || letter.Seq >= op.Answer.Seq {
		return add
	}
	change := imds.Change{Kind: imds.Approved, Event: op.event}
	refused := tx.Delivery(letter.Route, op.Answer.Seq).State == outbox.StateDead
	if !refused && len(s.audience(routes, change, op, false)) > 0 {
		tell(*op.Answer)
	}
	return add
}

// Drop removes deliveries for good. The routes on LevelAll get a CloudEvent about it, but for those whose deliveries they
// were. by names the user, for the record. Its errors are those of Replay.
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
