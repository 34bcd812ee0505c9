package imdstest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The api-versions of Scheduled Events; the rest of the service has others. They sort as text.
var versions = []string{
	"2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01", "2024-07-09",
}

const (
	preview          = "2017-03-01" // puts an underscore before resource names and needs no Metadata header
	addedPreempt     = "2017-11-01"
	addedTerminate   = "2019-01-01"
	addedDescription = "2019-04-01"
	addedSource      = "2019-08-01"
	addedDuration    = "2020-07-01" // the newest that Azure documents
	newest           = "2024-07-09" // a preview; added SpotRebalanceRecommendation
)

// knownVersions returns the api-versions of an endpoint, the oldest first.
func knownVersions(endpoint string) []string {
	if endpoint == InstanceFacts || endpoint == Identity {
		return instanceVersions
	}
	return versions
}

// shows reports whether a document of that version lists events of that type. Older versions hide types that were added
// later. Only the newest that Azure documents, and later ones, list a type that it doesn't document.
func shows(version, eventType string) bool {
	switch eventType {
	case "Freeze", "Reboot", "Redeploy":
		return true
	case "Preempt":
		return version >= addedPreempt
	case terminate:
		return version >= addedTerminate
	case "SpotRebalanceRecommendation":
		return version >= newest
	}
	return version >= addedDuration
}

// wireEvent is an event as Azure writes it: these keys in this order. A nil field is left out.
type wireEvent struct {
	EventID           *string   `json:"EventId,omitempty"`
	EventStatus       *string   `json:"EventStatus,omitempty"`
	EventType         *string   `json:"EventType,omitempty"`
	ResourceType      *string   `json:"ResourceType,omitempty"`
	Resources         *[]string `json:"Resources,omitempty"`
	NotBefore         *string   `json:"NotBefore,omitempty"`
	Description       *string   `json:"Description,omitempty"`
	EventSource       *string   `json:"EventSource,omitempty"`
	DurationInSeconds *int      `json:"DurationInSeconds,omitempty"`
}

// wire returns e as a document of that version shows it.
func (e Event) wire(version, dateLayout string) wireEvent {
	names := slices.Clone(e.Resources)
	if names == nil {
		names = []string{}
	}
	if version == preview {
		for i := range names {
			names[i] = "_" + names[i]
		}
	}
	notBefore := ""
	if !e.NotBefore.IsZero() {
		notBefore = e.NotBefore.UTC().Format(dateLayout)
	}
	w := wireEvent{
		EventID: &e.ID, EventStatus: &e.Status, EventType: &e.Type,
		ResourceType: &e.ResourceType, Resources: &names, NotBefore: &notBefore,
	}
	if version >= addedDescription {
		w.Description = &e.Description
	}
	if version >= addedSource {
		w.EventSource = &e.Source
	}
	if version >= addedDuration {
		w.DurationInSeconds = e.Duration
	}
	return w
}

// apply sets the fields of e that w has set.
func (w wireEvent) apply(e *Event) error {
	set := func(field *string, value *string) {
		if value != nil {
			*field = *value
		}
	}
	set(&e.ID, w.EventID)
	set(&e.Status, w.EventStatus)
	set(&e.Type, w.EventType)
	set(&e.ResourceType, w.ResourceType)
	set(&e.Description, w.Description)
	set(&e.Source, w.EventSource)
	if w.Resources != nil {
		e.Resources = *w.Resources
	}
	if w.DurationInSeconds != nil {
		e.Duration = w.DurationInSeconds
	}
	if w.NotBefore != nil {
		at, err := parseDate(*w.NotBefore)
		if err != nil {
			return err
		}
		e.NotBefore = at
	}
	return nil
}

func parseDate(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(http.TimeFormat, text); err == nil {
		return at, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, keyErrorf([]string{"NotBefore"}, "expected a date such as %q or %q, got %q",
			"Mon, 19 Sep 2016 18:29:47 GMT", "2016-09-19T18:29:47Z", text)
	}
	return at, nil
}

// render returns the document for that version and its ETag, the bare incarnation number.
func (s *Server) render(version string, isoDates bool) (body []byte, etag string) {
	if s.document != nil {
		var d struct{ DocumentIncarnation json.Number }
		if json.Unmarshal(s.document, &d) == nil {
			etag = d.DocumentIncarnation.String()
		}
		return s.document, etag
	}
	layout := http.TimeFormat
	if isoDates {
		layout = time.RFC3339
	}
	d := struct {
		DocumentIncarnation int
		Events              []wireEvent
	}{s.incarnation, []wireEvent{}}
	for _, e := range s.events {
		if shows(version, e.Type) {
			d.Events = append(d.Events, e.wire(version, layout))
		}
	}
	return marshal(d), fmt.Sprint(s.incarnation)
}

// matchesETag reports whether an If-None-Match header names etag: bare as Azure writes it, quoted or weak.
func matchesETag(header, etag string) bool {
	for tag := range strings.SplitSeq(header, ",") {
		tag = strings.Trim(strings.TrimPrefix(strings.TrimSpace(tag), "W/"), `"`)
		if etag != "" && tag == etag {
			return true
		}
	}
	return false
}

// marshal returns v as compact JSON, with <, > and & unescaped. No value of this package can fail to marshal.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
