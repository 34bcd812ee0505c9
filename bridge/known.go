package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"time"
)

// lastAnswer is what is remembered of the last valid answer.
type lastAnswer struct {
	At          time.Time `json:"at"`
	Incarnation string    `json:"incarnation"`
}

// Open is what is remembered of an event that is not over.
type Open struct {
	Event     json.RawMessage `json:"event"`
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
	Waited    *waited         `json:"waited,omitempty"`   // by the rules; replaced, never changed
	Approved  bool            `json:"approved,omitempty"` // an approval was sent, or may have been

	event Event // of Event
}

// told remembers how often an id was used.
type told struct {
	Times int       `json:"times"`
	Event string    `json:"event"` // EventId
	At    time.Time `json:"at"`
}

// touchEvery is how old the last valid answer on disk may be.
const touchEvery = time.Minute

// unwatched notes how long no valid answer came, and that the observer booted meanwhile.
func (op *Open) unwatched(d time.Duration, rebooted bool) {
	op.Gap = op.Gap || d > gapAbove
	op.Rebooted = op.Rebooted || rebooted
}

// sinceAnswer is the time between an answer and now. Of a machine that was frozen, one clock may have stood still.
func sinceAnswer(a lastAnswer, now time.Time) time.Duration { return elapsed(a.At, now) }

func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// known are the open events, by when they were first seen, with what is remembered of each.
func (o *Outbox) known() ([]Event, map[string]Open) {
	o.mu.Lock()
	defer o.mu.Unlock()
	states := make(map[string]Open, len(o.open))
	events := make([]Event, 0, len(o.open))
	for id, op := range o.open {
		states[id] = op.copy()
		events = append(events, op.event)
	}
	slices.SortFunc(events, func(a, b Event) int {
		return cmp.Or(states[a.ID].First.Compare(states[b.ID].First), cmp.Compare(a.ID, b.ID))
	})
	return events, states
}

// knownEvent is one of them; ok is false when it is not open.
func (o *Outbox) knownEvent(id string) (e Event, state Open, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op, ok := o.open[id]
	if !ok {
		return Event{}, Open{}, false
	}
	return op.event, op.copy(), true
}

// copy is a state that may be kept and changed.
func (op *Open) copy() Open {
	state := *op
	state.Routes, state.Undecided = slices.Clone(op.Routes), slices.Clone(op.Undecided)
	return state
}

// openCount is how many events are open.
func (o *Outbox) openCount() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.open)
}

// paused notes for the events that are open how long the program stood still.
func (o *Outbox) paused(pause time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.open {
		op.Pause = max(op.Pause, pause)
	}
}

// answered notes a valid answer, and what the time since the last one means for the events that were open. It reaches
// the disk with the next commit, or within a minute.
func (o *Outbox) answered(a lastAnswer, rebooted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.open {
		op.unwatched(sinceAnswer(o.answer, a.At), rebooted)
	}
	o.answer = a
	if a.At.Sub(o.touched) < touchEvery {
		return
	}
	o.touched = a.At
	o.saveAnswer()
	o.store.syncSoon()
}

// saveAnswer writes the last valid answer, and what it meant for the open events. mu is held.
func (o *Outbox) saveAnswer() {
	o.store.write(bucketMeta, metaAnswer, compactJSON(o.answer))
	for id, op := range o.open {
		o.store.write(bucketOpen, id, compactJSON(op))
	}
}

// lastAnswer is the last valid answer, of this run or of one before.
func (o *Outbox) lastAnswer() lastAnswer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.answer
}

// told says how often the id was used, and by which event.
func (o *Outbox) told(id string) (t told) {
	v, err := o.store.get(bucketIDs, id)
	if err == nil && v != nil {
		err = json.Unmarshal(v, &t)
	}
	if err != nil {
		o.unread("what was told before cannot be read", "id", id, "err", err)
	}
	return t
}

// unread says that something cannot be read, loudly unless the whole file is known to be out of reach.
func (o *Outbox) unread(msg string, args ...any) {
	level := slog.LevelError
	if o.Durable() != nil {
		level = slog.LevelDebug
	}
	o.log.Log(context.Background(), level, msg, args...)
}

// stored is the observer learnt last, and the vmId of the outbox.
func (o *Outbox) stored() (Observer, string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.observer, o.owner
}

// setRoutes says which routes there are now. It returns those of which nothing is known, and those that were away.
func (o *Outbox) setRoutes(names []string, now time.Time) (added, back []string) {
	o.mu.Lock()
	for _, name := range names {
		sh := o.shelf(name)
		switch {
		case !sh.known:
			added = append(added, name)
		case !sh.gone.IsZero():
			back = append(back, name)
		}
		sh.known, sh.gone = true, time.Time{}
		o.store.write(bucketRoutes, name, goneText(sh.gone))
	}
	for name, sh := range o.shelves {
		if sh.gone.IsZero() && !slices.Contains(names, name) {
			sh.gone = now
			o.store.write(bucketRoutes, name, goneText(now))
		}
	}
	o.mu.Unlock()
	o.syncIf(false)
	return added, back
}
