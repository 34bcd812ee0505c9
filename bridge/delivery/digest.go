package delivery

import (
	"slices"
	"time"
)

const (
	soonNotice = 2 * time.Minute // less notice than this waits for no digest
	maxDigest  = 500             // deliveries in one
)

// gathered is what came lately of one wave, and which idle lanes hold it.
type gathered struct {
	came  []time.Time // the latest, at most as many as make no digest yet
	done  time.Time   // when those that wait now become one batch
	lanes map[*lane]bool
}

// gather counts an item that became due. It gives the time until which it waits for others; zero if it does not wait.
func (s *schedule) gather(i *Item, now time.Time) time.Time {
	d := s.terms.Digest
	if d.Above <= 0 || i.Group == "" {
		return time.Time{}
	}
	g := s.wave(i.wave())
	g.came = slices.DeleteFunc(g.came, func(at time.Time) bool { return now.Sub(at) >= d.Within })
	if len(g.came) < d.Above {
		g.came = append(g.came, now)
		return time.Time{}
	}
	g.came = append(g.came[1:], now)
	if i.soon(now) {
		return time.Time{}
	}
	if !g.done.After(now) {
		g.done = now.Add(d.Within)
	}
	return g.done
}

func (s *schedule) wave(w wave) *gathered {
	g := s.waves[w]
	if g == nil {
		g = &gathered{lanes: map[*lane]bool{}}
		s.waves[w] = g
	}
	return g
}

// enlist files the lane under the wave of its newest item while it is idle.
func (s *schedule) enlist(l *lane, idle bool, now time.Time) {
	if s.terms.Digest.Above <= 0 || l.group == "" {
		return
	}
	if g := s.waves[l.wave]; g != nil {
		delete(g.lanes, l)
		old := len(g.came) == 0 || now.Sub(g.came[len(g.came)-1]) >= s.terms.Digest.Within
		if len(g.lanes) == 0 && old && !g.done.After(now) {
			delete(s.waves, l.wave)
		}
	}
	if idle {
		l.wave = l.newest().wave()
		s.wave(l.wave).lanes[l] = true
	}
}

// digest are the lanes of which one batch is made, the first of which may be attempted now: itself alone, or its wave.
func (s *schedule) digest(first *lane, now time.Time) []*lane {
	above := s.terms.Digest.Above
	if above <= 0 || s.single > 0 || s.blocked || first.alone {
		return []*lane{first}
	}
	lanes := []*lane{first}
	for l := range s.wave(first.newest().wave()).lanes {
		if l != first && !l.alone && l.part(LateLatest) == 0 {
			lanes = append(lanes, l)
		}
	}
	if len(lanes) <= above && first.gathered.IsZero() {
		return lanes[:1]
	}
	slices.SortFunc(lanes, before)
	return lanes[:min(len(lanes), maxDigest)]
}
