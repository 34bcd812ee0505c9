package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
	"forewarn/bridge/internal/trouble"
)

// The states of an Entry.
const (
	statePending = "pending"
	stateDead    = "dead"
)

// An Entry is one delivery: pending for a sink that this relay serves, or a dead letter of any sink.
type Entry struct {
	Key  string // <sink>/<id of the CloudEvent>; see deadLetter.key and streams.Message.DeliveryID
	Sink string
	delivery.Item
	State      string // pending or dead
	Reason     string
	Overtaken  bool // see outbox.Delivery.Overtaken
	Bytes      int  // of the CloudEvent
	DeadSince  time.Time
	CloudEvent json.RawMessage // nil in a list
	Resources  []string        // of a dead letter in a list: the VMs that its Azure event names
	Mute       *delivery.Mute  // that holds it back, or the last one that it waited for; nil for none
	group      string          // of the Azure event; "" for none
}

// A Selection selects entries. A zero field selects all.
type Selection struct {
	Sink  string
	State string
	Event string // the beginning of the Azure event's id
}

func (s Selection) has(sink, state, event string) bool {
	return (s.Sink == "" || s.Sink == sink) && (s.State == "" || s.State == state) &&
		strings.HasPrefix(imds.Upper(event), imds.Upper(s.Event))
}

// CatchUp waits until the relay knows of all events in the stream; Over needs that.
func (r *Relay) CatchUp(ctx context.Context) (err error) {
	defer r.toShow(&err)
	st, err := r.connected()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	return r.fleet.CatchUp(ctx, st.source())
}

// Over reports whether a sink would begin nothing about a delivery, because its event is over: see
// delivery.Late.OverAtEnd. Before the relay has caught up, an event that it doesn't know of yet is over.
func (r *Relay) Over(e Entry, sink string) bool {
	r.mu.Lock()
	acts := slices.ContainsFunc(r.Routes, func(route bridge.Route) bool {
		return route.Name == sink && route.Terms.Late == delivery.LateDrop
	})
	r.mu.Unlock()
	return acts && e.Group != "" && !strings.HasSuffix(e.Type, "."+string(imds.Vanished)) && r.fleet.IsOver(e.group)
}

// ErrUnknownKey means that there is no such delivery.
var ErrUnknownKey = errors.New("there is no such delivery")

func entryKey(sink, id string) string { return sink + "/" + id }

// List returns the first n of the selected deliveries, and how many more there are: first those that are pending for
// the sinks that this relay serves, then all dead letters.
func (r *Relay) List(ctx context.Context, sel Selection, n int) (list []Entry, more int, err error) {
	defer r.toShow(&err)
	list = r.pendingEntries(sel)
	if sel.State != statePending {
		st, err := r.connected()
		if err != nil {
			return nil, 0, err
		}
		letters, err := st.dead.readAll(ctx)
		if err != nil {
			return nil, 0, err
		}
		for _, l := range letters {
			if sel.has(l.Sink, stateDead, l.Event) {
				list = append(list, l.entry())
			}
		}
	}
	more = max(0, len(list)-n)
	if more > 0 {
		list = list[:n]
	}
	return list, more, nil
}

// pendingEntries returns the selected deliveries that are pending here.
func (r *Relay) pendingEntries(sel Selection) (list []Entry) {
	var found []*Entry // pointers: see fleet.Fleet.VMs
	r.mu.Lock()
	var queues []*queue
	for _, s := range r.services {
		if s.queue != nil {
			queues = append(queues, s.queue)
		}
	}
	r.mu.Unlock()
	for _, q := range queues {
		q.mu.Lock()
		for _, e := range q.pending {
			if sel.has(q.route.Name, statePending, streams.EventOf(e.item.Group)) {
				found = append(found, q.pendingEntry(e))
			}
		}
		q.mu.Unlock()
	}
	slices.SortFunc(found, func(a, b *Entry) int { return strings.Compare(a.sortKey(), b.sortKey()) })
	for _, e := range found {
		list = append(list, *e)
	}
	return list
}

// pendingEntry returns a pending delivery as it is listed. mu is held.
func (q *queue) pendingEntry(e *pendingItem) *Entry {
	sink, listed := q.route.Name, *e.item.Message
	listed.Group = streams.EventOf(listed.Group)
	entry := &Entry{
		Key: entryKey(sink, e.id), Sink: sink, Item: *e.item, State: statePending, Mute: q.muteOf(e), group: e.item.Group,
	}
	entry.Message = &listed
	return entry
}

func (e Entry) sortKey() string { return fmt.Sprintf("%020d/%s", e.Seq, e.Sink) }

// Show returns one delivery, with its CloudEvent if that can be read.
func (r *Relay) Show(ctx context.Context, key string) (e Entry, err error) {
	defer r.toShow(&err)
	for _, e := range r.pendingEntries(Selection{Sink: key[:max(0, strings.LastIndexByte(key, '/'))]}) {
		if e.Key == key {
			ce, err := r.readCloudEvent(ctx, e.Seq, e.ID)
			if err == nil {
				e.CloudEvent, err = ce.MarshalJSON()
				e.Bytes = len(e.CloudEvent)
			}
			return e, err
		}
	}
	st, err := r.connected()
	if err != nil {
		return Entry{}, err
	}
	_, l, err := st.dead.get(ctx, key)
	if err != nil {
		return Entry{}, err
	}
	e = l.entry()
	if e.CloudEvent == nil && l.Sink != noSink {
		if ce, err := r.readCloudEvent(ctx, e.Seq, e.ID); err == nil {
			e.CloudEvent, _ = ce.MarshalJSON()
		}
	}
	return e, nil
}

// readCloudEvent reads the CloudEvent with an id from the stream. The stream may be another one than before, in which
// another message has the number.
func (r *Relay) readCloudEvent(ctx context.Context, seq uint64, id string) (ce event.Event, err error) {
	st, err := r.connected()
	if err != nil {
		return ce, err
	}
	msg, err := streams.Get(ctx, st.js, r.Stream, seq)
	if err != nil {
		return ce, fmt.Errorf("read message %d: %w", seq, err)
	}
	ce, err = streams.Decode(msg.Header, msg.Data)
	if err == nil && ce.ID() != id {
		err = fmt.Errorf("%s is lost: message %d of the stream is another CloudEvent now", id, seq)
	}
	return ce, err
}

// Replay publishes dead letters again and returns them. Each goes to its own sink, or to the sink that to names. by is
// who asked for it; the message in the stream has it.
func (r *Relay) Replay(ctx context.Context, keys []string, to, by string) ([]Entry, error) {
	return r.removeEach(ctx, keys, func(l deadLetter) error {
		if l.Sink == noSink {
			return fmt.Errorf("%s could not be accepted, so nobody can take it", l.key())
		}
		sink := cmp.Or(to, l.Sink)
		if !slices.Contains(r.Sinks(), sink) { // nobody would read it
			return fmt.Errorf("%s: the settings have no sink %s; name another with --to", l.key(), sink)
		}
		var ce event.Event
		var err error
		if l.CloudEvent != nil {
			ce, err = cloudevent.Decode(l.CloudEvent)
		} else {
			ce, err = r.readCloudEvent(ctx, l.Seq, l.ID)
		}
		if err != nil {
			return err
		}
		st, err := r.connected()
		if err != nil {
			return err
		}
		id := fmt.Sprintf("%s-%d-%s", l.key(), l.At.UnixNano(), sink)
		if err := replay(ctx, st.js, sink, ce, by, id); err != nil {
			return err
		}
		r.Log.Info("a dead letter is replayed", "key", l.key(), "id", l.ID, "to", sink, "by", by)
		return nil
	})
}

// Drop deletes dead letters and returns them. by is the user who asked for it; the stream gets a CloudEvent with it.
func (r *Relay) Drop(ctx context.Context, keys []string, by string) ([]Entry, error) {
	dropped, err := r.removeEach(ctx, keys, func(l deadLetter) error {
		r.Log.Info("a dead letter is dropped", "key", l.key(), "id", l.ID, "by", by)
		return nil
	})
	if len(dropped) > 0 {
		var named []map[string]any
		for _, e := range dropped[:min(len(dropped), trouble.ListedDead)] {
			named = append(named, trouble.DescribeDead(e.Key, "dropped", e.Item))
		}
		ctx := context.WithoutCancel(ctx) // what is dropped is on record, also when the command has been interrupted
		data := map[string]any{"by": by, "count": len(dropped), "deliveries": named}
		if err := r.announce(ctx, cloudevent.DeliveryDropped, data, ""); err != nil {
			r.Log.Warn("who dropped dead letters is not in the stream", "by", by, "err", err)
		}
	}
	return dropped, err
}

// removeEach calls do with each of the dead letters, and deletes it. It stops at the first error, and returns those that
// are deleted.
func (r *Relay) removeEach(ctx context.Context, keys []string, do func(deadLetter) error) (done []Entry, err error) {
	defer r.toShow(&err)
	st, err := r.connected()
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		at, l, err := st.dead.get(ctx, key)
		if err != nil {
			return done, fmt.Errorf("%s: %w", key, err)
		}
		if err := do(l); err != nil {
			return done, err
		}
		if err := st.dead.remove(ctx, at); err != nil {
			return done, fmt.Errorf("%s: %w", key, err)
		}
		done = append(done, l.entry())
	}
	return done, nil
}

// entry returns the dead letter as it is listed.
func (l deadLetter) entry() Entry {
	return Entry{
		Key: l.key(), Sink: l.Sink, group: streams.GroupOf(l.Event, l.Set), State: stateDead, Reason: l.Reason,
		Overtaken: l.Overtaken, Bytes: l.Bytes, DeadSince: l.At, CloudEvent: l.CloudEvent, Resources: l.resources,
		Item: delivery.Item{
			Message: &delivery.Message{
				Seq: l.Seq, ID: l.ID, Type: l.Type, Group: l.Event, AzureType: l.AzureType,
				Change: strings.TrimPrefix(imds.CutText(l.Type, 100), cloudevent.EventPrefix),
			},
			PendingSince: l.PendingSince, Attempts: l.Attempts, Error: l.Error, ReplayedBy: l.ReplayedBy,
		},
	}
}
