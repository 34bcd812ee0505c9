package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// noSink is the sink of a dead letter that belongs to no sink: a message that can't be accepted.
const noSink = "-"

// A deadLetter is a delivery that became a dead letter, as the stream of dead letters keeps it.
type deadLetter struct {
	Sink         string    `json:"sink"`
	Key          string    `json:"key"` // of its key, what follows the sink
	Seq          uint64    `json:"seq"` // of the message in the stream, if that isn't another one since
	ID           string    `json:"id,omitempty"`
	Type         string    `json:"type,omitempty"`
	Event        string    `json:"event,omitempty"` // the Azure event's id
	Set          string    `json:"set,omitempty"`   // <subscription>.<resource group>.<set> that told of it
	AzureType    string    `json:"azureType,omitempty"`
	Reason       string    `json:"reason"`
	Overtaken    bool      `json:"overtaken,omitempty"` // see outbox.Delivery.Overtaken
	Error        string    `json:"error,omitempty"`
	At           time.Time `json:"at"`
	PendingSince time.Time `json:"pendingSince"` // when it became pending
	Attempts     int       `json:"attempts"`
	// ReplayedBy is the user who had replayed the delivery; "" for none.
	ReplayedBy string `json:"replayedBy,omitempty"`
	Bytes      int    `json:"bytes"` // of the CloudEvent
	// CloudEvent is absent if it can't be read, or is too large for one message with the rest. The stream may have it.
	CloudEvent json.RawMessage `json:"cloudEvent,omitempty"`
	resources  []string        // see Entry.Resources
}

// deadLetters is the stream with the dead letters of all sinks, each on its own subject.
type deadLetters struct {
	js         jetstream.JetStream
	name       string           // of the stream
	prefix     string           // of its subjects
	maxPayload int              // bytes that the server accepts in one message
	added      func(deadLetter) // called with each that is stored
	invalid    *invalidLetters
}

func deadSubject(stream string) string { return "forewarn_dead." + stream }

// key returns <sink>/<id of the CloudEvent>. Where another event or set has used that id, a dash and 16 hex digits follow.
func (l deadLetter) key() string { return entryKey(l.Sink, l.Key) }

// subject returns the subject of the dead letter with that key, "" if no key is like that.
func (d *deadLetters) subject(key string) string {
	at := strings.LastIndexByte(key, '/')
	if at < 0 || !streams.IsToken(key[at+1:]) {
		return ""
	}
	return d.prefix + "." + streams.Token(key[:at]) + "." + key[at+1:]
}

// add stores a dead letter with its CloudEvent, which may be nil. It replaces an earlier one of the same CloudEvent. What
// has its id and is of another event or set is another one. However many of those there are, add makes three requests at
// most: whoever publishes chooses the id.
func (d *deadLetters) add(ctx context.Context, letter deadLetter, ce *event.Event) error {
	if ce != nil {
		body, err := ce.MarshalJSON()
		if err != nil {
			return err
		}
		letter.CloudEvent, letter.Bytes = body, len(body)
	}
	letter.Error = imds.CutText(letter.Error, 1<<10)
	ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	_, err := d.put(ctx, letter, jetstream.WithExpectLastSequencePerSubject(0))
	if streams.IsConflict(err) {
		_, was, unread := d.get(ctx, letter.key())
		switch {
		case unread != nil && !errors.Is(unread, streams.ErrUnreadable):
			err = errors.Join(err, unread)
		case unread == nil && was.ID == letter.ID && was.Event == letter.Event && was.Set == letter.Set:
			_, err = d.put(ctx, letter)
		default:
			letter.Key += "-" + streams.ShortHash(streams.GroupOf(letter.Event, letter.Set))
			_, err = d.put(ctx, letter)
		}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", d.name, err)
	}
	d.added(letter)
	return nil
}

// put publishes a dead letter, without its CloudEvent if that is too large. It returns its sequence number in the stream of
// dead letters.
func (d *deadLetters) put(ctx context.Context, letter deadLetter, o ...jetstream.PublishOpt) (seq uint64, err error) {
	body, err := json.Marshal(letter)
	if err == nil && len(body)+4<<10 >= d.maxPayload { // which counts the headers too
		letter.CloudEvent = nil
		body, err = json.Marshal(letter)
	}
	if err != nil {
		return 0, err
	}
	ack, err := d.js.Publish(ctx, d.subject(letter.key()), body, append(o, jetstream.WithExpectStream(d.name))...)
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// get returns the dead letter with that key, and its sequence number in the stream of dead letters. The error wraps
// ErrUnknownKey if there is none, and ErrUnreadable if a relay didn't write it.
func (d *deadLetters) get(ctx context.Context, key string) (at uint64, l deadLetter, err error) {
	subject := d.subject(key)
	if subject == "" {
		return 0, l, ErrUnknownKey
	}
	msg, err := streams.Last(ctx, d.js, d.name, subject)
	switch {
	case err != nil:
		return 0, l, err
	case msg.Seq == 0:
		return 0, l, ErrUnknownKey
	}
	if err := json.Unmarshal(msg.Data, &l); err != nil {
		return 0, l, fmt.Errorf("%w: %s: %w", streams.ErrUnreadable, key, err)
	}
	return msg.Seq, l, nil
}

// addInvalid stores a dead letter for a message that can't be accepted, unless this relay has done so for another sink. The
// message itself stays in the stream.
func (d *deadLetters) addInvalid(ctx context.Context, r streams.Raw, why error) error {
	letter := deadLetter{
		Sink: noSink, Key: streams.ShortHash(fmt.Sprint(r.Seq, r.Stored, r.Subject)), Seq: r.Seq,
		Set: streams.SetOf(r.Subject), ID: imds.Printable(r.Header.Get(jetstream.MsgIDHeader), 200), Bytes: len(r.Data),
		Reason: streams.Refusal(why), At: time.Now().UTC(), PendingSince: r.Stored,
		Error: "message " + strconv.FormatUint(r.Seq, 10) + " on " + imds.Printable(r.Subject, 200) +
			" can't be accepted: " + imds.Printable(why.Error(), 500),
	}
	if d.invalid.has(letter) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	seq, err := d.put(ctx, letter)
	if err != nil {
		return fmt.Errorf("stream %s: %w", d.name, err)
	}
	d.added(letter)
	tooMany := d.invalid.add(letter, seq)
	if tooMany == 0 {
		return nil
	}
	err = d.remove(ctx, tooMany)
	if errors.Is(err, jetstream.ErrMsgNotFound) { // somebody replayed or dropped it
		return nil
	}
	return err
}

// invalidOfSet is how many dead letters a relay keeps of messages of one set that can't be accepted.
const invalidOfSet = 250

// An invalidLetters knows which dead letters this relay has stored, by set, of messages that can't be accepted, so that a
// flood of them pushes out no other dead letter. It is safe for concurrent use.
type invalidLetters struct {
	mu    sync.Mutex
	bySet map[string][]invalidLetter // the oldest first
}

type invalidLetter struct {
	key string
	seq uint64 // in the stream of dead letters
}

func (i *invalidLetters) has(l deadLetter) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.ContainsFunc(i.bySet[l.Set], func(x invalidLetter) bool { return x.key == l.Key })
}

// add notes a dead letter, which another sink may have stored at the same time. It returns the sequence number of the oldest
// one if the set has too many now, else 0.
func (i *invalidLetters) add(l deadLetter, seq uint64) (tooMany uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	list := i.bySet[l.Set]
	n := slices.IndexFunc(list, func(x invalidLetter) bool { return x.key == l.Key })
	if n >= 0 {
		list[n].seq = max(list[n].seq, seq)
		return 0
	}
	list = append(list, invalidLetter{l.Key, seq})
	if len(list) > invalidOfSet {
		tooMany, list = list[0].seq, list[1:]
	}
	i.bySet[l.Set] = list
	return tooMany
}

// deadFull warns of a full stream of dead letters.
const deadFull = "the stream of dead letters is full, so each new one deletes the oldest; " +
	"replay or drop some with forewarn outbox"

// counts returns how many there are, by sink, and whether the stream is full.
func (d *deadLetters) counts(ctx context.Context) (counts map[string]int, full bool, err error) {
	stream, err := d.js.Stream(ctx, d.name)
	if err != nil {
		return nil, false, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(d.prefix+".>"))
	if err != nil {
		return nil, false, err
	}
	counts = map[string]int{}
	for subject, n := range info.State.Subjects {
		rest := strings.TrimPrefix(subject, d.prefix+".")
		sink, _, _ := strings.Cut(rest, ".")
		counts[streams.FromToken(sink)] += int(n)
	}
	most := info.Config.MaxMsgs
	return counts, most > 0 && info.State.Msgs >= uint64(most), nil
}

// readAll returns all dead letters, the oldest first, without their CloudEvents, which may be larger than the memory.
func (d *deadLetters) readAll(ctx context.Context) (list []deadLetter, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*streams.RequestTimeout)
	defer cancel()
	stream, err := d.js.Stream(ctx, d.name)
	if err != nil {
		return nil, err
	}
	err = streams.ReadSince(ctx, d.js, d.name, stream.CachedInfo(), time.Time{}, func(r streams.Raw) {
		var l deadLetter
		if json.Unmarshal(r.Data, &l) == nil {
			l.resources, l.CloudEvent = resourcesOf(l.CloudEvent), nil
			list = append(list, l)
		}
	})
	return list, err
}

// resourcesOf returns the VMs that the Azure event of a CloudEvent names.
func resourcesOf(body json.RawMessage) []string {
	var ce struct {
		Data struct{ Event struct{ Resources []string } }
	}
	_ = json.Unmarshal(body, &ce) // without a CloudEvent there are none
	return ce.Data.Event.Resources
}

// remove deletes a dead letter by its sequence number in the stream of dead letters.
func (d *deadLetters) remove(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	stream, err := d.js.Stream(ctx, d.name)
	if err != nil {
		return err
	}
	return stream.DeleteMsg(ctx, seq)
}
