package cloudevent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// commitTime is when the changes of these tests are observed.
var commitTime = time.Date(2026, 11, 21, 3, 55, 29, 123456789, time.UTC)

const (
	idC          = "602D9444-D2CD-49C7-8624-8643E7171297"
	subscription = "8d10da13-8125-4ba9-a717-bf7490507b3d"
	prod         = "/subscriptions/" + subscription + "/resourceGroups/prod/providers/Microsoft.Compute/"
)

// vm0 is a VM of its own, web0 one of a scale set.
var (
	vm0 = imds.Observer{
		Name: "vm-0", VMID: "13f56399-bd52-4150-9748-7190aae1ff21",
		SubscriptionID: subscription, ResourceGroup: "prod", Location: "westeurope", Zone: "1", Priority: "Regular",
		ResourceID: prod + "virtualMachines/vm-0",
	}
	web0 = imds.Observer{
		Name: "web_0", VMID: "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
		SubscriptionID: subscription, ResourceGroup: "prod", Location: "westeurope", ScaleSet: "web", Priority: "Spot",
		EvictionPolicy: "Delete", ResourceID: prod + "virtualMachineScaleSets/web/virtualMachines/0",
	}
)

// usual are the fields of an event as Azure sends it.
var usual = []string{
	"EventId", `"` + idC + `"`, "EventStatus", `"Scheduled"`, "EventType", `"Reboot"`, "ResourceType", `"VirtualMachine"`,
	"Resources", `["vm-0","vm-1"]`, "NotBefore", `"Sat, 21 Nov 2026 04:10:00 GMT"`,
	"Description", `"Host server is undergoing maintenance."`, "EventSource", `"Platform"`, "DurationInSeconds", `-1`,
}

// entry returns an event as Azure sends it, with some fields replaced by others or, by "", left out.
func entry(fields ...string) string {
	var names, members []string
	value := map[string]string{}
	for field := range slices.Chunk(slices.Concat(usual, fields), 2) {
		if !slices.Contains(names, field[0]) {
			names = append(names, field[0])
		}
		value[field[0]] = field[1]
	}
	for _, name := range names {
		if value[name] != "" {
			members = append(members, fmt.Sprintf("%q:%s", name, value[name]))
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

// reboot returns the event of an entry with these fields.
func reboot(t testing.TB, fields ...string) imds.Event {
	t.Helper()
	return azureEvent(t, entry(fields...))
}

func scheduled(e imds.Event) imds.Change { return imds.Change{Kind: imds.Scheduled, Event: e} }
func started(e imds.Event) imds.Change   { return imds.Change{Kind: imds.Started, Event: e} }
func vanished(e imds.Event) imds.Change  { return imds.Change{Kind: imds.Vanished, Event: e} }

func updated(was, e imds.Event, fields ...string) imds.Change {
	return imds.Change{Kind: imds.Updated, Event: e, Previous: &was, Fields: fields}
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
	spokenOfAzure(t, all)
	spokenOfTheBridge(t, all)
	return all
}

func spokenOfAzure(t *testing.T, all map[string]event.Event) {
	t.Helper()
	told := func(name string, c imds.Change, in Circumstances) {
		t.Helper()
		in.Incarnation = cmp.Or(in.Incarnation, "7")
		in.Observer = cmp.Or(in.Observer, vm0)
		in.Announced = commitTime
		if c.Kind != imds.Scheduled {
			in.Announced = commitTime.Add(-time.Hour)
		}
		if c.Event.Status == "Started" {
			in.Begun = commitTime.Add(-time.Minute)
		}
		all[name] = said(t, c, in)
	}
	plain := Circumstances{}
	announced := func(name string, fields ...string) {
		t.Helper()
		told(name, scheduled(reboot(t, fields...)), plain)
	}
	announced("scheduled-reboot")
	announced("scheduled-redeploy", "EventType", `"Redeploy"`, "Resources", `["vm-1"]`)
	announced("scheduled-freeze", "EventType", `"Freeze"`, "DurationInSeconds", `5`, "Description",
		`"Virtual machine is being paused because of a memory-preserving Live Migration operation."`)
	announced("scheduled-terminate", "EventType", `"Terminate"`, "EventSource", `"User"`, "Description", `""`)
	announced("scheduled-user-reboot", "EventSource", `"User"`, "Description",
		`"Virtual machine is going to be restarted as requested by authorized user."`)
	announced("scheduled-unknown-type", "EventType", `"SpotRebalanceRecommendation"`, "EventStatus", `"Advisory"`,
		"NotBefore", `""`, "Impact", `{"b":[1.50,1E+2,null],"a":"<&>"}`)
	announced("scheduled-six-fields", "Description", "", "EventSource", "", "DurationInSeconds", "")
	announced("scheduled-wrong-types", "EventStatus", "1", "EventType", "[]", "Resources", `"vm-0"`, "NotBefore", "0",
		"Description", "{}", "EventSource", "false", "DurationInSeconds", `"long"`)
	announced("scheduled-lower-case-id", "EventId", `"`+strings.ToLower(idC)+`"`)
	announced("scheduled-odd-id", "EventId", `"a b/c.*\u0000ü"`)
	announced("scheduled-truncated", "Description", `"`+strings.Repeat("Wartung für Größe. ", 1000)+`"`)

	e := reboot(t)
	answer := commitTime.Add(-26 * time.Hour)
	inSet := Circumstances{Observer: web0}
	told("scheduled-preempt", scheduled(reboot(t, "EventType", `"Preempt"`, "Resources", `["web_0"]`,
		"Description", `""`, "NotBefore", `"Sat, 21 Nov 2026 03:55:44 GMT"`)), inSet)
	told("scheduled-in-a-scale-set", scheduled(reboot(t, "Resources", `["web_0"]`)), inSet)
	told("scheduled-id-alone", scheduled(azureEvent(t, `{"EventId":"`+idC+`"}`)), Circumstances{Incarnation: "seven"})
	told("scheduled-first-start", scheduled(e), Circumstances{WhileAway: true})
	told("scheduled-while-away", scheduled(e), Circumstances{WhileAway: true, NotEarlierThan: answer})
	told("scheduled-again", scheduled(e), Circumstances{Repeat: 1})
	told("scheduled-fixed-source", scheduled(e), Circumstances{Source: "https://example.com/sets/7"})
	told("scheduled-by-rule", scheduled(e), Circumstances{Rules: sampleRules})
	told("scheduled-odd-names", scheduled(reboot(t, "Resources", `["<a>&\"b\"","ü/100%","a\nb"]`,
		"Description", `"<b>&\u2028\\ \"x\""`)),
		Circumstances{Observer: imds.Observer{Name: "<ü> \"1\"/100%", Location: "a\nb"}})
	all["scheduled-no-observer"] = said(t, scheduled(e), Circumstances{Host: "host-0"})

	moved := updated(e, reboot(t, "NotBefore", `"Sat, 21 Nov 2026 04:25:00 GMT"`), "NotBefore")
	told("updated-notbefore", moved, Circumstances{Incarnation: "8"})
	told("updated-again", moved, Circumstances{Incarnation: "10", Repeat: 2})

	begun := reboot(t, "EventStatus", `"Started"`, "NotBefore", `""`)
	begins := started(begun)
	begins.Previous, begins.Fields = &e, []string{"EventStatus", "NotBefore"}
	told("started", begins, Circumstances{Incarnation: "8"})
	told("started-first", started(reboot(t, "EventStatus", `"Started"`, "NotBefore", `""`,
		"Description", `"Virtual machine has encountered a failure."`)), plain)

	completed := End{Outcome: OutcomeCompleted, Back: commitTime.Add(-8 * time.Minute)}
	completed.LongestPause = 97*time.Second + 260*time.Millisecond
	canceled := End{Outcome: OutcomeCanceled, LongestPause: 1049 * time.Millisecond}
	unknown := End{Outcome: OutcomeUnknown, LongestPause: 26 * time.Hour}
	told("vanished-completed", vanished(begun), Circumstances{Incarnation: "9", End: completed})
	told("vanished-canceled", vanished(e), Circumstances{Incarnation: "9", End: canceled})
	told("vanished-unknown", vanished(e),
		Circumstances{Incarnation: "9", WhileAway: true, NotEarlierThan: answer, End: unknown})

	approved := imds.Change{Kind: imds.Approved, Event: e}
	told("approved", approved, Circumstances{Approval: &Approval{
		Result: ResultApproved, By: "rule 1", Decided: commitTime.Add(-2 * time.Second), After: 64.5, Attempts: 1,
		Status: "200 OK",
	}})
	told("approved-refused", approved, Circumstances{Repeat: 1, Approval: &Approval{
		Result: ResultRefused, By: "root (alice)", Decided: commitTime, After: 3, Attempts: 1,
		Status: "400 Bad Request", Error: "Azure refuses the approval: 400 Bad Request: EventId is unknown",
	}})
	withheld := Approval{
		Result: ResultWithheld, By: `rule "drain first"`, Decided: commitTime, After: 64.5, Sink: "drain",
		Error: "rejected: exit 75: 3 sessions left",
	}
	told("approved-withheld", approved, Circumstances{Approval: &withheld})
	notYet := withheld
	notYet.Error, notYet.NotYet = "exit status 75: 3 sessions left", true
	told("approved-not-yet", approved, Circumstances{Approval: &notYet})
	told("reminder", imds.Change{Kind: imds.Reminder, Event: e, Lead: time.Hour}, plain)
}

func spokenOfTheBridge(t *testing.T, all map[string]event.Event) {
	t.Helper()
	test, err := sample(t, "freeze", "vm-0").Test(vm0, commitTime)
	if err != nil {
		t.Fatal(err)
	}
	all["bridge-test"] = test

	n := 0
	told := func(typ string, data map[string]any) {
		t.Helper()
		n++
		ce, err := WrapBridge(typ, data, vm0, commitTime.Add(time.Duration(n)))
		if err != nil {
			t.Fatal(err)
		}
		all["bridge-"+KindOf(typ)] = ce
	}
	answer := commitTime.Add(-26 * time.Hour)
	away := map[string]time.Time{"from": answer, "to": commitTime}
	told(BridgeStarted, map[string]any{
		"version": "0.1.0", "settingsHash": "5f0b1c2d", "apiVersion": "2020-07-01", "bootTime": answer, "gap": away,
	})
	told(BridgeStopping, map[string]any{"pending": 3})
	told(BridgeHeartbeat, map[string]any{"version": "0.1.0", "interval": 300})
	told(IMDSUnavailable, map[string]any{
		"endpoint": "http://169.254.169.254", "since": answer, "error": "503 Service Unavailable: no text",
	})
	told(IMDSRecovered, map[string]any{"endpoint": "http://169.254.169.254", "gap": away})
	told(SinkBlocked, map[string]any{
		"sink": "ops", "kind": "slack", "pending": 14, "since": answer, "error": "blocked: invalid_auth <&>",
	})
	told(SinkRecovered, map[string]any{"sink": "ops", "kind": "slack", "pending": 0})
	lost := []map[string]any{{
		"key": "ops/1763697329123456", "id": idC + "-scheduled", "type": EventPrefix + "scheduled", "event": idC,
		"reason": delivery.ReasonRejected, "error": "rejected: 422 Unprocessable Entity", "attempts": 1,
	}}
	told(DeliveryDeadLettered, map[string]any{"sink": "ops", "count": 2, "deliveries": lost})
	told(DeliveryDropped, map[string]any{"sink": "ops", "by": "root (alice)", "count": 2, "deliveries": lost})
	told(SettingsLoaded, map[string]any{"settingsHash": "5f0b1c2d"})
	told(ChainHead, map[string]any{"sink": "audit", "head": strings.Repeat("0123456789abcdef", 4)})
	told(ObserverSilent, map[string]any{
		"count": 1, "vms": []string{"vm-1"}, "sets": []string{"web"}, "groups": []string{"rg"}, "since": answer,
	})
	told(ObserverBack, map[string]any{"count": 12, "vms": []string{"vm-1", "vm-2"}, "sets": []string{"web"}})
	mute := map[string]any{
		"mute": "tk3x9q", "sink": "ops", "vm": "vm-db-*", "types": []string{"Reboot"}, "since": answer,
		"until": commitTime, "reason": "replacing disks", "by": "root (alice)",
	}
	told(SinkMuted, mute)
	mute["endedBy"] = "root (bob)"
	told(SinkUnmuted, mute)
	const file = "/var/lib/forewarn/outbox.db"
	told(OutboxUnwritable, map[string]any{
		"file": file, "pending": 3, "since": answer, "error": "no space left on device",
	})
	told(OutboxWritable, map[string]any{"file": file, "gap": away})
}

// sample returns a sample for the VM at commitTime.
func sample(t testing.TB, name, vm string) Sample {
	t.Helper()
	s, ok := NewSample(name, vm, commitTime)
	if !ok || s.Name != name {
		t.Fatalf("NewSample(%s) = %+v, %v", name, s, ok)
	}
	return s
}

// Every kind of CloudEvent is what its golden file in testdata/cloudevents says: its attributes and its data hold what is
// known, and leave out the rest. It keeps to CloudEvents 1.0, to our contract and to the schema of its data, and comes
// back the same from the SDK's own decoder.
func TestCloudEventsAreAsWrittenDown(t *testing.T) {
	whole, data := schemas(t)
	all := spoken(t)
	for name, ce := range all {
		t.Run(name, func(t *testing.T) {
			text := structured(t, ce)
			if err := breaks(t, whole, text); err != nil {
				t.Errorf("it breaks the contract: %v", err)
			}
			if err := breaks(t, data, ce.Data()); err != nil {
				t.Errorf("it breaks the schema of data: %v", err)
			}
			var b bytes.Buffer
			if err := json.Indent(&b, text, "", "  "); err != nil {
				t.Fatal(err)
			}
			b.WriteByte('\n')
			systemtest.WantGolden(t, *update, "testdata/cloudevents/"+name+".json", b.Bytes())

			var back event.Event
			if err := errors.Join(ce.Validate(), json.Unmarshal(text, &back), back.Validate()); err != nil {
				t.Errorf("the SDK refuses it: %v", err)
			}
			if again := structured(t, back); !bytes.Equal(again, text) {
				t.Errorf("got  %s\nwant %s", again, text)
			}
			if !reflect.DeepEqual(Fields(back), Fields(ce)) {
				t.Errorf("got  %v\nwant %v", Fields(back), Fields(ce))
			}
		})
	}
	files, _ := os.ReadDir("testdata/cloudevents")
	for _, f := range files {
		if _, ok := all[strings.TrimSuffix(f.Name(), ".json")]; !ok {
			t.Errorf("testdata/cloudevents/%s is the golden file of nothing", f.Name())
		}
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
			ce, err := Wrap(scheduled(e), Circumstances{Time: commitTime, Incarnation: d.Incarnation})
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
