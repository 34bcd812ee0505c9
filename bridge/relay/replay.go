package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/fleet"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// A ReplayRequest selects the CloudEvents of the stream that a sink gets again: those about Azure events that its
// filter lets pass. They are replayed in parts, one call of ReplayPast each. Without Event, those of an event that is
// over are left out if the sink begins nothing about one: see delivery.Late.OverAtEnd.
type ReplayRequest struct {
	Sink  string    `json:"sink"`
	Since time.Time `json:"since"` // when the stream stored them
	Event string    `json:"event"` // the beginning of the Azure event's id; "" for all
	By    string    `json:"by"`    // the user who asked for it
	Run   string    `json:"run"`   // the same in all parts; a CloudEvent is replayed once in a run
	After uint64    `json:"after"` // ReplayPart.After of the part before; 0 for the first part
}

// A ReplayedEvent is a CloudEvent that was replayed.
type ReplayedEvent struct {
	ID    string    `json:"id"`
	Type  string    `json:"type"`
	Event string    `json:"event"` // the Azure event's id
	Time  time.Time `json:"time"`  // when a bridge saw the change
}

// A ReplayPart is the result of one call of ReplayPast.
type ReplayPart struct {
	Replayed []ReplayedEvent `json:"replayed"`
	Over     []string        `json:"over,omitempty"` // the ids of the Azure events that were left out
	After    uint64          `json:"after"`          // for the next part; 0 if this was the last one
}

// The bounds of one part, so that each call returns before its caller gives up.
const (
	replayedAtOnce = 1_000           // messages read
	replayedFor    = 3 * time.Second // of the time that they take
)

// ReplayPast publishes CloudEvents of the stream again for one sink. If several VMs published the same one, the sink
// gets the first copy in the part.
func (r *Relay) ReplayPast(ctx context.Context, p ReplayRequest) (part ReplayPart, err error) {
	defer r.toShow(&err)
	st, err := r.connected()
	if err != nil {
		return ReplayPart{}, err
	}
	r.mu.Lock()
	routes := r.Routes
	r.mu.Unlock()
	route, err := routeNamed(routes, p.Sink)
	if err != nil {
		return ReplayPart{}, err
	}
	asked, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	stream, err := st.js.Stream(asked, r.Stream)
	if err != nil {
		return ReplayPart{}, err
	}
	part = ReplayPart{Replayed: []ReplayedEvent{}}
	state := stream.CachedInfo().State
	if state.Msgs == 0 || p.After >= state.LastSeq || state.LastTime.Before(p.Since) {
		return part, nil
	}
	if p.Event == "" && route.Terms.Late.OverAtEnd(false) { // so it must be known which events are over
		if err := r.fleet.CatchUp(asked, st.source()); err != nil {
			return ReplayPart{}, err
		}
	}
	from := streams.StartAt(p.Since)
	if p.After > 0 {
		from = streams.StartAfter(p.After)
	}
	x := replayer{
		request: p, route: route, js: st.js, bucket: st.records, last: state.LastSeq,
		records: map[string]*record{}, done: map[string]bool{}, fleet: r.fleet, began: time.Now(), part: part,
	}
	err = streams.ReadToEnd(ctx, st.js, r.Stream, from, func(m streams.Raw) error { return x.take(ctx, m) })
	if len(x.part.Replayed) > 0 {
		r.Log.Info("the past is replayed", "sink", route.Name, "cloudevents", len(x.part.Replayed), "since", p.Since,
			"event", p.Event, "by", p.By)
	}
	return x.part, err
}

func routeNamed(routes []bridge.Route, name string) (bridge.Route, error) {
	for _, route := range routes {
		if route.Name == name {
			return route, nil
		}
	}
	return bridge.Route{}, fmt.Errorf("there is no sink %q", name)
}

// A replayer replays one part.
type replayer struct {
	request ReplayRequest
	route   bridge.Route
	js      jetstream.JetStream
	bucket  streams.Bucket
	last    uint64             // the stream's last message when the part began
	records map[string]*record // by group
	done    map[string]bool    // CloudEvents of this part, by id and set
	fleet   *fleet.Fleet
	read    int // number of messages
	began   time.Time
	part    ReplayPart
}

// take replays one message if the sink gets it. It returns ErrStop at the end of the part.
func (x *replayer) take(ctx context.Context, r streams.Raw) error {
	if r.Seq > x.last {
		return streams.ErrStop
	}
	if m, err := r.Message(); err == nil {
		selected, err := x.selects(ctx, m)
		if err != nil {
			return err
		}
		switch {
		case !selected || x.done[m.CE.ID()+" "+m.From.String()]:
		case x.leavesOut(m):
			if !slices.Contains(x.part.Over, m.EventID) {
				x.part.Over = append(x.part.Over, m.EventID)
			}
		default:
			if err := x.replay(ctx, m); err != nil {
				return err
			}
		}
	}
	x.read++
	switch {
	case r.Seq == x.last:
		return streams.ErrStop
	case x.read == replayedAtOnce, time.Since(x.began) > replayedFor:
		x.part.After = r.Seq
		return streams.ErrStop
	}
	return nil
}

// selects reports whether the sink gets a message again. As at first, it gets all changes of an Azure event from the
// first one that its filter let pass.
func (x *replayer) selects(ctx context.Context, m streams.Message) (bool, error) {
	if m.OnlySink != "" || m.EventID == "" ||
		!strings.HasPrefix(imds.Upper(m.EventID), imds.Upper(x.request.Event)) {
		return false, nil
	}
	rec := x.records[m.Group()]
	if rec == nil {
		rec = &record{}
		_, err := x.bucket.Get(ctx, recordKey(x.route.Name, m.Group()), rec)
		if err != nil && !errors.Is(err, streams.ErrUnreadable) {
			return false, err
		}
		x.records[m.Group()] = rec
	}
	refused := rec.decided(m) && !rec.knows(m.DeliveryID())
	if refused || !rec.Matched {
		passes, _, _ := x.route.Filter.MatchEvent(m.Change, cloudevent.Fields(m.CE), "") // if it fails, the event passes
		if !passes {
			return false, nil
		}
		rec.Matched = true
	}
	if m.Change.Kind.OfAzure() {
		selected, _ := x.route.Filter.MatchChange(m.Change, "")
		return selected, nil
	}
	return x.route.Hears(m.Change, ""), nil
}

// leavesOut reports whether a message is about an event that is over, about which the sink begins nothing, and nobody
// asked for this event.
func (x *replayer) leavesOut(m streams.Message) bool {
	return x.request.Event == "" && m.Change.Kind != imds.Vanished && endSettles(x.route, m.Change.Event) &&
		x.fleet.IsOver(m.Group())
}

func (x *replayer) replay(ctx context.Context, m streams.Message) error {
	ce := m.CE
	x.done[ce.ID()+" "+m.From.String()] = true
	id := x.request.Run + "-" + streams.ShortHash(m.From.String())
	if err := replay(ctx, x.js, x.route.Name, ce, x.request.By, id); err != nil {
		return err
	}
	x.part.Replayed = append(x.part.Replayed, ReplayedEvent{ce.ID(), ce.Type(), ce.Subject(), ce.Time()})
	return nil
}
