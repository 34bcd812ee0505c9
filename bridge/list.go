package bridge

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Selection picks entries of the outbox; empty fields pick all.
type Selection struct {
	Sink, State, Event string // Event also by a prefix
}

// List gives the selected entries, pending before dead, each by age.
func (o *Outbox) List(s Selection) []Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	return copies(o.selected(s))
}

// First gives the first n entries of List, and how many more there are.
func (o *Outbox) First(s Selection, n int) (entries []Entry, more int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.selected(s)
	more = max(0, len(all)-n)
	return copies(all[:len(all)-more]), more
}

// Last gives the last n entries of List, and how many more there are.
func (o *Outbox) Last(s Selection, n int) (entries []Entry, more int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.selected(s)
	more = max(0, len(all)-n)
	return copies(all[more:]), more
}

// selected are the entries that s picks, in the order of List. mu is held.
func (o *Outbox) selected(s Selection) []*Entry {
	var picked []*Entry
	add := func(e *Entry) {
		if (s.Sink == "" || s.Sink == e.Sink) && (s.State == "" || s.State == e.State) &&
			strings.HasPrefix(e.Event, strings.ToUpper(s.Event)) {
			picked = append(picked, e)
		}
	}
	if s.State != StateDead {
		for _, sh := range o.shelves {
			for _, e := range sh.entries {
				add(e)
			}
		}
	}
	for _, e := range o.dead {
		add(e)
	}
	slices.SortFunc(picked, func(a, b *Entry) int {
		return cmp.Or(-cmp.Compare(a.State, b.State), cmp.Compare(a.seq, b.seq), cmp.Compare(a.Sink, b.Sink))
	})
	return picked
}

// copies are entries that their reader may keep.
func copies(entries []*Entry) []Entry {
	all := make([]Entry, len(entries))
	for i, e := range entries {
		all[i] = *e
	}
	return all
}

// Sinks are the names of all sinks that the outbox has heard of and not forgotten, sorted.
func (o *Outbox) Sinks() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	names := slices.Collect(maps.Keys(o.shelves))
	for _, e := range o.dead {
		names = append(names, e.Sink)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Sinks are the names of all sinks that the settings or the outbox know, sorted.
func (b *Bridge) Sinks() []string {
	b.mu.Lock()
	routes := names(b.routes)
	b.mu.Unlock()
	all := append(b.Outbox.Sinks(), routes...)
	slices.Sort(all)
	return slices.Compact(all)
}

// Show gives one entry and its CloudEvent in the JSON format; found is false when there is no such key.
func (o *Outbox) Show(key string) (e Entry, body json.RawMessage, found bool, err error) {
	for _, e := range o.List(Selection{}) {
		if e.Key == key {
			body, err := o.store.get(bucketEvents, seqKey(e.seq))
			return e, body, true, err
		}
	}
	return Entry{}, nil, false, nil
}

// routeStats is what the outbox knows of a route.
type routeStats struct {
	pending, dead, delivered int
	oldest, accepted, gone   time.Time
	azure                    time.Time // when the oldest delivery about an Azure event was owed
}

// stats are those of every route, by name.
func (o *Outbox) stats() map[string]routeStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[string]routeStats, len(o.shelves))
	for name, sh := range o.shelves {
		st := routeStats{pending: len(sh.entries), delivered: sh.delivered, accepted: sh.accepted, gone: sh.gone}
		for _, e := range sh.entries {
			if e.Due.IsZero() && (st.oldest.IsZero() || e.Owed.Before(st.oldest)) { // what waits for its time is not late
				st.oldest = e.Owed
			}
			if e.Event != "" && !e.waits() && (st.azure.IsZero() || e.Owed.Before(st.azure)) {
				st.azure = e.Owed
			}
		}
		all[name] = st
	}
	for _, e := range o.dead {
		st := all[e.Sink]
		st.dead++
		all[e.Sink] = st
	}
	return all
}

// pendingCount is how many deliveries are owed.
func (o *Outbox) pendingCount() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pending.n
}
