package imds

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/systemtest"
)

// decoded returns the document in body.
func decoded(t testing.TB, body string) Document {
	t.Helper()
	d, err := DecodeDocument([]byte(body))
	if err != nil {
		t.Fatalf("DecodeDocument(%.200s): %v", body, err)
	}
	return d
}

// listing returns the body of a document with these entries.
func listing(entries ...string) string {
	return `{"DocumentIncarnation":7,"Events":[` + strings.Join(entries, ",") + `]}`
}

// azureEvent returns the event whose entry is raw.
func azureEvent(t testing.TB, raw string) Event {
	t.Helper()
	e, err := UnmarshalEvent(json.RawMessage(raw))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// NotBefore is parsed in every observed or documented form, and is UTC. With an unknown zone there is no time, because
// one that is hours off would be worse.
func TestNotBeforeIsParsedAsUTC(t *testing.T) {
	summer := time.Date(2016, 9, 19, 18, 29, 47, 0, time.UTC)
	first := time.Date(2026, 8, 1, 8, 18, 16, 0, time.UTC)
	none := time.Time{}
	for _, tt := range []struct {
		claim string
		text  string
		want  time.Time
	}{
		{"RFC 1123 in GMT is what Azure sends", "Mon, 19 Sep 2016 18:29:47 GMT", summer},
		{"the weekday is not checked", "Fri, 19 Sep 2016 18:29:47 GMT", summer},
		{"UTC is GMT", "Mon, 19 Sep 2016 18:29:47 UTC", summer},
		{"a zone in small letters is one", "Mon, 19 Sep 2016 18:29:47 gmt", summer},
		{"no offset is GMT", "Mon, 19 Sep 2016 18:29:47 +0000", summer},
		{"a trailing full stop is not part of it", "Mon, 19 Sep 2016 18:29:47 GMT.", summer},
		{"spaces around it are not part of it", "  Mon, 19 Sep 2016 18:29:47 GMT ", summer},
		{"a one-digit day may stand alone", "Sat, 1 Aug 2026 08:18:16 GMT", first},
		{"a one-digit day may have a space before it", "Sat,  1 Aug 2026 08:18:16 GMT", first},
		{"a one-digit day may have a zero before it", "Sat, 01 Aug 2026 08:18:16 GMT", first},
		{"the weekday may be missing", "1 Aug 2026 08:18:16 GMT", first},
		{"RFC 850 is read", "Monday, 19-Sep-16 18:29:47 GMT", summer},
		{"ISO 8601 is what the documentation of 2017 has", "2016-09-19T18:29:47Z", summer},
		{"ISO 8601 may have a fraction", "2016-09-19T18:29:47.0000000Z", summer},
		{"ISO 8601 may have an offset", "2016-09-19T20:29:47+02:00", summer},
		{"ISO 8601 may have a full stop too", "2016-09-19T18:29:47Z.", summer},

		{"PST is refused, though Go would take it for UTC", "Mon, 19 Sep 2016 18:29:47 PST", none},
		{"another offset is refused", "Mon, 19 Sep 2016 18:29:47 +0200", none},
		{"no zone is refused", "Mon, 19 Sep 2016 18:29:47", none},
		{"ISO 8601 without a zone is refused", "2016-09-19T18:29:47", none},
		{"a day that is none is refused", "Mon, 31 Sep 2016 18:29:47 GMT", none},
		{"a date alone is refused", "2016-09-19", none},
		{"a zone alone is refused", "GMT", none},
		{"words are refused", "soon", none},
		{"nothing is refused", "", none},
		{"a year that RFC 3339 cannot write is refused", "9999-12-31T23:59:59-01:00", none},
		{"a year before all years is refused", "0000-01-01T00:00:00+01:00", none},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			got, err := parseNotBefore(tt.text)
			if !got.Equal(tt.want) || got.Location() != time.UTC || (err == nil) != !tt.want.IsZero() {
				t.Errorf("parseNotBefore(%q) = %v, %v, want %v", tt.text, got, err, tt.want)
			}
		})
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
	for _, text := range []string{"Mon, 19 Sep 2016 18:29:47 GMT", "Monday, 19-Sep-16 18:29:47 GMT", "2016-09-19T18:29:47Z"} {
		got, err := parseNotBefore(text)
		if err != nil || got.Format(time.RFC3339) != "2016-09-19T18:29:47Z" {
			t.Errorf("parseNotBefore(%q) = %v, %v", text, got, err)
		}
	}
}

// DocumentIncarnation is a number in every capture and a string in Microsoft's older samples. Whatever it is, the
// events are decoded.
func TestIncarnationMayBeANumberOrAString(t *testing.T) {
	for _, tt := range []struct {
		member   string
		want     string
		problems int
	}{
		{`"DocumentIncarnation":7,`, "7", 0},
		{`"DocumentIncarnation":"7",`, "7", 0},
		{`"DocumentIncarnation":-1,`, "-1", 0},
		{`"DocumentIncarnation":12345678901234567890123,`, "12345678901234567890123", 0},
		{`"DocumentIncarnation":"seven",`, "seven", 0},
		{`"DocumentIncarnation":"",`, "", 0},
		{`"DocumentIncarnation":null,`, "", 0},
		{``, "", 0},
		{`"DocumentIncarnation":true,`, "", 1},
		{`"DocumentIncarnation":[7],`, "", 1},
		{`"DocumentIncarnation":{"n":7},`, "", 1},
		{`"DocumentIncarnation":"` + strings.Repeat("7", 1<<20) + `",`, "", 1},
	} {
		d := decoded(t, `{`+tt.member+`"Events":[{"EventId":"A"}]}`)
		if d.Incarnation != tt.want || len(d.Problems) != tt.problems || len(d.Events) != 1 {
			t.Errorf("%.60s: incarnation %q, problems %.200q, %d events, want %q, %d problems, 1 event",
				tt.member, d.Incarnation, d.Problems, len(d.Events), tt.want, tt.problems)
		}
	}
}

// An entry that cannot be decoded is reported. It does not affect the others, and makes no event vanish.
func TestEntryWithoutAnEventIDIsReportedAndDropsNoOther(t *testing.T) {
	for _, entry := range []string{
		`{}`, `{"EventType":"Reboot"}`, `{"EventId":""}`, `{"EventId":"  "}`, `{"EventId":null}`, `{"EventId":7}`,
		`{"EventId":["A"]}`, `{"EventId":{"id":"A"}}`, `{"eventid":"A"}`, `null`, `7`, `"A"`, `true`, `[]`, `[{"EventId":"A"}]`,
	} {
		d := decoded(t, listing(`{"EventId":"before"}`, entry, `{"EventId":"after"}`))
		if !d.Partial || len(d.Problems) != 1 || len(d.Events) != 2 || d.Events[0].ID != "BEFORE" || d.Events[1].ID != "AFTER" {
			t.Errorf("with %s: partial %v, problems %q, events %v", entry, d.Partial, d.Problems, d.Events)
		}
	}
	if d := decoded(t, listing(`{"EventId":"A"}`)); d.Partial || len(d.Problems) > 0 {
		t.Errorf("with nothing wrong: partial %v, problems %q", d.Partial, d.Problems)
	}
}

// A field with an unexpected type is left out and reported. The rest of the event stays, and Raw is complete.
func TestFieldOfAnotherTypeDoesNotAffectOthers(t *testing.T) {
	for _, tt := range []struct {
		field    string
		value    string
		problems int
		holds    func(Event) bool
	}{
		{"EventStatus", `1`, 1, func(e Event) bool { return e.Status == "" }},
		{"EventType", `["Reboot"]`, 1, func(e Event) bool { return e.Type == "" }},
		{"ResourceType", `{}`, 1, func(e Event) bool { return e.ResourceType == "" }},
		{"Resources", `"vm-0"`, 1, func(e Event) bool { return e.Resources == nil }},
		{"Resources", `["vm-0",7]`, 1, func(e Event) bool { return e.Resources == nil }},
		{"Resources", `[]`, 0, func(e Event) bool { return len(e.Resources) == 0 }},
		{"Resources", `null`, 0, func(e Event) bool { return len(e.Resources) == 0 }},
		{"NotBefore", `1474309787`, 1, func(e Event) bool { return e.NotBefore.IsZero() }},
		{"NotBefore", `"tomorrow"`, 1, func(e Event) bool { return e.NotBefore.IsZero() }},
		{"NotBefore", `""`, 0, func(e Event) bool { return e.NotBefore.IsZero() }},
		{"NotBefore", `null`, 0, func(e Event) bool { return e.NotBefore.IsZero() }},
		{"NotBefore", `"0001-01-01T00:00:00Z"`, 0, func(e Event) bool { return e.NotBefore.IsZero() }}, // .NET's way to say none
		{"Description", `false`, 1, func(e Event) bool { return e.Description == "" }},
		{"EventSource", `0`, 1, func(e Event) bool { return e.Source == "" }},
		{"DurationInSeconds", `5`, 0, func(e Event) bool { return e.Duration == 5 }},
		{"DurationInSeconds", `0`, 0, func(e Event) bool { return e.Duration == 0 }},
		{"DurationInSeconds", `"5"`, 0, func(e Event) bool { return e.Duration == 5 }},
		{"DurationInSeconds", `-1`, 0, func(e Event) bool { return e.Duration == -1 }},
		{"DurationInSeconds", `-90`, 0, func(e Event) bool { return e.Duration == -1 }},
		{"DurationInSeconds", `null`, 0, func(e Event) bool { return e.Duration == -1 }},
		{"DurationInSeconds", `7.5`, 1, func(e Event) bool { return e.Duration == -1 }},
		{"DurationInSeconds", `99999999999`, 1, func(e Event) bool { return e.Duration == -1 }},
		{"DurationInSeconds", `"long"`, 1, func(e Event) bool { return e.Duration == -1 }},
		{"DurationInSeconds", `""`, 1, func(e Event) bool { return e.Duration == -1 }},
		{"DurationInSeconds", `true`, 1, func(e Event) bool { return e.Duration == -1 }},
		{"DurationInSeconds", `[5]`, 1, func(e Event) bool { return e.Duration == -1 }},
	} {
		t.Run(tt.field+" may be "+tt.value, func(t *testing.T) {
			raw := fmt.Sprintf(`{"EventId":"a-1",%q:%s,"New":1}`, tt.field, tt.value)
			d := decoded(t, listing(raw, `{"EventId":"B"}`))
			if len(d.Events) != 2 || d.Partial || len(d.Problems) != tt.problems {
				t.Fatalf("%d events, partial %v, problems %q, want %d problems", len(d.Events), d.Partial, d.Problems, tt.problems)
			}
			if e := d.Events[0]; e.ID != "A-1" || !tt.holds(e) || string(e.Raw) != raw {
				t.Errorf("got %+v", e)
			}
			for _, p := range d.Problems {
				if !strings.Contains(p, "A-1") || !strings.Contains(p, tt.field) {
					t.Errorf("problem %q names not both the event and the field", p)
				}
			}
		})
	}
	if e := azureEvent(t, `{"EventId":"A"}`); e.Duration != -1 {
		t.Errorf("duration of an event without one = %d, want -1", e.Duration)
	}
}

// If entries have the same EventId, in whatever case, the last one counts. This is reported once.
func TestLastEntryWithAnEventIDCounts(t *testing.T) {
	d := decoded(t, listing(`{"EventId":"a-1","EventType":"Freeze"}`, `{"EventId":"B"}`,
		`{"EventId":"A-1","EventType":"Reboot"}`, `{"EventId":"a-1","EventType":"Redeploy"}`))
	if len(d.Events) != 2 || d.Events[0].ID != "A-1" || d.Events[0].Type != "Redeploy" || d.Events[1].ID != "B" {
		t.Errorf("events %+v", d.Events)
	}
	if d.Partial || len(d.Problems) != 1 || !strings.Contains(d.Problems[0], "A-1") {
		t.Errorf("partial %v, problems %q", d.Partial, d.Problems)
	}
}

// Unknown fields, types and statuses are kept as Azure sent them.
func TestUnknownFieldsTypesAndStatusesSurvive(t *testing.T) {
	raw := `{"EventId":"A","Impact":{"b":[1.50,1E+2,null],"a":"<&>"},"EventStatus":"Advisory","EventType":"SpotRebalanceRecommendation","Resources":["x"]}`
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

// A body that is not a document is an error, never a document without events.
func TestInvalidBodyIsAnError(t *testing.T) {
	for _, tt := range []struct{ claim, body string }{
		{"nothing", ""},
		{"a blank", " \n"},
		{"JSON without Events", `{"DocumentIncarnation":7}`},
		{"an empty object", `{}`},
		{"events in small letters", `{"events":[]}`},
		{"an array", `[]`},
		{"an array of events", `[{"EventId":"A"}]`},
		{"null", `null`},
		{"a number", `7`},
		{"a string", `"Events"`},
		{"Events as an object", `{"Events":{}}`},
		{"Events as a string", `{"Events":""}`},
		{"Events as false", `{"Events":false}`},
		{"HTML", "<!DOCTYPE html><html><body>502 Bad Gateway</body></html>"},
		{"a refusal", `{"error":"Bad request. Required metadata header not specified"}`},
		{"a truncated document", `{"DocumentIncarnation":7,"Events":[{"EventId":"A"}`},
		{"a document cut before its last brace", `{"DocumentIncarnation":7,"Events":[]`},
		{"a document cut within a word", `{"DocumentIncarnation":7,"Events":[{"EventId":"A","Eve`},
		{"text before the document", `!!!{"Events":[]}`},
		{"text after the document", `{"Events":[]}!`},
		{"two documents", `{"Events":[]}{"Events":[]}`},
		{"a trailing comma", `{"Events":[],}`},
		{"single quotes", `{'Events':[]}`},
		{"a raw control character", "{\"Events\":[{\"EventId\":\"A\x01\"}]}"},
		{"UTF-16", "\xff\xfe{\x00\"\x00E\x00"},
		{"nesting without an end", `{"Events":` + strings.Repeat("[", 100_000)},
	} {
		t.Run(tt.claim+" is refused", func(t *testing.T) {
			d, err := DecodeDocument([]byte(tt.body))
			if !errors.Is(err, errNoDocument) {
				t.Errorf("DecodeDocument = %+v, %v, want errNoDocument", d, err)
			}
			if err != nil && (len(err.Error()) > 500 || strings.ContainsAny(err.Error(), "\n\x00")) {
				t.Errorf("the error does not fit a line: %q", err)
			}
		})
	}
	t.Run("null for Events is an error of its own", func(t *testing.T) {
		d, err := DecodeDocument([]byte(`{"DocumentIncarnation":7,"Events":null}`))
		if !errors.Is(err, errNullEvents) || errors.Is(err, errNoDocument) || len(d.Events) > 0 {
			t.Errorf("DecodeDocument = %+v, %v", d, err)
		}
	})
}

// Invalid bytes and unusual characters do not prevent decoding.
func TestInvalidCharactersAreTolerated(t *testing.T) {
	long := strings.Repeat("Wartung ü ", 1<<20/11)
	for _, tt := range []struct {
		claim       string
		body        string
		description string
	}{
		{"a byte order mark", "\ufeff" + listing(`{"EventId":"A","Description":"x"}`), "x"},
		{"invalid UTF-8", listing("{\"EventId\":\"A\",\"Description\":\"a\xffb\xc3\"}"), "a\ufffdb\ufffd"},
		{"escaped control characters", listing(`{"EventId":"A","Description":"a\u0000b\nc\u001b"}`), "a\x00b\nc\x1b"},
		{"lone surrogates", listing(`{"EventId":"A","Description":"a\ud800b\udc00"}`), "a\ufffdb\ufffd"},
		{"a pair of surrogates", listing(`{"EventId":"A","Description":"\ud83d\ude00"}`), "😀"},
		{"a description of 1 MiB", listing(`{"EventId":"A","Description":"` + long + `"}`), long},
		{"unknown members beside Events", `{"Next":{"Events":null},"Events":[{"EventId":"A","Description":"x"}],"Zone":1}`, "x"},
	} {
		t.Run(tt.claim+" is read", func(t *testing.T) {
			d := decoded(t, tt.body)
			if len(d.Events) != 1 || d.Partial || len(d.Problems) > 0 {
				t.Fatalf("%d events, partial %v, problems %.200q", len(d.Events), d.Partial, d.Problems)
			}
			if e := d.Events[0]; e.ID != "A" || e.Description != tt.description || !json.Valid(e.Raw) {
				t.Errorf("id %s, description %.80q, raw %.80s", e.ID, e.Description, e.Raw)
			}
		})
	}
}

// A document with very many problems does not flood the log.
func TestNumberOfProblemsIsBounded(t *testing.T) {
	d := decoded(t, listing(slices.Repeat([]string{`{}`}, 10_000)...))
	if !d.Partial || len(d.Problems) != maxProblems+1 || !strings.Contains(d.Problems[maxProblems], "more") {
		t.Errorf("partial %v, %d problems", d.Partial, len(d.Problems))
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

// A document of 10,000 events is decoded completely.
func TestLargeDocumentIsDecodedCompletely(t *testing.T) {
	systemtest.Alone(t)
	d := decoded(t, manyEvents(10_000, 0))
	if len(d.Events) != 10_000 || d.Partial || len(d.Problems) > 0 {
		t.Fatalf("%d events, partial %v, problems %.200q", len(d.Events), d.Partial, d.Problems)
	}
	if first, last := d.Events[0].ID, d.Events[9_999].ID; first != "00000000-0000-4000-8000-000000000000" || last != "00000000-0000-4000-8000-000000009999" {
		t.Errorf("from %s to %s", first, last)
	}
}

// manyEvents returns a document with n events. The first ones, as many as changed, have another NotBefore.
func manyEvents(n, changed int) string {
	entries := make([]string, n)
	for i := range entries {
		minute := 26
		if i < changed {
			minute = 41
		}
		entries[i] = fmt.Sprintf(`{"EventId":"00000000-0000-4000-8000-%012d","EventStatus":"Scheduled","EventType":"Reboot",`+
			`"ResourceType":"VirtualMachine","Resources":["vm-%d"],"NotBefore":"Mon, 11 Apr 2022 22:%d:58 GMT",`+
			`"Description":"Host server is undergoing maintenance.","EventSource":"Platform","DurationInSeconds":-1}`, i, i, minute)
	}
	return listing(entries...)
}

var token = regexp.MustCompile(`^[A-Z0-9-]+$`)

// An ID ignores the case of ASCII letters, and is a token that is safe in every protocol. Different EventIds give different IDs.
func TestEventIDIsATokenInUpperCase(t *testing.T) {
	seen := map[string]string{}
	for _, id := range []string{
		"602d9444-d2cd-49c7-8624-8643e7171297", "{602D9444-D2CD-49C7-8624-8643E7171297}", "a b", "a.b", "a/b", "a*b", "ä", "Ä", "ö", "s", "ſ", "i", "ı", "k", "\u212a", "..", ">",
		"a\x00b", " a b", strings.Repeat("a", 64), strings.Repeat("a", 65), strings.Repeat("a", 66), strings.Repeat("ü", 1<<10),
	} {
		raw, _ := json.Marshal(id)
		upper, _ := json.Marshal(Upper(id))
		got := azureEvent(t, `{"EventId":`+string(raw)+`}`).ID
		if !token.MatchString(got) || len(got) > 64 {
			t.Errorf("%.80q becomes %q", id, got)
		}
		if same := azureEvent(t, `{"EventId":`+string(upper)+`}`).ID; same != got {
			t.Errorf("%.80q becomes %s, in upper case %s", id, got, same)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%.80q and %.80q both become %s", id, other, got)
		}
		seen[got] = id
	}
	if got := azureEvent(t, `{"EventId":"602d9444-d2cd-49c7-8624-8643e7171297"}`).ID; got != "602D9444-D2CD-49C7-8624-8643E7171297" {
		t.Errorf("a GUID becomes %s", got)
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

// Every captured document decodes without a problem, to what testdata/documents.golden has.
func TestCapturedDocumentsAreDecoded(t *testing.T) {
	files, _ := filepath.Glob("testdata/documents/*.json")
	if len(files) == 0 {
		t.Fatal("there are no captures")
	}
	var b bytes.Buffer
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		d := decoded(t, string(body))
		fmt.Fprintf(&b, "%s: incarnation %q\n", filepath.Base(file), d.Incarnation)
		for _, e := range d.Events {
			notBefore := "-"
			if !e.NotBefore.IsZero() {
				notBefore = e.NotBefore.Format(time.RFC3339)
			}
			fmt.Fprintf(&b, "  %s %s %s %s %q not before %s source %q duration %d hash %s\n    %q\n", e.ID, e.Status, e.Type,
				e.ResourceType, e.Resources, notBefore, e.Source, e.Duration, e.Hash(), e.Description)
		}
		if d.Partial || len(d.Problems) > 0 {
			t.Errorf("%s: partial %v, problems %q", file, d.Partial, d.Problems)
		}
	}
	wantGolden(t, "testdata/documents.golden", b.Bytes())
}

// Decoding any body does not panic, and its events can be stored and decoded again.
func FuzzDecodeDocument(f *testing.F) {
	files, _ := filepath.Glob("testdata/documents/*.json")
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	for _, s := range []string{
		"", "{}", `{"Events":null}`, "\ufeff" + listing(`{"EventId":"a"}`, `{"EventId":"A"}`, `{}`, `null`, `7`),
		listing(`{"EventId":"ü \ud800","NotBefore":"9999-12-31T23:59:59-01:00","DurationInSeconds":"5"}`),
		listing("{\"EventId\":\"\xff\",\"Resources\":[\"\\u0000\",\"<&>\"],\"X\":{\"b\":[1e400,{}],\"a\":[]}}"),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := DecodeDocument(body)
		if err != nil {
			if len(d.Events) > 0 {
				t.Errorf("events beside the error %v", err)
			}
			return
		}
		var ids []string
		for _, e := range d.Events {
			ids = append(ids, e.ID)
			if !token.MatchString(e.ID) {
				t.Errorf("id %q", e.ID)
			}
			if e.NotBefore.Location() != time.UTC || e.Duration < -1 {
				t.Errorf("not before %v, duration %d", e.NotBefore, e.Duration)
			}
			back, err := UnmarshalEvent(e.Raw)
			if err != nil {
				t.Fatalf("%s cannot be read back: %v", e.Raw, err)
			}
			if back.ID != e.ID || back.Hash() != e.Hash() || !bytes.Equal(back.Raw, e.Raw) || len(DifferingFields(e, back)) > 0 {
				t.Errorf("%s is read back as %s, %s is %s", e.Raw, back.Raw, e.ID, back.ID)
			}
		}
		slices.Sort(ids)
		if len(slices.Compact(ids)) != len(d.Events) {
			t.Errorf("ids are not unique: %q", ids)
		}
	})
}

// Of a document with more than 10,000 events the first 10,000 are used. That is its first problem, and the document
// makes no event vanish.
func TestADocumentHasAtMostTenThousandEvents(t *testing.T) {
	list := func(n int) []byte {
		var b bytes.Buffer
		b.WriteString(`{"DocumentIncarnation":1,"Events":[`)
		for i := range n {
			fmt.Fprintf(&b, `{"EventId":"%08d-0000-4000-8000-000000000000","NotBefore":"soon"},`, i)
		}
		return append(bytes.TrimSuffix(b.Bytes(), []byte(",")), "]}"...)
	}
	d, err := DecodeDocument(list(10_000))
	if err != nil || len(d.Events) != 10_000 || d.Partial {
		t.Fatalf("10,000 events are %d, partial %v, %v", len(d.Events), d.Partial, err)
	}
	d, err = DecodeDocument(list(10_001))
	if err != nil || len(d.Events) != 10_000 || !d.Partial {
		t.Fatalf("10,001 events are %d, partial %v, %v; want the first 10,000 and partial", len(d.Events), d.Partial, err)
	}
	if want := "it lists more than 10000 events; the rest is ignored"; d.Problems[0] != want {
		t.Errorf("the first problem is %q, want %q", d.Problems[0], want)
	}
	last := Event{ID: "00010000-0000-4000-8000-000000000000"}
	for _, c := range Diff([]Event{last}, d) {
		if c.Kind == Vanished {
			t.Errorf("the event that was not read counts as gone")
		}
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

// wantGolden compares with a golden file, or writes it.
func wantGolden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; with -update it is written anew. Got\n%s", path, got)
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
		e, err := UnmarshalEvent([]byte(`{"EventId":"A","NotBefore":` + sent + `}`))
		if got := e.RawNotBefore(); err != nil || got != want {
			t.Errorf("NotBefore %s: RawNotBefore = %q, %v; want %q", sent, got, err, want)
		}
	}
}
