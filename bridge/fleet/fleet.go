package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// The bounds of a fleet.
const (
	ForgetVM = 24 * time.Hour // after its last message a VM is forgotten, if no open event names it

	maxVMs         = 200_000             // that are watched
	period         = 40 * 24 * time.Hour // how far back the stream is read
	maxEndedEvents = 2_000
	excusePeriod   = time.Hour // an open event explains no silence of VMs heard so long after its last change
	maxChanges     = 64        // of one event; its vanished is kept besides
	eventOverhead  = 1 << 10   // bytes that an event takes, and each of its changes, besides the data
	nameOverhead   = 80        // bytes that each VM which an event names takes besides
)

// Options are what a Fleet needs of its relay.
type Options struct {
	Log *slog.Logger
	// NewCloudEvent returns a CloudEvent about the relay.
	NewCloudEvent func(typ string, data map[string]any) (event.Event, error)
	// Publish puts one into the stream, for all sinks.
	Publish func(context.Context, event.Event) error
}

// A Source is what a fleet is read from, over one connection.
type Source struct {
	JS         jetstream.JetStream
	Stream     jetstream.Stream // with the CloudEvents
	Heartbeats string           // the stream with the heartbeats
	Bucket     streams.Bucket   // which remembers whose silence is announced
}

func (s Source) name() string { return s.Stream.CachedInfo().Config.Name }

// A Fleet is what the stream shows of VMs and their events. It is for people: no delivery depends on it, but for
// what a relay that is full gives up (LastSoon). It is safe for concurrent use.
type Fleet struct {
	Options

	mu            sync.Mutex
	watchErr      error // why silent VMs can't be noticed; nil if they can
	streamCreated time.Time
	lastRead      uint64                 // sequence number in the stream
	lastReadAt    time.Time              // when the stream stored it
	lastHeartbeat uint64                 // sequence number in the stream of heartbeats
	events        map[string]*azureEvent // by group
	ended         int                    // number of events that have vanished
	forgotten     bool                   // older events were dropped
	vms           map[string]*vm         // by vmKey
	sets          map[string]*set        // the same events and VMs, by cloudevent.Place.String
	surplus       map[string]*set        // those of them that have more VMs than Azure allows
	bytes         int                    // of all events
	full          time.Time              // when a VM that may fall silent was last left out, because there are too many
	silent        map[string]time.Time   // see silenceRecord.Silent
}

// An azureEvent is what the stream holds about one Azure event.
type azureEvent struct {
	bridge.HistoryBuilder
	group      string
	changes    int
	bytes      int        // see Fleet.addBytes
	names      int        // most VMs that a change has named
	seq        uint64     // of its last change
	ended      bool       // it has vanished, or its end was missed
	lastChange time.Time  // when the stream stored it
	heardHere  time.Time  // when this relay heard it
	latest     imds.Event // according to the last change
	from       cloudevent.Place
	observer   imds.Observer // of the last change: see observerAt
	stage      streams.Stage
	approval   bridge.ToldApproval
}

// deletes reports whether the event deletes its VMs.
func (l *azureEvent) deletes() bool {
	return l.latest.Type == "Preempt" || l.latest.Type == "Terminate"
}

// longest returns how long the event counts as open after its last change, if nobody tells its end.
func (l *azureEvent) longest() time.Duration {
	if l.deletes() {
		return ForgetVM
	}
	return period
}

// observerAt returns an observer of a place without a set or group that isn't the place's.
func observerAt(at cloudevent.Place, o imds.Observer) imds.Observer {
	if cloudevent.SubjectToken(o.ScaleSet) != at.Set {
		o.ScaleSet = ""
	}
	if cloudevent.SubjectToken(o.ResourceGroup) != at.Group {
		o.ResourceGroup = ""
	}
	return o
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

// New returns a Fleet of which nothing is known yet.
func New(o Options) *Fleet {
	return &Fleet{Options: o, events: map[string]*azureEvent{}, vms: map[string]*vm{}, sets: map[string]*set{},
		surplus: map[string]*set{}}
}

// Follow reads the stream until ctx is done.
func (f *Fleet) Follow(ctx context.Context, src Source) {
	created := src.Stream.CachedInfo().Created
	f.mu.Lock()
	if !f.streamCreated.Equal(created) {
		f.streamCreated, f.lastRead, f.lastReadAt = created, 0, time.Time{}
	}
	f.mu.Unlock()
	from := func() (jetstream.ConsumerConfig, error) {
		if err := f.forgetLost(ctx, src); err != nil {
			return jetstream.ConsumerConfig{}, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.lastRead == 0 {
			return streams.StartAt(time.Now().Add(-period)), nil
		}
		return streams.StartAfter(f.lastRead), nil
	}
	problem := func(err error) { f.Log.Debug("the stream can't be read for the status", "err", err) }
	streams.KeepFollowing(ctx, src.JS, src.name(), from, problem, f.add)
}

// followHeartbeats reads the last heartbeat of each VM, and all that come, until ctx is done.
func (f *Fleet) followHeartbeats(ctx context.Context, src Source) {
	from := func() (jetstream.ConsumerConfig, error) { return streams.LastOf(streams.HeartbeatsSubject), nil }
	problem := func(err error) { f.Log.Debug("heartbeats can't be read", "err", err) }
	streams.KeepFollowing(ctx, src.JS, src.Heartbeats, from, problem, f.addHeartbeat)
}

// forgetLost has the stream read again, and forgets the events, if its servers lost what was read last.
func (f *Fleet) forgetLost(ctx context.Context, src Source) error {
	asked, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	info, err := src.Stream.Info(asked)
	if err != nil {
		return err
	}
	f.mu.Lock()
	read, stored := f.lastRead, f.lastReadAt
	f.mu.Unlock()
	lost, err := streams.Lost(ctx, src.JS, info, read, stored)
	if lost {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.lastRead, f.lastReadAt, f.events, f.ended, f.bytes = 0, time.Time{}, map[string]*azureEvent{}, 0, 0
		for _, s := range f.sets {
			s.events, s.bytes, s.leftOut = map[string]*azureEvent{}, 0, time.Time{}
		}
	}
	return err
}

// add takes in a message of the stream.
func (f *Fleet) add(r streams.Raw) {
	m, err := r.Message()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastRead, f.lastReadAt = r.Seq, r.Stored
	if err != nil || m.OnlySink != "" {
		return
	}
	var data struct {
		Observer imds.Observer `json:"observer"`
	}
	_ = json.Unmarshal(m.CE.Data(), &data) // on an error the publisher stays unknown
	v := f.heardFrom(m.From, data.Observer, r.Stored)
	switch {
	case v == nil:
	case m.CE.Type() == cloudevent.BridgeStarted:
		v.lastAlive = later(v.lastAlive, r.Stored)
	case m.CE.Type() == cloudevent.BridgeStopping:
		v.lastStop = later(v.lastStop, r.Stored)
	}
	if m.EventID == "" {
		return
	}
	group := m.Group()
	l := f.events[group]
	bytes := len(m.CE.Data()) + eventOverhead
	if l == nil {
		l = &azureEvent{group: group, from: m.From}
		f.events[group], f.setNamed(m.From.String()).events[group] = l, l
		bytes += eventOverhead
	}
	if more := len(m.Change.Event.Resources) - l.names; more > 0 {
		l.names += more
		bytes += more * nameOverhead
	}
	defer f.addBytes(l, bytes)
	l.changes++
	if l.changes <= maxChanges || m.Change.Kind == imds.Vanished {
		ce := m.CE
		if at := m.Seen(); !at.Equal(ce.Time()) {
			ce = ce.Clone()
			ce.SetTime(at)
		}
		l.Add(ce, nil)
	}
	l.seq, l.lastChange, l.heardHere = r.Seq, r.Stored, time.Now()
	if data.Observer.Name != "" {
		l.observer = observerAt(l.from, data.Observer)
	}
	ofAzure := m.Change.Kind.OfAzure()
	if ofAzure && (l.stage.HasPassed(m) || l.stage.Outdated(m)) {
		return
	}
	l.approval.Note(m.CE)
	if !ofAzure {
		return
	}
	l.stage.Update(m)
	l.latest = m.Change.Event
	if over := m.Change.Kind == imds.Vanished; over != l.ended {
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
func (f *Fleet) addHeartbeat(r streams.Raw) {
	var b heartbeat
	m, err := r.Message()
	if err == nil && m.CE.Type() == cloudevent.BridgeHeartbeat {
		err = json.Unmarshal(m.CE.Data(), &b)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastHeartbeat = max(f.lastHeartbeat, r.Seq)
	v := f.heardFrom(m.From, b.Observer, r.Stored)
	if err != nil || v == nil {
		return
	}
	v.interval = b.interval()
	if b.Stopping {
		v.interval = 0 // the next heartbeat says whether more are to come
		v.lastStop = later(v.lastStop, r.Stored)
	} else {
		v.lastAlive = later(v.lastAlive, r.Stored)
	}
}

// heardFrom records that the bridge of a VM, which is the observer, published something from a place, and returns the
// VM. It returns nil if that isn't a VM, such as a relay, if the place isn't the VM's, or if there are too many. mu is
// held.
func (f *Fleet) heardFrom(from cloudevent.Place, o imds.Observer, at time.Time) *vm {
	if cloudevent.PlaceOfObserver(o).Set != from.Set {
		return nil
	}
	noVM := o.VMID == "" && o.ResourceID == "" && o.ResourceGroup == "" // such as a relay
	if o.Name == "" || len(o.Name) > maxVMName || noVM {
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
	o = observerAt(from, o)
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
func (f *Fleet) caughtUp(last, lastHeartbeat uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lastRead >= last && f.lastHeartbeat >= lastHeartbeat
}

// readTo returns the sequence number up to which the stream is taken in.
func (f *Fleet) readTo() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lastRead
}

// observed returns all VMs, with what explains their silence at this time.
func (f *Fleet) observed(now time.Time) []*observer {
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
func (f *Fleet) excuses() map[string]excuse {
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
func (f *Fleet) endMissed(now time.Time) {
	for _, l := range f.events {
		if !l.ended && now.Sub(later(l.lastChange, l.latest.NotBefore)) > l.longest() {
			l.ended = true
			f.ended++
		}
	}
}

// setSilent sets the VMs that were announced as silent.
func (f *Fleet) setSilent(silent map[string]time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = silent
}

// forgetEnded drops the oldest events that have ended of the sets that have most of them, until maxEndedEvents are left.
// mu is held.
func (f *Fleet) forgetEnded() {
	ofSets := map[string][]*azureEvent{}
	for _, l := range f.events {
		if l.ended {
			ofSets[l.from.String()] = append(ofSets[l.from.String()], l)
		}
	}
	for _, list := range ofSets {
		slices.SortFunc(list, func(a, b *azureEvent) int { return cmp.Compare(a.seq, b.seq) })
	}
	for f.ended > maxEndedEvents {
		most := ""
		for set, list := range ofSets {
			if len(list) > len(ofSets[most]) {
				most = set
			}
		}
		f.forgetEvent(ofSets[most][0])
		ofSets[most] = ofSets[most][1:]
	}
}
