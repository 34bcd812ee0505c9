package relay

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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
			q.setReadErr(explainSilence(q.js.Conn(), err))
			wait := readRetry
			if errors.Is(err, streams.ErrLost) {
				wait = resumeAfter
			}
			_ = streams.Sleep(q.ctx, wait)
			err = q.resume()
		}
	}
}

// readOn reads until that fails. What was read whole is never let go: it is taken in, however often that is tried.
func (q *queue) readOn() error {
	for {
		batch, err := q.puller.Batch(q.ctx, q.readable())
		if err == nil {
			err = q.checkWhole(batch)
		}
		if err != nil {
			return err
		}
		if err := q.takeAll(batch); err != nil {
			return err
		}
		q.offer(batch)
		q.setReadErr(nil)
		if len(batch) == 0 && time.Since(q.checked) >= checkEvery {
			if err := q.resume(); err != nil {
				return err
			}
		}
	}
}

// setReadErr records why the stream can't be read on, nil if it can, and logs the first of such errors.
func (q *queue) setReadErr(err error) {
	q.mu.Lock()
	was := q.pos.err
	q.pos.err = err
	switch {
	case err == nil:
		q.pos.errSince = time.Time{}
	case q.pos.errSince.IsZero():
		q.pos.errSince = time.Now()
	}
	q.mu.Unlock()
	if err != nil && was == nil {
		q.log.Warn("the stream can't be read on, trying again", "err", err)
	}
}

// readErr returns why the stream can't be read on; nil if it can.
func (q *queue) readErr() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pos.err
}

// takeAll takes messages in, in order. After an error it goes on where that was, until the lease ends.
func (q *queue) takeAll(batch []streams.Raw) error {
	for {
		n, err := q.take(batch)
		if err == nil {
			return nil
		}
		q.setReadErr(err)
		if err := streams.Sleep(q.ctx, readRetry); err != nil {
			return err
		}
		batch = batch[n:]
	}
}

// take takes messages in, in order, until that fails. It returns how many it has taken.
func (q *queue) take(batch []streams.Raw) (taken int, err error) {
	messages, failures := make([]streams.Message, len(batch)), make([]error, len(batch))
	wanted := map[string]bool{} // records
	for n, r := range batch {
		messages[n], failures[n] = r.Message()
		if failures[n] == nil && q.concerns(messages[n]) {
			wanted[recordKey(q.route.Name, messages[n].RecordID())] = true
		}
	}
	if err := q.storeInvalid(batch, failures); err != nil {
		return 0, err
	}
	if err := q.loadGroups(wanted); err != nil {
		return 0, err
	}
	for n, r := range batch {
		if q.knows(r) { // it is read again, because one behind it was lost
			continue
		}
		if err := q.noteDeleted(r.Seq); err != nil {
			return n, err
		}
		switch {
		case failures[n] != nil:
			q.noteInvalid(r, failures[n])
		case !q.concerns(messages[n]):
			q.ack(r.Reply)
		default:
			err = q.admit(messages[n], r)
		}
		if err != nil {
			return n, err
		}
		q.setRead(r.Seq, r.Stored)
	}
	return len(batch), nil
}

// setRead records that the stream was read as far as seq.
func (q *queue) setRead(seq uint64, stored time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if seq > q.pos.last {
		q.pos.last, q.pos.lastAt = seq, stored
	}
}

// knows reports whether a message is pending, or settled and not on record yet. From then on it is acknowledged as this
// copy of it wants to be.
func (q *queue) knows(r streams.Raw) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.pending[r.Seq]; e != nil {
		e.reply = r.Reply
		return true
	}
	if !q.records.unsaved[r.Seq] {
		return false
	}
	for g := range q.records.dirty {
		for n := range g.settled {
			if g.settled[n].seq == r.Seq {
				g.settled[n].reply = r.Reply
			}
		}
	}
	return true
}

// offer lets the Worker have what is pending of a batch, once it is on record that it is.
func (q *queue) offer(batch []streams.Raw) {
	if len(batch) > 0 {
		q.saveSoon(q.unsaved()) // nothing urgent waits for longer than one attempt to write
		q.ack()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range batch {
		if e := q.pending[r.Seq]; e != nil && !e.offered {
			q.setOffered(e, true)
		}
	}
	if q.pos.catchUpTo > 0 && (q.puller.AtEnd || q.pos.last >= q.pos.catchUpTo) {
		q.endCatchUp()
	}
}

// endCatchUp hands all that is pending to the Worker. mu is held.
func (q *queue) endCatchUp() {
	q.pos.catchUpTo = 0
	wake(q.updates.wake)
}

// noteDeleted counts the messages before one that the stream's limits deleted before they were read.
func (q *queue) noteDeleted(seq uint64) error {
	if seq <= q.pos.last+1 {
		return nil
	}
	info, err := q.streamInfo()
	if err != nil {
		return err
	}
	info.State.FirstSeq = min(info.State.FirstSeq, seq)
	q.skipDeleted(info, q.pos.last)
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
	q.pos.deleted += n
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
	if len(q.records.groups) >= 2*maxGroups {
		q.evictGroups()
	}
	for key := range keys {
		if q.records.groups[key] == nil {
			missing = append(missing, key)
		}
	}
	q.mu.Unlock()
	return atOnce(len(missing), func(n int) error { return q.loadGroup(missing[n]) })
}

// atOnce calls f with each number below n, several at the same time, and returns its errors. After one it begins no more.
func atOnce(n int, f func(int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, maxAtOnce)
	var failed atomic.Bool
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		if failed.Load() {
			break
		}
		all.Go(func() {
			errs[i] = f(i)
			if errs[i] != nil {
				failed.Store(true)
			}
			<-slots
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
