package fleet

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// What people see of a fleet: its open events, its VMs, and the lives of its events.

// OpenEvents returns the events that haven't ended, by their last change.
func (f *Fleet) OpenEvents(now time.Time) []bridge.EventStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endMissed(now)
	all := []bridge.EventStatus{}
	for _, l := range f.sortedEvents() {
		if l.ended || l.latest.ID == "" {
			continue
		}
		e := l.latest
		s := bridge.EventStatus{
			Event: e.Raw, Known: e, NotBefore: e.NotBefore, Set: l.observer.ScaleSet, Group: l.observer.ResourceGroup,
			SecondsLeft: max(0, e.NotBefore.Sub(now).Round(time.Second).Seconds()),
		}
		l.approval.Tell(&s)
		all = append(all, s)
	}
	return all
}

// OpenGroups returns the groups of the events that haven't ended, by their last change.
func (f *Fleet) OpenGroups() (groups []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endMissed(time.Now())
	for _, l := range f.sortedEvents() {
		if !l.ended {
			groups = append(groups, l.group)
		}
	}
	return groups
}

// LastSoon returns the last message that announces an event which may begin by a time, and that is wanted; 0 for none.
// wanted is asked with the set of an event, as cloudevent.Place.String has it, and may not use the fleet.
func (f *Fleet) LastSoon(by time.Time, wanted func(set string, e imds.Event) bool) (seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.events {
		soon := !l.ended && l.stage.Kind.Announces() && l.stage.NotBefore.Before(by)
		if soon && l.stage.Seq > seq && wanted(l.from.String(), l.latest) {
			seq = l.stage.Seq
		}
	}
	return seq
}

// IsOver reports whether a group's event is over. So is one that the stream no longer holds, or that isn't read yet: see
// CatchUp.
func (f *Fleet) IsOver(group string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.events[group]
	return l == nil || l.ended
}

// sortedEvents returns the events by their last change. mu is held.
func (f *Fleet) sortedEvents() []*azureEvent {
	all := make([]*azureEvent, 0, len(f.events))
	for _, l := range f.events {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *azureEvent) int { return cmp.Compare(a.seq, b.seq) })
	return all
}

// VMs returns the VMs, sorted by rank, NotBefore and the time when they were last heard. It forgets those that were
// last heard long ago.
func (f *Fleet) VMs() []bridge.FleetVM {
	sorted := f.unsortedVMs()
	slices.SortFunc(sorted, func(a, b *bridge.FleetVM) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)), a.NotBefore.Compare(b.NotBefore), a.LastHeard.Compare(b.LastHeard),
			strings.Compare(a.Name, b.Name))
	})
	all := make([]bridge.FleetVM, len(sorted))
	for i, v := range sorted {
		all[i] = *v
	}
	return all
}

// unsortedVMs is VMs, in any order: what has to be done while nobody else may use the fleet.
func (f *Fleet) unsortedVMs() []*bridge.FleetVM {
	f.mu.Lock()
	defer f.mu.Unlock()
	byName := map[string]*bridge.FleetVM{}
	for key, v := range f.vms {
		byName[key] = &bridge.FleetVM{Name: v.name, Set: v.set, Group: v.group, LastHeard: v.lastHeard,
			Stopped: v.stopped()}
		if last, silent := findSilent(f.silent, key); silent && !v.lastHeard.After(last) {
			byName[key].Silent = true
		}
	}
	unheard := map[cloudevent.Place]int{} // VMs that only events name, by set
	for _, l := range f.events {
		if l.ended {
			continue
		}
		for _, name := range l.latest.Resources {
			key := l.vmKey(name)
			v := byName[key]
			if v == nil {
				unheard[l.from]++
				if unheard[l.from] > maxVMsOfSet {
					continue
				}
				v = &bridge.FleetVM{Name: name, Set: l.observer.ScaleSet, Group: l.observer.ResourceGroup}
				byName[key] = v
			}
			v.Events = append(v.Events, l.latest.ID)
			v.Started = v.Started || l.latest.Status == imds.StatusStarted
			if at := l.latest.NotBefore; !at.IsZero() && (v.NotBefore.IsZero() || at.Before(v.NotBefore)) {
				v.NotBefore = at
			}
		}
	}
	var sorted []*bridge.FleetVM // pointers: the compiler makes one sort for all of them, and one for each other type
	for key, v := range byName {
		if len(v.Events) == 0 && time.Since(v.LastHeard) > ForgetVM {
			f.forgetVM(f.vms[key].place, key)
			continue
		}
		slices.Sort(v.Events)
		sorted = append(sorted, v)
	}
	return sorted
}

// rank returns 0 for a VM whose event has started, 1 for one with another event, 2 for a silent one, and 3 for all
// others.
func rank(v *bridge.FleetVM) int {
	switch {
	case v.Started:
		return 0
	case len(v.Events) > 0:
		return 1
	case v.Silent:
		return 2
	}
	return 3
}

// Histories returns the events of the last 40 days that p selects, by their last change, and reports whether older ones
// were dropped. groups has the group of each.
func (f *Fleet) Histories(p bridge.Period) (histories []bridge.EventHistory, groups []string, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.sortedEvents() {
		for _, h := range l.Histories(p) {
			h.Set, h.Group = l.observer.ScaleSet, l.observer.ResourceGroup
			h.Changes = slices.Clone(h.Changes)
			histories, groups = append(histories, h), append(groups, l.group)
		}
	}
	return histories, groups, f.forgotten
}
