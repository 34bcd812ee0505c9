package relay

import (
	"cmp"
	"maps"
	"slices"

	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// Of how many open events a sink is told that is new to the stream. Beyond that the sets that have most lose their oldest.
const (
	maxOpenOfSet = 2_000
	maxOpen      = 20_000 // of all sets: their numbers have to fit in the sink's state, which is one message
)

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
			o.forgetOldest(set, maxOpenOfSet)
		}
	case m.Change.Kind == imds.Approved && e != nil && !e.over():
		e.answer = m.Seq
	}
}

// forgetOldest forgets the oldest events of a set, those first that are over, until at most so many are left.
func (o *openEvents) forgetOldest(set string, most int) {
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
	for _, group := range groups[:max(0, len(groups)-most)] {
		if !events[group].over() {
			o.leftOut[set]++
		}
		delete(events, group)
	}
}

// numbers returns the sequence numbers of the latest change of each open event, and of what came of its approval since,
// in order, of at most maxOpen events.
func (o *openEvents) numbers() (all []uint64) {
	most := maxOpenOfSet
	for o.count(most) > maxOpen {
		most--
	}
	for set := range o.sets {
		o.forgetOldest(set, most)
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
	slices.Sort(all)
	return all
}

// count returns how many events there are if each set has at most so many.
func (o *openEvents) count(most int) (n int) {
	for _, events := range o.sets {
		n += min(len(events), most)
	}
	return n
}
