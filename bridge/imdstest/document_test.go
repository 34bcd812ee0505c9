package imdstest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ask sends a request with the Metadata header to the metadata endpoint. headers are pairs of names and values; an empty
// value removes the header.
func ask(s *Server, method, target, body string, header ...string) *http.Response {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("Metadata", "true")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i+1] == "" {
			r.Header.Del(header[i])
		}
	}
	w := httptest.NewRecorder()
	s.Metadata().ServeHTTP(w, r)
	return w.Result()
}

// document returns the document of that version.
func document(s *Server, version string) string {
	return text(ask(s, "GET", "/metadata/scheduledevents?api-version="+version, ""))
}

func text(resp *http.Response) string {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

// capture returns a document that the real service answered, as compact JSON, and the events in it.
func capture(t *testing.T, name string) (doc string, incarnation int, events []Event) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		t.Fatal(err)
	}
	var d struct {
		DocumentIncarnation int
		Events              []wireEvent
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	for _, w := range d.Events {
		var e Event
		if err := w.apply(&e); err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	return compact.String(), d.DocumentIncarnation, events
}

// A document matches Azure's byte for byte: its keys, their order and its dates.
func TestDocumentsMatchAzuresByteForByte(t *testing.T) {
	for _, tt := range []struct{ file, version string }{
		{"f01-reboot-user-flatcar-1.json", "2020-07-01"},
		{"f01-reboot-user-flatcar-2.json", "2020-07-01"},
		{"f02-freeze-live-migration-3.json", "2020-07-01"},
		{"f03-aks-vmss-2.json", "2019-08-01"},
		{"f07-preempt-aks.json", "2019-08-01"},
		{"f10-two-reboots-six-fields.json", "2017-11-01"},
		{"f11-reboot-2017-08-01.json", "2017-08-01"},
		{"f13-preview-underscore.json", "2017-03-01"},
	} {
		want, incarnation, events := capture(t, tt.file)
		s := New(Options{})
		for _, e := range events {
			for i := range e.Resources {
				e.Resources[i] = strings.TrimPrefix(e.Resources[i], "_")
			}
			s.Schedule(e)
		}
		s.SetIncarnation(incarnation)
		if got := document(s, tt.version); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.file, got, want)
		}
	}
}

// Each change of an event is a new incarnation. Nothing else is.
func TestEachChangeOfAnEventIsANewIncarnation(t *testing.T) {
	s := New(Options{})
	first, _, _ := capture(t, "f02-freeze-live-migration-1.json")
	second, _, events := capture(t, "f02-freeze-live-migration-2.json")
	third, _, _ := capture(t, "f02-freeze-live-migration-3.json")
	fourth, _, _ := capture(t, "f02-freeze-live-migration-4.json")
	id := events[0].ID
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"new", func() {}, first},
		{"scheduled", func() { s.Schedule(events[0]) }, second},
		{"updated with nothing", func() { s.Update(id, func(*Event) {}) }, second},
		{"started", func() { s.Start(id) }, third},
		{"started again", func() { s.Start(strings.ToLower(id)) }, third},
		{"over", func() { s.End(id) }, fourth},
		{"over again", func() { s.End(id) }, fourth},
	} {
		step.do()
		if got := document(s, "2020-07-01"); got != step.want {
			t.Errorf("%s:\ngot  %s\nwant %s", step.name, got, step.want)
		}
	}
}

// An api-version shows only the fields and event types that it had.
func TestOlderVersionsHideLaterFieldsAndTypes(t *testing.T) {
	s := New(Options{})
	for _, kind := range []string{"Freeze", "Preempt", "Terminate", "SpotRebalanceRecommendation"} {
		s.Schedule(Event{Type: kind})
	}
	six := []string{"EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore"}
	for _, tt := range []struct {
		version string
		types   int
		added   []string
	}{
		{"2017-03-01", 1, nil},
		{"2017-08-01", 1, nil},
		{"2017-11-01", 2, nil},
		{"2019-01-01", 3, nil},
		{"2019-04-01", 3, []string{"Description"}},
		{"2019-08-01", 3, []string{"Description", "EventSource"}},
		{"2020-07-01", 3, []string{"Description", "EventSource", "DurationInSeconds"}},
		{"2024-07-09", 4, []string{"Description", "EventSource", "DurationInSeconds"}},
	} {
		var d struct{ Events []map[string]any }
		if err := json.Unmarshal([]byte(document(s, tt.version)), &d); err != nil {
			t.Fatalf("%s: %v", tt.version, err)
		}
		if len(d.Events) != tt.types {
			t.Errorf("%s lists %d types, want %d", tt.version, len(d.Events), tt.types)
		}
		want := slices.Concat(six, tt.added)
		for _, key := range want {
			if _, ok := d.Events[0][key]; !ok {
				t.Errorf("%s lacks %s", tt.version, key)
			}
		}
		if len(d.Events[0]) != len(want) {
			t.Errorf("%s has %v, want %v", tt.version, d.Events[0], want)
		}
	}
}

// A document set with SetDocument is served unchanged, valid or not. Its own incarnation is the ETag.
func TestFixedDocumentIsServedUnchanged(t *testing.T) {
	s := New(Options{})
	for _, tt := range []struct{ body, etag string }{
		{`{"DocumentIncarnation": 190, "Events": [], "New": 1}`, "190"},
		{`{"DocumentIncarnation":"5","Events":[]}`, "5"},
		{`!!!{"DocumentIncarnation":1`, ""},
		{``, ""},
	} {
		s.SetDocument([]byte(tt.body))
		resp := ask(s, "GET", eventsURL, "")
		if got := text(resp); got != tt.body || resp.Header.Get("ETag") != tt.etag {
			t.Errorf("got %q with ETag %q, want %q with %q", got, resp.Header.Get("ETag"), tt.body, tt.etag)
		}
	}
	s.SetDocument(nil)
	if got, want := document(s, "2020-07-01"), `{"DocumentIncarnation":1,"Events":[]}`; got != want {
		t.Errorf("afterwards %s, want %s", got, want)
	}
}

// The ETag is the bare incarnation number. A request with it, bare, quoted or weak, gets a 304 without a body.
func TestUnchangedDocumentIsNotSentAgain(t *testing.T) {
	s := New(Options{})
	s.SetIncarnation(4)
	for _, tt := range []struct {
		tag    string
		status int
	}{
		{"", 200}, {"0", 200}, {"4", 304}, {`"4"`, 304}, {`W/"4"`, 304}, {`"3", "4"`, 304}, {"40", 200},
	} {
		resp := ask(s, "GET", eventsURL, "", "If-None-Match", tt.tag)
		body := text(resp)
		if resp.StatusCode != tt.status || (body == "") != (tt.status == 304) {
			t.Errorf("If-None-Match %s: %d %q, want %d", tt.tag, resp.StatusCode, body, tt.status)
		}
		if got := resp.Header.Values("ETag"); len(got) != 1 || got[0] != "4" {
			t.Errorf("ETag %q, want 4 without quotes", got)
		}
	}
}
