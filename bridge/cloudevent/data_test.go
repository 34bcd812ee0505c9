package cloudevent

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"forewarn/bridge/imds"
)

// schemas returns those of a whole CloudEvent, and of its data.
func schemas(t testing.TB) (whole, data *jsonschema.Schema) {
	t.Helper()
	file, err := os.ReadFile("testdata/cloudevent.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	compile := func(id string, text []byte) *jsonschema.Schema {
		t.Helper()
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := doc.(map[string]any)["$id"]; got != id {
			t.Fatalf("$id is %v, want %s", got, id)
		}
		if err := c.AddResource(id, doc); err != nil {
			t.Fatal(err)
		}
		s, err := c.Compile(id)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	data = compile(DataSchema, Schema)
	return compile("https://forewarn.dev/test/cloudevent.json", file), data
}

// breaks returns why the JSON text does not keep to the schema, nil if it does.
func breaks(t testing.TB, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s.Validate(v)
}

// wrong makes a JSON object wrong.
type wrong func(object map[string]any)

func without(key string) wrong     { return func(m map[string]any) { delete(m, key) } }
func with(key string, v any) wrong { return func(m map[string]any) { m[key] = v } }

// in makes the object wrong that is the member of another, or the first of the list there.
func in(key string, w wrong) wrong {
	return func(m map[string]any) {
		if list, ok := m[key].([]any); ok {
			w(list[0].(map[string]any))
			return
		}
		w(m[key].(map[string]any))
	}
}

// wantRefusals checks that the schema accepts a text as it is, and refuses it when it is made wrong.
func wantRefusals(t *testing.T, s *jsonschema.Schema, text []byte, all map[string]wrong) {
	t.Helper()
	if err := breaks(t, s, text); err != nil {
		t.Errorf("as it is, the schema refuses %s: %v", text, err)
	}
	for claim, makeWrong := range all {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		makeWrong(v.(map[string]any))
		if s.Validate(v) == nil {
			t.Errorf("the schema does not refuse %s in %s", claim, text)
		}
	}
}

// The schema of data refuses what is wrong, so that a wrong golden file does not pass for a right one.
func TestSchemaOfDataRefusesWhatIsWrong(t *testing.T) {
	_, data := schemas(t)
	all := spoken(t)
	for name, wrongs := range map[string]map[string]wrong{
		"scheduled-reboot": {
			"no change":                                    without("change"),
			"a change that is none":                        with("change", "schedulled"),
			"no event":                                     without("event"),
			"an event without an EventId":                  in("event", without("EventId")),
			"an event that is text":                        with("event", idC),
			"no whileAway":                                 without("whileAway"),
			"whileAway as text":                            with("whileAway", "false"),
			"no observer":                                  without("observer"),
			"null for an observer":                         with("observer", nil),
			"an observer with an empty name":               with("observer", map[string]any{"name": ""}),
			"null for what is unknown":                     with("affectsSelf", nil),
			"null for a time":                              with("notBefore", nil),
			"a time that is not UTC":                       with("notBefore", "2026-11-21T05:10:00+01:00"),
			"a time in Azure's form":                       with("notBefore", "Sat, 21 Nov 2026 04:10:00 GMT"),
			"a time that is none":                          with("notBefore", "2026-11-31T04:10:00Z"),
			"an empty incarnation":                         with("documentIncarnation", ""),
			"a fraction of an incarnation":                 with("documentIncarnation", 7.5),
			"an outcome before the end":                    with("outcome", "unknown"),
			"something previous before there was anything": with("previous", map[string]any{"EventId": "A"}),
			"changed fields of what was not there":         with("changed", []any{"NotBefore"}),
			"notEarlierThan while watching":                with("notEarlierThan", "2026-11-21T03:55:29Z"),
			"an empty list of what was cut":                with("truncated", []any{}),
			"a test that is none":                          with("test", false),
		},
		"updated-notbefore": {
			"an update without changed fields": without("changed"),
			"an update of no field":            with("changed", []any{}),
			"an update of nothing previous":    without("previous"),
		},
		"started": {
			"changed fields of what began": with("changed", []any{"NotBefore"}),
			"an outcome of what began":     with("outcome", "completed"),
		},
		"vanished-unknown": {
			"an end without an outcome":     without("outcome"),
			"an outcome that is none":       with("outcome", "cancelled"),
			"something previous at the end": with("previous", map[string]any{"EventId": "A"}),
			"a pause of no time":            with("longestPause", 0),
			"a pause as text":               with("longestPause", "7s"),
		},
		"bridge-started": {
			"a start without a version":      without("version"),
			"a start without an api-version": with("apiVersion", ""),
			"half a gap":                     with("gap", map[string]any{"from": "2026-11-21T03:55:29Z"}),
		},
		"bridge-stopping":         {"a stop with less than nothing pending": with("pending", -1)},
		"bridge-imds.unavailable": {"an outage without a reason": without("error")},
		"bridge-imds.recovered":   {"an end of an outage without a gap": without("gap")},
		"bridge-sink.blocked": {
			"a blocked sink without a name":   with("sink", ""),
			"a blocked sink without a reason": without("error"),
		},
		"bridge-sink.recovered": {"a recovered sink without a kind": without("kind")},
		"bridge-delivery.deadlettered": {
			"dead letters without any":       with("deliveries", []any{}),
			"a dead letter without a reason": in("deliveries", without("reason")),
		},
		"bridge-settings.loaded": {"settings without a hash": without("settingsHash")},
	} {
		wantRefusals(t, data, all[name].Data(), wrongs)
	}
}

// The schema describes every member that data can have, so that nobody has to read the program.
func TestSchemaDescribesEveryMember(t *testing.T) {
	var s struct {
		Defs map[string]struct {
			Properties map[string]struct{ Description string }
		} `json:"$defs"`
	}
	if err := json.Unmarshal(Schema, &s); err != nil {
		t.Fatal(err)
	}
	wantDescribed := func(def string, object []byte) {
		t.Helper()
		var members map[string]json.RawMessage
		if err := json.Unmarshal(object, &members); err != nil {
			t.Fatal(err)
		}
		for name := range members {
			member, known := s.Defs[def].Properties[name]
			if name != "observer" && (!known || member.Description == "" && def != "observer") {
				t.Errorf("%s is not described in %s", name, def)
			}
		}
	}
	wantDescribed("event", []byte(entry()))
	for _, ce := range spoken(t) {
		about := "aboutAnEvent"
		if !strings.HasPrefix(ce.Type(), EventPrefix) && ce.Type() != BridgeTest {
			about = "aboutTheBridge"
		}
		wantDescribed(about, ce.Data())
		wantDescribed("observer", imds.CompactJSON(dataOf(t, ce).Observer))
	}
}

// data.event is what Azure sent, byte for byte: the order of the keys, the numbers, the characters that HTML would
// escape. Only half a surrogate pair is no character.
func TestDataHoldsTheEventAsAzureSentIt(t *testing.T) {
	raw := `{"Z":1,"EventId":"a","New":{"b":1.50,"a":[1E+2,-0,12345678901234567890,null,{}]},` +
		`"Description":"<a href=\"x\">&'\/</a>","A":true}`
	previous := `{"EventId":"a","Description":"<>&"}`
	fields := []string{"A", "Description", "New", "Z"}
	ce := said(t, updated(azureEvent(t, previous), azureEvent(t, raw), fields...), Circumstances{})
	for _, text := range [][]byte{ce.Data(), structured(t, ce)} {
		wantHolds(t, text, `"event":`+raw)
		wantHolds(t, text, `"previous":`+previous)
	}
	if d := dataOf(t, ce); !slices.Equal(d.Changed, fields) || d.Truncated != nil {
		t.Errorf("changed %q, truncated %q", d.Changed, d.Truncated)
	}
	lone := azureEvent(t, `{"Z":1,"EventId":"a","D":"\ud800<\u00fc>","N":[1.50,{"b":[],"a":{}},[[]],[true,null]]}`)
	wantHolds(t, said(t, scheduled(lone), Circumstances{}).Data(),
		`"event":{"Z":1,"EventId":"a","D":"`+"\ufffd<ü>"+`","N":[1.50,{"b":[],"a":{}},[[]],[true,null]]}`)
}

func wantHolds(t *testing.T, text []byte, part string) {
	t.Helper()
	if !bytes.Contains(text, []byte(part)) {
		t.Errorf("%.300s does not hold %.300s", text, part)
	}
}

// A string over 16 KiB is cut at a rune, wherever it stands, and it is said in which field.
func TestLongStringsAreCutAndNamed(t *testing.T) {
	const limit = 16 << 10
	x := func(n int) string { return strings.Repeat("x", n) }
	ü := func(n int) string { return strings.Repeat("ü", n) }
	saying := func(text string) string { return entry("Description", `"`+text+`"`) }
	short := `"Resources":["` + strings.Repeat(`vm","`, 9000) + `vm"]`
	for _, tt := range []struct {
		claim     string
		raw       string
		truncated string
		want      string // in data
	}{
		{"exactly 16 KiB is whole", saying(x(limit)), "", `"Description":"` + x(limit) + `"`},
		{"a byte more is cut", saying(x(limit + 1)), "Description", `"Description":"` + x(limit) + `"`},
		{"no rune is cut", saying("x" + ü(limit/2)), "Description", `"Description":"x` + ü(limit/2-1) + `"`},
		{"escapes count as what they mean", saying(strings.Repeat(`\u0041`, limit)), "",
			`"Description":"` + strings.Repeat("A", limit) + `"`},
		{"a string deep in an unknown field is cut", entry("New", `{"a":[1.50,{"b":"`+x(limit+9)+`"}],"c":2}`), "New",
			`"New":{"a":[1.50,{"b":"` + x(limit) + `"}],"c":2}`},
		{"a name of Resources is cut", entry("Resources", `["a","`+x(limit+9)+`"]`), "Resources",
			`"Resources":["a","` + x(limit) + `"]`},
		{"two fields are named in order", entry("Resources", `["`+x(limit+9)+`"]`, "Description", `"`+x(limit+9)+`"`),
			"Description Resources", `"Description":"` + x(limit) + `"`},
		{"the name of a field is cut", entry(x(limit+9), `1`), x(limit), `"` + x(limit) + `":1`},
		{"many short strings are whole", entry("Resources", strings.TrimPrefix(short, `"Resources":`)), "", short},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			e := azureEvent(t, tt.raw)
			for _, c := range []imds.Change{scheduled(e), updated(e, reboot(t), "Description")} {
				ce := said(t, c, Circumstances{})
				if got := strings.Join(dataOf(t, ce).Truncated, " "); got != tt.truncated {
					t.Errorf("truncated in %s = %.100q, want %.100q", c.Kind, got, tt.truncated)
				}
				wantHolds(t, ce.Data(), tt.want)
			}
		})
	}
}

// The underscore that preview versions put before a VM's name stays in what Azure sent, and nowhere else: patterns of
// names, mutes and texts for people don't expect it.
func TestTheUnderscoreOfPreviewsIsNoPartOfAName(t *testing.T) {
	ce := said(t, scheduled(reboot(t, "Resources", `["_vm-0","vm_1"]`)), Circumstances{Observer: vm0})
	wantHolds(t, ce.Data(), `["_vm-0","vm_1"]`)
	got, resources := ce.Extensions()["azresources"], Fields(ce)["resources"]
	if got != "vm-0,vm_1" || !reflect.DeepEqual(resources, []string{"vm-0", "vm_1"}) {
		t.Errorf("azresources is %q, and the resources are %q", got, resources)
	}
}

// A number that no float64 holds becomes a string, because with it hardly anybody could read the CloudEvent, and
// forewarn could not either.
func TestNumbersTooLargeAreStrings(t *testing.T) {
	nines := strings.Repeat("9", 400)
	huge := reboot(t, "Impact", `[1e400,-1.5E+999,{"a":1e-999,"b":`+nines+`}]`, "DurationInSeconds", "1e309")
	ce := said(t, updated(reboot(t, "Impact", "-1e400"), huge, "Impact"), Circumstances{})
	wantHolds(t, ce.Data(), `"Impact":["1e400","-1.5E+999",{"a":1e-999,"b":"`+nines+`"}]`)
	wantHolds(t, ce.Data(), `"DurationInSeconds":"1e309"`)
	wantHolds(t, ce.Data(), `"Impact":"-1e400"`)
	back, err := Decode(structured(t, ce))
	if got := Fields(back)["resources"]; err != nil || !reflect.DeepEqual(got, []string{"vm-0", "vm-1"}) {
		t.Errorf("the resources are %v, %v", got, err)
	}
}

// An incarnation is a number in data if it is one. A pause is told in tenths of a second.
func TestNumbersOfDataAreNumbers(t *testing.T) {
	bare := azureEvent(t, `{"EventId":"A"}`)
	for text, want := range map[string]string{
		"7": "7", "-3": "-3", "": "", "seven": `"seven"`, "007": "7",
		"12345678901234567890123": `"12345678901234567890123"`,
	} {
		ce := said(t, scheduled(bare), Circumstances{Incarnation: text})
		if got := string(dataOf(t, ce).DocumentIncarnation); got != want {
			t.Errorf("documentIncarnation of %q = %s, want %s", text, got, want)
		}
	}
	ce := said(t, vanished(bare), Circumstances{End: End{LongestPause: 7249 * time.Millisecond}})
	if pause := dataOf(t, ce).LongestPause; pause != 7.2 {
		t.Errorf("longestPause = %v, want 7.2", pause)
	}
}

// A CloudEvent whose data is JSON's null has the same fields as one without data, and data is an empty object.
func TestNullDataIsNoData(t *testing.T) {
	fields := func(data string) map[string]any {
		t.Helper()
		ce, err := Decode([]byte(`{"specversion":"1.0","id":"1","source":"/x","type":"` + EventPrefix + `scheduled",` +
			`"datacontenttype":"application/json"` + data + `}`))
		if err != nil {
			t.Fatal(err)
		}
		return Fields(ce)
	}
	got, want := fields(`,"data":null`), fields("")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, want %#v", got, want)
	}
	if data := imds.CompactJSON(got["data"]); string(data) != "{}" {
		t.Errorf("data is %s, want {}", data)
	}
}
