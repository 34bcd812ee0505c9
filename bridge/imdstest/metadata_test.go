package imdstest

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	refusedHeader     = `{"error":"Bad request. Required metadata header not specified"}`
	refusedEvents     = `{"error":"Bad request. api-version is invalid or was not specified in the request. For more information refer to aka.ms/azureimds","newest-versions":["2024-07-09","2020-07-01","2019-08-01"]}`
	refusedInstance   = `{"error":"Bad request. api-version is invalid or was not specified in the request. For more information refer to aka.ms/azureimds","newest-versions":["2025-04-07","2024-07-17","2024-03-15"]}`
	none              = `{"DocumentIncarnation":1,"Events":[]}`
	refusedForwarding = `{"error":"Bad request. Request must not have an X-Forwarded-For header"}`
)

// Each invalid request is refused as Azure refuses it, with the same text.
func TestInvalidRequestsAreRefusedAsByAzure(t *testing.T) {
	for _, tt := range []struct {
		name   string
		method string
		target string
		header []string
		status int
		body   string
	}{
		{"healthy", "GET", "/metadata/scheduledevents?api-version=2020-07-01", nil, 200, none},
		{"header in capitals", "GET", "/metadata/scheduledevents?api-version=2020-07-01", []string{"Metadata", "True"}, 200, none},
		{"no header", "GET", "/metadata/scheduledevents?api-version=2020-07-01", []string{"Metadata", ""}, 400, refusedHeader},
		{"header false", "GET", "/metadata/scheduledevents?api-version=2020-07-01", []string{"Metadata", "false"}, 400, refusedHeader},
		{"no header on POST", "POST", "/metadata/scheduledevents?api-version=2020-07-01", []string{"Metadata", ""}, 400, refusedHeader},
		{"no header in the preview", "GET", "/metadata/scheduledevents?api-version=2017-03-01", []string{"Metadata", ""}, 200, none},
		{"forwarded", "GET", "/metadata/scheduledevents?api-version=2020-07-01", []string{"X-Forwarded-For", "10.0.0.1"}, 400, refusedForwarding},
		{"no version", "GET", "/metadata/scheduledevents", nil, 400, refusedEvents},
		{"a version of the instance", "GET", "/metadata/scheduledevents?api-version=2021-02-01", nil, 400, refusedEvents},
		{"a version of the events", "GET", "/metadata/instance?api-version=2020-07-01", nil, 400, refusedInstance},
		{"version twice", "GET", "/metadata/scheduledevents?api-version=2020-07-01&api-version=2020-07-01", nil, 400,
			`{"error":"Bad request. Query parameter 'api-version' was specified more than once"}`},
		{"unknown parameter", "GET", "/metadata/scheduledevents?api-version=2020-07-01&format=json", nil, 200, none},
		{"the path's case", "GET", "/Metadata/scheduledEvents?api-version=2017-08-01", nil, 200, none},
		{"the oldest path", "GET", "/metadata/latest/scheduledevents", []string{"Metadata", ""}, 200, none},
		{"the mixed one", "GET", "/metadata/latest/scheduledevents?api-version=2017-08-01", nil, 200, none},
		{"the mixed one without header", "GET", "/metadata/latest/scheduledevents?api-version=2017-08-01", []string{"Metadata", ""}, 400, refusedHeader},
		{"unknown path", "GET", "/metadata/scheduled?api-version=2020-07-01", nil, 404,
			`API is not found: Path="/metadata/scheduled", Method="GET"`},
		{"root", "GET", "/", nil, 404, `API is not found: Path="/", Method="GET"`},
		{"wrong verb", "DELETE", "/metadata/scheduledevents?api-version=2020-07-01", nil, 405,
			`Http method is not allowed: Path="/metadata/scheduledevents"`},
		{"wrong verb", "POST", "/metadata/instance?api-version=2021-02-01", nil, 405,
			`Http method is not allowed: Path="/metadata/instance"`},
		{"unknown VM", "GET", "/vm/other/metadata/scheduledevents?api-version=2020-07-01", nil, 404,
			`API is not found: Path="/vm/other/metadata/scheduledevents", Method="GET"`},
	} {
		resp := ask(New(Options{}), tt.method, tt.target, "", tt.header...)
		if got := text(resp); resp.StatusCode != tt.status || got != tt.body {
			t.Errorf("%s: %d %s\nwant %d %s", tt.name, resp.StatusCode, got, tt.status, tt.body)
		}
		kind := "application/json; charset=utf-8"
		if tt.status == 404 || tt.status == 405 {
			kind = "text/plain; charset=utf-8"
		}
		h := resp.Header
		if h.Get("Content-Type") != kind || !strings.HasPrefix(h.Get("Server"), "IMDS/") || h.Get("X-Ms-Request-Id") == "" {
			t.Errorf("%s: headers %v", tt.name, h)
		}
	}
}

// A lax server needs no headers.
func TestLaxServerNeedsNoHeaders(t *testing.T) {
	resp := ask(New(Options{Lax: true}), "GET", eventsURL, "", "Metadata", "", "X-Forwarded-For", "10.0.0.1")
	if resp.StatusCode != 200 {
		t.Errorf("%d, want 200", resp.StatusCode)
	}
}

// The oldest path without an api-version answers as the preview.
func TestOldestPathAnswersAsThePreview(t *testing.T) {
	s := New(Options{})
	s.Schedule(Event{})
	got := text(ask(s, "GET", "/metadata/latest/scheduledevents", ""))
	if got != document(s, preview) || !strings.Contains(got, `["_vm_0"]`) || strings.Contains(got, "EventSource") {
		t.Errorf("got %s, want %s", got, document(s, preview))
	}
}

// The list of api-versions is that of instance metadata, and needs no api-version itself.
func TestVersionsAreListed(t *testing.T) {
	var list struct{ APIVersions []string }
	if err := json.Unmarshal([]byte(text(ask(New(Options{}), "GET", "/metadata/versions", ""))), &list); err != nil {
		t.Fatal(err)
	}
	if n := len(list.APIVersions); n < 30 || list.APIVersions[0] != "2017-03-01" || list.APIVersions[n-1] != "2025-04-07" {
		t.Errorf("got %v", list.APIVersions)
	}
	if resp := ask(New(Options{}), "GET", "/metadata/versions", "", "Metadata", ""); resp.StatusCode != 400 {
		t.Errorf("without header %d, want 400", resp.StatusCode)
	}
}

// The rate limit applies to each VM separately. It counts all requests except those for tokens, and ends after a
// second.
func TestRateLimitIsPerVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{VMs: []string{"a", "b"}, RateLimit: 5})
		one := "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
		want := func(target string, status int) {
			t.Helper()
			resp := ask(s, "GET", target, "")
			body := text(resp)
			if resp.StatusCode != status || (status == 429 && body != "Too many requests") {
				t.Errorf("%s: %d %s, want %d", target, resp.StatusCode, body, status)
			}
		}
		for range 4 {
			want(eventsURL, 200)
		}
		want(one, 200)
		want(eventsURL, 429)
		want(one, 429)
		want("/vm/b"+one, 200)
		want("/metadata/identity/oauth2/token?api-version=2018-02-01&resource=x", 200)
		time.Sleep(time.Second)
		want(eventsURL, 200)
	})
}

// With a rate limit, a VM gets at most 20 tokens a second and 5 at once. Each VM has its own limit.
func TestTokensHaveALimitOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const token = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=x"
		s := New(Options{VMs: []string{"a", "b"}, RateLimit: 5})
		answers := func(n int) map[int]int {
			var mu sync.Mutex
			var all sync.WaitGroup
			got := make(map[int]int) // by status
			for range n {
				all.Go(func() {
					resp := ask(s, "GET", token, "")
					mu.Lock()
					defer mu.Unlock()
					got[resp.StatusCode]++
				})
			}
			all.Wait()
			return got
		}
		for range 20 {
			if got := answers(1); got[200] != 1 {
				t.Fatalf("one at a time: %v", got)
			}
		}
		if got := answers(1); got[429] != 1 {
			t.Errorf("the 21st: %v, want a 429", got)
		}
		if resp := ask(s, "GET", "/vm/b"+token, ""); resp.StatusCode != 200 {
			t.Errorf("another VM's first: %d", resp.StatusCode)
		}
		time.Sleep(time.Second)
		s.SetFault(Fault{Path: Identity, Delay: time.Minute})
		if got := answers(7); got[200] != 5 || got[429] != 2 {
			t.Errorf("seven at once: %v, want five answered", got)
		}
		if got := answers(5); got[200] != 5 {
			t.Errorf("five after that: %v", got)
		}
	})
}

// Each request to the metadata endpoint is recorded, whatever the answer.
func TestRequestsAreRecorded(t *testing.T) {
	at := time.Date(2026, 11, 21, 4, 10, 0, 0, time.UTC)
	s := New(Options{Now: func() time.Time { return at }})
	ask(s, "GET", "/nowhere?a=1", "", "If-None-Match", "7")
	ask(s, "POST", "/metadata/scheduledevents", "{}")
	got := s.Requests()
	if len(got) != 2 {
		t.Fatalf("%d requests, want 2", len(got))
	}
	r := got[0]
	if r.Method != "GET" || r.Path != "/nowhere" || r.Query.Get("a") != "1" || r.Header.Get("If-None-Match") != "7" || !r.Time.Equal(at) {
		t.Errorf("got %+v", r)
	}
	if got[1].Body != "{}" {
		t.Errorf("body %q, want {}", got[1].Body)
	}
	before := at
	at = at.Add(time.Second)
	ask(s, "GET", "/later", "")
	if got := s.RequestsAfter(before); len(got) != 1 || got[0].Path != "/later" {
		t.Errorf("after the first two came %+v, want one more", got)
	}
	if got := s.RequestsAfter(at); len(got) != 0 {
		t.Errorf("after the last came %+v", got)
	}
	for range maxRequests {
		ask(s, "GET", "/", "")
	}
	if got := s.Requests(); len(got) > maxRequests || got[len(got)-1].Path != "/" {
		t.Errorf("%d requests, want %d at most", len(got), maxRequests)
	}
}
