package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// The bounds of a fleet.
const (
	fleetPeriod    = 40 * 24 * time.Hour // how far back the stream is read
	maxEndedEvents = 2_000
	maxVMs         = 200_000
	forgetVM       = 24 * time.Hour // after its last message, if no open event names it
	excusePeriod   = time.Hour      // an open event explains no silence of VMs heard so long after its last change
	maxChanges     = 64             // of one event; its vanished is kept besides
	eventOverhead  = 1 << 10        // bytes that a change takes besides its data
)

// A fleet is what the stream and the records show of VMs and their events. It is for people: no delivery depends on it.
type fleet struct {
	mu            sync.Mutex
	streamCreated time.Time
	lastRead      uint64                       // sequence number in the stream
	lastReadAt    time.Time                    // when the stream stored it
	lastHeartbeat uint64                       // sequence number in the stream of heartbeats
	events        map[string]*azureEvent       // by group
	ended         int                          // number of events that have vanished
	forgotten     bool                         // older events were dropped
	vms           map[string]*vm               // by vmKey
	sets          map[string]*fleetSet         // the same events and VMs, by cloudevent.Place.String
	bytes         int                          // of all events
	full          bool                         // a VM isn't watched, because there are too many
	records       map[string]map[string]record // by group and sink
	silent        map[string]time.Time         // see silenceRecord.Silent
}

// An azureEvent is what the stream holds about one Azure event.
type azureEvent struct {
	bridge.HistoryBuilder
	group      string
	changes    int
	bytes      int        // see fleet.addBytes
	seq        uint64     // of its last change
	ended      bool       // it has vanished, or its end was missed
	lastChange time.Time  // when the stream stored it
	heardHere  time.Time  // when this relay heard it
	latest     imds.Event // according to the last change
	from       cloudevent.Place
	observer   imds.Observer // of the last change, with no other set or group than those of from
	stage      stage
}

// deletes reports whether the event deletes its VMs.
func (l *azureEvent) deletes() bool {
	return l.latest.Type == "Preempt" || l.latest.Type == "Terminate"
}

// setObserver sets the observer of the last change.
func (l *azureEvent) setObserver(o imds.Observer) {
	if cloudevent.SubjectToken(o.ScaleSet) != l.from.Set {
		o.ScaleSet = ""
	}
	if cloudevent.SubjectToken(o.ResourceGroup) != l.from.Group {
		o.ResourceGroup = ""
	}
	l.observer = o
}

// vmKey returns the key of a VM that the event names: one of the event's scale set, or one that is in none.
func (l *azureEvent) vmKey(name string) string {
	at := l.from
	if l.observer.ScaleSet == "" {
		at.Set = cloudevent.SubjectToken(name)
	}
	return vmKey(at, name)
}

// A vm is a machine that a bridge runs on. Its times are those of the stream, unless it says otherwise.
type vm struct {
	name, set, group string
	place            string        // cloudevent.Place.String
	lastHeard        time.Time     // when its bridge published something
	heardHere        time.Time     // when this relay heard that
	backSince        time.Time     // when this relay heard the first message after its last silence
	interval         time.Duration // of its heartbeats; 0 if it sends none
	lastAlive        time.Time     // the last start or heartbeat
	lastStop         time.Time     // when its bridge last stopped
}

// stopped reports whether its bridge was stopped and hasn't started since.
func (v *vm) stopped() bool { return !v.lastStop.IsZero() && !v.lastAlive.After(v.lastStop) }

// vmKey identifies a VM by its place and name. VMs in different groups or sets may have the same name.
func vmKey(at cloudevent.Place, name string) string { return at.String() + "." + imds.Upper(name) }

func newFleet() *fleet {
	return &fleet{
		events: map[string]*azureEvent{}, vms: map[string]*vm{}, sets: map[string]*fleetSet{},
		records: map[string]map[string]record{},
	}
}

// followFleet reads the stream for people, until ctx is done.
func (r *Relay) followFleet(ctx context.Context, st *storage) {
	f := r.fleet
	created := st.stream.CachedInfo().Created
	f.mu.Lock()
	if !f.streamCreated.Equal(created) {
		f.streamCreated, f.lastRead, f.lastReadAt = created, 0, time.Time{}
	}
	f.mu.Unlock()
	from := func() (jetstream.ConsumerConfig, error) {
		if err := f.forgetLost(ctx, st.js, st.stream); err != nil {
			return jetstream.ConsumerConfig{}, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.lastRead == 0 {
			return startAt(time.Now().Add(-fleetPeriod)), nil
		}
		return startAfter(f.lastRead), nil
	}
	r.keepFollowing(ctx, st, r.Stream, from, "the stream can't be read for the status", f.add)
}

// forgetLost has the stream read again, and forgets the events, if its servers lost what was read last.
func (f *fleet) forgetLost(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream) error {
	asked, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	info, err := stream.Info(asked)
	if err != nil {
		return err
	}
	f.mu.Lock()
	read, stored := f.lastRead, f.lastReadAt
	f.mu.Unlock()
	lost, err := lost(ctx, js, info, read, stored)
	if lost {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.lastRead, f.lastReadAt, f.events, f.ended, f.bytes = 0, time.Time{}, map[string]*azureEvent{}, 0, 0
		for _, s := range f.sets {
			s.events, s.bytes = map[string]*azureEvent{}, 0
		}
	}
	return err
}

// followRecords reads the records of all sinks for the history, until ctx is done.
func (r *Relay) followRecords(ctx context.Context, st *storage) {
	bucket := recordsBucket(r.Stream)
	prefix := "$KV." + bucket + ".record."
	add := func(m rawMessage) {
		sink, of, _ := strings.Cut(strings.TrimPrefix(m.subject, prefix), ".")
		event, set := cutGroup(of)
		var rec record
		if json.Unmarshal(m.data, &rec) == nil {
			r.fleet.setRecord(fromToken(sink), groupOf(fromToken(event), set), rec)
		}
	}
	r.keepFollowing(ctx, st, "KV_"+bucket, lastOf(prefix+">"), "the records can't be read for the history", add)
}

// followHeartbeats reads the last heartbeat of each VM, and all that come, until ctx is done.
func (r *Relay) followHeartbeats(ctx context.Context, st *storage) {
	r.keepFollowing(ctx, st, st.heartbeats, lastOf(heartbeatsSubject), "heartbeats can't be read", r.fleet.addHeartbeat)
}

// keepFollowing calls f with the messages of a stream until ctx is done. Whenever the stream can't be read, it logs
// problem, and begins again where from says.
func (r *Relay) keepFollowing(
	ctx context.Context, st *storage, stream string, from func() (jetstream.ConsumerConfig, error), problem string,
	f func(rawMessage),
) {
	for ctx.Err() == nil {
		begin, err := from()
		if err == nil {
			err = follow(ctx, st.js, stream, begin, func(m rawMessage) error {
				f(m)
				return nil
			})
		}
		if ctx.Err() == nil {
			r.Log.Debug(problem, "err", err)
		}
		_ = sleep(ctx, readRetry)
	}
}

// setRecord takes in what a sink remembers of an Azure event that its filter let pass. The history needs no others,
// such as those about bridges. Of events that aren't read yet it keeps a limited number.
func (f *fleet) setRecord(sink, group string, rec record) {
	if !rec.Matched {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.records[group] == nil {
		if len(f.records) >= 4*maxEndedEvents && f.events[group] == nil {
			return
		}
		f.records[group] = map[string]record{}
	}
	f.records[group][sink] = rec
}

// deliveries returns what became of a CloudEvent, by sink. mu is held.
func (f *fleet) deliveries(group, id string) []bridge.HistoryDelivery {
	list := []bridge.HistoryDelivery{}
	for sink, rec := range f.records[group] {
		m, settled := rec.Settled[token(id)]
		t, trying := rec.Waiting[token(id)]
		switch {
		case settled && m.State == resultDead:
			list = append(list, bridge.HistoryDelivery{Sink: sink, State: m.State, At: m.At, Reason: m.Answer})
		case settled:
			list = append(list, bridge.HistoryDelivery{Sink: sink, State: m.State, At: m.At, Answer: m.Answer,
				Attempts: m.Attempts})
		case trying:
			list = append(list, bridge.HistoryDelivery{Sink: sink, State: statePending, Attempts: t.Attempts, Error: t.Error})
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Sink < list[j].Sink })
	return list
}

// add takes in a message of the stream.
func (f *fleet) add(r rawMessage) {
	m, err := r.message()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastRead, f.lastReadAt = r.seq, r.stored
	if err != nil || m.onlySink != "" {
		return
	}
	var data struct {
		Observer imds.Observer `json:"observer"`
	}
	_ = json.Unmarshal(m.ce.Data(), &data) // on an error the publisher stays unknown
	v := f.heardFrom(m.from, data.Observer, r.stored)
	switch {
	case v == nil:
	case m.ce.Type() == cloudevent.BridgeStarted:
		v.lastAlive = later(v.lastAlive, r.stored)
	case m.ce.Type() == cloudevent.BridgeStopping:
		v.lastStop = later(v.lastStop, r.stored)
	}
	if m.eventID == "" {
		return
	}
	group := m.group()
	l := f.events[group]
	if l == nil {
		l = &azureEvent{group: group, from: m.from}
		f.events[group], f.set(m.from.String()).events[group] = l, l
	}
	defer f.addBytes(l, len(m.ce.Data())+eventOverhead)
	l.changes++
	if l.changes <= maxChanges || m.change.Kind == imds.Vanished {
		ce := m.ce
		if at := m.seen(); !at.Equal(ce.Time()) {
			ce = ce.Clone()
			ce.SetTime(at)
		}
		l.Add(ce, nil)
	}
	l.seq, l.lastChange, l.heardHere = r.seq, r.stored, time.Now()
	if data.Observer.Name != "" {
		l.setObserver(data.Observer)
	}
	if !m.change.Kind.OfAzure() || l.stage.outdated(m) {
		return
	}
	l.stage.update(m)
	l.latest = m.change.Event
	if over := m.change.Kind == imds.Vanished; over != l.ended {
		l.ended = over
		if over {
			f.ended++
		} else {
			f.ended--
		}
	}
	if f.ended > 2*maxEndedEvents {
		f.forgetEnded()
	}
}

// addHeartbeat takes in a message of the stream of heartbeats.
func (f *fleet) addHeartbeat(r rawMessage) {
	var b heartbeat
	m, err := r.message()
	if err == nil && m.ce.Type() == cloudevent.BridgeHeartbeat {
		err = json.Unmarshal(m.ce.Data(), &b)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastHeartbeat = max(f.lastHeartbeat, r.seq)
	v := f.heardFrom(m.from, b.Observer, r.stored)
	if err != nil || v == nil {
		return
	}
	v.interval = b.interval()
	if b.Stopping {
		v.interval = 0 // the next heartbeat says whether more are to come
		v.lastStop = later(v.lastStop, r.stored)
	} else {
		v.lastAlive = later(v.lastAlive, r.stored)
	}
}

// heardFrom records that the bridge of a VM, which is the observer, published something from a place, and returns the
// VM. It returns nil if that isn't a VM, such as a relay, if the place isn't the VM's, or if there are too many. mu is
// held.
func (f *fleet) heardFrom(from cloudevent.Place, o imds.Observer, at time.Time) *vm {
	if cloudevent.PlaceOfObserver(o).Set != from.Set {
		return nil
	}
	if o.Name == "" || len(o.Name) > maxVMName || o.VMID == "" && o.ResourceID == "" && o.ResourceGroup == "" { // such as a relay
		return nil
	}
	key := vmKey(from, o.Name)
	v := f.vms[key]
	if v == nil {
		v = &vm{name: o.Name, place: from.String(), backSince: time.Now()}
		if !f.addVM(v.place, key, v) {
			return nil
		}
	}
	v.set, v.group = o.ScaleSet, o.ResourceGroup
	if last, silent := findSilent(f.silent, key); silent && !v.lastHeard.After(last) && at.After(last) {
		v.backSince = time.Now()
	}
	v.lastHeard, v.heardHere = later(v.lastHeard, at), time.Now()
	return v
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// caughtUp reports whether the stream and the heartbeats are taken in up to these sequence numbers.
func (f *fleet) caughtUp(last, lastHeartbeat uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lastRead >= last && f.lastHeartbeat >= lastHeartbeat
}

// readTo returns the sequence number up to which the stream is taken in.
func (f *fleet) readTo() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lastRead
}

// observed returns all VMs, with what explains their silence at this time.
func (f *fleet) observed(now time.Time) []*observer {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endMissed(now)
	excuses := f.excuses()
	all := make([]*observer, 0, len(f.vms))
	for key, v := range f.vms {
		e := excuses[key]
		open := e.open.Add(excusePeriod).After(v.lastHeard) // false if there is none
		deleted := !e.deleted.IsZero() && !e.deleted.Before(v.lastHeard)
		all = append(all, &observer{
			key: key, name: v.name, set: v.set, group: v.group, lastHeard: v.lastHeard, heardHere: v.heardHere,
			backSince: v.backSince,
			interval:  v.interval, stopped: v.stopped(), excused: open || deleted, eventEnded: e.ended,
		})
	}
	return all
}

// An excuse holds what explains why a VM is silent: when an Azure event last changed, for those that are open and those
// that deleted the VM, and when this relay heard the end of those that have ended. A zero time means that there is none.
type excuse struct{ open, deleted, ended time.Time }

// excuses returns the excuses by vmKey. Only events count that have started, or that delete VMs. mu is held.
func (f *fleet) excuses() map[string]excuse {
	all := map[string]excuse{}
	for _, l := range f.events {
		deletes := l.deletes()
		started := l.latest.Status == imds.StatusStarted
		if !deletes && !started {
			continue
		}
		for _, name := range l.latest.Resources {
			key := l.vmKey(name)
			e := all[key]
			switch {
			case !l.ended:
				e.open = later(e.open, l.lastChange)
			case deletes:
				e.deleted = later(e.deleted, l.lastChange)
			}
			if l.ended && started {
				e.ended = later(e.ended, l.heardHere)
			}
			all[key] = e
		}
	}
	return all
}

// endMissed ends the events whose end nobody told, such as those of a VM that was deleted and made again. mu is held.
func (f *fleet) endMissed(now time.Time) {
	for _, l := range f.events {
		longest := fleetPeriod
		if l.deletes() {
			longest = forgetVM
		}
		if !l.ended && now.Sub(later(l.lastChange, l.latest.NotBefore)) > longest {
			l.ended = true
			f.ended++
		}
	}
}

// setSilent sets the VMs that were announced as silent.
func (f *fleet) setSilent(silent map[string]time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = silent
}

// forgetEnded drops the older half of the events that have ended, with their records. mu is held.
func (f *fleet) forgetEnded() {
	var ended []string
	for group, l := range f.events {
		if l.ended {
			ended = append(ended, group)
		}
	}
	slices.SortFunc(ended, func(a, b string) int { return cmp.Compare(f.events[a].seq, f.events[b].seq) })
	for _, group := range ended[:len(ended)-maxEndedEvents] {
		f.forgetEvent(f.events[group])
	}
}

// openEvents returns the events that haven't ended, by their last change.
func (f *fleet) openEvents(now time.Time) []bridge.EventStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endMissed(now)
	all := []bridge.EventStatus{}
	for _, l := range f.sortedEvents() {
		if l.ended || l.latest.ID == "" {
			continue
		}
		e := l.latest
		all = append(all, bridge.EventStatus{
			Event: e.Raw, Known: e, NotBefore: e.NotBefore, Set: l.observer.ScaleSet, Group: l.observer.ResourceGroup,
			SecondsLeft: max(0, e.NotBefore.Sub(now).Round(time.Second).Seconds()),
		})
	}
	return all
}

// isOver reports whether a group's event is over. So is one that the stream no longer holds.
func (f *fleet) isOver(group string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.events[group]
	return l == nil || l.ended
}

// sortedEvents returns the events by their last change. mu is held.
func (f *fleet) sortedEvents() []*azureEvent {
	all := make([]*azureEvent, 0, len(f.events))
	for _, l := range f.events {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *azureEvent) int { return cmp.Compare(a.seq, b.seq) })
	return all
}

// listVMs returns the VMs, sorted by rank, NotBefore and the time when they were last heard. It forgets those that were
// last heard long ago.
func (f *fleet) listVMs() []bridge.FleetVM {
	sorted := f.unsortedVMs()
	slices.SortFunc(sorted, func(a, b *bridge.FleetVM) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)), a.NotBefore.Compare(b.NotBefore), a.LastHeard.Compare(b.LastHeard),
			strings.Compare(a.Name, b.Name))
	})
	all := make([]bridge.FleetVM, len(sorted))
	for i, v := range sorted {
		all[i] = *v
	}
	return all
}

// unsortedVMs is listVMs, in any order: what has to be done while nobody else may use the fleet.
func (f *fleet) unsortedVMs() []*bridge.FleetVM {
	f.mu.Lock()
	defer f.mu.Unlock()
	byName := map[string]*bridge.FleetVM{}
	for key, v := range f.vms {
		byName[key] = &bridge.FleetVM{Name: v.name, Set: v.set, Group: v.group, LastHeard: v.lastHeard,
			Stopped: v.stopped()}
		if last, silent := findSilent(f.silent, key); silent && !v.lastHeard.After(last) {
			byName[key].Silent = true
		}
	}
	unheard := map[cloudevent.Place]int{} // VMs that only events name, by set
	for _, l := range f.events {
		if l.ended {
			continue
		}
		for _, name := range l.latest.Resources {
			key := l.vmKey(name)
			v := byName[key]
			if v == nil {
				unheard[l.from]++
				if unheard[l.from] > maxVMsOfSet {
					continue
				}
				v = &bridge.FleetVM{Name: name, Set: l.observer.ScaleSet, Group: l.observer.ResourceGroup}
				byName[key] = v
			}
			v.Events = append(v.Events, l.latest.ID)
			v.Started = v.Started || l.latest.Status == imds.StatusStarted
			if at := l.latest.NotBefore; !at.IsZero() && (v.NotBefore.IsZero() || at.Before(v.NotBefore)) {
				v.NotBefore = at
			}
		}
	}
	var sorted []*bridge.FleetVM // pointers: the compiler makes one sort for all of them, and one for each other type
	for key, v := range byName {
		if len(v.Events) == 0 && time.Since(v.LastHeard) > forgetVM {
			f.forgetVM(f.vms[key].place, key)
			continue
		}
		slices.Sort(v.Events)
		sorted = append(sorted, v)
	}
	return sorted
}

// rank returns 0 for a VM whose event has started, 1 for one with another event, 2 for a silent one, and 3 for all
// others.
func rank(v *bridge.FleetVM) int {
	switch {
	case v.Started:
		return 0
	case len(v.Events) > 0:
		return 1
	case v.Silent:
		return 2
	}
	return 3
}

// Histories returns the events of the last 40 days that p selects, oldest first, and reports whether older ones were
// dropped.
func (r *Relay) Histories(p bridge.Period) (histories []bridge.EventHistory, more bool) {
	f := r.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.sortedEvents() {
		for _, h := range l.Histories(p) {
			h.Set, h.Group = l.observer.ScaleSet, l.observer.ResourceGroup
			h.Changes = slices.Clone(h.Changes)
			for i := range h.Changes {
				h.Changes[i].Deliveries = f.deliveries(l.group, h.Changes[i].ID)
			}
			histories = append(histories, h)
		}
	}
	sort.SliceStable(histories, func(i, j int) bool {
		return histories[i].Changes[0].Time.Before(histories[j].Changes[0].Time)
	})
	return histories, f.forgotten
}
