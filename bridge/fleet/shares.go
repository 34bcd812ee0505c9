package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

// The shares of a set in what a relay keeps of its fleet, so that whoever lies about one set takes no room from the
// others.
const (
	azureVMsOfSet  = 1_000 // at most; more, and VMs that were deleted lately are among them, or somebody lies
	maxVMsOfSet    = 2_000
	maxEventsOfSet = 2_000
	maxBytesOfSet  = 16 << 20 // of memory for its events
	maxEvents      = 12_000   // of all sets
	maxEventBytes  = 96 << 20 // of all sets
	maxVMName      = 256      // bytes
)

// A set is what a fleet keeps of one set.
type set struct {
	name    string                 // cloudevent.Place.String
	vms     map[string]*vm         // by vmKey
	events  map[string]*azureEvent // by group
	bytes   int                    // of the events
	leftOut time.Time              // until then events may be open that were forgotten, because there were too many
	refused time.Time              // when a VM that may fall silent was last left out, because the set has too many
}

// setNamed returns what the fleet keeps of a set. mu is held.
func (f *Fleet) setNamed(name string) *set {
	s := f.sets[name]
	if s == nil {
		s = &set{name: name, vms: map[string]*vm{}, events: map[string]*azureEvent{}}
		f.sets[name] = s
	}
	return s
}

// addBytes counts the bytes of a change of an event. If the set, or all sets together, have more than their share then,
// the oldest events of the set that has most are forgotten. mu is held.
func (f *Fleet) addBytes(l *azureEvent, n int) {
	s := f.setNamed(l.from.String())
	l.bytes, s.bytes, f.bytes = l.bytes+n, s.bytes+n, f.bytes+n
	if len(s.events) > maxEventsOfSet || s.bytes > maxBytesOfSet {
		f.forgetOldest(s)
	}
	for len(f.events) > maxEvents || f.bytes > maxEventBytes {
		most := s
		for _, other := range f.sets {
			if other.bytes > most.bytes {
				most = other
			}
		}
		f.forgetOldest(most)
	}
}

// forgetOldest forgets an eighth of the events of a set, those first that are over. mu is held.
func (f *Fleet) forgetOldest(s *set) {
	var all []*azureEvent
	for _, l := range s.events {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *azureEvent) int {
		return cmp.Or(cmp.Compare(endedFirst(a), endedFirst(b)), cmp.Compare(a.seq, b.seq))
	})
	for _, l := range all[:(len(all)+7)/8] {
		if !l.ended {
			s.leftOut = later(s.leftOut, l.lastChange.Add(l.longest()))
		}
		f.forgetEvent(l)
	}
}

func endedFirst(l *azureEvent) int {
	if l.ended {
		return 0
	}
	return 1
}

// forgetEvent forgets an event. mu is held.
func (f *Fleet) forgetEvent(l *azureEvent) {
	s := f.setNamed(l.from.String())
	s.bytes, f.bytes = s.bytes-l.bytes, f.bytes-l.bytes
	delete(s.events, l.group)
	delete(f.events, l.group)
	if l.ended {
		f.ended--
	}
	f.forgotten = true
	f.dropIfEmpty(s)
}

// dropIfEmpty drops a set of which nothing is left. mu is held.
func (f *Fleet) dropIfEmpty(s *set) {
	if len(s.vms) == 0 && len(s.events) == 0 {
		delete(f.sets, s.name)
	}
}

// addVM adds a VM of a set, or returns false if the set, or all sets together, have too many. It makes room in that set, or
// in one that has more VMs than Azure allows. mu is held.
func (f *Fleet) addVM(set, key string, v *vm) bool {
	s, now := f.setNamed(set), time.Now()
	if len(s.vms) >= maxVMsOfSet {
		forgotten := f.forgetOldestVM(s)
		if forgotten == nil || forgotten.mayFallSilent(now) {
			s.refused = now
		}
		if forgotten == nil {
			return false
		}
	}
	if len(f.vms) >= maxVMs {
		var forgotten *vm
		if len(s.vms) < azureVMsOfSet {
			forgotten = f.forgetSurplusVM()
		}
		if forgotten == nil || forgotten.mayFallSilent(now) {
			f.full = now
		}
		if forgotten == nil {
			f.dropIfEmpty(s)
			return false
		}
	}
	s.vms[key], f.vms[key] = v, v
	if len(s.vms) > azureVMsOfSet {
		f.surplus[s.name] = s
	}
	return true
}

// mayFallSilent reports whether a VM is told as silent if it publishes nothing more. One that was deleted, or has stopped, is
// not, nor one that sends no heartbeats.
func (v *vm) mayFallSilent(now time.Time) bool {
	return v.interval > 0 && !v.stopped() && now.Sub(v.lastHeard) < silentAfter(v.interval)+maxGather
}

// forgetSurplusVM forgets a VM of the set that has most, if those are more than Azure allows, and returns it. mu is held.
func (f *Fleet) forgetSurplusVM() *vm {
	var most *set
	for _, s := range f.surplus {
		if most == nil || len(s.vms) > len(most.vms) {
			most = s
		}
	}
	if most == nil {
		return nil
	}
	return f.forgetOldestVM(most)
}

// forgetOldestVM forgets the VM of a set that was last heard longest ago, but none that was announced as silent, and returns
// it; nil if there is none. mu is held.
func (f *Fleet) forgetOldestVM(s *set) *vm {
	var oldest string
	var of *vm
	for key, v := range s.vms {
		if of != nil && !v.lastHeard.Before(of.lastHeard) {
			continue
		}
		if _, silent := findSilent(f.silent, key); !silent { // asked last, because that takes longest
			oldest, of = key, v
		}
	}
	if of != nil {
		f.forgetVM(s.name, oldest)
	}
	return of
}

// forgetVM forgets a VM of a set. mu is held.
func (f *Fleet) forgetVM(set, key string) {
	s := f.setNamed(set)
	delete(s.vms, key)
	delete(f.vms, key)
	if len(s.vms) <= azureVMsOfSet {
		delete(f.surplus, set)
	}
	f.dropIfEmpty(s)
}

// Warnings returns a warning for whatever is left out, at most maxNamed of them and one more. It warns of a VM
// for a day, and of events until none of them can be open.
func (f *Fleet) Warnings() (warnings []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	lately := func(at time.Time) bool { return !at.IsZero() && now.Sub(at) < ForgetVM }
	for _, s := range f.sets {
		set := strings.ReplaceAll(s.name, ".", "/")
		if now.Before(s.leftOut) {
			warnings = append(warnings, fmt.Sprintf("the set %s has told of more events than a relay keeps (%d of a set, %d in "+
				"all); the oldest that are not over are not shown", set, maxEventsOfSet, maxEvents))
		}
		if lately(s.refused) {
			warnings = append(warnings, fmt.Sprintf("the set %s has more VMs than a relay watches, which is %d of a set; nobody "+
				"hears when one that is left out falls silent", set, maxVMsOfSet))
		}
	}
	if lately(f.full) {
		warnings = append(warnings, fmt.Sprintf("there are more VMs than a relay watches, which is %d; nobody hears when one "+
			"that is left out falls silent", maxVMs))
	}
	if len(f.silent) >= maxSilent {
		warnings = append(warnings, fmt.Sprintf("%d VMs are silent, and a relay remembers no more; nobody hears of others before "+
			"some of them are back", len(f.silent)))
	}
	sort.Strings(warnings)
	if n := len(warnings) - maxNamed; n > 0 {
		warnings = append(warnings[:maxNamed], fmt.Sprintf("so it is with more sets: %d further warnings", n))
	}
	return warnings
}
