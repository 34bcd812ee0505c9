package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// noSink stands for the sink of a dead letter that is none of any sink: a message that is no CloudEvent.
const noSink = "-"

// A deadLetter is a delivery that was given up, as the stream of dead letters keeps it.
type deadLetter struct {
	Sink      string    `json:"sink"`
	Seq       uint64    `json:"seq"` // of the message in the stream
	ID        string    `json:"id,omitempty"`
	Type      string    `json:"type,omitempty"`
	Event     string    `json:"event,omitempty"` // the Azure event's id
	AzureType string    `json:"azureType,omitempty"`
	Reason    string    `json:"reason"`
	Error     string    `json:"error,omitempty"`
	At        time.Time `json:"at"`
	Pending   time.Time `json:"pending"` // since when it was
	Attempts  int       `json:"attempts"`
	Bytes     int       `json:"bytes"` // of the CloudEvent
	// CloudEvent is absent when it would be too large beside the rest, or can't be read: the stream may still have it.
	CloudEvent json.RawMessage `json:"cloudEvent,omitempty"`
}

// deadLetters are those of all sinks. They live in a stream of their own, each on a subject of its own.
type deadLetters struct {
	js     jetstream.JetStream
	name   string // of their stream
	prefix string // of their subjects
	most   int    // bytes that the server takes in one message
}

func deadSubject(stream string) string { return "forewarn_dead." + stream }

func (d *deadLetters) subject(sink string, seq uint64) string {
	return d.prefix + "." + token(sink) + "." + strconv.FormatUint(seq, 10)
}

// add keeps a dead letter. Doing so twice keeps it once.
func (d *deadLetters) add(ctx context.Context, letter deadLetter, ce *event.Event) error {
	if ce != nil {
		body, err := ce.MarshalJSON()
		if err != nil {
			return err
		}
		if letter.Bytes = len(body); len(body)+4<<10 < d.most {
			letter.CloudEvent = body
		}
	}
	letter.Error = imds.CutText(letter.Error, 1<<10)
	body, err := json.Marshal(letter)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err = d.js.Publish(ctx, d.subject(letter.Sink, letter.Seq), body,
		jetstream.WithExpectStream(d.name)); err != nil {
		return fmt.Errorf("stream %s: %w", d.name, err)
	}
	return nil
}

// addRaw keeps that a message is no CloudEvent. The message itself stays in the stream.
func (d *deadLetters) addRaw(ctx context.Context, r raw, why error) error {
	return d.add(ctx, deadLetter{
		Sink: noSink, Seq: r.seq, ID: imds.Printable(r.header.Get(jetstream.MsgIDHeader), 200), Bytes: len(r.data),
		Reason: delivery.ReasonLost, At: time.Now().UTC(), Pending: r.stored,
		Error: "message " + strconv.FormatUint(r.seq, 10) + " on " + imds.Printable(r.subject, 200) +
			" is no CloudEvent: " +
			imds.Printable(why.Error(), 500),
	}, nil)
}

// address publishes a CloudEvent for one sink only. What has the same id within the stream's duplicate window is
// published once.
func address(ctx context.Context, js jetstream.JetStream, sink string, ce event.Event, instead *delivery.Instead,
	id string) error {
	body, err := ce.MarshalJSON()
	if err != nil {
		return err
	}
	msg := &nats.Msg{Subject: addressPrefix + token(sink) + "." + token(ce.ID()), Data: body, Header: nats.Header{}}
	msg.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	msg.Header.Set(jetstream.MsgIDHeader, token(id))
	if instead != nil {
		msg.Header.Set(headerInstead, instead.Sink)
		msg.Header.Set(headerInsteadWhy, percentEncoded(imds.CutText(instead.Why, 1<<10)))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = js.PublishMsg(ctx, msg)
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		return fmt.Errorf("no stream takes %s>; forewarn relay --provision adds it: %w", addressPrefix, err)
	}
	return err
}

// percentEncoded makes a text fit for a header.
func percentEncoded(s string) string {
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		if c := s[i]; c > ' ' && c < 0x7F && c != '%' && c != '"' {
			out = append(out, c)
		} else {
			out = fmt.Appendf(out, "%%%02X", c)
		}
	}
	return string(out)
}

// counts are how many there are, by sink.
func (d *deadLetters) counts(ctx context.Context) (map[string]int, error) {
	stream, err := d.js.Stream(ctx, d.name)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(d.prefix+".>"))
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for subject, n := range info.State.Subjects {
		rest := strings.TrimPrefix(subject, d.prefix+".")
		sink, _, _ := strings.Cut(rest, ".")
		counts[untoken(sink)] += int(n)
	}
	return counts, nil
}

// all are the dead letters, the oldest first.
func (d *deadLetters) all(ctx context.Context) (list []deadLetter, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	stream, err := d.js.Stream(ctx, d.name)
	if err != nil {
		return nil, err
	}
	err = until(ctx, d.js, d.name, stream.CachedInfo(), time.Time{}, func(r raw) {
		var l deadLetter
		if json.Unmarshal(r.data, &l) == nil {
			list = append(list, l)
		}
	})
	return list, err
}

// remove takes a dead letter out, by its number in their stream.
func (d *deadLetters) remove(ctx context.Context, at uint64) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := d.js.Stream(ctx, d.name)
	if err != nil {
		return err
	}
	return stream.DeleteMsg(ctx, at)
}
