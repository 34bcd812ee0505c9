package relay

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"
)

// group is the record of that key, read from the bucket if need be.
func (q *queue) group(key string) (*group, error) {
	q.mu.Lock()
	g := q.groups[key]
	q.mu.Unlock()
	if g != nil {
		return g, nil
	}
	g = &group{key: key, pending: map[string]uint64{}}
	rev, err := q.bucket.get(q.term, key, &g.rec)
	if errors.Is(err, errUnreadable) {
		q.log.Error("what a sink remembers can't be read; it counts as nothing", "key", key, "err", err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	g.rev = rev
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.groups) >= 2*maxGroups {
		for key, old := range q.groups {
			if len(old.pending) == 0 && !q.dirty[old] {
				delete(q.groups, key)
			}
			if len(q.groups) <= maxGroups {
				break
			}
		}
	}
	q.groups[key] = g
	return g, nil
}

// note counts a change of a record, which is to be written. mu is held.
func (q *queue) note(g *group) {
	g.version++
	q.dirty[g] = true
}

// save writes records, and settles for good what ended in them.
func (q *queue) save(groups []*group) error {
	if len(groups) == 0 {
		return nil
	}
	q.saving <- struct{}{}
	defer func() { <-q.saving }()
	// What a sink accepted as the lease ended is written all the same, if nobody else has written since.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.term), requestTimeout)
	defer cancel()
	errs := make([]error, len(groups))
	places := make(chan struct{}, writers)
	var all sync.WaitGroup
	for n, g := range groups {
		places <- struct{}{}
		all.Go(func() {
			errs[n] = q.saveOne(ctx, g)
			<-places
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	if errors.Is(err, errOvertaken) {
		q.lost(err)
	}
	q.failed(err)
	return err
}

func (q *queue) saveOne(ctx context.Context, g *group) error {
	q.mu.Lock()
	body, err := json.Marshal(g.rec)
	changes, ended := g.version, len(g.settled)
	q.mu.Unlock()
	if err == nil && changes == g.savedVersion {
		return nil // somebody else wrote it
	}
	rev := g.rev
	if err == nil {
		rev, err = q.bucket.put(ctx, g.key, body, g.rev)
	}
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	g.rev, g.savedVersion = rev, changes
	if g.version == changes {
		delete(q.dirty, g)
	}
	for _, seq := range g.settled[:ended] {
		delete(q.unsaved, seq)
		delete(q.open, seq)
	}
	g.settled = slices.Clone(g.settled[ended:])
	return nil
}

// failed notes why the bucket can't be written, nil when it can.
func (q *queue) failed(err error) {
	q.mu.Lock()
	was := q.saveErr
	q.saveErr = err
	q.mu.Unlock()
	if err != nil && was == nil {
		q.log.Warn("what was delivered can't be recorded, trying again", "err", err)
	}
}

// advance drops what is settled in front, and lets the reader go on.
func (q *queue) advance() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.order) > 0 && q.pending[q.order[0]] == nil && !q.unsaved[q.order[0]] {
		q.order = q.order[1:]
	}
	if len(q.order) > 2*q.most { // one in front holds up the cursor
		q.order = slices.DeleteFunc(q.order, func(seq uint64) bool { return q.pending[seq] == nil && !q.unsaved[seq] })
	}
	wake(q.released)
}

// now is the cursor as things are. mu is held.
func (q *queue) now() cursor {
	c := cursor{After: q.read, Stream: q.created}
	if len(q.order) > 0 {
		c.After = q.order[0] - 1
	}
	for seq := range q.open {
		c.Open = append(c.Open, seq)
	}
	slices.Sort(c.Open)
	return c
}

// keep writes what could not be written before, and the cursor when it has moved, until the lease ends.
func (q *queue) keep() {
	tick := time.NewTicker(saveAgain)
	defer tick.Stop()
	for {
		select {
		case <-q.term.Done():
			q.flush()
			return
		case <-tick.C:
		}
		q.flush()
	}
}

// flush writes all records that wait, and the cursor if it is time.
func (q *queue) flush() {
	q.mu.Lock()
	var waiting []*group
	for g := range q.dirty {
		waiting = append(waiting, g)
	}
	q.mu.Unlock()
	if q.save(waiting) == nil {
		q.advance()
		_ = q.saveCursor(context.WithoutCancel(q.term), q.term.Err() != nil) // it is no loss
	}
}

// saveCursor writes the cursor when it has moved; with always, in any case.
func (q *queue) saveCursor(ctx context.Context, always bool) error {
	q.saving <- struct{}{}
	defer func() { <-q.saving }()
	if !always && time.Since(q.written) < cursorEvery {
		return nil
	}
	q.mu.Lock()
	c := q.now()
	same := c.After == q.cursor.After && len(c.Open) == len(q.cursor.Open)
	q.mu.Unlock()
	if same && !always && time.Since(q.written) < cursorAtLeast {
		return nil
	}
	body, err := json.Marshal(c)
	if err == nil {
		var rev uint64
		rev, err = q.bucket.put(ctx, cursorKey(q.route.Name), body, q.cursorRev)
		if err == nil {
			q.cursorRev = rev
		}
	}
	if err != nil {
		if errors.Is(err, errOvertaken) {
			q.lost(err)
		}
		return err
	}
	q.written = time.Now()
	q.mu.Lock()
	q.cursor = c
	q.mu.Unlock()
	return nil
}
