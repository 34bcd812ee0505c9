package bridge

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// Terms are the options of a route: when it delivers, and what it gets besides Azure's changes. Each kind of sink has
// its own defaults, which settings override; the tags are for the settings.
type Terms struct {
	Bridge Level `yaml:"bridge" oneof:"none trouble all" doc:"which CloudEvents about forewarn itself the sink gets"`
	delivery.Terms
	// Acts means that a delivery runs something instead of informing somebody. Such a route gets approvals and reminders
	// only if its filter names them.
	Acts bool
	// People means that people get what it delivers: a mute of no sink by name holds it back.
	People bool
	// Remind sends reminders this long before NotBefore.
	Remind []time.Duration `yaml:"remind" min:"1m" max:"30d" relay:"a relay makes no reminders; expected remind at the nats sink of the bridges, which publish them" doc:"remind this long before an event, but never before lead"`
	// Lead sends scheduled and updated only this long before NotBefore; 0 for at once.
	Lead time.Duration `yaml:"lead" min:"1s" max:"30d" doc:"hold scheduled and updated back until this long before the event (default: at once)"`
	// Heartbeat is the interval of heartbeats; 0 for none.
	Heartbeat time.Duration `yaml:"heartbeat" min:"10s" zero:"none" relay:"a relay sends none; expected it at a sink of the bridges" doc:"send a heartbeat this often while all is well (default: never)"`
}

// Starts reports whether a delivery starts something, such as a command or a job: it does if the route acts, and if it has
// LateDrop, which is for that.
func (t Terms) Starts() bool { return t.Acts || t.Late == delivery.LateDrop }

// usable returns an error that names a value which isn't one of those terms. With it a route would get or deliver something
// else than was meant.
func (t Terms) usable() error {
	levels := []Level{"", LevelNone, LevelTrouble, LevelAll}
	lates := []delivery.Late{"", delivery.LateSend, delivery.LateLatest, delivery.LateDrop}
	switch {
	case !slices.Contains(levels, t.Bridge):
		return fmt.Errorf("bridge is %q; expected none, trouble or all", t.Bridge)
	case !slices.Contains(lates, t.Late):
		return fmt.Errorf("late is %q; expected send, latest or drop", t.Late)
	}
	return nil
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
	for _, r := range routes {
		if is(r) {
			found = append(found, r)
		}
	}
	return found
}

// takesChange reports whether one of the routes has the name, and its filter takes this change of an event that it gets.
func takesChange(routes []Route, name string, c imds.Change, self string) bool {
	return slices.ContainsFunc(routes, func(r Route) bool {
		wanted, _ := r.Filter.MatchChange(c, self)
		return r.Name == name && wanted
	})
}

var routeName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// usable returns an error that says which of the routes or rules can't be used, and why.
func usable(routes []Route, rules []Rule) error {
	seen := make(map[string]bool)
	for _, r := range routes {
		switch {
		case !routeName.MatchString(r.Name):
			return fmt.Errorf("route %q: a name consists of A-Z, a-z, 0-9, dot, underscore and hyphen", r.Name)
		case seen[r.Name]:
			return fmt.Errorf("route %q: there are two routes of this name", r.Name)
		case r.Sink == nil:
			return fmt.Errorf("route %q has no sink", r.Name)
		}
		seen[r.Name] = true
		if err := cmp.Or(r.Filter.usable(), r.Terms.usable()); err != nil {
			return fmt.Errorf("route %q: %w", r.Name, err)
		}
	}
	for i, r := range rules {
		if err := r.usable(); err != nil {
			return fmt.Errorf("%s: %w", RuleName(i+1, r), err)
		}
	}
	return nil
}
