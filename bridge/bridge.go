package bridge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// The timing of the bridge.
const (
	DefaultInterval = time.Second
	firstPatience   = 150 * time.Second // for the first answer: Azure may take two minutes to switch events on
	patience        = 10 * time.Second  // for later ones
	slowRetry       = 30 * time.Second  // after an answer that will be the same until somebody acts
	fullPoll        = time.Minute       // how often a poll is unconditional whatever the ETag
	gapAbove        = 10 * time.Second  // between valid answers
	awayAbove       = time.Minute       // without a valid answer; what is found then was found late
	nameForFirst    = 3 * time.Second   // what the first document waits for the observer
	nameForBacklog  = 10 * time.Second  // the same, where the outbox may turn out to be another VM's
	nameForFilters  = time.Minute       // what filters wait for the observer's name
	stopPatience    = 5 * time.Second
	slowFirst       = 10 * time.Second // without an answer: say why that may be
)

// pollBackoff are the waits after failed polls, with jitter; the last one stays.
var pollBackoff = []time.Duration{1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second}

// Options are what a Bridge is made of.
type Options struct {
	Client   *Client
	Outbox   *Outbox
	Routes   []Route
	Interval time.Duration // between polls; 0 is DefaultInterval
	VMName   string        // the observer's name, when it is not to be asked from instance metadata
	Host     string        // names the observer in CloudEvents about the bridge while Azure has not
	Source   string        // CloudEvents source; "" derives it
	Booted   time.Time     // when this machine booted; zero if unknown
	Version  string        // of the program
	Settings SettingsInfo
	Log      *slog.Logger
}

// SettingsInfo says which settings are in force.
type SettingsInfo struct {
	Hash     string    `json:"hash"`
	LoadedAt time.Time `json:"loadedAt"`
	// LastError is why newer settings were not taken, "" if there is no such thing.
	LastError string `json:"lastError"`
}

// A Bridge watches one VM's scheduled events and delivers every change to its routes.
type Bridge struct {
	Options
	began time.Time

	mu       sync.Mutex
	observer Observer
	named    bool // metadata, or the settings, said the observer's name since the start
	routes   []Route
	workers  map[string]*crew
	imds     imdsState
	told     map[string]bool // routes whose trouble was told
	dead     map[string]*deadNews
	stamp    time.Time // of the last CloudEvent about the bridge
	problems map[string]bool

	deciding   sync.Mutex    // held while filters are asked and the answer is stored
	identified chan struct{} // closed when instance metadata answered anything at all
	ctx        context.Context
	stop       chan struct{}
	running    sync.WaitGroup // workers
}

// imdsState is how the endpoint answers.
type imdsState struct {
	turned     time.Time // when the poll loop last came round
	lastAnswer time.Time // valid, since the start
	lastErr    string
	failing    time.Time // since when there was no valid answer; zero while there is
	told       bool      // that it is unavailable
	failures   int
}

// crew is a worker and how to stop it.
type crew struct {
	*worker
	stop chan struct{}
	done chan struct{}
	cut  context.CancelFunc
}

// New makes a Bridge. It does nothing before Run.
func New(o Options) *Bridge {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	b := &Bridge{
		Options: o, routes: o.Routes, workers: map[string]*crew{}, told: map[string]bool{}, dead: map[string]*deadNews{},
		problems: map[string]bool{}, identified: make(chan struct{}), stop: make(chan struct{}),
	}
	b.observer, _ = o.Outbox.stored()
	b.setObserver(Observer{})
	o.Outbox.gaveUp = b.deadLettered
	return b
}

// setObserver merges what was learnt with what is set. mu is held, or nobody else knows b.
func (b *Bridge) setObserver(o Observer) {
	if o != (Observer{}) {
		b.observer = o
	}
	if b.VMName != "" {
		b.observer.Name, b.named = b.VMName, true
	}
}

// self is the observer as CloudEvents about the bridge name it.
func (b *Bridge) self() Observer {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.observer
	if o.Name == "" {
		o.Name = b.Host
	}
	return o
}

// Run watches until ctx is done; then it stops in order: it finishes what is under way, within five seconds, keeps the
// rest, and closes the outbox.
func (b *Bridge) Run(ctx context.Context) error {
	b.began = time.Now()
	hard, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	b.ctx = hard
	if err := b.Outbox.maintain(b.began); err != nil {
		b.Log.Warn("the outbox could not be tidied", "err", err)
	}
	b.setRoutes(b.routes, b.began)

	var loops sync.WaitGroup
	loops.Go(func() { b.identify(ctx) })
	loops.Go(func() { b.startWorkers(ctx) })
	loops.Go(func() { b.housekeep(ctx) })
	b.watch(ctx)
	loops.Wait()

	b.tellBridge(BridgeStopping, map[string]any{"pending": b.Outbox.pendingCount()}, "")
	cutter := time.AfterFunc(stopPatience, cut)
	defer cutter.Stop()
	b.mu.Lock()
	for _, c := range b.workers {
		close(c.stop)
	}
	b.mu.Unlock()
	b.running.Wait()
	return b.Outbox.Close()
}

func names(routes []Route) []string {
	list := make([]string, len(routes))
	for i, r := range routes {
		list[i] = r.Name
	}
	return list
}

// setRoutes tells the outbox which routes there are. One that was never there before is owed the newest change of every
// open event.
func (b *Bridge) setRoutes(routes []Route, now time.Time) {
	added := b.Outbox.setRoutes(names(routes), now)
	if len(added) == 0 {
		return
	}
	routes = slices.DeleteFunc(slices.Clone(routes), func(r Route) bool { return !slices.Contains(added, r.Name) })
	b.deciding.Lock()
	defer b.deciding.Unlock()
	events, states, _ := b.Outbox.known()
	c := Commit{Open: map[string]*Open{}}
	s := b.scene(moment{now: now})
	for _, e := range events {
		op := states[e.ID]
		ce, err := b.Outbox.cloudEvent(op.Latest)
		if err != nil {
			b.Log.Warn("a new sink will not hear of an event that is open", "event", e.ID, "err", err)
			continue
		}
		change := changeOf(ce)
		owed := Owed{CloudEvent: ce, Event: e.ID, Change: change.Kind, NotBefore: e.NotBefore, HeldUntil: s.heldUntil, Again: op.Latest}
		op.Routes, op.Undecided = slices.Clone(op.Routes), slices.Clone(op.Undecided)
		for _, r := range routes {
			s.decide(r, change, Fields(ce), &op, &owed)
		}
		c.Open[e.ID] = &op
		c.Owed = append(c.Owed, owed)
	}
	if len(c.Owed) > 0 {
		_ = b.Outbox.Commit(c, now) // the store says when it cannot write
	}
}

// Reload swaps the routes for others, each of which takes up what is owed to its name. An attempt under way is
// finished first, within five seconds.
func (b *Bridge) Reload(routes []Route, s SettingsInfo) {
	b.mu.Lock()
	old := b.workers
	b.workers, b.routes, b.Settings = map[string]*crew{}, routes, s
	b.mu.Unlock()
	b.Outbox.reloaded.Store(true) // the next poll is unconditional
	for _, c := range old {
		close(c.stop)
	}
	b.setRoutes(routes, time.Now())
	var swapped sync.WaitGroup
	for _, r := range routes {
		swapped.Go(func() {
			if c := old[r.Name]; c != nil {
				c.end(stopPatience)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			b.startWorker(r)
		})
	}
	swapped.Wait()
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
	for _, r := range b.routes {
		b.startWorker(r)
	}
}

// awaitName waits until instance metadata has said who this VM is, but not for ever: it may be out of reach just when
// what is owed matters.
func (b *Bridge) awaitName(ctx context.Context) {
	limit := nameForFirst
	events, _, _ := b.Outbox.known()
	if _, owner := b.Outbox.stored(); owner != "" && len(events)+b.Outbox.pendingCount() > 0 {
		limit = nameForBacklog
	}
	select {
	case <-b.identified:
	case <-ctx.Done():
	case <-time.After(limit - time.Since(b.began)):
		b.Log.Warn("instance metadata does not answer; going on without knowing for sure which VM this is")
	}
}

// startWorker begins the deliveries of a route. mu is held.
func (b *Bridge) startWorker(r Route) {
	ctx, cut := context.WithCancel(b.ctx)
	c := &crew{worker: newWorker(r, b.Outbox, b.Log, b.blocked), stop: make(chan struct{}), done: make(chan struct{}), cut: cut}
	b.workers[r.Name] = c
	b.running.Go(func() {
		defer close(c.done)
		c.run(ctx, c.stop)
	})
}

// end waits for a worker that was told to stop, and cuts it off when it takes too long.
func (c *crew) end(limit time.Duration) {
	select {
	case <-c.done:
	case <-time.After(limit):
		c.cut()
		<-c.done
	}
}

// identify asks who this VM is until it is known.
func (b *Bridge) identify(ctx context.Context) {
	answered := sync.OnceFunc(func() { close(b.identified) })
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		o, err := b.askInstance(ctx)
		if err == nil {
			b.learn(o)
			answered()
			return
		}
		if _, ok := err.(*answerError); ok {
			answered()
		}
		b.Log.Debug("instance metadata does not say who this VM is", "err", err)
		select {
		case <-time.After(wait/2 + rand.N(wait/2)):
		case <-ctx.Done():
			return
		}
	}
}

func (b *Bridge) askInstance(ctx context.Context) (Observer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	return b.Client.Instance(ctx)
}

// learn takes what instance metadata says.
func (b *Bridge) learn(o Observer) {
	b.deciding.Lock()
	fresh, err := b.Outbox.Own(o.VMID)
	b.deciding.Unlock()
	if err != nil {
		b.Log.Error("the outbox could not be made this VM's own", "err", err)
	}
	b.mu.Lock()
	before := b.observer
	b.setObserver(o)
	b.named = b.named || b.observer.Name != ""
	now := b.observer
	b.mu.Unlock()
	if now != before || fresh {
		b.Log.Info("this VM", "name", now.Name, "vmId", now.VMID, "scaleSet", now.ScaleSet, "location", now.Location)
		_ = b.Outbox.Commit(Commit{Observer: &now}, time.Now())
	}
	b.decideHeld(time.Now())
}

// watch polls until ctx is done.
func (b *Bridge) watch(ctx context.Context) {
	w := watcher{Bridge: b, ctx: ctx}
	slow := time.AfterFunc(slowFirst, func() {
		b.Log.Info("no answer yet: the first one can take Azure two minutes", "endpoint", b.Client.Endpoint())
	})
	defer slow.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		wait := w.poll()
		b.mu.Lock()
		b.imds.turned = time.Now()
		b.mu.Unlock()
		if !w.last.IsZero() {
			slow.Stop()
		}
		select {
		case <-time.After(wait - time.Since(began)):
		case <-ctx.Done():
		}
	}
}

// A watcher is the state of the poll loop.
type watcher struct {
	*Bridge
	ctx context.Context

	last     time.Time // the last valid answer since the start
	etag     string    // of the last committed, wholly understood document
	full     time.Time // the last unconditional poll
	body     [sha256.Size]byte
	number   string // incarnation of the last document
	empty    bool   // the last answer was empty
	failures int
}

// poll asks once and draws the conclusions. It returns the time to the next poll, from the beginning of this one.
func (w *watcher) poll() time.Duration {
	limit := patience
	if w.last.IsZero() {
		limit = firstPatience
	}
	if w.Outbox.reloaded.Swap(false) {
		w.etag, w.body = "", [sha256.Size]byte{}
	}
	etag := w.etag
	if time.Since(w.full) >= fullPoll {
		etag = ""
	}
	ctx, cancel := context.WithTimeoutCause(w.ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	p := w.Client.Poll(ctx, etag)
	if w.ctx.Err() != nil {
		return 0
	}
	if etag == "" && p.Err == nil {
		w.full = time.Now()
	}
	wasEmpty := w.empty
	w.empty = p.Class == PollEmpty
	switch {
	case p.Err != nil:
		w.etag = ""
		return w.failed(p)
	case p.Class == PollEmpty && !wasEmpty:
		w.etag = "" // counts when the next one says so too
		return w.Interval
	}
	w.answered(p, time.Now())
	return w.Interval
}

// failed notes a failed poll, which changes nothing else.
func (w *watcher) failed(p Poll) time.Duration {
	w.failures++
	w.mu.Lock()
	news := w.imds.lastErr != p.Err.Error()
	w.imds.lastErr, w.imds.failures = p.Err.Error(), w.failures
	if w.imds.failing.IsZero() {
		w.imds.failing = time.Now()
	}
	w.mu.Unlock()
	if news {
		hint := "trying again"
		if w.last.IsZero() && p.Class == PollRetry {
			hint = "is this an Azure VM? To see what forewarn does elsewhere: forewarn demo"
		}
		w.Log.Warn("the endpoint gave no valid answer; what is known stays", "endpoint", w.Client.Endpoint(), "err", p.Err, "hint", hint)
	}
	if p.Class == PollSettings {
		return slowRetry
	}
	d := pollBackoff[min(w.failures, len(pollBackoff))-1]
	return max(d/2+rand.N(d/2), p.RetryAfter)
}

// answered takes a valid answer.
func (w *watcher) answered(p Poll, now time.Time) {
	first := w.last.IsZero()
	w.last = now
	if first {
		w.awaitName(w.ctx)
	}
	w.mu.Lock()
	failing, told := w.imds.failing, w.imds.told
	w.imds = imdsState{lastAnswer: now, turned: w.imds.turned}
	w.mu.Unlock()
	if w.failures > 0 {
		w.Log.Info("the endpoint answers again", "after", w.failures)
		w.failures = 0
	}

	before := w.Outbox.lastAnswer()
	m := moment{now: now, before: before.At, away: first || now.Sub(before.At) > awayAbove}
	next := lastAnswer{At: now, Incarnation: before.Incarnation, APIVersion: w.Client.APIVersion()}
	if p.Class == PollDocument {
		next.Incarnation = p.Document.Incarnation
	}
	w.Outbox.answered(next, !before.At.IsZero() && w.Booted.After(before.At))
	if first {
		w.started(before, now)
	}
	if told {
		w.tellBridge(IMDSRecovered, map[string]any{"endpoint": w.Client.Endpoint(), "gap": gap{failing, now}}, "")
	}
	if p.Class == PollUnchanged {
		return
	}
	sum := sha256.Sum256(p.Body)
	if sum == w.body && !first {
		w.etag = p.ETag
		return
	}
	if !first && p.Document.Incarnation == w.number && w.number != "" && len(p.Body) > 0 {
		w.Log.Warn("the document changed under one incarnation", "incarnation", w.number)
	}
	w.report(p.Document.Problems)
	if !w.handle(p.Document, m) {
		w.etag = "" // not on disk: the next poll must be able to show it again
		return
	}
	w.body, w.number, w.etag = sum, p.Document.Incarnation, ""
	if len(p.Document.Problems) == 0 {
		w.etag = p.ETag
	}
}

// moment is when a document was seen, and how that lies to the last valid answer.
type moment struct {
	now    time.Time
	before time.Time // the last valid answer; zero if there never was one
	away   bool      // nobody watched for long before it
}

type gap struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
}

// started says that the bridge began to watch.
func (b *Bridge) started(before lastAnswer, now time.Time) {
	data := map[string]any{"version": b.Version, "settingsHash": b.Settings.Hash, "apiVersion": b.Client.APIVersion()}
	if !b.Booted.IsZero() {
		data["bootTime"] = b.Booted.UTC()
	}
	if !before.At.IsZero() {
		data["gap"] = gap{before.At.UTC(), now.UTC()}
	}
	b.tellBridge(BridgeStarted, data, "")
}

// report logs the problems of a document that the one before did not have.
func (b *Bridge) report(problems []string) {
	seen := make(map[string]bool, len(problems))
	for _, p := range problems {
		if !b.problems[p] {
			b.Log.Warn("the document holds something that cannot be understood", "problem", p)
		}
		seen[p] = true
	}
	b.problems = seen
}

// handle commits what a document changes. It returns false when that is not on disk.
func (b *Bridge) handle(doc Document, m moment) bool {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	known, states, before := b.Outbox.known()
	changes := Diff(known, before.APIVersion, doc)
	if len(changes) == 0 {
		return true
	}
	s := b.scene(m)
	s.incarnation = doc.Incarnation
	c := Commit{
		Open: map[string]*Open{}, Told: map[string]told{},
		Answer: &lastAnswer{At: m.now, Incarnation: doc.Incarnation, APIVersion: doc.APIVersion},
	}
	for _, change := range changes {
		if err := s.add(&c, change, states[change.Event.ID]); err != nil {
			b.Log.Error("a change cannot be told", "event", change.Event.ID, "change", change.Kind, "err", err)
		}
	}
	return b.Outbox.Commit(c, time.Now()) == nil
}

// scene is what there is to know at the moment.
func (b *Bridge) scene(m moment) scene {
	b.mu.Lock()
	defer b.mu.Unlock()
	return scene{
		moment: m, observer: b.observer, source: b.Source, routes: b.routes, booted: b.Booted,
		unnamed: time.Since(b.began) > nameForFilters, heldUntil: b.began.Add(nameForFilters),
		told: b.Outbox.told, log: b.Log,
	}
}

// scene is all that turning changes into deliveries depends on, beside the change.
type scene struct {
	moment
	observer    Observer
	source      string
	incarnation string
	routes      []Route
	unnamed     bool
	heldUntil   time.Time
	booted      time.Time
	told        func(id string) told
	log         *slog.Logger
}

// add says one change as a CloudEvent, decides who is owed it, and puts both into the commit. op is what is remembered
// of the event, its zero value for a new one.
func (s scene) add(c *Commit, change Change, op Open) error {
	e := change.Event
	if op.Event == nil { // new
		op = Open{Life: s.told(e.ID).Times + 1, First: s.now}
	}
	if e.Status == statusStarted && op.Started.IsZero() {
		op.Started = s.now
	}
	base := ChangeID(change)
	times := max(op.Life, s.told(base).Times+1)
	in := Circumstances{
		Observer: s.observer, Source: s.source, Time: s.now, Incarnation: s.incarnation,
		WhileAway: s.away, Repeat: times - 1,
	}
	if s.away {
		in.NotEarlierThan = s.before
	}
	if change.Kind == Vanished {
		in.End = end(e, op, s.observer.Name, s.booted, s.now)
	}
	ce, err := Wrap(change, in)
	if err != nil {
		return err
	}
	owed := Owed{CloudEvent: ce, Event: e.ID, Change: change.Kind, NotBefore: e.NotBefore, HeldUntil: s.heldUntil}
	var fields map[string]any
	for _, r := range s.routes {
		if r.Filter.When != nil && fields == nil {
			fields = Fields(ce)
		}
		s.decide(r, change, fields, &op, &owed)
	}
	attrs := []any{"event", e.ID, "type", e.Type, "resources", attribute(strings.Join(e.Resources, ",")), "id", ce.ID(), "owedTo", strings.Join(owed.To, ",")}
	if !e.NotBefore.IsZero() {
		attrs = append(attrs, "notBefore", e.NotBefore)
	}
	s.log.Info(string(change.Kind), attrs...)
	c.Owed = append(c.Owed, owed)
	c.Told[base] = told{Times: times, Event: e.ID, At: s.now}
	c.Told[e.ID] = told{Times: op.Life, Event: e.ID, At: s.now}
	if change.Kind == Vanished {
		c.Open[e.ID] = nil
		return nil
	}
	op.Event, op.event = e.Raw, e
	op.Routes, op.Undecided = slices.Clone(op.Routes), slices.Clone(op.Undecided)
	c.Open[e.ID] = &op
	return nil
}

// decide asks a route's filter, and notes in op and owed what it said.
func (s scene) decide(r Route, change Change, fields map[string]any, op *Open, owed *Owed) {
	wanted, _ := r.Filter.Change(change, s.observer.Name)
	switch {
	case slices.Contains(op.Routes, r.Name):
		if wanted {
			owed.To = append(owed.To, r.Name)
		}
		return
	case slices.Contains(op.Undecided, r.Name):
		if wanted {
			owed.Undecided = append(owed.Undecided, r.Name)
		}
		return
	}
	unnamed := s.unnamed || change.Event.Type == "Preempt"
	verdict, _, err := r.Filter.Event(change, fields, s.observer.Name, unnamed)
	if err != nil {
		s.log.Warn("a filter failed, so the event passes", "sink", r.Name, "event", change.Event.ID, "err", err)
	}
	switch verdict {
	case Accepted:
		if s.observer.Name == "" && !strings.EqualFold(r.Filter.Only.VMs, "all") {
			s.log.Warn("this VM's name is not known, so the event passes", "sink", r.Name, "event", change.Event.ID)
		}
		op.Routes = append(op.Routes, r.Name)
		if wanted {
			owed.To = append(owed.To, r.Name)
		}
	case Undecided:
		op.Undecided = append(op.Undecided, r.Name)
		if wanted {
			owed.Undecided = append(owed.Undecided, r.Name)
		}
	}
}

// end is what can honestly be said about the end of an event.
func end(e Event, op Open, self string, booted, now time.Time) End {
	x := End{Outcome: OutcomeUnknown, LongestPause: op.Pause}
	if booted.After(op.First) {
		x.Back = booted
	}
	switch {
	case !op.Started.IsZero(), op.Rebooted && e.Affects(self):
		x.Outcome = OutcomeCompleted
	case e.Status == statusScheduled && now.Before(e.NotBefore) && !op.Gap && e.Type != "Preempt" && e.Type != "Terminate":
		x.Outcome = OutcomeCanceled
	}
	return x
}

// decideHeld decides the filters that waited for the observer's name, if it is known or the wait is over.
func (b *Bridge) decideHeld(now time.Time) {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	b.mu.Lock()
	self, routes := b.observer.Name, b.routes
	b.mu.Unlock()
	for _, e := range b.Outbox.held() {
		over := now.After(e.Held)
		if self == "" && !over {
			continue
		}
		accept := true
		i := slices.IndexFunc(routes, func(r Route) bool { return r.Name == e.Sink })
		ce, err := b.Outbox.cloudEvent(e.seq)
		if err == nil && i >= 0 {
			verdict, _, _ := routes[i].Filter.Event(changeOf(ce), Fields(ce), self, over)
			accept = verdict != Refused
		}
		if self == "" {
			b.Log.Warn("this VM's name is not known, so the event passes", "sink", e.Sink, "event", e.Event)
		}
		b.Outbox.decide(e.Sink, e.Event, accept)
	}
}

// changeOf reads a change back from its CloudEvent.
func changeOf(ce event.Event) Change {
	c := Change{Kind: ChangeKind(strings.TrimPrefix(ce.Type(), EventPrefix))}
	var d Data
	if json.Unmarshal(ce.Data(), &d) != nil {
		return c
	}
	c.Event, _ = UnmarshalEvent(d.Event)
	c.Fields = d.Changed
	if len(bytes.TrimSpace(d.Previous)) > 0 {
		if previous, err := UnmarshalEvent(d.Previous); err == nil {
			c.Previous = &previous
		}
	}
	return c
}
