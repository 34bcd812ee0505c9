package bridge_test

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// fieldsOf returns what a condition sees of an event that Azure sends so.
func fieldsOf(t *testing.T, entry string) map[string]any {
	t.Helper()
	c := imds.Change{Kind: imds.Scheduled, Event: decodedEvent(t, entry)}
	return cloudevent.Fields(said(t, c, cloudevent.Circumstances{Observer: imds.Observer{Name: "vm-0"}}))
}

// forecastWhen returns why a rule with a condition would not approve an event that Azure sends so; "" if it would.
func forecastWhen(t *testing.T, when, entry string) string {
	t.Helper()
	rule := bridge.Rule{Only: bridge.Match{Types: imds.Types}, When: mustParseWhen(t, when), Others: true}
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	nobody := func(string) (time.Time, bool) { return time.Time{}, false }
	f := bridge.Forecasts([]bridge.Rule{rule}, decodedEvent(t, entry), fieldsOf(t, entry), "vm-0", nobody, now)[0]
	if f.Approves {
		return ""
	}
	return f.Why
}

// A condition of a rule that looks at a field that Azure did not send, or in which nothing stands that can be read,
// approves nothing, whatever it would make of the value that stands for an unknown one. What Azure sends as unknown is
// a value.
func TestAWhenOfARuleTakesNoDefaultForAValue(t *testing.T) {
	const notSaid = "Azure does not say FIELD (when)"
	for _, tt := range []struct{ claim, when, field, becomes, why string }{
		{"nobody says who asked", `azeventsource != "Platform"`, "EventSource", ``, notSaid},
		{"it is null who asked", `azeventsource != "Platform"`, "EventSource", `null`, notSaid},
		{"it is blank who asked", `azeventsource != "Platform"`, "EventSource", `" "`, notSaid},
		{"it can't be read who asked", `azeventsource != "Platform"`, "EventSource", `7`, "EventSource is not a string: 7"},
		{"somebody else asked", `azeventsource != "Platform"`, "EventSource", `"Operator"`, ""},
		{"the condition would not hold either", `azeventsource == "User"`, "EventSource", ``, notSaid},
		{"nobody says how long", `duration <= 10`, "DurationInSeconds", ``, notSaid},
		{"it is null how long", `azduration <= 10`, "DurationInSeconds", `null`, notSaid},
		{"it can't be read how long", `duration <= 10`, "DurationInSeconds", `"long"`,
			`DurationInSeconds is not a number of seconds: "long"`},
		{"Azure says that it does not know how long", `duration <= 10`, "DurationInSeconds", `-1`, ""},
		{"Azure says it as text", `duration <= 10`, "DurationInSeconds", `"5"`, ""},
		{"it takes longer", `duration <= 10`, "DurationInSeconds", `11`, "when"},
		{"a severity follows from who asked", `severity >= INFO`, "EventSource", ``, notSaid},
		{"a severity follows from how long", `severitytext != ""`, "DurationInSeconds", ``, notSaid},
		{"the same as a number", `severitynumber <= ERROR`, "DurationInSeconds", ``, notSaid},
		{"nobody says when", `notice < 600`, "NotBefore", ``, notSaid},
		{"it is empty when", `aznotbefore < "2027"`, "NotBefore", `""`, notSaid},
		{"it can't be read when", `notice < 600`, "NotBefore", `"soon"`, `NotBefore "soon" is not a time in GMT`},
		{"nobody says whom it hits", `not ("vm-9" in resources)`, "Resources", ``, "Azure names no VM"},
		{"the same of the text", `not (azresources contains "vm-9")`, "Resources", `[]`, "Azure names no VM"},
		{"data may be anything", `data.event.Description != "x"`, "Description", ``, notSaid},
		{"an empty text is one", `data.event.Description != "x"`, "Description", `""`, ""},
		{"data may be anything, however it is looked at", `any(keys(data.event), # == "EventId")`, "EventSource", ``,
			notSaid},
		{"so may all names", `$env["duration"] <= 10`, "DurationInSeconds", ``, notSaid},
		{"a name has another", `let d = duration; d <= 10`, "DurationInSeconds", ``, notSaid},
		{"it is inside of another", `any([1, 2], # > duration)`, "DurationInSeconds", ``, notSaid},
		{"it looks at something else", `azeventtype == "Reboot"`, "EventSource", ``, ""},
		{"it looks at what is no field of Azure's", `observer == "vm-0" and change == "scheduled" and first`,
			"DurationInSeconds", ``, ""},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			why := forecastWhen(t, tt.when, documentEntry(tt.field, tt.becomes))
			wantEqual(t, "why it is not approved", why, strings.Replace(tt.why, "FIELD", tt.field, 1))
		})
	}
	why := forecastWhen(t, "severity < 17", documentEntry("EventSource", "", "DurationInSeconds", "null"))
	wantEqual(t, "without two fields", why, "Azure does not say DurationInSeconds, EventSource (when)")
}

// No name whose value is another one without a field of Azure's is looked at to approve without that field.
func TestAWhenOfARuleLooksAtEveryFieldThatANameFollowsFrom(t *testing.T) {
	differ := 0
	for _, as := range [][]string{
		{"EventType", `"Freeze"`, "DurationInSeconds", "5"}, {"EventType", `"Reboot"`, "EventSource", `"User"`},
	} {
		entry := documentEntry(as...)
		whole := fieldsOf(t, entry)
		for _, field := range imds.DifferingFields(decodedEvent(t, entry), imds.Event{}) {
			if field == "EventId" {
				continue
			}
			few := documentEntry(append(slices.Clone(as), field, "")...)
			without := fieldsOf(t, few)
			for _, name := range slices.Sorted(maps.Keys(whole)) {
				if reflect.DeepEqual(whole[name], without[name]) {
					continue
				}
				differ++
				if forecastWhen(t, name+" != nil", few) == "" {
					t.Errorf("without %s it approves by %s", field, name)
				}
			}
		}
	}
	if differ < 20 {
		t.Errorf("only %d values differ", differ)
	}
}
