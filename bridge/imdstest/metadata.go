package imdstest

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// maxBody bounds what the server reads of a request.
const maxBody = 1 << 20

// Metadata returns what a VM sees at 169.254.169.254. The whole of it stands also below /vm/<name>, as the VM of that
// name sees it.
func (s *Server) Metadata() http.Handler { return http.HandlerFunc(s.serveMetadata) }

func (s *Server) serveMetadata(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, maxBody)) // one cut short is refused as malformed
	s.record(r, body)
	c := s.route(r, body)
	f := s.fault(c.endpoint)
	if err := f.wait(r.Context()); err != nil {
		panic(http.ErrAbortHandler) // the client is gone: say nothing
	}
	a, replaced := f.instead()
	if !replaced {
		a = s.answer(c, f.ISODates)
	}
	f.spoil(&a)
	a.write(w)
}

// A call is a request and what it asks for.
type call struct {
	*http.Request
	vm       string   // the one who asks
	endpoint string   // as in Fault.Path, or one of the two below
	below    []string // the path's segments after the endpoint
	query    url.Values
	version  string
	body     []byte
}

const (
	nowhere     = ""
	versionList = "versions"
)

// route finds out what a request asks for. The case of a path does not matter.
func (s *Server) route(r *http.Request, body []byte) *call {
	c := &call{Request: r, query: r.URL.Query(), body: body}
	c.version = c.query.Get("api-version")
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")

	s.mu.Lock()
	c.vm = s.vms[0]
	known := true
	if len(path) > 2 && strings.EqualFold(path[0], "vm") {
		c.vm, known = s.vm(path[1])
		path = path[2:]
	}
	s.mu.Unlock()

	is := func(want ...string) bool {
		return known && len(path) >= len(want) && slices.EqualFunc(path[:len(want)], want, strings.EqualFold)
	}
	switch {
	case is("metadata", "latest", "scheduledevents") && len(path) == 3:
		c.endpoint = ScheduledEvents
		if c.version == "" {
			c.version = preview
		}
	case is("metadata", "scheduledevents") && len(path) == 2:
		c.endpoint = ScheduledEvents
	case is("metadata", "instance"):
		c.endpoint, c.below = InstanceFacts, path[2:]
	case is("metadata", "identity", "oauth2", "token") && len(path) == 4:
		c.endpoint = Identity
	case is("metadata", "versions") && len(path) == 2:
		c.endpoint = versionList
	}
	if c.endpoint == ScheduledEvents && r.Method == http.MethodPost {
		c.endpoint = Approvals
	}
	return c
}

// answer is what the service says when nothing spoils it.
func (s *Server) answer(c *call, isoDates bool) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	switch {
	case c.endpoint == nowhere:
		return notFound(c.Request)
	case c.endpoint != Identity && s.limited(c.vm):
		return tooMany()
	case c.Method != http.MethodGet && c.endpoint != Approvals:
		return notAllowed(c.Request)
	}
	if text := s.refuses(c); text != "" {
		if c.endpoint == Identity {
			return refusedToken(text)
		}
		return refused(text)
	}
	known, asked := versions, c.endpoint != versionList
	if c.endpoint == InstanceFacts || c.endpoint == Identity {
		known = instanceVersions
	}
	if asked && !slices.Contains(known, c.version) {
		return refusedVersion(known)
	}
	switch c.endpoint {
	case ScheduledEvents:
		body, etag := s.render(c.version, isoDates)
		if unchanged(c.Header.Get("If-None-Match"), etag) {
			return answer{status: http.StatusNotModified, etag: etag}
		}
		return answer{status: http.StatusOK, kind: jsonType, etag: etag, body: body}
	case Approvals:
		return s.approve(c)
	case InstanceFacts:
		return s.instance(c)
	case Identity:
		return s.token(c)
	}
	return ok(jsonType, marshal(map[string][]string{"apiVersions": instanceVersions}))
}

// refuses says what is wrong with the request's headers or query; "" when nothing is. Only the preview of Scheduled
// Events does not ask for the Metadata header.
func (s *Server) refuses(c *call) string {
	for name, values := range c.query {
		if len(values) > 1 {
			return "Query parameter '" + name + "' was specified more than once"
		}
	}
	lenient := (c.endpoint == ScheduledEvents || c.endpoint == Approvals) && c.version == preview
	switch {
	case s.opts.Lax:
		return ""
	case len(c.Header.Values("X-Forwarded-For")) > 0:
		return "Request must not have an X-Forwarded-For header"
	case !lenient && !strings.EqualFold(c.Header.Get("Metadata"), "true"):
		return "Required metadata header not specified"
	}
	return ""
}

// limited counts a request of that VM and reports whether it is over the rate limit. Those refused count for nothing.
func (s *Server) limited(vm string) bool {
	if s.opts.RateLimit <= 0 {
		return false
	}
	now := s.opts.Now()
	recent := slices.DeleteFunc(s.recent[vm], func(t time.Time) bool { return now.Sub(t) >= time.Second })
	over := len(recent) >= s.opts.RateLimit
	if !over {
		recent = append(recent, now)
	}
	s.recent[vm] = recent
	return over
}
