package bridge

import (
	"time"

	"forewarn/bridge/delivery"
)

// Terms are what a route asks for: when its deliveries are made, and of what beside Azure's changes it is told. Each
// kind of sink has its own, and settings override them.
type Terms struct {
	delivery.Terms
	Bridge Level // which CloudEvents about the bridge it gets
	// Acts says that a delivery does something rather than tells of it. Such a route gets approvals and reminders only
	// when its filter names them.
	Acts      bool
	Remind    []time.Duration // how long before NotBefore an event is told of again; none = never
	Lead      time.Duration   // how long before NotBefore scheduled and updated are due; 0 = at once
	Heartbeat time.Duration   // how often a sign of life is sent; 0 = never
}

// A Route is a named sink with its filter and terms. Pending deliveries belong to the name: a route that returns under
// its name takes over its backlog.
type Route struct {
	Name   string // [A-Za-z0-9._-]+, unique
	Kind   string // as in the settings file: webhook, file
	Sink   delivery.Sink
	Filter Filter
	Terms  Terms

	// Secrets are the files that hold the route's credentials. When one changes, a blocked or waiting route tries again
	// at once.
	Secrets []string
}
