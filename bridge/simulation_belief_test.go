package bridge_test

import (
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
