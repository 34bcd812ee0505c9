package imds

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// NotBefore is parsed in every observed or documented form, and is UTC. With an unknown zone there is no time, because
// one that is hours off would be worse.
func TestNotBeforeIsParsedAsUTC(t *testing.T) {
	for want, texts := range map[string][]string{
		"2016-09-19T18:29:47Z": {
			// As Azure sends it, in RFC 1123. The weekday is not checked.
			"Mon, 19 Sep 2016 18:29:47 GMT", "Fri, 19 Sep 2016 18:29:47 GMT",
			"Mon, 19 Sep 2016 18:29:47 UTC", "Mon, 19 Sep 2016 18:29:47 gmt", "Mon, 19 Sep 2016 18:29:47 +0000",
			"Mon, 19 Sep 2016 18:29:47 GMT.", "  Mon, 19 Sep 2016 18:29:47 GMT ",
			// RFC 850, and ISO 8601, which the documentation of 2017 has.
			"Monday, 19-Sep-16 18:29:47 GMT",
			"2016-09-19T18:29:47Z", "2016-09-19T18:29:47.0000000Z", "2016-09-19T18:29:47Z.", "2016-09-19T20:29:47+02:00",
		},
		"2026-08-01T08:18:16Z": { // a day of one digit
			"Sat, 1 Aug 2026 08:18:16 GMT", "Sat,  1 Aug 2026 08:18:16 GMT", "Sat, 01 Aug 2026 08:18:16 GMT",
			"1 Aug 2026 08:18:16 GMT",
		},
		"0000-01-01T00:00:00Z": {"0000-01-01T00:00:00Z"}, // RFC 3339 allows the years 0 to 9999
		"9999-12-31T23:59:59Z": {"9999-12-31T23:59:59Z"},
		"none": {
			"0000-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00",
			"Mon, 19 Sep 2016 18:29:47 PST", // Go would take it for UTC
			"Mon, 19 Sep 2016 18:29:47 +0200", "Mon, 19 Sep 2016 18:29:47", "2016-09-19T18:29:47",
			"Mon, 31 Sep 2016 18:29:47 GMT", "2016-09-19", "GMT", "soon", "",
		},
	} {
		for _, text := range texts {
			at, err := parseNotBefore(text)
			got := at.Format(time.RFC3339)
			if err != nil && at.IsZero() {
				got = "none"
			}
			if got != want || at.Location() != time.UTC {
				t.Errorf("parseNotBefore(%q) = %v, %v, want %v", text, at, err, want)
			}
		}
	}
}

// GMT means UTC even where the local zone is called GMT and has another offset. The test runs in its own process,
// because time.Local is global.
func TestNotBeforeIgnoresTheLocalZone(t *testing.T) {
	const child = "FOREWARN_TEST_ZONE"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1", "GORACE=atexit_sleep_ms=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	time.Local = time.FixedZone("GMT", -7*60*60)
	for _, text := range []string{
		"Mon, 19 Sep 2016 18:29:47 GMT", "Monday, 19-Sep-16 18:29:47 GMT", "2016-09-19T18:29:47Z",
	} {
		got, err := parseNotBefore(text)
		if err != nil || got.Format(time.RFC3339) != "2016-09-19T18:29:47Z" {
			t.Errorf("parseNotBefore(%q) = %v, %v", text, got, err)
		}
	}
}

// A NotBefore that can't be read is shown as Azure wrote it, on one line and bounded; one that is missing, empty or
// readable is not.
func TestATimeThatCannotBeReadIsQuoted(t *testing.T) {
	for sent, want := range map[string]string{
		`"soon"`:                             "soon",
		`"Sat, 21 Nov 2026 25:10:00 GMT"`:    "Sat, 21 Nov 2026 25:10:00 GMT",
		`"a\nb\u001b[31m"`:                   "a b [31m",
		`"` + strings.Repeat("x", 100) + `"`: strings.Repeat("x", 60),
		`{"at":[1]}`:                         `{"at":[1]}`,
		`true`:                               "true",
		`""`:                                 "",
		`null`:                               "",
		`"Sat, 21 Nov 2026 05:10:00 GMT"`:    "",
	} {
		if got := azureEvent(t, `{"EventId":"A","NotBefore":`+sent+`}`).RawNotBefore(); got != want {
			t.Errorf("NotBefore %s: RawNotBefore = %q, want %q", sent, got, want)
		}
	}
}

var token = regexp.MustCompile(`^[A-Z0-9-]+$`)

// An ID ignores the case of ASCII letters, and is a token that is safe in every protocol. A token of at most 64
// characters stays what it is. Different EventIds give different IDs.
func TestEventIDIsATokenInUpperCase(t *testing.T) {
	idOf := func(id string) string { return azureEvent(t, string(CompactJSON(map[string]string{"EventId": id}))).ID }
	seen := map[string]string{}
	for _, id := range []string{
		"602d9444-d2cd-49c7-8624-8643e7171297", "{602D9444-D2CD-49C7-8624-8643E7171297}", "a b", "a.b", "a/b", "a*b",
		"ä", "Ä", "ö", "s", "ſ", "i", "ı", "k", "\u212a", "..", ">", "a\x00b", " a b", strings.Repeat("a", 64),
		strings.Repeat("a", 65), strings.Repeat("a", 66), strings.Repeat("ü", 1<<10),
	} {
		got := idOf(id)
		if !token.MatchString(got) || len(got) > 64 {
			t.Errorf("%.80q becomes %q", id, got)
		}
		if same := idOf(Upper(id)); same != got {
			t.Errorf("%.80q becomes %s, in upper case %s", id, got, same)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%.80q and %.80q both become %s", id, other, got)
		}
		seen[got] = id
	}
	for _, id := range []string{"602D9444-D2CD-49C7-8624-8643E7171297", strings.Repeat("A", 64)} {
		if got := idOf(id); got != id {
			t.Errorf("%s becomes %s", id, got)
		}
	}
}

// A stored event without an EventId is an error.
func TestStoredEventWithoutAnEventIDIsAnError(t *testing.T) {
	for _, raw := range []string{``, `{}`, `null`, `{"EventId":`, `{"EventId":7}`, `[]`} {
		if e, err := UnmarshalEvent(json.RawMessage(raw)); err == nil {
			t.Errorf("UnmarshalEvent(%s) = %+v", raw, e)
		}
	}
}

// A VM is matched by its whole name, in any case. The preview's underscore is not part of it.
func TestResourcesAreMatchedByWholeNames(t *testing.T) {
	e := azureEvent(t, `{"EventId":"A","Resources":["web10","DB_0","_mysrv"]}`)
	for _, tt := range []struct {
		vm           string
		affects, led bool
	}{
		{"web10", true, true}, {"WEB10", true, true}, {"web1", false, false}, {"db_0", true, false}, {"db", false, false},
		{"mysrv", true, false}, {"_MySrv", true, false}, {"", false, false}, {"myſrv", false, false},
	} {
		if e.Affects(tt.vm) != tt.affects || e.LedBy(tt.vm) != tt.led {
			t.Errorf("%q: affects %v, leads %v, want %v, %v", tt.vm, e.Affects(tt.vm), e.LedBy(tt.vm), tt.affects, tt.led)
		}
	}
	if none := azureEvent(t, `{"EventId":"A"}`); none.Affects("vm-0") || none.LedBy("vm-0") {
		t.Error("an event without Resources affects a VM")
	}
}

// Of an underscore before a VM's name only the one that Azure's first preview wrote is left out.
func TestOnlyOneUnderscoreIsLeftOutOfAName(t *testing.T) {
	for resource, want := range map[string]bool{
		"vm-0": true, "_vm-0": true, "__vm-0": false, "___vm-0": false, "_ vm-0": false,
	} {
		e := azureEvent(t, `{"EventId":"A","Resources":["`+resource+`"]}`)
		if e.Affects("vm-0") != want || e.LedBy("vm-0") != want || e.Affects("_vm-0") != want {
			t.Errorf("an event of %q is one of vm-0: %v, want %v", resource, e.Affects("vm-0"), want)
		}
	}
}

// Unknown fields, types and statuses are kept as Azure sent them.
func TestUnknownFieldsTypesAndStatusesSurvive(t *testing.T) {
	raw := `{"EventId":"A","Impact":{"b":[1.50,1E+2,null],"a":"<&>"},"EventStatus":"Advisory",` +
		`"EventType":"SpotRebalanceRecommendation","Resources":["x"]}`
	d := decoded(t, listing(raw))
	e := d.Events[0]
	if len(d.Problems) > 0 || e.Status != "Advisory" || e.Type != "SpotRebalanceRecommendation" || string(e.Raw) != raw {
		t.Errorf("problems %q, status %s, type %s, raw %s", d.Problems, e.Status, e.Type, e.Raw)
	}
	spaced := decoded(t, "{\n \"Events\" : [ {\n\t\"EventId\" : \"A\" ,\r\n \"Description\": \"a  b\" } ] }\n")
	if got := string(spaced.Events[0].Raw); got != `{"EventId":"A","Description":"a  b"}` {
		t.Errorf("raw = %s", got)
	}
}

// A field that can't be understood, by its type, by its form, or because it is about something else than VMs, makes
// its event unclear, also after a restart, and is a problem. It doesn't affect the rest of the event, nor the others.
// What is missing is not unclear.
func TestAFieldThatCanNotBeUnderstoodIsUnclear(t *testing.T) {
	const noTime, unknown = "0001-01-01 00:00:00 +0000 UTC", "-1"
	for _, tt := range []struct{ field, value, read, unclear string }{
		{"EventStatus", `1`, "", "EventStatus is not a string: 1"},
		{"EventType", `["Reboot"]`, "", `EventType is not a string: ["Reboot"]`},
		{"ResourceType", `{}`, "", "ResourceType is not a string: {}"},
		{"ResourceType", `"Disk"`, "Disk", `ResourceType "Disk" is not VirtualMachine`},
		{"ResourceType", `"virtualmachine"`, "virtualmachine", ""},
		{"ResourceType", `""`, "", ""},
		{"Resources", `"vm-0"`, "[]", `Resources is not a list of strings: "vm-0"`},
		{"Resources", `["vm-0",7]`, "[]", `Resources is not a list of strings: ["vm-0",7]`},
		{"Resources", `["vm-0",null]`, "[vm-0 ]", `Resources has an empty name: ["vm-0",null]`},
		{"Resources", `["vm-0"," "]`, "[vm-0  ]", `Resources has an empty name: ["vm-0"," "]`},
		{"Resources", `[]`, "[]", ""},
		{"Resources", `null`, "[]", ""},
		{"NotBefore", `1474309787`, noTime, "NotBefore is not a string: 1474309787"},
		{"NotBefore", `"tomorrow"`, noTime, `NotBefore "tomorrow" is not a time in GMT`},
		{"NotBefore", `""`, noTime, ""},
		{"NotBefore", `null`, noTime, ""},
		{"NotBefore", `"0001-01-01T00:00:00Z"`, noTime, ""}, // .NET's way to say none
		{"Description", `false`, "", "Description is not a string: false"},
		{"EventSource", `0`, "", "EventSource is not a string: 0"},
		{"EventSource", `"Operator"`, "Operator", ""},
		{"DurationInSeconds", `5`, "5", ""},
		{"DurationInSeconds", `0`, "0", ""},
		{"DurationInSeconds", `"5"`, "5", ""},
		{"DurationInSeconds", `2147483647`, "2147483647", ""},
		{"DurationInSeconds", `-1`, unknown, ""},
		{"DurationInSeconds", `-90`, unknown, ""},
		{"DurationInSeconds", `null`, unknown, ""},
		{"DurationInSeconds", `7.5`, unknown, "DurationInSeconds is not a number of seconds: 7.5"},
		{"DurationInSeconds", `2147483648`, unknown, "DurationInSeconds is not a number of seconds: 2147483648"},
		{"DurationInSeconds", `"long"`, unknown, `DurationInSeconds is not a number of seconds: "long"`},
		{"DurationInSeconds", `""`, unknown, `DurationInSeconds is not a number of seconds: ""`},
		{"DurationInSeconds", `true`, unknown, "DurationInSeconds is not a number of seconds: true"},
		{"DurationInSeconds", `[5]`, unknown, "DurationInSeconds is not a number of seconds: [5]"},
	} {
		t.Run(tt.field+" "+tt.value, func(t *testing.T) {
			raw := fmt.Sprintf(`{"EventId":"a-1",%q:%s,"New":1}`, tt.field, tt.value)
			d := decoded(t, listing(raw, `{"EventId":"B"}`))
			if len(d.Events) != 2 || d.Partial {
				t.Fatalf("%d events, partial %v", len(d.Events), d.Partial)
			}
			e := d.Events[0]
			read := fmt.Sprint(map[string]any{
				"EventStatus": e.Status, "EventType": e.Type, "ResourceType": e.ResourceType, "Resources": e.Resources,
				"NotBefore": e.NotBefore, "Description": e.Description, "EventSource": e.Source,
				"DurationInSeconds": e.Duration,
			}[tt.field])
			if e.ID != "A-1" || read != tt.read || string(e.Raw) != raw {
				t.Errorf("it is read as %q, want %q: %+v", read, tt.read, e)
			}
			if again := azureEvent(t, string(e.Raw)); e.Unclear != tt.unclear || again.Unclear != tt.unclear {
				t.Errorf("unclear is %q, after a restart %q, want %q", e.Unclear, again.Unclear, tt.unclear)
			}
			var problems []string
			if tt.unclear != "" {
				problems = []string{"event A-1: " + tt.unclear}
			}
			if !slices.Equal(d.Problems, problems) {
				t.Errorf("the problems are %q, want %q", d.Problems, problems)
			}
			if _, err := d.Confirm("A-1", e.Digest()); err != nil {
				t.Errorf("the document does not confirm it: %v", err)
			}
		})
	}
	bare, doubtful := azureEvent(t, `{"EventId":"A"}`), azureEvent(t, `{"EventId":"A","EventSource":1,"New":1,"new":1}`)
	if bare.Duration != -1 || bare.Unclear != "" {
		t.Errorf("an event without fields has the duration %d and is unclear: %q", bare.Duration, bare.Unclear)
	}
	if want := "EventSource is not a string: 1"; doubtful.Unclear != want {
		t.Errorf("an event in doubt is unclear: %q, want %q", doubtful.Unclear, want)
	}
}

// An event lacks a field that was not sent, and one that was sent as null, blank, or what can't be read.
func TestAnEventLacksWhatAzureDidNotSay(t *testing.T) {
	words := []string{"EventStatus", "EventType", "ResourceType", "EventSource"}
	for _, tt := range []struct{ fields, says, lacks []string }{
		{words, []string{`"x"`}, []string{`""`, `" "`, `7`}},
		{[]string{"Description"}, []string{`"x"`, `""`}, []string{`7`}},
		{[]string{"Resources"}, []string{`["vm-0"]`}, []string{`[]`, `"vm-0"`}},
		{[]string{"NotBefore"}, []string{`"Sat, 21 Nov 2026 04:10:00 GMT"`}, []string{`""`, `"soon"`, `7`}},
		{[]string{"DurationInSeconds"}, []string{`0`, `-1`, `9`, `"9"`}, []string{`""`, `"long"`, `1.5`, `[9]`}},
	} {
		for _, field := range tt.fields {
			if !azureEvent(t, `{"EventId":"A"}`).Lacks(field) {
				t.Errorf("an event without %s does not lack it", field)
			}
			for _, value := range slices.Concat(tt.says, tt.lacks, []string{"null"}) {
				e := azureEvent(t, `{"EventId":"A","`+field+`":`+value+`}`)
				if want := !slices.Contains(tt.says, value); e.Lacks(field) != want {
					t.Errorf("with %s the event lacks %s: %v, want %v", value, field, !want, want)
				}
			}
		}
	}
}
