package relay

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
	"forewarn/bridge/internal/streams"
)

// readStream reads what the consumer gets into the queue until the lease ends.
func (q *queue) readStream() {
	defer func() { q.puller.Close() }()
	for q.ctx.Err() == nil {
		err := q.readOn()
		for q.ctx.Err() == nil && err != nil {
			wait := readRetry
			if errors.Is(err, streams.ErrLost) {
				wait = resumeAfter
			} else {
				q.setReadErr(err)
			}
			_ = streams.Sleep(q.ctx, wait)
			err = q.resume()
		}
	}
}

// readOn reads until that fails. What was read is never let go: it is taken in, however often that is tried.
func (q *queue) readOn() error {
	for {
		batch, err := q.puller.Batch(q.ctx, q.room())
		if err != nil {
			return err
		}
		for err := q.takeAll(batch); err != nil; err = q.takeAll(batch) {
			q.setReadErr(err)
			if err := streams.Sleep(q.ctx, readRetry); err != nil {
				return err
			}
		}
		q.setReadErr(nil)
		if len(batch) == 0 && time.Since(q.checked) >= checkEvery {
			if err := q.resume(); err != nil {
				return err
			}
		}
	}
}

// setReadErr records why the stream can't be read, nil if it can, and logs the first of such errors.
func (q *queue) setReadErr(err error) {
	q.mu.Lock()
	was := q.readErr
	q.readErr = err
	q.mu.Unlock()
	if err != nil && was == nil {
		q.log.Warn("the stream can't be read, trying again", "err", err)
	}
}

// room returns how many messages to ask for. One more than there is room for, so that the next is known.
func (q *queue) room() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(1, min(streams.ReadAhead, q.maxUnsettled-q.unsettled()))
}

// takeAll takes messages in, in order, and then lets the Worker have those that are pending.
func (q *queue) takeAll(batch []streams.Raw) error {
	messages, failures := make([]streams.Message, len(batch)), make([]error, len(batch))
	wanted := map[string]bool{} // records
	for n, r := range batch {
		messages[n], failures[n] = r.Message()
		if failures[n] == nil && q.concerns(messages[n]) {
			wanted[recordKey(q.route.Name, messages[n].RecordID())] = true
		}
	}
	if err := q.loadGroups(wanted); err != nil {
		return err
	}
	for n, r := range batch {
		if q.knows(r.Seq) { // it is read again, because one behind it was lost or could not be taken in
			continue
		}
		if err := q.noteDeleted(r.Seq); err != nil {
			return err
		}
		var err error
		switch {
		case failures[n] != nil:
			err = q.keepInvalid(r, failures[n])
		case !q.concerns(messages[n]):
			q.ack(r.Reply)
		default:
			err = q.admit(messages[n], r)
		}
		if err != nil {
			return err
		}
		q.setRead(r.Seq, r.Stored)
	}
	q.offer(batch)
	return nil
}

// setRead records that the stream was read as far as seq.
func (q *queue) setRead(seq uint64, stored time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if seq > q.lastRead {
		q.lastRead, q.lastReadAt = seq, stored
	}
}

// knows reports whether a message is pending, or settled and not on record yet.
func (q *queue) knows(seq uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pending[seq] != nil || q.unsaved[seq]
}

// offer lets the Worker have what is pending of a batch, once it is on record that it is.
func (q *queue) offer(batch []streams.Raw) {
	if len(batch) > 0 {
		q.flush() // saveErr holds an error; nothing urgent waits for longer than one attempt to write
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range batch {
		if e := q.pending[r.Seq]; e != nil && !e.offered {
			e.offered = true
			q.notifyWorker(r.Seq)
		}
	}
	if q.catchUpTo > 0 && (q.puller.AtEnd || q.lastRead >= q.catchUpTo) {
		q.catchUpTo = 0
		wake(q.changed)
	}
}

// endCatchUp hands all that is pending to the Worker.
func (q *queue) endCatchUp() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.catchUpTo = 0
	wake(q.changed)
}

// makeRoom waits until there is room for one more delivery. As long as the sink accepts nothing, it gives up another for
// it instead, so that nothing urgent waits behind a bound. So it does at once in a group that has as many as its record may
// hold.
func (q *queue) makeRoom(g *group) error {
	for {
		now := time.Now()
		if e := q.expendableOf(g, now); e != nil {
			if err := q.giveUp(e); err != nil {
				return err
			}
		}
		since := q.fullFor(now)
		if since.IsZero() {
			return nil
		}
		if now.Sub(since) >= roomPatience {
			q.mu.Lock()
			e := mostExpendable(maps.Keys(q.pending), q.pending, now)
			q.mu.Unlock()
			if e != nil {
				err := q.giveUp(e)
				if err == nil {
					q.noteOverflow()
					err = q.save([]*group{e.group}) // until then it counts as unsettled
				}
				if err != nil {
					return err
				}
				continue
			}
		}
		select {
		case <-q.roomFreed:
		case <-time.After(max(readRetry, roomPatience-now.Sub(since))):
		case <-q.ctx.Done():
			return q.ctx.Err()
		}
	}
}

// fullFor returns since when the bound is reached and the sink has accepted nothing; zero if there is room. What is pending
// is delivered then, although the stream isn't read to its end.
func (q *queue) fullFor(now time.Time) (since time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.unsettled() < q.maxUnsettled {
		return time.Time{}
	}
	if q.fullSince.IsZero() {
		q.fullSince, q.catchUpTo = now, 0
		wake(q.changed)
	}
	return later(q.fullSince, q.lastAccepted)
}

// noteRoom notes that fewer deliveries are unsettled. The bound counts as reached until the sink has accepted something, or
// a tenth of it is free: what was given up makes room only for what comes. mu is held.
func (q *queue) noteRoom() {
	free := q.maxUnsettled - q.unsettled()
	if !q.fullSince.IsZero() && free > 0 && (q.lastAccepted.After(q.fullSince) || free > q.maxUnsettled/10) {
		if q.overflowed > 0 {
			q.log.Info("there is room again", "deadLetters", q.overflowed)
		}
		q.fullSince, q.overflowed = time.Time{}, 0
	}
	wake(q.roomFreed)
}

// expendableOf returns which delivery of a group to give up, because its record may hold no more; nil for none.
func (q *queue) expendableOf(g *group, now time.Time) *pendingItem {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(g.pending) < maxWaiting {
		return nil
	}
	return mostExpendable(maps.Values(g.pending), q.pending, now)
}

// mostExpendable returns which of some pending deliveries to give up: what the fallback has, then the oldest that isn't
// urgent, then the oldest; nil if all are being attempted.
func mostExpendable(seqs iter.Seq[uint64], pending map[uint64]*pendingItem, now time.Time) (least *pendingItem) {
	rank := func(e *pendingItem) int {
		switch {
		case e.item.FellBack:
			return 0
		case !urgent(e.item, now):
			return 1
		}
		return 2
	}
	for seq := range seqs {
		e := pending[seq]
		if e.begun {
			continue
		}
		if least == nil || cmp.Or(rank(e)-rank(least), cmp.Compare(e.item.Seq, least.item.Seq)) < 0 {
			least = e
		}
	}
	return least
}

// urgent reports whether a delivery is about an event that begins soon or has begun.
func urgent(i *delivery.Item, now time.Time) bool {
	return i.Group != "" && !i.Ends() && i.NotBefore.Sub(now) < delivery.UrgentNotice
}

// giveUp settles a delivery for which there is no room: as superseded if the fallback has it, else as a dead letter.
func (q *queue) giveUp(e *pendingItem) error {
	now := time.Now().UTC()
	res := result{At: now, State: resultSuperseded, Answer: "the fallback has it"}
	if !e.item.FellBack {
		res = result{At: now, State: resultDead, Answer: delivery.ReasonOverflow, Attempts: e.item.Attempts}
		u := &unkept{item: e.item, dead: true, report: delivery.Report{Now: now, Reason: delivery.ReasonOverflow}}
		if err := q.keepDeadLetter(u, e.item.Error); err != nil {
			return fmt.Errorf("keep a dead letter: %w", err)
		}
		q.meter.Failed(q.route.Name, delivery.ReasonOverflow)
	}
	q.mu.Lock()
	if q.pending[e.item.Seq] != e {
		q.mu.Unlock()
		return nil
	}
	q.settle(e, res)
	q.notifyWorker(e.item.Seq)
	q.mu.Unlock()
	return nil
}

// noteOverflow counts what was given up because of the bound, and logs the first of it.
func (q *queue) noteOverflow() {
	q.mu.Lock()
	q.overflowed++
	first := q.overflowed == 1
	q.mu.Unlock()
	if first {
		q.log.Error("too much is unsettled, so the oldest that isn't urgent becomes a dead letter for each that comes",
			"unsettled", q.maxUnsettled)
	}
}

// noteDeleted counts the messages before one that the stream's limits deleted before they were read.
func (q *queue) noteDeleted(seq uint64) error {
	if seq <= q.lastRead+1 {
		return nil
	}
	info, err := q.streamInfo()
	if err != nil {
		return err
	}
	info.State.FirstSeq = min(info.State.FirstSeq, seq)
	q.skipDeleted(info, q.lastRead)
	return nil
}

// skipDeleted counts the messages after a sequence number that the stream's limits deleted. Some of them may have been
// delivered.
func (q *queue) skipDeleted(info *jetstream.StreamInfo, after uint64) {
	if info.State.FirstSeq <= after+1 {
		return
	}
	n := info.State.FirstSeq - after - 1
	q.mu.Lock()
	q.deletedUnread += n
	q.mu.Unlock()
	q.setRead(info.State.FirstSeq-1, time.Time{})
	q.log.Error("the stream's limits deleted messages that this sink may not have got; raise its max_age or max_bytes",
		"stream", info.Config.Name, "messages", n)
}

// fetch reads one message. The error wraps delivery.ErrLost if the stream no longer has it.
func (q *queue) fetch(seq uint64) (streams.Raw, error) {
	r, err := streams.Get(q.ctx, q.js, q.streamName(), seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return r, fmt.Errorf("%w: stream %s has no message %d any more", delivery.ErrLost, q.streamName(), seq)
	case err != nil:
		return r, fmt.Errorf("read message %d: %w", seq, err)
	}
	return r, nil
}

// loadGroups reads the records with these keys that aren't in memory.
func (q *queue) loadGroups(keys map[string]bool) error {
	var missing []string
	q.mu.Lock()
	if len(q.groups) >= 2*maxGroups {
		q.evictGroups()
	}
	for key := range keys {
		if q.groups[key] == nil {
			missing = append(missing, key)
		}
	}
	q.mu.Unlock()
	return atOnce(len(missing), func(n int) error { return q.loadGroup(missing[n]) })
}

// atOnce calls f with each number below n, several at the same time, and returns its errors.
func atOnce(n int, f func(int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, maxAtOnce)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			errs[i] = f(i)
			<-slots
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
