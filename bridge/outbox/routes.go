package outbox

import (
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
func (tx *Tx) NewRoutes(routes []Route) (added, back []string) {
	for _, r := range routes {
		was := tx.routes[r.Name]
		switch {
		case was == nil || !was.configured:
			added = append(added, r.Name)
		case !was.removed.IsZero():
			back = append(back, r.Name)
		}
	}
	return added, back
}

func (tx *Tx) setRoutes(routes []Route) {
	tx.isSetUp = true
	configured := map[string]bool{}
	for _, s := range routes {
		r := tx.route(s.Name)
		configured[s.Name] = true
		r.fallback, r.late = s.Fallback, s.Late
		if r.people != s.People {
			r.people = s.People
			tx.assignMutesOf(r)
		}
		tx.settleOver(r)
		if !r.configured || !r.removed.IsZero() {
			r.configured, r.removed = true, time.Time{}
			tx.write(bucketRoutes, r.name, storedRoute{r.removed})
		}
	}
	for name, r := range tx.routes {
		if configured[name] || !r.removed.IsZero() || !r.configured && len(r.pending) == 0 {
			continue
		}
		r.fallback, r.configured, r.removed = "", true, tx.now.UTC()
		tx.write(bucketRoutes, r.name, storedRoute{r.removed})
	}
}

// dropOrphans makes dead letters of the backlog of routes that were removed 24 hours ago.
func (tx *Tx) dropOrphans() {
	for name, r := range tx.routes {
		if r.removed.IsZero() || tx.now.Sub(r.removed) <= keepOrphans {
			continue
		}
		for _, e := range slices.Clone(r.pending) {
			tx.giveUp(e, delivery.ReasonRemoved, "")
		}
		if r.configured {
			r.configured = false
			tx.write(bucketRoutes, name, nil)
		}
		if len(r.dead) == 0 && r.reader == nil {
			delete(tx.routes, name)
		}
	}
}

// Stats holds the figures of a route.
type Stats struct {
	Pending    int
	Dead       int
	Unreported int       // of the dead, those that the owner is still to report
	Delivered  int       // since the start
	Oldest     time.Time // of a removed route: when the oldest pending delivery became that; zero if there is none
	Accepted   time.Time // the last acceptance since the start
	Gone       time.Time // when it was removed from the settings; zero while it is in them
}

// oldest returns when the oldest pending delivery became that; zero if there is none. It looks at all: what was replayed, or
// has fallen back, may have the lowest number and be the newest.
func (r *route) oldest() (since time.Time) {
	for _, e := range r.pending {
		if since.IsZero() || e.PendingSince.Before(since) {
			since = e.PendingSince
		}
	}
	return since
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
		}
		if !s.Gone.IsZero() {
			s.Oldest = r.oldest()
		}
		all[name] = s
	}
	return all
}

// Totals holds counts over all routes.
type Totals struct {
	Pending int
	Dead    int
	// Unreported counts the dead letters that the owner is still to report.
	Unreported int
	FileBytes  int64 // size of the file when it was last opened or written
}

// Totals returns the counts over all routes.
func (o *Outbox) Totals() Totals {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := Totals{Pending: o.pending.n, Dead: o.dead.n, FileBytes: o.storage.Size()}
	for _, r := range o.routes {
		all.Unreported += len(r.unreported)
	}
	return all
}
