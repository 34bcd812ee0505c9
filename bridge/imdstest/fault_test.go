package imdstest

import (
	"encoding/json"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// Each fault changes the answer in its own way.
func TestFaultsChangeTheAnswer(t *testing.T) {
	at := time.Date(2016, 9, 19, 18, 29, 47, 0, time.UTC)
	for _, tt := range []struct {
		name   string
		fault  Fault
		status int
		kind   string
		body   string
	}{
		{"status", Fault{Status: 503}, 503, jsonType, ""},
		{"status and body", Fault{Status: 410, Body: "gone"}, 410, jsonType, "gone"},
		{"the limiter's", Fault{Status: 429}, 429, textType, "Too many requests"},
		{"body", Fault{Body: "!!!{}"}, 200, jsonType, "!!!{}"},
		{"empty", Fault{Empty: true}, 200, jsonType, ""},
		{"a proxy's page", Fault{Status: 502, HTML: true}, 502, "text/html; charset=utf-8", proxyPage},
		{"a page that looks well", Fault{HTML: true}, 200, "text/html; charset=utf-8", proxyPage},
		{"ISO dates", Fault{ISODates: true}, 200, jsonType,
			`{"DocumentIncarnation":2,"Events":[{"EventId":"A","EventStatus":"Scheduled","EventType":"Reboot",` +
				`"ResourceType":"VirtualMachine","Resources":["vm_0"],"NotBefore":"2016-09-19T18:29:47Z"}]}`},
		{"count", Fault{Incarnation: 7}, 200, jsonType,
			`{"DocumentIncarnation":7,"Events":[{"EventId":"A","EventStatus":"Scheduled","EventType":"Reboot",` +
				`"ResourceType":"VirtualMachine","Resources":["vm_0"],"NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT"}]}`},
	} {
		s := New(Options{})
		s.Schedule(Event{ID: "A", NotBefore: at})
		s.SetFault(tt.fault)
		resp := ask(s, "GET", "/metadata/scheduledevents?api-version=2017-08-01", "")
		body, kind := text(resp), resp.Header.Get("Content-Type")
		if resp.StatusCode != tt.status || kind != tt.kind || body != tt.body {
			t.Errorf("%s: %d %s %s\nwant %d %s %s", tt.name, resp.StatusCode, kind, body, tt.status, tt.kind, tt.body)
		}
	}
}

// A fault affects one endpoint and no other.
func TestFaultAffectsOneEndpoint(t *testing.T) {
	const (
		instance = "/metadata/instance?api-version=2021-02-01"
		token    = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=x"
	)
	for _, endpoint := range []string{ScheduledEvents, Approvals, InstanceFacts, Identity} {
		s := New(Options{})
		e := s.Schedule(Event{})
		s.SetFault(Fault{Path: endpoint, Status: 500, RetryAfter: "soon"})
		for _, tt := range []struct{ endpoint, method, path, body string }{
			{ScheduledEvents, "GET", eventsURL, ""},
			{Approvals, "POST", eventsURL, `{"StartRequests":[{"EventId":"` + e.ID + `"}]}`},
			{InstanceFacts, "GET", instance, ""},
			{Identity, "GET", token, ""},
		} {
			resp := ask(s, tt.method, tt.path, tt.body)
			spoilt := resp.StatusCode == 500 && resp.Header.Get("Retry-After") == "soon"
			if spoilt != (tt.endpoint == endpoint) {
				t.Errorf("fault of %s: %s answers %d", endpoint, tt.endpoint, resp.StatusCode)
			}
		}
		if approved := len(s.Approvals()) == 1; approved == (endpoint == Approvals) {
			t.Errorf("fault of %s: approved %v", endpoint, approved)
		}
	}
}

// The fault of one VM is used instead of the endpoint's, and ends independently. In a scenario its VM is translated to
// the Server's.
func TestFaultAffectsOneVM(t *testing.T) {
	s := New(Options{VMs: []string{"a", "b"}})
	want := func(when string, a, b int) {
		t.Helper()
		for vm, status := range map[string]int{"a": a, "B": b} {
			resp := ask(s, "GET", "/vm/"+vm+"/metadata/scheduledevents?api-version=2020-07-01", "")
			if resp.StatusCode != status {
				t.Errorf("%s: %s hears %d, want %d", when, vm, resp.StatusCode, status)
			}
		}
	}
	s.SetFault(Fault{Status: 503})
	s.SetFault(Fault{VM: "B", Status: 410, Times: 1})
	want("both", 503, 410)
	want("one is over", 503, 503)
	s.ClearFaults()
	sc := Scenario{Name: "x", VMs: []string{"vm_0", "vm_1"}, Steps: []Step{{Fault: &Fault{VM: "vm_1", Status: 500}}}}
	if err := s.Play(t.Context(), sc, 1); err != nil {
		t.Fatal(err)
	}
	want("played", 200, 500)
}

// A fault ends with its time, after its number of answers or when it is cleared, whichever comes first.
func TestFaultEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Speed: 2})
		want := func(when string, status int) {
			t.Helper()
			if resp := ask(s, "GET", eventsURL, ""); resp.StatusCode != status {
				t.Errorf("%s: %d, want %d", when, resp.StatusCode, status)
			}
		}
		s.SetFault(Fault{Status: 503, For: time.Minute})
		want("at once", 503)
		time.Sleep(30*time.Second - 1)
		want("shortly before its end", 503)
		time.Sleep(time.Nanosecond)
		want("at its end", 200)

		s.SetFault(Fault{Status: 503, Times: 2})
		want("first", 503)
		want("second", 503)
		want("third", 200)

		s.SetFault(Fault{Status: 503})
		want("set", 503)
		s.SetFault(Fault{Status: 500})
		want("replaced", 500)
		s.ClearFaults()
		want("cleared", 200)
	})
}

// A delayed answer shows the document of the time when it is sent.
func TestDelayedAnswerShowsTheStateWhenItIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		s.SetFault(Fault{Delay: 2 * time.Minute, Times: 1})
		time.AfterFunc(time.Minute, func() { s.SetIncarnation(9) })
		began := time.Now()
		resp, err := s.RoundTripper().RoundTrip(request(t, t.Context(), "GET", eventsURL))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if took := time.Since(began); err != nil || took != 2*time.Minute || string(body) != `{"DocumentIncarnation":9,"Events":[]}` {
			t.Errorf("%s, %v after %v", body, err, took)
		}
		began = time.Now()
		ask(s, "GET", eventsURL, "")
		if took := time.Since(began); took != 0 {
			t.Errorf("the second answer took %v", took)
		}
	})
}

// A fault decodes from the JSON that it encodes to.
func TestFaultRoundTripsThroughJSON(t *testing.T) {
	f := Fault{Path: Approvals, Approve: ApproveLate, ApproveDelay: time.Minute, For: 90 * time.Second, Delay: time.Second, Status: 503, RetryAfter: "1", Times: 3, NoLength: true}
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"path":"approvals","times":3,"status":503,"retryAfter":"1","noLength":true,"approve":"late",` +
		`"for":"1m30s","delay":"1s","approveDelay":"1m0s"}`
	var back Fault
	if err := json.Unmarshal(data, &back); err != nil || string(data) != want || back != f {
		t.Errorf("%s became %+v, %v, want %s", data, back, err, want)
	}
	if err := json.Unmarshal([]byte(`{"status":99}`), &back); err == nil {
		t.Error("status 99 was taken")
	}
}
