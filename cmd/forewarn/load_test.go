package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
	"forewarn/cmd/forewarn/internal/control"
)

// A document that changes wholesale again and again, reloads meanwhile, and destinations of which two are slow and one
// never answers: those that are well hear the last state of every event, in order and once. When the others are back,
// they get all that was kept for them. Of what did not come to a sink the log says that the outbox had no room for it.
//
// FOREWARN_LOAD=10000x60 is the long form: so many events, and so many documents, one a second.
func TestADocumentThatChangesWholesaleLosesNothing(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	every := 300 * time.Millisecond
	events, versions, long := sizeOfLoad(t, 150, 5)
	if long {
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
	fw := underLoad(t, azure, config, settings)

	last := map[string]string{} // NotBefore of each event in the last document, as Azure writes it
	for n := range versions {
		var document []byte
		document, last = wholesale(t, events, n)
		azure.SetDocument(document)
		time.Sleep(every) // a document stands for so long
		fw.reload()
	}

	await := func(what string, ok func() bool) {
		t.Helper()
		fw.until(what, 3*patience+time.Duration(events*versions)*5*time.Millisecond, ok)
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
	t.Logf("%d events, %d documents, %d deliveries to a destination that is well", events, versions,
		len(hooks["well"].accepted()))
	log := fw.stop()

	want := loggedChanges(log)
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
	gaveUp := loggedOverflow(log)
	for _, id := range want {
		if !inFile[id] && !gaveUp["audit "+id] {
			t.Errorf("the file lacks %s", id)
		}
	}
	for name, h := range hooks {
		judgeTimes(t, name, h)
		has := map[string]int{}
		for _, id := range h.accepted() {
			has[id]++
		}
		missing, noRoom, repeated := 0, 0, 0
		for _, id := range want {
			switch {
			case has[id] > 0:
			case gaveUp[name+" "+id]:
				noRoom++
			default:
				missing++
			}
		}
		for _, n := range has {
			repeated += n - 1
		}
		t.Logf("%s: of %d changes %d are accepted, and the outbox had no room for %d", name, len(want), len(has), noRoom)
		if missing > 0 {
			t.Errorf("%s lacks %d CloudEvents of which the log does not say that there was no room", name, missing)
		}
		if repeated > versions*32 { // an attempt that a reload interrupts is made again
			t.Errorf("%s got %d CloudEvents again", name, repeated)
		}
	}
}

// Deliveries that an outage keeps back are made when the destinations are there again, under reloads: all that the log
// says was found, once under one id, and those of each event in order. FOREWARN_LOAD=5000x5 is the long form: so many
// events in so many documents, which are 54,000 deliveries.
func TestWhatAnOutageKeepsBackIsDelivered(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	events, versions, _ := sizeOfLoad(t, 150, 5)
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	hook, stream := hearing(t), newStream(t)
	if err := hook.answer("refuse"); err != nil {
		t.Fatal(err)
	}
	stream.stop()
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	fw := underLoad(t, azure, filepath.Join(dir, "forewarn.yaml"), fmt.Sprintf(`
imds: {endpoint: %q, interval: 100ms}
state: %s
listen: ""
sinks:
  - {name: hook, bridge: none, only: {vms: all}, timeout: 1m, webhook: {url: %q}}
  - {name: stream, bridge: none, only: {vms: all}, timeout: 1m, nats: {url: %q, provision: {stream: FOREWARN}}}
`, azure.URL, state, hook.url, stream.url))

	over := make(chan struct{})
	var reloads sync.WaitGroup
	reloads.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Second):
				fw.reload()
			}
		}
	})
	endReloads := sync.OnceFunc(func() { close(over); reloads.Wait() })
	defer endReloads()

	client := control.Client{Location: control.Location{State: state}, Log: slog.New(slog.DiscardHandler)}
	owes := func(n int) func() bool {
		return func() bool {
			status, err := client.Status(t.Context())
			return err == nil && status.Outbox.Pending == n
		}
	}

	gone := (events + 9) / 10 // how many events a document ends; as many are new in it
	pending := 0
	for n := range versions {
		document, _ := wholesale(t, events, n)
		azure.SetDocument(document)
		if pending += 2 * events; n > 0 {
			pending += 2 * gone
		}
		fw.until(fmt.Sprint("all of document ", n, " is pending"), 3*patience+time.Duration(events)*20*time.Millisecond,
			owes(pending))
	}
	if n := len(hook.seen()); n > 0 {
		t.Fatalf("the webhook that is away got %d requests", n)
	}

	began := time.Now()
	if err := hook.answer("up"); err != nil {
		t.Fatal(err)
	}
	stream.start(t)
	fw.until("all is delivered", 3*patience+time.Duration(pending)*20*time.Millisecond, owes(0))
	t.Logf("%d pending deliveries made in %v", pending, time.Since(began).Round(time.Millisecond))
	endReloads()
	log := fw.stop()

	want := loggedChanges(log)
	ids := slices.Compact(slices.Sorted(slices.Values(want)))
	if len(want) != pending/2 || len(ids) != len(want) {
		t.Errorf("the log has %d changes with %d ids, want %d", len(want), len(ids), pending/2)
	}
	judge(t, "webhook", hook.accepted(), want)
	judge(t, "stream", stream.ids(t), want)
	if n := bytes.Count(log, []byte(`msg="settings reloaded"`)); n == 0 && runtime.GOOS != "windows" {
		t.Error("the settings were never reloaded")
	} else {
		t.Logf("%d reloads", n)
	}
}

// sizeOfLoad is how many events a document has, and how many documents there are: those given, or FOREWARN_LOAD's.
func sizeOfLoad(t *testing.T, events, versions int) (int, int, bool) {
	t.Helper()
	long := os.Getenv("FOREWARN_LOAD")
	if long == "" {
		return events, versions, false
	}
	if _, err := fmt.Sscanf(long, "%dx%d", &events, &versions); err != nil {
		t.Fatalf("FOREWARN_LOAD=%s: want EVENTSxDOCUMENTS", long)
	}
	return events, versions, true
}

// wholesale is the n-th of documents that change wholesale, and the NotBefore of each of its events, as Azure writes it.
func wholesale(t *testing.T, events, n int) (document []byte, begins map[string]string) {
	t.Helper()
	begins = map[string]string{}
	list := make([]map[string]any, 0, events)
	notBefore := time.Now().Add(2*time.Hour + time.Duration(n)*time.Minute).UTC().Format(http.TimeFormat)
	for i := range events {
		id := eventID(fmt.Sprint("event ", i))
		if i%10 == 0 { // some end, and others come
			id = eventID(fmt.Sprint("event ", i, " of document ", n))
		}
		begins[id] = notBefore
		list = append(list, map[string]any{"EventId": id, "EventStatus": "Scheduled", "EventType": "Reboot",
			"ResourceType": "VirtualMachine", "Resources": []string{"vm-0"}, "EventSource": "Platform", "NotBefore": notBefore,
			"Description": "Host server is undergoing maintenance.", "DurationInSeconds": 9})
	}
	document, err := json.Marshal(map[string]any{"DocumentIncarnation": 100 + n, "Events": list})
	if err != nil {
		t.Fatal(err)
	}
	return document, begins
}

// A loaded is a forewarn that runs with the memory of its unit.
type loaded struct {
	*exec.Cmd
	t    *testing.T
	log  bytes.Buffer // to be read when it has ended
	peak func() int
}

// underLoad starts forewarn with these settings, and returns when it polls.
func underLoad(t *testing.T, azure *imdstest.Running, config, settings string) *loaded {
	t.Helper()
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	fw := &loaded{Cmd: forewarn(t, "run", "--config", config), t: t}
	fw.Stderr = &fw.log
	fw.Env = append(fw.Environ(), "GOMEMLIMIT=384MiB") // as the unit has it
	if err := fw.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = fw.Process.Kill(); _ = fw.Wait() })
	fw.peak = peakOf(t, fw.Process.Pid)
	for deadline := time.Now().Add(3 * patience); documents(azure.Requests()) == 0; { // before it polls, SIGHUP may end it
		if time.Now().After(deadline) {
			t.Fatal("it does not poll")
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fw
}

// reload has the settings read again, where there is such a signal.
func (fw *loaded) reload() {
	if runtime.GOOS != "windows" {
		_ = signalProcess(fw.Process, "HUP")
	}
}

func (fw *loaded) until(what string, patience time.Duration, ok func() bool) {
	fw.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			fw.t.Fatalf("%s: not in time", what)
		}
	}
}

// stop ends it as an operator does, fails the test if it had more memory than its unit has for it, and returns its log.
func (fw *loaded) stop() (log []byte) {
	fw.t.Helper()
	if most := fw.peak(); most > 0 {
		fw.t.Logf("%d MiB of its own at the peak", most)
		if most > 660 { // the unit allows 768, of which the mapped outbox takes none that must be kept
			fw.t.Errorf("it had %d MiB of its own, more than fits in what the unit allows", most)
		}
	}
	_ = signalProcess(fw.Process, "TERM")
	_ = fw.Wait()
	return fw.log.Bytes()
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

// loggedOverflow returns the deliveries that the log says the outbox had no room for, each as the sink, a space and the
// id.
func loggedOverflow(log []byte) map[string]bool {
	gaveUp := map[string]bool{}
	dead := regexp.MustCompile(`msg="delivery became a dead letter" key=\S+ sink=(\S+) id=(\S+) reason=overflow`)
	for _, m := range dead.FindAllSubmatch(log, -1) {
		gaveUp[string(m[1])+" "+string(m[2])] = true
	}
	return gaveUp
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
