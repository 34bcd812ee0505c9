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
	number uint64
	writes []Write
	bodies []*message // whose bodies it holds
}

// A journal is what is on its way to the disk.
type journal struct {
	number  uint64        // of the last batch
	waiting []*batch      // not on disk, in order
	under   int           // how many of them are in the transaction under way
	writes  int           // how many writes they have got since they were merged, while the disk fails
	merged  int           // how many there were then
	grown   tally         // by how much the history has, since Maintain last bounded it
	try     uint64        // counts tries to write
	failing error         // of the last one; nil: all is on disk, or soon is
	broken  error         // what is in the file is damaged, or another VM's: it isn't to be used any more
	tried   chan struct{} // closed when a try to write is over
	chores  []func(error)
	timer   *time.Timer // wakes the writer soon; nil: nothing asks for that
	closed  bool
}

// submit makes one change of state. wait returns when it is on disk, or when the disk is known to fail.
func (o *Outbox) submit(now time.Time, f func(*change)) (wait func() error) {
	if o.readOnly {
		return func() error { return ErrReadOnly }
	}
	n := o.change(now, f)
	wake(o.kick)
	return func() error { return o.sync(n) }
}

// change makes one change of state, and gives the number of the batch that makes it durable, 0 if there is nothing to
// make durable.
func (o *Outbox) change(now time.Time, f func(*change)) (n uint64) {
	o.mu.Lock()
	c := &change{memory: &o.memory, now: now, batch: &batch{number: o.number + 1}}
	f(c)
	c.bound(o.bounds, o.failing != nil)
	forgotten := 0
	if len(c.writes) > 0 {
		n, o.number = c.number, c.number
		o.waiting = append(o.waiting, c.batch)
		for _, w := range c.writes {
			if isHistory(w.Bucket) && w.Value != nil {
				o.grown.add(1, len(w.Value))
			}
		}
		if o.failing != nil {
			o.release(c.batch)
			if o.writes += len(c.writes); o.writes > o.merged/8+4*o.bounds.InMemory {
				forgotten = o.merge(nil)
			}
		}
	}
	kept, notify := o.dead.n, o.notify
	o.mu.Unlock()
	if c.lost > 0 {
		o.log.Error("dead letters were dropped, the oldest first", "dropped", c.lost, "kept", kept)
		notify.forgot(ForgotDeadLetter, c.lost)
	}
	if forgotten > 0 {
		o.log.Warn("history was dropped, because the outbox cannot be written", "records", forgotten)
		notify.forgot(ForgotHistory, forgotten)
	}
	if len(c.died) > 0 && notify.Dead != nil {
		notify.Dead(c.died)
	}
	return n
}

// release lets readers and followers have what the batch added. mu is held.
func (o *Outbox) release(b *batch) {
	if b.number <= o.released {
		return
	}
	o.released = b.number
	for _, r := range o.routes {
		if r.reader != nil && len(r.reader.dirty) > 0 {
			wake(r.reader.changed)
		}
	}
	for _, m := range b.bodies {
		if m.body != nil {
			o.show(m.body)
		}
	}
}

// merge makes one batch of all that wait and aren't being written, and of more writes. The last value of each key
// counts. While the disk fails the oldest history is dropped, if there is too much of it: forgotten says how much.
// mu is held.
func (o *Outbox) merge(more []Write) (forgotten int) {
	if len(o.waiting) == o.under && len(more) == 0 {
		return 0
	}
	whole := &batch{number: o.stored}
	var lists [][]Write
	for _, b := range o.waiting[o.under:] {
		lists = append(lists, b.writes)
		whole.number = b.number
		whole.bodies = append(whole.bodies, b.bodies...)
	}
	room := map[string]int{bucketEvents: 2 * o.bounds.InMemory, bucketSettled: 2 * o.bounds.InMemory}
	for _, w := range slices.Backward(inKeyOrder(append(lists, more))) {
		seq, _ := seqOf(w.Key)
		m := o.messages[seq]
		switch used := w.Bucket == bucketEvents && m != nil && m.uses > 0; {
		case o.failing == nil, !isHistory(w.Bucket), w.Value == nil, used:
		case room[w.Bucket] > 0:
			room[w.Bucket]--
		default:
			if forgotten++; w.Bucket == bucketEvents && m != nil {
				m.body = nil
				delete(o.messages, seq)
			}
			continue
		}
		whole.writes = append(whole.writes, *w)
	}
	whole.bodies = slices.DeleteFunc(whole.bodies, func(m *message) bool { return m.body == nil })
	o.waiting = append(slices.Clone(o.waiting[:o.under]), whole)
	o.writes, o.merged = 0, len(whole.writes)
	return forgotten
}

// sync returns when the batch is on disk. While the disk is known to fail nobody waits for it. A try to write that
// takes longer than diskPatience counts as failed.
func (o *Outbox) sync(n uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.stored < n {
		switch {
		case o.failing != nil:
			return o.failing
		case o.closed:
			return errClosed
		}
		tried := o.tried
		o.mu.Unlock()
		wake(o.kick)
		<-tried
		o.mu.Lock()
	}
	return nil
}

// syncSoon has what waits written within groupWait, together with what comes until then.
func (o *Outbox) syncSoon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer == nil && !o.closed && o.stored < o.number {
		o.timer = time.AfterFunc(groupWait, func() { wake(o.kick) })
	}
}

// damaged notes that a read failed, and returns the error. A file that is damaged is dealt with at once.
func (o *Outbox) damaged(err error) error {
	if errors.Is(err, ErrDamaged) && !o.readOnly {
		o.mu.Lock()
		o.broken = err
		o.mu.Unlock()
		wake(o.kick)
	}
	return err
}

// stop ends the writer. It returns false when that hangs.
func (o *Outbox) stop() bool {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	wake(o.kick)
	select {
	case <-o.done:
		return true
	case <-time.After(diskPatience):
		return false
	}
}

// writer writes what waits, whenever that is asked for. It ends after the try that follows stop.
func (o *Outbox) writer() {
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
		o.mu.Lock()
		chores := o.chores
		o.chores = nil
		o.mu.Unlock()
		for _, do := range chores {
			slow := o.slow()
			do(err)
			if !slow.Stop() {
				wake(o.kick) // the next write says that it is over
			}
		}
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
	defer o.slow().Stop()
	o.file.Lock()
	defer o.file.Unlock()
	o.mu.Lock()
	err := o.broken
	o.broken = nil
	o.mu.Unlock()
	var loaded bool
	if errors.Is(err, errForeign) {
		o.opened, o.known, err = false, false, nil
	}
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
		wake(o.loaded) // unless it has yet to tell of the last one
	}
	return err
}

// slow begins another try to ask the disk, which counts as failing when that isn't over, and the timer stopped, in time.
func (o *Outbox) slow() *time.Timer {
	try := o.nextTry()
	return time.AfterFunc(diskPatience, func() { o.fail(errSlowDisk, try) })
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
	under := slices.Clone(o.waiting)
	if errors.Is(o.broken, errForeign) {
		under = nil
	}
	o.under = len(under)
	o.mu.Unlock()
	if len(under) == 0 {
		return nil
	}
	batches := make([][]Write, len(under))
	for i, b := range under {
		batches[i] = b.writes
	}
	err := o.storage.Write(batches)
	if err != nil {
		o.opened = false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.under = 0
	if err != nil || errors.Is(o.broken, errForeign) { // then what was written counts no more
		return err
	}
	for _, b := range under {
		o.stored = b.number
		o.release(b)
		for _, m := range b.bodies {
			if m.body = nil; m.uses == 0 {
				delete(o.messages, m.Seq)
			}
		}
	}
	o.waiting = slices.Clone(o.waiting[len(under):])
	o.unstored(false)
	return nil
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
	close(o.tried)
	o.tried = make(chan struct{})
	if err == nil && o.broken != nil {
		wake(o.kick)
	}
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
