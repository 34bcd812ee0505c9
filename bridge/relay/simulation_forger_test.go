package relay_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// forger is a VM that is in no set, and whose credentials were stolen.
const forger = "vm-9"

// someForgeries make up what the forger publishes in a third of the simulations: what others said of their events, and
// the end of such an event as if that were one of its own, seen in a hundred years, which comes back soon after.
func someForgeries(r *rand.Rand, sayings [][]saying) (all []saying) {
	if r.IntN(3) > 0 {
		return nil
	}
	for n, s := range slices.Concat(sayings...) {
		if s.make == nil || r.IntN(4) > 0 {
			continue
		}
		ce, err := s.make(bubbleEpoch.Add(s.at))
		if err != nil || ce.Subject() == "" {
			continue
		}
		at := max(15*time.Second, s.at-pick(r, -time.Second, time.Second, time.Minute)) // relays are there by then
		if r.IntN(2) == 0 {
			all = append(all, saying{at: at, make: s.make})
			continue
		}
		e := azure{id: ce.Subject(), typ: "Reboot", vm: forger, source: "Platform", notBefore: bubbleEpoch.Add(at + time.Hour)}
		now := e.event(imds.StatusScheduled)
		all = append(all,
			forgery(at, n, at+100*365*24*time.Hour, imds.Change{Kind: imds.Vanished, Event: now}),
			forgery(at+time.Minute, n, at+time.Minute, imds.Change{Kind: imds.Scheduled, Event: now}))
	}
	slices.SortStableFunc(all, func(a, b saying) int { return int(a.at - b.at) })
	return all
}

// someFlood is so many events of the forger's own, at once.
func someFlood(at time.Duration, events int) (all []saying) {
	for n := range events {
		e := azure{id: fmt.Sprintf("00000000-0000-4000-9000-%012d", n), typ: "Reboot", vm: forger, source: "Platform",
			notBefore: bubbleEpoch.Add(at + 30*time.Minute)}
		c := imds.Change{Kind: imds.Scheduled, Event: e.event(imds.StatusScheduled)}
		all = append(all, saying{at: at, make: changeSaidAt(bubbleEpoch.Add(at), c, forger)})
	}
	return all
}

// beatSaid is a heartbeat of a VM, which promises the next one in 20 s.
func beatSaid(vm string) func(time.Time) (event.Event, error) {
	return func(now time.Time) (event.Event, error) {
		return cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, map[string]any{"interval": 20},
			imds.Observer{Name: vm, ResourceGroup: "web"}, now)
	}
}

// forgery is what the forger says of an event of its own at a time, as if it saw it then.
func forgery(at time.Duration, n int, seen time.Duration, c imds.Change) saying {
	return saying{at: at, make: func(time.Time) (event.Event, error) {
		ce, err := changeSaid(c, forger)(bubbleEpoch.Add(seen))
		ce.SetID(fmt.Sprintf("forged-%d-%s", n, c.Kind))
		return ce, err
	}}
}

// forge publishes what the forger says, all of it on the forger's own subject: its credentials permit no other. What the
// server doesn't take while it is off is not said.
func (w *world) forge() {
	if len(w.forged) == 0 {
		return
	}
	conn := w.server.connect(&cable{server: w.server})
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		w.t.Error(err)
		return
	}
	for n, s := range w.forged {
		time.Sleep(s.at - now())
		ce, err := s.make(time.Now())
		if err != nil {
			w.t.Error(err)
			return
		}
		msg := nats.NewMsg(fmt.Sprintf("forewarn.events._.web.%s.forged-%d", forger, n))
		if ce.Type() == cloudevent.BridgeHeartbeat {
			msg.Subject = fmt.Sprintf("forewarn.heartbeat._.web.%s.%s", forger, forger)
		}
		msg.Header.Set("Content-Type", "application/cloudevents+json")
		if msg.Data, err = ce.MarshalJSON(); err != nil {
			w.t.Error(err)
			return
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		_, _ = js.PublishMsg(ctx, msg)
		cancel()
	}
}

// unharmed: the forger's credentials take no room from others, and keep no silent VM alive.
func (o *oracle) unharmed(r routePlan, owed []said) {
	isForgers := func(event string) bool { return strings.HasSuffix(event, " of "+forger) }
	others := 0
	for _, c := range owed {
		if !isForgers(c.event) {
			others++
		}
	}
	for _, c := range owed {
		i := o.letter(r.name, c)
		overflowed := i >= 0 && o.letters[i].Reason == delivery.ReasonOverflow
		if overflowed && !isForgers(c.event) && others <= o.bound/4 { // so another set has more than its share
			o.add("shares", "%s gave up %s, though the forger has most", r.name, c.id)
		}
	}
	told := slices.ContainsFunc(o.stream, func(s said) bool { return s.typ == cloudevent.ObserverSilent && s.stored < o.length })
	if o.silent && !told {
		o.add("silence", "nobody says that a VM is silent")
	}
}
