package outbox

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"
	"time"
)

// The times of the writer.
const (
	groupWait    = 50 * time.Millisecond // how long a report may wait for others
	diskPatience = 5 * time.Second       // how long a change waits for the disk before it goes on from memory
	diskRetry    = 5 * time.Second
	newerRetry   = time.Minute // of a file that stays as it is until somebody acts
)

var (
	errSlowDisk = errors.New("the disk takes too long")
	errClosed   = errors.New("outbox closed")
)

// A batch is all that makes one change durable, and who waits for that. It is written whole or not at all.
type batch struct {
	number   uint64
	writes   []Write
	bodies   []*message    // whose bodies it holds
	added    []*entry      // pending because of it
	letters  []*deadLetter // dead because of it
	offers   []*entry      // that readers get when it is durable, or when the disk fails
	reported map[*route]int
	released bool // the offers were made
}

// A journal is what is on its way to the disk.
type journal struct {
	number  uint64   // of the last batch
	stored  uint64   // of the last one that is on disk
	waiting []*batch // not on disk, in order
	writes  int      // how many writes they hold
	under   int      // how many of them are in the transaction under way
	merged  int      // how many writes were left when waiting batches were last merged
	history int      // how many of the writes since then are history, or may become it
	broken  error    // that a read met: the file is damaged
	try     uint64   // counts tries to write
	failing error    // of the last one; nil: all is on disk, or soon is
	anew    bool     // what is in the file is another VM's: it is to be opened anew
	waiters []waiter
	chores  []chore
	timer   *time.Timer // wakes the writer soon; nil: nothing asks for that
	closed  bool
}

// A waiter waits for a batch to be on disk.
type waiter struct {
	number uint64
	done   chan error
}

// change makes one change of state, and gives the number of the batch that makes it durable, 0 if there is nothing to
// make durable.
func (o *Outbox) change(now time.Time, f func(*change)) uint64 {
	o.mu.Lock()
	c := &change{memory: &o.memory, now: now, batch: &batch{reported: map[*route]int{}}}
	f(c)
	c.bound(o.failing != nil)
	var dropped int // records of history
	var n uint64
	if len(c.writes) > 0 {
		o.number++
		c.number = o.number
		n = o.number
		for r, count := range c.reported {
			r.reported += count
		}
		o.waiting = append(o.waiting, c.batch)
		o.writes += len(c.writes)
		if o.failing != nil {
			for _, w := range c.writes {
				if w.Value != nil && (w.Bucket == bucketEvents || w.Bucket == bucketSettled) {
					o.history++
				}
			}
			o.release(c.batch)
			dropped = o.merge()
		}
	}
	kept, notify := len(o.dead), o.notify
	o.mu.Unlock()
	if c.lost > 0 {
		o.log.Error("dead letters were dropped, the oldest first", "dropped", c.lost, "kept", kept)
		notify.forgot(ForgotDeadLetter, c.lost)
	}
	if dropped > 0 {
		o.log.Warn("history was dropped, because the outbox cannot be written", "records", dropped)
		notify.forgot(ForgotHistory, dropped)
	}
	if len(c.died) > 0 && notify.Dead != nil {
		notify.Dead(c.died)
	}
	return n
}

// apply makes one change of state and waits until it is on disk.
func (o *Outbox) apply(now time.Time, f func(*change)) error {
	if o.readOnly {
		return ErrReadOnly
	}
	return o.sync(o.change(now, f))
}

func (n Notify) forgot(what string, count int) {
	if n.Forgot != nil {
		n.Forgot(what, count)
	}
}

// release lets readers and followers have what the batch added. mu is held.
func (o *Outbox) release(b *batch) {
	if b.released {
		return
	}
	b.released = true
	for _, e := range b.offers {
		if !e.gone {
			e.offered = true
			e.route.reader.give(e)
		}
	}
	for _, m := range b.bodies {
		if m.body != nil {
			o.show(m.body)
		}
	}
	b.offers = nil
}

// sync returns when the batch is on disk. While the disk is known to fail nobody waits for it.
func (o *Outbox) sync(n uint64) error {
	o.mu.Lock()
	switch {
	case o.stored >= n:
		o.mu.Unlock()
		return nil
	case o.closed:
		o.mu.Unlock()
		return errClosed
	case o.failing != nil:
		defer o.mu.Unlock()
		return o.failing
	}
	// The next try to write answers within diskPatience.
	w := waiter{n, make(chan error, 1)}
	o.waiters = append(o.waiters, w)
	o.mu.Unlock()
	o.wake()
	return <-w.done
}

// syncSoon has what waits written within groupWait, together with what comes until then.
func (o *Outbox) syncSoon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer == nil && !o.closed && o.stored < o.number {
		o.timer = time.AfterFunc(groupWait, o.wake)
	}
}

// damaged notes that a read failed. A file that is damaged is dealt with at once.
func (o *Outbox) damaged(err error) {
	if !errors.Is(err, ErrDamaged) || o.readOnly {
		return
	}
	o.mu.Lock()
	o.broken = err
	o.mu.Unlock()
	o.wake()
}

func (o *Outbox) wake() {
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

// stop ends the writer. It returns false when that hangs.
func (o *Outbox) stop() bool {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.wake()
	select {
	case <-o.done:
		return true
	case <-time.After(diskPatience):
		return false
	}
}

// write is the writer. It ends after the try that follows stop.
func (o *Outbox) write() {
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-o.kick:
		case <-retry.C:
		}
		o.mu.Lock()
		last := o.closed
		if o.timer != nil {
			o.timer.Stop()
			o.timer = nil
		}
		o.mu.Unlock()
		err := o.flush()
		o.doChores(err)
		retry.Stop()
		switch {
		case last:
			return
		case errors.Is(err, errNewer):
			retry.Reset(newerRetry)
		case err != nil:
			retry.Reset(diskRetry)
		}
	}
}

// flush makes one try to write all that waits. When that takes too long the disk counts as failing until it is over.
func (o *Outbox) flush() error {
	try := o.nextTry()
	slow := time.AfterFunc(diskPatience, func() { o.fail(errSlowDisk, try) })
	defer slow.Stop()
	o.file.Lock()
	defer o.file.Unlock()
	o.mu.Lock()
	broken := o.broken
	if o.anew {
		o.opened, o.known = false, false
	}
	o.broken, o.anew = nil, false
	o.mu.Unlock()
	var loaded bool
	err := broken
	if err == nil {
		loaded, err = o.open()
	}
	if err == nil {
		err = o.writeWaiting()
	}
	if errors.Is(err, ErrDamaged) {
		if err = o.rescue(err); err == nil {
			err = o.writeWaiting()
		}
	}
	o.fail(err, o.nextTry())
	if loaded {
		select {
		case o.loaded <- struct{}{}:
		default: // the messenger has yet to tell of the last one
		}
	}
	return err
}

// nextTry begins another try, or the end of one. What is said about those before counts no more.
func (o *Outbox) nextTry() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.try++
	return o.try
}

// writeWaiting writes all batches that wait in one transaction. file is held.
func (o *Outbox) writeWaiting() error {
	o.mu.Lock()
	if o.anew {
		o.mu.Unlock()
		return nil // the file is another VM's
	}
	under := slices.Clone(o.waiting)
	o.under = len(under)
	o.mu.Unlock()
	var err error
	if len(under) > 0 {
		batches := make([][]Write, len(under))
		for i, b := range under {
			batches[i] = b.writes
		}
		err = o.storage.Write(batches)
	}
	if err != nil {
		o.opened = false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.under = 0
	if err != nil || o.anew { // what was written counts no more
		return err
	}
	for _, b := range under {
		o.settleBatch(b)
	}
	o.waiting = slices.Clone(o.waiting[len(under):])
	return nil
}

// startAnew forgets what waits, and has the writer open the file anew. mu is held.
func (o *Outbox) startAnew() {
	o.waiting, o.writes, o.under, o.merged, o.history = nil, 0, 0, 0, 0
	o.stored = o.number
	o.anew = true
}

// settleBatch notes that the batch is on disk. mu is held.
func (o *Outbox) settleBatch(b *batch) {
	o.stored = b.number
	o.writes -= len(b.writes)
	o.release(b)
	for _, e := range b.added {
		if !e.gone {
			o.settleStored(e)
		}
	}
	for _, d := range b.letters {
		if !d.gone {
			o.settleDeadStored(d)
		}
	}
	for _, m := range b.bodies {
		m.body = nil
		if m.uses == 0 {
			delete(o.messages, m.seq)
		}
	}
	for r, n := range b.reported {
		r.reported -= n
	}
}

// fail notes how a try to write went, says so when that is news, and lets those go on who wait for it.
func (o *Outbox) fail(err error, try uint64) {
	o.mu.Lock()
	if try != o.try {
		o.mu.Unlock()
		return
	}
	was := o.failing
	o.failing = err
	o.waiters = slices.DeleteFunc(o.waiters, func(w waiter) bool {
		if err == nil && w.number > o.stored {
			return false
		}
		if w.number <= o.stored {
			w.done <- nil
		} else {
			w.done <- err
		}
		return true
	})
	more := err == nil && (len(o.waiters) > 0 || o.anew)
	if err != nil {
		for _, b := range o.waiting {
			o.release(b)
		}
	}
	o.mu.Unlock()
	switch {
	case err != nil && was == nil:
		o.log.Error("the outbox cannot be written; running from memory: a crash would lose pending deliveries",
			"file", o.path, "err", err, "hint", diskHint(err))
	case err == nil && was != nil:
		o.log.Info("the outbox is written again, nothing is missing", "file", o.path)
	}
	if err != nil {
		o.change(time.Now(), func(*change) {}) // there is less room now
	}
	if more {
		o.wake()
	}
}

// diskHint is what an operator can do about a file that can't be written.
func diskHint(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "let the user that forewarn runs as write there, or name another directory with the key state"
	case errors.Is(err, syscall.ENOSPC):
		return "make room on the disk; it is tried again by itself"
	case errors.Is(err, syscall.EROFS):
		return "mount it writable, or name another directory with the key state"
	}
	return "it is tried again by itself"
}
