package bridge

import "slices"

// A FleetFilter selects what a relay shows by patterns of scale sets and resource groups, such as web*. An empty one
// selects all.
type FleetFilter struct{ Set, Group string }

// has reports whether something of the set and group is selected.
func (f FleetFilter) has(set, group string) bool {
	return (f.Set == "" || fits([]string{f.Set}, set)) && (f.Group == "" || fits([]string{f.Group}, group))
}

// Status returns the status of a relay with the VMs and events that are selected.
func (f FleetFilter) Status(s Status) Status {
	if s.Relay == nil || f == (FleetFilter{}) {
		return s
	}
	r := *s.Relay
	r.VMs = slices.DeleteFunc(slices.Clone(r.VMs), func(v FleetVM) bool { return !f.has(v.Set, v.Group) })
	s.Relay = &r
	s.Events = slices.DeleteFunc(slices.Clone(s.Events), func(e EventStatus) bool { return !f.has(e.Set, e.Group) })
	return s
}

// Histories returns the events that are selected.
func (f FleetFilter) Histories(all []EventHistory) []EventHistory {
	if f == (FleetFilter{}) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(h EventHistory) bool { return !f.has(h.Set, h.Group) })
}
