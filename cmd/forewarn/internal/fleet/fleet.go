// Package fleet selects what of a relay's fleet is shown.
package fleet

import (
	"path"

	"forewarn/bridge"
	"forewarn/bridge/imds"
)

// A Filter selects what a relay shows by patterns of scale sets and resource groups, such as web*. An empty one selects
// all.
type Filter struct{ Set, Group string }

// selects reports whether something of the set and group is selected.
func (f Filter) selects(set, group string) bool {
	return matchPattern(f.Set, set) && matchPattern(f.Group, group)
}

// matchPattern reports whether a name matches a pattern, whatever its case; an empty pattern matches all.
func matchPattern(pattern, name string) bool {
	matched, _ := path.Match(imds.Upper(pattern), imds.Upper(name))
	return matched || pattern == ""
}

// Status returns the status of a relay with the VMs and events that are selected.
func (f Filter) Status(s bridge.Status) bridge.Status {
	if s.Relay == nil || f == (Filter{}) {
		return s
	}
	r := *s.Relay
	r.VMs = []bridge.FleetVM{}
	for _, v := range s.Relay.VMs {
		if f.selects(v.Set, v.Group) {
			r.VMs = append(r.VMs, v)
		}
	}
	events := []bridge.EventStatus{}
	for _, e := range s.Events {
		if f.selects(e.Set, e.Group) {
			events = append(events, e)
		}
	}
	s.Relay, s.Events = &r, events
	return s
}

// Histories returns the events that are selected.
func (f Filter) Histories(all []bridge.EventHistory) []bridge.EventHistory {
	if f == (Filter{}) {
		return all
	}
	selected := []bridge.EventHistory{}
	for _, h := range all {
		if f.selects(h.Set, h.Group) {
			selected = append(selected, h)
		}
	}
	return selected
}
