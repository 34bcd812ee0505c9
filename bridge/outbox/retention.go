package outbox

import (
	"slices"
	"time"
)

// KeepHistory is how long CloudEvents and the results of their deliveries are kept.
const KeepHistory = 90 * 24 * time.Hour

const (
	keepDead  = 90 * 24 * time.Hour
	keepEnded = 30 * 24 * time.Hour // marks and receipts of groups that have ended
)

// addJob makes the writer run do between two writes, because do reads or writes the disk. It returns at once; the
// channel gets the error.
func (o *Outbox) addJob(do func() error) <-chan error {
	done := make(chan error, 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == closed || o.readOnly {
		done <- errClosed
		return done
	}
	o.jobs = append(o.jobs, func(err error) { // err is that of the write before
		if err == nil {
			if err = do(); err != nil {
				o.log.Warn("cannot maintain the outbox", "err", o.noteDamage(err))
			}
		}
		done <- err
	})
	wake(o.kick)
	return done
}

// Maintain drops expired records. Call it regularly, about every ten minutes. It returns at once; done returns the
// error after the disk was read.
func (o *Outbox) Maintain(now time.Time) (done <-chan error) {
	o.GiveUpOrphans(now)
	aged := 0
	o.change(now, func(c *change) {
		for _, d := range c.letters() {
			if now.Sub(d.DeadSince) > keepDead {
				c.remove(d)
				aged++
			}
		}
		c.dropEnded(o.bounds.History / 4) // a group has a few marks
	})
	if aged > 0 {
		o.log.Warn("dead letters dropped because of their age", "dropped", aged)
		o.currentCallbacks().forgot(ForgotDeadLetter, aged)
	}
	return o.addJob(func() error { return o.dropHistory(now) })
}

// Compact shrinks the file if most of it is free. Nothing else is written meanwhile. It returns at once; done returns
// the error.
func (o *Outbox) Compact() (done <-chan error) {
	return o.addJob(o.storage.Compact)
}

// dropEnded deletes the marks and receipts of groups that ended long ago and, if more than most have ended, of the
// oldest ones.
func (c *change) dropEnded(most int) {
	var ids []string
	for id, g := range c.groups {
		if !g.ended.IsZero() {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return c.groups[a].ended.Compare(c.groups[b].ended) })
	for n, id := range ids {
		g := c.groups[id]
		if c.now.Sub(g.ended) <= keepEnded && len(ids)-n <= most {
			break
		}
		c.write(bucketEnded, id, nil)
		for _, m := range g.marks {
			c.write(bucketMarks, id+m.rest, nil)
		}
		for _, r := range g.receipts {
			c.write(bucketReceipts, id+"/"+r.route, nil)
		}
		g.ended, g.marks, g.receipts = time.Time{}, nil, nil
		c.dropIfEmpty(id)
	}
}

// Grown reports whether the history has grown by more than a sixteenth of its bounds since Maintain last bounded it.
func (o *Outbox) Grown() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.grown.n > o.bounds.History/16 || o.grown.bytes > o.bounds.HistoryBytes/16
}

// dropHistory drops history on disk that is too old or over its bounds.
func (o *Outbox) dropHistory(now time.Time) error {
	o.mu.Lock()
	o.grown = tally{}
	o.mu.Unlock()
	oldest := seqKey(uint64(max(0, now.Add(-KeepHistory).UnixMicro())))
	var old []place
	for _, bucket := range []string{bucketEvents, bucketSettled} {
		var all tally
		err := o.storage.Walk(bucket, "", func(_ string, value []byte) error {
			o.diskAnswers()
			all.add(1, len(value))
			return nil
		})
		if err == nil {
			err = o.storage.Walk(bucket, "", func(key string, value []byte) error {
				much := all.n > o.bounds.History || all.bytes > o.bounds.HistoryBytes
				if key >= oldest && !much {
					return errEnough
				}
				o.diskAnswers()
				all.add(-1, -len(value))
				old = append(old, place{bucket, key})
				return nil
			})
		}
		if err != nil && err != errEnough {
			return err
		}
	}
	dropped := 0 // because of the bounds, not of age
	o.change(now, func(c *change) {
		for _, p := range old {
			if c.message(p.seq()) == nil {
				c.write(p.bucket, p.key, nil)
				if p.key >= oldest {
					dropped++
				}
			}
		}
	})
	if dropped > 0 {
		o.log.Warn("oldest history dropped: over its bounds", "records", dropped,
			"kept", o.bounds.History, "keptBytes", o.bounds.HistoryBytes)
		o.currentCallbacks().forgot(ForgotHistory, dropped)
	}
	return o.writeWaiting()
}
