package imdstest

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Control returns the API that scripts the server from outside, in JSON:
//
//	GET    /state              incarnation, vms, events, document, faults and approvals
//	POST   /events             Azure's fields, missing ones are filled → the event
//	PATCH  /events/{id}        the fields to change → the event
//	DELETE /events/{id}        ends the event
//	POST   /events/{id}/start  → the event
//	PUT    /document           the body is served as it is; DELETE goes back to the events
//	PUT    /faults             a Fault; DELETE ends all
//	POST   /reset              see Reset
//	GET    /requests           what the metadata endpoint has seen
//
// An invalid request is refused with {"error": …}. There are no passwords: it answers only requests to local names and
// addresses, and none from a web page of another origin.
func (s *Server) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", s.getState)
	mux.HandleFunc("POST /events", s.postEvent)
	mux.HandleFunc("PATCH /events/{id}", s.patchEvent)
	mux.HandleFunc("DELETE /events/{id}", func(w http.ResponseWriter, r *http.Request) {
		if !s.End(r.PathValue("id")) {
			replyUnknownEvent(w, r)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /events/{id}/start", func(w http.ResponseWriter, r *http.Request) {
		s.Start(r.PathValue("id"))
		s.replyEvent(w, r)
	})
	mux.HandleFunc("PUT /document", func(w http.ResponseWriter, r *http.Request) {
		if body, ok := read(w, r); ok {
			s.SetDocument(body)
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mux.HandleFunc("DELETE /document", noContent(func() { s.SetDocument(nil) }))
	mux.HandleFunc("PUT /faults", s.putFault)
	mux.HandleFunc("DELETE /faults", noContent(s.ClearFaults))
	mux.HandleFunc("POST /reset", noContent(s.Reset))
	mux.HandleFunc("GET /requests", func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK, append([]Request{}, s.Requests()...))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		replyError(w, http.StatusNotFound, fmt.Errorf("no such call: %s %s", r.Method, r.URL.Path))
	})

	sameOrigin := http.NewCrossOriginProtection()
	sameOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		replyError(w, http.StatusForbidden, fmt.Errorf("origin %s is not this server", r.Header.Get("Origin")))
	}))
	return sameOrigin.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocalHost(r.Host) {
			replyError(w, http.StatusForbidden, fmt.Errorf("host %s is not local", r.Host))
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// state is what GET /state answers.
type state struct {
	Incarnation int         `json:"incarnation"`
	VMs         []string    `json:"vms"`
	Events      []wireEvent `json:"events"`
	Document    *string     `json:"document,omitempty"`
	Faults      []Fault     `json:"faults"`
	Approvals   []Approval  `json:"approvals"`
}

func (s *Server) getState(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	s.startDue()
	s.removeExpiredFaults()
	st := state{
		Incarnation: s.incarnation, VMs: slices.Clone(s.vms),
		Events: []wireEvent{}, Faults: []Fault{}, Approvals: append([]Approval{}, s.approvals...),
	}
	for _, e := range s.events {
		st.Events = append(st.Events, e.clone().wire(newest, http.TimeFormat))
	}
	for _, key := range slices.Sorted(maps.Keys(s.faults)) {
		st.Faults = append(st.Faults, s.faults[key].Fault)
	}
	if s.document != nil {
		st.Document = new(string(s.document))
	}
	s.mu.Unlock()
	reply(w, http.StatusOK, st)
}

func (s *Server) postEvent(w http.ResponseWriter, r *http.Request) {
	var fields wireEvent
	var e Event
	if !readInto(w, r, &fields) {
		return
	}
	if err := fields.apply(&e); err != nil {
		replyError(w, http.StatusBadRequest, err)
		return
	}
	reply(w, http.StatusCreated, s.Schedule(e).wire(newest, http.TimeFormat))
}

func (s *Server) patchEvent(w http.ResponseWriter, r *http.Request) {
	var fields wireEvent
	if !readInto(w, r, &fields) {
		return
	}
	id := r.PathValue("id")
	if fields.EventID != nil && !strings.EqualFold(*fields.EventID, id) {
		replyError(w, http.StatusBadRequest, keyErrorf([]string{"EventId"}, "expected %s, an event keeps its id", id))
		return
	}
	if err := fields.apply(new(Event)); err != nil {
		replyError(w, http.StatusBadRequest, err)
		return
	}
	fields.EventID = nil
	s.Update(id, func(e *Event) { _ = fields.apply(e) }) // apply succeeded above
	s.replyEvent(w, r)
}

func (s *Server) putFault(w http.ResponseWriter, r *http.Request) {
	var f Fault
	if !readInto(w, r, &f) {
		return
	}
	if err := f.check(); err != nil {
		replyError(w, http.StatusBadRequest, err)
		return
	}
	vms := s.VMs()
	same := func(vm string) bool { return strings.EqualFold(vm, f.VM) }
	if f.VM != "" && !slices.ContainsFunc(vms, same) {
		err := keyErrorf([]string{"vm"}, "expected one of %s, got %q", strings.Join(vms, ", "), f.VM)
		replyError(w, http.StatusBadRequest, err)
		return
	}
	s.SetFault(f)
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) replyEvent(w http.ResponseWriter, r *http.Request) {
	e, ok := s.Event(r.PathValue("id"))
	if !ok {
		replyUnknownEvent(w, r)
		return
	}
	reply(w, http.StatusOK, e.wire(newest, http.TimeFormat))
}

func replyUnknownEvent(w http.ResponseWriter, r *http.Request) {
	replyError(w, http.StatusNotFound, fmt.Errorf("no event %s", r.PathValue("id")))
}

// noContent returns a handler that calls change and answers 204.
func noContent(change func()) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		change()
		w.WriteHeader(http.StatusNoContent)
	}
}

// read returns the body of a request. If it is too long, the client gets the answer here.
func read(w http.ResponseWriter, r *http.Request) (body []byte, ok bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		replyError(w, http.StatusBadRequest, fmt.Errorf("read body: %w", err))
		return nil, false
	}
	return body, true
}

func readInto(w http.ResponseWriter, r *http.Request, into any) bool {
	body, ok := read(w, r)
	if !ok {
		return false
	}
	if err := decode(body, into); err != nil {
		replyError(w, http.StatusBadRequest, err)
		return false
	}
	return true
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(status)
	_, _ = w.Write(append(marshal(v), '\n'))
}

func replyError(w http.ResponseWriter, status int, err error) {
	reply(w, status, map[string]string{"error": err.Error()})
}

// isLocalHost reports whether a Host header is safe from DNS rebinding: localhost, a name without a dot (a container's),
// or an address that is not public.
func isLocalHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast()
	}
	return !strings.Contains(host, ".") || strings.HasSuffix(strings.ToLower(host), ".localhost")
}
