package outbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
)

// Queue is what is pending for the route, for one reader. Each call makes a fresh one, which first gives all that is
// pending; only the latest of a route hears of more.
func (o *Outbox) Queue(name string) delivery.Queue {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.route(name)
	q := &queue{outbox: o, name: name, changed: make(chan struct{}, 1)}
	for _, e := range r.pending {
		if e.offered {
			q.pending = append(q.pending, e)
		}
	}
	r.reader = q
	q.wake()
	return q
}

// A queue is what one reader of a route has yet to hear of. The outbox's mu guards it.
type queue struct {
	outbox  *Outbox
	name    string // of the route
	changed chan struct{}
	pending []*entry
	gone    []uint64
}

// give lets the reader have a delivery. There need not be one.
func (q *queue) give(e *entry) {
	if q != nil {
		q.pending = append(q.pending, e)
		q.wake()
	}
}

// drop tells the reader that a delivery is no longer pending. There need not be one.
func (q *queue) drop(e *entry) {
	if q != nil && (e.offered || e.known) {
		q.gone = append(q.gone, e.seq)
		q.wake()
	}
}

func (q *queue) wake() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

func (q *queue) Changed() <-chan struct{} { return q.changed }

func (q *queue) Changes() delivery.Changes {
	o := q.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	pending := slices.DeleteFunc(q.pending, func(e *entry) bool { return e.gone })
	slices.SortFunc(pending, bySeq)
	c := delivery.Changes{Pending: make([]*delivery.Item, len(pending))}
	for i, e := range pending {
		c.Pending[i] = &e.item
	}
	for _, seq := range q.gone {
		if e := o.entry(Ref{q.name, seq}); e == nil || !e.offered { // else it came back
			c.Gone = append(c.Gone, seq)
		}
	}
	q.pending, q.gone = nil, nil
	return c
}

func (q *queue) Read(i *delivery.Item) (ce event.Event, receipt []byte, err error) {
	o := q.outbox
	o.mu.Lock()
	receipt = o.receipts[i.Group][q.name]
	o.mu.Unlock()
	body, err := o.Body(i.Seq)
	if err != nil {
		return ce, nil, err
	}
	if err := json.Unmarshal(body, &ce); err != nil {
		return ce, nil, fmt.Errorf("%w: CloudEvent %d: %v", delivery.ErrLost, i.Seq, err)
	}
	return ce, receipt, nil
}

// Body is the CloudEvent with that sequence number in the JSON format, which must not be changed. The error wraps
// delivery.ErrLost when it can never be read again.
func (o *Outbox) Body(seq uint64) ([]byte, error) {
	o.mu.Lock()
	var body []byte
	if m := o.messages[seq]; m != nil {
		body = m.body
	}
	foreign := seq <= o.foreign
	o.mu.Unlock()
	switch {
	case body != nil:
		return body, nil
	case foreign:
		return nil, fmt.Errorf("%w: CloudEvent %d was another VM's", delivery.ErrLost, seq)
	}
	body, err := o.storage.Read(bucketEvents, seqKey(seq))
	switch {
	case err != nil:
		o.damaged(err)
		return nil, err
	case body == nil:
		return nil, fmt.Errorf("%w: %s has no CloudEvent %d", delivery.ErrLost, o.path, seq)
	}
	return body, nil
}

// Pending are the pending deliveries about a group, of all routes, in order.
func (o *Outbox) Pending(group string) []Delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	return records(slices.Clone(o.byGroup[group]))
}

// Held are the pending deliveries that wait for a decision of the owner, in order, by route and group.
func (o *Outbox) Held() [][]Delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.held) == 0 {
		return nil
	}
	type of struct{ route, group string }
	place := map[of]int{}
	var list [][]Delivery
	for _, e := range slices.SortedFunc(maps.Keys(o.held), bySeq) {
		key := of{e.route.name, e.group}
		at, known := place[key]
		if !known {
			at = len(list)
			place[key], list = at, append(list, nil)
		}
		list[at] = append(list[at], e.record())
	}
	return list
}

// Outcome is what became of a delivery that is pending or dead, or whose CloudEvent is the latest of an open group.
func (o *Outbox) Outcome(route string, seq uint64) Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.outcome(route, seq)
}

// inOrder are the entries by sequence number.
func inOrder(entries map[uint64]*entry) []*entry {
	return slices.SortedFunc(maps.Values(entries), bySeq)
}

// records are the entries in order. It sorts the slice.
func records(entries []*entry) []Delivery {
	slices.SortFunc(entries, bySeq)
	list := make([]Delivery, len(entries))
	for i, e := range entries {
		list[i] = e.record()
	}
	return list
}

// settleAhead is how many reported deliveries of a route may wait for the disk.
const settleAhead = 32

func (q *queue) Report(r delivery.Report) {
	o := q.outbox
	if r.Now.IsZero() {
		r.Now = time.Now()
	}
	n := o.change(r.Now, func(c *change) { c.report(c.route(q.name), r) })
	o.mu.Lock()
	wait := o.failing == nil && (r.Durable || o.route(q.name).reported >= settleAhead)
	o.mu.Unlock()
	if wait {
		_ = o.sync(n) // Durable says what is wrong, and it counts from memory
	} else {
		o.syncSoon()
	}
}
