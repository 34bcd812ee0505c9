package bridge_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// How a simulation runs the program, and how it translates between the program's types and its own.

// A process is the real program, from its start to its end: client, diff, filters, outbox, delivery and approval.
type process struct {
	w      *world
	bridge *bridge.Bridge
	outbox *outbox.Outbox
	disk   *disk
	cancel context.CancelFunc
	done   chan struct{}
}

// start starts the program on the file that the one before left.
func start(w *world) *process {
	file := &file{buckets: w.image.clone()}
	w.disk = &disk{w: w, file: file, lifted: make(chan struct{}), late: w.late > w.trueTime()}
	p := &process{w: w, disk: w.disk, done: make(chan struct{})}
	file.disk = p.disk
	b := w.variant.boundsOf(w.plan.bounds)
	box, err := outbox.Open("", outbox.Options{
		Log: w.log, Storage: file, Bounds: outbox.Bounds{Pending: b.pending, InMemory: b.memory},
	})
	panicOn(err)
	p.outbox = box
	p.disk.opened.Store(true)
	p.bridge, err = bridge.New(bridge.Options{
		Client: imds.NewClient("http://azure.test", imds.DefaultAPIVersion, w.log, w.variant.transportOf(endpoint{w})),
		Outbox: box, Routes: p.routes(w.routes), Rules: w.variant.rulesOf(w, rules(w.rules)),
		Interval: w.plan.interval * time.Duration(1+w.variant.slower), Host: "host-0", Version: "simulated", Log: w.log,
		Turned: p.turned, Random: w.random, Meter: meter{w: w},
	})
	panicOn(err)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() {
		defer close(p.done)
		_ = p.bridge.Run(ctx) // it returns when ctx ends
	}()
	return p
}

// What the program may forget.
const forgotDeadLetter, forgotHistory = outbox.ForgotDeadLetter, outbox.ForgotHistory

// A meter counts what the program says that it forgot.
type meter struct {
	bridge.NoMeter
	w *world
}

func (m meter) Forgot(what string, n int) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.w.forgot[what] += n
}

// turned is called when the poll loop has come round.
func (p *process) turned() {
	pending := p.outbox.Totals().Pending
	p.w.mu.Lock()
	p.w.most = max(p.w.most, pending)
	p.w.mu.Unlock()
	p.w.turned()
}

// stop ends the program as SIGTERM does. It returns what the file holds then.
func (p *process) stop() buckets {
	p.cancel()
	<-p.done
	return p.kill()
}

// kill ends the program as kill -9 and a power cut do: what is in the file then is all that is left.
func (p *process) kill() buckets {
	p.disk.crashNow()
	p.cancel()
	<-p.done
	close(p.disk.lifted) // of what it left open when it ended while its disk hung
	_ = p.outbox.Close() // what it says was said before
	return p.disk.image
}

// reload sets the routes and rules up anew.
func (p *process) reload() {
	rules := p.w.variant.rulesOf(p.w, rules(p.w.rules))
	panicOn(p.bridge.Reload(context.Background(), p.routes(p.w.routes), rules, bridge.SettingsInfo{}))
}

// entries returns what is pending, and the dead letters.
func (p *process) entries() []outbox.Delivery { return p.outbox.List(outbox.Selection{}) }

// idle reports whether nothing is to be done, and all that was done is on the disk.
func (p *process) idle() bool {
	return p.outbox.Totals().Pending == 0 && p.bridge.Status().Outbox.Durable
}

// mute holds back the deliveries of the plan, and returns the id of the mute.
func (p *process) mute(x mutePlan, why string) string {
	asked := bridge.Mute{Sink: x.sink, People: x.people, VM: x.vm, Types: slices.Clone(x.types), Reason: why, By: muter}
	p.w.variant.muteOf(&asked, &x.lasts)
	m, err := p.bridge.Mute(asked, x.lasts)
	panicOn(err)
	return m.ID
}

// shown returns what stands for an event as the program shows it to people; "" when it knows none.
func (p *process) shown(id string) string {
	for _, e := range p.bridge.Status().Events {
		if e.Known.ID == id {
			return e.Known.Digest()
		}
	}
	return ""
}

// A recorded is one delivery as the history has it.
type recorded struct {
	event, id, sink, state string
}

func (p *process) record() (list []recorded) {
	lives, err := bridge.History(p.outbox, bridge.Period{})
	panicOn(err)
	for _, l := range lives {
		for _, c := range l.Changes {
			for _, d := range c.Deliveries {
				list = append(list, recorded{l.Event, c.ID, d.Route, d.State})
			}
		}
	}
	return list
}

// A kept is one delivery as the outbox remembers it in the end, and for how long it was pending.
type kept struct {
	sink, id, event, state, reason string
	from, to                       time.Time
}

// ledger returns all that the outbox remembers.
func (p *process) ledger() (list []kept) {
	err := p.outbox.Walk(0, func(r outbox.Record) error {
		var ce event.Event
		if err := json.Unmarshal(r.Body, &ce); err != nil {
			return err
		}
		for _, d := range r.Deliveries {
			list = append(list, kept{d.Route, ce.ID(), ce.Subject(), d.State, d.Reason, ce.Time(), d.At})
		}
		return nil
	})
	panicOn(err)
	return list
}

// routes returns the bridge's for a plan.
func (p *process) routes(plans []routePlan) (routes []bridge.Route) {
	for _, r := range plans {
		route := bridge.Route{
			Name: r.name, Kind: "simulated", Sink: sink{destination{p.w, r.name}},
			Filter: r.filter(),
			Terms: bridge.Terms{
				Terms: delivery.Terms{
					Timeout: r.timeout, MaxAge: r.maxAge, Late: delivery.Late(r.late), Batch: r.batch, Parallel: r.parallel,
					Durable: r.sync, Fallback: delivery.Fallback{Sink: r.fallback, After: r.after},
					DigestAbove: r.above, Repeat: time.Minute,
				},
				Bridge: bridge.Level(cmp.Or(r.bridge, "none")), Acts: r.acts, Remind: r.remind, Lead: r.lead,
				People: slices.Contains(sinksForPeople, r.name),
			},
		}
		first, _ := routeOf(p.w.plan.routes, r.name)
		p.w.variant.route(&route, first)
		routes = append(routes, route)
	}
	return routes
}

// whens are the compiled conditions of all plans.
var whens = sync.OnceValue(func() map[string]*bridge.When {
	m := map[string]*bridge.When{}
	for _, c := range conditions {
		w, err := bridge.ParseWhen(c.text)
		panicOn(err)
		m[c.text] = w
	}
	return m
})

func (r routePlan) filter() bridge.Filter {
	x := r.except
	return bridge.Filter{
		Only:   bridge.Only{VMs: r.vms, Types: r.types, Sources: r.sources, Changes: r.changes},
		Except: bridge.Except{VMs: x.vms, Types: x.types, Sources: x.sources, Changes: x.changes},
		When:   whens()[r.when.text],
	}
}

func rules(plans []rulePlan) (list []bridge.Rule) {
	for _, r := range plans {
		list = append(list, bridge.Rule{
			Only:  bridge.Match{VMs: "self", Types: r.types, Sources: r.sources},
			After: r.after, Wait: r.wait, Others: r.others,
		})
	}
	return list
}

// A sink is a destination as the bridge sees it.
type sink struct{ destination }

func (s sink) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	if batch[0].Repeated {
		s.repeat(handedOf(batch[0]))
		return delivery.Answer{}, nil
	}
	list := make([]handed, len(batch))
	for i, d := range batch {
		list[i] = handedOf(d)
	}
	v := s.w.variant.deliver(s.destination, ctx, list)
	var err error
	switch v.class {
	case "":
		return delivery.Answer{Status: "200 OK", Receipt: []byte(v.receipt)}, nil
	case "blocked":
		err = fmt.Errorf("%w: 401 Unauthorized", delivery.ErrBlocked)
	case "rejected":
		err = fmt.Errorf("%w: 422", delivery.ErrRejected)
	default:
		err = cmp.Or(v.cause, errDown)
	}
	if v.after > 0 {
		err = &delivery.RetryAfter{After: v.after, Err: err}
	}
	var a delivery.Answer
	if v.progress != "" {
		a.Progress = []byte(v.progress)
	}
	if v.receipt != "" {
		a.Receipt = []byte(v.receipt)
	}
	return a, err
}

func handedOf(d delivery.Delivery) handed {
	h := handed{
		id: d.Event.ID(), event: d.Event.Subject(), time: d.Event.Time(), attempt: d.Attempt, receipt: string(d.Receipt),
		notBefore: d.NotBefore, body: string(d.Event.Data()), progress: string(d.Progress),
	}
	kind, azures := strings.CutPrefix(d.Event.Type(), cloudevent.EventPrefix)
	h.change = kind
	if !azures {
		h.event = ""
	}
	if d.FallbackFor != nil {
		h.instead = d.FallbackFor.Sink
	}
	if d.Mute != nil {
		h.mute = d.Mute.ID
	}
	for _, m := range d.Missed {
		h.missed = append(h.missed, m.Change)
	}
	var data struct {
		Event struct {
			EventType string
			Resources []string
		}
		Outcome   string
		WhileAway bool
		Observer  struct{ Name string }
	}
	if azures && json.Unmarshal(d.Event.Data(), &data) == nil {
		h.kind, h.outcome = data.Event.EventType, data.Outcome
		h.whileAway, h.observer, h.vms = data.WhileAway, data.Observer.Name, data.Event.Resources
	}
	return h
}

var (
	errDown = errors.New("connection refused")
	errDead = errors.New("the machine is dead")
)

func panicOn(err error) {
	if err != nil {
		panic(err)
	}
}

// quiet returns a logger that discards everything.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func loud(to io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
