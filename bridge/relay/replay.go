package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
)

// A Past says which CloudEvents of the stream a sink shall get again: those about Azure's events that its filter takes.
type Past struct {
	Sink  string    `json:"sink"`
	Since time.Time `json:"since"` // when the stream took them
	Event string    `json:"event"` // the beginning of the Azure event's id; "" for all
	By    string    `json:"by"`    // who asks for it
	Run   string    `json:"run"`   // a name for all parts of one request; what has the same one is replayed once
	After uint64    `json:"after"` // the number of the last message of the part before; 0 for the first part
}

// A Repeated is a CloudEvent that a sink gets again.
type Repeated struct {
	ID    string    `json:"id"`
	Type  string    `json:"type"`
	Event string    `json:"event"` // the Azure event's id
	Time  time.Time `json:"time"`  // when a bridge saw the change
}

// A Part is what one request of a replay did. There may be more after it.
type Part struct {
	Replayed []Repeated `json:"replayed"`
	After    uint64     `json:"after"` // for the next part; 0 when this was the last one
}

// replayedAtOnce is how many messages one part looks at, so that whoever asks for it needn't wait for long.
const replayedAtOnce = 1_000

// ReplayPast publishes CloudEvents of the stream again for one sink, each marked with when. Of several VMs' copies the sink gets
// one: its first in the part.
func (r *Relay) ReplayPast(ctx context.Context, p Past) (part Part, err error) {
	r.mu.Lock()
	js, down, routes := r.js, r.down, r.Routes
	r.mu.Unlock()
	if js == nil {
		return part, fmt.Errorf("the relay can't reach JetStream: %w", down)
	}
	route, err := routeNamed(routes, p.Sink)
	if err != nil {
		return part, err
	}
	asked, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := js.Stream(asked, r.Stream)
	if err != nil {
		return part, err
	}
	last := stream.CachedInfo().State.LastSeq
	from := since(p.Since)
	if p.After > 0 {
		from = after(p.After)
	}
	part.Replayed = []Repeated{}
	if stream.CachedInfo().State.Msgs == 0 || p.After >= last || stream.CachedInfo().State.LastTime.Before(p.Since) {
		return part, nil
	}
	kv, err := js.KeyValue(asked, marksBucket(r.Stream))
	if err != nil {
		return part, err
	}
	x := picker{past: p, route: route, marks: bucket{kv}, owed: map[string]bool{}}
	looked, done := 0, map[string]bool{}
	err = catchUpWith(ctx, js, r.Stream, from, func(m raw) error {
		if m.seq > last {
			return errEnough
		}
		again, ok, err := x.pick(ctx, m)
		if err != nil {
			return err
		}
		if ok && !done[again.ID()] {
			done[again.ID()] = true
			if err := replay(ctx, js, route.Name, again, again.ID()+"-replay-"+p.Run); err != nil {
				return err
			}
			part.Replayed = append(part.Replayed, Repeated{again.ID(), again.Type(), again.Subject(), again.Time()})
		}
		if looked++; m.seq == last {
			return errEnough
		}
		if looked == replayedAtOnce {
			part.After = m.seq
			return errEnough
		}
		return nil
	})
	if len(part.Replayed) > 0 {
		r.Log.Info("the past is replayed", "sink", route.Name, "cloudevents", len(part.Replayed), "since", p.Since, "event",
			p.Event, "by", p.By)
	}
	return part, err
}

func routeNamed(routes []bridge.Route, name string) (bridge.Route, error) {
	for _, route := range routes {
		if route.Name == name {
			return route, nil
		}
	}
	return bridge.Route{}, fmt.Errorf("there is no sink %q", name)
}

// A picker picks what a sink gets again.
type picker struct {
	past  Past
	route bridge.Route
	marks bucket
	owed  map[string]bool // by Azure event: the filter took one of its changes
}

// pick gives the CloudEvent of a message if the sink is to get it again: as at first, it gets all changes of an event
// from the first one that its filter took.
func (p picker) pick(ctx context.Context, r raw) (ce event.Event, ok bool, err error) {
	m, err := r.message()
	if err != nil || m.to != "" || m.of == "" || !strings.HasPrefix(strings.ToUpper(m.of), strings.ToUpper(p.past.Event)) {
		return ce, false, nil
	}
	owed, known := p.owed[m.of]
	if !known {
		var rec record
		if _, err := p.marks.get(ctx, markKey(p.route.Name, m.of), &rec); err != nil && !errors.Is(err, errUnreadable) {
			return ce, false, err
		}
		owed = rec.Owed
	}
	if !owed {
		verdict, _, _ := p.route.Filter.Event(m.change, cloudevent.Fields(m.ce), "", true) // one that fails lets it pass
		owed = verdict != bridge.Refused
	}
	p.owed[m.of] = owed
	switch {
	case !owed:
		return ce, false, nil
	case m.change.Kind.OfAzure():
		ok, _ = p.route.Filter.Change(m.change, "")
	default:
		ok = p.route.Hears(m.change, "")
	}
	return m.ce, ok, nil
}

// replay publishes a CloudEvent again for one sink, marked with when. What has the same id is published once.
func replay(ctx context.Context, js jetstream.JetStream, sink string, ce event.Event, id string) error {
	again := ce.Clone()
	again.SetExtension("recordedtime", types.Timestamp{Time: time.Now().UTC()})
	return address(ctx, js, sink, again, nil, id)
}
