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

// The bounds and times of a queue.
const (
	defaultUnsettled = 10_000          // deliveries in memory; when there are as many, it stops reading
	maxBodies        = 1_000           // of them with their CloudEvents; those of the others are read again
	maxGroups        = 20_000          // groups in memory, besides those in use
	maxWriters       = 16              // records written at the same time
	maxCatchUp       = 5 * time.Second // how long a new queue's first deliveries wait for the rest of the stream
	readRetry        = 1 * time.Second // after the stream could not be read
	saveEvery        = 500 * time.Millisecond
)

// A queue holds what is pending for one sink: a view of the stream from the sink's cursor on. It is the delivery.Queue
// of one Worker, and lives as long as the sink's lease is held.
type queue struct {
	route    bridge.Route
	js       jetstream.JetStream
	stream   jetstream.Stream
	bucket   bucket
	dead     *deadLetters
	log      *slog.Logger
	meter    bridge.Meter
	ctx      context.Context // done when the lease ends
	endLease context.CancelCauseFunc
	notify   func(ctx context.Context, js jetstream.JetStream, ce event.Event, except string) error // Relay.notifySinks

	from          time.Time // where a sink that is new to the stream begins; zero for now
	maxUnsettled  int
	streamCreated time.Time

	saving      chan struct{} // holds one value while records or the cursor are saved; guards the next two
	cursor      entry
	cursorSaved time.Time

	mu            sync.Mutex // guards all below; nothing slow happens while it is held
	savedCursor   cursor     // as it is in the bucket
	pending       map[uint64]*pendingItem
	mutes         []*delivery.Mute // that are for the sink; replaced, never changed
	openSeqs      map[uint64]bool  // sequence numbers of cursor.Open that aren't settled
	readOrder     []uint64         // sequence numbers after the cursor, in order; some may be settled
	unsaved       map[uint64]bool  // sequence numbers that are settled, but not in the bucket yet
	lastRead      uint64           // sequence number
	lastReadAt    time.Time        // when the stream stored it; zero if that is unknown
	savedRead     uint64           // as far as it was read when the records were collected that are in the bucket
	savedReadAt   time.Time        // like lastReadAt
	catchUpTo     uint64           // the Worker gets nothing before the stream is read to here; 0 when it may
	groups        map[string]*group
	dirty         map[*group]bool // groups with changes that aren't in the bucket
	changedSeqs   map[uint64]bool // for the next Changes, or for one when a lead has come
	nextLead      time.Time       // when the first of these leads comes; zero if none does
	bodies        int             // number of CloudEvents in memory
	full          bool            // it has stopped reading
	readErr       error           // why the stream can't be read; nil if it can
	saveErr       error           // why records can't be written; nil if they can
	deletedUnread uint64          // messages that the stream's limits deleted, and that it may not have got
	blocked       bool            // the other sinks know that this one is, or are about to be told
	told          bool            // they were told so, and not yet that it accepts again
	untold        []*untold       // what they are still to be told, in order
	lastAccepted  time.Time
	accepted      int           // number of deliveries
	changed       chan struct{} // wakes the Worker
	roomFreed     chan struct{} // wakes the reader

	unkept   map[uint64]*unkept // by sequence number
	keepErrs map[bool]error     // why those can't be kept, by unkept.publish
}

// A pendingItem is one delivery that isn't settled.
type pendingItem struct {
	item  *delivery.Item // replaced, never changed
	id    string         // message.deliveryID
	group *group
	ce    *event.Event // nil if it has to be read again
}

// open reads the sink's cursor and writes it again. From then on, a queue that another relay still has for the sink can
// write nothing: its revision of the cursor is out of date.
func (q *queue) open() error {
	q.pending, q.openSeqs, q.unsaved = map[uint64]*pendingItem{}, map[uint64]bool{}, map[uint64]bool{}
	q.groups, q.dirty, q.changedSeqs = map[string]*group{}, map[*group]bool{}, map[uint64]bool{}
	q.unkept, q.keepErrs = map[uint64]*unkept{}, map[bool]error{}
	q.changed, q.roomFreed, q.saving = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)

	info, err := q.streamInfo()
	if err != nil {
		return err
	}
	var c cursor
	q.cursor.key = cursorKey(q.route.Name)
	q.cursor.rev, err = q.bucket.get(q.ctx, q.cursor.key, &c)
	q.blocked, q.told = c.Blocked, c.Blocked
	switch {
	case err != nil:
		return err
	case c.Stream.IsZero():
		c, err = q.newCursor(info, q.from)
		if err != nil {
			return err
		}
		q.log.Info("this sink is new to the stream", "stream", info.Config.Name, "after", c.After, "open", len(c.Open))
	case !c.Stream.Equal(info.Created):
		q.log.Warn("the stream is another one than before, so it is read from its beginning; nothing is told twice",
			"stream", info.Config.Name, "created", info.Created)
		c = cursor{Stream: info.Created}
	default:
		lost, err := lost(q.ctx, q.js, info, c.Read, c.ReadAt)
		if err != nil {
			return err
		}
		if lost {
			q.log.Warn("the stream's servers lost messages, so what came since is read again; nothing is told twice",
				"stream", info.Config.Name, "since", c.ReadAt)
			was := c
			c, err = q.newCursor(info, c.ReadAt.Add(-lostBefore))
			if err != nil {
				return err
			}
			c.After = min(c.After, was.After) // some may have waited for longer
			c.Open = slices.DeleteFunc(append(c.Open, was.Open...), func(seq uint64) bool {
				return seq > c.After // it is read in its turn, or was lost
			})
		}
	}
	q.savedCursor, q.lastRead, q.streamCreated, q.catchUpTo = c, c.After, info.Created, info.State.LastSeq
	if c.Read == c.After {
		q.lastReadAt = c.ReadAt
	}
	q.savedRead, q.savedReadAt = q.lastRead, q.lastReadAt
	q.skipDeleted(info, c.After)
	for _, seq := range c.Open {
		q.openSeqs[seq] = true
	}
	return q.saveCursor(q.ctx, true)
}

func (q *queue) streamInfo() (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(q.ctx, requestTimeout)
	defer cancel()
	info, err := q.stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", q.stream.CachedInfo().Config.Name, err)
	}
	return info, nil
}

// run reads the stream into the queue, writes records and the cursor to the bucket, and keeps what couldn't be kept,
// until the lease ends. Before it returns it writes what is settled by then, and tells what is untold.
func (q *queue) run() {
	var all sync.WaitGroup
	all.Go(q.readStream)
	all.Go(q.keepSaving)
	all.Go(q.keepTrying)
	all.Wait()
}

// notifyWorker adds a delivery to the next Changes. mu is held.
func (q *queue) notifyWorker(seq uint64) {
	q.changedSeqs[seq] = true
	wake(q.changed)
}

// replace replaces the item of a pending delivery. mu is held.
func (q *queue) replace(e *pendingItem, next delivery.Item) {
	e.item = &next
	q.notifyWorker(next.Seq)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Changed implements delivery.Queue.
func (q *queue) Changed() <-chan struct{} { return q.changed }

// Changes implements delivery.Queue. It leaves out what is to become a dead letter, and what waits for its lead until that
// has come.
func (q *queue) Changes() (c delivery.Changes) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.catchUpTo > 0 {
		return c
	}
	now := time.Now()
	q.nextLead = time.Time{}
	c.Mutes = q.mutes
	for seq := range q.changedSeqs {
		e, u := q.pending[seq], q.unkept[seq]
		switch {
		case e != nil && q.waits(e, now):
			if q.nextLead.IsZero() || e.item.PendingSince.Before(q.nextLead) {
				q.nextLead = e.item.PendingSince
			}
			continue
		case e == nil:
			c.Gone = append(c.Gone, seq)
		case u == nil:
			c.Pending = append(c.Pending, e.item)
		case !u.dead: // the Worker must not ask for the fallback again
			next := *e.item
			next.FellBack = true
			c.Pending = append(c.Pending, &next)
		}
		delete(q.changedSeqs, seq)
	}
	slices.SortFunc(c.Pending, func(a, b *delivery.Item) int { return cmp.Compare(a.Seq, b.Seq) })
	return c
}

// Read implements delivery.Queue. It fails while the result of the group's previous delivery isn't in the bucket, so
// that a killed relay repeats at most one delivery of a group.
func (q *queue) Read(i *delivery.Item) (ce event.Event, receipt []byte, err error) {
	q.mu.Lock()
	e := q.pending[i.Seq]
	if e == nil {
		q.mu.Unlock()
		return ce, nil, delivery.ErrSettled
	}
	if e.group.requiredVersion > e.group.savedVersion {
		q.mu.Unlock()
		return ce, nil, errors.New("what became of the change before is not on record yet")
	}
	receipt = e.group.rec.Receipt
	inMemory := e.ce
	q.mu.Unlock()
	if inMemory != nil {
		return *inMemory, receipt, nil
	}
	r, err := q.fetch(i.Seq)
	if err != nil {
		return ce, nil, err
	}
	m, err := r.message()
	if err != nil {
		return ce, nil, fmt.Errorf("%w: message %d: %v", delivery.ErrLost, i.Seq, err)
	}
	if m.ce.ID() != i.ID { // the servers lost it: that is noticed soon, and all is read again
		return ce, nil, fmt.Errorf("message %d is another one than before", i.Seq)
	}
	return m.ce, receipt, nil
}
