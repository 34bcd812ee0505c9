package outbox

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// KeepHistory is how long CloudEvents, and what became of their deliveries, are kept.
const KeepHistory = 90 * 24 * time.Hour

const (
	keepDead = 90 * 24 * time.Hour
	keepOver = 30 * 24 * time.Hour // marks and receipts of groups that are over
)

// A chore is what the writer does between two writes, because it asks the disk.
type chore struct {
	do   func() error
	done chan error
}

// chore has the writer do something. It returns at once; done gives the error.
func (o *Outbox) chore(do func() error) (done chan error) {
	done = make(chan error, 1)
	o.mu.Lock()
	closed := o.closed || o.readOnly
	if !closed {
		o.chores = append(o.chores, chore{do, done})
	}
	o.mu.Unlock()
	if closed {
		done <- errClosed
	}
	o.wake()
	return done
}

// doChores does what was asked for. err is that of the write before.
func (o *Outbox) doChores(err error) {
	o.mu.Lock()
	chores := o.chores
	o.chores = nil
	o.mu.Unlock()
	for _, c := range chores {
		if err == nil {
			o.file.Lock()
			err := c.do()
			if err != nil {
				o.log.Warn("the outbox could not be tidied", "err", err)
			}
			c.done <- err
			o.file.Unlock()
		} else {
			c.done <- err
		}
	}
}

// Maintain drops what is to be remembered no longer. Somebody calls it every now and then, such as every ten minutes.
// It returns at once; done gives the error, once the disk has been asked.
func (o *Outbox) Maintain(now time.Time) (done <-chan error) {
	o.GiveUpOrphans(now)
	aged := 0
	o.change(now, func(c *change) {
		aged = c.dropOldDead()
		c.dropOver()
	})
	if aged > 0 {
		o.log.Warn("dead letters were dropped because of their age", "dropped", aged)
		o.told().forgot(ForgotDeadLetter, aged)
	}
	return o.chore(func() error { return o.dropHistory(now) })
}

// dropHistory drops what is too old, or too much, of the history on disk.
func (o *Outbox) dropHistory(now time.Time) error {
	old, dropped, err := o.oldHistory(now)
	if err != nil {
		o.damaged(err)
		return err
	}
	if dropped > 0 {
		o.log.Warn("the oldest history was dropped, because there is too much of it", "records", dropped,
			"kept", o.bounds.History, "keptBytes", o.bounds.HistoryBytes)
		o.told().forgot(ForgotHistory, dropped)
	}
	if len(old) > 0 {
		o.change(now, func(c *change) {
			for _, w := range old {
				if m := c.messages[w.seq]; w.Bucket == bucketSettled || m == nil || m.uses == 0 {
					c.write(w.Bucket, w.Key, nil)
				}
			}
		})
	}
	return o.writeWaiting()
}

// Compact makes the file smaller if most of it is empty. Nothing else is written meanwhile. It returns at once; done
// gives the error.
func (o *Outbox) Compact() (done <-chan error) {
	return o.chore(func() error {
		err := o.storage.Compact()
		if err != nil {
			o.opened = false // the next write finds out whether it can be used
			o.damaged(err)
		}
		return err
	})
}

func (c *change) dropOldDead() (n int) {
	for _, d := range c.dead {
		if c.now.Sub(d.DeadSince) > keepDead {
			c.forgetDead(d)
			n++
		}
	}
	return n
}

// dropOver forgets the marks and receipts of groups that are over for long, and of the oldest of too many.
func (c *change) dropOver() {
	forgotten := map[string]bool{}
	forget := func(group string) {
		forgotten[group] = true
		delete(c.over, group)
		c.write(bucketOver, group, nil)
	}
	for group, since := range c.over {
		if c.now.Sub(since) > keepOver {
			forget(group)
		}
	}
	if much := len(c.over) - c.bounds.History/4; much > 0 { // a group has a few marks
		oldest := slices.SortedFunc(maps.Keys(c.over), func(a, b string) int { return c.over[a].Compare(c.over[b]) })
		for _, group := range oldest[:much] {
			forget(group)
		}
	}
	remembered := func(group string) bool {
		_, over := c.over[group]
		return over || c.groups[group] != nil
	}
	for id, m := range c.marks {
		if forgotten[m.Group] || !remembered(m.Group) && c.now.Sub(m.At) > keepOver {
			delete(c.marks, id)
			c.write(bucketMarks, id, nil)
		}
	}
	for group, receipts := range c.receipts {
		if remembered(group) {
			continue
		}
		delete(c.receipts, group)
		for name := range receipts {
			c.write(bucketReceipts, group+"/"+name, nil)
		}
	}
}

// oldWrite deletes one record of history.
type oldWrite struct {
	Write
	seq uint64
}

// Grown says whether so much history has come since Maintain that it may be over its bounds by a sixteenth.
func (o *Outbox) Grown() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.grown.n > o.bounds.History/16 || o.grown.bytes > o.bounds.HistoryBytes/16
}

// oldHistory finds what is too old, or too much, of the history on disk; dropped counts the latter.
func (o *Outbox) oldHistory(now time.Time) (old []oldWrite, dropped int, err error) {
	o.mu.Lock()
	o.grown = tally{}
	o.mu.Unlock()
	oldest := seqKey(uint64(now.Add(-KeepHistory).UnixMicro()))
	for _, bucket := range []string{bucketEvents, bucketSettled} { // whose keys sort by age
		var all tally
		err := o.storage.Walk(bucket, "", func(_ string, value []byte) error {
			all.n, all.bytes = all.n+1, all.bytes+len(value)
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
		err = o.storage.Walk(bucket, "", func(key string, value []byte) error {
			much := all.n > o.bounds.History || all.bytes > o.bounds.HistoryBytes
			if key >= oldest && !much {
				return errEnough
			}
			all.n, all.bytes = all.n-1, all.bytes-len(value)
			digits, _, _ := strings.Cut(key, "/")
			seq, err := strconv.ParseUint(digits, 10, 64)
			if err == nil {
				old = append(old, oldWrite{Write{bucket, strings.Clone(key), nil}, seq})
			}
			if key >= oldest {
				dropped++
			}
			return nil
		})
		if err != nil && err != errEnough {
			return nil, 0, err
		}
	}
	return old, dropped, nil
}
