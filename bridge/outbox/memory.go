package outbox

import (
	"slices"
	"time"

	"forewarn/bridge/delivery"
)

// memory is all that the outbox knows. Only a change alters it, and the loading of the file.
type memory struct {
	grown  tally // by how much the history has, since Maintain last bounded it
	bounds Bounds

	last     uint64 // sequence number
	owner    string // vmId
	foreign  uint64 // what is up to this sequence number was another VM's
	values   map[string][]byte
	groups   map[string]*Group    // that aren't over
	over     map[string]time.Time // groups that are, and since when
	marks    map[string]Mark
	receipts map[string]map[string][]byte // by group and route
	messages map[uint64]*message
	routes   map[string]*route
	dead     map[string]*deadLetter // by key

	byGroup   map[string][]*entry // pending
	held      map[*entry]bool     // pending
	pending   tally
	unstored  int // pending deliveries that no disk has
	deadSize  tally
	deadBySeq ordered[*deadLetter]

	deadUnstored      int
	deadUnstoredBySeq ordered[*deadLetter]
}

// tally counts deliveries and the bytes of their CloudEvents.
type tally struct{ n, bytes int }

// A route is what the outbox knows of one destination.
type route struct {
	name      string
	fallback  string    // the route that takes over what this one can't deliver; "" for none
	known     bool      // it is in the settings, or was lately
	gone      time.Time // when it went from the settings; zero while it is there
	pending   map[uint64]*entry
	ofGroups  ordered[*entry] // those about a group, by age
	others    ordered[*entry] // those about none, by age
	unstored  ordered[*entry] // those that no disk has, by age
	volatile  int             // how many no disk has
	dead      int
	delivered int       // since the start
	accepted  time.Time // the last acceptance since the start
	reported  int       // deliveries reported by the worker that aren't on disk
	reader    *queue
}

func newMemory(b Bounds) memory {
	m := memory{bounds: b, routes: map[string]*route{}}
	m.forget()
	return m
}

// forget drops all but the sequence number and which routes there are.
func (m *memory) forget() {
	for _, r := range m.routes {
		for _, e := range r.pending {
			e.gone = true
			r.reader.drop(e)
		}
		*r = *newRoute(r.name, r)
	}
	m.owner, m.foreign = "", m.last
	m.values, m.groups, m.over = map[string][]byte{}, map[string]*Group{}, map[string]time.Time{}
	m.marks, m.receipts = map[string]Mark{}, map[string]map[string][]byte{}
	m.messages, m.dead = map[uint64]*message{}, map[string]*deadLetter{}
	m.byGroup, m.held = map[string][]*entry{}, map[*entry]bool{}
	m.pending, m.deadSize, m.unstored, m.deadUnstored = tally{}, tally{}, 0, 0
	bySeq := func(a, b *deadLetter) bool { return a.seq < b.seq || a.seq == b.seq && a.Route < b.Route }
	gone := func(d *deadLetter) bool { return d.gone }
	m.deadBySeq = ordered[*deadLetter]{before: bySeq, gone: gone}
	m.deadUnstoredBySeq = ordered[*deadLetter]{before: bySeq, gone: func(d *deadLetter) bool { return d.gone || d.stored }}
}

// newRoute is a route with nothing pending; of what is remembered of it before counts, if it isn't nil, how it stands
// in the settings and who reads it.
func newRoute(name string, before *route) *route {
	older := func(a, b *entry) bool {
		if a, b := a.since(), b.since(); !a.Equal(b) {
			return a.Before(b)
		}
		return a.seq < b.seq
	}
	gone := func(e *entry) bool { return e.gone }
	r := &route{name: name, pending: map[uint64]*entry{}}
	if before != nil {
		r.fallback, r.known, r.gone, r.reader = before.fallback, before.known, before.gone, before.reader
	}
	r.ofGroups, r.others = ordered[*entry]{before: older, gone: gone}, ordered[*entry]{before: older, gone: gone}
	r.unstored = ordered[*entry]{before: older, gone: func(e *entry) bool { return e.gone || e.batch == nil }}
	return r
}

// route is that of the name, made if need be.
func (m *memory) route(name string) *route {
	r := m.routes[name]
	if r == nil {
		r = newRoute(name, nil)
		m.routes[name] = r
	}
	return r
}

// entry is the pending delivery, nil if it isn't pending.
func (m *memory) entry(ref Ref) *entry {
	if r := m.routes[ref.Route]; r != nil {
		return r.pending[ref.Seq]
	}
	return nil
}

// put makes a delivery pending. There is none of its route and sequence number.
func (m *memory) put(e *entry) {
	e.complete()
	e.route.pending[e.seq] = e
	if e.group == "" {
		e.route.others.add(e)
	} else {
		e.route.ofGroups.add(e)
	}
	if e.batch != nil {
		m.unstored++
		e.route.volatile++
		e.route.unstored.add(e)
	}
	if e.held {
		m.held[e] = true
	}
	e.index = len(m.byGroup[e.group])
	m.byGroup[e.group] = append(m.byGroup[e.group], e)
	m.pending.n++
	m.pending.bytes += e.bytes
	e.message.uses++
}

// take takes a pending delivery away. Its message is still in use; disuse follows.
func (m *memory) take(e *entry) {
	e.gone = true
	delete(e.route.pending, e.seq)
	m.settleStored(e)
	delete(m.held, e)
	list := m.byGroup[e.group]
	last := len(list) - 1
	list[e.index] = list[last]
	list[e.index].index = e.index
	list[last] = nil
	if m.byGroup[e.group] = list[:last]; last == 0 {
		delete(m.byGroup, e.group)
	}
	m.pending.n--
	m.pending.bytes -= e.bytes
}

// settleStored notes that the delivery is on disk, or need not be.
func (m *memory) settleStored(e *entry) {
	if e.batch != nil {
		e.batch = nil
		m.unstored--
		e.route.volatile--
	}
}

func (m *memory) putDead(d *deadLetter) {
	m.dead[d.Key] = d
	m.deadSize.n++
	m.deadSize.bytes += d.Bytes
	m.route(d.Route).dead++
	m.deadBySeq.add(d)
	if !d.stored {
		m.deadUnstored++
		m.deadUnstoredBySeq.add(d)
	}
	d.message.uses++
}

func (m *memory) takeDead(d *deadLetter) {
	d.gone = true
	delete(m.dead, d.Key)
	m.deadSize.n--
	m.deadSize.bytes -= d.Bytes
	m.route(d.Route).dead--
	m.settleDeadStored(d)
}

func (m *memory) settleDeadStored(d *deadLetter) {
	if !d.stored {
		d.stored = true
		m.deadUnstored--
	}
}

// useLatest keeps the group's newest change.
func (m *memory) useLatest(g *Group) {
	if m.messages[g.Latest] == nil {
		m.messages[g.Latest] = &message{seq: g.Latest}
	}
	m.messages[g.Latest].uses++
}

func (m *memory) setReceipt(group, route string, receipt []byte) {
	if m.receipts[group] == nil {
		m.receipts[group] = map[string][]byte{}
	}
	m.receipts[group][route] = receipt
}

// outcome is what became of a delivery of a message that is in use.
func (m *memory) outcome(name string, seq uint64) Outcome {
	if m.entry(Ref{name, seq}) != nil {
		return Outcome{State: StatePending}
	}
	if d := m.dead[name+"/"+seqKey(seq)]; d != nil {
		return Outcome{StateDead, d.DeadSince}
	}
	if msg := m.messages[seq]; msg != nil {
		for _, s := range msg.settled {
			if s.route == name {
				return s.Outcome
			}
		}
	}
	return Outcome{}
}

// A change is one change of state under way: it alters memory and gathers the writes that make it durable. Both happen
// whole, because the lock is held from the beginning to the end.
type change struct {
	*memory
	*batch
	now  time.Time
	died []Delivery // dead letters that it made
	lost int        // dead letters that it dropped, for want of room or by age
}

// write adds to what makes the change durable; nil deletes.
func (c *change) write(bucket, key string, value []byte) {
	if value != nil && (bucket == bucketEvents || bucket == bucketSettled) {
		c.grown.n, c.grown.bytes = c.grown.n+1, c.grown.bytes+len(value)
	}
	c.writes = append(c.writes, Write{bucket, key, value})
}

func (c *change) use(m *message) { m.uses++ }

// disuse lets go of a message once. One that nothing refers to any more is history; if it is transient, it is gone.
func (c *change) disuse(m *message) {
	if m == nil {
		return
	}
	if m.uses--; m.uses > 0 {
		return
	}
	c.write(bucketHeads, seqKey(m.seq), nil)
	if m.transient {
		m.body = nil
		c.write(bucketEvents, seqKey(m.seq), nil)
	}
	if m.body == nil {
		delete(c.messages, m.seq)
	} // else it goes when it is on disk
}

// pend makes a delivery pending, unless it is already. Its reader gets it when it is durable.
func (c *change) pend(e *entry) bool {
	if e.route.pending[e.seq] != nil {
		return false
	}
	e.batch = c.batch
	c.put(e)
	c.offers = append(c.offers, e)
	c.added = append(c.added, e)
	c.write(bucketPending, e.key(), e.encode())
	return true
}

// replace puts next in the place of e. Whoever needs to see it is told by the caller.
func (c *change) replace(e, next *entry) {
	next.batch, next.known = e.batch, e.offered || e.known
	c.take(e)
	c.put(next)
	e.message.uses--
	if next.batch != nil {
		next.batch.added = append(next.batch.added, next)
	}
	c.write(bucketPending, next.key(), next.encode())
}

// remove takes a pending delivery away without a trace.
func (c *change) remove(e *entry) {
	c.take(e)
	e.route.reader.drop(e)
	c.write(bucketPending, e.key(), nil)
	c.disuse(e.message)
}

// settle ends a pending delivery for good.
func (c *change) settle(e *entry, how, status string, a delivery.Answer, attempts int) {
	c.record(e.message, e.route.name, how, status, a, attempts)
	c.remove(e)
}

// record keeps what became of a delivery, unless it leaves no history.
func (c *change) record(m *message, route, how, status string, a delivery.Answer, attempts int) {
	if m.transient {
		return
	}
	s := settlement{At: c.now.UTC(), How: how, ID: m.id, Group: m.group, Status: status, AnswerID: a.ID,
		Attempts: attempts}
	if a.Status != "" {
		s.Status = a.Status
	}
	m.became(route, Outcome{how, s.At})
	c.write(bucketSettled, seqKey(m.seq)+"/"+route, encode(s))
}

// became notes what became of a delivery; the last one counts.
func (m *message) became(route string, o Outcome) {
	m.settled = slices.DeleteFunc(m.settled, func(s settled) bool { return s.route == route })
	m.settled = append(m.settled, settled{route, o})
}

// giveUp makes a dead letter of a pending delivery, and hands it to the fallback of its route.
// attempted says that this comes of an attempt.
func (c *change) giveUp(e *entry, reason, cause string, attempted bool) {
	d := e.record()
	if attempted {
		d.Attempts++
		d.Tried = c.now.UTC()
	}
	d.State, d.Reason, d.DeadSince, d.Next, d.Held = StateDead, reason, c.now.UTC(), time.Time{}, time.Time{}
	if cause != "" {
		d.Error = cause
	}
	if was := c.dead[d.Key]; was != nil { // it became pending again in another way than by a replay
		c.forgetDead(was)
	}
	letter := &deadLetter{Delivery: d, message: e.message}
	c.putDead(letter)
	c.letters = append(c.letters, letter)
	c.write(bucketDead, d.Key, encode(d))
	c.died = append(c.died, d)
	if reason != delivery.ReasonLate {
		c.fallBack(e, d.Error)
	}
	c.remove(e)
}

// forgetDead forgets a dead letter.
func (c *change) forgetDead(d *deadLetter) {
	c.takeDead(d)
	c.write(bucketDead, d.Key, nil)
	c.disuse(d.message)
}
