// Package imds asks Azure's instance metadata service about a VM and its scheduled events. Client asks, DecodeDocument
// reads an answer, and Diff, which is pure, tells what changed since. The emulated service is in package imdstest.
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

// DefaultEndpoint is where Azure serves instance metadata, and DefaultAPIVersion what is asked of it.
const (
	DefaultEndpoint   = "http://169.254.169.254"
	DefaultAPIVersion = "2020-07-01"

	maxBody       = 4 << 20
	preferredWait = time.Hour // how long an older api-version is used before the configured one is tried again
)

// fallbacks are the api-versions tried, in this order, when a host refuses the configured one. Some hosts know only
// the oldest.
var fallbacks = []string{"2019-08-01", "2017-08-01"}

// instanceVersions are those of /metadata/instance, which has a list of its own.
var instanceVersions = []string{"2021-02-01", "2019-06-04", "2017-08-01"}

// A Client asks the instance metadata service. It uses no proxy and follows no redirect. Poll is for one goroutine;
// everything else is safe for concurrent use.
type Client struct {
	preferred string
	http      *http.Client
	log       *slog.Logger

	mu       sync.Mutex
	endpoint string
	version  string    // in use
	fellBack time.Time // when an older one came into use, or the configured one was last tried in vain
}

// NewClient makes a client of the service at endpoint, which may hold a path. transport is nil but in tests.
func NewClient(endpoint, apiVersion string, log *slog.Logger, transport http.RoundTripper) *Client {
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

// Endpoint is the address that is asked.
func (c *Client) Endpoint() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endpoint
}

// APIVersion is the version in use for scheduled events.
func (c *Client) APIVersion() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// MoveTo makes the client ask another endpoint, and says whether it is another.
func (c *Client) MoveTo(endpoint string) bool {
	endpoint = strings.TrimSuffix(endpoint, "/")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endpoint == endpoint {
		return false
	}
	c.endpoint, c.version = endpoint, c.preferred
	return true
}

// PollClass says what an answer is worth.
type PollClass int

// The classes. Only a document, an unchanged one, and an empty answer that the next one confirms, are valid.
const (
	PollDocument  PollClass = iota
	PollUnchanged           // 304: as the ETag says
	PollEmpty               // 200 without a body, or with null for Events
	PollRetry               // try again soon
	PollSettings            // it will be the same until somebody acts: try again slowly
)

// Poll is the result of asking for the document once.
type Poll struct {
	Class      PollClass
	Document   Document
	Body       []byte            // as received
	ETag       string            // "" if there was none
	RetryAfter time.Duration     // what the service asked for; 0 if nothing
	Err        error             // of PollRetry and PollSettings
	Sum        [sha256.Size]byte // of Body
	Seen       bool              // it is the document that was asked to be left alone: Document has no events
}

// Poll asks for the document, conditionally if etag is not empty. When the host refuses the api-version, older ones
// are tried in the same call.
func (c *Client) Poll(ctx context.Context, etag string) Poll { return c.PollUnless(ctx, etag, Seen{}) }

// Seen is a document that need not be decoded again.
type Seen struct {
	Sum         [sha256.Size]byte // of the body; zero for none
	Version     string            // that was asked for
	Incarnation string
	Buffer      *bytes.Buffer // that holds the body of the answer until the next poll; nil for a new one
}

// PollUnless is Poll, but for a document that was seen.
func (c *Client) PollUnless(ctx context.Context, etag string, s Seen) Poll {
	c.mu.Lock()
	current, inUse := c.version, c.version
	if inUse != c.preferred && time.Since(c.fellBack) >= preferredWait {
		current, c.fellBack = c.preferred, time.Now() // whatever comes of it, not with every poll
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
		if p, refused = c.pollAs(ctx, v, inUse, etag, s); !refused {
			return p
		}
	}
	c.mu.Lock()
	c.version = c.preferred // the next poll begins anew
	c.mu.Unlock()
	p.Err = fmt.Errorf("%s refuses api-version %s and all that could stand in for it: %s", c.Endpoint(), c.preferred,
		excerpt(p.Body))
	return p
}

// pollAs asks with a version, which comes into use if it is answered.
func (c *Client) pollAs(ctx context.Context, version, inUse, etag string, s Seen) (p Poll, refused bool) {
	if version == inUse {
		return c.poll(ctx, version, etag, s)
	}
	if p, refused = c.poll(ctx, version, "", s); p.Err == nil {
		c.use(version)
	}
	return p, refused
}

// use notes which version answered, and says what that loses.
func (c *Client) use(version string) {
	c.mu.Lock()
	c.version, c.fellBack = version, time.Now()
	c.mu.Unlock()
	if version == c.preferred {
		c.log.Info("the host takes the configured api-version again", "apiVersion", version)
		return
	}
	var lost []string
	for _, name := range slices.Sorted(maps.Keys(since)) {
		if since[name] > version && since[name] <= c.preferred {
			lost = append(lost, name)
		}
	}
	c.log.Warn("the host refuses the configured api-version; an older one is used, which cannot show these",
		"configured", c.preferred, "used", version, "missing", strings.Join(lost, ", "))
}

// poll asks once. refused says that the host does not know the api-version.
func (c *Client) poll(ctx context.Context, version, etag string, s Seen) (p Poll, refused bool) {
	resp, err := c.get(ctx, "/metadata/scheduledevents", version, etag)
	if err != nil {
		return Poll{Class: PollRetry, Err: err}, false
	}
	defer resp.Body.Close()
	p.ETag = resp.Header.Get("ETag")
	p.RetryAfter = seconds(resp.Header.Get("Retry-After"))

	if resp.StatusCode == http.StatusNotModified {
		if etag == "" {
			return Poll{Class: PollRetry, Err: errors.New("304 Not Modified to an unconditional request")}, false
		}
		p.Class = PollUnchanged
		return p, false
	}
	// A length that is a lie costs no more than the largest body.
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
	case code == http.StatusBadRequest && refusesVersion(body):
		p, _ = fail(PollSettings, "%s refuses api-version %s: %s", c.Endpoint(), version, excerpt(body))
		return p, true
	case code == http.StatusNotFound, code == http.StatusRequestTimeout, code == http.StatusGone,
		code == http.StatusTooManyRequests, code >= 500:
		return fail(PollRetry, "%s: %s", resp.Status, excerpt(body))
	case code != http.StatusOK:
		return fail(PollSettings, "%s: %s", resp.Status, excerpt(body))
	case err != nil:
		return fail(PollRetry, "read the answer: %w", err)
	case len(body) > maxBody:
		return fail(PollRetry, "the answer is larger than %d MiB", maxBody>>20)
	case resp.ContentLength < 0 && len(resp.TransferEncoding) == 0:
		return fail(PollRetry, "the answer has no length, so it may have been cut")
	}
	if p.Seen = p.Sum == s.Sum && version == s.Version; p.Seen {
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
		return fail(PollRetry, "%s answered something else: %w", c.Endpoint(), err)
	}
	return p, false
}

// refusesVersion says whether the body of a 400 is about the api-version.
func refusesVersion(body []byte) bool {
	s := strings.ToLower(string(body))
	return strings.Contains(s, "api-version") || strings.Contains(s, "newest-versions")
}

func (c *Client) get(ctx context.Context, path, version, etag string) (*http.Response, error) {
	return c.do(ctx, http.MethodGet, path, version, etag, nil)
}

// do makes a request as the service demands it. Its errors do not repeat the address.
func (c *Client) do(ctx context.Context, method, path, version, etag string, body []byte) (*http.Response, error) {
	u := c.Endpoint() + path
	if version != "" {
		u += "?api-version=" + url.QueryEscape(version)
	}
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, u, content)
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
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return resp, err
}

// Document asks for the newest document, whatever was read before.
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

// RefusedError is Azure's no to an approval.
type RefusedError struct {
	Status string // such as "400 Bad Request"
	Text   string
}

func (e *RefusedError) Error() string {
	return "Azure refuses the approval: " + e.Status + ": " + e.Text
}

// Approve asks Azure to begin an event of the document at once. It returns the status of the answer, such as "200 OK".
// A no is a *RefusedError; after any other error nobody knows, and it may be sent again. Approving what was approved
// before does no harm.
func (c *Client) Approve(ctx context.Context, doc Document, e Event) (status string, err error) {
	i := slices.IndexFunc(doc.Events, func(other Event) bool { return other.ID == e.ID })
	if i < 0 {
		return "", fmt.Errorf("the document has no event %s", e.ID)
	}
	id := fieldsOf(doc.Events[i].Raw)["EventId"] // as Azure wrote it
	request := map[string]any{"StartRequests": []any{map[string]json.RawMessage{"EventId": id}}}
	if doc.APIVersion <= "2017-03-01" {
		request["DocumentIncarnation"] = doc.Incarnation // later versions do not ask for it
	}
	resp, err := c.do(ctx, http.MethodPost, "/metadata/scheduledevents", doc.APIVersion, "", CompactJSON(request))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch code := resp.StatusCode; {
	case code >= 200 && code <= 299:
		return resp.Status, nil
	case code == http.StatusNotFound, code == http.StatusRequestTimeout, code == http.StatusGone,
		code == http.StatusTooManyRequests, code >= 500:
		return "", fmt.Errorf("%s: %s", resp.Status, excerpt(text))
	}
	return "", &RefusedError{resp.Status, excerpt(text)}
}

// AnswerError is an answer of /metadata/instance that is none.
type AnswerError struct {
	code         int
	status, text string
}

func (e *AnswerError) Error() string { return e.status + ": " + e.text }

// Final says that the same will be answered until somebody acts.
func (e *AnswerError) Final() bool {
	return e.code >= 400 && e.code <= 499 && !e.Lasting() && e.code != http.StatusRequestTimeout &&
		e.code != http.StatusTooManyRequests
}

// Lasting says that the same will be answered until somebody acts if it was answered for some seconds: a host says not
// found, or Gone, for a moment after it moved a VM.
func (e *AnswerError) Lasting() bool {
	return e.code < 400 || e.code == http.StatusNotFound || e.code == http.StatusGone
}

// ErrNotAzure says that something answers at an endpoint, but not as Azure's metadata service does.
var ErrNotAzure = errors.New("something answers there, but not as Azure's metadata service")

// Probe asks which versions the service knows. Unlike asking for the document, that does not switch scheduled events
// on. It returns nil if Azure's metadata service is there, an error that wraps ErrNotAzure if something else is, and
// any other error if nothing answers.
func (c *Client) Probe(ctx context.Context) error {
	resp, err := c.get(ctx, "/metadata/versions", "", "")
	if err != nil {
		return err
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody)) // what was cut does not list versions
	resp.Body.Close()
	if !isMetadata(resp.StatusCode, resp.Header.Get("Server"), body) {
		return fmt.Errorf("%w: %s: %s", ErrNotAzure, resp.Status, excerpt(body))
	}
	return nil
}

// isMetadata says whether this is how Azure's metadata service answers when it is asked for its versions. One that asks
// for patience is there too: going on to another address because of it would be worse than waiting.
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

// CloseIdleConnections closes the connections that no request uses.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }

// Instance asks who this VM is.
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
				Name, VMID, ResourceID, SubscriptionID, ResourceGroupName, Location, Zone, VMScaleSetName, Priority,
				EvictionPolicy string
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
			Priority: a.Priority, EvictionPolicy: a.EvictionPolicy,
		}, nil
	}
	panic("unreachable: the last version returns")
}

// excerpt is the beginning of a body, fit for a line of a log.
func excerpt(body []byte) string {
	s := Printable(string(body), 200)
	if s == "" {
		return "no text"
	}
	return s
}

// seconds reads a Retry-After in seconds, which is the only form this service might send. It is at most an hour.
func seconds(s string) time.Duration {
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0
	}
	return min(time.Duration(n)*time.Second, time.Hour)
}
