package imdstest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// control sends a request to the control API. headers are pairs of names and values.
func control(s *Server, method, path, body string, header ...string) *http.Response {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "127.0.0.1:8255"
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.Control().ServeHTTP(w, r)
	return w.Result()
}

// The control API can create, change, start and end an event, and shows the result.
func TestControlScriptsTheServer(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 10, 0, 0, time.UTC)
	s := New(Options{Now: func() time.Time { return now }})
	const event = `{"EventId":"A","EventStatus":"Scheduled","EventType":"Reboot","ResourceType":"VirtualMachine",` +
		`"Resources":["vm_0"],"NotBefore":"Sat, 21 Nov 2026 04:25:00 GMT","Description":"","EventSource":"Platform","DurationInSeconds":-1}`
	later := strings.NewReplacer("04:25", "05:00", `"vm_0"`, `"vm_0","vm_1"`, "-1", "0").Replace(event)
	started := strings.NewReplacer("Scheduled", "Started", "Sat, 21 Nov 2026 05:00:00 GMT", "").Replace(later)
	for _, tt := range []struct {
		method, path, body string
		status             int
		answer             string
	}{
		{"GET", "/state", "", 200, `{"incarnation":1,"vms":["vm_0"],"events":[],"faults":[],"approvals":[]}`},
		{"POST", "/events", `{"EventId":"A","EventType":"Reboot"}`, 201, event},
		{"PATCH", "/events/a", `{"EventId":"A","NotBefore":"2026-11-21T05:00:00Z","Resources":["vm_0","vm_1"],"DurationInSeconds":0}`, 200, later},
		{"POST", "/events/A/start", "", 200, started},
		{"PUT", "/faults", `{"status":503,"body":"","for":"30s","hang":true,"delay":"5s","truncate":40,"empty":true,"html":true,"isoDates":true}`, 204, ""},
		{"PUT", "/faults", `{"path":"instance","times":1}`, 204, ""},
		{"PUT", "/document", `not a document`, 204, ""},
		{"GET", "/state", "", 200, `{"incarnation":4,"vms":["vm_0"],"events":[` + started + `],"document":"not a document",` +
			`"faults":[{"path":"instance","times":1},{"path":"scheduledevents","hang":true,"status":503,"empty":true,"html":true,"isoDates":true,"truncate":40,"for":"30s","delay":"5s"}],"approvals":[]}`},
		{"DELETE", "/document", "", 204, ""},
		{"DELETE", "/faults", "", 204, ""},
		{"DELETE", "/events/A", "", 204, ""},
		{"GET", "/state", "", 200, `{"incarnation":5,"vms":["vm_0"],"events":[],"faults":[],"approvals":[]}`},
		{"GET", "/requests", "", 200, `[]`},
		{"POST", "/reset", "", 204, ""},
		{"GET", "/state", "", 200, `{"incarnation":1,"vms":["vm_0"],"events":[],"faults":[],"approvals":[]}`},
	} {
		resp := control(s, tt.method, tt.path, tt.body)
		if got := strings.TrimSpace(text(resp)); resp.StatusCode != tt.status || got != tt.answer {
			t.Errorf("%s %s %s: %d %s\nwant %d %s", tt.method, tt.path, tt.body, resp.StatusCode, got, tt.status, tt.answer)
		}
	}

	ask(s, "GET", "/metadata/scheduledevents?api-version=2020-07-01", "")
	var seen []map[string]any
	if err := json.Unmarshal([]byte(text(control(s, "GET", "/requests", ""))), &seen); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 1 || seen[0]["path"] != "/metadata/scheduledevents" || seen[0]["time"] != "2026-11-21T04:10:00Z" {
		t.Errorf("requests %v", seen)
	}
}

// The control API refuses an invalid request with the key and what it expected there, and changes nothing.
func TestControlNamesTheInvalidKey(t *testing.T) {
	s := New(Options{})
	s.Schedule(Event{ID: "A"})
	for _, tt := range []struct {
		method, path, body string
		status             int
		err                string
	}{
		{"POST", "/events", `{`, 400, "broken JSON: unexpected end of JSON input"},
		{"POST", "/events", `{} {}`, 400, "broken JSON: invalid character '{' after top-level value"},
		{"POST", "/events", `[]`, 400, "expected keys and values, got []"},
		{"POST", "/events", `null`, 400, "expected keys and values, got null"},
		{"POST", "/events", `{"Type":"Reboot"}`, 400, "Type: unknown key, expected one of Description, DurationInSeconds, " +
			"EventId, EventSource, EventStatus, EventType, NotBefore, ResourceType, Resources"},
		{"POST", "/events", `{"EventType":5}`, 400, "EventType: expected text, got 5"},
		{"POST", "/events", `{"EventType":null}`, 400, "EventType: expected text, got null"},
		{"POST", "/events", `{"Resources":"vm_0"}`, 400, `Resources: expected a list, got "vm_0"`},
		{"POST", "/events", `{"Resources":["vm_0",1]}`, 400, `Resources.1: expected text, got 1`},
		{"POST", "/events", `{"DurationInSeconds":1.5}`, 400, "DurationInSeconds: expected a whole number, got 1.5"},
		{"POST", "/events", `{"NotBefore":"soon"}`, 400, `NotBefore: expected a date such as "Mon, 19 Sep 2016 18:29:47 GMT" ` +
			`or "2016-09-19T18:29:47Z", got "soon"`},
		{"PATCH", "/events/A", `{"NotBefore":"soon","EventType":"Freeze"}`, 400, `NotBefore: expected a date such as ` +
			`"Mon, 19 Sep 2016 18:29:47 GMT" or "2016-09-19T18:29:47Z", got "soon"`},
		{"PATCH", "/events/A", `{"EventId":"B"}`, 400, "EventId: expected A, an event keeps its id"},
		{"PATCH", "/events/B", `{}`, 404, "no event B"},
		{"DELETE", "/events/B", ``, 404, "no event B"},
		{"POST", "/events/B/start", ``, 404, "no event B"},
		{"PUT", "/faults", `{"hang":"yes"}`, 400, `hang: expected true or false, got "yes"`},
		{"PUT", "/faults", `{"for":30}`, 400, "for: expected a duration such as 30s or 15m, not negative, got 30"},
		{"PUT", "/faults", `{"for":"-1s"}`, 400, `for: expected a duration such as 30s or 15m, not negative, got "-1s"`},
		{"PUT", "/faults", `{"vm":"vm_7"}`, 400, `vm: expected one of vm_0, got "vm_7"`},
		{"PUT", "/faults", `{"path":"instance","newestVersion":"2017-11-01"}`, 400, "newestVersion: expected one of " +
			strings.Join(instanceVersions, ", ") + `, got "2017-11-01"`},
		{"PUT", "/faults", `{"status":99}`, 400, "status: expected a code from 200 to 599, got 99"},
		{"PUT", "/faults", `{"times":-1}`, 400, "times: expected a number that is not negative, got -1"},
		{"PUT", "/faults", `{"path":"else"}`, 400, `path: expected scheduledevents, approvals, instance or identity, got "else"`},
		{"PUT", "/document", strings.Repeat("x", maxBody+1), 400, "read body: http: request body too large"},
		{"GET", "/", ``, 404, "no such call: GET /"},
		{"PUT", "/state", ``, 404, "no such call: PUT /state"},
	} {
		resp := control(s, tt.method, tt.path, tt.body)
		var got struct{ Error string }
		if err := json.Unmarshal([]byte(text(resp)), &got); err != nil {
			t.Errorf("%s %s: %v", tt.method, tt.path, err)
		}
		if resp.StatusCode != tt.status || got.Error != tt.err {
			t.Errorf("%s %s %.40s: %d %s\nwant %d %s", tt.method, tt.path, tt.body, resp.StatusCode, got.Error, tt.status, tt.err)
		}
	}
	if e, _ := s.Event("A"); s.Incarnation() != 2 || e.Type != "Reboot" {
		t.Errorf("incarnation %d, %+v: something was changed", s.Incarnation(), e)
	}
}

// No web page can reach the control API: not through DNS rebinding, nor with a cross-origin request to a local
// address.
func TestControlAnswersToLocalNamesOnly(t *testing.T) {
	s := New(Options{})
	for host, want := range map[string]int{
		"localhost": 200, "localhost:8255": 200, "a.localhost": 200, "127.0.0.1": 200, "[::1]:8255": 200,
		"10.0.0.4:8255": 200, "emulator:8255": 200,
		"evil.example": 403, "evil.example:8255": 403, "203.0.113.5": 403, "localhost.evil.example": 403,
	} {
		r := httptest.NewRequest("GET", "/state", nil)
		r.Host = host
		w := httptest.NewRecorder()
		s.Control().ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("Host %s: %d, want %d", host, w.Code, want)
		}
	}
	if resp := control(s, "POST", "/reset", "", "Origin", "https://evil.example"); resp.StatusCode != 403 {
		t.Errorf("another origin: %d, want 403", resp.StatusCode)
	}
}

// The metadata endpoint serves no path of the control API.
func TestMetadataDoesNotServeTheControlAPI(t *testing.T) {
	for _, path := range []string{"/state", "/requests", "/events"} {
		if resp := ask(New(Options{}), "GET", path, ""); resp.StatusCode != 404 {
			t.Errorf("%s: %d, want 404", path, resp.StatusCode)
		}
	}
}
