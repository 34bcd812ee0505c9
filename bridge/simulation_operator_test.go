package bridge_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"forewarn/bridge/outbox"
)

// A rulePlan is a rule of approval as an operator sets it up.
type rulePlan struct {
	types, sources, after []string
	wait                  time.Duration
	others                bool
}

// What an operator does, and what happens to the machine. These acts need a program that runs; while there is none,
// they are left out.

// reload sets the routes and rules up anew.
type reload struct {
	routes  []string      // that there are now; nil for all
	changes []routeChange // what is set up in another way from now on
	rules   []rulePlan    // nil for those that there were
}

// A routeChange is what an operator writes in another way of a route.
type routeChange struct {
	route, what string
	apply       func(r *routePlan)
}

func (x reload) operate(p *process) {
	w := p.w
	w.mu.Lock()
	for i := range w.settings {
		r := &w.settings[i]
		for _, c := range x.changes {
			if c.route == r.name {
				r.anew++
				c.apply(r)
			}
		}
	}
	if x.rules != nil {
		w.rules = x.rules
	}
	w.mu.Unlock()
	w.setRoutes(x.routes)
	p.reload()
}

// replay makes the dead letters of all routes that there are owed again, or to another route those of all that ever were.
type replay struct{ to string }

func (x replay) operate(p *process) {
	if x.to != "" && !hasRoute(p.w.routes, x.to) {
		return
	}
	var keys []string
	for _, e := range p.entries() {
		if e.State != outbox.StateDead || x.to == "" && !hasRoute(p.w.routes, e.Route) {
			continue
		}
		keys = append(keys, e.Key)
		to := cmp.Or(x.to, e.Route)
		if to != e.Route {
			p.w.noteHand("take away", e.Route, e.ID, e.Group)
		}
		p.w.noteHand("replay", to, e.ID, e.Group)
	}
	to := x.to
	if p.w.variant.strays {
		to = ""
	}
	replayed, err := p.bridge.Replay(keys, to, "the operator")
	if len(replayed) != len(keys) { // what the disk makes of that is another matter
		panic(err)
	}
}

// replaySteps make up replays to another sink. They have random numbers of their own, as muteSteps do.
func replaySteps(seed uint64, routes []routePlan, length time.Duration) (steps []step) {
	r := rand.New(rand.NewPCG(seed, 4))
	if r.IntN(3) == 0 {
		for range 1 + r.IntN(2) {
			steps = append(steps, step{during(r, length), replay{routes[r.IntN(len(routes))].name}})
		}
	}
	return steps
}

// drop drops one delivery, if there is any.
type drop struct{ which int }

func (x drop) operate(p *process) {
	list := p.entries()
	if len(list) == 0 {
		return
	}
	e := list[x.which%len(list)]
	p.w.noteHand("drop", e.Route, e.ID, e.Group)
	p.bridge.Drop([]string{e.Key}, "the operator")
}

// show shows an event to somebody.
type show struct{ id string }

func (x show) operate(p *process) {
	p.w.mu.Lock()
	event := p.w.azure.events[x.id]
	p.w.mu.Unlock()
	p.w.shown = shown{event, p.shown(x.id)}
}

// approve approves by hand what was shown last.
type approve struct{}

func (x approve) operate(p *process) {
	id, digest := p.w.shown.event.id, p.w.shown.digest
	p.w.noteHand("approve", "", "", id)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if p.w.variant.blind {
		digest = p.shown(id)
	}
	p.bridge.ApproveNow(ctx, id, digest, "the operator")
}

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
	large  bool          // only batches of many writes count
	taken  int           // the crash comes after so many more acceptances, …
	burns  time.Duration // … and this time
	off    time.Duration // until the next start
	step   time.Duration // of the clock meanwhile
	late   time.Duration // from the next start until its file can be read
	clone  bool          // it starts on another machine, whose disk is a copy
}

func (x restart) operate(p *process) {
	w := p.w
	switch {
	case w.armed != nil: // one after the other
	case !x.crash:
		w.end(x, p.stop())
	case x.taken > 0:
		w.armed, w.patience = &x, w.trueTime()+10*time.Minute
		w.mu.Lock()
		w.fuse, w.burns = x.taken, x.burns
		w.mu.Unlock()
	case x.writes > 0:
		w.armed, w.patience = &x, w.trueTime()+10*time.Minute
		p.disk.mu.Lock()
		p.disk.crash, p.disk.sooner, p.disk.large = x.writes, x.sooner, x.large
		p.disk.mu.Unlock()
	default:
		w.end(x, p.kill())
	}
}

// A hand is what an operator did to one delivery.
type hand struct {
	fact
	what, sink, id, event string
	shown                 azureEvent // what was approved
}

// operatorSteps make up what operators do, and what becomes of the machine.
func operatorSteps(r *rand.Rand, routes []routePlan, events []step, length time.Duration) (steps []step) {
	add := func(a any) { steps = append(steps, step{during(r, length), a}) }
	for range r.IntN(4) {
		x := restart{crash: r.IntN(4) > 0, off: pick(r, time.Second, 20*time.Second, 5*time.Minute, 30*time.Minute)}
		switch {
		case x.crash && r.IntN(3) == 0:
			x.taken, x.burns = 1+r.IntN(40), pick(r, 0, 5*time.Millisecond, 30*time.Millisecond, 80*time.Millisecond)
		case x.crash && r.IntN(2) == 0:
			x.writes, x.sooner = r.IntN(6), r.IntN(2) == 0
		case x.crash:
			x.writes, x.sooner, x.large = pick(r, 1, 1, 1, 2), r.IntN(3) > 0, true
			x.off = pick(r, time.Second, time.Second, 20*time.Second, 10*time.Minute)
		}
		switch r.IntN(20) {
		case 3, 4:
			x.clone = true
		case 7:
			x.clone, x.late = true, pick(r, 3*time.Second, 40*time.Second)
		case 5, 6:
			x.late = pick(r, 3*time.Second, 40*time.Second, 6*time.Minute)
		case 0:
			x.off = 26 * time.Hour
		case 1, 2:
			x.step = pick(r, time.Hour, -time.Hour, -10*time.Minute, 48*time.Hour, -48*time.Hour)
		}
		at := during(r, length)
		if x.large || r.IntN(2) == 0 { // so that what Azure changes is on its way to the disk
			at = max(0, events[r.IntN(len(events))].at-50*time.Millisecond)
		}
		if x.clone && r.IntN(2) == 0 { // and learns only later which machine it is
			steps = append(steps, step{at, instanceTrouble{"503", at + x.off + pick(r, 30*time.Second, 5*time.Minute)}})
		}
		steps = append(steps, step{at, x})
	}
	for range r.IntN(3) {
		add(reload{routes: some(r, routes)})
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

// reloadSteps make up reloads that change how routes are set up, and the rules. They have random numbers of their own, as
// muteSteps do.
func reloadSteps(seed uint64, routes []routePlan, length time.Duration) (steps []step) {
	r := rand.New(rand.NewPCG(seed, 2))
	if r.IntN(3) > 0 {
		return nil
	}
	for range 1 + r.IntN(3) {
		var x reload
		for _, p := range routes[1:] { // the first is told everything, always
			if r.IntN(3) == 0 {
				x.changes = append(x.changes, someChange(r, p.name))
			}
		}
		if r.IntN(2) == 0 {
			x.rules = append([]rulePlan{}, someRules(r, routes)...)
			x.rules = append(x.rules, moreRules(r, routes)...)
		}
		if r.IntN(4) == 0 {
			x.routes = some(r, routes)
		}
		steps = append(steps, step{during(r, length), x})
	}
	return steps
}

// someChange makes up what an operator writes in another way.
func someChange(r *rand.Rand, route string) routeChange {
	late := pick(r, "send", "latest", "drop")
	lead := pick(r, 0, 10*time.Minute, 25*time.Minute)
	leads := pick(r, nil, []time.Duration{12 * time.Minute}, []time.Duration{20 * time.Minute, 5 * time.Minute})
	vms := pick(r, "self", "leader", "all")
	types := pick(r, nil, []string{"Freeze"}, []string{"Reboot", "Redeploy"})
	changes := pick(r, nil, []string{"scheduled", "vanished"}, []string{"first"})
	except := pick(r, matchPlan{}, matchPlan{types: []string{"Reboot"}}, matchPlan{sources: []string{"User"}})
	when := pick(r, append([]condition{{}}, conditions...)...)
	age := pick(r, 0, 2*time.Minute, 30*time.Minute)
	timeout := pick(r, 3*time.Second, 20*time.Second)
	level := pick(r, "none", "trouble", "all")
	above, batch, parallel := pick(r, 0, 3), pick(r, 0, 2, 5), pick(r, 0, 4)
	all := []routeChange{
		{route, "late: " + late, func(p *routePlan) { p.late = late }},
		{route, fmt.Sprintf("lead: %v", lead), func(p *routePlan) { p.lead, p.remind = lead, nil }},
		{route, fmt.Sprintf("remind: %v", leads), func(p *routePlan) { p.lead, p.remind = 0, leads }},
		{route, "vms: " + vms, func(p *routePlan) { p.vms = vms }},
		{route, fmt.Sprintf("types: %v", types), func(p *routePlan) { p.types, p.sources = types, nil }},
		{route, fmt.Sprintf("changes: %v", changes), func(p *routePlan) { p.changes = changes }},
		{route, fmt.Sprintf("except: %+v", except), func(p *routePlan) { p.except = except }},
		{route, "when: " + when.text, func(p *routePlan) { p.when = when }},
		{route, fmt.Sprintf("max_age: %v", age), func(p *routePlan) { p.maxAge = age }},
		{route, fmt.Sprintf("timeout: %v", timeout), func(p *routePlan) { p.timeout = timeout }},
		{route, "bridge: " + level, func(p *routePlan) { p.bridge = level }},
		{route, fmt.Sprintf("group above: %d", above), func(p *routePlan) { p.above = above }},
		{route, fmt.Sprintf("batch: %d", batch), func(p *routePlan) { p.batch = batch }},
		{route, fmt.Sprintf("parallel: %d", parallel), func(p *routePlan) { p.parallel = parallel }},
	}
	if route != "page" {
		all = append(all,
			routeChange{route, "fallback: none", func(p *routePlan) { p.fallback, p.after = "", 0 }},
			routeChange{route, "fallback: page", func(p *routePlan) { p.fallback, p.after = "page", 2*time.Minute }})
	}
	return pick(r, all...)
}

// some returns the names of some routes, the first always.
func some(r *rand.Rand, routes []routePlan) (names []string) {
	for i, p := range routes {
		if i == 0 || r.IntN(3) > 0 {
			names = append(names, p.name)
		}
	}
	return names
}

// someRules makes up rules of approval; most have none.
func someRules(r *rand.Rand, routes []routePlan) []rulePlan {
	if r.IntN(5) > 0 {
		return nil
	}
	return []rulePlan{someRule(r, routes)}
}

// moreRules makes up further rules, of which the first that approves an event does.
func moreRules(r *rand.Rand, routes []routePlan) (rules []rulePlan) {
	if r.IntN(5) == 0 {
		for range 1 + r.IntN(3) {
			rules = append(rules, someRule(r, routes))
		}
	}
	return rules
}

func someRule(r *rand.Rand, routes []routePlan) rulePlan {
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
	return x
}
