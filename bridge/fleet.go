package bridge

import "time"

// A RelayStatus is what a relay shows besides what a bridge does.
type RelayStatus struct {
	Name   string      `json:"name"`
	Stream string      `json:"stream"`
	Relays []RelayPeer `json:"relays"` // of the stream, this one included
	VMs    []FleetVM   `json:"vms"`    // that bridges run on, or open events name: what comes first, first
}

// A FleetVM is one VM of a fleet.
type FleetVM struct {
	Name      string    `json:"name"`
	Set       string    `json:"set,omitempty"`
	Group     string    `json:"group,omitempty"`    // resource group
	LastHeard time.Time `json:"lastHeard,omitzero"` // when its bridge last published something; zero if it has none
	Events    []string  `json:"events,omitempty"`   // ids of the open events that name it
	NotBefore time.Time `json:"notBefore,omitzero"` // of the nearest of them
	Started   bool      `json:"started,omitempty"`  // one of them has begun
	Silent    bool      `json:"silent,omitempty"`   // its heartbeats stopped, and that was reported
	Stopped   bool      `json:"stopped,omitempty"`  // its bridge announced that it was stopping
}

// A RelayPeer is a relay of the same stream.
type RelayPeer struct {
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	Hash     string    `json:"settingsHash"`
	LastSeen time.Time `json:"lastSeen"`
}

// A FleetFilter selects what a relay shows by patterns of scale sets and resource groups, such as web*. An empty one
// selects all.
type FleetFilter struct{ Set, Group string }

// has reports whether something of the set and group is selected.
func (f FleetFilter) has(set, group string) bool {
	return (f.Set == "" || matchesPattern([]string{f.Set}, set)) && (f.Group == "" || matchesPattern([]string{f.Group}, group))
}

// Status returns the status of a relay with the VMs and events that are selected.
func (f FleetFilter) Status(s Status) Status {
	if s.Relay == nil || f == (FleetFilter{}) {
		return s
	}
	r := *s.Relay
	r.VMs = []FleetVM{}
	for _, v := range s.Relay.VMs {
		if f.has(v.Set, v.Group) {
			r.VMs = append(r.VMs, v)
		}
	}
	events := []EventStatus{}
	for _, e := range s.Events {
		if f.has(e.Set, e.Group) {
			events = append(events, e)
		}
	}
	s.Relay, s.Events = &r, events
	return s
}

// Histories returns the events that are selected.
func (f FleetFilter) Histories(all []EventHistory) []EventHistory {
	if f == (FleetFilter{}) {
		return all
	}
	selected := []EventHistory{}
	for _, h := range all {
		if f.has(h.Set, h.Group) {
			selected = append(selected, h)
		}
	}
	return selected
}
