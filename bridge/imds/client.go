// Package imds is a client of Azure's instance metadata service, for a VM's identity and its scheduled events. Client
// makes the requests, DecodeDocument decodes an answer, and Diff, a pure function, finds the changes between two
// documents. Package imdstest emulates the service.
package imds

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// DefaultEndpoint is the address of instance metadata on every VM in a virtual network, and DefaultAPIVersion the
// version of scheduled events to ask for.
const (
	DefaultEndpoint   = "http://169.254.169.254"
	DefaultAPIVersion = "2020-07-01"

	maxBody       = 4 << 20   // bounds an answer, in bytes
	preferredWait = time.Hour // how long an older api-version is used before the configured one is tried again
)

// fallbacks are the api-versions to try, in this order, when a host refuses the configured one. Some hosts support only
// the oldest.
var fallbacks = []string{DefaultAPIVersion, "2019-08-01", "2017-08-01"}

// instanceVersions are the api-versions to try for /metadata/instance, which has its own list.
var instanceVersions = []string{"2021-02-01", "2019-06-04", "2017-08-01"}

// A Client is a client of the instance metadata service. It uses no proxy and follows no redirect. Only one goroutine
// may call Poll and PollUnless; all other methods are safe for concurrent use.
type Client struct {
	endpoint  string
	preferred string
	http      *http.Client
	log       *slog.Logger

	mu       sync.Mutex
	version  string    // in use
	fellBack time.Time // when an older version came into use, or the configured one last failed
}

// NewClient returns a client of the service at endpoint, a URL that may have a path. log is nil to log
// nothing. transport is nil except in tests.
func NewClient(endpoint, apiVersion string, log *slog.Logger, transport http.RoundTripper) *Client {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if transport == nil {
		dialer := net.Dialer{Timeout: 10 * time.Second}
		transport = &http.Transport{ // Proxy is nil: the service must never be reached through one
			DialContext: dialer.DialContext, DisableCompression: true, MaxIdleConns: 2, IdleConnTimeout: 90 * time.Second,
		}
	}
	return &Client{
		endpoint: strings.TrimSuffix(endpoint, "/"), preferred: apiVersion, version: apiVersion, log: log,
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
	}
}

// Endpoint returns the URL of the service.
func (c *Client) Endpoint() string { return c.endpoint }

// APIVersion returns the api-version in use for scheduled events.
func (c *Client) APIVersion() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// A PollClass classifies the result of a poll.
type PollClass int

// The classes. Valid answers are PollDocument, PollUnchanged, and a PollEmpty that the next poll confirms.
const (
	PollDocument  PollClass = iota
	PollUnchanged           // 304 Not Modified
	PollEmpty               // 200 without a body, or with null for Events
	PollRetry               // failed: try again soon
	PollSettings            // failed until somebody acts: try again slowly
)

// A Poll is the result of one poll.
type Poll struct {
	Class      PollClass
	Document   Document
	Body       []byte            // as received
	ETag       string            // "" if there was none
	RetryAfter time.Duration     // the Retry-After header; 0 if there was none
	Err        error             // set for PollRetry and PollSettings
	Sum        [sha256.Size]byte // of Body
	Seen       bool              // the body is that of Seen, so Document has no events
}

// Poll asks for the document, conditionally if etag is not empty. If the host refuses the api-version, it tries older
// ones in the same call.
func (c *Client) Poll(ctx context.Context, etag string) Poll { return c.PollUnless(ctx, etag, Seen{}) }

// A Seen is an answer that need not be decoded again.
type Seen struct {
	Class       PollClass
	Sum         [sha256.Size]byte // of the body; zero for none
	Version     string            // the api-version of the request
	Incarnation string
	Buffer      *bytes.Buffer // reused for the body of the answer, until the next poll; nil for a new one
}

// PollUnless is Poll, but does not decode the document s again.
func (c *Client) PollUnless(ctx context.Context, etag string, s Seen) Poll {
	c.mu.Lock()
	current, inUse := c.version, c.version
	if inUse != c.preferred && time.Since(c.fellBack) >= preferredWait {
		current, c.fellBack = c.preferred, time.Now() // set also if it fails, to try it once an hour
	}
	c.mu.Unlock()

	p, refused := c.pollAs(ctx, current, inUse, etag, s)
	if !refused {
		return p
	}
	tried := []string{current}
	for _, v := range slices.Concat([]string{inUse}, fallbacks) {
		if v >= current || slices.Contains(tried, v) {
			continue
		}
		tried = append(tried, v)
		p, refused = c.pollAs(ctx, v, inUse, etag, s)
		if !refused {
			return p
		}
	}
	c.mu.Lock()
	c.version = c.preferred // the next poll starts with it again
	c.mu.Unlock()
	p.Err = fmt.Errorf("%s refuses api-version %s and older ones: %s", c.Endpoint(), c.preferred, excerpt(p.Body))
	return p
}

// pollAs polls with a version, which comes into use if the poll succeeds.
func (c *Client) pollAs(ctx context.Context, version, inUse, etag string, s Seen) (p Poll, refused bool) {
	if version == inUse {
		return c.poll(ctx, version, etag, s)
	}
	p, refused = c.poll(ctx, version, "", s)
	if p.Err == nil {
		c.useVersion(version)
	}
	return p, refused
}

// useVersion records the version that works, and logs the fields and types that it lacks.
func (c *Client) useVersion(version string) {
	c.mu.Lock()
	c.version, c.fellBack = version, time.Now()
	c.mu.Unlock()
	if version == c.preferred {
		c.log.Info("host accepts the configured api-version again", "apiVersion", version)
		return
	}
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(firstVersions)) {
		if firstVersions[name] > version && firstVersions[name] <= c.preferred {
			missing = append(missing, name)
		}
	}
	c.log.Warn("host refuses the configured api-version; using an older one, which lacks fields and event types",
		"configured", c.preferred, "used", version, "missing", strings.Join(missing, ", "))
}

// poll sends one request. refused means that the host does not support the api-version.
func (c *Client) poll(ctx context.Context, version, etag string, s Seen) (p Poll, refused bool) {
	resp, err := c.get(ctx, "/metadata/scheduledevents", version, etag)
	if err != nil {
		return Poll{Class: PollRetry, Err: err}, false
	}
	defer resp.Body.Close()
	p.ETag = resp.Header.Get("ETag")
	p.RetryAfter = parseRetryAfter(resp.Header.Get("Retry-After"))

	if resp.StatusCode == http.StatusNotModified {
		if etag == "" {
			return Poll{Class: PollRetry, Err: errors.New("304 Not Modified to an unconditional request")}, false
		}
		p.Class = PollUnchanged
		return p, false
	}
	// A false Content-Length allocates no more than the largest body.
	buffer := s.Buffer
	if buffer == nil {
		buffer = new(bytes.Buffer)
	}
	buffer.Reset()
	buffer.Grow(int(min(max(resp.ContentLength, 0), maxBody)) + bytes.MinRead)
	_, err = buffer.ReadFrom(io.LimitReader(resp.Body, maxBody+1))
	body := buffer.Bytes()
	p.Body, p.Sum = body, sha256.Sum256(body)
	fail := func(class PollClass, format string, args ...any) (Poll, bool) {
		p.Class, p.Err = class, fmt.Errorf(format, args...)
		return p, false
	}
	switch code := resp.StatusCode; {
	case code == http.StatusBadRequest && refusesVersion(body), code == http.StatusNotFound && version > DefaultAPIVersion:
		p, _ = fail(PollSettings, "%s refuses api-version %s: %s", c.Endpoint(), version, excerpt(body))
		return p, true
	case isTransient(code):
		return fail(PollRetry, "%s: %s", resp.Status, excerpt(body))
	case code != http.StatusOK:
		return fail(PollSettings, "%s: %s", resp.Status, excerpt(body))
	case err != nil:
		return fail(PollRetry, "read the answer: %w", withoutPort(err))
	case len(body) > maxBody:
		return fail(PollRetry, "the answer is larger than %d MiB", maxBody>>20)
	case resp.ContentLength < 0 && len(resp.TransferEncoding) == 0:
		return fail(PollRetry, "the answer has no length, so it may be truncated")
	}
	p.Seen = p.Sum == s.Sum && version == s.Version
	if p.Seen {
		p.Class = s.Class
		p.Document = Document{Incarnation: s.Incarnation, APIVersion: version}
		return p, false
	}
	if len(body) > 0 {
		p.Document, err = DecodeDocument(body)
	}
	p.Document.APIVersion = version
	switch {
	case len(body) == 0, errors.Is(err, errNullEvents):
		p.Class = PollEmpty
	case err != nil:
		return fail(PollRetry, "unexpected answer from %s: %w", c.Endpoint(), err)
	}
	return p, false
}

// isTransient reports whether a failure with this status may pass by itself. A host answers 404 or 410 for a short time
// after it moved a VM.
func isTransient(code int) bool {
	switch code {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusGone, http.StatusTooManyRequests:
		return true
	}
	return code >= 500
}

// refusesVersion reports whether the body of a 400 is about the api-version.
func refusesVersion(body []byte) bool {
	s := strings.ToLower(string(body))
	return strings.Contains(s, "api-version") || strings.Contains(s, "newest-versions")
}

func (c *Client) get(ctx context.Context, path, version, etag string) (*http.Response, error) {
	return c.do(ctx, http.MethodGet, path, version, etag, nil)
}

// do sends a request with the headers that the service demands. Its errors do not repeat the URL.
func (c *Client) do(ctx context.Context, method, path, version, etag string, body []byte) (*http.Response, error) {
	query := ""
	if version != "" {
		query = "?api-version=" + url.QueryEscape(version)
	}
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Endpoint()+path+query, content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Metadata", "true")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if etag != "" {
		req.Header["If-None-Match"] = []string{etag}
	}
	resp, err := c.http.Do(req)
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	err = withoutPort(err)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return resp, err
}

// withoutPort returns the error of a broken connection without the port of this side, by which equal errors would differ.
func withoutPort(err error) error {
	broken, is := errors.AsType[*net.OpError](err)
	if !is || broken.Source == nil {
		return err
	}
	alike := *broken
	alike.Source = nil
	return &alike
}

// Document asks for the current document unconditionally.
func (c *Client) Document(ctx context.Context) (Document, error) {
	p, _ := c.poll(ctx, c.APIVersion(), "", Seen{})
	switch {
	case p.Err != nil:
		return Document{}, p.Err
	case p.Class != PollDocument:
		return Document{}, errors.New("the answer is empty")
	}
	return p.Document, nil
}

// A RefusedError means that Azure refused an approval.
type RefusedError struct {
	Status string // such as "400 Bad Request"
	Text   string
}

func (e *RefusedError) Error() string {
	return "Azure refuses the approval: " + e.Status + ": " + e.Text
}

// Approve asks Azure to start an event of the document at once. It returns the status of the answer, such as "200 OK".
// If Azure refuses, the error is a *RefusedError. After any other error Azure may have accepted the approval; it can
// be sent again, because approving twice does no harm. An answer that is neither empty nor JSON is such an error: it is
// from something between Azure and the VM.
func (c *Client) Approve(ctx context.Context, doc Document, e Event) (status string, err error) {
	i := slices.IndexFunc(doc.Events, func(other Event) bool { return other.ID == e.ID })
	if i < 0 {
		return "", fmt.Errorf("the document has no event %s", e.ID)
	}
	id := fieldsOf(doc.Events[i].Raw)["EventId"] // as Azure wrote it
	request := map[string]any{"StartRequests": []any{map[string]json.RawMessage{"EventId": id}}}
	if doc.APIVersion <= "2017-03-01" {
		request["DocumentIncarnation"] = doc.Incarnation // later versions do not need it
	}
	resp, err := c.do(ctx, http.MethodPost, "/metadata/scheduledevents", doc.APIVersion, "", CompactJSON(request))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	text = bytes.TrimSpace(text)
	success := resp.StatusCode >= 200 && resp.StatusCode <= 299
	switch code := resp.StatusCode; {
	case success && err != nil:
		return "", fmt.Errorf("%s, but the answer breaks off: %w", resp.Status, err)
	case success && len(text) > 0 && !json.Valid(text):
		return "", fmt.Errorf("%s, but the answer isn't Azure's: %s", resp.Status, excerpt(text))
	case success:
		return resp.Status, nil
	case isTransient(code):
		return "", fmt.Errorf("%s: %s", resp.Status, excerpt(text))
	}
	return "", &RefusedError{resp.Status, excerpt(text)}
}

// An AnswerError is an answer of /metadata/instance without instance metadata.
type AnswerError struct {
	code         int
	status, text string
}

func (e *AnswerError) Error() string { return e.status + ": " + e.text }

// Final reports whether the answer will stay the same until somebody acts.
func (e *AnswerError) Final() bool {
	return e.code >= 400 && !isTransient(e.code)
}

// Lasting reports whether the answer will stay the same until somebody acts if it is repeated for some seconds: a host
// answers 404 or 410 for a short time after it moved a VM.
func (e *AnswerError) Lasting() bool {
	return e.code < 400 || e.code == http.StatusNotFound || e.code == http.StatusGone
}

// ErrNotAzure means that a server answers at an endpoint, but not as Azure's metadata service does.
var ErrNotAzure = errors.New("a server answers, but not as Azure's metadata service")

// Probe asks for the list of api-versions, which does not switch scheduled events on. It returns nil if Azure's
// metadata service answers, an error that wraps ErrNotAzure if another server does, and any other error if none
// answers.
func (c *Client) Probe(ctx context.Context) error {
	resp, err := c.get(ctx, "/metadata/versions", "", "")
	if err != nil {
		return err
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody)) // a truncated body does not decode below
	resp.Body.Close()
	if !isMetadata(resp.StatusCode, resp.Header.Get("Server"), body) {
		return fmt.Errorf("%w: %s: %s", ErrNotAzure, resp.Status, excerpt(body))
	}
	return nil
}

// isMetadata reports whether Azure's metadata service may answer a request for its versions like this. A service that
// is temporarily unavailable counts: trying another address because of it would be worse than waiting.
func isMetadata(status int, server string, body []byte) bool {
	switch status {
	case http.StatusGone, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable:
		return true
	case http.StatusOK:
		var list struct{ APIVersions []string }
		if json.Unmarshal(body, &list) == nil && len(list.APIVersions) > 0 {
			return true
		}
	}
	return strings.HasPrefix(server, "IMDS/")
}

// CloseIdleConnections closes unused connections.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }

// Instance asks for the identity of this VM. The error is an *AnswerError if the service answered without it.
func (c *Client) Instance(ctx context.Context) (Observer, error) {
	for i, version := range instanceVersions {
		resp, err := c.get(ctx, "/metadata/instance", version, "")
		if err != nil {
			return Observer{}, err
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
		resp.Body.Close()
		switch {
		case err != nil:
			return Observer{}, err
		case resp.StatusCode == http.StatusBadRequest && i+1 < len(instanceVersions):
			continue
		case resp.StatusCode != http.StatusOK:
			return Observer{}, &AnswerError{resp.StatusCode, resp.Status, excerpt(body)}
		}
		var answer struct {
			Compute struct {
				Name, VMID, ResourceID, SubscriptionID, ResourceGroupName, Location, Zone, VMScaleSetName, OSType,
				Priority, EvictionPolicy string
			}
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			return Observer{}, &AnswerError{resp.StatusCode, resp.Status, "not instance metadata: " + excerpt(body)}
		}
		a := answer.Compute
		if a.Name == "" && a.VMID == "" {
			return Observer{}, &AnswerError{resp.StatusCode, resp.Status, "instance metadata without a name: " + excerpt(body)}
		}
		return Observer{
			Name: a.Name, VMID: a.VMID, ResourceID: a.ResourceID, SubscriptionID: a.SubscriptionID,
			ResourceGroup: a.ResourceGroupName, Location: a.Location, Zone: a.Zone, ScaleSet: a.VMScaleSetName,
			OSType: a.OSType, Priority: a.Priority, EvictionPolicy: a.EvictionPolicy,
		}, nil
	}
	panic("unreachable: the last version returns")
}

// excerpt returns the start of a body, fit for a log line.
func excerpt(body []byte) string {
	s := Printable(string(body), 200)
	if s == "" {
		return "no text"
	}
	return s
}

// parseRetryAfter parses a Retry-After in seconds, the only form that this service uses; at most an hour.
func parseRetryAfter(s string) time.Duration {
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0
	}
	return min(time.Duration(n)*time.Second, time.Hour)
}

// EndpointHint returns a hint for an endpoint that has given no valid answer yet.
func EndpointHint(endpoint string) string {
	if endpoint == DefaultEndpoint {
		return "is this an Azure VM? To see what forewarn does elsewhere: forewarn demo"
	}
	return "this is not Azure's own endpoint, " + DefaultEndpoint +
		": is imds.endpoint right, and is that server running?"
}
