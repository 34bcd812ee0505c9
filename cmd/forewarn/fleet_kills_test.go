package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

// flight is how long a delivery may be in flight: its answer or its record may wait for servers that elect a leader.
const flight = 15 * time.Second

// While three relays and three servers are killed at random and started again, one relay and one server at a time, each
// sink hears every change, in the order of its event. It hears one again only if it was in flight at a kill, and each of
// those is listed.
//
// FOREWARN_FLEET_KILLS=30m says for how long. FOREWARN_NATS_SERVERS=/opt/old/nats-server,/opt/new/nats-server mixes servers
// of several versions.
func TestRandomKillsOfRelaysAndServersRepeatOnlyWhatWasInFlight(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("FOREWARN_FLEET_KILLS"))
	if err != nil {
		t.Skip("it takes FOREWARN_FLEET_KILLS=30m")
	}
	size := fleetSize{sets: 3, bridges: 9, events: int(long / (3 * time.Second)), wave: long, interval: time.Second, step: 5 * time.Second}
	c := newCluster(t)
	hook, chat := newNoted(t), newNoted(t)
	sinks := fmt.Sprintf("\n  - {name: hook, webhook: {url: %q}}\n  - {name: chat, webhook: {url: %q}}\n", hook.url, chat.url)
	c.provision(sinks)
	var relays []*relayProcess
	for n := range 3 {
		relays = append(relays, c.relay(n+1, sinks))
	}
	c.served("hook", "chat")
	f := c.bridges(size)

	began := time.Now()
	random := rand.New(rand.NewPCG(uint64(began.UnixNano()), 0))
	upTo := func(most time.Duration) time.Duration { return time.Duration(random.Int64N(int64(most))) }
	var kills []time.Time
	f.after(0, func() {
		for since(began) < long {
			time.Sleep(5*time.Second + upTo(15*time.Second))
			kills = append(kills, time.Now())
			if n := random.IntN(len(relays)); random.IntN(2) == 0 {
				t.Logf("%v: relay-%d is killed", since(began), n+1)
				kill(t, relays[n].Process)
				_ = relays[n].Wait()
				time.Sleep(upTo(5 * time.Second))
				relays[n] = c.relay(n+1, sinks)
			} else {
				t.Logf("%v: server %d is killed", since(began), n+1)
				c.stop(n)
				time.Sleep(upTo(10 * time.Second))
				c.start(n)
			}
		}
	})
	changes := f.play()
	f.wait()
	t.Logf("%v: %d events and %d changes are over, after %d kills", since(began), size.events, changes, len(kills))

	deadline := time.Now().Add(6 * patience)
	for _, sink := range []*noted{hook, chat} {
		for len(distinct(sink.ids())) < changes && time.Now().Before(deadline) {
			time.Sleep(200 * time.Millisecond)
		}
	}
	places, _ := c.inStream(f)
	if len(places) < changes {
		t.Errorf("the stream holds %d changes of %d: its servers have lost the others", len(places), changes)
	}
	for name, sink := range map[string]*noted{"hook": hook, "chat": chat} {
		if n := len(distinct(sink.ids())); n != changes {
			t.Errorf("%s heard %d changes, want %d", name, n, changes)
		}
		first, last := map[string]time.Time{}, map[string]string{} // by id, and by event its newest change
		repeats := 0
		for _, h := range sink.all() {
			event := h.id[:36]
			before, again := first[h.id]
			switch {
			case again:
				repeats++
				inFlight := slices.IndexFunc(kills, func(k time.Time) bool {
					return k.After(before.Add(-flight)) && k.Before(before.Add(flight))
				})
				if inFlight < 0 {
					t.Errorf("%s heard %s at %v and again at %v, and nothing was killed then", name, h.id, before.Sub(began), h.at.Sub(began))
					continue
				}
				t.Logf("%s heard %s %v after the kill at %v, and again %v later", name, h.id,
					before.Sub(kills[inFlight]), kills[inFlight].Sub(began), h.at.Sub(before))
			case places[h.id] < places[last[event]]:
				t.Errorf("%s heard %s after %s", name, h.id, last[event])
			default:
				last[event] = h.id
			}
			if !again {
				first[h.id] = h.at
			}
		}
		t.Logf("%s: %d changes, %d repeats after %d kills", name, len(first), repeats, len(kills))
	}
}
