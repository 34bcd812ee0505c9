package sinks

import (
	"cmp"
	"context"
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
	maxAnswer   = 64 << 10         // bytes of the header of a response, or of another answer, that are read
	maxBody     = 512 << 10        // of the body of a response; Slack repeats a message in it, with six bytes for a letter
	connectTime = 10 * time.Second // to connect, and again for the TLS handshake
	idleTime    = 30 * time.Second // after which an idle connection is closed
)

// A caller makes the HTTP requests of one sink. It makes its transport at the first request, and a new one when a TLS
// file has changed. It uses no http.Client, which would only add redirects and cookies.
type caller struct {
	host      Host
	tls       TLSSettings
	proxy     func(*http.Request) (*url.URL, error)
	where     string // the setting that proxy comes from, for people
	dial      Dialer
	blockedOn []int                  // statuses that block, besides the usual ones
	denied    func(body string) bool // whether an answer of 2xx says that nothing was taken; nil for never
	blockedIf condition              // of an answer of 2xx: whether somebody must act before anything is taken
	success   condition              // of an answer of 2xx: whether the message was taken

	mu        sync.Mutex // guards the fields below: Close may be called during a request
	transport *http.Transport
	stamp     string // of the TLS files when transport was made
}

// newCaller checks the settings. proxy is a URL, none, or empty for the environment's proxy.
func newCaller(t TLSSettings, proxy Secret, h Host) (*caller, error) {
	c := &caller{host: h, tls: t, proxy: h.Proxy, where: "the environment's proxy", dial: h.dialer(connectTime)}
	var wrong KeyErrors
	_, err := t.load(h)
	wrong.add(err)
	switch text := proxy.plain(); text {
	case "":
	case "none":
		c.proxy = nil
	default:
		u, err := parseURL(text, "is not the URL of a proxy; expected none or one such as "+
			"http://proxy.example.com:3128", false, "http", "https", "socks5", "socks5h")
		wrong.when(err != nil, "proxy", "%w", err)
		wrong.when(err == nil && u.Scheme == "https" && t != (TLSSettings{}), "proxy", "with tls beside it an https proxy "+
			"would be verified as if it were the destination; expected an http proxy")
		c.proxy, c.where = http.ProxyURL(u), "proxy"
	}
	return c, wrong.err()
}

// Close closes idle connections. It may be called at any time, and the caller can still be used afterwards.
func (c *caller) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
	return nil
}

// abandon makes sure that the next attempt uses no connection of the transport, because the one that failed may be dead.
// Those that are idle are closed. One of HTTP/2 is not idle as long as the request is on it, and closes after idleTime.
func (c *caller) abandon(transport *http.Transport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transport == transport {
		c.transport = nil
	}
	transport.CloseIdleConnections()
}

// current returns the transport for the current content of the TLS files.
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
	config, err := c.tls.load(c.host)
	if err != nil {
		return nil, err
	}
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
	c.stamp, c.transport = stamp, &http.Transport{
		Proxy: c.proxy, DialContext: c.dial, TLSClientConfig: config, TLSHandshakeTimeout: connectTime,
		ForceAttemptHTTP2: true, MaxIdleConns: 1, IdleConnTimeout: idleTime,
		MaxResponseHeaderBytes: maxAnswer, OnProxyConnectResponse: proxyAnswer,
	}
	return c.transport, nil
}

// do makes one request and returns what its response means for the CloudEvent. Neither answer nor error shows a secret.
func (c *caller) do(req *http.Request, redact *redactor) (delivery.Answer, error) {
	r, err := c.fetch(req, redact)
	if err != nil {
		return delivery.Answer{}, err
	}
	class := classOfStatus(r.status)
	if slices.Contains(c.blockedOn, r.status) {
		class = delivery.ErrBlocked
	}
	answer, err := judge(class, r, origin(req.URL), redact)
	if err != nil {
		return answer, err
	}
	doubt := c.doubt(r)
	if doubt != nil {
		text := answer.Status + " from " + origin(req.URL) + ", but " + redact.line(doubt.text, maxShown) + ": "
		err = r.withRetryAfter(withClass(doubt.class, text+redact.line(r.body, maxShown)))
	}
	return answer, err
}

// doubt returns why an answer of 2xx doesn't count, with the class that it then has; nil if it does.
func (c *caller) doubt(r response) *classError {
	if c.denied != nil && c.denied(r.body) {
		return &classError{nil, "the message was not taken"}
	}
	blocked, err := c.blockedIf.holds(r, false)
	if err != nil {
		return &classError{nil, "the expression of blocked_if fails: " + err.Error()}
	}
	if blocked {
		return &classError{delivery.ErrBlocked, "nobody gets the message"}
	}
	taken, err := c.success.holds(r, true)
	if err != nil {
		return &classError{nil, "the expression of success fails: " + err.Error()}
	}
	if !taken {
		return &classError{nil, "success doesn't hold"}
	}
	return nil
}

// proxyOf returns the proxy for a request, nil for none, whose credentials redact then knows. Its errors block.
func (c *caller) proxyOf(req *http.Request, redact *redactor) (*url.URL, error) {
	if c.proxy == nil {
		return nil, nil
	}
	p, err := c.proxy(req)
	if err != nil { // its text may hold the proxy's password
		return nil, fmt.Errorf("%w: the proxy in the environment is not the URL of a proxy", delivery.ErrBlocked)
	}
	if p != nil {
		redact.hideURL(p)
	}
	return p, nil
}

// fetch makes one request. Its errors have a class and show no secret; the response may. It reads at most
// maxBody bytes of the body; a body that breaks off earlier, as when ctx ends, is marked as cut and is no error.
func (c *caller) fetch(req *http.Request, redact *redactor) (response, error) {
	transport, err := c.current()
	if err != nil {
		return response{}, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	redact.showHosts(req.URL.Host, c.tls.ServerName)
	if _, err := c.proxyOf(req, redact); err != nil {
		return response{}, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		c.abandon(transport)
		return response{}, failure(req.Context(), redact, origin(req.URL), classOfFailure(err), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols { // the body is the connection, and ctx does not end it
		return response{status: resp.StatusCode, header: resp.Header}, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	cut := err != nil || len(body) == maxBody
	return response{resp.StatusCode, resp.Header, string(body), cut}, nil
}

// connect connects to the destination, and starts TLS if its URL is https, but makes no request. If there is a proxy,
// it connects only to that. It returns what it reached, for people.
func (c *caller) connect(ctx context.Context, to *url.URL, redact *redactor) (string, error) {
	transport, err := c.current()
	if err != nil {
		return "", fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	redact.showHosts(to.Host, c.tls.ServerName)
	at, err := c.proxyOf(&http.Request{URL: to}, redact)
	if err != nil {
		return "", err
	}
	if at == nil {
		at = to
	}
	secure := at.Scheme == "https"
	port := cmp.Or(at.Port(), usualPorts[at.Scheme])
	conn, err := transport.DialContext(ctx, "tcp", net.JoinHostPort(at.Hostname(), port))
	if err == nil {
		defer conn.Close()
		if secure {
			_, err = handshake(ctx, conn, transport.TLSClientConfig, at.Hostname())
		}
	}
	switch {
	case err != nil:
		return "", failure(ctx, redact, origin(at), classOfFailure(err), err)
	case at != to:
		return "reached the proxy " + at.Host + "; what is behind it was not tried", nil
	case secure:
		return "reached " + origin(at) + ", its certificate is valid; " + onlySendShows, nil
	}
	return "reached " + origin(at) + "; " + onlySendShows, nil
}

// onlySendShows says what connecting leaves open: any request might begin something.
const onlySendShows = "whether it takes messages only forewarn send shows"

// parseURL parses a URL with a host and one of the schemes. Any other text is an error with the text otherwise. If
// secure is true, the settings have tls, and http is refused because it would not use that. No error shows the URL.
func parseURL(text string, otherwise Own, secure bool, schemes ...string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || !slices.Contains(schemes, u.Scheme) {
		return nil, says("%s", otherwise)
	}
	if secure && u.Scheme == "http" {
		return nil, says("is not https, and tls is given")
	}
	return u, checkHost(u)
}

// checkHost returns an error for a host that no resolver could find, and for an invalid port. It shows neither.
func checkHost(u *url.URL) error {
	host := u.Hostname()
	if _, err := netip.ParseAddr(host); err != nil && strings.ContainsFunc(host, func(r rune) bool {
		return r != '.' && !inToken(r)
	}) {
		return says("its host is not a name; expected letters, digits, dots and dashes, with what is beyond ASCII " +
			"in its xn-- form")
	}
	if _, err := strconv.ParseUint(cmp.Or(u.Port(), "0"), 10, 16); err != nil {
		return says("its port is invalid; expected a number up to 65535")
	}
	return nil
}

// origin returns the scheme, host and port of a URL, which are no secret.
func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }

// A response is what a destination answered.
type response struct {
	status int
	header http.Header
	body   string
	cut    bool // body is only the beginning
}

// judge returns what a response means for the CloudEvent: accepted if its status is 2xx, else an error of the class,
// with the Retry-After of the response if it has one.
func judge(class error, r response, origin string, redact *redactor) (delivery.Answer, error) {
	answer := delivery.Answer{Status: statusLine(r.status), ID: redact.id(requestID(r.header))}
	if r.status >= 200 && r.status <= 299 {
		return answer, nil
	}
	from := origin
	if r.status == http.StatusProxyAuthRequired {
		from = "the proxy on the way to " + origin
	}
	text := answer.Status + " from " + from
	if to, err := url.Parse(r.header.Get("Location")); err == nil && to.Host != "" && r.status/100 == 3 {
		text += ", redirected to " + redact.line(to.Scheme+"://"+to.Host, maxShown) + ", which is not followed"
	}
	if excerpt := redact.line(r.body, maxShown); excerpt != "" {
		text += ": " + excerpt
	}
	return answer, r.withRetryAfter(withClass(class, text))
}

// proxyAnswer returns the error for a proxy's answer to CONNECT, nil for 200. It never rejects a CloudEvent, because
// the proxy does not see it.
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

// statusLine returns a status with its registered name, not the name that the destination sent.
func statusLine(status int) string {
	return strings.TrimSpace(fmt.Sprint(status, " ", http.StatusText(status)))
}

// requestID returns the id by which the destination's logs name the request, or "".
func requestID(h http.Header) string {
	return cmp.Or(h.Get("X-Request-Id"), h.Get("Request-Id"), h.Get("X-Ms-Request-Id"), h.Get("X-Amzn-Requestid"),
		h.Get("X-Correlation-Id"))
}

// maxRetryAfter limits the pause that a destination can ask for, so that a large number does not overflow.
const maxRetryAfter = 365 * 24 * time.Hour

// retryAfter reads the value of a Retry-After header (RFC 9110, section 10.2.3): seconds, or a date, which counts from
// answered, the time of the answer. ok is false if the value is unreadable or not in the future.
func retryAfter(value string, answered time.Time) (after time.Duration, ok bool) {
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
	after = min(at.Sub(answered), maxRetryAfter)
	return max(after, 0), after > 0
}

// withRetryAfter returns err, as a delivery.RetryAfter if the response has a readable Retry-After.
func (r response) withRetryAfter(err error) error {
	if after, ok := retryAfter(r.header.Get("Retry-After"), answeredAt(r.header)); ok {
		return &delivery.RetryAfter{After: after, Err: err}
	}
	return err
}

// answeredAt returns the Date of an answer, or the current time. Date is by the destination's clock, as the date in
// Retry-After is, so this VM's clock need not be right.
func answeredAt(h http.Header) time.Time {
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		return at
	}
	return time.Now()
}
