package outbox

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"forewarn/bridge/delivery"
)

// A Batch is one change of state, applied whole or not at all. Its parts are applied in the order of the fields.
type Batch struct {
	Now    time.Time
	Routes []Route           // all routes from now on; nil for no change; see NewRoutes
	Values map[string][]byte // small named values of the owner; nil deletes
	Mutes  []delivery.Mute   // new ones, and changed ones with the ID that they had
	Marks  map[string]Mark   // ids that were used, which begin with their group; kept until 30 days after that is over
	// Reported lists dead letters that the owner has reported. Outbox.Unreported no longer returns them.
	Reported []Ref
	Add      []Addition
	// Groups that change. nil: the group is over, and what is pending of it is settled where the route's Late asks for
	// that; its marks and receipts stay 30 days more.
	Groups map[string]*Group
	// Supersede lists pending deliveries that newer ones replace. What the end of a group settles need not be listed.
	Supersede []Ref
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
}

// An Addition adds a CloudEvent, and makes it pending for those of its recipients for which it is not pending yet.
type Addition struct {
	delivery.Message        // Seq is from Reserve
	Body             []byte // in the JSON format; nil: it was added before
	NotBefore        time.Time
	To               []string // routes
}

// A Ref names a delivery.
type Ref struct {
	Route string
	Seq   uint64
}

// Apply makes the change, and returns when it is on disk. After an error the change is in memory only, until a later
// write succeeds. Apply ignores deliveries that are no longer there.
func (o *Outbox) Apply(b Batch) error { return o.Submit(b)() }

// Submit makes the change without waiting for the disk. wait waits for the disk as Apply does.
func (o *Outbox) Submit(b Batch) (wait func() error) {
	return o.submit(b.Now, func(c *change) { c.apply(b) })
}

// A change is one change of state: it alters memory and collects the writes that make it durable. Its caller holds the
// lock from beginning to end, so nobody sees half a change.
type change struct {
	*memory
	number      uint64
	now         time.Time
	writes      records             // of all changes that are not durable yet
	wrote       bool                // the change has added to writes
	added       [][]byte            // CloudEvents
	messages    map[uint64]*message // those that it added
	newDead     []Delivery          // dead letters that the change made
	lost        []Delivery          // deliveries that replaceLost replaced
	deadDropped int                 // dead letters that the change dropped because of Bounds
}

// write adds a record to those that make the change durable: see records. Nothing is left of one that is deleted before
// it was given to the storage, or they would grow without end while that cannot be opened.
func (c *change) write(bucket, key string, value any) {
	p := place{bucket, key}
	if value == nil && c.writes[p] != nil && p.seq() > c.given {
		delete(c.writes, p)
	} else {
		c.writes[p] = value
	}
	c.wrote = true
}

func (c *change) apply(b Batch) {
	if b.Routes != nil {
		c.setRoutes(b.Routes)
	}
	for name, v := range b.Values {
		c.setValue(name, v)
	}
	c.setMutes(b.Mutes)
	for id, m := range b.Marks {
		markTable.set(c, id, m)
	}
	for _, r := range b.Reported {
		c.setReported(r)
	}
	for _, a := range b.Add {
		c.add(a)
	}
	for id, g := range b.Groups {
		c.setGroup(id, g)
	}
	for _, r := range b.Supersede {
		if e := c.entry(r); e != nil {
			c.supersede(e, "")
		}
	}
}

// setValue sets a value of the owner; nil deletes it.
func (c *change) setValue(name string, v []byte) {
	if v == nil {
		delete(c.values, name)
		c.write(bucketValues, name, nil)
		return
	}
	valueTable.set(c, name, v)
}

// add makes a CloudEvent pending for its recipients.
func (c *change) add(a Addition) {
	c.last = max(c.last, a.Seq)
	m := c.message(a.Seq)
	if m == nil {
		m = &message{Message: a.Message, bytes: len(a.Body)}
		c.messages[a.Seq] = m
	}
	if a.Body != nil {
		c.added = append(c.added, a.Body)
		c.write(bucketEvents, seqKey(a.Seq), a.Body)
		c.write(bucketMeta, metaLast, []byte(seqKey(c.last)))
	}
	for _, name := range a.To {
		c.addPending(m, c.route(name), delivery.Item{NotBefore: a.NotBefore, PendingSince: c.now.UTC()})
	}
	c.dropTransient(m)
}

func (c *change) setGroup(id string, to *Group) {
	g := c.group(id)
	if to == nil {
		c.setLatest(g, nil)
		g.state, g.cloudEvent, g.ended = nil, nil, c.now.UTC()
		c.write(bucketGroups, id, nil)
		c.write(bucketEnded, id, g.ended)
		for _, e := range slices.SortedFunc(maps.Keys(g.pending), bySeq) {
			c.settleIfOver(e)
		}
		return
	}
	latest := cmp.Or(c.message(to.Latest), c.messages[to.Latest])
	if latest == nil {
		latest = &message{Message: delivery.Message{Seq: to.Latest, Group: id}, bytes: len(to.CloudEvent)}
	}
	c.openGroup(g, *to, latest)
	c.write(bucketGroups, id, g.stored())
	if !g.ended.IsZero() {
		g.ended = time.Time{}
		c.write(bucketEnded, id, nil)
	}
}

// dropTransient deletes a transient CloudEvent that no route has any more.
func (c *change) dropTransient(m *message) {
	if m.Transient && c.message(m.Seq) == nil {
		c.write(bucketEvents, seqKey(m.Seq), nil)
	}
}

// addPending makes a delivery pending, unless it already is. Its reader gets it once the change is durable. What is
// transient takes the place of what was transient before.
func (c *change) addPending(m *message, r *route, i delivery.Item) {
	if r.pending.find(m.Seq) != nil {
		return
	}
	if r.transient != nil && m.Transient {
		c.remove(r.transient)
	}
	e := newEntry(m, r, i)
	e.change = c.number
	c.show(e.Group)
	c.store(e)
}

// replace replaces a delivery, pending or dead.
func (c *change) replace(e, next *entry) {
	c.release(e)
	c.store(next)
}

// store adds a delivery, pending or dead.
func (c *change) store(e *entry) {
	c.put(e)
	e.route.reader.touch(e.Seq)
	c.write(e.bucket(), e.storedKey(), &e.Delivery)
}

// remove removes a delivery, pending or dead, and leaves no history of it.
func (c *change) remove(e *entry) {
	c.take(e)
	e.route.reader.touch(e.Seq)
	c.write(e.bucket(), e.storedKey(), nil)
	c.dropTransient(e.message)
}

// supersede ends a pending delivery that a newer one replaces, or that why makes obsolete.
func (c *change) supersede(e *entry, why string) {
	c.record(e.message, &e.Item, Result{Route: e.Route, State: StateSuperseded, Attempts: e.Attempts, Answer: why})
	c.remove(e)
}

// settleIfOver settles a pending delivery of a group that is over, if its route's Late asks for that.
func (c *change) settleIfOver(e *entry) {
	toldOfEnd := false
	for other := range c.groups[e.Group].pending {
		toldOfEnd = toldOfEnd || other.route == e.route && other.Ends()
	}
	if !e.Ends() && e.route.late.OverAtEnd(toldOfEnd) {
		c.supersede(e, delivery.EventOver)
	}
}

// settleOver settles what is pending for a route about groups that ended before it had its Late. What somebody asked for
// stays: it may have been asked for after the end.
func (c *change) settleOver(r *route) {
	for _, e := range slices.Clone(r.pending) {
		if c.isOver(e.Group) && !e.Replayed {
			c.settleIfOver(e)
		}
	}
}

// record keeps the result of a delivery in the history, unless the message is transient.
func (c *change) record(m *message, i *delivery.Item, r Result) {
	if m.Transient {
		return
	}
	r.At, r.ReplayedBy = c.now.UTC(), i.ReplayedBy
	m.setResult(r)
	c.write(bucketSettled, deliveryKey(m.Seq, r.Route), r)
}

// giveUp makes a dead letter of a pending delivery, and hands it to the fallback of its route, unless it is late or
// above the bounds. attempted reports whether an attempt was the cause, not a bound or a decision.
func (c *change) giveUp(e *entry, reason, cause string, attempted bool) {
	d := e.copy()
	if attempted {
		d.Attempts++
		d.LastAttempt = c.now.UTC()
	}
	d.Next, d.change = time.Time{}, c.number
	d.State, d.Reason, d.DeadSince, d.Unreported = StateDead, reason, c.now.UTC(), e.Group != ""
	if cause != "" {
		d.Error = cause
	}
	if was := e.route.dead.find(e.Seq); was != nil { // it became pending again other than by a replay
		c.remove(was)
	}
	c.store(d)
	c.newDead = append(c.newDead, d.record())
	if reason != delivery.ReasonLate && reason != delivery.ReasonOverflow { // a fallback's copy would take the room again
		c.fallBack(e, d.Error)
	}
	c.remove(e)
}

// setReported records that a dead letter is reported.
func (c *change) setReported(ref Ref) {
	r := c.routes[ref.Route]
	if r == nil {
		return
	}
	d := r.dead.find(ref.Seq)
	if d == nil || !d.Unreported {
		return
	}
	next := d.copy()
	next.Unreported = false
	c.replace(d, next)
}

// fallBack makes a dead letter of a route pending for the route's fallback. It does not if the fallback has or had the
// message, if the message reports trouble of the fallback, if the delivery was itself a fallback, if the message is
// transient, or if its group is over and the fallback begins nothing then.
func (c *change) fallBack(e *entry, why string) {
	to := e.route.fallback
	if to == "" || to == e.About || e.FallbackFor != nil || e.Transient || c.deliveryState(to, e.Seq) != "" {
		return
	}
	if c.isOver(e.Group) && !e.Ends() && c.route(to).late == delivery.LateDrop {
		return
	}
	if why == "" {
		why = "no answer"
	}
	c.addPending(e.message, c.route(to), delivery.Item{
		NotBefore: e.NotBefore, PendingSince: c.now.UTC(), FallbackFor: &delivery.FallbackFor{Sink: e.Route, Error: why},
	})
}
