package outbox

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
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
	errNotJoined = errors.New("the file could be read only now, and its records are still being taken over")
)

// A state is what the writer has come to.
type state int

const (
	opening state = iota // Open waits for the file
	healthy              // everything older than 50 ms is on disk, or being written
	slow                 // the disk gives no answer, or its file waits for Join: what is written later is not lost
	failing              // the disk can't be written, and is tried again every few seconds
	closed               // the writer tries once more, and ends
)

// stateAfter returns the state after a try to write.
func stateAfter(err error) state {
	switch {
	case err == nil:
		return healthy
	case errors.Is(err, errSlowDisk), errors.Is(err, errNotJoined):
		return slow
	}
	return failing
}

// An address is a record's address in the storage: its bucket and key.
type address struct{ bucket, key string }

// records map addresses to their new content: nil deletes the record, other values go through encode when they are
// written.
type records map[address]any

// seq returns the sequence number of the CloudEvent that the record is or belongs to; 0 for other records.
func (a address) seq() uint64 {
	switch a.bucket {
	case bucketEvents, bucketPending, bucketDead, bucketSettled:
		seq, _ := seqOf(a.key)
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
	number         uint64  // of the last change
	waiting        records // in which the file differs from memory
	inFlight       records // those being written
	bounded        int     // the number of both when boundHistory last ran
	historyDropped int     // dropped records of history that Callbacks.Forgot was not yet called with
	grown          tally   // by how much the history has grown since Maintain last bounded it
}

// change makes one change of state and returns its number, 0 if there is nothing to make durable.
func (o *Outbox) change(now time.Time, f func(*Tx)) (n uint64) {
	o.mu.Lock()
	tx := &Tx{
		memory: &o.memory, outbox: o, now: now, number: o.number + 1, writes: o.waiting, messages: map[uint64]*message{},
	}
	f(tx)
	tx.dropOrphans()
	tx.enforceBounds(o.bounds, o.state == failing)
	for _, body := range tx.added {
		o.publish(body)
	}
	forgotten := 0
	if tx.wrote {
		n, o.number = tx.number, tx.number
		if o.why != nil {
			o.wakeReaders()
			o.boundHistory()
		}
		forgotten, o.historyDropped = o.historyDropped, 0
	}
	kept, callbacks := o.dead.n, o.callbacks
	o.mu.Unlock()
	for _, d := range tx.lost {
		o.log.Error("a pending CloudEvent is lost; the latest change of its event is delivered instead", "sink", d.Route,
			"id", d.ID)
	}
	if tx.deadDropped > 0 {
		o.log.Error("oldest dead letters dropped: over their bounds", "dropped", tx.deadDropped, "kept", kept)
		callbacks.forgot(ForgotDeadLetter, tx.deadDropped)
	}
	if forgotten > 0 {
		o.log.Warn("history dropped: the outbox cannot be written", "records", forgotten)
		callbacks.forgot(ForgotHistory, forgotten)
	}
	if len(tx.newDead) > 0 && callbacks.Dead != nil {
		callbacks.Dead(tx.newDead)
	}
	return n
}

// forget drops what waits to be written, and has the file set aside, because it is another VM's. The caller holds mu.
func (o *Outbox) forget(foreign error) {
	clear(o.waiting)
	o.inFlight = nil
	o.stored, o.unusable = o.number, foreign
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
			delete(o.waiting, address{bucket, key})
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
	if o.stored < n {
		wake(o.kick)
	}
	for o.stored < n && o.why == nil && o.state != closed {
		o.tried.Wait()
	}
	switch {
	case o.stored >= n:
		return nil
	case o.why != nil:
		return o.why
	}
	return errClosed
}

// syncSoon makes the writer write the waiting records within groupWait, with those added until then.
func (o *Outbox) syncSoon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.soon == nil && o.state != closed && o.stored < o.number {
		o.soon = time.AfterFunc(groupWait, func() { wake(o.kick) })
	}
}

// fileNumber returns the number of the file. A reader asks for it before it reads: see noteDamage.
func (o *Outbox) fileNumber() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.file
}

// noteDamage returns the error of a read of the file with that number. If that file is damaged and still in use, the writer
// handles that at once.
func (o *Outbox) noteDamage(file uint64, err error) error {
	if errors.Is(err, ErrDamaged) && !o.readOnly {
		o.mu.Lock()
		if file == o.file && o.unusable == nil {
			o.unusable = err
		}
		o.mu.Unlock()
		wake(o.kick)
	}
	return err
}

// write is a goroutine that opens the file, writes the waiting records on request, and then does the upkeep that was asked
// for before. Only it writes to the storage. It ends after Close, and if Open fails.
func (o *Outbox) write() {
	defer close(o.done)
	for {
		o.mu.Lock()
		last, upkeeps := o.state == closed, o.upkeeps
		o.upkeeps = nil
		if o.soon != nil {
			o.soon.Stop()
			o.soon = nil
		}
		o.mu.Unlock()
		err := o.watched(o.flush)
		if errors.Is(err, ErrLocked) && o.refuse(err) {
			return
		}
		o.ended(err, o.nextOperation())
		for _, u := range upkeeps {
			_ = o.watched(func() error {
				u.done <- o.maintainFile(u.now, err)
				return nil
			})
			o.ended(err, o.nextOperation())
		}
		if last {
			return
		}
		o.awaitWork(err)
	}
}

// refuse makes Open fail, unless that waits no longer.
func (o *Outbox) refuse(err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != opening {
		return false
	}
	o.state, o.why = closed, err
	o.tried.Broadcast()
	return true
}

// awaitWork returns when the writer is to try again. After a failure it waits, whatever changes: that doesn't make the
// disk work.
func (o *Outbox) awaitWork(err error) {
	var retry <-chan time.Time
	if err != nil {
		retry = time.After(diskRetry)
	}
	for {
		select {
		case <-retry:
			return
		case <-o.kick:
		}
		o.mu.Lock()
		resting := o.state == failing && len(o.upkeeps) == 0
		o.mu.Unlock()
		if !resting {
			return
		}
	}
}

// watched does something with the disk. If that gives no sign of life for too long, the disk counts as slow.
func (o *Outbox) watched(do func() error) error {
	n := o.nextOperation()
	o.patience = time.AfterFunc(o.limit(), func() { o.ended(errSlowDisk, n) })
	defer o.patience.Stop()
	return do()
}

// diskAnswers begins the wait for the disk anew: what is large may take long, as long as the disk answers.
func (o *Outbox) diskAnswers() {
	if o.patience != nil { // it is nil where nobody waits: see OpenReadOnly
		o.patience.Reset(o.limit())
	}
}

// limit returns how long the disk may give no sign of life.
func (o *Outbox) limit() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == opening {
		return openPatience
	}
	return diskPatience
}

// nextOperation begins an operation, or ends one. What is reported of earlier ones is ignored from then on.
func (o *Outbox) nextOperation() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.operation++
	return o.operation
}

// ended records what came of an operation, logs whether the disk fails or works again, and wakes the callers that wait
// for it.
func (o *Outbox) ended(err error, operation uint64) {
	o.mu.Lock()
	if operation != o.operation {
		o.mu.Unlock()
		return
	}
	was := o.why
	o.why = err
	if o.state != closed {
		o.state = stateAfter(err)
	}
	o.tried.Broadcast()
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
		o.change(time.Now(), func(*Tx) {}) // the bounds are lower now
	}
}

// flush opens the file if it isn't open, and writes all waiting records. A file that can't be used is set aside, and all of
// memory is written to a new one: the history stays in the old one, and so do pending CloudEvents that don't stay in memory.
// For those of an open event its latest change is delivered.
func (o *Outbox) flush() error {
	o.mu.Lock()
	err := o.unusable
	o.mu.Unlock()
	if err == nil {
		err = o.openAndWrite()
	}
	for why, cause := range map[string]error{"damaged": ErrDamaged, "foreign": errForeign, "format": errFormat} {
		if errors.Is(err, cause) {
			return o.replaceFile(why, err)
		}
	}
	return err
}

// replaceFile sets the file aside, and writes a new one.
func (o *Outbox) replaceFile(why string, cause error) error {
	o.mu.Lock()
	o.unusable = cause // until it is set aside
	o.mu.Unlock()
	err := o.storage.SetAside(why, cause)
	if err != nil {
		return err
	}
	o.mu.Lock()
	o.unusable = nil
	o.file++
	o.mu.Unlock()
	return o.openAndWrite()
}

// openAndWrite writes all waiting records, in one transaction. To a returned file nothing is written before Join: it
// would replace records by newer ones that lack their content, and a crash would lose that.
func (o *Outbox) openAndWrite() error {
	err := o.open()
	if err != nil {
		return err
	}
	o.mu.Lock()
	returned, last := o.returned != nil, o.state == closed
	o.mu.Unlock()
	switch {
	case returned && last: // nobody takes it over any more
		o.change(time.Now(), func(tx *Tx) { tx.Join() })
	case returned:
		return errNotJoined
	}
	return o.writeWaiting()
}

// writeWaiting writes all waiting records, in one transaction.
func (o *Outbox) writeWaiting() error {
	o.mu.Lock()
	if len(o.waiting) == 0 || errors.Is(o.unusable, errForeign) {
		o.mu.Unlock()
		return nil
	}
	number, inFlight := o.number, o.waiting
	o.inFlight, o.waiting, o.given = inFlight, records{}, o.last
	o.mu.Unlock()
	writes := inFlight.encode()
	err := o.storage.Write(writes)
	o.mu.Lock()
	defer o.mu.Unlock()
	if errors.Is(o.unusable, errForeign) { // the file that was written is no longer used
		return err
	}
	o.inFlight, o.bounded = nil, 0
	if err != nil {
		maps.Copy(inFlight, o.waiting)
		o.waiting = inFlight
		o.boundHistory()
		return err
	}
	o.stored = number
	o.tried.Broadcast()
	o.wakeReaders()
	for _, w := range writes {
		if isHistory(w.Bucket) && w.Value != nil {
			o.grown.add(1, len(w.Value))
		}
	}
	o.unstored(false)
	return nil
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
