package relay_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

// Whatever happens to Azure's events, the VMs that tell of them, the servers, the relays and the destinations: every
// promise is kept. Each seed makes up another story, in which a real NATS server takes part.
//
//	FOREWARN_SEEDS=1000 go test ./bridge/relay -run TestSimulation    tries so many
//	FOREWARN_FROM=5000  go test ./bridge/relay -run TestSimulation    begins with that seed, beside the other
//	FOREWARN_SEED=17    go test ./bridge/relay -run TestSimulation    tries one again, and says what happened
//
// The server has goroutines of its own, so that a seed's story may differ a little from time to time.
func TestSimulation(t *testing.T) {
	systemtest.LeftToGate(t)
	first, n := number(t, "FOREWARN_FROM", 3), number(t, "FOREWARN_SEEDS", 1)
	log := slog.New(slog.DiscardHandler)
	if again := number(t, "FOREWARN_SEED", 0); again != 0 {
		first, n = again, 1
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	for seed, failed := first, 0; seed < first+n && failed < 3; seed++ {
		p := planOf(uint64(seed))
		w := simulate(t, p, log)
		if found := examine(w); len(found) > 0 {
			failed++
			t.Errorf("seed %d:%s\nrepeat it with\n  FOREWARN_SEED=%d go test ./bridge/relay -run TestSimulation\n"+
				"what happened:\n%v", seed, describe(found), seed, p)
		}
	}
}

// A plan is all that happens in a simulation, made up from its seed before it begins.
type plan struct {
	seed    uint64
	routes  []routePlan
	bound   int // of what is unsettled; 0 for as much as a relay takes by itself
	sayings [][]saying
	noise   []noise
	forged  []saying // what the forger publishes
	silent  bool     // a VM falls silent, which a relay must say
	steps   []step
	length  time.Duration
	variant variant
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "bound %d, routes", p.bound)
	for _, r := range p.routes {
		fmt.Fprintf(&b, "\n  %+v", r)
	}
	for _, s := range p.steps {
		fmt.Fprintf(&b, "\n%10s  %s", s.at.Round(time.Millisecond), s.what)
	}
	return b.String()
}

// A routePlan is a route as an operator sets it up.
type routePlan struct {
	name     string
	types    []string
	sources  []string
	changes  []string
	bridge   bridge.Level
	late     delivery.Late
	lead     time.Duration
	timeout  time.Duration
	maxAge   time.Duration
	batch    int
	parallel int
	durable  bool
	fallback string
	after    time.Duration // of the fallback
	above    int           // of the digest
	repeat   time.Duration
}

func (r routePlan) route(s delivery.Sink) bridge.Route {
	return bridge.Route{
		Name: r.name, Kind: "webhook", Sink: s,
		Filter: bridge.Filter{Only: bridge.Only{VMs: "all", Types: r.types, Sources: r.sources, Changes: r.changes}},
		Terms: bridge.Terms{Lead: r.lead, Bridge: r.bridge, Terms: delivery.Terms{
			Timeout: r.timeout, MaxAge: r.maxAge, Late: r.late, Batch: r.batch, Parallel: r.parallel, Durable: r.durable,
			Fallback: delivery.Fallback{Sink: r.fallback, After: r.after}, DigestAbove: r.above, Repeat: r.repeat,
		}},
	}
}

// someRoutes make up the routes of a simulation. The first is told everything, at once, and is always well.
func someRoutes(r *rand.Rand) []routePlan {
	all := []routePlan{
		{name: "hook", late: delivery.LateSend, timeout: 10 * time.Second, maxAge: pick(r, 0, 10*time.Minute), parallel: 2},
		{name: "stream", late: delivery.LateSend, timeout: 10 * time.Second, batch: 3},
		{name: "chat", late: delivery.LateLatest, timeout: 10 * time.Second, bridge: bridge.LevelTrouble},
		{name: "mail", late: delivery.LateLatest, timeout: 20 * time.Second, above: pick(r, 0, 2, 5),
			sources: []string{"Platform"}},
		{name: "drain", late: delivery.LateDrop, timeout: 30 * time.Second, parallel: 3, durable: true,
			lead: pick(r, 0, 10*time.Minute), changes: pick(r, nil, []string{"scheduled", "updated", "vanished"},
				[]string{"scheduled", "updated"})},
		{name: "page", late: delivery.LateSend, timeout: 10 * time.Second, types: []string{"Reboot", "Preempt"},
			changes: []string{"scheduled", "vanished"}, repeat: time.Minute},
	}
	for i := range all {
		if r.IntN(3) == 0 && all[i].name != "page" {
			all[i].fallback, all[i].after = "page", 2*time.Minute
		}
		if r.IntN(6) == 0 && all[i].above == 0 {
			all[i].lead = 10 * time.Minute
		}
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = all[:1+r.IntN(len(all))]
	for i := range all { // a fallback must be there
		if !slices.ContainsFunc(all, func(p routePlan) bool { return p.name == all[i].fallback }) {
			all[i].fallback, all[i].after = "", 0
		}
	}
	well := routePlan{name: "well", late: delivery.LateSend, timeout: 10 * time.Second, bridge: bridge.LevelAll,
		repeat: time.Minute}
	return append([]routePlan{well}, all...)
}

// A saying is a CloudEvent that a VM publishes, or something else that stands in its place.
type saying struct {
	at   time.Duration
	make func(now time.Time) (event.Event, error)
	junk []byte // what is no CloudEvent
}

// A step is something that is done to the world.
type step struct {
	at   time.Duration
	what string
	do   func(w *world)
}

// planOf makes up the plan of a seed. Each leaves some kinds of trouble out, so that each is seen in many company.
func planOf(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := plan{seed: seed, length: pick(r, 5*time.Minute, 10*time.Minute, 20*time.Minute), routes: someRoutes(r)}
	if r.IntN(3) == 0 {
		p.bound = 10
	}
	p.sayings = someSayings(r, p.length)
	addAnswers(rand.New(rand.NewPCG(seed, 5)), p.sayings)
	p.noise = someNoise(rand.New(rand.NewPCG(seed, 2)), p.sayings, p.routes)
	p.forged = someForgeries(rand.New(rand.NewPCG(seed, 3)), p.sayings)
	p.relaySteps(r)
	if r.IntN(3) > 0 {
		p.networkSteps(r)
	}
	if r.IntN(4) > 0 {
		p.sinkSteps(r)
	}
	p.otherSteps(rand.New(rand.NewPCG(seed, 4)))
	slices.SortStableFunc(p.steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return p
}

func (p *plan) add(at time.Duration, what string, do func(w *world)) {
	p.steps = append(p.steps, step{at, what, do})
}

// someSayings make up what up to four VMs see of some events, and publish: each in the right order, some of them late,
// some not all of it, and one with copies of what it said before.
func someSayings(r *rand.Rand, length time.Duration) [][]saying {
	observers := make([][]saying, 1+r.IntN(4))
	delays := make([]time.Duration, len(observers))
	for i := range delays[1:] {
		delays[i+1] = pick(r, time.Millisecond, time.Second, 5*time.Second, 3*time.Minute)
	}
	if r.IntN(4) == 0 { // so that what the others say of the later changes comes first
		delays[0] = time.Minute
	}
	say := func(at time.Duration, c imds.Change) {
		for i := range observers {
			if i > 0 && r.IntN(4) == 0 {
				continue // it didn't see it
			}
			s := saying{at: at + delays[i], make: changeSaidAt(bubbleEpoch.Add(at), c, fmt.Sprintf("vm-%d", i))}
			observers[i] = append(observers[i], s)
			if r.IntN(10) == 0 {
				observers[i] = append(observers[i], s)
			}
		}
	}
	n, wave := 3+r.IntN(10), 0
	if r.IntN(2) == 0 {
		wave = 8 + r.IntN(8)
	}
	together := during(r, length/2)
	for i := range n + wave {
		e := azure{id: fmt.Sprintf("00000000-0000-4000-8000-%012d", i+1), typ: pick(r, "Reboot", "Freeze", "Preempt", "Redeploy"),
			vm: fmt.Sprintf("vm-%d", r.IntN(4)), source: pick(r, "Platform", "User")}
		at := during(r, length*3/4)
		if i >= n {
			at, e.typ, e.source = together+time.Duration(r.IntN(3000))*time.Millisecond, "Reboot", "Platform"
		}
		notice := pick(r, 30*time.Second, 5*time.Minute, 16*time.Minute, 30*time.Minute)
		e.notBefore = bubbleEpoch.Add(at + notice).Truncate(time.Second)
		now := e.event(imds.StatusScheduled)
		say(at, imds.Change{Kind: imds.Scheduled, Event: now})
		for range r.IntN(3) {
			was := now
			at += 1 + time.Duration(r.Int64N(int64(notice/2)))
			e.notBefore = e.notBefore.Add(pick(r, -time.Minute, 2*time.Minute, 15*time.Minute))
			now = e.event(imds.StatusScheduled)
			say(at, imds.Change{Kind: imds.Updated, Event: now, Previous: &was, Fields: []string{"NotBefore"}})
		}
		if left := e.notBefore.Sub(bubbleEpoch.Add(at)); r.IntN(3) == 0 && left > 10*time.Minute {
			lead := pick(r, 5*time.Minute, 8*time.Minute)
			at = e.notBefore.Add(-lead).Sub(bubbleEpoch)
			say(at, imds.Change{Kind: imds.Reminder, Event: now, Lead: lead})
		}
		if r.IntN(4) > 0 {
			at = max(at+time.Second, e.notBefore.Sub(bubbleEpoch)) + time.Duration(r.IntN(60))*time.Second
			was := now
			now = e.event(imds.StatusStarted)
			say(at, imds.Change{Kind: imds.Started, Event: now, Previous: &was})
		}
		if r.IntN(5) > 0 {
			at += pick(r, 2*time.Second, time.Minute, 8*time.Minute)
			say(at, imds.Change{Kind: imds.Vanished, Event: now})
		}
	}
	for range r.IntN(4) {
		s := saying{at: during(r, length), junk: []byte("hello")}
		observers[0] = append(observers[0], s)
	}
	for i := range observers {
		name := fmt.Sprintf("vm-%d", i)
		for range r.IntN(3) {
			typ := pick(r, "imds.unavailable", "imds.recovered", "heartbeat", "started")
			observers[i] = append(observers[i], saying{at: during(r, length), make: bridgeSaid(typ, name)})
		}
		slices.SortStableFunc(observers[i], func(a, b saying) int { return cmp.Compare(a.at, b.at) })
	}
	return observers
}

// relaySteps start, stop and kill relays.
func (p *plan) relaySteps(r *rand.Rand) {
	for range 1 + r.IntN(3) {
		p.add(0, "a relay starts", (*world).startRelay)
	}
	for range r.IntN(6) {
		at := during(r, p.length)
		n, after, burns := r.IntN(100), r.IntN(3), time.Duration(r.IntN(60))*time.Millisecond
		switch r.IntN(4) {
		case 0:
			p.add(at, "a relay stops", func(w *world) { w.stopRelay(n) })
		case 1:
			p.add(at, "a relay reloads", func(w *world) { w.reloadRelay(n) })
		case 2:
			p.add(at, "a relay is killed", func(w *world) { w.killRelay(n) })
		case 3:
			p.add(at, fmt.Sprintf("a relay is killed %v after delivery %d from then", burns, after+1),
				func(w *world) { w.arm(after+1, burns) })
		}
		if r.IntN(4) > 0 {
			p.add(at+pick(r, time.Second, 20*time.Second, 2*time.Minute), "a relay starts", (*world).startRelay)
		}
	}
}

// networkSteps make up what goes wrong between relays and servers.
func (p *plan) networkSteps(r *rand.Rand) {
	for range 1 + r.IntN(4) {
		at, n := during(r, p.length), r.IntN(100)
		end := at + pick(r, time.Second, 4*time.Second, 20*time.Second, 3*time.Minute)
		switch how := pick(r, "off", "hangs", "deaf", "breaks"); how {
		case "off":
			p.add(at, "the server is off until "+short(end), func(w *world) { w.serverOff(end) })
		case "breaks":
			p.add(at, "the connections of a relay break", func(w *world) { w.failCable(n, how, at) })
		default:
			p.add(at, "the connection of a relay "+how+" until "+short(end), func(w *world) { w.failCable(n, how, end) })
		}
	}
}

// otherSteps make up records and requests for messages that are not answered, and destinations that one relay can't reach.
func (p *plan) otherSteps(r *rand.Rand) {
	if r.IntN(4) == 0 {
		at, n := during(r, p.length), r.IntN(100)
		end := at + pick(r, 4*time.Second, time.Minute, 3*time.Minute)
		p.add(at, "records are not answered to a relay until "+short(end), func(w *world) { w.failCable(n, recordsLost, end) })
	}
	if r.IntN(4) == 0 {
		at, n := during(r, p.length), r.IntN(100)
		sink, end := p.routes[1+r.IntN(len(p.routes)-1)].name, at+pick(r, 30*time.Second, 4*time.Minute, 15*time.Minute)
		p.add(at, fmt.Sprintf("sink %s is cut off from a relay until %s", sink, short(end)), func(w *world) {
			w.cutOff(n, sink, end)
		})
	}
	if r.IntN(4) == 0 {
		at, n := during(r, p.length), r.IntN(100)
		end := at + pick(r, 4*time.Second, time.Minute, 3*time.Minute)
		p.add(at, "requests for messages are not answered to a relay until "+short(end), func(w *world) {
			w.failCable(n, requestsLost, end)
		})
	}
}

var sinkTroubles = []string{
	"is down", "hangs", "is blocked", "rejects", "asks to wait", "is slow", "loses the answer", "takes half", "panics",
	"makes progress",
}

// sinkSteps make up what goes wrong with the destinations, but for the first.
func (p *plan) sinkSteps(r *rand.Rand) {
	for range 1 + r.IntN(6) {
		at := during(r, p.length)
		x := sinkTrouble{sink: p.routes[1+r.IntN(len(p.routes)-1)].name, how: pick(r, sinkTroubles...),
			share: pick(r, 100, 100, 60, 20), end: at + pick(r, 5*time.Second, 40*time.Second, 4*time.Minute, 15*time.Minute)}
		p.add(at, fmt.Sprintf("sink %s %s until %s (%d %%)", x.sink, x.how, short(x.end), x.share), func(w *world) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.troubles[x.sink] = x
		})
	}
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func during(r *rand.Rand, length time.Duration) time.Duration {
	return 15*time.Second + time.Duration(r.Int64N(int64(length)))
}

func short(d time.Duration) string { return d.Round(time.Millisecond).String() }
