package relay

import (
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// storeInvalid keeps the messages that can't be accepted as dead letters, one for all sinks, several at the same time: so
// a flood of them holds up nothing.
func (q *queue) storeInvalid(batch []streams.Raw, failures []error) error {
	var invalid []int
	for n, err := range failures {
		if err != nil {
			invalid = append(invalid, n)
		}
	}
	return atOnce(len(invalid), func(n int) error {
		return q.dead.addInvalid(q.ctx, batch[invalid[n]], failures[invalid[n]])
	})
}

// noteInvalid notes a message that can't be accepted, and that is a dead letter.
func (q *queue) noteInvalid(r streams.Raw, why error) {
	q.meter.Failed(q.route.Name, streams.Refusal(why))
	q.log.Error("a message of the stream can't be accepted; it is kept as a dead letter", "message", r.Seq, "subject",
		imds.Printable(r.Subject, 200), "err", imds.Printable(why.Error(), 200))
	q.ack(r.Reply)
}

// concerns reports whether a message can be for the sink at all, before its record is read. Heartbeats are for no sink. What
// the sink isn't told of a bridge may still be pending, if it was in the stream before the settings changed.
func (q *queue) concerns(m streams.Message) bool {
	switch {
	case !q.gets(m.Seq):
		return false
	case m.OnlySink != "":
		return m.OnlySink == q.route.Name
	case m.EventID != "":
		return true
	}
	if m.CE.Type() == cloudevent.BridgeHeartbeat {
		return false
	}
	return m.Seq <= q.streamEnd || q.route.Terms.Bridge.Hears(m.CE.Type())
}

// A verdict is what becomes of a message for a sink.
type verdict struct {
	known    bool   // it is settled or refused already
	matches  bool   // the sink gets the event that it is about
	selected bool   // the sink gets the message
	pending  bool   // it becomes pending; otherwise it is settled
	state    string // then its result, one of those of result.State
	answer   string // and why
	outdated bool   // see streams.Stage.Outdated
}

// judge decides what becomes of a message, by the sink's record of its event. What was decided before stays so: the filter
// isn't asked again about what is pending. The whole filter is asked until it lets one change of the Azure event pass;
// after that, only its list of changes is. A filter that fails lets the event pass.
//
// A message that is outdated is a dead letter with late: drop, and superseded with late: latest or a lead. So is one about
// an event that is over, where its end settles what is pending.
func judge(route bridge.Route, rec *record, m streams.Message) (v verdict, failed error) {
	id := m.DeliveryID()
	_, accepted := rec.Waiting[id]
	_, settled := rec.Settled[id]
	if settled || !accepted && rec.decided(m) {
		return verdict{known: true}, nil
	}
	v = verdict{matches: true, selected: true}
	if m.OnlySink == "" && m.EventID == "" && !accepted {
		v.matches = route.Terms.Bridge.Hears(m.CE.Type())
		v.selected = v.matches
	}
	if m.OnlySink == "" && m.EventID != "" {
		if !rec.Matched {
			v.matches, _, failed = route.Filter.MatchEvent(m.Change, cloudevent.Fields(m.CE), "")
		}
		v.outdated = rec.Outdated(m)
		switch {
		case accepted:
		case !v.matches:
			v.selected = false
		case m.Change.Kind.OfAzure():
			v.selected, _ = route.Filter.MatchChange(m.Change, "")
		default:
			v.selected = route.Hears(m.Change, "")
		}
	}
	terms := route.Terms
	switch {
	case !v.selected:
	case m.FallbackFor != nil && rec.knows(streams.Token(m.CE.ID())): // a fallback doesn't get what it has
		v.selected = false
		if accepted { // before it had that
			v.state = resultSuperseded
		}
	case rec.isOver(route, m):
		v.state, v.answer = resultSuperseded, delivery.EventOver
	case !v.outdated || accepted:
		v.pending = true
	case terms.Late == delivery.LateDrop:
		v.state, v.answer = resultDead, delivery.ReasonLate
	case terms.Late == delivery.LateLatest || terms.Lead > 0:
		v.state = resultSuperseded
	default:
		v.pending = true
	}
	return v, failed
}

// admit takes in what becomes of a message. It returns an error if that can't be now; then nothing has changed.
func (q *queue) admit(m streams.Message, r streams.Raw) error {
	q.mu.Lock()
	g := q.records.groups[recordKey(q.route.Name, m.RecordID())]
	v, failed := judge(q.route, &g.rec, m)
	_, copied := g.pending[m.DeliveryID()] // another VM's copy is pending
	q.mu.Unlock()
	if failed != nil {
		q.log.Warn("a filter failed, so the event passes", "event", m.EventID, "err", failed)
	}
	var err error
	switch {
	case v.known || copied:
		q.ack(r.Reply)
		return nil
	case v.pending:
		err = q.makeRoom(g)
	case v.state == resultDead:
		err = q.storeLate(m)
	}
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.carryOut(g, m, r.Reply, v)
	return nil
}

// storeLate keeps a message that came after a newer change of its event as a dead letter.
func (q *queue) storeLate(m streams.Message) error {
	letter := deadLetter{
		Sink: q.route.Name, Key: streams.Token(m.CE.ID()), Seq: m.Seq, ID: m.CE.ID(), Type: m.CE.Type(), Event: m.EventID,
		Set: m.From.String(), Reason: delivery.ReasonLate, Overtaken: true, At: time.Now().UTC(), PendingSince: m.Stored,
	}
	if err := q.keepLetter(letter, &m.CE); err != nil {
		return err
	}
	q.meter.Failed(q.route.Name, delivery.ReasonLate)
	return nil
}

// carryOut applies a verdict: to the record, to what is pending about the event, and to the message. mu is held.
func (q *queue) carryOut(g *group, m streams.Message, reply string, v verdict) {
	was, wasAnswer := g.rec.Seq, g.rec.Answer
	first := v.matches && !g.rec.Matched && m.EventID != "" && m.OnlySink == ""
	g.rec.Matched = g.rec.Matched || first
	ends := m.Change.Kind == imds.Vanished
	old := v.outdated || g.rec.HasPassed(m)
	if m.OnlySink == "" && m.Change.Kind.OfAzure() && !old && (v.matches || ends) {
		g.rec.moveOn(m)
		q.supersede(g, m, v.selected)
	}
	if v.matches {
		g.rec.answer(m)
		g.rec.decide(m)
	}
	// The end of an event that the filter refuses is worth a record only if it settles what the sink gets as a fallback.
	if first || g.rec.Answer != wasAnswer || g.rec.Seq != was && (v.matches || endSettles(q.route, m.Change.Event)) {
		q.markDirty(g)
	}
	if v.pending {
		q.addPending(g, m, reply)
		return
	}
	if v.state != "" {
		g.rec.settle(m.DeliveryID(), result{At: time.Now().UTC(), State: v.state, Answer: v.answer})
		q.markDirty(g)
	}
	q.ackWhenSaved(g, m.Seq, reply)
}

// isOver reports whether the event that a message is about is over, by the sink's record or that of the sink whose fallback
// it is, and that end settles what is still pending. For all but sinks that are told everything it also settles reminders
// and what comes of an approval: nobody reads that it is over and then that it may begin. What somebody asked for is never
// over.
func (r *record) isOver(route bridge.Route, m streams.Message) bool {
	asked := m.OnlySink != "" && m.FallbackFor == nil
	if asked || m.EventID == "" || m.Change.Kind == imds.Vanished {
		return false
	}
	over := m.EventOver || r.Kind == imds.Vanished && !r.MovesOnTo(m)
	unaware := m.FallbackFor != nil && route.Terms.Late.OverAtEnd(false) // it need not get the end too
	noNews := !m.Change.Kind.OfAzure() && route.Terms.Late != delivery.LateSend
	return over && (unaware || noNews || endSettles(route, m.Change.Event))
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
func (q *queue) supersede(g *group, m streams.Message, selected bool) {
	now := time.Now()
	newWaits := q.route.LeadTime(m.Change.Kind, m.NotBefore()).After(now)
	ends := m.Change.Kind == imds.Started || m.Change.Kind == imds.Vanished
	eventOver := m.Change.Kind == imds.Vanished && q.route.Terms.Late.OverAtEnd(selected)
	for _, seq := range g.pending {
		if seq > m.Seq {
			continue
		}
		e := q.pending[seq]
		waits, over := q.waits(e, now), selected || ends
		reminder := e.item.Change == string(imds.Reminder)
		u := q.transfers.due[seq]
		dead := u != nil && u.dead // it has failed for good, and that stays on record
		switch {
		case eventOver && !e.item.Ends() && !dead:
			q.settleSuperseded(e, result{At: now.UTC(), Answer: delivery.EventOver})
		case over && (waits || reminder), reminder && !e.item.NotBefore.Equal(m.NotBefore()),
			selected && imds.ChangeKind(e.item.Change).Announces() && newWaits:
			q.settleSuperseded(e, result{At: now.UTC()})
		case waits:
			next := *e.item
			next.NotBefore = m.NotBefore()
			next.PendingSince = q.route.LeadTime(imds.ChangeKind(next.Change), next.NotBefore)
			q.replace(e, next)
		}
	}
}

// settleSuperseded settles a delivery that a newer change makes obsolete. An attempt under way counts, and is remembered: it
// may be accepted all the same. mu is held.
func (q *queue) settleSuperseded(e *pendingItem, res result) {
	res.State, res.Attempts = resultSuperseded, e.item.Attempts
	if e.begun {
		res.Attempts++
	}
	q.settle(e, res)
	q.notifyWorker(e.item.Seq)
	if e.begun {
		q.superseded[e.item.Seq] = e.id
	}
}

// waits reports whether a delivery waits for the lead of the route. Until then it is not pending for the Worker, and its
// PendingSince lies ahead. mu is held.
func (q *queue) waits(e *pendingItem, now time.Time) bool {
	return q.route.Terms.Lead > 0 && e.item.PendingSince.After(now)
}

// addPending makes a message pending. mu is held.
func (q *queue) addPending(g *group, m streams.Message, reply string) {
	id, i := m.DeliveryID(), m.Item()
	if now := time.Now(); now.Before(i.PendingSince) { // by a server's clock that is ahead
		i.PendingSince = now.UTC()
	}
	if q.route.Terms.Lead > 0 && m.OnlySink == "" && m.Change.Kind.Announces() {
		if g.rec.Kind.Announces() { // the message may be read again, and the event have moved since
			i.NotBefore = g.rec.NotBefore
		}
		i.PendingSince = later(m.Stored, q.route.LeadTime(m.Change.Kind, i.NotBefore))
	}
	w, accepted := g.rec.Waiting[id]
	if accepted {
		i.Attempts, i.Next, i.Error, i.Progress = w.Attempts, w.Next, w.Error, w.Progress
		i.Batch, i.FellBack = w.Batch, w.FellBack
	} else {
		g.rec.accept(id, waiting{})
		q.markDirty(g)
	}
	e := &pendingItem{item: i, id: id, reply: reply, group: g, set: m.From.String(), bytes: m.Bytes}
	q.keepBody(e, &m.CE)
	q.pending[m.Seq] = e
	q.count(e, 1)
	g.pending[id] = m.Seq
}
