package bridge

import (
	"cmp"
	"encoding/json"
	"fmt"
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

// An openEvent is the state of an open Azure event. The outbox stores it as JSON. It never changes once it is among the
// open events: a commit replaces it.
type openEvent struct {
	Event        json.RawMessage `json:"event"`                  // as last committed
	Occurrence   int             `json:"occurrence"`             // 1; more if the event came back after it had vanished
	Announced    time.Time       `json:"announced"`              // when it was first seen
	Begun        time.Time       `json:"begun,omitzero"`         // when it was first seen as Started
	Gap          bool            `json:"gap,omitempty"`          // nobody watched it for a while
	Rebooted     bool            `json:"rebooted,omitempty"`     // the observer rebooted, perhaps because of it
	LongestPause time.Duration   `json:"longestPause,omitempty"` // the longest pause
	Routes       []string        `json:"routes,omitempty"`       // the routes whose filter accepted it
	// Alerted are the routes that were told of trouble with its approval, whatever their filter says. They get all that
	// comes of the approval and, but for what starts something, the event.
	Alerted  []string  `json:"alerted,omitempty"`
	LatestAt time.Time `json:"latestAt,omitzero"`  // when the latest change was seen
	Approval *decision `json:"approval,omitempty"` // the last one of a rule or a user
	// Promised are this VM's rules that people were told will approve it, until that is kept or they are told why not. NotYet
	// means that they were told what keeps the rules from it for now, and Unsaid that the latest change names no rule.
	Promised []cloudevent.Rule `json:"promised,omitempty"`
	NotYet   bool              `json:"notYet,omitempty"`
	Unsaid   bool              `json:"unsaid,omitempty"`
	// Answer is the last CloudEvent about its approval since the latest change.
	Answer *kept `json:"answer,omitempty"`
	// Asked is the last approval that Azure took, or may have taken.
	Asked *cloudevent.Asked `json:"asked,omitempty"`
	// Waiting are the routes whose lead has not come. Then they get the latest change or, if their filter doesn't take
	// that, the announcement.
	Waiting []string `json:"waiting,omitempty"`
	// Announcement is the change with which routes began to wait; nil if that is the latest.
	Announcement *kept `json:"announcement,omitempty"`

	latest     kept       // the latest change; the outbox stores it beside this state
	event      imds.Event // of Event
	lastListed time.Time  // when it was last seen, if a late file or a partial document hides how long it has been gone
}

// A kept CloudEvent was committed, and routes may be given it later.
type kept struct {
	Seq        uint64          `json:"seq"`
	CloudEvent json.RawMessage `json:"cloudEvent"`
}

// unwatched records a time without valid answers, and whether the observer rebooted in it.
func (op *openEvent) unwatched(d time.Duration, rebooted bool) {
	op.Gap = op.Gap || d > gapAbove || d < 0 // negative: the clock was set back, so the length is unknown
	op.Rebooted = op.Rebooted || rebooted
}

// listed records what a document says of an event that it doesn't change. One that a partial document leaves out may be in
// the part that cannot be read, so it is not watched. now is the event as the document lists it; nil if it doesn't.
func (op *openEvent) listed(now *imds.Event, partial bool, at observation) {
	switch {
	case now != nil:
		op.lastListed = time.Time{}
		op.Rebooted = op.Rebooted && !op.notBegun(*now, at.now) // that reboot was another's
	case partial:
		op.Gap = true
		if at.away && op.lastListed.IsZero() {
			op.lastListed = at.before
		}
	}
}

// notBegun reports whether the event, as a document lists it, has certainly not begun. Nobody can say so of one that was
// approved, or whose time has come.
func (op *openEvent) notBegun(e imds.Event, now time.Time) bool {
	return e.Status == imds.StatusScheduled && now.Before(e.NotBefore) && op.asked() == nil
}

// openFor returns for how many seconds the event has been known; 0 if the clock was set back since.
func (op *openEvent) openFor(now time.Time) float64 {
	return max(0, now.Sub(op.Announced).Round(100*time.Millisecond).Seconds())
}

// promise records which rules people are told will approve the event; nil if none will. What becomes of those of another VM
// only that tells.
func (op *openEvent) promise(rules []cloudevent.Rule) {
	op.Promised, op.NotYet, op.Unsaid = ownRules(rules), false, false
}

// note takes in a CloudEvent that is being committed: the latest change, or what came of its approval since.
func (op *openEvent) note(a outbox.Addition) {
	switch kind := imds.ChangeKind(a.Change); {
	case kind.OfAzure():
		if op.latest.Seq == 0 && op.Approval != nil { // of what this change announces
			op.Approval.Seq = a.Seq
		}
		op.latest, op.Answer = kept{a.Seq, a.Body}, nil
	case kind == imds.Approved:
		op.Answer = &kept{a.Seq, a.Body}
	}
}

// clone returns a copy that may be changed.
func (op *openEvent) clone() *openEvent {
	c := *op
	c.Routes, c.Alerted, c.Waiting = slices.Clone(op.Routes), slices.Clone(op.Alerted), slices.Clone(op.Waiting)
	return &c
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
	op.Alerted = slices.DeleteFunc(op.Alerted, gone)
}

// gets reports whether a route gets the event, or what comes of its approval.
func (op *openEvent) gets(route string) bool {
	return slices.Contains(op.Routes, route) || slices.Contains(op.Alerted, route)
}

// group returns the event as the outbox stores it.
func (op *openEvent) group() *outbox.Group {
	return &outbox.Group{State: imds.CompactJSON(op), Latest: op.latest.Seq, CloudEvent: op.latest.CloudEvent}
}

// openEvents holds the open Azure events. It is safe for concurrent use. Only commits change them.
type openEvents struct {
	mu      sync.Mutex
	byID    map[string]*openEvent
	inOrder []*openEvent // those of byID, by when they were first seen; nil until they are asked for after a change
}

// load replaces the events.
func (o *openEvents) load(byID map[string]*openEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byID, o.inOrder = byID, nil
}

// decodeAll decodes open events. It leaves out those that can't be read, and says why.
func decodeAll(groups map[string]outbox.Group) (byID map[string]*openEvent, unreadable []error) {
	byID = make(map[string]*openEvent, len(groups))
	for id, g := range groups {
		op, err := decodeOpen(g)
		if err != nil {
			unreadable = append(unreadable, fmt.Errorf("event %s: %w", id, err))
			continue
		}
		byID[id] = op
	}
	return byID, unreadable
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
	op.event, op.latest = event, kept{g.Latest, g.CloudEvent}
	return &op, err
}

// decode decodes a CloudEvent that this run has committed, or decodeOpen has decoded.
func (k kept) decode() (ce event.Event) {
	if err := json.Unmarshal(k.CloudEvent, &ce); err != nil {
		panic(fmt.Sprintf("decode a committed CloudEvent: %v", err))
	}
	return ce
}

// all returns the open events in the order in which they were first seen. The slice must not be changed.
func (o *openEvents) all() []*openEvent {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.inOrder == nil {
		o.inOrder = slices.SortedFunc(maps.Values(o.byID), byFirst)
	}
	return o.inOrder
}

// get returns an open event; nil if it is not open.
func (o *openEvents) get(id string) *openEvent {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byID[id]
}

// byFirst orders events by when they were first seen.
func byFirst(a, b *openEvent) int {
	return cmp.Or(a.Announced.Compare(b.Announced), cmp.Compare(a.event.ID, b.event.ID))
}

// set replaces the states of events, nil for one that is over, and returns them as the outbox stores them.
func (o *openEvents) set(states map[string]*openEvent) map[string]*outbox.Group {
	if len(states) == 0 {
		return nil // most commits change no event, so the order stays
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inOrder = nil
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
