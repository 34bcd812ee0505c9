package relay

import (
	"cmp"
	"maps"
	"slices"
	"sort"

	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// maxOpenOfSet is how many open events of a set a sink is told of that is new to the stream: the newest.
const maxOpenOfSet = 2_000

// openEvents are the Azure events that are open, as a part of the stream shows them, by set and group.
type openEvents struct {
	sets    map[string]map[string]*openEvent
	leftOut map[string]int // open events that were forgotten, by set
}

// An openEvent is how far an event is. It may be over: then what a VM says of it late is outdated.
type openEvent struct {
	streams.Stage
	answer uint64 // the last message about its approval since its latest change; 0 for none
}

func (e *openEvent) over() bool { return e.Kind == imds.Vanished }

// add takes in a message, the next one of the stream.
func (o *openEvents) add(m streams.Message) {
	set, group := m.From.String(), m.Group()
	e := o.sets[set][group]
	switch {
	case m.OnlySink != "" || m.EventID == "":
	case m.Change.Kind.OfAzure():
		if e == nil {
			if o.sets[set] == nil {
				o.sets[set] = map[string]*openEvent{}
			}
			e = &openEvent{}
			o.sets[set][group] = e
		}
		if e.MovesOnTo(m) {
			e.Update(m)
			e.answer = 0
		}
		if len(o.sets[set]) > 2*maxOpenOfSet {
			o.forgetOldest(set)
		}
	case m.Change.Kind == imds.Approved && e != nil && !e.over():
		e.answer = m.Seq
	}
}

// forgetOldest forgets the oldest events of a set, those first that are over, until maxOpenOfSet are left.
func (o *openEvents) forgetOldest(set string) {
	events := o.sets[set]
	groups := slices.SortedFunc(maps.Keys(events), func(a, b string) int {
		x, y := events[a], events[b]
		if x.over() != y.over() {
			if x.over() {
				return -1
			}
			return 1
		}
		return cmp.Compare(x.Seq, y.Seq)
	})
	for _, group := range groups[:max(0, len(groups)-maxOpenOfSet)] {
		if !events[group].over() {
			o.leftOut[set]++
		}
		delete(events, group)
	}
}

// numbers returns the sequence numbers of the latest change of each open event, and of what came of its approval since,
// in order. Of each set it returns those of the newest maxOpenOfSet events.
func (o *openEvents) numbers() (all []uint64) {
	for set := range o.sets {
		o.forgetOldest(set)
		for _, e := range o.sets[set] {
			if e.over() {
				continue
			}
			all = append(all, e.Seq)
			if e.answer != 0 {
				all = append(all, e.answer)
			}
		}
	}
	// Without slices.Sort, which costs the binary 4 kB for each type of number.
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all
}
