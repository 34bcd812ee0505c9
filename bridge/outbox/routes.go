package outbox

import (
	"maps"
	"slices"
	"time"

	"forewarn/bridge/delivery"
)

// A Route is a destination in the settings.
type Route struct {
	Name     string // has no slash
	Fallback string // the route that takes over what this one can't deliver; "" for none
	// Late decides what the end of a group settles: see delivery.Late.OverAtEnd.
	Late   delivery.Late
	People bool // people get what it delivers: see delivery.Mute.People
}

// keepOrphans is how long the backlog of a removed route is kept.
const keepOrphans = 24 * time.Hour

// NewRoutes returns the names of the routes that are new to the outbox, and of those that return. It changes nothing;
// Batch.Routes sets the routes. Removed routes keep their backlog for 24 hours.
func (o *Outbox) NewRoutes(routes []Route) (added, back []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range routes {
		switch was := o.routes[r.Name]; {
		case was == nil || !was.configured:
			added = append(added, r.Name)
		case !was.removed.IsZero():
			back = append(back, r.Name)
		}
	}
	return added, back
}

func (c *change) setRoutes(routes []Route) {
	c.settings = routes
	configured := map[string]bool{}
	for _, s := range routes {
		r := c.route(s.Name)
		configured[s.Name] = true
		r.fallback, r.late = s.Fallback, s.Late
		if r.people != s.People {
			r.people = s.People
			c.assignMutesOf(r)
		}
		c.settleOver(r)
		if !r.configured || !r.removed.IsZero() {
			r.configured, r.removed = true, time.Time{}
			c.write(bucketRoutes, r.name, storedRoute{r.removed})
		}
	}
	for name, r := range c.routes {
		if configured[name] || !r.removed.IsZero() || !r.configured && len(r.pending) == 0 {
			continue
		}
		r.fallback, r.configured, r.removed = "", true, c.now.UTC()
		c.write(bucketRoutes, r.name, storedRoute{r.removed})
	}
}

// GiveUpOrphans makes dead letters of the backlog of routes that were removed 24 hours ago. It is cheap if there are
// none; Maintain does it too.
func (o *Outbox) GiveUpOrphans(now time.Time) {
	o.change(now, func(c *change) { c.dropOrphans() })
	o.syncSoon()
}

// Routes returns the names of all routes that the outbox knows or has deliveries of, sorted.
func (o *Outbox) Routes() []string { return slices.Sorted(maps.Keys(o.Stats())) }

func (c *change) dropOrphans() {
	for name, r := range c.routes {
		if r.removed.IsZero() || c.now.Sub(r.removed) <= keepOrphans {
			continue
		}
		for _, e := range slices.Clone(r.pending) {
			c.giveUp(e, delivery.ReasonRemoved, "", false)
		}
		if r.configured {
			r.configured = false
			c.write(bucketRoutes, name, nil)
		}
		if len(r.dead) == 0 && r.reader == nil {
			delete(c.routes, name)
		}
	}
}

// Stats holds the figures of a route.
type Stats struct {
	Pending    int
	Dead       int
	Unreported int       // of the dead, those that the owner is still to report
	Delivered  int       // since the start
	Oldest     time.Time // when the oldest pending delivery became that; zero if there is none
	Accepted   time.Time // the last acceptance since the start
	Gone       time.Time // when it was removed from the settings; zero while it is in them
}

// oldest returns when the oldest pending delivery became that; zero if there is none.
func (r *route) oldest() time.Time {
	if len(r.pending) == 0 {
		return time.Time{}
	}
	return r.pending[0].PendingSince
}

// Stats returns the figures of every route that the outbox knows or has deliveries of, by name.
func (o *Outbox) Stats() map[string]Stats {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[string]Stats, len(o.routes))
	for name, r := range o.routes {
		if !r.configured && len(r.pending)+len(r.dead) == 0 {
			continue
		}
		s := Stats{
			Pending: len(r.pending), Dead: len(r.dead), Delivered: r.delivered, Accepted: r.accepted,
			Unreported: len(r.unreported), Gone: r.removed,
			Oldest: r.oldest(),
		}
		all[name] = s
	}
	return all
}

// Totals holds counts over all routes.
type Totals struct {
	Pending  int
	Bytes    int // of the CloudEvents of pending deliveries, each counted once a delivery
	InMemory int // pending deliveries that no disk has yet
	Dead     int
	// Unreported counts the dead letters that the owner is still to report.
	Unreported int
}

// Totals returns the counts over all routes.
func (o *Outbox) Totals() Totals {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := Totals{Pending: o.pending.n, Bytes: o.pending.bytes, InMemory: len(o.unstored(false)), Dead: o.dead.n}
	for _, r := range o.routes {
		all.Unreported += len(r.unreported)
	}
	return all
}
