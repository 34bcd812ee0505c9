package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// readAll reads from the cursor on, again and again: streams and servers may be gone for a while.
func (q *queue) readAll() {
	defer time.AfterFunc(catchUp, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.caughtUp()
	}).Stop()
	for q.term.Err() == nil {
		err := q.readOpen()
		if err == nil {
			q.mu.Lock()
			q.readTo(q.read)
			from := q.read
			q.mu.Unlock()
			err = follow(q.term, q.js, q.stream.CachedInfo().Config.Name, startAfter(from), q.take)
		}
		if q.term.Err() != nil {
			return
		}
		if errors.Is(err, errOvertaken) {
			q.lost(err)
			return
		}
		q.mu.Lock()
		news := q.readErr == nil
		q.readErr = err
		q.mu.Unlock()
		if news {
			q.log.Warn("the stream can't be read, trying again", "err", err)
		}
		select {
		case <-q.term.Done():
		case <-time.After(readAgain):
		}
		q.checkStream()
	}
}

// checkStream ends the lease's time when the stream is another one than before, so that a new queue begins with it.
func (q *queue) checkStream() {
	info, err := q.info()
	if err != nil {
		return
	}
	q.mu.Lock()
	read := q.read
	q.mu.Unlock()
	if read > info.State.LastSeq || !info.Created.Equal(q.created) {
		q.lost(fmt.Errorf("stream %s is another one than before", info.Config.Name))
		return
	}
	q.missed(info, read)
}

// readOpen reads the changes that were open when the sink was new.
func (q *queue) readOpen() error {
	q.mu.Lock()
	open := slices.Sorted(maps.Keys(q.open))
	q.mu.Unlock()
	for _, seq := range open {
		q.mu.Lock()
		known := !q.open[seq] || q.pending[seq] != nil
		q.mu.Unlock()
		if known {
			continue
		}
		r, err := q.fetch(q.term, seq)
		switch {
		case errors.Is(err, delivery.ErrLost):
			q.mu.Lock()
			delete(q.open, seq)
			q.mu.Unlock()
			continue
		case err != nil:
			return err
		}
		if err := q.takeOne(r); err != nil {
			return err
		}
	}
	return nil
}

// fetch reads one message by its number. The error wraps delivery.ErrLost when the stream has it no more.
func (q *queue) fetch(ctx context.Context, seq uint64) (rawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	msg, err := q.stream.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		info, err := q.info()
		if err != nil {
			return rawMessage{}, err
		}
		if seq <= info.State.LastSeq || !info.Created.Equal(q.created) {
			return rawMessage{}, fmt.Errorf("%w: stream %s has no message %d any more", delivery.ErrLost, info.Config.Name, seq)
		} // else it is about to be there
	}
	if err != nil {
		return rawMessage{}, fmt.Errorf("read message %d: %w", seq, err)
	}
	return rawMessage{msg.Sequence, msg.Time.UTC(), msg.Subject, msg.Header, msg.Data}, nil
}

// take takes in a message when there is room for it.
func (q *queue) take(r rawMessage) error {
	if err := q.room(); err != nil {
		return err
	}
	return q.takeOne(r)
}

// room waits until less is unsettled than may be.
func (q *queue) room() error {
	for {
		q.mu.Lock()
		full := len(q.pending)+len(q.unsaved) >= q.most
		news := full != q.full
		q.full, q.readErr = full, nil
		if full && news {
			q.caughtUp()
		}
		q.mu.Unlock()
		switch {
		case full && news:
			q.log.Error("too much is unsettled, so the stream is not read on until the sink accepts something", "unsettled",
				q.most)
		case news:
			q.log.Info("there is room again, the stream is read on")
		}
		if !full {
			return nil
		}
		select {
		case <-q.released:
		case <-q.term.Done():
			return q.term.Err()
		}
	}
}

// takeOne takes in a message: it becomes pending, unless the sink isn't owed it or has it already.
func (q *queue) takeOne(r rawMessage) error {
	m, err := r.message()
	if err != nil {
		return q.noCloudEvent(r, err)
	}
	if !q.concerns(m) {
		q.pass(r.seq)
		return nil
	}
	g, err := q.group(recordKey(q.route.Name, m.recordID()))
	if err != nil {
		return err
	}
	if tooLate := q.admit(g, m); !tooLate {
		return nil
	}
	letter := deadLetter{
		Sink: q.route.Name, Seq: m.seq, ID: m.ce.ID(), Type: m.ce.Type(), Event: m.eventID, Reason: delivery.ReasonLate,
		At: time.Now().UTC(), Pending: m.stored,
	}
	if err := q.dead.add(q.term, letter, &m.ce); err != nil {
		return err
	}
	q.meter.Failed(q.route.Name, delivery.ReasonLate)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settleUnsent(g, m, resultDead, delivery.ReasonLate)
	return nil
}

// admit makes a message pending, unless the sink isn't owed it or has it already. tooLate means that it becomes a dead
// letter: a newer change of its event came first, and the sink has late: drop. With late: latest such a change is never
// sent either.
func (q *queue) admit(g *group, m message) (tooLate bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.open, m.seq)
	if q.knows(g, m.deliveryID()) {
		q.readTo(m.seq)
		return false
	}
	wanted, outdated := q.wants(g, m)
	switch {
	case !wanted, m.instead != nil && q.knows(g, m.ce.ID()):
	case outdated && q.route.Terms.Late == delivery.LateDrop:
		return true
	case outdated && (q.route.Terms.Late == delivery.LateLatest || q.route.Terms.Lead > 0):
		q.settleUnsent(g, m, resultSuperseded, "")
	default:
		q.pend(g, m)
	}
	q.readTo(m.seq)
	return false
}

// knows says whether the sink has, or had, a delivery. mu is held.
func (q *queue) knows(g *group, id string) bool {
	_, settled := g.rec.Settled[id]
	_, waits := g.pending[id]
	return settled || waits
}

// settleUnsent settles a message that was never pending. mu is held.
func (q *queue) settleUnsent(g *group, m message, how, answer string) {
	g.rec.settle(m.deliveryID(), result{At: time.Now().UTC(), How: how, Answer: answer})
	q.note(g)
	q.readTo(m.seq)
}

// pass notes that a message was read that the sink isn't owed.
func (q *queue) pass(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.open, seq)
	q.readTo(seq)
}

// readTo notes that the stream was read so far. mu is held.
func (q *queue) readTo(seq uint64) {
	q.read = max(q.read, seq)
	q.readErr = nil
	if q.waiting > 0 && q.read >= q.waiting {
		q.caughtUp()
	}
}

// caughtUp lets the Worker begin: it must know that an event is over before it tells that it was announced. mu is held.
func (q *queue) caughtUp() {
	q.waiting = 0
	wake(q.changed)
}

// noCloudEvent keeps a message that is none as a dead letter, once for all sinks.
func (q *queue) noCloudEvent(r rawMessage, why error) error {
	err := q.dead.addInvalid(q.term, r, why)
	if err != nil {
		return err
	}
	q.meter.Failed(q.route.Name, delivery.ReasonLost)
	q.log.Error("a message of the stream is no CloudEvent; it is kept as a dead letter", "message", r.seq, "subject",
		imds.Printable(r.subject, 200), "err", imds.Printable(why.Error(), 200))
	q.pass(r.seq)
	return nil
}
