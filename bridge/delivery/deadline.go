package delivery

import "time"

// past is a deadline that has come at any time.
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
	if n := l.last(); s.dropsLate(l) && n >= 0 {
		if n > 0 {
			return past // it is overtaken already
		}
		at = earlier(at, l.items[n].lateAt())
	}
	return at
}

// dropsLate reports whether late items of the lane become dead letters.
func (s *schedule) dropsLate(l *lane) bool {
	return s.terms.Late == LateDrop && l.group != "" && !l.busy
}

// fallsBack reports whether the item goes to the fallback once it has waited long enough.
func (i *Item) fallsBack() bool {
	return i.Instead == nil && !i.FellBack && !i.Transient && !i.Mute.Active()
}

// overdue removes the late items from the lane, and returns them and those that have to fall back by now.
func (s *schedule) overdue(now time.Time) (late, fallback []*Item) {
	s.advance(now)
	for l := s.deadlines.top(); l != nil && !l.deadline.After(now); l = s.deadlines.top() {
		if s.dropsLate(l) {
			for _, i := range append([]*Item(nil), l.late(now)...) {
				late = append(late, i)
				s.take(l, i.Seq)
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
