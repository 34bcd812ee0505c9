package relay

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sort"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/imds"
)

const (
	cursorEvery  = time.Second    // how often the cursor is saved if it moves
	maxCursorAge = 12 * time.Hour // saved at least this often, because the bucket deletes old values
)

// A cursor is how far a sink has come in the stream: everything up to After is settled, except Open.
type cursor struct {
	After uint64 `json:"after"`
	// Open are older messages that are pending: about the Azure events that were open when the sink was new, see
	// newCursor.
	Open []uint64 `json:"open,omitempty"`
	// Stream is when the stream was created. A new stream of the same name starts from 1 again.
	Stream time.Time `json:"stream"`
	// Read is the last message that was read, and ReadAt when the stream stored it; zero if that is unknown.
	Read   uint64    `json:"read,omitempty"`
	ReadAt time.Time `json:"readAt,omitzero"`
	// Blocked means that the other sinks were told that this one is.
	Blocked bool `json:"blocked,omitempty"`
}

// lost reports whether a stream's servers lost the message that was read last, and stored at that time, as they may
// when they crash before it is on disk. Other messages get its number then, and those of the messages before it.
func lost(
	ctx context.Context, js jetstream.JetStream, info *jetstream.StreamInfo, read uint64, stored time.Time,
) (bool, error) {
	switch {
	case stored.IsZero():
		return false, nil
	case read > info.State.LastSeq:
		return true, nil
	}
	r, err := getMessage(ctx, js, info.Config.Name, read)
	if errors.Is(err, jetstream.ErrMsgNotFound) { // its limits may have deleted it
		return false, nil
	}
	return err == nil && !r.stored.Equal(stored), err
}

// lostBefore is how long before the last message was read a stream is read again that lost messages, because the clocks
// of its servers may differ. Those that were told are on record for much longer.
const lostBefore = time.Hour

// newCursor returns the cursor of a sink that is new to the stream. The sink gets the latest change of each open Azure
// event, what came of its approval since, and everything since from; if that is zero, from now on.
func (q *queue) newCursor(info *jetstream.StreamInfo, from time.Time) (cursor, error) {
	c := cursor{
		After: info.State.LastSeq, Stream: info.Created, Read: info.State.LastSeq, ReadAt: info.State.LastTime.UTC(),
	}
	latest := map[string]uint64{}  // by Azure event
	answers := map[string]uint64{} // likewise: what came of its approval since
	stages := map[string]stage{}   // likewise
	first := uint64(0)             // the first message that is not older than from
	err := readSince(q.ctx, q.js, info.Config.Name, info, time.Now().Add(-maxEventAge), func(r rawMessage) {
		if first == 0 && !from.IsZero() && !r.stored.Before(from) {
			first = r.seq
		}
		m, err := r.message()
		switch {
		case err != nil, m.onlySink != "", m.eventID == "", first != 0:
		case m.change.Kind.OfAzure():
			now := stages[m.group()]
			if now.outdated(m) {
				return
			}
			now.update(m)
			stages[m.group()], latest[m.group()] = now, r.seq
			delete(answers, m.group())
			if m.change.Kind == imds.Vanished {
				delete(latest, m.group())
			}
		case m.change.Kind == imds.Approved && latest[m.group()] != 0:
			answers[m.group()] = r.seq
		}
	})
	if err != nil {
		return c, err
	}
	if first != 0 {
		c.After = first - 1
	}
	for id, seq := range latest {
		c.Open = append(c.Open, seq)
		if answers[id] != 0 {
			c.Open = append(c.Open, answers[id])
		}
	}
	c.sort()
	return c, nil
}

// sort orders the sequence numbers. It does without slices.Sort, which costs the binary 4 kB for each type of number.
func (c cursor) sort() { sort.Slice(c.Open, func(i, j int) bool { return c.Open[i] < c.Open[j] }) }

// currentCursor returns the cursor for the ids settled so far. mu is held.
func (q *queue) currentCursor() cursor {
	c := cursor{After: q.lastRead, Stream: q.streamCreated, Read: q.lastRead, ReadAt: q.lastReadAt, Blocked: q.told}
	if len(q.readOrder) > 0 {
		c.After = q.readOrder[0] - 1
	}
	for seq := range q.openSeqs {
		c.Open = append(c.Open, seq)
	}
	c.sort()
	return c
}

// advance drops settled deliveries from the front of readOrder, and wakes the reader.
func (q *queue) advance() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.readOrder) > 0 && !q.unsettled(q.readOrder[0]) {
		q.readOrder = q.readOrder[1:]
	}
	if len(q.readOrder) > 2*q.maxUnsettled { // one at the front holds up the cursor
		q.readOrder = slices.DeleteFunc(q.readOrder, func(seq uint64) bool { return !q.unsettled(seq) })
	}
	wake(q.roomFreed)
}

// unsettled reports whether a delivery is pending, or settled only in memory. mu is held.
func (q *queue) unsettled(seq uint64) bool { return q.pending[seq] != nil || q.unsaved[seq] }

// saveCursor writes the cursor if it has moved and cursorEvery is over; with always, at once, and while the lease is
// held also if it hasn't moved.
func (q *queue) saveCursor(ctx context.Context, always bool) error {
	q.saving <- struct{}{}
	defer func() { <-q.saving }()
	if !always && time.Since(q.cursorSaved) < cursorEvery {
		return nil
	}
	q.mu.Lock()
	c := q.currentCursor()
	if c.Read > q.savedRead { // what was read since may have changed records
		c.After, c.Read, c.ReadAt = min(c.After, q.savedRead), q.savedRead, q.savedReadAt
	}
	was := q.savedCursor
	same := c.After == was.After && len(c.Open) == len(was.Open) && c.Blocked == was.Blocked
	q.mu.Unlock()
	if same && !always && time.Since(q.cursorSaved) < maxCursorAge {
		return nil
	}
	if q.ctx.Err() != nil && (same || q.cursor.unanswered != nil) {
		return nil // the next relay may have written the same as this one did last, and put could not tell them apart
	}
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	err = q.bucket.save(ctx, &q.cursor, body)
	if errors.Is(err, errOvertaken) {
		q.endLease(err)
	}
	if err != nil {
		return err
	}
	q.cursorSaved = time.Now()
	q.mu.Lock()
	q.savedCursor = c
	q.mu.Unlock()
	return nil
}
