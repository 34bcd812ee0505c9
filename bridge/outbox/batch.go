package outbox

import (
	"slices"
	"time"

	"forewarn/bridge/delivery"
)

// A Batch is one change of state, which is kept whole or not at all. Its parts are applied in the order of the fields.
type Batch struct {
	Now    time.Time
	Routes []Route           // nil: they stay as they are; see SetRoutes
	Values map[string][]byte // small named values of the owner; nil deletes
	Marks  map[string]Mark   // ids that were used; they are kept until 30 days after their group is over
	Remove []Ref             // pending deliveries that leave no trace
	// Supersede are pending deliveries that something newer stands for.
	Supersede []Ref
	Move      []Move
	Add       []Addition
	Groups    map[string]*Group // nil: the group is over; its marks and receipts stay 30 days more
}

// A Group is what belongs together, such as all about one Azure event.
type Group struct {
	State []byte // the owner's
	// Latest is the sequence number of its newest change. The body of that one, and what became of its deliveries, can be
	// asked while the group is open.
	Latest uint64
}

// A Mark remembers that an id was used.
type Mark struct {
	Times int       `json:"times"`
	Group string    `json:"event"`
	At    time.Time `json:"at"`
}

// An Addition is one CloudEvent and the routes that it becomes pending for, unless it is already.
type Addition struct {
	Seq       uint64 // from Reserve
	Body      []byte // in the JSON format; nil: it was added before
	ID        string // of the CloudEvent
	Type      string // of the CloudEvent
	Group     string
	Change    string
	AzureType string
	NotBefore time.Time
	To        []Recipient
	Transient bool // leaves no history: its body goes with its last delivery
	Replaced  bool // see delivery.Item
}

// A Recipient is a route that a CloudEvent becomes pending for.
type Recipient struct {
	Route string
	Due   time.Time // zero: at once
	// Held says that it waits for a decision of the owner, until Due at the latest. See Outbox.Held.
	Held bool
}

// A Ref names a pending delivery.
type Ref struct {
	Route string
	Seq   uint64
}

// A Move gives a pending delivery other times.
type Move struct {
	Ref
	Due       time.Time
	NotBefore time.Time
	Held      bool
	Restart   bool // its age counts from Batch.Now
}

// Apply makes the change. It returns when that is on disk. An error says that it isn't yet: it counts all the same,
// from memory. What it names and isn't pending any more is left out.
func (o *Outbox) Apply(b Batch) error { return o.Submit(b)() }

// Submit makes the change without waiting for the disk. wait returns when it is there, as Apply does.
func (o *Outbox) Submit(b Batch) (wait func() error) {
	if o.readOnly {
		return func() error { return ErrReadOnly }
	}
	n := o.change(b.Now, func(c *change) { c.apply(b) })
	o.wake()
	return func() error { return o.sync(n) }
}

func (c *change) apply(b Batch) {
	if b.Routes != nil {
		c.setRoutes(b.Routes)
	}
	for name, v := range b.Values {
		c.setValue(name, v)
	}
	for id, m := range b.Marks {
		c.marks[id] = m
		c.write(bucketMarks, id, encode(m))
	}
	for _, r := range b.Remove {
		if e := c.entry(r); e != nil {
			c.remove(e)
		}
	}
	for _, r := range b.Supersede {
		if e := c.entry(r); e != nil {
			c.settle(e, StateSuperseded, "", delivery.Answer{}, e.item.Attempts)
		}
	}
	for _, m := range b.Move {
		c.move(m)
	}
	n := 4*len(b.Add) + 2*len(b.Groups)
	for _, a := range b.Add {
		n += len(a.To)
	}
	c.writes = slices.Grow(c.writes, n)
	for _, a := range b.Add {
		c.add(a)
	}
	for id, g := range b.Groups {
		c.setGroup(id, g)
	}
}

// add makes a CloudEvent pending for its recipients.
func (c *change) add(a Addition) {
	c.last = max(c.last, a.Seq)
	m := c.messages[a.Seq]
	if m == nil {
		m = &message{seq: a.Seq}
		c.messages[a.Seq] = m
	}
	if m.id == "" {
		m.set(head{a.ID, a.Type, a.Group, a.Change, a.AzureType, max(len(a.Body), m.bytes), a.Transient, a.Replaced})
		c.write(bucketHeads, seqKey(a.Seq), encode(m.head()))
	}
	if a.Body != nil {
		m.body = a.Body
		c.write(bucketEvents, seqKey(a.Seq), a.Body)
		c.write(bucketMeta, metaLast, []byte(seqKey(c.last)))
		c.bodies = append(c.bodies, m)
	}
	c.use(m) // so that it stays until all its recipients have it
	for _, to := range a.To {
		c.pend(&entry{message: m, route: c.route(to.Route), held: to.Held, item: delivery.Item{
			NotBefore: a.NotBefore, Pending: c.now.UTC(), Due: to.Due.UTC(),
		}})
	}
	c.disuse(m)
}

func (c *change) move(m Move) {
	e := c.entry(m.Ref)
	if e == nil {
		return
	}
	next := e.copy()
	next.item.Due, next.item.NotBefore, next.held = m.Due.UTC(), m.NotBefore, m.Held
	if m.Restart {
		next.item.Pending = c.now.UTC()
	}
	c.replace(e, next)
	c.offers = append(c.offers, next)
}

func (c *change) setGroup(id string, g *Group) {
	if was := c.groups[id]; was != nil {
		defer c.disuse(c.messages[was.Latest]) // after the new one is in use, which may be the same
	}
	if g == nil {
		delete(c.groups, id)
		c.over[id] = c.now.UTC()
		c.write(bucketGroups, id, nil)
		c.write(bucketOver, id, encode(c.now.UTC()))
		return
	}
	kept := *g
	c.groups[id] = &kept
	c.useLatest(&kept)
	c.write(bucketGroups, id, encodeGroup(kept))
	if _, ok := c.over[id]; ok {
		delete(c.over, id)
		c.write(bucketOver, id, nil)
	}
}

func (c *change) setValue(name string, v []byte) {
	if v == nil {
		delete(c.values, name)
	} else {
		c.values[name] = v
	}
	c.write(bucketValues, name, v)
}

func (c *change) own(vmID string) {
	c.owner = vmID
	c.write(bucketMeta, metaOwner, []byte(vmID))
}
