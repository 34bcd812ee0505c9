package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// ErrUnknownKey is wrapped by the error about a key that the outbox does not have.
var ErrUnknownKey = errors.New("no such delivery")

// settledDropped is how a delivery was settled that somebody gave up.
const settledDropped = "dropped"

// Replay makes dead letters owed again, to their own route or, if to is not empty, to that one, which must be there.
// All keys must be those of dead letters, or nothing is done.
func (o *Outbox) Replay(keys []string, to string) ([]Entry, error) {
	o.mu.Lock()
	dead, err := o.pick(keys, false)
	if sh := o.shelves[to]; err == nil && to != "" && (sh == nil || !sh.known || !sh.gone.IsZero()) {
		err = fmt.Errorf("the settings that forewarn last ran with have no sink %s", to)
	}
	if err != nil {
		o.mu.Unlock()
		return nil, err
	}
	now := time.Now().UTC()
	var replayed []Entry
	for _, d := range dead {
		o.exhume(d)
		e := *d
		e.Sink = cmp.Or(to, d.Sink)
		e.Key = e.Sink + "/" + seqKey(e.seq)
		e.State, e.Reason, e.Error, e.Attempts, e.Tried, e.DeadSince = StatePending, "", "", 0, time.Time{}, time.Time{}
		e.Owed, e.gone, e.volatile = now, false, false // its age counts from now, or it would expire at once
		if o.shelf(e.Sink).entries[e.seq] == nil {
			o.store.write(bucketPending, e.Key, compactJSON(e))
			o.put(o.shelf(e.Sink), &e)
		}
		replayed = append(replayed, e)
	}
	o.mu.Unlock()
	return replayed, o.store.sync()
}

// Drop gives deliveries up for good, dead letters or owed ones. All keys must be there, or nothing is done. by, who
// wanted it, stays on record in the history.
func (o *Outbox) Drop(keys []string, by string) ([]Entry, error) {
	o.mu.Lock()
	entries, err := o.pick(keys, true)
	if err != nil {
		o.mu.Unlock()
		return nil, err
	}
	var dropped []Entry
	for _, e := range entries {
		dropped = append(dropped, *e)
		if e.State == StateDead {
			o.exhume(e)
		} else {
			o.remove(e)
		}
		o.store.write(bucketSettled, seqKey(e.seq)+"/"+e.Sink, compactJSON(Settled{
			At: time.Now().UTC(), How: settledDropped, ID: e.ID, Event: e.Event, Status: "by " + by, Attempts: e.Attempts,
		}))
	}
	o.mu.Unlock()
	return dropped, o.store.sync()
}

// pick finds the entries of the keys, each once. mu is held.
func (o *Outbox) pick(keys []string, pendingToo bool) ([]*Entry, error) {
	var entries []*Entry
	for _, key := range keys {
		e := o.dead[key]
		if route, digits, _ := cutLast(key, "/"); e == nil && o.shelves[route] != nil {
			seq, _ := strconv.ParseUint(digits, 10, 64)
			e = o.shelves[route].entries[seq]
		}
		switch {
		case e == nil:
			return nil, fmt.Errorf("%s: %w", key, ErrUnknownKey)
		case e.State != StateDead && !pendingToo:
			return nil, fmt.Errorf("%s: is still owed and will be tried again by itself", key)
		case !slices.Contains(entries, e):
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// Replay is that of the outbox; by, who wanted it, goes on record.
func (b *Bridge) Replay(keys []string, to, by string) ([]Entry, error) {
	entries, err := b.Outbox.Replay(keys, to)
	for _, e := range entries {
		b.Log.Info("a dead letter is owed again", "key", e.Key, "id", e.ID, "by", by)
	}
	return entries, err
}

// Drop is that of the outbox; it is also told to the routes that hear all about the bridge.
func (b *Bridge) Drop(keys []string, by string) ([]Entry, error) {
	entries, err := b.Outbox.Drop(keys, by)
	for _, e := range entries {
		b.Log.Warn("a delivery was dropped", "key", e.Key, "id", e.ID, "by", by)
		b.tellBridge(DeliveryDropped, map[string]any{"sink": e.Sink, "key": e.Key, "id": e.ID, "type": e.Type, "event": e.Event, "by": by}, e.Sink)
	}
	return entries, err
}
