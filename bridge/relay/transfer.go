package relay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"forewarn/bridge/delivery"
	"forewarn/bridge/internal/streams"
)

// A transfer is a delivery that is to become a dead letter, or to be handed to the fallback, and can't be yet. The
// Worker is done with that; the queue tries again until it can. It survives no relay: the next one attempts the
// delivery once more.
type transfer struct {
	item      *delivery.Item
	report    delivery.Report // what the Worker reported, without its items
	dead      bool            // it is to become a dead letter
	overtaken bool            // see outbox.Delivery.Overtaken
	publish   bool            // the fallback is still to get it
}

// transfers are those that couldn't be done at once.
type transfers struct {
	due  map[uint64]*transfer // by sequence number
	errs map[bool]error       // why they can't be done, by transfer.publish
}

// transferEach makes dead letters of items, or hands them to the fallback, and returns those for which that is done.
// Nothing is attempted while an earlier one fails, so that the Worker never waits for more than one failure.
func (q *queue) transferEach(items []*delivery.Item, r delivery.Report, dead bool) (done []*delivery.Item) {
	r.Accepted, r.Superseded, r.Failed, r.Dead, r.FellBack = nil, nil, nil, nil, nil
	for _, i := range items {
		t := &transfer{item: i, report: r, dead: dead}
		t.overtaken = dead && r.Reason == delivery.ReasonLate && q.isOvertaken(i)
		t.publish = !dead || r.Reason != delivery.ReasonLate && q.fallbackOf(i) != "" && !q.fellBack(i)
		if q.transferNow(t) {
			done = append(done, i)
			continue
		}
		q.mu.Lock()
		if q.pending[i.Seq] != nil {
			q.transfers.due[i.Seq] = t
		}
		q.mu.Unlock()
	}
	return done
}

// isOvertaken reports whether a newer delivery about its event is pending, as the outbox decides it for a bridge.
func (q *queue) isOvertaken(i *delivery.Item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.pending[i.Seq]
	if e == nil {
		return false
	}
	for _, seq := range e.group.pending {
		if seq > i.Seq {
			return true
		}
	}
	return false
}

// transferNow does a transfer, unless another one failed just now, and reports whether it is done.
func (q *queue) transferNow(t *transfer) bool {
	q.mu.Lock()
	skip := q.transfers.errs[t.publish] != nil || q.pending[t.item.Seq] == nil
	q.mu.Unlock()
	if skip {
		return false
	}
	err := q.transfer(t)
	if err != nil {
		q.setTransferErr(t.publish, err)
	}
	return err == nil
}

// transfer makes a dead letter of a delivery, or hands it to the fallback.
func (q *queue) transfer(t *transfer) error {
	why := cmp.Or(t.report.Error, t.item.Error)
	if !t.dead {
		why = cmp.Or(t.item.Error, t.report.Error)
		ce, _, err := q.read(t.item)
		if err == nil {
			err = q.publishForFallback(t.item, ce, why)
		}
		if err != nil {
			return fmt.Errorf("hand a delivery to the fallback: %w", err)
		}
		return nil
	}
	if err := q.storeDeadLetter(t, why); err != nil {
		return fmt.Errorf("keep a dead letter: %w", err)
	}
	q.meter.Failed(q.route.Name, t.report.Reason)
	q.log.Error("delivery became a dead letter", "id", t.item.ID, "reason", t.report.Reason, "err", why)
	return nil
}

// setTransferErr records why transfers fail, and logs the first of such errors.
func (q *queue) setTransferErr(publish bool, err error) {
	q.mu.Lock()
	was := q.transfers.errs[publish]
	q.transfers.errs[publish] = err
	q.mu.Unlock()
	if was == nil {
		q.log.Warn("cannot store a dead letter or hand a delivery to the fallback; trying again", "err", err)
	}
}

// keepTransferring calls publishNotice and retryTransfers regularly until the lease ends, and then publishes the rest of
// the notices.
func (q *queue) keepTransferring() {
	for streams.Sleep(q.ctx, readRetry) == nil {
		q.publishNotice()
		q.retryTransfers()
	}
	for q.publishNotice() {
	}
}

// retryTransfers does what couldn't be done before, the oldest first. After a failure at the fallback it tries only
// what needs none, and the other way round.
func (q *queue) retryTransfers() {
	q.mu.Lock()
	var all []*transfer
	for _, t := range q.transfers.due {
		all = append(all, t)
	}
	q.mu.Unlock()
	slices.SortFunc(all, func(a, b *transfer) int { return cmp.Compare(a.item.Seq, b.item.Seq) })
	failed := map[bool]bool{}
	for _, t := range all {
		if failed[t.publish] || !q.stillDue(t) {
			continue
		}
		err := q.transfer(t)
		switch {
		case err == nil:
			q.noteTransferred(t)
		case q.stillDue(t): // it may have been accepted meanwhile
			failed[t.publish] = true
			q.setTransferErr(t.publish, err)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for publish := range q.transfers.errs {
		if !failed[publish] {
			delete(q.transfers.errs, publish)
		}
	}
}

// stillDue reports whether a transfer is still to be done. What is muted isn't handed to the fallback: the Worker
// decides again when the mute has ended.
func (q *queue) stillDue(t *transfer) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	seq := t.item.Seq
	if q.transfers.due[seq] != t {
		return false
	}
	if !t.dead && q.muteOf(q.pending[seq]).Active() {
		delete(q.transfers.due, seq)
		q.notifyWorker(seq)
		return false
	}
	return true
}

// noteTransferred records that a transfer is done.
func (q *queue) noteTransferred(t *transfer) {
	r := t.report
	if t.dead {
		r.Dead = []*delivery.Item{t.item}
	} else {
		r.FellBack = []*delivery.Item{t.item}
	}
	changed := q.apply(r)
	q.mu.Lock()
	if q.transfers.due[t.item.Seq] == t {
		delete(q.transfers.due, t.item.Seq)
	}
	q.mu.Unlock()
	_ = q.save(changed) // records.err holds the error
}

// transferProblem describes why transfers fail, for people; "" if none does. mu is held.
func (q *queue) transferProblem() string {
	var why []string
	for _, publish := range []bool{true, false} {
		if err := q.transfers.errs[publish]; err != nil {
			why = append(why, err.Error())
		}
	}
	if len(why) == 0 {
		return ""
	}
	return fmt.Sprintf("%d deliveries can't become dead letters or be handed to the fallback: %s", len(q.transfers.due),
		strings.Join(why, "; "))
}
