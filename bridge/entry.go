package bridge

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// An Entry is one delivery as the outbox keeps it: one CloudEvent owed to one route.
type Entry struct {
	Key       string     `json:"key"` // route/seq, how commands name it
	Sink      string     `json:"sink"`
	ID        string     `json:"id"`    // of the CloudEvent
	Type      string     `json:"type"`  // of the CloudEvent
	Event     string     `json:"event"` // EventId; "" if it is about the bridge
	State     string     `json:"state"` // pending, dead
	Reason    string     `json:"reason,omitempty"`
	Attempts  int        `json:"attempts"`
	Next      time.Time  `json:"next,omitzero"`
	Error     string     `json:"error,omitempty"`
	Bytes     int        `json:"bytes"`
	Owed      time.Time  `json:"owed"`
	Tried     time.Time  `json:"tried,omitzero"`
	Held      time.Time  `json:"held,omitzero"` // waits until then for the observer's name to decide a filter
	Change    ChangeKind `json:"change,omitempty"`
	AzureType string     `json:"azureType,omitempty"`
	NotBefore time.Time  `json:"notBefore,omitzero"`
	Due       time.Time  `json:"due,omitzero"`      // waits until then, because its route has a lead
	Instead   *Instead   `json:"instead,omitempty"` // why it is owed to this route: another could not tell it
	FellBack  bool       `json:"fellBack,omitempty"`
	DeadSince time.Time  `json:"deadSince,omitzero"`

	seq         uint64
	uncommitted bool   // its commit is under way
	gone        bool   // settled or given up
	write       uint64 // that makes it durable, as the store counts; 0 if it was read from the file
	volatile    bool   // it is owed and no disk has it
}

// States of an Entry, and the reasons of a dead one.
const (
	StatePending = "pending"
	StateDead    = "dead"

	ReasonRejected = "rejected" // the destination will not have it
	ReasonExpired  = "expired"  // older than max_age
	ReasonLate     = "late"     // overtaken, and the route drops those
	ReasonOverflow = "overflow" // the outbox was full
	ReasonRemoved  = "removed"  // the route is gone from the settings
	ReasonLost     = "lost"     // its CloudEvent can no longer be read
)

// Settled is a delivery that is done.
type Settled struct {
	At       time.Time `json:"at"`
	How      string    `json:"how"` // accepted, superseded, dropped
	ID       string    `json:"id"`
	Event    string    `json:"event,omitempty"`
	Status   string    `json:"status,omitempty"` // what the destination answered
	AnswerID string    `json:"answerId,omitempty"`
	Attempts int       `json:"attempts"`
}

// How a delivery was settled.
const (
	settledAccepted   = "accepted"
	settledSuperseded = "superseded"
)

// settleAhead is how many settled deliveries of a route may wait for the disk.
const settleAhead = 32

// errLost says that a CloudEvent is not in the outbox, or cannot be understood.
var errLost = errors.New("lost")

// waits says whether the worker must not have the entry yet: it is not on disk, or its time has not come.
func (e *Entry) waits() bool { return e.uncommitted || !e.Held.IsZero() || !e.Due.IsZero() }

// attach begins the work of a route's worker: take gives it all that is owed, and the channel tells when there is more.
func (o *Outbox) attach(route string) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	sh := o.shelf(route)
	sh.fresh = nil
	for _, e := range sh.entries {
		if !e.waits() {
			sh.fresh = append(sh.fresh, e)
		}
	}
	slices.SortFunc(sh.fresh, bySeq)
	return sh.wake
}

func bySeq(a, b *Entry) int { return cmp.Compare(a.seq, b.seq) }

// take gives the entries that came to be owed since the last call.
func (o *Outbox) take(route string) []*Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	sh := o.shelf(route)
	fresh := sh.fresh
	sh.fresh = nil
	return fresh
}

// owed says whether an entry taken before is still owed.
func (o *Outbox) owed(e *Entry) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !e.gone
}

// cloudEvent reads the CloudEvent with the sequence number.
func (o *Outbox) cloudEvent(seq uint64) (event.Event, error) {
	var ce event.Event
	body, err := o.store.get(bucketEvents, seqKey(seq))
	switch {
	case err != nil:
		return ce, err
	case body == nil:
		return ce, fmt.Errorf("%w: %s has no CloudEvent %d", errLost, o.Path(), seq)
	}
	if err := json.Unmarshal(body, &ce); err != nil {
		return ce, fmt.Errorf("%w: CloudEvent %d: %v", errLost, seq, err)
	}
	return ce, nil
}

// receipt is what the sink gave back last for the Azure event, nil if nothing.
func (o *Outbox) receipt(e *Entry) []byte {
	if e.Event == "" {
		return nil
	}
	v, err := o.store.get(bucketReceipts, e.Event+"/"+e.Sink)
	if err != nil {
		o.unread("a receipt cannot be read", "sink", e.Sink, "event", e.Event, "err", err)
	}
	return v
}

// keepReceipt stores what the sink gave back. mu is held.
func (o *Outbox) keepReceipt(e *Entry, receipt []byte) {
	if receipt != nil && e.Event != "" {
		o.store.write(bucketReceipts, e.Event+"/"+e.Sink, slices.Clone(receipt))
	}
}

// settle notes that the batch was accepted, and with it the entries that it stood for. With atOnce it returns when that
// is on disk; else it may return before, but never more than settleAhead entries or groupWait ahead of the disk.
func (o *Outbox) settle(batch, superseded []*Entry, a Answer, now time.Time, atOnce bool) {
	o.mu.Lock()
	how := func(e *Entry, how string, attempts int) {
		if dead, ok := o.dead[e.Key]; ok { // given up once: it was delivered after all
			o.exhume(dead)
		}
		if !e.gone {
			o.remove(e)
		}
		if e.Type == BridgeHeartbeat { // no history needs those
			o.store.write(bucketEvents, seqKey(e.seq), nil)
			return
		}
		s := Settled{At: now.UTC(), How: how, ID: e.ID, Event: e.Event, Attempts: attempts}
		if how == settledAccepted {
			s.Status, s.AnswerID = a.Status, a.ID
		}
		o.store.write(bucketSettled, seqKey(e.seq)+"/"+e.Sink, compactJSON(s))
		o.grown.n++ // their bytes are few
	}
	for _, e := range superseded {
		how(e, settledSuperseded, e.Attempts)
	}
	for _, e := range batch {
		how(e, settledAccepted, e.Attempts+1)
	}
	route := batch[0].Sink
	sh := o.shelf(route)
	sh.delivered += len(batch)
	sh.accepted = now
	for _, e := range batch {
		o.keepReceipt(e, a.Receipt)
	}
	o.ahead[route] += len(batch) + len(superseded)
	wait := atOnce || o.ahead[route] >= settleAhead
	o.mu.Unlock()
	o.syncIf(wait)
}

// syncIf waits for the disk, or lets it come soon. A disk that fails is not waited for.
func (o *Outbox) syncIf(wait bool) {
	if wait && o.Durable() == nil {
		_ = o.store.sync() // the store says what is wrong, and keeps what it could not write
		return
	}
	o.store.syncSoon()
}

// failed notes an attempt that was not accepted, and when the next one is due.
func (o *Outbox) failed(batch []*Entry, cause error, receipt []byte, now, next time.Time) {
	o.mu.Lock()
	for _, e := range batch {
		e.Attempts++
		e.Tried, e.Next, e.Error = now.UTC(), next.UTC(), cause.Error()
		if !e.gone {
			o.store.write(bucketPending, e.Key, compactJSON(e))
		}
		o.keepReceipt(e, receipt)
	}
	o.mu.Unlock()
	o.syncIf(false)
}

// giveUp makes dead letters of entries that are still owed.
func (o *Outbox) giveUp(entries []*Entry, reason string, cause error) {
	var given []Entry
	o.mu.Lock()
	for _, e := range entries {
		if !e.gone {
			given = append(given, o.bury(e, reason, cause))
		}
	}
	o.boundDead()
	o.mu.Unlock()
	o.tell(given)
	o.syncIf(false)
}

// decide settles whether a route is owed the changes of an event that waited for the observer's name: those from the
// sequence number on, or none when that is 0.
func (o *Outbox) decide(route, eventID string, from uint64) {
	o.mu.Lock()
	for _, e := range o.heldOf(route, eventID) {
		if from == 0 || e.seq < from {
			o.remove(e)
			continue
		}
		e.Held = time.Time{}
		o.store.write(bucketPending, e.Key, compactJSON(e))
		o.shelf(route).offer(e)
	}
	if op := o.open[eventID]; op != nil {
		decided := *op
		decided.Undecided = slices.DeleteFunc(slices.Clone(op.Undecided), func(s string) bool { return s == route })
		if from != 0 {
			decided.Routes = append(slices.Clone(op.Routes), route)
		}
		o.setOpen(map[string]*Open{eventID: &decided}, nil)
	}
	o.mu.Unlock()
	o.syncIf(false)
}

// heldOf are a route's entries about an event that wait for the observer's name, in order. mu is held.
func (o *Outbox) heldOf(route, eventID string) (held []*Entry) {
	for _, e := range o.shelf(route).entries {
		if e.Event == eventID && !e.Held.IsZero() {
			held = append(held, e)
		}
	}
	slices.SortFunc(held, bySeq)
	return held
}

// held are the entries that wait for the observer's name, in order, by route and Azure event.
func (o *Outbox) held() [][]Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	groups := map[[2]string][]Entry{}
	for name, sh := range o.shelves {
		for _, e := range sh.entries {
			if !e.Held.IsZero() {
				key := [2]string{name, e.Event}
				groups[key] = append(groups[key], *e)
			}
		}
	}
	list := slices.Collect(maps.Values(groups))
	for _, group := range list {
		slices.SortFunc(group, func(a, b Entry) int { return bySeq(&a, &b) })
	}
	return list
}
