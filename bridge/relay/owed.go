package relay

import (
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// begin is the cursor of a sink that is new: it is owed the latest change of each Azure event that is open, and what
// comes from now on, or since the time from.
func (q *queue) begin(info *jetstream.StreamInfo) (cursor, error) {
	c := cursor{After: info.State.LastSeq, Stream: info.Created}
	latest := map[string]uint64{}
	first := uint64(0) // not older than from
	err := readSince(q.term, q.js, info.Config.Name, info, time.Now().Add(-maxEventAge), func(r rawMessage) {
		if first == 0 && !q.from.IsZero() && !r.stored.Before(q.from) {
			first = r.seq
		}
		m, err := r.message()
		switch {
		case err != nil, m.onlySink != "", m.eventID == "", first != 0:
		case m.change.Kind == imds.Vanished:
			delete(latest, m.eventID)
		case m.change.Kind.OfAzure():
			latest[m.eventID] = r.seq
		}
	})
	if err != nil {
		return c, err
	}
	if first != 0 {
		c.After = first - 1
	}
	for _, seq := range latest {
		c.Open = append(c.Open, seq)
	}
	slices.Sort(c.Open)
	q.log.Info("this sink is new to the stream", "stream", info.Config.Name, "after", c.After, "open", len(c.Open))
	return c, nil
}

// concerns says whether a message may be for the sink at all. Heartbeats only say that a VM is there.
func (q *queue) concerns(m message) bool {
	switch {
	case m.onlySink != "":
		return m.onlySink == q.route.Name
	case m.eventID != "":
		return true
	}
	return m.ce.Type() != cloudevent.BridgeHeartbeat && q.route.Terms.Bridge.Hears(m.ce.Type())
}

// wants says whether the sink is owed the message, and whether it is outdated: a newer change of its event was read
// before. The filter is asked of the Azure event's first change that the sink could be told of; once it has accepted,
// only changes are asked. mu is held.
func (q *queue) wants(g *group, m message) (wanted, outdated bool) {
	if m.onlySink != "" || m.eventID == "" {
		return true, false
	}
	kind := m.change.Kind
	asked := !g.rec.Matched
	if asked {
		verdict, _, err := q.route.Filter.Event(m.change, cloudevent.Fields(m.ce), "", true)
		if err != nil {
			q.log.Warn("a filter failed, so the event passes", "event", m.eventID, "err", err)
		}
		if verdict == bridge.Refused {
			return false, false
		}
		g.rec.Matched = true
	}
	if kind.OfAzure() {
		outdated = g.rec.outdated(m)
		g.rec.update(m)
		if wanted, _ = q.route.Filter.Change(m.change, ""); !outdated {
			q.overtake(g, m, wanted)
		}
	} else {
		wanted = q.route.Hears(m.change, "")
	}
	if asked && !wanted { // else it is written with what becomes of the delivery
		q.note(g)
	}
	return wanted, outdated
}

// overtake settles what a newer change of the event makes out of date: reminders, and what waits for its time. What
// waits moves with NotBefore when the sink doesn't get the change. mu is held.
func (q *queue) overtake(g *group, m message, wanted bool) {
	due := q.route.Due(m.change, time.Now())
	for id, seq := range g.pending {
		e := q.pending[seq]
		waits := e.item.Due.After(time.Now())
		ahead := e.item.Change == string(imds.Scheduled) || e.item.Change == string(imds.Updated)
		ends := m.change.Kind == imds.Started || m.change.Kind == imds.Vanished
		switch {
		case seq > m.seq:
		case e.item.Change == string(imds.Reminder), wanted && ahead && !due.IsZero(), waits && (wanted || ends):
			g.rec.settle(id, result{At: time.Now().UTC(), How: resultSuperseded})
			q.end(e)
			q.touch(seq)
		case waits:
			next := *e.item
			next.Due, next.NotBefore = next.Due.Add(m.notBefore().Sub(next.NotBefore)), m.notBefore()
			e.item = &next
			q.touch(seq)
		}
	}
}

// pend makes a message pending. mu is held.
func (q *queue) pend(g *group, m message) {
	id := m.deliveryID()
	var due time.Time
	if m.onlySink == "" {
		due = q.route.Due(m.change, time.Now())
	}
	i := m.item(due)
	if t, tried := g.rec.Retries[id]; tried {
		i.Attempts, i.Next, i.Error, i.Progress, i.Batch, i.FellBack = t.Attempts, t.Next, t.Error, t.Progress, t.Batch,
			t.FellBack
	}
	i.Mute = delivery.MuteOf(q.mutes, q.route.Name, i)
	e := &pendingItem{item: i, id: id, group: g}
	if q.bodies < maxBodies {
		e.ce = &m.ce
		q.bodies++
	}
	q.pending[m.seq] = e
	g.pending[id] = m.seq
	if m.seq > q.cursor.After {
		q.order = append(q.order, m.seq)
	} else {
		q.open[m.seq] = true
	}
	q.touch(m.seq)
}
