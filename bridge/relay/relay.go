package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// stopPatience is what a stop leaves to attempts under way.
const stopPatience = 5 * time.Second

// connectAgain is how long after a failure the servers are asked again.
const connectAgain = 2 * time.Second

// Options are what a Relay is made of.
type Options struct {
	// Connect opens a connection that nats.go keeps up. It is called again when that is closed, as after credentials that
	// expired.
	Connect func(context.Context) (*nats.Conn, error)
	Domain  string // of JetStream; "" is the account's
	Stream  string
	Routes  []bridge.Route
	Name    string    // of this relay, for people
	From    time.Time // where a sink that is new to the stream begins; zero for now
	Version string    // of the program
	// Unsettled is how many deliveries of a sink may be unsettled in memory; 0 is 10,000.
	MaxUnsettled int

	Settings bridge.SettingsInfo
	Log      *slog.Logger
	Meter    bridge.Meter   // nil counts nothing
	Random   func() float64 // below 1, for jitter; nil is that of math/rand
	// Warnings are for Status.Warnings; nil for none.
	Warnings func() []string
	Turned   func() // called now and then while the relay lives; nil for nobody
}

// A Relay feeds the CloudEvents of a stream to its routes, together with other relays.
type Relay struct {
	Options
	me holder

	mu       sync.Mutex
	began    time.Time
	turned   time.Time // when it last looked after itself
	serving  map[string]*service
	held     int   // leases, and those that are about to be taken
	down     error // why nothing can be read; nil while something can
	conn     *nats.Conn
	js       jetstream.JetStream
	dead     *deadLetters
	records  bucket
	mutes    []*delivery.Mute // of all relays; replaced, never changed
	mutesRev uint64           // of the bucket
	recorded map[string]bool  // what became of mutes, by the id under which the stream has it
	removed  []string         // sinks that a reload took from the settings
	letters  map[string]int   // dead letters by sink
	peers    []Peer
	warned   map[string]bool // peers' settings that were warned of
	reload   context.CancelFunc
	troubled map[string]bool // routes whose trouble was told
	stamp    time.Time       // of the last CloudEvent about this relay
	fleet    *fleet
	// unwatched is why nobody can be told which VMs fall silent; nil when that works.
	unwatched error
	notes     []string // what somebody should see to, of the stream and the buckets
}

// New makes a Relay. It does nothing before Run.
func New(o Options) *Relay {
	if o.Meter == nil {
		o.Meter = noMeter{}
	}
	if o.Warnings == nil {
		o.Warnings = func() []string { return nil }
	}
	if o.Turned == nil {
		o.Turned = func() {}
	}
	return &Relay{
		Options: o, me: holder{Relay: o.Name, ID: rand.Text()[:12]}, began: time.Now(), turned: time.Now(),
		serving: map[string]*service{}, warned: map[string]bool{}, troubled: map[string]bool{}, down: errNotYet,
		letters: map[string]int{}, recorded: map[string]bool{}, fleet: newFleet(),
	}
}

var errNotYet = errors.New("not connected yet")

// Run relays until ctx is done; then it finishes what is under way, within five seconds, and gives its leases up.
func (r *Relay) Run(ctx context.Context) error {
	r.mu.Lock()
	r.began = time.Now()
	r.mu.Unlock()
	var turning sync.WaitGroup
	defer turning.Wait()
	turning.Go(func() {
		for sleep(ctx, lookAroundEvery) == nil {
			r.Turned()
		}
	})
	for ctx.Err() == nil {
		err := r.connected(ctx)
		if ctx.Err() != nil {
			break
		}
		r.setDown(err)
		_ = sleep(ctx, connectAgain)
	}
	r.mu.Lock()
	routes := r.Routes
	r.mu.Unlock()
	closeSinks(routes, r.Log)
	return nil
}

// setDown notes why nothing can be read, nil when something can, and logs what is news.
func (r *Relay) setDown(err error) {
	r.mu.Lock()
	was := r.down
	r.down = err
	r.mu.Unlock()
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		r.Log.Error("the relay can't work, trying again", "err", err)
	case err == nil && was != nil:
		r.Log.Info("the relay works", "stream", r.Stream, "relay", r.Name)
	}
}

// connected relays over one connection, until that is closed, or what must be there isn't.
func (r *Relay) connected(ctx context.Context) error {
	conn, err := r.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := newJetStream(conn, r.Domain)
	if err != nil {
		return err
	}
	session, end := context.WithCancelCause(ctx)
	defer end(nil)
	closed := conn.StatusChanged(nats.CLOSED)
	go func() {
		select {
		case <-closed:
			err := conn.LastError()
			if err == nil {
				err = nats.ErrConnectionClosed
			}
			end(err)
		case <-session.Done():
		}
	}()
	p, err := r.places(session, js)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.conn, r.js, r.dead, r.records, r.notes = conn, js, p.dead, p.records, p.notes
	r.mu.Unlock()
	if err := r.readMutes(session, p.records); err != nil {
		return err
	}
	r.setDown(nil)
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.conn, r.js, r.dead = nil, nil, nil
	}()

	var all sync.WaitGroup
	all.Go(func() { r.lookAround(session, p, end) })
	all.Go(func() { r.followFleet(session, p) })
	all.Go(func() { r.followRecords(session, p) })
	all.Go(func() { r.followMutes(session, p) })
	if p.beats != "" {
		all.Go(func() { r.followHeartbeats(session, p) })
		all.Go(func() { r.observers(session, p) })
	}
	for session.Err() == nil {
		r.generation(session, p)
	}
	all.Wait()
	return context.Cause(session)
}

func newJetStream(conn *nats.Conn, domain string) (jetstream.JetStream, error) {
	if domain == "" {
		return jetstream.New(conn)
	}
	return jetstream.NewWithDomain(conn, domain)
}

// places are where everything is kept.
type places struct {
	js      jetstream.JetStream
	stream  jetstream.Stream
	records bucket
	leases  jetstream.KeyValue
	dead    *deadLetters
	beats   string        // the stream that keeps heartbeats; "" for none
	knows   time.Duration // for how long the stream knows an id again
	notes   []string
}

// The names of what a relay keeps, beside its stream.
func recordsBucket(stream string) string { return stream + "_marks" }
func leasesBucket(stream string) string  { return stream + "_leases" }
func deadStream(stream string) string    { return stream + "_dead" }
func beatsStream(stream string) string   { return stream + "_heartbeats" }

// beatsSubject is where bridges publish heartbeats: forewarn.heartbeat.<subscription>.<group>.<set>.<vm>.
const beatsSubject = "forewarn.heartbeat.>"

// places finds the stream and what the relay keeps beside it.
func (r *Relay) places(ctx context.Context, js jetstream.JetStream) (p places, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	p.js = js
	missing := func(what, name string, err error) error {
		if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound) {
			return fmt.Errorf("there is no %s %s; forewarn relay --provision creates it", what, name)
		}
		return fmt.Errorf("look for %s %s: %w", what, name, err)
	}
	if p.stream, err = js.Stream(ctx, r.Stream); err != nil {
		return p, missing("stream", r.Stream, err)
	}
	p.knows = p.stream.CachedInfo().Config.Duplicates
	for _, b := range []struct {
		name string
		to   *jetstream.KeyValue
	}{{recordsBucket(r.Stream), &p.records.kv}, {leasesBucket(r.Stream), &p.leases}} {
		if *b.to, err = js.KeyValue(ctx, b.name); err != nil {
			return p, missing("bucket", b.name, err)
		}
		under, err := js.Stream(ctx, "KV_"+b.name)
		if err != nil {
			return p, missing("bucket", b.name, err)
		}
		if c := under.CachedInfo().Config; c.AllowDirect && c.Replicas > 1 {
			p.notes = append(p.notes,
				"bucket "+b.name+" may be read from a server that lags behind, and a change may be told twice; "+
					"forewarn relay --provision mends that")
		}
	}
	dead := deadStream(r.Stream)
	if _, err = js.Stream(ctx, dead); err != nil {
		return p, missing("stream", dead, err)
	}
	p.dead = &deadLetters{js: js, name: dead, prefix: deadSubject(r.Stream), maxPayload: int(js.Conn().MaxPayload())}
	if p.beats, err = js.StreamNameBySubject(ctx, beatsSubject); err != nil {
		p.notes = append(p.notes, "no stream takes "+beatsSubject+
			", so nobody hears which VMs fall silent; forewarn relay --provision mends that")
	}
	if name, err := js.StreamNameBySubject(ctx, sinkPrefix+"x.x"); err != nil || name != r.Stream {
		p.notes = append(p.notes,
			fmt.Sprintf("stream %s does not take %s>, so nothing can be replayed or handed to a fallback; "+
				"forewarn relay --provision mends that", r.Stream, sinkPrefix))
	}
	return p, nil
}

// generation serves the routes of the settings until there are others, or ctx is done.
func (r *Relay) generation(ctx context.Context, p places) {
	current, next := context.WithCancel(ctx)
	defer next()
	r.mu.Lock()
	r.reload = next
	routes := r.Routes
	r.serving = map[string]*service{}
	for _, route := range routes {
		r.serving[route.Name] = &service{route: route}
	}
	r.mu.Unlock()
	var all sync.WaitGroup
	for _, route := range routes {
		all.Go(func() {
			for current.Err() == nil {
				r.serve(current, p, route)
			}
		})
	}
	all.Wait()
	<-current.Done() // without a route there is nothing else to wait for
	if ctx.Err() == nil {
		closeSinks(routes, r.Log)
	}
}

func closeSinks(routes []bridge.Route, log *slog.Logger) {
	for _, route := range routes {
		if closer, ok := route.Sink.(io.Closer); ok {
			if err := closer.Close(); err != nil {
				log.Debug("sink not closed properly", "sink", route.Name, "err", err)
			}
		}
	}
}

// Reload swaps the routes for others. What is under way is finished first.
func (r *Relay) Reload(routes []bridge.Route, s bridge.SettingsInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reload == nil { // they were never used
		closeSinks(r.Routes, r.Log)
	} else {
		r.reload()
	}
	for _, was := range r.Routes {
		r.removed = append(r.removed, was.Name)
	}
	r.removed = slices.DeleteFunc(slices.Clone(r.removed), func(name string) bool {
		return slices.ContainsFunc(routes, func(now bridge.Route) bool { return now.Name == name })
	})
	r.Routes, r.Settings = routes, s
}

// SettingsFailed notes why newer settings were not taken.
func (r *Relay) SettingsFailed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Settings.LastError = err.Error()
}

// noMeter counts nothing.
type noMeter struct{}

func (noMeter) Polled(imds.PollClass)           {}
func (noMeter) Committed(string)                {}
func (noMeter) Attempted(string, time.Duration) {}
func (noMeter) Accepted(string, time.Duration)  {}
func (noMeter) Superseded(string, int)          {}
func (noMeter) Failed(string, string)           {}
func (noMeter) Forgot(string, int)              {}
