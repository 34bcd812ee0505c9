package bridge_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// A rulePlan is a rule of approval as an operator sets it up.
type rulePlan struct {
	types, sources, after []string
	wait                  time.Duration
	others                bool
}

// What an operator does, and what happens to the machine. These acts need a program that runs; while there is none,
// they are left out.

// reload sets the routes up anew.
type reload struct{ routes []string }

func (x reload) operate(p *process) {
	p.w.setRoutes(x.routes)
	p.reload(p.w.routes)
}

func (x reload) String() string { return "reload with " + strings.Join(x.routes, ", ") }

// replay makes all dead letters owed again.
type replay struct{}

func (replay) operate(p *process) {
	var keys []string
	for _, e := range p.entries() {
		if e.dead {
			keys = append(keys, e.key)
			p.w.noteHand("replay", e)
		}
	}
	p.replay(keys)
}

func (replay) String() string { return "replay all dead letters" }

// drop gives up one delivery, if there is any.
type drop struct{ which int }

func (x drop) operate(p *process) {
	list := p.entries()
	if len(list) == 0 {
		return
	}
	e := list[x.which%len(list)]
	p.w.noteHand("drop", e)
	p.drop([]string{e.key})
}

func (x drop) String() string { return fmt.Sprintf("drop delivery %d", x.which) }

// show shows an event to somebody.
type show struct{ id string }

func (x show) operate(p *process) {
	p.w.mu.Lock()
	event := p.w.azure.events[x.id]
	p.w.mu.Unlock()
	p.w.shown = shown{event, p.shown(x.id)}
}

func (x show) String() string { return fmt.Sprintf("show %s to somebody", name(x.id)) }

// approve approves by hand what was shown last.
type approve struct{}

func (x approve) operate(p *process) {
	p.w.noteHand("approve", entry{event: p.w.shown.event.id})
	p.approve(p.w.shown.event.id, p.w.shown.digest)
}

func (x approve) String() string { return "approve by hand what was shown" }

// A shown is an event as somebody saw it.
type shown struct {
	event  azureEvent
	digest string // what the program gives for it
}

// restart ends the program, and starts it again some time later.
type restart struct {
	crash  bool
	writes int           // the crash comes after so many more batches; 0 at once
	sooner bool          // just before the last of them
	off    time.Duration // until the next start
	step   time.Duration // of the clock meanwhile
}

func (x restart) operate(p *process) {
	var image any
	switch {
	case !x.crash:
		image = p.stop()
	case x.writes > 0:
		p.disk.mu.Lock()
		p.disk.crash, p.disk.sooner = x.writes, x.sooner
		p.disk.mu.Unlock()
		p.w.sleep(2 * time.Minute)
		image = p.kill()
	default:
		image = p.kill()
	}
	p.w.end(x, image)
}

func (x restart) String() string {
	how := "stop"
	if x.crash {
		how = "crash at once"
	}
	switch {
	case x.sooner && x.writes > 0:
		how = fmt.Sprintf("crash just before %d more batches are written", x.writes)
	case x.writes > 0:
		how = fmt.Sprintf("crash after %d more batches", x.writes)
	}
	if x.step != 0 {
		how += fmt.Sprintf(", clock off by %v more", x.step)
	}
	return fmt.Sprintf("%s, start again after %v", how, x.off)
}

// A hand is what an operator did to one delivery.
type hand struct {
	fact
	what             string
	sink, id, event_ string
	dead             bool
	shown            azureEvent // what was approved
}

// operatorSteps make up what operators do, and what becomes of the machine.
func operatorSteps(r *rand.Rand, routes []routePlan, events []step, length time.Duration) (steps []step) {
	add := func(a act) { steps = append(steps, step{during(r, length), a}) }
	for range r.IntN(4) {
		x := restart{crash: r.IntN(4) > 0, off: pick(r, time.Second, 20*time.Second, 5*time.Minute, 30*time.Minute)}
		if x.crash {
			x.writes, x.sooner = r.IntN(6), r.IntN(2) == 0
		}
		switch r.IntN(20) {
		case 0:
			x.off = 26 * time.Hour
		case 1, 2:
			x.step = pick(r, time.Hour, -time.Hour, -10*time.Minute, 48*time.Hour, -48*time.Hour)
		}
		add(x)
	}
	for range r.IntN(3) {
		add(reload{some(r, routes)})
	}
	if r.IntN(2) == 0 {
		add(replay{})
	}
	for range r.IntN(3) {
		add(drop{r.IntN(100)})
	}
	if at := r.IntN(len(events)); r.IntN(4) == 0 {
		if x, ok := events[at].act.(list); ok { // somebody hears of it, and thinks about it
			seen := events[at].at + during(r, time.Minute)
			steps = append(steps, step{seen, show{x.event.id}}, step{seen + during(r, 5*time.Minute), approve{}})
		}
	}
	return steps
}

// some are the names of some routes, the first always.
func some(r *rand.Rand, routes []routePlan) (names []string) {
	for i, p := range routes {
		if i == 0 || r.IntN(3) > 0 {
			names = append(names, p.name)
		}
	}
	return names
}

// someRules makes up rules of approval; most have none.
func someRules(r *rand.Rand, routes []routePlan) (rules []rulePlan) {
	if r.IntN(5) > 0 {
		return nil
	}
	x := rulePlan{
		types: []string{"Reboot", pick(r, "Freeze", "Redeploy")}, wait: pick(r, 0, 30*time.Second), others: r.IntN(2) == 0,
	}
	if r.IntN(3) == 0 {
		x.sources = []string{"User"}
	}
	for i, p := range routes {
		if i > 0 && r.IntN(3) == 0 {
			x.after = append(x.after, p.name)
		}
	}
	return append(rules, x)
}
