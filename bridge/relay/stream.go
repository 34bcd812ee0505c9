package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
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
	x := &sequence{js: js, stream: stream, filter: from.FilterSubject, f: f, next: 1, from: from.OptStartSeq}
	for {
		msg, err := receive(ctx, messages, toEnd)
		if ctx.Err() != nil {
			return wrong(err)
		}
		if err != nil { // or a message that looks like one
			asking, cancel := context.WithTimeout(ctx, requestTimeout)
			info, gone := consumer.Info(asking)
			cancel()
			if gone != nil {
				return wrong(err)
			}
			if fault := x.fill(ctx, info.Delivered.Consumer, info.Delivered.Stream); fault != nil {
				return wrong(fault)
			}
			switch {
			case toEnd && info.NumPending == 0:
				return nil
			case errors.Is(err, context.DeadlineExceeded):
				continue
			}
			return wrong(err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return wrong(err)
		}
		at := meta.Sequence
		if at.Consumer < x.next {
			continue // it came late, and was filled in
		}
		if err := x.fill(ctx, at.Consumer-1, at.Stream-1); err != nil {
			return wrong(err)
		}
		err = x.take(rawMessage{at.Stream, meta.Timestamp.UTC(), msg.Subject(), msg.Headers(), msg.Data()})
		if err != nil || toEnd && meta.NumPending == 0 {
			return err
		}
	}
}

// receive returns the next message. To the end of a stream it waits for a while only, and returns
// context.DeadlineExceeded then: nats.go may have taken the last message for a word of the server's.
func receive(ctx context.Context, messages jetstream.MessagesContext, toEnd bool) (jetstream.Msg, error) {
	if toEnd {
		waiting, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		ctx = waiting
	}
	return messages.Next(jetstream.NextContext(ctx))
}

// A sequence calls f with each message that a consumer delivers, in order. nats.go keeps messages that look like words
// of the server's to itself, those with a header Status and no body: they are read one by one.
type sequence struct {
	js     jetstream.JetStream
	stream string
	filter string // the subjects that the consumer delivers: one, or all that begin so and end in >; "" for all
	f      func(rawMessage) error
	next   uint64 // number of the consumer's next message
	from   uint64 // the first number in the stream that it may have; 0 if that is unknown
}

// maxFilled is how many messages are read one by one: more than a consumer delivers before it is asked again.
const maxFilled = 4 * readAhead

// fill reads what the consumer has delivered and nobody has taken, up to a number of the consumer and the one in the
// stream.
func (x *sequence) fill(ctx context.Context, consumer, stream uint64) error {
	missed := consumer + 1 - min(x.next, consumer+1)
	if missed == 0 {
		return nil
	}
	first := x.from
	if first == 0 {
		first = stream + 1 - min(missed, stream)
	}
	if missed > maxFilled || first > stream || stream-first >= 100*maxFilled {
		return errors.New("messages were lost on the way")
	}
	for seq := first; seq <= stream; seq++ {
		r, err := getMessage(ctx, x.js, x.stream, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err == nil && x.wants(r.subject) {
			err = x.f(r)
		}
		if err != nil {
			return err
		}
		x.from = seq + 1
	}
	x.next, x.from = consumer+1, stream+1
	return nil
}

// wants reports whether the consumer delivers messages of a subject.
func (x *sequence) wants(subject string) bool {
	start, all := strings.CutSuffix(x.filter, ">")
	return x.filter == "" || subject == x.filter || all && strings.HasPrefix(subject, start)
}

// take calls f with the consumer's next message.
func (x *sequence) take(r rawMessage) error {
	x.next, x.from = x.next+1, r.seq+1
	return x.f(r)
}

// getMessage reads one message of a stream.
func getMessage(ctx context.Context, js jetstream.JetStream, stream string, seq uint64) (rawMessage, error) {
	return getOne(ctx, js, stream, fmt.Sprintf(`{"seq":%d}`, seq))
}

// nextMessage reads the first message of a stream on a subject, from a sequence number on.
func nextMessage(ctx context.Context, js jetstream.JetStream, stream, subject string, seq uint64) (rawMessage, error) {
	return getOne(ctx, js, stream, fmt.Sprintf(`{"seq":%d,"next_by_subj":%q}`, seq, subject))
}

// lastMessage returns the last message of a stream on some subjects, zero if there is none.
func lastMessage(ctx context.Context, js jetstream.JetStream, stream, subjects string) (rawMessage, error) {
	last, err := getOne(ctx, js, stream, `{"last_by_subj":"`+subjects+`"}`)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		err = nil
	}
	return last, err
}

// getOne reads one message: which is what JetStream's API gets. It asks the stream's leader: another server may lag
// behind, and adds headers to those of the message, in which a publisher may have set the same. The error wraps
// jetstream.ErrMsgNotFound if the stream does not have it.
func getOne(ctx context.Context, js jetstream.JetStream, stream, which string) (rawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	api := "$JS.API."
	if domain := js.Options().Domain; domain != "" {
		api = "$JS." + domain + ".API."
	}
	reply, err := js.Conn().RequestWithContext(ctx, api+"STREAM.MSG.GET."+stream, []byte(which))
	if err != nil {
		return rawMessage{}, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Seq     uint64    `json:"seq"`
			Subject string    `json:"subject"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	err = json.Unmarshal(reply.Data, &answer)
	switch {
	case err != nil:
		return rawMessage{}, err
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return rawMessage{}, jetstream.ErrMsgNotFound
	case answer.Error != nil:
		return rawMessage{}, answer.Error
	}
	m := answer.Message
	r := rawMessage{seq: m.Seq, stored: m.Time.UTC(), subject: m.Subject, data: m.Data}
	if len(m.Header) > 0 {
		r.header, err = nats.DecodeHeadersMsg(m.Header)
	}
	return r, err
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
