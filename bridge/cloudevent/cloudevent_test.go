package cloudevent

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

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
		all["bridge-"+KindOf(typ)] = ce
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
