package bridge_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A mutePlan is what an operator wants to be held back.
type mutePlan struct {
	sink   string   // "" for all
	people bool     // of all, only those for people
	vm     string   // one of vmPatterns; "" for any
	types  []string // nil for all but Preempt and Terminate
	lasts  time.Duration
}

// sinksForPeople are the names of the sinks for people, which they have whatever an operator changes.
var sinksForPeople = []string{"chat", "mail"}

// vmPatterns are the patterns that operators write, and which VMs each means.
var vmPatterns = map[string][]string{"vm-0": {"vm-0"}, "VM-*": {"vm-0", "vm-1"}, "vm-[1-9]": {"vm-1"}, "*-0": {"vm-0"}}

// covers reports whether the mute is about what a sink is told: of an event of this type that names these VMs, or of
// the bridge itself, which is neither.
func (x mutePlan) covers(sink, kind string, vms []string) bool {
	named := slices.ContainsFunc(x.types, func(s string) bool { return strings.EqualFold(s, kind) })
	passes := kind == "Preempt" || kind == "Terminate"
	if x.people && !slices.Contains(sinksForPeople, sink) {
		return false
	}
	if x.sink != "" && x.sink != sink || len(x.types) > 0 && !named || len(x.types) == 0 && passes {
		return false
	}
	return x.vm == "" || len(vms) > 0 && !slices.ContainsFunc(vms, func(vm string) bool {
		return !slices.Contains(vmPatterns[x.vm], strings.ToLower(vm))
	})
}

func (x mutePlan) String() string { return code(reflect.ValueOf(x)) }

// A muting is a mute that somebody asked for, and what became of it.
type muting struct {
	mutePlan
	asked, answered fact // no seq: the machine died before it was answered
	id, why         string
	ends            []*unmuting
	sure, maybe     []interval // when it held back what it covers: for sure, and perhaps
}

// An unmuting is when somebody wanted a mute to end.
type unmuting struct{ asked, answered fact }

// A listing is which mutes the program says that it has.
type listing struct {
	fact
	ids []string
}

// Who mutes, and who ends that.
const muter, unmuter = "alice", "bob"

// mute has something held back. A sink that is not set up can't be muted.
type mute struct{ mutePlan }

func (x mute) operate(p *process) {
	w := p.w
	w.mu.Lock()
	if w.dead || x.sink != "" && !hasRoute(w.routes, x.sink) {
		w.mu.Unlock()
		return
	}
	m := &muting{mutePlan: x.mutePlan, asked: w.fact(), why: fmt.Sprintf("reason %d", len(w.mutes)+1)}
	w.mutes = append(w.mutes, m)
	w.mu.Unlock()
	id := p.mute(x.mutePlan, m.why)
	w.mu.Lock()
	m.id = id
	if !w.dead {
		m.answered = w.fact()
	}
	w.mu.Unlock()
	w.list(p)
}

// unmute ends one of the mutes that the program lists, or all of them.
type unmute struct {
	which int
	all   bool
}

func (x unmute) operate(p *process) {
	w := p.w
	ids := w.list(p)
	if len(ids) == 0 {
		return
	}
	if !x.all {
		ids = ids[x.which%len(ids):][:1]
	}
	w.mu.Lock()
	u := &unmuting{asked: w.fact()}
	for _, m := range w.mutes {
		if slices.Contains(ids, m.id) {
			m.ends = append(m.ends, u)
		}
	}
	w.mu.Unlock()
	if x.all {
		ids = nil
	}
	if _, err := p.bridge.Unmute(ids, x.all, unmuter); err != nil {
		w.log.Info("cannot unmute", "err", err)
	}
	w.mu.Lock()
	if !w.dead {
		u.answered = w.fact()
	}
	w.mu.Unlock()
	w.list(p)
}

// list notes which mutes the program has.
func (w *world) list(p *process) (ids []string) {
	for _, m := range p.bridge.Mutes() {
		ids = append(ids, m.ID)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.dead {
		w.listings = append(w.listings, listing{w.fact(), ids})
	}
	return ids
}

// muteSteps make up what operators mute. They have random numbers of their own, so that the other steps of a seed stay
// what they were.
func muteSteps(seed uint64, routes []routePlan, length time.Duration) (steps []step) {
	r, whom := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
	if r.IntN(3) > 0 {
		return nil
	}
	for range 1 + r.IntN(3) {
		x := mutePlan{lasts: pick(r, 90*time.Second, 7*time.Minute, 20*time.Minute, 3*time.Hour)}
		if r.IntN(3) > 0 {
			x.sink = routes[r.IntN(len(routes))].name
		}
		x.people = x.sink == "" && whom.IntN(2) == 0
		if r.IntN(3) == 0 {
			x.vm = pick(r, slices.Sorted(maps.Keys(vmPatterns))...)
		}
		if r.IntN(3) == 0 {
			x.types = pick(r, []string{"reboot"}, []string{"Reboot", "Freeze", "Redeploy"}, []string{"Preempt", "terminate"})
		}
		at := during(r, length)
		steps = append(steps, step{at, mute{x}})
		then := at + during(r, min(x.lasts, length))
		if r.IntN(3) == 0 { // it is to last longer
			x.lasts *= 2
			steps = append(steps, step{then, mute{x}})
		}
		if r.IntN(2) == 0 {
			steps = append(steps, step{then + during(r, x.lasts), unmute{r.IntN(3), r.IntN(3) == 0}})
		}
		if r.IntN(3) == 0 {
			steps = append(steps, step{then + during(r, x.lasts), restart{
				crash: r.IntN(2) == 0, off: pick(r, time.Second, 5*time.Minute, 30*time.Minute),
				step: pick(r, 0, 0, -10*time.Minute, -time.Hour, time.Hour),
			}})
		}
		if r.IntN(6) == 0 { // just when it is answered, or when it ends
			moment := pick(r, at, at+x.lasts) - 100*time.Millisecond
			crash := restart{crash: true, writes: 1 + r.IntN(3), sooner: r.IntN(2) == 0, off: 20 * time.Second}
			steps = append(steps, step{moment, crash})
		}
	}
	return slices.DeleteFunc(steps, func(s step) bool { return s.at > length })
}

const forever = time.Duration(math.MaxInt64)

// slack returns how long the program may take to notice that a mute is over: a turn of its housekeeping, and the disk.
func (w *world) slack(at time.Duration) time.Duration {
	if w.ill(at-10*time.Second, at+10*time.Second) {
		return 15 * time.Second
	}
	return 2 * time.Second
}

// workOutMutes works out when each mute held something back. It ends by the machine's clock, by hand, or with its sink.
// A clock that is set back to before it began has it begin anew. What was not on the disk for sure may be undone by the
// next start, and a file that comes late, or is another machine's, has it perhaps.
func (w *world) workOutMutes() {
	for _, m := range w.mutes {
		since, certain := m.asked.clock.Round(0), m.answered.seq > 0
		early, late := since.Add(m.lasts), since.Add(m.lasts+10*time.Second)
		if certain {
			late = m.answered.clock.Round(0).Add(m.lasts)
		}
		for n := m.asked.boot; n < len(w.boots); n++ {
			b := w.boots[n]
			from, sureFrom, to, clock := b.began.at, b.began.at, b.ended.at, b.began.clock.Round(0)
			if n == m.asked.boot {
				from, sureFrom = m.asked.at, m.answered.at
			} else {
				certain = certain && w.keepsFile(n)
				if clock.Before(since) {
					since, early = clock, clock.Add(m.lasts)
					if b.late == 0 {
						late = early.Add(time.Second)
					}
				}
				if b.late > 0 {
					sureFrom = forever
					if taken := w.takenUp(b); taken.seq > 0 {
						sureFrom = taken.at + 2*time.Second
					}
				}
			}
			sureTo := max(from, b.began.at+early.Sub(clock)) // to is in true time
			maybeTo := max(from, b.began.at+late.Sub(clock))
			if b.late > 0 && sureFrom < forever {
				maybeTo = max(maybeTo, sureFrom)
			}
			maybeTo += w.slack(maybeTo)
			end := func(from, answered fact) {
				sureTo = min(sureTo, from.at)
				if answered.seq > 0 {
					maybeTo = min(maybeTo, answered.at+w.slack(answered.at))
				}
			}
			for _, u := range m.ends {
				if u.asked.boot == n {
					end(u.asked, u.answered)
				}
			}
			for _, s := range w.setups {
				if s.boot == n && s.seq > m.asked.seq && m.sink != "" && !hasRoute(s.routes, m.sink) {
					end(s.fact, s.fact)
				}
			}
			if certain && sureFrom < min(sureTo, to) {
				m.sure = append(m.sure, interval{sureFrom, min(sureTo, to)})
			}
			m.maybe = append(m.maybe, interval{from, min(maybeTo, to)})
			if maybeTo < to && !w.ill(sureTo-10*time.Second, to) {
				break // and that is on the disk
			}
			certain = certain && sureTo > to && !w.ill(from-10*time.Second, to)
		}
	}
}

// keepsFile reports whether a boot certainly goes on with the file that the one before it wrote. A clone that crashed
// before it knew which machine it is left its own in that of the other, which the next boot sets aside.
func (w *world) keepsFile(n int) bool {
	vm := w.boots[n].vm
	return vm == w.boots[n-1].vm && (vm == 0 || slices.ContainsFunc(w.boots[:n], func(b *boot) bool {
		return b.vm == vm && b.learned.seq > 0
	}))
}
