package relay_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

// A variant is a relay that is broken in one way, by what stands between it and the servers. The zero variant is whole.
type variant struct {
	says  func([]byte)                // changes what the server says, in place
	hears func(machine int, _ []byte) // changes what it hears from a machine, likewise
	ready bool                        // relays say that they are ready, whatever happens
}

func (v variant) hearsOf(machine int) func([]byte) {
	if v.hears == nil {
		return nil
	}
	return func(text []byte) { v.hears(machine, text) }
}

// replaced changes a text to another one of the same length.
func replaced(text []byte, was, is string) {
	if len(was) != len(is) {
		panic("another length: " + was)
	}
	for at := bytes.Index(text, []byte(was)); at >= 0; at = bytes.Index(text, []byte(was)) {
		copy(text[at:], is)
	}
}

func saysInstead(was, is string) func([]byte) { return func(text []byte) { replaced(text, was, is) } }

func hearsInstead(pairs ...string) func(int, []byte) {
	return func(_ int, text []byte) {
		for n := 0; n < len(pairs); n += 2 {
			replaced(text, pairs[n], pairs[n+1])
		}
	}
}

// What is broken is found out, each in a story that is made for it. As relays are, nothing is found in that.
func TestTheOracleCatches(t *testing.T) {
	systemtest.LeftToGate(t)
	systemtest.Alone(t)
	for n, tt := range []struct {
		claim   string
		promise string // that it breaks
		story   func(*plan)
		variant variant
	}{
		{"relays share no lease", "one relay a sink", twoRelays,
			variant{hears: func(machine int, text []byte) {
				replaced(text, "FOREWARN_leases.lease.", fmt.Sprintf("FOREWARN_leases.lea%02d.", machine))
			}}},
		{"no relay knows of the others", "handed on", cutOffFromOne,
			variant{hears: hearsInstead("PUB $KV.FOREWARN_leases.relay.", "PUB $KV.FOREWARN_leases.other.")}},
		{"nothing is given up at the bound", "urgency", manyWait,
			variant{hears: hearsInstead("PUB forewarn_dead.", "PUB forewarn_gone.")}},
		{"what a filter accepted is not on record", "nothing is lost", takenOver,
			variant{hears: hearsInstead(`"waiting":{`, `"waitinX":{`)}},
		{"it says that it is ready, whatever happens", "ready", recordsUnanswered, variant{ready: true}},
		{"likewise when it gets no messages", "ready", requestsUnanswered, variant{ready: true}},
		{"it takes each message for the stream's last one", "nothing is begun when it is over", overMeanwhile,
			variant{says: nothingPending}},
		{"what the forger says is on the right subject", "filters", forgedAbout,
			variant{says: saysInstead("forewarn.events._.web.vm-9.forged-", "forewarn.events._.web.vm-1.forged-")}},
		{"a flood of the forger's counts as another VM's", "shares", flooded,
			variant{says: saysInstead(forger, "vm-1")}},
		{"the forger's heartbeats are on the right subject", "silence", keptAlive,
			variant{says: saysInstead("forewarn.heartbeat._.web.vm-9.vm-9", "forewarn.heartbeat._.web.vm-1.vm-1")}},
		{"what is settled is neither on record nor acknowledged", "told once", killedSoon,
			variant{hears: hearsInstead(`"settled":`, `"settleX":`, `"decided":`, `"decideX":`, `"after":`, `"afteX":`,
				"PUB $JS.ACK.", "PUB $JX.ACK.")}},
		{"it takes what is not on record for recorded", "told once", recordsUnwritten,
			variant{hears: func(machine int, text []byte) {
				if machine == 1 {
					replaced(text, "PUB $KV.FOREWARN_records.record.", "PUB $KV.FOREWARN_records.recorX.")
					replaced(text, "PUB $JS.ACK.", "PUB $JX.ACK.")
				}
			}}},
		{"what is settled is not on record", "told once", madeAgain, variant{hears: hearsInstead(`"settled":`, `"settleX":`)}},
		{"what came of an approval is not on record", "repeats what is open", answeredAndTakenOver,
			variant{hears: hearsInstead(`"answer":`, `"answeX":`)}},
		{"relays take every duplicate for their own message", "fallback", someNoisy,
			variant{says: saysInstead(`"duplicate": true`, `"duplicate":false`)}},
	} {
		if n%systemtest.Every(2) != 0 {
			continue
		}
		t.Run(tt.claim, func(t *testing.T) {
			for _, v := range []variant{{}, tt.variant} {
				broken := v.says != nil || v.hears != nil || v.ready
				p := plan{seed: 1, length: 8 * time.Minute, variant: v}
				tt.story(&p)
				slices.SortStableFunc(p.steps, func(a, b step) int { return int(a.at - b.at) })
				found := examine(simulate(t, p, slog.New(slog.DiscardHandler)))
				caught := slices.ContainsFunc(found, func(f finding) bool { return f.promise == tt.promise })
				if caught != broken || !broken && len(found) > 0 {
					t.Errorf("broken %v, and of %q was found:%s", broken, tt.promise, describe(found))
				}
			}
		})
	}
}

// nothingPending has the server say of each message of a consumer that it was the last one.
func nothingPending(text []byte) {
	const subject = "$JS.ACK.FOREWARN.forewarn-"
	for rest := text; ; {
		at := bytes.Index(rest, []byte(subject))
		if at < 0 {
			return
		}
		rest = rest[at+len(subject):]
		word, _, _ := bytes.Cut(rest, []byte(" "))
		for n := bytes.LastIndexByte(word, '.') + 1; n < len(word); n++ {
			word[n] = '0'
		}
	}
}

// storyRoutes are the routes of the stories: one that is always well, and one with terms of its own.
func storyRoutes(hook routePlan) []routePlan {
	hook.name, hook.timeout = "hook", 10*time.Second
	return []routePlan{
		{name: "well", late: delivery.LateSend, timeout: 10 * time.Second, bridge: bridge.LevelAll}, hook,
	}
}

// said adds what VMs say of an event: that it is scheduled, and what follows.
func (p *plan) said(n int, at, notice time.Duration, kinds ...imds.ChangeKind) {
	if p.sayings == nil {
		p.sayings = make([][]saying, 1)
	}
	e := azure{id: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), typ: "Reboot", vm: "vm-1", source: "Platform",
		notBefore: bubbleEpoch.Add(at + notice)}
	for i, kind := range append([]imds.ChangeKind{imds.Scheduled}, kinds...) {
		at := at + time.Duration(i)*20*time.Second
		c := imds.Change{Kind: kind, Event: e.event(imds.StatusScheduled)}
		p.sayings[0] = append(p.sayings[0], saying{at: at, make: changeSaidAt(bubbleEpoch.Add(at), c, "vm-0")})
	}
	slices.SortStableFunc(p.sayings[0], func(a, b saying) int { return int(a.at - b.at) })
}

func (p *plan) hookFails(at time.Duration, how string, end time.Duration) {
	p.add(at, "sink hook "+how, func(w *world) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.troubles["hook"] = sinkTrouble{sink: "hook", how: how, end: end, share: 100}
	})
}

func twoRelays(p *plan) {
	p.routes = storyRoutes(routePlan{late: delivery.LateSend})
	p.add(0, "a relay starts", (*world).startRelay)
	p.add(0, "a relay starts", (*world).startRelay)
	p.hookFails(0, "is slow", 10*time.Minute)
	for n := range 20 {
		p.said(n, time.Minute+time.Duration(n)*3*time.Second, time.Hour)
	}
}

func cutOffFromOne(p *plan) {
	p.routes = storyRoutes(routePlan{late: delivery.LateSend})
	p.add(0, "a relay starts", (*world).startRelay)
	p.add(20*time.Second, "a relay starts", (*world).startRelay)
	p.add(50*time.Second, "sink hook is cut off from the first relay", func(w *world) {
		w.cutOff(0, "hook", 7*time.Minute)
	})
	p.said(1, time.Minute, 16*time.Minute)
}

func manyWait(p *plan) {
	p.routes, p.bound = storyRoutes(routePlan{late: delivery.LateSend}), 10
	p.add(0, "a relay starts", (*world).startRelay)
	p.length = 15 * time.Minute
	p.hookFails(30*time.Second, "is down", 14*time.Minute)
	for n := range 15 {
		p.said(n, time.Minute+time.Duration(n)*time.Second, time.Hour)
	}
	p.said(20, 3*time.Minute, time.Minute)
}

func takenOver(p *plan) {
	p.routes = storyRoutes(routePlan{late: delivery.LateSend})
	p.add(0, "a relay starts", (*world).startRelay)
	p.said(1, time.Minute, time.Hour)
	p.hookFails(90*time.Second, "is down", 4*time.Minute)
	p.said(2, 2*time.Minute, time.Hour)
	p.add(3*time.Minute, "a relay is killed", func(w *world) { w.killRelay(0) })
	p.add(3*time.Minute+time.Second, "a relay starts", (*world).startRelay)
}

// answeredAndTakenOver has a relay repeat what came of an approval that another one has told.
func answeredAndTakenOver(p *plan) {
	p.routes = storyRoutes(routePlan{late: delivery.LateSend, repeat: time.Minute})
	p.add(0, "a relay starts", (*world).startRelay)
	p.said(1, time.Minute, time.Hour)
	ce, err := p.sayings[0][0].make(time.Time{})
	if err != nil {
		panic(err)
	}
	at := 70 * time.Second
	p.sayings[0] = append(p.sayings[0],
		saying{at: at, make: answerSaidAt(bubbleEpoch.Add(at), cloudevent.ChangeOf(ce).Event, 0, 1)})
	p.add(3*time.Minute, "a relay is killed", func(w *world) { w.killRelay(0) })
	p.add(3*time.Minute+time.Second, "a relay starts", (*world).startRelay)
}

// killedSoon has a relay killed before it notices that nothing is acknowledged.
func killedSoon(p *plan) {
	p.routes = storyRoutes(routePlan{late: delivery.LateSend})
	p.add(0, "a relay starts", (*world).startRelay)
	p.said(1, time.Minute, time.Hour)
	p.add(61600*time.Millisecond, "a relay is killed", func(w *world) { w.killRelay(0) })
	p.add(63*time.Second, "a relay starts", (*world).startRelay)
}

func recordsUnanswered(p *plan) {
	p.routes = storyRoutes(routePlan{late: delivery.LateSend})
	p.add(0, "a relay starts", (*world).startRelay)
	p.add(time.Minute, "records are not answered", func(w *world) { w.failCable(0, recordsLost, 5*time.Minute) })
	for n := range 5 {
		p.said(n, time.Minute+time.Duration(n)*2*time.Second, time.Hour)
	}
}

func requestsUnanswered(p *plan) {
	p.routes = storyRoutes(routePlan{late: delivery.LateSend})
	p.add(0, "a relay starts", (*world).startRelay)
	p.add(time.Minute, "requests for messages are not answered", func(w *world) { w.failCable(0, requestsLost, 5*time.Minute) })
	p.said(1, 2*time.Minute, time.Hour)
}

// recordsUnwritten has a relay killed that can't write what it has delivered, before it notices that nothing is acknowledged.
func recordsUnwritten(p *plan) {
	p.routes = storyRoutes(routePlan{late: delivery.LateSend})
	p.add(0, "a relay starts", (*world).startRelay)
	p.add(50*time.Second, "records are not written", func(w *world) {
		w.failCable(0, "$KV.FOREWARN_records.record.hook.", 7*time.Minute)
	})
	for n := range 2 * maxRepeated {
		p.said(n, 62*time.Second, time.Hour)
	}
	p.add(75*time.Second, "a relay is killed", func(w *world) { w.killRelay(0) })
	p.add(76*time.Second, "a relay starts", (*world).startRelay)
}

// madeAgain has the stream made again while no relay runs, and a VM say once more what was told.
func madeAgain(p *plan) {
	p.routes = storyRoutes(routePlan{late: delivery.LateSend})
	p.add(0, "a relay starts", (*world).startRelay)
	p.said(1, time.Minute, time.Hour)
	p.add(2*time.Minute, "a relay stops", func(w *world) { w.stopRelay(0) })
	p.add(150*time.Second, "the stream is made again", (*world).remakeStream)
	again := p.sayings[0][0]
	again.at = 3 * time.Minute
	p.sayings[0] = append(p.sayings[0], again)
	p.add(4*time.Minute, "a relay starts", (*world).startRelay)
}

func overMeanwhile(p *plan) {
	p.routes = storyRoutes(routePlan{late: delivery.LateDrop, changes: []string{"scheduled"}})
	p.add(0, "a relay starts", (*world).startRelay)
	p.add(50*time.Second, "a relay stops", func(w *world) { w.stopRelay(0) })
	for n := range 10 {
		p.said(n, time.Minute+time.Duration(n)*time.Second, time.Hour, imds.Vanished)
	}
	p.add(4*time.Minute, "a relay starts", (*world).startRelay)
}

func forgedAbout(p *plan) {
	p.routes = storyRoutes(routePlan{late: delivery.LateSend})
	p.add(0, "a relay starts", (*world).startRelay)
	p.said(1, time.Minute, time.Hour)
	e := azure{id: "00000000-0000-4000-8000-000000000002", typ: "Reboot", vm: "vm-1", source: "Platform",
		notBefore: bubbleEpoch.Add(time.Hour)}
	p.forged = []saying{{at: 2 * time.Minute, make: changeSaidAt(bubbleEpoch.Add(2*time.Minute),
		imds.Change{Kind: imds.Scheduled, Event: e.event(imds.StatusScheduled)}, "vm-0")}}
}

// flooded has the forger publish more than a sink that is down has room for, beside a few changes of another VM.
func flooded(p *plan) {
	p.routes, p.bound, p.length = storyRoutes(routePlan{late: delivery.LateSend}), 20, 15*time.Minute
	p.add(0, "a relay starts", (*world).startRelay)
	p.hookFails(30*time.Second, "is down", 14*time.Minute)
	for n := range 3 {
		p.said(n, time.Minute, time.Hour)
	}
	p.forged = someFlood(2*time.Minute, 40)
}

// keptAlive has a VM fall silent, and the forger send heartbeats in its name.
func keptAlive(p *plan) {
	p.routes, p.silent = storyRoutes(routePlan{late: delivery.LateSend}), true
	p.add(0, "a relay starts", (*world).startRelay)
	p.sayings = make([][]saying, 2)
	for n := range 27 {
		beat := saying{at: time.Minute + time.Duration(n)*15*time.Second, make: beatSaid("vm-1")}
		if n < 3 {
			p.sayings[1] = append(p.sayings[1], beat)
		} else {
			p.forged = append(p.forged, beat)
		}
	}
}

// someNoisy is noisyPlan.
func someNoisy(p *plan) {
	v := p.variant
	*p = noisyPlan()
	p.variant = v
}
