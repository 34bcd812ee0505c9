package imdstest

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// maxBody is how many bytes of a request the server reads at most.
const maxBody = 1 << 20

// Metadata returns what a VM sees at 169.254.169.254. All of it is also below /vm/<name>, as the VM of that name sees
// it.
func (s *Server) Metadata() http.Handler { return http.HandlerFunc(s.serveMetadata) }

func (s *Server) serveMetadata(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, maxBody)) // a truncated body is refused as malformed
	s.record(r, body)
	c := s.route(r, body)
	if c.endpoint == Identity {
		defer s.endToken(c.vm)
		if !s.beginToken(c.vm) {
			tooMany().write(w)
			return
		}
	}
	f := s.takeFault(c.endpoint, c.vm)
	var a answer
	if f.Approve == ApproveLate {
		a = s.answer(c, f)
	}
	if err := f.wait(r.Context()); err != nil {
		panic(http.ErrAbortHandler) // the client gave up
	}
	if replacement, ok := f.replacement(); ok {
		a = replacement
	} else if f.Approve != ApproveLate {
		a = s.answer(c, f)
	}
	f.applyTo(&a)
	a.write(w)
}

// A call is a parsed request.
type call struct {
	*http.Request
	vm       string   // the VM that asks
	endpoint string   // as in Fault.Path, or one of the two below
	subpath  []string // the path's segments after the endpoint
	query    url.Values
	version  string
	body     []byte
}

const (
	unknownPath = ""
	versionList = "versions"
)

// route parses a request. The case of its path does not matter.
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
		c.endpoint, c.subpath = InstanceFacts, path[2:]
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

// answer returns the true answer to a call. The fault matters only where it changes the document.
func (s *Server) answer(c *call, f Fault) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startDue()
	switch {
	case c.endpoint == unknownPath:
		return notFound(c.Request)
	case s.overRateLimit(c):
		return tooMany()
	case c.Method != http.MethodGet && c.endpoint != Approvals:
		return notAllowed(c.Request)
	}
	if text := s.requestProblem(c); text != "" {
		if c.endpoint == Identity {
			return badTokenRequest(text)
		}
		return badRequest(text)
	}
	known := knownVersions(c.endpoint)
	if i := slices.Index(known, f.NewestVersion); i >= 0 {
		known = known[:i+1]
	}
	if c.endpoint != versionList && !slices.Contains(known, c.version) {
		if ofEvents := c.endpoint == ScheduledEvents || c.endpoint == Approvals; ofEvents && isLater(c.version) {
			return notFound(c.Request)
		}
		return badVersion(known)
	}
	switch c.endpoint {
	case ScheduledEvents:
		body, etag := s.render(c.version, f.ISODates)
		if f.NoETag {
			etag = ""
		}
		if matchesETag(c.Header.Get("If-None-Match"), etag) {
			return answer{status: http.StatusNotModified, etag: etag}
		}
		return answer{status: http.StatusOK, contentType: jsonType, etag: etag, body: body}
	case Approvals:
		return s.approve(c, f)
	case InstanceFacts:
		return s.instance(c)
	case Identity:
		return s.token(c)
	}
	return okAnswer(jsonType, marshal(map[string][]string{"apiVersions": instanceVersions}))
}

// requestProblem says what is wrong with the request's headers or query; "" means nothing. Only the preview of
// Scheduled Events needs no Metadata header.
func (s *Server) requestProblem(c *call) string {
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

// The real service allows each VM more token requests than others, but only a few at once.
const (
	tokensPerSecond   = 20
	maxTokensInFlight = 5
)

// overRateLimit reports whether a request exceeds its VM's rate limit, and counts it if not.
func (s *Server) overRateLimit(c *call) bool {
	counter, limit := c.vm, s.opts.RateLimit
	if limit <= 0 {
		return false
	}
	if c.endpoint == Identity {
		counter, limit = Identity+" "+c.vm, tokensPerSecond
	}
	now := s.opts.Now()
	recent := slices.DeleteFunc(s.recent[counter], func(t time.Time) bool { return now.Sub(t) >= time.Second })
	over := len(recent) >= limit
	if !over {
		recent = append(recent, now)
	}
	s.recent[counter] = recent
	return over
}

// beginToken counts a token request until endToken and reports whether the VM may have one more in flight.
func (s *Server) beginToken(vm string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[vm]++
	return s.opts.RateLimit <= 0 || s.tokens[vm] <= maxTokensInFlight
}

func (s *Server) endToken(vm string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[vm]--
}
