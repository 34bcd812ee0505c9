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
	outbox.Batch                       // without Now and Groups
	open         map[string]*openEvent // by EventId; nil for an event that is over
}

// about returns a message about an event, without recipients.
func about(e imds.Event, kind imds.ChangeKind) outbox.Addition {
	return outbox.Addition{Message: delivery.Message{Group: e.ID, Change: string(kind), VMs: e.Resources},
		NotBefore: e.NotBefore}
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
	batch := b.batch(c, now)
	b.countCommitted(batch)
	return b.Outbox.Submit(batch)
}

// batch completes a commit for the outbox.
func (b *Bridge) batch(c commit, now time.Time) outbox.Batch {
	for i := range c.Add {
		a := &c.Add[i]
		again := a.Seq != 0
		if !again {
			a.Seq = b.Outbox.Reserve(now)
		}
		op := c.open[a.Group]
		if op != nil && a.Change == string(imds.Approved) && !again {
			op.Answer = &answer{a.Seq, a.Body}
		}
		if !imds.ChangeKind(a.Change).OfAzure() {
			continue
		}
		if op != nil && !again {
			op.Latest, op.cloudEvent, op.Answer = a.Seq, a.Body, nil
		}
		for _, d := range b.Outbox.Pending(a.Group) {
			by := successor{kind: imds.ChangeKind(a.Change), notBefore: a.NotBefore}
			for _, to := range a.To {
				if to.Route == d.Route {
					by.comes, by.due = true, to.Due
				}
			}
			if !again || by.comes && d.Seq() < a.Seq { // what is offered again is news only to those that get it
				c.overtake(d, by, now)
			}
		}
	}
	c.Now, c.Groups = now, b.events.set(c.open)
	if len(c.open) > 0 || c.Routes != nil {
		b.nextReminder = time.Time{}
	}
	return c.Batch
}

// countCommitted counts the CloudEvents that a batch adds.
func (b *Bridge) countCommitted(batch outbox.Batch) {
	for _, a := range batch.Add {
		if a.Body != nil {
			b.Meter.Committed(a.Type)
		}
	}
}

// keepValue stores a small value in the outbox.
func (b *Bridge) keepValue(name string, v []byte) (wait func() error) {
	return b.Outbox.Submit(outbox.Batch{Now: time.Now(), Values: map[string][]byte{name: v}})
}

// recipients names the routes that get a message.
func recipients(a outbox.Addition) string {
	var names []string
	for _, to := range a.To {
		names = append(names, to.Route)
	}
	return strings.Join(names, ",")
}

// A successor is a newer change of an event, as a route with an older one pending sees it.
type successor struct {
	kind      imds.ChangeKind
	notBefore time.Time
	comes     bool      // the route gets it too
	due       time.Time // when, if later than at once; zero unless it comes
}

// overtake decides about a pending delivery when a newer change of its event comes, and reports whether it did. A
// reminder, and a delivery that waits for its lead, are superseded if their route gets the change too, or if the event
// started or ended; otherwise a reminder of another time is superseded, as one of the new time will come, and the due
// time of what waits moves with NotBefore. A scheduled or updated that is being retried is superseded if the newer change
// waits for a lead, because its NotBefore is no longer true.
func (c *commit) overtake(d outbox.Delivery, by successor, now time.Time) bool {
	waits := d.Due.After(now)
	ahead := d.Change == string(imds.Scheduled) || d.Change == string(imds.Updated)
	over := by.comes || by.kind == imds.Started || by.kind == imds.Vanished
	reminder := d.Change == string(imds.Reminder)
	ref := outbox.Ref{Route: d.Route, Seq: d.Seq()}
	switch {
	case over && (waits || reminder), reminder && !d.NotBefore.Equal(by.notBefore), ahead && !by.due.IsZero():
		c.Supersede = append(c.Supersede, ref)
	case waits:
		due := d.Due.Add(by.notBefore.Sub(d.NotBefore))
		c.Move = append(c.Move, outbox.Move{Ref: ref, NotBefore: by.notBefore, Due: due})
	default:
		return false
	}
	return true
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
