package relay_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/sinks"
)

// A noise is a message of another publisher, on a subject of its own, with an id that somebody else will use. It is a
// heartbeat, which is for no sink.
type noise struct {
	at time.Duration
	id string
}

// someNoise makes up noise in a third of the simulations: with the ids under which VMs publish changes, and relays hand
// them to a fallback, mostly before they do.
func someNoise(r *rand.Rand, sayings [][]saying, routes []routePlan) (all []noise) {
	if r.IntN(3) > 0 {
		return nil
	}
	for _, list := range sayings {
		for _, s := range list {
			if s.make == nil || r.IntN(4) == 0 {
				continue
			}
			ce, err := s.make(bubbleEpoch.Add(s.at))
			if err != nil || ce.Subject() == "" {
				continue
			}
			at := max(0, s.at-pick(r, -time.Second, time.Second, time.Minute))
			all = append(all, noise{at, ce.ID()})
			for _, route := range routes {
				if route.fallback != "" {
					all = append(all, noise{at, ce.ID() + "-fallback-" + route.fallback + "-" + setHash(ce)})
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b noise) int { return int(a.at - b.at) })
	return all
}

// makeNoise publishes the noise. What the server doesn't take while it is off is not made.
func (w *world) makeNoise() {
	if len(w.noise) == 0 {
		return
	}
	conn := w.server.connect(&cable{server: w.server})
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		w.t.Error(err)
		return
	}
	for _, n := range w.noise {
		time.Sleep(n.at - now())
		beat, err := bridgeSaid("heartbeat", "noisy-vm")(time.Now())
		if err != nil {
			w.t.Error(err)
			return
		}
		msg := nats.NewMsg(ownSubject(beat))
		msg.Header.Set("Content-Type", "application/cloudevents+json")
		msg.Header.Set(jetstream.MsgIDHeader, n.id)
		if msg.Data, err = beat.MarshalJSON(); err != nil {
			w.t.Error(err)
			return
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		_, _ = js.PublishMsg(ctx, msg)
		cancel()
	}
}

// cable returns the way of a machine to the server.
func (w *world) cable(machine int, latency time.Duration) *cable {
	return &cable{server: w.server, latency: latency, says: w.variant.says, hears: w.variant.hearsOf(machine)}
}

// A publication is a CloudEvent that a VM's sink was told is stored.
type publication struct {
	vm int
	id string
	at time.Duration
}

// deliver is one VM's bridge with a real sink. All VMs publish a change under one id, each on its own subject.
func (w *world) deliver(vm int, list []saying) {
	wire := w.cable(0, 0)
	opened, err := sinks.Kinds()["nats"].Open(func(to any) error {
		text := fmt.Sprintf("{url: ['nats://127.0.0.1'], mode: structured, subject: 'forewarn.events.{{.subscription}}.{{.resourcegroup}}.{{.set}}.by-%d.{{.id}}'}", vm)
		return yaml.Unmarshal([]byte(text), to)
	}, sinks.Host{
		Name: "stream", Log: slog.New(slog.DiscardHandler), Getenv: func(string) string { return "" },
		Dial: func(context.Context, string, string) (net.Conn, error) { return wire.InProcessConn() },
	})
	if err != nil {
		w.t.Error(err)
		return
	}
	defer opened.Sink.(io.Closer).Close()
	for _, s := range list {
		time.Sleep(s.at - now())
		ce, err := s.make(time.Now())
		if err != nil {
			w.t.Error(err)
			return
		}
		for attempt := 1; attempt <= 2000; attempt++ { // a broken relay may make it never be taken
			ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Second)
			_, err = opened.Sink.Deliver(ctx, []delivery.Delivery{{Event: ce, Attempt: attempt}})
			cancel()
			if err == nil {
				break
			}
			time.Sleep(300 * time.Millisecond)
		}
		if err != nil || ce.Type() == cloudevent.BridgeHeartbeat { // which another stream takes
			continue
		}
		w.mu.Lock()
		w.accepted = append(w.accepted, publication{vm, ce.ID(), now()})
		w.mu.Unlock()
	}
}

// published: what the stream accepted of a VM is in it, where the VM published it.
func (o *oracle) published() {
	for _, p := range o.accepted {
		own := fmt.Sprintf(".by-%d.", p.vm)
		if !slices.ContainsFunc(o.stream, func(s said) bool {
			return s.id == p.id && strings.Contains(s.subject, own)
		}) {
			o.add("published", "vm-%d was told at %v that %s is stored, and the stream doesn't have it", p.vm, short(p.at), p.id)
		}
	}
}

// noisyPlan has a change published under an id that somebody used before, by vm-1, and handed to a fallback under
// another. vm-0 says the same change under an id that nobody knows, so that the relay has something to hand on.
func noisyPlan() plan {
	p := plan{seed: 1, length: 5 * time.Minute, routes: []routePlan{
		{name: "well", late: delivery.LateSend, timeout: 10 * time.Second, bridge: bridge.LevelAll},
		{name: "hook", late: delivery.LateSend, timeout: 10 * time.Second, fallback: "page", after: 2 * time.Minute},
		{name: "page", late: delivery.LateSend, timeout: 10 * time.Second},
	}}
	const at = time.Minute
	e := azure{id: "00000000-0000-4000-8000-000000000001", typ: "Reboot", vm: "vm-1", source: "Platform",
		notBefore: bubbleEpoch.Add(time.Hour)}
	change := imds.Change{Kind: imds.Scheduled, Event: e.event(imds.StatusScheduled)}
	scheduled := changeSaidAt(bubbleEpoch.Add(at), change, "vm-1")
	ce, err := scheduled(time.Time{})
	if err != nil {
		panic(err)
	}
	p.sayings = [][]saying{
		{{at: at, make: changeSaidAt(bubbleEpoch.Add(at), change, "vm-0")}},
		{{at: at, make: scheduled}},
	}
	p.noise = []noise{{at / 2, ce.ID()}, {at / 2, ce.ID() + "-fallback-page-" + setHash(ce)}}
	p.add(0, "a relay starts", (*world).startRelay)
	p.add(at/2, "sink hook rejects", func(w *world) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.troubles["hook"] = sinkTrouble{sink: "hook", how: "rejects", end: w.length, share: 100}
	})
	return p
}
