package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
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
	pending  map[uint64]*entry
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
type entry struct {
	item  *delivery.Item // replaced, never changed
	mark  string
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
	q.pending, q.open, q.unsaved = map[uint64]*entry{}, map[uint64]bool{}, map[uint64]bool{}
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
	if c.After > 0 && info.State.FirstSeq > c.After+1 {
		q.deleted = info.State.FirstSeq - c.After - 1
		q.log.Error("the stream's limits deleted messages before this sink could get them; raise its max_age or max_bytes",
			"stream", info.Config.Name, "messages", q.deleted)
	}
	q.cursor, q.read, q.created, q.waiting = c, c.After, info.Created, info.State.LastSeq
	for _, seq := range c.Open {
		q.open[seq] = true
	}
	return q.saveCursor(q.term, true) // so that the one before, if it still runs, can't write any more
}

func (q *queue) info() (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(q.term, patience)
	defer cancel()
	info, err := q.stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", q.stream.CachedInfo().Config.Name, err)
	}
	return info, nil
}

// begin is the cursor of a sink that is new: it is owed the latest change of each Azure event that is open, and what
// comes from now on, or since the time from.
func (q *queue) begin(info *jetstream.StreamInfo) (cursor, error) {
	c := cursor{After: info.State.LastSeq, Stream: info.Created}
	latest := map[string]uint64{}
	first := uint64(0) // not older than from
	err := until(q.term, q.js, info.Config.Name, info, time.Now().Add(-openFor), func(r raw) {
		if first == 0 && !q.from.IsZero() && !r.stored.Before(q.from) {
			first = r.seq
		}
		m, err := r.message()
		switch {
		case err != nil, m.to != "", m.of == "", first != 0:
		case m.change.Kind == imds.Vanished:
			delete(latest, m.of)
		case m.change.Kind.OfAzure():
			latest[m.of] = r.seq
		}
	})
	if err != nil {
		return c, err
	}
	if first != 0 {
		c.After = first - 1
	}
	for _, seq := range latest {
		c.Open = append(c.Open, seq)
	}
	slices.Sort(c.Open)
	q.log.Info("this sink is new to the stream", "stream", info.Config.Name, "after", c.After, "open", len(c.Open))
	return c, nil
}

// run reads the stream into the queue, and keeps the bucket up to date, until the lease ends. What is settled by then
// is written.
func (q *queue) run() {
	var both sync.WaitGroup
	both.Go(q.readAll)
	both.Go(q.keep)
	both.Wait()
}

// readAll reads from the cursor on, again and again: streams and servers may be gone for a while.
func (q *queue) readAll() {
	defer time.AfterFunc(catchUp, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.caughtUp()
	}).Stop()
	for q.term.Err() == nil {
		err := q.readOpen()
		if err == nil {
			q.mu.Lock()
			q.readTo(q.read)
			from := q.read
			q.mu.Unlock()
			err = follow(q.term, q.js, q.stream.CachedInfo().Config.Name, after(from), q.take)
		}
		if q.term.Err() != nil {
			return
		}
		if errors.Is(err, errOvertaken) {
			q.lost(err)
			return
		}
		q.mu.Lock()
		news := q.readErr == nil
		q.readErr = err
		q.mu.Unlock()
		if news {
			q.log.Warn("the stream can't be read, trying again", "err", err)
		}
		select {
		case <-q.term.Done():
		case <-time.After(readAgain):
		}
		q.checkStream()
	}
}

// checkStream ends the lease's time when the stream is another one than before, so that a new queue begins with it.
func (q *queue) checkStream() {
	info, err := q.info()
	if err != nil {
		return
	}
	q.mu.Lock()
	again := q.read > info.State.LastSeq
	q.mu.Unlock()
	if again || !info.Created.Equal(q.created) {
		q.lost(fmt.Errorf("stream %s is another one than before", info.Config.Name))
	}
}

// readOpen reads the changes that were open when the sink was new.
func (q *queue) readOpen() error {
	q.mu.Lock()
	open := slices.Sorted(maps.Keys(q.open))
	q.mu.Unlock()
	for _, seq := range open {
		q.mu.Lock()
		known := !q.open[seq] || q.pending[seq] != nil
		q.mu.Unlock()
		if known {
			continue
		}
		r, err := q.fetch(q.term, seq)
		switch {
		case errors.Is(err, delivery.ErrLost):
			q.mu.Lock()
			delete(q.open, seq)
			q.mu.Unlock()
			continue
		case err != nil:
			return err
		}
		if err := q.takeOne(r); err != nil {
			return err
		}
	}
	return nil
}

// fetch reads one message by its number. The error wraps delivery.ErrLost when the stream has it no more.
func (q *queue) fetch(ctx context.Context, seq uint64) (raw, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	msg, err := q.stream.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		info, err := q.info()
		if err != nil {
			return raw{}, err
		}
		if seq <= info.State.LastSeq || !info.Created.Equal(q.created) {
			return raw{}, fmt.Errorf("%w: stream %s has no message %d any more", delivery.ErrLost, info.Config.Name, seq)
		} // else it is about to be there
	}
	if err != nil {
		return raw{}, fmt.Errorf("read message %d: %w", seq, err)
	}
	return raw{msg.Sequence, msg.Time.UTC(), msg.Subject, msg.Header, msg.Data}, nil
}

// take takes in a message when there is room for it.
func (q *queue) take(r raw) error {
	if err := q.room(); err != nil {
		return err
	}
	return q.takeOne(r)
}

// room waits until less is unsettled than may be.
func (q *queue) room() error {
	for {
		q.mu.Lock()
		full := len(q.pending)+len(q.unsaved) >= q.most
		news := full != q.full
		q.full, q.readErr = full, nil
		if full && news {
			q.caughtUp()
		}
		q.mu.Unlock()
		switch {
		case full && news:
			q.log.Error("too much is unsettled, so the stream is not read on until the sink accepts something", "unsettled",
				q.most)
		case news:
			q.log.Info("there is room again, the stream is read on")
		}
		if !full {
			return nil
		}
		select {
		case <-q.released:
		case <-q.term.Done():
			return q.term.Err()
		}
	}
}

// takeOne takes in a message: it becomes pending, unless the sink isn't owed it or has it already.
func (q *queue) takeOne(r raw) error {
	m, err := r.message()
	if err != nil {
		return q.noCloudEvent(r, err)
	}
	if !q.concerns(m) {
		q.pass(r.seq)
		return nil
	}
	g, err := q.group(markKey(q.route.Name, m.group()))
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.readTo(r.seq)
	delete(q.open, r.seq)
	id := m.mark()
	_, settled := g.rec.Settled[id]
	_, waits := g.pending[id]
	if settled || waits || !q.wants(g, m) {
		return nil
	}
	if m.instead != nil { // unless the sink has, or had, it already
		_, settled := g.rec.Settled[m.ce.ID()]
		if _, waits := g.pending[m.ce.ID()]; settled || waits {
			return nil
		}
	}
	q.pend(g, m)
	return nil
}

// concerns says whether a message may be for the sink at all. Heartbeats only say that a VM is there.
func (q *queue) concerns(m message) bool {
	switch {
	case m.to != "":
		return m.to == q.route.Name
	case m.of != "":
		return true
	}
	return m.ce.Type() != cloudevent.BridgeHeartbeat && q.route.Terms.Bridge.Hears(m.ce.Type())
}

// wants says whether the sink is owed the message. The filter is asked of the Azure event's first change that the sink
// could be told of; once it has accepted, only changes are asked. mu is held.
func (q *queue) wants(g *group, m message) bool {
	if m.to != "" || m.of == "" {
		return true
	}
	kind := m.change.Kind
	asked := !g.rec.Owed
	if asked {
		verdict, _, err := q.route.Filter.Event(m.change, cloudevent.Fields(m.ce), "", true)
		if err != nil {
			q.log.Warn("a filter failed, so the event passes", "event", m.of, "err", err)
		}
		if verdict == bridge.Refused {
			return false
		}
		g.rec.Owed = true
	}
	var wanted bool
	if kind.OfAzure() {
		wanted, _ = q.route.Filter.Change(m.change, "")
		q.overtake(g, m, wanted)
	} else {
		wanted = q.route.Hears(m.change, "")
	}
	if asked && !wanted { // else it is written with what becomes of the delivery
		q.note(g)
	}
	return wanted
}

// overtake settles what a newer change of the event makes out of date: reminders, and what waits for its time. What
// waits moves with NotBefore when the sink doesn't get the change. mu is held.
func (q *queue) overtake(g *group, m message, wanted bool) {
	due := q.route.Due(m.change, time.Now())
	for id, seq := range g.pending {
		e := q.pending[seq]
		waits := e.item.Due.After(time.Now())
		ahead := e.item.Change == string(imds.Scheduled) || e.item.Change == string(imds.Updated)
		ends := m.change.Kind == imds.Started || m.change.Kind == imds.Vanished
		switch {
		case seq > m.seq:
		case e.item.Change == string(imds.Reminder), wanted && ahead && !due.IsZero(), waits && (wanted || ends):
			g.rec.settle(id, mark{At: time.Now().UTC(), How: howSuperseded})
			q.end(e)
			q.touch(seq)
		case waits:
			next := *e.item
			next.Due, next.NotBefore = next.Due.Add(m.notBefore().Sub(next.NotBefore)), m.notBefore()
			e.item = &next
			q.touch(seq)
		}
	}
}

// pend makes a message pending. mu is held.
func (q *queue) pend(g *group, m message) {
	id := m.mark()
	var due time.Time
	if m.to == "" {
		due = q.route.Due(m.change, time.Now())
	}
	i := m.item(due)
	if t, tried := g.rec.Trying[id]; tried {
		i.Attempts, i.Next, i.Error, i.Progress, i.Batch, i.FellBack = t.Attempts, t.Next, t.Error, t.Progress, t.Batch,
			t.FellBack
	}
	e := &entry{item: i, mark: id, group: g}
	if q.bodies < maxBodies {
		e.ce = &m.ce
		q.bodies++
	}
	q.pending[m.seq] = e
	g.pending[id] = m.seq
	if m.seq > q.cursor.After {
		q.order = append(q.order, m.seq)
	} else {
		q.open[m.seq] = true
	}
	q.touch(m.seq)
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

// pass notes that a message was read that the sink isn't owed.
func (q *queue) pass(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.open, seq)
	q.readTo(seq)
}

// readTo notes that the stream was read so far. mu is held.
func (q *queue) readTo(seq uint64) {
	q.read = max(q.read, seq)
	q.readErr = nil
	if q.waiting > 0 && q.read >= q.waiting {
		q.caughtUp()
	}
}

// caughtUp lets the Worker begin: it must know that an event is over before it tells that it was announced. mu is held.
func (q *queue) caughtUp() {
	q.waiting = 0
	wake(q.changed)
}

// noCloudEvent keeps a message that is none as a dead letter, once for all sinks.
func (q *queue) noCloudEvent(r raw, why error) error {
	err := q.dead.addRaw(q.term, r, why)
	if err != nil {
		return err
	}
	q.meter.Failed(q.route.Name, delivery.ReasonLost)
	q.log.Error("a message of the stream is no CloudEvent; it is kept as a dead letter", "message", r.seq, "subject",
		imds.Printable(r.subject, 200), "err", imds.Printable(why.Error(), 200))
	q.pass(r.seq)
	return nil
}

// group is the record of that key, read from the bucket if need be.
func (q *queue) group(key string) (*group, error) {
	q.mu.Lock()
	g := q.groups[key]
	q.mu.Unlock()
	if g != nil {
		return g, nil
	}
	g = &group{key: key, pending: map[string]uint64{}}
	rev, err := q.bucket.get(q.term, key, &g.rec)
	if errors.Is(err, errUnreadable) {
		q.log.Error("what a sink remembers can't be read; it counts as nothing", "key", key, "err", err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	g.rev = rev
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.groups) >= 2*maxGroups {
		for key, old := range q.groups {
			if len(old.pending) == 0 && !q.dirty[old] {
				delete(q.groups, key)
			}
			if len(q.groups) <= maxGroups {
				break
			}
		}
	}
	q.groups[key] = g
	return g, nil
}

// note counts a change of a record, which is to be written. mu is held.
func (q *queue) note(g *group) {
	g.changes++
	q.dirty[g] = true
}

// again has the Worker hear of a delivery again, a little later.
func (q *queue) again(seq uint64) {
	time.AfterFunc(readAgain, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.touch(seq)
	})
}

// end takes out a delivery that is settled in its record. mu is held.
func (q *queue) end(e *entry) {
	seq := e.item.Seq
	delete(q.pending, seq)
	delete(e.group.pending, e.mark)
	if e.ce != nil {
		q.bodies--
	}
	q.unsaved[seq] = true
	e.group.ended = append(e.group.ended, seq)
	q.note(e.group)
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
	if e.group.must > e.group.saved {
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

// Report is delivery.Queue's. It returns when all of the report is in the bucket, or can't be written: then that is
// tried again while the lease is held.
func (q *queue) Report(r delivery.Report) {
	if r.Now.IsZero() {
		r.Now = time.Now()
	}
	q.letGo(&r)
	q.fallBack(&r)
	_ = q.save(q.report(r)) // saveErr says it
	q.advance()
}

// letGo keeps what was given up as dead letters, and hands it to the fallback. What can't be kept stays pending: it is
// given up again later.
func (q *queue) letGo(r *delivery.Report) {
	ofAttempt := r.Reason == delivery.ReasonRejected || r.Reason == delivery.ReasonExpired
	kept := r.Dead[:0:0]
	for _, i := range r.Dead {
		letter := deadLetter{
			Sink: q.route.Name, Seq: i.Seq, ID: i.ID, Type: i.Type, Event: i.Group, AzureType: i.AzureType,
			Reason: r.Reason, Error: cmp.Or(r.Error, i.Error), At: r.Now.UTC(), Pending: i.Pending, Attempts: i.Attempts,
		}
		if ofAttempt {
			letter.Attempts++
		}
		ce, _, err := q.Read(i)
		switch {
		case errors.Is(err, delivery.ErrLost):
			err = q.dead.add(q.term, letter, nil)
		case err == nil:
			if r.Reason != delivery.ReasonLate && !i.FellBack {
				err = q.handOver(i, ce, letter.Error)
			}
			if err == nil {
				err = q.dead.add(q.term, letter, &ce)
			}
		}
		if err != nil {
			q.failed(fmt.Errorf("keep a dead letter: %w", err))
			q.again(i.Seq)
			continue
		}
		kept = append(kept, i)
		q.meter.Failed(q.route.Name, r.Reason)
		q.log.Error("a delivery was given up; it is kept as a dead letter", "id", i.ID, "reason", r.Reason, "err",
			letter.Error)
	}
	r.Dead = kept
}

// fallBack hands deliveries to the sink that takes over what this one can't deliver. What can't be handed over is tried
// again later.
func (q *queue) fallBack(r *delivery.Report) {
	r.FellBack = slices.DeleteFunc(slices.Clone(r.FellBack), func(i *delivery.Item) bool {
		ce, _, err := q.Read(i)
		if err == nil {
			err = q.handOver(i, ce, cmp.Or(r.Error, i.Error))
		}
		if err != nil {
			q.failed(fmt.Errorf("hand a delivery to the fallback: %w", err))
			q.again(i.Seq)
		}
		return err != nil
	})
}

// handOver publishes a delivery for the fallback, if there is one. What came as a fallback doesn't fall back again.
func (q *queue) handOver(i *delivery.Item, ce event.Event, why string) error {
	to := q.route.Terms.Fallback.Sink
	if to == "" || i.Instead != nil || i.Transient {
		return nil
	}
	instead := &delivery.Instead{Sink: q.route.Name, Why: cmp.Or(why, "no answer")}
	return address(q.term, q.js, to, ce, instead, ce.ID()+"-instead-"+to)
}

// report changes the records as a report says, and gives those it changed.
func (q *queue) report(r delivery.Report) (changed []*group) {
	q.mu.Lock()
	defer q.mu.Unlock()
	each := func(items []*delivery.Item, f func(e *entry)) {
		for _, i := range items {
			if e := q.pending[i.Seq]; e != nil {
				f(e)
				q.note(e.group)
				e.group.must = e.group.changes
				if !slices.Contains(changed, e.group) {
					changed = append(changed, e.group)
				}
			}
		}
	}
	for _, items := range [][]*delivery.Item{r.Accepted, r.Failed, r.Dead} {
		each(items, func(e *entry) {
			if r.Answer.Receipt != nil && e.item.Group != "" {
				e.group.rec.Receipt = r.Answer.Receipt
			}
		})
	}
	each(r.Failed, func(e *entry) {
		next := *e.item
		next.Attempts++
		next.Next, next.Error, next.Batch = r.Next.UTC(), cmp.Or(r.Error, next.Error), cmp.Or(r.Batch, next.Batch)
		if r.Answer.Progress != nil {
			next.Progress = slices.Clone(r.Answer.Progress)
		}
		q.replace(e, next)
	})
	each(r.FellBack, func(e *entry) {
		next := *e.item
		next.FellBack = true
		q.replace(e, next)
	})
	settle := func(how, answer string) func(*entry) {
		return func(e *entry) {
			attempts := e.item.Attempts
			if how == howAccepted {
				attempts++
			}
			e.group.rec.settle(e.mark, mark{At: r.Now.UTC(), How: how, Answer: answer, Attempts: attempts})
			q.end(e)
		}
	}
	each(r.Superseded, settle(howSuperseded, ""))
	q.count += len(r.Accepted)
	if len(r.Accepted) > 0 {
		q.last = r.Now.UTC()
	}
	each(r.Accepted, settle(howAccepted, imds.CutText(r.Answer.Status, 200)))
	each(r.Dead, settle(howDead, r.Reason))
	return changed
}

// replace puts a newer item in the place of an entry's. mu is held.
func (q *queue) replace(e *entry, next delivery.Item) {
	e.item = &next
	e.group.rec.try(e.mark, trial{next.Attempts, next.Next, next.Error, next.Progress, next.Batch, next.FellBack})
	q.touch(next.Seq)
}

// save writes records, and settles for good what ended in them.
func (q *queue) save(groups []*group) error {
	if len(groups) == 0 {
		return nil
	}
	q.saving <- struct{}{}
	defer func() { <-q.saving }()
	// What a sink accepted as the lease ended is written all the same, if nobody else has written since.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.term), patience)
	defer cancel()
	errs := make([]error, len(groups))
	places := make(chan struct{}, writers)
	var all sync.WaitGroup
	for n, g := range groups {
		places <- struct{}{}
		all.Go(func() {
			errs[n] = q.saveOne(ctx, g)
			<-places
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	if errors.Is(err, errOvertaken) {
		q.lost(err)
	}
	q.failed(err)
	return err
}

func (q *queue) saveOne(ctx context.Context, g *group) error {
	q.mu.Lock()
	body, err := json.Marshal(g.rec)
	changes, ended := g.changes, len(g.ended)
	q.mu.Unlock()
	if err == nil && changes == g.saved {
		return nil // somebody else wrote it
	}
	rev := g.rev
	if err == nil {
		rev, err = q.bucket.put(ctx, g.key, body, g.rev)
	}
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	g.rev, g.saved = rev, changes
	if g.changes == changes {
		delete(q.dirty, g)
	}
	for _, seq := range g.ended[:ended] {
		delete(q.unsaved, seq)
		delete(q.open, seq)
	}
	g.ended = slices.Clone(g.ended[ended:])
	return nil
}

// failed notes why the bucket can't be written, nil when it can.
func (q *queue) failed(err error) {
	q.mu.Lock()
	was := q.saveErr
	q.saveErr = err
	q.mu.Unlock()
	if err != nil && was == nil {
		q.log.Warn("what was delivered can't be recorded, trying again", "err", err)
	}
}

// advance drops what is settled in front, and lets the reader go on.
func (q *queue) advance() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.order) > 0 && q.pending[q.order[0]] == nil && !q.unsaved[q.order[0]] {
		q.order = q.order[1:]
	}
	if len(q.order) > 2*q.most { // one in front holds up the cursor
		q.order = slices.DeleteFunc(q.order, func(seq uint64) bool { return q.pending[seq] == nil && !q.unsaved[seq] })
	}
	wake(q.released)
}

// now is the cursor as things are. mu is held.
func (q *queue) now() cursor {
	c := cursor{After: q.read, Stream: q.created}
	if len(q.order) > 0 {
		c.After = q.order[0] - 1
	}
	for seq := range q.open {
		c.Open = append(c.Open, seq)
	}
	slices.Sort(c.Open)
	return c
}

// keep writes what could not be written before, and the cursor when it has moved, until the lease ends.
func (q *queue) keep() {
	tick := time.NewTicker(saveAgain)
	defer tick.Stop()
	for {
		select {
		case <-q.term.Done():
			q.flush()
			return
		case <-tick.C:
		}
		q.flush()
	}
}

// flush writes all records that wait, and the cursor if it is time.
func (q *queue) flush() {
	q.mu.Lock()
	var waiting []*group
	for g := range q.dirty {
		waiting = append(waiting, g)
	}
	q.mu.Unlock()
	if q.save(waiting) == nil {
		q.advance()
		_ = q.saveCursor(context.WithoutCancel(q.term), q.term.Err() != nil) // it is no loss
	}
}

// saveCursor writes the cursor when it has moved; with always, in any case.
func (q *queue) saveCursor(ctx context.Context, always bool) error {
	q.saving <- struct{}{}
	defer func() { <-q.saving }()
	if !always && time.Since(q.written) < cursorEvery {
		return nil
	}
	q.mu.Lock()
	c := q.now()
	same := c.After == q.cursor.After && len(c.Open) == len(q.cursor.Open)
	q.mu.Unlock()
	if same && !always && time.Since(q.written) < cursorAtLeast {
		return nil
	}
	body, err := json.Marshal(c)
	if err == nil {
		var rev uint64
		rev, err = q.bucket.put(ctx, cursorKey(q.route.Name), body, q.cursorRev)
		if err == nil {
			q.cursorRev = rev
		}
	}
	if err != nil {
		if errors.Is(err, errOvertaken) {
			q.lost(err)
		}
		return err
	}
	q.written = time.Now()
	q.mu.Lock()
	q.cursor = c
	q.mu.Unlock()
	return nil
}
