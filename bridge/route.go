package bridge

import (
	"time"

	"forewarn/bridge/delivery"
)

// Terms are the options of a route: when it delivers, and what it gets besides Azure's changes. Each kind of sink has
// its own defaults, which settings override.
type Terms struct {
	delivery.Terms
	Bridge Level // which CloudEvents about the bridge the route gets
	// Acts means that a delivery runs something instead of informing somebody. Such a route gets approvals and reminders
	// only if its filter names them.
	Acts bool
	// People means that people get what it delivers: a mute of no sink by name holds it back.
	People    bool
	Remind    []time.Duration // send reminders this long before NotBefore
	Lead      time.Duration   // send scheduled and updated only this long before NotBefore; 0 for at once
	Heartbeat time.Duration   // interval of heartbeats; 0 for none
}

// A Route is a named sink with its filter and terms. Pending deliveries belong to the name: a route that returns under
// its name takes over its backlog.
type Route struct {
	Name   string // [A-Za-z0-9._-]+, unique
	Kind   string // as in the settings file, such as webhook
	Sink   delivery.Sink
	Filter Filter
	Terms  Terms

	// Secrets are the files that hold the route's credentials. When one changes, a blocked or waiting route tries again
	// at once.
	Secrets []string
}

// routesThat returns the routes for which is holds.
func routesThat(is func(Route) bool, routes []Route) (found []Route) {
	for _, r := range routes { // not slices.DeleteFunc: for each type of struct, that costs the binary some kB
		if is(r) {
			found = append(found, r)
		}
	}
	return found
}
