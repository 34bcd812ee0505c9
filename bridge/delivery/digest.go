package delivery

import (
	"maps"
	"slices"
	"time"
)

const (
	soonNotice = 2 * time.Minute // less notice than this waits for no digest
	maxDigest  = 500             // deliveries in one
)

// gathered is what came lately of one wave.
type gathered struct {
	came []time.Time // the latest, at most as many as make no digest yet
	done time.Time   // when those that wait now become one batch
}

// gather counts an item that became due. It gives the time until which it waits for others; zero if it does not wait.
func (s *schedule) gather(i *Item, now time.Time) time.Time {
	d := s.terms.Digest
	if d.Above <= 0 || i.Group == "" {
		return time.Time{}
	}
	old := func(at time.Time) bool { return now.Sub(at) >= d.Within }
	maps.DeleteFunc(s.waves, func(_ wave, g gathered) bool { return old(g.came[len(g.came)-1]) && !g.done.After(now) })
	g := s.waves[i.wave()]
	g.came = slices.DeleteFunc(g.came, old)
	wait := len(g.came) >= d.Above
	if wait {
		g.came = g.came[1:]
	}
	g.came = append(g.came, now)
	wait = wait && !i.soon(now)
	if wait && !g.done.After(now) {
		g.done = now.Add(d.Within)
	}
	s.waves[i.wave()] = g
	if !wait {
		return time.Time{}
	}
	return g.done
}

// summed reports whether the lane is told in one batch with all others that waited for a mute.
func (s *schedule) summed(l *lane) bool { return s.terms.Digest.Above > 0 && l.newest().waited() }

// digest are the lanes of which one batch is made, the first of which may be attempted now: itself alone, its wave, or
// all that waited for a mute. It looks at every lane, which is rare: what is too much to be told one by one goes
// together.
func (s *schedule) digest(first *lane) []*lane {
	above := s.terms.Digest.Above
	if above <= 0 || s.single > 0 || s.blocked || first.alone {
		return []*lane{first}
	}
	lanes := []*lane{first}
	summed := s.summed(first)
	for _, l := range s.lanes {
		if l == first || !s.idle(l) || l.alone || l.part(LateLatest) != 0 {
			continue
		}
		if summed && s.summed(l) || !summed && l.group != "" && l.newest().wave() == first.newest().wave() {
			lanes = append(lanes, l)
		}
	}
	if len(lanes) <= above && first.gathered.IsZero() && !summed {
		return lanes[:1]
	}
	slices.SortFunc(lanes, before)
	return lanes[:min(len(lanes), maxDigest)]
}
