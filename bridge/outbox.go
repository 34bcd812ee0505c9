package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
)

// bounds are how much the outbox holds. Over them the oldest goes, never silently.
type bounds struct {
	pending      int // deliveries
	pendingBytes int // of CloudEvents, counted once a delivery
	inMemory     int // deliveries, and dead letters, that are not on disk, while it cannot be written
	dead         int
	deadBytes    int
	history      int // changes, and settled deliveries
	historyBytes int // of each of the two
}

func defaultBounds() bounds {
	return bounds{
		pending: 100_000, pendingBytes: 256 << 20, inMemory: 1_000,
		dead: 10_000, deadBytes: 64 << 20, history: 100_000, historyBytes: 128 << 20,
	}
}

// How long things are kept.
const (
	keepDead     = 90 * day
	keepHistory  = 90 * day
	keepVanished = 30 * day // ids and receipts of events that are over
	keepOrphans  = day      // the backlog of a route that is gone from the settings
	day          = 24 * time.Hour
)

// The buckets of the file. A sequence number is the time of the commit in microseconds, made unique; as a key it has
// 16 digits, so that keys sort by time.
const (
	bucketMeta     = "meta"     // name → value
	bucketOpen     = "open"     // EventId → Open
	bucketIDs      = "ids"      // EventId or id without its -rN → told
	bucketEvents   = "events"   // seq → CloudEvent
	bucketPending  = "pending"  // route/seq → Entry
	bucketSettled  = "settled"  // seq/route → Settled
	bucketDead     = "dead"     // route/seq → Entry
	bucketReceipts = "receipts" // EventId/route → receipt
	bucketRoutes   = "routes"   // route → when it went from the settings, "" while it is there

	metaFormat   = "format"
	metaOwner    = "owner"
	metaObserver = "observer"
	metaAnswer   = "answer"
	metaEndpoint = "endpoint"
)

// migrations bring a file from the format of their index to the next; the newest format is their number. An empty
// file has format 0.
var migrations = []func(*bolt.Tx) error{
	func(tx *bolt.Tx) error {
		for _, name := range []string{bucketMeta, bucketOpen, bucketIDs, bucketEvents, bucketPending, bucketSettled,
			bucketDead, bucketReceipts, bucketRoutes} {
			if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
				return err
			}
		}
		return nil
	},
}

// The Outbox is the durable memory: the events known to be open, every CloudEvent owed and to whom, what was
// delivered, what was given up. It is one file, owned by one process and one VM.
//
// When the disk cannot be written it goes on from memory, says so (Durable), and catches up when the disk is back. It
// is safe for concurrent use.
type Outbox struct {
	store    *store
	log      *slog.Logger
	reloaded atomic.Bool // set when the file was read: what is known may have changed

	mu        sync.Mutex // taken before that of the store, after the store's file
	bounds    bounds
	last      uint64           // sequence number
	owner     string           // vmId
	observer  Observer         // the last one learnt
	answer    lastAnswer       // the last valid answer of the endpoint
	endpoint  string           // found by DHCP; "" when there is none but the fixed one
	touched   time.Time        // when it was last given to the disk
	open      map[string]*Open // by EventId
	shelves   map[string]*shelf
	dead      map[string]*Entry // by key
	pending   tally
	deadSize  tally
	grown     tally          // by how much the history has, since it was last bounded
	saved     uint64         // the newest write that is on disk
	volatile  int            // entries owed that no disk has
	ahead     map[string]int // settled deliveries that no disk has, by route
	followers map[chan json.RawMessage]bool
	gaveUp    func(e Entry) // told of each dead letter, without mu
	meter     Meter
}

// tally counts entries and their bytes.
type tally struct{ n, bytes int }

func (t *tally) add(e *Entry, sign int) { t.n += sign; t.bytes += sign * e.Bytes }

// A shelf is what is owed to one route.
type shelf struct {
	entries   map[uint64]*Entry
	fresh     []*Entry // not yet taken by the worker
	wake      chan struct{}
	known     bool      // the route is, or was, in the settings
	gone      time.Time // when it went from the settings; zero while it is there
	delivered int       // since the start
	accepted  time.Time // the last acceptance
}

// OpenOutbox opens, or creates, the outbox in the directory dir. The only error wraps ErrLocked: another process
// has it. Whatever else is wrong with the file or the disk, the outbox works from memory and Durable says why.
func OpenOutbox(dir string, log *slog.Logger) (*Outbox, error) {
	return newOutbox(dir, false, log).start()
}

// ReadOutbox opens the outbox in dir to be looked at only, while no bridge has it.
func ReadOutbox(dir string) (*Outbox, error) {
	return newOutbox(dir, true, slog.New(slog.DiscardHandler)).start()
}

func newOutbox(dir string, readOnly bool, log *slog.Logger) *Outbox {
	o := &Outbox{log: log, bounds: defaultBounds(), gaveUp: func(Entry) {}, meter: noMeter{}}
	o.reset()
	o.store = &store{path: filepath.Join(dir, "outbox.db"), readOnly: readOnly, log: log,
		admit: o.admit, opened: o.load, rescue: o.rescue, synced: o.synced,
		disk: func(write func() error) error { return write() }}
	return o
}

func (o *Outbox) start() (*Outbox, error) {
	if err := o.store.start(); err != nil {
		return nil, err
	}
	return o, nil
}

// reset forgets everything. mu is held, or nobody else knows o.
func (o *Outbox) reset() {
	for _, sh := range o.shelves {
		for _, e := range sh.entries {
			e.gone = true
		}
	}
	o.owner, o.observer, o.answer, o.endpoint, o.touched = "", Observer{}, lastAnswer{}, "", time.Time{}
	o.open, o.dead = map[string]*Open{}, map[string]*Entry{}
	o.pending, o.deadSize, o.volatile, o.ahead = tally{}, tally{}, 0, map[string]int{}
	for name, sh := range o.shelves {
		o.shelves[name] = &shelf{entries: map[uint64]*Entry{}, wake: sh.wake, known: sh.known, gone: sh.gone}
	}
	if o.shelves == nil {
		o.shelves = map[string]*shelf{}
	}
}

// admit says whether the file may be used, and brings it to the newest format.
func (o *Outbox) admit(db *bolt.DB) error {
	var format int
	var owner string
	err := db.View(func(tx *bolt.Tx) (err error) {
		if b := tx.Bucket([]byte(bucketMeta)); b != nil {
			owner = string(b.Get([]byte(metaOwner)))
			format, err = strconv.Atoi(string(b.Get([]byte(metaFormat))))
		}
		return err
	})
	o.mu.Lock()
	ours := o.owner
	o.mu.Unlock()
	switch {
	case err != nil:
		return fmt.Errorf("%w: format: %v", errDamaged, err)
	case format > len(migrations):
		return fmt.Errorf("%w: %s has format %d and this one reads up to %d; install the newer version again, or set another state directory",
			errNewer, db.Path(), format, len(migrations))
	case ours != "" && owner != "" && !strings.EqualFold(owner, ours):
		return fmt.Errorf("%w: it belongs to vmId %s and this is %s; was this machine cloned?", errForeign, owner, ours)
	case format == len(migrations), db.IsReadOnly():
		return nil
	}
	return db.Update(func(tx *bolt.Tx) error {
		for _, step := range migrations[format:] {
			if err := step(tx); err != nil {
				return fmt.Errorf("migrate %s: %w", db.Path(), err)
			}
		}
		return tx.Bucket([]byte(bucketMeta)).Put([]byte(metaFormat), []byte(strconv.Itoa(len(migrations))))
	})
}

// load reads what the file holds, beside what is known already: the file may come late. A record that cannot be
// understood does not hide the others.
func (o *Outbox) load() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reloaded.Store(true)
	each := func(bucket string, f func(key string, value []byte) error) error {
		return o.store.walk(bucket, func(key string, value []byte) error {
			if err := f(key, value); err != nil {
				o.log.Error("the outbox holds something that cannot be understood", "bucket", bucket, "key", key, "err", err)
			}
			return nil
		})
	}
	var stored lastAnswer
	last, err := o.store.lastKey(bucketEvents)
	if seq, err := seqOf(last); err == nil {
		o.last = max(o.last, seq)
	}
	err = errors.Join(err,
		each(bucketMeta, func(key string, value []byte) error {
			switch key {
			case metaOwner:
				o.owner = string(value)
			case metaObserver:
				return json.Unmarshal(value, &o.observer)
			case metaAnswer:
				return json.Unmarshal(value, &stored)
			case metaEndpoint:
				o.endpoint = string(value)
			}
			return nil
		}),
		each(bucketRoutes, func(name string, value []byte) error {
			sh := o.shelf(name)
			sh.known = true
			if len(value) == 0 {
				return nil
			}
			return sh.gone.UnmarshalText(value)
		}),
		each(bucketOpen, func(id string, value []byte) (err error) {
			if _, ok := o.open[id]; ok {
				return nil
			}
			var op Open
			if err := json.Unmarshal(value, &op); err != nil {
				return err
			}
			if op.event, err = UnmarshalEvent(op.Event); err != nil {
				return err
			}
			if late := o.answer.At; !late.IsZero() { // it was open all the time, and nobody knew
				op.unwatched(sinceAnswer(stored, late), false)
			}
			o.open[id] = &op
			return nil
		}),
		each(bucketPending, func(key string, value []byte) error {
			e := &Entry{}
			if err := json.Unmarshal(value, e); err != nil {
				return err
			}
			var err error
			if e.seq, err = seqOf(key); err != nil {
				return err
			}
			o.last = max(o.last, e.seq)
			if sh := o.shelf(e.Sink); sh.entries[e.seq] == nil {
				o.put(sh, e)
			}
			return nil
		}),
		each(bucketDead, func(key string, value []byte) error {
			e := &Entry{}
			if err := json.Unmarshal(value, e); err != nil {
				return err
			}
			var err error
			if e.seq, err = seqOf(key); err == nil && o.dead[key] == nil {
				o.dead[key] = e
				o.deadSize.add(e, 1)
			}
			return err
		}),
	)
	if stored.At.After(o.answer.At) {
		o.answer = stored
	}
	return err
}

// rescue writes again everything that is known, and what was remembered as far as it can be read, into whatever file
// comes next.
func (o *Outbox) rescue() {
	for _, bucket := range []string{bucketIDs, bucketReceipts, bucketSettled} {
		kept := map[string][]byte{}
		err := o.store.walk(bucket, func(key string, value []byte) error {
			kept[key] = append([]byte{}, value...)
			return nil
		})
		if err != nil {
			o.log.Error("what the outbox remembered cannot all be read", "bucket", bucket, "err", err)
		}
		for key, value := range kept {
			o.store.write(bucket, key, value)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	add := o.store.write
	body := func(seq uint64) {
		if v, err := o.store.get(bucketEvents, seqKey(seq)); err == nil && json.Valid(v) {
			add(bucketEvents, seqKey(seq), v)
		}
	}
	add(bucketMeta, metaOwner, []byte(o.owner))
	add(bucketMeta, metaObserver, compactJSON(o.observer))
	add(bucketMeta, metaAnswer, compactJSON(o.answer))
	if o.endpoint != "" {
		add(bucketMeta, metaEndpoint, []byte(o.endpoint))
	}
	for id, op := range o.open {
		add(bucketOpen, id, compactJSON(op))
		body(op.Latest)
	}
	for name, sh := range o.shelves {
		if sh.known {
			add(bucketRoutes, name, goneText(sh.gone))
		}
		for _, e := range sh.entries {
			add(bucketPending, e.Key, compactJSON(e))
			body(e.seq)
		}
	}
	for key, e := range o.dead {
		add(bucketDead, key, compactJSON(e))
		body(e.seq)
	}
}

func goneText(t time.Time) []byte {
	if t.IsZero() {
		return []byte{}
	}
	return []byte(t.UTC().Format(time.RFC3339Nano))
}

// synced notes which writes are on disk.
func (o *Outbox) synced(write uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.saved = write
	clear(o.ahead)
	if o.volatile == 0 {
		return
	}
	for _, sh := range o.shelves {
		for _, e := range sh.entries {
			if e.volatile && e.write <= write {
				e.volatile = false
				o.volatile--
			}
		}
	}
}

// shelf is that of the route, made if need be. mu is held.
func (o *Outbox) shelf(name string) *shelf {
	sh, ok := o.shelves[name]
	if !ok {
		sh = &shelf{entries: map[uint64]*Entry{}, wake: make(chan struct{}, 1)}
		o.shelves[name] = sh
	}
	return sh
}

// put makes an entry owed. mu is held.
func (o *Outbox) put(sh *shelf, e *Entry) {
	sh.entries[e.seq] = e
	o.pending.add(e, 1)
	sh.offer(e)
}

// offer lets the worker have the entry, unless it must wait.
func (sh *shelf) offer(e *Entry) {
	if e.waits() {
		return
	}
	sh.fresh = append(sh.fresh, e)
	select {
	case sh.wake <- struct{}{}:
	default:
	}
}

// remove takes an entry off its shelf. mu is held.
func (o *Outbox) remove(e *Entry) {
	e.gone = true
	delete(o.shelf(e.Sink).entries, e.seq)
	o.pending.add(e, -1)
	if e.volatile {
		e.volatile = false
		o.volatile--
	}
	o.store.write(bucketPending, e.Key, nil)
}

func seqKey(seq uint64) string { return fmt.Sprintf("%016d", seq) }

// seqOf reads the sequence number at the end of a key.
func seqOf(key string) (uint64, error) {
	return strconv.ParseUint(key[strings.LastIndexByte(key, '/')+1:], 10, 64)
}

// Own makes the outbox that of the VM. One that belongs to another VM, because its disk was cloned, is set aside and
// nothing of it is ever sent; that is told by fresh.
func (o *Outbox) Own(vmID string) (fresh bool, err error) {
	o.mu.Lock()
	owner := o.owner
	o.mu.Unlock()
	switch {
	case vmID == "" || strings.EqualFold(owner, vmID):
		return false, nil
	case owner != "":
		err = o.store.anew(func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.reset()
			o.owner = vmID // so that admit knows whose the file is not
		})
		fresh = true
	}
	o.mu.Lock()
	o.owner = vmID
	o.store.write(bucketMeta, metaOwner, []byte(vmID))
	for name, sh := range o.shelves {
		if sh.known {
			o.store.write(bucketRoutes, name, goneText(sh.gone))
		}
	}
	o.mu.Unlock()
	return fresh, errors.Join(err, o.store.sync())
}

// Close writes what is left and lets go of the file. It fails when deliveries are lost with that, because they are owed
// and no disk has them.
func (o *Outbox) Close() error {
	o.mu.Lock()
	if !o.answer.At.IsZero() && !o.store.readOnly {
		o.saveAnswer()
	}
	o.mu.Unlock()
	err := o.store.close()
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && o.volatile > 0 {
		return fmt.Errorf("%d deliveries are lost, they were in memory only: %w", o.volatile, err)
	}
	return nil
}

// Durable is nil while everything is on disk, and otherwise says why it is not.
func (o *Outbox) Durable() error { return o.store.durable() }

// Path is that of the file.
func (o *Outbox) Path() string { return o.store.path }
