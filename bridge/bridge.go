package bridge

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// touchEvery is how old the last valid answer in the outbox may be.
const touchEvery = time.Minute

// stopPatience is what a stop leaves to attempts under way.
const stopPatience = 5 * time.Second

// Options are what a Bridge is made of.
type Options struct {
	Client   *imds.Client
	Outbox   *outbox.Outbox
	Routes   []Route
	Rules    []Rule        // of approval; the first that approves counts
	Interval time.Duration // between polls; 0 is DefaultInterval
	VMName   string        // the observer's name, when it is not to be asked from instance metadata
	Host     string        // names the observer in CloudEvents while Azure has not
	Source   string        // CloudEvents source; "" derives it
	Booted   time.Time     // when this machine booted; zero if unknown
	Version  string        // of the program
	Settings SettingsInfo
	Log      *slog.Logger
	Meter    Meter          // nil counts nothing
	Random   func() float64 // below 1, for jitter; called at any time, nil is that of math/rand
	Turned   func()         // called each time the poll loop comes round, by that loop; nil for nobody

	// Warnings are for Status.Warnings; nil for none. It is called at any time, and must not call the Bridge.
	Warnings func() []string

	// Discover looks for the endpoint that Client is to ask; stored is the one of an earlier search, "" if there is none.
	// Nil leaves Client as it is. See package discovery.
	Discover func(ctx context.Context, stored string) (Found, error)
}

// SettingsInfo says which settings are in force.
type SettingsInfo struct {
	// Hash tells settings apart. It must not depend on secrets, because it is shown and sent.
	Hash     string    `json:"hash"`
	LoadedAt time.Time `json:"loadedAt"`
	// LastError is why newer settings were not taken, "" if there is no such thing.
	LastError string `json:"lastError"`
	// Timezone is shown beside UTC to people; nil is UTC.
	Timezone *time.Location `json:"-"`
}

// A Bridge watches one VM's scheduled events and delivers every change to its routes.
type Bridge struct {
	Options

	events openEvents
	reread atomic.Bool // the outbox found an older file, or there are other settings: the next poll is unconditional

	mu         sync.Mutex // taken before that of events and of the outbox
	began      time.Time
	observer   imds.Observer
	learned    bool // instance metadata said in this run who the observer is
	nameless   nameless
	answer     lastAnswer // the last valid one, of this run or of one before
	touched    time.Time  // when it was last given to the outbox
	routes     []Route
	rules      []Rule
	rulings    map[string]string // why an event is not approved, by its id
	waits      map[string]wait   // what the rules wait for, by the event's id
	byHand     map[string]int    // how many approve the event by hand at the moment, by its id
	workers    map[string]*crew  // by route, also of routes that are gone but not done
	delivering bool              // workers were started
	stopping   bool              // no more are
	imds       imdsState
	troubled   map[string]bool // routes whose trouble was told
	dead       map[string]*deadNews
	beats      map[string]time.Time // the last heartbeat, by route
	stamp      time.Time            // of the last CloudEvent about the bridge
	keptHouse  time.Time            // when housekeeping last came round
	maintained time.Time            // when the outbox last was
	compacted  time.Time            // when the outbox's file last was
	approving  time.Time            // when the approval loop came round

	reloading    sync.Mutex    // one reload after the other
	deciding     sync.Mutex    // held while changes are derived from open events and handed over; taken before mu
	nextReminder time.Time     // the next one may be due then; with deciding
	routed       chan struct{} // closed when Run has set the routes
	over         chan struct{} // closed when Run is to stop
	identified   chan struct{} // closed when instance metadata answered, or will not soon
	identity     chan struct{} // asks for it at once
	pulse        pulse         // tells standstills of this machine
	running      tasks         // workers, and approvals by hand
}

// imdsState is how the endpoint answers.
type imdsState struct {
	turned     time.Time // when the poll loop last came round
	lastAnswer time.Time // valid, since the start
	lastErr    string
	told       bool     // that it is unavailable
	problems   []string // of the last document
	full       bool     // changes of it are left out for want of room
}

// crew is a worker and how to end it. What ends it may be called again.
type crew struct {
	*delivery.Worker
	kind  string // of its route
	stop  func() // when the program ends
	leave func() // when another takes over
	cut   func() // at once
	done  chan struct{}
}

// New makes a Bridge. It does nothing before Run.
func New(o Options) *Bridge {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Meter == nil {
		o.Meter = noMeter{}
	}
	if o.Warnings == nil {
		o.Warnings = func() []string { return nil }
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	if o.Turned == nil {
		o.Turned = func() {}
	}
	b := &Bridge{
		Options: o, began: time.Now(), routes: o.Routes, rules: o.Rules,
		rulings: map[string]string{}, waits: map[string]wait{}, byHand: map[string]int{},
		beats: map[string]time.Time{}, workers: map[string]*crew{}, troubled: map[string]bool{}, dead: map[string]*deadNews{},
		routed: make(chan struct{}), over: make(chan struct{}),
		identified: make(chan struct{}), identity: make(chan struct{}, 1),
		pulse: pulse{every: min(o.Interval, DefaultInterval)},
	}
	o.Outbox.Notify(outbox.Notify{Dead: b.deadLettered, Loaded: b.takeUp, Forgot: o.Meter.Forgot})
	b.remember()
	b.setObserver(imds.Observer{})
	return b
}

// takeUp takes in an outbox's file that came late. As at a start, a backlog waits until it is known whose it is.
func (b *Bridge) takeUp() {
	if b.Outbox.Totals().Pending > 0 {
		b.awaitName(context.Background())
	}
	b.remember()
}

// remember takes in what the outbox's file held, beside what is known already: it may have come late.
func (b *Bridge) remember() {
	stored := b.Outbox.Stored()
	var observer imds.Observer
	var answer lastAnswer
	for name, v := range map[string]any{valueObserver: &observer, valueAnswer: &answer} {
		if kept := stored.Values[name]; kept != nil {
			if err := json.Unmarshal(kept, v); err != nil {
				b.Log.Error("the outbox holds something that can't be read", "name", name, "err", err)
			}
		}
	}
	b.deciding.Lock()
	defer b.deciding.Unlock()
	b.mu.Lock()
	since := b.answer.At
	if answer.At.After(since) {
		b.answer = answer
	}
	if b.observer == (imds.Observer{}) {
		b.observer = observer
	}
	b.mu.Unlock()
	open := b.Outbox.Groups() // the others ended before the file came
	maps.DeleteFunc(stored.Groups, func(id string, _ outbox.Group) bool { _, is := open[id]; return !is })
	told := b.events.load(stored.Groups, answer.At, since, b.Log)
	b.reread.Store(true)
	b.nextReminder = time.Time{}
	if stale := b.toldAnew(told); len(told)+len(stale) > 0 {
		b.Outbox.Submit(outbox.Batch{Now: time.Now(), Supersede: stale, Groups: told})
	}
}

// lastAnswer is the last valid answer, of this run or of one before.
func (b *Bridge) lastAnswer() lastAnswer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answer
}

// noteAnswer remembers a valid answer, and what the time since the last one means for the events that are open. The
// answer alone reaches the outbox within a minute.
func (b *Bridge) noteAnswer(a lastAnswer, rebooted bool) {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	b.mu.Lock()
	before, touched := b.answer, b.touched
	b.answer = a
	b.mu.Unlock()
	groups := b.events.note(func(op *openEvent) bool { return op.unwatched(before.since(a.At), rebooted) })
	if len(groups) == 0 && a.At.Sub(touched) < touchEvery {
		return
	}
	b.mu.Lock()
	b.touched = a.At
	b.mu.Unlock()
	b.Outbox.Submit(outbox.Batch{Now: a.At, Values: map[string][]byte{valueAnswer: imds.CompactJSON(a)}, Groups: groups})
}

// jitter is a random time between the half of d and d.
func (b *Bridge) jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(b.Random()*float64(d/2))
}

// Run watches until ctx is done; then it stops in order: it finishes what is under way, within five seconds, keeps the
// rest, and closes the outbox. It is called once.
func (b *Bridge) Run(ctx context.Context) error {
	now := time.Now()
	defer b.running.cut()
	b.mu.Lock()
	b.began, b.pulse.last = now, now
	routes := b.routes
	b.mu.Unlock()
	b.setRoutes(routes, now, func() {})
	close(b.routed)

	var loops sync.WaitGroup
	loops.Go(func() { b.identify(ctx) })
	loops.Go(func() { b.startWorkers(ctx) })
	loops.Go(func() { b.housekeep(ctx) })
	loops.Go(func() { b.approve(ctx) })
	loops.Go(func() { b.seek(ctx) })
	loops.Go(func() { b.feelPulse(ctx) })
	b.watch(ctx)
	close(b.over)
	loops.Wait()

	b.tellDead(time.Now(), 0)
	b.tellBridge(cloudevent.BridgeStopping, map[string]any{"pending": b.Outbox.Totals().Pending}, "")
	cutter := time.AfterFunc(stopPatience, b.running.cut)
	defer cutter.Stop()
	b.mu.Lock()
	b.stopping = true
	for _, c := range b.workers {
		c.stop()
	}
	b.mu.Unlock()
	b.running.wait()
	if a := b.lastAnswer(); !a.At.IsZero() {
		waits := b.events.note(func(op *openEvent) bool { return op.Waited != nil })
		b.Outbox.Submit(outbox.Batch{Now: time.Now(), Values: map[string][]byte{valueAnswer: imds.CompactJSON(a)},
			Groups: waits})
	}
	return b.Outbox.Close()
}

// Reload swaps the routes and rules for others. Each route takes over the backlog of its name. Reload waits until Run
// has set the routes of the start, but not for attempts under way: each is finished, and only then does the name's new
// route begin. A Sink that is an io.Closer is closed when its route has ended, so it must not be used again.
func (b *Bridge) Reload(routes []Route, rules []Rule, s SettingsInfo) {
	<-b.routed
	b.reloading.Lock()
	defer b.reloading.Unlock()
	wait := b.setRoutes(routes, time.Now(), func() { // so that each change is asked of the old routes or of the new ones
		b.mu.Lock()
		defer b.mu.Unlock()
		b.routes, b.rules, b.Settings = routes, rules, s
	})
	_ = wait() // the outbox says when it can't write
	b.reread.Store(true)

	b.mu.Lock()
	for _, c := range b.workers {
		c.leave()
	}
	if b.delivering && !b.stopping {
		for _, r := range routes {
			b.startWorker(r)
		}
	}
	b.mu.Unlock()
	b.tellBridge(cloudevent.SettingsLoaded, map[string]any{"settingsHash": s.Hash}, "")
}

// SettingsFailed notes why newer settings were not taken.
func (b *Bridge) SettingsFailed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Settings.LastError = err.Error()
}

// startWorkers lets the routes begin. A backlog of before the start waits until it is known whose it is.
func (b *Bridge) startWorkers(ctx context.Context) {
	if b.Outbox.Totals().Pending > 0 {
		b.awaitName(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	b.delivering = true
	for _, r := range b.routes {
		b.startWorker(r)
	}
}

// startWorker begins the deliveries of a route, after those of its name that are under way. mu is held.
func (b *Bridge) startWorker(r Route) {
	ctx, end := b.running.begin(context.Background())
	ctx, cut := context.WithCancel(ctx)
	stop, leave := make(chan struct{}), make(chan struct{})
	before := b.workers[r.Name]
	c := &crew{
		Worker: delivery.NewWorker(delivery.Config{
			Route: r.Name, Sink: r.Sink, Terms: r.Terms.Terms, Queue: b.Outbox.Queue(r.Name), Secrets: r.Secrets,
			Log: b.Log, Meter: b.Meter, Random: b.Random,
			Trouble: func(why error) { b.trouble(r.Name, why) },
		}),
		kind: r.Kind, done: make(chan struct{}), cut: cut,
		stop: sync.OnceFunc(func() { close(stop) }), leave: sync.OnceFunc(func() { close(leave) }),
	}
	b.workers[r.Name] = c
	go func() {
		defer end()
		defer close(c.done)
		defer cut()
		if before != nil {
			before.end()
		}
		c.Run(ctx, stop, leave)
		if closer, ok := r.Sink.(io.Closer); ok {
			if err := closer.Close(); err != nil {
				c.Log.Debug("sink not closed properly", "err", err)
			}
		}
	}()
}

// end waits for a worker that was told to end. When its attempt goes on although its time is over, it is cut off; an
// attempt without a time limit is waited for.
func (c *crew) end() {
	var over <-chan time.Time
	if c.Terms.Timeout > 0 {
		over = time.After(c.Terms.Timeout + stopPatience)
	}
	select {
	case <-c.done:
	case <-over:
		c.cut()
		<-c.done
	}
}
