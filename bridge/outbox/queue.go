package outbox

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
)

// Queue returns a queue of the route's pending deliveries for one reader. Only the latest queue of a route gets later
// changes.
func (o *Outbox) Queue(name string) delivery.Queue {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.route(name)
	if r.reader != nil {
		clear(r.reader.dirty)
	}
	r.reader = &queue{outbox: o, name: name, changed: make(chan struct{}, 1), dirty: map[uint64]bool{}}
	for _, e := range r.pending {
		r.reader.dirty[e.Seq] = true
	}
	wake(r.reader.changed)
	return r.reader
}

// A queue tracks which deliveries of a route its one reader must read again. The outbox's mu guards it.
type queue struct {
	outbox   *Outbox
	name     string // of the route
	changed  chan struct{}
	dirty    map[uint64]bool // sequence numbers of deliveries that changed
	unsynced int             // deliveries settled since a report last waited for the disk; only the reader uses it
}

// touch notes that a delivery changed. A nil queue, of a route without a reader, ignores it.
func (q *queue) touch(seq uint64) {
	if q != nil {
		q.dirty[seq] = true
		wake(q.changed)
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (q *queue) Changed() <-chan struct{} { return q.changed }

func (q *queue) Changes() (c delivery.Changes) {
	o := q.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	c.Mutes = o.route(q.name).activeMutes()
	for seq := range q.dirty {
		e := o.pendingEntry(q.name, seq)
		switch {
		case e == nil:
			c.Gone = append(c.Gone, seq)
		case o.why == nil && e.change > o.stored && !e.shown:
			continue // the reader must not see it yet
		case o.held != nil && e.Group != "" && e.route.late == delivery.LateDrop && !e.shown && o.held(e.Group):
			continue
		default:
			e.shown = true
			c.Pending = append(c.Pending, &e.Item)
		}
		delete(q.dirty, seq)
	}
	if len(q.dirty) == 0 {
		q.dirty = map[uint64]bool{} // a map never shrinks
	}
	slices.SortFunc(c.Pending, func(a, b *delivery.Item) int { return cmp.Compare(a.Seq, b.Seq) })
	return c
}

func (q *queue) Read(i *delivery.Item) (d delivery.Delivery, err error) {
	o := q.outbox
	d.Event, err = o.decoded(i.Seq)
	o.mu.Lock()
	defer o.mu.Unlock()
	g := o.groups[i.Group]
	if g != nil {
		d.Receipt = g.receipts[q.name]
	}
	d.EventOver = !i.Ends() && o.isOver(i.Group)
	e := o.pendingEntry(q.name, i.Seq)
	switch {
	case e == nil:
		return d, delivery.ErrSettled
	case err != nil:
		return d, err
	}
	e.underWay = true
	return d, nil
}

// decoded returns the CloudEvent with that sequence number.
func (o *Outbox) decoded(seq uint64) (ce event.Event, err error) {
	body, err := o.cloudEvent(seq)
	if err != nil {
		return ce, err
	}
	if !json.Valid(body) { // the SDK accepts damaged data
		return ce, fmt.Errorf("%w: CloudEvent %d is damaged", delivery.ErrLost, seq)
	}
	err = ce.UnmarshalJSON(body)
	if err != nil {
		return ce, fmt.Errorf("%w: CloudEvent %d: %v", delivery.ErrLost, seq, err)
	}
	return ce, nil
}

// body returns the JSON of a CloudEvent; nil if only the storage has it. The caller holds mu.
func (o *Outbox) body(seq uint64) []byte {
	p := address{bucketEvents, seqKey(seq)}
	for _, r := range []records{o.waiting, o.inFlight} {
		body, _ := r[p].([]byte)
		if body != nil {
			return body
		}
	}
	msg := o.message(seq)
	if msg == nil {
		return nil
	}
	return msg.body
}

// cloudEvent returns the JSON of the CloudEvent with that sequence number. The error wraps delivery.ErrLost if it can
// never be read again.
func (o *Outbox) cloudEvent(seq uint64) ([]byte, error) {
	o.mu.Lock()
	body := o.body(seq)
	foreign := seq <= o.foreign
	o.mu.Unlock()
	switch {
	case body != nil:
		return body, nil
	case foreign:
		return nil, fmt.Errorf("%w: CloudEvent %d was another VM's", delivery.ErrLost, seq)
	}
	body, err := o.read(bucketEvents, seqKey(seq))
	switch {
	case err != nil:
		return nil, err
	case body == nil:
		return nil, fmt.Errorf("%w: %s has no CloudEvent %d", delivery.ErrLost, o.path, seq)
	}
	return body, nil
}

// read reads a record from the storage. It waits no longer than diskPatience, and while a read that took longer goes on it
// asks for no other: what is in memory must get through.
func (o *Outbox) read(bucket, key string) ([]byte, error) {
	if o.hanging.Load() > 0 {
		return nil, errSlowDisk
	}
	var record []byte
	var err error
	file, done := o.fileNumber(), make(chan struct{})
	go func() {
		defer close(done)
		record, err = o.storage.Read(bucket, key)
	}()
	select {
	case <-done:
		return record, o.noteDamage(file, err)
	case <-time.After(diskPatience):
		o.hanging.Add(1)
		go func() {
			<-done
			o.hanging.Add(-1)
		}()
		return nil, errSlowDisk
	}
}

// Pending returns the pending deliveries about a group, of all routes, in order.
func (o *Outbox) Pending(group string) []Delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pendingOf(group)
}

// Delivery returns a delivery that is pending or dead. Of a settled one it returns the state, and whose fallback it
// was, if its CloudEvent is the latest of an open group, or pending or dead for another route. Any other has no state.
func (o *Outbox) Delivery(route string, seq uint64) Delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.delivery(route, seq)
}

// Accepted reports whether a route has accepted a CloudEvent of the history, which only the storage may know. Like a
// reader, it doesn't wait long for that.
func (o *Outbox) Accepted(route string, seq uint64) (bool, error) {
	p := address{bucketSettled, deliveryKey(seq, route)}
	o.mu.Lock()
	d := o.delivery(route, seq)
	r, waits := o.waiting[p].(Result)
	if !waits {
		r, waits = o.inFlight[p].(Result)
	}
	o.mu.Unlock()
	switch {
	case d.State != "":
		return d.State == StateAccepted, nil
	case waits:
		return r.State == StateAccepted, nil
	}
	stored, err := o.read(p.bucket, p.key)
	if err != nil {
		return false, err
	}
	if stored == nil {
		return false, nil
	}
	r, err = decode[Result](stored)
	return r.State == StateAccepted, err
}

// maxUnsynced bounds the reported deliveries of a route that are not on disk.
const maxUnsynced = 32

func (q *queue) Report(r delivery.Report) {
	o := q.outbox
	n := o.change(r.Now, func(tx *Tx) { tx.report(tx.route(q.name), r) })
	q.unsynced += len(r.Accepted) + len(r.Superseded)
	if !r.Durable && q.unsynced < maxUnsynced {
		o.syncSoon()
		return
	}
	q.unsynced = 0
	_ = o.sync(n) // on an error the report counts in memory, and Durable returns the error
}

// report applies the results for deliveries of the route.
func (tx *Tx) report(r *route, rep delivery.Report) {
	each := func(items []*delivery.Item, f func(e *entry)) {
		for _, i := range items {
			e := r.pending.find(i.Seq)
			if e != nil {
				f(e)
			}
		}
	}
	each(rep.Untried, func(e *entry) { e.underWay = false })
	each(rep.Failed, func(e *entry) { tx.recordFailure(e, rep) })
	each(rep.FellBack, func(e *entry) {
		if e.FellBack || r.fallback == "" { // a reload has taken the fallback away since
			return
		}
		tx.fallBack(e, cmp.Or(e.Error, rep.Error))
		next := e.copy()
		next.FellBack = true
		tx.replace(e, next)
	})
	each(rep.Superseded, func(e *entry) { tx.supersede(e, "") })
	for _, i := range rep.Accepted {
		tx.settleAccepted(r, i, rep)
	}
	counted := slices.Concat(rep.Failed, rep.Untried)
	each(rep.Dead, func(e *entry) {
		if rep.Reason == delivery.ReasonLost && tx.replaceLost(e) {
			return
		}
		ofAttempt := rep.Reason == delivery.ReasonRejected || rep.Reason == delivery.ReasonExpired
		same := func(i *delivery.Item) bool { return i.Seq == e.Seq }
		if ofAttempt && !slices.ContainsFunc(counted, same) {
			e = tx.recordFailure(e, rep)
		}
		tx.giveUp(e, rep.Reason, rep.Error)
	})
	for _, i := range slices.Concat(rep.Failed, rep.Dead) {
		result, wasCutShort := r.cutShort[i.Seq]
		if wasCutShort {
			result.Error = rep.Error
			tx.record(cmp.Or(tx.message(i.Seq), &message{Message: *i.Message}), i, result)
		}
	}
	for _, i := range slices.Concat(rep.Accepted, rep.Failed, rep.Dead) {
		delete(r.cutShort, i.Seq)
		if rep.Answer.Receipt != nil && i.Group != "" && i.Seq > tx.foreign {
			tx.keepReceipt(i.Group, r.name, slices.Clone(rep.Answer.Receipt))
		}
	}
}

// keepReceipt keeps a receipt until 30 days after its group is over, or from now on if that is over.
func (tx *Tx) keepReceipt(group, route string, receipt []byte) {
	receiptTable.set(tx, group+"/"+route, receipt)
	g := tx.group(group)
	if g.latest == nil {
		g.extendEnd(tx.now)
		tx.write(bucketEnded, group, g.ended)
	}
}

// replaceLost makes the latest change of a group pending instead of a delivery whose CloudEvent is lost, and reports whether
// it did. It doesn't if the group is over, if the route's delivery of that change is a dead letter or was dropped, or if
// the route acts: that begins nothing it was not given before.
func (tx *Tx) replaceLost(e *entry) bool {
	g := tx.groups[e.Group]
	if g == nil || g.latest == nil || g.latest == e.message {
		return false
	}
	state := tx.delivery(e.Route, g.latest.Seq).State
	switch {
	case state == StatePending:
	case state == StateDead, state == StateDropped, e.route.late == delivery.LateDrop:
		return false
	default:
		tx.addPending(g.latest, e.route, delivery.Item{
			NotBefore: e.NotBefore, PendingSince: tx.now.UTC(), FallbackFor: e.FallbackFor,
			Replayed: e.Replayed, ReplayedBy: e.ReplayedBy,
		})
	}
	tx.lost = append(tx.lost, e.record())
	tx.supersede(e, "its CloudEvent is lost; the latest change of its event is delivered instead")
	return true
}

// recordFailure records a failed attempt. The delivery stays pending, so its reader sees it at once. What is given up after
// it keeps its progress, for a replay.
func (tx *Tx) recordFailure(e *entry, rep delivery.Report) (next *entry) {
	next = e.copy()
	next.LastAttempt, next.underWay = rep.Now.UTC(), false
	next.Attempts++
	next.Next = rep.Next.UTC()
	next.Error = cmp.Or(rep.Error, e.Error)
	next.Batch = cmp.Or(rep.Batch, e.Batch)
	if rep.Answer.Progress != nil {
		next.Progress = slices.Clone(rep.Answer.Progress)
	}
	tx.replace(e, next)
	return next
}

// settleAccepted settles an accepted delivery, even if it is no longer pending.
func (tx *Tx) settleAccepted(r *route, i *delivery.Item, rep delivery.Report) {
	if i.Seq <= tx.foreign {
		return // another VM's
	}
	r.delivered++
	r.accepted = rep.Now
	m, e, letter := tx.message(i.Seq), r.pending.find(i.Seq), r.dead.find(i.Seq)
	if m == nil {
		m = &message{Message: *i.Message}
	}
	tx.record(m, i, Result{Route: r.name, State: StateAccepted, Answer: rep.Answer.Status, AnswerID: rep.Answer.ID,
		Attempts: i.Attempts + 1})
	if letter != nil { // it was delivered after all
		tx.remove(letter)
	}
	if e != nil {
		tx.remove(e)
	}
}
