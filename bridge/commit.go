package bridge

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
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
	valueEndpoint = "endpoint"

	// That trouble is reported, until its end is.
	valueBlocked     = "blocked/" // and the name of a route
	valueUnavailable = "unavailable"
)

// A commit is one change of the bridge's state. It becomes one batch of the outbox.
type commit struct {
	outbox.Batch                       // without Groups
	open         map[string]*openEvent // by EventId; nil for an event that is over
}

// about returns a message about an event, without recipients.
func about(e imds.Event, kind imds.ChangeKind) outbox.Addition {
	return outbox.Addition{Message: delivery.Message{Group: e.ID, Change: string(kind), VMs: e.Resources},
		NotBefore: e.NotBefore}
}

// again returns a message of a CloudEvent that is committed already, without recipients.
func again(e imds.Event, k kept) (a outbox.Addition, ce event.Event) {
	ce = committed(k.CloudEvent)
	a = about(e, imds.ChangeKind(strings.TrimPrefix(ce.Type(), cloudevent.EventPrefix)))
	a.Seq = k.Seq
	describe(&a.Message, ce)
	return a, ce
}

// describe sets what a message says of its CloudEvent.
func describe(m *delivery.Message, ce event.Event) {
	m.ID, m.Type = ce.ID(), ce.Type()
	m.AzureType, _ = ce.Extensions()["azeventtype"].(string)
}

// add adds a CloudEvent to the commit.
func (c *commit) add(ce event.Event, a outbox.Addition) {
	describe(&a.Message, ce)
	a.Body = marshalEvent(ce)
	c.Add = append(c.Add, a)
}

// commit hands the change to the outbox, which applies it at once. wait returns when it is on disk; its error means
// that it is only in memory. The caller holds deciding if the commit changes open events, and releases it before wait.
func (b *Bridge) commit(c commit, now time.Time) (wait func() error) {
	wait = b.outbox.Update(now, func(tx *outbox.Tx) { b.apply(tx, c) })
	b.countCommitted(c)
	return wait
}

// apply makes a commit within a change of the outbox.
func (b *Bridge) apply(tx *outbox.Tx, c commit) {
	for i := range c.Add {
		a := &c.Add[i]
		again := a.Seq != 0
		if !again {
			a.Seq = tx.Reserve()
		}
		op := c.open[a.Group]
		if op != nil && a.Change == string(imds.Approved) && !again {
			op.Answer = &kept{a.Seq, a.Body}
		}
		if !imds.ChangeKind(a.Change).OfAzure() {
			continue
		}
		if op != nil && !again {
			op.Latest, op.cloudEvent, op.Answer = a.Seq, a.Body, nil
		}
		for _, d := range tx.Pending(a.Group) {
			waits := op != nil && slices.Contains(op.Waiting, d.Route)
			comes := waits || slices.Contains(a.To, d.Route)
			isNews := !again || comes && d.Seq < a.Seq // what is offered again is news only to those that get it
			if isNews && overtaken(d, *a, comes, waits) {
				tx.Supersede(d)
			}
		}
	}
	if len(c.open) > 0 || c.Routes != nil {
		b.nextDue = time.Time{}
	}
	c.Groups = b.events.set(c.open)
	tx.Apply(c.Batch)
}

// countCommitted counts the CloudEvents that a commit added.
func (b *Bridge) countCommitted(c commit) {
	for _, a := range c.Add {
		if a.Body != nil {
			b.meter.Committed(a.Type)
		}
	}
}

// keepValue stores a small value in the outbox.
func (b *Bridge) keepValue(name string, v []byte) (wait func() error) {
	return b.store(outbox.Batch{Values: map[string][]byte{name: v}}, time.Now())
}

// store stores a batch as it is.
func (b *Bridge) store(batch outbox.Batch, now time.Time) (wait func() error) {
	return b.outbox.Update(now, func(tx *outbox.Tx) { tx.Apply(batch) })
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

// A loggingMutex keeps the lines that its holder logs until it is released, because writing them may be slow.
type loggingMutex struct {
	sync.Mutex
	log   *slog.Logger // for the holder of the lock only
	lines []func()
}

// logTo makes the mutex write its lines to log.
func (m *loggingMutex) logTo(log *slog.Logger) { m.log = slog.New(&heldLines{log.Handler(), m}) }

// Unlock releases the lock, and writes the lines.
func (m *loggingMutex) Unlock() {
	lines := m.lines
	m.lines = nil
	m.Mutex.Unlock()
	for _, write := range lines {
		write()
	}
}

// heldLines is the handler of a loggingMutex's log.
type heldLines struct {
	slog.Handler
	m *loggingMutex
}

func (h *heldLines) Handle(ctx context.Context, r slog.Record) error {
	r = r.Clone()
	h.m.lines = append(h.m.lines, func() { _ = h.Handler.Handle(ctx, r) }) // slog ignores the error too
	return nil
}

func (h *heldLines) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &heldLines{h.Handler.WithAttrs(attrs), h.m}
}

func (h *heldLines) WithGroup(name string) slog.Handler {
	return &heldLines{h.Handler.WithGroup(name), h.m}
}
