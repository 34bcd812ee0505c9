package bridge_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/outbox"
)

// A plan is all that happens in a simulation, made up from its seed before it begins.
type plan struct {
	seed     uint64
	interval time.Duration // of the polls
	routes   []routePlan   // all that are ever set up
	first    []string      // the names of those that are set up in the beginning; none for all
	rules    []rulePlan
	bounds   bounds
	steps    []step // by time
	length   time.Duration
}

// bounds are how many deliveries the program may hold, and how many of them while only memory has them; 0 for as many
// as it does by itself.
type bounds struct{ pending, memory int }

// A step is something that happens at a time: a happening or an operation.
type step struct {
	at  time.Duration
	act any
}

// A happening happens to the world around the program.
type happening interface{ do(w *world) } // with the lock of w

// An operation is done with the program.
type operation interface{ operate(p *process) }

// One of so many stories lasts days, of which most are quiet.
const daysEvery = 100

// make up the plan of a seed. Each leaves some kinds of trouble out, so that each kind is seen in many company.
func planOf(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := plan{
		seed: seed, interval: pick(r, time.Second, 3*time.Second, 5*time.Second, 9*time.Second),
		length: pick(r, 10*time.Minute, 20*time.Minute, 45*time.Minute), routes: someRoutes(r),
	}
	if seed%daysEvery == 0 {
		p.interval, p.length = 9*time.Second, pick[time.Duration](r, 2, 3, 5)*24*time.Hour
	}
	p.rules = append(someRules(r, p.routes), moreRules(rand.New(rand.NewPCG(seed, 3)), p.routes)...)
	if r.IntN(3) == 0 {
		p.first = some(r, p.routes)
	}
	p.steps = timeline(r, p.length)
	sometimes := func(steps []step) {
		if r.IntN(3) > 0 {
			p.steps = append(p.steps, steps...)
		}
	}
	if r.IntN(8) == 0 {
		p.bounds = bounds{pick(r, 0, 8, 25), pick(r, 0, 5)}
	}
	sometimes(endpointSteps(r, p.length))
	if r.IntN(4) == 0 {
		p.steps = append(p.steps, instanceSteps(r)...)
		p.steps = append(p.steps, earlySteps(seed, p.length)...)
	}
	sometimes(sinkSteps(r, p.routes, p.length))
	sometimes(operatorSteps(r, p.routes, p.steps, p.length))
	if r.IntN(4) == 0 {
		p.steps = append(p.steps, diskSteps(r, p.length)...)
	}
	p.steps = append(p.steps, muteSteps(seed, p.routes, p.length)...)
	p.steps = append(p.steps, reloadSteps(seed, p.routes, p.length)...)
	p.steps = append(p.steps, replaySteps(seed, p.routes, p.length)...)
	p.steps = append(p.steps, doubtSteps(seed, p.length)...)
	p.steps = append(p.steps, damageSteps(seed, p)...)
	slices.SortStableFunc(p.steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return p
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "polls every %v; holds %+v; begins with %v; routes", p.interval, p.bounds, p.first)
	for _, r := range p.routes {
		fmt.Fprintf(&b, " %s", r.name)
	}
	fmt.Fprintf(&b, "; rules %s", code(reflect.ValueOf(p.rules)))
	for _, s := range p.steps {
		fmt.Fprintf(&b, "\n%10s  %s", s.at.Round(time.Millisecond), code(reflect.ValueOf(s.act)))
	}
	return b.String()
}

// code returns a value as it is written in a story: without what is zero, and without functions.
func code(v reflect.Value) string {
	var parts []string
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		return time.Duration(v.Int()).String()
	case v.Kind() == reflect.String:
		return strconv.Quote(v.String())
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			parts = append(parts, code(v.Index(i)))
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() && f.Kind() != reflect.Func {
				parts = append(parts, v.Type().Field(i).Name+": "+code(f))
			}
		}
	default:
		return fmt.Sprint(v)
	}
	return v.Type().Name() + "{" + strings.Join(parts, ", ") + "}"
}

// A fact is when something happened.
type fact struct {
	seq   int           // in the order of all facts
	at    time.Duration // true time
	clock time.Time     // the machine's
	boot  int           // of the machine
}

// apart returns how long after one fact another was: in truth or by the machine's clock, which may have been stepped.
func apart(from, to fact) time.Duration {
	return max(to.at-from.at, to.clock.Round(0).Sub(from.clock.Round(0)))
}

type interval struct{ from, to time.Duration }

func (i interval) meets(from, to time.Duration) bool { return i.from <= to && from <= i.to }

func meetAny(list []interval, from, to time.Duration) bool {
	return slices.ContainsFunc(list, func(i interval) bool { return i.meets(from, to) })
}

// A boot is one run of the program.
type boot struct {
	began, ended fact
	how          restart       // how it ended
	vm           int           // which machine it ran on: clones count up
	late         time.Duration // true time from which its file could be read; 0 for always
	learned      fact          // it was told which VM it runs on; seq is 0 when it was not
	refusedSince fact          // it is refused that in a row; seq is 0 when it is not
	refused      fact          // it was refused that for so long that it waits no longer for it; seq is 0 when it was not
	loaded       fact          // its file came, which was late
}

// A setup is the routes and rules that are set up from a moment on.
type setup struct {
	fact
	routes []routePlan
	rules  []rulePlan
}

// A written is a transaction that reached the file.
type written struct {
	fact      // when it was done
	began int // in the order of all facts
}

// A world is all that surrounds the program in one simulation, and remembers all that truly happened.
type world struct {
	plan    plan
	variant variant
	log     *slog.Logger

	mu          sync.Mutex
	azure       *azure
	endpoint    endpointTrouble
	doubt       doubt
	instance    instanceTrouble
	sinks       map[string]sinkTrouble
	diskTrouble diskTrouble
	settings    []routePlan // all routes, as an operator last wrote them
	routes      []routePlan // of these, those that are set up
	rules       []rulePlan
	dead        bool // the machine, so that nothing it does counts
	died        chan struct{}

	anchor   time.Time     // a moment of the bubble's clock …
	true     time.Duration // … in true time
	skew     time.Duration // what the clock is off by
	steps    []step        // to come
	image    buckets       // of the outbox's file
	over     bool
	vm       int           // which machine this is: clones count up
	late     time.Duration // true time from which the file can be read
	armed    *restart      // that waits for its moment; nil for none
	patience time.Duration // true time at which it comes anyway
	fuse     int           // how many more acceptances there are before a crash; 0 for none
	burns    time.Duration // from the last of them to the crash
	disk     *disk         // of the program that runs
	drawn    int           // random numbers at this moment …
	drew     time.Time     // … which is this one
	most     int           // deliveries that were ever pending at once
	shown    shown         // to who may approve it by hand
	turn     chan struct{} // whose it is, in a broken variant

	// What happened.
	count    int
	boots    []*boot
	setups   []setup
	answers  []*answer
	round    []*answer // to the poll loop since it last came round
	posts    []*post
	attempts []*attempt
	repeated []repeated
	writes   []written
	hands    []hand
	ills     []interval        // of the disk
	damages  []fact            // to the file
	unread   []interval        // in which CloudEvents could not be read from it
	skews    []time.Duration   // what the clock was off by, in each run of the program
	left     []outbox.Delivery // in the end
	ledger   []kept            // with bounds
	forgot   map[string]int    // records that it said were dropped for want of room
	record   []recorded
	mutes    []*muting
	listings []listing
}

// simulate lets a plan happen, with the program as it is or in a broken variant.
func simulate(t *testing.T, p plan, v variant, log *slog.Logger) *world {
	w := &world{
		plan: p, variant: v.orWhole(), log: log, azure: newAzure(), sinks: map[string]sinkTrouble{}, steps: p.steps,
		forgot: map[string]int{}, settings: slices.Clone(p.routes), rules: p.rules,
	}
	w.setRoutes(p.first)
	for !w.over { // each run of the program has its own bubble, so that its clock can be behind that of the one before
		synctest.Test(t, w.run)
	}
	return w
}

// now returns the true time. mu is held.
func (w *world) now() time.Duration { return w.true + time.Since(w.anchor) }

// next returns the next sequence number of a fact. mu is held.
func (w *world) next() int { w.count++; return w.count }

// fact returns one that happens now. mu is held.
func (w *world) fact() fact {
	return fact{seq: w.next(), at: w.now(), clock: time.Now(), boot: len(w.boots) - 1}
}

func (w *world) answered(a *answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return
	}
	a.fact = w.fact()
	w.answers = append(w.answers, a)
	if a.polled {
		w.round = append(w.round, a)
	}
}

// setRoutes sets up the routes of these names, or all.
func (w *world) setRoutes(names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.routes = nil
	for _, r := range w.settings {
		if names == nil || slices.Contains(names, r.name) {
			w.routes = append(w.routes, r)
		}
	}
	dropStrayFallbacks(w.routes)
	if len(w.boots) > 0 {
		w.setups = append(w.setups, setup{w.fact(), w.routes, w.rules})
	}
}

func (w *world) noteHand(what, sink, id, event string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hands = append(w.hands, hand{w.fact(), what, sink, id, event, w.shown.event})
}

// die ends the machine: nothing that the program does from now on counts.
func (w *world) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.dead {
		w.dead = true
		w.boots[len(w.boots)-1].ended = w.fact()
		close(w.died)
	}
}

// sleep lets time pass, at most until the machine dies.
func (w *world) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.died:
	}
}

// run is one run of the program, in a bubble.
func (w *world) run(*testing.T) {
	time.Sleep(time.Until(epoch.Add(w.true + w.skew)))
	w.mu.Lock()
	w.anchor, w.dead, w.died = time.Now(), false, make(chan struct{})
	w.turn = make(chan struct{}, 1)
	for len(w.steps) > 0 && w.steps[0].at <= w.true { // what happened while there was no program
		if x, ok := w.steps[0].act.(happening); ok {
			x.do(w)
		}
		w.steps = w.steps[1:]
	}
	w.skews, w.round = append(w.skews, w.skew), nil
	b := &boot{vm: w.vm}
	w.boots = append(w.boots, b)
	b.began = w.fact()
	w.fuse, w.armed = 0, nil
	if w.late > w.now() {
		b.late = w.late
		w.ills = append(w.ills, interval{w.now(), w.late + 10*time.Second}) // it is looked for every five
	}
	w.setups = append(w.setups, setup{w.fact(), w.routes, w.rules})
	w.mu.Unlock()

	if w.variant.forgets {
		w.image = nil
	}
	p := start(w)
	for len(w.steps) > 0 || w.armed != nil {
		next := w.patience
		if len(w.steps) > 0 && (w.armed == nil || w.steps[0].at < next) {
			next = w.steps[0].at
		}
		w.sleep(next - w.trueTime())
		switch {
		case w.armed != nil && (w.isDead() || w.trueTime() >= w.patience):
			w.end(*w.armed, p.kill())
		default:
			w.step(p)
		}
		if w.isDead() && w.armed == nil {
			return
		}
	}
	w.settle(p)
	w.left, w.record = p.entries(), p.record()
	if w.plan.bounds.pending > 0 {
		w.ledger = p.ledger()
	}
	p.stop()
	w.over = true
}

// step lets the next step happen.
func (w *world) step(p *process) {
	s := w.steps[0]
	w.steps = w.steps[1:]
	switch x := s.act.(type) {
	case happening:
		w.mu.Lock()
		x.do(w)
		w.mu.Unlock()
	case operation:
		x.operate(p)
	}
}

// settle lets all trouble end, and waits until the program has done what it can.
func (w *world) settle(p *process) {
	w.mu.Lock()
	if w.diskTrouble.how != "hangs" {
		w.endIlls(w.now())
	}
	w.endpoint, w.instance, w.diskTrouble, w.late = endpointTrouble{}, instanceTrouble{}, diskTrouble{}, w.now()
	w.doubt = doubt{}
	clear(w.sinks)
	w.mu.Unlock()
	w.sleep(2 * time.Minute)
	unmute{all: true}.operate(p)
	for range 20 {
		if w.sleep(time.Minute); p.idle() {
			break
		}
	}
	w.sleep(time.Minute)
	synctest.Wait()
}

func (w *world) isDead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

func (w *world) trueTime() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now()
}

// end notes how the run of the program ended, and when the next begins.
func (w *world) end(how restart, image buckets) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.boots[len(w.boots)-1].how = how
	w.image, w.skew, w.armed = image, w.skew+how.step, nil
	for i := range w.ills { // the next start finds the file that this run waited for
		if w.late > 0 && w.ills[i].to == w.late+10*time.Second {
			w.ills[i].to = min(w.ills[i].to, w.now())
		}
	}
	w.true = w.now() + how.off
	w.late = 0
	if how.late > 0 {
		w.late = w.true + how.late
	}
	if how.clone {
		w.vm++
	}
}

// random returns a number below 1 that is the same in every simulation of the seed.
func (w *world) random() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); !now.Equal(w.drew) {
		w.drew, w.drawn = now, 0
	}
	w.drawn++
	return rand.New(rand.NewPCG(w.plan.seed, uint64(w.drew.UnixNano())+uint64(w.drawn))).Float64()
}

// loaded notes that the file came, which was late.
func (w *world) loaded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b := w.boots[len(w.boots)-1]; b.loaded.seq == 0 && !w.dead {
		b.loaded = w.fact()
		taken := w.now()
		if b.learned.seq == 0 {
			taken += 10 * time.Second // until it is known whose it is
		}
		for i := range w.ills {
			w.ills[i].to = min(w.ills[i].to, max(taken, w.diskTrouble.end))
		}
	}
}

// accepted notes that a destination took something, after which the machine may crash. mu is held.
func (w *world) accepted() {
	if w.fuse == 0 {
		return
	}
	w.fuse--
	if w.fuse == 0 {
		time.AfterFunc(w.burns, w.disk.crashNow)
	}
}

// decided returns when the program decided about the first answer, of which it may wait for its VM's name: when that came,
// or else after all reloads of that time.
func (w *world) decided(a *answer) fact {
	at := a.fact
	if learned := w.boots[a.boot].learned; learned.seq > a.seq && learned.at <= a.turned {
		return learned
	}
	for _, s := range w.setups {
		if s.seq > a.seq && s.at < a.turned && !w.ill(a.at, a.turned) {
			at = s.fact
		}
	}
	return at
}

// takenUp returns when the program took up a file that came late: when it was told which VM it runs on, or knew that it
// would not be told that soon, or had waited for ten seconds.
func (w *world) takenUp(b *boot) fact {
	limit := b.loaded.at + 10*time.Second
	knows := b.learned
	if b.refused.seq > 0 && (knows.seq == 0 || b.refused.seq < knows.seq) {
		knows = b.refused
	}
	switch {
	case b.loaded.seq == 0 || knows.seq > 0 && knows.seq < b.loaded.seq:
		return b.loaded
	case knows.seq > 0 && knows.at <= limit:
		return knows
	}
	for _, a := range w.answers {
		if a.boot == b.began.boot && a.at >= limit {
			return a.fact
		}
	}
	return fact{}
}

// hides reports whether CloudEvents could not be read from the disk in a period.
func (w *world) hides(from, to time.Duration) bool {
	return meetAny(w.unread, from, to)
}

// ill reports whether the disk had trouble in a period.
func (w *world) ill(from, to time.Duration) bool {
	return meetAny(w.ills, from, to)
}
