package bridge_test

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"
)

// address reports whether a route is owed a change, of an event that it may have accepted before.
func (t *truth) address(r routePlan, c *change, accepted map[string]bool) {
	sure, before := accepted[r.name]
	switch {
	case sure || r.accepts(*c, true) || t.named == no && r.accepts(*c, false):
		accepted[r.name] = true
	case before || t.named == maybe && r.accepts(*c, false):
		accepted[r.name] = false
	default:
		return
	}
	if r.hears(*c) {
		c.routes[r.name] = accepted[r.name]
	}
}

// hash returns that of an event's content, as the contract has it.
func hash(e azureEvent) string {
	f := e.fields()
	if e.notBefore >= 0 {
		f["NotBefore"] = e.notBeforeTime().Truncate(time.Second).Format(time.RFC3339)
	}
	sum := sha256.Sum256(mustJSON(f))
	return hex.EncodeToString(sum[:])[:8]
}

// accepts reports whether the route's filter wants the event of a change, as it is when the VM's name is known, or when
// nobody waits for that any more.
func (r routePlan) accepts(c change, named bool) bool {
	e, x := c.event, r.except
	switch {
	case named && !hits(r.vms, e),
		len(r.types) > 0 && slices.Contains(azureTypes, e.kind) && !slices.Contains(r.types, e.kind),
		len(r.sources) > 0 && slices.Contains(azureSources, e.source) && !slices.Contains(r.sources, e.source),
		r.when.text != "" && !r.when.holds(c):
		return false
	}
	return len(x.changes) > 0 || !x.names(e, named)
}

// hits reports whether an event hits this VM, or leads with it.
func hits(vms string, e azureEvent) bool {
	self := func(vm string) bool { return strings.EqualFold(vm, "vm-0") }
	list := e.resources()
	return len(list) == 0 || vms == "all" || vms == "self" && slices.ContainsFunc(list, self) ||
		vms == "leader" && self(list[0])
}

// names reports whether all that is excepted of an event, beside changes, is true of it.
func (x matchPlan) names(e azureEvent, named bool) bool {
	switch {
	case x.vms == "" && x.types == nil && x.sources == nil,
		x.types != nil && !slices.Contains(x.types, e.kind),
		x.sources != nil && !slices.Contains(x.sources, e.source),
		x.vms != "" && (e.machines == "" || !named):
		return false
	}
	return x.vms == "" || hits(x.vms, e)
}

var azureSources = []string{"Platform", "User"}

var azureTypes = []string{"Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"}

// hears reports whether the route wants this very change of an event that it wants.
func (r routePlan) hears(c change) bool {
	x := r.except
	all := x.vms == "" && x.types == nil && x.sources == nil
	if len(x.changes) > 0 && c.among(x.changes) && (all || x.names(c.event, true)) {
		return false
	}
	return len(r.changes) == 0 || c.among(r.changes)
}

// routeOf returns the route of a name, if there is one.
func routeOf(routes []routePlan, name string) (r routePlan, ok bool) {
	i := slices.IndexFunc(routes, func(r routePlan) bool { return r.name == name })
	if i < 0 {
		return routePlan{}, false
	}
	return routes[i], true
}

func hasRoute(routes []routePlan, name string) bool {
	_, has := routeOf(routes, name)
	return has
}

// added returns the belief after a route was added in a period. If CloudEvents could not be read then, nobody asked what
// is only in them.
func (t *truth) added(b belief, r routePlan, from, to time.Duration) belief {
	n := len(b.changes) - 1
	for n >= 0 && b.changes[n].gone() { // the program has forgotten it
		n--
	}
	if b.seen == nil || n < 0 {
		return b
	}
	b = b.copy()
	c := &b.changes[n]
	if _, owed := c.routes[r.name]; owed {
		return b
	}
	c.routes, c.later = maps.Clone(c.routes), append(slices.Clone(c.later), r.name)
	t.address(r, c, b.accepted)
	if r.when.text = ""; t.w.hides(from, to) && r.accepts(*c, t.named == yes) {
		perhaps(b.accepted, r.name)
		if r.hears(*c) {
			perhaps(c.routes, r.name)
		}
	}
	return b
}

// perhaps adds to what is true for sure, or may be, that a name may be in it.
func perhaps(of map[string]bool, name string) {
	if !of[name] {
		of[name] = false
	}
}
