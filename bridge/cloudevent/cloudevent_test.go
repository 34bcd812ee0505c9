package cloudevent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

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

// commitTime is when the changes of these tests are observed.
var commitTime = time.Date(2026, 11, 21, 3, 55, 29, 123456789, time.UTC)

const idC = "602D9444-D2CD-49C7-8624-8643E7171297"

// vm0 is a VM of its own, web0 one of a scale set.
var (
	vm0 = imds.Observer{
		Name: "vm-0", VMID: "13f56399-bd52-4150-9748-7190aae1ff21",
		ResourceID:     "/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/prod/providers/Microsoft.Compute/virtualMachines/vm-0",
		SubscriptionID: "8d10da13-8125-4ba9-a717-bf7490507b3d", ResourceGroup: "prod", Location: "westeurope", Zone: "1", Priority: "Regular",
	}
	web0 = imds.Observer{
		Name: "web_0", VMID: "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
		ResourceID:     "/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/prod/providers/Microsoft.Compute/virtualMachineScaleSets/web/virtualMachines/0",
		SubscriptionID: "8d10da13-8125-4ba9-a717-bf7490507b3d", ResourceGroup: "prod", Location: "westeurope", ScaleSet: "web",
		Priority: "Spot", EvictionPolicy: "Delete",
	}
)

// entry returns an event as Azure sends it, with some fields replaced by others or, by "", left out.
func entry(fields ...string) string {
	f := map[string]string{
		"EventId": `"` + idC + `"`, "EventStatus": `"Scheduled"`, "EventType": `"Reboot"`, "ResourceType": `"VirtualMachine"`,
		"Resources": `["vm-0","vm-1"]`, "NotBefore": `"Sat, 21 Nov 2026 04:10:00 GMT"`,
		"Description": `"Host server is undergoing maintenance."`, "EventSource": `"Platform"`, "DurationInSeconds": `-1`,
	}
	order := []string{"EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore", "Description", "EventSource", "DurationInSeconds"}
	for i := 0; i < len(fields); i += 2 {
		if _, ok := f[fields[i]]; !ok {
			order = append(order, fields[i])
		}
		f[fields[i]] = fields[i+1]
	}
	var members []string
	for _, name := range order {
		if f[name] != "" {
			members = append(members, fmt.Sprintf("%q:%s", name, f[name]))
		}
	}
	return "{" + strings.Join(members, ",") + "}"
}

// azureEvent returns the event whose entry is raw.
func azureEvent(t testing.TB, raw string) imds.Event {
	t.Helper()
	e, err := imds.UnmarshalEvent(json.RawMessage(raw))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// said returns the CloudEvent for a change, which is valid.
func said(t testing.TB, c imds.Change, in Circumstances) event.Event {
	t.Helper()
	if in.Time.IsZero() {
		in.Time = commitTime
	}
	ce, err := Wrap(c, in)
	if err != nil {
		t.Fatal(err)
	}
	return ce
}

// structured returns a CloudEvent in the JSON format.
func structured(t testing.TB, ce event.Event) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := event.WriteJson(&ce, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// dataOf returns the data of a CloudEvent about an Azure event.
func dataOf(t testing.TB, ce event.Event) (d Data) {
	t.Helper()
	if err := json.Unmarshal(ce.Data(), &d); err != nil {
		t.Fatalf("data %s: %v", ce.Data(), err)
	}
	return d
}

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

// spoken returns CloudEvents of every kind, by the name of their golden file.
func spoken(t *testing.T) map[string]event.Event {
	t.Helper()
	all := map[string]event.Event{}
	azure := func(name string, c imds.Change, in Circumstances) {
		t.Helper()
		if in.Incarnation == "" {
			in.Incarnation = "7"
		}
		if in.Observer == (imds.Observer{}) {
			in.Observer = vm0
		}
		in.Announced = commitTime
		if c.Kind != imds.Scheduled {
			in.Announced = commitTime.Add(-time.Hour)
		}
		if c.Event.Status == "Started" {
			in.Begun = commitTime.Add(-time.Minute)
		}
		all[name] = said(t, c, in)
	}
	e := func(fields ...string) imds.Event { t.Helper(); return azureEvent(t, entry(fields...)) }
	scheduled := e()
	begun := []string{"EventStatus", `"Started"`, "NotBefore", `""`}
	answer := commitTime.Add(-26 * time.Hour)

	azure("scheduled-reboot", imds.Change{Kind: imds.Scheduled, Event: scheduled}, Circumstances{})
	azure("scheduled-redeploy", imds.Change{Kind: imds.Scheduled, Event: e("EventType", `"Redeploy"`, "Resources", `["vm-1"]`)}, Circumstances{})
	azure("scheduled-freeze", imds.Change{Kind: imds.Scheduled, Event: e("EventType", `"Freeze"`, "DurationInSeconds", `5`,
		"Description", `"Virtual machine is being paused because of a memory-preserving Live Migration operation."`)}, Circumstances{})
	azure("scheduled-preempt", imds.Change{Kind: imds.Scheduled, Event: e("EventType", `"Preempt"`, "Resources", `["web_0"]`, "Description", `""`,
		"NotBefore", `"Sat, 21 Nov 2026 03:55:44 GMT"`)}, Circumstances{Observer: web0})
	azure("scheduled-terminate", imds.Change{Kind: imds.Scheduled, Event: e("EventType", `"Terminate"`, "EventSource", `"User"`, "Description", `""`)}, Circumstances{})
	azure("scheduled-user-reboot", imds.Change{Kind: imds.Scheduled, Event: e("EventSource", `"User"`,
		"Description", `"Virtual machine is going to be restarted as requested by authorized user."`)}, Circumstances{})
	azure("scheduled-unknown-type", imds.Change{Kind: imds.Scheduled, Event: e("EventType", `"SpotRebalanceRecommendation"`, "EventStatus", `"Advisory"`,
		"NotBefore", `""`, "Impact", `{"b":[1.50,1E+2,null],"a":"<&>"}`)}, Circumstances{})
	azure("scheduled-six-fields", imds.Change{Kind: imds.Scheduled, Event: e("Description", "", "EventSource", "", "DurationInSeconds", "")}, Circumstances{})
	azure("scheduled-id-alone", imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, `{"EventId":"`+idC+`"}`)}, Circumstances{Incarnation: "seven"})
	azure("scheduled-wrong-types", imds.Change{Kind: imds.Scheduled, Event: e("EventStatus", "1", "EventType", "[]", "Resources", `"vm-0"`, "NotBefore", "0",
		"Description", "{}", "EventSource", "false", "DurationInSeconds", `"long"`)}, Circumstances{})
	azure("scheduled-lower-case-id", imds.Change{Kind: imds.Scheduled, Event: e("EventId", `"`+strings.ToLower(idC)+`"`)}, Circumstances{})
	azure("scheduled-odd-id", imds.Change{Kind: imds.Scheduled, Event: e("EventId", `"a b/c.*\u0000ü"`)}, Circumstances{})
	azure("scheduled-first-start", imds.Change{Kind: imds.Scheduled, Event: scheduled}, Circumstances{WhileAway: true})
	azure("scheduled-while-away", imds.Change{Kind: imds.Scheduled, Event: scheduled}, Circumstances{WhileAway: true, NotEarlierThan: answer})
	azure("scheduled-again", imds.Change{Kind: imds.Scheduled, Event: scheduled}, Circumstances{Repeat: 1})
	azure("scheduled-in-a-scale-set", imds.Change{Kind: imds.Scheduled, Event: e("Resources", `["web_0"]`)}, Circumstances{Observer: web0})
	azure("scheduled-fixed-source", imds.Change{Kind: imds.Scheduled, Event: scheduled}, Circumstances{Source: "https://example.com/sets/7"})
	azure("scheduled-odd-names", imds.Change{Kind: imds.Scheduled, Event: e("Resources", `["<a>&\"b\"","ü/100%","a\nb"]`, "Description", `"<b>&\u2028\\ \"x\""`)},
		Circumstances{Observer: imds.Observer{Name: "<ü> \"1\"/100%", Location: "a\nb"}})
	all["scheduled-no-observer"] = said(t, imds.Change{Kind: imds.Scheduled, Event: scheduled}, Circumstances{Host: "host-0"})
	azure("scheduled-truncated", imds.Change{Kind: imds.Scheduled, Event: e("Description", `"`+strings.Repeat("Wartung für Größe. ", 1000)+`"`)}, Circumstances{})

	later := e("NotBefore", `"Sat, 21 Nov 2026 04:25:00 GMT"`)
	azure("updated-notbefore", imds.Change{Kind: imds.Updated, Event: later, Previous: &scheduled, Fields: []string{"NotBefore"}}, Circumstances{Incarnation: "8"})
	azure("updated-again", imds.Change{Kind: imds.Updated, Event: later, Previous: &scheduled, Fields: []string{"NotBefore"}}, Circumstances{Incarnation: "10", Repeat: 2})
	azure("started", imds.Change{Kind: imds.Started, Event: e(begun...), Previous: &scheduled, Fields: []string{"EventStatus", "NotBefore"}}, Circumstances{Incarnation: "8"})
	azure("started-first", imds.Change{Kind: imds.Started, Event: e(append(begun, "Description", `"Virtual machine has encountered a failure."`)...)}, Circumstances{})

	azure("vanished-completed", imds.Change{Kind: imds.Vanished, Event: e(begun...)}, Circumstances{Incarnation: "9",
		End: End{Outcome: OutcomeCompleted, Back: commitTime.Add(-8 * time.Minute), LongestPause: 97*time.Second + 260*time.Millisecond}})
	azure("vanished-canceled", imds.Change{Kind: imds.Vanished, Event: scheduled}, Circumstances{Incarnation: "9",
		End: End{Outcome: OutcomeCanceled, LongestPause: 1049 * time.Millisecond}})
	azure("vanished-unknown", imds.Change{Kind: imds.Vanished, Event: scheduled}, Circumstances{Incarnation: "9", WhileAway: true, NotEarlierThan: answer,
		End: End{Outcome: OutcomeUnknown, LongestPause: 26 * time.Hour}})

	asked := Approval{Result: ResultApproved, By: "rule 1", Decided: commitTime.Add(-2 * time.Second), After: 64.5, Attempts: 1, Status: "200 OK"}
	azure("approved", imds.Change{Kind: imds.Approved, Event: scheduled}, Circumstances{Approval: &asked})
	refused := Approval{Result: ResultRefused, By: "root (alice)", Decided: commitTime, After: 3, Attempts: 1, Status: "400 Bad Request",
		Error: "Azure refuses the approval: 400 Bad Request: EventId is unknown"}
	azure("approved-refused", imds.Change{Kind: imds.Approved, Event: scheduled}, Circumstances{Approval: &refused, Repeat: 1})
	withheld := Approval{Result: ResultWithheld, By: `rule "drain first"`, Decided: commitTime, After: 64.5, Sink: "drain",
		Error: "rejected: exit 75: 3 sessions left"}
	azure("approved-withheld", imds.Change{Kind: imds.Approved, Event: scheduled}, Circumstances{Approval: &withheld})
	notYet := withheld
	notYet.Error, notYet.NotYet = "exit status 75: 3 sessions left", true
	azure("approved-not-yet", imds.Change{Kind: imds.Approved, Event: scheduled}, Circumstances{Approval: &notYet})
	azure("scheduled-by-rule", imds.Change{Kind: imds.Scheduled, Event: scheduled}, Circumstances{Rules: sampleRules})
	azure("reminder", imds.Change{Kind: imds.Reminder, Event: scheduled, Lead: time.Hour}, Circumstances{})

	n := 0
	bridge := func(typ string, data map[string]any) {
		t.Helper()
		n++
		ce, err := WrapBridge(typ, data, vm0, commitTime.Add(time.Duration(n)))
		if err != nil {
			t.Fatal(err)
		}
		all["bridge-"+kindOf(typ)] = ce
	}
	away := map[string]time.Time{"from": answer, "to": commitTime}
	bridge(BridgeStarted, map[string]any{"version": "0.1.0", "settingsHash": "5f0b1c2d", "apiVersion": "2020-07-01", "bootTime": answer, "gap": away})
	bridge(BridgeStopping, map[string]any{"pending": 3})
	sample, _ := NewSample("freeze", "vm-0", commitTime)
	test, err := sample.Test(vm0, commitTime)
	if err != nil {
		t.Fatal(err)
	}
	all["bridge-test"] = test
	bridge(BridgeHeartbeat, map[string]any{"version": "0.1.0", "interval": 300})
	bridge(IMDSUnavailable, map[string]any{"endpoint": "http://169.254.169.254", "since": answer, "error": "503 Service Unavailable: no text"})
	bridge(IMDSRecovered, map[string]any{"endpoint": "http://169.254.169.254", "gap": away})
	bridge(SinkBlocked, map[string]any{"sink": "ops", "kind": "slack", "pending": 14, "since": answer, "error": "blocked: invalid_auth <&>"})
	bridge(SinkRecovered, map[string]any{"sink": "ops", "kind": "slack", "pending": 0})
	lost := []map[string]any{{
		"key": "ops/1763697329123456", "id": idC + "-scheduled", "type": EventPrefix + "scheduled", "event": idC,
		"reason": delivery.ReasonRejected, "error": "rejected: 422 Unprocessable Entity", "attempts": 1,
	}}
	bridge(DeliveryDeadLettered, map[string]any{"sink": "ops", "count": 2, "deliveries": lost})
	bridge(DeliveryDropped, map[string]any{"sink": "ops", "by": "root (alice)", "count": 2, "deliveries": lost})
	bridge(SettingsLoaded, map[string]any{"settingsHash": "5f0b1c2d"})
	bridge(ChainHead, map[string]any{"sink": "audit", "head": strings.Repeat("0123456789abcdef", 4)})
	bridge(ObserverSilent, map[string]any{"count": 1, "vms": []string{"vm-1"}, "sets": []string{"web"}, "groups": []string{"rg"}, "since": answer})
	bridge(ObserverBack, map[string]any{"count": 12, "vms": []string{"vm-1", "vm-2"}, "sets": []string{"web"}})
	mute := map[string]any{"mute": "tk3x9q", "sink": "ops", "vm": "vm-db-*", "types": []string{"Reboot"}, "since": answer, "until": commitTime,
		"reason": "replacing disks", "by": "root (alice)"}
	bridge(SinkMuted, mute)
	mute["endedBy"] = "root (bob)"
	bridge(SinkUnmuted, mute)
	bridge(OutboxUnwritable, map[string]any{"file": "/var/lib/forewarn/outbox.db", "pending": 3, "since": answer, "error": "no space left on device"})
	bridge(OutboxWritable, map[string]any{"file": "/var/lib/forewarn/outbox.db", "gap": away})
	return all
}

// Every kind of CloudEvent is what its golden file in testdata/cloudevents says, and keeps to CloudEvents 1.0, to our
// contract and to the schema of its data.
func TestCloudEventsAreAsWrittenDown(t *testing.T) {
	whole, data := schemas(t)
	all := spoken(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name+" is as written down", func(t *testing.T) {
			ce := all[name]
			if err := ce.Validate(); err != nil {
				t.Errorf("the SDK refuses it: %v", err)
			}
			text := structured(t, ce)
			if err := breaks(t, whole, text); err != nil {
				t.Errorf("it breaks the contract: %v", err)
			}
			if err := breaks(t, data, ce.Data()); err != nil {
				t.Errorf("it breaks the schema of data: %v", err)
			}
			if s := ce.Extensions()["azresources"]; s != nil && len(s.(string)) > 1024 {
				t.Errorf("azresources has %d bytes", len(s.(string)))
			}
			var b bytes.Buffer
			if err := json.Indent(&b, text, "", "  "); err != nil {
				t.Fatal(err)
			}
			b.WriteByte('\n')
			wantGolden(t, "testdata/cloudevents/"+name+".json", b.Bytes())
		})
	}
	files, _ := os.ReadDir("testdata/cloudevents")
	for _, f := range files {
		if _, ok := all[strings.TrimSuffix(f.Name(), ".json")]; !ok {
			t.Errorf("testdata/cloudevents/%s is the golden file of nothing", f.Name())
		}
	}
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

// The id of a change is the event and the change. The content of an update counts, however it was written, and as
// anybody can compute it.
func TestSameChangeAlwaysHasTheSameID(t *testing.T) {
	raw := `{"EventId":"c7061bac-afdc-4513-b24b-aa5f13a16123","EventStatus":"Scheduled","NotBefore":"Mon, 11 Apr 2022 22:26:58 GMT",` +
		`"Description":"<a & b>","New":{"b":2,"a":[1.50,true]},"DurationInSeconds":5}`
	canonical := `{"Description":"<a & b>","DurationInSeconds":5,"EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123","EventStatus":"Scheduled",` +
		`"New":{"a":[1.50,true],"b":2},"NotBefore":"2022-04-11T22:26:58Z"}`
	sum := sha256.Sum256([]byte(canonical))
	hash := hex.EncodeToString(sum[:])[:8]
	const id = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
	e := azureEvent(t, raw)
	for kind, want := range map[imds.ChangeKind]string{
		imds.Scheduled: id + "-scheduled", imds.Started: id + "-started", imds.Vanished: id + "-vanished", imds.Updated: id + "-updated-" + hash,
	} {
		if got := ChangeID(imds.Change{Kind: kind, Event: e}); got != want {
			t.Errorf("id of %s = %s, want %s", kind, got, want)
		}
		for repeat, suffix := range map[int]string{0: "", 1: "-r2", 2: "-r3", 10: "-r11"} {
			ce := said(t, imds.Change{Kind: kind, Event: e, Previous: &e, Fields: []string{"New"}}, Circumstances{Observer: web0, Repeat: repeat})
			if ce.ID() != want+suffix {
				t.Errorf("id of %s told %d times before = %s, want %s", kind, repeat, ce.ID(), want+suffix)
			}
		}
	}
	for _, same := range []string{
		`{"New":{"a":[1.50,true],"b":2},"DurationInSeconds":5,"Description":"\u003ca \u0026 b\u003e","EventStatus":"Scheduled",` +
			`"NotBefore":"2022-04-12T00:26:58+02:00","EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123"}`,
		strings.ReplaceAll(raw, `,"`, " ,\n\""),
		strings.Replace(raw, "Mon", "Fri", 1),
	} {
		if got := azureEvent(t, same).Hash(); got != hash {
			t.Errorf("hash of %s = %s, want %s", same, got, hash)
		}
	}
	for _, other := range []string{
		strings.Replace(raw, `<a`, `<A`, 1), strings.Replace(raw, `:26:`, `:27:`, 1), strings.Replace(raw, `1.50`, `1.5`, 1),
		strings.Replace(raw, `"b":2`, `"b":null`, 1), strings.Replace(raw, `,"DurationInSeconds":5`, ``, 1),
	} {
		if got := azureEvent(t, other).Hash(); got == hash {
			t.Errorf("hash of %s is that of other content", other)
		}
	}
}

// An id holds only letters, digits and hyphens, whatever Azure or the host's name hold.
func TestIDsAreTokens(t *testing.T) {
	plain := regexp.MustCompile(`^[A-Za-z0-9-]+$`)
	for _, odd := range []string{"a.b", "a/b c", "ü", "🙂", "\x00", "..", "*", ">", "a\u0130b", strings.Repeat("x", 300), "٣"} {
		raw, _ := json.Marshal(odd)
		e := azureEvent(t, `{"EventId":`+string(raw)+`}`)
		for _, kind := range []imds.ChangeKind{imds.Scheduled, imds.Updated, imds.Started, imds.Vanished} {
			if id := ChangeID(imds.Change{Kind: kind, Event: e}); !plain.MatchString(id) {
				t.Errorf("id of %q is %q", odd, id)
			}
		}
		for _, o := range []imds.Observer{{Name: odd}, {VMID: odd}} {
			ce, err := WrapBridge(SinkBlocked, nil, o, commitTime)
			if err != nil || !plain.MatchString(ce.ID()) {
				t.Errorf("id of the bridge on %q is %q, %v", odd, ce.ID(), err)
			}
		}
	}
}

// What is said about the bridge has an id of its VM, what happened and when, to the nanosecond; its source is the VM.
func TestIDAboutTheBridgeHoldsWhoWhatAndWhen(t *testing.T) {
	east := time.FixedZone("", 5*60*60+30*60)
	for _, tt := range []struct {
		who             imds.Observer
		id, source, sub string
	}{
		{web0, "02aab8a4-74ef-476e-8182-f6d2ba4166a6-imds-unavailable-20261121T035529123456789Z", "https://management.azure.com" + web0.ResourceID, "web_0"},
		{imds.Observer{Name: "host-0"}, "host-0-imds-unavailable-20261121T035529123456789Z", "urn:forewarn:host-0", "host-0"},
		{imds.Observer{}, "unknown-imds-unavailable-20261121T035529123456789Z", "urn:forewarn:unknown", ""},
	} {
		ce, err := WrapBridge(IMDSUnavailable, nil, tt.who, commitTime.In(east))
		if err != nil {
			t.Fatal(err)
		}
		if ce.ID() != tt.id || ce.Source() != tt.source || ce.Subject() != tt.sub || ce.Time() != commitTime {
			t.Errorf("id %s, source %s, subject %q, time %v, want %s, %s, %q, %v", ce.ID(), ce.Source(), ce.Subject(), ce.Time(), tt.id, tt.source, tt.sub, commitTime)
		}
	}
	round, _ := WrapBridge(BridgeTest, nil, imds.Observer{}, commitTime.Truncate(time.Second))
	if want := "unknown-test-20261121T035529000000000Z"; round.ID() != want {
		t.Errorf("id at a whole second = %s, want %s", round.ID(), want)
	}
}

// The severity is that of the first rule that fits.
func TestSeverityIsThatOfTheFirstRule(t *testing.T) {
	for _, tt := range []struct {
		kind        imds.ChangeKind
		typ, source string
		duration    int
		want        string
	}{
		{imds.Vanished, "Preempt", "Platform", -1, "INFO 9"},
		{imds.Vanished, "New", "", -1, "INFO 9"},
		{imds.Scheduled, "Preempt", "Platform", -1, "ERROR 17"},
		{imds.Started, "Preempt", "User", -1, "ERROR 17"},
		{imds.Scheduled, "Terminate", "User", -1, "WARN 13"},
		{imds.Started, "Terminate", "Platform", -1, "WARN 13"},
		{imds.Scheduled, "Reboot", "User", -1, "INFO 9"},
		{imds.Started, "Redeploy", "User", -1, "INFO 9"},
		{imds.Scheduled, "Freeze", "User", -1, "INFO 9"},
		{imds.Updated, "New", "User", -1, "INFO 9"},
		{imds.Scheduled, "Reboot", "Platform", -1, "ERROR 17"},
		{imds.Updated, "Reboot", "", -1, "ERROR 17"},
		{imds.Started, "Redeploy", "Platform", 5, "ERROR 17"},
		{imds.Scheduled, "Freeze", "Platform", 0, "INFO 9"},
		{imds.Scheduled, "Freeze", "Platform", 10, "INFO 9"},
		{imds.Scheduled, "Freeze", "Platform", 11, "WARN 13"},
		{imds.Scheduled, "Freeze", "Platform", -1, "WARN 13"},
		{imds.Scheduled, "New", "Platform", 5, "WARN 13"},
		{imds.Scheduled, "", "", -1, "WARN 13"},
	} {
		e := azureEvent(t, fmt.Sprintf(`{"EventId":"A","EventType":%q,"EventSource":%q,"DurationInSeconds":%d}`, tt.typ, tt.source, tt.duration))
		x := said(t, imds.Change{Kind: tt.kind, Event: e, Previous: &e}, Circumstances{}).Extensions()
		if got := fmt.Sprint(x["severitytext"], " ", x["severitynumber"]); got != tt.want {
			t.Errorf("%s %s by %q for %d s is %s, want %s", tt.kind, tt.typ, tt.source, tt.duration, got, tt.want)
		}
	}
	for _, typ := range []string{
		BridgeStarted, BridgeStopping, BridgeTest, BridgeHeartbeat, IMDSUnavailable, IMDSRecovered, OutboxUnwritable,
		OutboxWritable, SinkBlocked, SinkRecovered, DeliveryDeadLettered, DeliveryDropped, SettingsLoaded, ChainHead, ObserverSilent, ObserverBack,
	} {
		want := "INFO 9"
		if typ == ObserverSilent {
			want = "WARN 13"
		}
		if slices.Contains([]string{SinkBlocked, DeliveryDeadLettered, IMDSUnavailable, OutboxUnwritable}, typ) {
			want = "ERROR 17"
		}
		ce, err := WrapBridge(typ, nil, vm0, commitTime)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(ce.Extensions()["severitytext"], " ", ce.Extensions()["severitynumber"]); got != want {
			t.Errorf("%s is %s, want %s", typ, got, want)
		}
	}
}

// The source is the scale set, so that all its VMs say the same; else the VM; else a name.
func TestSourceIsTheSetElseTheVMElseAName(t *testing.T) {
	odd := vm0
	odd.ResourceID = "/subscriptions/s/resourceGroups/a (b)/providers/Microsoft.Compute/virtualMachines/ü%"
	halfSet := web0
	halfSet.SubscriptionID = ""
	for _, tt := range []struct {
		claim string
		in    Circumstances
		want  string
	}{
		{"a set", Circumstances{Observer: web0}, "https://management.azure.com/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/prod/providers/Microsoft.Compute/virtualMachineScaleSets/web"},
		{"a VM", Circumstances{Observer: vm0}, "https://management.azure.com" + vm0.ResourceID},
		{"a set of which too little is known", Circumstances{Observer: halfSet}, "https://management.azure.com" + web0.ResourceID},
		{"odd characters", Circumstances{Observer: odd}, "https://management.azure.com/subscriptions/s/resourceGroups/a%20%28b%29/providers/Microsoft.Compute/virtualMachines/%C3%BC%25"},
		{"a name alone", Circumstances{Observer: imds.Observer{Name: "vm 0"}, Host: "host-0"}, "urn:forewarn:vm%200"},
		{"a host alone", Circumstances{Host: "host-0"}, "urn:forewarn:host-0"},
		{"nothing", Circumstances{}, "urn:forewarn:unknown"},
		{"what the settings fix", Circumstances{Observer: web0, Source: "https://management.azure.com/subscriptions/s/availabilitySets/x"}, "https://management.azure.com/subscriptions/s/availabilitySets/x"},
	} {
		t.Run("of "+tt.claim, func(t *testing.T) {
			got := said(t, imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, entry())}, tt.in).Source()
			if got != tt.want {
				t.Errorf("source = %s, want %s", got, tt.want)
			}
		})
	}
}

// The attributes that people route by are there when they are known, and only then.
func TestAttributesSayWhatIsKnown(t *testing.T) {
	x := func(raw string, o imds.Observer) map[string]any {
		return said(t, imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, raw)}, Circumstances{Observer: o}).Extensions()
	}
	full := x(entry("Resources", `["vm-1","VM-0"]`, "DurationInSeconds", `9`), vm0)
	for name, want := range map[string]any{
		"azeventtype": "Reboot", "azeventstatus": "Scheduled", "azeventsource": "Platform", "azduration": int32(9),
		"aznotbefore": types.Timestamp{Time: time.Date(2026, 11, 21, 4, 10, 0, 0, time.UTC)}, "azself": true,
		"azresources": "vm-1,VM-0", "observer": "vm-0", "severitytext": "ERROR", "severitynumber": int32(17),
	} {
		if full[name] != want {
			t.Errorf("%s = %v, want %v", name, full[name], want)
		}
	}
	if n := len(full); n != 10 {
		t.Errorf("%d extensions, want 10: %v", n, full)
	}
	if got := x(entry(), web0)["azself"]; got != false {
		t.Errorf("azself of an event that names others = %v, want false", got)
	}
	if got := x(entry(), imds.Observer{})["azself"]; got != nil {
		t.Errorf("azself without a name = %v, want none", got)
	}
	none := said(t, imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, `{"EventId":"A","Resources":"vm-0"}`)}, Circumstances{Observer: vm0})
	if got := slices.Sorted(maps.Keys(none.Extensions())); !slices.Equal(got, []string{"azduration", "observer", "severitynumber", "severitytext"}) {
		t.Errorf("attributes of an event that says nothing: %q", got)
	}
	if d := dataOf(t, none); d.AffectsSelf != nil || none.Extensions()["azduration"] != int32(-1) {
		t.Errorf("affectsSelf = %v, azduration = %v, of an event that says nothing", *d.AffectsSelf, none.Extensions()["azduration"])
	}
}

// An attribute has no control characters, and at most 1 KiB. A list of names is cut between two of them, because half
// a name would be another VM's.
func TestAttributesAreCleanAndShort(t *testing.T) {
	x := func(raw string, o imds.Observer) map[string]any {
		return said(t, imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, raw)}, Circumstances{Observer: o}).Extensions()
	}
	for _, tt := range []struct{ value, want string }{
		{`Re\nboot`, "Re boot"}, {`\u0000Reboot\u007f`, "Reboot"}, {`a\u0085b`, "a b"}, {`\ud800x`, "\ufffdx"}, {`a\ufffeb\ufdd0c`, "a b c"},
		{`<ü> "100%"`, `<ü> "100%"`}, {strings.Repeat("ü", 600), strings.Repeat("ü", 512)}, {"x" + strings.Repeat("ü", 600), "x" + strings.Repeat("ü", 511)},
	} {
		raw := strings.ReplaceAll(tt.value, `"`, `\"`)
		if got := x(entry("EventType", `"`+raw+`"`), vm0)["azeventtype"]; got != tt.want {
			t.Errorf("azeventtype of %.40q = %.40q, want %.40q", tt.value, got, tt.want)
		}
	}
	if got := x(entry("EventType", `"\u0000\n"`), vm0)["azeventtype"]; got != nil {
		t.Errorf("azeventtype of control characters alone = %q, want none", got)
	}
	if got := x(entry(), imds.Observer{Name: "a\nb"})["observer"]; got != "a b" {
		t.Errorf("observer = %q", got)
	}
	for _, tt := range []struct {
		claim string
		names []string
		want  int // bytes
	}{
		{"what fits is whole", []string{strings.Repeat("a", 511), strings.Repeat("b", 512)}, 1024},
		{"what does not fit is left out", []string{strings.Repeat("a", 511), strings.Repeat("b", 513)}, 511},
		{"a name that ends at the limit is whole", []string{strings.Repeat("a", 1024), "b"}, 1024},
		{"many are cut between two", slices.Repeat([]string{"vm-10"}, 1000), 170*6 + 5 - 6},
		{"a single one is cut at a rune", []string{strings.Repeat("ü", 513)}, 1024},
		{"a single one is cut at a rune before the limit", []string{"x" + strings.Repeat("ü", 513)}, 1023},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			raw, _ := json.Marshal(tt.names)
			got, _ := x(entry("Resources", string(raw)), vm0)["azresources"].(string)
			all := strings.Join(tt.names, ",")
			if len(got) != tt.want || !strings.HasPrefix(all, got) || !utf8.ValidString(got) {
				t.Errorf("%d bytes %.40q…, want %d of the beginning", len(got), got, tt.want)
			}
			if rest := all[len(got):]; len(tt.names) > 1 && rest != "" && rest[0] != ',' {
				t.Errorf("a name is cut: …%q", got[len(got)-20:])
			}
		})
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

// What is sent comes back the same from the SDK's own decoder.
func TestCloudEventsSurviveTheSDK(t *testing.T) {
	for name, ce := range spoken(t) {
		t.Run(name+" comes back the same", func(t *testing.T) {
			text := structured(t, ce)
			var back event.Event
			if err := json.Unmarshal(text, &back); err != nil {
				t.Fatal(err)
			}
			if err := back.Validate(); err != nil {
				t.Error(err)
			}
			if again := structured(t, back); !bytes.Equal(again, text) {
				t.Errorf("got  %s\nwant %s", again, text)
			}
			if !bytes.Equal(back.Data(), ce.Data()) {
				t.Errorf("data %s, want %s", back.Data(), ce.Data())
			}
			for _, attribute := range []func(event.Event) any{
				func(e event.Event) any { return e.ID() }, func(e event.Event) any { return e.Source() }, func(e event.Event) any { return e.Type() },
				func(e event.Event) any { return e.Subject() }, func(e event.Event) any { return e.Time() }, func(e event.Event) any { return e.DataSchema() },
				func(e event.Event) any { return fmt.Sprint(Fields(e)) },
			} {
				if got, want := attribute(back), attribute(ce); got != want {
					t.Errorf("got %v, want %v", got, want)
				}
			}
		})
	}
}

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

// Whatever document is understood can be said, and reads back as what it was.
func FuzzWrap(f *testing.F) {
	for _, s := range []string{
		entry(), entry("EventType", `"\ud800"`, "New", `{"b":[1e400,{}],"a":[]}`), `{"EventId":"a"}`,
		"{\"EventId\":\"\xff\",\"Resources\":[\"\\u0000\",\"<&>\"]}",
	} {
		f.Add([]byte(`{"DocumentIncarnation":7,"Events":[` + s + `]}`))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := imds.DecodeDocument(body)
		if err != nil {
			return
		}
		for _, e := range d.Events {
			ce, err := Wrap(imds.Change{Kind: imds.Scheduled, Event: e}, Circumstances{Time: commitTime, Incarnation: d.Incarnation})
			if err != nil {
				t.Fatalf("%s cannot be said: %v", e.Raw, err)
			}
			var data Data
			if err := json.Unmarshal(ce.Data(), &data); err != nil {
				t.Errorf("data %s: %v", ce.Data(), err)
			}
			if back, err := imds.UnmarshalEvent(data.Event); err != nil || len(data.Truncated) == 0 && back.ID != e.ID {
				t.Errorf("data has event %s, %v, want %s", data.Event, err, e.Raw)
			}
		}
	})
}
