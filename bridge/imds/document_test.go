package imds

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
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

// DocumentIncarnation is a number in every capture and a string in Microsoft's older samples. Whatever it is, the
// events are decoded.
func TestIncarnationMayBeANumberOrAString(t *testing.T) {
	const large = "12345678901234567890123"
	decodes := func(member, want string, problems int) {
		t.Helper()
		d := decoded(t, `{`+member+`"Events":[{"EventId":"A"}]}`)
		if d.Incarnation != want || len(d.Problems) != problems || len(d.Events) != 1 {
			t.Errorf("%.60s: incarnation %q, problems %.200q, %d events, want %q, %d problems, 1 event",
				member, d.Incarnation, d.Problems, len(d.Events), want, problems)
		}
	}
	decodes("", "", 0)
	for value, want := range map[string]string{
		`7`: "7", `"7"`: "7", `-1`: "-1", large: large, `"seven"`: "seven", `""`: "", `null`: "",
	} {
		decodes(`"DocumentIncarnation":`+value+`,`, want, 0)
	}
	for _, value := range []string{`true`, `[7]`, `{"n":7}`, `"` + strings.Repeat("7", 1<<20) + `"`} {
		decodes(`"DocumentIncarnation":`+value+`,`, "", 1)
	}
}

// An entry that cannot be decoded is reported. It does not affect the others, and makes no event vanish.
func TestEntryWithoutAnEventIDIsReportedAndDropsNoOther(t *testing.T) {
	for _, entry := range []string{
		`{}`, `{"EventType":"Reboot"}`, `{"EventId":""}`, `{"EventId":"  "}`, `{"EventId":null}`, `{"EventId":7}`,
		`{"EventId":["A"]}`, `{"EventId":{"id":"A"}}`, `{"eventid":"A"}`, `null`, `7`, `"A"`, `true`, `[]`,
		`[{"EventId":"A"}]`,
	} {
		d := decoded(t, listing(`{"EventId":"before"}`, entry, `{"EventId":"after"}`))
		var ids []string
		for _, e := range d.Events {
			ids = append(ids, e.ID)
		}
		if !d.Partial || len(d.Problems) != 1 || !slices.Equal(ids, []string{"BEFORE", "AFTER"}) {
			t.Errorf("with %s: partial %v, problems %q, events %v", entry, d.Partial, d.Problems, ids)
		}
	}
	if d := decoded(t, listing(`{"EventId":"A"}`)); d.Partial || len(d.Problems) > 0 {
		t.Errorf("with nothing wrong: partial %v, problems %q", d.Partial, d.Problems)
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

// A body that is not a document is an error that fits a line of a log, never a document without events.
func TestInvalidBodyIsAnError(t *testing.T) {
	for _, body := range []string{
		"", " \n", `{}`, `null`, `7`, `"Events"`, `[]`, `[{"EventId":"A"}]`,
		`{"DocumentIncarnation":7}`, `{"events":[]}`, `{"Events":{}}`, `{"Events":""}`, `{"Events":false}`,
		"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>",
		`{"error":"Bad request. Required metadata header not specified"}`,
		// It is cut.
		`{"DocumentIncarnation":7,"Events":[]`, `{"DocumentIncarnation":7,"Events":[{"EventId":"A"}`,
		`{"DocumentIncarnation":7,"Events":[{"EventId":"A","Eve`,
		// It is no JSON.
		`!!!{"Events":[]}`, `{"Events":[]}!`, `{"Events":[]}{"Events":[]}`, `{"Events":[],}`, `{'Events':[]}`,
		"{\"Events\":[{\"EventId\":\"A\x01\"}]}", "\xff\xfe{\x00\"\x00E\x00", `{"Events":` + strings.Repeat("[", 100_000),
	} {
		d, err := DecodeDocument([]byte(body))
		if !errors.Is(err, errNoDocument) {
			t.Errorf("DecodeDocument(%.80q) = %+v, %v, want errNoDocument", body, d, err)
		}
		wantLine(t, err, "")
	}
	d, err := DecodeDocument([]byte(`{"DocumentIncarnation":7,"Events":null}`))
	if !errors.Is(err, errNullEvents) || errors.Is(err, errNoDocument) || len(d.Events) > 0 {
		t.Errorf("with null for Events: %+v, %v, want an error of its own", d, err)
	}
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
		{"unknown members beside Events",
			`{"Next":{"Events":null},"Events":[{"EventId":"A","Description":"x"}],"Zone":1}`, "x"},
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

// manyEvents returns a document with n events. The first ones, as many as changed, have another NotBefore.
func manyEvents(n, changed int) string {
	const entry = `{"EventId":"00000000-0000-4000-8000-%012d","EventStatus":"Scheduled","EventType":"Reboot",` +
		`"ResourceType":"VirtualMachine","Resources":["vm-%[1]d"],"NotBefore":"Mon, 11 Apr 2022 22:%[2]d:58 GMT",` +
		`"Description":"Host server is undergoing maintenance.","EventSource":"Platform","DurationInSeconds":-1}`
	entries := make([]string, n)
	for i := range entries {
		minute := 26
		if i < changed {
			minute = 41
		}
		entries[i] = fmt.Sprintf(entry, i, minute)
	}
	return listing(entries...)
}

var update = flag.Bool("update", false, "write the golden files anew")

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
	systemtest.WantGolden(t, *update, "testdata/documents.golden", b.Bytes())
}

// Of a document with more than 10,000 events the first 10,000 are used. That is its first problem, and the document
// makes no event vanish.
func TestADocumentHasAtMostTenThousandEvents(t *testing.T) {
	systemtest.Alone(t)
	const last = "00000000-0000-4000-8000-000000009999"
	d := decoded(t, manyEvents(10_000, 0))
	if len(d.Events) != 10_000 || d.Events[9_999].ID != last || d.Partial || len(d.Problems) > 0 {
		t.Errorf("10,000 events are %d, partial %v, problems %.200q", len(d.Events), d.Partial, d.Problems)
	}
	d = decoded(t, manyEvents(10_001, 0))
	if len(d.Events) != 10_000 || d.Events[9_999].ID != last || !d.Partial {
		t.Errorf("10,001 events are %d, partial %v; want the first 10,000 and partial", len(d.Events), d.Partial)
	}
	if want := "it lists more than 10000 events; the rest is ignored"; d.Problems[0] != want {
		t.Errorf("the first problem is %q, want %q", d.Problems[0], want)
	}
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
