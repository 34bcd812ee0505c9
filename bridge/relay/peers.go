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
	lookAroundEvery = 5 * time.Second
	peerGone        = 20 * time.Second // after it last said that it is there
)

// A Peer is a relay of the same stream, this one included.
type Peer struct {
	Name    string    `json:"name"`
	ID      string    `json:"id"` // of this run of it
	Version string    `json:"version"`
	Hash    string    `json:"settingsHash"`
	Seen    time.Time `json:"seen"`
}

const peerPrefix = "relay."

// lookAround says that this relay is there, hears of the others, and looks whether what must be there still is, until
// ctx is done. It ends the session when something is gone.
func (r *Relay) lookAround(ctx context.Context, p places, end context.CancelCauseFunc) {
	for {
		if err := r.look(ctx, p); errors.Is(err, errGone) {
			end(err)
			return
		} else if err != nil && ctx.Err() == nil {
			r.Log.Debug("could not look around", "err", err)
		}
		r.mu.Lock()
		r.turned = time.Now()
		r.mu.Unlock()
		if sleep(ctx, lookAroundEvery) != nil {
			return
		}
	}
}

var errGone = errors.New("gone")

func (r *Relay) look(ctx context.Context, p places) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	leases := "KV_" + leasesBucket(r.Stream)
	var keeper jetstream.Stream
	for _, name := range []string{r.Stream, "KV_" + recordsBucket(r.Stream), deadStream(r.Stream), leases} {
		stream, err := p.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("%w: stream %s was deleted", errGone, name)
		}
		if name == leases && err != nil {
			return err
		}
		keeper = stream
	}
	r.mu.Lock()
	me := Peer{Name: r.Name, ID: r.me.ID, Version: r.Version, Hash: r.Settings.Hash, Seen: time.Now().UTC()}
	r.mu.Unlock()
	body, err := json.Marshal(me)
	if err != nil {
		return err
	}
	if _, err := p.leases.Put(ctx, peerPrefix+token(r.me.ID), body); err != nil {
		return err
	}
	peers, err := readPeers(ctx, keeper, p.leases)
	if err != nil {
		return err
	}
	counts, err := p.dead.counts(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peers, r.letters = peers, counts
	r.share()
	for _, other := range peers {
		if other.Hash != me.Hash && !r.warned[other.ID+other.Hash] {
			r.warned[other.ID+other.Hash] = true
			r.Log.Warn("another relay has other settings", "relay", other.Name, "hash", other.Hash, "ours", me.Hash)
		}
	}
	return nil
}

// readPeers are the relays that are there. The subjects of the bucket's stream are asked for, because its keys would take
// a consumer each time.
func readPeers(ctx context.Context, stream jetstream.Stream, kv jetstream.KeyValue) ([]Peer, error) {
	before := "$KV." + kv.Bucket() + "."
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(before+peerPrefix+">"))
	if err != nil {
		return nil, err
	}
	var peers []Peer
	for subject := range info.State.Subjects {
		key := strings.TrimPrefix(subject, before)
		e, err := kv.Get(ctx, key)
		if err != nil {
			continue // it went meanwhile
		}
		var p Peer
		if json.Unmarshal(e.Value(), &p) == nil && time.Since(e.Created()) < peerGone {
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
func (r *Relay) share() {
	served := map[string]int{}
	for _, p := range r.peers {
		served[p.ID] = 0
	}
	var mine *service
	for _, s := range r.serving {
		if s.handOver != nil {
			mine = s
			served[r.me.ID]++
		} else if _, there := served[s.holder.ID]; there && s.holder.ID != r.me.ID {
			served[s.holder.ID]++
		}
	}
	for id, n := range served {
		if id != r.me.ID && n+2 <= served[r.me.ID] {
			mine.handOver()
			return
		}
	}
}
