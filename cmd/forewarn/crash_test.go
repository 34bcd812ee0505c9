package main

import (
	"bytes"
	"cmp"
	"errors"
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
// Changes come in waves, each of as many events as FOREWARN_KILL_WAVE says. They count when a poll carried an
// If-None-Match, because that is the ETag of a document that is committed; until then the document stays as it is.
//
// Every 50 rounds, every five of waves, all is delivered and judged, and the next rounds begin with an empty record.
//
// With FOREWARN_DISK, the directory in which .ci/tools/powerloss mounted a disk, every kill is a power loss, which takes
// what was not synced.
func TestKillAtAnyMomentLosesNothing(t *testing.T) {
	t.Parallel()
	rounds, wave := fromEnv(t, "FOREWARN_KILL_ROUNDS", 10), fromEnv(t, "FOREWARN_KILL_WAVE", 1)
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
	disk := cmp.Or(os.Getenv("FOREWARN_DISK"), dir)
	audit := filepath.Join(disk, "audit.jsonl")
	config := filepath.Join(dir, "forewarn.yaml")
	err = os.WriteFile(config, fmt.Appendf(nil, `
imds: {endpoint: %q, interval: 100ms}
state: %s
listen: ""
sinks:
  - {name: hook, webhook: {url: %q}}
  - {name: audit, only: {vms: all}, file: {path: %s}}
`, azure.URL, filepath.Join(disk, "var", "state"), hook.url, audit), 0o600)
	if err != nil {
		t.Fatal(err)
	}

	var want []string // ids in the order in which they became true
	var open []int    // waves
	state := map[int]string{}
	n := 0
	step := func() {
		at, next := 0, ""
		switch i := len(open); {
		case i == 0 || i < 4 && random.IntN(2) == 0:
			n++
			open = append(open, n)
			at, next = i, "scheduled"
		default:
			at = random.IntN(i)
			next = map[string]string{"scheduled": "started", "started": "vanished"}[state[open[at]]]
		}
		state[open[at]] = next
		for e := range wave {
			id := eventID(fmt.Sprint("event ", open[at], " ", e))
			switch next {
			case "scheduled":
				azure.Schedule(imdstest.Event{ID: id, Type: "Reboot"})
			case "started":
				azure.Start(id)
			case "vanished":
				azure.End(id)
			}
			want = append(want, id+"-"+next)
		}
		if next == "vanished" {
			open = append(open[:at:at], open[at+1:]...)
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
		if random.IntN(2) == 0 {
			power(t, "power-loss-ahead")
		}
		fw := forewarn(t, "run", "--config", config)
		fw.Stderr = &log
		start := time.Now()
		if err := fw.Start(); err != nil {
			t.Fatal(err)
		}
		// Somewhere between before the first poll and well after the second.
		deadline := start.Add(time.Duration(random.IntN(300)) * time.Millisecond * time.Duration(1+wave/500))
		for time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		kill(t, fw.Process)
		_ = fw.Wait()
		power(t, "power-loss")
		if !committed(azure, start) {
			settleDown(t, azure, config, &log, round)
		}
		most := 50
		if wave > 1 { // where no round is long enough to deliver, more would be pending than the outbox holds
			most = 5
		}
		if (round+1)%most != 0 && round+1 < rounds {
			continue
		}
		deliverAll(t, hook, audit, azure, config, &log, want)
		heard, torn := filed(t, audit)
		switch {
		case len(torn) > most:
			t.Errorf("the file has %d half lines of %d kills", len(torn), most)
		// A kill ends a write where a page of the file ends: the half line is closed, and comes again. A power loss tears
		// lines anywhere.
		case os.Getenv("FOREWARN_DISK") == "":
			for _, line := range torn {
				if line.end%int64(os.Getpagesize()) != 0 {
					t.Errorf("the file has a broken line before byte %d: %.200q", line.end, line.text)
				}
			}
		}
		judge(t, "webhook", hook.accepted(), want)
		judge(t, "file", heard, want)
		if at := bytes.Index(log.Bytes(), []byte("the outbox cannot be used")); at >= 0 {
			t.Errorf("the outbox's file did not open again: %.300s", log.Bytes()[at:])
		}
		t.Logf("%d rounds, of the last %d changes %d deliveries to the webhook, %d lines in the file and %d half ones, in %v",
			round+1, len(want), len(hook.accepted()), len(heard), len(torn), time.Since(began).Round(time.Millisecond))
		if t.Failed() {
			break
		}
		want = nil
		log.Reset()
		hook.forget()
		if err := os.Remove(audit); err != nil {
			t.Fatal(err)
		}
		syncPower(t)
	}
	if t.Failed() {
		_ = os.WriteFile(filepath.Join(os.TempDir(), "forewarn-crash.log"), log.Bytes(), 0o600)
		t.Logf("the log of these rounds is in %s", filepath.Join(os.TempDir(), "forewarn-crash.log"))
	}
}

// A tornLine is one of a file that is not whole. end is where in the file it ends, without the newline that closes it.
type tornLine struct {
	text string
	end  int64
}

// filed are the ids in a file, and the lines of it that are not whole. What a power loss took out of the middle of a line
// reads as zeros.
func filed(t *testing.T, path string) (ids []string, torn []tornLine) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	end := int64(0)
	for line := range strings.Lines(string(text)) {
		end += int64(len(line))
		_, rest, _ := strings.Cut(line, `"id":"`)
		if id, _, ok := strings.Cut(rest, `"`); ok && strings.HasSuffix(line, "}\n") && !strings.Contains(line, "\x00") {
			ids = append(ids, id)
		} else {
			torn = append(torn, tornLine{line, end - int64(len(line)-len(strings.TrimSuffix(line, "\n")))})
		}
	}
	return ids, torn
}

func kill(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Kill(); err != nil {
		t.Errorf("kill: %v", err)
	}
}

// power gives the disk of FOREWARN_DISK a command: power-loss takes what was not synced, power-loss-ahead makes it
// answer no more from some moment on. Without such a disk it does nothing.
func power(t *testing.T, command string) {
	t.Helper()
	if disk := os.Getenv("FOREWARN_DISK"); disk != "" {
		if err := os.Mkdir(filepath.Join(disk, command), 0o700); !errors.Is(err, syscall.ECANCELED) {
			t.Fatalf("the disk answers %v to %s", err, command)
		}
	}
}

// syncPower makes what the test itself did in the directory of FOREWARN_DISK outlive a power loss.
func syncPower(t *testing.T) {
	t.Helper()
	if disk := os.Getenv("FOREWARN_DISK"); disk != "" {
		dir, err := os.Open(disk)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		if err := dir.Sync(); err != nil {
			t.Fatal(err)
		}
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

// committed says whether what the document holds is on disk since then: a poll carried the ETag. The first poll of a
// process carries none; what comes before it is a poll of one that was killed, which was read late.
func committed(azure *imdstest.Running, since time.Time) bool {
	started := false
	for _, r := range azure.RequestsAfter(since) {
		if !strings.HasSuffix(r.Path, "/scheduledevents") {
			continue
		}
		if r.Header.Get("If-None-Match") == "" {
			started = true
		} else if started {
			return true
		}
	}
	return false
}

// settleDown runs until the document is committed, and kills again.
func settleDown(t *testing.T, azure *imdstest.Running, config string, log *bytes.Buffer, round int) {
	t.Helper()
	fw := forewarn(t, "run", "--config", config)
	fw.Stderr = log
	start := time.Now()
	if err := fw.Start(); err != nil {
		t.Fatal(err)
	}
	for !committed(azure, start) {
		if time.Since(start) > 4*patience {
			t.Fatalf("round %d: the document is not committed:\n%.10000s", round, log)
		}
		time.Sleep(time.Millisecond)
	}
	kill(t, fw.Process)
	_ = fw.Wait()
	power(t, "power-loss")
}

// deliverAll runs until the webhook and the file have everything, or nothing comes any more, and stops as an operator
// does.
func deliverAll(
	t *testing.T, hook *receiver, audit string, azure *imdstest.Running, config string, log *bytes.Buffer, want []string,
) {
	t.Helper()
	if err := hook.answer("up"); err != nil {
		t.Fatal(err)
	}
	fw := forewarn(t, "run", "--config", config)
	fw.Stderr = log
	start := time.Now()
	if err := fw.Start(); err != nil {
		t.Fatal(err)
	}
	all := func() bool {
		if missing(hook.accepted(), want) > 0 || !committed(azure, start) {
			return false
		}
		heard, _ := filed(t, audit)
		return missing(heard, want) == 0
	}
	const enough = 2 * time.Minute // without anything new
	before, last := 0, start
	for !all() && time.Since(last) < enough {
		if n := len(hook.accepted()); n != before {
			before, last = n, time.Now()
		}
		time.Sleep(10*time.Millisecond + time.Duration(len(want))*10*time.Microsecond) // it is much to look through
	}
	_ = signalProcess(fw.Process, "TERM")
	if err := fw.Wait(); err != nil {
		t.Errorf("the run that was stopped ended with %v", err)
	}
}

// fromEnv is a number from the environment.
func fromEnv(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
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
