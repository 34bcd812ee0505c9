package relay

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"
)

// group returns the group with a key. It reads the record from the bucket if it isn't in memory.
func (q *queue) group(key string) (*group, error) {
	q.mu.Lock()
	g := q.groups[key]
	q.mu.Unlock()
	if g != nil {
		return g, nil
	}
	g = &group{entry: entry{key: key}, pending: map[string]uint64{}}
	var err error
	g.entry.rev, err = q.bucket.get(q.ctx, key, &g.rec)
	if errors.Is(err, errUnreadable) {
		q.log.Error("what a sink remembers can't be read; it counts as nothing", "key", key, "err", err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.groups) >= 2*maxGroups {
		q.evictGroups()
	}
	q.groups[key] = g
	return g, nil
}

// evictGroups drops groups that aren't in use until maxGroups are left. mu is held.
func (q *queue) evictGroups() {
	for key, g := range q.groups {
		if len(g.pending) == 0 && !q.dirty[g] {
			delete(q.groups, key)
		}
		if len(q.groups) <= maxGroups {
			return
		}
	}
}

// markDirty counts a change of a record, so that it gets saved. mu is held.
func (q *queue) markDirty(g *group) {
	g.version++
	q.dirty[g] = true
}

// save writes the records of groups to the bucket, also just after the lease has ended, so that a delivery that was
// accepted at that moment isn't repeated. That does no harm: if another relay has written a record since, it fails.
func (q *queue) save(groups []*group) error {
	if len(groups) == 0 {
		return nil
	}
	q.saving <- struct{}{}
	defer func() { <-q.saving }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.ctx), requestTimeout)
	defer cancel()
	errs := make([]error, len(groups))
	slots := make(chan struct{}, maxWriters)
	var all sync.WaitGroup
	for n, g := range groups {
		slots <- struct{}{}
		all.Go(func() {
			errs[n] = q.saveGroup(ctx, g)
			<-slots
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	if errors.Is(err, errOvertaken) {
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
	err = q.bucket.save(ctx, &g.entry, body)
	if errors.Is(err, errOvertaken) {
		err = q.writeOver(context.WithoutCancel(ctx), g, body, err) // each request has a timeout of its own
	}
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	g.savedVersion = version
	if g.version == version {
		delete(q.dirty, g)
	}
	for _, seq := range g.settled[:settled] {
		delete(q.unsaved, seq)
		delete(q.openSeqs, seq)
	}
	g.settled = slices.Clone(g.settled[settled:])
	return nil
}

// writeOver writes a group's record over one that a slow relay wrote just as its lease ended. It returns overtaken if
// another relay may hold the lease now, or if that record has results that the group does not have.
func (q *queue) writeOver(ctx context.Context, g *group, body []byte, overtaken error) error {
	var c cursor
	if rev, err := q.bucket.get(ctx, q.cursor.key, &c); err != nil || rev != q.cursor.rev || q.ctx.Err() != nil {
		return overtaken // another relay has opened a queue for the sink since
	}
	var late record
	rev, err := q.bucket.get(ctx, g.entry.key, &late)
	switch {
	case err != nil && !errors.Is(err, errUnreadable):
		return err
	case q.knowsMore(late, g):
		return overtaken
	}
	g.entry.rev, g.entry.unanswered = rev, nil
	return q.bucket.save(ctx, &g.entry, body)
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

// setSaveErr records why the bucket can't be written, nil if it can, and logs the first of such errors.
func (q *queue) setSaveErr(err error) {
	q.mu.Lock()
	was := q.saveErr
	q.saveErr = err
	q.mu.Unlock()
	if err != nil && was == nil {
		q.log.Warn("what was delivered can't be recorded, trying again", "err", err)
	}
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
	if !q.nextLead.IsZero() && !q.nextLead.After(time.Now()) {
		wake(q.changed)
	}
}

// flush writes all records that aren't saved yet, and then the cursor if it is time.
func (q *queue) flush() {
	q.mu.Lock()
	var unsaved []*group
	for g := range q.dirty {
		unsaved = append(unsaved, g)
	}
	read, readAt := q.lastRead, q.lastReadAt
	q.mu.Unlock()
	if q.save(unsaved) == nil {
		q.mu.Lock()
		q.savedRead, q.savedReadAt = read, readAt
		q.mu.Unlock()
		q.advance()
		_ = q.saveCursor(context.WithoutCancel(q.ctx), q.ctx.Err() != nil) // an older cursor loses nothing
	}
}
