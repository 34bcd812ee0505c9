package relay

import (
	"maps"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// told returns the events that are open by what the fleet knows, which may lag behind.
func (q *queue) told() (told []delivery.Told) {
	for _, group := range q.openEvents() {
		told = append(told, delivery.Told{Group: group, Read: func() (delivery.Delivery, bool) {
			d, ok := q.latest(group)
			return d, ok && q.lease.valid()
		}})
	}
	return told
}

// latest returns what was said last of an event, if the event is open: what came of its approval since the latest change, if
// the sink has accepted that, or else that change, if it has accepted it. The sink's record decides: it has the end of the
// event before the sink is told of that.
func (q *queue) latest(group string) (d delivery.Delivery, ok bool) {
	rec, err := q.recordOf(group)
	if err != nil || rec.Kind == "" || rec.Kind == imds.Vanished {
		return d, false
	}
	for _, seq := range []uint64{rec.Answer, rec.Seq} {
		if seq == 0 {
			continue
		}
		r, err := q.fetch(seq)
		if err != nil {
			return d, false
		}
		m, err := r.Message()
		if err == nil && m.Group() == group && rec.hasAccepted(m.CE.ID()) {
			return delivery.Delivery{Event: m.CE, NotBefore: m.NotBefore()}, true
		}
	}
	return d, false
}

// recordOf returns a copy of the sink's record of an event, or of what is in the bucket if it isn't in memory: no other
// relay writes it meanwhile.
func (q *queue) recordOf(group string) (rec record, err error) {
	key := recordKey(q.route.Name, group)
	q.mu.Lock()
	g := q.records.groups[key]
	if g != nil {
		rec = record{Settled: maps.Clone(g.rec.Settled), Answer: g.rec.Answer, Stage: g.rec.Stage}
	}
	q.mu.Unlock()
	if g == nil {
		_, err = q.bucket.Get(q.ctx, key, &rec)
	}
	return rec, err
}
