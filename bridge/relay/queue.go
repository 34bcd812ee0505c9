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
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// The bounds and times of a queue.
const (
	defaultUnsettled = 10_000           // deliveries in memory
	maxBodies        = 64 * 1024 * 1024 // bytes of CloudEvents in memory, of all queues; others are read again
	maxGroups        = 20_000           // groups in memory, besides those in use
	maxAtOnce        = 32               // records read or written at the same time
	maxAhead         = 32               // deliveries that were sent and aren't on record; one for a durable route
	roomPatience     = 5 * time.Second  // without an acceptance, until something is given up for what comes
	urgentPatience   = 2 * time.Second  // with something urgent behind the bound, until something of the crowded set is given up
	readRetry        = 1 * time.Second  // after the stream could not be read
	resumeAfter      = readRetry / 10   // after a message was lost on the way
	saveEvery        = 500 * time.Millisecond
)

// A queue holds what is pending for one sink: what its consumer has got from the stream and not acknowledged. It is the
// delivery.Queue of one Worker, and lives as long as the sink's lease is held.
type queue struct {
	route    bridge.Route
	js       jetstream.JetStream
	stream   jetstream.Stream
	bucket   streams.Bucket
	dead     *deadLetters
	log      *slog.Logger
	meter    bridge.Meter
	ctx      context.Context // done when the lease ends
	lease    *lease
	endLease context.CancelCauseFunc
	notify   func(ctx context.Context, js jetstream.JetStream, ce event.Event, except string) error // Relay.notifySinks

	openEvents func() []string                                                             // Fleet.OpenGroups
	lastSoon   func(by time.Time, wanted func(set string, e imds.Event) bool) (seq uint64) // Fleet.LastSoon
	shown      func(error) error                                                           // Options.Shown

	from          time.Time // where a sink that is new to the stream begins; zero for now
	streamCreated time.Time
	streamEnd     uint64          // the stream's last message when the lease was taken
	firstSeq      uint64          // sinkState.From, and
	openSeqs      map[uint64]bool // sinkState.Open, as they were when it began

	// Only readStream uses these.
	puller      *streams.Puller
	consumer    jetstream.ConsumerConfig // as the server made it
	checked     time.Time                // when the consumer was looked at
	saidUnacked bool                     // that acknowledgements are lost
	urgentAsked time.Time                // see urgentBehind
	urgentTo    uint64                   // the last message that was urgent then; 0 for none
	urgentSince time.Time                // since when that isn't read; zero if it is

	saving     chan struct{} // holds one value while records or the state are saved; guards the next
	stateEntry streams.Entry

	mu         sync.Mutex // guards all below; nothing slow happens while it is held
	pending    map[uint64]*pendingItem
	superseded map[uint64]string // under way: their ids (streams.Message.DeliveryID) by sequence number
	pos        position
	records    recordSet
	room       room
	updates    updates
	tally      tally
	notices    notices
	transfers  transfers
}

// A position is how far the stream is read.
type position struct {
	last      uint64    // sequence number; only readStream changes it
	lastAt    time.Time // when the stream stored that message; zero if that is unknown
	catchUpTo uint64    // the Worker gets only what is urgent before the stream is read to here; 0 when it gets all
	deleted   uint64    // messages that the stream's limits deleted, and that the sink may not have got
	err       error     // why the stream can't be read on; nil if it can
	errSince  time.Time // since when it can't; zero if it can
}

// A recordSet is the records in memory, and what of them, of the sink's state and of acknowledgements is to be written.
type recordSet struct {
	groups     map[string]*group
	dirty      map[*group]bool // groups with changes that aren't in the bucket
	unsaved    map[uint64]bool // sequence numbers that are settled, but not in the bucket yet
	ahead      int             // number of those that the sink has accepted
	unacked    []string        // see queue.ack
	state      sinkState       // as it is in the bucket
	stateSaved time.Time
	err        error // why records can't be written; nil if they can
}

// updates are what the Worker is still to hear of.
type updates struct {
	seqs     map[uint64]bool  // for the next Changes, or for one when a lead has come
	nextLead time.Time        // when the first of these leads comes; zero if none does
	mutes    []*delivery.Mute // that are for the sink; replaced, never changed
	wake     chan struct{}
}

// A tally is what became of attempts.
type tally struct {
	accepted     int // number of deliveries
	lastAccepted time.Time
	failingSince time.Time // since when what failed waits to be tried again, as noteFailing saw it; zero if nothing does
}

// A pendingItem is one delivery that isn't settled.
type pendingItem struct {
	item    *delivery.Item // replaced, never changed
	id      string         // streams.Message.DeliveryID
	reply   string         // see streams.Raw
	group   *group
	set     string       // see share
	ce      *event.Event // nil if it has to be read again
	bytes   int          // of the message
	offered bool         // the Worker may have it: its record was written, or can't be, and it isn't being given up
	begun   bool         // an attempt is under way
}

func (q *queue) init() {
	q.pending, q.superseded = map[uint64]*pendingItem{}, map[uint64]string{}
	q.records = recordSet{groups: map[string]*group{}, dirty: map[*group]bool{}, unsaved: map[uint64]bool{}}
	q.room.sets, q.room.freed = map[string]share{}, make(chan struct{}, 1)
	q.updates = updates{seqs: map[uint64]bool{}, wake: make(chan struct{}, 1)}
	q.transfers = transfers{due: map[uint64]*transfer{}, errs: map[bool]error{}}
	q.saving = make(chan struct{}, 1)
}

func (q *queue) streamName() string { return q.stream.CachedInfo().Config.Name }

func (q *queue) streamInfo() (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(q.ctx, streams.RequestTimeout)
	defer cancel()
	info, err := q.stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", q.streamName(), err)
	}
	return info, nil
}

// run reads the stream into the queue, writes records to the bucket, and keeps what couldn't be kept, until the lease
// ends. Before it returns it writes what is settled by then, and publishes the notices that are left.
func (q *queue) run() {
	var all sync.WaitGroup
	all.Go(q.readStream)
	all.Go(q.keepSaving)
	all.Go(q.keepTransferring)
	all.Wait()
}

// unsettled returns how many deliveries aren't settled for good. mu is held.
func (q *queue) unsettled() int { return len(q.pending) + len(q.records.unsaved) }

// notifyWorker adds a delivery to the next Changes. mu is held.
func (q *queue) notifyWorker(seq uint64) {
	q.updates.seqs[seq] = true
	wake(q.updates.wake)
}

// setOffered lets the Worker have a pending delivery, or takes it from the Worker. mu is held.
func (q *queue) setOffered(e *pendingItem, offered bool) {
	e.offered = offered
	q.notifyWorker(e.item.Seq)
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
func (q *queue) Changed() <-chan struct{} { return q.updates.wake }

// Changes implements delivery.Queue. It leaves out what is to become a dead letter, and what waits for its lead until that
// has come; and until the stream is read as far as it was when the lease was taken, all but the events that are urgent by
// the newest that waits about them: another may be over.
func (q *queue) Changes() (c delivery.Changes) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.updates.nextLead = time.Time{}
	c.Mutes = q.updates.mutes
	urgentIn := q.urgentIn(now)
	for seq := range q.updates.seqs {
		e, u := q.pending[seq], q.transfers.due[seq]
		switch {
		case e == nil || !e.offered:
			c.Gone = append(c.Gone, seq)
		case q.pos.catchUpTo > 0 && seq > urgentIn[e.group]:
			continue
		case q.waits(e, now):
			if q.updates.nextLead.IsZero() || e.item.PendingSince.Before(q.updates.nextLead) {
				q.updates.nextLead = e.item.PendingSince
			}
			continue
		case u == nil:
			c.Pending = append(c.Pending, e.item)
		case !u.dead: // the Worker must not ask for the fallback again
			next := *e.item
			next.FellBack = true
			c.Pending = append(c.Pending, &next)
		}
		delete(q.updates.seqs, seq)
	}
	slices.SortFunc(c.Pending, func(a, b *delivery.Item) int { return cmp.Compare(a.Seq, b.Seq) })
	return c
}

// urgentIn returns the newest delivery of each group that is urgent, while the stream isn't read as far as it was when the
// lease was taken. mu is held.
func (q *queue) urgentIn(now time.Time) map[*group]uint64 {
	newest := map[*group]uint64{}
	if q.pos.catchUpTo == 0 {
		return newest
	}
	for seq := range q.updates.seqs {
		e := q.pending[seq]
		if e == nil {
			continue
		}
		if _, known := newest[e.group]; !known {
			newest[e.group] = q.newestUrgent(e.group, now)
		}
	}
	return newest
}

// newestUrgent returns the newest delivery of a group if that is urgent, and 0 if not, or if one that waits in the record isn't
// read yet: the relay before may have told that without an answer, and what is older must not be told after it. mu is held.
func (q *queue) newestUrgent(g *group, now time.Time) uint64 {
	if len(g.rec.Waiting) > len(g.pending) {
		return 0
	}
	var newest *pendingItem
	for _, seq := range g.pending {
		e := q.pending[seq]
		if !q.waits(e, now) && (newest == nil || seq > newest.item.Seq) {
			newest = e
		}
	}
	if newest == nil || !newest.offered || !urgent(newest.item, now) {
		return 0
	}
	return newest.item.Seq
}

// Read implements delivery.Queue. It fails while the result of the group's previous delivery isn't in the bucket, so
// that a killed relay repeats at most one attempt of a group, and once the lease is over: then no attempt is made.
func (q *queue) Read(i *delivery.Item) (d delivery.Delivery, err error) {
	d.Event, d.Receipt, err = q.read(i)
	if err == nil {
		err = q.noteAttempt(i.Seq)
	}
	d.EventOver = !i.Ends() && q.hasEnd(i)
	return d, q.shown(err)
}

// noteAttempt notes that an attempt of a delivery is under way, unless it was settled or is being given up while it was
// read, or the lease is over.
func (q *queue) noteAttempt(seq uint64) error {
	if !q.lease.valid() {
		return errLeaseExpired
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.pending[seq]
	if e == nil || !e.offered {
		return delivery.ErrSettled
	}
	e.begun = true
	return nil
}

func (q *queue) read(i *delivery.Item) (ce event.Event, receipt []byte, err error) {
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
	m, err := r.Message()
	if err != nil {
		return ce, nil, fmt.Errorf("%w: message %d: %v", delivery.ErrLost, i.Seq, err)
	}
	if m.CE.ID() != i.ID { // the servers lost it: that is noticed soon, and all is read again
		return ce, nil, fmt.Errorf("message %d is another one than before", i.Seq)
	}
	return m.CE, receipt, nil
}
