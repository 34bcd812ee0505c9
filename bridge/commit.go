package bridge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// The outbox's names of what the bridge keeps beside deliveries.
const (
	valueObserver = "observer"
	valueAnswer   = "answer"
	valueEndpoint = "endpoint"
)

// A commit is one change of what the bridge remembers: what a document changes, or what happened to the bridge itself.
// It reaches the outbox as one batch.
type commit struct {
	values    map[string][]byte
	open      map[string]*openEvent // nil: over
	marks     map[string]outbox.Mark
	messages  []message
	routes    []outbox.Route // those there are from now on; nil leaves them
	move      []outbox.Move
	remove    []outbox.Ref
	supersede []outbox.Ref
}

// A message is a CloudEvent and the routes that it is for.
type message struct {
	id        string // of the CloudEvent, as are those below
	typ       string
	azureType string
	body      []byte // in the JSON format
	event     string // EventId, "" if it is about the bridge
	change    imds.ChangeKind
	notBefore time.Time
	to        []string
	undecided []string // routes whose filter waits until heldUntil for the observer's name
	heldUntil time.Time
	due       map[string]time.Time // when a route is to be told, if not at once
	again     uint64               // the sequence number of a CloudEvent that was committed before; 0 for a new one
	transient bool                 // leaves no history
	replaced  bool                 // it tells the end of an event that another took the place of
}

// say adds a message to the commit. Only its CloudEvent's JSON is kept: a document may bring thousands.
func (c *commit) say(ce event.Event, m message) {
	m.id, m.typ = ce.ID(), ce.Type()
	m.azureType, _ = ce.Extensions()["azeventtype"].(string)
	if m.again == 0 {
		m.body = marshalEvent(ce)
	}
	c.messages = append(c.messages, m)
}

// commit hands the change to the outbox. wait returns when it is on disk; its error says that it is not, and that it
// counts all the same, from memory. Whoever changes open events holds deciding, and waits without it.
func (b *Bridge) commit(c commit, now time.Time) (wait func() error) {
	batch := outbox.Batch{Now: now, Values: c.values, Marks: c.marks, Routes: c.routes, Move: c.move, Remove: c.remove,
		Supersede: c.supersede}
	for _, m := range c.messages {
		seq := m.again
		if seq == 0 {
			seq = b.Outbox.Reserve(now)
			b.Meter.Committed(m.typ)
		}
		if m.event != "" && m.change.OfAzure() {
			if op := c.open[m.event]; op != nil {
				op.Latest = seq
			}
			if m.again == 0 {
				superseded, moved := overtaken(b.Outbox.Pending(m.event), m, now)
				batch.Supersede, batch.Move = append(batch.Supersede, superseded...), append(batch.Move, moved...)
			}
		}
		batch.Add = append(batch.Add, m.addition(seq))
	}
	batch.Groups = b.events.set(c.open)
	if len(c.open) > 0 || c.routes != nil {
		b.nextReminder = time.Time{}
	}
	return b.Outbox.Submit(batch)
}

// addition is the message as the outbox takes it.
func (m message) addition(seq uint64) outbox.Addition {
	a := outbox.Addition{
		Message: delivery.Message{
			Seq: seq, ID: m.id, Type: m.typ, Group: m.event, Change: string(m.change), AzureType: m.azureType,
			Transient: m.transient, Replaced: m.replaced,
		},
		Body: m.body, NotBefore: m.notBefore,
	}
	for _, route := range m.to {
		a.To = append(a.To, outbox.Recipient{Route: route, Due: m.due[route]})
	}
	for _, route := range m.undecided {
		a.To = append(a.To, outbox.Recipient{Route: route, Due: m.heldUntil, Held: true})
	}
	return a
}

// overtaken says what a newer change of an event means for what is pending about it. Reminders are out of date. What
// waits for its time gives way to the change when its route gets that too, and when the event began or ended; else it
// moves with NotBefore.
// A scheduled or updated that is tried in vain gives way when the change waits for its time: what the route would be
// told before is no longer so.
func overtaken(pending []outbox.Delivery, m message, now time.Time) (superseded []outbox.Ref, moved []outbox.Move) {
	for _, d := range pending {
		waits := d.Due.After(now) && d.Held.IsZero()
		ahead := d.Change == string(imds.Scheduled) || d.Change == string(imds.Updated)
		again := slices.Contains(m.to, d.Route) // the route gets the change too
		ref := outbox.Ref{Route: d.Route, Seq: d.Seq()}
		switch {
		case d.Change == string(imds.Reminder), again && ahead && !m.due[d.Route].IsZero():
			superseded = append(superseded, ref)
		case !waits:
		case m.change == imds.Started, m.change == imds.Vanished, again:
			superseded = append(superseded, ref)
		default:
			moved = append(moved, outbox.Move{Ref: ref, NotBefore: m.notBefore, Due: d.Due.Add(m.notBefore.Sub(d.NotBefore))})
		}
	}
	return superseded, moved
}

// marshalEvent is the CloudEvent in the JSON format. It was validated when it was made.
func marshalEvent(ce event.Event) []byte {
	var b bytes.Buffer
	if err := event.WriteJson(&ce, &b); err != nil {
		panic(fmt.Sprintf("encode CloudEvent %s: %v", ce.ID(), err))
	}
	return slices.Clone(b.Bytes())
}

// cloudEvents are CloudEvents by their sequence number, nil where one can't be read.
type cloudEvents map[uint64]*event.Event

// decide calls f with deciding held, and with the CloudEvents that need names, which were read without it: a disk that
// hangs must not keep the poll loop waiting. need is called with deciding held, maybe several times.
func (b *Bridge) decide(need func() []uint64, f func(read cloudEvents)) {
	read := cloudEvents{}
	for {
		b.deciding.Lock()
		missing := slices.DeleteFunc(need(), func(seq uint64) bool { _, ok := read[seq]; return ok })
		if len(missing) == 0 {
			break
		}
		b.deciding.Unlock()
		for _, seq := range missing {
			read[seq] = b.cloudEvent(seq)
		}
	}
	defer b.deciding.Unlock()
	f(read)
}

// cloudEvent reads back the CloudEvent with the sequence number, nil if that can't be done.
func (b *Bridge) cloudEvent(seq uint64) *event.Event {
	var ce event.Event
	body, err := b.Outbox.Body(seq)
	if err == nil {
		err = json.Unmarshal(body, &ce)
	}
	if err != nil {
		b.Log.Warn("a CloudEvent can't be read", "seq", seq, "err", err)
		return nil
	}
	return &ce
}
