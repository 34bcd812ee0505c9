package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// requestTimeout is how long JetStream has to answer a request.
const requestTimeout = 5 * time.Second

// maxEventAge is how far back a new sink looks for open events, and how long a record lives at least. Azure announces no
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
	reply   string // the subject on which the message is acknowledged; "" if none is expected
}

// message decodes it. An error tells why it isn't a CloudEvent.
func (r rawMessage) message() (message, error) {
	return newMessage(r.seq, r.stored, r.header, r.subject, r.data)
}

// follow calls f with each message of the stream in order, from the place that from names, until f fails, the stream
// can't be read, or ctx is done. It never skips a message: if one may be lost with a connection, it returns an error.
func follow(ctx context.Context, js jetstream.JetStream, stream string, from jetstream.ConsumerConfig,
	f func(rawMessage) error) error {
	return read(ctx, js, stream, from, false, f)
}

// readToEnd is follow, but returns nil when no message is left to read, or when f returns errStop. It doesn't compare
// with the stream's last sequence number, because that message may be deleted.
func readToEnd(ctx context.Context, js jetstream.JetStream, stream string, from jetstream.ConsumerConfig,
	f func(rawMessage) error) error {
	err := read(ctx, js, stream, from, true, f)
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// read implements follow and readToEnd, with a consumer of its own.
func read(ctx context.Context, js jetstream.JetStream, stream string, from jetstream.ConsumerConfig, toEnd bool,
	f func(rawMessage) error) (err error) {
	defer func() {
		switch {
		case ctx.Err() != nil:
			err = ctx.Err()
		case err != nil && !errors.Is(err, errStop):
			err = fmt.Errorf("read stream %s: %w", stream, err)
		}
	}()
	from.AckPolicy, from.MemoryStorage, from.Replicas, from.InactiveThreshold = jetstream.AckNonePolicy, true, 1,
		consumerExpiry
	opening, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	consumer, err := js.CreateConsumer(opening, stream, from)
	if err != nil {
		return err
	}
	info := consumer.CachedInfo()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = js.DeleteConsumer(ctx, stream, info.Name) // otherwise it expires
	}()
	if toEnd && info.NumPending == 0 {
		return nil
	}
	p, err := newPuller(js, stream, info.Name)
	if err != nil {
		return err
	}
	defer p.close()
	for {
		batch, err := p.batch(ctx, readAhead)
		if err != nil {
			return err
		}
		for _, r := range batch {
			if err := f(r); err != nil {
				return err
			}
		}
		if toEnd && p.atEnd {
			return nil
		}
	}
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
	reply, err := js.Conn().RequestWithContext(ctx, api(js)+"STREAM.MSG.GET."+stream, []byte(which))
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

// api returns the beginning of the subjects of JetStream's API.
func api(js jetstream.JetStream) string {
	if domain := js.Options().Domain; domain != "" {
		return "$JS." + domain + ".API."
	}
	return "$JS.API."
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
