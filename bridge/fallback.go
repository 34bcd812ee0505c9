package bridge

import (
	"cmp"
	"slices"
	"time"
)

// A Fallback is the route that is owed what another one could not tell. What came to a route so does not fall back
// again, so that there are no chains.
type Fallback struct {
	Sink  string        // its name; "" for none
	After time.Duration // how long the other may try
}

// Instead says why a delivery came to a route that its filter did not choose.
type Instead struct {
	Sink string `json:"sink"` // which one could not tell it
	Why  string `json:"why"`
}

// fallBack makes what routes have tried in vain for long owed to their fallbacks.
func (b *Bridge) fallBack(now time.Time) {
	b.mu.Lock()
	routes := b.routes
	b.mu.Unlock()
	for _, r := range routes {
		if r.Terms.Fallback.Sink == "" {
			continue
		}
		for _, e := range b.Outbox.overdue(r.Name, now.Add(-r.Terms.Fallback.After)) {
			b.instead(e, r.Terms.Fallback.Sink)
		}
	}
}

// gaveUpTo makes a dead letter owed to the fallback of its route, if there is one.
func (b *Bridge) gaveUpTo(e Entry) {
	b.mu.Lock()
	routes := b.routes
	b.mu.Unlock()
	for _, r := range routes {
		if r.Name == e.Sink && r.Terms.Fallback.Sink != "" && e.Instead == nil && e.Reason != ReasonLate {
			b.instead(e, r.Terms.Fallback.Sink)
		}
	}
}

func (b *Bridge) instead(e Entry, sink string) {
	why := e.Error
	if why == "" {
		why = "no answer"
	}
	if b.Outbox.instead(e, sink, Instead{Sink: e.Sink, Why: why}, time.Now()) {
		b.Log.Warn("a delivery is owed to the fallback too", "sink", e.Sink, "fallback", sink, "id", e.ID, "err", why)
	}
}

// overdue are a route's deliveries that have been owed since before a time, and did not fall back yet, oldest first.
func (o *Outbox) overdue(route string, before time.Time) (list []Entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.shelf(route).entries {
		if !e.waits() && e.Instead == nil && !e.FellBack && e.Owed.Before(before) && e.Type != BridgeHeartbeat {
			list = append(list, *e)
		}
	}
	slices.SortFunc(list, func(a, b Entry) int { return cmp.Compare(a.seq, b.seq) })
	return list
}

// instead makes a delivery owed to another route too, unless it is or was already. It returns when that is on disk.
func (o *Outbox) instead(e Entry, to string, why Instead, now time.Time) bool {
	had, err := o.store.get(bucketSettled, seqKey(e.seq)+"/"+to)
	o.mu.Lock()
	if own := o.shelf(e.Sink).entries[e.seq]; own != nil {
		own.FellBack = true
		o.store.write(bucketPending, own.Key, compactJSON(own))
	}
	sh := o.shelf(to)
	key := to + "/" + seqKey(e.seq)
	if err != nil || had != nil || sh.entries[e.seq] != nil || o.dead[key] != nil {
		o.mu.Unlock()
		o.syncIf(false)
		return false
	}
	other := &Entry{
		Key: key, Sink: to, ID: e.ID, Type: e.Type, Event: e.Event, State: StatePending, Bytes: e.Bytes, Owed: now.UTC(),
		Change: e.Change, AzureType: e.AzureType, NotBefore: e.NotBefore, Instead: &why, seq: e.seq, uncommitted: true,
	}
	other.write = o.store.write(bucketPending, key, compactJSON(other))
	o.put(sh, other)
	o.mu.Unlock()
	_ = o.store.sync() // owed before sent; the store says when it cannot write
	o.mu.Lock()
	defer o.mu.Unlock()
	other.uncommitted = false
	if !other.gone {
		if other.write > o.saved {
			other.volatile = true
			o.volatile++
		}
		sh.offer(other)
	}
	return true
}
