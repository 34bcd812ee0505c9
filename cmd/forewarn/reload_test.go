package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// Repeated reloads during a burst of events, some of them with mistakes, lose no change and reorder none. A sink keeps
// its backlog if it is removed for a while or gets another destination. A mistake is reported, and the old settings
// stay in force. The backlog of a removed sink is shown as orphaned.
func TestReloadUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGHUP; the story of the service reloads there")
	}
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	moves, leaves, other := hearing(t), hearing(t), hearing(t)
	dir := t.TempDir()
	r := &reloaded{t: t, config: filepath.Join(dir, "forewarn.yaml"), asked: filepath.Join(dir, "asked.yaml"),
		log: filepath.Join(dir, "log")}
	head := fmt.Sprintf("imds: {endpoint: %q, interval: 100ms}\nstate: %s\nlisten: \"\"\nsinks:\n", azure.URL,
		filepath.Join(dir, "state"))
	stays := fmt.Sprintf("  - {name: stays, only: {vms: all}, file: {path: %s}}\n", filepath.Join(dir, "audit.jsonl"))
	moved := func(n int) string {
		return fmt.Sprintf("  - {name: moves, timeout: 5s, webhook: {url: %q}}\n", fmt.Sprint(moves.url, "/", n))
	}
	left := fmt.Sprintf("  - {name: leaves, timeout: 5s, webhook: {url: %q}}\n", leaves.url)
	renamed := strings.NewReplacer("leaves", "other", leaves.url, other.url).Replace(left)

	r.write(head + stays + moved(0) + left)
	if err := os.WriteFile(r.asked, []byte(head+stays), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(r.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	fw := forewarn(t, "run", "--config", r.config)
	fw.Stderr = log
	if err := fw.Start(); err != nil {
		t.Fatal(err)
	}
	defer fw.Wait()
	defer fw.Process.Kill()
	r.process = fw.Process
	polled := func() { // another two polls have begun: what stood in the document was seen and committed
		for before := documents(azure.Requests()); documents(azure.Requests()) < before+2; time.Sleep(time.Millisecond) {
			if t.Context().Err() != nil {
				return
			}
		}
	}
	polled()

	// Every step moves five events on by one change each.
	var want []string
	steps := 9
	if systemtest.Whole() {
		steps = 24
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for step := range steps {
			for i := range 5 {
				id := eventID(fmt.Sprint(step/3, "/", i))
				switch step % 3 {
				case 0:
					azure.Schedule(imdstest.Event{ID: id, Type: "Reboot"})
				case 1:
					azure.Start(id)
				case 2:
					azure.End(id)
				}
				want = append(want, id+"-"+[]string{"scheduled", "started", "vanished"}[step%3])
			}
			polled()
		}
	}()
	reloads := 0
	for busy := true; busy; reloads++ {
		n := reloads / 6
		switch reloads % 6 {
		case 0: // a sink is gone, another has a new destination
			r.take(head + stays + moved(n))
		case 1: // it is there under another name
			r.take(head + stays + moved(n) + renamed)
		case 2: // a key that is unknown
			r.refuse(head+stays+"  - {nmae: wrong}\n", "unknown key")
		case 3: // it returns under its own
			r.take(head + stays + moved(n) + left)
		case 4: // not even YAML
			r.refuse(head+stays+"  - {name: [\n", "unterminated list")
		case 5: // in another order
			r.take(head + left + moved(n) + stays)
		}
		select {
		case <-over:
			busy = false
		default:
		}
	}

	// One change is pending when its sink goes: it is orphaned with it, and heard when both are back.
	r.take(head + stays + moved(0) + left)
	pending := func() (n int) { // without what waits for the other name to come back
		for _, s := range r.status().Sinks {
			if s.State != bridge.SinkOrphaned {
				n += s.Pending
			}
		}
		return n
	}
	r.until("nothing pending", func() bool { return pending() == 0 })
	if err := leaves.answer("503"); err != nil {
		t.Fatal(err)
	}
	last := eventID("last")
	azure.Schedule(imdstest.Event{ID: last, Type: "Reboot"})
	want = append(want, last+"-scheduled")
	r.until("an attempt", func() bool { return slices.Contains(leaves.seen(), last+"-scheduled") })
	r.take(head + stays + moved(0))
	if s := r.sink("leaves"); s.State != bridge.SinkOrphaned || s.Pending != 1 {
		t.Errorf("a sink that is gone is %q with %d pending, want %s with 1", s.State, s.Pending, bridge.SinkOrphaned)
	}
	if err := leaves.answer("up"); err != nil {
		t.Fatal(err)
	}
	for range 5 { // more often than they can be read
		_ = signalProcess(fw.Process, "HUP")
	}
	r.write(head + stays + moved(0) + left + renamed)
	_ = signalProcess(fw.Process, "HUP")
	r.until("what was pending", func() bool { return slices.Contains(leaves.accepted(), last+"-scheduled") })
	if s := r.sink("leaves"); s.State == bridge.SinkOrphaned {
		t.Errorf("a sink that returned is %q", s.State)
	}
	r.until("nothing pending", func() bool { return pending() == 0 })

	var histories []bridge.EventHistory
	r.ask(&histories, "history", "-o", "json")
	if err := signalProcess(fw.Process, "TERM"); err != nil {
		t.Fatal(err)
	}
	if err := fw.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var filed []string
	for line := range strings.Lines(string(text)) {
		var ce struct{ ID string }
		if err := json.Unmarshal([]byte(line), &ce); err != nil {
			t.Errorf("the file has a broken line: %.200q", line)
		}
		filed = append(filed, ce.ID)
	}
	judge(t, "the file that stayed", filed, want)
	judge(t, "the webhook that moved", moves.accepted(), want)

	// A sink that comes and goes gets the changes of its times.
	told := map[string][]string{}
	for _, l := range histories {
		for _, c := range l.Changes {
			for _, d := range c.Deliveries {
				if d.State != "accepted" {
					t.Errorf("%s is %s %s for %s, want it accepted", c.ID, d.State, d.Reason, d.Route)
				}
				told[d.Route] = append(told[d.Route], c.ID)
			}
		}
	}
	judge(t, "the webhook that left", leaves.accepted(), told["leaves"])
	judge(t, "the webhook under another name", other.accepted(), told["other"])
	t.Logf("%d reloads, %d changes; heard by the one that stayed %d times, that moved %d, that left %d, by its other name %d",
		reloads, len(want), len(filed), len(moves.accepted()), len(leaves.accepted()), len(other.accepted()))
	if t.Failed() {
		logged, _ := os.ReadFile(r.log)
		t.Logf("the log:\n%s", logged)
	}
}

func hearing(t *testing.T) *receiver {
	t.Helper()
	r, err := newReceiver()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

// reloaded is a running forewarn whose settings are changed.
type reloaded struct {
	t       *testing.T
	config  string
	asked   string // right settings, with which commands find it
	log     string
	process *os.Process
	results int // of reloads, so far
}

func (r *reloaded) write(settings string) {
	r.t.Helper()
	if err := os.WriteFile(r.config+".new", []byte(settings), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.config+".new", r.config); err != nil {
		r.t.Fatal(err)
	}
}

// reload has the settings read, and returns the line of the log that says what came of it.
func (r *reloaded) reload(settings string) (line string) {
	r.t.Helper()
	r.write(settings)
	if err := signalProcess(r.process, "HUP"); err != nil {
		r.t.Fatal(err)
	}
	r.results++
	r.until("a word about the reload", func() bool {
		text, _ := os.ReadFile(r.log)
		n := 0
		for l := range strings.Lines(string(text)) {
			if strings.Contains(l, "settings reloaded") || strings.Contains(l, "settings not reloaded") {
				n, line = n+1, l
			}
		}
		return n == r.results
	})
	return line
}

// take reloads settings that must be taken.
func (r *reloaded) take(settings string) {
	r.t.Helper()
	if line := r.reload(settings); !strings.Contains(line, "settings reloaded") {
		r.t.Fatalf("got %s, want these settings taken:\n%s", line, settings)
	}
	if got := r.status().Settings.LastError; got != "" {
		r.t.Errorf("after a reload lastError is %q, want none", got)
	}
}

// refuse reloads settings that must be refused for a reason that both the log and the status give.
func (r *reloaded) refuse(settings, reason string) {
	r.t.Helper()
	before := r.status()
	line := r.reload(settings)
	after := r.status()
	if !strings.Contains(line, "the old ones stay in force") || !strings.Contains(line, reason) {
		r.t.Errorf("got %s, want it to say that the old settings stay, because of %q", line, reason)
	}
	if !strings.Contains(after.Settings.LastError,
		reason) || after.Settings.Hash != before.Settings.Hash || len(after.Sinks) < len(before.Sinks) {
		r.t.Errorf("settings are %+v with %d sinks, want %s and %d as before, and the error %q",
			after.Settings, len(after.Sinks), before.Settings.Hash, len(before.Sinks), reason)
	}
}

func (r *reloaded) until(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(r.log)
			r.t.Fatalf("waited in vain for %s; the log:\n%s", what, text)
		}
	}
}

// ask takes what a command prints as JSON.
func (r *reloaded) ask(v any, args ...string) {
	r.t.Helper()
	out, err := forewarn(r.t, append(args, "--config", r.asked)...).Output()
	if err == nil {
		err = json.Unmarshal(out, v)
	}
	if err != nil {
		r.t.Fatalf("%v: %v", args, err)
	}
}

func (r *reloaded) status() (s bridge.Status) {
	r.t.Helper()
	r.ask(&s, "status", "-o", "json")
	return s
}

func (r *reloaded) sink(name string) bridge.SinkStatus {
	r.t.Helper()
	sinks := r.status().Sinks
	i := slices.IndexFunc(sinks, func(s bridge.SinkStatus) bool { return s.Name == name })
	if i < 0 {
		r.t.Fatalf("status has no sink %s: %+v", name, sinks)
	}
	return sinks[i]
}
