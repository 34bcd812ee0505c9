package sinks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/delivery"
)

// classes are what an error can mean.
const (
	accepted = "accepted"
	again    = "again"
	blocked  = "blocked"
	rejected = "rejected"
)

func classOf(err error) string {
	switch {
	case err == nil:
		return accepted
	case errors.Is(err, delivery.ErrBlocked):
		return blocked
	case errors.Is(err, delivery.ErrRejected):
		return rejected
	}
	return again
}

// The status of an answer says what becomes of the CloudEvent.
func TestStatusesHaveClasses(t *testing.T) {
	var status int
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "req-7")
		w.WriteHeader(status)
		if status >= 400 {
			io.WriteString(w, "why\nnot")
		}
	}))
	s := mustOpen(t, "webhook", "url: "+srv.URL, testHost(t))
	want := map[int]string{
		200: accepted, 201: accepted, 202: accepted, 204: accepted, 208: accepted, 299: accepted,
		300: blocked, 301: blocked, 302: blocked, 303: blocked, 304: blocked, 307: blocked, 308: blocked,
		401: blocked, 403: blocked, 404: blocked, 405: blocked, 407: blocked, 410: blocked,
		408: again, 425: again, 429: again,
		400: rejected, 402: rejected, 406: rejected, 409: rejected, 411: rejected, 413: rejected, 415: rejected,
		418: rejected,
		421: rejected, 422: rejected, 431: rejected, 451: rejected, 499: rejected,
		500: again, 501: again, 502: again, 503: again, 504: again, 507: again, 511: again, 520: again, 599: again,
		600: again, 999: again,
	}
	for status = range want {
		answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if got := classOf(err); got != want[status] {
			t.Errorf("%d is %s (%v), want %s", status, got, err, want[status])
		}
		if text := fmt.Sprint(status); !strings.HasPrefix(answer.Status, text) || answer.ID != "req-7" {
			t.Errorf("%d: the answer is %+v, want the status and the request's id", status, answer)
		}
		if err == nil {
			continue
		}
		for _, part := range []string{answer.Status, srv.URL} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%d: the error is %q, want %q in it", status, err, part)
			}
		}
		if status >= 400 && !strings.HasSuffix(err.Error(), ": why not") {
			t.Errorf("%d: the error is %q, want what the destination said, in one line", status, err)
		}
	}
}

// A redirect is not followed, wherever it points; the error says where that is.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var elsewhere recorder
	other := serve(t, &elsewhere)
	var location string
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", location)
		w.WriteHeader(http.StatusTemporaryRedirect)
	}))
	s := mustOpen(t, "webhook", "url: "+srv.URL+"\nbearer: token", testHost(t))
	for _, location = range []string{other.URL + "/new?key=1", "/new", "", "http://[::1", "%%%"} {
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if classOf(err) != blocked {
			t.Errorf("redirect to %q: %v, want it blocked", location, err)
		}
		if strings.HasPrefix(location, other.URL) && !strings.Contains(err.Error(), "redirected to "+other.URL+",") {
			t.Errorf("redirect to %q: %v, want where it points", location, err)
		}
	}
	if n := len(elsewhere.all()); n > 0 {
		t.Errorf("%d requests followed a redirect", n)
	}
}

// Failures without an answer are tried again, except for what only somebody can mend.
func TestFailuresHaveClasses(t *testing.T) {
	for name, tt := range map[string]struct{ url, want string }{
		"nobody listens": {"http://" + net.JoinHostPort(hostOf(t), "9"), again},
		"hangs up":       {serve(t, http.HandlerFunc(hangUp)).URL, again},
		"no http":        {"http://" + talk(t, "220 mail.example.com ESMTP\r\n"), again},
		"no tls":         {"https://" + strings.TrimPrefix(serve(t, new(recorder)).URL, "http://"), again},
		"endless header": {"http://" + talk(t, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 2*maxAnswer)+"\r\n\r\n"), again},
	} {
		s := mustOpen(t, "webhook", "url: "+tt.url, testHost(t))
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if got := classOf(err); got != tt.want || err != nil &&
			(!strings.Contains(err.Error(), strings.TrimPrefix(tt.url, "http://")) || len(err.Error()) > 600) {
			t.Errorf("%s: %v, want %s and the destination's address", name, err, tt.want)
		}
	}
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"no such host": {&net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}, blocked},
		"no resolver":  {&net.DNSError{Err: "server misbehaving", Name: "x", IsTemporary: true}, again},
		"dns timeout":  {&net.DNSError{Err: "i/o timeout", Name: "x", IsTimeout: true}, again},
		"verification": {&tls.CertificateVerificationError{Err: errors.New("expired")}, blocked},
		"reset":        {&net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, again},
		"plain alert":  {&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, again},
	} {
		wrapped := fmt.Errorf("proxyconnect: %w", &net.OpError{Op: "dial", Err: tt.err})
		if got := classOf(withClass(classOfFailure(wrapped), "x")); got != tt.want {
			t.Errorf("%s is %s, want %s", name, got, tt.want)
		}
	}
}

// A destination that is slow to say why is still heard for its status; one that accepted is believed at once, whatever
// follows.
func TestAnswersCountBeforeTheirBodiesEnd(t *testing.T) {
	for status, want := range map[int]string{200: accepted, 400: rejected, 503: again} {
		ctx, cancel := context.WithCancel(t.Context())
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.WriteHeader(status)
			io.WriteString(w, "because")
			http.NewResponseController(w).Flush()
			time.AfterFunc(50*time.Millisecond, cancel)
			<-r.Context().Done()
		}))
		s := mustOpen(t, "webhook", "url: "+srv.URL, testHost(t))
		if _, err := s.Deliver(ctx, deliveries(t)[:1]); classOf(err) != want {
			t.Errorf("%d with half a body: %v, want %s", status, err, want)
		}
	}
}

// A destination that makes another protocol of the connection, as no request asks, does not keep an attempt.
func TestSwitchedProtocolEndsTheAttempt(t *testing.T) {
	address := listen(t, func(c net.Conn) {
		c.Read(make([]byte, 1))
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		<-t.Context().Done()
	})
	s := mustOpen(t, "webhook", "url: http://"+address, testHost(t))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := s.Deliver(ctx, deliveries(t)[:1])
		ended <- err
	}()
	select {
	case err := <-ended:
		if classOf(err) != again || !strings.Contains(err.Error(), "101 Switching Protocols") {
			t.Errorf("Deliver = %v, want it to be tried again", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the attempt does not end")
	}
}

// Of an endless answer no more than 512 KiB are read.
func TestAnswersAreReadInPart(t *testing.T) {
	sent := make(chan int, 1)
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		n := 0
		for {
			m, err := io.WriteString(w, strings.Repeat("x", 1<<10))
			if n += m; err != nil || n > 64<<20 {
				break
			}
		}
		sent <- n
	}))
	s := mustOpen(t, "webhook", "url: "+srv.URL, testHost(t))
	_, err := s.Deliver(t.Context(), deliveries(t)[:1])
	if classOf(err) != rejected || len(err.Error()) > maxShown+100 {
		t.Errorf("Deliver = %v, want it rejected, in few words", err)
	}
	if n := <-sent; n > 32<<20 { // buffers of the system lie between
		t.Errorf("the destination could send %d bytes", n)
	}
}

// A dead connection that was kept does not cost an attempt.
func TestDeadConnectionIsReplaced(t *testing.T) {
	var r recorder
	srv := serve(t, &r)
	s := mustOpen(t, "webhook", "url: "+srv.URL, testHost(t))
	for range 3 {
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Error(err)
		}
		srv.CloseClientConnections()
	}
}

// Retry-After is understood in seconds and as a date; what is unreadable or past is no wish.
func TestRetryAfterForms(t *testing.T) {
	for _, tt := range []struct {
		value string
		want  time.Duration
		ok    bool
	}{
		{"30", 30 * time.Second, true},
		{" 120 ", 2 * time.Minute, true},
		{"007", 7 * time.Second, true},
		{"99999999999999999999999", maxRetryAfter, true},
		{"9223372036854775807", maxRetryAfter, true},
		{"Mon, 23 Nov 2026 12:05:00 GMT", 5 * time.Minute, true},
		{"Monday, 23-Nov-26 12:05:00 GMT", 5 * time.Minute, true},
		{"Mon Nov 23 12:05:00 2026", 5 * time.Minute, true},
		{"Mon, 23 Nov 9999 12:05:00 GMT", maxRetryAfter, true},
		{"", 0, false},
		{"0", 0, false},
		{"-5", 0, false},
		{"+5", 0, false},
		{"1.5", 0, false},
		{"soon", 0, false},
		{"30s", 0, false},
		{"Mon, 23 Nov 2026 12:00:00 GMT", 0, false},
		{"Mon, 23 Nov 2026 11:00:00 GMT", 0, false},
		{"Mon, 23 Nov 2026 12:05:00 CET", 0, false},
	} {
		if got, ok := retryAfter(tt.value, monday); got != tt.want || ok != tt.ok {
			t.Errorf("retryAfter(%q) = %v, %v; want %v, %v", tt.value, got, ok, tt.want, tt.ok)
		}
	}
}

// The wish of a destination comes with every refusal, in the error, and keeps its class.
func TestRetryAfterComesWithTheError(t *testing.T) {
	for status, want := range map[int]string{429: again, 503: again, 403: blocked, 302: blocked, 413: rejected,
		200: accepted} {
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", monday.Format(http.TimeFormat)) // years off our clock
			w.Header().Set("Retry-After", monday.Add(time.Minute).Format(http.TimeFormat))
			w.WriteHeader(status)
		}))
		s := mustOpen(t, "webhook", "url: "+srv.URL, testHost(t))
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if classOf(err) != want {
			t.Errorf("%d: %v, want %s", status, err, want)
		}
		if e, ok := errors.AsType[*delivery.RetryAfter](err); want != accepted && (!ok || e.After != time.Minute) {
			t.Errorf("%d: %v, want a RetryAfter of a minute", status, err)
		}
	}
}

// Of several ids that a request may have been given, one short line is kept.
func TestAnswerIDIsOneShortLine(t *testing.T) {
	for _, tt := range []struct {
		header, value, want string
	}{
		{"X-Request-Id", "abc", "abc"},
		{"Request-Id", "a b\tc", "a b c"},
		{"X-Ms-Request-Id", strings.Repeat("x", 500), strings.Repeat("x", 125) + "…"},
		{"X-Unheard-Of", "abc", ""},
	} {
		answer, _ := judge(nil, response{status: 200, header: http.Header{tt.header: {tt.value}}}, "http://x", new(redactor))
		if answer.ID != tt.want {
			t.Errorf("%s: %s gives %q, want %q", tt.header, tt.value, answer.ID, tt.want)
		}
	}
}

// hangUp ends the connection without an answer.
func hangUp(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		conn.Close()
	}
}

// talk returns the address of a server that says one thing to whoever says anything.
func talk(t *testing.T, what string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Read(make([]byte, 1<<10))
			io.WriteString(conn, what)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return l.Addr().String()
}

// A Retry-After never is a wish for the past, nor for more than anybody waits.
func FuzzRetryAfter(f *testing.F) {
	for _, value := range []string{"", "30", "-1", "Mon, 23 Nov 2026 12:05:00 GMT", "99999999999999999999", "1e9"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		after, ok := retryAfter(value, monday)
		if ok != (after > 0) || after < 0 || after > maxRetryAfter {
			t.Errorf("retryAfter(%q) = %v, %v", value, after, ok)
		}
	})
}

// Whatever a destination answers becomes one short printable line without a secret, and a class.
func FuzzJudge(f *testing.F) {
	f.Add(200, "id", "", "", "ok", false)
	f.Add(307, "", "", "https://s3cr3t-token@h/s3cr3t-token", "", false)
	f.Add(422, "s3cr3t-token", "30", "", "no: S3CR3T-TOKEN \x00 s3cr3\x00t-token", true)
	f.Add(503, "\n", "x", "\x7f", "s3cr3t-to", true)
	f.Fuzz(func(t *testing.T, status int, id, after, location, body string, cut bool) {
		redact := new(redactor)
		u, _ := url.Parse("https://user:s3cr3t-token@example.com/hook/s3cr3t-path?key=s3cr3t-query")
		redact.hideURL(u)
		r := response{status, http.Header{"X-Request-Id": {id}, "Retry-After": {after}, "Location": {location}}, body, cut}
		answer, err := judge(classOfStatus(r.status), r, "https://example.com", redact)
		if (err == nil) != (status >= 200 && status <= 299) {
			t.Errorf("%d gave %v", status, err)
		}
		said := fmt.Sprintf("%s %s %v", answer.Status, answer.ID, err)
		if len(said) > 1000 || strings.ContainsFunc(said, func(r rune) bool { return r < ' ' || r == 0x7F }) {
			t.Errorf("said %q", said)
		}
		for _, secret := range []string{"s3cr3t-token", "s3cr3t-path", "s3cr3t-query"} {
			if strings.Contains(strings.ToLower(said), secret) {
				t.Errorf("%s is in %q", secret, said)
			}
		}
	})
}
