// Package outbox is the durable queue on one VM. It keeps which CloudEvents are pending for which route, what became of
// every delivery, and what its owner wants to remember, in one file.
//
// Memory is the truth and the file its durable copy. Every change of state is one change, made by one function under
// one lock: it changes memory and notes which records of the file differ from it now. A writer writes all that differ in
// one transaction, so a crash leaves the state after some whole number of changes. While the disk fails the records wait,
// each once, and are written when it is back.
//
// The outbox knows routes, keys, groups, times and bytes. It doesn't know Azure.
package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Options are how an outbox is opened. The zero value is useful.
type Options struct {
	Log     *slog.Logger
	Storage Storage // nil: a bbolt file, outbox.db in the directory
	Bounds  Bounds
	Notify  Notify
}

// Notify is who is told of what the outbox does by itself. No lock is held meanwhile. Fields may be nil.
type Notify struct {
	// Dead is told of the dead letters that one change made, after it was applied.
	Dead func([]Delivery)
	// Forgot is told how many records were dropped for want of room or, of dead letters, by age: ForgotDeadLetter,
	// ForgotHistory.
	Forgot func(what string, n int)
	// Loaded is told when a file was read that came late, or again: groups, values and marks may have been added. Until
	// it returns nothing is written, and the file's pending deliveries wait. It isn't told of what Open reads.
	Loaded func()
}

// What Notify.Forgot is told of.
const (
	ForgotDeadLetter = "dead_letter"
	ForgotHistory    = "history"
)

// Stored is what a file holds for the owner of the outbox. If it comes late, that is older than what the outbox has.
type Stored struct {
	Values map[string][]byte
	Groups map[string]Group
}

// fileName is what the file is called.
const fileName = "outbox.db"

// An Outbox is the durable queue. It is safe for concurrent use.
type Outbox struct {
	log      *slog.Logger
	path     string
	readOnly bool // opened only to be looked at

	bounds Bounds

	storage Storage // opened, written and compacted by the writer alone, because that may hang
	opened  bool    // it can be written; the writer's
	known   bool    // memory has what is in it; the writer's
	began   bool    // Open is over; the writer's

	mu sync.Mutex // guards all below; nothing slow happens while it is held
	memory
	journal
	followers map[chan json.RawMessage]bool
	notify    Notify

	kick   chan struct{} // wakes the writer
	loaded chan struct{} // the writer has read a file
	done   chan struct{} // closed when the writer and the messenger have ended
}

// Open opens the outbox in dir, or makes one. The only error wraps ErrLocked: another process has it. With any other
// trouble the outbox works from memory, and Durable says why.
func Open(dir string, options Options) (*Outbox, error) {
	o := newOutbox(dir, options)
	if o.storage == nil {
		o.storage = newFile(o.path, false, o.log)
	}
	_, err := o.open()
	o.began = true
	if errors.Is(err, ErrLocked) {
		return nil, err
	}
	o.fail(err, o.try)
	go o.run()
	return o, nil
}

// OpenReadOnly opens the outbox in dir only to be looked at, while no process has it open for writing. It fails if the
// file isn't there or can't be read.
func OpenReadOnly(dir string) (*Outbox, error) {
	o := newOutbox(dir, Options{})
	o.readOnly = true
	o.storage = newFile(o.path, true, o.log)
	close(o.done)
	if _, err := o.open(); err != nil && !errors.Is(err, ErrReadOnly) {
		return nil, err
	}
	return o, nil
}

func newOutbox(dir string, options Options) *Outbox {
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	return &Outbox{
		log: options.Log, path: filepath.Join(dir, fileName), storage: options.Storage,
		bounds: options.Bounds.orDefaults(), memory: newMemory(), notify: options.Notify,
		followers: map[chan json.RawMessage]bool{},
		kick:      make(chan struct{}, 1), loaded: make(chan struct{}, 1), done: make(chan struct{}),
		journal: journal{waiting: records{}, tried: make(chan struct{})},
	}
}

// run is the goroutine of the writer, beside one that tells when a file was read: whoever hears it may be waiting for
// the writer.
func (o *Outbox) run() {
	defer close(o.done)
	var messenger sync.WaitGroup
	messenger.Go(func() {
		for range o.loaded {
			if f := o.told().Loaded; f != nil {
				f()
			}
			o.showLoaded()
		}
	})
	o.writer()
	close(o.loaded)
	messenger.Wait()
}

// Notify says who is told from now on.
func (o *Outbox) Notify(n Notify) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.notify = n
}

func (o *Outbox) told() Notify {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.notify
}

func (n Notify) forgot(what string, count int) {
	if n.Forgot != nil && count > 0 {
		n.Forgot(what, count)
	}
}

// Reserve gives the next sequence number: the time in microseconds, made unique. It never goes back, not even after a
// restart with the clock set back.
func (o *Outbox) Reserve(now time.Time) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = max(o.last+1, uint64(max(0, now.UnixMicro())))
	return o.last
}

// Value is the owner's value of that name, nil if there is none.
func (o *Outbox) Value(name string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.values[name]
}

// Stored is what the file held when it was last read. It is given once.
func (o *Outbox) Stored() Stored {
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.was
	o.was = Stored{}
	return was
}

// Groups are those that aren't over.
func (o *Outbox) Groups() map[string]Group {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[string]Group{}
	for id, g := range o.groups {
		if g.latest != nil {
			all[id] = Group{g.state, g.latest.Seq}
		}
	}
	return all
}

// Mark is what is remembered of an id of the group, the zero Mark if nothing.
func (o *Outbox) Mark(group, id string) Mark {
	o.mu.Lock()
	defer o.mu.Unlock()
	if g := o.groups[group]; g != nil {
		if at := g.mark(id, group); at >= 0 {
			return g.marks[at].open(group)
		}
	}
	return Mark{}
}

// Own makes the outbox that of the VM. One that belongs to another VM, because its disk was cloned, is set aside and
// nothing of it is ever sent: fresh says so. It doesn't wait for the disk; the error is that of Durable.
func (o *Outbox) Own(vmID string) (fresh bool, err error) {
	o.submit(time.Now(), func(c *change) {
		if vmID == "" || strings.EqualFold(c.owner, vmID) {
			return
		}
		if fresh = c.owner != ""; fresh {
			c.forget()
			clear(o.waiting)
			o.under = nil
			o.stored, o.broken = o.number, errForeign
		}
		c.owner = vmID
		c.write(bucketMeta, metaOwner, []byte(vmID))
	})
	return fresh, o.Durable()
}

// Owner is the vmId that the outbox belongs to, "" if none.
func (o *Outbox) Owner() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.owner
}

// Durable is nil while everything is on disk, but for the last 50 ms. Otherwise it says why it isn't.
func (o *Outbox) Durable() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failing
}

// Path is that of the file.
func (o *Outbox) Path() string { return o.path }

// Size is that of the file in bytes, when it was last opened or written.
func (o *Outbox) Size() int64 { return o.storage.Size() }

// Close writes what waits and closes the file. It fails when that can't be written and pending deliveries are lost with
// it.
func (o *Outbox) Close() error {
	if o.readOnly {
		return o.storage.Close()
	}
	o.mu.Lock()
	n := o.number
	o.mu.Unlock()
	_ = o.sync(n) // Durable says what is wrong, and the writer tries once more
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	wake(o.kick)
	var closed error
	select {
	case <-o.done:
		closed = o.storage.Close()
	case <-time.After(diskPatience): // the disk hangs, and closing the file would hang too
	}
	o.mu.Lock()
	err, lost := o.failing, len(o.unstored(false))
	if o.stored >= n {
		err = nil
	}
	o.mu.Unlock()
	err = errors.Join(err, closed)
	if err != nil && lost > 0 {
		return fmt.Errorf("%d deliveries are lost, they were only in memory: %w", lost, err)
	}
	return nil
}
