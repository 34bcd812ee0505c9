package main

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// A fleetSize says how much a scale test plays.
type fleetSize struct {
	sets, bridges, events int           // bridges and events of all sets
	wave                  time.Duration // within which the events are announced
	down                  time.Duration // a sink, and a server
	interval              time.Duration // of the polls
	step                  time.Duration // between two changes of an event, at least
}

// By itself, the fleet is one set of three VMs. With FOREWARN_SCALE=small, which the gate says, it is three sets in a wave
// of some seconds, and with FOREWARN_SCALE=full one of 1,000 VMs, which takes about 15 minutes on two cores, or 5 without
// the faults.
func sizeOfFleet() fleetSize {
	switch os.Getenv("FOREWARN_SCALE") {
	case "full":
		return fleetSize{sets: 20, bridges: 1000, events: 2000, wave: 12 * time.Minute, down: time.Minute, interval: 4 * time.Second,
			step: 20 * time.Second}
	case "small", "large":
		return fleetSize{sets: 3, bridges: 12, events: 36, wave: 12 * time.Second, down: 5 * time.Second, interval: time.Second,
			step: 5 * time.Second}
	}
	return fleetSize{sets: 1, bridges: 3, events: 6, wave: 2 * time.Second, down: time.Second, interval: time.Second / 4,
		step: time.Second / 2}
}

// During a wave of maintenance one of three relays is killed, a server is killed and returns, the stream's leader
// moves, and a sink is down for a while. Every change reaches each sink, in the order of its event. Only what was in
// flight at the kill may be repeated, at most once per Azure event, and each repeat is logged.
func TestFleetDeliversEveryChange(t *testing.T) {
	systemtest.LeftToGate(t)
	size := sizeOfFleet()
	if size.bridges < 1000 {
		t.Parallel()
	}
	c := newCluster(t)
	hook, chat, post := newNoted(t), newNoted(t), newPost(t)
	sinks := fmt.Sprintf(`
  - {name: hook, timeout: 1m, webhook: {url: %q}}
  - name: chat
    timeout: 1m
    webhook: {url: %q, content_type: application/json, body_text: '{"channel":"#ops","id":{{.id | json}},"time":{{.time | json}},"text":{{include "headline" . | json}}}'}
  - name: mail
    late: send
    timeout: 1m
    group: {above: 0}
    email: {host: %s, port: %s, from: azure@example.com, to: [ops@example.com], tls: {mode: none}}
`, hook.url, chat.url, post.host, post.port())
	c.provision(sinks)
	var relays []*relayProcess
	for n := range 3 {
		relays = append(relays, c.relay(n+1, sinks))
	}
	c.served("hook", "chat", "mail")
	f := c.bridges(size)

	began := time.Now()
	var killed time.Time
	f.after(size.wave*3/10, func() {
		victim := relays[0]
		for _, r := range relays {
			if r.serves("hook") {
				victim = r
			}
		}
		killed = time.Now()
		t.Logf("%v: %s is killed", since(began), victim.name)
		kill(t, victim.Process)
	})
	f.after(size.wave*4/10, func() {
		t.Logf("%v: server 2 is killed", since(began))
		c.stop(1)
		time.Sleep(size.down / 2)
		c.start(1)
		t.Logf("%v: server 2 is back", since(began))
	})
	f.after(size.wave*5/10, func() { post.stop(); time.Sleep(size.down); post.listen(t) })
	f.after(size.wave*8/10, func() {
		for tries := 1; ; tries++ { // while the servers elect one, nobody answers
			_, err := c.conn.Request("$JS.API.STREAM.LEADER.STEPDOWN.FOREWARN", nil, time.Second)
			if err == nil {
				break
			}
			if tries == 20 {
				t.Errorf("the stream's leader does not move: %v", err)
				return
			}
		}
		t.Logf("%v: the stream's leader moves", since(began))
	})
	changes := f.play()
	f.wait()
	t.Logf("%v: the wave of %d events and %d changes is over", since(began), size.events, changes)

	heard := map[string]func() []string{"hook": hook.ids, "chat": chat.ids, "mail": post.ids}
	deadline := time.Now().Add(size.wave + 6*patience)
	for _, got := range heard {
		for len(distinct(got())) < changes && time.Now().Before(deadline) {
			time.Sleep(200 * time.Millisecond)
		}
	}
	order, outdated := c.inStream(f)
	t.Logf("the stream holds %d changes; of %d events a VM that saw a later state was quicker", len(order), outdated)
	for sink, got := range heard {
		ids := got()
		if n := len(distinct(ids)); n != changes {
			t.Errorf("%s heard %d changes, want %d", sink, n, changes)
		}
		seen, repeats := map[string]bool{}, map[string]int{}
		last := map[string]string{} // new change of an event
		for _, id := range ids {
			event := id[:36]
			switch {
			case seen[id]:
				t.Logf("%s heard %s again", sink, id)
				if repeats[event]++; repeats[event] > 1 {
					t.Errorf("%s heard more than one change of %s again, after one kill", sink, event)
				}
			case order[id] < order[last[event]]:
				t.Errorf("%s heard %s after %s", sink, id, last[event])
			default:
				last[event] = id
			}
			seen[id] = true
		}
		t.Logf("%s: %d changes, %d repeats", sink, len(seen), len(ids)-len(seen))
	}
	for id, at := range hook.repeated() {
		if at.Before(killed) {
			t.Errorf("hook heard %s again at %v; the kill was at %v", id, at, killed)
		}
		t.Logf("hook heard %s again %v after the kill", id, at.Sub(killed))
	}
	late := hook.delays()
	t.Logf("from the first observer's poll to the notification: median %v, 95 %% within %v, at most %v (takeover and backlog)",
		late[len(late)/2], late[len(late)*95/100], late[len(late)-1])
	t.Logf("through the relay, at best: %d messages a second to one sink", hook.fastest())
	t.Logf("connections: %d; heap of a bridge: %s", c.connections(), f.heap)
}

// With Slack's limit of one message a second, a wave gives no more messages than that, each with all that came meanwhile,
// and an eviction in its middle is delivered within two seconds at full scale. TestUrgencyBeatsABlockedSinkOnARelay has the times that don't
// depend on the machine.
func TestWaveIsGroupedIntoFewMessages(t *testing.T) {
	systemtest.LeftToGate(t)
	size := sizeOfFleet()
	if size.bridges < 1000 {
		t.Parallel()
	}
	size.wave = 10 * time.Second
	if size.bridges >= 1000 {
		size.wave = 2 * time.Minute // each VM publishes every event of its set: two cores play it no quicker
	}
	c := newCluster(t)
	chat := newNoted(t)
	chat.slack = true
	sinks := fmt.Sprintf("\n  - {name: chat, slack: {token: %s, channel: C024BE91L, api_url: %q, text: '{{.id}} {{.time}}'}}\n", chatToken, chat.url+"/")
	c.provision(sinks)
	r := c.relay(1, sinks)
	c.served("chat")
	f := c.bridges(size)
	urgent := eventID("an eviction")
	f.after(size.wave/2, func() {
		f.sets[0].Schedule(imdstest.Event{ID: urgent, Type: "Preempt", Resources: f.sets[0].VMs()[:1],
			NotBefore: time.Now().Add(45 * time.Second)})
	})
	f.announce()
	f.wait()
	told := 0
	for deadline := time.Now().Add(size.wave + 6*patience); told < size.events+1 && time.Now().Before(deadline); {
		time.Sleep(time.Second)
		told = r.sink("chat").Delivered
	}
	if told != size.events+1 {
		t.Errorf("%d events were told, want %d", told, size.events+1)
	}
	late := chat.delay(urgent + "-scheduled")
	t.Logf("the eviction was told after %v", late)
	if late < 0 || late > 2*time.Second && size.bridges >= 1000 { // the full form is a measurement
		t.Errorf("the eviction was told after %v, want 2 s at most", late)
	}
	posts := len(chat.ids())
	t.Logf("%d events of %d sets were told in %d messages", size.events+1, size.sets, posts)
	if most := int(size.wave/time.Second) + 20; posts > most {
		t.Errorf("%d messages for one wave of %d events", posts, size.events)
	}
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Second / 10) }

func distinct(ids []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(ids)))
}
