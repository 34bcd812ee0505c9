package delivery

import (
	"maps"
	"slices"
	"time"
)

const (
	digestNotice = 2 * time.Minute // an event with less notice waits for no digest
	maxDigest    = 500             // largest number of lanes in a digest
)

// arrivals holds the recent arrivals of one wave.
type arrivals struct {
	times    []time.Time // of the latest items, at most Digest.Above of them
	digestAt time.Time   // when the waiting items become one batch
}

// countArrival counts an item that became due. It returns the time until which the item waits for others; zero if it
// does not wait.
func (s *schedule) countArrival(i *Item, now time.Time) time.Time {
	d := s.terms.Digest
	if d.Above <= 0 || i.Group == "" {
		return time.Time{}
	}
	old := func(at time.Time) bool { return now.Sub(at) >= d.Within }
	maps.DeleteFunc(s.waves, func(_ wave, g arrivals) bool {
		return old(g.times[len(g.times)-1]) && !g.digestAt.After(now)
	})
	g := s.waves[i.wave()]
	g.times = slices.DeleteFunc(g.times, old)
	wait := len(g.times) >= d.Above
	if wait {
		g.times = g.times[1:]
	}
	g.times = append(g.times, now)
	wait = wait && !i.soon(now)
	if wait && !g.digestAt.After(now) {
		g.digestAt = now.Add(d.Within)
	}
	s.waves[i.wave()] = g
	if !wait {
		return time.Time{}
	}
	return g.digestAt
}

// inSummary reports whether the lane is delivered in one batch with all others that waited for a mute.
func (s *schedule) inSummary(l *lane) bool { return s.terms.Digest.Above > 0 && l.newest().waited() }

// digestLanes returns the lanes that make up one batch with first, which may be attempted now: only first, the lanes of
// its wave, or all lanes that waited for a mute. It looks at every lane, but runs rarely: a digest delivers many at
// once.
func (s *schedule) digestLanes(first *lane) []*lane {
	above := s.terms.Digest.Above
	if above <= 0 || s.apart() || first.alone {
		return []*lane{first}
	}
	lanes := []*lane{first}
	summary := s.inSummary(first)
	for _, l := range s.lanes {
		if l == first || !s.idle(l) || l.alone || l.partialBatch(LateLatest) != 0 {
			continue
		}
		if summary && s.inSummary(l) || !summary && l.group != "" && l.newest().wave() == first.newest().wave() {
			lanes = append(lanes, l)
		}
	}
	if len(lanes) <= above && first.digestAt.IsZero() && !summary {
		return lanes[:1]
	}
	slices.SortFunc(lanes, before)
	return lanes[:min(len(lanes), maxDigest)]
}
