package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	housekeepingEvery = 5 * time.Second
	peerExpiry        = 20 * time.Second // after it last said that it is there
)

// A Peer is a relay of the same stream, this one included.
type peer struct {
	Name    string    `json:"name"`
	ID      string    `json:"id"` // of this run of it
	Version string    `json:"version"`
	Hash    string    `json:"settingsHash"`
	Seen    time.Time `json:"seen"`
}

const peerPrefix = "relay."

// lookAround says that this relay is there, hears of the others, and looks whether what must be there still is, until
// ctx is done. It ends the session when something is gone.
func (r *Relay) housekeeping(ctx context.Context, st *storage, end context.CancelCauseFunc) {
	for {
		if err := r.keepHouse(ctx, st); errors.Is(err, errDeleted) {
			end(err)
			return
		} else if err != nil && ctx.Err() == nil {
			r.Log.Debug("could not look around", "err", err)
		}
		r.mu.Lock()
		r.lastTurn = time.Now()
		r.mu.Unlock()
		if sleep(ctx, housekeepingEvery) != nil {
			return
		}
	}
}

var errDeleted = errors.New("gone")

func (r *Relay) keepHouse(ctx context.Context, st *storage) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	leases := "KV_" + leasesBucket(r.Stream)
	var leasesStream jetstream.Stream
	for _, name := range []string{r.Stream, "KV_" + recordsBucket(r.Stream), deadStream(r.Stream), leases} {
		stream, err := st.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("%w: stream %s was deleted", errDeleted, name)
		}
		if name == leases && err != nil {
			return err
		}
		leasesStream = stream
	}
	r.mu.Lock()
	me := peer{Name: r.Name, ID: r.self.ID, Version: r.Version, Hash: r.Settings.Hash, Seen: time.Now().UTC()}
	r.mu.Unlock()
	body, err := json.Marshal(me)
	if err != nil {
		return err
	}
	if _, err := st.leases.Put(ctx, peerPrefix+token(r.self.ID), body); err != nil {
		return err
	}
	peers, err := readPeers(ctx, leasesStream, st.leases)
	if err != nil {
		return err
	}
	counts, err := st.dead.counts(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peers, r.deadCounts = peers, counts
	r.rebalance()
	for _, other := range peers {
		if other.Hash != me.Hash && !r.warnedOf[other.ID+other.Hash] {
			r.warnedOf[other.ID+other.Hash] = true
			r.Log.Warn("another relay has other settings", "relay", other.Name, "hash", other.Hash, "ours", me.Hash)
		}
	}
	return nil
}

// readPeers are the relays that are there. The subjects of the bucket's stream are asked for, because its keys would take
// a consumer each time.
func readPeers(ctx context.Context, stream jetstream.Stream, kv jetstream.KeyValue) ([]peer, error) {
	before := "$KV." + kv.Bucket() + "."
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(before+peerPrefix+">"))
	if err != nil {
		return nil, err
	}
	var peers []peer
	for subject := range info.State.Subjects {
		key := strings.TrimPrefix(subject, before)
		e, err := kv.Get(ctx, key)
		if err != nil {
			continue // it went meanwhile
		}
		var p peer
		if json.Unmarshal(e.Value(), &p) == nil && time.Since(e.Created()) < peerExpiry {
			p.Seen = e.Created().UTC()
			peers = append(peers, p)
		}
	}
	sort.Slice(peers, func(i, j int) bool { return peers[i].Name+peers[i].ID < peers[j].Name+peers[j].ID })
	return peers, nil
}

// otherSettings are the sentences about relays whose settings differ from this one's. mu is held.
func (r *Relay) otherSettings() (all []string) {
	for _, p := range r.peers {
		if p.Hash != r.Settings.Hash {
			all = append(all, fmt.Sprintf("relay %s has other settings (%s) than this one (%s)", p.Name, p.Hash,
				r.Settings.Hash))
		}
	}
	return all
}

// share gives one sink up when another relay serves two fewer than this one, as after it was started anew. mu is held.
func (r *Relay) rebalance() {
	served := map[string]int{}
	for _, p := range r.peers {
		served[p.ID] = 0
	}
	var mine *service
	for _, s := range r.services {
		if s.handOver != nil {
			mine = s
			served[r.self.ID]++
		} else if _, there := served[s.holder.ID]; there && s.holder.ID != r.self.ID {
			served[s.holder.ID]++
		}
	}
	for id, n := range served {
		if id != r.self.ID && n+2 <= served[r.self.ID] {
			mine.handOver()
			return
		}
	}
}
