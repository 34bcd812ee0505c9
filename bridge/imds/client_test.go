package imds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

const document7 = `{"DocumentIncarnation":7,"Events":[{"EventId":"A"}]}`

// client returns a client that uses real sockets.
const idC = "602D9444-D2CD-49C7-8624-8643E7171297"

func client(t testing.TB, endpoint string) *Client {
	t.Helper()
	c := NewClient(endpoint, DefaultAPIVersion, slog.New(slog.DiscardHandler), nil)
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// answering returns a client of a service that h serves on real sockets.
func answering(t testing.TB, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return client(t, srv.URL)
}

// A hostFunc is a metadata service without sockets.
type hostFunc func(*http.Request) (status int, header http.Header, body string)

func (f hostFunc) RoundTrip(r *http.Request) (*http.Response, error) {
	status, header, body := f(r)
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{
		StatusCode: status, Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), Header: header,
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: r,
	}, nil
}

func wantPoll(t *testing.T, p Poll, class PollClass, says string) {
	t.Helper()
	valid := class == PollDocument || class == PollUnchanged || class == PollEmpty
	switch {
	case p.Class != class, valid != (p.Err == nil):
		t.Errorf("class %d, error %v, want class %d", p.Class, p.Err, class)
	case p.Err != nil && (!strings.Contains(p.Err.Error(), says) || strings.Contains(p.Err.Error(), "\n") || len(p.Err.Error()) > 600):
		t.Errorf("error %q, want %q in one line", p.Err, says)
	}
}

// A known document is not decoded again, unless its bytes or the api-version of the request differ.
func TestKnownDocumentIsNotDecodedAgain(t *testing.T) {
	body := document7
	host := hostFunc(func(*http.Request) (int, http.Header, string) { return 200, http.Header{"Etag": {`"7"`}}, body })
	c := NewClient("http://azure", DefaultAPIVersion, slog.New(slog.DiscardHandler), host)
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
	if p := c.PollUnless(t.Context(), "", known); p.Seen || len(p.Document.Events) != 1 || p.Document.Events[0].ID != "B" {
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
		if d := p.Document; len(d.Events) != 1 || d.Events[0].ID != idC || d.Incarnation != "2" || d.APIVersion != "2020-07-01" || p.ETag != "2" {
			t.Errorf("from %s: %+v, ETag %q", endpoint, d, p.ETag)
		}
		if want := `{"DocumentIncarnation":2,`; !strings.HasPrefix(string(p.Body), want) {
			t.Errorf("body %s", p.Body)
		}
		wantPoll(t, c.Poll(t.Context(), "other"), PollDocument, "")
	}
	requests := s.Requests()
	if len(requests) != 6 {
		t.Fatalf("%d requests, want 6", len(requests))
	}
	for i, r := range requests {
		if r.Method != "GET" || !strings.HasSuffix(r.Path, "/metadata/scheduledevents") || r.Query.Encode() != "api-version=2020-07-01" || r.Body != "" {
			t.Errorf("%s %s?%s with body %q", r.Method, r.Path, r.Query.Encode(), r.Body)
		}
		if got := r.Header["Metadata"]; !slices.Equal(got, []string{"true"}) {
			t.Errorf("Metadata: %q", got)
		}
		if got := r.Header.Get("If-None-Match"); got != map[bool]string{true: "", false: "other"}[i%2 == 0] {
			t.Errorf("If-None-Match of request %d: %q", i, got)
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
	without := answering(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, document7) })
	if p := without.Poll(t.Context(), "1"); p.ETag != "" || p.Class != PollDocument {
		t.Errorf("a service without ETags gives class %d, ETag %q", p.Class, p.ETag)
	}
}

// A 304 to an unconditional request says nothing about the document.
func TestNotModifiedToAnUnconditionalPollIsAFailure(t *testing.T) {
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })
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
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked = append(asked, r.URL.Path) }))
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
		var followed atomic.Bool
		c := answering(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/other" {
				followed.Store(true)
				_, _ = io.WriteString(w, document7)
				return
			}
			http.Redirect(w, r, "/other", code)
		})
		wantPoll(t, c.Poll(t.Context(), ""), PollSettings, strconv.Itoa(code))
		if _, err := c.Instance(t.Context()); err == nil || !strings.Contains(err.Error(), strconv.Itoa(code)) {
			t.Errorf("instance metadata after %d: %v", code, err)
		}
		if followed.Load() {
			t.Errorf("%d is followed", code)
		}
	}
}

// Each status means either to retry soon or that the failure lasts until somebody acts. None of them is a document.
func TestStatusDecidesHowSoonToRetry(t *testing.T) {
	for status, class := range map[int]PollClass{
		404: PollRetry, 408: PollRetry, 410: PollRetry, 429: PollRetry, 500: PollRetry, 501: PollRetry, 502: PollRetry, 503: PollRetry, 504: PollRetry, 599: PollRetry,
		400: PollSettings, 401: PollSettings, 402: PollSettings, 403: PollSettings, 405: PollSettings, 407: PollSettings, 418: PollSettings,
		201: PollSettings, 204: PollSettings, 206: PollSettings, 300: PollSettings,
	} {
		for _, body := range []string{"", document7, `{"Events":[]}`, "<html>\n<h1>no</h1></html>", "Too many requests"} {
			c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("ETag", "7")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, body)
			})
			p := c.Poll(t.Context(), "7")
			wantPoll(t, p, class, strconv.Itoa(status))
			if len(p.Document.Events) > 0 {
				t.Errorf("%d with %q gives events", status, body)
			}
		}
	}
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "pod list is empty", http.StatusInternalServerError)
	})
	wantPoll(t, c.Poll(t.Context(), ""), PollRetry, "500 Internal Server Error: pod list is empty")
}

// Only a complete answer is a document. A poll fails if the answer is truncated, has no length or is something else.
func TestOnlyACompleteAnswerIsADocument(t *testing.T) {
	systemtest.Alone(t)
	padded := func(n int) []byte { return append([]byte(document7), bytes.Repeat([]byte{' '}, n-len(document7))...) }
	for _, tt := range []struct {
		claim    string
		document []byte // nil: as it is
		fault    imdstest.Fault
		class    PollClass
		says     string
	}{
		{"as it is", nil, imdstest.Fault{}, PollDocument, ""},
		{"with ISO dates", nil, imdstest.Fault{ISODates: true}, PollDocument, ""},
		{"without a body", nil, imdstest.Fault{Empty: true}, PollEmpty, ""},
		{"with null for Events", []byte(`{"DocumentIncarnation":7,"Events":null}`), imdstest.Fault{}, PollEmpty, ""},
		{"broken off", nil, imdstest.Fault{Truncate: 40}, PollRetry, "read the answer"},
		{"broken off after a byte", nil, imdstest.Fault{Truncate: 1}, PollRetry, "read the answer"},
		{"shorter than its Content-Length", nil, imdstest.Fault{ContentLength: 10_000}, PollRetry, "read the answer"},
		{"longer than its Content-Length", nil, imdstest.Fault{ContentLength: 30}, PollRetry, "not a scheduled events document"},
		{"ended by the end of the connection", nil, imdstest.Fault{NoLength: true}, PollRetry, "no length"},
		{"cut and ended by the end of the connection", nil, imdstest.Fault{NoLength: true, Truncate: 40}, PollRetry, "no length"},
		{"nothing, ended by the end of the connection", nil, imdstest.Fault{NoLength: true, Empty: true}, PollRetry, "no length"},
		{"a page of a proxy", nil, imdstest.Fault{HTML: true}, PollRetry, "not a scheduled events document"},
		{"no JSON", nil, imdstest.Fault{Body: "!!!" + document7}, PollRetry, "not a scheduled events document"},
		{"JSON without Events", nil, imdstest.Fault{Body: `{"DocumentIncarnation":7}`}, PollRetry, "no Events"},
		{"a refusal with status 200", nil, imdstest.Fault{Body: `{"error":"Bad request. api-version is invalid"}`}, PollRetry, "no Events"},
		{"a line break alone", []byte("\r\n"), imdstest.Fault{}, PollRetry, "not a scheduled events document"},
		{"4 MiB", padded(4 << 20), imdstest.Fault{}, PollDocument, ""},
		{"a byte more than 4 MiB", padded(4<<20 + 1), imdstest.Fault{}, PollRetry, "larger than 4 MiB"},
		{"5 MiB", padded(5 << 20), imdstest.Fault{}, PollRetry, "larger than 4 MiB"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			s := imdstest.Serve(t, imdstest.Options{})
			s.Schedule(imdstest.Event{ID: idC})
			s.SetDocument(tt.document)
			s.SetFault(tt.fault)
			p := client(t, s.URL).Poll(t.Context(), "")
			wantPoll(t, p, tt.class, tt.says)
			if n := len(p.Document.Events); (n > 0) != (tt.class == PollDocument) {
				t.Errorf("%d events", n)
			}
			s.SetFault(tt.fault)
			doc, err := client(t, s.URL).Document(t.Context())
			if whole := tt.class == PollDocument; (err == nil) != whole || (len(doc.Events) > 0) != whole {
				t.Errorf("Document gives %d events, %v", len(doc.Events), err)
			}
		})
	}
}

// These are the broken answers that the emulator cannot send.
func TestOnlyACompleteAnswerIsADocumentOnBrokenConnections(t *testing.T) {
	raw := func(w http.ResponseWriter, text string) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, text)
		conn.Close()
	}
	for _, tt := range []struct {
		claim  string
		answer http.HandlerFunc
		class  PollClass
		says   string
	}{
		{"in chunks it is whole", func(w http.ResponseWriter, _ *http.Request) {
			for _, part := range strings.SplitAfter(document7, ":") {
				_, _ = io.WriteString(w, part)
				w.(http.Flusher).Flush()
			}
		}, PollDocument, ""},
		{"no chunk at all is empty", func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }, PollEmpty, ""},
		{"chunks without the last are cut", func(w http.ResponseWriter, _ *http.Request) {
			raw(w, fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(document7), document7))
		}, PollRetry, "read the answer"},
		{"an answer of HTTP/1.0 without a length may be cut", func(w http.ResponseWriter, _ *http.Request) {
			raw(w, "HTTP/1.0 200 OK\r\n\r\n"+document7)
		}, PollRetry, "no length"},
		{"an answer of HTTP/1.0 with its length is whole", func(w http.ResponseWriter, _ *http.Request) {
			raw(w, fmt.Sprintf("HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(document7), document7))
		}, PollDocument, ""},
		{"a compressed one was not asked for", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "\x1f\x8b\x08\x00")
		}, PollRetry, "not a scheduled events document"},
		{"something that is not HTTP is no answer", func(w http.ResponseWriter, _ *http.Request) { raw(w, "SSH-2.0-x\r\n") }, PollRetry, "malformed HTTP"},
		{"a connection that ends is no answer", func(w http.ResponseWriter, _ *http.Request) { raw(w, "") }, PollRetry, "EOF"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			wantPoll(t, answering(t, tt.answer).Poll(t.Context(), ""), tt.class, tt.says)
		})
	}
	t.Run("where nobody listens there is no answer", func(t *testing.T) {
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
	})
}

// A document comes with its problems, such as an entry without an EventId.
func TestDocumentComesWithItsProblems(t *testing.T) {
	s := imdstest.Serve(t, imdstest.Options{})
	s.SetDocument([]byte(`{"Events":[{"EventId":"A","Resources":7},{}]}`))
	p := client(t, s.URL).Poll(t.Context(), "")
	wantPoll(t, p, PollDocument, "")
	if d := p.Document; !d.Partial || len(d.Problems) != 2 || len(d.Events) != 1 {
		t.Errorf("%+v", d)
	}
}

// A Retry-After in seconds is kept, up to an hour. An unreadable one is ignored.
func TestRetryAfterIsKept(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"": 0, "0": 0, "1": time.Second, "120": 2 * time.Minute, "3600": time.Hour, "7200": time.Hour, "4294967295": time.Hour,
		"4294967296": 0, "-5": 0, "1.5": 0, "soon": 0, "Fri, 31 Dec 1999 23:59:59 GMT": 0,
	} {
		s := imdstest.Serve(t, imdstest.Options{})
		s.SetFault(imdstest.Fault{Status: 429, RetryAfter: header})
		p := client(t, s.URL).Poll(t.Context(), "")
		wantPoll(t, p, PollRetry, "429 Too Many Requests: Too many requests")
		if p.RetryAfter != want {
			t.Errorf("Retry-After %q is %v, want %v", header, p.RetryAfter, want)
		}
	}
}

// A poll ends with its context, and its error is the context's cause. A slow answer that is in time counts.
func TestPollEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		azure := imdstest.New(imdstest.Options{})
		c := NewClient("http://azure.test", DefaultAPIVersion, slog.New(slog.DiscardHandler), azure.RoundTripper())
		poll := func(limit time.Duration) (Poll, time.Duration) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("no answer within %v", limit))
			defer cancel()
			began := time.Now()
			return c.Poll(ctx, ""), time.Since(began)
		}
		azure.SetFault(imdstest.Fault{Hang: true})
		p, took := poll(10 * time.Second)
		wantPoll(t, p, PollRetry, "no answer within 10s")
		if took != 10*time.Second {
			t.Errorf("it took %v", took)
		}
		azure.SetFault(imdstest.Fault{Delay: 2 * time.Minute})
		p, took = poll(150 * time.Second)
		wantPoll(t, p, PollDocument, "")
		if took != 2*time.Minute {
			t.Errorf("it took %v", took)
		}
		p, _ = poll(time.Minute)
		wantPoll(t, p, PollRetry, "no answer within 1m0s")
		azure.ClearFaults()
		p, _ = poll(time.Second)
		wantPoll(t, p, PollDocument, "")
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

// Instance metadata identifies the VM. Fields that it leaves out are unknown.
func TestInstanceReturnsTheIdentityOfTheVM(t *testing.T) {
	s := imdstest.Serve(t, imdstest.Options{VMs: []string{"web_0", "web_1"}, Instance: imdstest.Instance{
		SubscriptionID: "8d10da13-8125-4ba9-a717-bf7490507b3d", ResourceGroup: "prod", Location: "northeurope", Zone: "2", ScaleSet: "web",
		Priority: "Spot", EvictionPolicy: "Delete", VMIDs: map[string]string{"web_1": "02aab8a4-74ef-476e-8182-f6d2ba4166a6"},
	}})
	got, err := client(t, s.URL+"/vm/web_1").Instance(t.Context())
	want := Observer{
		Name: "web_1", VMID: "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
		ResourceID:     "/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/prod/providers/Microsoft.Compute/virtualMachineScaleSets/web/virtualMachines/1",
		SubscriptionID: "8d10da13-8125-4ba9-a717-bf7490507b3d", ResourceGroup: "prod", Location: "northeurope", Zone: "2", ScaleSet: "web",
		OSType: "Linux", Priority: "Spot", EvictionPolicy: "Delete",
	}
	if err != nil || got != want {
		t.Errorf("Instance = %+v, %v, want %+v", got, err, want)
	}
	r := s.Requests()[0]
	if r.Method != "GET" || r.Path != "/vm/web_1/metadata/instance" || r.Header.Get("Metadata") != "true" || r.Query.Encode() != "api-version=2021-02-01" {
		t.Errorf("%s %s?%s, Metadata %q", r.Method, r.Path, r.Query.Encode(), r.Header.Get("Metadata"))
	}

	alone := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	if o, err := client(t, alone.URL).Instance(t.Context()); err != nil || o.Name != "vm-0" || o.ScaleSet != "" || o.Zone != "" || o.VMID == "" {
		t.Errorf("Instance = %+v, %v", o, err)
	}
	nameless := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"compute":{"vmId":"x","name":""}}`)
	})
	if o, err := nameless.Instance(t.Context()); err != nil || o != (Observer{VMID: "x"}) {
		t.Errorf("without a name: %+v, %v", o, err)
	}
}

// An answer that is not instance metadata is an AnswerError, so that callers can tell it from no answer.
func TestInstanceRefusesOtherAnswers(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		status int
		body   string
		says   string
	}{
		{"not found", 404, `API is not found: Path="/metadata/instance"`, "404 Not Found: API is not found"},
		{"away", 503, "", "503 Service Unavailable: no text"},
		{"refused in all versions", 400, `{"error":"Bad request. api-version is invalid"}`, "400 Bad Request"},
		{"a page", 200, "<!DOCTYPE html>\n<html>", "not instance metadata: <!DOCTYPE html> <html>"},
		{"nothing", 200, "", "not instance metadata: no text"},
		{"null", 200, "null", "without a name"},
		{"an array", 200, "[]", "not instance metadata"},
		{"an empty object", 200, "{}", "without a name"},
		{"no compute", 200, `{"network":{}}`, "without a name"},
		{"null for compute", 200, `{"compute":null}`, "without a name"},
		{"text for compute", 200, `{"compute":"vm-0"}`, "not instance metadata"},
		{"a number for a name", 200, `{"compute":{"name":7}}`, "not instance metadata"},
		{"a document", 200, document7, "without a name"},
		{"cut", 200, `{"compute":{"name":"vm-0"`, "not instance metadata"},
		{"too large", 200, `{"compute":{"name":"` + strings.Repeat("x", 5<<20) + `"}}`, "not instance metadata"},
	} {
		t.Run(tt.claim+" is refused", func(t *testing.T) {
			c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			o, err := c.Instance(t.Context())
			var answer *AnswerError
			if o != (Observer{}) || !errors.As(err, &answer) || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 300 {
				t.Errorf("Instance = %+v, %v, want an answer that is refused with %s", o, err, tt.says)
			}
		})
	}
	t.Run("one that is broken off is no answer", func(t *testing.T) {
		s := imdstest.Serve(t, imdstest.Options{})
		s.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Truncate: 40})
		_, err := client(t, s.URL).Instance(t.Context())
		var answer *AnswerError
		if err == nil || errors.As(err, &answer) {
			t.Errorf("Instance = %v", err)
		}
	})
	t.Run("no answer is none", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		_, err := client(t, "http://127.0.0.1:1").Instance(ctx)
		var answer *AnswerError
		if err == nil || errors.As(err, &answer) || !strings.Contains(err.Error(), "enough") {
			t.Errorf("Instance = %v", err)
		}
	})
}

// Whatever the service answers, the client does not panic, and its error fits one line of a log.
func FuzzAnswers(f *testing.F) {
	for _, body := range []string{
		"", document7, "<html>", `{"error":"Bad request. api-version is invalid","newest-versions":["2025-04-07"]}`, `{"compute":{"name":"vm-0"}}`,
		"\x80\x80\x80", "\x00\x1b[31m", strings.Repeat("ü", 150), strings.Repeat("\xbf", 300), `{"Events":null}`, `{"compute":{"name":{}}}`,
	} {
		for _, status := range []int{200, 304, 400, 404} {
			f.Add(status, []byte(body), "7", "120")
		}
	}
	f.Fuzz(func(t *testing.T, status int, body []byte, etag, retryAfter string) {
		h := hostFunc(func(*http.Request) (int, http.Header, string) {
			return status, http.Header{"Etag": {etag}, "Retry-After": {retryAfter}}, string(body)
		})
		c := NewClient("http://azure.test", DefaultAPIVersion, slog.New(slog.DiscardHandler), h)
		fits := func(err error) {
			t.Helper()
			s := err.Error()
			if len(s) > 1000 || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
				t.Errorf("the error does not fit a line: %q", s)
			}
		}
		p := c.Poll(t.Context(), "")
		switch p.Class {
		case PollDocument:
			if status != 200 || p.Err != nil || len(body) == 0 {
				t.Errorf("%d with %q is a document, %v", status, body, p.Err)
			}
		case PollEmpty:
			if status != 200 || p.Err != nil || len(p.Document.Events) > 0 {
				t.Errorf("%d with %q is empty, %v", status, body, p.Err)
			}
		case PollUnchanged:
			t.Errorf("%d to an unconditional poll is no change", status)
		default:
			if p.Err == nil || len(p.Document.Events) > 0 {
				t.Fatalf("%d with %q fails with %v and %d events", status, body, p.Err, len(p.Document.Events))
			}
			fits(p.Err)
		}
		if p.RetryAfter < 0 || p.RetryAfter > time.Hour {
			t.Errorf("Retry-After %q is %v", retryAfter, p.RetryAfter)
		}
		o, err := c.Instance(t.Context())
		if (err == nil) == (o == Observer{}) {
			t.Errorf("%d with %q is %+v, %v", status, body, o, err)
		}
		if err != nil {
			fits(err)
		}
	})
}

// The hint for an endpoint that never answered asks what may be wrong with its address.
func TestTheHintForAnEndpointAsksWhatMayBeWrong(t *testing.T) {
	for endpoint, want := range map[string]string{
		DefaultEndpoint: "is this an Azure VM?", "http://azure.test": "is imds.endpoint right",
	} {
		if hint := EndpointHint(endpoint); !strings.Contains(hint, want) {
			t.Errorf("the hint for %s is %q, want that it asks %q", endpoint, hint, want)
		}
	}
}
