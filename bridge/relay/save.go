package relay

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"forewarn/bridge/internal/streams"
)

// loadGroup reads the record with a key into memory.
func (q *queue) loadGroup(key string) error {
	g := &group{entry: streams.Entry{Key: key}, pending: map[string]uint64{}}
	var err error
	g.entry.Rev, err = q.bucket.Get(q.ctx, key, &g.rec)
	if errors.Is(err, streams.ErrUnreadable) {
		q.log.Error("what a sink remembers can't be read; it counts as nothing", "key", key, "err", err)
		err = nil
	}
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.records.groups[key] = g
	return nil
}

// evictGroups drops groups that aren't in use until maxGroups are left. mu is held.
func (q *queue) evictGroups() {
	for key, g := range q.records.groups {
		if len(g.pending) == 0 && !q.records.dirty[g] {
			delete(q.records.groups, key)
		}
		if len(q.records.groups) <= maxGroups {
			return
		}
	}
}

// markDirty counts a change of a record, so that it gets saved. mu is held.
func (q *queue) markDirty(g *group) {
	g.version++
	q.records.dirty[g] = true
}

// save writes the records of groups to the bucket, also just after the lease has ended, so that a delivery that was
// accepted at that moment isn't repeated. That does no harm: if another relay has written a record since, it fails.
func (q *queue) save(groups []*group) error {
	if len(groups) == 0 {
		return nil
	}
	q.saving <- struct{}{}
	defer func() { <-q.saving }()
	return q.saveEach(groups)
}

// saveSoon is save, unless records can't be written just now: then keepSaving tries again, and nobody waits for that.
func (q *queue) saveSoon(groups []*group) {
	if len(groups) == 0 || q.saveErr() != nil {
		return
	}
	q.saving <- struct{}{}
	defer func() { <-q.saving }()
	if q.saveErr() == nil { // an attempt that was under way has not failed
		_ = q.saveEach(groups) // records.err holds the error
	}
}

func (q *queue) saveErr() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.records.err
}

// saveEach implements save. saving is held.
func (q *queue) saveEach(groups []*group) error {
	ctx := context.WithoutCancel(q.ctx) // each request has a timeout of its own
	// atOnce ends with the first error, so what failed last comes last.
	slices.SortFunc(groups, func(a, b *group) int { return a.failedAt.Compare(b.failedAt) })
	err := atOnce(len(groups), func(n int) error {
		g := groups[n]
		err := q.saveGroup(ctx, g)
		g.failedAt = time.Time{}
		if err != nil {
			g.failedAt = time.Now()
		}
		return err
	})
	if errors.Is(err, streams.ErrOvertaken) {
		q.endLease(err)
	}
	q.setSaveErr(err)
	return err
}

// saveGroup writes one record, unless it is saved already. Then what was settled in it is settled for good.
func (q *queue) saveGroup(ctx context.Context, g *group) error {
	q.mu.Lock()
	body, err := json.Marshal(g.rec)
	version, settled := g.version, len(g.settled)
	q.mu.Unlock()
	if err != nil {
		return err
	}
	if version == g.savedVersion {
		return nil
	}
	err = q.bucket.Save(ctx, &g.entry, body)
	if errors.Is(err, streams.ErrOvertaken) {
		err = q.writeOver(ctx, g, body, err)
	}
	if err != nil {
		return err
	}
	q.ack(q.markSaved(g, version, settled)...)
	return nil
}

// markSaved records that a version of a group is in the bucket, and returns what can be acknowledged now.
func (q *queue) markSaved(g *group, version, settled int) (replies []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	g.savedVersion = version
	if g.version == version {
		delete(q.records.dirty, g)
		settled = len(g.settled) // what ackWhenSaved added meanwhile changed nothing
	}
	for _, s := range g.settled[:settled] {
		delete(q.records.unsaved, s.seq)
		if s.reply != "" {
			replies = append(replies, s.reply)
		}
		if s.sent {
			q.records.ahead--
		}
	}
	g.settled = slices.Clone(g.settled[settled:])
	q.noteRoom()
	return replies
}

// ackWhenSaved has a message acknowledged that is settled, when the record of its group is saved. mu is held.
func (q *queue) ackWhenSaved(g *group, seq uint64, reply string) {
	if !q.records.dirty[g] {
		q.records.unacked = append(q.records.unacked, reply)
		return
	}
	q.records.unsaved[seq] = true
	g.settled = append(g.settled, settlement{seq: seq, reply: reply})
}

// writeOver writes a group's record over one that a slow relay wrote just as its lease ended. It returns overtaken if
// another relay may hold the lease now, or if that record has results that the group does not have.
func (q *queue) writeOver(ctx context.Context, g *group, body []byte, overtaken error) error {
	if !q.lease.valid() || q.ctx.Err() != nil {
		return overtaken
	}
	var late record
	rev, err := q.bucket.Get(ctx, g.entry.Key, &late)
	switch {
	case err != nil && !errors.Is(err, streams.ErrUnreadable):
		return err
	case q.knowsMore(late, g):
		return overtaken
	}
	g.entry.Rev, g.entry.Unanswered = rev, nil
	return q.bucket.Save(ctx, &g.entry, body)
}

// knowsMore reports whether a record has results that a group does not have. The group takes its receipt from the record
// if it has none.
func (q *queue) knowsMore(late record, g *group) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id := range late.Settled {
		if _, known := g.rec.Settled[id]; !known {
			return true
		}
	}
	if g.rec.Receipt == nil && late.Receipt != nil {
		g.rec.Receipt = late.Receipt
		q.markDirty(g)
	}
	return false
}

// setSaveErr records why records can't be written, and logs the first of such errors. It ends when each of them is written.
// saving is held.
func (q *queue) setSaveErr(err error) {
	q.mu.Lock()
	was := q.records.err
	if err != nil || !q.anyUnwritable() {
		q.records.err = err
	}
	q.mu.Unlock()
	if err != nil && was == nil {
		q.log.Warn("what was delivered can't be recorded, trying again", "err", err)
	}
}

// anyUnwritable reports whether a record could not be written, and isn't since. saving and mu are held.
func (q *queue) anyUnwritable() bool {
	for g := range q.records.dirty {
		if !g.failedAt.IsZero() {
			return true
		}
	}
	return false
}

// keepSaving calls flush regularly until the lease ends, and once more then. It also wakes the Worker when a lead has come:
// by the clock, which may be set.
func (q *queue) keepSaving() {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-q.ctx.Done():
			q.flush()
			return
		case <-tick.C:
			q.flush()
			q.wakeForLead()
		}
	}
}

func (q *queue) wakeForLead() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.updates.nextLead.IsZero() && !q.updates.nextLead.After(time.Now()) {
		wake(q.updates.wake)
	}
}

// unsaved returns the groups whose records aren't saved.
func (q *queue) unsaved() []*group {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Keys(q.records.dirty))
}

// flush writes all records that aren't saved yet, and acknowledges what can be.
func (q *queue) flush() {
	unsaved := q.unsaved()
	q.mu.Lock()
	stale := q.records.state.Blocked != q.notices.published || time.Since(q.records.stateSaved) >= stateEvery
	due := stale || q.ctx.Err() != nil
	q.mu.Unlock()
	err := q.save(unsaved)                                // which records.err holds
	if due && !errors.Is(err, context.DeadlineExceeded) { // then nobody answers
		_ = q.saveState(context.WithoutCancel(q.ctx)) // an older one loses nothing
	}
	q.ack()
}
