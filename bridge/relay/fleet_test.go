package relay_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// patience is what a test waits for something that comes at once on an idle machine.
const patience = 30 * time.Second

// A fleet is a NATS server with a provisioned stream, and what the test publishes and hears.
type fleet struct {
	*testing.T
	connect func(context.Context) (*nats.Conn, error)
	urls    []string // of the servers of a cluster
	conn    *nats.Conn
	js      jetstream.JetStream
	look    time.Duration // between two looks at what is waited for; 0 for 20 ms
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	t.Parallel()
	s, err := server.NewServer(&server.Options{
		ServerName: "nats-1", Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true,
		StoreDir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server takes no connections")
	}
	f := &fleet{T: t}
	f.connect = func(context.Context) (*nats.Conn, error) { return nats.Connect(s.ClientURL(), nats.MaxReconnects(-1)) }
	if f.conn, err = f.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.conn.Close)
	if f.js, err = jetstream.New(f.conn); err != nil {
		t.Fatal(err)
	}
	f.provision(relay.Retention{})
	return f
}

func (f *fleet) provision(r relay.Retention) {
	f.Helper()
	plan, err := relay.NewPlan(f.Context(), f.conn, "", "FOREWARN", r)
	if err == nil {
		err = plan.Do(f.Context())
	}
	if err != nil {
		f.Fatal(err)
	}
}

// azure is an Azure event of these tests.
type azure struct {
	id, typ   string
	notBefore time.Time
	vm        string
	source    string // Platform if it is ""
}

func eventNo(n int) azure {
	return azure{id: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), typ: "Reboot", vm: fmt.Sprintf("vm-%d", n),
		notBefore: time.Now().Add(time.Hour).UTC().Truncate(time.Second)}
}

// say returns the CloudEvent of a change.
func (a azure) say(t *testing.T, kind imds.ChangeKind, observer string) event.Event {
	t.Helper()
	status := imds.StatusScheduled
	if kind == imds.Started || kind == imds.Vanished {
		status = imds.StatusStarted
	}
	ce, err := cloudevent.Wrap(imds.Change{Kind: kind, Event: a.event(status)}, cloudevent.Circumstances{
		Observer: imds.Observer{Name: observer, ResourceGroup: "web"}, Time: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return ce
}

// answer returns what a VM says for the nth time of the approval of an event: that no rule approves it after all.
func (a azure) answer(t *testing.T, nth int) event.Event {
	t.Helper()
	ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Approved, Event: a.event(imds.StatusScheduled)}, cloudevent.Circumstances{
		Observer: imds.Observer{Name: "vm-1", ResourceGroup: "web"}, Time: time.Now(), Repeat: nth - 1,
		Approval: &cloudevent.Approval{Result: cloudevent.ResultWithheld, By: "rule 1", Sink: "drain", Error: "exit 75"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return ce
}

// event returns what Azure lists. One that has begun has no NotBefore.
func (a azure) event(status string) imds.Event {
	notBefore := a.notBefore.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")
	if status == imds.StatusStarted {
		notBefore = ""
	}
	doc, err := imds.DecodeDocument(fmt.Appendf(nil, `{"DocumentIncarnation":1,"Events":[{"EventId":%q,"EventType":%q,`+
		`"ResourceType":"VirtualMachine","Resources":[%q],"EventStatus":%q,"NotBefore":%q,"EventSource":%q}]}`,
		a.id, a.typ, a.vm, status, notBefore, cmp.Or(a.source, "Platform")))
	if err != nil {
		panic(err) // the test is wrong
	}
	return doc.Events[0]
}

// publish puts a CloudEvent in the stream, as the nats sink does in structured mode, without its protection from
// copies.
func (f *fleet) publish(ces ...event.Event) {
	f.Helper()
	for _, ce := range ces {
		body, err := ce.MarshalJSON()
		if err != nil {
			f.Fatal(err)
		}
		f.publishRaw(ownSubject(ce), nats.Header{"Content-Type": {"application/cloudevents+json"}}, body)
	}
}

// ownSubject returns a subject of the set that a CloudEvent comes from.
func ownSubject(ce event.Event) string {
	return "forewarn.events." + cloudevent.PlaceOf(ce).String() + ".test." + ce.ID()
}

func (f *fleet) publishRaw(subject string, h nats.Header, body []byte) {
	f.Helper()
	if _, err := f.js.PublishMsg(f.Context(), &nats.Msg{Subject: subject, Header: h, Data: body}); err != nil {
		f.Fatal(err)
	}
}

// jitter is the same in every run, so that a test passes always or never.
func jitter() func() float64 {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(1, 2))
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return r.Float64()
	}
}

// start runs a relay until the test ends or stop is called, which waits.
func (f *fleet) start(o relay.Options) (r *relay.Relay, stop func()) {
	f.Helper()
	if o.Connect == nil {
		o.Connect = f.connect
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(f.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if o.Name == "" {
		o.Name = "relay-1"
	}
	if o.Random == nil {
		o.Random = jitter()
	}
	o.Stream = "FOREWARN"
	r = relay.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			f.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	f.Cleanup(stop)
	return r, stop
}

// A recorder is a sink that remembers what it was sent.
type recorder struct {
	answer func(batch []delivery.Delivery) (delivery.Answer, error) // nil accepts all

	mu    sync.Mutex
	heard []string // ids that it accepted, in order
	tried []string // ids of all attempts, in order
	news  chan struct{}
}

func newRecorder() *recorder { return &recorder{news: make(chan struct{}, 1)} }

func (s *recorder) Deliver(_ context.Context, batch []delivery.Delivery) (a delivery.Answer, err error) {
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	if answer != nil {
		a, err = answer(batch)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range batch {
		s.tried = append(s.tried, d.Event.ID())
		if err == nil {
			s.heard = append(s.heard, d.Event.ID())
		}
	}
	select {
	case s.news <- struct{}{}:
	default:
	}
	return a, err
}

func (s *recorder) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.heard)
}

func (s *recorder) attempts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tried)
}

// hears waits until the sink has accepted so many, and gives them.
func (f *fleet) hears(s *recorder, n int) []string {
	f.Helper()
	f.until(fmt.Sprintf("the sink hears %d", n), func() bool { return len(s.all()) >= n }, s.news)
	return s.all()
}

// until waits until something is so. It looks whenever news come, and now and then.
func (f *fleet) until(what string, so func() bool, news <-chan struct{}) {
	f.Helper()
	over := time.After(patience)
	for !so() {
		select {
		case <-news:
		case <-time.After(cmp.Or(f.look, 20*time.Millisecond)):
		case <-over:
			f.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// settled waits until the sink has settled all that the stream holds.
func (f *fleet) settled(sink string) {
	f.Helper()
	f.until(sink+" has settled all", func() bool {
		stream, err := f.js.Stream(f.Context(), "FOREWARN")
		if err != nil {
			return false
		}
		floor, err := ackFloorOf(f.Context(), f.js, sink)
		return err == nil && floor == stream.CachedInfo().State.LastSeq
	}, nil)
}

func route(name string, s delivery.Sink) bridge.Route {
	return bridge.Route{Name: name, Kind: "webhook", Sink: s, Filter: bridge.Filter{Only: bridge.Only{VMs: "all"}},
		Terms: bridge.Terms{Terms: delivery.Terms{Timeout: 10 * time.Second, Late: delivery.LateSend, Batch: 1}}}
}

func ids(ces ...event.Event) (all []string) {
	for _, ce := range ces {
		all = append(all, ce.ID())
	}
	return all
}

func sorted(ids []string) []string { return slices.Sorted(slices.Values(ids)) }

func count(ids []string) map[string]int {
	n := map[string]int{}
	for _, id := range ids {
		n[id]++
	}
	return n
}
