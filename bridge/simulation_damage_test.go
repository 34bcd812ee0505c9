package bridge_test

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A damage is what somebody does to the outbox's file while the program runs.
type damage struct{ how string }

// What somebody does to the file.
const (
	fileCut   = "cut, or filled with zeros"
	fileOlder = "overwritten with its copy"
	fileSaved = "copied" // which is no damage yet
)

func (x damage) String() string { return "the outbox's file is " + x.how }

func (x damage) do(w *world) {
	w.disk.damage(x.how)
	if x.how != fileSaved {
		w.damages = append(w.damages, w.fact())
	}
}

// damageSteps damages the file in some simulations, if nothing else takes what is on the disk away: then memory is all
// that is left.
func damageSteps(seed uint64, p plan) []step {
	r := rand.New(rand.NewPCG(seed, 7))
	also := slices.ContainsFunc(p.steps, func(s step) bool {
		how, restarts := s.act.(restart)
		_, troubled := s.act.(diskTrouble)
		return troubled || restarts && (how.crash || how.late > 0 || how.clone)
	})
	if r.IntN(4) > 0 || also || p.bounds != (bounds{}) {
		return nil
	}
	saved := during(r, p.length/2)
	steps := []step{{saved, damage{fileSaved}}}
	for range 1 + r.IntN(2) {
		steps = append(steps, step{saved + during(r, p.length/2), damage{pick(r, fileCut, fileOlder)}})
	}
	return steps
}

// damage does something to the file.
func (f *file) damage(how string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch how {
	case fileSaved:
		f.saved = f.buckets.clone()
	case fileOlder: // which the program reads, until it writes
		f.buckets, f.damaged = f.saved.clone(), true
	case fileCut:
		f.buckets, f.damaged, f.unreadable = buckets{}, true, true
	}
}

// damaged reports whether the file was damaged in a time.
func (o *oracle) damaged(from, to time.Duration) bool {
	return slices.ContainsFunc(o.damages, func(d fact) bool { return from <= d.at && d.at <= to })
}

// replacedByLatest reports whether the file lost a change that was pending for a route, and the route was told a later one
// of the event instead, or had that as a dead letter.
func (o *oracle) replacedByLatest(b belief, i int, route string, told []taken) bool {
	later := b.changes[i+1:]
	isTold := slices.ContainsFunc(told, func(t taken) bool {
		isLater := slices.ContainsFunc(later, func(c change) bool { return c.id == t.id })
		return isLater && o.damaged(b.changes[i].at, t.at)
	})
	wasDead := slices.ContainsFunc(later, func(c change) bool {
		return o.isLeft(route, c.id) || o.hand("drop", route, c.id) || o.hand("take away", route, c.id)
	})
	return isTold || wasDead && o.damaged(b.changes[i].at, forever)
}

// mayLose reports whether a delivery may be a dead letter because its CloudEvent is lost: its event is over, its
// destination acts, or somebody gave up the latest change that it would be told instead. What is about no event is never
// lost.
func (o *oracle) mayLose(e entry) bool {
	acts := slices.ContainsFunc(o.ways(e.sink, 0, forever), func(r routePlan) bool { return r.late == "drop" })
	over := o.anyChange(e.event, func(c change) bool { return c.kind == "vanished" })
	return len(o.damages) > 0 && e.event != "" && (acts || over || len(o.hands) > 0)
}
