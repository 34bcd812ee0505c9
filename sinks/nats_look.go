package sinks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
)

// A natsDescription is what counts of a stream's description. The rest, which may be long, isn't decoded.
type natsDescription struct {
	Config struct {
		Name        string                    `json:"name"`
		Subjects    []string                  `json:"subjects"`
		Retention   jetstream.RetentionPolicy `json:"retention"`
		Storage     jetstream.StorageType     `json:"storage"`
		NoAck       bool                      `json:"no_ack"`
		AllowDirect bool                      `json:"allow_direct"`
		Transform   *struct{}                 `json:"subject_transform"`
	} `json:"config"`
	State struct {
		FirstSeq  uint64 `json:"first_seq"`
		LastSeq   uint64 `json:"last_seq"`
		Consumers int    `json:"consumer_count"`
	} `json:"state"`
	unseen bool // the user may not look at the stream, so all but its name is a guess
}

func unseenStream(name string) *natsDescription {
	d := &natsDescription{unseen: true}
	d.Config.Name, d.Config.AllowDirect = name, true
	return d
}

// String says what an operator wants to know of a stream.
func (d *natsDescription) String() string {
	if d.unseen {
		return "stream " + d.Config.Name + ", at which this user may not look"
	}
	text := "stream " + d.Config.Name + " takes " + strings.Join(d.Config.Subjects, " ")
	switch d.Config.Retention {
	case jetstream.WorkQueuePolicy:
		text += "; it is a work queue, so each message goes to one reader only, and is gone then"
	case jetstream.InterestPolicy:
		text += "; its retention is interest, so it keeps a message only for the consumers that it has by then"
	}
	if d.Config.Storage == jetstream.MemoryStorage {
		text += "; it is in memory, so a restart of its servers loses what it holds"
	}
	return text
}

// keepsNothing returns the error for a stream that is set up so that nothing can be known to be stored in it.
func (d *natsDescription) keepsNothing() error {
	switch {
	case d.Config.NoAck:
		return &classError{delivery.ErrBlocked, "stream " + d.Config.Name + " has no_ack: true, so it never says that " +
			"it stored anything; make it false"}
	case d.Config.Retention == jetstream.InterestPolicy && d.State.Consumers == 0:
		return &classError{delivery.ErrBlocked, "stream " + d.Config.Name + " has retention interest and no consumer, so " +
			"it acknowledges every message and keeps none; add a durable consumer, or use a stream with retention limits"}
	}
	return nil
}

// keeps says how the stream keeps a message that it took.
func (d *natsDescription) keeps() string {
	if d.Config.Retention == jetstream.InterestPolicy {
		return "kept only until its consumers have it"
	}
	return "stored"
}

// handsOut reports whether the stream has a message only until its readers have taken it.
func (d *natsDescription) handsOut() bool { return d.Config.Retention != jetstream.LimitsPolicy }

// renames reports whether the stream stores messages under other subjects.
func (d *natsDescription) renames() bool { return d.Config.Transform != nil }

// lacks returns why the stream can't have a message that was acknowledged and isn't seen there; nil if it may.
func (d *natsDescription) lacks(subject string, number uint64) error {
	name := d.Config.Name
	takes := slices.ContainsFunc(d.Config.Subjects, func(pattern string) bool { return subjectMatches(pattern, subject) })
	switch {
	case d.unseen:
		return nil
	case !takes:
		return fmt.Errorf("%w; stream %s, which it names, doesn't take %s", errNotStored, name, subject)
	case number > d.State.LastSeq:
		return fmt.Errorf("%w; stream %s, which it names, has no message %d", errNotStored, name, number)
	case d.keepsNothing() != nil:
		return d.keepsNothing()
	case !d.handsOut() && d.State.FirstSeq > number:
		return &classError{delivery.ErrBlocked, fmt.Sprintf("stream %s took message %d and has dropped it already; its "+
			"max_bytes or max_age is too small", name, number)}
	}
	return nil
}

// streamOf returns the stream that takes a subject.
func (s *natsSession) streamOf(ctx context.Context, subject string) (*natsDescription, error) {
	name, err := s.js.StreamNameBySubject(ctx, subject)
	if err != nil {
		return nil, requestError("look for the stream of "+subject, err)
	}
	return s.describe(ctx, name)
}

// describe returns a stream by its name, as it was when first looked at over this connection, or since the last error.
func (s *natsSession) describe(ctx context.Context, name string) (*natsDescription, error) {
	if d := s.described; d != nil && s.describedBy == s.currentLink() && d.Config.Name == name {
		return d, nil
	}
	return s.look(ctx, name)
}

// look returns a stream by its name, as it is now. Of one that the user may not look at it is taken for granted that its
// messages can be read directly.
func (s *natsSession) look(ctx context.Context, name string) (*natsDescription, error) {
	if name == "" || strings.ContainsAny(name, " \t\r\n.*>/\\") {
		return nil, errNotStored
	}
	s.described, s.describedBy = nil, s.currentLink()
	var answer struct {
		natsDescription
		Error *jetstream.APIError `json:"error"`
	}
	looking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !s.beginLook(cancel) {
		return unseenStream(name), nil
	}
	reply, err := s.conn.RequestWithContext(looking, s.api+"STREAM.INFO."+name, nil)
	s.endLook()
	if errors.Is(context.Cause(looking), errBlind) {
		return unseenStream(name), nil
	}
	if err == nil {
		err = json.Unmarshal(reply.Data, &answer)
	}
	if err == nil && answer.Error != nil {
		err = answer.Error
	}
	if err != nil {
		return nil, requestError("look at stream "+name, err)
	}
	answer.Config.Name = name // whatever else it says
	s.described = &answer.natsDescription
	return s.described, nil
}

// natsWhich says which message is asked for: the last on a subject, that with a number, or the first from a number on
// that is on a subject.
type natsWhich struct {
	LastFor string `json:"last_by_subj,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"`
	Seq     uint64 `json:"seq,omitempty"`
}

// message returns a message that a stream holds, nil if there is no such message. sinks/README.md lists what the user
// must be allowed for that; else the sink is blocked.
func (s *natsSession) message(ctx context.Context, of *natsDescription, which natsWhich) (*jetstream.RawStreamMsg, error) {
	request, err := json.Marshal(which)
	if err != nil {
		return nil, err
	}
	subject, read := s.api+"STREAM.MSG.GET."+of.Config.Name, readStored
	if of.Config.AllowDirect {
		subject, read = s.api+"DIRECT.GET."+of.Config.Name, readDirect
		if which.LastFor != "" { // which is a right of its own, for some subjects only
			subject, request = subject+"."+which.LastFor, nil
		}
	}
	reply, err := s.conn.RequestWithContext(ctx, subject, request)
	var held *jetstream.RawStreamMsg
	if err == nil {
		held, err = read(reply)
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		s.described = nil // it may be read otherwise now
		if errors.Is(err, nats.ErrNoResponders) {
			s.mayLook()
		}
		return nil, requestError("look whether stream "+of.Config.Name+" has this message", err)
	}
	return held, nil
}

// readDirect reads the answer to a direct request: the message itself, or a status.
func readDirect(reply *nats.Msg) (*jetstream.RawStreamMsg, error) {
	status := reply.Header.Get("Status")
	switch {
	case len(reply.Data) == 0 && status == "404":
		return nil, jetstream.ErrMsgNotFound
	case len(reply.Data) == 0 && status != "":
		return nil, fmt.Errorf("the stream answers %s %s", status, reply.Header.Get("Description"))
	}
	number, err := strconv.ParseUint(reply.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return nil, errNotStored
	}
	return &jetstream.RawStreamMsg{Sequence: number, Header: reply.Header, Data: reply.Data}, nil
}

// readStored reads the answer of a stream that gives its messages as JSON.
func readStored(reply *nats.Msg) (*jetstream.RawStreamMsg, error) {
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Seq    uint64 `json:"seq"`
			Header []byte `json:"hdrs"`
			Data   []byte `json:"data"`
		} `json:"message"`
	}
	err := json.Unmarshal(reply.Data, &answer)
	switch {
	case err != nil:
		return nil, err
	case answer.Error != nil:
		return nil, answer.Error
	case answer.Message == nil:
		return nil, errNotStored
	}
	held := &jetstream.RawStreamMsg{Sequence: answer.Message.Seq, Data: answer.Message.Data}
	if len(answer.Message.Header) > 0 {
		held.Header, err = nats.DecodeHeadersMsg(answer.Message.Header)
	}
	return held, err
}
