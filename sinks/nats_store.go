package sinks

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
)

var (
	// errNotStored is the error for an answer that is not about the message.
	errNotStored = errors.New("the answer is not from a stream; does another program answer on this subject?")

	// errSilent is the error of publish for a stream that does not answer, while the attempt still has time.
	errSilent = errors.New("no answer from the stream")
)

// store publishes a message and waits until a stream has it.
func (n *natsSink) store(ctx context.Context, s *natsSession, msg *nats.Msg) (delivery.Answer, error) {
	ack, err := n.publish(ctx, s, msg)
	switch {
	case err != nil:
		return n.afterRefusal(ctx, s, msg, err)
	case ack.Duplicate:
		return n.storeDuplicate(ctx, s, msg, ack)
	}
	return n.stored(ctx, s, msg, ack)
}

// publish publishes a message and returns the stream's answer. With once it waits for half of the time that is left, so
// that there is some to look for the message.
func (n *natsSink) publish(ctx context.Context, s *natsSession, msg *nats.Msg) (*jetstream.PubAck, error) {
	if !n.once {
		return s.js.PublishMsg(ctx, msg)
	}
	end, _ := ctx.Deadline() // withSession sets one
	waiting, cancel := context.WithTimeout(ctx, time.Until(end)/2)
	defer cancel()
	ack, err := s.js.PublishMsg(waiting, msg)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		err = errSilent
	}
	return ack, err
}

// storeDuplicate stores a message that the stream calls a duplicate, unless it truly has it. That word proves nothing:
// a stream knows an id for all its subjects, so another publisher may have used this one on its own, and it still knows
// the id of what was deleted. Only what the message's own subject holds counts. Otherwise the message is published
// under a new id, which no stream can know; those who read it drop repeats by the CloudEvent's id.
func (n *natsSink) storeDuplicate(
	ctx context.Context, s *natsSession, msg *nats.Msg, of *jetstream.PubAck,
) (delivery.Answer, error) {
	stream, err := s.describe(ctx, of.Stream)
	if err != nil {
		return delivery.Answer{}, err
	}
	held, err := n.held(ctx, s, stream, msg, of.Sequence)
	switch {
	case err != nil:
		return delivery.Answer{}, err
	case held != nil:
		return s.answer("already stored", of.Stream, held.Sequence), nil
	}
	again := withNewID(msg)
	ack, err := n.publish(ctx, s, again)
	switch {
	case err != nil:
		return n.afterRefusal(ctx, s, again, err)
	case ack.Duplicate:
		return delivery.Answer{}, errNotStored
	}
	return n.stored(ctx, s, again, ack)
}

// keptWithin is how long a server of the stream may take to have what another one acknowledged.
const keptWithin = 3 * time.Second

// stored returns the answer for a message that was acknowledged, once it is seen in the stream. An acknowledgement proves
// little: a stream acknowledges what it throws away, too, and any program may answer on the subject.
func (n *natsSink) stored(
	ctx context.Context, s *natsSession, msg *nats.Msg, ack *jetstream.PubAck,
) (delivery.Answer, error) {
	stream, err := s.describe(ctx, ack.Stream)
	if err != nil {
		return delivery.Answer{}, err
	}
	held, err := n.held(ctx, s, stream, msg, ack.Sequence)
	if held == nil && err == nil {
		held, err = n.await(ctx, s, msg, ack)
	}
	number := ack.Sequence // of one that a reader has taken already
	if held != nil {
		number = held.Sequence
	}
	if err != nil {
		return delivery.Answer{}, err
	}
	return s.answer(stream.keeps(), ack.Stream, number), nil
}

// await returns a message that was acknowledged and isn't seen yet; nil if a reader of the stream may have taken it.
func (n *natsSink) await(
	ctx context.Context, s *natsSession, msg *nats.Msg, ack *jetstream.PubAck,
) (*jetstream.RawStreamMsg, error) {
	stream, err := s.look(ctx, ack.Stream)
	if err == nil {
		err = stream.lacks(msg.Subject, ack.Sequence)
	}
	if err != nil || stream.handsOut() {
		return nil, err
	}
	end := time.Now().Add(keptWithin)
	for wait := keptWithin / 600; time.Now().Before(end); wait = min(2*wait, keptWithin/30) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		held, err := n.held(ctx, s, stream, msg, ack.Sequence)
		if held != nil || err != nil {
			return held, err
		}
	}
	return nil, s.neverSeen(stream, ack.Sequence)
}

// neverSeen returns the error for a message that was acknowledged and that the stream doesn't have.
func (s *natsSession) neverSeen(stream *natsDescription, number uint64) error {
	name := stream.Config.Name
	text := fmt.Sprintf("stream %s acknowledged message %d and doesn't have it on its subject", name, number)
	if stream.unseen {
		s.mayLook()
		text += fmt.Sprintf("; to see why, let this user publish to %sSTREAM.INFO.%s", s.api, name)
	}
	return &classError{delivery.ErrBlocked, text}
}

// held returns the message in the stream that is msg or a copy of it, nil if there is none. It is looked for on msg's
// subject, because other publishers can write what they like into the headers of theirs: the last one there or, without
// once, the first from a number on. If the stream renames subjects, it is the one with that number.
func (n *natsSink) held(
	ctx context.Context, s *natsSession, stream *natsDescription, msg *nats.Msg, number uint64,
) (*jetstream.RawStreamMsg, error) {
	which := natsWhich{NextFor: msg.Subject, Seq: number}
	switch {
	case stream.renames():
		which = natsWhich{Seq: number}
	case n.once:
		which = natsWhich{LastFor: msg.Subject}
	}
	held, err := s.message(ctx, stream, which)
	if held == nil || !isCopy(held, msg, stream.renames()) {
		return nil, err
	}
	return held, nil
}

// afterRefusal returns why a stream has not stored a message, or the answer for one that it has already.
func (n *natsSink) afterRefusal(
	ctx context.Context, s *natsSession, msg *nats.Msg, err error,
) (delivery.Answer, error) {
	switch {
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		s.provided, s.described = nil, nil // the stream may be deleted
		return delivery.Answer{}, n.whyNoStream(ctx, s, msg.Subject)
	case errors.Is(err, jetstream.ErrInvalidJSAck):
		return delivery.Answer{}, errNotStored
	case errors.Is(err, errSilent):
		return s.compareStored(ctx, msg, 0, err)
	}
	e, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return delivery.Answer{}, err
	}
	err = &classError{classOfNATS(err), fmt.Sprintf("the stream of %s answers: %s (%d)", msg.Subject, e.Description,
		e.ErrorCode)}
	if oneOf(e.ErrorCode, jetstream.JSErrCodeStreamWrongLastSequence,
		jetstream.JSErrCodeStreamWrongLastSequenceConstant) { // which streams with replicas say
		var number uint64
		_, _ = fmt.Sscanf(e.Description, "wrong last sequence: %d", &number) // 0 if it has none
		return s.compareStored(ctx, msg, number, err)
	}
	if strings.HasPrefix(e.Description, "maximum messages per subject") { // it is full, or has this one
		if answer, err := s.compareStored(ctx, msg, 0, err); err == nil {
			return answer, nil
		}
	}
	return delivery.Answer{}, err
}

// compareStored looks at the message that has the subject already: a copy of this one, from this or another machine and
// however old, or another message. If the subject has none, the stream renames subjects, and it is the one with the
// number that the stream gave, if it says the same: other publishers may have been renamed to the same subject. Without a
// number, the error is why.
func (s *natsSession) compareStored(
	ctx context.Context, msg *nats.Msg, number uint64, why error,
) (delivery.Answer, error) {
	stream, err := s.streamOf(ctx, msg.Subject)
	if err != nil {
		return delivery.Answer{}, err
	}
	name := stream.Config.Name
	held, err := s.message(ctx, stream, natsWhich{LastFor: msg.Subject})
	renamed := err == nil && held == nil && number > 0
	if renamed {
		held, err = s.message(ctx, stream, natsWhich{Seq: number})
	}
	switch {
	case err != nil:
		return delivery.Answer{}, err
	case held == nil:
		return delivery.Answer{}, why
	case !isCopy(held, msg, renamed):
		return delivery.Answer{}, &classError{delivery.ErrRejected, fmt.Sprintf("stream %s holds another message of %s, "+
			"message %d with id %q", name, msg.Subject, held.Sequence, held.Header.Get(jetstream.MsgIDHeader))}
	}
	return s.answer("already stored", name, held.Sequence), nil
}

// isCopy reports whether a message that a stream holds is a copy of ours: it has its id and is about the same change.
// Whoever may publish on the subject can lie about the rest. Where the stream renames subjects, others may too, so all of
// it must be the same, but for what each VM says of itself.
func isCopy(held *jetstream.RawStreamMsg, ours *nats.Msg, renamed bool) bool {
	if natsID(held.Header) != natsID(ours.Header) || len(held.Data) > 2*len(ours.Data)+natsSaysMore {
		return false // what is much longer says more, and isn't decoded
	}
	if !renamed && isSame(held, ours) {
		return true
	}
	theirs, own := claims(held.Header, held.Data), claims(ours.Header, ours.Data)
	if !renamed {
		theirs, own = aboutChange(theirs), aboutChange(own)
	}
	return reflect.DeepEqual(theirs, own)
}

// isSame reports whether a message has the bytes and all headers of ours, as it mostly does. Then nothing is decoded.
func isSame(held *jetstream.RawStreamMsg, ours *nats.Msg) bool {
	for name, values := range ours.Header {
		if !slices.Equal(held.Header[name], values) {
			return false
		}
	}
	return bytes.Equal(held.Data, ours.Data)
}

// aboutChange returns of what a CloudEvent says what every copy must have in common: VMs may know more or less of an
// event, and of its end.
func aboutChange(said map[string]any) map[string]any {
	data, _ := said["data"].(map[string]any)
	azure, _ := data["event"].(map[string]any)
	eventID, _ := azure["EventId"].(string)
	return map[string]any{
		"id": said["id"], "type": said["type"], "subject": said["subject"], "change": data["change"],
		"event": strings.ToUpper(eventID),
	}
}

// natsSaysMore is how many bytes more another VM may say of itself.
const natsSaysMore = 4 << 10

// natsOfEachVM are the attributes and the fields of data in which two VMs' CloudEvents of one change may differ.
var natsOfEachVM = []string{
	"source", "time", "observer", "azself", "affectsSelf", "documentIncarnation", "announced", "begun", "whileAway",
	"notEarlierThan", "back", "longestPause", "rules",
}

// claims returns what the CloudEvent in a message says, of either mode, without natsOfEachVM: its attributes as texts,
// and its data. What is no CloudEvent says nothing.
func claims(h nats.Header, data []byte) map[string]any {
	all := map[string]any{}
	if strings.HasPrefix(h.Get("Content-Type"), "application/cloudevents") {
		_ = json.Unmarshal(data, &all)
	} else {
		var body any
		_ = json.Unmarshal(data, &body)
		all["data"] = body
		for name, values := range h {
			attribute, ok := strings.CutPrefix(name, "ce-")
			text, err := url.PathUnescape(strings.Join(values, ","))
			if ok && err == nil {
				all[attribute] = text
			}
		}
	}
	for name, value := range all {
		if name != "data" {
			all[name] = fmt.Sprint(value)
		}
	}
	fields, _ := all["data"].(map[string]any)
	for _, name := range natsOfEachVM {
		delete(all, name)
		delete(fields, name)
	}
	return all
}

// withNewID returns a message with an id of which no stream can have heard. The first word is the id as before.
func withNewID(msg *nats.Msg) *nats.Msg {
	again := &nats.Msg{Subject: msg.Subject, Header: maps.Clone(msg.Header), Data: msg.Data}
	again.Header.Set(jetstream.MsgIDHeader, natsID(msg.Header)+" "+rand.Text())
	return again
}

// natsID returns the id of a message, without what withNewID added. No id of ours has a space.
func natsID(h nats.Header) string {
	id, _, _ := strings.Cut(h.Get(jetstream.MsgIDHeader), " ")
	return id
}

// answer returns the answer for a message that a stream has, and where.
func (s *natsSession) answer(how, stream string, sequence uint64) delivery.Answer {
	stream = cut(stream, maxStreamName)
	return delivery.Answer{
		Status: s.access.redact.line(fmt.Sprintf("%s in stream %s, message %d", how, stream, sequence), maxShown),
		ID:     s.access.redact.id(fmt.Sprintf("%s:%d", stream, sequence)),
	}
}
