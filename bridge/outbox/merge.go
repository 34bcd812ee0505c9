package outbox

import (
	"slices"
	"strconv"
)

// merge makes one batch of all that wait and aren't being written, when those hold very many writes. History gives way
// first: dropped says how much. mu is held.
func (o *Outbox) merge() (dropped int) {
	few := o.writes <= 2*o.merged+8*o.bounds.InMemory && o.history <= 2*o.bounds.InMemory
	if few || len(o.waiting) == o.under {
		return 0
	}
	o.history = 0
	whole := o.mergeWaiting(nil)
	before := len(whole.writes)
	o.shorten(whole)
	o.writes -= before - len(whole.writes)
	o.merged = len(whole.writes)
	return before - len(whole.writes)
}

// mergeWaiting makes one batch of all that wait and aren't being written, and of more writes. The last value of each
// key counts. mu is held.
func (o *Outbox) mergeWaiting(more []Write) *batch {
	whole := &batch{reported: map[*route]int{}, released: o.failing != nil}
	var lists [][]Write
	for _, b := range o.waiting[o.under:] {
		lists = append(lists, b.writes)
		o.writes -= len(b.writes)
		whole.number = b.number
		whole.added = append(whole.added, without(b.added, func(e *entry) bool { return e.gone })...)
		whole.letters = append(whole.letters, without(b.letters, func(d *deadLetter) bool { return d.gone })...)
		whole.bodies = append(whole.bodies, b.bodies...)
		whole.offers = append(whole.offers, b.offers...)
		for r, n := range b.reported {
			whole.reported[r] += n
		}
	}
	whole.writes = layerOf(append(lists, more)...).writes()
	for _, e := range whole.added {
		e.batch = whole
	}
	o.waiting = append(slices.Clone(o.waiting[:o.under]), whole)
	o.writes += len(whole.writes)
	return whole
}

// shorten drops the oldest history from a batch that waits for the disk, where it holds too much of it. mu is held.
func (o *Outbox) shorten(b *batch) {
	history := func(w Write) bool {
		if w.Value == nil || w.Bucket != bucketSettled && w.Bucket != bucketEvents {
			return false
		}
		seq, _ := strconv.ParseUint(w.Key[:min(len(w.Key), 16)], 10, 64)
		m := o.messages[seq]
		return w.Bucket == bucketSettled || m == nil || m.uses == 0
	}
	left := map[string]int{} // by bucket
	for _, w := range b.writes {
		if history(w) {
			left[w.Bucket]++
		}
	}
	b.writes = slices.DeleteFunc(b.writes, func(w Write) bool { // the oldest come first
		if left[w.Bucket] <= 2*o.bounds.InMemory || !history(w) {
			return false
		}
		left[w.Bucket]--
		return true
	})
	kept := layerOf(b.writes)
	b.bodies = slices.DeleteFunc(b.bodies, func(m *message) bool {
		gone := m.uses == 0 && kept[bucketEvents][seqKey(m.seq)] == nil
		if gone {
			delete(o.messages, m.seq)
		}
		return gone
	})
}

// waitingLayer is all that waits. mu is held.
func (o *Outbox) waitingLayer() layer {
	lists := make([][]Write, len(o.waiting))
	for i, b := range o.waiting {
		lists[i] = b.writes
	}
	return layerOf(lists...)
}

// without are those that aren't gone.
func without[T any](list []T, gone func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), gone)
}
