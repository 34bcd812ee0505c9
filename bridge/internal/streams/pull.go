package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	ReadAhead = 500             // messages that are asked for at once
	pullFor   = 2 * time.Second // how long the server waits for messages; less than a lease takes to expire
	pullGrace = 2 * time.Second // within which its last word must come
	pullBytes = 1024 * 1024     // of messages that are asked for at once: a lease is renewed behind them
	pullExtra = 32 * 1024       // what the server counts of a message besides its payload, at most
)

// A Puller takes the messages of a pull consumer in order, and notices when one is lost on the way.
//
// nats.go has the same, but keeps messages to itself that look like words of the server's: those with a header Status
// and no body, which anybody may publish. Here a word of the server's is what has no subject to acknowledge it on.
type Puller struct {
	js       jetstream.JetStream
	next     string // the subject of a request for messages
	inbox    string // the beginning of the subjects of answers
	answers  string // that of the last request
	requests int
	sub      *nats.Subscription
	messages chan *nats.Msg

	Received uint64    // the consumer's number of the last message
	asked    int       // messages that the last request was for
	left     int       // those that the server may still send for it
	until    time.Time // when that request ends
	AtEnd    bool      // nothing is left to read, as far as the server said
	failed   error     // what the next Batch returns, because the last one had messages
}

// ErrLost means that a message of the consumer didn't arrive, or may not have.
var ErrLost = errors.New("messages were lost on the way")

var errUnanswered = fmt.Errorf("no server answers requests for messages: %w", context.DeadlineExceeded)

func NewPuller(js jetstream.JetStream, stream, consumer string) (*Puller, error) {
	p := &Puller{
		js: js, next: api(js) + "CONSUMER.MSG.NEXT." + stream + "." + consumer, inbox: js.Conn().NewInbox(),
		messages: make(chan *nats.Msg, 2*ReadAhead),
	}
	var err error
	p.sub, err = js.Conn().ChanSubscribe(p.inbox+".*", p.messages)
	return p, err
}

func (p *Puller) Close() { _ = p.sub.Unsubscribe() }

// Batch returns the next messages, at most n: as soon as no further one is there, none if none came for a while. After
// an error a message may be lost, but none that was returned: Again goes on if none is, else a new puller.
func (p *Puller) Batch(ctx context.Context, n int) (batch []Raw, err error) {
	if err := p.failed; err != nil {
		p.failed = nil
		return nil, err
	}
	if p.left == 0 {
		if err := p.request(n); err != nil {
			return nil, err
		}
	}
	silent := time.NewTimer(max(0, time.Until(p.until)) + pullGrace) // whoever comes late hears what came
	defer silent.Stop()
	for p.left > 0 && len(batch) < n {
		select {
		case msg := <-p.messages:
			if msg.Reply == "" {
				err = p.hear(msg)
				break
			}
			var r Raw
			if r, err = p.take(msg); err == nil {
				batch = append(batch, r)
			}
			silent.Reset(max(0, time.Until(p.until)) + pullGrace) // the line may be narrow
		case <-silent.C:
			err = errUnanswered
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil && len(batch) > 0 {
			p.failed = err
			return batch, nil
		}
		if err != nil {
			return nil, err
		}
		if p.AtEnd && len(batch) > 0 && len(p.messages) == 0 {
			break
		}
	}
	return batch, nil
}

// request asks for n messages.
func (p *Puller) request(n int) error {
	body, err := json.Marshal(map[string]any{
		"batch": n, "expires": pullFor, "max_bytes": max(pullBytes, p.js.Conn().MaxPayload()+pullExtra),
	})
	if err != nil {
		return err
	}
	p.asked, p.left, p.until = n, n, time.Now().Add(pullFor)
	p.requests++
	p.answers = p.inbox + "." + strconv.Itoa(p.requests)
	return p.js.Conn().PublishRequest(p.next, p.answers, body)
}

// hear takes in a word of the server's. One about an earlier request means nothing.
func (p *Puller) hear(msg *nats.Msg) error {
	status, description := msg.Header.Get("Status"), msg.Header.Get("Description")
	switch {
	case msg.Subject != p.answers:
		return nil
	case status == "408": // the request has ended
		p.AtEnd = p.AtEnd || p.left == p.asked
	case status == "409" && (description == "Message Size Exceeds MaxBytes" || description == "Batch Completed"):
	default:
		return fmt.Errorf("%w: %s %s", ErrLost, status, description)
	}
	p.left = 0
	return nil
}

// take takes the consumer's next message.
func (p *Puller) take(msg *nats.Msg) (r Raw, err error) {
	meta, err := msg.Metadata()
	if err != nil {
		return r, err
	}
	if meta.Sequence.Consumer != p.Received+1 {
		return r, ErrLost
	}
	p.Received++
	p.left--
	p.AtEnd = meta.NumPending == 0
	return Raw{
		Seq: meta.Sequence.Stream, Stored: meta.Timestamp.UTC(), Subject: msg.Subject, Header: msg.Header, Data: msg.Data,
		Reply: msg.Reply,
	}, nil
}

// Again has the puller ask anew, because nothing was lost.
func (p *Puller) Again() { p.left = 0 }
