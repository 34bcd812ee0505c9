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

	maintainEvery = 10 * time.Minute
	compactEvery  = 24 * time.Hour
)

// An upkeep is what Maintain asks the writer for.
type upkeep struct {
	now  time.Time
	done chan<- error
}

// Maintain drops what is too old. About every ten minutes, or if the history has grown a lot, it also drops history on
// disk, and once a day it shrinks the file if most of it is free. Call it about once a second. It returns at once; the
// channel gets the error of what it does on disk.
func (o *Outbox) Maintain(now time.Time) <-chan error {
	o.mu.Lock()
	grown := o.grown.n > o.bounds.History/16 || o.grown.bytes > o.bounds.HistoryBytes/16
	due := grown && o.state != failing || now.Sub(o.maintained) >= maintainEvery
	if due {
		o.maintained, o.grown = now, tally{}
	}
	o.mu.Unlock()
	aged := 0
	o.Update(now, func(tx *Tx) {
		if due {
			aged = tx.dropOldLetters()
			tx.dropEnded(o.bounds.History / 4) // a group has a few marks
		}
	})
	if aged > 0 {
		o.log.Warn("dead letters dropped because of their age", "dropped", aged)
		o.currentCallbacks().forgot(ForgotDeadLetter, aged)
	}
	done := make(chan error, 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !due:
		done <- nil
	case o.state == closed, o.readOnly:
		done <- errClosed
	default:
		o.upkeeps = append(o.upkeeps, upkeep{now, done})
		wake(o.kick)
	}
	return done
}

// maintainFile drops history, and shrinks the file. It does nothing after a failed try to write.
func (o *Outbox) maintainFile(now time.Time, failed error) error {
	if failed != nil {
		return failed
	}
	file := o.fileNumber()
	err := o.dropHistory(now)
	if err == nil && now.Sub(o.compacted) >= compactEvery {
		o.compacted = now
		err = o.storage.Compact()
	}
	if err != nil {
		o.log.Warn("cannot maintain the outbox", "err", o.noteDamage(file, err))
	}
	return err
}

// dropOldLetters drops dead letters because of their age, and returns their number.
func (tx *Tx) dropOldLetters() (dropped int) {
	for _, d := range tx.letters() {
		if tx.now.Sub(d.DeadSince) > keepDead {
			tx.remove(d)
			dropped++
		}
	}
	return dropped
}

// dropEnded deletes the marks and receipts of groups that ended long ago and, if more than most have ended, of the
// oldest ones.
func (tx *Tx) dropEnded(most int) {
	var ids []string
	for id, g := range tx.groups {
		if !g.ended.IsZero() {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return tx.groups[a].ended.Compare(tx.groups[b].ended) })
	for n, id := range ids {
		g := tx.groups[id]
		if tx.now.Sub(g.ended) <= keepEnded && len(ids)-n <= most {
			break
		}
		tx.write(bucketEnded, id, nil)
		for _, markID := range g.marks {
			delete(tx.marks, markID)
			tx.write(bucketMarks, markID, nil)
		}
		for route := range g.receipts {
			tx.write(bucketReceipts, id+"/"+route, nil)
		}
		clear(g.receipts)
		g.marks, g.ended = nil, time.Time{}
		tx.dropIfEmpty(id)
	}
}

// dropHistory drops history on disk that is too old or over its bounds.
func (o *Outbox) dropHistory(now time.Time) error {
	oldest := seqKey(uint64(max(0, now.Add(-KeepHistory).UnixMicro())))
	var old []address
	for _, bucket := range []string{bucketEvents, bucketSettled} {
		var all tally
		err := o.walkWriting(bucket, func(_ string, value []byte) error {
			all.add(1, len(value))
			return nil
		})
		if err == nil {
			err = o.walkWriting(bucket, func(key string, value []byte) error {
				much := all.n > o.bounds.History || all.bytes > o.bounds.HistoryBytes
				if key >= oldest && !much {
					return errEnough
				}
				all.add(-1, -len(value))
				old = append(old, address{bucket, key})
				return nil
			})
		}
		if err != nil && err != errEnough {
			return err
		}
	}
	dropped := 0 // because of the bounds, not of age
	o.change(now, func(tx *Tx) {
		for _, p := range old {
			if tx.message(p.seq()) == nil {
				tx.write(p.bucket, p.key, nil)
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

// walkWriting walks a whole bucket. A disk may be slow, so from time to time it writes what waits meanwhile.
func (o *Outbox) walkWriting(bucket string, f func(key string, value []byte) error) error {
	for from := ""; ; {
		began, next := time.Now(), ""
		err := o.storage.Walk(bucket, from, func(key string, value []byte) error {
			o.diskAnswers()
			err := f(key, value)
			if err == nil && time.Since(began) > groupWait {
				next = key + "\x00"
				return errEnough
			}
			return err
		})
		if next == "" {
			return err
		}
		err = o.writeWaiting()
		if err != nil {
			return err
		}
		from = next
	}
}
