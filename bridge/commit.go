package bridge

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// A Commit is what one document, or one thing that happened to the bridge, changes.
type Commit struct {
	Observer *Observer
	Open     map[string]*Open // nil: no longer open
	Told     map[string]told
	Owed     []Owed
}

// Owed is a CloudEvent and the routes it is owed to.
type Owed struct {
	CloudEvent event.Event
	Event      string // EventId, "" if it is about the bridge
	Change     ChangeKind
	NotBefore  time.Time
	To         []string
	Undecided  []string // routes whose filter waits for the observer's name
	HeldUntil  time.Time
	Due        map[string]time.Time // when a route is to be told, if not at once
	Again      uint64               // the sequence number of a CloudEvent that was committed before; 0 for a new one
}

// Commit makes everything owed that is to be, in one transaction, and returns when it is on disk. An error says that
// it is not: it is owed all the same, from memory. now is the time of the commit.
func (o *Outbox) Commit(c Commit, now time.Time) error {
	o.mu.Lock()
	if c.Observer != nil {
		o.observer = *c.Observer
		o.store.write(bucketMeta, metaObserver, compactJSON(c.Observer))
	}
	for key, t := range c.Told {
		o.store.write(bucketIDs, key, compactJSON(t))
	}
	latest := map[string]uint64{}
	var fresh []*Entry
	var bodies []json.RawMessage
	for _, owed := range c.Owed {
		body, seq := marshalEvent(owed.CloudEvent), owed.Again
		if seq == 0 {
			o.last = max(o.last+1, uint64(now.UnixMicro()))
			seq = o.last
			o.store.write(bucketEvents, seqKey(seq), body)
			o.grown.n, o.grown.bytes = o.grown.n+1, o.grown.bytes+len(body)
			bodies = append(bodies, body)
			o.meter.Committed(owed.CloudEvent.Type())
		}
		if owed.Event != "" && owed.Change.azures() {
			latest[owed.Event] = seq
		}
		o.overtake(owed, now)
		azureType, _ := owed.CloudEvent.Extensions()["azeventtype"].(string)
		for i, name := range slices.Concat(owed.To, owed.Undecided) {
			e := &Entry{
				Key: name + "/" + seqKey(seq), Sink: name, ID: owed.CloudEvent.ID(), Type: owed.CloudEvent.Type(),
				Event: owed.Event, State: StatePending, Bytes: len(body), Owed: now.UTC(), Change: owed.Change,
				AzureType: azureType, NotBefore: owed.NotBefore, seq: seq, uncommitted: true,
			}
			if i >= len(owed.To) {
				e.Held = owed.HeldUntil
			}
			e.Due = owed.Due[name]
			e.Next = e.Due
			if sh := o.shelf(name); sh.entries[seq] == nil {
				e.write = o.store.write(bucketPending, e.Key, compactJSON(e))
				o.put(sh, e)
				fresh = append(fresh, e)
			}
		}
	}
	o.setOpen(c.Open, latest)
	o.mu.Unlock()

	err := o.store.sync() // nothing leaves before this

	o.mu.Lock()
	for _, e := range fresh {
		e.uncommitted = false
		if e.gone {
			continue
		}
		if e.write > o.saved {
			e.volatile = true
			o.volatile++
		}
		o.shelf(e.Sink).offer(e)
	}
	for _, body := range bodies {
		o.show(body)
	}
	given := o.bound()
	o.mu.Unlock()
	o.tell(given)
	return err
}

// setOpen notes the states of events, nil for what is over, and the sequence numbers of their newest changes. mu is
// held.
func (o *Outbox) setOpen(states map[string]*Open, latest map[string]uint64) {
	for id, op := range states {
		if op == nil {
			delete(o.open, id)
			o.store.write(bucketOpen, id, nil)
			continue
		}
		if seq := latest[id]; seq != 0 {
			op.Latest = seq
		}
		if was := o.open[id]; was != nil { // what the poll loop noted meanwhile
			op.Gap, op.Rebooted, op.Pause = op.Gap || was.Gap, op.Rebooted || was.Rebooted, max(op.Pause, was.Pause)
		}
		o.open[id] = op
		o.store.write(bucketOpen, id, compactJSON(op))
	}
}

// bound gives up what is too much: the oldest of the route with most. While the disk fails there is less room, for what
// only memory has. mu is held.
func (o *Outbox) bound() (given []Entry) {
	full := func() bool { return o.pending.n > o.bounds.pending || o.pending.bytes > o.bounds.pendingBytes }
	for full() || o.volatile > o.bounds.inMemory {
		all := full()
		var most []*Entry
		for _, sh := range o.shelves {
			var owed []*Entry
			for _, e := range sh.entries {
				if all && !e.uncommitted || e.volatile {
					owed = append(owed, e)
				}
			}
			if len(owed) > len(most) {
				most = owed
			}
		}
		if len(most) == 0 {
			break // all of it is just being committed
		}
		slices.SortFunc(most, func(a, b *Entry) int { return cmp.Compare(a.seq, b.seq) })
		for _, e := range most[:max(1, len(most)/100)] { // in steps, so that one look at everything serves for many
			given = append(given, o.bury(e, ReasonOverflow, nil))
			if !full() && o.volatile <= o.bounds.inMemory {
				break
			}
		}
	}
	o.boundDead()
	return given
}

// bury makes a dead letter of an entry. mu is held; boundDead must be called, and tell when mu no longer is.
func (o *Outbox) bury(e *Entry, reason string, cause error) Entry {
	o.remove(e)
	dead := *e
	dead.State, dead.Reason, dead.DeadSince, dead.Next, dead.Held = StateDead, reason, time.Now().UTC(), time.Time{}, time.Time{}
	if cause != nil {
		dead.Error = cause.Error()
	}
	if was := o.dead[e.Key]; was != nil { // it was owed again in another way than by a replay of its own
		o.exhume(was)
	}
	dead.write = o.store.write(bucketDead, e.Key, compactJSON(dead))
	o.dead[e.Key] = &dead
	o.deadSize.add(&dead, 1)
	return dead
}

// boundDead drops the oldest dead letters when there are too many. mu is held.
func (o *Outbox) boundDead() {
	full := func() bool { return o.deadSize.n > o.bounds.dead || o.deadSize.bytes > o.bounds.deadBytes }
	volatile := 0
	if o.store.durable() != nil {
		for _, e := range o.dead {
			if e.write > o.saved {
				volatile++
			}
		}
	}
	if !full() && volatile <= o.bounds.inMemory {
		return
	}
	byAge := make([]*Entry, 0, len(o.dead))
	for _, e := range o.dead {
		byAge = append(byAge, e)
	}
	slices.SortFunc(byAge, func(a, b *Entry) int { return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.Sink, b.Sink)) })
	dropped := 0
	for _, e := range byAge {
		inMemory := e.write > o.saved
		if !full() && (volatile <= o.bounds.inMemory || !inMemory) {
			continue
		}
		if inMemory {
			volatile--
		}
		o.exhume(e)
		dropped++
	}
	o.meter.Forgot(ForgotDeadLetter, dropped)
	o.log.Error("too many dead letters, the oldest were dropped", "dropped", dropped, "kept", len(o.dead))
}

// exhume forgets a dead letter. mu is held.
func (o *Outbox) exhume(e *Entry) {
	delete(o.dead, e.Key)
	o.deadSize.add(e, -1)
	o.store.write(bucketDead, e.Key, nil)
}

// tell passes dead letters on. mu is not held.
func (o *Outbox) tell(given []Entry) {
	for _, e := range given {
		o.gaveUp(e)
	}
}

// marshalEvent is the CloudEvent in the JSON format. It was validated when it was made.
func marshalEvent(ce event.Event) []byte {
	var b bytes.Buffer
	if err := event.WriteJson(&ce, &b); err != nil {
		panic(fmt.Sprintf("encode CloudEvent %s: %v", ce.ID(), err))
	}
	return b.Bytes()
}
