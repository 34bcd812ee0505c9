package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
)

// The bounds of a queue.
const (
	maxUnsettled  = 10_000          // deliveries in memory; at them it stops reading
	maxBodies     = 1_000           // of them with their CloudEvents; the others are read again
	maxGroups     = 20_000          // records in memory, beside those in use
	cursorEvery   = time.Second     // how often the cursor is written, if it moved
	cursorAtLeast = 12 * time.Hour  // so that it outlives the bucket's age limit
	writers       = 16              // records that are written at a time
	readAgain     = 1 * time.Second // after the stream could not be read
	catchUp       = 5 * time.Second // how long a new queue's deliveries wait for what else the stream holds
	saveAgain     = 500 * time.Millisecond
)

// A queue is what is pending for one sink: a view of the stream from the sink's cursor on. It is the delivery.Queue of
// one Worker, and lives as long as the sink's lease is held.
type queue struct {
	route  bridge.Route
	js     jetstream.JetStream
	stream jetstream.Stream
	bucket bucket
	dead   *deadLetters
	log    *slog.Logger
	meter  bridge.Meter
	lost   context.CancelCauseFunc // ends the lease's time

	term    context.Context // while the lease is held
	from    time.Time       // where a new sink begins; zero for now
	most    int             // deliveries that may be unsettled
	created time.Time       // the stream

	saving    chan struct{} // holds one while records or the cursor are saved, one save after the other
	cursorRev uint64        // with saving, as are the two below
	written   time.Time     // when the cursor was

	mu       sync.Mutex // guards all below; nothing slow happens while it is held
	cursor   cursor     // as it is in the bucket
	pending  map[uint64]*pendingItem
	mutes    []*delivery.Mute
	open     map[uint64]bool // sequence numbers of cursor.Open that aren't settled
	order    []uint64        // sequence numbers that were read, in order; those in front may be settled
	unsaved  map[uint64]bool // settled, and not in the bucket yet
	read     uint64          // the last sequence number that was read
	waiting  uint64          // the stream's last one when the queue was opened; 0 when that was read, or takes too long
	groups   map[string]*group
	dirty    map[*group]bool // with changes that aren't in the bucket
	touched  map[uint64]bool // what the Worker has yet to hear of
	bodies   int             // CloudEvents in memory
	full     bool            // it stopped reading
	readErr  error           // why the stream can't be read; nil while it can
	saveErr  error           // why records can't be written; nil while they can
	deleted  uint64          // messages that the stream's limits took before they were read
	last     time.Time       // when the sink last accepted something
	count    int             // deliveries that it accepted
	changed  chan struct{}   // wakes the Worker
	released chan struct{}   // wakes the reader: there is room
}

// An entry is one delivery that isn't settled.
type pendingItem struct {
	item  *delivery.Item // replaced, never changed
	id    string
	group *group
	ce    *event.Event // nil: it is read again
}

// A cursor is how far a sink has come: all up to After is settled, but for Open.
type cursor struct {
	After uint64 `json:"after"`
	// Open are older messages that are owed: the latest changes of the Azure events that were open when the sink was new.
	Open []uint64 `json:"open,omitempty"`
	// Stream is when the stream was created: another one of its name counts from 1 again.
	Stream time.Time `json:"stream"`
}

// openQueue opens the queue of a sink whose lease is held while term lasts. What else wants to write for the sink fails
// from then on.
func openQueue(q *queue) error {
	q.pending, q.open, q.unsaved = map[uint64]*pendingItem{}, map[uint64]bool{}, map[uint64]bool{}
	q.groups, q.dirty, q.touched = map[string]*group{}, map[*group]bool{}, map[uint64]bool{}
	q.changed, q.released, q.saving = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)

	info, err := q.info()
	if err != nil {
		return err
	}
	var c cursor
	q.cursorRev, err = q.bucket.get(q.term, cursorKey(q.route.Name), &c)
	switch {
	case err != nil:
		return err
	case c.Stream.IsZero():
		if c, err = q.begin(info); err != nil {
			return err
		}
	case !c.Stream.Equal(info.Created):
		q.log.Warn("the stream is another one than before, so it is read from its beginning; nothing is told twice",
			"stream", info.Config.Name, "created", info.Created)
		c = cursor{Stream: info.Created}
	}
	q.cursor, q.read, q.created, q.waiting = c, c.After, info.Created, info.State.LastSeq
	if c.After > 0 {
		q.missed(info, c.After)
	}
	for _, seq := range c.Open {
		q.open[seq] = true
	}
	return q.saveCursor(q.term, true) // so that the one before, if it still runs, can't write any more
}

// missed counts the messages after a number that the stream's limits deleted before they were read.
func (q *queue) missed(info *jetstream.StreamInfo, after uint64) {
	if info.State.FirstSeq <= after+1 {
		return
	}
	q.mu.Lock()
	n := info.State.FirstSeq - after - 1
	q.deleted += n
	q.read = max(q.read, info.State.FirstSeq-1)
	q.mu.Unlock()
	q.log.Error("the stream's limits deleted messages before this sink could get them; raise its max_age or max_bytes",
		"stream", info.Config.Name, "messages", n)
}

func (q *queue) info() (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(q.term, requestTimeout)
	defer cancel()
	info, err := q.stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", q.stream.CachedInfo().Config.Name, err)
	}
	return info, nil
}

// run reads the stream into the queue, and keeps the bucket up to date, until the lease ends. What is settled by then
// is written.
func (q *queue) run() {
	var both sync.WaitGroup
	both.Go(q.readAll)
	both.Go(q.keep)
	both.Wait()
}

// touch notes that the Worker has to hear of a delivery. mu is held.
func (q *queue) touch(seq uint64) {
	q.touched[seq] = true
	wake(q.changed)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Changed is delivery.Queue's.
func (q *queue) Changed() <-chan struct{} { return q.changed }

// Changes is delivery.Queue's.
func (q *queue) Changes() (c delivery.Changes) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting > 0 {
		return c
	}
	for seq := range q.touched {
		if e := q.pending[seq]; e != nil {
			c.Pending = append(c.Pending, e.item)
		} else {
			c.Gone = append(c.Gone, seq)
		}
	}
	clear(q.touched)
	slices.SortFunc(c.Pending, func(a, b *delivery.Item) int { return cmp.Compare(a.Seq, b.Seq) })
	return c
}

// Read is delivery.Queue's. It fails while what became of the group's last delivery isn't in the bucket, so that a kill
// repeats at most one.
func (q *queue) Read(i *delivery.Item) (ce event.Event, receipt []byte, err error) {
	q.mu.Lock()
	e := q.pending[i.Seq]
	if e == nil {
		q.mu.Unlock()
		return ce, nil, errors.New("it is not pending any more")
	}
	if e.group.requiredVersion > e.group.savedVersion {
		q.mu.Unlock()
		return ce, nil, errors.New("what became of the change before is not on record yet")
	}
	receipt = e.group.rec.Receipt
	kept := e.ce
	q.mu.Unlock()
	if kept != nil {
		return *kept, receipt, nil
	}
	r, err := q.fetch(q.term, i.Seq)
	if err != nil {
		return ce, nil, err
	}
	m, err := r.message()
	if err != nil {
		return ce, nil, fmt.Errorf("%w: message %d: %v", delivery.ErrLost, i.Seq, err)
	}
	return m.ce, receipt, nil
}
