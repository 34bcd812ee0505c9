package outbox

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"forewarn/bridge/delivery"
)

// A Batch is a change of state, or a part of one. Its parts are applied in the order of the fields.
type Batch struct {
	Routes []Route           // all routes from now on; nil for no change; see Tx.NewRoutes
	Values map[string][]byte // small named values of the owner; nil deletes
	Mutes  []delivery.Mute   // new ones, and changed ones with the ID that they had
	Marks  map[string]Mark   // by the ids that were used; kept until 30 days after their group is over
	Add    []Addition
	// Groups that change. nil: the group is over, and what is pending of it is settled where the route's Late asks for
	// that; its marks and receipts stay 30 days more. What is added about a group that was never open counts as over.
	Groups map[string]*Group
}

// A Group is a set of related messages: those about one Azure event.
type Group struct {
	State json.RawMessage `json:"state"` // the owner's
	// Latest is the sequence number of its newest change. The outcome of its deliveries stays known while the group is
	// open.
	Latest uint64 `json:"latest"`
	// CloudEvent is that change. While the group is open it stays in memory, so that no damage to the file can lose it.
	CloudEvent json.RawMessage `json:"-"`
}

// A Mark records that an id was used.
type Mark struct {
	Times int       `json:"times"`
	Group string    `json:"event"`
	At    time.Time `json:"at"`
	Note  string    `json:"note,omitempty"` // what the owner wants to know of it later
}

// An Addition adds a CloudEvent, and makes it pending for those of its recipients for which it is not pending yet.
type Addition struct {
	delivery.Message        // Seq is from Tx.Reserve; 0: Apply sets it to the next one
	Body             []byte // in the JSON format
	Again            bool   // it was added before; its Body, if it has one, is stored once more, as the file may have lost it
	NotBefore        time.Time
	To               []string // routes
}

// Apply makes the changes of a batch. It ignores deliveries that are no longer there.
func (tx *Tx) Apply(b Batch) {
	if b.Routes != nil {
		tx.setRoutes(b.Routes)
	}
	for name, v := range b.Values {
		tx.setValue(name, v)
	}
	tx.setMutes(b.Mutes)
	for id, m := range b.Marks {
		tx.setMark(id, m)
		tx.write(bucketMarks, id, tx.markOf(m.Group, id)) // which may have the larger count
	}
	for i := range b.Add {
		if b.Add[i].Seq == 0 {
			b.Add[i].Seq = tx.Reserve()
		}
		tx.add(b.Add[i])
	}
	for id, g := range b.Groups {
		tx.setGroup(id, g)
	}
}

// setValue sets a value of the owner; nil deletes it.
func (tx *Tx) setValue(name string, v []byte) {
	if v == nil {
		delete(tx.values, name)
		tx.write(bucketValues, name, nil)
		return
	}
	valueTable.set(tx, name, v)
}

// add makes a CloudEvent pending for its recipients.
func (tx *Tx) add(a Addition) {
	tx.last = max(tx.last, a.Seq)
	m := tx.message(a.Seq)
	if m == nil {
		m = &message{Message: a.Message, bytes: len(a.Body)}
		tx.messages[a.Seq] = m
	}
	if a.Again && (len(a.To) == 0 || tx.outbox.body(a.Seq) != nil) {
		a.Body = nil // nobody reads it from the file
	}
	if a.Body != nil {
		if a.Group == "" {
			m.body = a.Body
		}
		if !a.Again {
			tx.added = append(tx.added, a.Body)
		}
		tx.write(bucketEvents, seqKey(a.Seq), a.Body)
		tx.write(bucketMeta, metaLast, []byte(seqKey(tx.last)))
	}
	for _, name := range a.To {
		tx.addPending(m, tx.route(name), delivery.Item{NotBefore: a.NotBefore, PendingSince: tx.now.UTC()})
	}
	tx.dropTransient(m)
}

func (tx *Tx) setGroup(id string, to *Group) {
	g := tx.group(id)
	if to == nil {
		tx.setLatest(g, nil)
		g.state, g.ended = nil, tx.now.UTC()
		tx.write(bucketGroups, id, nil)
		tx.write(bucketEnded, id, g.ended)
		for _, e := range slices.SortedFunc(maps.Keys(g.pending), bySeq) {
			tx.settleIfOver(e)
		}
		return
	}
	latest := cmp.Or(tx.message(to.Latest), tx.messages[to.Latest])
	if latest == nil {
		latest = &message{Message: delivery.Message{Seq: to.Latest, Group: id}, bytes: len(to.CloudEvent)}
	}
	tx.openGroup(g, *to, latest)
	tx.write(bucketGroups, id, g.stored())
	if !g.ended.IsZero() {
		g.ended = time.Time{}
		tx.write(bucketEnded, id, nil)
	}
}

// dropTransient deletes a transient CloudEvent that no route has any more.
func (tx *Tx) dropTransient(m *message) {
	if m.Transient && tx.message(m.Seq) == nil {
		tx.write(bucketEvents, seqKey(m.Seq), nil)
	}
}

// addPending makes a delivery pending, unless it already is. Its reader gets it once the change is durable. What is
// transient takes the place of what was transient before.
func (tx *Tx) addPending(m *message, r *route, i delivery.Item) {
	if r.pending.find(m.Seq) != nil {
		return
	}
	if r.transient != nil && m.Transient {
		tx.remove(r.transient)
	}
	e := newEntry(m, r, i)
	e.change = tx.number
	tx.showOlder(e.Group)
	tx.store(e)
}

// replace replaces a delivery, pending or dead.
func (tx *Tx) replace(e, next *entry) {
	tx.release(e)
	tx.store(next)
}

// store adds a delivery, pending or dead.
func (tx *Tx) store(e *entry) {
	tx.put(e)
	e.route.reader.touch(e.Seq)
	tx.write(e.bucket(), e.storedKey(), &e.Delivery)
}

// remove removes a delivery, pending or dead, and leaves no history of it.
func (tx *Tx) remove(e *entry) {
	tx.take(e)
	e.route.reader.touch(e.Seq)
	tx.write(e.bucket(), e.storedKey(), nil)
	tx.dropTransient(e.message)
}

// supersede ends a pending delivery that a newer one replaces, or that why makes obsolete. An attempt under way counts;
// its error is recorded when it comes.
func (tx *Tx) supersede(e *entry, why string) {
	r := Result{Route: e.Route, State: StateSuperseded, Attempts: e.Attempts, Answer: why}
	if e.underWay {
		r.Attempts++
		e.route.cutShort[e.Seq] = r
	}
	tx.record(e.message, &e.Item, r)
	tx.remove(e)
}

// settleIfOver settles a pending delivery of a group that is over, if its route's Late asks for that.
func (tx *Tx) settleIfOver(e *entry) {
	toldOfEnd := false
	for other := range tx.groups[e.Group].pending {
		toldOfEnd = toldOfEnd || other.route == e.route && other.Ends()
	}
	if !e.Ends() && e.route.late.OverAtEnd(toldOfEnd) {
		tx.supersede(e, delivery.EventOver)
	}
}

// settleOver settles what is pending for a route about groups that ended before it had its Late, or whose end was dropped.
// What somebody asked for stays: it may have been asked for after the end.
func (tx *Tx) settleOver(r *route) {
	for _, e := range slices.Clone(r.pending) {
		if tx.isOver(e.Group) && !e.Replayed {
			tx.settleIfOver(e)
		}
	}
}

// record keeps the result of a delivery in the history, unless the message is transient.
func (tx *Tx) record(m *message, i *delivery.Item, r Result) {
	if m.Transient {
		return
	}
	r.At, r.ReplayedBy = tx.now.UTC(), i.ReplayedBy
	if i.FallbackFor != nil {
		r.Fallback = i.FallbackFor.Sink
	}
	m.setResult(r)
	tx.write(bucketSettled, deliveryKey(m.Seq, r.Route), r)
}

// giveUp makes a dead letter of a pending delivery, and hands it to the fallback of its route, unless it is late or
// above the bounds.
func (tx *Tx) giveUp(e *entry, reason, cause string) {
	d := e.copy()
	d.Next, d.change = time.Time{}, tx.number
	d.State, d.Reason, d.DeadSince = StateDead, reason, tx.now.UTC()
	d.Overtaken = reason == delivery.ReasonLate && tx.isOvertaken(e)
	d.Unreported = e.Group != "" && !d.Overtaken
	if cause != "" {
		d.Error = cause
	}
	was := e.route.dead.find(e.Seq)
	if was != nil { // it became pending again other than by a replay
		tx.remove(was)
	}
	if e.Transient {
		tx.dropTransientLetter(e.route)
	}
	tx.store(d)
	tx.newDead = append(tx.newDead, d.record())
	if reason != delivery.ReasonLate && reason != delivery.ReasonOverflow { // a fallback's copy would take the room again
		tx.fallBack(e, d.Error)
	}
	tx.remove(e)
}

// dropTransientLetter drops the dead letter of a route whose message is transient, if there is one: another takes its place.
func (tx *Tx) dropTransientLetter(r *route) {
	at := slices.IndexFunc(r.dead, func(e *entry) bool { return e.Transient })
	if at >= 0 {
		tx.remove(r.dead[at])
	}
}

// isOvertaken reports whether a newer delivery of its group is pending for the route of a pending delivery.
func (tx *Tx) isOvertaken(e *entry) bool {
	for other := range tx.groups[e.Group].pending {
		if other.route == e.route && other.Seq > e.Seq {
			return true
		}
	}
	return false
}

// fallBack makes a dead letter of a route pending for the route's fallback. It does not if the fallback has or had the
// message, if the message reports trouble of the fallback, if the delivery was itself a fallback, if the message is
// transient, if its group is over and the fallback isn't told every change, or if the fallback delivers only the latest of
// a group and has delivered a newer one.
func (tx *Tx) fallBack(e *entry, why string) {
	to := e.route.fallback
	if to == "" || to == e.About || e.FallbackFor != nil || e.Transient || tx.delivery(to, e.Seq).State != "" {
		return
	}
	late := tx.route(to).late
	over := tx.isOver(e.Group) && !e.Ends() // who gets only this must not read that it is to come
	if over && late.OverAtEnd(false) || late == delivery.LateLatest && tx.toldNewer(to, e) {
		return
	}
	if why == "" {
		why = "no answer"
	}
	tx.addPending(e.message, tx.route(to), delivery.Item{
		NotBefore: e.NotBefore, PendingSince: tx.now.UTC(), FallbackFor: &delivery.FallbackFor{Sink: e.Route, Error: why},
	})
}
