// Package imdstest is an emulated Azure Instance Metadata Service with its Scheduled Events: what httptest is to
// http, for programs that watch Azure's maintenance. It answers as the real service does, its refusals, headers and
// key order included, and it can be made to fail in every way the real one has been seen to fail.
//
// It is for tests and for trying things out on a machine that is not in Azure. It knows no secrets and checks none.
//
// A Server is scripted through its methods, through its control API (Control) or by a Scenario (Play), and asked
// through Metadata: over sockets with Listen, or without any through RoundTripper, also inside a testing/synctest
// bubble. It starts no goroutine of its own: what is due by the clock happens before the next call sees the server.
package imdstest

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options say what a Server emulates. The zero value is one VM, vm_0, with a strict and healthy endpoint.
type Options struct {
	// VMs are the machines of the set, as Azure names them in Resources; vm_0 when empty. They all see the same
	// document. A request without /vm/<name> before its path counts as one of the first VM.
	VMs []string
	// Instance is what instance metadata says about them.
	Instance Instance
	// Now is the clock; time.Now when nil.
	Now func() time.Time
	// Speed divides every duration that the server counts: the notice it fills in, ApproveDelay, a fault's For,
	// Delay and ApproveDelay. 0 means 1.
	Speed float64
	// ApproveDelay is the time from an approval to Started.
	ApproveDelay time.Duration
	// UnknownApproval is the status for the approval of an unknown event: 400 (the default) or 200. Azure does not
	// document it.
	UnknownApproval int
	// AutoStart starts each scheduled event at its NotBefore. Without it an event waits for an approval or for Start.
	// Events of a Scenario have a rule of their own, see Play.
	AutoStart bool
	// RateLimit is how many requests a second each VM may make before it gets a 429; 0 means no limit, Azure's is 5.
	// With it, tokens have a limit of their own: 20 a second and 5 at once.
	RateLimit int
	// Lax accepts requests without the Metadata header and those with X-Forwarded-For.
	Lax bool
}

// A Server is one set of VMs and what Azure is about to do to them. It is safe for concurrent use.
type Server struct {
	opts Options

	mu           sync.Mutex // guards everything below
	vms          []string
	approveDelay time.Duration
	incarnation  int
	events       []*entry
	document     []byte            // served instead of the events when not nil
	faults       map[string]*fault // by Fault.key
	requests     []Request
	approvals    []Approval
	recent       map[string][]time.Time // the times of requests that the rate limit counts, by VM, with its tokens apart
	tokens       map[string]int         // token requests in flight, by VM
}

// New returns a Server at incarnation 1 with no events. It does no I/O.
func New(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Speed <= 0 {
		o.Speed = 1
	}
	if o.UnknownApproval == 0 {
		o.UnknownApproval = http.StatusBadRequest
	}
	o.VMs = slices.Clone(o.VMs)
	o.Instance = o.Instance.withDefaults()
	s := &Server{
		opts: o, vms: slices.Clone(o.VMs), approveDelay: scale(o.ApproveDelay, o.Speed), tokens: make(map[string]int),
	}
	if len(s.vms) == 0 {
		s.vms = []string{"vm_0"}
	}
	s.clear()
	return s
}

// VMs returns the names of the emulated machines.
func (s *Server) VMs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.vms)
}

// Reset removes events, document, faults, requests and approvals, and counts from incarnation 1 again, as Azure does
// after a day without a request. The VMs stay.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
}

func (s *Server) clear() {
	s.incarnation = 1
	s.events, s.document, s.requests, s.approvals = nil, nil, nil, nil
	s.faults = make(map[string]*fault)
	s.recent = make(map[string][]time.Time)
}

// Incarnation returns the incarnation of the current document.
func (s *Server) Incarnation() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startDue()
	return s.incarnation
}

// SetIncarnation sets the incarnation of the document. The events stay.
func (s *Server) SetIncarnation(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startDue()
	s.incarnation = n
}

// ResetIncarnation sets the incarnation to 1, as Azure does after some time without requests. The events stay.
func (s *Server) ResetIncarnation() { s.SetIncarnation(1) }

// SetDocument serves body unchanged, for every api-version; nil ends that. The ETag is the DocumentIncarnation of the
// body, if it has a readable one. The events go on unseen.
func (s *Server) SetDocument(body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.document = slices.Clone(body)
}

// vm returns the VM of that name, in any case.
func (s *Server) vm(name string) (string, bool) {
	i := slices.IndexFunc(s.vms, func(vm string) bool { return strings.EqualFold(vm, name) })
	if i < 0 {
		return "", false
	}
	return s.vms[i], true
}

// scale returns d divided by speed.
func scale(d time.Duration, speed float64) time.Duration {
	return time.Duration(float64(d) / speed)
}
