package bridge

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// stopPatience is what a stop leaves to attempts under way.
const stopPatience = 5 * time.Second

// Options are what a Bridge is made of.
type Options struct {
	Client   *Client
	Outbox   *Outbox
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
	Meter    Meter  // nil counts nothing
	Turned   func() // called each time the poll loop comes round, by that loop; nil for nobody

	// Warnings are for Status.Warnings; nil for none. It is called at any time, and must not call the Bridge.
	Warnings func() []string

	// Discovery looks for the endpoint that Client is to ask. Nil leaves it as it is.
	Discovery *Discovery
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

	mu         sync.Mutex // taken before that of the outbox
	began      time.Time
	observer   Observer
	nameless   nameless
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
	approving  time.Time            // when the approval loop did

	reloading  sync.Mutex    // one reload after the other
	deciding   sync.Mutex    // held while filters are asked and the answer is stored; taken before mu
	routed     chan struct{} // closed when Run has set the routes
	identified chan struct{} // closed when instance metadata answered anything at all
	identity   chan struct{} // asks for it at once
	pulse      pulse         // tells standstills of this machine
	hard       context.Context
	running    sync.WaitGroup // workers, and approvals by hand
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
	*worker
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
	if o.Turned == nil {
		o.Turned = func() {}
	}
	b := &Bridge{
		Options: o, began: time.Now(), routes: o.Routes, rules: o.Rules,
		rulings: map[string]string{}, waits: map[string]wait{}, byHand: map[string]int{},
		beats: map[string]time.Time{}, workers: map[string]*crew{}, troubled: map[string]bool{}, dead: map[string]*deadNews{},
		routed: make(chan struct{}), identified: make(chan struct{}), identity: make(chan struct{}, 1),
		pulse: pulse{every: min(o.Interval, DefaultInterval)},
	}
	b.observer, _ = o.Outbox.stored()
	b.setObserver(Observer{})
	o.Outbox.gaveUp, o.Outbox.meter = b.deadLettered, o.Meter
	return b
}

// Run watches until ctx is done; then it stops in order: it finishes what is under way, within five seconds, keeps the
// rest, and closes the outbox. It is called once.
func (b *Bridge) Run(ctx context.Context) error {
	now := time.Now()
	hard, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	b.mu.Lock()
	b.began, b.pulse.last, b.hard = now, now, hard
	routes := b.routes
	b.mu.Unlock()
	if err := b.Outbox.maintain(now); err != nil {
		b.Log.Warn("the outbox could not be tidied", "err", err)
	}
	b.deciding.Lock()
	b.setRoutes(routes, now)
	b.deciding.Unlock()
	close(b.routed)

	var loops sync.WaitGroup
	loops.Go(func() { b.identify(ctx) })
	loops.Go(func() { b.startWorkers(ctx) })
	loops.Go(func() { b.housekeep(ctx) })
	loops.Go(func() { b.approve(ctx) })
	loops.Go(func() { b.seek(ctx) })
	loops.Go(func() { b.feelPulse(ctx) })
	b.watch(ctx)
	loops.Wait()

	b.tellDead(time.Now(), 0)
	b.tellBridge(BridgeStopping, map[string]any{"pending": b.Outbox.pendingCount()}, "")
	cutter := time.AfterFunc(stopPatience, cut)
	defer cutter.Stop()
	b.mu.Lock()
	b.stopping = true
	for _, c := range b.workers {
		c.stop()
	}
	b.mu.Unlock()
	b.running.Wait()
	return b.Outbox.Close()
}

// Reload swaps the routes and rules for others. Each route takes up what is owed to its name. Reload waits until Run has
// set the routes of the start, but not for attempts under way: each is finished, and only then does the name's new route
// begin. A Sink that is an io.Closer is closed when its route has ended, so it must not be used again.
func (b *Bridge) Reload(routes []Route, rules []Rule, s SettingsInfo) {
	<-b.routed
	b.reloading.Lock()
	defer b.reloading.Unlock()
	b.deciding.Lock() // so that each change is asked of the old routes or of the new ones
	b.mu.Lock()
	b.routes, b.rules, b.Settings = routes, rules, s
	b.mu.Unlock()
	b.setRoutes(routes, time.Now())
	b.deciding.Unlock()
	b.Outbox.reloaded.Store(true) // the next poll is unconditional

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
	b.tellBridge(SettingsLoaded, map[string]any{"settingsHash": s.Hash}, "")
}

// SettingsFailed notes why newer settings were not taken.
func (b *Bridge) SettingsFailed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Settings.LastError = err.Error()
}

// startWorkers lets the routes begin. A backlog of before the start waits until it is known whose it is.
func (b *Bridge) startWorkers(ctx context.Context) {
	if b.Outbox.pendingCount() > 0 {
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
	ctx, cut := context.WithCancel(b.hard)
	stop, leave := make(chan struct{}), make(chan struct{})
	before := b.workers[r.Name]
	c := &crew{
		worker: newWorker(r, b.Outbox, b.Log, b.Meter, b.trouble), done: make(chan struct{}), cut: cut,
		stop: sync.OnceFunc(func() { close(stop) }), leave: sync.OnceFunc(func() { close(leave) }),
	}
	b.workers[r.Name] = c
	b.running.Go(func() {
		defer close(c.done)
		defer cut()
		if before != nil {
			before.end()
		}
		c.run(ctx, stop, leave)
		if closer, ok := r.Sink.(io.Closer); ok {
			if err := closer.Close(); err != nil {
				c.log.Debug("sink not closed properly", "err", err)
			}
		}
	})
}

// end waits for a worker that was told to end, and cuts it off when its attempt goes on although its time is over.
func (c *crew) end() {
	select {
	case <-c.done:
	case <-time.After(c.terms.Timeout + stopPatience):
		c.cut()
		<-c.done
	}
}

func names(routes []Route) []string {
	list := make([]string, len(routes))
	for i, r := range routes {
		list[i] = r.Name
	}
	return list
}
