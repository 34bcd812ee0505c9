package relay

import (
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// take makes a message pending, if it is for the sink and the sink hasn't got it yet.
func (q *queue) take(r rawMessage) error {
	m, err := r.message()
	if err != nil {
		return q.keepInvalid(r, err)
	}
	if !q.concerns(m) {
		q.skip(r)
		return nil
	}
	g, err := q.group(recordKey(q.route.Name, m.recordID()))
	if err != nil {
		return err
	}
	if tooLate := q.admit(g, m); !tooLate {
		return nil
	}
	letter := deadLetter{
		Sink: q.route.Name, Seq: m.seq, ID: m.ce.ID(), Type: m.ce.Type(), Event: m.eventID, Set: m.from.String(),
		Reason: delivery.ReasonLate, At: time.Now().UTC(), PendingSince: m.stored,
	}
	if err := q.dead.add(q.ctx, letter, &m.ce); err != nil {
		return err
	}
	q.meter.Failed(q.route.Name, delivery.ReasonLate)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settleUnsent(g, m, resultDead, delivery.ReasonLate)
	return nil
}

// keepInvalid keeps a message that can't be accepted as a dead letter, one for all sinks.
func (q *queue) keepInvalid(r rawMessage, why error) error {
	if err := q.dead.addInvalid(q.ctx, r, why); err != nil {
		return err
	}
	q.meter.Failed(q.route.Name, refusal(why))
	q.log.Error("a message of the stream can't be accepted; it is kept as a dead letter", "message", r.seq, "subject",
		imds.Printable(r.subject, 200), "err", imds.Printable(why.Error(), 200))
	q.skip(r)
	return nil
}

// concerns reports whether a message can be for the sink at all, before its record is read. Heartbeats are for no sink.
func (q *queue) concerns(m message) bool {
	switch {
	case m.onlySink != "":
		return m.onlySink == q.route.Name
	case m.eventID != "":
		return true
	}
	return m.ce.Type() != cloudevent.BridgeHeartbeat && q.route.Terms.Bridge.Hears(m.ce.Type())
}

// admit makes a message pending, unless the sink's filter keeps it out, or did before, or its record has it already. A
// message that is outdated becomes a dead letter with late: drop: then admit reports tooLate, and leaves it to the
// caller. With late: latest or a lead, an outdated message is superseded. So is one about an event that is over, where
// its end settles what is pending.
func (q *queue) admit(g *group, m message) (tooLate bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	listed := q.openSeqs[m.seq] // as pending: then nothing refused it
	delete(q.openSeqs, m.seq)
	if g.has(m.deliveryID(), m.stored) || m.onlySink == "" && !listed && g.rec.refused(m) {
		q.setRead(m.seq, m.stored)
		return false
	}
	selected, outdated := q.selects(g, m)
	switch {
	case !selected, m.fallbackFor != nil && g.has(token(m.ce.ID()), m.stored): // a fallback doesn't get what it has got itself
	case q.isOver(g, m):
		q.settleUnsent(g, m, resultSuperseded, delivery.EventOver)
	case outdated && q.route.Terms.Late == delivery.LateDrop:
		return true
	case outdated && (q.route.Terms.Late == delivery.LateLatest || q.route.Terms.Lead > 0):
		q.settleUnsent(g, m, resultSuperseded, "")
	default:
		q.addPending(g, m)
	}
	q.setRead(m.seq, m.stored)
	return false
}

// settleUnsent settles a message that was never pending. mu is held.
func (q *queue) settleUnsent(g *group, m message, how, answer string) {
	g.rec.settle(m.deliveryID(), result{At: time.Now().UTC(), State: how, Answer: answer}, m.stored)
	q.markDirty(g)
	q.setRead(m.seq, m.stored)
}

// selects reports whether the sink's settings select the message, and whether it is outdated, see stage.outdated. The
// whole filter is asked until it lets one change of the Azure event pass; after that, only its list of changes is. mu
// is held.
func (q *queue) selects(g *group, m message) (selected, outdated bool) {
	if m.onlySink != "" || m.eventID == "" {
		return true, false
	}
	first := !g.rec.Matched
	if first {
		wanted, _, err := q.route.Filter.MatchEvent(m.change, cloudevent.Fields(m.ce), "")
		if err != nil {
			q.log.Warn("a filter failed, so the event passes", "event", m.eventID, "err", err)
		}
		if !wanted {
			q.endRefused(g, m)
			return false, false
		}
		g.rec.Matched, g.rec.First, g.rec.FirstStored = true, m.seq, m.stored
	}
	was := g.rec.stage
	if m.change.Kind.OfAzure() {
		outdated = g.rec.outdated(m)
		g.rec.update(m)
		selected, _ = q.route.Filter.MatchChange(m.change, "")
		if !outdated {
			q.supersede(g, m, selected)
		}
	} else {
		selected = q.route.Hears(m.change, "")
	}
	if !selected && (first || g.rec.stage != was) { // otherwise it is saved with the result of the delivery
		q.markDirty(g)
	}
	return selected, outdated
}

// endRefused records the end of an event that the sink's filter refuses. The sink may have something about it all the same,
// or get it later, as the fallback of another. mu is held.
func (q *queue) endRefused(g *group, m message) {
	if m.change.Kind != imds.Vanished || g.rec.outdated(m) {
		return
	}
	g.rec.update(m)
	if endSettles(q.route, m.change.Event) { // the next relay must know it too; for other sinks it isn't worth a record
		q.markDirty(g)
	}
	q.supersede(g, m, false)
}

// isOver reports whether the event that a message is about is over, by the sink's record or that of the sink whose fallback
// it is, and that end settles what is still pending. What somebody asked for is never over. mu is held.
func (q *queue) isOver(g *group, m message) bool {
	asked := m.onlySink != "" && m.fallbackFor == nil
	if asked || m.eventID == "" || m.change.Kind == imds.Vanished {
		return false
	}
	return (m.eventOver || g.rec.stage.Kind == imds.Vanished) && endSettles(q.route, m.change.Event)
}

// endSettles reports whether the end of an event settles what is pending about it for a route.
func endSettles(route bridge.Route, e imds.Event) bool {
	toldOfEnd, _ := route.Filter.MatchChange(imds.Change{Kind: imds.Vanished, Event: e}, "")
	return route.Terms.Late.OverAtEnd(toldOfEnd)
}

// supersede settles the pending deliveries that a newer change of their event makes obsolete: at the end of the event what
// delivery.Late.OverAtEnd says, else reminders, and what waits for its lead. If the sink doesn't get the newer change, and
// it is no start or end, a reminder stays unless its time was another, as one of the new time will come, and what waits for
// its lead moves with NotBefore. mu is held.
func (q *queue) supersede(g *group, m message, selected bool) {
	now := time.Now()
	newWaits := q.route.LeadTime(m.change.Kind, m.notBefore()).After(now)
	ends := m.change.Kind == imds.Started || m.change.Kind == imds.Vanished
	eventOver := m.change.Kind == imds.Vanished && q.route.Terms.Late.OverAtEnd(selected)
	for _, seq := range g.pending {
		if seq > m.seq {
			continue
		}
		e := q.pending[seq]
		waits, over := q.waits(e, now), selected || ends
		reminder := e.item.Change == string(imds.Reminder)
		u := q.unkept[seq]
		dead := u != nil && u.dead // it has failed for good, and that stays on record
		switch {
		case eventOver && !e.item.Ends() && !dead:
			q.settle(e, result{At: now.UTC(), State: resultSuperseded, Answer: delivery.EventOver})
			q.notifyWorker(seq)
		case over && (waits || reminder), reminder && !e.item.NotBefore.Equal(m.notBefore()),
			selected && imds.ChangeKind(e.item.Change).Announces() && newWaits:
			q.settle(e, result{At: now.UTC(), State: resultSuperseded})
			q.notifyWorker(seq)
		case waits:
			next := *e.item
			next.NotBefore = m.notBefore()
			next.PendingSince = q.route.LeadTime(imds.ChangeKind(next.Change), next.NotBefore)
			q.replace(e, next)
		}
	}
}

// waits reports whether a delivery waits for the lead of the route. Until then it is not pending for the Worker, and its
// PendingSince lies ahead. mu is held.
func (q *queue) waits(e *pendingItem, now time.Time) bool {
	return q.route.Terms.Lead > 0 && e.item.PendingSince.After(now)
}

// addPending makes a message pending. mu is held.
func (q *queue) addPending(g *group, m message) {
	id, i := m.deliveryID(), m.item()
	if q.route.Terms.Lead > 0 && m.onlySink == "" && m.change.Kind.Announces() {
		if g.rec.Kind.Announces() { // the message may be read again, and the event have moved since
			i.NotBefore = g.rec.NotBefore
		}
		i.PendingSince = later(m.stored, q.route.LeadTime(m.change.Kind, i.NotBefore))
	}
	if t, tried := g.rec.Retries[id]; tried && (t.Stored.IsZero() || t.Stored.Equal(m.stored)) {
		i.Attempts, i.Next, i.Error, i.Progress = t.Attempts, t.Next, t.Error, t.Progress
		i.Batch, i.FellBack = t.Batch, t.FellBack
	}
	e := &pendingItem{item: i, id: id, group: g}
	if q.bodies < maxBodies {
		e.ce = &m.ce
		q.bodies++
	}
	q.pending[m.seq] = e
	g.pending[id] = m.seq
	if m.seq > q.savedCursor.After {
		q.readOrder = append(q.readOrder, m.seq)
	} else {
		q.openSeqs[m.seq] = true
	}
	q.notifyWorker(m.seq)
}
