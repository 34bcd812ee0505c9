package delivery

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"time"
)

// maxDigest is the largest number of lanes in a digest.
const maxDigest = 500

// pick makes an attempt that begins with the lane. Its lanes are busy from then on.
func (s *schedule) pick(first *lane, now time.Time) attempt {
	a := attempt{began: now, mutes: s.mutes}
	part := first.partialBatch(s.terms.Late)
	limit := max(1, s.terms.Batch)
	switch {
	case part != 0:
		if s.terms.DigestAbove > 0 {
			limit = math.MaxInt // otherwise the batch may be one that a reload left to another kind of sink
		}
		for _, l := range slices.Concat([]*lane{first}, s.partialBatches[part]) {
			if !l.busy && len(a.batch) < limit {
				s.join(&a, l, part, limit-len(a.batch), now)
			}
		}
	case first.isolated || s.health == blocked:
		s.join(&a, first, 0, 1, now)
	case s.terms.Late == LateLatest && (first.group != "" || s.inSummary(first)):
		for _, l := range s.digestLanes(first) {
			s.join(&a, l, 0, math.MaxInt, now)
		}
	default:
		for l := first; l != nil && len(a.batch) < limit; l = s.ready.top() {
			if l != first && !s.mayJoin(l) {
				break
			}
			s.join(&a, l, 0, limit-len(a.batch), now)
		}
	}
	s.sort(a.batch) // a batch that made progress as before
	return a
}

// mayJoin reports whether the lane may be part of a batch of other lanes, other than a digest.
func (s *schedule) mayJoin(l *lane) bool {
	return !l.isolated && l.partialBatch(s.terms.Late) == 0 && !(s.terms.Late == LateLatest && l.group != "")
}

// sort orders the items of a batch: what matters most comes first where only the latest changes are delivered, else the
// oldest.
func (s *schedule) sort(batch []*Item) {
	slices.SortFunc(batch, func(a, b *Item) int {
		if s.terms.Late == LateLatest {
			if d := a.compare(b); d != 0 {
				return d
			}
		}
		return cmp.Compare(a.Seq, b.Seq)
	})
}

// join adds the lane's share of a batch to the attempt, at most limit items. It leaves out those whose progress is not
// that of the others: they were repeated apart from them, before a reload.
func (s *schedule) join(a *attempt, l *lane, part uint64, limit int, now time.Time) {
	batch, superseded := l.split(s.terms.Late, part)
	joined := len(a.batch)
	for _, i := range batch[:min(limit, len(batch))] {
		if len(a.batch) > 0 && !bytes.Equal(i.Progress, a.batch[0].Progress) {
			break
		}
		a.batch = append(a.batch, i)
	}
	if len(a.batch) == joined {
		return
	}
	a.superseded = append(a.superseded, superseded...)
	a.lanes = append(a.lanes, l)
	// Items that arrive later are not in this attempt.
	l.busy, l.urgent, l.tried = true, false, now
	s.reschedule(l, now)
}

// inSummary reports whether the lane is delivered in one batch with all others that waited for a mute.
func (s *schedule) inSummary(l *lane) bool { return s.terms.DigestAbove > 0 && s.waited(l.newest()) }

// digestLanes returns the lanes that make up one batch with first, which may be attempted now: only first, the lanes of
// its wave, or all lanes that waited for a mute. It looks at every lane, but runs rarely: a digest delivers many at
// once.
func (s *schedule) digestLanes(first *lane) []*lane {
	above := s.terms.DigestAbove
	if above <= 0 {
		return []*lane{first}
	}
	lanes := []*lane{first}
	summary := s.inSummary(first)
	for _, l := range s.lanes {
		if l == first || !s.idle(l) || l.isolated || l.partialBatch(LateLatest) != 0 {
			continue
		}
		if summary && s.inSummary(l) || !summary && l.group != "" && l.newest().wave() == first.newest().wave() {
			lanes = append(lanes, l)
		}
	}
	if len(lanes) <= above && !summary {
		return lanes[:1]
	}
	slices.SortFunc(lanes, before)
	return lanes[:min(len(lanes), maxDigest)]
}
