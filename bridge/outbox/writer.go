package outbox

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The times of the writer.
const (
	groupWait    = 50 * time.Millisecond // how long a report may wait for others
	openPatience = 15 * time.Second      // how long Open waits for the disk's next answer
	diskPatience = 5 * time.Second       // how long a change waits for the disk's next answer
	diskRetry    = 5 * time.Second
)

var (
	errSlowDisk  = errors.New("the disk takes too long")
	errClosed    = errors.New("outbox closed")
	errNotJoined = errors.New("the file was read late, and its records are still being taken over")
)

// A place is a record's address in the storage: its bucket and key.
type place struct{ bucket, key string }

// records map places to their new content: nil deletes the record, other values go through encode when they are
// written.
type records map[place]any

// seq returns the sequence number of the CloudEvent that the record is or belongs to; 0 for other records.
func (p place) seq() uint64 {
	switch p.bucket {
	case bucketEvents, bucketPending, bucketDead, bucketSettled:
		seq, _ := seqOf(p.key)
		return seq
	}
	return 0
}

// encode returns the records as writes, in order.
func (r records) encode() []Write {
	writes := make([]Write, 0, len(r))
	for p, v := range r {
		writes = append(writes, Write{p.bucket, p.key, encode(v)})
	}
	slices.SortFunc(writes, func(a, b Write) int {
		return cmp.Or(strings.Compare(a.Bucket, b.Bucket), strings.Compare(a.Key, b.Key))
	})
	return writes
}

// A journal holds the records to write. One transaction makes all waiting records count, so the file always has the
// state after a whole change.
type journal struct {
	number         uint64        // of the last change
	waiting        records       // in which the file differs from memory
	inFlight       records       // those being written
	bounded        int           // the number of both when boundHistory last ran
	historyDropped int           // dropped records of history that Callbacks.Forgot was not yet called with
	grown          tally         // by how much the history has grown since Maintain last bounded it
	try            uint64        // number of the current try or job; endTry ignores earlier ones
	failing        error         // error of the last try; nil: all is on disk, or soon is
	broken         error         // the file is damaged, or another VM's, and must not be used
	tryDone        chan struct{} // closed when a try to write has ended
	jobs           []func(error)
	timer          *time.Timer // wakes the writer soon; nil if it need not
	closed         bool
}

// submit makes one change of state. wait returns when the change is on disk, or with an error when the disk fails.
func (o *Outbox) submit(now time.Time, f func(*change)) (wait func() error) {
	if o.readOnly {
		return func() error { return ErrReadOnly }
	}
	n := o.change(now, f)
	wake(o.kick)
	return func() error { return o.sync(n) }
}

// change makes one change of state and returns its number, 0 if there is nothing to make durable.
func (o *Outbox) change(now time.Time, f func(*change)) (n uint64) {
	o.mu.Lock()
	c := &change{memory: &o.memory, now: now, number: o.number + 1, writes: o.waiting, messages: map[uint64]*message{}}
	f(c)
	// What a slow disk is about to store is only late, and not lost before a crash.
	late := errors.Is(o.failing, errSlowDisk) || errors.Is(o.failing, errNotJoined)
	c.enforceBounds(o.bounds, o.failing != nil && !late)
	for _, body := range c.added {
		o.publish(body)
	}
	forgotten := 0
	if c.wrote {
		n, o.number = c.number, c.number
		if o.failing != nil {
			o.wakeReaders()
			o.boundHistory()
		}
		forgotten, o.historyDropped = o.historyDropped, 0
	}
	kept, callbacks := o.dead.n, o.callbacks
	o.mu.Unlock()
	for _, d := range c.lost {
		o.log.Error("a pending CloudEvent is lost; the latest change of its event is delivered instead", "sink", d.Route,
			"id", d.ID)
	}
	if c.deadDropped > 0 {
		o.log.Error("oldest dead letters dropped: over their bounds", "dropped", c.deadDropped, "kept", kept)
		callbacks.forgot(ForgotDeadLetter, c.deadDropped)
	}
	if forgotten > 0 {
		o.log.Warn("history dropped: the outbox cannot be written", "records", forgotten)
		callbacks.forgot(ForgotHistory, forgotten)
	}
	if len(c.newDead) > 0 && callbacks.Dead != nil {
		callbacks.Dead(c.newDead)
	}
	return n
}

// boundHistory drops the oldest waiting history above a bound, except what is still asked for. It does so only when much
// was added since the last time. The caller holds mu.
func (o *Outbox) boundHistory() {
	if len(o.inFlight)+len(o.waiting) <= o.bounded+4*o.bounds.InMemory {
		return
	}
	old := map[string][]string{} // keys, by bucket
	for p, v := range o.waiting {
		if isHistory(p.bucket) && v != nil && o.message(p.seq()) == nil {
			old[p.bucket] = append(old[p.bucket], p.key)
		}
	}
	for bucket, keys := range old {
		slices.Sort(keys)
		for _, key := range keys[:max(0, len(keys)-2*o.bounds.InMemory)] {
			delete(o.waiting, place{bucket, key})
			o.historyDropped++
		}
	}
	o.bounded = len(o.inFlight) + len(o.waiting)
}

// wakeReaders wakes readers that may see more than before. The caller holds mu.
func (o *Outbox) wakeReaders() {
	for _, r := range o.routes {
		if r.reader != nil && len(r.reader.dirty) > 0 {
			wake(r.reader.changed)
		}
	}
}

// sync returns when the change is on disk. While the disk fails it returns an error at once. A transaction that takes
// longer than diskPatience counts as failed.
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
		tryDone := o.tryDone
		o.mu.Unlock()
		wake(o.kick)
		<-tryDone
		o.mu.Lock()
	}
	return nil
}

// syncSoon makes the writer write the waiting records within groupWait, with those added until then.
func (o *Outbox) syncSoon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer == nil && !o.closed && o.stored < o.number {
		o.timer = time.AfterFunc(groupWait, func() { wake(o.kick) })
	}
}

// noteDamage returns the error of a read. If the file is damaged, the writer handles that at once.
func (o *Outbox) noteDamage(err error) error {
	if errors.Is(err, ErrDamaged) && !o.readOnly {
		o.mu.Lock()
		o.broken = err
		o.mu.Unlock()
		wake(o.kick)
	}
	return err
}

// openFirst opens the storage for Open, unless that waits no longer. It returns false if Open fails.
func (o *Outbox) openFirst() bool {
	tried := sync.OnceFunc(func() { close(o.first) })
	defer tried()
	try := o.nextTry()
	o.limit = openPatience
	o.patience = time.AfterFunc(o.limit, func() {
		o.endTry(errSlowDisk, try)
		tried()
	})
	err := o.open()
	o.patience.Stop()
	last := o.nextTry()
	o.mu.Lock()
	late := o.started
	if errors.Is(err, ErrLocked) && !late {
		o.locked = err
		o.mu.Unlock()
		return false
	}
	o.mu.Unlock()
	if err != nil || !late { // otherwise the write that follows ends the failure
		o.endTry(err, last)
	}
	return true
}

// writer is a goroutine that writes the waiting records on request. It ends after the write that follows Close.
func (o *Outbox) writer() {
	if !o.openFirst() {
		return
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	var notBefore time.Time // after a failure: what changes meanwhile doesn't make the disk work
	for {
		select {
		case <-o.kick:
		case <-retry.C:
		}
		o.mu.Lock()
		last := o.closed
		if !last && len(o.jobs) == 0 && o.broken == nil && time.Now().Before(notBefore) {
			o.mu.Unlock()
			continue
		}
		if o.timer != nil {
			o.timer.Stop()
			o.timer = nil
		}
		o.mu.Unlock()
		err := o.flush()
		o.mu.Lock()
		jobs := o.jobs
		o.jobs = nil
		o.mu.Unlock()
		for _, do := range jobs {
			o.patience = o.watchDisk()
			do(err)
			if !o.patience.Stop() {
				wake(o.kick) // the next write ends that failure
			}
		}
		retry.Stop()
		if last {
			return
		}
		if err != nil {
			retry.Reset(diskRetry)
		}
		if err != nil && !errors.Is(err, errNotJoined) { // which ends when Join is called
			notBefore = time.Now().Add(diskRetry)
		}
	}
}

// flush tries once to write all waiting records. If a transaction takes too long, the disk counts as failing until all
// is written.
func (o *Outbox) flush() error {
	o.patience = o.watchDisk()
	defer o.patience.Stop()
	o.mu.Lock()
	err := o.broken
	o.broken = nil
	o.mu.Unlock()
	if errors.Is(err, errForeign) {
		o.opened, o.known, err = false, false, nil
	}
	if err == nil {
		err = o.openAndWrite()
	}
	if errors.Is(err, ErrDamaged) {
		if err = o.replaceDamaged(err); err == nil {
			err = o.writeWaiting()
		}
	}
	o.endTry(err, o.nextTry())
	return err
}

// openAndWrite opens the storage if it isn't open, and writes all waiting records. To a late file nothing is written before
// Join: it would replace records by newer ones that lack their content, and a crash would lose that.
func (o *Outbox) openAndWrite() error {
	if err := o.open(); err != nil {
		return err
	}
	o.mu.Lock()
	late := o.late != nil
	o.mu.Unlock()
	if late {
		return errNotJoined
	}
	return o.writeWaiting()
}

// watchDisk begins a disk operation. Unless the caller stops the timer in time, the disk counts as failing.
func (o *Outbox) watchDisk() *time.Timer {
	try := o.nextTry()
	o.limit = diskPatience
	return time.AfterFunc(o.limit, func() { o.endTry(errSlowDisk, try) })
}

// diskAnswers begins the wait for the disk anew: what is large may take long, as long as the disk answers.
func (o *Outbox) diskAnswers() {
	if o.patience != nil { // it is nil where nobody waits: see OpenReadOnly
		o.patience.Reset(o.limit)
	}
}

// nextTry begins another try, or ends one. Reports about earlier tries are ignored from then on.
func (o *Outbox) nextTry() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.try++
	return o.try
}

// writeWaiting writes all waiting records, in one transaction.
func (o *Outbox) writeWaiting() error {
	o.mu.Lock()
	if len(o.waiting) == 0 || errors.Is(o.broken, errForeign) {
		o.mu.Unlock()
		return nil
	}
	number, inFlight := o.number, o.waiting
	o.inFlight, o.waiting, o.tried = inFlight, records{}, o.last
	o.mu.Unlock()
	writes := inFlight.encode()
	err := o.storage.Write(writes)
	o.mu.Lock()
	defer o.mu.Unlock()
	if errors.Is(o.broken, errForeign) { // the file that was written is no longer used
		return err
	}
	o.inFlight, o.bounded = nil, 0
	if err != nil {
		o.opened = false
		maps.Copy(inFlight, o.waiting)
		o.waiting = inFlight
		o.boundHistory()
		return err
	}
	o.stored = number
	o.wakeReaders()
	for _, w := range writes {
		if isHistory(w.Bucket) && w.Value != nil {
			o.grown.add(1, len(w.Value))
		}
	}
	o.unstored(false)
	return nil
}

// endTry records the result of a try (nil: it succeeded), logs whether the disk fails or works again, and wakes the
// callers that wait for it.
func (o *Outbox) endTry(err error, try uint64) {
	o.mu.Lock()
	if try != o.try {
		o.mu.Unlock()
		return
	}
	was := o.failing
	o.failing = err
	close(o.tryDone)
	o.tryDone = make(chan struct{})
	if err == nil && o.broken != nil {
		wake(o.kick)
	}
	if err != nil {
		o.wakeReaders()
	}
	o.mu.Unlock()
	switch {
	case err != nil && (was == nil || errors.Is(err, ErrLocked) && !errors.Is(was, ErrLocked)):
		o.log.Error("the outbox cannot be written; running from memory: a crash would lose pending deliveries",
			"file", o.path, "err", err, "hint", diskHint(err))
	case err == nil && was != nil:
		o.log.Info("outbox written again; nothing is lost", "file", o.path)
	}
	if err != nil {
		o.change(time.Now(), func(*change) {}) // the bounds are lower now
	}
}

// diskHint returns the remedy for a file that cannot be written.
func diskHint(err error) string {
	switch {
	case errors.Is(err, ErrLocked):
		return "stop the other one; both deliver until then"
	case errors.Is(err, fs.ErrPermission):
		return "let the user that forewarn runs as write there, or name another directory with the key state"
	case errors.Is(err, syscall.ENOSPC):
		return "make room on the disk; it is tried again by itself"
	case errors.Is(err, syscall.ENOTDIR):
		return "name a directory with the key state"
	case errors.Is(err, syscall.EROFS):
		return "mount it writable, or name another directory with the key state"
	}
	return "it is tried again by itself"
}
