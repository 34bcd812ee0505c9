package bridge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// attach begins the work of a route's worker: take gives it all that is owed, and the channel tells when there is more.
func (o *Outbox) attach(route string) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	sh := o.shelf(route)
	sh.fresh = nil
	for _, e := range sh.entries {
		if e.Held.IsZero() {
			sh.fresh = append(sh.fresh, e)
		}
	}
	slices.SortFunc(sh.fresh, func(a, b *Entry) int { return cmp.Compare(a.seq, b.seq) })
	return sh.wake
}

// take gives the entries that came to be owed since the last call, in order.
func (o *Outbox) take(route string) []*Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	sh := o.shelf(route)
	fresh := sh.fresh
	sh.fresh = nil
	return fresh
}

// owed says whether an entry taken before is still owed.
func (o *Outbox) owed(e *Entry) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !e.gone
}

// cloudEvent reads the CloudEvent with the sequence number.
func (o *Outbox) cloudEvent(seq uint64) (event.Event, error) {
	var ce event.Event
	body, err := o.store.get(bucketEvents, seqKey(seq))
	if err == nil && body == nil {
		err = fmt.Errorf("%s has no CloudEvent %d", o.Path(), seq)
	}
	if err == nil {
		err = json.Unmarshal(body, &ce)
	}
	return ce, err
}

// receipt is what the sink gave back last for the Azure event, nil if nothing.
func (o *Outbox) receipt(e *Entry) []byte {
	if e.Event == "" {
		return nil
	}
	v, err := o.store.get(bucketReceipts, e.Event+"/"+e.Sink)
	if err != nil {
		o.log.Error("a receipt cannot be read", "sink", e.Sink, "event", e.Event, "err", err)
	}
	return v
}

// keepReceipt stores what the sink gave back. mu is held.
func (o *Outbox) keepReceipt(e *Entry, receipt []byte) {
	if receipt != nil && e.Event != "" {
		o.store.write(bucketReceipts, e.Event+"/"+e.Sink, receipt)
	}
}

// settle notes that the batch was accepted, and with it the entries that it stood for. It may return before that is on
// disk, but never more than settleAhead entries or groupWait ahead of it.
func (o *Outbox) settle(batch, superseded []*Entry, a Answer, now time.Time) {
	o.mu.Lock()
	how := func(e *Entry, how string, attempts int) {
		if e.gone { // given up meanwhile: it was delivered after all
			if dead, ok := o.dead[e.Key]; ok {
				o.exhume(dead)
			}
		} else {
			o.remove(e)
		}
		s := Settled{At: now.UTC(), How: how, ID: e.ID, Event: e.Event, Attempts: attempts}
		if how == settledAccepted {
			s.Status, s.AnswerID = a.Status, a.ID
		}
		o.store.write(bucketSettled, seqKey(e.seq)+"/"+e.Sink, compactJSON(s))
	}
	for _, e := range superseded {
		how(e, settledSuperseded, e.Attempts)
	}
	for _, e := range batch {
		how(e, settledAccepted, e.Attempts+1)
	}
	route := batch[0].Sink
	sh := o.shelf(route)
	sh.delivered += len(batch)
	sh.accepted = now
	o.keepReceipt(batch[0], a.Receipt)
	o.ahead[route] += len(batch) + len(superseded)
	wait := o.ahead[route] >= settleAhead
	o.mu.Unlock()
	o.syncIf(wait)
}

// How a delivery was settled.
const (
	settledAccepted   = "accepted"
	settledSuperseded = "superseded"
)

// syncIf waits for the disk, or lets it come soon. A disk that fails is not waited for.
func (o *Outbox) syncIf(wait bool) {
	if wait && o.Durable() == nil {
		_ = o.store.sync() // the store says what is wrong, and keeps what it could not write
		return
	}
	o.store.syncSoon()
}

// failed notes an attempt that was not accepted, and when the next one is due.
func (o *Outbox) failed(batch []*Entry, cause error, receipt []byte, now, next time.Time) {
	o.mu.Lock()
	for _, e := range batch {
		e.Attempts++
		e.Tried, e.Next, e.Error = now.UTC(), next.UTC(), cause.Error()
		if !e.gone {
			o.store.write(bucketPending, e.Key, compactJSON(e))
		}
	}
	o.keepReceipt(batch[0], receipt)
	o.mu.Unlock()
	o.syncIf(false)
}

// giveUp makes dead letters of entries that are still owed.
func (o *Outbox) giveUp(entries []*Entry, reason string, cause error) {
	var given []Entry
	o.mu.Lock()
	for _, e := range entries {
		if !e.gone {
			given = append(given, o.bury(e, reason, cause))
		}
	}
	o.mu.Unlock()
	o.tell(given)
	o.syncIf(false)
}

// decide settles whether a route is owed the changes of an event that waited for the observer's name.
func (o *Outbox) decide(route, eventID string, accept bool) {
	o.mu.Lock()
	sh := o.shelf(route)
	var held []*Entry
	for _, e := range sh.entries {
		if e.Event == eventID && !e.Held.IsZero() {
			held = append(held, e)
		}
	}
	slices.SortFunc(held, func(a, b *Entry) int { return cmp.Compare(a.seq, b.seq) })
	for _, e := range held {
		if !accept {
			o.remove(e)
			continue
		}
		e.Held = time.Time{}
		o.store.write(bucketPending, e.Key, compactJSON(e))
		sh.offer(e)
	}
	if op := o.open[eventID]; op != nil {
		op.Undecided = slices.DeleteFunc(op.Undecided, func(s string) bool { return s == route })
		if accept {
			op.Routes = append(op.Routes, route)
		}
		o.store.write(bucketOpen, eventID, compactJSON(op))
	}
	o.mu.Unlock()
	o.syncIf(false)
}

// held are the oldest entries, one a route and Azure event, that wait for the observer's name.
func (o *Outbox) held() []Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := map[string]*Entry{}
	for name, sh := range o.shelves {
		for _, e := range sh.entries {
			key := name + "/" + e.Event
			if f := first[key]; !e.Held.IsZero() && (f == nil || e.seq < f.seq) {
				first[key] = e
			}
		}
	}
	entries := make([]Entry, 0, len(first))
	for _, e := range first {
		entries = append(entries, *e)
	}
	return entries
}

// setRoutes says which routes there are now. It returns those that were never there before.
func (o *Outbox) setRoutes(names []string, now time.Time) (added []string) {
	o.mu.Lock()
	for _, name := range names {
		sh := o.shelf(name)
		if !sh.known {
			added = append(added, name)
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
	return added
}

// known are the open events, by when they were first seen, with what is remembered of each, and the last valid answer.
func (o *Outbox) known() ([]Event, map[string]Open, lastAnswer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	states := make(map[string]Open, len(o.open))
	events := make([]Event, 0, len(o.open))
	for id, op := range o.open {
		states[id] = *op
		events = append(events, op.event)
	}
	slices.SortFunc(events, func(a, b Event) int {
		return cmp.Or(states[a.ID].First.Compare(states[b.ID].First), cmp.Compare(a.ID, b.ID))
	})
	return events, states, o.answer
}

// answered notes a valid answer, and what the time since the last one means for the events that were open. It reaches
// the disk with the next commit, or within a minute.
func (o *Outbox) answered(a lastAnswer, rebooted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	since := max(a.At.Sub(o.answer.At), a.At.Round(0).Sub(o.answer.At.Round(0))) // a frozen VM's clocks may differ
	for _, op := range o.open {
		op.Pause = max(op.Pause, since)
		op.Gap = op.Gap || since > gapAbove
		op.Rebooted = op.Rebooted || rebooted
	}
	o.answer = a
	if a.At.Sub(o.touched) < touchEvery {
		return
	}
	o.touched = a.At
	o.store.write(bucketMeta, metaAnswer, compactJSON(a))
	for id, op := range o.open {
		o.store.write(bucketOpen, id, compactJSON(op))
	}
	o.store.syncSoon()
}

// touchEvery is how old the last valid answer on disk may be.
const touchEvery = time.Minute

// lastAnswer is the last valid answer, of this run or of one before.
func (o *Outbox) lastAnswer() lastAnswer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.answer
}

// pendingCount is how many deliveries are owed.
func (o *Outbox) pendingCount() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pending.n
}

// told says how often the id was used, and by which event.
func (o *Outbox) told(id string) (t told) {
	v, err := o.store.get(bucketIDs, id)
	if err == nil && v != nil {
		err = json.Unmarshal(v, &t)
	}
	if err != nil {
		o.log.Error("what was told before cannot be read", "id", id, "err", err)
	}
	return t
}

// stored is the observer learnt last, and the vmId of the outbox.
func (o *Outbox) stored() (Observer, string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.observer, o.owner
}

// A Selection picks entries of the outbox; empty fields pick all.
type Selection struct {
	Sink, State, Event string // Event also by a prefix
}

// List gives the selected entries, pending before dead, each by age.
func (o *Outbox) List(s Selection) []Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	entries := []Entry{}
	add := func(e *Entry) {
		if (s.Sink == "" || s.Sink == e.Sink) && (s.State == "" || s.State == e.State) &&
			strings.HasPrefix(e.Event, strings.ToUpper(s.Event)) {
			entries = append(entries, *e)
		}
	}
	for _, sh := range o.shelves {
		for _, e := range sh.entries {
			add(e)
		}
	}
	for _, e := range o.dead {
		add(e)
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(-cmp.Compare(a.State, b.State), cmp.Compare(a.seq, b.seq), cmp.Compare(a.Sink, b.Sink))
	})
	return entries
}

// Show gives one entry and its CloudEvent in the JSON format; found is false when there is no such key.
func (o *Outbox) Show(key string) (e Entry, body json.RawMessage, found bool, err error) {
	for _, e := range o.List(Selection{}) {
		if e.Key == key {
			body, err := o.store.get(bucketEvents, seqKey(e.seq))
			return e, body, true, err
		}
	}
	return Entry{}, nil, false, nil
}

// routeStats is what the outbox knows of a route.
type routeStats struct {
	pending, dead, delivered int
	oldest, accepted, gone   time.Time
	azure                    time.Time // when the oldest delivery about an Azure event was owed
}

// stats are those of every route, by name.
func (o *Outbox) stats() map[string]routeStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[string]routeStats, len(o.shelves))
	for name, sh := range o.shelves {
		st := routeStats{pending: len(sh.entries), delivered: sh.delivered, accepted: sh.accepted, gone: sh.gone}
		for _, e := range sh.entries {
			if st.oldest.IsZero() || e.Owed.Before(st.oldest) {
				st.oldest = e.Owed
			}
			if e.Event != "" && e.Held.IsZero() && (st.azure.IsZero() || e.Owed.Before(st.azure)) {
				st.azure = e.Owed
			}
		}
		all[name] = st
	}
	for _, e := range o.dead {
		st := all[e.Sink]
		st.dead++
		all[e.Sink] = st
	}
	return all
}

// maintain drops what is remembered no longer, gives up the backlog of routes that are gone, and compacts the file.
func (o *Outbox) maintain(now time.Time) error {
	var given []Entry
	o.mu.Lock()
	inUse := map[string]bool{} // sequence numbers
	for _, op := range o.open {
		inUse[seqKey(op.Latest)] = true
	}
	for name, sh := range o.shelves {
		orphaned := !sh.gone.IsZero() && now.Sub(sh.gone) > keepOrphans
		for _, e := range slices.Collect(maps.Values(sh.entries)) {
			inUse[seqKey(e.seq)] = true
			if orphaned {
				given = append(given, o.bury(e, ReasonRemoved, nil))
			}
		}
		if orphaned && sh.known {
			sh.known = false
			o.store.write(bucketRoutes, name, nil)
		}
	}
	for _, e := range slices.Collect(maps.Values(o.dead)) {
		if now.Sub(e.DeadSince) > keepDead {
			o.exhume(e)
			continue
		}
		inUse[seqKey(e.seq)] = true
	}
	opens := maps.Clone(o.open)
	o.mu.Unlock()
	o.tell(given)

	history := seqKey(uint64(now.Add(-keepHistory).UnixMicro()))
	prune := func(bucket string, limit int, drop func(key string, value []byte) bool) {
		var keys, gone []string
		err := o.store.walk(bucket, func(key string, value []byte) error {
			if drop(key, value) {
				gone = append(gone, key)
			} else {
				keys = append(keys, key)
			}
			return nil
		})
		if err != nil {
			o.log.Error("the outbox cannot be read", "bucket", bucket, "err", err)
			return
		}
		for _, key := range keys[:max(0, len(keys)-limit)] { // keys sort by age
			if !inUse[key] {
				gone = append(gone, key)
			}
		}
		for _, key := range gone {
			o.store.write(bucket, key, nil)
		}
	}
	prune(bucketEvents, maxHistory, func(key string, _ []byte) bool { return key < history && !inUse[key] })
	prune(bucketSettled, maxHistory, func(key string, _ []byte) bool { return key < history })
	remembered := map[string]bool{} // events
	prune(bucketIDs, maxHistory, func(_ string, value []byte) bool {
		var t told
		if json.Unmarshal(value, &t) == nil && (opens[t.Event] != nil || now.Sub(t.At) <= keepVanished) {
			remembered[t.Event] = true
			return false
		}
		return true
	})
	prune(bucketReceipts, maxHistory, func(key string, _ []byte) bool {
		id, _, _ := strings.Cut(key, "/")
		return opens[id] == nil && !remembered[id]
	})
	if err := o.store.sync(); err != nil {
		return err
	}
	return o.store.compact()
}

// forgetSettled makes room in memory while the disk cannot take the history of what was delivered.
func (o *Outbox) forgetSettled() {
	o.mu.Lock()
	inUse := map[string]bool{}
	for _, op := range o.open {
		inUse[seqKey(op.Latest)] = true
	}
	for _, sh := range o.shelves {
		for _, e := range sh.entries {
			inUse[seqKey(e.seq)] = true
		}
	}
	for _, e := range o.dead {
		inUse[seqKey(e.seq)] = true
	}
	o.mu.Unlock()
	n := o.store.forget(bucketEvents, 2*maxInMemory, func(key string) bool { return !inUse[key] }) +
		o.store.forget(bucketSettled, 2*maxInMemory, func(string) bool { return true })
	if n > 0 {
		o.log.Warn("history was dropped, because the outbox cannot be written", "records", n)
	}
}
