package bridge

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
)

// dropOrphans gives up the backlog of routes that are gone from the settings for long.
func (o *Outbox) dropOrphans(now time.Time) {
	var given []Entry
	o.mu.Lock()
	for name, sh := range o.shelves {
		if sh.gone.IsZero() || now.Sub(sh.gone) <= keepOrphans || !sh.known && len(sh.entries) == 0 {
			continue
		}
		for _, e := range slices.SortedFunc(maps.Values(sh.entries), bySeq) {
			if !e.uncommitted {
				given = append(given, o.bury(e, ReasonRemoved, nil))
			}
		}
		sh.known = false
		o.store.write(bucketRoutes, name, nil)
	}
	if len(given) > 0 {
		o.boundDead()
	}
	o.mu.Unlock()
	o.tell(given)
}

// maintain drops what is remembered no longer, and compacts the file.
func (o *Outbox) maintain(now time.Time) error {
	o.dropOrphans(now)
	o.mu.Lock()
	for _, e := range slices.Collect(maps.Values(o.dead)) {
		if now.Sub(e.DeadSince) > keepDead {
			o.log.Warn("a dead letter is as old as can be and is dropped", "key", e.Key, "id", e.ID)
			o.meter.Forgot(ForgotDeadLetter, 1)
			o.exhume(e)
		}
	}
	o.mu.Unlock()
	o.boundHistory(now)
	o.forgetVanished(now)
	if err := o.store.sync(); err != nil {
		return err
	}
	return o.store.compact()
}

// boundHistory drops the changes and settled deliveries that are too old or too many, or take too much room, the oldest
// first. What something still refers to stays.
func (o *Outbox) boundHistory(now time.Time) {
	o.mu.Lock()
	inUse, limit := o.inUse(), o.bounds
	o.grown = tally{}
	o.mu.Unlock()
	tooOld := seqKey(uint64(now.Add(-keepHistory).UnixMicro()))
	dropped := 0
	for _, bucket := range []string{bucketEvents, bucketSettled} { // whose keys sort by age
		type record struct {
			key   string
			bytes int
		}
		var records []record
		o.read(bucket, func(key string, value []byte) { records = append(records, record{key, len(value)}) })
		bytes := 0
		for i, r := range slices.Backward(records) {
			bytes += r.bytes
			over := len(records)-i > limit.history || bytes > limit.historyBytes
			if (r.key < tooOld || over) && !(bucket == bucketEvents && inUse[r.key]) {
				o.store.write(bucket, r.key, nil)
				if over {
					dropped++
				}
			}
		}
	}
	if dropped > 0 {
		o.meter.Forgot(ForgotHistory, dropped)
		o.log.Warn("the oldest history was dropped, because there is too much of it", "records", dropped,
			"kept", limit.history, "keptBytes", limit.historyBytes)
	}
}

// boundGrown bounds the history when it has grown so much that it may be over its bounds by a sixteenth.
func (o *Outbox) boundGrown(now time.Time) {
	o.mu.Lock()
	much := o.grown.n > o.bounds.history/16 || o.grown.bytes > o.bounds.historyBytes/16
	o.mu.Unlock()
	if much {
		o.boundHistory(now)
	}
}

// forgetVanished drops the ids and receipts of events that are over for long.
func (o *Outbox) forgetVanished(now time.Time) {
	receipts := o.keys(bucketReceipts) // before the ids: an event that comes meanwhile is among those
	remembered := map[string]bool{}    // events
	var ids []string
	o.mu.Lock()
	for id := range o.open {
		remembered[id] = true
	}
	o.mu.Unlock()
	o.read(bucketIDs, func(id string, value []byte) {
		var t told
		if json.Unmarshal(value, &t) == nil && (remembered[t.Event] || now.Sub(t.At) <= keepVanished) {
			remembered[t.Event] = true
		} else {
			ids = append(ids, id)
		}
	})
	for _, id := range ids {
		o.store.write(bucketIDs, id, nil)
	}
	for _, key := range receipts {
		if id, _, _ := strings.Cut(key, "/"); !remembered[id] {
			o.store.write(bucketReceipts, key, nil)
		}
	}
}

// read gives f all of a bucket, as far as it can be read.
func (o *Outbox) read(bucket string, f func(key string, value []byte)) {
	err := o.store.walk(bucket, func(key string, value []byte) error { f(key, value); return nil })
	if err != nil {
		o.log.Error("the outbox cannot be read", "bucket", bucket, "err", err)
	}
}

// keys are those of a bucket, in order.
func (o *Outbox) keys(bucket string) (keys []string) {
	o.read(bucket, func(key string, _ []byte) { keys = append(keys, key) })
	return keys
}

// inUse are the keys of the CloudEvents that something refers to. mu is held.
func (o *Outbox) inUse() map[string]bool {
	keys := map[string]bool{}
	for _, op := range o.open {
		keys[seqKey(op.Latest)] = true
	}
	for _, sh := range o.shelves {
		for _, e := range sh.entries {
			keys[seqKey(e.seq)] = true
		}
	}
	for _, e := range o.dead {
		keys[seqKey(e.seq)] = true
	}
	return keys
}

// forgetSettled makes room in memory while the disk cannot take the history of what was delivered.
func (o *Outbox) forgetSettled() {
	o.mu.Lock()
	inUse, limit := o.inUse(), 2*o.bounds.inMemory
	o.mu.Unlock()
	n := o.store.discard(bucketEvents, limit, func(key string) bool { return !inUse[key] }) +
		o.store.discard(bucketSettled, limit, func(string) bool { return true })
	if n > 0 {
		o.meter.Forgot(ForgotHistory, n)
		o.log.Warn("history was dropped, because the outbox cannot be written", "records", n)
	}
}
