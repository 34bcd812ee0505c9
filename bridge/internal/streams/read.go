package streams

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

// RequestTimeout is how long JetStream has to answer a request.
const RequestTimeout = 5 * time.Second

// ShortHash returns 16 hex digits that stand for a long text.
func ShortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// A Raw is a message of the stream that isn't decoded yet.
type Raw struct {
	Seq     uint64
	Stored  time.Time
	Subject string
	Header  nats.Header
	Data    []byte
	Reply   string // the subject on which the message is acknowledged; "" if none is expected
}

// Message decodes it. An error tells why it isn't a CloudEvent.
func (r Raw) Message() (Message, error) {
	return newMessage(r.Seq, r.Stored, r.Header, r.Subject, r.Data)
}

// ReadToEnd calls f with each message of the stream in order, from the place that from names, until no message is left to
// read, or f returns ErrStop. It doesn't compare with the stream's last sequence number, because that message may be deleted.
// It never skips a message: if one may be lost with a connection, it returns an error.
func ReadToEnd(ctx context.Context, js jetstream.JetStream, stream string, from jetstream.ConsumerConfig,
	f func(Raw) error) error {
	err := read(ctx, js, stream, from, true, f)
	if errors.Is(err, ErrStop) {
		return nil
	}
	return err
}

// KeepFollowing calls f with the messages of a stream, in order, until ctx is done. Whenever the stream can't be read, it
// calls problem, and begins again where from says.
func KeepFollowing(
	ctx context.Context, js jetstream.JetStream, stream string, from func() (jetstream.ConsumerConfig, error),
	problem func(error), f func(Raw),
) {
	for ctx.Err() == nil {
		begin, err := from()
		if err == nil {
			err = read(ctx, js, stream, begin, false, func(m Raw) error {
				f(m)
				return nil
			})
		}
		if ctx.Err() == nil {
			problem(err)
		}
		_ = Sleep(ctx, followAgain)
	}
}

// followAgain is how long KeepFollowing waits after an error.
const followAgain = time.Second

// read implements ReadToEnd and, without toEnd, KeepFollowing, with a consumer of its own.
func read(ctx context.Context, js jetstream.JetStream, stream string, from jetstream.ConsumerConfig, toEnd bool,
	f func(Raw) error) (err error) {
	defer func() {
		switch {
		case ctx.Err() != nil:
			err = ctx.Err()
		case err != nil && !errors.Is(err, ErrStop):
			err = fmt.Errorf("read stream %s: %w", stream, err)
		}
	}()
	from.AckPolicy, from.MemoryStorage, from.Replicas, from.InactiveThreshold = jetstream.AckNonePolicy, true, 1,
		consumerExpiry
	opening, cancel := context.WithTimeout(ctx, RequestTimeout)
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
	p, err := NewPuller(js, stream, info.Name)
	if err != nil {
		return err
	}
	defer p.Close()
	for {
		batch, err := p.Batch(ctx, ReadAhead)
		if err != nil {
			return err
		}
		for _, r := range batch {
			if err := f(r); err != nil {
				return err
			}
		}
		if toEnd && p.AtEnd {
			return nil
		}
	}
}

// Lost reports whether a stream's servers lost the message with this number, stored at that time, as they may when they
// crash before it is on disk. Other messages get its number then, and those of the messages before it.
func Lost(
	ctx context.Context, js jetstream.JetStream, info *jetstream.StreamInfo, seq uint64, stored time.Time,
) (bool, error) {
	switch {
	case stored.IsZero():
		return false, nil
	case seq > info.State.LastSeq:
		return true, nil
	}
	r, err := Get(ctx, js, info.Config.Name, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) { // its limits may have deleted it
		return false, nil
	}
	return err == nil && !r.Stored.Equal(stored), err
}

// TimeOf returns when the servers answered, by the clock of whoever stores the stream's messages. Servers before 2.10 don't
// say it; then it is the time here.
func TimeOf(info *jetstream.StreamInfo) time.Time {
	if info.TimeStamp.IsZero() {
		return time.Now()
	}
	return info.TimeStamp
}

// Get reads one message of a stream.
func Get(ctx context.Context, js jetstream.JetStream, stream string, seq uint64) (Raw, error) {
	return getOne(ctx, js, stream, fmt.Sprintf(`{"seq":%d}`, seq))
}

// Next reads the first message of a stream on a subject, from a sequence number on.
func Next(ctx context.Context, js jetstream.JetStream, stream, subject string, seq uint64) (Raw, error) {
	return getOne(ctx, js, stream, fmt.Sprintf(`{"seq":%d,"next_by_subj":%q}`, seq, subject))
}

// Last returns the last message of a stream on some subjects, zero if there is none.
func Last(ctx context.Context, js jetstream.JetStream, stream, subjects string) (Raw, error) {
	last, err := getOne(ctx, js, stream, `{"last_by_subj":"`+subjects+`"}`)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		err = nil
	}
	return last, err
}

// getOne reads one message: which is what JetStream's API gets. It asks the stream's leader: another server may lag
// behind, and adds headers to those of the message, in which a publisher may have set the same. The error wraps
// jetstream.ErrMsgNotFound if the stream does not have it.
func getOne(ctx context.Context, js jetstream.JetStream, stream, which string) (Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	reply, err := js.Conn().RequestWithContext(ctx, api(js)+"STREAM.MSG.GET."+stream, []byte(which))
	if err != nil {
		return Raw{}, err
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
		return Raw{}, err
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return Raw{}, jetstream.ErrMsgNotFound
	case answer.Error != nil:
		return Raw{}, answer.Error
	}
	m := answer.Message
	r := Raw{Seq: m.Seq, Stored: m.Time.UTC(), Subject: m.Subject, Data: m.Data}
	if len(m.Header) > 0 {
		r.Header, err = nats.DecodeHeadersMsg(m.Header)
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

// StartAfter starts reading after a sequence number.
func StartAfter(seq uint64) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: seq + 1}
}

// StartAt starts reading at the first message that the stream stored at or after a time.
func StartAt(at time.Time) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &at}
}

// LastOf starts at the last message of each subject.
func LastOf(subjects string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubject: subjects}
}

// ErrStop ends ReadToEnd early.
var ErrStop = errors.New("stop")

// ReadSince calls f with each message stored at or after a time. It stops at the message that is the last according to
// info.
func ReadSince(ctx context.Context, js jetstream.JetStream, stream string, info *jetstream.StreamInfo, at time.Time,
	f func(Raw)) error {
	if info.State.Msgs == 0 || info.State.LastTime.Before(at) {
		return nil
	}
	last := info.State.LastSeq
	return ReadToEnd(ctx, js, stream, StartAt(at), func(r Raw) error {
		if r.Seq > last {
			return ErrStop
		}
		f(r)
		return nil
	})
}

// Sleep waits for d, or until ctx is done: then it returns its error.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Plain returns err, or says that there is no connection: nats.go then speaks of a buffer, which it does not have.
func Plain(err error) error {
	if errors.Is(err, nats.ErrReconnectBufExceeded) {
		return errNoConnection
	}
	return err
}

var errNoConnection = errors.New("no NATS server can be reached")
