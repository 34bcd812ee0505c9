package bridge_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
)

const (
	timelineSpeed = 120              // of Azure's time: a day takes twelve minutes and what steps wait
	timelineEach  = 30 * time.Minute // in which the events of one timeline are announced
)

// The real program, with its outbox on disk and sinks on real sockets, tells every change of the simulation's timelines
// to each sink once, in the order of its event, with the ids that the oracle works out. FOREWARN_TIMELINE_HOURS says
// how many hours of Azure's time are played, FOREWARN_TIMELINE_SEED which.
//
// Only Azure's time is quicker: when events come, change and end, and the notice they give. The program polls, waits,
// retries and writes in real time. So a step waits until the program has taken in the one before it (a poll has named
// its incarnation), and no change is too short to be seen. This doesn't show what a day does to timers, connections and
// memory, or what becomes of changes under the same incarnation, which take a minute to be seen: here each has a new
// one. There are no faults and no crashes.
func TestARealProgramTellsTheOraclesTimelines(t *testing.T) {
	hours, err := strconv.Atoi(os.Getenv("FOREWARN_TIMELINE_HOURS"))
	if err != nil || hours < 1 {
		t.Skip("takes half a minute an hour of Azure's time; FOREWARN_TIMELINE_HOURS=24 runs it")
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("FOREWARN_TIMELINE_SEED"); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("FOREWARN_TIMELINE_SEED=%d", seed)
	s := newTimelineSoak(t)
	steps := timelines(rand.New(rand.NewPCG(seed, 0)), time.Duration(hours)*time.Hour)
	began := time.Now()
	for len(steps) > 0 {
		n := slices.IndexFunc(steps, func(x step) bool { return x.at != steps[0].at })
		if n < 0 {
			n = len(steps)
		}
		time.Sleep(time.Until(began.Add(steps[0].at / timelineSpeed)))
		s.play(steps[:n])
		steps = steps[n:]
	}
	s.settle()
	s.judge()
	t.Logf("%d changes of %d events in %v", s.wanted, len(s.want), time.Since(began).Round(time.Second))
}

// timelines returns those of a simulation, one after the other, each with events of its own. What is after the end is
// left out.
func timelines(r *rand.Rand, length time.Duration) (steps []step) {
	for i := 0; time.Duration(i)*timelineEach < length; i++ {
		own := func(id string) string { return fmt.Sprintf("A%07X", i) + id[8:] }
		for _, x := range timeline(r, timelineEach) {
			switch act := x.act.(type) {
			case list:
				act.event.id = own(act.event.id)
				if act.event.notBefore >= 0 {
					act.event.notBefore += time.Duration(i) * timelineEach
				}
				x.act = act
			case unlist:
				x.act = unlist{own(act.id)}
			}
			x.at += time.Duration(i) * timelineEach
			if x.at < length {
				steps = append(steps, x)
			}
		}
	}
	slices.SortStableFunc(steps, func(x, y step) int { return cmp.Compare(x.at, y.at) })
	return steps
}

type timelineSoak struct {
	t       *testing.T
	azure   *azure
	server  *imdstest.Server
	oracle  truth
	beliefs map[string]belief
	want    map[string][]string // ids by event
	wanted  int
	audit   string
	ended   chan error
	program *exec.Cmd
	log     bytes.Buffer // read once the program has ended

	mu    sync.Mutex
	named string   // the incarnation that the last poll had
	heard [][]byte // by the webhook
}

func newTimelineSoak(t *testing.T) *timelineSoak {
	t.Helper()
	dir := t.TempDir()
	s := &timelineSoak{
		t: t, azure: newAzure(), server: imdstest.New(imdstest.Options{VMs: []string{"vm-0"}}), oracle: truth{named: yes},
		beliefs: map[string]belief{}, want: map[string][]string{}, audit: filepath.Join(dir, "audit.jsonl"),
		ended: make(chan error, 1),
	}
	s.server.SetDocument(s.azure.document())
	metadata := s.server.Metadata()
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/scheduledevents") {
			s.mu.Lock()
			s.named = strings.Trim(r.Header.Get("If-None-Match"), `"`)
			s.mu.Unlock()
		}
		metadata.ServeHTTP(w, r)
	}))
	t.Cleanup(cloud.Close)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.heard = append(s.heard, body.Bytes())
	}))
	t.Cleanup(hook.Close)

	binary, config := filepath.Join(dir, "forewarn"), filepath.Join(dir, "forewarn.yaml")
	if out, err := exec.Command("go", "build", "-o", binary, "../cmd/forewarn").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	err := os.WriteFile(config, fmt.Appendf(nil, `
imds: {endpoint: %q, interval: 100ms}
state: %s
listen: ""
sinks:
  - {name: hook, bridge: none, only: {vms: all}, webhook: {url: %q}}
  - {name: audit, bridge: none, only: {vms: all}, file: {path: %s}}
`, cloud.URL, filepath.Join(dir, "state"), hook.URL, s.audit), 0o600)
	must(t, err)
	s.program = exec.Command(binary, "run", "--config", config)
	s.program.Stderr = &s.log
	must(t, s.program.Start())
	go func() { s.ended <- s.program.Wait(); close(s.ended) }()
	t.Cleanup(func() {
		_ = s.program.Process.Kill()
		<-s.ended
		if t.Failed() {
			t.Logf("its log:\n%.10000s", s.log.Bytes())
		}
	})
	s.takenIn()
	return s
}

// takenIn waits until the program has what is listed now.
func (s *timelineSoak) takenIn() {
	s.t.Helper()
	s.until("the document is not taken in", func() bool { return s.named == strconv.Itoa(s.azure.incarnation) })
}

// until waits for what is true with the lock.
func (s *timelineSoak) until(otherwise string, done func() bool) {
	s.t.Helper()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		ok := done()
		s.mu.Unlock()
		switch {
		case ok:
			return
		case time.Since(began) > 2*time.Minute:
			s.t.Fatal(otherwise)
		}
	}
}

// play does steps of the same moment.
func (s *timelineSoak) play(steps []step) {
	s.t.Helper()
	for _, x := range steps {
		switch act := x.act.(type) {
		case list:
			e := act.event
			if e.notBefore >= 0 {
				e.notBefore = time.Since(epoch) + (e.notBefore-x.at)/timelineSpeed // which may have passed
			}
			s.azure.put(e, x.at, false)
			e = s.azure.events[e.id] // with its NotBefore as Azure writes it
			s.learn(e.id, &e)
		case unlist:
			if _, ok := s.azure.events[act.id]; ok {
				s.azure.remove(act.id, x.at)
				s.learn(act.id, nil)
			}
		case restyle:
			s.azure.other = !s.azure.other
			s.azure.changed(false)
		case reset:
			s.azure.incarnation = 0
			s.azure.changed(false)
		default:
			s.t.Fatalf("a timeline has %v", x)
		}
	}
	s.server.SetDocument(s.azure.document())
	s.takenIn()
}

// learn has the oracle work out what is to be told.
func (s *timelineSoak) learn(id string, now *azureEvent) {
	b, ok := s.beliefs[id]
	if !ok {
		b = belief{times: map[string]int{}}
	}
	b, changed := s.oracle.next(b, now, &answer{})
	if changed {
		s.want[id] = append(s.want[id], b.changes[len(b.changes)-1].id)
		s.wanted++
	}
	b.before = nil
	s.beliefs[id] = b
}

// settle waits until as much was told as there is to tell, and stops the program as an operator does.
func (s *timelineSoak) settle() {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(50 * time.Millisecond) {
		s.mu.Lock()
		n := len(s.heard)
		s.mu.Unlock()
		text, _ := os.ReadFile(s.audit)
		if n >= s.wanted && bytes.Count(text, []byte("\n")) >= s.wanted {
			break
		}
	}
	if err := s.program.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Error(err)
	}
	if err := <-s.ended; err != nil {
		s.t.Errorf("the program ended with %v", err)
	}
}

// judge fails the test unless each sink was told of each event what the oracle says, and nothing else.
func (s *timelineSoak) judge() {
	s.t.Helper()
	text, err := os.ReadFile(s.audit)
	must(s.t, err)
	lines := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	for sink, bodies := range map[string][][]byte{"webhook": s.heard, "file": lines} {
		got := map[string][]string{}
		for _, body := range bodies {
			var e struct{ ID string }
			if err := json.Unmarshal(body, &e); err != nil || len(e.ID) < 36 {
				s.t.Errorf("%s was told %.200q: %v", sink, body, err)
				continue
			}
			got[e.ID[:36]] = append(got[e.ID[:36]], e.ID)
		}
		for id, want := range s.want {
			if !slices.Equal(got[id], want) {
				s.t.Errorf("%s was told of %s\n%q\nwant\n%q", sink, id, got[id], want)
			}
			delete(got, id)
		}
		for id, ids := range got {
			s.t.Errorf("%s was told of %s, which never was: %q", sink, id, ids)
		}
	}
}
