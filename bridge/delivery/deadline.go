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
			if s.fallsBack(i) {
				at = earlier(at, s.since(i).Add(s.terms.Fallback.After))
			}
		}
	}
	if n := l.lastState(); s.dropsLate(l) && n >= 0 {
		if slices.ContainsFunc(l.items[:n], func(i *Item) bool { return !i.Replayed }) {
			return past // a newer change is pending already
		}
		at = earlier(at, s.lateAt(l.items[n]))
	}
	return at
}

// dropsLate reports whether late items of the lane become dead letters. One under way does not, nor do those that the
// route's next worker delivers.
func (s *schedule) dropsLate(l *lane) bool {
	return s.terms.Late == LateDrop && l.group != "" && !l.busy && !s.leaving
}

// fallsBack reports whether the fallback gets the item when its time has come.
func (s *schedule) fallsBack(i *Item) bool {
	return i.FallbackFor == nil && !i.FellBack && !i.Transient && i.About != s.terms.Fallback.Sink &&
		!s.muteOf(i).Active()
}

// late returns the due items of the lane that a route with LateDrop no longer delivers: those with a newer change after
// them, and a scheduled change whose NotBefore has passed; but none that somebody asked for.
func (s *schedule) late(l *lane, now time.Time) []*Item {
	n := l.lastState()
	if n < 0 {
		return nil
	}
	if at := s.lateAt(l.items[n]); !at.IsZero() && !at.After(now) {
		n++
	}
	return slices.DeleteFunc(slices.Clone(l.items[:n]), func(i *Item) bool { return i.Replayed })
}

// lateAt returns the time at which the item becomes late even if no newer change is pending; zero for never. An item
// whose NotBefore passed while it was muted, or that somebody asked for, never does.
func (s *schedule) lateAt(i *Item) time.Time {
	if i.Change != scheduled || i.Replayed || s.waited(i) && !i.NotBefore.After(s.muteOf(i).Ended) {
		return time.Time{}
	}
	return i.NotBefore
}

// takeOverdue removes the late items from their lanes. It returns them and the items that fall back now, which stay: those
// whose time has come, with what is newer about their event, so that the fallback tells it as it is now.
func (s *schedule) takeOverdue(now time.Time) (late, fallback []*Item) {
	s.advance(now)
	for l := s.deadlines.top(); l != nil && !l.deadline.After(now); l = s.deadlines.top() {
		if s.dropsLate(l) {
			for _, i := range s.late(l, now) {
				late = append(late, i)
				s.removeItem(l, i.Seq)
			}
		}
		if s.terms.Fallback.Sink != "" {
			fallback = append(fallback, s.takeFallback(l, now)...)
		}
		s.reschedule(l, now)
	}
	return late, fallback
}

// takeFallback marks the items of the lane that fall back now, and returns them as they were.
func (s *schedule) takeFallback(l *lane, now time.Time) (fallback []*Item) {
	older := false // one of the same event falls back
	for n, i := range l.items {
		overdue := older && l.group != "" || !s.since(i).Add(s.terms.Fallback.After).After(now)
		if !overdue || !s.fallsBack(i) {
			continue
		}
		older = true
		fallback = append(fallback, i)
		next := *i
		next.FellBack = true
		l.items[n] = &next
	}
	return fallback
}
