package cloudevent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

// Filters and templates find every name in every CloudEvent, with the same type.
func TestFieldsHasEveryName(t *testing.T) {
	for name, ce := range spoken(t) {
		wantTypes(t, name, Fields(ce))
	}
}

// wantTypes checks that fields have every name, each with its type.
func wantTypes(t *testing.T, claim string, fields map[string]any) {
	t.Helper()
	none := Fields(event.New())
	if len(fields) < len(none) {
		t.Errorf("%s: %d names, want %d", claim, len(fields), len(none))
	}
	for name, zero := range none {
		if got, want := reflect.TypeOf(fields[name]), reflect.TypeOf(zero); got != want {
			t.Errorf("%s: %s is a %v, want %v", claim, name, got, want)
		}
	}
}

// An attribute of somebody else that has the name of a field but another type does not take its place.
func TestFieldsKeepTheirTypes(t *testing.T) {
	names := Fields(event.New())
	for _, own := range []string{"specversion", "id", "source", "type", "subject", "time"} {
		delete(names, own)
	}
	for _, value := range []any{"of somebody else", true, 7} {
		ce := event.New()
		for name := range names {
			ce.SetExtension(name, value)
		}
		if len(ce.Extensions()) < 12 {
			t.Fatalf("it has only the attributes %v", ce.Extensions())
		}
		wantTypes(t, fmt.Sprintf("with %v", value), Fields(ce))
	}
}

// Beside the attributes stand what a condition asks for: how long until it begins, how long it takes, whom it hits,
// whether it is news.
func TestFieldsSaysWhatConditionsAskFor(t *testing.T) {
	type fields map[string]any
	announced, begun := reboot(t, "DurationInSeconds", "9"), reboot(t, "EventStatus", `"Started"`)
	begins := started(begun)
	begins.Previous = &announced
	for _, tt := range []struct {
		claim string
		c     imds.Change
		want  fields
	}{
		{"of what is scheduled", scheduled(announced), fields{
			"change": "scheduled", "notice": 870.876543211, "first": true, "duration": 9, "severity": 17, "azself": true,
			"resources": []string{"vm-0", "vm-1"}, "aznotbefore": "2026-11-21T04:10:00Z",
			"time": "2026-11-21T03:55:29.123456789Z",
		}},
		{"of what has begun", begins, fields{"change": "started", "notice": 0.0, "first": false, "duration": -1}},
		{"of what begins at once", started(begun), fields{"change": "started", "notice": 0.0, "first": true}},
		{"of an update", updated(announced, announced), fields{"change": "updated", "first": false}},
		{"of an end", vanished(begun), fields{"change": "vanished", "first": false, "notice": 0.0, "severity": 9}},
		{"of what is overdue", scheduled(reboot(t, "NotBefore", `"Sat, 21 Nov 2026 03:10:00 GMT"`)), fields{"notice": 0.0}},
		{"of what has no time", scheduled(reboot(t, "NotBefore", `""`)), fields{"notice": 0.0, "aznotbefore": ""}},
		{"of what names nobody", scheduled(reboot(t, "Resources", "")),
			fields{"resources": []string{}, "azself": false, "azresources": ""}},
		{"of odd Resources", scheduled(reboot(t, "Resources", `["vm-0",7]`)), fields{"resources": []string{"vm-0"}}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			f := Fields(said(t, tt.c, Circumstances{Observer: vm0}))
			for name, want := range tt.want {
				if !reflect.DeepEqual(f[name], want) {
					t.Errorf("%s = %v, want %v", name, f[name], want)
				}
			}
			raw, _ := json.Marshal(f["data"].(map[string]any)["event"])
			if e := azureEvent(t, string(raw)); e.Hash() != tt.c.Event.Hash() {
				t.Errorf("data.event is %s, want %s", raw, tt.c.Event.Raw)
			}
		})
	}
	ce, _ := WrapBridge(SinkBlocked, map[string]any{"sink": "ops"}, vm0, commitTime)
	f := Fields(ce)
	if f["change"] != "sink.blocked" || f["data"].(map[string]any)["sink"] != "ops" || f["severity"] != 17 {
		t.Errorf("about the bridge: %v", f)
	}
}

// Every sample can be said on whatever VM, and keeps to the schemas.
func TestSamplesAreValid(t *testing.T) {
	whole, _ := schemas(t)
	const vm = `<"ü">`
	for _, name := range SampleNames {
		s := sample(t, name, vm)
		ce, err := s.CloudEvent(imds.Observer{Name: vm}, commitTime)
		if err != nil {
			t.Fatal(err)
		}
		if err := breaks(t, whole, structured(t, ce)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if ce.Extensions()["azself"] != true || !strings.HasPrefix(ce.ID(), s.Change.Event.ID) {
			t.Errorf("%s: azself %v, id %s", name, ce.Extensions()["azself"], ce.ID())
		}
	}
	if _, ok := NewSample("other", vm, commitTime); ok {
		t.Error("there is a sample of a name that is none")
	}
}

// The samples by name, in the order of their names, and those on which templates are tried are what their golden files
// say.
func TestSamplesAreAsWrittenDown(t *testing.T) {
	var named []event.Event
	for _, name := range SampleNames {
		ce, err := sample(t, name, "vm-0").CloudEvent(vm0, commitTime)
		if err != nil {
			t.Fatal(err)
		}
		named = append(named, ce)
	}
	systemtest.WantGolden(t, *update, "testdata/samples.json", indented(t, named))
	forTemplates, err := Samples(false)
	if err != nil {
		t.Fatal(err)
	}
	systemtest.WantGolden(t, *update, "testdata/template-samples.json", indented(t, forTemplates))
}

// indented returns CloudEvents as a JSON array for a golden file.
func indented(t *testing.T, all []event.Event) []byte {
	t.Helper()
	var texts [][]byte
	for _, ce := range all {
		texts = append(texts, structured(t, ce))
	}
	var b bytes.Buffer
	list := slices.Concat([]byte("["), bytes.Join(texts, []byte(",")), []byte("]\n"))
	if err := json.Indent(&b, list, "", "  "); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
