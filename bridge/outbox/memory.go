package outbox

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"forewarn/bridge/delivery"
)

// memory is the state of the outbox. Only a change and the loading of the file alter it.
type memory struct {
	last     uint64 // sequence number
	stored   uint64 // number of the last change that is on disk
	given    uint64 // no CloudEvent with a higher sequence number was read from the storage, or given to it
	owner    string // vmId
	foreign  uint64 // CloudEvents up to this sequence number were another VM's
	values   map[string][]byte
	mutes    []*delivery.Mute // by Since
	newMutes map[string]bool  // ids of the mutes that were set since the start, not loaded from a file
	groups   map[string]*group
	latest   map[uint64]*group // open ones, by the sequence number of their latest change
	marks    map[string]Mark   // by id
	routes   map[string]*route
	isSetUp  bool // a bridge has told which routes are in its settings: see Batch.Routes
	joined   bool // readers are still to be shown what Join has added

	recent  []*entry // includes all deliveries that are not on disk
	pending tally
	dead    tally
}

// tally counts deliveries and the bytes of their CloudEvents.
type tally struct{ n, bytes int }

func (t *tally) add(n, bytes int) { t.n, t.bytes = t.n+n, t.bytes+bytes }

// A message is one CloudEvent. All its deliveries share it, and the group whose latest change it is.
type message struct {
	delivery.Message
	bytes   int      // of the CloudEvent
	body    []byte   // the CloudEvent, if memory keeps it: see staysInMemory
	settled []Result // of settled deliveries
}

// record returns an open group as its owner knows it.
func (g *group) record() Group { return Group{g.state, g.latest.Seq, g.latest.body} }

// stored returns an open group as the file stores it.
func (g *group) stored() storedGroup { return storedGroup{g.record(), g.latest.Message} }

// A route is the state of one destination.
type route struct {
	name       string
	fallback   string // the route that takes over what this one can't deliver; "" for none
	late       delivery.Late
	people     bool      // people get what it delivers
	configured bool      // it is in the settings, or was removed less than keepOrphans ago
	removed    time.Time // when it was removed from the settings; zero while it is in them
	pending    ordered
	dead       ordered
	transient  *entry                           // the pending one whose message is transient; nil if there is none
	unreported map[*entry]bool                  // of the dead
	mutes      atomic.Pointer[[]*delivery.Mute] // who lists deliveries reads it without the lock
	delivered  int                              // since the start
	accepted   time.Time                        // the last acceptance since the start
	reader     *queue
	cutShort   map[uint64]Result // by sequence number: of what was superseded while an attempt was under way
}

// newestCounts reports whether the route delivers only the newest of several changes of a group.
func (r *route) newestCounts() bool {
	return r.late == delivery.LateLatest || r.late == delivery.LateDrop
}

// A group is the state of one group.
type group struct {
	state    []byte
	latest   *message          // nil unless it is open
	ended    time.Time         // when it ended, or got its last mark or receipt after that; zero while it is open
	unseen   bool              // it got its first mark in this run, and was not open yet
	marks    []string          // their ids
	receipts map[string][]byte // by route: what its sink remembers
	pending  map[*entry]bool   // nil if there are none
}

func newMemory() memory {
	return memory{
		values: map[string][]byte{}, newMutes: map[string]bool{}, groups: map[string]*group{},
		latest: map[uint64]*group{}, marks: map[string]Mark{}, routes: map[string]*route{},
	}
}

// reset drops everything except the sequence number, the routes in the settings, their readers, and the mutes that were
// set since the start, which are meant for this VM.
func (m *memory) reset() {
	was := *m
	*m = newMemory()
	m.last, m.foreign, m.stored, m.given, m.isSetUp = was.last, was.last, was.stored, was.given, was.isSetUp
	for _, mute := range was.mutes {
		if was.newMutes[mute.ID] {
			m.newMutes[mute.ID] = true
			m.setMute(*mute)
		}
	}
	for name, r := range was.routes {
		for _, e := range r.pending {
			e.stale = true
			r.reader.touch(e.Seq)
		}
		for _, e := range r.dead {
			e.stale = true
		}
		now := m.route(name)
		now.fallback, now.late, now.people = r.fallback, r.late, r.people
		now.configured, now.removed = r.configured, r.removed
		now.reader = r.reader
		m.assignMutesOf(now)
	}
}

// route returns the route of that name. Like the functions below it creates what is missing.
func (m *memory) route(name string) *route {
	r := m.routes[name]
	if r == nil {
		r = &route{name: name, unreported: map[*entry]bool{}, cutShort: map[uint64]Result{}}
		m.routes[name] = r
		m.assignMutesOf(r)
	}
	return r
}

func (m *memory) group(id string) *group {
	g := m.groups[id]
	if g == nil {
		g = &group{receipts: map[string][]byte{}}
		m.groups[id] = g
	}
	return g
}

// message returns a CloudEvent that is pending or dead for some route, or the latest change of an open group; nil for
// any other: only the history has it.
func (m *memory) message(seq uint64) *message {
	g := m.latest[seq]
	if g != nil {
		return g.latest
	}
	for _, r := range m.routes {
		e := r.delivery(seq)
		if e != nil {
			return e.message
		}
	}
	return nil
}

// staysInMemory reports whether memory keeps a CloudEvent, so that no damage to the file can lose it: the latest change of
// an open group, which takes the place of others that are lost, and what belongs to no group, whose place nothing takes.
func (m *memory) staysInMemory(msg *message) bool { return msg.Group == "" || m.latest[msg.Seq] != nil }

// eachMessage calls f with every CloudEvent that message knows, perhaps more than once.
func (m *memory) eachMessage(f func(*message)) {
	for _, g := range m.latest {
		f(g.latest)
	}
	for _, r := range m.routes {
		for _, e := range r.pending {
			f(e.message)
		}
		for _, e := range r.dead {
			f(e.message)
		}
	}
}

// openGroups returns the open groups as their owner knows them.
func (m *memory) openGroups() map[string]Group {
	all := make(map[string]Group, len(m.latest))
	for id, g := range m.groups {
		if g.latest != nil {
			all[id] = g.record()
		}
	}
	return all
}

// openGroup opens a group, or replaces its state and its latest change.
func (m *memory) openGroup(g *group, to Group, latest *message) {
	m.setLatest(g, latest)
	g.state, latest.body = to.State, to.CloudEvent
}

// setLatest sets the latest change of a group; nil for one that isn't open.
func (m *memory) setLatest(g *group, to *message) {
	if g.latest != nil {
		delete(m.latest, g.latest.Seq)
		g.latest.body = nil
	}
	g.latest, g.unseen = to, false
	if to != nil {
		m.latest[to.Seq] = g
	}
}

// pendingEntry returns a pending delivery, nil if it isn't pending.
func (m *memory) pendingEntry(route string, seq uint64) *entry {
	r := m.routes[route]
	if r == nil {
		return nil
	}
	return r.pending.find(seq)
}

// pendingOf returns the pending deliveries about a group, of all routes, in order.
func (m *memory) pendingOf(group string) []Delivery {
	g := m.groups[group]
	if g == nil {
		return nil
	}
	return deliveries(slices.SortedFunc(maps.Keys(g.pending), bySeq))
}

// delivery returns the pending delivery or, if there is none, the dead letter; nil if there is neither.
func (r *route) delivery(seq uint64) *entry { return cmp.Or(r.pending.find(seq), r.dead.find(seq)) }

// letters returns all dead letters, the oldest first.
func (m *memory) letters() (all []*entry) {
	for _, r := range m.routes {
		all = append(all, r.dead...)
	}
	slices.SortFunc(all, oldestFirst)
	return all
}

// kept returns what a delivery is kept in, and counted by.
func (m *memory) kept(e *entry) (*ordered, *tally) {
	if e.State == StateDead {
		return &e.route.dead, &m.dead
	}
	return &e.route.pending, &m.pending
}

// put adds a delivery. One with its route and sequence number must have been released.
func (m *memory) put(e *entry) {
	list, count := m.kept(e)
	list.put(e)
	count.add(1, e.Bytes)
	if e.change > m.stored {
		m.recent = append(m.recent, e)
	}
	if e.State == StateDead {
		if e.Unreported {
			e.route.unreported[e] = true
		}
		return
	}
	if e.Transient {
		e.route.transient = e
	}
	g := m.group(e.Group)
	if g.pending == nil {
		g.pending = map[*entry]bool{}
	}
	g.pending[e] = true
}

// take removes a delivery.
func (m *memory) take(e *entry) {
	list, _ := m.kept(e)
	list.remove(e.Seq)
	m.release(e)
}

// release removes a delivery from all but its place among those of its route, which another takes.
func (m *memory) release(e *entry) {
	e.stale = true
	_, count := m.kept(e)
	count.add(-1, -e.Bytes)
	if e.State == StateDead {
		delete(e.route.unreported, e)
		return
	}
	if e.route.transient == e {
		e.route.transient = nil
	}
	g := m.groups[e.Group]
	delete(g.pending, e)
	if len(g.pending) == 0 {
		g.pending = nil
	}
	m.dropIfEmpty(e.Group)
}

// isOver reports whether a group is over: it isn't open, and nothing says that it is still to be opened. What belongs to no
// group is never over.
func (m *memory) isOver(id string) bool {
	g := m.groups[id]
	return id != "" && (g == nil || g.latest == nil && !g.unseen)
}

// dropIfEmpty deletes the group if it has no content.
func (m *memory) dropIfEmpty(id string) {
	g := m.groups[id]
	if g != nil && g.latest == nil && g.ended.IsZero() && len(g.marks)+len(g.receipts)+len(g.pending) == 0 {
		delete(m.groups, id)
	}
}

// unstored returns the deliveries, pending or dead, that are not on disk, the oldest first.
func (m *memory) unstored(dead bool) (list []*entry) {
	m.recent = slices.DeleteFunc(m.recent, func(e *entry) bool { return e.stale || e.change <= m.stored })
	for _, e := range m.recent {
		if (e.State == StateDead) == dead {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, oldestFirst)
	return list
}

// markOf returns the mark of an id of the group; the zero Mark if there is none.
func (m *memory) markOf(group, id string) Mark {
	mark := m.marks[id]
	if mark.Group != group {
		return Mark{}
	}
	return mark
}

// setMark adds a mark. Of two of one id, the larger count stays.
func (m *memory) setMark(id string, to Mark) {
	g := m.group(to.Group)
	was, known := m.marks[id]
	if !known {
		g.marks = append(g.marks, id)
	}
	to.Times = max(to.Times, was.Times)
	to.At = to.At.UTC()
	m.marks[id] = to
	g.unseen = g.unseen || g.latest == nil && g.ended.IsZero()
	g.extendEnd(to.At)
}

// extendEnd makes the age of the marks and receipts of a group that isn't open count from since, if that is later. The
// group may never have been open.
func (g *group) extendEnd(since time.Time) {
	if g.latest == nil {
		g.ended = later(g.ended, since)
	}
}

// delivery returns a delivery that is pending or dead. Of a settled one it returns the state, and whose fallback it was, if
// message knows its CloudEvent. Any other has no state.
func (m *memory) delivery(route string, seq uint64) Delivery {
	r := m.routes[route]
	if r != nil {
		e := r.delivery(seq)
		if e != nil {
			return e.record()
		}
	}
	d := Delivery{Route: route}
	msg := m.message(seq)
	if msg != nil {
		for _, s := range msg.settled {
			if s.Route == route {
				d.State = s.State
				if s.Fallback != "" {
					d.FallbackFor = &delivery.FallbackFor{Sink: s.Fallback}
				}
			}
		}
	}
	return d
}

// toldNewer reports whether a route has accepted a message about the entry's group that is newer than the entry, as far as
// messages that are still pending somewhere, or the latest change, tell.
func (m *memory) toldNewer(route string, e *entry) bool {
	g := m.groups[e.Group]
	if g == nil {
		return false
	}
	newer := func(msg *message) bool {
		return msg.Seq > e.Seq && slices.ContainsFunc(msg.settled, func(r Result) bool {
			return r.Route == route && r.State == StateAccepted
		})
	}
	for other := range g.pending {
		if newer(other.message) {
			return true
		}
	}
	return g.latest != nil && newer(g.latest)
}

// setResult records the result of a settled delivery.
func (m *message) setResult(r Result) {
	for n, s := range m.settled {
		if s.Route == r.Route {
			m.settled[n] = r
			return
		}
	}
	m.settled = append(m.settled, r)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
