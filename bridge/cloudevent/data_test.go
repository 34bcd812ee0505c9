package cloudevent

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
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

// The schemas refuse what is wrong, so that a wrong golden file does not pass for a right one.
func TestSchemasRefuseWhatIsWrong(t *testing.T) {
	whole, data := schemas(t)
	all := spoken(t)
	set := func(key string, v any) func(map[string]any) { return func(m map[string]any) { m[key] = v } }
	drop := func(key string) func(map[string]any) { return func(m map[string]any) { delete(m, key) } }
	for _, tt := range []struct {
		claim  string
		name   string
		change func(data map[string]any)
	}{
		{"no change", "scheduled-reboot", drop("change")},
		{"a change that is none", "scheduled-reboot", set("change", "schedulled")},
		{"no event", "scheduled-reboot", drop("event")},
		{"an event without an EventId", "scheduled-reboot", func(m map[string]any) { delete(m["event"].(map[string]any), "EventId") }},
		{"an event that is text", "scheduled-reboot", set("event", idC)},
		{"no whileAway", "scheduled-reboot", drop("whileAway")},
		{"whileAway as text", "scheduled-reboot", set("whileAway", "false")},
		{"no observer", "scheduled-reboot", drop("observer")},
		{"null for an observer", "scheduled-reboot", set("observer", nil)},
		{"an observer with an empty name", "scheduled-reboot", set("observer", map[string]any{"name": ""})},
		{"null for what is unknown", "scheduled-reboot", set("affectsSelf", nil)},
		{"null for a time", "scheduled-reboot", set("notBefore", nil)},
		{"a time that is not UTC", "scheduled-reboot", set("notBefore", "2026-11-21T05:10:00+01:00")},
		{"a time in Azure's form", "scheduled-reboot", set("notBefore", "Sat, 21 Nov 2026 04:10:00 GMT")},
		{"a time that is none", "scheduled-reboot", set("notBefore", "2026-11-31T04:10:00Z")},
		{"an empty incarnation", "scheduled-reboot", set("documentIncarnation", "")},
		{"a fraction of an incarnation", "scheduled-reboot", set("documentIncarnation", 7.5)},
		{"an outcome before the end", "scheduled-reboot", set("outcome", "unknown")},
		{"something previous before there was anything", "scheduled-reboot", set("previous", map[string]any{"EventId": "A"})},
		{"changed fields of what was not there", "scheduled-reboot", set("changed", []any{"NotBefore"})},
		{"notEarlierThan while watching", "scheduled-reboot", set("notEarlierThan", "2026-11-21T03:55:29Z")},
		{"an empty list of what was cut", "scheduled-reboot", set("truncated", []any{})},
		{"a test that is none", "scheduled-reboot", set("test", false)},
		{"an update without changed fields", "updated-notbefore", drop("changed")},
		{"an update of no field", "updated-notbefore", set("changed", []any{})},
		{"an update of nothing previous", "updated-notbefore", drop("previous")},
		{"changed fields of what began", "started", set("changed", []any{"NotBefore"})},
		{"an outcome of what began", "started", set("outcome", "completed")},
		{"an end without an outcome", "vanished-unknown", drop("outcome")},
		{"an outcome that is none", "vanished-unknown", set("outcome", "cancelled")},
		{"something previous at the end", "vanished-unknown", set("previous", map[string]any{"EventId": "A"})},
		{"a pause of no time", "vanished-unknown", set("longestPause", 0)},
		{"a pause as text", "vanished-unknown", set("longestPause", "7s")},
		{"a start without a version", "bridge-started", drop("version")},
		{"a start without an api-version", "bridge-started", set("apiVersion", "")},
		{"half a gap", "bridge-started", set("gap", map[string]any{"from": "2026-11-21T03:55:29Z"})},
		{"a stop with less than nothing pending", "bridge-stopping", set("pending", -1)},
		{"an outage without a reason", "bridge-imds.unavailable", drop("error")},
		{"an end of an outage without a gap", "bridge-imds.recovered", drop("gap")},
		{"a blocked sink without a name", "bridge-sink.blocked", set("sink", "")},
		{"a blocked sink without a reason", "bridge-sink.blocked", drop("error")},
		{"a recovered sink without a kind", "bridge-sink.recovered", drop("kind")},
		{"dead letters without any", "bridge-delivery.deadlettered", set("deliveries", []any{})},
		{"a dead letter without a reason", "bridge-delivery.deadlettered", func(m map[string]any) {
			delete(m["deliveries"].([]any)[0].(map[string]any), "reason")
		}},
		{"settings without a hash", "bridge-settings.loaded", drop("settingsHash")},
	} {
		t.Run("the schema of data refuses "+tt.claim, func(t *testing.T) {
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader(all[tt.name].Data()))
			if err != nil {
				t.Fatal(err)
			}
			if err := data.Validate(v); err != nil {
				t.Fatalf("as it is: %v", err)
			}
			tt.change(v.(map[string]any))
			if data.Validate(v) == nil {
				t.Error("it does not")
			}
		})
	}
	for _, tt := range []struct {
		claim  string
		name   string
		change func(ce map[string]any)
	}{
		{"no id", "scheduled-reboot", drop("id")},
		{"an id with a dot", "scheduled-reboot", set("id", "a.b-scheduled")},
		{"the id of another change", "scheduled-reboot", set("id", idC+"-started")},
		{"an update without a hash", "updated-notbefore", set("id", idC+"-updated")},
		{"the type of another change", "scheduled-reboot", set("type", EventPrefix+"vanished")},
		{"a foreign type", "scheduled-reboot", set("type", "com.example.scheduled")},
		{"a relative source", "scheduled-reboot", set("source", "/subscriptions/a")},
		{"a subject in lower case", "scheduled-reboot", set("subject", strings.ToLower(idC))},
		{"no subject", "scheduled-reboot", drop("subject")},
		{"a time without a zone", "scheduled-reboot", set("time", "2026-11-21T03:55:29")},
		{"another content type", "scheduled-reboot", set("datacontenttype", "text/json")},
		{"no data", "scheduled-reboot", drop("data")},
		{"wrong data", "scheduled-reboot", set("data", map[string]any{"change": "scheduled"})},
		{"an attribute nobody promised", "scheduled-reboot", set("aznew", "x")},
		{"azself as text", "scheduled-reboot", set("azself", "true")},
		{"azduration as text", "scheduled-reboot", set("azduration", "5")},
		{"an empty attribute", "scheduled-reboot", set("azeventsource", "")},
		{"a control character", "scheduled-reboot", set("azeventtype", "Re\nboot")},
		{"an attribute that is too long", "scheduled-reboot", set("azresources", strings.Repeat("a", 1025))},
		{"a severity whose number is another's", "scheduled-reboot", set("severitynumber", 9)},
		{"a test that does not say so", "bridge-test", func(ce map[string]any) { delete(ce["data"].(map[string]any), "test") }},
		{"about the bridge, an id without its time", "bridge-started", set("id", "vm-0-started")},
		{"about the bridge, an Azure event", "bridge-stopping", func(ce map[string]any) { ce["data"].(map[string]any)["event"] = map[string]any{"EventId": "A"} }},
	} {
		t.Run("the schema of CloudEvents refuses "+tt.claim, func(t *testing.T) {
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader(structured(t, all[tt.name])))
			if err != nil {
				t.Fatal(err)
			}
			if err := whole.Validate(v); err != nil {
				t.Fatalf("as it is: %v", err)
			}
			tt.change(v.(map[string]any))
			if whole.Validate(v) == nil {
				t.Error("it does not")
			}
		})
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
	for name, ce := range spoken(t) {
		about := "aboutAnEvent"
		if !strings.HasPrefix(ce.Type(), EventPrefix) && ce.Type() != BridgeTest {
			about = "aboutTheBridge"
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(ce.Data(), &members); err != nil {
			t.Fatal(err)
		}
		for member := range members {
			if member != "observer" && s.Defs[about].Properties[member].Description == "" {
				t.Errorf("%s of %s is not described in %s", member, name, about)
			}
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(entry()), &fields); err != nil {
			t.Fatal(err)
		}
		for member := range fields {
			if s.Defs["event"].Properties[member].Description == "" {
				t.Errorf("%s is not described", member)
			}
		}
		var observer map[string]string
		_ = json.Unmarshal(members["observer"], &observer)
		for member := range observer {
			if _, ok := s.Defs["observer"].Properties[member]; !ok {
				t.Errorf("%s of the observer is not described", member)
			}
		}
	}
}

// data.event is what Azure sent, byte for byte: the order of the keys, the numbers, the characters that HTML would
// escape.
func TestDataHoldsTheEventAsAzureSentIt(t *testing.T) {
	raw := `{"Z":1,"EventId":"a","New":{"b":1.50,"a":[1E+2,-0,12345678901234567890,null,{}]},"Description":"<a href=\"x\">&'\/</a>","A":true}`
	previous := `{"EventId":"a","Description":"<>&"}`
	was := azureEvent(t, previous)
	ce := said(t, imds.Change{Kind: imds.Updated, Event: azureEvent(t, raw), Previous: &was, Fields: []string{"A", "Description", "New", "Z"}}, Circumstances{})
	for _, text := range [][]byte{ce.Data(), structured(t, ce)} {
		if !bytes.Contains(text, []byte(`"event":`+raw)) || !bytes.Contains(text, []byte(`"previous":`+previous)) {
			t.Errorf("got %s", text)
		}
	}
	if d := dataOf(t, ce); !slices.Equal(d.Changed, []string{"A", "Description", "New", "Z"}) || d.Truncated != nil {
		t.Errorf("changed %q, truncated %q", d.Changed, d.Truncated)
	}
	lone := said(t, imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, `{"Z":1,"EventId":"a","D":"\ud800<\u00fc>","N":[1.50,{"b":[],"a":{}},[[]],[true,null]]}`)}, Circumstances{})
	if want := `"event":{"Z":1,"EventId":"a","D":"` + "\ufffd<ü>" + `","N":[1.50,{"b":[],"a":{}},[[]],[true,null]]}`; !bytes.Contains(lone.Data(), []byte(want)) {
		t.Errorf("with a lone surrogate: got %s, want %s", lone.Data(), want)
	}
}

// A string over 16 KiB is cut at a rune, wherever it stands, and it is said in which field.
func TestLongStringsAreCutAndNamed(t *testing.T) {
	const limit = 16 << 10
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, tt := range []struct {
		claim     string
		raw       string
		previous  string
		truncated []string
		want      string // in data
	}{
		{"exactly 16 KiB is whole", entry("Description", `"`+x(limit)+`"`), "", nil, `"Description":"` + x(limit) + `"`},
		{"a byte more is cut", entry("Description", `"`+x(limit+1)+`"`), "", []string{"Description"}, `"Description":"` + x(limit) + `"`},
		{"no rune is cut", entry("Description", `"x`+strings.Repeat("ü", limit/2)+`"`), "", []string{"Description"}, `"Description":"x` + strings.Repeat("ü", limit/2-1) + `"`},
		{"escapes count as what they mean", entry("Description", `"`+strings.Repeat(`\u0041`, limit)+`"`), "", nil, `"Description":"` + strings.Repeat("A", limit) + `"`},
		{"a string deep in an unknown field is cut", entry("New", `{"a":[1.50,{"b":"`+x(limit+9)+`"}],"c":2}`), "", []string{"New"}, `"New":{"a":[1.50,{"b":"` + x(limit) + `"}],"c":2}`},
		{"a name of Resources is cut", entry("Resources", `["a","`+x(limit+9)+`"]`), "", []string{"Resources"}, `"Resources":["a","` + x(limit) + `"]`},
		{"two fields are named in order", entry("Resources", `["`+x(limit+9)+`"]`, "Description", `"`+x(limit+9)+`"`), "", []string{"Description", "Resources"}, `"Description":"` + x(limit) + `"`},
		{"the name of a field is cut", entry(x(limit+9), `1`), "", []string{x(limit)}, `"` + x(limit) + `":1`},
		{"what was before is cut", entry(), entry("Description", `"`+x(limit+9)+`"`), []string{"Description"}, `"Description":"` + x(limit) + `"`},
		{"many short strings are whole", entry("Resources", `["`+strings.Repeat(`vm","`, 9000)+`vm"]`), "", nil, `"Resources":["` + strings.Repeat(`vm","`, 9000) + `vm"]`},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			c := imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, tt.raw)}
			if tt.previous != "" {
				was := azureEvent(t, tt.previous)
				c = imds.Change{Kind: imds.Updated, Event: c.Event, Previous: &was, Fields: []string{"Description"}}
			}
			ce := said(t, c, Circumstances{})
			if got := dataOf(t, ce).Truncated; !slices.Equal(got, tt.truncated) {
				t.Errorf("truncated = %.100q, want %.100q", got, tt.truncated)
			}
			if !bytes.Contains(ce.Data(), []byte(tt.want)) {
				t.Errorf("data of %d bytes does not hold %.80s…", len(ce.Data()), tt.want)
			}
		})
	}
}

// The underscore that preview versions put before a VM's name stays in what Azure sent, and nowhere else: patterns of
// names, mutes and texts for people don't expect it.
func TestTheUnderscoreOfPreviewsIsNoPartOfAName(t *testing.T) {
	e := azureEvent(t, entry("Resources", `["_vm-0","vm_1"]`))
	ce := said(t, imds.Change{Kind: imds.Scheduled, Event: e}, Circumstances{Observer: vm0})
	if want := []string{"vm-0", "vm_1"}; !slices.Equal(e.Resources, want) || ce.Extensions()["azresources"] != "vm-0,vm_1" ||
		!slices.Equal(Fields(ce)["resources"].([]string), want) || !bytes.Contains(ce.Data(), []byte(`["_vm-0","vm_1"]`)) {
		t.Errorf("the event has %q, the fields %v, and the CloudEvent is %s", e.Resources, Fields(ce)["resources"], structured(t, ce))
	}
}

// A number that no float64 holds becomes a string, because with it hardly anybody could read the CloudEvent, and
// forewarn could not either.
func TestNumbersTooLargeAreStrings(t *testing.T) {
	huge := azureEvent(t, entry("Impact", `[1e400,-1.5E+999,{"a":1e-999,"b":`+strings.Repeat("9", 400)+`}]`, "DurationInSeconds", "1e309"))
	was := azureEvent(t, entry("Impact", "-1e400"))
	ce := said(t, imds.Change{Kind: imds.Updated, Event: huge, Previous: &was, Fields: []string{"Impact"}}, Circumstances{})
	for _, want := range []string{
		`"Impact":["1e400","-1.5E+999",{"a":1e-999,"b":"` + strings.Repeat("9", 400) + `"}]`, `"DurationInSeconds":"1e309"`, `"Impact":"-1e400"`,
	} {
		if !bytes.Contains(ce.Data(), []byte(want)) {
			t.Errorf("data %s does not hold %s", ce.Data(), want)
		}
	}
	var back event.Event
	if err := json.Unmarshal(structured(t, ce), &back); err != nil {
		t.Fatalf("it cannot be read: %v", err)
	}
	if got, _ := Fields(back)["resources"].([]string); !slices.Equal(got, []string{"vm-0", "vm-1"}) {
		t.Errorf("the resources are %v", got)
	}
}

// Data says what is known and leaves out the rest; it never says null.
func TestDataLeavesOutWhatIsUnknown(t *testing.T) {
	members := func(c imds.Change, in Circumstances) string {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(said(t, c, in).Data(), &m); err != nil {
			t.Fatal(err)
		}
		for name, v := range m {
			if string(v) == "null" {
				t.Errorf("%s is null", name)
			}
		}
		return strings.Join(slices.Sorted(maps.Keys(m)), " ")
	}
	bare := azureEvent(t, `{"EventId":"A"}`)
	full := azureEvent(t, entry())
	before := commitTime.Add(-time.Hour)
	for _, tt := range []struct {
		claim string
		c     imds.Change
		in    Circumstances
		want  string
	}{
		{"of a bare event hardly anything", imds.Change{Kind: imds.Scheduled, Event: bare}, Circumstances{}, "change event observer whileAway"},
		{"of a full one its time and whom it hits", imds.Change{Kind: imds.Scheduled, Event: full}, Circumstances{Observer: vm0, Incarnation: "7"},
			"affectsSelf change documentIncarnation event notBefore observer whileAway"},
		{"of an update what was before", imds.Change{Kind: imds.Updated, Event: full, Previous: &bare, Fields: []string{"NotBefore"}}, Circumstances{},
			"change changed event notBefore observer previous whileAway"},
		{"of a beginning what was before, not what changed", imds.Change{Kind: imds.Started, Event: bare, Previous: &full, Fields: []string{"NotBefore"}}, Circumstances{},
			"change event observer previous whileAway"},
		{"of an end its outcome", imds.Change{Kind: imds.Vanished, Event: bare}, Circumstances{WhileAway: true, NotEarlierThan: before, End: End{OutcomeCompleted, before, time.Second}},
			"back change event longestPause notEarlierThan observer outcome whileAway"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			if got := members(tt.c, tt.in); got != tt.want {
				t.Errorf("data has %s, want %s", got, tt.want)
			}
		})
	}
	for text, want := range map[string]string{"7": "7", "-3": "-3", "": "", "seven": `"seven"`, "007": "7", "12345678901234567890123": `"12345678901234567890123"`} {
		ce := said(t, imds.Change{Kind: imds.Scheduled, Event: bare}, Circumstances{Incarnation: text})
		if got := string(dataOf(t, ce).DocumentIncarnation); got != want {
			t.Errorf("documentIncarnation of %q = %s, want %s", text, got, want)
		}
	}
	if pause := dataOf(t, said(t, imds.Change{Kind: imds.Vanished, Event: bare}, Circumstances{End: End{LongestPause: 7249 * time.Millisecond}})).LongestPause; pause != 7.2 {
		t.Errorf("longestPause = %v, want 7.2", pause)
	}
}

// A CloudEvent whose data is JSON's null has the same fields as one without data, and data is an empty object.
func TestNullDataIsNoData(t *testing.T) {
	decoded := func(data string) event.Event {
		t.Helper()
		ce, err := Decode([]byte(`{"specversion":"1.0","id":"1","source":"/x","type":"` + EventPrefix + `scheduled",` +
			`"datacontenttype":"application/json"` + data + `}`))
		if err != nil {
			t.Fatal(err)
		}
		return ce
	}
	null := decoded(`,"data":null`)
	if string(null.Data()) != "null" {
		t.Fatalf("its data is %q, want null", null.Data())
	}
	got, want := Fields(null), Fields(decoded(""))
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, want %#v", got, want)
	}
	if data := imds.CompactJSON(got["data"]); string(data) != "{}" {
		t.Errorf("data is %s, want {}", data)
	}
}
