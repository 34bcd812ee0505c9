package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/fleet"
	"forewarn/bridge/internal/streams"
)

// stopTimeout is how long a stop waits for attempts under way. With the second that a canceled one may take to return, a
// stop takes five. While the servers don't answer, it waits for them too: see Run.
const stopTimeout = 4 * time.Second

// reconnectAfter is how long the relay waits after a failure before it connects again.
const reconnectAfter = 2 * time.Second

// Options are the settings of a Relay.
type Options struct {
	// Connect opens a connection that nats.go keeps up. It is called again when that is closed, as it is when its
	// credentials have expired.
	Connect func(context.Context) (*nats.Conn, error)
	// Shown returns an error of the servers in the form that may be shown, which their words may not be: they may repeat
	// the credentials. It may be nil.
	Shown  func(error) error
	Domain string // of JetStream; "" for the account's
	Stream string
	Routes []bridge.Route
	Name   string // of this relay, for people
	// From is where a sink that is new to the stream begins; zero for when it comes. One that a reload adds begins as long
	// before it comes as From was before the relay started.
	From    time.Time
	Version string // of the program
	// MaxUnsettled is how many deliveries of a sink may be unsettled in memory; 0 for 10,000.
	MaxUnsettled int

	Settings bridge.SettingsInfo
	Log      *slog.Logger   // nil to log nothing
	Meter    bridge.Meter   // may be nil
	Random   func() float64 // returns numbers below 1, for jitter; nil for math/rand's
	// Wall is the machine's wall clock, which may be set, and goes on while the monotonic one stands still; nil for
	// time.Now.
	Wall func() time.Time
	// Warnings returns further Status.Warnings; may be nil.
	Warnings func() []string
	Turned   func() // called every few seconds while the relay runs; may be nil
}

// A Relay delivers the CloudEvents of a stream to its routes, together with other relays. The errors that its methods
// return may be shown: see Options.Shown.
type Relay struct {
	Options
	self  holder
	fleet *fleet.Fleet
	dead  deadCollector

	deadReports []*deadReport  // not in the stream yet; only reportDead uses them
	needs       bridge.NeedLog // has a lock of its own
	invalid     invalidLetters // likewise

	mu           sync.Mutex
	started      time.Time
	lastTurn     time.Time           // when it last finished its housekeeping
	services     map[string]*service // by the name of the route; none is ever removed
	down         error               // why nothing can be read; nil if it can
	storage      *storage            // nil while there is no connection
	storageNotes []string            // problems of the stream and the buckets
	mutes        []*delivery.Mute    // of all relays; replaced, never changed
	mutesRev     uint64              // of the bucket
	announced    map[string]string   // the latest message about a mute that is in the stream, by the mute's id
	removedSinks []string            // sinks that a reload removed from the settings
	deadCounts   map[string]int      // dead letters by sink
	deadFull     bool                // their stream is full
	peers        []peer
	warnedOf     map[string]string  // hash of the settings of another relay that was logged, by the relay's ID
	reload       context.CancelFunc // has the routes that are served end; nil before there are any
	replaced     sync.WaitGroup     // the sinks of earlier settings that are not closed yet
	lastTime     time.Time          // of the last CloudEvent about this relay
}

// New returns a Relay. It does nothing before Run.
func New(o Options) *Relay {
	if o.Meter == nil {
		o.Meter = bridge.NoMeter{}
	}
	if o.Warnings == nil {
		o.Warnings = func() []string { return nil }
	}
	o.Shown = shownOnce(o.Shown)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Log = slog.New(shownErrors{o.Log.Handler(), o.Shown})
	if o.Wall == nil {
		o.Wall = func() time.Time { return time.Now().Round(0) } // without the monotonic clock
	}
	if o.Turned == nil {
		o.Turned = func() {}
	}
	o.Settings.Zone = o.Settings.Location()
	r := &Relay{
		Options: o, self: holder{Relay: o.Name, ID: rand.Text()[:12]}, started: time.Now(), lastTurn: time.Now(),
		services: map[string]*service{}, down: errNotYet, invalid: invalidLetters{bySet: map[string][]invalidLetter{}},
		deadCounts: map[string]int{}, announced: map[string]string{},
	}
	r.fleet = fleet.New(fleet.Options{
		Log: o.Log,
		NewCloudEvent: func(typ string, data map[string]any) (event.Event, error) {
			ce, _, err := r.newCloudEvent(typ, data)
			return ce, err
		},
		Publish: func(ctx context.Context, ce event.Event) error {
			st, err := r.connected()
			if err != nil {
				return err
			}
			return r.publish(ctx, st.js, ce, ce.ID())
		},
	})
	for _, route := range o.Routes {
		r.service(route.Name).from = o.From
	}
	return r
}

var errNotYet = errors.New("not connected yet")

// Run relays until ctx is done. Then it finishes what is under way, within five seconds, and gives up its leases. What is to
// be on record then may take ten seconds more while the servers don't answer.
func (r *Relay) Run(ctx context.Context) error {
	r.mu.Lock()
	r.started = time.Now()
	r.mu.Unlock()
	var turning sync.WaitGroup
	defer turning.Wait()
	turning.Go(func() {
		for streams.Sleep(ctx, housekeepingEvery) == nil {
			r.Turned()
		}
	})
	for ctx.Err() == nil {
		err := r.session(ctx)
		if ctx.Err() != nil {
			break
		}
		r.setDown(err)
		_ = streams.Sleep(ctx, reconnectAfter)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replaced.Wait()
	for _, route := range r.Routes {
		r.closeSink(route.Name, route.Sink)
	}
	return nil
}

// setDown records why nothing can be read, nil if it can, and logs when that changes.
func (r *Relay) setDown(err error) {
	err = r.Shown(err)
	r.mu.Lock()
	was := r.down
	r.down = err
	r.lastTurn = time.Now() // of an earlier session it says nothing
	r.mu.Unlock()
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		r.Log.Error("the relay can't work, trying again", "err", err)
	case err == nil && was != nil:
		r.Log.Info("the relay works", "stream", r.Stream, "relay", r.Name)
	}
}

// session relays over one connection, until that is closed, or the stream or something beside it is missing.
func (r *Relay) session(ctx context.Context) error {
	conn, err := r.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := newJetStream(conn, r.Domain)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer end(nil)
	closed := conn.StatusChanged(nats.CLOSED)
	all.Go(func() { endWhenClosed(ctx, conn, closed, end) })
	st, err := openStorage(ctx, js, r.Stream)
	if err != nil {
		return explainSilence(conn, err)
	}
	st.dead.added, st.dead.invalid = r.deadLettered, &r.invalid
	r.setStorage(st)
	defer r.setStorage(nil)
	if err := r.readMutes(ctx, st.records); err != nil {
		return err
	}
	r.setDown(nil)
	r.locked(func() {
		for _, s := range r.services {
			s.left = 0
		}
	})

	all.Go(func() { r.housekeeping(ctx, st, end) })
	all.Go(func() { r.fleet.Follow(ctx, st.source()) })
	all.Go(func() { r.followMutes(ctx, st) })
	all.Go(func() { r.reportTroubles(ctx) })
	all.Go(func() {
		src, err := r.sourceWithHeartbeats(ctx, st)
		if err == nil {
			r.fleet.Watch(ctx, src)
		}
	})
	for ctx.Err() == nil {
		r.serveRoutes(ctx, st, &all)
	}
	all.Wait()
	if conn.IsConnected() {
		r.reportDead(context.WithoutCancel(ctx), 0)
	}
	return context.Cause(ctx)
}

// endWhenClosed ends a session when its connection is closed for good.
func endWhenClosed(
	ctx context.Context, conn *nats.Conn, closed <-chan nats.Status, end context.CancelCauseFunc,
) {
	select {
	case <-closed:
		err := conn.LastError()
		if err == nil {
			err = nats.ErrConnectionClosed
		}
		end(err)
	case <-ctx.Done():
	}
}

// serveRoutes serves the routes of the settings until a reload, or until ctx is done. Attempts may still be under way
// then, and all is done when they have ended.
func (r *Relay) serveRoutes(ctx context.Context, st *storage, all *sync.WaitGroup) {
	current, next := context.WithCancel(ctx)
	defer next()
	r.mu.Lock()
	r.reload = next
	for _, route := range r.Routes {
		s, ended := r.service(route.Name), make(chan struct{})
		before := s.ended
		s.ended = ended
		all.Go(func() { r.keepServing(current, serving{ctx, st, s, route}, before, ended) })
	}
	r.mu.Unlock()
	<-current.Done()
}

// service returns what there is of the routes with a name. mu is held.
func (r *Relay) service(name string) *service {
	s := r.services[name]
	if s == nil {
		s = &service{ended: make(chan struct{})}
		close(s.ended)
		r.services[name] = s
	}
	return s
}

func (r *Relay) closeSink(name string, sink delivery.Sink) {
	if closer, ok := sink.(io.Closer); ok {
		if err := closer.Close(); err != nil {
			r.Log.Debug("sink not closed properly", "sink", name, "err", err)
		}
	}
}

// Reload replaces the routes. It doesn't wait for attempts under way: a new route starts once those of its name have
// ended. Then the sink of the old one is closed.
func (r *Relay) Reload(routes []bridge.Route, s bridge.SettingsInfo) {
	s.Zone = s.Location()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reload != nil {
		r.reload()
	}
	for _, was := range r.Routes {
		r.removedSinks = append(r.removedSinks, was.Name)
		ended := r.service(was.Name).ended
		r.replaced.Go(func() {
			<-ended
			r.closeSink(was.Name, was.Sink)
		})
	}
	r.removedSinks = slices.DeleteFunc(slices.Clone(r.removedSinks), func(name string) bool {
		return slices.ContainsFunc(routes, func(now bridge.Route) bool { return now.Name == name })
	})
	for _, now := range routes {
		if r.services[now.Name] == nil && !r.From.IsZero() {
			r.service(now.Name).from = time.Now().Add(r.From.Sub(r.started))
		}
	}
	r.Routes, r.Settings = routes, s
}

// SettingsFailed records why newer settings were not taken.
func (r *Relay) SettingsFailed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Settings.LastError = err.Error()
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
