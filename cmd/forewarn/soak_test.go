package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
	"forewarn/cmd/forewarn/internal/page"
	"forewarn/cmd/forewarn/internal/settings"
)

const (
	soakHours = 16 // unless FOREWARN_SOAK_HOURS says otherwise; .ci/full has 48
	soakRound = 4  // hours, after which everything is quiet for a look
	// hours, after which nothing new happens: how far each histogram and free list goes is known
	soakWarm   = 12
	soakPolls  = 5 * time.Second  // 34,560 polls in 48 hours: those of every second would take most of the test's time
	soakGrowth = 96 << 10         // bytes of live heap over those of the warm bridge, …
	soakHourly = 12 << 10         // … and in each hour: ids and receipts of three events, which are remembered for 30 days
	soakPage   = "127.0.0.1:8169" // in the bubble's network
)

// Memory and goroutines stay flat over simulated hours, with reloads and sink outages in each. The bridge is set up as
// in run: its outbox on disk, a sink of every kind, and reloaded settings. The metadata service, the destinations (a
// NATS server with JetStream, a mail server, HTTP servers) and the readers of page, metrics and status use in-memory
// connections. The control socket and TLS are left out, because a synctest bubble cannot contain them.
func TestMemoryStaysFlatThroughReloadsAndOutages(t *testing.T) {
	if os.Getenv("FOREWARN_SOAK_HOURS") == "" {
		systemtest.LeftToGate(t)
	}
	ats.Register() // one clock for all NATS servers of a process, which no bubble can hold
	defer ats.Unregister()
	runtime.GC() // so that no pool lends the bubble what was made outside of it
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // it runs when it is measured
	synctest.Test(t, func(t *testing.T) {
		s := newSoak(t)
		hours := soakHours
		if n, err := strconv.Atoi(os.Getenv("FOREWARN_SOAK_HOURS")); err == nil {
			hours = n
		}
		if raced() { // which makes an hour five times as long; one round is for the detector
			hours = soakRound
		}
		var warm footprint
		for h := range hours {
			s.hour(h)
			if (h+1)%soakRound > 0 {
				continue
			}
			now := s.measure()
			t.Logf("hour %2d: %v", h+1, now)
			switch {
			case h+1 == soakWarm:
				warm = now
			case h+1 > soakWarm:
				s.compare(warm, now, h+1)
			}
		}
		s.end()
		s.judge()
	})
	runtime.GC() // and the other way round
	runtime.GC()
}

// raced says whether the race detector watches this test.
func raced() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// A footprint is what must not grow.
type footprint struct {
	goroutines map[string]int // of the bubble, by the function that started them
	heap       uint64         // bytes that live
	files      []string       // open ones
	series     int            // of metrics
}

func (f footprint) String() string {
	n := 0
	for _, of := range f.goroutines {
		n += of
	}
	return fmt.Sprintf("%d goroutines, %d KiB of heap, %d files, %d series", n, f.heap>>10, len(f.files), f.series)
}

func (s *soak) compare(warm, now footprint, hour int) {
	s.t.Helper()
	all := maps.Clone(warm.goroutines)
	maps.Copy(all, now.goroutines)
	for from := range all {
		if now, warm := now.goroutines[from], warm.goroutines[from]; now != warm {
			s.t.Errorf("at hour %d there are %d goroutines of %s, want the %d of hour %d", hour, now, from, warm, soakWarm)
		}
	}
	growth := uint64(soakGrowth + (hour-soakWarm)*soakHourly)
	if now.heap > warm.heap+growth {
		s.t.Errorf("at hour %d the live heap is %d KiB, want at most %d KiB over the %d KiB of hour %d", hour, now.heap>>10,
			growth>>10, warm.heap>>10, soakWarm)
	}
	if len(now.files) > len(warm.files) {
		s.t.Errorf("at hour %d these files are open:\n%s\nwant no more than at hour %d:\n%s", hour, strings.Join(now.files,
			"\n"),
			soakWarm, strings.Join(warm.files, "\n"))
	}
	if now.series != warm.series {
		s.t.Errorf("at hour %d there are %d series of metrics, want the %d of hour %d", hour, now.series, warm.series,
			soakWarm)
	}
}

// A soak is a running bridge with everything around it, in a bubble.
type soak struct {
	t       *testing.T
	p       *program
	bridge  *bridge.Bridge
	started *settings.Settings
	log     io.Writer
	azure   *imdstest.Server
	net     *switchboard
	dir     string
	places  []string // that have outages
	events  int      // so far
	want    *journal // the changes that happened
	heard   map[string]*journal
	posts   int // to Slack, with mu
	mu      sync.Mutex
	ended   chan error
	stop    func()
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{
		t: t, dir: soakDir(t), net: &switchboard{lines: map[string]*line{}},
		azure: imdstest.New(imdstest.Options{VMs: []string{"vm-0", "vm-1"}}),
		heard: map[string]*journal{}, ended: make(chan error, 1), places: []string{"hook", "chat", "post", "stream", "extra"},
	}
	logged, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	s.log = logged
	t.Cleanup(func() {
		logged.Close()
		if t.Failed() {
			text, _ := os.ReadFile(logged.Name())
			t.Logf("the end of the log:\n%s", text[max(0, len(text)-8<<10):])
		}
	})
	s.want = newJournal(t, filepath.Join(s.dir, "want"))
	for _, name := range s.places {
		s.heard[name] = newJournal(t, filepath.Join(s.dir, name))
	}
	s.net.serve("169.254.169.254:80", s.azure.Metadata())
	s.net.serve("hook:80", s.hears("hook"))
	s.net.serve("extra:80", s.hears("extra"))
	s.net.serve("chat:80", http.HandlerFunc(s.slack))
	s.mail("post:25")
	s.nats("stream:4222")

	s.p = &program{
		config: filepath.Join(s.dir, "forewarn.yaml"), logFormat: "text", logLevel: "info",
		environment: environment{out: io.Discard, err: s.log, getenv: func(string) string { return "" }, dial: s.net.dial},
	}
	s.configure(0)
	log := s.p.log()
	if s.started, err = s.p.settings(log); err != nil {
		t.Fatal(err)
	}
	box, err := outbox.Open(string(s.started.State), outbox.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	counters := page.NewMetrics()
	o := s.p.bridgeOptions(s.started, box, log)
	o.Meter, o.Booted = counters, time.Now().Add(-time.Hour)
	o.Client = imds.NewClient(s.started.IMDS.Endpoint, s.started.IMDS.APIVersion, log, &http.Transport{
		DialContext: s.net.dial, DisableCompression: true, MaxIdleConns: 2, IdleConnTimeout: 90 * time.Second,
	})
	s.bridge, err = bridge.New(o)
	if err != nil {
		t.Fatal(err)
	}
	l := newMemoryListener()
	s.net.line(soakPage, l.dial).close = serve(l, page.Handler(s.bridge, box, counters.Handler(s.bridge.Status), soakPage), log)
	ctx, cancel := context.WithCancel(t.Context())
	s.stop = cancel
	go func() { s.ended <- s.bridge.Run(ctx) }()
	time.Sleep(10 * time.Second)
	return s
}

// measure takes the footprint. Nothing is under way, and Azure starts over, which makes the emulator forget the
// requests that it remembers for tests.
func (s *soak) measure() (f footprint) {
	s.t.Helper()
	for line := range bytes.Lines(s.get("/metrics")) {
		if line[0] != '#' {
			f.series++
		}
	}
	s.azure.Reset()
	time.Sleep(2500 * time.Millisecond) // between two polls
	synctest.Wait()

	workers := 0
	f.goroutines = map[string]int{}
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		head, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(stack, "delivery.(*Worker).Run(") {
			workers++
		}
		if strings.Contains(head, "synctest bubble") {
			_, from, _ := strings.Cut(stack, "created by ")
			from, _, _ = strings.Cut(from, " in goroutine")
			f.goroutines[from]++
		}
	}
	stacks = nil
	configured := 0
	for _, k := range s.bridge.Status().Sinks {
		if k.State != bridge.SinkOrphaned {
			configured++
		}
	}
	if workers != configured {
		s.t.Errorf("%d workers run for %d sinks", workers, configured)
	}
	files, _ := os.ReadDir("/proc/self/fd") // there is none but on Linux
	for _, file := range files {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", file.Name())); err == nil {
			f.files = append(f.files, to)
		}
	}
	for range 3 { // the first two empty the pools
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.heap = m.HeapAlloc
	return f
}

// end stops the bridge, and then everything around it.
func (s *soak) end() {
	s.t.Helper()
	s.stop()
	if err := <-s.ended; err != nil {
		s.t.Errorf("the bridge ended with %v", err)
	}
	s.net.close()
	time.Sleep(5 * time.Minute)
	synctest.Wait()
}

var azureChange = regexp.MustCompile(`^([0-9A-F-]{36}-(?:scheduled|started|vanished|updated))(-.*)?$`)

// judge holds that every change reached everybody who was there throughout, in order.
func (s *soak) judge() {
	s.t.Helper()
	var audit []string
	for _, line := range lines(filepath.Join(s.dir, "audit.jsonl")) {
		var ce struct{ ID string }
		if err := json.Unmarshal(line, &ce); err != nil {
			s.t.Fatal(err)
		}
		if azureChange.MatchString(ce.ID) {
			audit = append(audit, ce.ID)
		}
	}
	want := s.want.all(s.t)
	byEvent := func(ids []string) map[string][]string { // its changes, each once, without what tells updates apart
		changes, seen := map[string][]string{}, map[string]bool{}
		for _, id := range ids {
			if !seen[id] || !strings.Contains(id, "-updated-") && len(id) > 0 && strings.HasSuffix(id, "-updated") {
				seen[id] = true
				changes[id[:36]] = append(changes[id[:36]], azureChange.FindStringSubmatch(id)[1][37:])
			}
		}
		return changes
	}
	if got, want := byEvent(audit), byEvent(want); !maps.EqualFunc(got, want, slices.Equal) {
		s.t.Errorf("the file holds other changes than happened: %d events, want %d", len(got), len(want))
		for id, changes := range want {
			if !slices.Equal(got[id], changes) {
				s.t.Errorf("%s: %v, want %v", id, got[id], changes)
			}
		}
	}
	for _, name := range []string{"hook", "post", "stream"} {
		judge(s.t, name, s.heard[name].all(s.t), audit)
	}

	box, err := outbox.OpenReadOnly(filepath.Join(s.dir, "state"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer box.Close()
	histories, err := bridge.History(box, bridge.Period{})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(histories) == 0 {
		s.t.Error("there is no history")
	}
	deliveries := map[string]int{}
	for _, l := range histories {
		for _, c := range l.Changes {
			for _, d := range c.Deliveries {
				deliveries[d.Route]++
				gone := d.Route == "renamed" && d.State == "pending" // it isn't in the last settings
				if d.State != "accepted" && (d.Route != "chat" || d.State != "superseded") && !gone {
					s.t.Errorf("%s is %s %s for %s: %s", c.ID, d.State, d.Reason, d.Route, d.Error)
				}
			}
		}
	}
	s.t.Logf("%d changes of %d events; deliveries by sink: %v; %d calls of Slack", len(want), len(histories), deliveries,
		s.posts)
}
