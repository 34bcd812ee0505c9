package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
)

// readStream reads from the cursor on until the lease ends. It starts again when the stream or the servers were gone.
func (q *queue) readStream() {
	defer time.AfterFunc(maxCatchUp, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.endCatchUp()
	}).Stop()
	for q.ctx.Err() == nil {
		err := q.readOpen()
		if err == nil {
			q.mu.Lock()
			q.setRead(0, time.Time{})
			from := q.lastRead
			q.mu.Unlock()
			err = follow(q.ctx, q.js, q.stream.CachedInfo().Config.Name, startAfter(from), q.takeWhenRoom)
		}
		if q.ctx.Err() != nil {
			return
		}
		if errors.Is(err, errOvertaken) {
			q.endLease(err)
			return
		}
		q.setReadErr(err)
		for sleep(q.ctx, readRetry) == nil && q.checkStream() != nil { // if it lost messages, others have their numbers
		}
	}
}

// setReadErr records why the stream can't be read, and logs the first of such errors.
func (q *queue) setReadErr(err error) {
	q.mu.Lock()
	isNew := q.readErr == nil
	q.readErr = err
	q.mu.Unlock()
	if isNew {
		q.log.Warn("the stream can't be read, trying again", "err", err)
	}
}

// checkStream ends the lease if the stream was deleted and created again, or its servers lost messages, so that a new
// queue starts with it.
func (q *queue) checkStream() error {
	info, err := q.streamInfo()
	if err != nil {
		return err
	}
	q.mu.Lock()
	c := q.currentCursor()
	q.mu.Unlock()
	lost, err := lost(q.ctx, q.js, info, c.Read, c.ReadAt)
	switch {
	case lost, c.Read > info.State.LastSeq, !info.Created.Equal(q.streamCreated):
		q.endLease(fmt.Errorf("stream %s is another one than before", info.Config.Name))
	case err == nil:
		q.skipDeleted(info, c.Read)
	}
	return err
}

// skipDeleted counts the messages after a sequence number that the stream's limits deleted, and reads on behind them.
// Some of them may have been delivered: the cursor does not move past one that waits.
func (q *queue) skipDeleted(info *jetstream.StreamInfo, after uint64) {
	if info.State.FirstSeq <= after+1 {
		return
	}
	q.mu.Lock()
	n := info.State.FirstSeq - after - 1
	q.deletedUnread += n
	q.lastRead, q.lastReadAt = max(q.lastRead, info.State.FirstSeq-1), time.Time{}
	q.mu.Unlock()
	q.log.Error("the stream's limits deleted messages that this sink may not have got; raise its max_age or max_bytes",
		"stream", info.Config.Name, "messages", n)
}

// readOpen reads the messages of the cursor's Open that aren't pending or settled yet.
func (q *queue) readOpen() error {
	q.mu.Lock()
	open := q.currentCursor().Open
	q.mu.Unlock()
	for _, seq := range open {
		q.mu.Lock()
		unread := q.openSeqs[seq] && q.pending[seq] == nil
		q.mu.Unlock()
		if !unread {
			continue
		}
		r, err := q.fetch(seq)
		switch {
		case errors.Is(err, delivery.ErrLost):
			q.mu.Lock()
			delete(q.openSeqs, seq)
			q.deletedUnread++
			q.mu.Unlock()
			q.log.Error("the stream has deleted a message that was pending for this sink", "err", err)
			continue
		case err != nil:
			return err
		}
		if err := q.take(r); err != nil {
			return err
		}
	}
	return nil
}

// fetch reads one message. The error wraps delivery.ErrLost if the stream no longer has it.
func (q *queue) fetch(seq uint64) (rawMessage, error) {
	name := q.stream.CachedInfo().Config.Name
	r, err := getMessage(q.ctx, q.js, name, seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return r, fmt.Errorf("%w: stream %s has no message %d any more", delivery.ErrLost, name, seq)
	case err != nil:
		return r, fmt.Errorf("read message %d: %w", seq, err)
	}
	return r, nil
}

// takeWhenRoom takes a message when the queue has room for it. Those before it may have been deleted while it had none.
func (q *queue) takeWhenRoom(r rawMessage) error {
	if err := q.waitForRoom(); err != nil {
		return err
	}
	q.mu.Lock()
	lastRead := q.lastRead
	q.mu.Unlock()
	if r.seq > lastRead+1 {
		info, err := q.streamInfo()
		if err != nil {
			return err
		}
		info.State.FirstSeq = min(info.State.FirstSeq, r.seq)
		q.skipDeleted(info, lastRead)
	}
	return q.take(r)
}

// waitForRoom waits until fewer deliveries are unsettled than maxUnsettled.
func (q *queue) waitForRoom() error {
	for {
		q.mu.Lock()
		full := len(q.pending)+len(q.unsaved) >= q.maxUnsettled
		changed := full != q.full
		q.full, q.readErr = full, nil
		if full && changed {
			q.endCatchUp()
		}
		q.mu.Unlock()
		switch {
		case full && changed:
			q.log.Error("too much is unsettled, so the stream is not read on until the sink accepts something",
				"unsettled", q.maxUnsettled)
		case changed:
			q.log.Info("there is room again, the stream is read on")
		}
		if !full {
			return nil
		}
		select {
		case <-q.roomFreed:
		case <-q.ctx.Done():
			return q.ctx.Err()
		}
	}
}

// skip records that a message was read that isn't for the sink.
func (q *queue) skip(r rawMessage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.openSeqs, r.seq)
	q.setRead(r.seq, r.stored)
}

// setRead records that the stream was read as far as seq. mu is held.
func (q *queue) setRead(seq uint64, stored time.Time) {
	if seq > q.lastRead {
		q.lastRead, q.lastReadAt = seq, stored
	}
	q.readErr = nil
	if q.catchUpTo > 0 && q.lastRead >= q.catchUpTo {
		q.endCatchUp()
	}
}

// endCatchUp hands the pending deliveries to the Worker. It must not begin earlier: it would deliver the announcement
// of an event whose end is in the stream already. mu is held.
func (q *queue) endCatchUp() {
	q.catchUpTo = 0
	wake(q.changed)
}
