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
	id     string // of its CloudEvent
	kind   string
	event  azureEvent
	first  bool            // nothing of the event was told before
	routes map[string]bool // that are owed it; false if they may be told and need not
	lost   bool            // a crash made the program forget it
	away   *bool           // it was found after nobody had watched for a while; nil if that is not known
}

// A belief is what the program may hold of one event.
type belief struct {
	seen     *azureEvent // as it was last seen; nil when it is not open
	lives    int
	times    map[string]int  // how often each id was used, without its -rN
	accepted map[string]bool // routes whose filter has accepted this life of it
	changes  []change
	before   []checkpoint // what a crash may take it back to
}

// A checkpoint is a belief before a change of which it is not known yet that the disk has it.
type checkpoint struct {
	answer  *answer
	belief  belief
	changes int // how many there were
}

// copy is one that may be changed.
func (b belief) copy() belief {
	b.times, b.accepted, b.changes = maps.Clone(b.times), maps.Clone(b.accepted), slices.Clone(b.changes)
	return b
}

// key is the same for beliefs that make no difference.
func (b belief) key() string {
	var s strings.Builder
	fmt.Fprint(&s, b.seen != nil, b.lives, b.times, b.accepted, len(b.before))
	if b.seen != nil {
		fmt.Fprint(&s, *b.seen)
	}
	for _, c := range b.changes {
		fmt.Fprint(&s, c.id, c.seq, c.lost, c.routes)
	}
	return s.String()
}

// truth works out the beliefs of each event.
type truth struct {
	w       *world
	beliefs map[string][]belief
	routes  []routePlan
	gone    map[string]time.Duration // routes that are not set up, and since when
	empty   bool                     // the last answer was empty
	version int                      // of the document last taken in, in this run of the program
	valid   time.Duration            // when the last valid answer came, in this run of the program; below 0 for none
	away    *bool                    // for the changes that the answer shows
}

func truthOf(w *world) map[string][]belief {
	t := truth{w: w, beliefs: map[string][]belief{}, version: -1, valid: -1, gone: map[string]time.Duration{}}
	setups, boots := w.setups, w.boots
	for _, a := range w.answers {
		for {
			switch {
			case len(boots) > 0 && boots[0].ended.seq < a.seq && (len(setups) == 0 || boots[0].ended.seq < setups[0].seq):
				t.end(boots[0])
				boots = boots[1:]
				continue
			case len(setups) > 0 && setups[0].seq < a.seq:
				t.setup(setups[0])
				setups = setups[1:]
				continue
			}
			break
		}
		t.answer(a)
	}
	return t.beliefs
}

// answer takes in what the endpoint served.
func (t *truth) answer(a *answer) {
	if a.asker == approver {
		return
	}
	empty := t.empty
	t.empty = a.what == "empty"
	listed := a.events
	t.away = nil
	if valid := a.what == "document" || a.what == "unchanged" || a.what == "empty" && empty; valid {
		if away := t.valid < 0 || a.at-t.valid > time.Minute; a.asker == poller {
			t.away = &away
		}
		t.valid = a.at
	}
	switch {
	case a.what == "empty" && empty:
		listed = nil
	case a.what != "document", a.version == t.version:
		return
	}
	unsure := a.asker == perhaps
	if a.what == "document" && !a.partial && !unsure {
		t.version = a.version
	}
	if a.what == "empty" {
		t.version = -1
	}
	for id := range listed {
		if t.beliefs[id] == nil {
			t.beliefs[id] = []belief{{times: map[string]int{}, accepted: map[string]bool{}}}
		}
	}
	for id, beliefs := range t.beliefs {
		var now *azureEvent
		if e, ok := listed[id]; ok {
			now = &e
		} else if a.partial {
			continue
		}
		var after []belief
		for _, b := range beliefs {
			next, changed := t.next(b, now, a)
			after = append(after, next)
			if changed && unsure {
				after = append(after, b)
			}
		}
		t.beliefs[id] = distinct(after)
	}
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

// next is the belief after an answer that shows the event as it is now; nil when it does not.
func (t *truth) next(b belief, now *azureEvent, a *answer) (after belief, changed bool) {
	kind := ""
	switch {
	case now == nil && b.seen == nil:
	case now == nil:
		kind = "vanished"
	case b.seen == nil && now.status == "Started", b.seen != nil && now.status == "Started" && b.seen.status != "Started":
		kind = "started"
	case b.seen == nil:
		kind = "scheduled"
	case *now != *b.seen:
		kind = "updated"
	}
	if kind == "" {
		return b, false
	}
	after = b.copy()
	after.before = append(slices.Clone(b.before), checkpoint{a, b, len(b.changes)})
	c := change{fact: a.fact, kind: kind, first: b.seen == nil, away: t.away, routes: map[string]bool{}}
	if now != nil {
		c.event = *now
	} else {
		c.event = *b.seen
	}
	if b.seen == nil {
		after.lives++
		after.accepted = map[string]bool{}
	}
	base := c.event.id + "-" + kind
	if kind == "updated" {
		base += "-" + hash(c.event)
	}
	after.times[base] = max(after.lives, after.times[base]+1)
	c.id = base
	if n := after.times[base]; n > 1 {
		c.id = fmt.Sprintf("%s-r%d", base, n)
	}
	for _, r := range t.routes {
		if after.accepted[r.name] || r.accepts(c.event) {
			after.accepted[r.name] = true
			if r.hears(c) {
				c.routes[r.name] = true
			}
		}
	}
	after.changes = append(after.changes, c)
	after.seen = now
	return after, true
}

// hash is that of an event's content, as the contract has it.
func hash(e azureEvent) string {
	f := e.fields()
	if e.notBefore >= 0 {
		f["NotBefore"] = e.notBeforeTime().Truncate(time.Second).Format(time.RFC3339)
	}
	sum := sha256.Sum256(mustJSON(f))
	return hex.EncodeToString(sum[:])[:8]
}

// accepts says whether the route's filter wants the event.
func (r routePlan) accepts(e azureEvent) bool {
	self := func(vm string) bool { return strings.EqualFold(vm, "vm-0") }
	vms := e.resources()
	known := func(list []string, v string) bool { return slices.Contains(list, v) }
	switch {
	case len(vms) > 0 && r.vms == "self" && !slices.ContainsFunc(vms, self),
		len(vms) > 0 && r.vms == "leader" && !self(vms[0]),
		len(r.types) > 0 && known(azureTypes, e.kind) && !known(r.types, e.kind),
		len(r.sources) > 0 && e.source != "" && !known(r.sources, e.source):
		return false
	}
	return true
}

var azureTypes = []string{"Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"}

// hears says whether the route wants this very change of an event that it wants.
func (r routePlan) hears(c change) bool {
	return len(r.changes) == 0 || slices.Contains(r.changes, c.kind) || c.first && slices.Contains(r.changes, "first")
}

// setup takes in which routes there are now. One that is new, or returns, is owed the newest change of every open
// event.
func (t *truth) setup(s setup) {
	for _, r := range s.routes {
		if slices.ContainsFunc(t.routes, func(was routePlan) bool { return was.name == r.name }) {
			continue
		}
		for id, beliefs := range t.beliefs {
			for i, b := range beliefs {
				t.beliefs[id][i] = b.added(r)
			}
		}
		delete(t.gone, r.name)
	}
	for _, was := range t.routes {
		if !slices.ContainsFunc(s.routes, func(r routePlan) bool { return r.name == was.name }) {
			t.gone[was.name] = s.at
		}
	}
	t.routes = s.routes
}

// added is the belief after a route was added.
func (b belief) added(r routePlan) belief {
	n := len(b.changes) - 1
	if b.seen == nil || n < 0 || !b.accepted[r.name] && !r.accepts(b.changes[n].event) {
		return b
	}
	b = b.copy()
	b.accepted[r.name] = true
	c := &b.changes[n]
	if _, owed := c.routes[r.name]; !owed && r.hears(*c) {
		c.routes = maps.Clone(c.routes)
		c.routes[r.name] = true
	}
	return b
}

// end takes in how a run of the program ended: what is not on the disk for sure may be forgotten.
func (t *truth) end(e *boot) {
	t.version, t.empty, t.valid = -1, false, -1
	for id, beliefs := range t.beliefs {
		var after []belief
		for _, b := range beliefs {
			points := b.before
			b.before = nil
			after = append(after, b)
			for _, p := range points {
				if t.onDisk(p.answer, e) {
					continue
				}
				back := p.belief.copy()
				back.before = nil
				for _, c := range b.changes[p.changes:] {
					c.lost = true
					back.changes = append(back.changes, c)
				}
				after = append(after, back)
			}
		}
		t.beliefs[id] = distinct(after)
	}
}

// onDisk says whether what an answer changed was on the disk for sure when the program ended.
func (t *truth) onDisk(a *answer, e *boot) bool {
	if !e.how.crash && !t.w.ill(e.ended.at-10*time.Second, e.ended.at) {
		return true
	}
	for _, next := range t.w.answers { // the poll loop asks again when it has committed the last answer
		if next.boot != a.boot || next.asked < a.seq || next.asker != poller {
			continue
		}
		if !t.w.ill(a.at, next.at) {
			return true
		}
		for _, x := range t.w.writes {
			if x.boot == a.boot && x.began > next.asked {
				return true
			}
		}
		return false
	}
	return false
}

// ill says whether the disk had trouble in a time.
func (w *world) ill(from, to time.Duration) bool {
	return slices.ContainsFunc(w.ills, func(i interval) bool { return i.meets(from, to) })
}
