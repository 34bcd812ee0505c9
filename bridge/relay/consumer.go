package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
	"forewarn/bridge/mutes"
)

// ackWait is how long a server waits for an acknowledgement before it sends a message once more: longer than a mute or a
// lead, so that it never does while a relay has the message.
const ackWait = mutes.Longest + maxEventAge

// maxEventAge is how far back a new sink looks for open events, and how long a record lives at least. Azure announces no
// maintenance longer ahead.
const maxEventAge = 40 * 24 * time.Hour

// consumerName returns the name of a sink's consumer.
func consumerName(sink string) string { return "forewarn-" + streams.Token(sink) }

func stateKey(sink string) string { return "sink." + streams.Token(sink) }

// A sinkState is what the bucket keeps of a sink besides its records. It is written when a relay takes the sink over or
// leaves it, and every stateEvery.
type sinkState struct {
	// Stream is when the stream was created. A new stream of the same name starts from 1 again.
	Stream time.Time `json:"stream"`
	// Everything up to After was settled. The sink's consumer knows better, unless somebody deleted it.
	After uint64 `json:"after"`
	// Read is the last message that was read, and ReadAt when the stream stored it; zero if that is unknown.
	Read   uint64    `json:"read"`
	ReadAt time.Time `json:"readAt,omitzero"`
	// From is the first message that the sink gets. Of older ones it gets those of Open, if they are after After: about the
	// Azure events that were open when it was new.
	From uint64   `json:"from"`
	Open []uint64 `json:"open,omitempty"`
	// Blocked means that the other sinks were told that this one is.
	Blocked bool `json:"blocked,omitempty"`
}

// openLeft returns the numbers of Open that may still be asked for, in order, each once: a loss of messages adds more.
func (s sinkState) openLeft() []uint64 {
	open := slices.Sorted(slices.Values(s.Open))
	open = slices.DeleteFunc(open, func(seq uint64) bool { return seq <= s.After || seq >= s.From })
	return slices.Compact(open)
}

// gets reports whether the sink gets the message with that number at all.
func (q *queue) gets(seq uint64) bool { return seq >= q.firstSeq || q.openSeqs[seq] }

// open finds where the sink goes on, and makes its consumer begin there. Nothing of an earlier relay's is left then:
// neither its requests, nor what it has not acknowledged.
func (q *queue) open() error {
	info, err := q.streamInfo()
	if err != nil {
		return err
	}
	var s sinkState
	q.stateEntry.Key = stateKey(q.route.Name)
	q.stateEntry.Rev, err = q.bucket.Get(q.ctx, q.stateEntry.Key, &s)
	if err != nil {
		return err
	}
	if s, err = q.goOn(s, info); err != nil {
		return err
	}
	q.notices.blocked, q.notices.published = s.Blocked, s.Blocked
	q.firstSeq, q.openSeqs = s.From, map[uint64]bool{}
	for _, seq := range s.Open {
		q.openSeqs[seq] = true
	}
	q.records.state, q.streamCreated = s, info.Created
	q.streamEnd, q.pos.catchUpTo = info.State.LastSeq, info.State.LastSeq
	q.pos.last = s.After
	q.skipDeleted(info, s.After)
	if err := q.saveState(q.ctx); err != nil {
		return err
	}
	return q.beginAfter(q.pos.last)
}

// goOn returns the state with which the sink goes on.
func (q *queue) goOn(was sinkState, info *jetstream.StreamInfo) (s sinkState, err error) {
	floor, found, err := q.ackFloor()
	if err != nil {
		return s, err
	}
	missing, err := streams.Lost(q.ctx, q.js, info, was.Read, was.ReadAt)
	if err != nil {
		return s, err
	}
	name := info.Config.Name
	switch {
	case was.Stream.IsZero():
		s, err = q.begin(info, q.from)
		q.log.Info("this sink is new to the stream", "stream", name, "from", s.From, "open", len(s.Open))
	case !was.Stream.Equal(info.Created):
		q.log.Warn("the stream was made again, so it is read from its end, with the latest message of each open event",
			"stream", name, "created", info.Created)
		s, err = q.begin(info, time.Time{})
	case missing:
		q.log.Warn("the stream's servers lost messages, so what came since is read again", "stream", name,
			"since", was.ReadAt)
		s, err = q.begin(info, was.ReadAt.Add(-lostBefore))
		if !found {
			floor = was.After
		}
		s.From = min(s.From, max(floor+1, was.From)) // some may have waited for longer
		s.Open = append(s.Open, was.Open...)
		s.After = min(s.After, floor)
	case found:
		s = was
		if floor >= info.State.FirstSeq { // otherwise the server may have moved it with the stream's first message
			s.After = floor
		}
	default:
		q.log.Warn("this sink has no consumer, so the stream is read again from what was last saved as settled; what is on "+
			"record is not sent again", "consumer", consumerName(q.route.Name), "from", was.After+1)
		s = was
	}
	s.Blocked = was.Blocked
	return s, err
}

// stateEvery is how often the state of a sink is written.
const stateEvery = time.Minute

// lostBefore is how long before the last message that is known a stream is read again that lost messages, because the
// clocks of its servers may differ. Those that were told are on record for much longer.
const lostBefore = time.Hour

// begin returns the state of a sink that is new to the stream. The sink gets the latest change of each open Azure event,
// what came of its approval since, and everything since from; if that is zero, from now on.
func (q *queue) begin(info *jetstream.StreamInfo, from time.Time) (sinkState, error) {
	s := sinkState{
		Stream: info.Created, From: info.State.LastSeq + 1, Read: info.State.LastSeq, ReadAt: info.State.LastTime.UTC(),
	}
	open := openEvents{sets: map[string]map[string]*openEvent{}, leftOut: map[string]int{}}
	first := uint64(0) // the first message that is not older than from
	err := streams.ReadSince(q.ctx, q.js, info.Config.Name, info, time.Now().Add(-maxEventAge), func(r streams.Raw) {
		if first == 0 && !from.IsZero() && !r.Stored.Before(from) {
			first = r.Seq
		}
		m, err := r.Message()
		if err == nil && first == 0 {
			open.add(m)
		}
	})
	if err != nil {
		return s, err
	}
	if first != 0 {
		s.From = first
	}
	s.Open = open.numbers()
	for set, n := range open.leftOut {
		q.log.Warn("a set has more open events than a new sink is told of, so it isn't told of the oldest", "set", slashed(set),
			"leftOut", n)
	}
	s.After = s.From - 1
	if len(s.Open) > 0 {
		s.After = min(s.After, s.Open[0]-1)
	}
	return s, nil
}

// saveState writes the state of the sink.
func (q *queue) saveState(ctx context.Context) error {
	q.saving <- struct{}{}
	defer func() { <-q.saving }()
	q.mu.Lock()
	next := q.records.state
	next.After, next.Blocked = q.floor(), q.notices.published
	if q.pos.last > next.Read {
		next.Read, next.ReadAt = q.pos.last, q.pos.lastAt
	}
	q.mu.Unlock()
	next.Open = next.openLeft()
	if q.ctx.Err() != nil && q.stateEntry.Unanswered != nil {
		return nil // the next relay may have written the same, and put could not tell them apart
	}
	body, err := json.Marshal(next)
	if err == nil {
		err = q.bucket.Save(ctx, &q.stateEntry, body)
	}
	if errors.Is(err, streams.ErrOvertaken) {
		q.endLease(err)
	}
	if err == nil {
		q.mu.Lock()
		q.records.state, q.records.stateSaved = next, time.Now()
		q.mu.Unlock()
	}
	return err
}

// ackFloor returns the number up to which all messages are acknowledged for the sink. found is false if it has no
// consumer.
func (q *queue) ackFloor() (seq uint64, found bool, err error) {
	ctx, cancel := context.WithTimeout(q.ctx, streams.RequestTimeout)
	defer cancel()
	consumer, err := q.js.Consumer(ctx, q.streamName(), consumerName(q.route.Name))
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("look at the consumer: %w", err)
	}
	return consumer.CachedInfo().AckFloor.Stream, true, nil
}

// beginAfter has the consumer begin behind a message. It deletes the consumer and makes it again, which works on all
// servers: ResetConsumer needs version 2.14 on each of a cluster.
func (q *queue) beginAfter(seq uint64) error {
	ctx, cancel := context.WithTimeout(q.ctx, streams.RequestTimeout)
	defer cancel()
	name, stream := consumerName(q.route.Name), q.streamName()
	err := q.js.DeleteConsumer(ctx, stream, name)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("delete consumer %s: %w", name, err)
	}
	config := streams.StartAfter(seq)
	config.Durable, config.AckPolicy, config.AckWait = name, jetstream.AckExplicitPolicy, ackWait
	config.MaxAckPending = q.room.most + streams.ReadAhead
	config.Description = "how far the sink " + imds.Printable(q.route.Name, 200) + " has come; of forewarn relay"
	consumer, err := q.js.CreateConsumer(ctx, stream, config)
	if err != nil {
		return fmt.Errorf("create consumer %s: %w", name, err)
	}
	q.consumer = consumer.CachedInfo().Config
	if q.puller != nil {
		q.puller.Close()
	}
	q.forgetReplies()
	q.puller, err = streams.NewPuller(q.js, stream, name)
	if err == nil && consumer.CachedInfo().NumPending == 0 {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.endCatchUp()
	}
	return err
}

// resume makes sure that the consumer goes on behind the last message that was read, after something may have been lost,
// or somebody changed the consumer. It ends the lease if the stream was made again, or its servers lost messages: then a
// new queue begins.
func (q *queue) resume() error {
	ctx, cancel := context.WithTimeout(q.ctx, streams.RequestTimeout)
	defer cancel()
	consumer, err := q.js.Consumer(ctx, q.streamName(), consumerName(q.route.Name))
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("look at the consumer: %w", err)
	}
	q.checked = time.Now()
	if err == nil && q.follows(consumer.CachedInfo()) {
		q.puller.Again()
		return nil
	}
	if err == nil && q.changed(consumer.CachedInfo()) {
		q.log.Warn("somebody changed the consumer of this sink, so it is made again as it was", "consumer",
			consumerName(q.route.Name))
	}
	info, err := q.streamInfo()
	if err != nil {
		return err
	}
	q.mu.Lock()
	read, readAt, floor := q.pos.last, q.pos.lastAt, q.floor()
	q.mu.Unlock()
	missing, err := streams.Lost(q.ctx, q.js, info, read, readAt)
	if err != nil {
		return err
	}
	if missing || read > info.State.LastSeq || !info.Created.Equal(q.streamCreated) {
		q.endLease(fmt.Errorf("stream %s is another one than before", info.Config.Name))
		return errOtherStream
	}
	return q.beginAfter(floor)
}

var errOtherStream = errors.New("the stream is another one than before")

// checkEvery is how often a queue that has nothing to read looks whether its consumer is as it should be.
const checkEvery = 30 * time.Second

// follows reports whether a consumer is as this queue made it, and nothing that it sent, or was told, is missing.
func (q *queue) follows(info *jetstream.ConsumerInfo) bool {
	q.mu.Lock()
	unsettled := q.unsettled()
	q.mu.Unlock()
	refused := q.js.Conn().LastError() // without a violation the server is only slow
	if info.NumAckPending > unsettled && errors.Is(refused, nats.ErrPermissionViolation) && !q.saidUnacked {
		q.saidUnacked = true
		q.log.Warn("what is settled is acknowledged in vain, so it is read again now and then; a relay needs the right to "+
			"publish to $JS.ACK.<stream>.>", "messages", info.NumAckPending-unsettled, "err", refused)
	}
	return info.Delivered.Consumer == q.puller.Received && info.NumAckPending <= unsettled && !q.changed(info)
}

// changed reports whether somebody has changed or paused the consumer since this queue made it. Its metadata tells the
// version of the server that is asked.
func (q *queue) changed(info *jetstream.ConsumerInfo) bool {
	is := info.Config
	is.Metadata = q.consumer.Metadata
	return !reflect.DeepEqual(is, q.consumer)
}

// checkWhole returns streams.ErrLost if a batch lacks messages or bodies because somebody changed the consumer, as by a
// filter.
func (q *queue) checkWhole(batch []streams.Raw) error {
	q.mu.Lock()
	last := q.pos.last
	q.mu.Unlock()
	for _, r := range batch {
		if r.Seq > last+1 || len(r.Data) == 0 && r.Header.Get(nats.MsgSize) != "" {
			ctx, cancel := context.WithTimeout(q.ctx, streams.RequestTimeout)
			defer cancel()
			consumer, err := q.js.Consumer(ctx, q.streamName(), consumerName(q.route.Name))
			if err == nil && q.changed(consumer.CachedInfo()) {
				err = streams.ErrLost
			}
			return err
		}
		last = max(last, r.Seq)
	}
	return nil
}

// floor returns the number up to which everything is settled for good. mu is held.
func (q *queue) floor() uint64 {
	floor := q.pos.last
	for seq := range q.pending {
		floor = min(floor, seq-1)
	}
	for seq := range q.records.unsaved {
		floor = min(floor, seq-1)
	}
	return floor
}

// forgetReplies forgets on which subjects the consumer before wanted its messages acknowledged. A server of version 2.10
// goes on behind whatever is acknowledged, and would skip what it hasn't sent again by then.
func (q *queue) forgetReplies() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.records.unacked = nil
	for _, e := range q.pending {
		e.reply = ""
	}
	for g := range q.records.dirty {
		for n := range g.settled {
			g.settled[n].reply = ""
		}
	}
}

// ack acknowledges messages. What can't be acknowledged now is by the next flush, and nothing is once the lease is over: the
// consumer of the next relay has the same name.
func (q *queue) ack(replies ...string) {
	if !q.lease.valid() {
		return
	}
	q.mu.Lock()
	all := append(q.records.unacked, replies...)
	q.records.unacked = nil
	q.mu.Unlock()
	for n, reply := range all {
		if err := q.js.Conn().Publish(reply, []byte("+ACK")); err != nil {
			q.mu.Lock()
			q.records.unacked = append(q.records.unacked, all[n:]...)
			q.mu.Unlock()
			return
		}
	}
}
