package bridge

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// Names of the bridge's values in the outbox.
const (
	valueObserver = "observer"
	valueAnswer   = "answer"

	// That trouble is reported, until its end is.
	valueBlocked     = "blocked/" // and the name of a route
	valueUnavailable = "unavailable"
)

// A commit is one change of the bridge's state. It becomes one batch of the outbox.
type commit struct {
	outbox.Batch                       // without Groups
	open         map[string]*openEvent // the events that change, by EventId; nil for one that is over
	lines        []line                // of the log
}

// A line is written to the log when the commit is made, because writing it may be slow.
type line struct {
	level slog.Level
	text  string
	args  []any
}

func (c *commit) log(level slog.Level, text string, args ...any) {
	c.lines = append(c.lines, line{level, text, args})
}

// setOpen sets the state of an event; nil for one that is over.
func (c *commit) setOpen(id string, op *openEvent) {
	if c.open == nil {
		c.open = map[string]*openEvent{}
	}
	c.open[id] = op
}

// change returns a copy of the state of an event for the commit to change, or the copy that it has changed already.
func (c *commit) change(op *openEvent) *openEvent {
	next := c.open[op.event.ID]
	if next == nil {
		next = op.clone()
		c.setOpen(op.event.ID, next)
	}
	return next
}

// mark records how often an id was used.
func (c *commit) mark(e imds.Event, id string, times int, now time.Time) {
	if c.Marks == nil {
		c.Marks = map[string]outbox.Mark{}
	}
	c.Marks[id] = outbox.Mark{Times: times, Group: e.ID, At: now}
}

// add adds a CloudEvent.
func (c *commit) add(ce event.Event, a outbox.Addition) {
	describe(&a.Message, ce)
	a.Body = marshalEvent(ce)
	c.Add = append(c.Add, a)
}

// isEmpty reports whether the commit changes nothing.
func (c *commit) isEmpty() bool {
	return len(c.open)+len(c.Add)+len(c.Marks)+len(c.Values)+len(c.Mutes) == 0 && c.Routes == nil
}

// update derives a commit from the open events, and makes it before anybody else derives one. wait returns when it is on
// disk; its error means that it is only in memory.
func (b *Bridge) update(derive func() commit) (wait func() error) {
	b.deciding.Lock()
	c := derive()
	wait = b.outbox.Durable
	if !c.isEmpty() { // most polls change nothing, so that costs nothing
		wait = b.outbox.Update(time.Now(), func(tx *outbox.Tx) { b.apply(tx, c) })
	}
	b.deciding.Unlock()
	b.committed(c)
	return wait
}

// apply makes a commit within a change of the outbox.
func (b *Bridge) apply(tx *outbox.Tx, c commit) {
	for i := range c.Add {
		a := &c.Add[i]
		if !a.Again {
			a.Seq = tx.Reserve()
		}
		op := c.open[a.Group]
		if !a.Again && op != nil {
			op.note(*a)
		}
		if imds.ChangeKind(a.Change).OfAzure() {
			supersede(tx, *a, op)
		}
	}
	c.Groups = b.events.set(c.open)
	tx.Apply(c.Batch)
}

// supersede settles what a change of an event makes obsolete of what is pending about it. op is the event's state; nil if
// it is over.
func supersede(tx *outbox.Tx, newer outbox.Addition, op *openEvent) {
	for _, d := range tx.Pending(newer.Group) {
		waits := op != nil && slices.Contains(op.Waiting, d.Route)
		comes := waits || slices.Contains(newer.To, d.Route)
		isNews := !newer.Again || comes && d.Seq < newer.Seq // what is offered again is news only to those that get it
		if isNews && overtaken(d, newer, comes, waits) {
			tx.Supersede(d)
		}
	}
}

// committed counts what a commit added, and writes its lines.
func (b *Bridge) committed(c commit) {
	for _, a := range c.Add {
		if !a.Again {
			b.meter.Committed(a.Type)
		}
	}
	for _, l := range c.lines {
		b.log.Log(context.Background(), l.level, l.text, l.args...)
	}
}

// keepValue stores a small value in the outbox.
func (b *Bridge) keepValue(name string, v []byte) (wait func() error) {
	return b.update(func() commit { return commit{Batch: outbox.Batch{Values: map[string][]byte{name: v}}} })
}

// about returns a message about an event, without recipients.
func about(e imds.Event, kind imds.ChangeKind) outbox.Addition {
	return outbox.Addition{Message: delivery.Message{Group: e.ID, Change: string(kind), VMs: e.Resources},
		NotBefore: e.NotBefore}
}

// again returns a message of a CloudEvent that is committed already, without recipients.
func again(e imds.Event, k kept) (a outbox.Addition, ce event.Event) {
	ce = k.decode()
	a = about(e, imds.ChangeKind(strings.TrimPrefix(ce.Type(), cloudevent.EventPrefix)))
	a.Seq, a.Body, a.Again = k.Seq, k.CloudEvent, true
	describe(&a.Message, ce)
	return a, ce
}

// describe sets what a message says of its CloudEvent.
func describe(m *delivery.Message, ce event.Event) {
	m.ID, m.Type = ce.ID(), ce.Type()
	m.AzureType, _ = ce.Extensions()["azeventtype"].(string)
}

// overtaken reports whether a newer change of its event makes a pending delivery obsolete. comes means that its route
// gets that change too, and waits that it does when its lead has come.
//
// A reminder is obsolete then, when the event has begun or ended, and when it has moved, as one of the new time will
// come. A scheduled or updated is obsolete if the route waits: its NotBefore is no longer true.
func overtaken(d outbox.Delivery, newer outbox.Addition, comes, waits bool) bool {
	switch {
	case d.Change == string(imds.Reminder):
		return comes || !imds.ChangeKind(newer.Change).Announces() || !d.NotBefore.Equal(newer.NotBefore)
	case imds.ChangeKind(d.Change).Announces():
		return waits
	}
	return false
}

// marshalEvent encodes a valid CloudEvent as JSON.
func marshalEvent(ce event.Event) []byte {
	var b bytes.Buffer
	if err := event.WriteJson(&ce, &b); err != nil {
		panic(fmt.Sprintf("encode CloudEvent %s: %v", ce.ID(), err))
	}
	return slices.Clone(b.Bytes())
}
