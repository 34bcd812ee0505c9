package sinks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"forewarn/bridge/systemtest"
	"forewarn/templates"
)

// A link to the runbook leads somewhere, whatever the event has and lacks, or there is none.
func TestRunbookLinksLeadSomewhere(t *testing.T) {
	for _, tt := range []struct{ template, azeventtype, want string }{
		{"https://wiki.example/x", "", "https://wiki.example/x"},
		{"https://wiki.example/{{.azeventtype}}", "Reboot", "https://wiki.example/Reboot"},
		{"https://wiki.example/{{.azeventtype}}", "", ""},
		{"https://wiki.example/{{lower .azeventtype}}?q={{.observer}}", "", ""},
		{"https://wiki.example/{{.azeventtype | urlquery}}", "", ""},
		{"https://wiki.example/{{default \"any\" .azeventtype}}", "", "https://wiki.example/any"},
		{"https://wiki.example/{{with .azeventtype}}types/{{.}}{{end}}", "", "https://wiki.example/"},
		{"https://wiki.example/{{.azeventtype}}", "Some \"New\" Type|<x> 100%",
			"https://wiki.example/Some%20%22New%22%20Type%7C%3Cx%3E%20100%25"},
		{"https://wiki.example/{{.azeventtype | urlquery}}", "New Type", "https://wiki.example/New+Type"},
		{"https://wiki.example/{{.azeventtype}}", "Neustart für\u202e", "https://wiki.example/Neustart%20f%C3%BCr%E2%80%AE"},
		{"https://wiki.example/{{.data.event.Nowhere}}", "Reboot", ""},
		{"{{if .azeventtype}}https://wiki.example/{{end}}", "", ""},
	} {
		template, err := templates.Parse("runbook_url", tt.template)
		if err != nil {
			t.Fatal(err)
		}
		f := (&Host{}).fields(situations()["scheduled"].batch, messageTime.clock())
		f["azeventtype"] = tt.azeventtype
		if got, err := (runbook{template}).link(f); err != nil || got != tt.want {
			t.Errorf("%s with type %q is %q, %v; want %q", tt.template, tt.azeventtype, got, err, tt.want)
		}
	}
}

// A message that waited for its lead says the time that the event has now, and is late only since it was due.
func TestAMessageWithALeadSaysThePresentTime(t *testing.T) {
	d := situations()["scheduled"].batch[0]
	seen := d.Event.Time()
	d.NotBefore, d.Due = seen.Add(100*time.Hour), seen.Add(99*time.Hour)
	for after, age := range map[time.Duration]float64{0: 0, 3 * time.Minute: 180} {
		f := messageFields(d, nil, d.Due.Add(after))
		left := (time.Hour - after).Seconds()
		if f["aznotbefore"] != d.NotBefore.Format(time.RFC3339) || f["left"] != left || f["age"] != age {
			t.Errorf("%v after it was due: %v, %v s left, %v s late; want %v, %v, %v", after, f["aznotbefore"], f["left"], f["age"],
				d.NotBefore, left, age)
		}
	}
	d.NotBefore, d.Due = time.Time{}, time.Time{}
	if f := messageFields(d, nil, seen.Add(time.Hour)); f["age"] != 3600.0 || f["aznotbefore"] == nil {
		t.Errorf("without a lead: %v s late, not before %v", f["age"], f["aznotbefore"])
	}
}

// The texts for people can say every sample; the blocks are JSON.
func TestDefaultTextsSayEverySample(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	for name, text := range map[string]*templates.Template{
		"slack text": templates.SlackText, "slack blocks": templates.SlackBlocks,
		"email subject": templates.EmailSubject, "email text": templates.EmailText, "email html": templates.EmailHTML,
	} {
		if err := tryOn(true, func(f map[string]any) error {
			var b bytes.Buffer
			if err := text.Execute(&b, f); err != nil {
				return err
			}
			if bytes.Contains(b.Bytes(), []byte("<no value>")) {
				return fmt.Errorf("a value is missing in\n%s", b.Bytes())
			}
			if name == "slack blocks" {
				return json.Unmarshal(b.Bytes(), new(any))
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}
