package bridge_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

const idA, idB = "AAAAAAAA-0000-4000-8000-000000000001", "BBBBBBBB-0000-4000-8000-000000000002"

// A stage is an emulated Azure, an outbox on disk, and bridges that run one after the other, all in a synctest bubble.
type stage struct {
	t      *testing.T
	azure  *imdstest.Server
	vm     string // the VM the bridge runs on; "" is the first
	dir    string
	disk   *faultyDisk    // of the outbox that was opened last
	bounds outbox.Bounds  // of the next one
	opts   bridge.Options // Client, Outbox and Routes are filled in by start
	log    *lines
	proxy  func(http.RoundTripper) http.RoundTripper // between the bridge and Azure, nil for nothing

	logged func(words string) // what is to happen when these are logged, nil for nothing
	wrote  func()             // what is to happen after each write of the next outbox, nil for nothing
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{
		t: t, dir: t.TempDir(), log: &lines{},
		azure: imdstest.New(imdstest.Options{VMs: []string{"vm-0", "vm-1"}}),
		opts:  bridge.Options{Random: jitter()},
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log:\n%s", s.log)
		}
	})
	return s
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

// bubble runs f on a stage in a synctest bubble, which also holds that no goroutine is left behind. A bridge that still
// runs in the end is stopped.
func bubble(t *testing.T, f func(t *testing.T, s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newStage(t)) })
}

// subtest is a bubble with a name.
func subtest(t *testing.T, name string, f func(t *testing.T, s *stage)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, f) })
}

// running is a bridge that runs. end stops it as SIGTERM does; crash as kill -9 does: what is not on disk is lost.
type running struct {
	*bridge.Bridge
	Outbox *outbox.Outbox
	Routes []bridge.Route // as it was started with
	s      *stage
	cancel context.CancelFunc
	done   chan error
	killed bool // with mu of the stage's log; its sinks are out of reach
	mu     sync.Mutex
}

func (s *stage) logger() *slog.Logger {
	return slog.New(listener{slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}), s.logged})
}

// A listener does something before a line is logged.
type listener struct {
	slog.Handler
	logged func(words string)
}

func (l listener) Handle(ctx context.Context, r slog.Record) error {
	if l.logged != nil {
		l.logged(r.Message)
	}
	return l.Handler.Handle(ctx, r)
}

func (l listener) WithAttrs(attrs []slog.Attr) slog.Handler {
	return listener{l.Handler.WithAttrs(attrs), l.logged}
}

func (s *stage) start(routes ...bridge.Route) *running {
	s.t.Helper()
	var step time.Duration
	if s.disk != nil {
		step = s.disk.step
	}
	s.disk = &faultyDisk{Storage: outbox.File(s.dir, s.logger()), step: step, wrote: s.wrote}
	box, err := outbox.Open(s.dir, outbox.Options{Log: s.logger(), Storage: s.disk, Bounds: s.bounds})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.startWith(box, routes...)
}

func (s *stage) startWith(box *outbox.Outbox, routes ...bridge.Route) *running {
	s.t.Helper()
	r := &running{s: s, Outbox: box, done: make(chan error, 1)}
	o := s.opts
	endpoint := "http://azure.test"
	if s.vm != "" {
		endpoint += "/vm/" + s.vm
	}
	var transport http.RoundTripper = s.azure.RoundTripper()
	if s.proxy != nil {
		transport = s.proxy(transport)
	}
	o.Client = imds.NewClient(endpoint, imds.DefaultAPIVersion, s.logger(), transport)
	o.Outbox, o.Routes, o.Log, o.Host, o.Version = box, r.killable(routes), s.logger(), "host-0", "test"
	r.Routes = o.Routes
	var err error
	r.Bridge, err = bridge.New(o)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	r.cancel = cancel
	go func() {
		r.done <- r.Run(ctx)
		close(r.done)
	}()
	s.t.Cleanup(r.end) // or its files would be removed under it
	return r
}

// up starts a bridge, and lets it poll for the first time.
func (s *stage) up(routes ...bridge.Route) *running {
	s.t.Helper()
	r := s.start(routes...)
	pause(1500 * time.Millisecond)
	return r
}

// Reload replaces the routes and rules, which must be usable.
func (r *running) Reload(routes []bridge.Route, rules []bridge.Rule, settings bridge.SettingsInfo) {
	r.s.t.Helper()
	if err := r.Bridge.Reload(r.s.t.Context(), r.killable(routes), rules, settings); err != nil {
		r.s.t.Error(err)
	}
}

// reload replaces the routes alone.
func (r *running) reload(routes ...bridge.Route) {
	r.s.t.Helper()
	r.Reload(routes, nil, bridge.SettingsInfo{})
}

// end stops the bridge, which loses nothing. Where it has stopped already, it does nothing.
func (r *running) end() {
	r.s.t.Helper()
	r.cancel()
	if err := <-r.done; err != nil {
		r.s.t.Errorf("Run = %v", err)
	}
}

// crash kills the bridge: the file stays as it is now, and no destination hears of it again.
func (r *running) crash() {
	r.s.t.Helper()
	image := filepath.Join(r.s.t.TempDir(), "image")
	r.mu.Lock()
	r.killed = true
	r.mu.Unlock()
	r.snapshot(image)
	r.cancel()
	<-r.done
	copyFile(r.s.t, image, r.Outbox.Path())
}

// snapshot copies the outbox's file between two transactions: what a crash now would leave.
func (r *running) snapshot(to string) {
	r.s.t.Helper()
	r.s.disk.writing.Lock()
	defer r.s.disk.writing.Unlock()
	copyFile(r.s.t, r.Outbox.Path(), to)
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// killable puts the routes' sinks out of reach when the bridge is killed.
func (r *running) killable(routes []bridge.Route) []bridge.Route {
	routes = slices.Clone(routes)
	for i := range routes {
		routes[i].Sink = killable{routes[i].Sink, r}
	}
	return routes
}

type killable struct {
	delivery.Sink
	r *running
}

func (m killable) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	m.r.mu.Lock()
	killed := m.r.killed
	m.r.mu.Unlock()
	if killed {
		return delivery.Answer{}, errors.New("killed")
	}
	return m.Sink.Deliver(ctx, batch)
}

func (m killable) Head() string {
	if c, ok := m.Sink.(delivery.Chained); ok {
		return c.Head()
	}
	return ""
}

func (m killable) Close() error {
	if c, ok := m.Sink.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// lines is a log that can be searched.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (s *stage) wantLogged(words string) {
	s.t.Helper()
	if !strings.Contains(s.log.String(), words) {
		s.t.Errorf("the log does not say %q", words)
	}
}

// wantLoggedTimes is for what is logged so often, or not at all.
func (s *stage) wantLoggedTimes(n int, words string) {
	s.t.Helper()
	wantEqual(s.t, fmt.Sprintf("lines in the log with %q", words), strings.Count(s.log.String(), words), n)
}

// A recorder is a sink that remembers what it was told and answers as it is told to.
type recorder struct {
	mu     sync.Mutex
	heard  []heard // accepted
	tries  []heard
	calls  [][]string                    // the ids of each batch
	answer func(delivery.Delivery) error // nil accepts
	reply  delivery.Answer
}

type heard struct {
	delivery.Delivery
	at time.Time
}

func (e *recorder) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	e.mu.Lock()
	answer := e.answer
	var ids []string
	for _, d := range batch {
		e.tries = append(e.tries, heard{d, time.Now()})
		ids = append(ids, d.Event.ID())
	}
	e.calls = append(e.calls, ids)
	reply := e.reply
	e.mu.Unlock()
	for _, d := range batch {
		if answer == nil {
			break
		}
		if err := answer(d); err != nil {
			if errors.Is(err, errHang) {
				<-ctx.Done()
				return reply, ctx.Err()
			}
			return reply, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range batch {
		e.heard = append(e.heard, heard{d, time.Now()})
	}
	return reply, nil
}

// errHang makes a recorder hang until its attempt ends; errDown is a destination that does not answer.
var (
	errHang     = errors.New("hang")
	errSinkDown = errors.New("connection refused")
)

func (e *recorder) say(answer func(delivery.Delivery) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

func always(err error) func(delivery.Delivery) error {
	return func(delivery.Delivery) error { return err }
}

// ids returns those of what was accepted, in order.
func (e *recorder) ids() []string { return idsOf(e.accepted()) }

func (e *recorder) accepted() []heard {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.heard)
}

func (e *recorder) tried() []heard {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.tries)
}

// idsOf returns the ids of what was heard; of an approval's without its number.
func idsOf(list []heard) []string {
	ids := []string{}
	for _, h := range list {
		id, _, _ := strings.Cut(h.Event.ID(), "-approved-")
		if id != h.Event.ID() {
			id += "-approved"
		}
		ids = append(ids, id)
	}
	return ids
}

// answering is a recorder that accepts nothing.
func answering(err error) *recorder { return &recorder{answer: always(err)} }

// last decodes what was accepted last, which must be about an Azure event.
func (e *recorder) last(t *testing.T) cloudevent.Data {
	t.Helper()
	all := e.accepted()
	if len(all) == 0 {
		t.Fatal("nothing was accepted")
	}
	return dataIn(t, all[len(all)-1].Event)
}

// types returns the types of what was accepted, without their prefix.
func (e *recorder) types() []string {
	list := []string{}
	for _, h := range e.accepted() {
		list = append(list, strings.TrimPrefix(strings.TrimPrefix(h.Event.Type(), cloudevent.EventPrefix), cloudevent.BridgePrefix))
	}
	return list
}

// all routes everything about all VMs to the recorder.
func (e *recorder) all(name string) bridge.Route {
	return bridge.Route{Name: name, Kind: "recorder", Sink: e, Filter: bridge.Filter{Only: bridge.Only{VMs: "all"}}, Terms: bridge.Terms{Terms: delivery.Terms{Timeout: 10 * time.Second, Late: delivery.LateSend}}}
}

// wantEqual fails the test if what is not as wanted.
func wantEqual[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// wantWithin fails the test if what is less than least or more than most.
func wantWithin[T cmp.Ordered](t testing.TB, what string, got, least, most T) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: got %v, want %v to %v", what, got, least, most)
	}
}

// wantIn fails the test if a text doesn't have these words in it.
func wantIn(t testing.TB, what, text, words string) {
	t.Helper()
	if !strings.Contains(text, words) {
		t.Errorf("%s: got %q, want %q in it", what, text, words)
	}
}

func wantIDs(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) && len(got)+len(want) > 0 {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// dataIn decodes what a CloudEvent holds about an Azure event.
func dataIn(t *testing.T, ce event.Event) (d cloudevent.Data) {
	t.Helper()
	if err := json.Unmarshal(ce.Data(), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// tellingOf decodes what a CloudEvent holds about the bridge.
func tellingOf(t *testing.T, ce event.Event) (data map[string]any) {
	t.Helper()
	if err := json.Unmarshal(ce.Data(), &data); err != nil {
		t.Fatal(err)
	}
	return data
}

// pause lets time pass, and everything happen that is due.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// reboot schedules a reboot of vm-0.
func (s *stage) reboot(id string) { s.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot"}) }

// conditions returns the If-None-Match of each request for the document, "" where there is none.
func (s *stage) conditions() []string {
	list := []string{}
	for _, r := range s.azure.Requests() {
		if strings.HasSuffix(r.Path, "/scheduledevents") {
			list = append(list, r.Header.Get("If-None-Match"))
		}
	}
	return list
}

// polls returns the number of requests for the document.
func (s *stage) polls() int { return len(s.conditions()) }

// stored opens the outbox in dir read-only while no bridge runs.
func stored(t *testing.T, dir string) *outbox.Outbox {
	t.Helper()
	o, err := outbox.OpenReadOnly(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// asides returns the files that were set aside in dir, by why.
func asides(t *testing.T, dir, why string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "outbox.db."+why+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// notADirectory returns a path below a regular file, where no directory can be made.
func notADirectory(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(file, "state")
}
