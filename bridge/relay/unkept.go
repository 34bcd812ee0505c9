package relay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"forewarn/bridge/delivery"
	"forewarn/bridge/internal/streams"
)

// An unkept is a delivery that is to become a dead letter, or to be handed to the fallback, and can't be yet. The
// Worker is done with that; the queue tries again until it can. It survives no relay: the next one attempts the
// delivery once more.
type unkept struct {
	item    *delivery.Item
	report  delivery.Report // what the Worker reported, without its items
	dead    bool            // it is to become a dead letter
	publish bool            // the fallback is still to get it
}

// keepEach makes dead letters of items, or hands them to the fallback, and returns those for which that is done.
// Nothing is attempted while an earlier one can't be kept, so that the Worker never waits for more than one failure.
func (q *queue) keepEach(items []*delivery.Item, r delivery.Report, dead bool) (kept []*delivery.Item) {
	r.Accepted, r.Superseded, r.Failed, r.Dead, r.FellBack = nil, nil, nil, nil, nil
	for _, i := range items {
		u := &unkept{item: i, report: r, dead: dead}
		u.publish = !dead || r.Reason != delivery.ReasonLate && q.fallbackOf(i) != "" && !q.fellBack(i)
		if q.keepAtOnce(u) {
			kept = append(kept, i)
			continue
		}
		q.mu.Lock()
		if q.pending[i.Seq] != nil {
			q.unkept[i.Seq] = u
		}
		q.mu.Unlock()
	}
	return kept
}

// keepAtOnce keeps a delivery, unless another one couldn't be kept just now, and reports whether it is kept.
func (q *queue) keepAtOnce(u *unkept) bool {
	q.mu.Lock()
	skip := q.keepErrs[u.publish] != nil || q.pending[u.item.Seq] == nil
	q.mu.Unlock()
	if skip {
		return false
	}
	err := q.keep(u)
	if err != nil {
		q.setKeepErr(u.publish, err)
	}
	return err == nil
}

// keep makes a dead letter of a delivery, or hands it to the fallback.
func (q *queue) keep(u *unkept) error {
	why := cmp.Or(u.report.Error, u.item.Error)
	if !u.dead {
		why = cmp.Or(u.item.Error, u.report.Error)
		ce, _, err := q.read(u.item)
		if err == nil {
			err = q.publishForFallback(u.item, ce, why)
		}
		if err != nil {
			return fmt.Errorf("hand a delivery to the fallback: %w", err)
		}
		return nil
	}
	if err := q.keepDeadLetter(u, why); err != nil {
		return fmt.Errorf("keep a dead letter: %w", err)
	}
	q.meter.Failed(q.route.Name, u.report.Reason)
	q.log.Error("delivery became a dead letter", "id", u.item.ID, "reason", u.report.Reason, "err", why)
	return nil
}

// setKeepErr records why deliveries can't be kept, and logs the first of such errors.
func (q *queue) setKeepErr(publish bool, err error) {
	q.mu.Lock()
	was := q.keepErrs[publish]
	q.keepErrs[publish] = err
	q.mu.Unlock()
	if was == nil {
		q.log.Warn("cannot store a dead letter or hand a delivery to the fallback; trying again", "err", err)
	}
}

// keepTrying calls tellTrouble and keepUnkept regularly until the lease ends, and then tells what is untold.
func (q *queue) keepTrying() {
	for streams.Sleep(q.ctx, readRetry) == nil {
		q.tellTrouble()
		q.keepUnkept()
	}
	for q.tellTrouble() {
	}
}

// keepUnkept tries again to keep what couldn't be kept, the oldest first. After a failure at the fallback it tries only
// what needs none, and the other way round.
func (q *queue) keepUnkept() {
	q.mu.Lock()
	var all []*unkept
	for _, u := range q.unkept {
		all = append(all, u)
	}
	q.mu.Unlock()
	slices.SortFunc(all, func(a, b *unkept) int { return cmp.Compare(a.item.Seq, b.item.Seq) })
	failed := map[bool]bool{}
	for _, u := range all {
		if failed[u.publish] || !q.stillUnkept(u) {
			continue
		}
		err := q.keep(u)
		switch {
		case err == nil:
			q.applyKept(u)
		case q.stillUnkept(u): // it may have been accepted meanwhile
			failed[u.publish] = true
			q.setKeepErr(u.publish, err)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for publish := range q.keepErrs {
		if !failed[publish] {
			delete(q.keepErrs, publish)
		}
	}
}

// stillUnkept reports whether a delivery is still to be kept. What is muted isn't handed to the fallback: the Worker
// decides again when the mute has ended.
func (q *queue) stillUnkept(u *unkept) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	seq := u.item.Seq
	if q.unkept[seq] != u {
		return false
	}
	if !u.dead && q.muteOf(q.pending[seq]).Active() {
		delete(q.unkept, seq)
		q.notifyWorker(seq)
		return false
	}
	return true
}

// applyKept records that a delivery is kept.
func (q *queue) applyKept(u *unkept) {
	r := u.report
	if u.dead {
		r.Dead = []*delivery.Item{u.item}
	} else {
		r.FellBack = []*delivery.Item{u.item}
	}
	changed := q.apply(r)
	q.mu.Lock()
	if q.unkept[u.item.Seq] == u {
		delete(q.unkept, u.item.Seq)
	}
	q.mu.Unlock()
	_ = q.save(changed) // saveErr holds the error
}

// unkeptProblem describes why deliveries can't be kept, for people; "" if all are. mu is held.
func (q *queue) unkeptProblem() string {
	var why []string
	for _, publish := range []bool{true, false} {
		if err := q.keepErrs[publish]; err != nil {
			why = append(why, err.Error())
		}
	}
	if len(why) == 0 {
		return ""
	}
	return fmt.Sprintf("%d deliveries can't become dead letters or be handed to the fallback: %s", len(q.unkept),
		strings.Join(why, "; "))
}
