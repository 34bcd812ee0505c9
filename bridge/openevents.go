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

	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// lastAnswer is what is remembered of the last valid answer of the endpoint.
type lastAnswer struct {
	At          time.Time `json:"at"`
	Incarnation string    `json:"incarnation"`
}

// since is the time between the answer and now. When the machine was frozen, one of its clocks may have stood still.
func (a lastAnswer) since(now time.Time) time.Duration { return elapsed(a.At, now) }

func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// later is the later of two times, of which a zero one counts as not set.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// openEvent is what is remembered of an Azure event that is not over. The outbox keeps it as JSON.
type openEvent struct {
	Event     json.RawMessage `json:"event"`              // as it was last told
	Life      int             `json:"life"`               // 1, more if it came back after it had vanished
	First     time.Time       `json:"first"`              // when it was first seen
	Started   time.Time       `json:"started,omitzero"`   // when it was first seen as Started
	Gap       bool            `json:"gap,omitempty"`      // nobody watched for a while
	Rebooted  bool            `json:"rebooted,omitempty"` // the observer, between two answers
	Pause     time.Duration   `json:"pause,omitempty"`    // the longest time the program stood still
	Latest    uint64          `json:"latest"`             // the sequence number of its newest change
	Routes    []string        `json:"routes,omitempty"`   // whose filter accepted it
	Undecided []string        `json:"undecided,omitempty"`
	Said      time.Time       `json:"said,omitzero"`      // when something was told about it last
	Approval  *decision       `json:"approval,omitempty"` // replaced, never changed
	Approved  bool            `json:"approved,omitempty"` // an approval was sent, or may have been
	Waited    *waited         `json:"waited,omitempty"`   // by the rules; replaced, never changed

	event imds.Event // of Event
	kept  time.Time  // when it was last given to the outbox
	lost  time.Time  // when it was last seen, of one that a late file brought; zero once it is listed
}

// unwatched notes how long no valid answer came, and that the observer booted meanwhile. It says whether that is news.
func (op *openEvent) unwatched(d time.Duration, rebooted bool) bool {
	was := *op
	op.Gap = op.Gap || d > gapAbove || d < 0 // the clock was set back, and nobody knows how long it was
	op.Rebooted = op.Rebooted || rebooted
	return op.Gap != was.Gap || op.Rebooted != was.Rebooted
}

// clone is a copy that may be kept and changed.
func (op *openEvent) clone() openEvent {
	c := *op
	c.Routes, c.Undecided = slices.Clone(op.Routes), slices.Clone(op.Undecided)
	return c
}

// group is the event as the outbox keeps it.
func (op *openEvent) group() *outbox.Group {
	op.kept = time.Now()
	return &outbox.Group{State: imds.CompactJSON(op), Latest: op.Latest}
}

// openEvents are Azure's events that are not over. They may be used by several goroutines; whoever derives changes from
// them holds Bridge.deciding, so that nobody else does meanwhile.
type openEvents struct {
	mu   sync.Mutex
	byID map[string]*openEvent
}

// load takes in what the outbox's file held, which may come late, beside what is known already. until is the last valid
// answer that the file knows of, and since the last one of this run, zero if there was none. It gives the events that
// were told anew before the file came, as the outbox is to keep them.
func (o *openEvents) load(
	groups map[string]outbox.Group, until, since time.Time, log *slog.Logger,
) (anew map[string]*outbox.Group) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID = map[string]*openEvent{}
	}
	anew = map[string]*outbox.Group{}
	for id, g := range groups {
		was, err := decodeOpen(g)
		if err != nil {
			log.Error("an open event in the outbox can't be read", "event", id, "err", err)
			continue
		}
		switch op := o.byID[id]; {
		case op != nil && was.First.Before(op.First):
			op.recall(was, until)
			anew[id] = op.group()
		case op != nil:
		case !since.IsZero(): // nobody knew of it meanwhile
			was.unwatched(elapsed(until, since), false)
			was.lost = until
			fallthrough
		default:
			o.byID[id] = was
		}
	}
	return anew
}

// recall takes in what a file remembers that came when the event had been taken for new. until is when it had been seen
// last.
func (op *openEvent) recall(was *openEvent, until time.Time) {
	op.unwatched(elapsed(until, op.First), was.Rebooted)
	if !was.Started.IsZero() {
		op.Started = was.Started
	}
	op.First, op.Life, op.Pause = was.First, max(op.Life, was.Life), max(op.Pause, was.Pause)
	op.Gap, op.Approved = op.Gap || was.Gap, op.Approved || was.Approved
	for _, r := range was.Routes {
		if !slices.Contains(op.Routes, r) {
			op.Routes = append(op.Routes, r)
		}
	}
	op.Undecided = slices.DeleteFunc(op.Undecided, func(r string) bool { return slices.Contains(op.Routes, r) })
}

// listed notes that a document lists these events.
func (o *openEvents) listed(events []imds.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range events {
		if op := o.byID[e.ID]; op != nil {
			op.lost = time.Time{}
		}
	}
}

func decodeOpen(g outbox.Group) (*openEvent, error) {
	var op openEvent
	if err := json.Unmarshal(g.State, &op); err != nil {
		return nil, fmt.Errorf("open event: %w", err)
	}
	event, err := imds.UnmarshalEvent(op.Event)
	op.event, op.Latest = event, g.Latest
	return &op, err
}

// clear forgets all.
func (o *openEvents) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.byID)
}

// all are the open events, the first seen first, with what is remembered of each.
func (o *openEvents) all() ([]imds.Event, map[string]openEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	states := make(map[string]openEvent, len(o.byID))
	events := make([]imds.Event, 0, len(o.byID))
	for _, id := range slices.SortedFunc(maps.Keys(o.byID), o.byFirst) {
		states[id] = o.byID[id].clone()
		events = append(events, o.byID[id].event)
	}
	return events, states
}

// get is one of them; ok is false when it is not open.
func (o *openEvents) get(id string) (e imds.Event, state openEvent, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op, ok := o.byID[id]
	if !ok {
		return imds.Event{}, openEvent{}, false
	}
	return op.event, op.clone(), true
}

// open says whether the event is one of them.
func (o *openEvents) open(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byID[id] != nil
}

// toApprove are the ids of the events that the approval loop looks at, the first seen first: all of them when there are
// rules, else those with an approval that was decided and not sent.
func (o *openEvents) toApprove(rules bool) (ids []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, op := range o.byID {
		if rules || op.Approval.owed() {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, o.byFirst)
	return ids
}

// byFirst orders events by when they were first seen. mu is held.
func (o *openEvents) byFirst(a, b string) int {
	return cmp.Or(o.byID[a].First.Compare(o.byID[b].First), cmp.Compare(a, b))
}

// latest are the sequence numbers of their newest changes.
func (o *openEvents) latest() []uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	seqs := make([]uint64, 0, len(o.byID))
	for _, op := range o.byID {
		seqs = append(seqs, op.Latest)
	}
	return seqs
}

// count is how many there are.
func (o *openEvents) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.byID)
}

// set takes in new states, nil for what is over, and gives each as the outbox is to keep it.
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
		if was := o.byID[id]; was != nil { // what the poll loop noted meanwhile
			op.Gap, op.Rebooted, op.Pause = op.Gap || was.Gap, op.Rebooted || was.Rebooted, max(op.Pause, was.Pause)
		}
		o.byID[id] = op
		groups[id] = op.group()
	}
	return groups
}

// note changes what the poll loop notes of every open event, and gives those for which that was news as the outbox is
// to keep them.
func (o *openEvents) note(change func(*openEvent) bool) map[string]*outbox.Group {
	o.mu.Lock()
	defer o.mu.Unlock()
	var groups map[string]*outbox.Group
	for id, op := range o.byID {
		if change(op) {
			if groups == nil { // rarely, and this is asked with every poll
				groups = map[string]*outbox.Group{}
			}
			groups[id] = op.group()
		}
	}
	return groups
}

// noteOne changes what is remembered of one open event, and gives it as the outbox is to keep it when change says so.
func (o *openEvents) noteOne(id string, change func(*openEvent) bool) *outbox.Group {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.byID[id]; op != nil && change(op) {
		return op.group()
	}
	return nil
}

// maxOpenBytes is how long the texts of all open events may be together; a whole document is shorter.
const maxOpenBytes = 16 << 20

// leftOut is what is said while changes do not fit.
var leftOut = fmt.Sprintf("changes are left out, because %d events, or %d MiB of them, are open already",
	imds.MaxEvents, maxOpenBytes>>20)

// fitting leaves out the changes for which there is no room beside the known events. Documents that make nothing vanish
// could otherwise open events without end.
func fitting(known []imds.Event, changes []imds.Change) []imds.Change {
	n, bytes := len(known), 0
	for _, e := range known {
		bytes += len(e.Raw)
	}
	for _, c := range changes {
		if c.Kind == imds.Vanished {
			n, bytes = n-1, bytes-len(c.Event.Raw)
		}
	}
	return slices.DeleteFunc(slices.Clone(changes), func(c imds.Change) bool {
		more, longer := 1, len(c.Event.Raw)
		switch {
		case c.Kind == imds.Vanished:
			return false
		case c.Previous != nil:
			more, longer = 0, longer-len(c.Previous.Raw)
		}
		if n+more > imds.MaxEvents || bytes+longer > maxOpenBytes {
			return true
		}
		n, bytes = n+more, bytes+longer
		return false
	})
}
