package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/imds"
)

// maxSettled is how many results a record keeps: those of the deliveries that were settled last.
const maxSettled = 1000

// maxWaiting is how many deliveries may wait in a record, so that it fits into one message.
const maxWaiting = 1000

// A record is all that a sink remembers of an Azure event, or of a CloudEvent about a bridge. It is written before the
// first delivery that it calls waiting is attempted.
type record struct {
	// Matched means that the sink's filter let one of the event's changes pass. The sink gets all later ones.
	Matched bool               `json:"matched,omitempty"`
	Settled map[string]result  `json:"settled,omitempty"` // by message.deliveryID
	Waiting map[string]waiting `json:"waiting,omitempty"` // likewise: accepted by the filter, and not settled
	Receipt []byte             `json:"receipt,omitempty"`
	// Decided is the sequence number of the last message about the event that was decided, and DecidedAt when the stream
	// stored it. One before it that is neither settled nor waiting was refused. A message with a lower number that was
	// stored later is of another stream, or has the number of a message that was lost.
	Decided   uint64    `json:"decided,omitempty"`
	DecidedAt time.Time `json:"decidedAt,omitzero"`
	stage
}

// decided reports whether it was decided before what becomes of a message.
func (r *record) decided(m message) bool { return m.seq <= r.Decided && !m.stored.After(r.DecidedAt) }

// decide records that it is decided what becomes of a message.
func (r *record) decide(m message) {
	if !r.decided(m) {
		r.Decided, r.DecidedAt = m.seq, m.stored
	}
}

// isSettled reports whether a delivery was settled: if its id is numbered, that of a message stored then.
func (r *record) isSettled(id string, stored time.Time) bool {
	was, settled := r.Settled[id]
	return settled && (was.Stored.IsZero() || was.Stored.Equal(stored))
}

// accepted returns the state of a delivery that waits: if its id is numbered, that of a message stored then.
func (r *record) accepted(id string, stored time.Time) (w waiting, found bool) {
	w, found = r.Waiting[id]
	return w, found && (w.Stored.IsZero() || w.Stored.Equal(stored))
}

// knows reports whether a delivery waits or was settled.
func (r *record) knows(id string, stored time.Time) bool {
	_, accepted := r.accepted(id, stored)
	return accepted || r.isSettled(id, stored)
}

// A stage is how far along its life an Azure event is: the kind of its latest change, when a VM saw that, the change's
// sequence number in the stream, when the stream stored it, and when the event may begin.
type stage struct {
	Kind      imds.ChangeKind `json:"kind,omitempty"`
	Seen      time.Time       `json:"seen,omitzero"`
	Seq       uint64          `json:"seq,omitempty"`
	Stored    time.Time       `json:"stored,omitzero"`
	NotBefore time.Time       `json:"notBefore,omitzero"`
}

// precedes reports whether a change comes after the latest one in the stream, or in one that was made later. The clock
// of the servers may be set back by less than a minute.
func (s *stage) precedes(m message) bool {
	return m.seq > s.Seq || !s.Stored.IsZero() && m.stored.After(s.Stored.Add(time.Minute))
}

// outdated reports whether a change comes too late, because the stream has a later one before it. This happens when a
// VM that first sees an event already started or over publishes earlier than the VMs that saw it announced. The change
// of an event that comes back isn't outdated, because it was seen later. Nor is one that is pending and read again.
func (s *stage) outdated(m message) bool {
	return s.precedes(m) && stageOf(m.change.Kind) < stageOf(s.Kind) && m.seen().Before(s.Seen)
}

// movesOnTo reports whether a change is neither outdated nor read again.
func (s *stage) movesOnTo(m message) bool {
	return m.change.Kind.OfAzure() && m.onlySink == "" && s.precedes(m) && !s.outdated(m)
}

// update moves the stage on to a change, unless that is outdated or read again.
func (s *stage) update(m message) {
	if s.movesOnTo(m) {
		*s = stage{m.change.Kind, m.seen(), m.seq, m.stored, m.notBefore()}
	}
}

// stageOf returns the position of a kind of change in an event's life.
func stageOf(k imds.ChangeKind) int {
	return slices.Index([]imds.ChangeKind{imds.Scheduled, imds.Updated, imds.Started, imds.Vanished}, k)
}

// A result is how a delivery was settled.
type result struct {
	At       time.Time `json:"at"`
	State    string    `json:"state"`              // resultAccepted, resultSuperseded or resultDead
	Answer   string    `json:"answer,omitempty"`   // of the destination, or why it became a dead letter
	Attempts int       `json:"attempts,omitempty"` // number of attempts
	// Stored is when the stream stored the message, if the delivery's id is numbered. Another message with its number has
	// another time: the stream was made again, or lost messages.
	Stored time.Time `json:"stored,omitzero"`
}

// The values of result.State.
const (
	resultAccepted   = "accepted"
	resultSuperseded = "superseded"
	resultDead       = "dead"
)

// A waiting is the state of a delivery that isn't settled, as far as the next relay needs it.
type waiting struct {
	Attempts int       `json:"attempts,omitempty"`
	Next     time.Time `json:"next,omitzero"`
	Error    string    `json:"error,omitempty"`
	Progress []byte    `json:"progress,omitempty"`
	Batch    uint64    `json:"batch,omitempty"`
	FellBack bool      `json:"fellBack,omitempty"`
	Stored   time.Time `json:"stored,omitzero"` // see result.Stored
}

// settle records the result of a delivery of a message that was stored then, and forgets its attempts.
func (r *record) settle(id string, m result, stored time.Time) {
	if numbered(id) {
		m.Stored = stored
	}
	if r.Settled == nil {
		r.Settled = map[string]result{}
	}
	r.Settled[id] = m
	delete(r.Waiting, id)
	if len(r.Settled) > maxSettled {
		oldest := id
		for other, m := range r.Settled {
			if m.At.Before(r.Settled[oldest].At) {
				oldest = other
			}
		}
		delete(r.Settled, oldest)
	}
}

// accept records the state of a delivery of a message that was stored then, and isn't settled.
func (r *record) accept(id string, w waiting, stored time.Time) {
	if numbered(id) {
		w.Stored = stored
	}
	if r.Waiting == nil {
		r.Waiting = map[string]waiting{}
	}
	r.Waiting[id] = w
}

// A group is a record in memory, with the deliveries that belong to it. The queue's mu guards all but entry.
type group struct {
	entry           entry // guarded by queue.saving
	rec             record
	version         int               // number of changes made to rec
	savedVersion    int               // the version in the bucket
	requiredVersion int               // the version that must be in the bucket before the group's next delivery
	pending         map[string]uint64 // sequence numbers by message.deliveryID
	settled         []settlement      // those since the last save
}

// A settlement is a message that is settled in a record that isn't saved yet.
type settlement struct {
	seq   uint64
	reply string // see rawMessage
	sent  bool   // the sink has accepted it
}

// A bucket is the key-value bucket with what is kept of the sinks and their records, under the keys sink.<sink> and
// record.<sink>.<Azure event or CloudEvent>.<subscription>.<group>.<set>.
type bucket struct{ kv jetstream.KeyValue }

func recordKey(sink, group string) string {
	id, set := cutGroup(group)
	return "record." + token(sink) + "." + token(id) + "." + set
}

// get decodes a value into to, and returns its revision: 0 if there is no value. If the value can't be decoded, the
// error wraps errUnreadable and the revision is returned all the same.
func (b bucket) get(ctx context.Context, key string, to any) (rev uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	e, err := b.kv.Get(ctx, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read %s: %w", key, err)
	}
	if len(e.Value()) == 0 {
		return e.Revision(), nil
	}
	if err := json.Unmarshal(e.Value(), to); err != nil {
		return e.Revision(), fmt.Errorf("%w: %s: %w", errUnreadable, key, err)
	}
	return e.Revision(), nil
}

// errUnreadable means that a relay didn't write this value.
var errUnreadable = errors.New("unreadable")

// errOvertaken means that another relay wrote a value that only the holder of a lease may write.
var errOvertaken = errors.New("another relay has taken over")

// put replaces the value that has this revision, and returns the new revision. If the bucket holds another revision,
// the error wraps errOvertaken, unless that has the same value: then the answer to an earlier put was lost.
func (b bucket) put(ctx context.Context, key string, value []byte, rev uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	next, err := writeRevision(ctx, b.kv, key, value, rev)
	if err == nil || !isConflict(err) {
		return next, err
	}
	e, err := b.kv.Get(ctx, key)
	switch {
	case err == nil && bytes.Equal(e.Value(), value):
		return e.Revision(), nil
	case err == nil, errors.Is(err, jetstream.ErrKeyNotFound):
		return 0, fmt.Errorf("%w: %s was written", errOvertaken, key)
	}
	return 0, err
}

// An entry is a key of the bucket that only one queue writes.
type entry struct {
	key        string
	rev        uint64
	unanswered []byte // a value that was put without an answer; nil if there is none
}

// save replaces the value of an entry. If a put got no answer it is repeated first: the bucket may have that value, and
// only a put of the same one tells it from another relay's.
func (b bucket) save(ctx context.Context, e *entry, value []byte) error {
	for _, v := range [][]byte{e.unanswered, value} {
		if v == nil {
			continue
		}
		rev, err := b.put(ctx, e.key, v, e.rev)
		if errors.Is(err, context.DeadlineExceeded) {
			e.unanswered = v
		}
		if err != nil {
			return err
		}
		e.rev, e.unanswered = rev, nil
	}
	return nil
}

// writeRevision replaces the value that has this revision. Revision 0 means that the key is new or was deleted.
func writeRevision(ctx context.Context, kv jetstream.KeyValue, key string, value []byte, rev uint64) (uint64, error) {
	if rev == 0 {
		return kv.Create(ctx, key, value)
	}
	return kv.Update(ctx, key, value, rev)
}

// isConflict reports whether an error means that the key has another revision.
func isConflict(err error) bool {
	e, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, jetstream.ErrKeyExists) || ok &&
		(e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
