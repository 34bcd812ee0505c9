package delivery

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// The rules of the schedule.
const (
	urgentNotice  = 15 * time.Minute // less notice than this beats the schedule
	urgentEvery   = 5 * time.Second  // but not more often
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

// A schedule says which pending deliveries of a route may be attempted, and when. It is told the time, and touches
// neither a sink nor a queue. place files each lane in the heaps, so that nothing walks all that is pending.
type schedule struct {
	terms  Terms
	random func() float64     // for jitter
	lanes  map[string]*lane   // by laneKey
	index  map[uint64]*lane   // by the Seq of its items
	waves  map[wave]waveState // with Terms.Digest
	parts  map[uint64][]*lane // by Item.Batch: the lanes of a batch that made progress

	arriving  laneHeap // lanes with an item whose Due will come, the nearest first
	waiting   laneHeap // lanes that wait before their next attempt, the shortest first
	ready     laneHeap // lanes that may be attempted, by what matters first
	hurry     laneHeap // lanes that may be attempted though the route waits, by what matters first
	deadlines laneHeap // lanes in which something will be late, or fall back, the nearest first

	underWay []attempt
	hopeful  map[*lane]bool // failed, and get another chance when the route accepts
	failing  int            // lanes that failed last
	// Groups that failed since the last acceptance, those that are gone too, and no more than it takes to be down.
	failed   map[string]bool
	stopping bool      // only first attempts are made any more
	floor    time.Time // a Retry-After ends
	refusals int       // blocked answers since the last acceptance
	refused  time.Time // the first of them
	blocked  bool
	probe    time.Time // the next one, while blocked or down
	misses   int       // probes that failed while down
	override time.Time // the last attempt that beat the schedule
	single   int       // deliveries to make one by one, because a batch of them was rejected
}

// An attempt is one call of Deliver: a batch, and with LateLatest the older items that its deliveries stand for.
type attempt struct {
	batch      []*Item
	superseded []*Item
	lanes      []*lane // of all of them
	began      time.Time
}

// all returns the items of the attempt: those of its batch and the older ones that they stand for.
func (a attempt) all() []*Item { return slices.Concat(a.superseded, a.batch) }

func newSchedule(t Terms) *schedule {
	if t.Late != LateLatest {
		t.Digest = Digest{}
	}
	s := &schedule{
		terms: t, random: rand.Float64, lanes: map[string]*lane{}, index: map[uint64]*lane{}, waves: map[wave]waveState{},
		parts: map[uint64][]*lane{}, hopeful: map[*lane]bool{}, failed: map[string]bool{},
	}
	matters := func(a, b *lane) bool { return before(a, b) < 0 }
	s.arriving = laneHeap{
		less: func(a, b *lane) bool { return a.arrival().Before(b.arrival()) },
		slot: func(l *lane) *int32 { return &l.inArriving },
	}
	s.waiting = laneHeap{
		less: func(a, b *lane) bool { return a.wait.Before(b.wait) },
		slot: func(l *lane) *int32 { return &l.inWaiting },
	}
	s.ready = laneHeap{less: matters, slot: func(l *lane) *int32 { return &l.inReady }}
	s.hurry = laneHeap{less: matters, slot: func(l *lane) *int32 { return &l.inHurry }}
	s.deadlines = laneHeap{
		less: func(a, b *lane) bool { return a.deadline.Before(b.deadline) },
		slot: func(l *lane) *int32 { return &l.inDeadlines },
	}
	return s
}

// put takes in what became pending, or changed.
func (s *schedule) put(i *Item, now time.Time) {
	key := laneKey(i)
	l := s.lanes[key]
	if l == nil {
		l = &lane{key: key, group: i.Group, next: now}
		s.lanes[key] = l
	}
	if was := l.put(i, now); was != nil {
		s.leaveBatch(was, l)
	}
	s.index[i.Seq] = l
	if i.Batch != 0 && !slices.Contains(s.parts[i.Batch], l) {
		s.parts[i.Batch] = append(s.parts[i.Batch], l)
	}
	s.place(l, now)
}

// remove takes out what is no longer pending.
func (s *schedule) remove(seq uint64, now time.Time) {
	if l := s.index[seq]; l != nil {
		s.take(l, seq)
		s.place(l, now)
	}
}

// take removes an item from its lane, which is to be placed again.
func (s *schedule) take(l *lane, seq uint64) {
	if i := l.remove(seq); i != nil {
		s.leaveBatch(i, l)
		delete(s.index, seq)
	}
}

// leaveBatch takes the lane out of the batch of an item that it no longer holds, unless it holds another one of it.
func (s *schedule) leaveBatch(i *Item, l *lane) {
	if i.Batch == 0 || slices.ContainsFunc(l.items, func(other *Item) bool { return other.Batch == i.Batch }) {
		return
	}
	rest := slices.DeleteFunc(s.parts[i.Batch], func(part *lane) bool { return part == l })
	if len(rest) > 0 {
		s.parts[i.Batch] = rest
	} else {
		delete(s.parts, i.Batch)
	}
}

// place files the lane in the heaps by its items and times. Call it whenever either changes.
func (s *schedule) place(l *lane, now time.Time) {
	l.hold()
	for l.hasArrival() && !l.arrival().After(now) {
		s.arrive(l, l.items[l.arrived], now)
		l.arrived++
	}
	s.arriving.keep(l, l.hasArrival())
	if l.arrived == 0 && l.muted > 0 && !l.busy { // the times begin anew when the mute ends
		s.succeed(l)
		l.next, l.alone = now, false
	}

	idle := s.idle(l)
	gathers := !s.stopping && l.digestAt.After(now)
	ready := idle && !gathers && !l.next.After(now)
	l.wait = l.next
	if gathers {
		l.wait = l.digestAt
	}
	s.waiting.keep(l, idle && !ready)
	s.ready.keep(l, ready)
	s.hurry.keep(l, idle && !gathers && l.urgent)

	l.deadline = s.deadline(l)
	s.deadlines.keep(l, !l.deadline.IsZero())
	if len(l.items) == 0 && !l.busy {
		s.succeed(l)
		delete(s.lanes, l.key)
	}
}

// idle reports whether no attempt of the lane is under way and it has an item to attempt, now or after its wait.
func (s *schedule) idle(l *lane) bool {
	return l.arrived > 0 && !l.busy && !(s.stopping && l.failures > 0)
}

// arrive notes that an item became due.
func (s *schedule) arrive(l *lane, i *Item, now time.Time) {
	if l.digestAt = (time.Time{}); !i.waited() {
		l.digestAt = s.gather(i, now)
	}
	l.urgent = l.urgent || i.urgent(now)
}

// advance files what time has changed.
func (s *schedule) advance(now time.Time) {
	for l := s.arriving.top(); l != nil && !l.arrival().After(now); l = s.arriving.top() {
		s.place(l, now)
	}
	for l := s.waiting.top(); l != nil && !l.wait.After(now); l = s.waiting.top() {
		s.place(l, now)
	}
}

// attempt begins the next attempt. If none is to be made now, its batch is empty and wake is the time to call again;
// zero means after the next change.
func (s *schedule) attempt(now time.Time) (a attempt, wake time.Time) {
	s.advance(now)
	first := s.first(now)
	if first == nil {
		return attempt{}, s.wake(now)
	}
	switch {
	case first.urgent && s.planned(first).After(now):
		s.override = now
	case s.blocked:
		s.probe = now.Add(probeEvery)
	}
	a = s.pick(first, now)
	s.underWay = append(s.underWay, a)
	return a, time.Time{}
}

// down reports whether deliveries about so many events failed, and none was accepted, that the destination is to blame
// and not an event. Without this rule each event would keep its own times, and a destination that comes back would be
// met by thousands of attempts a second.
func (s *schedule) down() bool { return len(s.failed) >= downAfter }

// probing reports whether only one attempt at a time is made, when its time has come, with the lanes in turn.
func (s *schedule) probing() bool { return s.blocked || s.down() }

// full reports whether as many attempts are under way as may be.
func (s *schedule) full() bool {
	return len(s.underWay) >= max(1, s.terms.Parallel) || s.probing() && len(s.underWay) > 0
}

// first returns the lane to attempt next, nil if none may be attempted now.
func (s *schedule) first(now time.Time) *lane {
	if s.full() || s.floor.After(now) || s.stopping && s.blocked {
		return nil
	}
	urgent, ready := s.hurry.top(), s.ready.top()
	if now.Before(s.override.Add(urgentEvery)) {
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
	return s.turn(now)
}

// turn returns the lane whose turn it is for a probe. It looks at every lane, but runs only once a probe.
func (s *schedule) turn(now time.Time) (next *lane) {
	for _, lanes := range [][]*lane{s.ready.lanes, s.waiting.lanes} {
		for _, l := range lanes {
			if !l.digestAt.After(now) && (next == nil || inTurn(l, next) < 0) {
				next = l
			}
		}
	}
	return next
}

// planned returns the time of the lane's next attempt if it is not urgent.
func (s *schedule) planned(l *lane) time.Time {
	if s.probing() {
		return s.probe
	}
	return l.next
}

// wake returns the time of the next call to attempt if nothing changes before.
func (s *schedule) wake(now time.Time) (at time.Time) {
	if !s.full() && !(s.stopping && s.blocked) {
		switch {
		case s.probing() && len(s.ready.lanes)+len(s.waiting.lanes) > 0:
			at = s.probe
		case len(s.ready.lanes) > 0: // a Retry-After is in the way
			at = s.floor
		case len(s.waiting.lanes) > 0:
			at = s.waiting.top().wait
		}
		if len(s.hurry.lanes) > 0 {
			at = earlier(at, s.override.Add(urgentEvery))
		}
		if !at.IsZero() {
			at = later(at, s.floor)
		}
		if l := s.waiting.top(); s.probing() && l != nil && l.digestAt.After(now) {
			at = earlier(at, l.wait) // it may be urgent
		}
	}
	if l := s.arriving.top(); l != nil {
		at = earlier(at, l.arrival())
	}
	if l := s.deadlines.top(); l != nil {
		at = earlier(at, l.deadline)
	}
	return at
}

// pick makes an attempt that begins with the lane. Its lanes are busy from then on.
func (s *schedule) pick(first *lane, now time.Time) attempt {
	a := attempt{began: now}
	part := first.part(s.terms.Late)
	switch {
	case part != 0:
		for _, l := range slices.Clone(s.parts[part]) {
			if !l.busy {
				s.join(&a, l, part, len(l.items), now)
			}
		}
	case s.terms.Late == LateLatest && (first.group != "" || s.afterMute(first)):
		for _, l := range s.digestOf(first) {
			s.join(&a, l, 0, len(l.items), now)
		}
	default:
		limit := max(1, s.terms.Batch)
		if s.single > 0 || s.blocked {
			limit = 1
		}
		for l := first; l != nil && len(a.batch) < limit; l = s.ready.top() {
			if l.part(s.terms.Late) != 0 || s.terms.Late == LateLatest && l.group != "" {
				break
			}
			s.join(&a, l, 0, limit-len(a.batch), now)
		}
		slices.SortFunc(a.batch, func(x, y *Item) int { return cmp.Compare(x.Seq, y.Seq) })
	}
	return a
}

// join makes the lane's share of a batch, at most limit items, part of the attempt.
func (s *schedule) join(a *attempt, l *lane, part uint64, limit int, now time.Time) {
	batch, superseded := l.split(s.terms.Late, part)
	if len(batch) == 0 {
		return
	}
	a.batch = append(a.batch, batch[:min(limit, len(batch))]...)
	a.superseded = append(a.superseded, superseded...)
	a.lanes = append(a.lanes, l)
	l.busy, l.urgent, l.tried, l.digestAt = true, false, now, time.Time{} // what comes from now on is not in this attempt
	s.place(l, now)
}

// end notes that the attempt is over. What it leaves in its lanes is done with the items of gone.
func (s *schedule) end(a attempt, gone []*Item, now time.Time) {
	s.underWay = slices.DeleteFunc(s.underWay, func(other attempt) bool { return other.lanes[0] == a.lanes[0] })
	s.single = max(0, s.single-1)
	for _, i := range gone {
		if l := s.index[i.Seq]; l != nil {
			s.take(l, i.Seq)
		}
	}
	for _, l := range a.lanes {
		l.busy = false
		s.place(l, now)
	}
}

// accept notes that the destination took the batch, so the times of the route begin anew. Lanes that wait get another
// chance; one that fails again after that waits alone.
func (s *schedule) accept(a attempt, now time.Time) {
	s.refusals, s.blocked, s.misses, s.floor = 0, false, 0, time.Time{}
	clear(s.failed)
	for _, l := range a.lanes {
		s.succeed(l)
		l.next, l.alone = now, false
	}
	s.end(a, a.all(), now)
	for l := range s.hopeful {
		delete(s.hopeful, l)
		l.next, l.alone = now, true
		s.place(l, now)
	}
}

// discard ends an attempt whose items become dead letters. It says nothing about the state of the route.
func (s *schedule) discard(a attempt, gone []*Item, now time.Time) {
	for _, l := range a.lanes {
		s.succeed(l)
	}
	s.end(a, gone, now)
}

// refuse plans the next attempt after a failed one that may be repeated, a random part of the backoff later: of the
// lane, and of the route if that is down. gone are the items that are too old for that. It reports whether the route
// became blocked, and whether the trouble is that of the route and not of the lane.
func (s *schedule) refuse(
	a attempt, gone []*Item, blocked bool, wish *RetryAfter, now time.Time,
) (became, shared bool) {
	for _, l := range a.lanes {
		s.fail(l)
		l.next = now.Add(backoff(int(l.failures), s.random()))
		shared = shared || !l.alone
	}
	if wish != nil {
		s.floor = now.Add(min(wish.After, maxRetryAfter))
	}
	if blocked && shared {
		if s.refusals++; s.refusals == 1 {
			s.refused = now
		}
		if !s.blocked && s.refusals >= blockedAfter && now.Sub(s.refused) >= blockedOver {
			s.blocked, became = true, true
			s.probe = now.Add(probeEvery)
		}
	}
	if s.down() && !s.probe.After(now) {
		s.misses++
		s.probe = now.Add(backoff(s.misses, s.random()))
	}
	s.end(a, gone, now)
	return became, shared
}

// fail counts a failure of the lane.
func (s *schedule) fail(l *lane) {
	if l.failures++; l.failures == 1 {
		s.failing++
	}
	if l.alone {
		return
	}
	s.hopeful[l] = true
	if !s.down() {
		s.failed[l.key] = true
	}
}

// succeed resets the lane's failures.
func (s *schedule) succeed(l *lane) {
	if l.failures > 0 {
		s.failing--
	}
	l.failures = 0
	delete(s.hopeful, l)
}

// restart resets all waits and failures.
func (s *schedule) restart(now time.Time) {
	s.refusals, s.blocked, s.misses, s.floor = 0, false, 0, time.Time{}
	clear(s.failed)
	for _, l := range s.lanes {
		s.succeed(l)
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

// since returns the start of the oldest attempt under way; zero if there is none.
func (s *schedule) since() (since time.Time) {
	for _, a := range s.underWay {
		since = earlier(since, a.began)
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
