package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"forewarn/bridge/imdstest"
)

// patience is how long anything may take before the run is given up.
const patience = 2 * time.Minute

var errSlow = errors.New("it took too long")

// A cloud is an emulated Azure that knows when it answered.
type cloud struct {
	*imdstest.Server
	url string

	waves int

	mu       sync.Mutex
	polls    int
	answered time.Time // the last answer about events with a body
	server   *http.Server
}

func newCloud() (*cloud, error) {
	c := &cloud{Server: imdstest.New(imdstest.Options{VMs: []string{"vm-0"}})}
	var err error
	c.url, c.server, err = serve(func(w http.ResponseWriter, r *http.Request) {
		c.Metadata().ServeHTTP(w, r)
		if strings.HasSuffix(r.URL.Path, "/scheduledevents") {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.polls++
			c.answered = time.Now() // before the answer leaves: who is quick posts before this function returns
		}
	})
	return c, err
}

func (c *cloud) state() (polls int, answered time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.polls, c.answered
}

// firstPoll waits until the program has polled.
func (c *cloud) firstPoll(p *program) error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if polls, _ := c.state(); polls > 0 {
			return nil
		}
		if p.ended() {
			break
		}
	}
	return fmt.Errorf("%s did not poll\n%s", p.cmd.Path, p.log.Bytes())
}

// wave has n events announced at once, and returns their EventIds.
func (c *cloud) wave(n int) (ids []string) {
	var events []map[string]any
	begins := time.Now().Add(2 * time.Hour).UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")
	for i := range n {
		id := fmt.Sprintf("%08X-%s", i, rand.Text()[:12])
		ids = append(ids, id)
		events = append(events, map[string]any{"EventId": id, "EventStatus": "Scheduled", "EventType": "Reboot",
			"ResourceType": "VirtualMachine", "Resources": []string{"vm-0"}, "NotBefore": begins, "EventSource": "Platform",
			"Description": "Host server is undergoing maintenance.", "DurationInSeconds": 9})
	}
	c.waves++
	document, err := json.Marshal(map[string]any{"DocumentIncarnation": 1000 + c.waves, "Events": events})
	if err != nil {
		panic(err) // of what was made here
	}
	c.SetDocument(document)
	return ids
}

func serve(h http.HandlerFunc) (url string, s *http.Server, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s = &http.Server{Handler: h, ReadHeaderTimeout: patience}
	go func() { _ = s.Serve(l) }()
	return "http://" + l.Addr().String(), s, nil
}

// A hook is a webhook's receiver.
type hook struct {
	url    string
	server *http.Server

	mu     sync.Mutex
	bodies [][]byte
	last   time.Time
}

func newHook() (*hook, error) {
	h := &hook{}
	var err error
	h.url, h.server, err = serve(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h.mu.Lock()
		h.bodies, h.last = append(h.bodies, body), time.Now()
		h.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	})
	return h, err
}

// count is how many requests came, and when the last did.
func (h *hook) count() (n int, last time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.bodies), h.last
}

// wait waits for the n-th request.
func (h *hook) wait(n int) (time.Time, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		if have, last := h.count(); have >= n {
			return last, nil
		}
	}
	return time.Time{}, errSlow
}

// broker starts a NATS server with JetStream.
func broker(dir string) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, NoSigs: true,
		NoLog: true})
	if err != nil {
		return nil, err
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return nil, errSlow
	}
	return s, nil
}

// settings writes a settings file with these sinks, each a line of YAML. The state directory is that of the name, so
// that the same name changes the settings of a program.
func (b *bench) settings(name, endpoint, interval string, sinks ...string) (path string, err error) {
	state := filepath.Join(b.dir, name+"-state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return "", err
	}
	text := fmt.Sprintf("imds: {endpoint: %q, interval: %s}\nstate: %s\nlisten: \"\"\nsinks:\n", endpoint, interval, state)
	for n, s := range sinks {
		text += fmt.Sprintf("  - {name: s%d, %s}\n", n, s)
	}
	path = filepath.Join(b.dir, name+".yaml")
	return path, os.WriteFile(path, []byte(text), 0o600)
}
