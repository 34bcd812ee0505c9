package outbox

import (
	"maps"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/delivery"
)

// A Tx is one change of state, made within Update, which holds the lock from beginning to end, so nobody sees half of one.
// It alters memory, and collects the writes that make it durable.
type Tx struct {
	*memory
	outbox      *Outbox
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

// Update makes one change of state: whatever f does is applied whole or not at all. f holds the lock of the outbox, so it
// must be quick, and call no method of the Outbox. wait returns when the change is on disk. After an error the change is in
// memory only, until a later write succeeds. An outbox that is open only for reading doesn't call f.
func (o *Outbox) Update(now time.Time, f func(*Tx)) (wait func() error) {
	if o.readOnly {
		return func() error { return ErrReadOnly }
	}
	n := o.change(now, f)
	if n > 0 {
		wake(o.kick)
	}
	return func() error { return o.sync(n) }
}

// write adds a record to those that make the change durable: see records. Nothing is left of one that is deleted before
// it was given to the storage, or they would grow without end while that cannot be opened.
func (tx *Tx) write(bucket, key string, value any) {
	p := address{bucket, key}
	if value == nil && tx.writes[p] != nil && p.seq() > tx.given {
		delete(tx.writes, p)
	} else {
		tx.writes[p] = value
	}
	tx.wrote = true
}

// Reserve returns the next sequence number: the time in microseconds, made unique. It always increases, even after a
// restart with the clock set back.
func (tx *Tx) Reserve() uint64 {
	tx.last = max(tx.last+1, uint64(max(0, tx.now.UnixMicro())))
	return tx.last
}

// Mutes is Outbox.Mutes.
func (tx *Tx) Mutes() []*delivery.Mute { return slices.Clone(tx.mutes) }

// Delivery is Outbox.Delivery.
func (tx *Tx) Delivery(route string, seq uint64) Delivery { return tx.delivery(route, seq) }

// Pending is Outbox.Pending.
func (tx *Tx) Pending(group string) []Delivery { return tx.pendingOf(group) }

// Supersede settles a pending delivery that a newer one replaces. What the end of a group settles need not be superseded.
func (tx *Tx) Supersede(d Delivery) {
	e := tx.pendingEntry(d.Route, d.Seq)
	if e != nil {
		tx.supersede(e, "")
	}
}

// Withdraw takes back a pending delivery that its route was never to get, and leaves no history of it.
func (tx *Tx) Withdraw(d Delivery) {
	e := tx.pendingEntry(d.Route, d.Seq)
	if e != nil {
		tx.remove(e)
	}
}

// Unreported returns the dead letters of a route that the owner is still to report, in order. Never reported are those
// without a group, and those that came too late because a newer delivery of their group was pending.
func (tx *Tx) Unreported(route string) []Delivery {
	r := tx.routes[route]
	if r == nil {
		return nil
	}
	return deliveries(slices.SortedFunc(maps.Keys(r.unreported), bySeq))
}

// SetReported records that the owner has reported a dead letter: Unreported no longer returns it.
func (tx *Tx) SetReported(d Delivery) {
	r := tx.routes[d.Route]
	if r == nil {
		return
	}
	e := r.dead.find(d.Seq)
	if e == nil || !e.Unreported {
		return
	}
	next := e.copy()
	next.Unreported = false
	tx.replace(e, next)
}

// HoldActing keeps deliveries about some groups from routes with delivery.LateDrop, while nobody knows whether these groups
// are over. held picks the groups, and is called under the lock; nil lets all go. What a route has been given stays given.
func (tx *Tx) HoldActing(held func(group string) bool) {
	tx.outbox.held = held
	tx.outbox.wakeReaders()
}

// Own makes the VM the owner of the outbox. An outbox of another VM, whose disk was cloned, is set aside and never
// sent; fresh is true then.
func (tx *Tx) Own(vmID string) (fresh bool) {
	if vmID == "" || strings.EqualFold(tx.owner, vmID) {
		return false
	}
	foreign := checkOwner(tx.owner, vmID)
	if foreign != nil {
		tx.reset()
		tx.outbox.forget(foreign)
	}
	tx.owner = vmID
	tx.write(bucketMeta, metaOwner, []byte(vmID))
	return foreign != nil
}
