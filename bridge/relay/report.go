package relay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// again has the Worker hear of a delivery again, a little later.
func (q *queue) again(seq uint64) {
	time.AfterFunc(readAgain, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.touch(seq)
	})
}

// end takes out a delivery that is settled in its record. mu is held.
func (q *queue) end(e *pendingItem) {
	seq := e.item.Seq
	delete(q.pending, seq)
	delete(e.group.pending, e.id)
	if e.ce != nil {
		q.bodies--
	}
	q.unsaved[seq] = true
	e.group.settled = append(e.group.settled, seq)
	q.note(e.group)
}

// Report is delivery.Queue's. It returns when all of the report is in the bucket, or can't be written: then that is
// tried again while the lease is held.
func (q *queue) Report(r delivery.Report) {
	if r.Now.IsZero() {
		r.Now = time.Now()
	}
	q.letGo(&r)
	q.fallBack(&r)
	_ = q.save(q.report(r)) // saveErr says it
	q.advance()
}

// letGo keeps what was given up as dead letters, and hands it to the fallback. What can't be kept stays pending: it is
// given up again later.
func (q *queue) letGo(r *delivery.Report) {
	ofAttempt := r.Reason == delivery.ReasonRejected || r.Reason == delivery.ReasonExpired
	kept := r.Dead[:0:0]
	for _, i := range r.Dead {
		letter := deadLetter{
			Sink: q.route.Name, Seq: i.Seq, ID: i.ID, Type: i.Type, Event: i.Group, AzureType: i.AzureType,
			Reason: r.Reason, Error: cmp.Or(r.Error, i.Error), At: r.Now.UTC(), Pending: i.Pending, Attempts: i.Attempts,
		}
		if ofAttempt {
			letter.Attempts++
		}
		ce, _, err := q.Read(i)
		switch {
		case errors.Is(err, delivery.ErrLost):
			err = q.dead.add(q.term, letter, nil)
		case err == nil:
			if r.Reason != delivery.ReasonLate && !q.fellBack(i) {
				err = q.handOver(i, ce, letter.Error)
			}
			if err == nil {
				err = q.dead.add(q.term, letter, &ce)
			}
		}
		if err != nil {
			q.failed(fmt.Errorf("keep a dead letter: %w", err))
			q.again(i.Seq)
			continue
		}
		kept = append(kept, i)
		q.meter.Failed(q.route.Name, r.Reason)
		q.log.Error("a delivery was given up; it is kept as a dead letter", "id", i.ID, "reason", r.Reason, "err",
			letter.Error)
	}
	r.Dead = kept
}

// fellBack says whether a delivery was handed to the fallback. The Worker's item may say so when that failed.
func (q *queue) fellBack(i *delivery.Item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.pending[i.Seq]
	return e != nil && e.item.FellBack
}

// fallBack hands deliveries to the sink that takes over what this one can't deliver. What can't be handed over is tried
// again later.
func (q *queue) fallBack(r *delivery.Report) {
	r.FellBack = slices.DeleteFunc(slices.Clone(r.FellBack), func(i *delivery.Item) bool {
		ce, _, err := q.Read(i)
		if err == nil {
			err = q.handOver(i, ce, cmp.Or(r.Error, i.Error))
		}
		if err != nil {
			q.failed(fmt.Errorf("hand a delivery to the fallback: %w", err))
			q.again(i.Seq)
		}
		return err != nil
	})
}

// handOver publishes a delivery for the fallback, if there is one. What came as a fallback doesn't fall back again.
func (q *queue) handOver(i *delivery.Item, ce event.Event, why string) error {
	to := q.route.Terms.Fallback.Sink
	if to == "" || i.Instead != nil || i.Transient {
		return nil
	}
	instead := &delivery.Instead{Sink: q.route.Name, Why: cmp.Or(why, "no answer")}
	return publishForSink(q.term, q.js, to, ce, instead, ce.ID()+"-instead-"+to)
}

// report changes the records as a report says, and gives those it changed.
func (q *queue) report(r delivery.Report) (changed []*group) {
	q.mu.Lock()
	defer q.mu.Unlock()
	each := func(items []*delivery.Item, f func(e *pendingItem)) {
		for _, i := range items {
			if e := q.pending[i.Seq]; e != nil {
				f(e)
				q.note(e.group)
				e.group.requiredVersion = e.group.version
				if !slices.Contains(changed, e.group) {
					changed = append(changed, e.group)
				}
			}
		}
	}
	for _, items := range [][]*delivery.Item{r.Accepted, r.Failed, r.Dead} {
		each(items, func(e *pendingItem) {
			if r.Answer.Receipt != nil && e.item.Group != "" {
				e.group.rec.Receipt = r.Answer.Receipt
			}
		})
	}
	each(r.Failed, func(e *pendingItem) {
		next := *e.item
		next.Attempts++
		next.Next, next.Error, next.Batch = r.Next.UTC(), cmp.Or(r.Error, next.Error), cmp.Or(r.Batch, next.Batch)
		if r.Answer.Progress != nil {
			next.Progress = slices.Clone(r.Answer.Progress)
		}
		q.replace(e, next)
	})
	each(r.FellBack, func(e *pendingItem) {
		next := *e.item
		next.FellBack = true
		q.replace(e, next)
	})
	settle := func(how, answer string) func(*pendingItem) {
		return func(e *pendingItem) {
			attempts := e.item.Attempts
			if how == resultAccepted {
				attempts++
			}
			e.group.rec.settle(e.id, result{At: r.Now.UTC(), How: how, Answer: answer, Attempts: attempts})
			q.end(e)
		}
	}
	each(r.Superseded, settle(resultSuperseded, ""))
	q.count += len(r.Accepted)
	if len(r.Accepted) > 0 {
		q.last = r.Now.UTC()
	}
	each(r.Accepted, settle(resultAccepted, imds.CutText(r.Answer.Status, 200)))
	each(r.Dead, settle(resultDead, r.Reason))
	return changed
}

// replace puts a newer item in the place of an entry's. mu is held.
func (q *queue) replace(e *pendingItem, next delivery.Item) {
	e.item = &next
	e.group.rec.setRetry(e.id, retry{next.Attempts, next.Next, next.Error, next.Progress, next.Batch, next.FellBack})
	q.touch(next.Seq)
}
