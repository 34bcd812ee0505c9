package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// bubbleEpoch is when time begins in a bubble.
var bubbleEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// A world is all that surrounds the relays in one simulation, and remembers all that truly happened.
type world struct {
	plan
	t      *testing.T
	log    *slog.Logger
	server *bubbleServer
	all    sync.WaitGroup // relays that run, and what is done beside the plan

	mu       sync.Mutex
	machines []*machine
	troubles map[string]sinkTrouble // of destinations
	fuse     int                    // how many more acceptances there are until a relay is killed; 0 for none
	burns    time.Duration          // from the last of them to the kill
	offUntil time.Duration          // the server is

	// What happened.
	attempts []*attempt
	repeated []repeated
	breaks   []breakage
	changes  []time.Duration // a relay started, stopped, was killed or reloaded
	most     int             // deliveries of a sink that were ever pending at once
	accepted []publication   // by the stream, as its publishers were told
	stream   []said
	earlier  []said // of a stream that was deleted
	letters  []relay.Entry
	left     []string // what is wrong in the end
}

// A breakage is a time in which a relay could not reach what it needs.
type breakage struct {
	machine  *machine // nil for all
	kill     bool
	from, to time.Duration
	how      string // see cable.fault; "" for others
}

// A machine is what one relay runs on.
type machine struct {
	name   string
	relay  *relay.Relay
	cable  *cable
	cancel context.CancelFunc
	began  time.Duration
	died   chan struct{} // closed when it is killed
	ended  bool          // killed or stopped
	over   time.Duration // when
	ready  []time.Duration

	cutOff     string // a destination that it can't reach
	cutOffTill time.Duration
}

func (m *machine) dead() bool {
	select {
	case <-m.died:
		return true
	default:
		return false
	}
}

// now returns the time since the beginning.
func now() time.Duration { return time.Since(bubbleEpoch) }

// simulate lets a plan happen.
func simulate(t *testing.T, p plan, log *slog.Logger) *world {
	w := &world{plan: p, log: log, troubles: map[string]sinkTrouble{}}
	inBubble(t, func(t *testing.T) {
		w.t = t
		w.server = startServer(t)
		w.run()
	})
	return w
}

func (w *world) run() {
	var publishing sync.WaitGroup
	for i, list := range w.sayings {
		publishing.Go(func() { w.publish(i, list) })
	}
	publishing.Go(w.makeNoise)
	publishing.Go(w.forge)
	watching, watched := context.WithCancel(w.t.Context())
	w.all.Go(func() { w.watchReady(watching) })
	for _, s := range w.steps {
		time.Sleep(s.at - now())
		s.do(w)
		w.look()
	}
	publishing.Wait()
	time.Sleep(w.length - now())
	w.settle()
	watched()
	w.mu.Lock()
	for _, m := range w.machines {
		m.cancel()
	}
	w.mu.Unlock()
	w.all.Wait()
	synctest.Wait()
}

// publish is one VM's bridge, whose messages arrive once, in order, however long the server is off. Every second VM has
// the sink of a real one; the others also say things twice, and what is no CloudEvent.
func (w *world) publish(vm int, list []saying) {
	if vm%2 == 1 {
		w.deliver(vm, list)
		return
	}
	conn := w.server.connect(&cable{server: w.server})
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		w.t.Error(err)
		return
	}
	for n, s := range list {
		time.Sleep(s.at - now())
		own := fmt.Sprintf("by-%d.%d", vm, n)
		msg := nats.NewMsg("forewarn.events.junk." + own)
		msg.Header.Set(jetstream.MsgIDHeader, own) // each VM's copy is stored
		msg.Data = s.junk
		if s.make != nil {
			ce, err := s.make(time.Now())
			if err == nil {
				msg.Subject = "forewarn.events." + cloudevent.PlaceOf(ce).String() + "." + own
				msg.Header.Set("Content-Type", "application/cloudevents+json")
				msg.Data, err = ce.MarshalJSON()
			}
			if err != nil {
				w.t.Error(err)
			}
		}
		for {
			ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Second)
			_, err = js.PublishMsg(ctx, msg)
			cancel()
			if err == nil {
				break
			}
			time.Sleep(300 * time.Millisecond)
		}
	}
}

func changeSaid(c imds.Change, observer string) func(time.Time) (event.Event, error) {
	return func(now time.Time) (event.Event, error) {
		return cloudevent.Wrap(c, cloudevent.Circumstances{
			Observer: imds.Observer{Name: observer, ResourceGroup: "web"}, Time: now,
		})
	}
}

// changeSaidAt returns a change that was seen at a time, and is said later.
func changeSaidAt(at time.Time, c imds.Change, observer string) func(time.Time) (event.Event, error) {
	return func(time.Time) (event.Event, error) { return changeSaid(c, observer)(at) }
}

func bridgeSaid(kind, observer string) func(time.Time) (event.Event, error) {
	return func(now time.Time) (event.Event, error) {
		return cloudevent.WrapBridge(cloudevent.BridgePrefix+kind, nil, imds.Observer{Name: observer}, now)
	}
}

// look notes how much is pending.
func (w *world) look() {
	for _, m := range w.alive() {
		for _, k := range m.relay.Status().Sinks {
			w.most = max(w.most, k.Pending)
		}
	}
}

func (w *world) alive() (list []*machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		if !m.ended {
			list = append(list, m)
		}
	}
	return list
}

// one picks a relay that runs, nil if none does.
func (w *world) one(n int) *machine {
	list := w.alive()
	if len(list) == 0 {
		return nil
	}
	return list[n%len(list)]
}

func (w *world) changed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes = append(w.changes, now())
}

func (w *world) routesOf(m *machine) (list []bridge.Route) {
	for _, r := range w.routes {
		list = append(list, r.route(destination{w, m, r.name}))
	}
	return list
}

func (w *world) startRelay() {
	w.changed()
	m := &machine{began: now(), died: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	w.mu.Lock()
	m.cable = w.cable(len(w.machines)+1, 2*time.Millisecond)
	m.name = fmt.Sprintf("relay-%d", len(w.machines)+1)
	w.machines = append(w.machines, m)
	w.mu.Unlock()
	m.relay = relay.New(relay.Options{
		Connect: m.cable.dial, Stream: "FOREWARN", Routes: w.routesOf(m), Name: m.name, Log: w.log.With("relay", m.name),
		MaxUnsettled: w.bound,
	})
	w.all.Go(func() {
		if err := m.relay.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
}

// stopRelay stops one as SIGTERM does.
func (w *world) stopRelay(n int) {
	if m := w.one(n); m != nil {
		w.changed()
		w.mu.Lock()
		m.ended, m.over = true, now()
		w.mu.Unlock()
		m.cancel()
	}
}

func (w *world) reloadRelay(n int) {
	if m := w.one(n); m != nil {
		w.changed()
		m.relay.Reload(w.routesOf(m), bridge.SettingsInfo{})
	}
}

// killRelay kills one as kill -9 does: nothing leaves its machine any more.
func (w *world) killRelay(n int) {
	if m := w.one(n); m != nil {
		w.kill(m)
	}
}

func (w *world) kill(m *machine) {
	w.changed()
	w.mu.Lock()
	if m.ended {
		w.mu.Unlock()
		return
	}
	m.ended, m.over = true, now()
	close(m.died)
	w.breaks = append(w.breaks, breakage{machine: m, kill: true, from: now(), to: now()})
	w.mu.Unlock()
	m.cable.fail("hangs")
	m.cancel() // its goroutines end some time; nobody hears of them
}

// arm has the relay that makes the n-th delivery from now on killed, so long after it.
func (w *world) arm(n int, burns time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fuse, w.burns = n, burns
}

func (w *world) failCable(n int, how string, end time.Duration) {
	m := w.one(n)
	if m == nil {
		return
	}
	w.mu.Lock()
	w.breaks = append(w.breaks, breakage{machine: m, from: now(), to: end, how: how})
	w.mu.Unlock()
	m.cable.fail(how)
	w.all.Go(func() {
		time.Sleep(end - now())
		if !m.dead() {
			m.cable.fail("")
		}
	})
}

// recordsLost is the fault of a cable on which no message that names the records gets through.
const recordsLost = "KV_FOREWARN_records"

// requestsLost is that on which no request for messages of the stream does.
const requestsLost = "CONSUMER.MSG.NEXT.FOREWARN."

// cutOff has one relay not reach a destination.
func (w *world) cutOff(n int, sink string, end time.Duration) {
	m := w.one(n)
	if m == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m.cutOff, m.cutOffTill = sink, end
}

// watchReady notes every few seconds which relays say that they are ready.
func (w *world) watchReady(ctx context.Context) {
	for {
		select {
		case <-time.After(readyEvery):
		case <-ctx.Done():
			return
		}
		for _, m := range w.alive() {
			if m.relay.Status().Ready || w.variant.ready {
				m.ready = append(m.ready, now())
			}
		}
	}
}

// readyEvery is in no step with what relays do every few seconds.
const readyEvery = 3700 * time.Millisecond

func (w *world) serverOff(end time.Duration) {
	w.mu.Lock()
	w.breaks = append(w.breaks, breakage{from: now(), to: end})
	off := w.offUntil > 0
	w.offUntil = max(w.offUntil, end)
	w.mu.Unlock()
	if off {
		return
	}
	w.server.off()
	w.all.Go(func() {
		for {
			w.mu.Lock()
			left := w.offUntil - now()
			w.mu.Unlock()
			if left <= 0 {
				break
			}
			time.Sleep(left)
		}
		w.server.on()
		w.mu.Lock()
		w.offUntil = 0
		w.mu.Unlock()
	})
}

// settle lets all trouble end, and waits until the relays have done what they can.
func (w *world) settle() {
	w.mu.Lock()
	for _, b := range w.breaks {
		w.length = max(w.length, b.to)
	}
	clear(w.troubles)
	w.fuse = 0
	w.mu.Unlock()
	time.Sleep(w.length - now())
	if len(w.alive()) == 0 {
		w.startRelay()
	}
	conn := w.server.connect(&cable{server: w.server})
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		w.t.Fatal(err)
	}
	time.Sleep(time.Minute)
	for range 60 {
		if time.Sleep(time.Minute); len(w.wrong(js)) == 0 {
			break
		}
	}
	w.left = w.wrong(js)
	w.stream = append(w.earlier, readStream(w.t, js)...)
	r := w.alive()[0].relay
	w.letters, _, err = r.List(w.t.Context(), relay.Selection{State: "dead"}, 1e6)
	for i := 0; i < len(w.letters) && err == nil; i++ {
		w.letters[i], err = r.Show(w.t.Context(), w.letters[i].Key)
	}
	if err != nil {
		w.t.Error(err)
	}
}

// remakeStream deletes the stream, and makes it again.
func (w *world) remakeStream() {
	conn := w.server.connect(&cable{server: w.server})
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err == nil {
		w.earlier = readStream(w.t, js)
		err = js.DeleteStream(w.t.Context(), "FOREWARN")
	}
	if err != nil {
		w.t.Fatal(err)
	}
	plan, err := relay.NewPlan(w.t.Context(), conn, "", "FOREWARN", relay.Retention{})
	if err == nil {
		err = plan.Do(w.t.Context())
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// wrong says what is not as it should be when all is done.
func (w *world) wrong(js jetstream.JetStream) (list []string) {
	ctx := w.t.Context()
	stream, err := js.Stream(ctx, "FOREWARN")
	if err != nil {
		return []string{err.Error()}
	}
	for _, r := range w.routes {
		at, err := ackFloorOf(ctx, js, r.name)
		if last := stream.CachedInfo().State.LastSeq; err != nil || at != last {
			list = append(list, fmt.Sprintf("%s has settled %d of %d (%v)", r.name, at, last, err))
		}
	}
	served := map[string]int{}
	for _, m := range w.alive() {
		s := m.relay.Status()
		if !s.Ready {
			list = append(list, fmt.Sprintf("%s is not ready: %q", m.name, s.Reasons))
		}
		for _, k := range s.Sinks {
			if k.Pending > 0 {
				list = append(list, fmt.Sprintf("%d are pending for %s", k.Pending, k.Name))
			}
			if k.State != bridge.SinkStandby {
				served[k.Name]++
			}
		}
	}
	for _, r := range w.routes {
		if served[r.name] != 1 {
			list = append(list, fmt.Sprintf("%d relays serve %s", served[r.name], r.name))
		}
	}
	return list
}

// A said is one message of the stream.
type said struct {
	seq     uint64
	subject string
	stored  time.Duration
	to      string // the only sink that it is for, "" for all
	instead string // the sink that could not deliver it
	junk    bool
	// forged means that it is not on the subject of whom it says that it comes from.
	forged bool
	// outdated means that a newer change of the event was stored before.
	outdated bool
	handed
}

// readStream returns all messages of the stream.
func readStream(t *testing.T, js jetstream.JetStream) (all []said) {
	stream, err := js.Stream(t.Context(), "FOREWARN")
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		msg, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		s := said{seq: seq, subject: msg.Subject, stored: msg.Time.Sub(bubbleEpoch), instead: msg.Header.Get("Forewarn-Fallback-For")}
		fmt.Sscanf(msg.Subject, "forewarn.relay.%s", &s.to)
		if at := slices.Index([]byte(s.to), '.'); at >= 0 {
			s.to = s.to[:at]
		}
		var ce event.Event
		if json.Unmarshal(msg.Data, &ce) != nil {
			s.junk = true
		} else {
			s.handed = handedOf(delivery.Delivery{Event: ce})
			s.time = min(s.time, s.stored) // a publisher's clock decides nothing
			s.forged = s.to == "" && !strings.HasPrefix(s.subject, "forewarn.events."+cloudevent.PlaceOf(ce).String()+".") &&
				strings.HasPrefix(s.subject, "forewarn.events.")
		}
		all = append(all, s)
	}
	return all
}

// A handed is one delivery as it reached a destination.
type handed struct {
	id, event, change string // change is "" for what is about a bridge
	typ               string // of the CloudEvent
	time              time.Duration
	kind, source      string // of the Azure event
	notBefore         time.Duration
	begun             bool // the Azure event has no NotBefore
	attempt           int
	missed            []string
	receipt, progress string
	instead           string
}

// eventOf returns what stands for a CloudEvent's Azure event: its id, and who tells of it if that is the forger.
func eventOf(ce event.Event) string {
	if set := cloudevent.PlaceOf(ce).Set; set == forger {
		return ce.Subject() + " of " + set
	}
	return ce.Subject()
}

func handedOf(d delivery.Delivery) handed {
	h := handed{id: d.Event.ID(), typ: d.Event.Type(), time: d.Event.Time().Sub(bubbleEpoch), attempt: d.Attempt,
		receipt: string(d.Receipt), progress: string(d.Progress)}
	if d.FallbackFor != nil {
		h.instead = d.FallbackFor.Sink
	}
	for _, m := range d.Missed {
		h.missed = append(h.missed, m.Change)
	}
	if kind, azures := strings.CutPrefix(h.typ, cloudevent.EventPrefix); azures {
		h.change, h.event = kind, eventOf(d.Event)
		var data struct {
			Event struct{ EventType, EventSource, NotBefore string }
		}
		_ = json.Unmarshal(d.Event.Data(), &data)
		h.kind, h.source = data.Event.EventType, data.Event.EventSource
		at, err := time.Parse(time.RFC1123, data.Event.NotBefore)
		h.notBefore, h.begun = at.Sub(bubbleEpoch), err != nil
	}
	return h
}

// A repeated is what a destination was told once more.
type repeated struct {
	sink string
	at   time.Duration
	handed
}
