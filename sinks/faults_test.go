package sinks

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// faultsFor is how long TestSinksUnderFaults does harm, faultsSeed is what it draws it from.
const (
	faultsFor  = "FOREWARN_SINK_FAULTS"
	faultsSeed = "FOREWARN_SINK_SEED"
)

// Whatever happens to the destinations and on the way to them, everybody gets every CloudEvent, those about one Azure
// event in order, and nobody who has one gets it again. Only where the answer was lost after a destination took a
// CloudEvent is it sent once more, with the same id.
//
// The destinations are real servers on real sockets. They are restarted, refuse, hang, answer slowly or with an error,
// and hang up in the middle of a request or of an answer.
func TestSinksUnderFaults(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel() // it waits more than it works
	harm := 3 * time.Second
	if text := os.Getenv(faultsFor); text != "" {
		var err error
		if harm, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(faultsSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s=%s %s=%d", faultsFor, harm, faultsSeed, seed)
	f := &faults{t: t, random: rand.New(rand.NewPCG(seed, 0)), did: map[string]int{}, taken: map[string][]*taking{},
		on:   true,
		over: make(chan struct{})}

	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	quiet := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	box, err := outbox.Open(dir, outbox.Options{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	destinations := f.destinations()
	turns := &SlackTurns{pace: min(harm/300, slackPace)} // half an hour has Slack's own pace
	routes := func() (all []bridge.Route) {
		for _, d := range destinations {
			h := testHost(t)
			h.Name, h.Log, h.SlackTurns = d.name, quiet, turns
			opened, err := open(d.kind, d.settings, h)
			if err != nil {
				t.Errorf("%s: %v\n%s", d.name, err, d.settings)
			}
			terms := bridge.Terms{Terms: Kinds()[d.kind].Terms, Bridge: bridge.LevelNone}
			if !d.latest {
				terms.Late, terms.DigestAbove = delivery.LateSend, 0
			}
			all = append(all, bridge.Route{
				Name: d.name, Kind: d.kind, Sink: witness{opened.Sink, f, d, terms.Timeout}, Terms: terms,
				Filter: bridge.Filter{Only: bridge.Only{VMs: "all"}},
			})
		}
		return all
	}
	b, err := bridge.New(bridge.Options{
		Client: imds.NewClient(azure.URL, imds.DefaultAPIVersion, quiet, nil), Outbox: box, Log: quiet, Routes: routes(),
		Interval: 250 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()

	reload := func() {
		if err := b.Reload(ctx, routes(), nil, bridge.SettingsInfo{}); err != nil {
			t.Error(err)
		}
	}
	f.while(20*time.Second, func() {
		if f.one("forewarn", "reload") != "" {
			reload()
		}
	})
	f.live(azure.Server, harm)
	f.stop()
	reload() // which starts the waits anew
	patience := time.Now().Add(6 * time.Minute)
	for time.Sleep(time.Second); b.Status().Outbox.Pending > 0 && time.Now().Before(patience); {
		time.Sleep(100 * time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, s := range b.Status().Sinks {
		if s.Pending > 0 || s.DeadLetters > 0 {
			t.Errorf("%s: %d are pending and %d dead letters: %s", s.Name, s.Pending, s.DeadLetters, s.LastError)
		}
	}
	for _, tell := range f.atEnd {
		tell()
	}
	if box, err = outbox.Open(dir, outbox.Options{Log: quiet}); err != nil { // the bridge has closed it
		t.Fatal(err)
	}
	defer box.Close()
	f.check(box, destinations)
}

// faults do harm to destinations, and know what these took.
type faults struct {
	t       *testing.T
	harming sync.WaitGroup
	over    chan struct{} // closed when the harm ends
	events  []string      // that happened
	atEnd   []func()      // what tells afterwards what was taken

	mu     sync.Mutex
	random *rand.Rand
	on     bool
	did    map[string]int
	taken  map[string][]*taking // by recipient, in order
	story  []string             // of attempts, and of what was taken
}

// A taking is that a recipient took a CloudEvent.
type taking struct {
	id   string
	lost bool // the answer may not have arrived
}

// chance is true in so many of a hundred cases, while there is harm at all.
func (f *faults) chance(percent int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.on && f.random.IntN(100) < percent
}

// one returns one of the faults that a destination knows, mostly none.
func (f *faults) one(of string, all ...string) string {
	if !f.chance(30) {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fault := all[f.random.IntN(len(all))]
	f.did[of+" "+fault]++
	return fault
}

func (f *faults) below(d time.Duration) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(f.random.Int64N(int64(d)))
}

// took notes that somebody has a CloudEvent, on a connection over which the answer has yet to go.
func (f *faults) took(w *wire, recipient, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &taking{id: id, lost: w != nil}
	f.tell("%s took %s", recipient, id)
	f.taken[recipient] = append(f.taken[recipient], t)
	if w != nil {
		w.open = append(w.open, t)
	}
}

// tell adds to the story. The caller holds mu.
func (f *faults) tell(format string, args ...any) {
	f.story = append(f.story, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// about returns what the story says about an event at a destination.
func (f *faults) about(event string, d destination) string {
	lines := slices.DeleteFunc(slices.Clone(f.story), func(line string) bool {
		to := func(name string) bool { return strings.Contains(line, " "+name+" t") }
		return !strings.Contains(line, event) || !to(d.name) && !slices.ContainsFunc(d.recipients, to)
	})
	return strings.Join(lines, "\n")
}

// answered notes that the answer for all that was taken on a connection has left.
func (f *faults) answered(w *wire) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range w.open {
		t.lost = false
	}
	w.open = nil
}

// stop ends the harm and returns when all destinations are well.
func (f *faults) stop() {
	f.mu.Lock()
	f.on = false
	f.mu.Unlock()
	close(f.over)
	f.harming.Wait()
}

// A witness sees that a sink gave up waiting, and that the answer that came meanwhile was lost so.
type witness struct {
	delivery.Sink
	f       *faults
	to      destination
	timeout time.Duration
}

func (w witness) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	began := time.Now()
	answer, err := w.Sink.Deliver(ctx, batch)
	var ids []string
	for _, d := range batch {
		ids = append(ids, fmt.Sprintf("%s (attempt %d, progress %q)", d.Event.ID(), d.Attempt, d.Progress))
	}
	w.f.mu.Lock()
	w.f.tell("%s tried %s for %v: %q, progress %q, %v", w.to.name, strings.Join(ids, ", "),
		time.Since(began).Round(time.Millisecond),
		answer.Status, answer.Progress, err)
	w.f.mu.Unlock()
	if err != nil && w.timeout > 0 && time.Since(began) >= w.timeout {
		w.f.mu.Lock()
		defer w.f.mu.Unlock()
		for _, to := range w.to.recipients {
			for _, t := range w.f.taken[to] {
				t.lost = t.lost || slices.ContainsFunc(batch, func(d delivery.Delivery) bool { return d.Event.ID() == t.id })
			}
		}
	}
	return answer, err
}

// Close is the sink's.
func (w witness) Close() error { closeSink(w.Sink); return nil }

// while does something again and again until the harm ends, so far apart.
func (f *faults) while(apart time.Duration, do func()) {
	f.harming.Go(func() {
		for f.chance(100) {
			do()
			select {
			case <-time.After(apart/2 + f.below(apart)):
			case <-f.over:
			}
		}
		do() // and then nothing is broken any more
	})
}

// live has events come and go for a while, and ends them all.
func (f *faults) live(azure *imdstest.Server, d time.Duration) {
	type life struct {
		id    string
		stage int
		next  time.Time
	}
	pause := max(d/300, time.Second) // between changes: Slack takes one message a second
	var alive []*life
	latest, wave := time.Time{}, time.Now().Add(-18*pause)
	begin := func(kind string) {
		id := fmt.Sprintf("%08X-0000-4000-8000-000000000000", len(f.events))
		latest = time.Now()
		azure.Schedule(imdstest.Event{ID: id, Type: kind, NotBefore: time.Now().Add(f.below(30 * time.Minute))})
		f.events = append(f.events, id)
		alive = append(alive, &life{id: id, next: time.Now().Add(pause + f.below(2*pause))})
	}
	step := func(l *life) {
		switch l.stage++; {
		case l.stage < 3 && f.chance(50):
			l.stage--
			azure.Update(l.id, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Minute) })
		case l.stage == 1:
			azure.Start(l.id)
		default:
			azure.End(l.id)
		}
		l.next = time.Now().Add(pause + f.below(4*pause))
	}
	kinds := []string{"Reboot", "Redeploy", "Freeze", "Terminate"}
	end := time.Now().Add(d)
	goesOn := func() bool { // a busy machine needs longer
		return time.Now().Before(end) || !f.enough() && time.Now().Before(end.Add(3*time.Minute))
	}
	for ; goesOn(); time.Sleep(100 * time.Millisecond) {
		switch {
		case len(alive) < 5 && f.chance(10) && time.Since(latest) > pause/2:
			begin(kinds[f.below(time.Duration(len(kinds)))])
		case time.Since(wave) > 20*pause: // of which people hear in one message
			wave = time.Now()
			for range 6 {
				begin("Freeze")
			}
		}
		for _, l := range alive {
			if time.Now().After(l.next) {
				step(l)
			}
		}
		alive = slices.DeleteFunc(alive, func(l *life) bool { return l.stage >= 2 })
	}
	time.Sleep(time.Second) // so that the last were seen
	for _, l := range alive {
		azure.End(l.id)
	}
	time.Sleep(time.Second)
}

// enough reports whether so much has happened that the test says something. It is for the goroutine of live.
func (f *faults) enough() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	lost := 0
	for fault, times := range f.did {
		if strings.HasSuffix(fault, " lose the answer") {
			lost += times
		}
	}
	return len(f.events) >= 8 && len(f.did) >= 50 && lost >= 5
}

// check holds what was taken against what was pending.
func (f *faults) check(box *outbox.Outbox, destinations []destination) {
	t := f.t
	type pending struct {
		id, event string
		seq       uint64
		by        map[string]string // how each route's delivery ended
	}
	known := map[string]pending{}
	ends := map[string]bool{}
	err := box.Walk(0, func(r outbox.Record) error {
		var ce struct{ ID, Subject, Type string }
		if err := json.Unmarshal(r.Body, &ce); err != nil {
			return err
		}
		if !strings.HasPrefix(ce.Type, cloudevent.EventPrefix) {
			return nil
		}
		o := pending{ce.ID, ce.Subject, r.Seq, map[string]string{}}
		for _, d := range r.Deliveries {
			o.by[d.Route] = d.State
		}
		known[o.id] = o
		ends[o.event] = ends[o.event] || strings.HasSuffix(ce.ID, "-vanished")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range f.events {
		if end, seen := ends[id]; seen && !end {
			t.Errorf("nobody was to hear the end of event %s", id)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	repeats := 0
	for _, d := range destinations {
		for _, to := range d.recipients {
			last, latest := map[string]*taking{}, map[string]uint64{}
			for i, took := range f.taken[to] {
				o, ok := known[took.id]
				before, again := last[took.id]
				switch {
				case !ok:
					t.Errorf("%s took %q, which is no CloudEvent that was pending", to, took.id)
				case again && !before.lost:
					t.Errorf("%s got %s again, as number %d, though it had it and had said so\n%s", to, took.id, i+1,
						f.about(o.event, d))
				case o.seq < latest[o.event] && !(again && Kinds()[d.kind].Terms.Batch > 1): // a batch is sent again as a whole
					t.Errorf("%s got %s after a later change of the event\n%s", to, took.id, f.about(o.event, d))
				}
				if again {
					repeats++
				}
				last[took.id], latest[o.event] = took, max(latest[o.event], o.seq)
			}
			for _, id := range slices.Sorted(maps.Keys(known)) {
				state := known[id].by[d.name]
				if _, got := last[id]; state != outbox.StateSuperseded && (!got || state != outbox.StateAccepted) {
					t.Errorf("%s: %s is %q and it got it: %t", to, id, state, got)
				}
			}
		}
	}
	t.Logf("%d events, %d CloudEvents, %d repeats after a lost answer, faults: %v", len(f.events), len(known), repeats,
		f.did)
	if len(known) < 10 || len(f.did) < 50 || repeats == 0 {
		t.Error("too little happened")
	}
}

// A gate is a port at which a destination listens, and at times does not. It is the net.Listener of a server.
type gate struct {
	f     *faults
	addr  net.Addr
	conns chan net.Conn
	over  chan struct{} // closed at the end of the test

	mu    sync.Mutex
	l     net.Listener
	wires map[*wire]bool
}

// gate opens a port of a destination's own, which is down now and then.
func (f *faults) gate(name string) *gate {
	g := &gate{f: f, conns: make(chan net.Conn), over: make(chan struct{}), wires: map[*wire]bool{}}
	address := net.JoinHostPort(hostOf(f.t), freePort(f.t))
	var accepting sync.WaitGroup
	up := func() {
		l, err := net.Listen("tcp", address)
		if err != nil {
			f.t.Errorf("%s: %v", name, err)
			return
		}
		g.l = l
		accepting.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				w := &wire{Conn: conn, gate: g}
				g.mu.Lock()
				g.wires[w] = true
				g.mu.Unlock()
				select {
				case g.conns <- w:
				case <-g.over:
					w.Close()
				}
			}
		})
	}
	down := func() {
		g.l.Close()
		accepting.Wait()
		g.mu.Lock()
		all := slices.Collect(maps.Keys(g.wires))
		g.mu.Unlock()
		for _, w := range all {
			w.Close()
		}
	}
	if up(); g.l == nil {
		f.t.FailNow()
	}
	g.addr = g.l.Addr()
	f.t.Cleanup(func() {
		close(g.over)
		down()
	})
	f.while(6*time.Second, func() {
		if f.one(name, "restart") != "" {
			down()
			time.Sleep(f.below(2 * time.Second))
			up()
		}
	})
	return g
}

// Accept is net.Listener's.
func (g *gate) Accept() (net.Conn, error) {
	select {
	case conn := <-g.conns:
		return conn, nil
	case <-g.over:
		return nil, net.ErrClosed
	}
}

// Close is net.Listener's.
func (g *gate) Close() error { return nil }

// Addr is net.Listener's.
func (g *gate) Addr() net.Addr { return g.addr }

// each serves every connection.
func (g *gate) each(serve func(*wire)) {
	for {
		conn, err := g.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			serve(conn.(*wire))
		}()
	}
}

// A wire is a connection to a destination.
type wire struct {
	net.Conn
	gate *gate
	open []*taking // whose answer has not left; faults.mu guards it
}

// Write is how answers leave.
func (w *wire) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	if err == nil {
		w.gate.f.answered(w)
	}
	return n, err
}

// Close ends the connection.
func (w *wire) Close() error {
	w.gate.mu.Lock()
	delete(w.gate.wires, w)
	w.gate.mu.Unlock()
	return w.Conn.Close()
}

// closed reports whether this end is closed, as by a restart.
func (w *wire) closed() bool {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	return !w.gate.wires[w]
}

// reset ends a connection as a machine does that is switched off.
func (w *wire) reset() {
	w.Conn.(*net.TCPConn).SetLinger(0)
	w.Close()
}
