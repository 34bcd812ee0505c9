package bridge_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// truth works out the beliefs of each event.
type truth struct {
	w       *world
	beliefs map[string][]belief
	routes  []routePlan
	gone    map[string]fact // routes that are not set up, and since when
	came    map[string]fact // routes that came, or returned, while the program ran, and when they last did
	empty   bool            // the last answer was empty
	version int             // of the document last taken in, in this run of the program
	valid   time.Duration   // when the last valid answer came, in this run of the program; below 0 for none
	doubt   bool            // that may not have been the poll loop's
	away    *bool           // for the changes that the answer shows

	boot   *boot  // this run of the program
	named  known  // its VM's name
	stored known  // that it is on the disk
	any    known  // whether it has decided about a document
	kept   known  // that this is on the disk
	owners []int  // the machines of which one is that whose the file on the disk is; -1 is nobody
	before func() // takes that back to what it was when this run of the program began
}

// known reports whether the program knows something.
type known int

const (
	no known = iota
	maybe
	yes
)

func truthOf(w *world) map[string][]belief {
	t := truth{
		w: w, beliefs: map[string][]belief{}, version: -1, valid: -1, gone: map[string]fact{}, came: map[string]fact{},
		owners: []int{-1},
	}
	type moment struct {
		seq  int
		take func()
	}
	var moments []moment
	note := func(f fact, take func()) {
		if f.seq > 0 {
			moments = append(moments, moment{f.seq, take})
		}
	}
	for _, b := range w.boots {
		note(b.began, func() { t.begin(b) })
		note(b.learned, func() { t.learn(b) })
		note(t.w.takenUp(b), t.load)
		note(b.ended, func() { t.end(b) })
	}
	for _, s := range w.setups {
		note(s.fact, func() { t.setup(s) })
	}
	had := map[int]bool{} // runs of the program that had a valid answer
	for i, a := range w.answers {
		f := a.fact
		valid := a.what == "document" || a.what == "empty" && i > 0 && w.answers[i-1].what == "empty"
		first := valid && a.polled && !had[a.boot]
		if first {
			had[a.boot] = true
			f = w.decided(a)
		}
		note(f, func() { t.answer(a, first) })
	}
	slices.SortStableFunc(moments, func(a, b moment) int { return a.seq - b.seq })
	for _, m := range moments {
		m.take()
	}
	return t.beliefs
}

// begin takes in how a run of the program begins. One whose file comes late knows nothing yet.
func (t *truth) begin(b *boot) {
	stored, kept, owners := t.stored, t.kept, t.owners
	t.before = func() { t.stored, t.kept, t.owners = stored, kept, owners }
	var unsure []string // routes of whose coming the file may not know
	for name, f := range t.came {
		if t.writes(f) == maybe {
			unsure = append(unsure, name)
		}
	}
	t.boot, t.named, t.any = b, t.stored, t.kept
	t.each(belief.anyhow)
	if b.late == 0 {
		return
	}
	t.named, t.any = no, no
	t.each(func(b belief) belief {
		for _, name := range unsure {
			b = b.perhapsNotAdded(name)
		}
		return belief{times: map[string]int{}, accepted: map[string]bool{}, changes: b.changes, kept: &b}
	})
}

// learn takes in that the program was told which VM it runs on. If that is not the one whose the file is, all in it
// counts no more; but what it saw while the file had not come stays.
func (t *truth) learn(b *boot) {
	isOthers := func(vm int) bool { return vm >= 0 && vm != b.vm }
	mine := slices.DeleteFunc(slices.Clone(t.owners), isOthers)
	mayBeMine, isMine := len(mine) > 0, len(mine) == len(t.owners)
	t.named, t.stored = yes, t.writes(b.learned)
	if t.stored == yes {
		t.owners = nil
	}
	t.owners = append(slices.Clone(t.owners), b.vm)
	if isMine || b.late > 0 && b.loaded.seq == 0 {
		return
	}
	// Its file was not taken up yet, and is set aside instead; or it was, just then.
	early := t.w.takenUp(b).seq >= b.learned.seq
	atOnce := early && b.learned.at+10*time.Millisecond >= b.loaded.at+10*time.Second
	if !early || atOnce {
		t.version, t.valid, t.doubt = -1, -1, mayBeMine || atOnce
	}
	for id, beliefs := range t.beliefs {
		var after []belief
		for _, old := range beliefs {
			if mayBeMine {
				after = append(after, old)
			}
			if early {
				after = append(after, old.withoutFile(b.vm))
			}
			if !early || atOnce {
				after = append(after, old.without(b.vm))
			}
		}
		t.beliefs[id] = distinct(after)
	}
}

// without returns the belief of a program on a machine that has forgotten everything, because it was another's.
func (b belief) without(vm int) belief {
	fresh := belief{times: map[string]int{}, accepted: map[string]bool{}, changes: slices.Clone(b.changes)}
	markTheirs(fresh.changes, vm)
	return fresh
}

// withoutFile returns the belief of a program on a machine that has set aside a file that came late, because it was
// another's.
func (b belief) withoutFile(vm int) belief {
	if b.kept == nil { // it is in no file
		return b
	}
	fresh := b.copy()
	fresh.kept = nil
	markTheirs(fresh.changes[:len(b.kept.changes)], vm)
	return fresh
}

// markTheirs notes that a machine has forgotten changes.
func markTheirs(changes []change, vm int) {
	for i := range changes {
		changes[i].theirs = cmp.Or(changes[i].theirs, vm)
	}
}

// writes says whether what this run of the program wrote was on the disk when it ended.
func (t *truth) writes(f fact) known {
	end := t.boot.ended
	if end.seq > 0 && (t.boot.how.crash && end.at-f.at < 10*time.Second || t.w.ill(f.at, end.at)) {
		return maybe
	}
	return yes
}

// load takes in that the file came. What the program has seen of an event since it began counts more.
func (t *truth) load() {
	t.version, t.named, t.any = -1, max(t.named, t.stored), max(t.any, t.kept)
	t.each(func(b belief) belief {
		if b.kept == nil {
			return b.anyhow()
		}
		file := b.kept
		merged := file.anyhow().copy()
		merged.changes, merged.before = b.changes, b.before
		merged.late = merged.seen != nil
		if len(b.changes) > len(file.changes) {
			merged.seen, merged.lives, merged.late = b.seen, max(b.lives, merged.lives), false
			for id, n := range b.times {
				merged.times[id] = max(merged.times[id], n)
			}
			if ended := func(c change) bool { return c.kind == "vanished" }; file.seen == nil ||
				slices.ContainsFunc(b.changes[len(file.changes):], ended) { // this is another life
				clear(merged.accepted)
				if b.seen != nil {
					merged.lives, merged.former = b.lives, merged.lives
				}
			}
			for r, sure := range b.accepted {
				merged.accepted[r] = merged.accepted[r] || sure
			}
		}
		return merged
	})
}

// each replaces every belief.
func (t *truth) each(by func(belief) belief) {
	for _, beliefs := range t.beliefs {
		for i, b := range beliefs {
			beliefs[i] = by(b)
		}
	}
}

// answer takes in what the endpoint served; first is the first valid answer of this run of the program.
func (t *truth) answer(a *answer, first bool) {
	if !a.polled {
		return
	}
	empty := t.empty
	t.empty = a.what == "empty"
	listed := a.events
	t.away = nil
	unsure := a.turned == 0 // the program ended just then
	counts := a.what == "document" || a.what == "empty" && empty
	if t.valid < 0 && counts && a.turned-a.at > t.w.plan.interval {
		if !t.w.ill(a.at, a.turned) {
			return // waiting for the name took long, so it is asked again
		}
		unsure = true
	}
	learns := !first && t.learns(a)
	if named := t.named; learns {
		t.named = maybe
		defer func() { t.named = named }()
	}
	waits, still := no, false
	if counts {
		waits, still = t.waits(a)
		if waits == yes {
			return
		}
		still = still && !learns
		t.decides(a, unsure || waits == maybe)
	}
	unclear := unsure || waits == maybe
	if valid := a.what == "document" || a.what == "unchanged" || a.what == "empty" && empty; valid {
		away := t.valid < 0 || a.at-t.valid > time.Minute
		if !unclear && !t.doubt {
			t.away = &away
		}
		t.valid, t.doubt = a.at, unclear // or was too old when it was looked at
	}
	switch {
	case a.what == "empty" && empty: // it lists nothing
	case a.what != "document", a.version == t.version:
		return
	}
	if a.what == "document" && !a.partial && !unclear {
		t.version = a.version
	}
	if a.what == "empty" || a.partial { // the next document is another one, whatever it lists
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
			for i := range beliefs {
				beliefs[i].hidden = beliefs[i].hidden || t.away == nil || *t.away
			}
			continue
		}
		var after []belief
		news := false
		for _, b := range beliefs {
			next, changed := t.next(b, now, a)
			news = news || changed || b.late
			switch mayWait := changed && waits == maybe && (b.waits == nil || *b.waits); {
			case mayWait && b.waits != nil && still:
				after = append(after, b)
			case mayWait:
				next.waits, b.waits = new(false), new(true)
				after = append(after, next, b)
			case changed && unsure:
				after = append(after, next, b)
			default:
				after = append(after, next)
			}
		}
		if news { // to compare them takes most of the time where there are thousands of events
			after = distinct(after)
		}
		t.beliefs[id] = after
	}
}

// learns reports whether the program may have learned its VM's name just when it decided about an answer, or take up a
// file that has it.
func (t *truth) learns(a *answer) bool {
	const just = 10 * time.Millisecond
	from, until := t.boot.learned.at-just, t.boot.learned.at+just
	if t.w.ill(from, a.at) {
		until += 11 * time.Second
	}
	if t.boot.learned.seq > 0 && from <= a.at && a.at <= until {
		return true
	}
	taken := t.w.takenUp(t.boot) // at the latest
	return t.boot.loaded.seq > 0 && t.boot.loaded.at-just <= a.at && (taken.seq == 0 || a.at <= taken.at+just)
}

// waits says whether the program decides about nothing in an answer, because it waits for its VM's name; still, that all
// which is not known of that was not known when this run of the program began.
func (t *truth) waits(a *answer) (waits known, still bool) {
	since, urgent := a.at-t.boot.began.at, no
	for _, e := range a.events {
		urgent = max(urgent, e.urgent(a.clock))
	}
	useless := slices.ContainsFunc(t.w.plan.steps, func(s step) bool { // the program may know early that it won't come
		x, ok := s.act.(instanceTrouble)
		return ok && slices.Contains([]string{"400", "404", "names nobody"}, x.how)
	})
	switch {
	case t.named == yes, t.any == yes, urgent == yes, since > 61*time.Second:
		return no, true
	case urgent == maybe, since >= 59*time.Second, useless, a.partial, a.doubtful:
		return maybe, false
	case t.named == maybe, t.any == maybe:
		return maybe, true
	}
	return yes, true
}

// decides takes in that the program decides about an answer.
func (t *truth) decides(a *answer, unsure bool) {
	sure := yes
	if unsure {
		sure = maybe
	}
	if t.any < sure {
		t.any, t.kept = sure, max(t.kept, min(sure, t.writes(a.fact)))
	}
}

// urgent says whether an event is a Preempt, has begun, or begins within 15 minutes by the machine's clock.
func (e azureEvent) urgent(clock time.Time) known {
	left := e.notBeforeTime().Sub(clock) - 15*time.Minute
	switch {
	case e.kind == "Preempt", e.status == "Started", e.notBefore < 0, left < -time.Second:
		return yes
	case left < time.Second:
		return maybe
	}
	return no
}

// next returns the belief after an answer that shows the event as it is now; nil when it does not.
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
	case !now.is(*b.seen):
		kind = "updated"
	}
	away := t.away
	if b.hidden { // it may have gone then
		away, b.hidden = nil, false
	}
	if b.late {
		away, b.late = new(true), false
	}
	if kind == "" {
		return b, false
	}
	after = b.copy()
	after.before = append(slices.Clone(b.before), checkpoint{a, b, len(b.changes), t.routes})
	c := change{fact: a.fact, kind: kind, first: b.seen == nil, away: away, routes: map[string]bool{}}
	if now != nil {
		c.event = *now
	} else {
		c.event = *b.seen
	}
	if b.seen == nil {
		after.lives = max(after.lives, after.former) + 1
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
		t.address(r, &c, after.accepted)
	}
	for name := range t.gone {
		_, accepted := after.accepted[name]
		if accepted {
			c.orphans = append(c.orphans, name)
		}
	}
	after.changes = append(after.changes, c)
	after.seen = now
	return after, true
}

// end takes in how a run of the program ended: what is not on the disk for sure may be forgotten.
func (t *truth) end(e *boot) {
	t.version, t.empty, t.valid = -1, false, -1
	if e.late > 0 && e.loaded.seq == 0 { // what was learned is lost with it
		t.before()
	}
	for id, beliefs := range t.beliefs {
		var after []belief
		for _, b := range beliefs {
			points := b.before
			b.before = nil
			if file := b.kept; file != nil { // it never came, so nothing was written
				back := file.copy()
				back.changes, back.before = b.changes, nil
				for i := range back.changes[len(file.changes):] {
					back.changes[len(file.changes)+i].lost = true
				}
				after = append(after, back)
				continue
			}
			after = append(after, b)
			for _, p := range points {
				if t.onDisk(p.answer, e) {
					continue
				}
				back := p.belief.copy()
				back.before = nil
				if back.kept != nil { // it came, and what was seen before that may not have reached it
					back = back.kept.copy()
					back.before, back.changes = nil, slices.Clone(b.changes[:p.changes])
				}
				for _, r := range t.routes { // those that came since then are new once more
					if !hasRoute(p.routes, r.name) {
						back = t.added(back, r, e.ended.at, math.MaxInt64)
					}
				}
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

// onDisk reports whether the changes of an answer were certainly on disk when the program ended.
func (t *truth) onDisk(a *answer, e *boot) bool {
	if !e.how.crash && !t.w.ill(e.ended.at-10*time.Second, e.ended.at) {
		return true
	}
	for _, next := range t.w.answers { // the poll loop asks again when it has committed the last answer
		if next.boot != a.boot || next.asked < a.seq || !next.polled {
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
