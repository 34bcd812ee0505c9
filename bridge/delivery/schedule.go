package delivery

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// maxRetryAfter is the longest Retry-After that is heeded.
const maxRetryAfter = time.Hour

// waits are the waits after the first, second, … failed attempt; the last holds for all further ones.
var waits = []time.Duration{
	1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 30 * time.Second,
	60 * time.Second, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute,
}

// backoff returns the wait after so many failures, with full jitter: a random part of the wait.
func backoff(failures int, random float64) time.Duration {
	return time.Duration(random * float64(waits[min(failures, len(waits))-1]))
}

// A schedule decides which pending deliveries of a route are attempted, and when: see when. Callers pass it the time, and
// it calls neither a sink nor a queue. reschedule puts each lane into the heaps, so that no method needs to look at every item.
type schedule struct {
	destination
	terms          Terms
	mutes          []*Mute            // all that are for the route
	random         func() float64     // for jitter
	lanes          map[string]*lane   // by laneKey
	index          map[uint64]*lane   // by the Seq of its items
	partialBatches map[uint64][]*lane // by Item.Batch: the lanes of a batch that made progress

	waiting   laneHeap // lanes that wait after a failure, the shortest first
	ready     laneHeap // lanes that wait only for the destination, the most important first
	ages      laneHeap // lanes with a due item: those of groups first, then which has waited for longest
	deadlines laneHeap // lanes in which an item will be late, or fall back, the nearest first

	underWay map[*lane]time.Time // when each attempt under way began, by the first of its lanes
	retrying int                 // number of lanes whose last attempt failed
	muted    int                 // number of items that a mute holds back
	leaving  bool                // no attempt is begun any more
	stopping bool                // only first attempts are made from now on
}

// An attempt is one call of Deliver: a batch, and with LateLatest the older items that it replaces.
type attempt struct {
	batch      []*Item
	superseded []*Item
	lanes      []*lane // of all these items
	mutes      []*Mute // of the route, when it began
	began      time.Time
}

// all returns the items of the attempt: those of its batch and the older ones that they replace.
func (a attempt) all() []*Item { return slices.Concat(a.superseded, a.batch) }

func newSchedule(t Terms) *schedule {
	s := &schedule{
		destination: destination{suspects: map[string]*lane{}}, terms: t, random: rand.Float64,
		lanes: map[string]*lane{}, index: map[uint64]*lane{}, partialBatches: map[uint64][]*lane{},
		underWay: map[*lane]time.Time{},
	}
	s.waiting = laneHeap{
		less: func(a, b *lane) bool { return a.next.Before(b.next) },
		slot: func(l *lane) *int32 { return &l.inWaiting },
	}
	s.ready = laneHeap{
		less: func(a, b *lane) bool { return before(a, b) < 0 },
		slot: func(l *lane) *int32 { return &l.inReady },
	}
	s.ages = laneHeap{
		less: func(a, b *lane) bool {
			return cmp.Or(first(a.group != "", b.group != ""), a.since.Compare(b.since)) < 0
		},
		slot: func(l *lane) *int32 { return &l.inAges },
	}
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
		l = s.open(key, i.Group, now)
	}
	if from != nil && from != l {
		s.move(i.Seq, from, l, now)
	}
	if was := l.put(i); was != nil {
		s.leaveBatch(was, l)
	}
	s.index[i.Seq] = l
	if i.Batch != 0 && !slices.Contains(s.partialBatches[i.Batch], l) {
		s.partialBatches[i.Batch] = append(s.partialBatches[i.Batch], l)
	}
	s.reschedule(l, now)
}

// open adds a lane. One that failed since the last acceptance waits on, though what failed is no longer pending.
func (s *schedule) open(key, group string, now time.Time) *lane {
	l := s.suspects[key]
	if l == nil {
		l = &lane{key: key, group: group, next: now}
	}
	if l.failures > 0 {
		s.retrying++
	}
	s.lanes[key] = l
	return l
}

// close removes a lane of which nothing is pending any more.
func (s *schedule) close(l *lane) {
	if s.lanes[l.key] != l {
		return
	}
	if l.failures > 0 {
		s.retrying--
	}
	l.urgent = false
	delete(s.lanes, l.key)
	if s.health != up {
		delete(s.suspects, l.key) // it has been counted
	}
}

// move takes an item, and the wait after its failure, from its lane to another.
func (s *schedule) move(seq uint64, from, to *lane, now time.Time) {
	s.removeItem(from, seq)
	if to.failures == 0 && from.failures > 0 {
		s.retrying++
	}
	to.failures, to.next = max(to.failures, from.failures), later(to.next, from.next)
	to.tried, to.isolated = later(to.tried, from.tried), true
	s.resetFailures(from)
	from.next, from.isolated = now, false
	s.reschedule(from, now)
}

// remove removes an item that is no longer pending.
func (s *schedule) remove(seq uint64, now time.Time) {
	if l := s.index[seq]; l != nil {
		s.removeItem(l, seq)
		s.reschedule(l, now)
	}
}

// removeItem removes an item from its lane. The caller then calls reschedule.
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

// setMutes replaces the mutes. What they held back may be attempted, and what they hold back now may not.
func (s *schedule) setMutes(mutes []*Mute, now time.Time) {
	if slices.Equal(mutes, s.mutes) {
		return
	}
	s.mutes = mutes
	for _, l := range s.lanes {
		s.reschedule(l, now)
	}
}

// muteOf returns the mute that holds the item back, or the last one that it waited for; nil for none.
func (s *schedule) muteOf(i *Item) *Mute { return MuteOf(s.mutes, i) }

// waited reports whether the item waited for a mute that has ended.
func (s *schedule) waited(i *Item) bool {
	m := s.muteOf(i)
	return m != nil && !m.Active()
}

func (s *schedule) since(i *Item) time.Time { return i.Since(s.muteOf(i)) }

// mutedFrom returns the index of the first item of the lane that a mute holds back, len(l.items) for none. A mute holds
// back no item of a partly delivered batch, nor, with LateLatest, an older one that is delivered with it.
func (s *schedule) mutedFrom(l *lane) int {
	if !slices.ContainsFunc(s.mutes, (*Mute).Active) {
		return len(l.items)
	}
	from := 0
	for n, i := range l.items {
		if i.Batch != 0 && s.terms.Late == LateLatest && l.group != "" {
			from = n + 1
		}
	}
	for n, i := range l.items[from:] {
		if s.muteOf(i).Active() && i.Batch == 0 {
			return from + n
		}
	}
	return len(l.items)
}

// reschedule puts the lane into the heaps by its items and times. Call it whenever either changes.
func (s *schedule) reschedule(l *lane, now time.Time) {
	open := s.mutedFrom(l)
	s.muted -= l.muted
	l.muted = len(l.items) - open
	s.muted += l.muted
	l.arrived = min(l.arrived, open)
	for l.arrived < open {
		l.arrived++
		s.noteArrival(l, now)
	}
	if l.arrived == 0 && l.muted > 0 && !l.busy { // backoff starts again when the mute ends
		s.resetFailures(l)
		l.next, l.isolated = now, false
	}

	idle := s.idle(l)
	ready := idle && !l.next.After(now)
	s.waiting.update(l, idle && !ready)
	s.ready.update(l, ready)
	l.since = s.waitsSince(l)
	s.ages.update(l, l.arrived > 0)

	l.deadline = s.deadline(l)
	s.deadlines.update(l, !l.deadline.IsZero())
	if len(l.items) == 0 && !l.busy {
		s.close(l)
	}
}

// waitsSince returns when the first of the lane's due items could first be made; zero if none is due. It is the one with the
// lowest number, but for what was replayed or has fallen back: that is older by its number alone.
func (s *schedule) waitsSince(l *lane) (since time.Time) {
	for _, i := range l.due() {
		since = earlier(since, s.since(i))
		if !i.Replayed && i.FallbackFor == nil {
			break
		}
	}
	return since
}

// noteArrival notes that another of the lane's items may be attempted, the last of due.
func (s *schedule) noteArrival(l *lane, now time.Time) {
	l.urgent = l.urgent || l.items[l.arrived-1].urgent(now)
	l.next = earlier(l.next, l.tryBy(now))
	s.hurry = earlier(s.hurry, l.tryBy(now))
}

// advance places the lanes whose time has come.
func (s *schedule) advance(now time.Time) {
	for l := s.waiting.top(); l != nil && !l.next.After(now); l = s.waiting.top() {
		s.reschedule(l, now)
	}
}

// attempt begins the next attempt. If none is to be made now, its batch is empty.
func (s *schedule) attempt(now time.Time) (a attempt) {
	s.advance(now)
	first, _, _ := s.next(now)
	if first == nil {
		return attempt{}
	}
	a = s.pick(first, now)
	s.begin(now)
	s.underWay[a.lanes[0]] = now
	return a
}

// wake returns when to call attempt again, if nothing changes before then, and what is waited for until then, and when an
// item will be late or fall back; zero for never.
func (s *schedule) wake(now time.Time) (at time.Time, why Reason, deadline time.Time) {
	_, at, why = s.next(now)
	if l := s.deadlines.top(); l != nil {
		deadline = l.deadline
	}
	return at, why, deadline
}

// end ends the attempt, removes the items of gone, and places its lanes.
func (s *schedule) end(a attempt, gone []*Item, now time.Time) {
	delete(s.underWay, a.lanes[0])
	for _, i := range gone {
		if l := s.index[i.Seq]; l != nil {
			s.removeItem(l, i.Seq)
		}
	}
	for _, l := range a.lanes {
		l.busy = false
		s.reschedule(l, now)
	}
}

// accept notes that the destination accepted the batch, so the backoff of the route starts again. Lanes that failed are
// tried again; if one fails again after that, only that lane waits.
func (s *schedule) accept(a attempt, now time.Time) {
	suspects := s.accepted()
	for _, l := range a.lanes {
		s.resetFailures(l)
		l.next, l.isolated = now, false
	}
	s.end(a, a.all(), now)
	for _, l := range a.lanes {
		if l.arrived > 0 && l.items[l.arrived-1].urgent(now) { // it was not in the batch
			l.urgent = true
			s.reschedule(l, now)
		}
	}
	for key, l := range suspects {
		if s.lanes[key] == l && l.failures > 0 {
			l.next, l.isolated = now, true
			s.reschedule(l, now)
		}
	}
}

// discard ends an attempt whose items become dead letters. The state of the route stays as it is.
func (s *schedule) discard(a attempt, gone []*Item, now time.Time) {
	for _, l := range a.lanes {
		s.resetFailures(l)
	}
	s.end(a, gone, now)
}

// postpone ends an attempt that the sink put off until a time. The state of the route stays as it is, but while it isn't up,
// nothing else is tried before either: there is one attempt at a time.
func (s *schedule) postpone(a attempt, until, now time.Time) {
	for _, l := range a.lanes {
		l.next = until
	}
	if s.health != up {
		s.probe = later(s.probe, until)
	}
	s.end(a, nil, now)
}

// takeApart ends the attempt of a batch that can't be delivered because of one of its members. They are attempted one by
// one.
func (s *schedule) takeApart(a attempt, now time.Time) {
	for _, l := range a.lanes {
		s.resetFailures(l)
		l.next, l.isolated = now, true
	}
	s.end(a, nil, now)
}

// A verdict is what the failure of an attempt tells.
type verdict struct {
	ofLane  bool        // the lane's alone: the destination works, or got nothing
	blocked bool        // the destination refuses until somebody acts
	wish    *RetryAfter // of the destination; nil for none
}

// planRetry plans the next attempt after a failed one: of its lanes, and of the route if the destination isn't up. gone
// are the items that are too old to be tried again. It reports whether the failure counts for the route, not only for its
// lanes.
func (s *schedule) planRetry(a attempt, gone []*Item, v verdict, now time.Time) (shared bool) {
	for _, l := range a.lanes {
		shared = s.countFailure(l, v.ofLane) || shared
		l.next = earlier(now.Add(backoff(int(l.failures), s.random())), l.tryBy(now))
	}
	if v.wish != nil {
		s.retryAfterEnd = later(s.retryAfterEnd, now.Add(min(v.wish.After, maxRetryAfter)))
	}
	if shared {
		s.judge(v.blocked, now)
	}
	if s.health == failing && !s.probe.After(now) {
		s.probes++
		s.probe = now.Add(backoff(s.probes, s.random()))
	}
	s.end(a, gone, now)
	if s.health != up {
		s.hurry = s.tryBy(now)
	}
	return shared
}

// countFailure counts a failure of the lane. It reports whether that counts for the route too: not if the lane failed
// before the destination accepted others, or the failure is the lane's alone.
func (s *schedule) countFailure(l *lane, ofLane bool) (shared bool) {
	again := l.failures > 0
	l.failures++
	if !again {
		s.retrying++
	}
	if ofLane || l.isolated && again {
		return false
	}
	l.isolated = false
	s.suspects[l.key] = l
	return true
}

// resetFailures resets the lane's failures.
func (s *schedule) resetFailures(l *lane) {
	if l.failures > 0 {
		s.retrying--
	}
	l.failures = 0
}

// restart resets all waits and failures.
func (s *schedule) restart(now time.Time) {
	s.destination = destination{suspects: map[string]*lane{}}
	for _, l := range s.lanes {
		s.resetFailures(l)
		l.next, l.isolated = now, false
		s.reschedule(l, now)
	}
}

// stop allows only first attempts from now on.
func (s *schedule) stop(now time.Time) {
	s.stopping = true
	for _, l := range s.lanes {
		s.reschedule(l, now)
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

// compareSet compares two times. One that is not set comes last.
func compareSet(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		return b.Compare(a)
	}
	return a.Compare(b)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
