package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
)

// kill -9 at random moments loses no change and reorders none, at a webhook that itself comes and goes and at a file.
// A change counts when Azure's document with it was answered and the same process polled once more, which it does only
// after it has committed what it saw; until then the document stays as it is.
func TestKillAtAnyMomentLosesNothing(t *testing.T) {
	rounds := 50
	if s := os.Getenv("FOREWARN_KILL_ROUNDS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("FOREWARN_KILL_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("FOREWARN_KILL_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	hook, err := newReceiver()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hook.close)
	dir := t.TempDir()
	audit := filepath.Join(dir, "audit.jsonl")
	config := filepath.Join(dir, "forewarn.yaml")
	err = os.WriteFile(config, fmt.Appendf(nil, `
imds: {endpoint: %q, interval: 100ms}
state: %s
listen: ""
sinks:
  - {name: hook, webhook: {url: %q}}
  - {name: audit, only: {vms: all}, file: {path: %s}}
`, azure.URL, filepath.Join(dir, "state"), hook.url, audit), 0o600)
	if err != nil {
		t.Fatal(err)
	}

	var want []string // ids in the order in which they became true
	var open []string // events, each with its state
	state := map[string]string{}
	n := 0
	step := func() {
		switch i := len(open); {
		case i == 0 || i < 4 && random.IntN(2) == 0:
			n++
			id := eventID(fmt.Sprint("event ", n))
			azure.Schedule(imdstest.Event{ID: id, Type: "Reboot"})
			open, state[id] = append(open, id), "scheduled"
			want = append(want, id+"-scheduled")
		default:
			at := random.IntN(i)
			id := open[at]
			if state[id] == "scheduled" {
				azure.Start(id)
				state[id] = "started"
				want = append(want, id+"-started")
				return
			}
			azure.End(id)
			open = append(open[:at:at], open[at+1:]...)
			want = append(want, id+"-vanished")
		}
	}

	var log bytes.Buffer
	began := time.Now()
	for round := range rounds {
		if random.IntN(3) == 0 {
			if err := hook.answer([]string{"up", "503", "refuse"}[random.IntN(3)]); err != nil {
				t.Fatal(err)
			}
		}
		step()
		fw := forewarn(t, "run", "--config", config)
		fw.Stderr = &log
		polls := len(azure.Requests())
		if err := fw.Start(); err != nil {
			t.Fatal(err)
		}
		// Somewhere between before the first poll and well after the second.
		deadline := time.Now().Add(time.Duration(random.IntN(300)) * time.Millisecond)
		for time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		kill(t, fw.Process)
		_ = fw.Wait()
		if documents(azure.Requests()[polls:]) < 2 {
			settleDown(t, azure, config, &log, round) // not surely seen: let one process see it for sure
		}
	}
	if err := hook.answer("up"); err != nil {
		t.Fatal(err)
	}
	fw := forewarn(t, "run", "--config", config)
	fw.Stderr = &log
	polls := len(azure.Requests())
	if err := fw.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for (missing(hook.accepted(), want) > 0 || documents(azure.Requests()[polls:]) < 2) && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	_ = fw.Process.Signal(syscall.SIGTERM)
	if err := fw.Wait(); err != nil {
		t.Errorf("the last run ended with %v", err)
	}
	text, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	var filed []string
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(line, `"id":"`)
		id, _, ok := strings.Cut(rest, `"`)
		if !ok || !strings.HasSuffix(line, "}\n") {
			t.Errorf("the file has a broken line: %.200q", line)
		}
		filed = append(filed, id)
	}
	judge(t, "webhook", hook.accepted(), want)
	judge(t, "file", filed, want)
	t.Logf("%d rounds, %d changes, %d deliveries to the webhook, %d lines in the file, in %v",
		rounds, len(want), len(hook.accepted()), len(filed), time.Since(began).Round(time.Millisecond))
	if t.Failed() {
		_ = os.WriteFile(filepath.Join(os.TempDir(), "forewarn-crash.log"), log.Bytes(), 0o600)
		t.Logf("the log of all rounds is in %s", filepath.Join(os.TempDir(), "forewarn-crash.log"))
	}
}

func kill(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Kill(); err != nil {
		t.Errorf("kill: %v", err)
	}
}

// documents counts the polls of the document.
func documents(requests []imdstest.Request) (n int) {
	for _, r := range requests {
		if strings.HasSuffix(r.Path, "/scheduledevents") {
			n++
		}
	}
	return n
}

// settleDown runs until the document was polled twice, and kills again.
func settleDown(t *testing.T, azure *imdstest.Running, config string, log *bytes.Buffer, round int) {
	t.Helper()
	fw := forewarn(t, "run", "--config", config)
	fw.Stderr = log
	before := len(azure.Requests())
	if err := fw.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	for documents(azure.Requests()[before:]) < 2 {
		if time.Now().After(deadline) {
			t.Fatalf("round %d: the endpoint is not polled:\n%s", round, log)
		}
		time.Sleep(time.Millisecond)
	}
	kill(t, fw.Process)
	_ = fw.Wait()
}

// missing counts the wanted ids that were not heard.
func missing(heard, want []string) (n int) {
	has := map[string]bool{}
	for _, id := range heard {
		has[id] = true
	}
	for _, id := range want {
		if !has[id] {
			n++
		}
	}
	return n
}

// judge fails the test for a change that was not heard, that nobody made, or that was first heard after a later one of
// its event. Repeats with the same id are allowed after a crash.
func judge(t *testing.T, who string, heard, want []string) {
	t.Helper()
	place := map[string]int{}
	for i, id := range want {
		place[id] = i
	}
	last := map[string]int{} // by event
	first := map[string]bool{}
	for _, id := range heard {
		at, ok := place[id]
		if !ok {
			t.Errorf("%s heard %s, which never happened", who, id)
			continue
		}
		if first[id] {
			continue
		}
		first[id] = true
		event := id[:36]
		if before, ok := last[event]; ok && before > at {
			t.Errorf("%s heard %s after a later change", who, id)
		}
		last[event] = max(last[event], at)
	}
	for _, id := range want {
		if !first[id] {
			t.Errorf("%s never heard %s", who, id)
		}
	}
}
