package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

// A relayLoad says of how much one relay hears.
type relayLoad struct {
	sets, vms, events int
	steady            time.Duration // for which each VM sends a heartbeat every 5 minutes
}

func loadOfRelay() relayLoad {
	if os.Getenv("FOREWARN_SCALE") == "full" {
		return relayLoad{sets: 100, vms: 100_000, events: 10_000, steady: time.Minute}
	}
	return relayLoad{sets: 10, vms: 1000, events: 100, steady: 2 * time.Second}
}

// vm is one of the VMs, as its bridge sees itself.
func (l relayLoad) vm(n int) imds.Observer {
	set, number := fmt.Sprintf("set-%03d", n%l.sets), n/l.sets
	const subscription = "11111111-2222-3333-4444-555555555555"
	return imds.Observer{
		Name: fmt.Sprintf("%s_%d", set, number), VMID: strings.ToLower(eventID(fmt.Sprint("vm ", n))), SubscriptionID: subscription,
		ResourceID: fmt.Sprintf("/subscriptions/%s/resourceGroups/rg-prod/providers/Microsoft.Compute/virtualMachineScaleSets/%s/"+
			"virtualMachines/%d", subscription, set, number),
		ResourceGroup: "rg-prod", Location: "westeurope", Zone: "1", ScaleSet: set, OSType: "Linux", Priority: "Regular",
	}
}

// heartbeat is what a VM's bridge says every 5 minutes.
func (l relayLoad) heartbeat(n int) (event.Event, error) {
	data := map[string]any{"version": "1.0.0", "interval": (5 * time.Minute).Seconds()}
	return cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, data, l.vm(n), time.Now())
}

// announcement is what a VM's bridge says of an event that hits it in some hours.
func (l relayLoad) announcement(n int) (event.Event, error) {
	vm, now := l.vm(n%l.vms), time.Now()
	document, err := imds.DecodeDocument(fmt.Appendf(nil, `{"DocumentIncarnation":7,"Events":[{"EventId":%q,"EventType":"Reboot",`+
		`"ResourceType":"VirtualMachine","Resources":[%q],"EventStatus":"Scheduled","NotBefore":%q,"EventSource":"Platform",`+
		`"Description":"Host server is undergoing maintenance.","DurationInSeconds":9}]}`, eventID(fmt.Sprint("event ", n)), vm.Name,
		now.Add(time.Hour+time.Duration(n)*time.Second).UTC().Format(http.TimeFormat)))
	if err != nil {
		return event.Event{}, err
	}
	return cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: document.Events[0]},
		cloudevent.Circumstances{Observer: vm, Time: now, Announced: now, Incarnation: "7"})
}

// publishers are sinks of bridges, by which the test says what thousands of bridges would.
type publishers struct {
	t     *testing.T
	sinks []delivery.Sink
}

func (c *cluster) publishers(n int) *publishers {
	c.Helper()
	p, dir := &publishers{t: c.T}, c.TempDir()
	config := filepath.Join(dir, "forewarn.yaml")
	write(c.T, config, fmt.Sprintf("state: %s\nlisten: \"\"\nsinks:\n  - {name: stream, only: {vms: all}, nats: {url: [%s]}}\n",
		dir, c.urls()))
	for range n {
		program := &program{environment: environment{getenv: func(string) string { return "" }, out: io.Discard}, config: config}
		s, err := program.loader(slog.New(slog.DiscardHandler)).Load(config)
		if err != nil {
			c.Fatal(err)
		}
		sink := s.Routes[0].Sink
		c.Cleanup(func() { _ = sink.(io.Closer).Close() })
		p.sinks = append(p.sinks, sink)
	}
	return p
}

// publish publishes n CloudEvents, as fast as the servers take them.
func (p *publishers) publish(n int, ce func(int) (event.Event, error)) {
	p.t.Helper()
	var all sync.WaitGroup
	var next atomic.Int64
	for _, sink := range p.sinks {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				said, err := ce(i)
				if err == nil {
					_, err = sink.Deliver(p.t.Context(), []delivery.Delivery{{Event: said, Attempt: 1}})
				}
				if err != nil {
					p.t.Errorf("publish %s: %v", said.ID(), err)
					return
				}
			}
		})
	}
	all.Wait()
	if p.t.Failed() {
		p.t.FailNow()
	}
}

// steadily publishes heartbeats at the rate at which the VMs send them.
func (p *publishers) steadily(l relayLoad) {
	rate := max(1, l.vms/300) // a second
	for n := range int(l.steady / time.Second) {
		began := time.Now()
		p.publish(rate, func(i int) (event.Event, error) { return l.heartbeat((n*rate + i) % l.vms) })
		time.Sleep(time.Second - time.Since(began))
	}
}

// One relay hears the heartbeats of a large fleet and of many open events, in front of another that has nothing to do. It
// knows all VMs and all events, none is silent, and each event is told once. When it is killed, the other goes on: it tells
// nothing twice, and what is new.
//
// With FOREWARN_SCALE=full it is 100,000 VMs and 10,000 open events, which takes some minutes. It prints what that costs:
// memory and processor time are those of the relay's own process, which has one processor.
func TestOneRelayHearsALargeFleet(t *testing.T) {
	systemtest.LeftToGate(t)
	load := loadOfRelay()
	if load.vms < 100_000 {
		t.Parallel()
	}
	c := startServers(t, 1)
	hook := newNoted(t)
	sinks := fmt.Sprintf("\n  - {name: hook, webhook: {url: %q}}\n", hook.url)
	c.provision(sinks)
	one := c.relay(1, sinks)
	c.served("hook")
	said := c.publishers(16)
	f := &figures{}

	began := time.Now()
	said.publish(load.vms, load.heartbeat)
	f.add("all heartbeats published in %.1f s", time.Since(began).Seconds())
	c.until("relay-1 knows all VMs", func() bool { return one.knows(load.vms, 0) })
	f.add("and known after %.1f", time.Since(began).Seconds())
	began = time.Now()
	said.publish(load.events, load.announcement)
	f.add("all events published in %.1f s", time.Since(began).Seconds())
	c.until("every event is told", func() bool { return len(hook.ids()) >= load.events })
	f.add("and told after %.1f", hook.last().Sub(began).Seconds())
	c.settled("hook")
	c.until("relay-1 knows all events", func() bool { return one.knows(load.vms, load.events) })

	before := one.cost()
	f.add("until then %.1f s of CPU", before.cpu.Seconds())
	said.steadily(load)
	now := one.cost()
	f.add("%.2f s of CPU in %v of heartbeats, RSS %d MiB", (now.cpu - before.cpu).Seconds(), load.steady, now.rss)
	for _, args := range [][]string{{"status"}, {"status", "-o", "json"}} {
		f.add("%s %s", strings.Join(args, " "), one.timed(func() error {
			return forewarn(t, append(args, "--config", one.config)...).Run()
		}))
	}
	for _, path := range []string{"/readyz", "/metrics", "/", "/?set=set-001"} {
		f.add("%s %s", path, one.timed(func() error { return readWhole("http://" + one.page + path) }))
	}

	began = time.Now()
	two := c.relay(2, sinks)
	c.until("relay-2 knows all", func() bool { return two.knows(load.vms, load.events) })
	f.add("relay-2 knows all %.1f s after its start", time.Since(began).Seconds())
	c.wholeFleet(one, load, load.events)
	c.wholeFleet(two, load, load.events)
	most := one.cost()
	f.add("RSS at the peak %d MiB", most.peak)

	killed := time.Now()
	kill(t, one.Process)
	said.publish(1, func(int) (event.Event, error) { return load.announcement(load.events) })
	c.until("relay-2 tells a new event", func() bool { return len(hook.ids()) > load.events })
	f.add("a new event told %.1f s after the kill", hook.last().Sub(killed).Seconds())
	c.settled("hook")
	if !two.serves("hook") {
		t.Error("relay-2 doesn't serve the sink")
	}
	c.until("relay-2 knows the new event", func() bool { return two.knows(load.vms, load.events+1) })
	c.wholeFleet(two, load, load.events+1)
	heard := hook.ids()
	if n := len(distinct(heard)); n != load.events+1 || len(heard) != n {
		t.Errorf("the hook heard %d CloudEvents, %d of them distinct, want %d, each once", len(heard), n, load.events+1)
	}
	f.add("RSS of relay-2 at the peak %d MiB", two.cost().peak)
	if most := max(most.peak, two.cost().peak); most > 512 {
		t.Errorf("a relay had %d MiB, more than its unit allows", most)
	}
	t.Logf("%d VMs of %d sets, %d open events: %s", load.vms, load.sets, load.events, strings.Join(f.all, "; "))
}

// figures are what a run has measured.
type figures struct{ all []string }

func (f *figures) add(format string, args ...any) {
	f.all = append(f.all, fmt.Sprintf(format, args...))
}

// knows reports whether a relay knows so many VMs and open events, by its metrics, which cost it less than its status.
func (r *relayProcess) knows(vms, events int) bool {
	resp, err := http.Get("http://" + r.page + "/metrics")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	found := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^forewarn_(fleet_vms|events_open)(?:{.*})? (\S+)$`).FindAllSubmatch(text, -1) {
		n, _ := strconv.ParseFloat(string(m[2]), 64)
		found[string(m[1])] += int(n)
	}
	return found["fleet_vms"] == vms && found["events_open"] == events
}

// wholeFleet fails the test unless a relay knows all VMs and so many open events, and no VM is silent.
func (c *cluster) wholeFleet(r *relayProcess, l relayLoad, events int) {
	c.Helper()
	s := r.status()
	if s.Relay == nil {
		c.Fatalf("%s isn't ready", r.name)
	}
	silent := 0
	for _, vm := range s.Relay.VMs {
		if vm.Silent {
			silent++
		}
	}
	if len(s.Relay.VMs) != l.vms || silent > 0 || len(s.Events) != events || len(s.Warnings) > 0 {
		c.Errorf("%s knows %d VMs of which %d are silent, and %d open events, want %d, 0 and %d; warnings: %q", r.name,
			len(s.Relay.VMs), silent, len(s.Events), l.vms, events, s.Warnings)
	}
}

// settled waits until all that the stream holds is settled for a sink, and on record.
func (c *cluster) settled(sink string) {
	c.Helper()
	js, err := jetstream.New(c.conn)
	if err != nil {
		c.Fatal(err)
	}
	c.until(sink+" has settled all", func() bool {
		consumer, err := js.Consumer(c.Context(), "FOREWARN", "forewarn-"+sink)
		return err == nil && consumer.CachedInfo().NumPending == 0 && consumer.CachedInfo().NumAckPending == 0
	})
}

// until waits until something is so. It spends a fifth of the time on looking.
func (c *cluster) until(what string, so func() bool) {
	c.Helper()
	for deadline := time.Now().Add(5 * patience); time.Now().Before(deadline); {
		began := time.Now()
		if so() {
			return
		}
		time.Sleep(max(50*time.Millisecond, 4*time.Since(began)))
	}
	c.Fatalf("not within %v: %s", 5*patience, what)
}

// last is when it heard something for the last time.
func (n *noted) last() time.Time {
	all := n.all()
	return all[len(all)-1].at
}

// timed says how long something takes that asks the relay, the first time and at best later, and how much processor time
// of the relay's the first takes.
func (r *relayProcess) timed(ask func() error) string {
	var took []time.Duration
	var cpu time.Duration
	for range 3 {
		before, began := r.cost(), time.Now()
		if err := ask(); err != nil {
			return err.Error()
		}
		took = append(took, time.Since(began))
		if len(took) == 1 {
			cpu = r.cost().cpu - before.cpu
		}
	}
	return fmt.Sprintf("%.2f s (CPU %.2f), then %.2f", took[0].Seconds(), cpu.Seconds(), slices.Min(took[1:]).Seconds())
}

// readWhole reads a page to its end.
func readWhole(url string) error {
	client := http.Client{Timeout: patience}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return err
}

// A cost is what a process has taken so far; zero where the system has no /proc.
type cost struct {
	cpu       time.Duration
	rss, peak int // MiB
}

func (r *relayProcess) cost() (c cost) {
	const tick = 10 * time.Millisecond // of /proc/PID/stat
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.Process.Pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	if fields := strings.Fields(rest); len(fields) > 12 {
		for _, field := range fields[11:13] { // in user mode, and in the kernel
			ticks, _ := strconv.Atoi(field)
			c.cpu += time.Duration(ticks) * tick
		}
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Process.Pid))
	for name, to := range map[string]*int{"VmRSS": &c.rss, "VmHWM": &c.peak} {
		if m := regexp.MustCompile(name + `:\s+(\d+)`).FindSubmatch(status); m != nil {
			kib, _ := strconv.Atoi(string(m[1]))
			*to = kib >> 10
		}
	}
	return c
}
