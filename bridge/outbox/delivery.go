package outbox

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"forewarn/bridge/delivery"
)

// A Delivery is one CloudEvent for one route: pending, or a dead letter. Commands print its JSON; the file holds it
// without what the key contains. Next is the time of the next attempt.
type Delivery struct {
	Key   string `json:"key,omitempty"`  // route/sequence number
	Route string `json:"sink,omitempty"` // has no slash
	delivery.Item
	State       string    `json:"state,omitempty"` // StatePending or StateDead
	Reason      string    `json:"reason,omitempty"`
	Bytes       int       `json:"bytes,omitempty"` // of the CloudEvent
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	Muted       time.Time `json:"mutedUntil,omitzero"`
	// Mute is the one that holds it back, or the last one that it waited for; nil for none.
	Mute      *delivery.Mute `json:"-"`
	DeadSince time.Time      `json:"deadSince,omitzero"`
	// Overtaken means that the dead letter is late because something newer about its group was there. Nothing is given up
	// with it, and it is no trouble: a replay would do the same work twice.
	Overtaken bool `json:"overtaken,omitempty"`
	// Unreported means that the owner is still to report the dead letter. Only the file has it.
	Unreported bool `json:"unreported,omitempty"`
}

// The states of a delivery.
const (
	StatePending    = "pending"
	StateDead       = "dead"
	StateAccepted   = "accepted"   // settled: the destination has it
	StateSuperseded = "superseded" // settled: a newer one replaced it
	StateDropped    = "dropped"    // settled: a user dropped it
)

// An entry is one delivery in memory, pending or dead. Its Delivery is what the file stores, and immutable: a change
// replaces the entry.
type entry struct {
	Delivery
	message *message
	route   *route
	change  uint64 // number of the change that made it pending, or dead
	shown   bool   // a reader has it, perhaps from before it was on disk
	stale   bool   // removed from memory, or replaced

	underWay bool // its reader makes an attempt, whose result it has not reported
}

// newEntry returns a pending delivery of a CloudEvent.
func newEntry(m *message, r *route, i delivery.Item) *entry {
	i.Message = &m.Message
	return &entry{message: m, route: r, Delivery: Delivery{Route: r.name, State: StatePending, Item: i, Bytes: m.bytes}}
}

// record returns the delivery as commands print it.
func (e *entry) record() Delivery {
	d := e.Delivery
	d.Key, d.Unreported = e.key(), false
	if d.State == StatePending {
		d.Mute = e.mute()
	}
	if d.Mute.Active() {
		d.Muted = d.Mute.Until
	}
	return d
}

func deliveries(entries []*entry) []Delivery {
	list := make([]Delivery, len(entries))
	for i, e := range entries {
		list[i] = e.record()
	}
	return list
}

// key returns the key of the delivery as people see it.
func (e *entry) key() string { return e.Route + "/" + seqKey(e.Seq) }

// storedKey returns its key in its bucket.
func (e *entry) storedKey() string { return deliveryKey(e.Seq, e.Route) }

func (e *entry) bucket() string {
	if e.State == StateDead {
		return bucketDead
	}
	return bucketPending
}

// copy returns an entry that may be changed before it replaces e.
func (e *entry) copy() *entry {
	return &entry{Delivery: e.Delivery, message: e.message, route: e.route, change: e.change, shown: e.shown,
		underWay: e.underWay}
}

func bySeq(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.Seq, b.Seq), strings.Compare(a.Route, b.Route))
}

// oldestFirst orders pending deliveries by their sequence numbers, and dead letters by when they became that.
func oldestFirst(a, b *entry) int { return cmp.Or(a.DeadSince.Compare(b.DeadSince), bySeq(a, b)) }

// eachEntry calls f with every delivery in one of the lists of each route.
func (m *memory) eachEntry(list func(*route) ordered, f func(key string, d *Delivery)) {
	for _, r := range m.routes {
		for _, e := range list(r) {
			f(e.storedKey(), &e.Delivery)
		}
	}
}

// putStored adds a delivery as the file stores it.
func (m *memory) putStored(state, key string, d *Delivery) error {
	seq, name, err := splitStored(key)
	switch {
	case err != nil:
		return err
	case d.Message == nil:
		return errors.New("it says nothing of its CloudEvent")
	}
	m.last = max(m.last, seq)
	msg := m.message(seq)
	if msg == nil {
		msg = &message{Message: *d.Message, bytes: d.Bytes}
		msg.Seq = seq
	}
	r := m.route(name)
	e := &entry{Delivery: *d, message: msg, route: r}
	e.Route, e.State, e.Message = r.name, state, &msg.Message
	if e.Attempts == 0 {
		e.Next = time.Time{}
	}
	now := time.Now().UTC()
	if e.PendingSince.After(now) { // the clock was set back since
		e.PendingSince = now
	}
	m.put(e)
	return nil
}
