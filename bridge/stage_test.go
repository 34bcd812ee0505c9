package bridge_test

import (
	"cmp"
	"context"
	"fmt"
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

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
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
	log    *systemtest.Log
	proxy  func(http.RoundTripper) http.RoundTripper // between the bridge and Azure, nil for nothing

	logged func(words string) // what is to happen when these are logged, nil for nothing
	wrote  func()             // what is to happen after each write of the next outbox, nil for nothing
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{
		t: t, dir: t.TempDir(), log: &systemtest.Log{},
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
	must(s.t, err)
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
	must(s.t, err)
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

// replay has a dead letter delivered again, to another sink if that is named.
func (r *running) replay(letter outbox.Delivery, to string) {
	r.s.t.Helper()
	if _, err := r.Replay([]string{letter.Key}, to, "root"); err != nil {
		r.s.t.Fatal(err)
	}
}

// drop drops deliveries.
func (r *running) drop(list ...outbox.Delivery) {
	r.s.t.Helper()
	var keys []string
	for _, d := range list {
		keys = append(keys, d.Key)
	}
	if _, err := r.Drop(keys, "root"); err != nil {
		r.s.t.Fatal(err)
	}
}

// approve approves an event by hand as Azure lists it now, which must have that result.
func (r *running) approve(id, result string) {
	r.s.t.Helper()
	if a := r.ApproveNow(r.s.t.Context(), id, r.s.shown(id), "root"); a.Result != result {
		r.s.t.Fatalf("ApproveNow = %+v, want %s", a, result)
	}
}

// deadLetters returns those of all sinks, in order.
func (r *running) deadLetters() []outbox.Delivery {
	return r.Outbox.List(outbox.Selection{State: outbox.StateDead})
}

// wantDead fails the test unless these are the dead letters, for that reason.
func (r *running) wantDead(reason string, ids ...string) {
	r.s.t.Helper()
	wantIDs(r.s.t, deadIDs(r.Outbox), ids...)
	for _, d := range r.deadLetters() {
		wantEqual(r.s.t, "the reason of "+d.ID, d.Reason, reason)
	}
}

// sink returns the status of one sink.
func (r *running) sink(name string) bridge.SinkStatus {
	r.s.t.Helper()
	sinks := r.Status().Sinks
	i := slices.IndexFunc(sinks, func(k bridge.SinkStatus) bool { return k.Name == name })
	if i < 0 {
		r.s.t.Fatalf("the status has no sink %s", name)
	}
	return sinks[i]
}

// wantDurable fails the test unless everything is on disk.
func (r *running) wantDurable() {
	r.s.t.Helper()
	if err := r.Outbox.Durable(); err != nil {
		r.s.t.Errorf("Durable = %v", err)
	}
}

// endsIn stops the bridge, and returns how long that took.
func (r *running) endsIn() time.Duration {
	r.s.t.Helper()
	began := time.Now()
	r.end()
	return time.Since(began)
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
	must(t, err)
	must(t, os.WriteFile(to, data, 0o600))
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
	wantEqual(s.t, fmt.Sprintf("lines in the log with %q", words), s.log.Count(words), n)
}

// must ends the test if something of its own goes wrong.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
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

// pause lets time pass, and everything happen that is due.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// reboot schedules a reboot of vm-0.
func (s *stage) reboot(id string) { s.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot"}) }

// notSelf schedules a reboot of vm-1, so that only routes of all VMs hear of it.
func (s *stage) notSelf(id string) {
	s.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Resources: []string{"vm-1"}})
}

// postpone moves the time before which an event does not begin.
func (s *stage) postpone(id string, d time.Duration) {
	s.azure.Update(id, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(d) })
}

// moveTo makes an event one of these VMs.
func (s *stage) moveTo(id string, vms ...string) {
	s.azure.Update(id, func(e *imdstest.Event) { e.Resources = vms })
}

// metadata has instance metadata answer like this.
func (s *stage) metadata(answer imdstest.Fault) {
	answer.Path = imdstest.InstanceFacts
	s.azure.SetFault(answer)
}

// nameless has instance metadata hang, so that nobody knows which VM this is.
func (s *stage) nameless() { s.metadata(imdstest.Fault{Hang: true}) }

// document has Azure serve a document of these entries.
func (s *stage) document(incarnation int, entries ...string) {
	s.azure.SetDocument(fmt.Appendf(nil, `{"DocumentIncarnation":%d,"Events":[%s]}`, incarnation, strings.Join(entries, ",")))
}

// rebootEntry is that of a reboot in a document.
func rebootEntry(id, status string) string {
	return fmt.Sprintf(`{"EventId":%q,"EventType":"Reboot","EventStatus":%q}`, id, status)
}

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
	must(t, err)
	t.Cleanup(func() { o.Close() })
	return o
}

// asides returns the files that were set aside in dir, by why.
func asides(t *testing.T, dir, why string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "outbox.db."+why+"-*"))
	must(t, err)
	return list
}

// notADirectory returns a path below a regular file, where no directory can be made.
func notADirectory(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	return filepath.Join(file, "state")
}
