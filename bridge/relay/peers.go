package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/internal/streams"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	housekeepingEvery = 5 * time.Second
	peerExpiry        = 20 * time.Second // after its last sign of life
)

// A peer is a relay of the same stream, this one included.
type peer struct {
	Name     string    `json:"name"`
	ID       string    `json:"id"` // new at each start
	Version  string    `json:"version"`
	Hash     string    `json:"settingsHash"`
	LastSeen time.Time `json:"-"`                 // by the clock of the servers
	Resting  []string  `json:"resting,omitempty"` // sinks that failed there, so that it takes them only if no other relay does
}

const peerPrefix = "relay."

func (r *Relay) peerKey() string { return peerPrefix + streams.Token(r.self.ID) }

// housekeeping publishes that this relay is alive, reads which others are, gives up for them the sinks that fail here, and
// checks that the streams are still what relays need, until ctx is done. If one is not, it ends the session.
func (r *Relay) housekeeping(ctx context.Context, st *storage, end context.CancelCauseFunc) {
	defer func() { // so that no relay gives up a sink for this one
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewEvery)
		defer cancel()
		_ = st.leases.Delete(ctx, r.peerKey()) // if that fails, it expires
	}()
	for {
		if err := r.keepHouse(ctx, st, end); err != nil && ctx.Err() == nil {
			r.Log.Debug("could not look around", "err", err)
		}
		r.mu.Lock()
		r.lastTurn = time.Now()
		r.mu.Unlock()
		if streams.Sleep(ctx, housekeepingEvery) != nil {
			return
		}
	}
}

func (r *Relay) keepHouse(ctx context.Context, st *storage, end context.CancelCauseFunc) error {
	ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	leasesStream, err := r.checkStreams(ctx, st, end)
	if err != nil {
		return err
	}
	r.mu.Lock()
	now := time.Now()
	me := peer{Name: r.Name, ID: r.self.ID, Version: r.Version, Hash: r.Settings.Hash, Resting: r.resting(now)}
	r.mu.Unlock()
	body, err := json.Marshal(me)
	if err != nil {
		return err
	}
	if _, err := st.leases.Put(ctx, r.peerKey(), body); err != nil {
		return err
	}
	peers, err := readPeers(ctx, leasesStream, st.leases)
	if err != nil {
		return err
	}
	counts, full, err := st.dead.counts(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if full && !r.deadFull {
		r.Log.Warn(deadFull, "stream", st.dead.name)
	}
	r.peers, r.deadCounts, r.deadFull = peers, counts, full
	r.giveUpFailing(time.Now())
	warned := map[string]string{}
	for _, other := range peers {
		if other.Hash == me.Hash {
			continue
		}
		if r.warnedOf[other.ID] != other.Hash {
			r.Log.Warn("another relay has other settings", "relay", other.Name, "hash", other.Hash, "ours", me.Hash)
		}
		warned[other.ID] = other.Hash
	}
	r.warnedOf = warned
	return nil
}

// checkStreams ends the session if a stream or a bucket no longer exists, or the stream was changed to one that relays can't
// read. It returns the stream under the bucket of the leases.
func (r *Relay) checkStreams(ctx context.Context, st *storage, end context.CancelCauseFunc) (last jetstream.Stream, err error) {
	names := []string{
		r.Stream, "KV_" + recordsBucket(r.Stream), deadStream(r.Stream), "KV_" + leasesBucket(r.Stream),
	}
	for _, name := range names {
		last, err = st.js.Stream(ctx, name)
		var unusable error
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			unusable = fmt.Errorf("stream %s was deleted", name)
		case err != nil:
			return nil, err
		case name == r.Stream:
			unusable = unfit(last.CachedInfo().Config)
		}
		if unusable != nil {
			end(unusable)
			return nil, unusable
		}
	}
	return last, nil
}

// readPeers returns the relays that are alive. It asks for the subjects of the bucket's stream, because listing the
// bucket's keys would take a consumer each time.
func readPeers(ctx context.Context, stream jetstream.Stream, kv jetstream.KeyValue) ([]peer, error) {
	before := "$KV." + kv.Bucket() + "."
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(before+peerPrefix+">"))
	if err != nil {
		return nil, err
	}
	now := streams.TimeOf(info)
	var peers []peer
	for subject := range info.State.Subjects {
		key := strings.TrimPrefix(subject, before)
		e, err := kv.Get(ctx, key)
		if err != nil {
			continue // it has expired meanwhile, or that relay has stopped
		}
		var p peer
		if json.Unmarshal(e.Value(), &p) == nil && now.Sub(e.Created()) < peerExpiry {
			p.LastSeen = e.Created().UTC()
			peers = append(peers, p)
		}
	}
	sort.Slice(peers, func(i, j int) bool { return peers[i].Name+peers[i].ID < peers[j].Name+peers[j].ID })
	return peers, nil
}

// otherSettings returns a warning for each relay whose settings differ from this one's. mu is held.
func (r *Relay) otherSettings() (all []string) {
	for _, p := range r.peers {
		if p.Hash != r.Settings.Hash {
			all = append(all, fmt.Sprintf("relay %s has other settings (%s) than this one (%s)", p.Name, p.Hash,
				r.Settings.Hash))
		}
	}
	return all
}

// giveUpFailing gives up the sinks that have failed here for restAfter, if another relay with the same settings may take
// them: one with other settings may not have them, and one that rests has failed itself. mu is held.
func (r *Relay) giveUpFailing(now time.Time) {
	for name, s := range r.services {
		if s.handOver == nil {
			continue
		}
		s.queue.noteFailing(s.worker.State(), now)
		if !s.queue.hasFailed(now, restAfter) {
			continue
		}
		if slices.ContainsFunc(r.peers, func(p peer) bool {
			return p.ID != r.self.ID && p.Hash == r.Settings.Hash && !slices.Contains(p.Resting, name)
		}) {
			s.restsTill = now.Add(restFor)
			s.handOver()
		}
	}
}

// noteFailing notes since when what failed waits to be tried again, and nothing was accepted. It is called every few seconds.
// What is muted or over isn't tried again; and a destination that asks to wait is reached, so another relay could do no
// better.
func (q *queue) noteFailing(w delivery.State, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !w.Retrying || w.Waits == delivery.WaitsForRetryAfter:
		q.tally.failingSince = time.Time{}
	case q.tally.failingSince.IsZero():
		q.tally.failingSince = now
	}
}

// hasFailed reports whether the sink has been failing for so long, or the stream couldn't be read for so long.
func (q *queue) hasFailed(now time.Time, long time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc([]time.Time{q.tally.failingSince, q.pos.errSince}, func(since time.Time) bool {
		return !since.IsZero() && now.Sub(since) >= long
	})
}

// resting returns the sinks that this relay gave up because they failed. mu is held.
func (r *Relay) resting(now time.Time) (names []string) {
	for name, s := range r.services {
		if now.Before(s.restsTill) {
			names = append(names, name)
		}
	}
	return names
}
