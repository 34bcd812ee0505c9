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
	fleetDays  = 40 * 24 * time.Hour // how far back the stream is read
	maxLives   = 2_000               // events that are over
	maxVMs     = 200_000
	forgetVM   = 24 * time.Hour // after it was last heard of, when no open event names it
	maxObserve = 64             // changes of one event that are kept
)

// A fleet is what the stream tells of VMs and their events. It is for people: no delivery depends on it.
type fleet struct {
	mu     sync.Mutex
	read   uint64    // the last message
	beats  uint64    // the last heartbeat
	of     time.Time // when the stream was created
	lives  map[string]*life
	vms    map[string]*vm               // by vmKey
	told   map[string]map[string]record // what sinks remember, by Azure event and sink
	over   int                          // lives that are
	more   bool                         // older lives were forgotten
	silent map[string]time.Time         // the VMs that were told to be, as in silence
}

// A life is an Azure event.
type life struct {
	bridge.HistoryBuilder
	changes int
	seq     uint64 // of its last change
	over    bool
	changed time.Time  // when the stream took its last change
	event   imds.Event // as it was said last
	seen    imds.Observer
	stage   stage
}

// A vm is a machine that a bridge runs on.
type vm struct {
	name, set, group string
	heard            time.Time
	back             time.Time     // when it was heard first after its last silence
	every            time.Duration // its heartbeats come; 0 if it sends none
	beat, left       time.Time     // when it last said that it is well, and that it stops
}

// vmKey tells VMs apart: two in different resource groups may have one name. An event names VMs of the group of its
// observers only.
func vmKey(o imds.Observer, name string) string {
	return strings.ToLower(o.SubscriptionID + "/" + o.ResourceGroup + "/" + name)
}

func newFleet() *fleet {
	return &fleet{lives: map[string]*life{}, vms: map[string]*vm{}, told: map[string]map[string]record{}}
}

// followFleet reads the stream for what people see of it, until ctx is done.
func (r *Relay) followFleet(ctx context.Context, p places) {
	f := r.fleet
	created := p.stream.CachedInfo().Created
	f.mu.Lock()
	if !f.of.Equal(created) {
		f.of, f.read = created, 0
	}
	f.mu.Unlock()
	for ctx.Err() == nil {
		f.mu.Lock()
		from := startAfter(f.read)
		if f.read == 0 {
			from = startAt(time.Now().Add(-fleetDays))
		}
		f.mu.Unlock()
		err := follow(ctx, p.js, r.Stream, from, func(m rawMessage) error {
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
func (r *Relay) followRecords(ctx context.Context, p places) {
	f, name := r.fleet, "KV_"+recordsBucket(r.Stream)
	prefix := "$KV." + recordsBucket(r.Stream) + ".mark."
	for ctx.Err() == nil {
		all := jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubject: prefix + ">"}
		err := follow(ctx, p.js, name, all, func(m rawMessage) error {
			sink, event, _ := strings.Cut(strings.TrimPrefix(m.subject, prefix), ".")
			var rec record
			if json.Unmarshal(m.data, &rec) == nil {
				f.note(fromToken(sink), fromToken(event), rec)
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
func (f *fleet) note(sink, event string, rec record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told[event] == nil {
		if len(f.told) >= 4*maxLives && f.lives[event] == nil {
			return
		}
		f.told[event] = map[string]record{}
	}
	f.told[event][sink] = rec
}

// deliveries are what became of a CloudEvent, by sink. mu is held.
func (f *fleet) deliveries(event, id string) []bridge.HistoryDelivery {
	list := []bridge.HistoryDelivery{}
	for sink, rec := range f.told[event] {
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
	f.read = r.seq
	if err != nil || m.onlySink != "" {
		return
	}
	var data struct {
		Observer imds.Observer `json:"observer"`
	}
	_ = json.Unmarshal(m.ce.Data(), &data) // then nobody knows who said it
	v := f.hear(data.Observer, r.stored)
	switch {
	case v == nil:
	case m.ce.Type() == cloudevent.BridgeStarted:
		v.beat = later(v.beat, r.stored)
	case m.ce.Type() == cloudevent.BridgeStopping:
		v.left = later(v.left, r.stored)
	}
	if m.eventID == "" {
		return
	}
	l := f.lives[m.eventID]
	if l == nil {
		l = &life{}
		f.lives[m.eventID] = l
	}
	if l.changes++; l.changes <= maxObserve || m.change.Kind == imds.Vanished {
		l.Add(m.ce, nil)
	}
	l.seq, l.changed = r.seq, r.stored
	if data.Observer.Name != "" {
		l.seen = data.Observer
	}
	if !m.change.Kind.OfAzure() || l.stage.outdated(m) {
		return
	}
	l.stage.update(m)
	l.event = m.change.Event
	if over := m.change.Kind == imds.Vanished; over != l.over {
		l.over = over
		if over {
			f.over++
		} else {
			f.over--
		}
	}
	if f.over > 2*maxLives {
		f.forget()
	}
}

// addBeat takes in a heartbeat.
func (f *fleet) addBeat(r rawMessage) {
	var b beat
	m, err := r.message()
	if err == nil && m.ce.Type() == cloudevent.BridgeHeartbeat {
		err = json.Unmarshal(m.ce.Data(), &b)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beats = max(f.beats, r.seq)
	v := f.hear(b.Observer, r.stored)
	if err != nil || v == nil {
		return
	}
	v.every = b.every()
	if b.Stopping {
		v.left = later(v.left, r.stored)
	} else {
		v.beat = later(v.beat, r.stored)
	}
}

// hear notes that a VM's bridge has published something, and gives the VM, nil if it is none. mu is held.
func (f *fleet) hear(o imds.Observer, at time.Time) *vm {
	if o.Name == "" || o.VMID == "" && o.ResourceID == "" && o.ResourceGroup == "" { // such as a relay
		return nil
	}
	key := vmKey(o, o.Name)
	v := f.vms[key]
	if v == nil {
		if len(f.vms) >= maxVMs {
			return nil
		}
		v = &vm{name: o.Name, back: at}
		f.vms[key] = v
	}
	v.set, v.group = o.ScaleSet, o.ResourceGroup
	if last, silent := lastHeard(f.silent, key); silent && !v.heard.After(last) && at.After(last) {
		v.back = at
	}
	v.heard = later(v.heard, at)
	return v
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// hasRead says whether all that the streams held, of the last days, is taken in.
func (f *fleet) hasRead(audit, beats *jetstream.StreamInfo) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := audit.State.Msgs == 0 || audit.TimeStamp.Sub(audit.State.LastTime) >= fleetDays
	return (old || f.read >= audit.State.LastSeq) && (beats.State.Msgs == 0 || f.beats >= beats.State.LastSeq)
}

// observed are the VMs with what excuses their silence.
func (f *fleet) observed() []*observer {
	f.mu.Lock()
	defer f.mu.Unlock()
	type excuse struct{ open, gone, ended time.Time }
	excuses := map[string]excuse{}
	for _, l := range f.lives {
		deletes := l.event.Type == "Preempt" || l.event.Type == "Terminate"
		begun := l.event.Status == imds.StatusStarted
		if !deletes && !begun {
			continue
		}
		for _, name := range l.event.Resources {
			key := vmKey(l.seen, name)
			e := excuses[key]
			switch {
			case !l.over:
				e.open = later(e.open, l.changed)
			case deletes:
				e.gone = later(e.gone, l.changed)
			}
			if l.over && begun {
				e.ended = later(e.ended, l.changed)
			}
			excuses[key] = e
		}
	}
	all := make([]*observer, 0, len(f.vms))
	for key, v := range f.vms {
		e := excuses[key]
		all = append(all, &observer{
			key: key, name: v.name, set: v.set, group: v.group, heard: v.heard, back: v.back, every: v.every,
			left: !v.left.IsZero() && !v.beat.After(v.left), excused: !e.open.IsZero() || !e.gone.Before(v.heard) && !e.gone.IsZero(),
			ended: e.ended,
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
func (f *fleet) forget() {
	var ended []string
	for id, l := range f.lives {
		if l.over {
			ended = append(ended, id)
		}
	}
	slices.SortFunc(ended, func(a, b string) int { return cmp.Compare(f.lives[a].seq, f.lives[b].seq) })
	for _, id := range ended[:len(ended)-maxLives] {
		delete(f.lives, id)
		delete(f.told, id)
		f.over--
		f.more = true
	}
}

// open are the events that are not over, the first announced first.
func (f *fleet) open(now time.Time) []bridge.EventStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []bridge.EventStatus{}
	for _, l := range f.sorted() {
		if l.over || l.event.ID == "" {
			continue
		}
		e := l.event
		all = append(all, bridge.EventStatus{
			Event: e.Raw, Known: e, NotBefore: e.NotBefore, Set: l.seen.ScaleSet, Group: l.seen.ResourceGroup,
			SecondsLeft: max(0, e.NotBefore.Sub(now).Round(time.Second).Seconds()),
		})
	}
	return all
}

// sorted are the lives by their last change. mu is held.
func (f *fleet) sorted() []*life {
	all := make([]*life, 0, len(f.lives))
	for _, l := range f.lives {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *life) int { return cmp.Compare(a.seq, b.seq) })
	return all
}

// machines are the VMs: those with an event first, the nearest first, then those that are silent, and then those that
// were last heard longest ago.
func (f *fleet) machines() []bridge.FleetVM {
	f.mu.Lock()
	defer f.mu.Unlock()
	byName := map[string]*bridge.FleetVM{}
	for key, v := range f.vms {
		byName[key] = &bridge.FleetVM{Name: v.name, Set: v.set, Group: v.group, Heard: v.heard,
			Stopped: !v.left.IsZero() && !v.beat.After(v.left)}
		if last, silent := lastHeard(f.silent, key); silent && !v.heard.After(last) {
			byName[key].Silent = true
		}
	}
	for _, l := range f.lives {
		if l.over {
			continue
		}
		for _, name := range l.event.Resources {
			key := vmKey(l.seen, name)
			v := byName[key]
			if v == nil {
				v = &bridge.FleetVM{Name: name, Set: l.seen.ScaleSet, Group: l.seen.ResourceGroup}
				byName[key] = v
			}
			v.Events = append(v.Events, l.event.ID)
			v.Started = v.Started || l.event.Status == imds.StatusStarted
			if at := l.event.NotBefore; !at.IsZero() && (v.NotBefore.IsZero() || at.Before(v.NotBefore)) {
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
	for _, l := range f.sorted() {
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
	return histories, f.more
}
