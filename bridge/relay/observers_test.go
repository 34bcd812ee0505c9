package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// bridges are VMs of one scale set that send a heartbeat every minute.
type bridges struct {
	*stage

	mu    sync.Mutex
	quiet map[string]bool
}

// startBridges starts so many, which are called web_0 and so on. They end with the bubble's test.
func (s *stage) startBridges(n int) (b *bridges, end func()) {
	b = &bridges{stage: s, quiet: map[string]bool{}}
	over := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			for i := range n {
				b.beat(fmt.Sprintf("web_%d", i), false)
			}
			select {
			case <-time.After(time.Minute):
			case <-over:
				return
			}
		}
	})
	return b, func() { close(over); all.Wait() }
}

// beat publishes a heartbeat of a VM, as the nats sink does.
func (b *bridges) beat(vm string, last bool) {
	b.mu.Lock()
	quiet := b.quiet[vm]
	b.mu.Unlock()
	if quiet && !last {
		return
	}
	data := map[string]any{"version": "test", "interval": 60}
	if last {
		data["stopping"] = true
	}
	ce, err := cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, data, observerOf(vm), time.Now())
	if err != nil {
		b.Error(err)
		return
	}
	body, err := ce.MarshalJSON()
	if err != nil {
		b.Error(err)
		return
	}
	msg := &nats.Msg{Subject: "forewarn.heartbeat.sub.rg.web." + vm, Data: body,
		Header: nats.Header{"Content-Type": {"application/cloudevents+json"}, jetstream.MsgIDHeader: {ce.ID()}}}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, _ = b.js.PublishMsg(ctx, msg) // the server may be off
}

func observerOf(vm string) imds.Observer {
	return imds.Observer{Name: vm, VMID: "id-" + vm, SubscriptionID: "sub", ResourceGroup: "rg", ScaleSet: "web"}
}

// hush makes VMs fall silent; wake makes them speak again.
func (b *bridges) hush(vms ...string) { b.set(true, vms) }
func (b *bridges) wake(vms ...string) { b.set(false, vms) }

func (b *bridges) set(quiet bool, vms []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, vm := range vms {
		b.quiet[vm] = quiet
	}
}

// says publishes a change of an Azure event, as another VM of the set saw it.
func (b *bridges) says(kind imds.ChangeKind, typ, vm string, n int) {
	b.Helper()
	a := azure{id: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), typ: typ, vm: vm, notBefore: time.Now().Add(time.Hour)}
	status := imds.StatusScheduled
	if kind == imds.Started || kind == imds.Vanished && typ == "Reboot" {
		status = imds.StatusStarted
	}
	ce, err := cloudevent.Wrap(imds.Change{Kind: kind, Event: a.event(status)},
		cloudevent.Circumstances{Observer: observerOf("web_13"), Time: time.Now()})
	if err != nil {
		b.Fatal(err)
	}
	b.publish(ce)
}

// An ear hears what is told of silent VMs: type, count and names.
type ear struct {
	*recorder
	mu   sync.Mutex
	told []string
}

func newEar() *ear {
	e := &ear{recorder: newRecorder()}
	e.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
		for _, d := range batch {
			var data struct {
				Count int
				VMs   []string
			}
			_ = json.Unmarshal(d.Event.Data(), &data)
			if kind, ours := strings.CutPrefix(d.Event.Type(), "dev.forewarn.observer."); ours {
				e.mu.Lock()
				e.told = append(e.told, fmt.Sprintf("%s %d: %s", kind, data.Count, strings.Join(data.VMs, " ")))
				e.mu.Unlock()
			}
		}
		return delivery.Answer{}, nil
	}
	return e
}

// news returns what was told since the last call, in order of the names.
func (e *ear) news() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	told := e.told
	e.told = nil
	slices.Sort(told)
	return told
}

// Who falls silent, and who is back, is told once, whichever relays run, end, hang and start meanwhile.
func TestASilentVMIsToldOnce(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		b, end := s.startBridges(14)
		defer end()
		ops := newEar()
		routes := []bridge.Route{with(route("ops", ops), func(t *bridge.Terms) { t.Bridge = bridge.LevelTrouble })}
		run := func(name string) (r *relay.Relay, c *cable, stop func()) {
			c = &cable{server: s.server}
			r, stop = s.start(relay.Options{Name: name, Routes: routes,
				Connect: func(ctx context.Context) (*nats.Conn, error) { return c.dial(ctx) }})
			return r, c, stop
		}
		want := func(what string, want ...string) {
			t.Helper()
			if got := ops.news(); !slices.Equal(got, want) {
				t.Errorf("%s: told %q, want %q", what, got, want)
			}
		}
		_, _, stopA := run("a")
		r, c, stopB := run("b")
		_, _, stopC := run("c")
		pause(10 * time.Minute)
		want("all is well")

		pause(5 * time.Second)
		b.hush("web_0", "web_1", "web_2", "web_3")
		b.beat("web_1", true)
		b.says(imds.Scheduled, "Terminate", "web_2", 2)
		b.says(imds.Started, "Reboot", "web_3", 3)
		pause(8 * time.Minute)
		want("one is silent; one stops, two are announced", "silent 1: web_0")

		b.says(imds.Vanished, "Terminate", "web_2", 2)
		b.says(imds.Vanished, "Reboot", "web_3", 3)
		stopA() // another goes on
		pause(8 * time.Minute)
		want("one did not come back from its reboot, one is deleted", "silent 1: web_3")

		c.fail("hangs")
		b.hush("web_4")
		pause(3*time.Minute + 30*time.Second)
		c.fail("")
		pause(3 * time.Minute)
		want("one relay hung", "silent 1: web_4")
		for _, v := range r.Status().Relay.VMs {
			silent, stopped := slices.Contains([]string{"web_0", "web_3", "web_4"}, v.Name), v.Name == "web_1"
			if v.Silent != silent || v.Stopped != stopped {
				t.Errorf("the status says %+v, want silent %v, stopped %v", v, silent, stopped)
			}
		}

		stopB()
		stopC()
		b.wake("web_0")
		pause(10 * time.Minute)
		_, _, stopD := run("d")
		pause(5 * time.Minute)
		want("no relay ran as one came back", "back 1: web_0")

		many := []string{"web_2", "web_0", "web_5", "web_6", "web_7", "web_8", "web_9", "web_10", "web_11", "web_12", "web_13"}
		b.wake(many...)
		pause(2 * time.Minute)
		b.hush(many...)
		pause(8 * time.Minute)
		want("many are silent", "silent 11: web_0 web_10 web_11 web_12 web_13 web_2 web_5 web_6 web_7 web_8 web_9")
		stopD()
		_, _, stopE := run("e")
		pause(8 * time.Minute)
		want("nothing is told again after a restart")
		b.wake(many...)
		pause(5 * time.Minute)
		want("many are back", "back 11: web_0 web_10 web_11 web_12 web_13 web_2 web_5 web_6 web_7 web_8 web_9")

		s.server.off()
		pause(20 * time.Minute)
		s.server.on()
		pause(10 * time.Minute)
		want("the server was off, not the VMs")

		stopE()
		if all := ops.all(); len(slices.Compact(sorted(all))) != len(all) {
			t.Errorf("something was told twice: %q", all)
		}
	})
}

// A message among the heartbeats that looks like a word of the server's hides no VM that falls silent.
func TestAMessageAmongTheHeartbeatsHidesNoSilentVM(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		b, end := s.startBridges(2)
		pause(time.Second)
		for _, status := range []string{"100", "400"} {
			s.publishRaw("forewarn.heartbeat.sub.rg.web.x"+status, nats.Header{"Status": {status}}, nil)
		}
		e := newEar()
		_, stop := s.run(with(route("ops", e), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelTrouble }))
		pause(2 * time.Minute)
		b.hush("web_1")
		pause(8 * time.Minute)
		if got := e.news(); !slices.Equal(got, []string{"silent 1: web_1"}) {
			t.Errorf("told %q, want that web_1 is silent", got)
		}
		stop()
		end()
	})
}

// Silence is noticed if the stream takes heartbeats and changes, and a change is its last message.
func TestSilenceIsNoticedInAStreamOfEverything(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		if err := s.js.DeleteStream(t.Context(), "FOREWARN_heartbeats"); err != nil {
			t.Fatal(err)
		}
		s.change("FOREWARN", func(c *jetstream.StreamConfig) { c.Subjects = []string{"forewarn.>"} })
		(&bridges{stage: s}).beat("web_0", false)
		s.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
		e := newEar()
		_, stop := s.run(with(route("ops", e), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelTrouble }))
		pause(8 * time.Minute)
		if got, want := e.news(), []string{"silent 1: web_0"}; !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		stop()
	})
}

// A VM that is stopped and started again without heartbeats is not silent: after the last one no more were due.
func TestAVMThatIsRestartedWithoutHeartbeatsIsNotSilent(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		ops := newEar()
		_, stop := s.run(with(route("ops", ops), func(t *bridge.Terms) { t.Bridge = bridge.LevelTrouble }))
		b := &bridges{stage: s, quiet: map[string]bool{}}
		b.beat("web_0", false)
		pause(30 * time.Second)
		b.beat("web_0", true)
		pause(10 * time.Second)
		ce, err := cloudevent.WrapBridge(cloudevent.BridgeStarted, map[string]any{"version": "test"}, observerOf("web_0"),
			time.Now())
		if err != nil {
			t.Fatal(err)
		}
		body, err := ce.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		s.publishRaw("forewarn.bridge.sub.rg.web.web_0.started."+ce.ID(),
			map[string][]string{"Content-Type": {"application/cloudevents+json"}}, body)
		pause(10 * time.Minute)
		if got := ops.news(); len(got) > 0 {
			t.Errorf("told %q", got)
		}
		stop()
	})
}

// An event whose end nobody tells, because its VM was made again, excuses no silence hours later. After a day, one that
// deletes its VM counts as over.
func TestAnEventThatNobodyEndsExcusesNoSilenceForEver(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		b := &bridges{stage: s}
		b.says(imds.Started, "Redeploy", "web_0", 1)
		b.says(imds.Scheduled, "Preempt", "web_1", 2)
		s.rest(24*time.Hour + 40*time.Minute)
		b, end := s.startBridges(3)
		defer end()
		ops := newEar()
		r, stop := s.run(with(route("ops", ops), func(t *bridge.Terms) { t.Bridge = bridge.LevelTrouble }))
		open := func() (types []string) {
			for _, e := range r.Status().Events {
				types = append(types, e.Known.Type)
			}
			return sorted(types)
		}
		pause(10 * time.Minute)
		if got, want := open(), []string{"Preempt", "Redeploy"}; !slices.Equal(got, want) {
			t.Errorf("less than a day after NotBefore %q are open, want %q", got, want)
		}
		pause(15 * time.Minute)
		if got, want := open(), []string{"Redeploy"}; !slices.Equal(got, want) {
			t.Errorf("more than a day after NotBefore %q are open, want %q", got, want)
		}
		if all, _, _ := r.Histories(t.Context(), bridge.Period{}); len(all) != 2 {
			t.Errorf("the history has %d events, want 2", len(all))
		}
		b.hush("web_0", "web_1")
		pause(8 * time.Minute)
		if got, want := ops.news(), []string{"silent 1: web_0", "silent 1: web_1"}; !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		stop()
	})
}

// Silence is noticed though the last message of the stream was deleted, also if all others are too old to be read.
func TestSilenceIsNoticedBehindADeletedMessage(t *testing.T) {
	for what, age := range map[string]time.Duration{"behind recent ones": 0, "behind old ones": 41 * 24 * time.Hour} {
		t.Run(what, func(t *testing.T) {
			if age > 0 {
				systemtest.LeftToGate(t)
			}
			onStage(t, func(t *testing.T, s *stage) {
				ear := newEar()
				ops := with(route("ops", ear), func(t *bridge.Terms) { t.Bridge = bridge.LevelTrouble })
				s.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
				s.rest(age)
				s.publish(eventNo(2).say(t, imds.Scheduled, "vm-2"))
				stream, err := s.js.Stream(t.Context(), "FOREWARN")
				if err == nil {
					err = stream.DeleteMsg(t.Context(), 2)
				}
				if err != nil {
					t.Fatal(err)
				}
				r, stop := s.run(ops)
				(&bridges{stage: s}).beat("web_0", false)
				pause(10 * time.Minute)
				if news := ear.news(); len(news) != 1 {
					t.Errorf("told %q, want the silent VM; warnings %q", news, r.Status().Warnings)
				}
				stop()
			})
		})
	}
}

// A stream for heartbeats that is provisioned while a relay runs is followed within minutes.
func TestHeartbeatsThatAreProvisionedLaterAreFollowed(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		if err := s.js.DeleteStream(t.Context(), "FOREWARN_heartbeats"); err != nil {
			t.Fatal(err)
		}
		ear := newEar()
		r, stop := s.run(with(route("ops", ear), func(t *bridge.Terms) { t.Bridge = bridge.LevelTrouble }))
		pause(time.Minute)
		if len(r.Status().Warnings) != 1 {
			t.Errorf("warnings %q, want one", r.Status().Warnings)
		}
		s.provision(relay.Retention{})
		(&bridges{stage: s}).beat("web_0", false)
		pause(10 * time.Minute)
		if news := ear.news(); len(news) != 1 || len(r.Status().Warnings) > 0 {
			t.Errorf("told %q, warnings %q; want the silent VM, and none", news, r.Status().Warnings)
		}
		stop()
	})
}

// It is judged only when the stream is read to its end, though its last message was deleted: what is behind may explain
// the silence.
func TestSilenceWaitsForTheEndBehindADeletedMessage(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		for range 16_000 / 50 {
			filler := eventNo(1).say(t, imds.Scheduled, "vm-1")
			for range 50 {
				s.publish(filler)
			}
		}
		b := &bridges{stage: s}
		b.says(imds.Started, "Reboot", "web_0", 9001)
		b.beat("web_0", false)
		s.publish(eventNo(77).say(t, imds.Scheduled, "vm-1"))
		stream, err := s.js.Stream(t.Context(), "FOREWARN")
		if err == nil {
			err = stream.DeleteMsg(t.Context(), stream.CachedInfo().State.LastSeq)
		}
		if err != nil {
			t.Fatal(err)
		}
		ear, wire := newEar(), &cable{}
		wire.slow(400 * time.Millisecond)
		s.start(relay.Options{Connect: s.over(wire),
			Routes: []bridge.Route{with(route("ops", ear), func(t *bridge.Terms) { t.Bridge = bridge.LevelTrouble })}})
		pause(5 * time.Second)
		wire.slow(1200 * time.Millisecond)
		pause(20 * time.Minute)
		wire.slow(0)
		pause(5 * time.Minute)
		if news := ear.news(); len(news) > 0 {
			t.Errorf("told %q, want nothing: a reboot explains it", news)
		}
	})
}

// Servers before 2.10 don't say when they answered. Whatever is in the stream, a relay knows when it has read it.
func TestAServerThatDoesNotTellTheTimeKeepsNobodyFromHearingOfSilence(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.publish(eventNo(1).say(t, imds.Scheduled, "vm-1"))
		s.rest(41 * 24 * time.Hour)
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", newRecorder())},
			Connect: s.over(&cable{says: saysInstead(`"ts":`, `"tz":`)})})
		pause(5 * time.Minute)
		if w := strings.Join(r.Status().Warnings, "\n"); strings.Contains(w, "fall silent") {
			t.Errorf("it warns: %s", w)
		}
		stop()
	})
}
