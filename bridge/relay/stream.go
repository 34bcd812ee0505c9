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

// requestTimeout is how long JetStream has to answer a request.
const requestTimeout = 5 * time.Second

// readAhead is how many messages a reader asks for at once.
const readAhead = 64

// A server that answers a request for messages sends a heartbeat every pullHeartbeat. When two are missing, as when the
// server has ended, the reader asks again. With jetstream's defaults it would wait for half a minute.
const (
	pullFor       = 10 * time.Second
	pullHeartbeat = 2 * time.Second
)

// maxEventAge is how far back a new sink looks for open events, and how long a record lives. Azure announces no
// maintenance longer ahead.
const maxEventAge = 40 * 24 * time.Hour

// shortHash returns 16 hex digits that stand for a long text.
func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// A rawMessage is a message of the stream that isn't decoded yet.
type rawMessage struct {
	seq     uint64
	stored  time.Time
	subject string
	header  nats.Header
	data    []byte
}

// message decodes it. An error tells why it isn't a CloudEvent.
func (r rawMessage) message() (message, error) {
	return newMessage(r.seq, r.stored, r.header, r.subject, r.data)
}

// follow calls f with each message of the stream in order, from the place that from names, until f fails, the stream
// can't be read, or ctx is done. It never skips a message: if one may be lost with a connection, it returns an error.
//
// jetstream's ordered consumer does the same, but ignores ctx while it waits for a stream that was deleted.
func follow(ctx context.Context, js jetstream.JetStream, stream string, from jetstream.ConsumerConfig,
	f func(rawMessage) error) error {
	return consume(ctx, js, stream, from, false, f)
}

// readToEnd is follow, but returns nil when no message is left to read, or when f returns errStop. It doesn't compare
// with the stream's last sequence number, because that message may be deleted.
func readToEnd(ctx context.Context, js jetstream.JetStream, stream string, from jetstream.ConsumerConfig,
	f func(rawMessage) error) error {
	err := consume(ctx, js, stream, from, true, f)
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// consume implements follow and readToEnd.
func consume(ctx context.Context, js jetstream.JetStream, stream string, from jetstream.ConsumerConfig, toEnd bool,
	f func(rawMessage) error) error {
	wrong := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	from.AckPolicy, from.MemoryStorage, from.Replicas, from.InactiveThreshold = jetstream.AckNonePolicy, true, 1,
		consumerExpiry
	opening, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	consumer, err := js.CreateConsumer(opening, stream, from)
	if err != nil {
		return wrong(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = js.DeleteConsumer(ctx, stream, consumer.CachedInfo().Name) // otherwise it expires
	}()
	if toEnd && consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(readAhead), jetstream.PullExpiry(pullFor),
		jetstream.PullHeartbeat(pullHeartbeat))
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
		err = f(rawMessage{meta.Sequence.Stream, meta.Timestamp.UTC(), msg.Subject(), msg.Headers(), msg.Data()})
		if err != nil || toEnd && meta.NumPending == 0 {
			return err
		}
	}
}

// consumerExpiry is how long the server keeps a consumer that is not read from.
const consumerExpiry = 5 * time.Minute

// startAfter starts reading after a sequence number.
func startAfter(seq uint64) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: seq + 1}
}

// startAt starts reading at the first message that the stream stored at or after a time.
func startAt(at time.Time) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &at}
}

// lastOf starts at the last message of each subject.
func lastOf(subjects string) func() (jetstream.ConsumerConfig, error) {
	return func() (jetstream.ConsumerConfig, error) {
		return jetstream.ConsumerConfig{
			DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubject: subjects,
		}, nil
	}
}

// errStop ends readToEnd early.
var errStop = errors.New("stop")

// readSince calls f with each message stored at or after a time. It stops at the message that is the last according to
// info.
func readSince(ctx context.Context, js jetstream.JetStream, stream string, info *jetstream.StreamInfo, at time.Time,
	f func(rawMessage)) error {
	if info.State.Msgs == 0 || info.State.LastTime.Before(at) {
		return nil
	}
	last := info.State.LastSeq
	return readToEnd(ctx, js, stream, startAt(at), func(r rawMessage) error {
		if r.seq > last {
			return errStop
		}
		f(r)
		return nil
	})
}
