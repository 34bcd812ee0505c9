package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A receiver is a webhook's other end. It can refuse connections, hang, or answer with any status.
type receiver struct {
	url  string
	addr string

	mu     sync.Mutex
	shut   func()
	status int           // 0 hangs
	hung   chan struct{} // closed when hanging ends
	took   []string      // ids of accepted CloudEvents
	tried  []string      // of all
	bodies [][]byte      // of accepted ones
	at     map[string]time.Time
}

// hosts counts those that ownHost gave away.
var hosts atomic.Uint32

// ownHost is an address of this machine on which nobody else listens, so that a port of it stays free while nothing
// listens there. macOS has one such address only.
func ownHost() string {
	if runtime.GOOS == "darwin" {
		return "127.0.0.1"
	}
	return fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()>>8%250, os.Getpid()&255, 1+hosts.Add(1)%250)
}

func newReceiver() (*receiver, error) {
	r := &receiver{status: http.StatusNoContent, hung: make(chan struct{}), at: map[string]time.Time{}}
	l, err := net.Listen("tcp", ownHost()+":0") // it is away for a while now and then
	if err != nil {
		return nil, err
	}
	r.addr = l.Addr().String()
	r.url = "http://" + r.addr + "/hook"
	r.serve(l)
	return r, nil
}

func (r *receiver) serve(l net.Listener) {
	srv := &http.Server{Handler: r}
	go srv.Serve(l)
	r.shut = func() { srv.Close(); l.Close() } // Serve may not have come to know of l
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	arrived := time.Now()
	body, _ := io.ReadAll(req.Body)
	var ce struct{ ID string }
	_ = json.Unmarshal(body, &ce)
	r.mu.Lock()
	status, hung := r.status, r.hung
	r.tried = append(r.tried, ce.ID)
	if status >= 200 && status < 300 {
		r.took, r.bodies = append(r.took, ce.ID), append(r.bodies, body)
		r.at[ce.ID] = arrived
	}
	r.mu.Unlock()
	if status == 0 {
		select {
		case <-hung:
		case <-req.Context().Done():
		}
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
}

// answer sets how requests are answered: up, refuse, hang or a status.
func (r *receiver) answer(how string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == 0 {
		close(r.hung)
		r.hung = make(chan struct{})
	}
	if how == "refuse" {
		r.shut()
		return nil
	}
	switch how {
	case "up":
		r.status = http.StatusNoContent
	case "hang":
		r.status = 0
	default:
		if _, err := fmt.Sscan(how, &r.status); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", r.addr)
	if err == nil {
		r.serve(l) // it had been closed
	}
	return nil
}

func (r *receiver) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut()
}

func (r *receiver) accepted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.took)
}

// forget drops all that it has received.
func (r *receiver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took, r.tried, r.bodies = nil, nil, nil
	clear(r.at)
}

func (r *receiver) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.tried)
}
