package relay_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
	"forewarn/sinks"
)

// newCluster starts some NATS servers that know of each other.
func newCluster(t *testing.T, size int) (*fleet, []*server.Server) {
	t.Helper()
	var routes []*url.URL
	var ports []int
	for range size {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
		l.Close()
	}
	var urls []string
	var servers []*server.Server
	for i, port := range ports {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("nats-", i+1), Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true,
			StoreDir: t.TempDir(), Cluster: server.ClusterOpts{Name: "fleet", Host: "127.0.0.1", Port: port}, Routes: routes,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(patience) {
			t.Fatal("the server takes no connections")
		}
		urls, servers = append(urls, s.ClientURL()), append(servers, s)
	}
	f := &fleet{T: t}
	f.connect = func(context.Context) (*nats.Conn, error) {
		return nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1))
	}
	f.urls = urls
	var err error
	if f.conn, err = f.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.conn.Close)
	if f.js, err = jetstream.New(f.conn); err != nil {
		t.Fatal(err)
	}
	f.until("the cluster has a leader", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := f.js.AccountInfo(ctx)
		return err == nil
	}, nil)
	return f, servers
}

// replicas returns how many each stream has.
func (f *fleet) replicas() map[string]int {
	f.Helper()
	all := map[string]int{}
	streams := f.js.ListStreams(f.Context())
	for info := range streams.Info() {
		all[info.Config.Name] = info.Config.Replicas
	}
	if err := streams.Err(); err != nil {
		f.Fatal(err)
	}
	return all
}

// In a cluster what is provisioned has three replicas, unless the settings say otherwise, and what is beside a stream
// never has fewer than that: a bridge's sink may have raised the stream alone. Until then the status says that the death
// of one server would stop every sink.
func TestInAClusterOneServerMayDie(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	f, _ := newCluster(t, 3)
	want := func(what string, want map[string]int) {
		t.Helper()
		for name, n := range f.replicas() {
			if n != want[name] {
				t.Errorf("%s: %s has %d replicas, want %d", what, name, n, want[name])
			}
		}
	}
	one := map[string]int{
		"FOREWARN": 1, "FOREWARN_dead": 1, "FOREWARN_heartbeats": 1, "KV_FOREWARN_records": 1, "KV_FOREWARN_leases": 1,
	}
	f.provision(relay.Retention{Replicas: 1})
	want("as the settings say", one)
	r, stop := f.start(relay.Options{Routes: []bridge.Route{route("hook", newRecorder())}})
	f.begin("hook")
	if notes := strings.Join(r.Status().Warnings, "\n"); strings.Count(notes, "the death of one server would stop every sink") != 4 {
		t.Errorf("the warnings are\n%s\nwant one for each stream without which no sink is served", notes)
	}
	stop()
	f.provision(relay.Retention{})
	want("a stream that is there", one)
	stream, err := f.js.Stream(t.Context(), "FOREWARN")
	if err == nil {
		c := stream.CachedInfo().Config
		c.Replicas = 3
		_, err = f.js.UpdateStream(t.Context(), c)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.provision(relay.Retention{})
	three := map[string]int{}
	for name := range one {
		three[name] = 3
	}
	want("beside a stream of three", three)
	for name := range one {
		if err := f.js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	f.provision(relay.Retention{})
	want("new ones", three)
	r, _ = f.start(relay.Options{Routes: []bridge.Route{route("hook", newRecorder())}})
	f.begin("hook")
	if notes := r.Status().Warnings; len(notes) > 0 {
		t.Errorf("the warnings are %q, want none", notes)
	}
}

// In a cluster that is provisioned without a word on replicas one server dies, the one that a relay needs most, and nothing
// is lost: three bridges publish changes before and after, two relays are there.
func TestInAClusterThatLosesAServerEachChangeIsTold(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	f, servers := newCluster(t, 3)
	f.provision(relay.Retention{})
	sink := newRecorder()
	for n := range 2 {
		f.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}, Name: fmt.Sprint("relay-", n+1)})
	}
	f.begin("hook")
	var all []string
	say := func(kind imds.ChangeKind) {
		var bridges sync.WaitGroup
		for n := range 3 {
			sayings := eventNo(n).in(24*time.Hour).say(t, kind, fmt.Sprint("vm-", n))
			all = append(all, sayings.ID())
			bridges.Go(func() { f.deliver(sayings) })
		}
		bridges.Wait()
	}
	say(imds.Scheduled)
	f.hears(sink, len(all))
	records, err := f.js.Stream(t.Context(), "KV_FOREWARN_records")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		if s.Name() == records.CachedInfo().Cluster.Leader {
			s.Shutdown()
		}
	}
	say(imds.Started)
	say(imds.Vanished)
	f.until("each change is told", func() bool { return len(count(sink.all())) == len(all) }, sink.news)
}

// deliver publishes a CloudEvent as a bridge does, whose sink asks for three replicas of the stream. It tries until that is
// stored.
func (f *fleet) deliver(ce event.Event) {
	opened, err := sinks.Kinds()["nats"].Open(func(to any) error {
		text := fmt.Sprintf("{url: ['%s'], provision: {stream: FOREWARN, replicas: 3}}", strings.Join(f.urls, "', '"))
		return yaml.Unmarshal([]byte(text), to)
	}, sinks.Host{Name: "stream", Log: slog.New(slog.DiscardHandler), Getenv: func(string) string { return "" }})
	if err != nil {
		f.Error(err)
		return
	}
	defer opened.Sink.(io.Closer).Close()
	for attempt, over := 1, time.Now().Add(patience); ; attempt++ {
		ctx, cancel := context.WithTimeout(f.Context(), 2*time.Second)
		_, err = opened.Sink.Deliver(ctx, []delivery.Delivery{{Event: ce, Attempt: attempt}})
		cancel()
		if err == nil || time.Now().After(over) {
			break
		}
		time.Sleep(300 * time.Millisecond)
	}
	if err != nil {
		f.Error(err)
	}
}

// In a cluster of two servers nothing can have three replicas, and the error says what to set.
func TestAClusterOfTwoServersNeedsAWordOnReplicas(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	f, _ := newCluster(t, 2)
	plan, err := relay.NewPlan(t.Context(), f.conn, "", "FOREWARN", relay.Retention{})
	if err == nil {
		err = plan.Do(t.Context())
	}
	const want = "create FOREWARN with 3 replicas, which takes as many servers; with fewer set nats.provision.replicas: 1: "
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("it says %v, want %q", err, want)
	}
	f.provision(relay.Retention{Replicas: 1})
}
