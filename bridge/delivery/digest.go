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

// A waveState records what came lately of one wave.
type waveState struct {
	arrivals []time.Time // times of the latest, at most Digest.Above
	complete time.Time   // when those that wait become one batch
}

// gather counts an item that became due. It returns the time until which the item waits for others, zero for none.
func (s *schedule) gather(i *Item, now time.Time) time.Time {
	d := s.terms.Digest
	if d.Above <= 0 || i.Group == "" {
		return time.Time{}
	}
	old := func(at time.Time) bool { return now.Sub(at) >= d.Within }
	maps.DeleteFunc(s.waves, func(_ wave, g waveState) bool {
		return old(g.arrivals[len(g.arrivals)-1]) && !g.complete.After(now)
	})
	g := s.waves[i.wave()]
	g.arrivals = slices.DeleteFunc(g.arrivals, old)
	wait := len(g.arrivals) >= d.Above
	if wait {
		g.arrivals = g.arrivals[1:]
	}
	g.arrivals = append(g.arrivals, now)
	wait = wait && !i.soon(now)
	if wait && !g.complete.After(now) {
		g.complete = now.Add(d.Within)
	}
	s.waves[i.wave()] = g
	if !wait {
		return time.Time{}
	}
	return g.complete
}

// afterMute reports whether the lane goes into one batch with all others that waited for a mute.
func (s *schedule) afterMute(l *lane) bool { return s.terms.Digest.Above > 0 && l.newest().waited() }

// digestOf returns the lanes that become one batch with the first, which may be attempted now: that one alone, its
// wave, or all that waited for a mute. It scans every lane, but seldom, because many lanes go at once then.
func (s *schedule) digestOf(first *lane) []*lane {
	above := s.terms.Digest.Above
	if above <= 0 || s.single > 0 || s.blocked || first.alone {
		return []*lane{first}
	}
	lanes := []*lane{first}
	muted := s.afterMute(first)
	for _, l := range s.lanes {
		if l == first || !s.idle(l) || l.alone || l.part(LateLatest) != 0 {
			continue
		}
		if muted && s.afterMute(l) || !muted && l.group != "" && l.newest().wave() == first.newest().wave() {
			lanes = append(lanes, l)
		}
	}
	if len(lanes) <= above && first.digestAt.IsZero() && !muted {
		return lanes[:1]
	}
	slices.SortFunc(lanes, before)
	return lanes[:min(len(lanes), maxDigest)]
}
