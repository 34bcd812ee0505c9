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

// The bounds of what is known of a fleet.
const (
	fleetPeriod    = 40 * 24 * time.Hour // how far back the stream is read
	maxEndedEvents = 2_000               // events that are over
	maxVMs         = 200_000
	forgetVM       = 24 * time.Hour // after it was last heard of, when no open event names it
	maxChanges     = 64             // changes of one event that are kept
)

// A fleet is what the stream tells of VMs and their events. It is for people: no delivery depends on it.
type fleet struct {
	mu            sync.Mutex
	lastRead      uint64    // the last message
	lastHeartbeat uint64    // the last heartbeat
	streamCreated time.Time // when the stream was created
	events        map[string]*azureEvent
	vms           map[string]*vm               // by vmKey
	records       map[string]map[string]record // what sinks remember, by Azure event and sink
	ended         int                          // lives that are
	forgotten     bool                         // older lives were forgotten
	silent        map[string]time.Time         // the VMs that were told to be, as in silence
}

// A life is an Azure event.
type azureEvent struct {
	bridge.HistoryBuilder
	changes    int
	seq        uint64 // of its last change
	ended      bool
	lastChange time.Time  // when the stream took its last change
	latest     imds.Event // as it was said last
	observer   imds.Observer
	stage      stage
}

// A vm is a machine that a bridge runs on.
type vm struct {
	name, set, group    string
	lastHeard           time.Time
	backSince           time.Time     // when it was heard first after its last silence
	interval            time.Duration // its heartbeats come; 0 if it sends none
	lastAlive, lastStop time.Time     // when it last said that it is well, and that it stops
}

// vmKey tells VMs apart: two in different resource groups may have one name. An event names VMs of the group of its
// observers only.
func vmKey(o imds.Observer, name string) string {
	return strings.ToLower(o.SubscriptionID + "/" + o.ResourceGroup + "/" + name)
}

func newFleet() *fleet {
	return &fleet{events: map[string]*azureEvent{}, vms: map[string]*vm{}, records: map[string]map[string]record{}}
}

// followFleet reads the stream for what people see of it, until ctx is done.
func (r *Relay) followFleet(ctx context.Context, st *storage) {
	f := r.fleet
	created := st.stream.CachedInfo().Created
	f.mu.Lock()
	if !f.streamCreated.Equal(created) {
		f.streamCreated, f.lastRead = created, 0
	}
	f.mu.Unlock()
	for ctx.Err() == nil {
		f.mu.Lock()
		from := startAfter(f.lastRead)
		if f.lastRead == 0 {
			from = startAt(time.Now().Add(-fleetPeriod))
		}
		f.mu.Unlock()
		err := follow(ctx, st.js, r.Stream, from, func(m rawMessage) error {
			f.add(m)
			return nil
		})
		if ctx.Err() == nil {
			r.Log.Debug("the stream can't be read for the status", "err", err)
		}
		_ = sleep(ctx, readRetry)
	}
}

// followMarks reads who was told of what, until ctx is done.
func (r *Relay) followRecords(ctx context.Context, st *storage) {
	f, name := r.fleet, "KV_"+recordsBucket(r.Stream)
	prefix := "$KV." + recordsBucket(r.Stream) + ".mark."
	for ctx.Err() == nil {
		all := jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubject: prefix + ">"}
		err := follow(ctx, st.js, name, all, func(m rawMessage) error {
			sink, event, _ := strings.Cut(strings.TrimPrefix(m.subject, prefix), ".")
			var rec record
			if json.Unmarshal(m.data, &rec) == nil {
				f.setRecord(fromToken(sink), fromToken(event), rec)
			}
			return nil
		})
		if ctx.Err() == nil {
			r.Log.Debug("the marks can't be read for the history", "err", err)
		}
		_ = sleep(ctx, readRetry)
	}
}

// note takes in what a sink remembers of an Azure event. What is about bridges is not looked at.
func (f *fleet) setRecord(sink, event string, rec record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.records[event] == nil {
		if len(f.records) >= 4*maxEndedEvents && f.events[event] == nil {
			return
		}
		f.records[event] = map[string]record{}
	}
	f.records[event][sink] = rec
}

// deliveries are what became of a CloudEvent, by sink. mu is held.
func (f *fleet) deliveries(event, id string) []bridge.HistoryDelivery {
	list := []bridge.HistoryDelivery{}
	for sink, rec := range f.records[event] {
		m, settled := rec.Settled[id]
		t, trying := rec.Retries[id]
		switch {
		case settled && m.How == resultDead:
			list = append(list, bridge.HistoryDelivery{Sink: sink, State: m.How, At: m.At, Reason: m.Answer})
		case settled:
			list = append(list, bridge.HistoryDelivery{Sink: sink, State: m.How, At: m.At, Answer: m.Answer,
				Attempts: m.Attempts})
		case trying:
			list = append(list, bridge.HistoryDelivery{Sink: sink, State: statePending, Attempts: t.Attempts, Error: t.Error})
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Sink < list[j].Sink })
	return list
}

// add takes in a message.
func (f *fleet) add(r rawMessage) {
	m, err := r.message()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastRead = r.seq
	if err != nil || m.onlySink != "" {
		return
	}
	var data struct {
		Observer imds.Observer `json:"observer"`
	}
	_ = json.Unmarshal(m.ce.Data(), &data) // then nobody knows who said it
	v := f.heardFrom(data.Observer, r.stored)
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
	l := f.events[m.eventID]
	if l == nil {
		l = &azureEvent{}
		f.events[m.eventID] = l
	}
	if l.changes++; l.changes <= maxChanges || m.change.Kind == imds.Vanished {
		l.Add(m.ce, nil)
	}
	l.seq, l.lastChange = r.seq, r.stored
	if data.Observer.Name != "" {
		l.observer = data.Observer
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

// addBeat takes in a heartbeat.
func (f *fleet) addHeartbeat(r rawMessage) {
	var b heartbeat
	m, err := r.message()
	if err == nil && m.ce.Type() == cloudevent.BridgeHeartbeat {
		err = json.Unmarshal(m.ce.Data(), &b)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastHeartbeat = max(f.lastHeartbeat, r.seq)
	v := f.heardFrom(b.Observer, r.stored)
	if err != nil || v == nil {
		return
	}
	v.interval = b.interval()
	if b.Stopping {
		v.lastStop = later(v.lastStop, r.stored)
	} else {
		v.lastAlive = later(v.lastAlive, r.stored)
	}
}

// hear notes that a VM's bridge has published something, and gives the VM, nil if it is none. mu is held.
func (f *fleet) heardFrom(o imds.Observer, at time.Time) *vm {
	if o.Name == "" || o.VMID == "" && o.ResourceID == "" && o.ResourceGroup == "" { // such as a relay
		return nil
	}
	key := vmKey(o, o.Name)
	v := f.vms[key]
	if v == nil {
		if len(f.vms) >= maxVMs {
			return nil
		}
		v = &vm{name: o.Name, backSince: at}
		f.vms[key] = v
	}
	v.set, v.group = o.ScaleSet, o.ResourceGroup
	if last, silent := findSilent(f.silent, key); silent && !v.lastHeard.After(last) && at.After(last) {
		v.backSince = at
	}
	v.lastHeard = later(v.lastHeard, at)
	return v
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// hasRead says whether all that the streams held, of the last days, is taken in.
func (f *fleet) caughtUp(audit, beats *jetstream.StreamInfo) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := audit.State.Msgs == 0 || audit.TimeStamp.Sub(audit.State.LastTime) >= fleetPeriod
	return (old || f.lastRead >= audit.State.LastSeq) && (beats.State.Msgs == 0 || f.lastHeartbeat >= beats.State.LastSeq)
}

// observed are the VMs with what excuses their silence.
func (f *fleet) observed() []*observer {
	f.mu.Lock()
	defer f.mu.Unlock()
	type excuse struct{ open, gone, ended time.Time }
	excuses := map[string]excuse{}
	for _, l := range f.events {
		deletes := l.latest.Type == "Preempt" || l.latest.Type == "Terminate"
		begun := l.latest.Status == imds.StatusStarted
		if !deletes && !begun {
			continue
		}
		for _, name := range l.latest.Resources {
			key := vmKey(l.observer, name)
			e := excuses[key]
			switch {
			case !l.ended:
				e.open = later(e.open, l.lastChange)
			case deletes:
				e.gone = later(e.gone, l.lastChange)
			}
			if l.ended && begun {
				e.ended = later(e.ended, l.lastChange)
			}
			excuses[key] = e
		}
	}
	all := make([]*observer, 0, len(f.vms))
	for key, v := range f.vms {
		e := excuses[key]
		all = append(all, &observer{
			key: key, name: v.name, set: v.set, group: v.group, lastHeard: v.lastHeard, backSince: v.backSince, interval: v.interval,
			stopped: !v.lastStop.IsZero() && !v.lastAlive.After(v.lastStop), excused: !e.open.IsZero() || !e.gone.Before(v.lastHeard) && !e.gone.IsZero(),
			eventEnded: e.ended,
		})
	}
	return all
}

// setSilent notes which VMs were told to be silent.
func (f *fleet) setSilent(silent map[string]time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = silent
}

// forget drops the older half of the lives that are over. mu is held.
func (f *fleet) forgetEnded() {
	var ended []string
	for id, l := range f.events {
		if l.ended {
			ended = append(ended, id)
		}
	}
	slices.SortFunc(ended, func(a, b string) int { return cmp.Compare(f.events[a].seq, f.events[b].seq) })
	for _, id := range ended[:len(ended)-maxEndedEvents] {
		delete(f.events, id)
		delete(f.records, id)
		f.ended--
		f.forgotten = true
	}
}

// open are the events that are not over, the first announced first.
func (f *fleet) openEvents(now time.Time) []bridge.EventStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
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

// sorted are the lives by their last change. mu is held.
func (f *fleet) sortedEvents() []*azureEvent {
	all := make([]*azureEvent, 0, len(f.events))
	for _, l := range f.events {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *azureEvent) int { return cmp.Compare(a.seq, b.seq) })
	return all
}

// machines are the VMs: those with an event first, the nearest first, then those that are silent, and then those that
// were last heard longest ago.
func (f *fleet) listVMs() []bridge.FleetVM {
	f.mu.Lock()
	defer f.mu.Unlock()
	byName := map[string]*bridge.FleetVM{}
	for key, v := range f.vms {
		byName[key] = &bridge.FleetVM{Name: v.name, Set: v.set, Group: v.group, Heard: v.lastHeard,
			Stopped: !v.lastStop.IsZero() && !v.lastAlive.After(v.lastStop)}
		if last, silent := findSilent(f.silent, key); silent && !v.lastHeard.After(last) {
			byName[key].Silent = true
		}
	}
	for _, l := range f.events {
		if l.ended {
			continue
		}
		for _, name := range l.latest.Resources {
			key := vmKey(l.observer, name)
			v := byName[key]
			if v == nil {
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
	var sorted []*bridge.FleetVM // pointers, because code to sort is made for each type, and all of theirs share one
	for key, v := range byName {
		if len(v.Events) == 0 && time.Since(v.Heard) > forgetVM {
			delete(f.vms, key)
			continue
		}
		slices.Sort(v.Events)
		sorted = append(sorted, v)
	}
	slices.SortFunc(sorted, func(a, b *bridge.FleetVM) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)), a.NotBefore.Compare(b.NotBefore), a.Heard.Compare(b.Heard),
			strings.Compare(a.Name, b.Name))
	})
	all := make([]bridge.FleetVM, len(sorted))
	for i, v := range sorted {
		all[i] = *v
	}
	return all
}

// rank is 0 for a VM whose event has begun, 1 for one with an event, 2 for a silent one, 3 for the others.
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

// Histories are the events of the last days that p picks, the oldest first, and whether there are older ones.
func (r *Relay) Histories(p bridge.Period) (histories []bridge.EventHistory, more bool) {
	f := r.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.sortedEvents() {
		for _, h := range l.Histories(p) {
			h.Changes = slices.Clone(h.Changes)
			for i := range h.Changes {
				h.Changes[i].Deliveries = f.deliveries(h.Event, h.Changes[i].ID)
			}
			histories = append(histories, h)
		}
	}
	sort.SliceStable(histories, func(i, j int) bool {
		return histories[i].Changes[0].Time.Before(histories[j].Changes[0].Time)
	})
	return histories, f.forgotten
}
