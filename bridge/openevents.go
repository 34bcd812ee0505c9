package bridge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// lastAnswer is the stored part of the endpoint's last valid answer.
type lastAnswer struct {
	At          time.Time `json:"at"`
	Incarnation string    `json:"incarnation"`
}

// age returns the time from the answer to now: the longer one of both clocks, because one may stand still in a
// freeze.
func (a lastAnswer) age(now time.Time) time.Duration { return elapsed(a.At, now) }

func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// An openEvent is the state of an open Azure event. The outbox stores it as JSON.
type openEvent struct {
	Event        json.RawMessage `json:"event"`                  // as last committed
	Occurrence   int             `json:"occurrence"`             // 1; more if the event came back after it had vanished
	Announced    time.Time       `json:"announced"`              // when it was first seen
	Begun        time.Time       `json:"begun,omitzero"`         // when it was first seen as Started
	Gap          bool            `json:"gap,omitempty"`          // nobody watched it for a while
	Rebooted     bool            `json:"rebooted,omitempty"`     // the observer rebooted, perhaps because of it
	LongestPause time.Duration   `json:"longestPause,omitempty"` // the longest pause
	Latest       uint64          `json:"-"`                      // sequence number of the latest change
	Routes       []string        `json:"routes,omitempty"`       // the routes whose filter accepted it
	LatestAt     time.Time       `json:"latestAt,omitzero"`      // when that was seen
	Approval     *decision       `json:"approval,omitempty"`     // replaced, never changed
	Approved     bool            `json:"approved,omitempty"`     // an approval was or may have been sent
	// Promised are the rules that people were told will approve it, until that is kept or they are told why not; replaced,
	// never changed. NotYet means that they were told what keeps the rules from it for now.
	Promised []cloudevent.Rule `json:"promised,omitempty"`
	NotYet   bool              `json:"notYet,omitempty"`
	// Answer is the last CloudEvent about its approval since the latest change; replaced, never changed.
	Answer *kept `json:"answer,omitempty"`
	// Waiting are the routes whose lead has not come. Then they get the latest change or, if their filter doesn't take
	// that, the announcement.
	Waiting []string `json:"waiting,omitempty"`
	// Announcement is the change before the first update while routes wait; nil if that is the latest. It is replaced,
	// never changed.
	Announcement *kept `json:"announcement,omitempty"`

	cloudEvent []byte     // the latest change; the outbox stores it beside this state
	event      imds.Event // of Event
	lastListed time.Time  // when it was last seen, if a late file or a partial document hides how long it has been gone
}

// A kept CloudEvent was committed, and routes may be given it later.
type kept struct {
	Seq        uint64          `json:"seq"`
	CloudEvent json.RawMessage `json:"cloudEvent"`
}

// unwatched records a time without valid answers, and whether the observer rebooted in it. It reports whether that
// changed the event.
func (op *openEvent) unwatched(d time.Duration, rebooted bool) bool {
	was := *op
	op.Gap = op.Gap || d > gapAbove || d < 0 // negative: the clock was set back, so the length is unknown
	op.Rebooted = op.Rebooted || rebooted
	return op.Gap != was.Gap || op.Rebooted != was.Rebooted
}

// notBegun reports whether the event, as a document lists it, has certainly not begun. Nobody can say so of one that was
// approved, or whose time has come.
func (op *openEvent) notBegun(e imds.Event, now time.Time) bool {
	return e.Status == imds.StatusScheduled && now.Before(e.NotBefore) && !op.Approved
}

// promise records which rules people are told will approve the event; nil if none will.
func (op *openEvent) promise(rules []cloudevent.Rule) { op.Promised, op.NotYet = rules, false }

// clone returns an independent copy.
func (op *openEvent) clone() openEvent {
	c := *op
	c.Routes, c.Waiting = slices.Clone(op.Routes), slices.Clone(op.Waiting)
	return c
}

// setWaiting records whether a route waits for its lead.
func (op *openEvent) setWaiting(route string, waits bool) {
	op.Waiting = slices.DeleteFunc(op.Waiting, func(name string) bool { return name == route })
	if waits {
		op.Waiting = append(op.Waiting, route)
	}
	if len(op.Waiting) == 0 {
		op.Announcement = nil
	}
}

// forget drops routes of which the outbox knows no more, so that a new one of that name is decided about anew.
func (op *openEvent) forget(gone func(route string) bool) {
	op.Routes, op.Waiting = slices.DeleteFunc(op.Routes, gone), slices.DeleteFunc(op.Waiting, gone)
}

// group returns the event as the outbox stores it.
func (op *openEvent) group() *outbox.Group {
	return &outbox.Group{State: imds.CompactJSON(op), Latest: op.Latest, CloudEvent: op.cloudEvent}
}

// openEvents holds the open Azure events. It is safe for concurrent use. Code that derives changes from them also holds
// Bridge.deciding.
type openEvents struct {
	mu   sync.Mutex
	byID map[string]*openEvent
}

// load loads the events that the outbox stores.
func (o *openEvents) load(groups map[string]outbox.Group, log *slog.Logger) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byID = decodeAll(groups, log)
}

// join merges the events of a late file with those of this run, and returns what changed as the outbox stores it. until
// is the last valid answer in the file. booted is when the observer did.
func (o *openEvents) join(
	groups map[string]outbox.Group, until, booted time.Time, log *slog.Logger,
) map[string]*outbox.Group {
	rebooted := !until.IsZero() && booted.After(until)
	o.mu.Lock()
	defer o.mu.Unlock()
	changed := map[string]*outbox.Group{}
	for id, was := range decodeAll(groups, log) {
		op := o.byID[id]
		switch {
		case op == nil:
			op = was
			op.unwatched(elapsed(until, time.Now()), rebooted)
			op.lastListed = until
			o.byID[id] = op
		case op.Occurrence == 1: // else the occurrence in the file ended meanwhile, and the event came back
			op.unwatched(elapsed(until, op.Announced), was.Rebooted || rebooted)
			op.merge(was)
		}
		changed[id] = op.group()
	}
	return changed
}

// merge adds what was known of an event before it was taken for new.
func (op *openEvent) merge(was *openEvent) {
	if !was.Begun.IsZero() {
		op.Begun = was.Begun
	}
	op.Announced, op.Occurrence = was.Announced, max(op.Occurrence, was.Occurrence)
	op.LongestPause = max(op.LongestPause, was.LongestPause)
	op.Gap, op.Approved = op.Gap || was.Gap, op.Approved || was.Approved
	for _, r := range was.Routes {
		if !slices.Contains(op.Routes, r) {
			op.Routes = append(op.Routes, r)
		}
	}
}

// decodeAll decodes open events. One that can't be read is logged and left out.
func decodeAll(groups map[string]outbox.Group, log *slog.Logger) map[string]*openEvent {
	byID := make(map[string]*openEvent, len(groups))
	for id, g := range groups {
		op, err := decodeOpen(g)
		if err != nil {
			log.Error("cannot read an open event from the outbox", "event", id, "err", err)
			continue
		}
		byID[id] = op
	}
	return byID
}

// listed records that a document lists these events. One that a partial document leaves out may be in the part that
// cannot be read, so it is not watched. listed returns the events that this changed as the outbox stores them.
func (o *openEvents) listed(doc imds.Document, at observation) map[string]*outbox.Group {
	there := make(map[string]int, len(doc.Events))
	for n, e := range doc.Events {
		there[e.ID] = n
	}
	return o.note(func(op *openEvent) bool {
		was := *op
		n, listed := there[op.event.ID]
		switch {
		case listed:
			op.lastListed = time.Time{}
			op.Rebooted = op.Rebooted && !op.notBegun(doc.Events[n], at.now) // a reboot that was not its own
		case doc.Partial:
			op.Gap = true
			if at.away && op.lastListed.IsZero() {
				op.lastListed = at.before
			}
		}
		return op.Gap != was.Gap || op.Rebooted != was.Rebooted
	})
}

func decodeOpen(g outbox.Group) (*openEvent, error) {
	var op openEvent
	if err := json.Unmarshal(g.State, &op); err != nil {
		return nil, fmt.Errorf("open event: %w", err)
	}
	var ce event.Event
	err := json.Unmarshal(g.CloudEvent, &ce)
	for _, k := range []*kept{op.Answer, op.Announcement} {
		if err == nil && k != nil {
			err = json.Unmarshal(k.CloudEvent, &ce)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("CloudEvent of an open event: %w", err)
	}
	event, err := imds.UnmarshalEvent(op.Event)
	op.event, op.Latest, op.cloudEvent = event, g.Latest, g.CloudEvent
	return &op, err
}

// latest returns the CloudEvent of the latest change.
func (op *openEvent) latest() event.Event { return committed(op.cloudEvent) }

// committed decodes a CloudEvent that this run has committed, or decodeOpen has decoded.
func committed(cloudEvent []byte) (ce event.Event) {
	if err := json.Unmarshal(cloudEvent, &ce); err != nil {
		panic(fmt.Sprintf("decode a committed CloudEvent: %v", err))
	}
	return ce
}

// clear removes all events.
func (o *openEvents) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.byID)
}

// all returns the open events in the order in which they were first seen, and the state of each.
func (o *openEvents) all() ([]imds.Event, map[string]openEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	states := make(map[string]openEvent, len(o.byID))
	events := make([]imds.Event, 0, len(o.byID))
	for _, op := range slices.SortedFunc(maps.Values(o.byID), byFirst) {
		states[op.event.ID] = op.clone()
		events = append(events, op.event)
	}
	return events, states
}

// list returns the open events in any order.
func (o *openEvents) list() (events []imds.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.byID {
		events = append(events, op.event)
	}
	return events
}

// get returns an open event; ok is false if it is not open.
func (o *openEvents) get(id string) (e imds.Event, state openEvent, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op, ok := o.byID[id]
	if !ok {
		return imds.Event{}, openEvent{}, false
	}
	return op.event, op.clone(), true
}

// open reports whether the event is open.
func (o *openEvents) open(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byID[id] != nil
}

// waiting reports whether a route waits for its lead with one of the events.
func (o *openEvents) waiting() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.byID {
		if len(op.Waiting) > 0 {
			return true
		}
	}
	return false
}

// toApprove returns the ids of the events for the approval loop in the order in which they were first seen: all of
// them if there are rules, else those with an unsent approval, or a promise of one.
func (o *openEvents) toApprove(rules bool) (ids []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var events []*openEvent
	for _, op := range o.byID {
		if rules || op.Approval.unsent() || len(op.Promised) > 0 {
			events = append(events, op)
		}
	}
	slices.SortFunc(events, byFirst)
	for _, op := range events {
		ids = append(ids, op.event.ID)
	}
	return ids
}

// byFirst orders events by when they were first seen.
func byFirst(a, b *openEvent) int {
	return cmp.Or(a.Announced.Compare(b.Announced), cmp.Compare(a.event.ID, b.event.ID))
}

// set replaces the states of events, nil for one that is over, and returns them as the outbox stores them. The caller has
// held deciding since it copied them, so nobody has noted anything meanwhile.
func (o *openEvents) set(states map[string]*openEvent) map[string]*outbox.Group {
	o.mu.Lock()
	defer o.mu.Unlock()
	groups := make(map[string]*outbox.Group, len(states))
	for id, op := range states {
		if op == nil {
			delete(o.byID, id)
			groups[id] = nil
			continue
		}
		o.byID[id] = op
		groups[id] = op.group()
	}
	return groups
}

// note calls change for every open event, and returns those for which it returned true as the outbox stores them.
func (o *openEvents) note(change func(*openEvent) bool) map[string]*outbox.Group {
	o.mu.Lock()
	defer o.mu.Unlock()
	var groups map[string]*outbox.Group
	for id, op := range o.byID {
		if change(op) {
			if groups == nil { // rare, while note is called with every poll
				groups = map[string]*outbox.Group{}
			}
			groups[id] = op.group()
		}
	}
	return groups
}

// noteOne calls change for one open event, and returns it as the outbox stores it if change returned true.
func (o *openEvents) noteOne(id string, change func(*openEvent) bool) *outbox.Group {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.byID[id]; op != nil && change(op) {
		return op.group()
	}
	return nil
}

// maxOpenBytes bounds the JSON of all open events together. Any single document is smaller.
const maxOpenBytes = 16 << 20

// leftOut is the log message and problem while changes are left out.
var leftOut = fmt.Sprintf("changes left out: %d events, or %d MiB of them, are open already",
	imds.MaxEvents, maxOpenBytes>>20)

// fitChanges returns the changes for which there is room beside the known events. Without a bound, documents that make
// nothing vanish could open events without end.
func fitChanges(known []imds.Event, changes []imds.Change) (fit []imds.Change) {
	n, bytes := len(known), 0
	for _, e := range known {
		bytes += len(e.Raw)
	}
	for _, c := range changes {
		if c.Kind == imds.Vanished {
			n, bytes = n-1, bytes-len(c.Event.Raw)
		}
	}
	for _, c := range changes {
		if c.Kind != imds.Vanished {
			more, longer := 1, len(c.Event.Raw)
			if c.Previous != nil {
				more, longer = 0, longer-len(c.Previous.Raw)
			}
			if n+more > imds.MaxEvents || bytes+longer > maxOpenBytes {
				continue
			}
			n, bytes = n+more, bytes+longer
		}
		fit = append(fit, c)
	}
	return fit
}
