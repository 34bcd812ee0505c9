package relay

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// Report implements delivery.Queue. It returns when the whole report is in the bucket, or can't be written: then the queue
// tries again as long as the lease is held. While too many deliveries that the sink has accepted aren't on record, it
// doesn't return, so that a relay which ends then has no more of them repeated.
func (q *queue) Report(r delivery.Report) {
	if r.Now.IsZero() {
		r.Now = time.Now()
	}
	r.Dead, r.FellBack = q.transferEach(r.Dead, r, true), q.transferEach(r.FellBack, r, false)
	changed := q.apply(r)
	q.requireSaved(changed)
	q.saveSoon(changed)
	for q.tooFarAhead() && streams.Sleep(q.ctx, saveEvery) == nil {
	}
}

// tooFarAhead reports whether as many deliveries that the sink has accepted aren't on record as may be.
func (q *queue) tooFarAhead() bool {
	most := maxAhead
	if q.route.Terms.Durable {
		most = 1
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.records.ahead >= most
}

// requireSaved makes the next delivery of each group wait until its record is in the bucket.
func (q *queue) requireSaved(groups []*group) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, g := range groups {
		g.requiredVersion = g.version
	}
}

// storeDeadLetter stores a dead letter. Unless it is late, the fallback of what was attempted gets it before, if it
// hasn't got it yet.
func (q *queue) storeDeadLetter(u *transfer, why string) error {
	i, r := u.item, u.report
	letter := deadLetter{
		Sink: q.route.Name, Key: streams.Token(i.ID), Seq: i.Seq, ID: i.ID, Type: i.Type, Event: streams.EventOf(i.Group),
		Set: q.setOf(i), AzureType: i.AzureType, Reason: r.Reason, Overtaken: u.overtaken, Error: why, At: r.Now.UTC(),
		PendingSince: i.PendingSince, Attempts: attemptsOf(i, r), ReplayedBy: i.ReplayedBy,
	}
	ce, _, err := q.read(i)
	if errors.Is(err, delivery.ErrLost) {
		return q.keepLetter(letter, nil)
	}
	if err != nil {
		return err
	}
	if u.publish && !q.fellBack(i) {
		if err := q.publishForFallback(i, ce, why); err != nil {
			return err
		}
	}
	u.publish = false
	return q.keepLetter(letter, &ce)
}

// keepLetter stores a dead letter while the lease is held. What is on its way when that ends is waited for: a delivery whose
// letter is stored is to be on record, so that the next relay doesn't tell it all the same.
func (q *queue) keepLetter(letter deadLetter, ce *event.Event) error {
	if err := q.ctx.Err(); err != nil {
		return err
	}
	if !q.lease.valid() {
		return errLeaseExpired
	}
	return q.dead.add(context.WithoutCancel(q.ctx), letter, ce)
}

// attemptsOf returns how often a delivery was tried that becomes a dead letter with a report.
func attemptsOf(i *delivery.Item, r delivery.Report) int {
	ofAttempt := r.Reason == delivery.ReasonRejected || r.Reason == delivery.ReasonExpired
	if ofAttempt && !slices.ContainsFunc(r.Untried, func(u *delivery.Item) bool { return u.Seq == i.Seq }) {
		return i.Attempts + 1
	}
	return i.Attempts
}

// setOf returns the set that told of a pending delivery.
func (q *queue) setOf(i *delivery.Item) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.pending[i.Seq]; e != nil {
		return e.set
	}
	return ""
}

// fellBack reports whether the fallback has got a delivery. The Worker's item may say so although that failed.
func (q *queue) fellBack(i *delivery.Item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.pending[i.Seq]
	return e != nil && e.item.FellBack
}

// hasEnd reports whether the sink's record has the end of the event that a delivery is about. The fallback may never have
// seen it: its own filter may refuse the event, or it may be new.
func (q *queue) hasEnd(i *delivery.Item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.pending[i.Seq]
	return e != nil && e.group.rec.Stage.Kind == imds.Vanished
}

// fallbackOf returns the sink that gets a delivery instead; "" if there is none. A fallback's delivery doesn't fall back
// again, and none that is about the fallback falls back to it.
func (q *queue) fallbackOf(i *delivery.Item) string {
	if i.FallbackFor != nil || i.Transient || i.About == q.route.Terms.Fallback.Sink {
		return ""
	}
	return q.route.Terms.Fallback.Sink
}

// publishForFallback publishes a delivery for the route's fallback, if it has one. The message is structured, so it may
// be too large although the original isn't: then the fallback goes without it.
func (q *queue) publishForFallback(i *delivery.Item, ce event.Event, why string) error {
	fallback := q.fallbackOf(i)
	if fallback == "" {
		return nil
	}
	if !q.lease.valid() {
		return errLeaseExpired
	}
	header := nats.Header{streams.HeaderFallbackFor: {q.route.Name},
		streams.HeaderFallbackError: {percentEncoded(imds.CutText(cmp.Or(why, "no answer"), 1<<10))}}
	if q.hasEnd(i) {
		header.Set(cloudevent.HeaderEventOver, "true")
	}
	err := publishForSink(q.ctx, q.js, fallback, ce, header, "fallback-"+fallback+"-"+streams.ShortHash(q.setOf(i)))
	if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum) {
		q.log.Error("a delivery is too large to be handed to the fallback", "id", i.ID, "fallback", fallback, "err", err)
		return nil
	}
	return err
}

// apply applies a report to the records, and returns the groups that changed. It ignores deliveries that are no longer
// pending, except those that were superseded while they were attempted.
func (q *queue) apply(r delivery.Report) (changed []*group) {
	q.mu.Lock()
	defer q.mu.Unlock()
	touch := func(g *group) {
		q.markDirty(g)
		if !slices.Contains(changed, g) {
			changed = append(changed, g)
		}
	}
	each := func(items []*delivery.Item, f func(*pendingItem)) {
		for _, i := range items {
			e := q.pending[i.Seq]
			if e == nil && slices.Contains(r.Accepted, i) {
				e = q.supersededItem(i)
			}
			if e == nil {
				continue
			}
			f(e)
			touch(e.group)
		}
	}
	settle := func(how, answer string, attempts int) func(*pendingItem) {
		return func(e *pendingItem) {
			q.settle(e, result{At: r.Now.UTC(), State: how, Answer: answer, Attempts: e.item.Attempts + attempts})
		}
	}
	dead := func(e *pendingItem) {
		why := imds.CutText(cmp.Or(r.Error, e.item.Error), 200)
		q.settle(e, result{At: r.Now.UTC(), State: resultDead, Answer: r.Reason, Attempts: attemptsOf(e.item, r), Error: why})
	}
	attempted := slices.Concat(r.Accepted, r.Failed, r.Dead)
	for _, i := range attempted {
		g := q.records.groups[recordKey(q.route.Name, i.Group)]
		if r.Answer.Receipt != nil && i.Group != "" && g != nil { // also of what was superseded meanwhile
			g.rec.Receipt = r.Answer.Receipt
			touch(g)
		}
	}
	for _, i := range slices.Concat(r.Untried, r.Failed) {
		e := q.pending[i.Seq]
		if e != nil {
			e.begun = false
		}
	}
	each(r.Failed, func(e *pendingItem) { q.retry(e, afterFailure(*e.item, r)) })
	each(r.FellBack, func(e *pendingItem) {
		next := *e.item
		next.FellBack = true
		q.retry(e, next)
	})
	each(r.Superseded, settle(resultSuperseded, "", 0))
	each(r.Accepted, settle(resultAccepted, imds.CutText(r.Answer.Status, 200), 1))
	each(r.Dead, dead)
	for _, i := range attempted {
		delete(q.superseded, i.Seq) // the attempt has ended
	}
	if len(r.Accepted) > 0 {
		q.tally.accepted += len(r.Accepted)
		q.tally.lastAccepted, q.tally.failingSince = r.Now.UTC(), time.Time{}
	}
	return changed
}

// supersededItem returns a delivery that a newer change of its event superseded; nil if none did. mu is held.
func (q *queue) supersededItem(i *delivery.Item) *pendingItem {
	g := q.records.groups[recordKey(q.route.Name, i.Group)]
	id := q.superseded[i.Seq]
	if g == nil || g.rec.Settled[id].State != resultSuperseded {
		return nil
	}
	return &pendingItem{item: i, id: id, group: g}
}

// afterFailure returns an item as it is after the failed attempt of a report.
func afterFailure(i delivery.Item, r delivery.Report) delivery.Item {
	i.Attempts++
	i.Next, i.Error, i.Batch = r.Next.UTC(), cmp.Or(r.Error, i.Error), cmp.Or(r.Batch, i.Batch)
	if r.Answer.Progress != nil {
		i.Progress = slices.Clone(r.Answer.Progress)
	}
	return i
}

// retry replaces the item of a delivery, and records what the next relay needs of it. mu is held.
func (q *queue) retry(e *pendingItem, next delivery.Item) {
	q.replace(e, next)
	e.group.rec.accept(e.id, waiting{
		Attempts: next.Attempts, Next: next.Next, Error: imds.CutText(next.Error, 200), Progress: next.Progress,
		Batch: next.Batch, FellBack: next.FellBack,
	})
}

// settle records the result of a delivery, which is no longer pending then: it may have been superseded before. mu is held.
func (q *queue) settle(e *pendingItem, res result) {
	e.group.rec.settle(e.id, res)
	seq := e.item.Seq
	if q.pending[seq] == e {
		delete(q.pending, seq)
		delete(q.transfers.due, seq)
		delete(e.group.pending, e.id)
		q.dropBody(e)
		q.count(e, -1)
	}
	q.markDirty(e.group)
	q.records.unsaved[seq] = true
	sent := res.State == resultAccepted
	if sent {
		q.records.ahead++
	}
	e.group.settled = append(e.group.settled, settlement{seq, e.reply, sent})
}
