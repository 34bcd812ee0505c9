package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
	"forewarn/bridge/internal/streams"
	"forewarn/bridge/mutes"
)

// mutesKey is the key of the mutes of all relays: those in force, and those that ended lately.
const mutesKey = "mutes"

const (
	keepMutes  = 100 // mutes that have ended
	muteTries  = 10  // attempts of a change, if another relay changes the mutes at the same time
	mutesEvery = time.Second
	muteSkew   = time.Minute // how far in the future a mute of another relay may begin, because their clocks differ
)

// readMutes reads the mutes. They must be known before anything is sent.
func (r *Relay) readMutes(ctx context.Context, records streams.Bucket) error {
	var all []*delivery.Mute
	rev, err := records.Get(ctx, mutesKey, &all)
	if err != nil && !errors.Is(err, streams.ErrUnreadable) {
		return err
	}
	r.mu.Lock()
	r.mutesRev = 0 // it may be another bucket than before
	r.mu.Unlock()
	r.setMutes(all, rev)
	return nil
}

// setMutes applies the mutes of a revision, unless a newer revision is known.
func (r *Relay) setMutes(all []*delivery.Mute, rev uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rev < r.mutesRev {
		return
	}
	r.mutes, r.mutesRev = all, rev
	announced := map[string]string{}
	for _, m := range all {
		announced[m.ID] = r.announced[m.ID]
	}
	r.announced = announced
	for _, s := range r.services {
		if s.queue != nil {
			s.queue.setMutes(all)
		}
	}
}

// followMutes applies the mutes that other relays change, and does what endMutes does, until ctx is done.
func (r *Relay) followMutes(ctx context.Context, st *storage) {
	var ending sync.WaitGroup
	defer ending.Wait()
	ending.Go(func() { r.endMutes(ctx, st) })
	bucket := recordsBucket(r.Stream)
	add := func(m streams.Raw) {
		var all []*delivery.Mute
		if err := json.Unmarshal(m.Data, &all); err != nil && len(m.Data) > 0 {
			r.Log.Error("the mutes can't be read; the ones before stay", "err", err)
			return
		}
		r.setMutes(all, m.Seq)
	}
	from := func() (jetstream.ConsumerConfig, error) {
		if err := r.readMutes(ctx, st.records); err != nil { // its servers may have lost the newest
			return jetstream.ConsumerConfig{}, err
		}
		return streams.LastOf("$KV." + bucket + "." + mutesKey), nil
	}
	problem := func(err error) { r.Log.Debug("the mutes can't be followed", "err", err) }
	streams.KeepFollowing(ctx, st.js, "KV_"+bucket, from, problem, add)
}

// endMutes ends the mutes whose time is over, or whose sink was removed, and announces what isn't announced yet, until
// ctx is done.
func (r *Relay) endMutes(ctx context.Context, st *storage) {
	failing := false
	for streams.Sleep(ctx, mutesEvery) == nil {
		if r.dueMutes(r.allMutes()) != nil {
			_, err := r.changeMutes(func(all []*delivery.Mute) ([]delivery.Mute, error) { return r.dueMutes(all), nil })
			if err != nil && ctx.Err() == nil {
				r.Log.Warn("a mute can't be ended, trying again", "err", err)
			}
		}
		err := r.announceMutes(ctx, st, r.allMutes())
		if err != nil && !failing && ctx.Err() == nil {
			r.Log.Warn("who muted what is not in the stream, trying again", "err", err)
		}
		failing = err != nil
	}
}

func (r *Relay) allMutes() []*delivery.Mute {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mutes
}

// dueMutes returns those that have to end now, as they are then. That of a removed sink ends when all relays have the
// same settings: until then another one may have the sink.
func (r *Relay) dueMutes(all []*delivery.Mute) []delivery.Mute {
	r.mu.Lock()
	removed := r.removedSinks
	for _, p := range r.peers {
		if p.ID != r.self.ID && p.Hash != r.Settings.Hash {
			removed = nil
		}
	}
	r.mu.Unlock()
	gone := func(sink string) bool { return slices.Contains(removed, sink) }
	return mutes.Due(all, gone, time.Now(), muteSkew)
}

// Mute holds deliveries of all relays back for d, and returns the mute with its id. m holds which deliveries, why, and
// who asks for it.
func (r *Relay) Mute(m delivery.Mute, d time.Duration) (delivery.Mute, error) {
	made, err := r.changeMutes(func(all []*delivery.Mute) ([]delivery.Mute, error) {
		next, err := mutes.New(m, d, all, time.Now())
		return []delivery.Mute{next}, err
	})
	if err != nil {
		return m, err
	}
	return made[0], nil
}

// Unmute ends the mutes with these ids, or all of them with every, and returns them. by is the user who asked for it.
func (r *Relay) Unmute(ids []string, every bool, by string) ([]delivery.Mute, error) {
	return r.changeMutes(func(all []*delivery.Mute) ([]delivery.Mute, error) {
		return mutes.End(all, ids, every, by, time.Now())
	})
}

// changeMutes changes the mutes of all relays, and announces the changes. f gets all mutes and returns those that
// change; it is called again if another relay changed the mutes at the same time.
func (r *Relay) changeMutes(f func(all []*delivery.Mute) ([]delivery.Mute, error)) (changed []delivery.Mute, err error) {
	defer r.toShow(&err)
	st, err := r.connected()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), streams.RequestTimeout)
	defer cancel()
	stream, err := st.js.Stream(ctx, r.Stream) // with its last sequence number
	if err != nil {
		return nil, err
	}
	for range muteTries {
		var all []*delivery.Mute
		rev, err := st.records.Get(ctx, mutesKey, &all)
		if err != nil && !errors.Is(err, streams.ErrUnreadable) {
			return nil, err
		}
		changed, err := f(all)
		if err != nil || len(changed) == 0 {
			return nil, err
		}
		next := mutesWith(all, changed, stream.CachedInfo().State.LastSeq)
		body, err := json.Marshal(next)
		if err != nil {
			return nil, err
		}
		rev, err = st.records.Put(ctx, mutesKey, body, rev)
		if errors.Is(err, streams.ErrOvertaken) {
			continue
		} else if err != nil {
			return nil, err
		}
		r.setMutes(next, rev)
		for _, m := range changed {
			mutes.Log(r.Log, m)
		}
		_ = r.announceMutes(ctx, st, next) // endMutes tries again
		return changed, nil
	}
	return nil, errors.New("other relays change the mutes at the same time; try again")
}

// announceMutes publishes a CloudEvent about each mute that began or ended lately, unless this relay did before. Every
// relay does, because the one that made the change may have been killed before it could. The stream keeps one of them.
func (r *Relay) announceMutes(ctx context.Context, st *storage, all []*delivery.Mute) error {
	for _, m := range all {
		if time.Since(later(m.Since, m.Ended)) >= st.duplicates/2 { // half of it, because clocks differ
			continue
		}
		typ, data := mutes.Data(*m)
		id := fmt.Sprintf("%s.%s.%d", typ, m.ID, m.Until.Unix())
		r.mu.Lock()
		done := r.announced[m.ID] == id
		r.mu.Unlock()
		if done {
			continue
		}
		if err := r.announce(ctx, typ, data, id); err != nil {
			return err
		}
		r.mu.Lock()
		r.announced[m.ID] = id
		r.mu.Unlock()
	}
	return nil
}

// mutesWith returns all mutes after a change, without the oldest of those that have ended. last is the stream's last
// sequence number.
func mutesWith(all []*delivery.Mute, changed []delivery.Mute, last uint64) []*delivery.Mute {
	all = slices.Clone(all)
	for _, m := range changed {
		if !m.Active() {
			m.LastSeq = last
		}
		all = append(slices.DeleteFunc(all, func(was *delivery.Mute) bool { return was.ID == m.ID }), &m)
	}
	ended := len(all) - len(mutes.Active(all))
	return slices.DeleteFunc(all, func(m *delivery.Mute) bool {
		old := !m.Active() && ended > keepMutes
		if old {
			ended--
		}
		return old
	})
}

// setMutes sets the mutes of the sink.
func (q *queue) setMutes(all []*delivery.Mute) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.updates.mutes = delivery.MutesFor(all, q.route.Name, q.route.Terms.People)
	wake(q.updates.wake)
}

// muteOf returns the mute that holds a delivery back, or the last one that it waited for; nil for none. mu is held.
func (q *queue) muteOf(e *pendingItem) *delivery.Mute {
	return delivery.MuteOf(q.updates.mutes, e.item)
}
