package imdstest

import (
	"net/http"
	"net/url"
	"slices"
	"time"
)

// maxRequests is how many requests the server remembers.
const maxRequests = 10_000

// A Request is one that the metadata endpoint has seen, whatever the answer was.
type Request struct {
	Time   time.Time   `json:"time"`
	Method string      `json:"method"`
	Path   string      `json:"path"`
	Query  url.Values  `json:"query"`
	Header http.Header `json:"header"`
	Body   string      `json:"body,omitempty"`
}

// Requests returns the requests that the metadata endpoint has seen, the oldest first: the last 10,000.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// RequestsAfter returns those of Requests that came after a moment. It costs no more than they are, so it can be asked
// over and over.
func (s *Server) RequestsAfter(moment time.Time) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := len(s.requests)
	for from > 0 && s.requests[from-1].Time.After(moment) {
		from--
	}
	return slices.Clone(s.requests[from:])
}

func (s *Server) record(r *http.Request, body []byte) {
	q := Request{
		Time: s.opts.Now(), Method: r.Method, Path: r.URL.Path, Query: r.URL.Query(), Header: r.Header.Clone(),
		Body: string(body[:min(len(body), 4096)]),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == maxRequests {
		s.requests = slices.Delete(s.requests, 0, maxRequests/10)
	}
	s.requests = append(s.requests, q)
}
