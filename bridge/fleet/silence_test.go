package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// Who is told as silent and as back, and in how many messages. Times are seconds, heartbeats come every 100 s, so a VM is
// silent 300 s after it was last heard, and that is told 20 s later, with what fell silent meanwhile.
func TestSilenceIsDecided(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	vm := func(n, heard int, with ...func(*observer)) *observer {
		o := &observer{key: fmt.Sprintf("vm-%02d", n), name: fmt.Sprintf("vm-%02d", n), lastHeard: at(heard), heardHere: at(heard),
			interval: 100 * time.Second}
		for _, f := range with {
			f(o)
		}
		return o
	}
	many := func(n int, heard func(n int) int, with ...func(*observer)) (all []*observer) {
		for i := range n {
			all = append(all, vm(i, heard(i), with...))
		}
		return all
	}
	told := func(heard int, all ...int) map[string]time.Time {
		m := map[string]time.Time{}
		for _, n := range all {
			m[streams.ShortHash(vm(n, 0).key)] = at(heard)
		}
		return m
	}
	left := func(o *observer) { o.stopped = true }
	excused := func(o *observer) { o.excused = true }
	none := func(o *observer) { o.interval = 0 }
	quick := func(o *observer) { o.interval = 10 * time.Second }
	ended := func(s int) func(*observer) { return func(o *observer) { o.eventEnded = at(s) } }
	back := func(s int) func(*observer) { return func(o *observer) { o.backSince = at(s) } }
	day := int(ForgetVM / time.Second)
	for _, tt := range []struct {
		name   string
		vms    []*observer
		told   map[string]time.Time
		clear  int
		now    int
		silent string // messages, with | between them
		back   string
		left   int // VMs that are remembered as silent
	}{
		{name: "all is well", vms: many(3, func(int) int { return 1000 }), now: 1200},
		{name: "not yet", vms: []*observer{vm(1, 0)}, now: 299},
		{name: "silent, but others may follow", vms: []*observer{vm(1, 0)}, now: 319},
		{name: "silent", vms: []*observer{vm(1, 0)}, now: 320, silent: "vm-01", left: 1},
		{name: "a quick one, a minute at least", vms: []*observer{vm(1, 0, quick)}, now: 69},
		{name: "a quick one", vms: []*observer{vm(1, 0, quick)}, now: 70, silent: "vm-01", left: 1},
		{name: "told once", vms: []*observer{vm(1, 0)}, told: told(0, 1), now: 900, left: 1},
		{name: "ten are told one by one", vms: many(10, func(n int) int { return n }), now: 329, left: 10,
			silent: "vm-00|vm-01|vm-02|vm-03|vm-04|vm-05|vm-06|vm-07|vm-08|vm-09"},
		{name: "eleven within 20 s are one message", vms: many(11, func(n int) int { return n * 2 }), now: 320, left: 11,
			silent: "vm-00 vm-01 vm-02 vm-03 vm-04 vm-05 vm-06 vm-07 vm-08 vm-09 vm-10"},
		{name: "eleven, the last 20 s after the first", vms: many(11, func(n int) int { return n * 2 }), now: 319},
		{name: "who will be silent isn't told with those that are", vms: append(many(1, func(int) int { return 0 }), vm(5, 100)),
			now: 320, silent: "vm-00", left: 1},
		{name: "it said that it stops", vms: []*observer{vm(1, 0, left)}, now: 900},
		{name: "Azure said why", vms: []*observer{vm(1, 0, excused)}, now: 900},
		{name: "it sends no heartbeats", vms: []*observer{vm(1, 0, none)}, now: 900},
		{name: "its event is over, so it should be back soon", vms: []*observer{vm(1, 0, ended(600))}, now: 900},
		{name: "its event is over, and it isn't back", vms: []*observer{vm(1, 0, ended(600))}, now: 920, silent: "vm-01", left: 1},
		{name: "this relay has just begun to look", vms: []*observer{vm(1, 0)}, clear: 800, now: 1100},
		{name: "this relay looks for long enough", vms: []*observer{vm(1, 0)}, clear: 800, now: 1120, silent: "vm-01", left: 1},
		{name: "forgotten before anybody could be told", vms: []*observer{vm(1, 0)}, clear: day, now: day + 400},
		{name: "forgotten after it was told", vms: []*observer{vm(1, 0)}, told: told(0, 1), now: day},
		{name: "not forgotten yet", vms: []*observer{vm(1, 0)}, told: told(0, 1), now: day - 1, left: 1},
		{name: "back, but others may follow", vms: []*observer{vm(1, 900, back(900))}, told: told(0, 1), now: 919, left: 1},
		{name: "back", vms: []*observer{vm(1, 910, back(900))}, told: told(0, 1), now: 920, back: "vm-01"},
		{name: "eleven are back", vms: many(11, func(int) int { return 950 }, back(900)),
			told: told(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), now: 960,
			back: "vm-00 vm-01 vm-02 vm-03 vm-04 vm-05 vm-06 vm-07 vm-08 vm-09 vm-10"},
		{name: "gone for good after it was silent", vms: []*observer{vm(1, 0, excused)}, told: told(0, 1), now: 900, left: 1},
		{name: "a clock that was set back", vms: []*observer{vm(1, 900)}, now: 0},
		{name: "a server's clock that is an hour behind", vms: []*observer{vm(1, 900, func(o *observer) { o.lastHeard = at(-2700) })},
			now: 1000},
		{name: "a server's clock that is an hour ahead", vms: []*observer{vm(1, 0, func(o *observer) { o.lastHeard = at(3600) })},
			now: 320, silent: "vm-01", left: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := silenceRecord{Silent: tt.told}
			next, silent, back := s.decide(tt.vms, at(tt.clear), at(tt.now))
			words := func(list [][]*observer) string {
				var all []string
				for _, vms := range list {
					var names []string
					for _, o := range vms {
						names = append(names, o.name)
					}
					all = append(all, strings.Join(names, " "))
				}
				return strings.Join(all, "|")
			}
			if got := words(silent); got != tt.silent {
				t.Errorf("told as silent: %q, want %q", got, tt.silent)
			}
			if got := words(back); got != tt.back {
				t.Errorf("told as back: %q, want %q", got, tt.back)
			}
			if got := len(next.Silent); got != tt.left {
				t.Errorf("%d are remembered as silent, want %d", got, tt.left)
			}
			if n := len(s.Silent); n != len(tt.told) {
				t.Errorf("what was remembered before was changed")
			}
			again, silent, back := next.decide(tt.vms, at(tt.clear), at(tt.now))
			if len(silent)+len(back) > 0 || len(again.Silent) != len(next.Silent) {
				t.Errorf("told again: %q and %q", words(silent), words(back))
			}
		})
	}
}

// Of more silent VMs than are remembered, those that were heard first are told, and the others when there is room.
func TestSilentVMsAreBounded(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	var all []*observer
	for n := range maxSilent + 5 {
		name := fmt.Sprintf("vm-%05d", n)
		heard := start.Add(-time.Duration(n)*time.Millisecond - 1)
		all = append(all, &observer{key: name, name: name, lastHeard: heard, heardHere: heard, interval: time.Minute})
	}
	now := start.Add(time.Hour)
	s, silent, _ := silenceRecord{}.decide(all, start, now)
	if len(silent) != 1 || len(silent[0]) != maxSilent || len(s.Silent) != maxSilent {
		t.Fatalf("%d messages, %d remembered, want one of %d", len(silent), len(s.Silent), maxSilent)
	}
	const forMessages = 100 << 10
	if body, err := json.Marshal(s); err != nil || len(body) > 1<<20-forMessages {
		t.Errorf("the record has %d bytes (%v), want at most %d", len(body), err, 1<<20-forMessages)
	}
	if slices.ContainsFunc(silent[0], func(o *observer) bool { return o.name == "vm-00000" }) {
		t.Error("the one that was heard last is told first")
	}
	if _, silent, back := s.decide(all, start, now); len(silent)+len(back) > 0 {
		t.Errorf("%d messages more while there is no room", len(silent)+len(back))
	}
}

// An event whose end nobody told is over after a day if it deletes its VM, also for a relay that hears no heartbeats.
func TestTheStatusEndsEventsWhoseEndWasMissed(t *testing.T) {
	t.Parallel()
	f, now := New(Options{}), time.Now()
	for _, typ := range []string{"Preempt", "Reboot"} {
		f.events[typ] = &azureEvent{latest: imds.Event{ID: typ, Type: typ}, lastChange: now.Add(-ForgetVM - time.Second)}
	}
	if open := f.OpenEvents(now); len(open) != 1 || open[0].Known.Type != "Reboot" {
		t.Errorf("open are %v, want the Reboot", open)
	}
}

// What is left out because there are too many VMs is said.
func TestTooManyVMsAreSaid(t *testing.T) {
	t.Parallel()
	f := New(Options{})
	if got := f.Warnings(); len(got) > 0 {
		t.Errorf("of nothing it warns: %q", got)
	}
	f.silent = map[string]time.Time{}
	for n := range maxVMs {
		f.vms[fmt.Sprint(n)] = &vm{}
		if n < maxSilent {
			f.silent[fmt.Sprint(n)] = time.Now()
		}
	}
	if f.addVM("web", "one-more", &vm{}) {
		t.Error("one more VM is watched")
	}
	want := []string{
		"20000 VMs are silent, and a relay remembers no more; nobody hears of others before some of them are back",
		"there are more VMs than a relay watches, which is 200000; nobody hears when one that is left out falls silent",
	}
	if got := f.Warnings(); !slices.Equal(got, want) {
		t.Errorf("it warns %q, want %q", got, want)
	}
}
