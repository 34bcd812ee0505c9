// Package outbox is the durable queue on one VM. It stores in one file which CloudEvents are pending for which route,
// the results of all deliveries, and the state of its owner.
//
// It knows routes, keys, groups, times and bytes. It doesn't know Azure.
//
// # Use
//
// Whoever has something to deliver adds it in an Update, and waits until it is on disk:
//
//	box, err := outbox.Open("/var/lib/mine", outbox.Options{Log: log})
//	onDisk := box.Update(now, func(tx *outbox.Tx) {
//		tx.Apply(outbox.Batch{
//			Routes: []outbox.Route{{Name: "ops"}},
//			Add: []outbox.Addition{{
//				Message: delivery.Message{ID: "one", Type: "com.example.created"},
//				Body:    body, // the CloudEvent, in the JSON format
//				To:      []string{"ops"},
//			}},
//		})
//	})
//	err = onDisk()
//
// A delivery.Worker for each route takes its queue and reports what came of it. Call Maintain about once a second, so that
// what is old is dropped, and Close at the end. Everything that was added is pending until its route has accepted it or it
// has become a dead letter, across restarts. Example shows all of it.
//
// # What stands for a CloudEvent
//
//   - An Addition is a new one, with the routes that get it. Its delivery.Message is what all its deliveries have in common.
//   - A Delivery is one that is pending for a route, or dead, as the file and commands have it. The delivery.Item in it is
//     what a Worker needs of it, and a delivery.Delivery is what a Sink gets.
//   - A Record is one in the history, with the Result of each of its deliveries.
//
// # How it keeps what it knows
//
// Memory is authoritative, and the file is its durable copy. Every change of state is made by one function under one
// lock: it changes memory and marks the records of the file that now differ. A writer writes all marked records in one
// transaction, so a crash leaves the state after some whole number of changes. While the disk fails, records stay
// marked, each once, and are written when it is back.
package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure an outbox. The zero value is useful.
type Options struct {
	Log     *slog.Logger // nil to log nothing
	Storage Storage      // nil for a bbolt file, outbox.db in the directory
	Bounds  Bounds
}

// Callbacks report what the outbox does by itself. They are called without a lock. Fields may be nil.
type Callbacks struct {
	// Dead is called with the dead letters of a change, after it was applied.
	Dead func([]Delivery)
	// Forgot is called with the number of records dropped because of size or, for dead letters, age; what is
	// ForgotDeadLetter or ForgotHistory.
	Forgot func(what string, n int)
}

// Kinds of records for Callbacks.Forgot.
const (
	ForgotDeadLetter = "dead_letter"
	ForgotHistory    = "history"
)

// fileName is the name of the file.
const fileName = "outbox.db"

// An Outbox is the durable queue. It is safe for concurrent use.
type Outbox struct {
	log      *slog.Logger
	path     string
	readOnly bool // opened by OpenReadOnly
	bounds   Bounds

	storage   Storage      // opened, written and compacted only by the writer, because that may hang
	loaded    bool         // a file was taken in, or made; only the writer uses it
	compacted time.Time    // when Maintain last shrank the file; only the writer uses it
	patience  *time.Timer  // expires when the disk gives no sign of life for too long; only the writer uses it
	hanging   atomic.Int32 // reads of the storage that take too long

	mu sync.Mutex // guards the fields below; never held during I/O
	memory
	journal
	followers  map[chan json.RawMessage]bool
	callbacks  Callbacks
	maintained time.Time               // when Maintain last dropped history
	returned   *memory                 // what a file holds that waits for Join
	held       func(group string) bool // see Tx.HoldActing; nil holds none

	state     state
	why       error       // why not everything is on disk, or soon is; nil while it is
	unusable  error       // why the file must be set aside; nil if it need not
	file      uint64      // number of the file; damage that a read of an earlier one finds is ignored
	operation uint64      // number of what the writer does; reports about earlier ones are ignored
	tried     *sync.Cond  // mu; broadcasts when a try to write has ended
	upkeeps   []upkeep    // that the writer is still to do
	soon      *time.Timer // wakes the writer; nil if it need not

	kick    chan struct{} // wakes the writer
	arrived chan struct{} // closed when returned was set
	done    chan struct{} // closed when the writer has ended
}

// Open opens the outbox in dir, or creates one. Its only error wraps ErrLocked: another process has it open. After any
// other failure, and if the disk gives no answer for 15 s, the outbox works from memory, and Durable says why.
func Open(dir string, options Options) (*Outbox, error) {
	o := newOutbox(dir, options)
	if o.storage == nil {
		o.storage = newFile(o.path, false, o.log)
	}
	f, is := o.storage.(*file)
	if is {
		f.answers = o.diskAnswers
	}
	go o.write()
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.state == opening {
		o.tried.Wait()
	}
	if o.state == closed {
		return nil, o.why
	}
	return o, nil
}

// OpenReadOnly opens the outbox in dir for reading, while no process has it open for writing. It fails if the file
// doesn't exist or can't be read.
func OpenReadOnly(dir string) (*Outbox, error) {
	o := newOutbox(dir, Options{})
	o.readOnly = true
	o.storage = newFile(o.path, true, o.log)
	close(o.done)
	if err := o.open(); err != nil && !errors.Is(err, ErrReadOnly) {
		return nil, errors.Join(err, o.storage.Close())
	}
	return o, nil
}

func newOutbox(dir string, options Options) *Outbox {
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	o := &Outbox{
		log: options.Log, path: filepath.Join(dir, fileName), storage: options.Storage,
		bounds: options.Bounds.orDefaults(), memory: newMemory(), journal: journal{waiting: records{}},
		followers: map[chan json.RawMessage]bool{},
		kick:      make(chan struct{}, 1), arrived: make(chan struct{}), done: make(chan struct{}),
	}
	o.tried = sync.NewCond(&o.mu)
	return o
}

// SetCallbacks replaces the callbacks; until then there are none.
func (o *Outbox) SetCallbacks(c Callbacks) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.callbacks = c
}

func (o *Outbox) currentCallbacks() Callbacks {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.callbacks
}

func (c Callbacks) forgot(what string, count int) {
	if c.Forgot != nil && count > 0 {
		c.Forgot(what, count)
	}
}

// Value returns the owner's value of that name; nil if there is none.
func (o *Outbox) Value(name string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.values[name]
}

// Groups returns the open groups.
func (o *Outbox) Groups() map[string]Group {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.openGroups()
}

// Mark returns the mark of an id of the group; the zero Mark if there is none.
func (o *Outbox) Mark(group, id string) Mark {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.markOf(group, id)
}

// Owner returns the vmId of the owner; "" for none.
func (o *Outbox) Owner() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.owner
}

// Durable returns nil while everything older than 50 ms is on disk, or the disk has not had its 5 s for it yet; otherwise the
// reason why it isn't.
func (o *Outbox) Durable() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why
}

// Path returns the path of the file.
func (o *Outbox) Path() string { return o.path }

// Close writes waiting changes and closes the file. It fails if they can't be written and pending deliveries are lost.
func (o *Outbox) Close() error {
	if o.readOnly {
		return o.storage.Close()
	}
	o.mu.Lock()
	n := o.number
	o.mu.Unlock()
	_ = o.sync(n) // its error is that of the last try, which follows
	o.mu.Lock()
	o.state = closed
	o.mu.Unlock()
	wake(o.kick)
	var unclosed error
	select {
	case <-o.done:
		unclosed = o.storage.Close()
	case <-time.After(diskPatience): // the disk hangs, and closing the file would hang too
	}
	o.mu.Lock()
	err, lost := o.why, len(o.unstored(false))
	o.mu.Unlock()
	err = errors.Join(err, unclosed)
	switch {
	case err == nil || lost == 0:
		return nil
	case lost == 1:
		return fmt.Errorf("1 delivery is lost, it was only in memory: %w", err)
	}
	return fmt.Errorf("%d deliveries are lost, they were only in memory: %w", lost, err)
}
