package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// patience is how long JetStream has for an answer.
const patience = 5 * time.Second

// readAhead is how many messages are on their way to a reader.
const readAhead = 64

// A server that answers a request for messages says every pullBeat that it still does. After two that didn't come the
// request is lost, as when its server ended. jetstream's own times would leave the reader deaf for half a minute.
const (
	pullFor  = 10 * time.Second
	pullBeat = 2 * time.Second
)

// openFor is how long an Azure event is looked for that may still be open, and how long a record lives: no maintenance
// is announced longer before.
const openFor = 40 * 24 * time.Hour

// digest is a short name of a long text.
func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// A raw message is one of the stream, whatever it holds.
type raw struct {
	seq     uint64
	stored  time.Time
	subject string
	header  nats.Header
	data    []byte
}

func (r raw) message() (message, error) {
	return newMessage(r.seq, r.stored, r.header, r.subject, r.data)
}

// follow calls f with each message of the stream in order, beginning as from says, until f or the stream fails, or ctx
// is done. It never leaves a message out: what a lost connection may have taken is an error.
//
// jetstream's ordered consumer does the same, but while a stream is gone it waits for it and hears of no context.
func follow(ctx context.Context, js jetstream.JetStream, stream string, from jetstream.ConsumerConfig,
	f func(raw) error) error {
	return pull(ctx, js, stream, from, false, f)
}

// catchUpWith is follow until nothing is left to read. The stream's last number doesn't say so: that message may have been
// removed.
func catchUpWith(ctx context.Context, js jetstream.JetStream, stream string, from jetstream.ConsumerConfig,
	f func(raw) error) error {
	err := pull(ctx, js, stream, from, true, f)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func pull(ctx context.Context, js jetstream.JetStream, stream string, from jetstream.ConsumerConfig, ends bool,
	f func(raw) error) error {
	wrong := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	from.AckPolicy, from.MemoryStorage, from.Replicas, from.InactiveThreshold = jetstream.AckNonePolicy, true, 1,
		unreadFor
	opening, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	consumer, err := js.CreateConsumer(opening, stream, from)
	if err != nil {
		return wrong(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = js.DeleteConsumer(ctx, stream, consumer.CachedInfo().Name) // else it goes by itself
	}()
	if ends && consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(readAhead), jetstream.PullExpiry(pullFor),
		jetstream.PullHeartbeat(pullBeat))
	if err != nil {
		return wrong(err)
	}
	defer messages.Stop()
	for next := uint64(1); ; next++ {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil || ctx.Err() != nil {
			return wrong(err)
		}
		meta, err := msg.Metadata()
		switch {
		case err != nil:
			return wrong(err)
		case meta.Sequence.Consumer != next:
			return wrong(errors.New("messages were lost on the way"))
		}
		err = f(raw{meta.Sequence.Stream, meta.Timestamp.UTC(), msg.Subject(), msg.Headers(), msg.Data()})
		if err != nil || ends && meta.NumPending == 0 {
			return err
		}
	}
}

// unreadFor is how long a consumer outlives its reader.
const unreadFor = 5 * time.Minute

// after begins behind a sequence number.
func after(seq uint64) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: seq + 1}
}

// since begins at a time.
func since(at time.Time) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &at}
}

// errEnough ends a follow that has read all it is for.
var errEnough = errors.New("enough")

// until reads the messages since a time up to the one that was the last when it was asked.
func until(ctx context.Context, js jetstream.JetStream, stream string, info *jetstream.StreamInfo, at time.Time,
	f func(raw)) error {
	if info.State.Msgs == 0 || info.State.LastTime.Before(at) {
		return nil
	}
	last := info.State.LastSeq
	return catchUpWith(ctx, js, stream, since(at), func(r raw) error {
		if r.seq > last {
			return errEnough
		}
		f(r)
		return nil
	})
}
