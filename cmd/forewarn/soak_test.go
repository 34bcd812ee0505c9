package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/mail"
	"net/url"
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

	"github.com/emersion/go-smtp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/page"
	"forewarn/cmd/forewarn/internal/settings"
)

const (
	soakHours = 16 // unless FOREWARN_SOAK_HOURS says otherwise; .ci/full has 48
	soakRound = 4  // hours, after which everything is quiet for a look
	// hours, after which nothing new happens: how far each histogram and free list goes is known
	soakWarm   = 12
	soakPolls  = 10 * time.Second // 17,280 polls: those of every second would take most of the test's time
	soakGrowth = 192 << 10        // bytes of live heap over those of the warm bridge: ids are remembered for 30 days
	soakPage   = "127.0.0.1:8169" // in the bubble's network
)

// Simulated hours, with reloads and sink outages in each, show flat memory and goroutines. The bridge is wired as run
// wires it, with its outbox on disk, a sink of every kind, and settings that are read again as run does. The metadata
// service, the destinations (a NATS server with JetStream, a mail server, HTTP servers) and the readers of page,
// metrics and status are at the other end of connections in memory. Left out is what no bubble can hold, which is the
// control socket, and TLS.
func TestReloadsAndOutagesStayFlat(t *testing.T) {
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
	if now.heap > warm.heap+soakGrowth {
		s.t.Errorf("at hour %d the live heap is %d KiB, want at most %d KiB over the %d KiB of hour %d", hour, now.heap>>10,
			soakGrowth>>10, warm.heap>>10, soakWarm)
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
	box, err := outbox.Open(s.started.State, outbox.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	counters := page.NewMetrics()
	o := s.p.bridgeOptions(s.started, box, log)
	o.Meter, o.Booted = counters, time.Now().Add(-time.Hour)
	o.Client = imds.NewClient(s.started.IMDS.Endpoint, s.started.IMDS.APIVersion, log, &http.Transport{
		DialContext: s.net.dial, DisableCompression: true, MaxIdleConns: 2, IdleConnTimeout: 90 * time.Second,
	})
	s.bridge = bridge.New(o)
	l := newMemoryListener()
	s.net.line(soakPage, l.dial).close = serve(l, page.Handler(s.bridge, counters.Handler(s.bridge.Status), soakPage), log)
	ctx, cancel := context.WithCancel(t.Context())
	s.stop = cancel
	go func() { s.ended <- s.bridge.Run(ctx) }()
	time.Sleep(10 * time.Second)
	return s
}

// configure writes the settings of an hour: the same as before, without a sink, with it under another name, and with it
// back; and each time round with other values.
func (s *soak) configure(hour int) {
	s.t.Helper()
	extra := []string{"extra", "", "renamed", "extra"}[hour%4]
	round := hour / 4
	var b strings.Builder
	fmt.Fprintf(&b, "imds: {interval: %v}\nstate: %q\ntimezone: %s\nsinks:\n", soakPolls, filepath.Join(s.dir, "state"),
		[]string{"UTC", "Europe/Berlin", "America/New_York"}[round%3])
	fmt.Fprintf(&b, "  - {name: hook, only: {vms: all}, webhook: {url: http://hook/%d, proxy: none}}\n", round)
	fmt.Fprintf(&b,
		"  - {name: chat, only: {vms: all}, bridge: all, remind: [10m], slack: {token: %s, channel: C024BE91L, api_url: http://chat/api/, insecure: true, proxy: none}}\n", chatToken)
	fmt.Fprintf(&b,
		"  - {name: post, only: {vms: all}, late: send, remind: [10m], email: {host: post, port: 25, helo: vm-0, tls: {mode: none}, "+
			"from: azure@example.com, to: [ops@example.com]}}\n")
	fmt.Fprintf(&b, "  - {name: stream, only: {vms: all}, nats: {url: nats://stream:4222}}\n")
	fmt.Fprintf(&b, "  - {name: audit, only: {vms: all}, bridge: all, heartbeat: 15m, file: {path: %q}}\n",
		filepath.Join(s.dir, "audit.jsonl"))
	fmt.Fprintf(&b, "  - {name: recent, only: {vms: all}, file: {path: %q, max_size: 64KiB, keep: 3}}\n",
		filepath.Join(s.dir, "recent.jsonl"))
	if runtime.GOOS != "windows" {
		b.WriteString("  - {name: command, only: {vms: all, types: [Redeploy], changes: [scheduled]}, exec: {command: [/bin/sh, -c, cat >/dev/null]}}\n")
	}
	if extra != "" {
		fmt.Fprintf(&b, "  - {name: %s, only: {vms: all}, webhook: {url: http://extra/, proxy: none}}\n", extra)
	}
	if hour%24 == 7 {
		b.WriteString("approve:\n  - {only: {types: [Reboot], sources: [User]}, after: [hook]}\n")
	}
	s.write(b.String())
}

// soakDir is a directory in memory where there is one, because two days make thousands of commits to the disk.
func soakDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "forewarn")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (s *soak) write(settings string) {
	s.t.Helper()
	if err := os.WriteFile(s.p.config, []byte(settings), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// reload does what SIGHUP does, and wants these settings taken or refused.
func (s *soak) reload(taken bool) {
	s.t.Helper()
	s.p.reload(s.bridge, s.started, s.p.log())
	if err := s.bridge.Status().Settings.LastError; (err == "") != taken {
		s.t.Errorf("the settings are taken: %t, want %t: %s", err == "", taken, err)
	}
}

// hour is one hour in the life of the machine. Each fourth ends with nothing pending and everything quiet for minutes.
func (s *soak) hour(h int) {
	s.t.Helper()
	began := time.Now()
	steps := map[time.Duration][]func(){}
	at := func(minute float64, do func()) {
		after := time.Duration(minute * float64(time.Minute))
		steps[after] = append(steps[after], do)
	}
	at(0, func() { s.configure(h); s.reload(true) })
	at(50, func() { // a mistake changes nothing
		s.write("sinks: [{nmae: wrong}]\n")
		s.reload(false)
		s.configure(h)
		s.reload(true)
	})
	at(1, s.read)

	for i := range 2 {
		typ := []string{"Redeploy", "Preempt", "Reboot", "Freeze", "Novelty", "Terminate"}[(h*2+i)%6]
		late, id := float64(i)*0.7, s.event()
		e := imdstest.Event{ID: id, Type: typ, NotBefore: time.Now().Add(40 * time.Minute),
			Description: "Host server is undergoing maintenance."}
		if typ == "Reboot" {
			e.Source = "User"
		}
		at(3+late, func() { s.azure.Schedule(e); s.happens(id, "scheduled") })
		if i%2 == 1 {
			at(6+late, func() { s.move(id) })
		}
		if h%3 > 0 || i == 0 { // else it is called off
			at(10+late, func() { s.azure.Start(id); s.happens(id, "started") })
		}
		at(18+late, func() { s.azure.End(id); s.happens(id, "vanished") })
	}
	if h%8 == 5 { // a wave, of which people get one message
		for i := range 8 {
			id := s.event()
			at(16+float64(i)/60, func() { s.azure.Schedule(imdstest.Event{ID: id, Type: "Freeze"}); s.happens(id, "scheduled") })
			at(24+float64(i)/60, func() { s.azure.Start(id); s.happens(id, "started") })
			at(36, func() { s.azure.End(id); s.happens(id, "vanished") })
		}
	}
	long := eventID(fmt.Sprint("long ", h/4)) // goes on for four hours, and is moved again and again
	switch h % 4 {
	case 0:
		at(2, func() {
			s.azure.Schedule(imdstest.Event{ID: long, Type: "Redeploy", NotBefore: time.Now().Add(6 * time.Hour),
				Resources: []string{"vm-1"}})
			s.happens(long, "scheduled")
		})
	case 3:
		at(10, func() { s.azure.Start(long); s.happens(long, "started") })
		at(35, func() { s.azure.End(long); s.happens(long, "vanished") })
	default:
		at(2, func() { s.move(long) })
	}

	// One destination is out for hours of every four, and each hour another one, for minutes.
	out := s.places[(h/4+2)%len(s.places)]
	switch h % 4 {
	case 0:
		at(7, func() { s.trouble(out, h/4) })
	case 2:
		at(30, func() { s.trouble(out, -1) })
	}
	if place := s.places[h%len(s.places)]; place != out {
		at(6, func() { s.trouble(place, h) })
		at([]float64{10, 25, 45}[h%3], func() { s.trouble(place, -1) })
	}

	at(12, func() {
		s.azure.SetFault(imdstest.Fault{Status: []int{429, 500, 503}[h%3], RetryAfter: "5", For: 2 * time.Minute})
	})
	at(15, func() { s.azure.ResetIncarnation() })
	at(26, func() { s.azure.SetFault(imdstest.Fault{Truncate: 40, For: time.Minute}) })
	at(40, func() {
		if h%8 == 3 { // long enough to be told
			s.azure.SetFault(imdstest.Fault{Status: 500, For: 12 * time.Minute})
		} else {
			s.azure.SetFault(imdstest.Fault{Hang: true, For: 3 * time.Minute})
		}
	})
	for _, after := range slices.Sorted(maps.Keys(steps)) {
		time.Sleep(time.Until(began.Add(after)))
		synctest.Wait()
		for _, do := range steps[after] {
			do()
		}
	}
	time.Sleep(time.Until(began.Add(time.Hour)))
	synctest.Wait()
	if h%4 != 3 {
		return
	}
	if st := s.bridge.Status(); st.Outbox.Pending+st.Outbox.DeadLetters+len(st.Events) > 0 || !st.Ready {
		s.t.Errorf("after hour %d: ready %t %v, %d deliveries are pending, %d are dead letters, %d events are open; want none",
			h+1,
			st.Ready, st.Reasons, st.Outbox.Pending, st.Outbox.DeadLetters, len(st.Events))
	}
}

// event is the id of another event.
func (s *soak) event() string { s.events++; return eventID(fmt.Sprint("soak ", s.events)) }

// happens notes a change that every sink has to hear of.
func (s *soak) happens(id, change string) { s.want.note(id + "-" + change) }

func (s *soak) move(id string) {
	s.azure.Update(id, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(5 * time.Minute) })
	s.happens(id, "updated")
}

// trouble lets a place fail in the nth way, or no more when n is negative.
func (s *soak) trouble(place string, n int) {
	ways := []string{"refuse", "hang", "error", "lost", "limit", "cut"}
	address := place + ":80"
	switch place {
	case "post":
		address, ways = "post:25", []string{"refuse", "lost"}
	case "stream":
		address, ways = "stream:4222", []string{"refuse", "lost"}
	}
	way := ""
	if n >= 0 {
		way = ways[n%len(ways)]
	}
	s.net.lines[address].set(way)
}

// read is a scrape of the metrics, a look at page and status, and a browser that follows the page for a while.
func (s *soak) read() {
	s.t.Helper()
	for path, says := range map[string]string{"/metrics": "forewarn_polls_total", "/status.json": `"ready"`,
		"/": "</html>", "/healthz": "ok"} {
		if body := s.get(path); !bytes.Contains(body, []byte(says)) {
			s.t.Errorf("%s does not say %q: %.300q", path, says, body)
		}
	}
	go func() {
		ctx, cancel := context.WithTimeout(s.t.Context(), 2500*time.Millisecond)
		defer cancel()
		client := s.client()
		defer client.CloseIdleConnections()
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+soakPage+"/events", nil)
		resp, err := client.Do(req)
		if err != nil {
			s.t.Errorf("the page is not followed: %v", err)
			return
		}
		defer resp.Body.Close()
		if n, _ := io.Copy(io.Discard, resp.Body); n == 0 {
			s.t.Error("whoever follows the page gets nothing")
		}
	}()
}

func (s *soak) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: s.net.dial}}
}

func (s *soak) get(path string) []byte {
	s.t.Helper()
	client := s.client()
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + soakPage + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return body
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
	if sinks := len(s.bridge.Status().Sinks); workers != sinks {
		s.t.Errorf("%d workers run for %d sinks", workers, sinks)
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
				deliveries[d.Sink]++
				if d.State != "accepted" && (d.Sink != "chat" || d.State != "superseded") {
					s.t.Errorf("%s is %s %s for %s: %s", c.ID, d.State, d.Reason, d.Sink, d.Error)
				}
			}
		}
	}
	s.t.Logf("%d changes of %d events; deliveries by sink: %v; %d calls of Slack", len(want), len(histories), deliveries,
		s.posts)
}

// hears is a server that takes CloudEvents.
func (s *soak) hears(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ce struct{ ID string }
		if err := json.NewDecoder(r.Body).Decode(&ce); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.heard[name].note(ce.ID)
	})
}

// slack takes every message.
func (s *soak) slack(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	form, _ := url.ParseQuery(string(body))
	s.mu.Lock()
	s.posts++
	ts := cmp.Or(form.Get("ts"), fmt.Sprintf("1700000000.%06d", s.posts))
	s.mu.Unlock()
	json.NewEncoder(w).Encode(map[string]any{"ok": true, "channel": form.Get("channel"), "ts": ts,
		"message": map[string]any{"ts": ts}})
}

// mail is a mail server.
func (s *soak) mail(address string) {
	l := newMemoryListener()
	srv := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) {
		return &mailbox{to: s.heard["post"]},
			nil
	}))
	srv.ErrorLog = log.New(io.Discard, "", 0)
	go srv.Serve(l)
	s.net.line(address, l.dial).close = func() { srv.Close(); l.Close() }
}

// A mailbox notes which CloudEvent each mail is about.
type mailbox struct {
	counter
	to *journal
}

// Data takes a mail.
func (m *mailbox) Data(r io.Reader) error {
	letter, err := mail.ReadMessage(r)
	if err != nil {
		return err
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(letter.Header.Get("Message-ID"), "<"), ".")
	m.to.note(id)
	_, err = io.Copy(io.Discard, r)
	return err
}

// nats is a NATS server with a stream in memory, which keeps the last few messages, and a subscriber.
func (s *soak) nats(address string) {
	s.t.Helper()
	srv, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true,
		StoreDir: filepath.Join(s.dir, "nats"), MaxClosedClients: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	srv.Start()
	conn, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		s.t.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err == nil {
		_, err = js.CreateStream(s.t.Context(), jetstream.StreamConfig{
			Name: "FOREWARN", Subjects: []string{"forewarn.>"}, Storage: jetstream.MemoryStorage, MaxMsgs: 50,
		})
	}
	if err == nil {
		_, err = conn.Subscribe("forewarn.>",
			func(m *nats.Msg) { s.heard["stream"].note(m.Header.Get(jetstream.MsgIDHeader)) })
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.net.line(address, func() (net.Conn, error) { return srv.InProcessConn() }).close = func() {
		conn.Close()
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// A journal keeps ids on disk, so that what the test remembers is not in the memory that it measures.
type journal struct {
	mu   sync.Mutex
	file *os.File
}

func newJournal(t *testing.T, path string) *journal {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &journal{file: f}
}

func (j *journal) note(id string) {
	if azureChange.MatchString(id) {
		j.mu.Lock()
		defer j.mu.Unlock()
		fmt.Fprintln(j.file, id)
	}
}

func (j *journal) all(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(j.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}
