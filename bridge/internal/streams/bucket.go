package streams

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// A Bucket is a key-value bucket, whose values are JSON.
type Bucket struct{ KV jetstream.KeyValue }

// Get decodes a value into to, and returns its revision: 0 if there is no value. If the value can't be decoded, the
// error wraps ErrUnreadable and the revision is returned all the same.
func (b Bucket) Get(ctx context.Context, key string, to any) (rev uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	e, err := b.KV.Get(ctx, key)
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
		return e.Revision(), fmt.Errorf("%w: %s: %w", ErrUnreadable, key, err)
	}
	return e.Revision(), nil
}

// ErrUnreadable means that a relay didn't write this value.
var ErrUnreadable = errors.New("unreadable")

// ErrOvertaken means that another relay wrote a value that only the holder of a lease may write.
var ErrOvertaken = errors.New("another relay has taken over")

// Put replaces the value that has this revision, and returns the new revision. If the bucket holds another revision,
// the error wraps ErrOvertaken, unless that has the same value: then the answer to an earlier put was lost.
func (b Bucket) Put(ctx context.Context, key string, value []byte, rev uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	next, err := WriteRevision(ctx, b.KV, key, value, rev)
	if err == nil || !IsConflict(err) {
		return next, err
	}
	e, err := b.KV.Get(ctx, key)
	switch {
	case err == nil && bytes.Equal(e.Value(), value):
		return e.Revision(), nil
	case err == nil, errors.Is(err, jetstream.ErrKeyNotFound):
		return 0, fmt.Errorf("%w: %s was written", ErrOvertaken, key)
	}
	return 0, err
}

// An Entry is a key of the bucket that only one queue writes.
type Entry struct {
	Key        string
	Rev        uint64
	Unanswered []byte // a value that was put without an answer; nil if there is none
}

// Save replaces the value of an entry. If a put got no answer it is repeated first: the bucket may have that value, and
// only a put of the same one tells it from another relay's.
func (b Bucket) Save(ctx context.Context, e *Entry, value []byte) error {
	for _, v := range [][]byte{e.Unanswered, value} {
		if v == nil {
			continue
		}
		rev, err := b.Put(ctx, e.Key, v, e.Rev)
		if errors.Is(err, context.DeadlineExceeded) {
			e.Unanswered = v
		}
		if err != nil {
			return err
		}
		e.Rev, e.Unanswered = rev, nil
	}
	return nil
}

// WriteRevision replaces the value that has this revision. Revision 0 means that the key is new or was deleted.
func WriteRevision(ctx context.Context, kv jetstream.KeyValue, key string, value []byte, rev uint64) (uint64, error) {
	if rev == 0 {
		return kv.Create(ctx, key, value)
	}
	return kv.Update(ctx, key, value, rev)
}

// IsConflict reports whether an error means that the key has another revision.
func IsConflict(err error) bool {
	e, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, jetstream.ErrKeyExists) || ok &&
		(e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
