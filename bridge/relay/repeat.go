package relay

import (
	"maps"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// told returns the events that are open by what the fleet knows, which may lag behind.
func (q *queue) told() (told []delivery.Told) {
	for _, group := range q.openEvents() {
		told = append(told, delivery.Told{Group: group, Read: func() (delivery.Delivery, bool) { return q.latest(group) }})
	}
	return told
}

// latest returns the latest change of an event, if the event is open and the sink has accepted that change. The sink's
// record decides: it has the end of the event before the sink is told of that.
func (q *queue) latest(group string) (d delivery.Delivery, ok bool) {
	rec, err := q.recordOf(group)
	if err != nil || rec.Kind == "" || rec.Kind == imds.Vanished {
		return d, false
	}
	r, err := q.fetch(rec.Seq)
	if err != nil {
		return d, false
	}
	m, err := r.Message()
	if err != nil || m.Group() != group || !rec.hasAccepted(m.CE.ID()) {
		return d, false
	}
	return delivery.Delivery{Event: m.CE, NotBefore: m.NotBefore()}, true
}

// recordOf returns a copy of the sink's record of an event, or of what is in the bucket if it isn't in memory: no other
// relay writes it meanwhile.
func (q *queue) recordOf(group string) (rec record, err error) {
	key := recordKey(q.route.Name, group)
	q.mu.Lock()
	g := q.records.groups[key]
	if g != nil {
		rec = record{Settled: maps.Clone(g.rec.Settled), Stage: g.rec.Stage}
	}
	q.mu.Unlock()
	if g == nil {
		_, err = q.bucket.Get(q.ctx, key, &rec)
	}
	return rec, err
}
