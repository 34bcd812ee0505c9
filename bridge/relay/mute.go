package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
)

// mutesKey is where the bucket of the marks has the mutes of all relays: those in force, and those that ended lately.
const mutesKey = "mutes"

const (
	keepMutes  = 100 // that have ended
	muteTries  = 10  // when another relay changes them too
	mutesEvery = time.Second
)

// readMutes reads the mutes, as they must be known before anything is sent.
func (r *Relay) readMutes(ctx context.Context, records bucket) error {
	var all []*delivery.Mute
	rev, err := records.get(ctx, mutesKey, &all)
	if err != nil && !errors.Is(err, errUnreadable) {
		return err
	}
	r.mu.Lock()
	r.mutesRev = 0 // the bucket may be another one than before
	r.mu.Unlock()
	r.setMutes(all, rev)
	return nil
}

// setMutes puts the mutes of a revision in force, unless a newer one is.
func (r *Relay) setMutes(all []*delivery.Mute, rev uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rev < r.mutesRev {
		return
	}
	r.mutes, r.mutesRev = all, rev
	for _, s := range r.services {
		if s.queue != nil {
			s.queue.setMutes(all)
		}
	}
}

// followMutes hears of the mutes that other relays change, and ends those whose time is over, until ctx is done.
func (r *Relay) followMutes(ctx context.Context, st *storage) {
	var ending sync.WaitGroup
	defer ending.Wait()
	ending.Go(func() { r.endMutes(ctx) })
	of := jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		FilterSubject: "$KV." + recordsBucket(r.Stream) + "." + mutesKey,
	}
	for ctx.Err() == nil {
		err := follow(ctx, st.js, "KV_"+recordsBucket(r.Stream), of, func(m rawMessage) error {
			var all []*delivery.Mute
			if err := json.Unmarshal(m.data, &all); err != nil && len(m.data) > 0 {
				r.Log.Error("the mutes can't be read; the ones before stay", "err", err)
				return nil
			}
			r.setMutes(all, m.seq)
			r.announceMutes(ctx, all, st.duplicates/2) // half of it, because clocks differ
			return nil
		})
		if ctx.Err() == nil {
			r.Log.Debug("the mutes can't be followed", "err", err)
		}
		_ = sleep(ctx, readRetry)
	}
}

// endMutes ends the mutes whose time is over, or whose sink is gone, until ctx is done.
func (r *Relay) endMutes(ctx context.Context) {
	for sleep(ctx, mutesEvery) == nil {
		r.mu.Lock()
		all := r.mutes
		r.mu.Unlock()
		if r.dueMutes(all) == nil {
			continue
		}
		_, err := r.changeMutes(func(all []*delivery.Mute) ([]delivery.Mute, error) { return r.dueMutes(all), nil })
		if err != nil && ctx.Err() == nil {
			r.Log.Warn("a mute can't be ended, trying again", "err", err)
		}
	}
}

// dueMutes are those that change by themselves now.
func (r *Relay) dueMutes(all []*delivery.Mute) []delivery.Mute {
	r.mu.Lock()
	removed := r.removedSinks
	r.mu.Unlock()
	return bridge.DueMutes(all, func(sink string) bool { return slices.Contains(removed, sink) }, time.Now())
}

// Mute holds deliveries of all relays back for d: m says which, why, and who asks for it. It gives the mute with its id.
func (r *Relay) Mute(m delivery.Mute, d time.Duration) (delivery.Mute, error) {
	made, err := r.changeMutes(func(all []*delivery.Mute) ([]delivery.Mute, error) {
		next, err := bridge.NewMute(m, d, all, time.Now())
		return []delivery.Mute{next}, err
	})
	if err != nil {
		return m, err
	}
	return made[0], nil
}

// Unmute ends mutes by their ids, or all with every. by is who asked for it.
func (r *Relay) Unmute(ids []string, every bool, by string) ([]delivery.Mute, error) {
	return r.changeMutes(func(all []*delivery.Mute) ([]delivery.Mute, error) {
		return bridge.EndMutes(all, ids, every, by, time.Now())
	})
}

// changeMutes changes the mutes of all relays as f says, and puts on record what it changed. f is called again when
// another relay was quicker.
func (r *Relay) changeMutes(f func(all []*delivery.Mute) ([]delivery.Mute, error)) ([]delivery.Mute, error) {
	st, err := r.connected()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	stream, err := st.js.Stream(ctx, r.Stream) // with its last sequence number
	if err != nil {
		return nil, err
	}
	for range muteTries {
		var all []*delivery.Mute
		rev, err := st.records.get(ctx, mutesKey, &all)
		if err != nil && !errors.Is(err, errUnreadable) {
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
		rev, err = st.records.put(ctx, mutesKey, body, rev)
		if errors.Is(err, errOvertaken) {
			continue
		} else if err != nil {
			return nil, err
		}
		r.setMutes(next, rev)
		var mine []*delivery.Mute
		for _, m := range changed {
			bridge.LogMute(r.Log, m)
			mine = append(mine, &m)
		}
		r.announceMutes(ctx, mine, math.MaxInt64)
		return changed, nil
	}
	return nil, errors.New("other relays change the mutes at the same time; try again")
}

// recordMutes puts on record what became of the mutes within that time. Each relay that hears of a change does, because
// the one that made it may have been killed before it could; the stream keeps one.
func (r *Relay) announceMutes(ctx context.Context, mutes []*delivery.Mute, within time.Duration) {
	for _, m := range mutes {
		typ, data := bridge.MuteData(*m)
		id := fmt.Sprintf("%s.%s.%d", typ, m.ID, m.Until.Unix())
		r.mu.Lock()
		done := r.announced[id]
		r.mu.Unlock()
		if done || time.Since(later(m.Since, m.Ended)) >= within || !r.announce(ctx, typ, data, id) {
			continue
		}
		r.mu.Lock()
		r.announced[id] = true
		r.mu.Unlock()
	}
}

// mutesWith are all mutes after a change, without the oldest of those that have ended. last is the stream's last number.
func mutesWith(all []*delivery.Mute, changed []delivery.Mute, last uint64) []*delivery.Mute {
	all = slices.Clone(all)
	for _, m := range changed {
		if !m.Active() {
			m.Last = last
		}
		all = append(slices.DeleteFunc(all, func(was *delivery.Mute) bool { return was.ID == m.ID }), &m)
	}
	ended := len(all) - len(bridge.ActiveMutes(all))
	return slices.DeleteFunc(all, func(m *delivery.Mute) bool {
		old := !m.Active() && ended > keepMutes
		if old {
			ended--
		}
		return old
	})
}

// mute gives each pending delivery its mute.
func (q *queue) setMutes(all []*delivery.Mute) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mutes = all
	for _, e := range q.pending {
		if now := delivery.MuteOf(all, q.route.Name, e.item); now != e.item.Mute {
			next := *e.item
			next.Mute = now
			q.replace(e, next)
		}
	}
}
