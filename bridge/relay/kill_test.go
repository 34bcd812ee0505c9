package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// A place is what all relays deliver to under one name. It fails now and then.
type place struct {
	mu     sync.Mutex
	random *rand.Rand
	heard  []string // ids that it accepted, in order
	by     []string // the relay that each was from
}

// A host is what a relay runs on. Once it is dead nothing leaves it any more.
type host struct {
	name  string
	cable *cable
}

// from returns the place as a relay on the host reaches it.
func (d *place) from(m host) delivery.Sink {
	return deliver(func(batch []delivery.Delivery) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		switch {
		case m.cable.now() != "":
			return errors.New("this host is dead")
		case d.random.IntN(10) == 0:
			return errors.New("not now")
		}
		for _, one := range batch {
			d.heard, d.by = append(d.heard, one.Event.ID()), append(d.by, m.name)
		}
		return nil
	})
}

type deliver func(batch []delivery.Delivery) error

func (f deliver) Deliver(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	return delivery.Answer{Receipt: []byte(batch[0].Event.ID())}, f(batch)
}

// While relays are killed and started at random, and VMs publish copies of everything, each sink hears every change, in
// the order of its event. A change is repeated only if the relay that told it was killed, and of one event at most one
// for each kill.
//
// FOREWARN_RELAY_KILLS says how many are killed, FOREWARN_RELAY_SEED with which luck.
func TestKilledRelaysLoseNothingAndRepeatLittle(t *testing.T) {
	onStage(t, testKilledRelaysLoseNothingAndRepeatLittle)
}

func testKilledRelaysLoseNothingAndRepeatLittle(t *testing.T, f *stage) {
	kills, seed := number(t, "FOREWARN_RELAY_KILLS", 2), number(t, "FOREWARN_RELAY_SEED", 1)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	names := []string{"one", "two", "three"}
	places := map[string]*place{}
	for i, name := range names {
		places[name] = &place{random: rand.New(rand.NewPCG(uint64(seed), uint64(i+1)))}
	}
	started := 0
	start := func() host {
		started++
		m := host{fmt.Sprintf("relay-%d", started), &cable{}}
		o := relay.Options{Name: m.name, Connect: f.over(m.cable)}
		for i, name := range names {
			r := route(name, places[name].from(m))
			r.Terms.Batch, r.Terms.Parallel = 1+3*(i%2), 1+i%2
			o.Routes = append(o.Routes, r)
		}
		f.start(o)
		return m
	}
	running := []host{start(), start()}
	for _, name := range names {
		f.begin(name)
	}

	var killed []string
	var want []event.Event
	kill := func() {
		i := random.IntN(len(running))
		killed = append(killed, running[i].name)
		running[i].cable.fail("hangs")
		running = append(slices.Delete(running, i, i+1), start())
	}
	kinds := []imds.ChangeKind{imds.Scheduled, imds.Started, imds.Vanished}
	events, said := 80, map[int]int{}
	for n, total := 0, events*len(kinds); n < total; n++ {
		if n%(total/(kills+1)) == total/(2*(kills+1)) {
			kill()
		}
		at := random.IntN(events)
		for said[at] == len(kinds) {
			at = (at + 1) % events
		}
		ce := eventNo(at).say(t, kinds[said[at]], "vm-0")
		said[at]++
		want = append(want, ce)
		for range 1 + random.IntN(3) { // copies, from other VMs
			f.publish(ce)
		}
		if random.IntN(4) == 0 { // one that comes late
			f.publish(want[random.IntN(len(want))])
		}
		time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
	}

	inOrder := byEvent(ids(want...))
	for _, name := range names {
		d := places[name]
		var got []string
		over := func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			got = slices.Clone(d.heard)
			return len(count(got)) == len(want)
		}
		f.until(name+" hears everything", over, nil)
		f.settled(name)
		over()
		for id, ids := range byEvent(got) {
			first := firsts(ids)
			if !slices.Equal(first, inOrder[id]) {
				t.Errorf("%s heard %q, want %q", name, first, inOrder[id])
			}
			if repeats := len(ids) - len(first); repeats > len(killed) {
				t.Errorf("%s heard %q: %d repeats after %d kills", name, ids, repeats, len(killed))
			}
		}
		d.mu.Lock()
		for i, id := range d.heard {
			if slices.Contains(d.heard[i+1:], id) {
				t.Logf("%s heard %s again; it was first told by %s, of %v which were killed", name, id, d.by[i], killed)
				if !slices.Contains(killed, d.by[i]) {
					t.Errorf("%s heard %s again, and %s, which told it first, was not killed", name, id, d.by[i])
				}
			}
		}
		d.mu.Unlock()
	}
}

// firsts returns the ids without repeats.
func firsts(ids []string) (first []string) {
	for _, id := range ids {
		if !slices.Contains(first, id) {
			first = append(first, id)
		}
	}
	return first
}

// number returns that of an environment variable.
func number(t *testing.T, name string, without int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return without
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// A relay knows how far along an event is though its sink isn't told of the start: also another relay, and in a stream
// that was made again.
func TestTheStageOfAnEventIsKept(t *testing.T) {
	for _, what := range []string{"another relay", "another stream"} {
		t.Run(what, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				hook := with(route("hook", sink), func(t *bridge.Terms) { t.Late = delivery.LateDrop })
				hook.Filter.Only.Changes = []string{"scheduled", "updated"}
				hook.Filter.Only.Types = []string{"Reboot"}
				_, stop := s.run(hook)
				for n := range 20 {
					other := eventNo(50 + n)
					other.typ = "Freeze"
					s.publish(other.say(t, imds.Scheduled, "vm-1"))
				}
				a := eventNo(1).in(time.Hour)
				scheduled := a.say(t, imds.Scheduled, "vm-1")
				s.publish(scheduled)
				pause(time.Minute)
				if what == "another stream" {
					s.remake("FOREWARN")
				}
				moved := a
				moved.notBefore = a.notBefore.Add(time.Minute)
				late := moved.updated(t, a)
				pause(time.Minute)
				s.publish(moved.say(t, imds.Started, "vm-2"))
				pause(time.Minute)
				if what == "another relay" {
					stop()
					_, stop = s.run(hook)
				}
				s.publish(late)
				pause(time.Minute)
				wantIDs(t, "told", sink.all(), scheduled)
				stop()
			})
		})
	}
}

// Nor is a pending announcement outdated after a takeover because the server's clock was set back before the event began.
func TestAnAnnouncementIsNotOutdatedByAClock(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		sink.answer = fails(errRefused)
		hook := with(route("hook", sink), func(t *bridge.Terms) { t.Late = delivery.LateDrop })
		hook.Filter.Only.Changes = []string{"scheduled", "updated"}
		_, stop := s.run(hook)
		a := eventNo(1).in(time.Hour)
		scheduled := a.say(t, imds.Scheduled, "vm-1")
		s.publish(scheduled)
		pause(time.Second)
		s.publish(a.say(t, imds.Started, "vm-2"))
		pause(time.Minute)
		stop()
		records, err := s.js.KeyValue(t.Context(), "FOREWARN_records")
		if err != nil {
			t.Fatal(err)
		}
		var record map[string]any
		key := "record.hook." + a.id + "._.web.vm-1"
		if e, err := records.Get(t.Context(), key); err != nil || json.Unmarshal(e.Value(), &record) != nil {
			t.Fatalf("%s: %v", key, err)
		}
		stored, err := time.Parse(time.RFC3339Nano, record["stored"].(string))
		if err != nil {
			t.Fatal(err)
		}
		record["stored"] = stored.Add(-5 * time.Second) // a bubble's clock can't be set back
		body, err := json.Marshal(record)
		if err == nil {
			_, err = records.Put(t.Context(), key, body)
		}
		if err != nil {
			t.Fatal(err)
		}
		sink.say(nil)
		_, stop = s.run(hook)
		pause(time.Minute)
		wantIDs(t, "told", sink.all(), scheduled)
		stop()
	})
}

// What a relay read while its records were saved isn't acknowledged until it is saved too: here, that an event has
// begun, of which the sink isn't told.
func TestNothingIsAcknowledgedBeforeItIsSaved(t *testing.T) {
	systemtest.LeftToGate(t)
	for n := 0; n < 7*6; n += systemtest.Every(3) {
		at := 50*time.Millisecond + time.Duration(n%7)*100*time.Millisecond
		then := 300*time.Millisecond + time.Duration(n/7)*200*time.Millisecond
		onStage(t, func(t *testing.T, s *stage) {
			sink := newRecorder()
			hook := with(route("hook", sink), func(t *bridge.Terms) { t.Late = delivery.LateDrop })
			hook.Filter.Only.Changes = []string{"scheduled", "updated"}
			wire := &cable{}
			s.start(relay.Options{Name: "relay-1", Routes: []bridge.Route{hook}, Connect: s.over(wire)})
			pause(2 * time.Second)
			s.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{hook}})
			a := eventNo(1).in(time.Hour)
			scheduled := a.say(t, imds.Scheduled, "vm-1")
			s.publish(scheduled)
			pause(time.Minute)
			moved := a
			moved.notBefore = a.notBefore.Add(time.Minute)
			late := moved.updated(t, a)
			pause(time.Minute)
			wire.slow(400 * time.Millisecond)
			s.publish(eventNo(2).say(t, imds.Started, "vm-2"))
			pause(at)
			s.publish(moved.say(t, imds.Started, "vm-2"))
			pause(then)
			wire.fail("hangs")
			pause(time.Minute)
			s.publish(late)
			pause(time.Minute)
			wantIDs(t, fmt.Sprintf("told (%s, %s)", at, then), sink.all(), scheduled)
		})
	}
}
