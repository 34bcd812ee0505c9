package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// A document that changes wholesale again and again, reloads meanwhile, and destinations of which two are slow and one
// never answers: those that are well hear the last state of every event, in order and once. When the others are back,
// they get all that was kept for them, and what was given up is counted.
//
// FOREWARN_LOAD=10000x60 is the long form: so many events, and so many documents, one a second.
func TestADocumentThatChangesWholesaleLosesNothing(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	events, versions, every := 150, 5, 300*time.Millisecond
	if long := os.Getenv("FOREWARN_LOAD"); long != "" {
		if _, err := fmt.Sscanf(long, "%dx%d", &events, &versions); err != nil {
			t.Fatalf("FOREWARN_LOAD=%s: want EVENTSxDOCUMENTS", long)
		}
		every = time.Second
	}
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	hooks := map[string]*receiver{}
	urls := map[string]string{}
	for _, name := range []string{"well", "also-well", "slow", "slower", "silent"} {
		hooks[name] = hearing(t)
		urls[name] = hooks[name].url
	}
	delay := make(chan struct{}) // closed when the slow ones are slow no more
	for name, wait := range map[string]time.Duration{"slow": 50 * time.Millisecond, "slower": 500 * time.Millisecond} {
		slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-delay:
			case <-time.After(wait):
			}
			hooks[name].ServeHTTP(w, r)
		}))
		t.Cleanup(slow.Close)
		urls[name] = slow.URL
	}
	if err := hooks["silent"].answer("hang"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, audit := filepath.Join(dir, "forewarn.yaml"), filepath.Join(dir, "audit.jsonl")
	settings := fmt.Sprintf("imds: {endpoint: %q, interval: 100ms}\nstate: %s\nlisten: \"\"\nsinks:\n"+
		"  - {name: audit, bridge: none, only: {vms: all}, file: {path: %s}}\n", azure.URL, filepath.Join(dir, "state"), audit)
	for name, url := range urls {
		timeout := time.Minute // an answer that only a busy machine delays is no failure, after which attempts are minutes apart
		if name == "silent" {
			timeout = 5 * time.Second
		}
		settings += fmt.Sprintf("  - {name: %s, bridge: none, only: {vms: all}, timeout: %s, webhook: {url: %q}}\n", name, timeout, url)
	}
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	fw := forewarn(t, "run", "--config", config)
	fw.Stderr = &log
	fw.Env = append(fw.Environ(), "GOMEMLIMIT=384MiB") // as the unit has it
	if err := fw.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() { _ = fw.Process.Kill(); _ = fw.Wait() }
	defer func() { stop() }()
	peak := peakOf(t, fw.Process.Pid)
	for deadline := time.Now().Add(3 * patience); documents(azure.Requests()) == 0; { // before it polls, SIGHUP may end it
		if time.Now().After(deadline) {
			t.Fatal("it does not poll")
		}
		time.Sleep(10 * time.Millisecond)
	}

	last := map[string]string{} // NotBefore of each event in the last document, as Azure writes it
	for n := range versions {
		last = map[string]string{}
		list := make([]map[string]any, 0, events)
		begins := time.Now().Add(2*time.Hour + time.Duration(n)*time.Minute).UTC().Format(http.TimeFormat)
		for i := range events {
			id := eventID(fmt.Sprint("event ", i))
			if i%10 == 0 { // some end, and others come
				id = eventID(fmt.Sprint("event ", i, " of document ", n))
			}
			last[id] = begins
			list = append(list, map[string]any{"EventId": id, "EventStatus": "Scheduled", "EventType": "Reboot",
				"ResourceType": "VirtualMachine", "Resources": []string{"vm-0"}, "EventSource": "Platform", "NotBefore": begins,
				"Description": "Host server is undergoing maintenance.", "DurationInSeconds": 9})
		}
		document, err := json.Marshal(map[string]any{"DocumentIncarnation": 100 + n, "Events": list})
		if err != nil {
			t.Fatal(err)
		}
		azure.SetDocument(document)
		time.Sleep(every) // a document stands for so long
		if runtime.GOOS != "windows" {
			_ = signalProcess(fw.Process, "HUP")
		}
	}

	await := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(3*patience + time.Duration(events*versions)*5*time.Millisecond); !ok(); {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not in time", what)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	for _, name := range []string{"well", "also-well"} {
		await(name+" hears the last document", func() bool { return heardAll(hooks[name], last) })
	}
	close(delay)
	if err := hooks["silent"].answer("up"); err != nil {
		t.Fatal(err)
	}
	for name := range urls {
		await(name+" hears the last document when it is back", func() bool { return heardAll(hooks[name], last) })
	}
	await("the file has the last document", func() bool {
		text, _ := os.ReadFile(audit)
		return bytes.Count(text, []byte("\n")) >= len(hooks["well"].accepted())
	})
	if most := peak(); most > 0 {
		t.Logf("%d events, %d documents: %d MiB of its own at the peak, %d deliveries to a destination that is well", events,
			versions, most, len(hooks["well"].accepted()))
		if most > 404 { // the unit allows 512, of which the mapped outbox takes none that must be kept
			t.Errorf("it had %d MiB of its own, more than fits in what the unit allows", most)
		}
	}
	_ = signalProcess(fw.Process, "TERM")
	_ = fw.Wait()
	stop = func() {}

	dropped := 0 // dead letters, for want of room
	for _, m := range regexp.MustCompile(`oldest dead letters dropped.* dropped=(\d+)`).FindAllStringSubmatch(log.String(), -1) {
		n, _ := strconv.Atoi(m[1])
		dropped += n
	}
	letters := forewarn(t, "outbox", "list", "--state", "dead", "--config", config, "-o", "json")
	listed, err := letters.Output()
	if err != nil {
		t.Fatal(err)
	}
	want := loggedChanges(log.Bytes())
	if len(want) < 2*events {
		t.Errorf("the log has %d changes, of %d events that all changed more than once", len(want), events)
	}
	lines, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	inFile := map[string]bool{}
	for line := range bytes.Lines(lines) {
		var ce struct{ ID string }
		if json.Unmarshal(line, &ce) == nil {
			inFile[ce.ID] = true
		}
	}
	for _, id := range want {
		if !inFile[id] {
			t.Errorf("the file lacks %s", id)
		}
	}
	for name, h := range hooks {
		judgeTimes(t, name, h)
		has := map[string]int{}
		for _, id := range h.accepted() {
			has[id]++
		}
		missing, repeated := 0, 0
		for _, id := range want {
			if has[id] == 0 && !strings.Contains(string(listed), id) {
				missing++
			}
		}
		for _, n := range has {
			repeated += n - 1
		}
		t.Logf("%s: of %d changes %d are neither accepted nor kept as dead letters", name, len(want), missing)
		if well := strings.HasSuffix(name, "well"); well && missing > 0 || missing > dropped {
			t.Errorf("%s lacks %d CloudEvents, and %d dead letters were dropped", name, missing, dropped)
		}
		if repeated > versions*32 { // an attempt that a reload interrupts is made again
			t.Errorf("%s got %d CloudEvents again", name, repeated)
		}
	}
}

// loggedChanges returns the ids of the changes that the log says were found, and so were committed.
func loggedChanges(log []byte) (ids []string) {
	for line := range bytes.Lines(log) {
		if _, rest, ok := bytes.Cut(line, []byte(" id=")); ok && bytes.Contains(line, []byte(`msg="azure event"`)) {
			id, _, _ := bytes.Cut(bytes.TrimSpace(rest), []byte(" "))
			ids = append(ids, string(id))
		}
	}
	return ids
}

// peakOf notes how much memory of its own a process has, anonymous memory, until peak is asked for the most of it, in MiB.
// What is resident beside it is the mapped files, which the system can drop. On other systems it is 0.
func peakOf(t *testing.T, pid int) (peak func() int) {
	if runtime.GOOS != "linux" {
		return func() int { return 0 }
	}
	over, most := make(chan struct{}), make(chan int)
	go func() {
		defer close(most)
		n := 0
		for {
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if m := regexp.MustCompile(`RssAnon:\s+(\d+)`).FindSubmatch(status); m != nil {
				kib, _ := strconv.Atoi(string(m[1]))
				n = max(n, kib>>10)
			}
			select {
			case <-over:
				most <- n
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	stop := sync.OnceFunc(func() { close(over) })
	t.Cleanup(func() { stop(); <-most })
	return func() int { stop(); return <-most }
}

// heardAll reports whether the last that was heard of each event is its time in the last document.
func heardAll(h *receiver, last map[string]string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.bodies) < len(last) {
		return false
	}
	left := len(last)
	seen := map[string]bool{}
	for n := len(h.bodies) - 1; n >= 0 && left > 0; n-- {
		ce := tellOf(h.bodies[n])
		if seen[ce.Subject] {
			continue
		}
		seen[ce.Subject] = true
		if want, ok := last[ce.Subject]; ok {
			if at, err := time.Parse(http.TimeFormat, want); err != nil || !at.Equal(ce.NotBefore) {
				return false
			}
			left--
		}
	}
	return left == 0
}

// A telling is what a CloudEvent says of an Azure event.
type telling struct {
	ID        string
	Subject   string
	Time      time.Time
	NotBefore time.Time `json:"aznotbefore"`
}

func tellOf(body []byte) (ce telling) {
	_ = json.Unmarshal(body, &ce)
	return ce
}

// judgeTimes fails the test if an event's CloudEvents came in another order than they were made in.
func judgeTimes(t *testing.T, who string, h *receiver) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	latest := map[string]telling{}
	first := map[string]bool{}
	for _, body := range h.bodies {
		ce := tellOf(body)
		if first[ce.ID] {
			continue
		}
		first[ce.ID] = true
		if was := latest[ce.Subject]; ce.Time.Before(was.Time) {
			t.Errorf("%s heard %s of %v after %s of %v", who, ce.ID, ce.Time, was.ID, was.Time)
		}
		latest[ce.Subject] = ce
	}
}
