package bridge_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"
)

// A routePlan is a route as an operator sets it up.
type routePlan struct {
	name     string
	anew     int    // how often a reload has changed it
	vms      string // self, leader, all
	types    []string
	sources  []string
	changes  []string
	except   matchPlan
	when     condition
	late     string
	lead     time.Duration
	timeout  time.Duration
	maxAge   time.Duration
	remind   []time.Duration
	fallback string
	after    time.Duration // of the fallback
	batch    int
	parallel int
	sync     bool
	acts     bool
	above    int // of the group
	bridge   string
}

// A matchPlan is what a route does not want; all that it names must hold.
type matchPlan struct {
	vms                     string
	types, sources, changes []string
}

// A condition is an expression as operators write it, and what it means.
type condition struct {
	text  string
	holds func(c change) bool
}

var conditions = []condition{
	{`azeventtype in ["Reboot", "Redeploy", "Levitate"]`, func(c change) bool {
		return slices.Contains([]string{"Reboot", "Redeploy", "Levitate"}, c.event.kind)
	}},
	{`notice > 600`, func(c change) bool {
		e := c.event
		return e.status != "Started" && e.notBefore >= 0 && e.notBeforeTime().Sub(c.clock) > 10*time.Minute
	}},
	{`"vm-1" in resources`, func(c change) bool { return slices.Contains(c.event.resources(), "vm-1") }},
	{`change == "updated" or azeventsource == "User"`, func(c change) bool {
		return c.kind == "updated" || c.event.source == "User"
	}},
	{`data.event.Nothing.like.that == 1`, func(change) bool { return true }}, // it fails, and better twice than never
}

// A handed is one delivery as it reached a destination.
type handed struct {
	id, event, change string
	time              time.Time // of the CloudEvent
	attempt           int
	instead           string   // whose fallback this is
	missed            []string // kinds of older changes that it stands for
	receipt           string
	progress          string
	notBefore         time.Time
	mute              string   // that it waited for
	vms               []string // that the Azure event names
	kind, outcome     string   // of it, in data
	whileAway         bool
	observer          string
	body              string
}

// An attempt is one call of a destination.
type attempt struct {
	fact    // when it ended
	sink    string
	in      int // the run of the program that made it
	began   fact
	start   time.Duration // true time
	batch   []handed
	taken   int    // how many the destination has taken
	how     string // accepted, or the trouble
	ended   bool   // false if the machine died before
	settled bool   // the program was told that all of the batch is accepted
	down    bool   // see markDown

	newReceipt, newProgress string // that the program was given to keep
}

// sinkTrouble makes a destination fail for a while.
type sinkTrouble struct {
	sink  string
	how   string
	end   time.Duration
	share int // of the deliveries, in percent
}

func (x sinkTrouble) do(w *world) { w.sinks[x.sink] = x }

var sinkTroubles = []string{
	"is down", "hangs", "is blocked", "rejects", "asks to wait", "is slow", "loses the answer", "takes half", "panics",
	"makes progress",
}

// A verdict is what the bridge is told about an attempt.
type verdict struct {
	class string // "" accepted, again, blocked, rejected
	after time.Duration
	cause error // of ctx

	receipt, progress string // that it is given to keep
}

// A destination is where a route's deliveries go.
type destination struct {
	w    *world
	name string
}

// take takes a batch as the destination does at the moment.
func (d destination) take(ctx context.Context, batch []handed) verdict {
	w := d.w
	w.mu.Lock()
	if w.dead {
		w.mu.Unlock()
		return verdict{class: "again"}
	}
	a := &attempt{sink: d.name, in: len(w.boots) - 1, began: w.fact(), start: w.now(), batch: batch, how: "accepted"}
	w.attempts = append(w.attempts, a)
	if t := w.sinks[d.name]; t.end > w.now() && chance(w.plan.seed, t.share, d.name, batch[0].id, batch[0].attempt) {
		a.how = t.how
	}
	w.mu.Unlock()

	// end notes how it ended, unless the machine is dead.
	end := func(taken int, v verdict) verdict {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.dead {
			return verdict{class: "again"}
		}
		a.fact, a.ended, a.taken, a.settled = w.fact(), true, taken, v.class == ""
		if a.settled {
			v.receipt = batch[len(batch)-1].id
			w.accepted()
		}
		a.newReceipt, a.newProgress = v.receipt, v.progress
		return v
	}
	delay := map[string]time.Duration{"is slow": slowness, "hangs": forever}[a.how]
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return end(0, verdict{class: "again", cause: ctx.Err()})
		}
	}
	switch a.how {
	case "accepted", "is slow":
		return end(len(batch), verdict{})
	case "is down":
		return end(0, verdict{class: "again"})
	case "is blocked":
		return end(0, verdict{class: "blocked"})
	case "rejects":
		return end(0, verdict{class: "rejected"})
	case "asks to wait":
		return end(0, verdict{class: "again", after: retryAfter})
	case "loses the answer":
		return end(len(batch), verdict{class: "again"})
	case "takes half":
		return end(len(batch)/2, verdict{class: "again"})
	case "makes progress": // as far as it comes each time
		done := fmt.Sprintf("%d of %s", batch[0].attempt, batch[0].id)
		return end(0, verdict{class: "again", progress: done, receipt: done})
	case "panics":
		end(0, verdict{class: "again"})
		panic("a destination that panics")
	}
	panic("no such trouble: " + a.how)
}

// slowness is how long a slow destination takes: 50 ms less than whole seconds, so that what it settles reaches the
// disk just when the next document does.
const slowness = 2950 * time.Millisecond

// retryAfter is what a destination that asks to wait asks for.
const retryAfter = 90 * time.Second

// chance is the same for the same things in the same simulation.
func chance(seed uint64, percent int, things ...any) bool {
	h := fnv.New64a()
	fmt.Fprint(h, seed, things)
	return int(h.Sum64()%100) < percent
}

// someRoutes makes up the routes of a simulation. The first is told everything, at once, and is always well.
func someRoutes(r *rand.Rand) []routePlan {
	all := []routePlan{
		{name: "webhook", vms: "all", late: "send", timeout: 10 * time.Second, maxAge: pick(r, 0, 30*time.Minute),
			remind: pick(r, nil, []time.Duration{30 * time.Minute, 12 * time.Minute})},
		{name: "stream", vms: "all", late: "send", timeout: 10 * time.Second, batch: 3, except: pick(r,
			matchPlan{}, matchPlan{types: []string{"Freeze"}}, matchPlan{vms: "leader", sources: []string{"Platform"}},
			matchPlan{types: []string{"Reboot", "Freeze"}, changes: []string{"updated"}})},
		{name: "chat", vms: "self", late: "latest", timeout: 10 * time.Second, bridge: "trouble",
			remind: []time.Duration{30 * time.Minute, 12 * time.Minute}},
		{name: "mail", vms: "self", late: "latest", timeout: 20 * time.Second, above: pick(r, 0, 2, 5),
			sources: []string{"Platform"}},
		{name: "drain", vms: "self", late: "drop", timeout: 30 * time.Second, parallel: 3, sync: true, acts: true,
			lead: pick(r, 0, 10*time.Minute), remind: []time.Duration{12 * time.Minute},
			changes: pick(r, nil, []string{"scheduled", "updated", "vanished"}, []string{"scheduled", "updated"})},
		{name: "page", vms: "leader", late: "send", timeout: 10 * time.Second,
			types: []string{"Reboot", "Redeploy", "Preempt"}, changes: []string{"first", "vanished"}},
	}
	if r.IntN(4) == 0 { // and no reminders, which would come before
		all[0].lead, all[0].remind = 10*time.Minute, nil
	}
	for i := range all {
		if r.IntN(5) == 0 {
			all[i].when = pick(r, conditions...)
		}
		if r.IntN(3) == 0 && all[i].name != "page" {
			all[i].fallback, all[i].after = "page", 2*time.Minute
		}
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = all[:1+r.IntN(len(all))]
	dropStrayFallbacks(all)
	first := routePlan{name: well, vms: "all", late: "send", timeout: 10 * time.Second, bridge: "all"}
	return append([]routePlan{first}, all...)
}

// dropStrayFallbacks leaves out fallbacks that are not there.
func dropStrayFallbacks(routes []routePlan) {
	for i := range routes {
		if !hasRoute(routes, routes[i].fallback) {
			routes[i].fallback, routes[i].after = "", 0
		}
	}
}

// sinkSteps make up what goes wrong with the destinations, but for the first.
func sinkSteps(r *rand.Rand, routes []routePlan, length time.Duration) (steps []step) {
	if len(routes) < 2 {
		return nil
	}
	for range r.IntN(8) {
		at := during(r, length)
		steps = append(steps, step{at, sinkTrouble{
			sink: routes[1+r.IntN(len(routes)-1)].name, how: pick(r, sinkTroubles...), share: pick(r, 100, 100, 60, 20),
			end: at + pick(r, 5*time.Second, 40*time.Second, 4*time.Minute, 25*time.Minute),
		}})
	}
	return steps
}
