package bridge_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The truth is what the program had to tell, worked out from what the endpoint served and which routes were set up. It
// shares nothing with the bridge.
//
// A crash makes the truth uncertain: what was just seen may be on the disk, or not. So of each event several beliefs
// are kept, one for each thing that the disk may hold, and the program has to be right by one of them.

// A change is something that the program learned of an event and had to tell.
type change struct {
	fact
	id      string // of its CloudEvent
	kind    string
	event   azureEvent
	first   bool            // nothing of the event was told before
	routes  map[string]bool // that are owed it; false if they may be told and need not
	later   []string        // routes that came, or returned, after it
	orphans []string        // routes that were gone then, and get it if they return within a day
	lost    bool            // a crash made the program forget it
	theirs  int             // the first machine that forgot it, because it was another's; 0 for none
	away    *bool           // it was found after nobody had watched for a while; nil if that is not known
}

// owed reports whether a route is owed the change since it was seen.
func (c change) owed(route string) bool { return c.routes[route] && !slices.Contains(c.later, route) }

// gone reports whether the program may have forgotten the change.
func (c change) gone() bool { return c.lost || c.theirs > 0 }

// A belief is what the program may hold of one event.
type belief struct {
	seen     *azureEvent     // as it was last seen; nil when it is not open
	lives    int             // the life of the event that is or was open
	former   int             // the latest life of which a file knew that came late
	times    map[string]int  // how often each id was used, without its -rN
	accepted map[string]bool // routes whose filter has accepted this life of it; false if it may have
	changes  []change
	kept     *belief      // what its file holds, which comes late; nil when it is there
	late     bool         // that came, and no document since then lists the event
	hidden   bool         // a partial document left it out after a while in which nobody may have watched
	waits    *bool        // whether this run of the program waits for its VM's name; nil where that makes no difference yet
	before   []checkpoint // what a crash may take it back to
}

// A checkpoint is a belief before a change of which it is not known yet that the disk has it.
type checkpoint struct {
	answer  *answer
	belief  belief
	changes int // how many there were
	routes  []routePlan
}

// copy returns one that may be changed.
func (b belief) copy() belief {
	b.times, b.accepted, b.changes = maps.Clone(b.times), maps.Clone(b.accepted), slices.Clone(b.changes)
	return b
}

// anyhow returns the belief of a program that may wait for its VM's name or not.
func (b belief) anyhow() belief {
	b.waits = nil
	return b
}

// key is the same for beliefs that make no difference.
func (b belief) key() string {
	var s strings.Builder
	fmt.Fprint(&s, b.seen != nil, b.lives, b.former, b.times, b.accepted, len(b.before), b.kept != nil, b.late, b.hidden)
	if b.waits != nil {
		fmt.Fprint(&s, *b.waits)
	}
	if b.seen != nil {
		fmt.Fprint(&s, *b.seen)
	}
	for _, c := range b.changes {
		fmt.Fprint(&s, c.id, c.seq, c.lost, c.theirs, c.routes)
	}
	return s.String()
}

func distinct(list []belief) (kept []belief) {
	if len(list) == 1 {
		return list
	}
	keys := map[string]bool{}
	for _, b := range list {
		if k := b.key(); !keys[k] {
			keys[k] = true
			kept = append(kept, b)
		}
	}
	return kept
}

// among reports whether changes names the change.
func (c change) among(changes []string) bool {
	return slices.Contains(changes, c.kind) || c.first && slices.Contains(changes, "first")
}

// undecided returns the belief in which a route's filter need not have accepted the event.
func (b belief) undecided(route string) belief {
	if b.accepted[route] {
		b = b.copy()
		b.accepted[route] = false
	}
	return b
}

// perhapsWithout returns the belief after a route went at a time: what was seen at that very moment it may have been
// told.
func (b belief) perhapsWithout(route string, at time.Duration) belief {
	if n := len(b.changes) - 1; n >= 0 && b.changes[n].at == at && b.changes[n].routes[route] {
		b = b.copy()
		b.changes[n].routes = maps.Clone(b.changes[n].routes)
		b.changes[n].routes[route] = false
	}
	return b
}

// perhapsNotAdded returns the belief in which a route need not have been given what was seen before it came: the program
// may have forgotten that it did, and then its filter decides about what is seen later.
func (b belief) perhapsNotAdded(route string) belief {
	b = b.undecided(route).copy()
	for n, c := range b.changes {
		if c.routes[route] && slices.Contains(c.later, route) {
			b.changes[n].routes = maps.Clone(c.routes)
			b.changes[n].routes[route] = false
		}
	}
	return b
}

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
	r.when.text = ""
	if t.w.hides(from, to) && r.accepts(*c, t.named == yes) {
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

// setup takes in which routes there are now. One that is new, or returns, is owed the newest change of every open
// event. One that returns after a day counts as new: what its filter decided about an event before may be forgotten.
func (t *truth) setup(s setup) {
	for _, r := range s.routes {
		if hasRoute(t.routes, r.name) {
			continue
		}
		gone, back := t.gone[r.name]
		if back && apart(gone, s.fact) > 23*time.Hour {
			t.each(func(b belief) belief { return b.undecided(r.name) })
		}
		for id, beliefs := range t.beliefs {
			for i, b := range beliefs {
				t.beliefs[id][i] = t.added(b, r, s.at-10*time.Second, s.at)
			}
		}
		delete(t.gone, r.name)
		t.came[r.name] = s.fact
	}
	for _, was := range t.routes {
		is, there := routeOf(s.routes, was.name)
		switch {
		case !there:
			t.gone[was.name] = s.fact
			t.each(func(b belief) belief { return b.perhapsWithout(was.name, s.at) })
		case is.anew != was.anew:
			t.each(func(b belief) belief { return t.perhapsOtherwise(b, is, s.at) })
		}
	}
	t.routes = s.routes
}

// perhapsOtherwise returns the belief after a route was set up in another way at a time: what was seen at that very
// moment the program may judge by either.
func (t *truth) perhapsOtherwise(b belief, r routePlan, at time.Duration) belief {
	for n, c := range b.changes {
		if c.at != at {
			continue
		}
		b = b.copy()
		b.changes[n].routes = maps.Clone(c.routes)
		b.changes[n].routes[r.name] = false
		b.accepted[r.name] = false
	}
	return b
}
