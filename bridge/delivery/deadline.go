package delivery

import (
	"slices"
	"time"
)

// past is a deadline that has always passed.
var past = time.Unix(0, 0)

// deadline returns the time at which the next item of the lane becomes late or falls back; zero for never.
func (s *schedule) deadline(l *lane) (at time.Time) {
	if s.terms.Fallback.Sink != "" {
		for _, i := range l.items {
			if i.fallsBack() {
				at = earlier(at, i.Since().Add(s.terms.Fallback.After))
			}
		}
	}
	if n := l.lastState(); s.dropsLate(l) && n >= 0 {
		if slices.ContainsFunc(l.items[:n], func(i *Item) bool { return !i.Replayed }) {
			return past // a newer change is pending already
		}
		at = earlier(at, l.items[n].lateAt())
	}
	return at
}

// dropsLate reports whether late items of the lane become dead letters. One under way does not, nor one of the
// route's previous worker.
func (s *schedule) dropsLate(l *lane) bool {
	return s.terms.Late == LateDrop && l.group != "" && !l.busy && !s.standby
}

// fallsBack reports whether the fallback gets the item when its time has come.
func (i *Item) fallsBack() bool {
	return i.FallbackFor == nil && !i.FellBack && !i.Transient && !i.Mute.Active()
}

// takeOverdue removes the late items from their lanes. It returns them and the items that fall back now, which stay.
func (s *schedule) takeOverdue(now time.Time) (late, fallback []*Item) {
	s.advance(now)
	for l := s.deadlines.top(); l != nil && !l.deadline.After(now); l = s.deadlines.top() {
		if s.dropsLate(l) {
			for _, i := range l.late(now) {
				late = append(late, i)
				s.removeItem(l, i.Seq)
			}
		}
		for n, i := range l.items {
			if s.terms.Fallback.Sink != "" && i.fallsBack() && !i.Since().Add(s.terms.Fallback.After).After(now) {
				fallback = append(fallback, i)
				next := *i
				next.FellBack = true
				l.items[n] = &next
			}
		}
		s.place(l, now)
	}
	return late, fallback
}
