package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// A cluster is some NATS servers with JetStream on this machine, each a process.
type cluster struct {
	*testing.T
	host    string
	servers []*exec.Cmd
	clients []string // addresses
	monitor []string
	conn    *nats.Conn
	dir     string
	started []*relayProcess
}

// newCluster starts three servers.
func newCluster(t *testing.T) *cluster { return startServers(t, 3) }

func startServers(t *testing.T, n int) *cluster {
	t.Helper()
	host := ownHost()
	c := &cluster{T: t, host: host, dir: t.TempDir(), servers: make([]*exec.Cmd, n)}
	var routes []string
	for i := range c.servers {
		c.clients, c.monitor = append(c.clients, fmt.Sprint(host, ":", 4222+i)), append(c.monitor, fmt.Sprint(host, ":", 8222+i))
		routes = append(routes, fmt.Sprintf("\"nats://%s:%d\"", host, 6222+i))
	}
	for i := range c.servers {
		config := fmt.Sprintf("server_name: nats-%d\nlisten: %q\nhttp: %q\njetstream { store_dir: %q }\n", i+1, c.clients[i],
			c.monitor[i], filepath.Join(c.dir, fmt.Sprint("nats-", i+1)))
		if n > 1 {
			config += fmt.Sprintf("cluster { name: fleet, listen: \"%s:%d\", routes: [%s] }\n", host, 6222+i, strings.Join(routes, ", "))
		}
		write(t, c.config(i), config)
		c.start(i)
	}
	t.Cleanup(func() {
		for i := range c.servers {
			c.stop(i)
		}
	})
	deadline := time.Now().Add(patience)
	for c.conn == nil {
		conn, err := nats.Connect(c.urls(), nats.MaxReconnects(-1))
		if err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		c.conn = conn
	}
	t.Cleanup(c.conn.Close)
	return c
}

func (c *cluster) config(i int) string { return filepath.Join(c.dir, fmt.Sprintf("nats-%d.conf", i+1)) }

func (c *cluster) start(i int) {
	program := "nats-server" // testscript.Main put it on the path
	if others := os.Getenv("FOREWARN_NATS_SERVERS"); others != "" {
		list := strings.Split(others, ",")
		program = list[i%len(list)]
	}
	s := exec.Command(program, "-c", c.config(i))
	if err := s.Start(); err != nil {
		c.Error(err)
		return
	}
	c.servers[i] = s
}

// stop kills a server.
func (c *cluster) stop(i int) {
	_ = c.servers[i].Process.Kill()
	_ = c.servers[i].Wait()
}

func (c *cluster) urls() string {
	var all []string
	for _, address := range c.clients {
		all = append(all, "nats://"+address)
	}
	return strings.Join(all, ", ")
}

// connections are those of clients to all servers.
func (c *cluster) connections() (n int) {
	for _, address := range c.monitor {
		resp, err := http.Get("http://" + address + "/varz")
		if err != nil {
			c.Error(err)
			continue
		}
		var varz struct{ Connections int }
		_ = json.NewDecoder(resp.Body).Decode(&varz)
		resp.Body.Close()
		n += varz.Connections
	}
	return n
}

// page is the address of a relay's page.
func (c *cluster) page(n int) string { return fmt.Sprint(c.host, ":", 8170+n) }

// settings writes a relay's settings file.
func (c *cluster) settings(n int, sinks string) string {
	path := filepath.Join(c.dir, fmt.Sprintf("relay-%d.yaml", n))
	err := os.WriteFile(path, fmt.Appendf(nil, "nats:\n  url: [%s]\n  name: relay-%d\n"+
		"  provision: {replicas: %d}\ncontrol: '%s-%d'\nlisten: %s\nsinks:%s", c.urls(), n, len(c.servers), controlPath(c.dir),
		n, c.page(n), sinks), 0o600)
	if err != nil {
		c.Fatal(err)
	}
	return path
}

// provision makes the stream. A cluster that was just started may not be ready for it.
func (c *cluster) provision(sinks string) {
	c.Helper()
	config := c.settings(0, sinks)
	deadline := time.Now().Add(3 * patience) // three servers elect a leader beside all other tests
	for {
		out, err := forewarn(c, "relay", "--config", config, "--provision=only").CombinedOutput()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("%v\n%s", err, out)
		}
		time.Sleep(time.Second)
	}
}

// A relayProcess is a relay that runs.
type relayProcess struct {
	*exec.Cmd
	c      *cluster
	name   string
	config string
	page   string // its address
}

func (c *cluster) relay(n int, sinks string) *relayProcess {
	c.Helper()
	r := &relayProcess{c: c, name: fmt.Sprintf("relay-%d", n), config: c.settings(n, sinks), page: c.page(n)}
	r.Cmd = forewarn(c, "relay", "--config", r.config)
	r.Env = append(r.Environ(), "GOMEMLIMIT=384MiB") // as the unit has it
	log, err := os.OpenFile(filepath.Join(c.dir, r.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.Fatal(err)
	}
	r.Stderr = log
	if err := r.Start(); err != nil {
		c.Fatal(err)
	}
	c.started = append(c.started, r)
	c.Cleanup(func() {
		_ = r.Process.Kill()
		_ = r.Wait()
		log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && c.Failed() {
			c.Logf("%s:\n%s", r.name, text)
		}
	})
	return r
}

// status is how the relay is doing, empty if it doesn't answer or isn't ready.
func (r *relayProcess) status() (s bridge.Status) {
	out, err := forewarn(r.c, "status", "--config", r.config, "-o", "json").Output()
	if err != nil || json.Unmarshal(out, &s) != nil {
		return bridge.Status{}
	}
	return s
}

// sink is how a sink of the relay is doing.
func (r *relayProcess) sink(name string) (k bridge.SinkStatus) {
	s := r.status()
	if i := slices.IndexFunc(s.Sinks, func(k bridge.SinkStatus) bool { return k.Name == name }); i >= 0 {
		k = s.Sinks[i]
	}
	return k
}

// serves says whether the relay serves a sink.
func (r *relayProcess) serves(sink string) bool {
	state := r.sink(sink).State
	return state != "" && state != bridge.SinkStandby
}

// served waits until relays serve all the sinks.
func (c *cluster) served(sinks ...string) {
	c.Helper()
	deadline := time.Now().Add(patience)
	for _, sink := range sinks {
		for !slices.ContainsFunc(c.started, func(r *relayProcess) bool { return r.serves(sink) }) {
			if time.Now().After(deadline) {
				c.Fatalf("nobody serves %s", sink)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// A bridgeFleet is many bridges in this process, which watch the VMs of some sets.
type bridgeFleet struct {
	t    *testing.T
	size fleetSize
	sets []*imdstest.Server
	heap string // of one bridge: see heapOfEach
	all  sync.WaitGroup
}

// bridges starts the bridges of a fleet, as forewarn run does.
func (c *cluster) bridges(size fleetSize) *bridgeFleet {
	c.Helper()
	f := &bridgeFleet{t: c.T, size: size}
	before := heapInUse()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	c.Cleanup(func() { cancel(); running.Wait() })
	dir, err := os.MkdirTemp(memoryDir(), "fleet-")
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { os.RemoveAll(dir) })
	config := filepath.Join(dir, "forewarn.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "state: %s\nlisten: \"\"\nsinks:\n  - name: stream\n"+
		"    only: {vms: all}\n    nats:\n      url: [%s]\n", dir, c.urls()), 0o600); err != nil {
		c.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	for n := range size.sets {
		set := fmt.Sprintf("set-%02d", n)
		var vms []string
		for i := range size.bridges / size.sets {
			vms = append(vms, fmt.Sprintf("%s_%d", set, i))
		}
		azure := imdstest.New(imdstest.Options{VMs: vms, Instance: imdstest.Instance{ResourceGroup: "rg-prod", ScaleSet: set}})
		f.sets = append(f.sets, azure)
		for _, vm := range vms {
			p := &program{environment: environment{getenv: func(string) string { return "" }, out: io.Discard}, config: config}
			s, err := p.loader(log).Load(config)
			if err != nil {
				c.Fatal(err)
			}
			box, err := outbox.Open(filepath.Join(dir, vm), outbox.Options{Log: log})
			if err != nil {
				c.Fatal(err)
			}
			o := p.bridgeOptions(s, box, log)
			o.Client = imds.NewClient("http://azure.test/vm/"+vm, imds.DefaultAPIVersion, log, azure.RoundTripper())
			o.Interval = size.interval
			b, err := bridge.New(o)
			if err != nil {
				c.Fatal(err)
			}
			running.Go(func() { _ = b.Run(ctx) })
		}
	}
	for _, azure := range f.sets {
		f.polled(azure)
	}
	f.heap = heapOfEach(size.bridges, before, heapInUse())
	return f
}

// memoryDir is where files are kept in memory, if there is such a place: a thousand disks are not one.
func memoryDir() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// heapOfEach says how many bytes of the heap each of so many bridges has, if these are more than the process has freed
// meanwhile.
func heapOfEach(bridges int, before, after uint64) string {
	if after < before {
		return "unknown"
	}
	return fmt.Sprintf("%d KiB", (after-before)/uint64(bridges)>>10)
}

// The heap may be smaller with the bridges than before them: what was used to start the servers is freed meanwhile.
func TestTheHeapOfABridgeIsAFigureOrNone(t *testing.T) {
	for _, tt := range []struct {
		before, after uint64
		want          string
	}{{1 << 20, 3 << 20, "1024 KiB"}, {3 << 20, 3 << 20, "0 KiB"}, {3 << 20, 1 << 20, "unknown"}} {
		if got := heapOfEach(2, tt.before, tt.after); got != tt.want {
			t.Errorf("of two bridges with %d bytes after %d: %s, want %s", tt.after, tt.before, got, tt.want)
		}
	}
}

// after does something after a while of real time, as real processes have, which wait waits for.
func (f *bridgeFleet) after(d time.Duration, do func()) {
	f.all.Go(func() { time.Sleep(d); do() })
}

func (f *bridgeFleet) wait() { f.all.Wait() }

// announce schedules all events within the wave.
func (f *bridgeFleet) announce() {
	for n := range f.size.events {
		azure := f.sets[n%len(f.sets)]
		vms := azure.VMs()
		f.after(f.size.wave*time.Duration(n)/time.Duration(f.size.events), func() {
			azure.Schedule(imdstest.Event{ID: eventID(fmt.Sprint("wave ", n)), Type: "Reboot", Resources: vms[:1],
				NotBefore: time.Now().Add(time.Hour)})
		})
	}
}

// play lets all events happen, from their announcement to their end, and says how many changes that makes.
func (f *bridgeFleet) play() (changes int) {
	for n := range f.size.events {
		azure := f.sets[n%len(f.sets)]
		vms, id := azure.VMs(), eventID(fmt.Sprint("wave ", n))
		moves := n%4 == 0
		if changes += 3; moves {
			changes++
		}
		step := func() { time.Sleep(f.size.step); f.polled(azure) }
		f.after(f.size.wave*time.Duration(n)/time.Duration(f.size.events), func() {
			notBefore := time.Now().Add(20 * time.Minute)
			azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Resources: vms[n/len(f.sets)%len(vms):][:1], NotBefore: notBefore})
			step()
			if moves {
				azure.Update(id, func(e *imdstest.Event) { e.NotBefore = notBefore.Add(-5 * time.Minute) })
				step()
			}
			azure.Start(id)
			step()
			azure.End(id)
		})
	}
	return changes
}

// polled waits until every VM of a set has begun two more polls: the first has read what is there now.
func (f *bridgeFleet) polled(azure *imdstest.Server) {
	since := time.Now()
	for f.t.Context().Err() == nil {
		polls := map[string]int{}
		for _, r := range azure.Requests() {
			if r.Time.After(since) && strings.HasSuffix(r.Path, "/scheduledevents") {
				polls[r.Path]++
			}
		}
		done := len(polls) == len(azure.VMs())
		for _, n := range polls {
			done = done && n >= 2
		}
		if done {
			return
		}
		time.Sleep(f.size.interval / 4)
	}
}

// inStream gives the places of all changes in the stream, from 1 on, and of how many events they are not in the order of
// their life: a VM that saw an event first when it had begun was quicker than those that saw it announced.
func (c *cluster) inStream(f *bridgeFleet) (places map[string]int, outdated int) {
	c.Helper()
	js, err := jetstream.New(c.conn)
	if err != nil {
		c.Fatal(err)
	}
	stream, err := js.Stream(c.Context(), "FOREWARN")
	if err != nil {
		c.Fatal(err)
	}
	places = map[string]int{}
	furthest, late := map[string]int{}, map[string]bool{}
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		msg, err := stream.GetMsg(c.Context(), seq)
		if err != nil {
			c.Fatal(err)
		}
		id := msg.Header.Get("ce-id")
		if !strings.HasPrefix(msg.Subject, "forewarn.events.") || places[id] > 0 {
			continue
		}
		places[id] = len(places) + 1
		along := f.order(id)
		late[id[:36]] = late[id[:36]] || along < furthest[id[:36]]
		furthest[id[:36]] = max(along, furthest[id[:36]])
	}
	for _, is := range late {
		if is {
			outdated++
		}
	}
	return places, outdated
}

// order is how far along the life of its event a change is.
func (f *bridgeFleet) order(id string) int {
	return slices.IndexFunc([]string{"-scheduled", "-updated-", "-started", "-vanished"}, func(s string) bool {
		return strings.HasPrefix(id[36:], s)
	})
}

// A noted is a destination that notes what it is sent, and when. As slack it takes one message a second.
type noted struct {
	url   string
	slack bool

	mu    sync.Mutex
	heard []arrived
	next  time.Time
}

type arrived struct {
	id   string
	said time.Time // when the VM's bridge saw it
	at   time.Time
}

func newNoted(t *testing.T) *noted {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &noted{url: "http://" + l.Addr().String()}
	srv := &http.Server{Handler: n, ReadHeaderTimeout: patience}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return n
}

func (n *noted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var ce struct {
		ID   string
		Time time.Time
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if n.slack {
		form, _ := url.ParseQuery(string(body))
		if now.Before(n.next) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		n.next = now.Add(900 * time.Millisecond)
		ce.ID, _, _ = strings.Cut(form.Get("text"), " ")
		_, at, _ := strings.Cut(form.Get("text"), " ")
		ce.Time, _ = time.Parse(time.RFC3339Nano, strings.TrimSpace(at))
		ts := cmp.Or(form.Get("ts"), fmt.Sprintf("1700000000.%06d", len(n.heard)+1))
		json.NewEncoder(w).Encode(map[string]any{"ok": true, "channel": form.Get("channel"), "ts": ts,
			"message": map[string]any{"ts": ts}})
	} else if json.Unmarshal(body, &ce) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	n.heard = append(n.heard, arrived{ce.ID, ce.Time, now})
}

func (n *noted) all() []arrived {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.heard)
}

func (n *noted) ids() (ids []string) {
	for _, h := range n.all() {
		ids = append(ids, h.id)
	}
	return ids
}

// delay is how long after the poll it first heard something, below 0 for never.
func (n *noted) delay(id string) time.Duration {
	for _, h := range n.all() {
		if h.id == id {
			return h.at.Sub(h.said)
		}
	}
	return -1
}

// repeated are the ids that it heard again, and when.
func (n *noted) repeated() map[string]time.Time {
	seen, again := map[string]bool{}, map[string]time.Time{}
	for _, h := range n.all() {
		if seen[h.id] {
			again[h.id] = h.at
		}
		seen[h.id] = true
	}
	return again
}

// delays are those of all that it heard, the shortest first.
func (n *noted) delays() (all []time.Duration) {
	for _, h := range n.all() {
		all = append(all, h.at.Sub(h.said).Round(time.Millisecond))
	}
	slices.Sort(all)
	return all
}

// fastest is the most that it heard within a second.
func (n *noted) fastest() (most int) {
	all := n.all()
	for i := range all {
		k := i
		for k < len(all) && all[k].at.Sub(all[i].at) < time.Second {
			k++
		}
		most = max(most, k-i)
	}
	return most
}
