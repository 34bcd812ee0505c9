package delivery

import (
	"bytes"
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// UrgentNotice is the notice below which an event is urgent.
const UrgentNotice = 15 * time.Minute

// The rules of the schedule.
const (
	urgentEvery   = 5 * time.Second  // shortest time between attempts ahead of the schedule
	blockedAfter  = 3                // blocked answers …
	blockedOver   = 30 * time.Second // … over at least this
	probeEvery    = time.Minute      // while blocked
	downAfter     = 8                // lanes that failed, and nothing accepted
	maxRetryAfter = time.Hour
)

// waits are the waits after the first, second, … failed attempt; the last holds for all further ones.
var waits = []time.Duration{
	1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 30 * time.Second,
	60 * time.Second, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute,
}

// backoff returns the wait after so many failures, with full jitter: a random part of the wait.
func backoff(failures int, random float64) time.Duration {
	return time.Duration(random * float64(waits[min(failures, len(waits))-1]))
}

// A schedule decides which pending deliveries of a route are attempted, and when. Callers pass it the time, and it
// calls neither a sink nor a queue. place puts each lane into the heaps, so that no method needs to look at every item.
type schedule struct {
	destination
	terms          Terms
	random         func() float64     // for jitter
	lanes          map[string]*lane   // by laneKey
	index          map[uint64]*lane   // by the Seq of its items
	waves          map[wave]arrivals  // with Terms.Digest
	partialBatches map[uint64][]*lane // by Item.Batch: the lanes of a batch that made progress

	arriving  laneHeap // lanes with an item whose Due will come, the nearest first
	waiting   laneHeap // lanes that wait before their next attempt, the shortest first
	ready     laneHeap // lanes that may be attempted, the most important first
	urgent    laneHeap // lanes that may be attempted though the route waits, the most important first
	deadlines laneHeap // lanes in which an item will be late, or fall back, the nearest first

	underWay      map[*lane]time.Time // when each attempt under way began, by the first of its lanes
	retryOnAccept map[*lane]bool      // lanes that failed, and are tried again when the route accepts
	failing       int                 // number of lanes whose last attempt failed
	standby       bool                // the route's previous worker has not ended
	stopping      bool                // only first attempts are made from now on
	lastUrgent    time.Time           // the last attempt ahead of the schedule
	oneByOne      int                 // deliveries to make one by one, because a batch of them was rejected or can't be read
}

// A destination is what its answers tell about the destination of a route.
type destination struct {
	// Keys of lanes that failed since the last acceptance, also of those with nothing pending now; at most downAfter.
	failed        map[string]bool
	retryAfterEnd time.Time // the latest end of a Retry-After
	refusals      int       // blocked answers since the last acceptance
	refused       time.Time // the first of them
	blocked       bool
	probe         time.Time // the next one, while blocked or down
	failedProbes  int       // probes that failed while down
}

// accepted notes an acceptance. A Retry-After may have come since that attempt began.
func (d *destination) accepted() {
	d.refusals, d.blocked, d.failedProbes = 0, false, 0
	clear(d.failed)
}

// refuse notes a blocked answer, and reports whether the route becomes blocked by it.
func (d *destination) refuse(now time.Time) (became bool) {
	if d.refusals++; d.refusals == 1 {
		d.refused = now
	}
	if d.blocked || d.refusals < blockedAfter || now.Sub(d.refused) < blockedOver {
		return false
	}
	d.blocked, d.probe = true, now.Add(probeEvery)
	return true
}

// down reports whether deliveries about so many events failed, and none was accepted, that the destination is to blame
// and not an event. Without this rule each event would keep its own times, and a destination that comes back would get
// thousands of attempts a second.
func (d *destination) down() bool { return len(d.failed) >= downAfter }

// probing reports whether the route is only probed: one attempt at a time, at the time probe, with the lanes in turn.
func (d *destination) probing() bool { return d.blocked || d.down() }

// An attempt is one call of Deliver: a batch, and with LateLatest the older items that it replaces.
type attempt struct {
	batch      []*Item
	superseded []*Item
	lanes      []*lane // of all these items
	began      time.Time
	own        bool // its failure is not that of the destination, but of its lanes
}

// all returns the items of the attempt: those of its batch and the older ones that they replace.
func (a attempt) all() []*Item { return slices.Concat(a.superseded, a.batch) }

func newSchedule(t Terms) *schedule {
	s := &schedule{
		destination: destination{failed: map[string]bool{}}, terms: t, random: rand.Float64,
		lanes: map[string]*lane{}, index: map[uint64]*lane{}, waves: map[wave]arrivals{},
		partialBatches: map[uint64][]*lane{}, retryOnAccept: map[*lane]bool{}, underWay: map[*lane]time.Time{},
	}
	matters := func(a, b *lane) bool { return before(a, b) < 0 }
	s.arriving = laneHeap{
		less: func(a, b *lane) bool { return a.arrival().Before(b.arrival()) },
		slot: func(l *lane) *int32 { return &l.inArriving },
	}
	s.waiting = laneHeap{
		less: func(a, b *lane) bool { return a.waitEnd.Before(b.waitEnd) },
		slot: func(l *lane) *int32 { return &l.inWaiting },
	}
	s.ready = laneHeap{less: matters, slot: func(l *lane) *int32 { return &l.inReady }}
	s.urgent = laneHeap{less: matters, slot: func(l *lane) *int32 { return &l.inUrgent }}
	s.deadlines = laneHeap{
		less: func(a, b *lane) bool { return a.deadline.Before(b.deadline) },
		slot: func(l *lane) *int32 { return &l.inDeadlines },
	}
	return s
}

// put adds an item, or replaces the one with its number.
func (s *schedule) put(i *Item, now time.Time) {
	key := laneKey(i)
	l, from := s.lanes[key], s.index[i.Seq]
	if l == nil {
		l = &lane{key: key, group: i.Group, next: now}
		s.lanes[key] = l
	}
	if from != nil && from != l {
		s.move(i.Seq, from, l, now)
	}
	if was := l.put(i, now); was != nil {
		s.leaveBatch(was, l)
	}
	s.index[i.Seq] = l
	if i.Batch != 0 && !slices.Contains(s.partialBatches[i.Batch], l) {
		s.partialBatches[i.Batch] = append(s.partialBatches[i.Batch], l)
	}
	s.place(l, now)
}

// move takes an item, and the wait after its failure, from its lane to another.
func (s *schedule) move(seq uint64, from, to *lane, now time.Time) {
	s.removeItem(from, seq)
	if to.failures == 0 && from.failures > 0 {
		s.failing++
	}
	to.failures, to.next = max(to.failures, from.failures), later(to.next, from.next)
	to.tried, to.alone = later(to.tried, from.tried), true
	s.resetFailures(from)
	from.next, from.alone = now, false
	s.place(from, now)
}

// remove removes an item that is no longer pending.
func (s *schedule) remove(seq uint64, now time.Time) {
	if l := s.index[seq]; l != nil {
		s.removeItem(l, seq)
		s.place(l, now)
	}
}

// removeItem removes an item from its lane. The caller then calls place.
func (s *schedule) removeItem(l *lane, seq uint64) {
	if i := l.remove(seq); i != nil {
		s.leaveBatch(i, l)
		delete(s.index, seq)
	}
}

// leaveBatch removes the lane from the batch of an item that it no longer holds, unless it holds another item of that
// batch.
func (s *schedule) leaveBatch(i *Item, l *lane) {
	if i.Batch == 0 || slices.ContainsFunc(l.items, func(other *Item) bool { return other.Batch == i.Batch }) {
		return
	}
	rest := slices.DeleteFunc(s.partialBatches[i.Batch], func(part *lane) bool { return part == l })
	if len(rest) > 0 {
		s.partialBatches[i.Batch] = rest
	} else {
		delete(s.partialBatches, i.Batch)
	}
}

// place puts the lane into the heaps by its items and times. Call it whenever either changes.
func (s *schedule) place(l *lane, now time.Time) {
	open := l.mutedFrom(s.terms.Late)
	l.arrived = min(l.arrived, open)
	for l.arrived < open && !l.arrival().After(now) {
		s.noteDue(l, l.items[l.arrived], now)
		l.arrived++
	}
	s.arriving.update(l, l.arrived < open)
	if l.arrived == 0 && l.muted > 0 && !l.busy { // backoff starts again when the mute ends
		s.resetFailures(l)
		l.next, l.alone = now, false
	}

	idle := s.idle(l)
	inDigest := s.inDigest(l, now)
	ready := idle && !inDigest && !l.next.After(now)
	l.waitEnd = l.next
	if inDigest {
		l.waitEnd = l.digestAt
	}
	s.waiting.update(l, idle && !ready)
	s.ready.update(l, ready)
	s.urgent.update(l, idle && !inDigest && l.urgent)

	l.deadline = s.deadline(l)
	s.deadlines.update(l, !l.deadline.IsZero())
	if len(l.items) == 0 && !l.busy {
		s.resetFailures(l)
		delete(s.lanes, l.key)
	}
}

// idle reports whether no attempt of the lane is under way and it has an item to attempt, now or after its wait.
func (s *schedule) idle(l *lane) bool {
	return l.arrived > 0 && !l.busy && !(s.stopping && l.failures > 0)
}

// inDigest reports whether the lane waits for a digest. A stop waits for none.
func (s *schedule) inDigest(l *lane, now time.Time) bool { return !s.stopping && l.digestAt.After(now) }

// noteDue notes that an item became due.
func (s *schedule) noteDue(l *lane, i *Item, now time.Time) {
	if l.digestAt = (time.Time{}); !i.waited() {
		l.digestAt = s.countArrival(i, now)
	}
	l.urgent = l.urgent || i.urgent(now)
}

// advance places the lanes whose time has come.
func (s *schedule) advance(now time.Time) {
	for l := s.arriving.top(); l != nil && !l.arrival().After(now); l = s.arriving.top() {
		s.place(l, now)
	}
	for l := s.waiting.top(); l != nil && !l.waitEnd.After(now); l = s.waiting.top() {
		s.place(l, now)
	}
}

// attempt begins the next attempt. If none is to be made now, its batch is empty.
func (s *schedule) attempt(now time.Time) (a attempt) {
	s.advance(now)
	first := s.first(now)
	if first == nil {
		if len(s.ready.lanes)+len(s.waiting.lanes)+len(s.underWay) == 0 {
			s.oneByOne = 0 // those that are left had no turn: they were dropped, or are muted
		}
		return attempt{}
	}
	switch {
	case s.nextAttempt(first).After(now): // it is urgent
		s.lastUrgent = now
	case s.blocked:
		s.probe = now.Add(probeEvery)
	}
	a = s.pick(first, now)
	s.underWay[a.lanes[0]] = now
	return a
}

// full reports whether no further attempt may begin until one ends.
func (s *schedule) full() bool {
	return s.standby || len(s.underWay) >= max(1, s.terms.Parallel) || s.probing() && len(s.underWay) > 0
}

// first returns the lane to attempt next, nil if none may be attempted now.
func (s *schedule) first(now time.Time) *lane {
	if s.full() || s.retryAfterEnd.After(now) || s.stopping && s.blocked {
		return nil
	}
	urgent, ready := s.urgent.top(), s.ready.top()
	if now.Before(s.lastUrgent.Add(urgentEvery)) {
		urgent = nil
	}
	switch {
	case urgent != nil && (s.probing() || ready == nil || ready.hadItsTurn(urgent) || before(urgent, ready) < 0):
		return urgent
	case !s.probing():
		return ready
	case s.probe.After(now):
		return nil
	}
	return s.probeLane(now)
}

// probeLane returns the lane to probe next. It looks at every lane, but runs only once per probe.
func (s *schedule) probeLane(now time.Time) (next *lane) {
	for _, lanes := range [][]*lane{s.ready.lanes, s.waiting.lanes} {
		for _, l := range lanes {
			if !s.inDigest(l, now) && (next == nil || byProbeOrder(l, next) < 0) {
				next = l
			}
		}
	}
	return next
}

// firstDigest returns when the first of the digests is complete that lanes wait for; zero for none.
func (s *schedule) firstDigest(now time.Time) (at time.Time) {
	for _, g := range s.waves {
		if g.digestAt.After(now) && !s.stopping {
			at = earlier(at, g.digestAt)
		}
	}
	return at
}

// nextAttempt returns the time of the lane's next attempt if it is not urgent.
func (s *schedule) nextAttempt(l *lane) time.Time {
	if s.probing() {
		return s.probe
	}
	return l.next
}

// wake returns when to call attempt again, if nothing changes before then, and when an item will be late or fall back;
// zero for never.
func (s *schedule) wake(now time.Time) (at, deadline time.Time) {
	if !s.full() && !(s.stopping && s.blocked) {
		switch {
		case s.probing() && len(s.ready.lanes)+len(s.waiting.lanes) > 0:
			if at = s.probe; !later(at, s.retryAfterEnd).After(now) { // all lanes wait for a digest
				at = later(at, s.firstDigest(now))
			}
		case len(s.ready.lanes) > 0: // they wait for a Retry-After
			at = s.retryAfterEnd
		case len(s.waiting.lanes) > 0:
			at = s.waiting.top().waitEnd
		}
		if len(s.urgent.lanes) > 0 {
			at = earlier(at, s.lastUrgent.Add(urgentEvery))
		}
		if !at.IsZero() {
			at = later(at, s.retryAfterEnd)
		}
		if s.probing() {
			at = earlier(at, s.firstDigest(now)) // it may be urgent
		}
	}
	if l := s.arriving.top(); l != nil {
		at = earlier(at, l.arrival())
	}
	if l := s.deadlines.top(); l != nil {
		deadline = l.deadline
	}
	return at, deadline
}

// pick makes an attempt that begins with the lane. Its lanes are busy from then on.
func (s *schedule) pick(first *lane, now time.Time) attempt {
	a := attempt{began: now}
	part := first.partialBatch(s.terms.Late)
	limit := max(1, s.terms.Batch)
	switch {
	case part != 0:
		if s.terms.Digest.Above > 0 {
			limit = math.MaxInt // otherwise the batch may be one that a reload left to another kind of sink
		}
		for _, l := range slices.Concat([]*lane{first}, s.partialBatches[part]) {
			if !l.busy && len(a.batch) < limit {
				s.join(&a, l, part, limit-len(a.batch), now)
			}
		}
		s.sort(a.batch) // as they were attempted before
	case s.terms.Late == LateLatest && (first.group != "" || s.inSummary(first)):
		if limit = math.MaxInt; s.apart() {
			limit = 1
		}
		for _, l := range s.digestLanes(first) {
			s.join(&a, l, 0, limit, now)
		}
		s.sort(a.batch)
	default:
		if s.apart() {
			limit = 1
		}
		for l := first; l != nil && len(a.batch) < limit; l = s.ready.top() {
			if l.partialBatch(s.terms.Late) != 0 || s.terms.Late == LateLatest && l.group != "" {
				break
			}
			s.join(&a, l, 0, limit-len(a.batch), now)
		}
		s.sort(a.batch)
	}
	return a
}

// apart reports whether deliveries are attempted one by one: to probe, or because a batch was rejected or can't be read.
func (s *schedule) apart() bool { return s.oneByOne > 0 || s.blocked }

// sort orders the items of a batch: what matters most comes first where only the latest changes are delivered, else the
// oldest.
func (s *schedule) sort(batch []*Item) {
	slices.SortFunc(batch, func(a, b *Item) int {
		if s.terms.Late == LateLatest {
			if d := a.compare(b); d != 0 {
				return d
			}
		}
		return cmp.Compare(a.Seq, b.Seq)
	})
}

// join adds the lane's share of a batch to the attempt, at most limit items. It leaves out those whose progress is not
// that of the others: they were repeated apart from them, before a reload.
func (s *schedule) join(a *attempt, l *lane, part uint64, limit int, now time.Time) {
	batch, superseded := l.split(s.terms.Late, part)
	joined := len(a.batch)
	for _, i := range batch[:min(limit, len(batch))] {
		if len(a.batch) > 0 && !bytes.Equal(i.Progress, a.batch[0].Progress) {
			break
		}
		a.batch = append(a.batch, i)
	}
	if len(a.batch) == joined {
		return
	}
	a.superseded = append(a.superseded, superseded...)
	a.lanes = append(a.lanes, l)
	// Items that arrive later are not in this attempt.
	l.busy, l.urgent, l.tried, l.digestAt = true, false, now, time.Time{}
	s.place(l, now)
}

// end ends the attempt, removes the items of gone, and places its lanes.
func (s *schedule) end(a attempt, gone []*Item, now time.Time) {
	delete(s.underWay, a.lanes[0])
	s.oneByOne = max(0, s.oneByOne-1)
	for _, l := range a.lanes { // a lane without items can't be compared in that heap
		s.arriving.update(l, false)
	}
	for _, i := range gone {
		if l := s.index[i.Seq]; l != nil {
			s.removeItem(l, i.Seq)
		}
	}
	for _, l := range a.lanes {
		l.busy = false
		s.place(l, now)
	}
}

// accept notes that the destination accepted the batch, so the backoff of the route starts again. Lanes that failed are
// tried again; if one fails again after that, only that lane waits.
func (s *schedule) accept(a attempt, now time.Time) {
	s.accepted()
	for _, l := range a.lanes {
		s.resetFailures(l)
		l.next, l.alone = now, false
	}
	s.end(a, a.all(), now)
	for l := range s.retryOnAccept {
		delete(s.retryOnAccept, l)
		l.next, l.alone = now, true
		s.place(l, now)
	}
}

// discard ends an attempt whose items become dead letters. The state of the route stays as it is.
func (s *schedule) discard(a attempt, gone []*Item, now time.Time) {
	for _, l := range a.lanes {
		s.resetFailures(l)
	}
	s.end(a, gone, now)
}

// planRetry plans the next attempt after a failed one, a random part of the backoff later: of the lanes, and of the
// route if that is down. gone are the items that are too old to be tried again. It reports whether the route became
// blocked, and whether the failure counts for the route, not only for its lanes.
func (s *schedule) planRetry(
	a attempt, gone []*Item, blocked bool, wish *RetryAfter, now time.Time,
) (became, shared bool) {
	for _, l := range a.lanes {
		s.countFailure(l, a.own)
		l.next = now.Add(backoff(int(l.failures), s.random()))
		shared = shared || !l.alone && !a.own
	}
	if wish != nil {
		s.retryAfterEnd = later(s.retryAfterEnd, now.Add(min(wish.After, maxRetryAfter)))
	}
	became = blocked && shared && s.refuse(now)
	if s.down() && !s.probe.After(now) {
		s.failedProbes++
		s.probe = now.Add(backoff(s.failedProbes, s.random()))
	}
	s.end(a, gone, now)
	return became, shared
}

// countFailure counts a failure of the lane and, unless it is the lane's own, of the route.
func (s *schedule) countFailure(l *lane, own bool) {
	if l.failures++; l.failures == 1 {
		s.failing++
	}
	if l.alone {
		return
	}
	s.retryOnAccept[l] = true
	if !own && !s.down() {
		s.failed[l.key] = true
	}
}

// resetFailures resets the lane's failures.
func (s *schedule) resetFailures(l *lane) {
	if l.failures > 0 {
		s.failing--
	}
	l.failures = 0
	delete(s.retryOnAccept, l)
}

// restart resets all waits and failures.
func (s *schedule) restart(now time.Time) {
	s.accepted()
	s.retryAfterEnd = time.Time{}
	for _, l := range s.lanes {
		s.resetFailures(l)
		l.next, l.alone = now, false
		s.place(l, now)
	}
}

// stop allows only first attempts from now on.
func (s *schedule) stop(now time.Time) {
	s.stopping = true
	for _, l := range s.lanes {
		s.place(l, now)
	}
}

// oldestBegan returns the start of the oldest attempt under way; zero if there is none.
func (s *schedule) oldestBegan() (since time.Time) {
	for _, began := range s.underWay {
		since = earlier(since, began)
	}
	return since
}

// earlier and later compare two times. A zero time counts as not set.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
