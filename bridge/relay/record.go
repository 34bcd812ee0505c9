package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/imds"
)

// maxMarks is how many settled ids a record keeps; of more, the newest.
const maxMarks = 1000

// A record is all that a sink remembers of an Azure event, or of a CloudEvent about a bridge.
type record struct {
	// Owed says that the sink's filter took one of the event's changes: from then on it gets all later ones.
	Owed    bool             `json:"owed,omitempty"`
	Settled map[string]mark  `json:"settled,omitempty"` // by message.mark
	Trying  map[string]trial `json:"trying,omitempty"`  // by message.mark
	Receipt []byte           `json:"receipt,omitempty"`
	// Kind and Seen are of the change that is furthest along the event's life, and when a VM saw it.
	Kind imds.ChangeKind `json:"kind,omitempty"`
	Seen time.Time       `json:"seen,omitzero"`
}

// outdated says whether a change comes too late: another VM, which saw the event first when it had begun or was over,
// was quicker than those that had seen it announced. An event that comes back is no such case, because that is seen
// later.
func (r *record) outdated(m message) bool {
	return along(m.change.Kind) < along(r.Kind) && m.ce.Time().Before(r.Seen)
}

// see notes how far along the event is.
func (r *record) see(m message) {
	if !r.outdated(m) {
		r.Kind, r.Seen = m.change.Kind, m.ce.Time()
	}
}

// along is how far along an event's life a change is.
func along(k imds.ChangeKind) int {
	return slices.Index([]imds.ChangeKind{imds.Scheduled, imds.Updated, imds.Started, imds.Vanished}, k)
}

// A mark says what became of a delivery.
type mark struct {
	At     time.Time `json:"at"`
	How    string    `json:"how"`              // accepted, superseded, dead
	Answer string    `json:"answer,omitempty"` // of the destination, or why it was given up
	// Attempts is how many there were.
	Attempts int `json:"attempts,omitempty"`
}

// What became of a delivery.
const (
	howAccepted   = "accepted"
	howSuperseded = "superseded"
	howDead       = "dead"
)

// A trial is how far the attempts of a delivery have come.
type trial struct {
	Attempts int       `json:"attempts"`
	Next     time.Time `json:"next,omitzero"`
	Error    string    `json:"error,omitempty"`
	Progress []byte    `json:"progress,omitempty"`
	Batch    uint64    `json:"batch,omitempty"`
	FellBack bool      `json:"fellBack,omitempty"`
}

// settle notes what became of a delivery.
func (r *record) settle(id string, m mark) {
	if r.Settled == nil {
		r.Settled = map[string]mark{}
	}
	r.Settled[id] = m
	delete(r.Trying, id)
	if len(r.Settled) > maxMarks {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(r.Settled)), func(a, b string) int {
			return r.Settled[a].At.Compare(r.Settled[b].At)
		})
		delete(r.Settled, oldest)
	}
}

func (r *record) try(id string, t trial) {
	if r.Trying == nil {
		r.Trying = map[string]trial{}
	}
	r.Trying[id] = t
}

// A group is a record in memory, and what is pending about it. The queue's mu guards it, but for rev.
type group struct {
	key     string // in the bucket
	rev     uint64 // of the bucket; guarded by queue.saving
	rec     record
	changes int               // counts changes of rec
	saved   int               // as many of them as are in the bucket
	must    int               // as many of them as have to be there before the next delivery of the group
	pending map[string]uint64 // sequence numbers by mark
	ended   []uint64          // sequence numbers of what ended since it was saved
}

// A bucket is where sinks remember. Its keys are cursor.<sink> and mark.<sink>.<Azure event or CloudEvent>.
type bucket struct{ kv jetstream.KeyValue }

func cursorKey(sink string) string      { return "cursor." + token(sink) }
func markKey(sink, group string) string { return "mark." + token(sink) + "." + token(group) }

// get reads a value and its revision, 0 if there is none.
func (b bucket) get(ctx context.Context, key string, to any) (rev uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
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

// errUnreadable says that a value of the bucket is none of ours.
var errUnreadable = errors.New("unreadable")

// errOvertaken says that somebody else wrote what only the holder of a lease writes.
var errOvertaken = errors.New("another relay has taken over")

// put writes a value in the place of the one with the revision. When the answer to an earlier try was lost, what it
// wrote is recognised.
func (b bucket) put(ctx context.Context, key string, value []byte, rev uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	next, err := write(ctx, b.kv, key, value, rev)
	if err == nil || !conflicts(err) {
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

// write is the bucket's Update, which with 0 for the revision takes a deleted key for none too.
func write(ctx context.Context, kv jetstream.KeyValue, key string, value []byte, rev uint64) (uint64, error) {
	if rev == 0 {
		return kv.Create(ctx, key, value)
	}
	return kv.Update(ctx, key, value, rev)
}

// conflicts says whether an error means that the revision was not the last one.
func conflicts(err error) bool {
	e, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, jetstream.ErrKeyExists) || ok &&
		(e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
