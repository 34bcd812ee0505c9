package imds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

const (
	document7 = `{"DocumentIncarnation":7,"Events":[{"EventId":"A"}]}`
	idC       = "602D9444-D2CD-49C7-8624-8643E7171297"
)

// A host is a metadata service without sockets.
type host func(r *http.Request) (status int, header http.Header, body string)

// says is the host that gives this answer to every request.
func says(status int, body string) host {
	return func(*http.Request) (int, http.Header, string) { return status, http.Header{}, body }
}

func (h host) client() *Client { return NewClient("http://azure.test", DefaultAPIVersion, nil, h) }

func (h host) RoundTrip(r *http.Request) (*http.Response, error) {
	status, header, body := h(r)
	if status == 0 {
		return nil, errors.New("no route to host")
	}
	return &http.Response{
		StatusCode: status, Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), Header: header,
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: r,
	}, nil
}

// client returns a client that uses real sockets.
func client(t testing.TB, endpoint string) *Client {
	t.Helper()
	c := NewClient(endpoint, DefaultAPIVersion, nil, nil)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// answering returns a client of a service that h serves on real sockets.
func answering(t testing.TB, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return client(t, srv.URL)
}

func wantPoll(t *testing.T, p Poll, class PollClass, says string) {
	t.Helper()
	valid := class == PollDocument || class == PollUnchanged || class == PollEmpty
	if p.Class != class || valid != (p.Err == nil) {
		t.Errorf("class %d, error %v, want class %d", p.Class, p.Err, class)
		return
	}
	if p.Err != nil {
		wantLine(t, p.Err, says)
	}
}

// wantLine checks that an error says this, in one line of a log.
func wantLine(t *testing.T, err error, says string) {
	t.Helper()
	s := fmt.Sprint(err)
	if !strings.Contains(s, says) || len(s) > 600 || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		t.Errorf("error %q, want %q in one line", s, says)
	}
}

// A known document is not decoded again, unless its bytes or the api-version of the request differ.
func TestKnownDocumentIsNotDecodedAgain(t *testing.T) {
	body := document7
	c := host(func(*http.Request) (int, http.Header, string) { return 200, http.Header{"Etag": {`"7"`}}, body }).client()
	first := c.Poll(t.Context(), "")
	known := Seen{Sum: first.Sum, Version: DefaultAPIVersion, Incarnation: "7", Buffer: new(bytes.Buffer)}
	p := c.PollUnless(t.Context(), "", known)
	wantPoll(t, p, PollDocument, "")
	if !p.Seen || len(p.Document.Events) != 0 || p.Document.Incarnation != "7" || p.ETag != `"7"` {
		t.Errorf("it is %+v, want that it was seen", p)
	}
	other := known
	other.Version = "2017-08-01"
	if p := c.PollUnless(t.Context(), "", other); p.Seen || len(p.Document.Events) != 1 {
		t.Errorf("of another version it is %+v, want the document", p)
	}
	body = strings.Replace(body, "A", "B", 1)
	p = c.PollUnless(t.Context(), "", known)
	if p.Seen || len(p.Document.Events) != 1 || p.Document.Events[0].ID != "B" {
		t.Errorf("the next is %+v, want the document", p)
	}
}

// A poll is a GET with everything that the service requires, and nothing that it refuses.
func TestPollSendsWhatTheServiceRequires(t *testing.T) {
	s := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0", "vm-1"}})
	s.Schedule(imdstest.Event{ID: idC})
	for _, endpoint := range []string{s.URL, s.URL + "/", s.URL + "/vm/vm-1"} {
		c := client(t, endpoint)
		p := c.Poll(t.Context(), "")
		wantPoll(t, p, PollDocument, "")
		d := p.Document
		if len(d.Events) != 1 || d.Events[0].ID != idC || d.Incarnation != "2" || d.APIVersion != "2020-07-01" {
			t.Errorf("from %s: %+v", endpoint, d)
		}
		if p.ETag != "2" || !strings.HasPrefix(string(p.Body), `{"DocumentIncarnation":2,`) {
			t.Errorf("from %s: ETag %q, body %s", endpoint, p.ETag, p.Body)
		}
		wantPoll(t, c.Poll(t.Context(), "other"), PollDocument, "")
	}
	requests := s.Requests()
	if len(requests) != 6 {
		t.Fatalf("%d requests, want 6", len(requests))
	}
	for i, r := range requests {
		path, query := strings.TrimPrefix(r.Path, "/vm/vm-1"), r.Query.Encode()
		if r.Method != "GET" || path != "/metadata/scheduledevents" || query != "api-version=2020-07-01" || r.Body != "" {
			t.Errorf("%s %s?%s with body %q", r.Method, r.Path, query, r.Body)
		}
		if got := r.Header["Metadata"]; !slices.Equal(got, []string{"true"}) {
			t.Errorf("Metadata: %q", got)
		}
		if got, want := r.Header.Get("If-None-Match"), []string{"", "other"}[i%2]; got != want {
			t.Errorf("If-None-Match of request %d: %q, want %q", i, got, want)
		}
		for _, name := range []string{"X-Forwarded-For", "Accept-Encoding", "Authorization", "Cookie"} {
			if r.Header[name] != nil {
				t.Errorf("%s: %q", name, r.Header[name])
			}
		}
	}
}

// An ETag makes a poll conditional: a 304 means no change. It is sent as received, because Azure does not quote it.
func TestETagMakesAPollConditional(t *testing.T) {
	s := imdstest.Serve(t, imdstest.Options{})
	c := client(t, s.URL)
	etag := c.Poll(t.Context(), "").ETag
	if etag != "1" {
		t.Fatalf("ETag %q, want 1", etag)
	}
	wantPoll(t, c.Poll(t.Context(), etag), PollUnchanged, "")
	s.Schedule(imdstest.Event{ID: idC})
	p := c.Poll(t.Context(), etag)
	wantPoll(t, p, PollDocument, "")
	if len(p.Document.Events) != 1 || p.ETag != "2" {
		t.Errorf("%+v, ETag %q", p.Document, p.ETag)
	}
	for _, etag := range []string{`"2"`, `W/"2"`} {
		wantPoll(t, c.Poll(t.Context(), etag), PollUnchanged, "")
	}
	if p := says(200, document7).client().Poll(t.Context(), "1"); p.ETag != "" || p.Class != PollDocument {
		t.Errorf("a service without ETags gives class %d, ETag %q", p.Class, p.ETag)
	}
}

// A 304 to an unconditional request says nothing about the document.
func TestNotModifiedToAnUnconditionalPollIsAFailure(t *testing.T) {
	c := says(http.StatusNotModified, "").client()
	wantPoll(t, c.Poll(t.Context(), ""), PollRetry, "304")
	wantPoll(t, c.Poll(t.Context(), "7"), PollUnchanged, "")
}

// No proxy is used, whatever the environment says. The test runs in its own process, because net/http reads the
// environment once.
func TestNoProxyIsUsed(t *testing.T) {
	const child, far = "FOREWARN_TEST_PROXY", "http://192.0.2.1" // an address for documentation: nobody answers
	if os.Getenv(child) != "" {
		resp, err := http.Get(far + "/control") // that the environment works
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		wantPoll(t, client(t, far).Poll(ctx, ""), PollRetry, "")
		if _, err := client(t, far).Instance(ctx); err == nil {
			t.Error("instance metadata answers")
		}
		return
	}
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
	}))
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), child+"=1", "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL, "NO_PROXY=", "no_proxy=",
		"REQUEST_METHOD=", "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	proxy.Close()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !slices.Equal(asked, []string{"/control"}) {
		t.Errorf("the proxy was asked for %q, want /control alone", asked)
	}
}

// A redirect is never followed. It is a failure that lasts until somebody acts.
func TestRedirectsAreNotFollowed(t *testing.T) {
	for _, code := range []int{301, 302, 303, 307, 308} {
		c := host(func(r *http.Request) (int, http.Header, string) {
			if r.URL.Path == "/other" {
				t.Errorf("%d is followed", code)
			}
			return code, http.Header{"Location": {"/other"}}, ""
		}).client()
		wantPoll(t, c.Poll(t.Context(), ""), PollSettings, strconv.Itoa(code))
		_, err := c.Instance(t.Context())
		wantLine(t, err, strconv.Itoa(code))
	}
}

// Each status means either to retry soon or that the failure lasts until somebody acts. None of them is a document.
func TestStatusDecidesHowSoonToRetry(t *testing.T) {
	for class, statuses := range map[PollClass][]int{
		PollRetry:    {404, 408, 410, 429, 500, 501, 502, 503, 504, 599},
		PollSettings: {201, 204, 206, 300, 400, 401, 402, 403, 405, 407, 418},
	} {
		for _, status := range statuses {
			for _, body := range []string{"", document7, `{"Events":[]}`, "<html>\n<h1>no</h1></html>", "Too many requests"} {
				p := says(status, body).client().Poll(t.Context(), "7")
				wantPoll(t, p, class, strconv.Itoa(status))
				if len(p.Document.Events) > 0 {
					t.Errorf("%d with %q gives events", status, body)
				}
			}
		}
	}
	p := says(500, "pod list is empty\n").client().Poll(t.Context(), "")
	wantPoll(t, p, PollRetry, "500 Internal Server Error: pod list is empty")
}

// Only a complete answer is a document. A poll fails if the answer is truncated, has no length or is something else.
func TestOnlyACompleteAnswerIsADocument(t *testing.T) {
	systemtest.Alone(t)
	const (
		cut, noLength = "read the answer", "no length"
		noDocument    = "not a scheduled events document"
	)
	type fault = imdstest.Fault
	padded := func(n int) fault { return fault{Body: document7 + strings.Repeat(" ", n-len(document7))} }
	for _, tt := range []struct {
		claim string
		fault fault
		class PollClass
		says  string
	}{
		{"as it is", fault{}, PollDocument, ""},
		{"with ISO dates", fault{ISODates: true}, PollDocument, ""},
		{"without a body", fault{Empty: true}, PollEmpty, ""},
		{"with null for Events", fault{Body: `{"DocumentIncarnation":7,"Events":null}`}, PollEmpty, ""},
		{"broken off", fault{Truncate: 40}, PollRetry, cut},
		{"broken off after a byte", fault{Truncate: 1}, PollRetry, cut},
		{"shorter than its Content-Length", fault{ContentLength: 10_000}, PollRetry, cut},
		{"longer than its Content-Length", fault{ContentLength: 30}, PollRetry, noDocument},
		{"ended by the end of the connection", fault{NoLength: true}, PollRetry, noLength},
		{"cut and ended by the end of the connection", fault{NoLength: true, Truncate: 40}, PollRetry, noLength},
		{"nothing, ended by the end of the connection", fault{NoLength: true, Empty: true}, PollRetry, noLength},
		{"a page of a proxy", fault{HTML: true}, PollRetry, noDocument},
		{"no JSON", fault{Body: "!!!" + document7}, PollRetry, noDocument},
		{"JSON without Events", fault{Body: `{"DocumentIncarnation":7}`}, PollRetry, "no Events"},
		{"a refusal with status 200", fault{Body: `{"error":"api-version is invalid"}`}, PollRetry, "no Events"},
		{"a line break alone", fault{Body: "\r\n"}, PollRetry, noDocument},
		{"4 MiB", padded(4 << 20), PollDocument, ""},
		{"a byte more than 4 MiB", padded(4<<20 + 1), PollRetry, "larger than 4 MiB"},
		{"5 MiB", padded(5 << 20), PollRetry, "larger than 4 MiB"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			s := imdstest.Serve(t, imdstest.Options{})
			s.Schedule(imdstest.Event{ID: idC})
			s.SetFault(tt.fault)
			whole := tt.class == PollDocument
			p := client(t, s.URL).Poll(t.Context(), "")
			wantPoll(t, p, tt.class, tt.says)
			s.SetFault(tt.fault)
			doc, err := client(t, s.URL).Document(t.Context())
			if len(p.Document.Events) > 0 != whole || len(doc.Events) > 0 != whole || (err == nil) != whole {
				t.Errorf("Poll gives %d events, Document %d and %v", len(p.Document.Events), len(doc.Events), err)
			}
		})
	}
}

// So it is on connections that break in a way in which the emulator cannot break them.
func TestOnlyACompleteAnswerIsADocumentOnBrokenConnections(t *testing.T) {
	write := func(w http.ResponseWriter, text string) {
		_, _ = io.WriteString(w, text)
		w.(http.Flusher).Flush()
	}
	raw := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, text)
			conn.Close()
		}
	}
	for _, tt := range []struct {
		claim  string
		answer http.HandlerFunc
		class  PollClass
		says   string
	}{
		{"in chunks it is whole", func(w http.ResponseWriter, _ *http.Request) {
			write(w, document7[:20])
			write(w, document7[20:])
		}, PollDocument, ""},
		{"no chunk at all is empty", func(w http.ResponseWriter, _ *http.Request) { write(w, "") }, PollEmpty, ""},
		{"chunks without the last are cut",
			raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(document7), document7)),
			PollRetry, "read the answer"},
		{"an answer of HTTP/1.0 without a length may be cut", raw("HTTP/1.0 200 OK\r\n\r\n" + document7),
			PollRetry, "no length"},
		{"an answer of HTTP/1.0 with its length is whole",
			raw(fmt.Sprintf("HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(document7), document7)), PollDocument, ""},
		{"a compressed one was not asked for", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "\x1f\x8b\x08\x00")
		}, PollRetry, "not a scheduled events document"},
		{"something that is not HTTP is no answer", raw("SSH-2.0-x\r\n"), PollRetry, "malformed HTTP"},
		{"a connection that ends is no answer", raw(""), PollRetry, "EOF"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			wantPoll(t, answering(t, tt.answer).Poll(t.Context(), ""), tt.class, tt.says)
		})
	}
}

// Where nobody listens there is no answer. The error doesn't repeat the address.
func TestNobodyAnswersWhereNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	p := client(t, "http://"+l.Addr().String()).Poll(t.Context(), "")
	wantPoll(t, p, PollRetry, systemtest.Refused.Error())
	if strings.Contains(p.Err.Error(), "api-version") {
		t.Errorf("the error repeats the address: %v", p.Err)
	}
}

// A document comes with its problems, such as an entry without an EventId.
func TestDocumentComesWithItsProblems(t *testing.T) {
	p := says(200, `{"Events":[{"EventId":"A","Resources":7},{}]}`).client().Poll(t.Context(), "")
	wantPoll(t, p, PollDocument, "")
	if d := p.Document; !d.Partial || len(d.Problems) != 2 || len(d.Events) != 1 {
		t.Errorf("%+v", d)
	}
}

// A Retry-After in seconds is kept, up to an hour. An unreadable one is ignored.
func TestRetryAfterIsKept(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "1": time.Second, "120": 2 * time.Minute, "3600": time.Hour, "7200": time.Hour,
		"4294967295": time.Hour, "4294967296": 0, "-5": 0, "1.5": 0, "soon": 0, "Fri, 31 Dec 1999 23:59:59 GMT": 0,
	} {
		c := host(func(*http.Request) (int, http.Header, string) {
			return 429, http.Header{"Retry-After": {value}}, "Too many requests"
		}).client()
		p := c.Poll(t.Context(), "")
		wantPoll(t, p, PollRetry, "429 Too Many Requests: Too many requests")
		if p.RetryAfter != want {
			t.Errorf("Retry-After %q is %v, want %v", value, p.RetryAfter, want)
		}
	}
}

// A poll ends with its context, and its error is the context's cause. A slow answer that is in time counts.
func TestPollEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		azure := imdstest.New(imdstest.Options{})
		c := NewClient("http://azure.test", DefaultAPIVersion, nil, azure.RoundTripper())
		for _, tt := range []struct {
			fault       imdstest.Fault
			limit, took time.Duration
			class       PollClass
			says        string
		}{
			{imdstest.Fault{Hang: true}, 10 * time.Second, 10 * time.Second, PollRetry, "no answer within 10s"},
			{imdstest.Fault{Delay: 2 * time.Minute}, 150 * time.Second, 2 * time.Minute, PollDocument, ""},
			{imdstest.Fault{Delay: 2 * time.Minute}, time.Minute, time.Minute, PollRetry, "no answer within 1m0s"},
			{imdstest.Fault{}, time.Second, 0, PollDocument, ""},
		} {
			azure.ClearFaults()
			azure.SetFault(tt.fault)
			cause := fmt.Errorf("no answer within %v", tt.limit)
			ctx, cancel := context.WithTimeoutCause(t.Context(), tt.limit, cause)
			began := time.Now()
			wantPoll(t, c.Poll(ctx, ""), tt.class, tt.says)
			if took := time.Since(began); took != tt.took {
				t.Errorf("it took %v, want %v", took, tt.took)
			}
			cancel()
		}
	})
}

// A poll also ends with its context when the answer has already begun.
func TestPollEndsWithItsContextDuringTheBody(t *testing.T) {
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, document7[:20])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("no answer in time"))
	defer cancel()
	wantPoll(t, c.Poll(ctx, ""), PollRetry, "no answer in time")
}

// Whatever the service answers, the client does not panic, and its error fits one line of a log.
func FuzzAnswers(f *testing.F) {
	for _, body := range []string{
		"", document7, "<html>", `{"error":"Bad request. api-version is invalid","newest-versions":["2025-04-07"]}`,
		`{"compute":{"name":"vm-0"}}`, "\x80\x80\x80", "\x00\x1b[31m", strings.Repeat("ü", 150), strings.Repeat("\xbf", 300),
		`{"Events":null}`, `{"compute":{"name":{}}}`,
	} {
		for _, status := range []int{200, 304, 400, 404} {
			f.Add(status, []byte(body), "7", "120")
		}
	}
	f.Fuzz(func(t *testing.T, status int, body []byte, etag, retryAfter string) {
		if status == 0 {
			return
		}
		c := host(func(*http.Request) (int, http.Header, string) {
			return status, http.Header{"Etag": {etag}, "Retry-After": {retryAfter}}, string(body)
		}).client()
		p := c.Poll(t.Context(), "")
		wantPoll(t, p, p.Class, "")
		valid := p.Class == PollDocument || p.Class == PollEmpty
		if p.Class == PollUnchanged || valid && status != 200 || p.Class == PollDocument && len(body) == 0 {
			t.Errorf("%d with %q is of class %d", status, body, p.Class)
		}
		if n := len(p.Document.Events); n > 0 && p.Class != PollDocument {
			t.Errorf("%d with %q is of class %d with %d events", status, body, p.Class, n)
		}
		if p.RetryAfter < 0 || p.RetryAfter > time.Hour {
			t.Errorf("Retry-After %q is %v", retryAfter, p.RetryAfter)
		}
		o, err := c.Instance(t.Context())
		if (err == nil) == (o == Observer{}) {
			t.Errorf("%d with %q is %+v, %v", status, body, o, err)
		}
		wantLine(t, err, "")
	})
}
