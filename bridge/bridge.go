package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// touchEvery is the longest age of the last valid answer in the outbox.
const touchEvery = time.Minute

// stopTimeout is the time that a stop leaves to attempts under way. With the second that a canceled one may take to return,
// a stop takes five.
const stopTimeout = 4 * time.Second

// Options configure a Bridge.
type Options struct {
	Client   *imds.Client
	Outbox   *outbox.Outbox
	Routes   []Route
	Rules    []Rule        // of approval; the first one that approves counts
	Interval time.Duration // between polls; 0 for defaultInterval
	VMName   string        // the observer's name; "" to ask instance metadata
	Host     string        // names the observer in CloudEvents until its name is known
	Source   string        // CloudEvents source; "" derives it
	Booted   time.Time     // when this machine booted; zero if unknown
	Version  string        // of the program
	Settings SettingsInfo
	Log      *slog.Logger   // nil to log nothing
	Meter    Meter          // nil to count nothing
	Random   func() float64 // in [0,1), for jitter; safe for concurrent use; nil for that of math/rand
	Turned   func()         // called on each turn of the poll loop; may be nil

	// Warnings returns Status.Warnings; may be nil. It must be safe for concurrent use, and must not call the Bridge.
	Warnings func() []string
}

// A Bridge watches the scheduled events of one VM and delivers every change to its routes. Its methods are safe for
// concurrent use.
type Bridge struct {
	options Options // as given to New; Routes, Rules and Settings are those of the start
	client  *imds.Client
	outbox  *outbox.Outbox
	log     *slog.Logger
	meter   Meter

	events openEvents
	reread atomic.Bool // make the next poll unconditional: the outbox or the settings have changed, or a document is in doubt

	mu               sync.Mutex // guards the fields below up to reloading
	began            time.Time
	observer         imds.Observer
	learned          bool       // instance metadata has named the observer in this run
	whyUnnamed       string     // why the observer's name is unknown
	answer           lastAnswer // the last valid one, of this run or an earlier one
	touched          time.Time  // when it was last written to the outbox
	routes           []Route
	rules            []Rule
	byHand           map[string]int          // by EventId: the number of approvals by hand under way
	workers          map[string]*routeWorker // by route, also of removed routes until they have ended
	delivering       bool                    // workers have been started
	current          bool                    // a valid answer is committed since the start, or since join
	hidden           []string                // events that a partial document hides, so that nobody knows whether they are over
	polled           chan struct{}           // closed when a poll was handled that began after it was set: see awaitPoll
	settings         SettingsInfo
	generation       int  // how often Reload has replaced the routes
	stopping         bool // no more workers are started
	imds             imdsState
	lastHeartbeat    map[string]beat         // by route
	lastHead         map[string]reportedHead // by route
	disk             diskOutage              // only housekeep uses it
	reviews          reviews                 // has a lock of its own
	needs            NeedLog                 // has a lock of its own
	lastDead         map[string]time.Time    // by route: when its dead letters were last reported
	stamps           stamps                  // of CloudEvents about the bridge
	lastHousekeeping time.Time               // when housekeeping last ran
	lastApproving    time.Time               // the last turn of the approval loop

	reloading  sync.Mutex    // one reload at a time
	deciding   sync.Mutex    // held while open events are decided about; taken before mu
	routed     chan struct{} // closed when Run has set the routes
	watchEnded chan struct{} // closed when the poll loop has ended
	identified chan struct{} // closed when instance metadata has said which VM this is, or won't soon
	identity   chan struct{} // asks for it at once
	pauses     pauseDetector // notices when this machine stood still
	running    *tasks        // workers, and approvals by hand
}

// imdsState is the state of the endpoint.
type imdsState struct {
	lastTurn   time.Time // the last turn of the poll loop
	lastAnswer time.Time // the last valid one since the start
	lastErr    string
	reported   bool     // its unavailability was reported
	problems   []string // of the last document
	full       bool     // changes are left out because too many events are open
}

// New returns a Bridge. It starts nothing before Run. Its error says which options can't be used.
func New(o Options) (*Bridge, error) {
	if o.Client == nil || o.Outbox == nil {
		return nil, errors.New("a bridge needs a Client and an Outbox")
	}
	if o.Interval < 0 {
		return nil, fmt.Errorf("the interval is %v; expected a time between polls, or 0 for %v", o.Interval, defaultInterval)
	}
	if err := usable(o.Routes, o.Rules); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	if o.Meter == nil {
		o.Meter = NoMeter{}
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
	o.Settings.Zone = o.Settings.Location()
	b := &Bridge{
		options: o, client: o.Client, outbox: o.Outbox, log: o.Log, meter: o.Meter,
		began: time.Now(), routes: o.Routes, rules: o.Rules, settings: o.Settings,
		byHand:        map[string]int{},
		whyUnnamed:    "instance metadata has not answered yet",
		lastHeartbeat: map[string]beat{}, lastHead: map[string]reportedHead{}, lastDead: map[string]time.Time{},
		workers: map[string]*routeWorker{}, routed: make(chan struct{}),
		polled: make(chan struct{}), watchEnded: make(chan struct{}),
		identified: make(chan struct{}), identity: make(chan struct{}, 1), running: newTasks(),
		pauses: pauseDetector{every: min(o.Interval, defaultInterval)},
	}
	o.Outbox.Update(b.began, func(tx *outbox.Tx) { tx.HoldActing(everyGroup) }) // until beginActing
	o.Outbox.SetCallbacks(outbox.Callbacks{Dead: b.deadLettered, Forgot: o.Meter.Forgot})
	was := decodeStored(o.Outbox.Value, o.Outbox.Groups())
	for _, err := range was.unreadable {
		o.Log.Error(cannotRead, "err", err)
	}
	b.observer, b.answer = was.observer, was.answer
	b.events.load(was.events)
	b.setObserver(imds.Observer{})
	return b, nil
}

// cannotRead is the log message about a part of stored that can't be read.
const cannotRead = "cannot read a part of the outbox"

// stored is what the outbox holds of the bridge's state.
type stored struct {
	observer   imds.Observer
	answer     lastAnswer
	events     map[string]*openEvent // by EventId
	unreadable []error               // why parts of it are left out
}

// decodeStored decodes values and groups of the outbox.
func decodeStored(value func(name string) []byte, groups map[string]outbox.Group) (s stored) {
	s.events, s.unreadable = decodeAll(groups)
	for name, to := range map[string]any{valueObserver: &s.observer, valueAnswer: &s.answer} {
		v := value(name)
		if v == nil {
			continue
		}
		err := json.Unmarshal(v, to)
		if err != nil {
			s.unreadable = append(s.unreadable, fmt.Errorf("value %s: %w", name, err))
		}
	}
	return s
}

// lastAnswer returns the last valid answer, of this run or an earlier one.
func (b *Bridge) lastAnswer() lastAnswer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answer
}

// beginActing lets what acts begin, because a valid answer is committed and shows which events are over. A partial document
// doesn't show that of those that it hides.
func (b *Bridge) beginActing() {
	var hidden []string
	for _, op := range b.events.all() {
		if !op.lastListed.IsZero() {
			hidden = append(hidden, op.event.ID)
		}
	}
	b.mu.Lock()
	same := b.current && slices.Equal(hidden, b.hidden)
	b.current, b.hidden = true, hidden
	b.mu.Unlock()
	if !same {
		held := func(group string) bool { return slices.Contains(hidden, group) }
		b.outbox.Update(time.Now(), func(tx *outbox.Tx) { tx.HoldActing(held) })
	}
}

// everyGroup holds every group: see outbox.Tx.HoldActing.
func everyGroup(string) bool { return true }

// jitter returns a random duration between d/2 and d.
func (b *Bridge) jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(b.options.Random()*float64(d/2))
}

// Run watches until ctx is done. Then it stops cleanly: it lets attempts under way finish within five seconds, keeps
// the other deliveries pending, and closes the outbox. It must be called once. An error means that deliveries are lost.
func (b *Bridge) Run(ctx context.Context) error {
	now := time.Now()
	defer b.running.cut()
	b.mu.Lock()
	b.began, b.pauses.last = now, now
	routes := b.routes
	b.mu.Unlock()
	b.update(func() commit { return b.offerTo(routes, false) })
	b.endMutes()
	close(b.routed)

	var loops sync.WaitGroup
	loops.Go(func() { b.identify(ctx) })
	loops.Go(func() { b.startWorkers(ctx); b.takeOver(ctx) })
	loops.Go(func() { every(ctx, housekeepEvery, b.housekeep) })
	loops.Go(func() { every(ctx, approveEvery, func() { b.approve(ctx) }) })
	loops.Go(func() { every(ctx, b.pauses.every, b.notePause) })
	b.watch(ctx)
	close(b.watchEnded)
	loops.Wait()

	cutter := time.AfterFunc(stopTimeout, b.running.cut)
	defer cutter.Stop()
	b.reportDead(time.Now(), 0)
	b.reportBridge(cloudevent.BridgeStopping, map[string]any{"pending": b.outbox.Totals().Pending}, "")
	b.sendLastHeartbeats()
	b.endChained()
	b.reportHeads(time.Now(), 0)
	b.mu.Lock()
	b.stopping = true
	for _, c := range b.workers {
		c.stop()
	}
	b.mu.Unlock()
	b.running.wait()
	if a := b.lastAnswer(); !a.At.IsZero() {
		b.keepValue(valueAnswer, imds.CompactJSON(a))
	}
	if err := b.outbox.Close(); err != nil { // deliveries are lost
		return fmt.Errorf("%w; events that are still open are told again at the next start", err)
	}
	return nil
}

// every calls f at that interval until ctx is done.
func every(ctx context.Context, interval time.Duration, f func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}

// Reload replaces the routes and rules. Each new route takes over the backlog of its name. Reload waits until Run has
// set the first routes, but not for attempts under way: a new route starts once the last attempt of its name has
// finished. When a route has ended, its Sink is closed if it is an io.Closer, so a Sink must not be used again.
//
// After an error, the old routes and rules stay: the new ones can't be used, or ctx ended before Run had set the first.
func (b *Bridge) Reload(ctx context.Context, routes []Route, rules []Rule, s SettingsInfo) error {
	if err := usable(routes, rules); err != nil {
		return err
	}
	select {
	case <-b.routed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.Zone = s.Location()
	b.reloading.Lock()
	defer b.reloading.Unlock()
	now := time.Now()
	wait := b.update(func() commit { // a change goes to the old routes or to the new ones
		b.mu.Lock()
		b.routes, b.rules, b.settings = routes, timed(rules, b.rules, now), s
		b.generation++
		b.mu.Unlock()
		return b.offerTo(routes, false)
	})
	_ = wait() // the outbox logs its errors
	b.endMutes()
	b.reread.Store(true)

	b.mu.Lock()
	for _, c := range b.workers {
		if c.generation != b.generation { // startWorkers may have been faster
			c.leave()
		}
	}
	if b.delivering && !b.stopping {
		for _, r := range routes {
			b.startWorker(r)
		}
	}
	b.mu.Unlock()
	b.reportBridge(cloudevent.SettingsLoaded, map[string]any{"settingsHash": s.Hash}, "")
	return nil
}

// SettingsFailed records the error of a reload that failed before Reload.
func (b *Bridge) SettingsFailed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settings.LastError = err.Error()
}
