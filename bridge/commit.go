package bridge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
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
	outbox.Batch                       // but for Now and Groups
	open         map[string]*openEvent // nil: over
}

// about is what is to be told about an event, to nobody yet.
func about(e imds.Event, kind imds.ChangeKind) outbox.Addition {
	return outbox.Addition{Message: delivery.Message{Group: e.ID, Change: string(kind)}, NotBefore: e.NotBefore}
}

// say adds a CloudEvent to the commit, unless it has a sequence number, because it was committed before: then it adds
// recipients of it.
func (c *commit) say(ce event.Event, a outbox.Addition) {
	a.ID, a.Type = ce.ID(), ce.Type()
	a.AzureType, _ = ce.Extensions()["azeventtype"].(string)
	if a.Seq == 0 {
		a.Body = marshalEvent(ce)
	}
	c.Add = append(c.Add, a)
}

// commit hands the change to the outbox. wait returns when it is on disk; its error says that it is not, and that it
// counts all the same, from memory. Whoever changes open events holds deciding, and waits without it.
func (b *Bridge) commit(c commit, now time.Time) (wait func() error) {
	for i := range c.Add {
		a := &c.Add[i]
		again := a.Seq != 0
		if !again {
			a.Seq = b.Outbox.Reserve(now)
			b.Meter.Committed(a.Type)
		}
		if a.Group == "" || !imds.ChangeKind(a.Change).OfAzure() {
			continue
		}
		if op := c.open[a.Group]; op != nil {
			op.Latest = a.Seq
		}
		if !again {
			superseded, moved := overtaken(b.Outbox.Pending(a.Group), *a, now)
			c.Supersede, c.Move = append(c.Supersede, superseded...), append(c.Move, moved...)
		}
	}
	c.Now, c.Groups = now, b.events.set(c.open)
	if len(c.open) > 0 || c.Routes != nil {
		b.nextReminder = time.Time{}
	}
	return b.Outbox.Submit(c.Batch)
}

// keepValue hands over a small value that the outbox keeps.
func (b *Bridge) keepValue(name string, v []byte) (wait func() error) {
	return b.Outbox.Submit(outbox.Batch{Now: time.Now(), Values: map[string][]byte{name: v}})
}

// told names the routes that are told at once or when the time has come, but not those that are undecided.
func told(a outbox.Addition) string {
	var names []string
	for _, to := range a.To {
		if !to.Held {
			names = append(names, to.Route)
		}
	}
	return strings.Join(names, ",")
}

// overtaken says what a newer change of an event means for what is pending about it. Reminders are out of date. What
// waits for its time gives way to the change when its route gets that too, and when the event began or ended; else it
// moves with NotBefore.
// A scheduled or updated that is tried in vain gives way when the change waits for its time: what the route would be
// told before is no longer so.
func overtaken(
	pending []outbox.Delivery, a outbox.Addition, now time.Time,
) (superseded []outbox.Ref, moved []outbox.Move) {
	for _, d := range pending {
		waits := d.Due.After(now) && d.Held.IsZero()
		ahead := d.Change == string(imds.Scheduled) || d.Change == string(imds.Updated)
		i := slices.IndexFunc(a.To, func(to outbox.Recipient) bool { return to.Route == d.Route && !to.Held })
		again := i >= 0 // the route gets the change too
		ref := outbox.Ref{Route: d.Route, Seq: d.Seq()}
		switch {
		case d.Change == string(imds.Reminder), again && ahead && !a.To[i].Due.IsZero():
			superseded = append(superseded, ref)
		case !waits:
		case a.Change == string(imds.Started), a.Change == string(imds.Vanished), again:
			superseded = append(superseded, ref)
		default:
			moved = append(moved, outbox.Move{Ref: ref, NotBefore: a.NotBefore, Due: d.Due.Add(a.NotBefore.Sub(d.NotBefore))})
		}
	}
	return superseded, moved
}

// toldAnew are the pending deliveries of before the start that are out of date: a late file brought them when their
// event had been told anew, or had ended. That stands for what waits for its time, for reminders, and for all that a
// route is told only while it is the newest.
func (b *Bridge) toldAnew(anew map[string]*outbox.Group) (stale []outbox.Ref) {
	b.mu.Lock()
	began, routes := b.began, b.routes
	b.mu.Unlock()
	for _, d := range b.Outbox.List(outbox.Selection{State: outbox.StatePending}) {
		end := imds.Change{Kind: imds.Vanished, Event: imds.Event{ID: d.Group}}
		switch {
		case d.Group == "", d.Seq() >= uint64(began.UnixMicro()):
			continue
		case b.events.open(d.Group):
			if anew[d.Group] == nil {
				continue
			}
		case b.Outbox.Mark(d.Group, cloudevent.ChangeID(end)).At.Before(began):
			continue
		}
		onlyNewest := slices.ContainsFunc(routes, func(r Route) bool {
			return r.Name == d.Route && r.Terms.Late != delivery.LateSend
		})
		if onlyNewest || d.Due.After(time.Now()) || d.Change == string(imds.Reminder) {
			stale = append(stale, outbox.Ref{Route: d.Route, Seq: d.Seq()})
		}
	}
	return stale
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
