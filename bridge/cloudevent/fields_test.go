package cloudevent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/imds"
)

// Filters and templates find every name in every CloudEvent, with the same type, also in one that was stored and read
// back.
func TestFieldsHasEveryName(t *testing.T) {
	none := Fields(event.New())
	var all []map[string]any
	for _, ce := range spoken(t) {
		var back event.Event
		if err := json.Unmarshal(structured(t, ce), &back); err != nil {
			t.Fatal(err)
		}
		all = append(all, Fields(ce), Fields(back))
	}
	for _, name := range SampleNames {
		s, _ := NewSample(name, "vm-0", commitTime)
		ce, err := s.CloudEvent(vm0, commitTime)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Fields(ce))
	}
	for _, f := range all {
		if len(f) != len(none) {
			t.Errorf("%s has %d names, want %d", f["id"], len(f), len(none))
		}
		for name, zero := range none {
			if got, want := fmt.Sprintf("%T", f[name]), fmt.Sprintf("%T", zero); got != want {
				t.Errorf("%s of %s is a %s, want %s", name, f["id"], got, want)
			}
		}
	}
}

// An attribute of somebody else that has the name of a field but another type does not take its place.
func TestFieldsKeepTheirTypes(t *testing.T) {
	none := Fields(event.New())
	for _, value := range []any{"of somebody else", true, 7} {
		ce := event.New()
		for name := range none {
			if !slices.Contains([]string{"specversion", "id", "source", "type", "subject", "time"}, name) {
				ce.SetExtension(name, value)
			}
		}
		if len(ce.Extensions()) < 12 {
			t.Fatalf("it has only the attributes %v", ce.Extensions())
		}
		for name, got := range Fields(ce) {
			if got, want := fmt.Sprintf("%T", got), fmt.Sprintf("%T", none[name]); got != want {
				t.Errorf("with %v, %s is a %s, want %s", value, name, got, want)
			}
		}
	}
}

// Beside the attributes stand what a condition asks for: how long until it begins, how long it takes, whom it hits,
// whether it is news.
func TestFieldsSaysWhatConditionsAskFor(t *testing.T) {
	scheduled, started := azureEvent(t, entry("DurationInSeconds", "9")), azureEvent(t, entry("EventStatus", `"Started"`))
	for _, tt := range []struct {
		claim string
		c     imds.Change
		want  map[string]any
	}{
		{"of what is scheduled", imds.Change{Kind: imds.Scheduled, Event: scheduled}, map[string]any{
			"change": "scheduled", "notice": 870.876543211, "first": true, "duration": 9, "severity": 17, "azself": true,
			"resources": "[vm-0 vm-1]", "aznotbefore": "2026-11-21T04:10:00Z", "time": "2026-11-21T03:55:29.123456789Z"}},
		{"of what has begun", imds.Change{Kind: imds.Started, Event: started, Previous: &scheduled}, map[string]any{"change": "started", "notice": 0.0, "first": false, "duration": -1}},
		{"of what begins at once", imds.Change{Kind: imds.Started, Event: started}, map[string]any{"change": "started", "notice": 0.0, "first": true}},
		{"of an update", imds.Change{Kind: imds.Updated, Event: scheduled, Previous: &scheduled}, map[string]any{"change": "updated", "first": false}},
		{"of an end", imds.Change{Kind: imds.Vanished, Event: started}, map[string]any{"change": "vanished", "first": false, "notice": 0.0, "severity": 9}},
		{"of what is overdue", imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, entry("NotBefore", `"Sat, 21 Nov 2026 03:10:00 GMT"`))}, map[string]any{"notice": 0.0}},
		{"of what has no time", imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, entry("NotBefore", `""`))}, map[string]any{"notice": 0.0, "aznotbefore": ""}},
		{"of what names nobody", imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, entry("Resources", ""))}, map[string]any{"resources": "[]", "azself": false, "azresources": ""}},
		{"of odd Resources", imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, entry("Resources", `["vm-0",7]`))}, map[string]any{"resources": "[vm-0]"}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			f := Fields(said(t, tt.c, Circumstances{Observer: vm0}))
			for name, want := range tt.want {
				if fmt.Sprint(f[name]) != fmt.Sprint(want) {
					t.Errorf("%s = %v, want %v", name, f[name], want)
				}
			}
		})
	}
	f := Fields(said(t, imds.Change{Kind: imds.Scheduled, Event: scheduled}, Circumstances{Observer: vm0}))
	if got := f["data"].(map[string]any)["event"].(map[string]any)["Description"]; got != "Host server is undergoing maintenance." {
		t.Errorf("data.event.Description = %v", got)
	}
	ce, _ := WrapBridge(SinkBlocked, map[string]any{"sink": "ops"}, vm0, commitTime)
	if f := Fields(ce); f["change"] != "sink.blocked" || f["data"].(map[string]any)["sink"] != "ops" || f["severity"] != 17 {
		t.Errorf("about the bridge: %v", f)
	}
	foreign := event.New()
	foreign.SetExtension("aznotbefore", 7)
	_ = foreign.SetData("text/plain", []byte("<"))
	if f := Fields(foreign); f["notice"] != 0.0 {
		t.Errorf("of a foreign CloudEvent: %v", f)
	}
}

// Every sample can be said and keeps to the schemas, on whatever VM.
func TestSamplesAreValid(t *testing.T) {
	whole, _ := schemas(t)
	for _, name := range SampleNames {
		for _, vm := range []string{"vm-0", `<"ü">`} {
			t.Run(fmt.Sprintf("%s on %s is valid", name, vm), func(t *testing.T) {
				s, ok := NewSample(name, vm, commitTime)
				if !ok || s.Name != name {
					t.Fatalf("NewSample = %+v, %v", s, ok)
				}
				ce, err := s.CloudEvent(imds.Observer{Name: vm}, commitTime)
				if err != nil {
					t.Fatal(err)
				}
				if err := breaks(t, whole, structured(t, ce)); err != nil {
					t.Error(err)
				}
				if ce.Extensions()["azself"] != true || !strings.HasPrefix(ce.ID(), s.Change.Event.ID) {
					t.Errorf("azself %v, id %s", ce.Extensions()["azself"], ce.ID())
				}
			})
		}
	}
	if _, ok := NewSample("other", "vm-0", commitTime); ok {
		t.Error("there is a sample of a name that is none")
	}
}

// indented returns CloudEvents as a JSON array for a golden file.
func indented(t *testing.T, all []event.Event) []byte {
	t.Helper()
	texts := make([][]byte, 0, len(all))
	for _, ce := range all {
		texts = append(texts, structured(t, ce))
	}
	var b bytes.Buffer
	if err := json.Indent(&b, slices.Concat([]byte("["), bytes.Join(texts, []byte(",")), []byte("]\n")), "", "  "); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The samples by name are what testdata/samples.json says, in the order of their names.
func TestSamplesAreAsWrittenDown(t *testing.T) {
	var all []event.Event
	for _, name := range SampleNames {
		s, ok := NewSample(name, "vm-0", commitTime)
		if !ok {
			t.Fatalf("there is no sample %s", name)
		}
		ce, err := s.CloudEvent(vm0, commitTime)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ce)
	}
	wantGolden(t, "testdata/samples.json", indented(t, all))
}

// The samples on which templates are tried are what testdata/template-samples.json says.
func TestSamplesForTemplatesAreAsWrittenDown(t *testing.T) {
	all, err := Samples(false)
	if err != nil {
		t.Fatal(err)
	}
	wantGolden(t, "testdata/template-samples.json", indented(t, all))
}
