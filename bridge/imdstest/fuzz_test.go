package imdstest

import (
	"encoding/json"
	"strings"
	"testing"
)

// Whatever the control API gets, it answers with JSON or nothing, and the document stays valid.
func FuzzControl(f *testing.F) {
	calls := []struct{ method, path string }{{"POST", "/events"}, {"PATCH", "/events/A"}, {"PUT", "/faults"}}
	f.Add(byte(0), `{"EventType":"Freeze","DurationInSeconds":5,"NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT"}`)
	f.Add(byte(1), `{"Resources":["a","b"],"Description":"","EventSource":null}`)
	f.Add(byte(2), `{"status":503,"for":"30s","truncate":40}`)
	f.Add(byte(2), `{"path":"scheduledevents","contentLength":5,"delay":"1d"}`)
	f.Fuzz(func(t *testing.T, call byte, body string) {
		c := calls[int(call)%len(calls)]
		s := New(Options{})
		s.Schedule(Event{ID: "A"})
		resp := control(s, c.method, c.path, body)
		if answer := text(resp); answer != "" && !json.Valid([]byte(answer)) {
			t.Errorf("%s %s %q: %d %q", c.method, c.path, body, resp.StatusCode, answer)
		}
		if state := text(control(s, "GET", "/state", "")); !json.Valid([]byte(state)) {
			t.Errorf("%s %s %q made the state %q", c.method, c.path, body, state)
		}
		s.ClearFaults()
		if doc := document(s, newest); !json.Valid([]byte(doc)) {
			t.Errorf("%s %s %q made the document %q", c.method, c.path, body, doc)
		}
	})
}

// Any body of StartRequests is accepted or refused, and only a known EventId has an effect.
func FuzzStartRequests(f *testing.F) {
	for _, seed := range []string{
		`{"StartRequests":[{"EventId":"A"}]}`,
		`{"DocumentIncarnation":"5","StartRequests":[{"EventId":"a"},{"EventId":"A"}]}`,
		`{"StartRequests":[{"EventId":"B"}]}`,
		`{"StartRequests":[null]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		s := New(Options{})
		s.Schedule(Event{ID: "A"})
		resp := ask(s, "POST", eventsURL, body)
		e, _ := s.Event("A")
		approved := len(s.Approvals()) > 0
		if resp.StatusCode != 200 && resp.StatusCode != 400 || approved != (resp.StatusCode == 200) || approved != (e.Status == Started) {
			t.Errorf("%q: %d, approvals %v, event %s", body, resp.StatusCode, s.Approvals(), e.Status)
		}
	})
}

// Any scenario file is refused with a position, or can be played.
func FuzzScenario(f *testing.F) {
	for _, name := range Names() {
		data, err := builtins.ReadFile("scenarios/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("steps: [{at: 1s, fault: {status: 503}}, {at: 1s, reset: true}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		sc, err := ParseScenario("s.yaml", data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "s.yaml:") {
				t.Errorf("the error %q names no place", err)
			}
			return
		}
		if sc.Name == "" || len(sc.Steps) == 0 || sc.check() != nil {
			t.Errorf("%q was read as %+v", data, sc)
		}
		s := New(Options{})
		p := &play{Server: s, Scenario: sc, speed: 1, ids: make(map[string]string)}
		p.assignVMs()
		for _, step := range sc.Steps {
			p.run(step)
		}
	})
}
