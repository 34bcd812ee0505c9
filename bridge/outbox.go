package bridge

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	bolt "go.etcd.io/bbolt"
)

// Bounds of the outbox. Over them the oldest goes, never silently.
const (
	maxPending      = 100_000   // deliveries
	maxPendingBytes = 256 << 20 // of CloudEvents, counted once a delivery
	maxInMemory     = 1_000     // deliveries that are not on disk, while it cannot be written
	maxDead         = 10_000
	maxDeadBytes    = 64 << 20
	keepDead        = 90 * day
	keepHistory     = 90 * day
	maxHistory      = 100_000  // changes, and settled deliveries
	keepVanished    = 30 * day // ids and receipts of events that are over
	keepOrphans     = day      // the backlog of a route that is gone from the settings
	settleAhead     = 32       // settled deliveries of a route that may wait for the disk
	day             = 24 * time.Hour
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

// migrate brings the file to the newest format.
func migrate(db *bolt.DB) error {
	var format int
	err := db.View(func(tx *bolt.Tx) (err error) {
		if b := tx.Bucket([]byte(bucketMeta)); b != nil {
			format, err = strconv.Atoi(string(b.Get([]byte(metaFormat))))
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("%w: format: %v", errDamaged, err)
	case format > len(migrations):
		return fmt.Errorf("%w: %s has format %d and this one reads up to %d; install the newer version again, or set another state directory",
			errNewer, db.Path(), format, len(migrations))
	case format == len(migrations):
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

// The Outbox is the durable memory: the events known to be open, every CloudEvent owed and to whom, what was
// delivered, what was given up. It is one file, owned by one process and one VM.
//
// When the disk cannot be written it goes on from memory, says so (Durable), and catches up when the disk is back. It
// is safe for concurrent use.
type Outbox struct {
	store    *store
	log      *slog.Logger
	reloaded atomic.Bool // set when the file was read: what is known may have changed

	mu       sync.Mutex
	last     uint64           // sequence number
	owner    string           // vmId
	observer Observer         // the last one learnt
	answer   lastAnswer       // the last valid answer of the endpoint
	touched  time.Time        // when it was last given to the disk
	open     map[string]*Open // by EventId
	shelves  map[string]*shelf
	dead     map[string]*Entry // by key
	pending  tally
	deadSize tally
	volatile int                      // entries committed that no disk has
	ahead    map[string]int           // settled deliveries that no disk has, by route
	gaveUp   func(e Entry, cause any) // told of each dead letter, without mu
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

// lastAnswer is what is remembered of the last valid answer.
type lastAnswer struct {
	At          time.Time `json:"at"`
	Incarnation string    `json:"incarnation"`
	APIVersion  string    `json:"apiVersion"`
}

// Open is what is remembered of an event that is not over.
type Open struct {
	Event     json.RawMessage `json:"event"`
	Life      int             `json:"life"`               // 1, more if it came back after it had vanished
	First     time.Time       `json:"first"`              // when it was first seen
	Started   time.Time       `json:"started,omitzero"`   // when it was first seen as Started
	Gap       bool            `json:"gap,omitempty"`      // nobody watched for a while
	Rebooted  bool            `json:"rebooted,omitempty"` // the observer, in such a gap
	Pause     time.Duration   `json:"pause,omitempty"`    // the longest between two polls
	Latest    uint64          `json:"latest"`             // the sequence number of its newest change
	Routes    []string        `json:"routes,omitempty"`   // whose filter accepted it
	Undecided []string        `json:"undecided,omitempty"`

	event Event // of Event
}

// told remembers how often an id was used.
type told struct {
	Times int       `json:"times"`
	Event string    `json:"event"` // EventId
	At    time.Time `json:"at"`
}

// An Entry is one delivery as the outbox keeps it: one CloudEvent owed to one route.
type Entry struct {
	Key       string     `json:"key"` // route/seq, how commands name it
	Sink      string     `json:"sink"`
	ID        string     `json:"id"`    // of the CloudEvent
	Type      string     `json:"type"`  // of the CloudEvent
	Event     string     `json:"event"` // EventId; "" if it is about the bridge
	State     string     `json:"state"` // pending, dead
	Reason    string     `json:"reason,omitempty"`
	Attempts  int        `json:"attempts"`
	Next      time.Time  `json:"next,omitzero"`
	Error     string     `json:"error,omitempty"`
	Bytes     int        `json:"bytes"`
	Owed      time.Time  `json:"owed"`
	Tried     time.Time  `json:"tried,omitzero"`
	Held      time.Time  `json:"held,omitzero"` // waits until then for the observer's name to decide a filter
	Change    ChangeKind `json:"change,omitempty"`
	NotBefore time.Time  `json:"notBefore,omitzero"`
	DeadSince time.Time  `json:"deadSince,omitzero"`

	seq      uint64
	gone     bool // settled or given up
	volatile bool // no disk has it
}

// States of an Entry, and the reasons of a dead one.
const (
	StatePending = "pending"
	StateDead    = "dead"

	ReasonRejected = "rejected" // the destination will not have it
	ReasonExpired  = "expired"  // older than max_age
	ReasonLate     = "late"     // overtaken, and the route drops those
	ReasonOverflow = "overflow" // the outbox was full
	ReasonRemoved  = "removed"  // the route is gone from the settings
	ReasonLost     = "lost"     // its CloudEvent can no longer be read
)

// Settled is a delivery that is done.
type Settled struct {
	At       time.Time `json:"at"`
	How      string    `json:"how"` // accepted, superseded
	ID       string    `json:"id"`
	Event    string    `json:"event,omitempty"`
	Status   string    `json:"status,omitempty"` // what the destination answered
	AnswerID string    `json:"answerId,omitempty"`
	Attempts int       `json:"attempts"`
}

// OpenOutbox opens, or creates, the outbox in the directory dir. The only error wraps ErrLocked: another process
// has it. Whatever else is wrong with the file or the disk, the outbox works from memory and Durable says why.
func OpenOutbox(dir string, log *slog.Logger) (*Outbox, error) {
	return openOutbox(dir, false, log)
}

// ReadOutbox opens the outbox in dir to be looked at only, while no bridge has it.
func ReadOutbox(dir string) (*Outbox, error) {
	return openOutbox(dir, true, slog.New(slog.DiscardHandler))
}

func openOutbox(dir string, readOnly bool, log *slog.Logger) (*Outbox, error) {
	o := &Outbox{log: log, gaveUp: func(Entry, any) {}}
	o.reset()
	o.store = &store{path: filepath.Join(dir, "outbox.db"), readOnly: readOnly, log: log,
		opened: o.load, rescue: o.rescue, synced: o.synced}
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
	o.owner, o.observer, o.answer = "", Observer{}, lastAnswer{}
	o.open, o.dead = map[string]*Open{}, map[string]*Entry{}
	o.pending, o.deadSize, o.volatile, o.ahead = tally{}, tally{}, 0, map[string]int{}
	for name, sh := range o.shelves {
		o.shelves[name] = &shelf{entries: map[uint64]*Entry{}, wake: sh.wake, known: sh.known, gone: sh.gone}
	}
	if o.shelves == nil {
		o.shelves = map[string]*shelf{}
	}
}

// load reads what the file holds, beside what is known already: the file may come late.
func (o *Outbox) load() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reloaded.Store(true)
	// each reads one bucket with f, whose error means damage.
	each := func(bucket string, f func(key string, value []byte) error) error {
		return o.store.walk(bucket, func(key string, value []byte) error {
			if err := f(key, value); err != nil {
				return fmt.Errorf("%w: %s %s: %v", errDamaged, bucket, key, err)
			}
			return nil
		})
	}
	bodies := map[uint64]int{} // their sizes; 0 is no JSON
	seqs := func(key string) (uint64, error) {
		_, digits, _ := cutLast(key, "/")
		return strconv.ParseUint(digits, 10, 64)
	}
	return errors.Join(
		each(bucketMeta, func(key string, value []byte) error {
			switch key {
			case metaOwner:
				o.owner = string(value)
			case metaObserver:
				return json.Unmarshal(value, &o.observer)
			case metaAnswer:
				return json.Unmarshal(value, &o.answer)
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
		each(bucketEvents, func(key string, value []byte) error {
			seq, err := seqs(key)
			if json.Valid(value) {
				bodies[seq] = len(value)
			}
			o.last = max(o.last, seq)
			return err
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
			o.open[id] = &op
			return nil
		}),
		each(bucketPending, func(key string, value []byte) error {
			e := &Entry{}
			if err := json.Unmarshal(value, e); err != nil {
				return err
			}
			var err error
			if e.seq, err = seqs(key); err != nil || bodies[e.seq] == 0 {
				return errors.Join(err, errors.New("its CloudEvent cannot be read"))
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
			if e.seq, err = seqs(key); err == nil && o.dead[key] == nil {
				o.dead[key] = e
				o.deadSize.add(e, 1)
			}
			return err
		}),
	)
}

// rescue writes again everything that is known, into whatever file comes next.
func (o *Outbox) rescue() {
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
	for id, op := range o.open {
		add(bucketOpen, id, compactJSON(op))
		body(op.Latest)
	}
	for name, sh := range o.shelves {
		add(bucketRoutes, name, goneText(sh.gone))
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

// synced notes that everything is on disk.
func (o *Outbox) synced() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.ahead)
	if o.volatile == 0 {
		return
	}
	o.volatile = 0
	for _, sh := range o.shelves {
		for _, e := range sh.entries {
			e.volatile = false
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
	if e.Held.IsZero() {
		sh.offer(e)
	}
}

// offer lets the worker have the entry.
func (sh *shelf) offer(e *Entry) {
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

// Close writes what is left and lets go of the file.
func (o *Outbox) Close() error {
	o.mu.Lock()
	if !o.answer.At.IsZero() && !o.store.readOnly {
		o.store.write(bucketMeta, metaAnswer, compactJSON(o.answer))
		for id, op := range o.open {
			o.store.write(bucketOpen, id, compactJSON(op))
		}
	}
	o.mu.Unlock()
	return o.store.close()
}

// Durable is nil while everything is on disk, and otherwise says why it is not.
func (o *Outbox) Durable() error { return o.store.durable() }

// Path is that of the file.
func (o *Outbox) Path() string { return o.store.path }

// Own makes the outbox that of the VM. One that belongs to another VM, because its disk was cloned, is set aside and
// nothing of it is ever sent; that is told by fresh.
func (o *Outbox) Own(vmID string) (fresh bool, err error) {
	o.mu.Lock()
	owner := o.owner
	o.mu.Unlock()
	switch {
	case strings.EqualFold(owner, vmID) || vmID == "":
		return false, nil
	case owner != "":
		o.log.Error("the outbox belongs to another VM: was this machine cloned?", "theirs", owner, "ours", vmID)
		o.mu.Lock()
		o.reset()
		o.mu.Unlock()
		fresh, err = true, o.store.startAnew("of-"+idToken(owner))
	}
	o.mu.Lock()
	o.owner = vmID
	o.store.write(bucketMeta, metaOwner, []byte(vmID))
	routes := o.shelves
	for name, sh := range routes {
		o.store.write(bucketRoutes, name, goneText(sh.gone))
	}
	o.mu.Unlock()
	return fresh, errors.Join(err, o.store.sync())
}

// A Commit is what one document, or one thing that happened to the bridge, changes.
type Commit struct {
	Answer   *lastAnswer
	Observer *Observer
	Open     map[string]*Open // nil: no longer open
	Told     map[string]told
	Owed     []Owed
}

// Owed is a CloudEvent and the routes it is owed to.
type Owed struct {
	CloudEvent event.Event
	Event      string // EventId, "" if it is about the bridge
	Change     ChangeKind
	NotBefore  time.Time
	To         []string
	Undecided  []string // routes whose filter waits for the observer's name
	HeldUntil  time.Time
	Again      uint64 // the sequence number of a CloudEvent that was committed before; 0 for a new one
}

// Commit makes everything owed that is to be, in one transaction, and returns when it is on disk. An error says that
// it is not: it is owed all the same, from memory. now is the time of the commit.
func (o *Outbox) Commit(c Commit, now time.Time) error {
	o.mu.Lock()
	if c.Answer != nil {
		o.answer = *c.Answer
		o.store.write(bucketMeta, metaAnswer, compactJSON(c.Answer))
	}
	if c.Observer != nil {
		o.observer = *c.Observer
		o.store.write(bucketMeta, metaObserver, compactJSON(c.Observer))
	}
	for key, t := range c.Told {
		o.store.write(bucketIDs, key, compactJSON(t))
	}
	latest := map[string]uint64{}
	var fresh []*Entry
	for _, owed := range c.Owed {
		body, seq := marshalEvent(owed.CloudEvent), owed.Again
		if seq == 0 {
			o.last = max(o.last+1, uint64(now.UnixMicro()))
			seq = o.last
			o.store.write(bucketEvents, seqKey(seq), body)
		}
		if owed.Event != "" {
			latest[owed.Event] = seq
		}
		for i, name := range slices.Concat(owed.To, owed.Undecided) {
			e := &Entry{
				Key: name + "/" + seqKey(seq), Sink: name, ID: owed.CloudEvent.ID(), Type: owed.CloudEvent.Type(),
				Event: owed.Event, State: StatePending, Bytes: len(body), Owed: now.UTC(), Change: owed.Change,
				NotBefore: owed.NotBefore, seq: seq, volatile: true,
			}
			if i >= len(owed.To) {
				e.Held = owed.HeldUntil
			}
			fresh = append(fresh, e)
			o.store.write(bucketPending, e.Key, compactJSON(e))
		}
	}
	o.setOpen(c.Open, latest)
	o.mu.Unlock()

	err := o.store.sync() // nothing leaves before this

	o.mu.Lock()
	for _, e := range fresh {
		if e.volatile = err != nil; e.volatile {
			o.volatile++
		}
		o.put(o.shelf(e.Sink), e)
	}
	given := o.bound()
	o.mu.Unlock()
	o.tell(given)
	return err
}

// setOpen notes the states of events, nil for what is over, and the sequence numbers of their newest changes. mu is
// held.
func (o *Outbox) setOpen(states map[string]*Open, latest map[string]uint64) {
	for id, op := range states {
		if op == nil {
			delete(o.open, id)
			o.store.write(bucketOpen, id, nil)
			continue
		}
		if seq := latest[id]; seq != 0 {
			op.Latest = seq
		}
		o.open[id] = op
		o.store.write(bucketOpen, id, compactJSON(op))
	}
}

// bound gives up what is too much: the oldest of the route with most. While the disk fails there is less room, for what
// only memory has. mu is held.
func (o *Outbox) bound() (given []Entry) {
	for {
		tooMany := o.pending.n > maxPending || o.pending.bytes > maxPendingBytes
		if !tooMany && o.volatile <= maxInMemory {
			return given
		}
		var most []*Entry
		for _, sh := range o.shelves {
			var owed []*Entry
			for _, e := range sh.entries {
				if tooMany || e.volatile {
					owed = append(owed, e)
				}
			}
			if len(owed) > len(most) {
				most = owed
			}
		}
		slices.SortFunc(most, func(a, b *Entry) int { return cmp.Compare(a.seq, b.seq) })
		for _, e := range most[:max(1, len(most)/100)] { // in steps, so that one look at everything serves for many
			given = append(given, o.bury(e, ReasonOverflow, nil))
			if o.pending.n <= maxPending && o.pending.bytes <= maxPendingBytes && o.volatile <= maxInMemory {
				break
			}
		}
	}
}

// bury makes a dead letter of an entry. mu is held; tell must be called when it no longer is.
func (o *Outbox) bury(e *Entry, reason string, cause error) Entry {
	o.remove(e)
	dead := *e
	dead.State, dead.Reason, dead.DeadSince, dead.Next, dead.Held = StateDead, reason, time.Now().UTC(), time.Time{}, time.Time{}
	if cause != nil {
		dead.Error = cause.Error()
	}
	o.dead[e.Key] = &dead
	o.deadSize.add(&dead, 1)
	o.store.write(bucketDead, e.Key, compactJSON(dead))
	for o.deadSize.n > maxDead || o.deadSize.bytes > maxDeadBytes || o.volatile > 0 && o.deadSize.n > maxInMemory {
		oldest := &dead
		for _, d := range o.dead {
			if d.seq < oldest.seq {
				oldest = d
			}
		}
		o.log.Error("too many dead letters, the oldest is dropped", "sink", oldest.Sink, "id", oldest.ID)
		o.exhume(oldest)
	}
	return dead
}

// exhume forgets a dead letter. mu is held.
func (o *Outbox) exhume(e *Entry) {
	delete(o.dead, e.Key)
	o.deadSize.add(e, -1)
	o.store.write(bucketDead, e.Key, nil)
}

func (o *Outbox) tell(given []Entry) {
	for _, e := range given {
		o.gaveUp(e, nil)
	}
}

// marshalEvent is the CloudEvent in the JSON format. It was validated when it was made.
func marshalEvent(ce event.Event) []byte {
	var b bytes.Buffer
	if err := event.WriteJson(&ce, &b); err != nil {
		panic(fmt.Sprintf("encode CloudEvent %s: %v", ce.ID(), err))
	}
	return b.Bytes()
}
