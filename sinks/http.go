package sinks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"forewarn/bridge/delivery"
)

const (
	maxAnswer   = 64 << 10         // bytes of a response that are read, and of its header
	connectTime = 10 * time.Second // to connect, and again to shake hands
	idleTime    = 30 * time.Second // after which a connection is closed
)

// A caller makes the HTTP requests of one sink. Its transport is made at the first request and again when a TLS file
// has changed. It uses no http.Client, which would only add redirects and cookies.
type caller struct {
	tls       TLSSettings
	proxy     func(*http.Request) (*url.URL, error)
	where     string // the setting that proxy comes from
	dial      Dialer
	blockedOn []int // more statuses that block

	mu        sync.Mutex // guards what follows: Close may come while a request is given up
	transport *http.Transport
	stamp     string // of the TLS files when transport was made
}

// newCaller checks the settings. proxy is a URL, none, or empty for the proxy of the environment.
func newCaller(t TLSSettings, proxy Secret, h Host) (*caller, error) {
	c := &caller{tls: t, proxy: h.Proxy, where: "the environment's proxy", dial: h.dialer(connectTime)}
	var wrong KeyErrors
	_, err := t.load()
	wrong.add(err)
	switch text := proxy.plain(); text {
	case "":
	case "none":
		c.proxy = nil
	default:
		u, err := parseURL(text, "is not the URL of a proxy; expected none or one such as "+
			"http://proxy.example.com:3128", false, "http", "https", "socks5", "socks5h")
		wrong.when(err != nil, "proxy", "%w", err)
		c.proxy, c.where = http.ProxyURL(u), "proxy"
	}
	return c, wrong.err()
}

// Close ends the connections that are kept for the next request.
func (c *caller) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
	return nil
}

// current returns the transport for the TLS files as they are now.
func (c *caller) current() (*http.Transport, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stamp, err := c.tls.stamp()
	if err != nil {
		return nil, err
	}
	if c.transport != nil && stamp == c.stamp {
		return c.transport, nil
	}
	config, err := c.tls.load()
	if err != nil {
		return nil, err
	}
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
	c.stamp, c.transport = stamp, &http.Transport{
		Proxy: c.proxy, DialContext: c.dial, TLSClientConfig: config, TLSHandshakeTimeout: connectTime,
		ForceAttemptHTTP2: true, DisableCompression: true, MaxIdleConns: 1, IdleConnTimeout: idleTime,
		MaxResponseHeaderBytes: maxAnswer, OnProxyConnectResponse: proxyAnswer,
	}
	return c.transport, nil
}

// do makes one request and judges its answer. Its answer and errors are redacted.
func (c *caller) do(req *http.Request, redact *redactor) (delivery.Answer, error) {
	r, err := c.fetch(req, redact)
	if err != nil {
		return delivery.Answer{}, err
	}
	class := classOfStatus(r.status)
	if slices.Contains(c.blockedOn, r.status) {
		class = delivery.ErrBlocked
	}
	return judge(class, r, origin(req.URL), redact)
}

func (c *caller) proxyOf(req *http.Request, redact *redactor) (*url.URL, error) {
	if c.proxy == nil {
		return nil, nil
	}
	p, err := c.proxy(req)
	if err != nil { // its text may hold the proxy's password
		return nil, fmt.Errorf("%w: the proxy in the environment is not the URL of a proxy", delivery.ErrBlocked)
	}
	if p != nil {
		redact.hideURL(p, c.where)
	}
	return p, nil
}

// fetch makes one request. Its errors have a class and are redacted; the response is not. It reads as much of
// a response as arrives before ctx ends.
func (c *caller) fetch(req *http.Request, redact *redactor) (response, error) {
	transport, err := c.current()
	if err != nil {
		return response{}, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	if _, err := c.proxyOf(req, redact); err != nil {
		return response{}, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		// Nothing is left behind in the background, and the next attempt does not meet the same dead connection.
		c.Close()
		return response{}, failure(req.Context(), redact, origin(req.URL), classOfFailure(err), err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	cut := err != nil || len(body) == maxAnswer
	return response{resp.StatusCode, resp.Header, string(body), cut}, nil
}

// connect connects to the destination and starts TLS, without a request. With a proxy it connects to the proxy only.
func (c *caller) connect(ctx context.Context, to *url.URL, redact *redactor) (string, error) {
	transport, err := c.current()
	if err != nil {
		return "", fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	at, err := c.proxyOf(&http.Request{URL: to}, redact)
	if err != nil {
		return "", err
	}
	if at == nil {
		at = to
	}
	secure := at == to && to.Scheme == "https"
	ports := map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}
	port := cmp.Or(at.Port(), ports[at.Scheme])
	conn, err := transport.DialContext(ctx, "tcp", net.JoinHostPort(at.Hostname(), port))
	if err == nil {
		defer conn.Close()
		if secure {
			_, err = handshake(ctx, conn, transport.TLSClientConfig, to.Hostname())
		}
	}
	switch {
	case err != nil:
		return "", failure(ctx, redact, origin(at), classOfFailure(err), err)
	case at != to:
		return redact.text("reached the proxy " + at.Host + "; what is behind it was not tried"), nil
	case secure:
		return redact.text("reached " + origin(at) + ", its certificate is valid"), nil
	}
	return redact.text("reached " + origin(at)), nil
}

// parseURL reads a URL with a host and one of the schemes, else the error is otherwise. secure says that tls is given,
// which http makes no use of. No error shows the text.
func parseURL(text, otherwise string, secure bool, schemes ...string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || !slices.Contains(schemes, u.Scheme) {
		return nil, errors.New(otherwise)
	}
	if secure && u.Scheme == "http" {
		return nil, errors.New("is not https, and tls is given")
	}
	return u, checkHost(u)
}

// checkHost refuses a host that no resolver could find, and an invalid port. Its errors do not show them.
func checkHost(u *url.URL) error {
	host := u.Hostname()
	if _, err := netip.ParseAddr(host); err != nil && strings.ContainsFunc(host, func(r rune) bool {
		return r != '.' && !inToken(r)
	}) {
		return errors.New("its host is not a name; expected letters, digits, dots and dashes, with what is beyond ASCII " +
			"in its xn-- form")
	}
	if _, err := strconv.ParseUint(cmp.Or(u.Port(), "0"), 10, 16); err != nil {
		return errors.New("its port is invalid; expected a number up to 65535")
	}
	return nil
}

// origin returns a URL without what a redactor hides, but for the host, which it may hide too.
func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }

// A response is an answer of a destination.
type response struct {
	status int
	header http.Header
	body   string // or its beginning, if cut
	cut    bool
}

// judge returns what a response means for the CloudEvent. The class counts if its status is not 2xx.
func judge(class error, r response, origin string, redact *redactor) (delivery.Answer, error) {
	answer := delivery.Answer{Status: statusLine(r.status), ID: redact.line(requestID(r.header), false, 128)}
	if r.status >= 200 && r.status <= 299 {
		return answer, nil
	}
	text := answer.Status + " from " + redact.text(origin)
	if to, err := url.Parse(r.header.Get("Location")); err == nil && to.Host != "" && r.status/100 == 3 {
		text += ", redirected to " + redact.line(to.Scheme+"://"+to.Host, false, 200) + ", which is not followed"
	}
	if excerpt := redact.line(r.body, r.cut, 200); excerpt != "" {
		text += ": " + excerpt
	}
	return answer, r.later(withClass(class, text))
}

// proxyAnswer returns the error for a proxy's answer to CONNECT. No answer of a proxy rejects a CloudEvent.
func proxyAnswer(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	class := classOfStatus(resp.StatusCode)
	if class != nil {
		class = delivery.ErrBlocked
	}
	return &classError{class, "the proxy answered " + statusLine(resp.StatusCode)}
}

// statusLine returns a status with its registered name. The destination may call it anything.
func statusLine(status int) string {
	return strings.TrimSpace(fmt.Sprint(status, " ", http.StatusText(status)))
}

// requestID returns the id of the request in the destination's logs.
func requestID(h http.Header) string {
	return cmp.Or(h.Get("X-Request-Id"), h.Get("Request-Id"), h.Get("X-Ms-Request-Id"), h.Get("X-Amzn-Requestid"),
		h.Get("X-Correlation-Id"))
}

// maxRetryAfter bounds what a destination may ask for, so that a large number does not overflow.
const maxRetryAfter = 365 * 24 * time.Hour

// retryAfter reads the value of a Retry-After header (RFC 9110, section 10.2.3): seconds, or a date, which it compares
// with sent, the time of the answer. It returns false for a value that it cannot read or that is not in the future.
func retryAfter(value string, sent time.Time) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if value != "" && strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(maxRetryAfter/time.Second) {
			return maxRetryAfter, true
		}
		return time.Duration(seconds) * time.Second, seconds > 0
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	after := min(at.Sub(sent), maxRetryAfter)
	return max(after, 0), after > 0
}

// later returns err with the Retry-After of a response, if it has one.
func (r response) later(err error) error {
	if after, ok := retryAfter(r.header.Get("Retry-After"), answeredAt(r.header)); ok {
		return &delivery.RetryAfter{After: after, Err: err}
	}
	return err
}

// answeredAt returns the Date of an answer: the destination's clock, so that this VM's clock need not be right.
func answeredAt(h http.Header) time.Time {
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		return at
	}
	return time.Now()
}
