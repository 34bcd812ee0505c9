package delivery

import (
	"path"
	"slices"
	"time"
)

// A Mute holds back deliveries until it ends. It is immutable: a Queue replaces it.
type Mute struct {
	ID   string `json:"id"`
	Sink string `json:"sink,omitempty"` // the name of a route; "" for all, or for those of People
	// People means all routes for people, also those that the settings get later.
	People bool      `json:"people,omitempty"`
	VM     string    `json:"vm,omitempty"`    // a pattern that all VMs of a message match; "" for any
	Types  []string  `json:"types,omitempty"` // Azure types; nil for all but those of passMutes
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
	By     string    `json:"by"` // who asked for it
	// Ended is when it ended: at Until, by hand, or with its sink. It never begins again.
	Ended   time.Time `json:"ended,omitzero"`
	EndedBy string    `json:"endedBy,omitempty"` // who ended it; "" for its time
	LastSeq uint64    `json:"lastSeq,omitempty"` // the last sequence number when it ended
}

// passMutes lists the Azure types that a Mute holds back only if it names them: later it is too late to act.
var passMutes = []string{"Preempt", "Terminate"}

// Active reports whether m holds back what it covers. A nil Mute does not.
func (m *Mute) Active() bool { return m != nil && m.Ended.IsZero() }

// IsFor reports whether m is for a route. people tells whether people get what the route delivers.
func (m *Mute) IsFor(route string, people bool) bool {
	if m.Sink != "" {
		return m.Sink == route
	}
	return people || !m.People
}

// Covers reports whether m applies to a message for the route: see IsFor. No mute applies to heartbeats, because their
// absence raises an alarm.
func (m *Mute) Covers(route string, people bool, msg *Message) bool {
	return m.IsFor(route, people) && m.covers(msg)
}

func (m *Mute) covers(msg *Message) bool {
	switch {
	case msg.Transient:
		return false
	case len(m.Types) > 0 && !hasFold(m.Types, msg.AzureType), len(m.Types) == 0 && hasFold(passMutes, msg.AzureType):
		return false
	}
	return m.VM == "" || len(msg.VMs) > 0 && !slices.ContainsFunc(msg.VMs, func(vm string) bool {
		ok, _ := path.Match(lower(m.VM), lower(vm))
		return !ok
	})
}

// hasFold reports whether the list has s, in any case.
func hasFold(list []string, s string) bool {
	return slices.ContainsFunc(list, func(one string) bool { return lower(one) == lower(s) })
}

// lower returns s with its ASCII letters in lower case. By Unicode's rules other characters would become letters too.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c - 'A' + 'a'
		}
	}
	return string(b)
}

// MutesFor returns the mutes that are for a route: see Mute.IsFor.
func MutesFor(all []*Mute, route string, people bool) []*Mute {
	return slices.DeleteFunc(slices.Clone(all), func(m *Mute) bool { return !m.IsFor(route, people) })
}

// MuteOf returns which of the mutes for a route holds the item back for longest or, if none does, the last one that it
// waited for; nil if there is neither.
func MuteOf(mutes []*Mute, i *Item) (of *Mute) {
	for _, m := range mutes {
		waited := i.Seq <= m.LastSeq && !i.PendingSince.After(m.Ended)
		switch {
		case !m.Active() && !waited, !m.covers(i.Message):
		case of == nil, m.Active() && !of.Active(),
			m.Active() == of.Active() && (m.Until.After(of.Until) && m.Active() || m.Ended.After(of.Ended)):
			of = m
		}
	}
	return of
}
