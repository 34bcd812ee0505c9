package delivery

import (
	"cmp"
	"time"
)

// UrgentNotice is the notice below which an event is urgent.
const UrgentNotice = 15 * time.Minute

// What is urgent beats the schedule.
const (
	urgentEvery  = 5 * time.Second // shortest time between attempts ahead of the schedule
	lastAttempts = 2 * time.Minute // an event that begins sooner is tried as often as that
)

// A Reason is why nothing is attempted now.
type Reason string

// The values of Reason.
const (
	WaitsForNothing    Reason = ""
	WaitsForMute       Reason = "mute"        // a mute holds it back
	WaitsForLead       Reason = "lead"        // the route's lead has not come, so nothing is pending yet
	WaitsForAttempt    Reason = "attempt"     // one is under way
	WaitsForStart      Reason = "start"       // the program stops, and tries it again when it starts
	WaitsForAnswer     Reason = "answer"      // nobody knows yet whether its event is over, and it acts
	WaitsForRetryAfter Reason = "retry-after" // the destination asked for it
	WaitsForRetry      Reason = "retry"       // an attempt failed
	WaitsForProbe      Reason = "probe"       // attempts of many events failed, so the destination is tried now and then
	WaitsForSomebody   Reason = "blocked"     // the destination refuses until somebody acts, and is tried now and then
)

// when returns when the lane may be attempted if nothing happens before, and what it waits for until then. A zero time
// means that it waits for something other than time.
//
// What is urgent beats the schedule, but no Retry-After: no lane.next and no destination.hurry is after lane.latest.
func (s *schedule) when(l *lane, now time.Time) (at time.Time, why Reason) {
	switch {
	case l.busy:
		return time.Time{}, WaitsForAttempt
	case l.arrived == 0 && l.muted > 0:
		return time.Time{}, WaitsForMute
	case s.health == blocked:
		at, why = s.nextProbe(), WaitsForSomebody
	case s.health == failing:
		at, why = s.nextProbe(), WaitsForProbe
	default:
		at, why = l.next, WaitsForRetry
	}
	if s.retryAfterEnd.After(at) {
		at, why = s.retryAfterEnd, WaitsForRetryAfter
	}
	if !at.After(now) {
		why = WaitsForNothing
	}
	return at, why
}

// nextOf returns when the first of the lanes may be attempted; zero if none has an item.
func (s *schedule) nextOf(lanes []*lane, now time.Time) (next time.Time) {
	for _, l := range lanes {
		if l.arrived > 0 {
			at, _ := s.when(l, now)
			next = earlier(next, at)
		}
	}
	return next
}

// next returns the lane to attempt now. If there is none, it returns when there will be, if nothing happens before, and
// why not now.
func (s *schedule) next(now time.Time) (l *lane, at time.Time, why Reason) {
	l = cmp.Or(s.ready.top(), s.waiting.top())
	switch {
	case l == nil:
		return nil, at, WaitsForNothing
	case s.full():
		return nil, at, WaitsForAttempt
	case s.stopping && s.health == blocked:
		return nil, at, WaitsForStart
	}
	at, why = s.when(l, now)
	switch {
	case why != WaitsForNothing:
		return nil, at, why
	case s.health != up:
		return s.nextInTurn(now), at, why
	}
	return l, at, why
}

// idle reports whether the lane waits for nothing but time and the destination.
func (s *schedule) idle(l *lane) bool {
	return l.arrived > 0 && !l.busy && !(s.stopping && l.failures > 0)
}

// full reports whether no further attempt may begin until one ends.
func (s *schedule) full() bool {
	return s.leaving || len(s.underWay) >= max(1, s.terms.Parallel) || s.health != up && len(s.underWay) > 0
}

// nextInTurn returns the lane for the next attempt while the destination isn't up. It looks at every lane, but runs only
// once for each attempt.
func (s *schedule) nextInTurn(now time.Time) (next *lane) {
	ahead := s.probe.After(now)
	for _, lanes := range [][]*lane{s.ready.lanes, s.waiting.lanes} {
		for _, l := range lanes {
			if next == nil || inTurn(l, next, ahead, now) < 0 {
				next = l
			}
		}
	}
	return next
}

// inTurn orders lanes while the destination isn't up: first what is new and urgent, ahead of a probe what begins soonest,
// then by the oldest attempt.
func inTurn(a, b *lane, ahead bool, now time.Time) int {
	order := first(a.urgent, b.urgent)
	switch {
	case a.urgent && b.urgent:
		order = before(a, b)
	case ahead && order == 0:
		order = compareSet(a.tryBy(now), b.tryBy(now))
	}
	return cmp.Or(order, a.tried.Compare(b.tried), cmp.Compare(a.items[0].Seq, b.items[0].Seq))
}

// tryBy returns when the lane is to be tried at the latest, whatever it waits for; zero for no such time. What is new and
// urgent goes at once. No wait is longer than a quarter of the time until the event may begin, and in the last two minutes
// none is longer than five seconds.
func (l *lane) tryBy(now time.Time) time.Time {
	n := l.newestAt()
	if l.urgent {
		return later(now, l.tried.Add(urgentEvery))
	}
	if n < 0 || l.group == "" || l.items[n].Ends() {
		return time.Time{}
	}
	begins := l.items[n].begins()
	left := begins.Sub(now)
	if begins.IsZero() || left <= 0 {
		return time.Time{}
	}
	return now.Add(max(urgentEvery, min(left/4, left-lastAttempts)))
}

// tryBy returns when one of the lanes is to be tried at the latest. It looks at every lane, but runs only once for each
// attempt that fails while the destination isn't up.
func (s *schedule) tryBy(now time.Time) (at time.Time) {
	for _, lanes := range [][]*lane{s.ready.lanes, s.waiting.lanes} {
		for _, l := range lanes {
			at = earlier(at, l.tryBy(now))
		}
	}
	return at
}
