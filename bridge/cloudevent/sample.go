package cloudevent

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/imds"
)

// A Sample is a typical change for trying settings and templates.
type Sample struct {
	Name   string
	Change imds.Change
	End    End    // of a Vanished
	Rules  []Rule // that will approve it
}

// SampleNames lists the names of the samples.
var SampleNames = []string{"reboot", "redeploy", "freeze", "preempt", "terminate", "user-reboot", "canceled",
	"updated", "unknown"}

// NewSample returns the sample of that name as the VM would see it at that time; ok is false for an unknown name.
func NewSample(name, vm string, now time.Time) (s Sample, ok bool) {
	azure := newSampleEvent(vm)
	notice := 15 * time.Minute
	s = Sample{Name: name, Change: imds.Change{Kind: imds.Scheduled}}
	switch name {
	case "reboot":
	case "redeploy":
		azure.EventType, notice = "Redeploy", 10*time.Minute
	case "freeze":
		azure.EventType, azure.Duration = "Freeze", 5
		azure.Description = "Virtual machine is being paused because of a memory-preserving Live Migration operation."
	case "preempt":
		azure.EventType, azure.Description, notice = "Preempt", "", 30*time.Second
	case "terminate":
		azure.EventType, azure.Description, azure.EventSource, notice = "Terminate", "", "User", 5*time.Minute
	case "user-reboot":
		azure.EventSource = "User"
		azure.Description = "Virtual machine is going to be restarted as requested by authorized user."
	case "canceled":
		s.Change.Kind, s.End.Outcome = imds.Vanished, OutcomeCanceled
	case "updated":
		s.Change.Kind, s.Change.Fields = imds.Updated, []string{"NotBefore"}
		was := azure.at(now.Add(notice))
		s.Change.Previous = &was
		notice = 30 * time.Minute
	case "unknown":
		azure.EventType, azure.EventStatus, azure.Description = "SpotRebalanceRecommendation", "Advisory", ""
		notice = 0
	default:
		return Sample{}, false
	}
	var at time.Time
	if notice > 0 {
		at = now.Add(notice)
	}
	s.Change.Event = azure.at(at)
	return s, true
}

// CloudEvent returns the sample as a CloudEvent of the observer.
func (s Sample) CloudEvent(o imds.Observer, now time.Time) (event.Event, error) {
	return Wrap(s.Change, Circumstances{Observer: o, Time: now, Announced: now, Incarnation: "7", End: s.End,
		Rules: s.Rules})
}

// sampleEvent returns an event with Azure's names and order of fields.
type sampleEvent struct {
	EventID      string `json:"EventId"`
	EventStatus  string
	EventType    string
	ResourceType string
	Resources    []string
	NotBefore    string
	Description  string
	EventSource  string
	Duration     int `json:"DurationInSeconds"`
}

func newSampleEvent(vms ...string) sampleEvent {
	return sampleEvent{
		EventID: "602D9444-D2CD-49C7-8624-8643E7171297", EventStatus: imds.StatusScheduled, EventType: "Reboot",
		ResourceType: "VirtualMachine", Resources: vms, Description: "Host server is undergoing maintenance.",
		EventSource: "Platform", Duration: -1,
	}
}

func (e sampleEvent) at(notBefore time.Time) imds.Event {
	e.NotBefore = ""
	if !notBefore.IsZero() {
		e.NotBefore = notBefore.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")
	}
	raw, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings and numbers only
	}
	decoded, _ := imds.UnmarshalEvent(raw)
	return decoded
}

// Test returns the sample as a CloudEvent of type BridgeTest. It differs from the real one only in its type, its id and
// test: true in its data.
func (s Sample) Test(o imds.Observer, now time.Time) (event.Event, error) {
	ce, err := s.CloudEvent(o, now)
	if err != nil {
		return ce, err
	}
	marked, err := WrapBridge(BridgeTest, nil, o, now)
	if err != nil {
		return ce, err
	}
	ce.SetID(marked.ID())
	ce.SetType(marked.Type())
	ce.SetSource(marked.Source())
	ce.SetSubject(marked.Subject())
	var data map[string]json.RawMessage
	if err := json.Unmarshal(ce.Data(), &data); err != nil {
		return ce, fmt.Errorf("sample %s: %w", s.Name, err)
	}
	data["test"] = json.RawMessage("true")
	setData(&ce, data)
	return ce, ce.Validate()
}

// sampleTypes are the types of the samples; the last one stands for a type that Azure may add.
var sampleTypes = []string{"Reboot", "Redeploy", "Freeze", "Preempt", "Terminate", `Some "New" Type`}

// sampleText contains characters that break carelessly assembled texts.
const sampleText = "Say \"hello\"\n\\ & <wait>"

// sampleTime is the time of the samples.
var sampleTime = time.Date(2022, 4, 11, 22, 12, 0, 0, time.UTC)

// sampleEndpoint is the endpoint of the samples about the bridge, and sampleGap the time in which it did not answer.
const sampleEndpoint = "http://169.254.169.254"

var sampleGap = map[string]any{"from": sampleTime.Add(-time.Hour), "to": sampleTime}

// Samples returns CloudEvents for trying templates, all with the same time: with all, each change of each type from
// each source, otherwise each change of one type and each type once or twice; also CloudEvents about the bridge, and
// some without any optional field.
func Samples(all bool) ([]event.Event, error) {
	var events []event.Event
	var failed error
	add := func(ce event.Event, err error) {
		events = append(events, ce)
		if err != nil && failed == nil {
			failed = fmt.Errorf("sample: %w", err)
		}
	}
	wrap := func(told []sampleChange) {
		for _, s := range told {
			s.in.Time, s.in.Incarnation = sampleTime, "1"
			add(Wrap(s.change, s.in))
		}
	}
	wrap(sampleLife("Reboot", "Platform"))
	for i, typ := range sampleTypes[1:] {
		for _, source := range []string{"Platform", "User", ""} {
			if all {
				wrap(sampleLife(typ, source))
			}
		}
		wrap(sampleLife(typ, []string{"Platform", "User", ""}[i%3])[:2])
	}
	bare, err := imds.UnmarshalEvent([]byte(`{"EventId":"00000000-0000-0000-0000-000000000001"}`))
	if err != nil {
		return nil, err
	}
	for _, kind := range []imds.ChangeKind{imds.Scheduled, imds.Updated, imds.Started, imds.Vanished} {
		wrap([]sampleChange{{imds.Change{Kind: kind, Event: bare}, Circumstances{Host: "vm-0"}}})
	}
	for _, name := range SampleNames {
		if !all && name != "user-reboot" {
			continue
		}
		s, _ := NewSample(name, "vm-0", sampleTime)
		add(s.Test(sampleObserver, sampleTime))
	}
	wrap(sampleApprovals(all))
	for _, about := range sampleTroubles {
		add(WrapBridge(about.typ, about.data, sampleObserver, sampleTime))
		if all || about.typ == SinkBlocked {
			add(WrapBridge(about.typ, nil, imds.Observer{}, sampleTime))
		}
	}
	return events, failed
}

var sampleObserver = imds.Observer{
	Name: "vm-0", VMID: "13f56399-bd52-4150-9748-7190aae1ff21", Location: "westeurope", ResourceGroup: "prod",
	ResourceID: "/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/prod/providers/" +
		"Microsoft.Compute/virtualMachines/vm-0",
}

// A sampleChange is a change, and the circumstances that its CloudEvent says beside it.
type sampleChange struct {
	change imds.Change
	in     Circumstances
}

// sampleLife returns all changes that an event of this type and source may go through.
func sampleLife(typ, source string) []sampleChange {
	azure := newSampleEvent("vm-0", "vm-1")
	azure.EventType, azure.EventSource, azure.Description = typ, source, sampleText
	was := azure.at(sampleTime.Add(15 * time.Minute))
	azure.Resources, azure.Duration = []string{"vm-0"}, 9
	moved := azure.at(sampleTime.Add(30 * time.Minute))
	azure.Resources, azure.EventStatus = []string{"vm-0", "vm-1", "vm-2", "vm-3"}, imds.StatusStarted
	begun := azure.at(time.Time{})
	seen := Circumstances{Observer: sampleObserver}
	other := Circumstances{Observer: imds.Observer{Name: "vm-9"}, WhileAway: true}
	over, cancelled := seen, seen
	over.End = End{Outcome: OutcomeCompleted, Back: sampleTime, LongestPause: 7200 * time.Millisecond}
	cancelled.End.Outcome = OutcomeCanceled
	gone := Circumstances{Observer: sampleObserver, WhileAway: true, NotEarlierThan: sampleTime.Add(-time.Hour)}
	gone.End.Outcome = OutcomeUnknown
	changed := []string{"DurationInSeconds", "NotBefore", "Resources"}
	return []sampleChange{
		{imds.Change{Kind: imds.Scheduled, Event: was}, seen},
		{imds.Change{Kind: imds.Started, Event: begun}, other},
		{imds.Change{Kind: imds.Updated, Event: moved, Previous: &was, Fields: changed}, seen},
		{imds.Change{Kind: imds.Started, Event: begun, Previous: &moved}, seen},
		{imds.Change{Kind: imds.Vanished, Event: begun}, over},
		{imds.Change{Kind: imds.Vanished, Event: was}, cancelled},
		{imds.Change{Kind: imds.Vanished, Event: was}, gone},
	}
}

// sampleApprovals returns what is told of an event that rules are to start; all includes what is rare.
func sampleApprovals(all bool) []sampleChange {
	azure := newSampleEvent("vm-0")
	azure.EventSource = "User"
	e := azure.at(sampleTime.Add(15 * time.Minute))
	approved := imds.Change{Kind: imds.Approved, Event: e}
	withheld := Approval{Result: ResultWithheld, By: sampleRules[0].Name, Sink: "drain", Error: "exit 75: 3 sessions left"}
	told := []sampleChange{
		{imds.Change{Kind: imds.Scheduled, Event: e}, Circumstances{Observer: sampleObserver, Rules: sampleRules}},
		{approved, Circumstances{Observer: sampleObserver, Approval: &withheld}},
	}
	if !all {
		return told
	}
	notYet := withheld
	notYet.NotYet = true
	changed := &Approval{Result: ResultWithheld, By: "rule 2", Error: "rule 2 was removed from the settings"}
	late := &Approval{Result: ResultPromised, By: sampleRules[0].Name}
	reminder := imds.Change{Kind: imds.Reminder, Event: e, Lead: time.Hour}
	asked := &Asked{By: "jane", Time: sampleTime, Answered: true}
	return append(told,
		sampleChange{approved, Circumstances{Observer: sampleObserver, Approval: &notYet}},
		sampleChange{approved, Circumstances{Observer: sampleObserver, Approval: changed, Rules: sampleRules[:1]}},
		sampleChange{approved, Circumstances{Observer: sampleObserver, Approval: late, Rules: sampleRules}},
		sampleChange{reminder, Circumstances{Observer: sampleObserver, Asked: asked}},
	)
}

// sampleRules wait for sinks, for a time, and for both.
var sampleRules = []Rule{
	{Name: `rule "drain first"`, After: []string{"audit", "drain"}}, {Name: "rule 2", Wait: 600},
	{Name: "rule 3", After: []string{"audit"}, Wait: 30},
}

// sampleTroubles are the samples about the bridge.
var sampleTroubles = []struct {
	typ  string
	data map[string]any
}{
	{SinkBlocked, map[string]any{
		"sink": "ops", "kind": "slack", "pending": 14, "since": sampleTime, "error": "blocked: invalid_auth",
		"urgent": map[string]any{
			"event": "602D9444-D2CD-49C7-8624-8643E7171297", "type": "Reboot", "vms": []string{"vm-0"}, "notBefore": sampleTime,
		},
	}},
	{SinkRecovered, map[string]any{"sink": "ops", "kind": "slack", "pending": 0}},
	{IMDSUnavailable, map[string]any{"endpoint": sampleEndpoint, "since": sampleTime, "error": sampleText}},
	{IMDSRecovered, map[string]any{"endpoint": sampleEndpoint, "gap": sampleGap}},
	{OutboxUnwritable, map[string]any{"file": sampleText, "pending": 3, "since": sampleTime, "error": sampleText}},
	{OutboxWritable, map[string]any{"file": sampleText, "gap": sampleGap}},
	{DeliveryDeadLettered, map[string]any{
		"sink": "ops", "count": 1, "deliveries": []any{map[string]any{"reason": "rejected", "error": "422"}},
	}},
	{SinkMuted, map[string]any{
		"mute": "tk3x9q", "sink": "ops", "vm": "vm-db-*", "types": []any{"Reboot"}, "since": sampleTime,
		"until": sampleTime, "reason": "repairs", "by": "root",
	}},
	{SinkUnmuted, map[string]any{
		"mute": "tk3x9q", "people": true, "since": sampleTime, "until": sampleTime, "reason": "repairs", "by": "root",
		"endedBy": "root",
	}},
	{DeliveryDropped, map[string]any{"sink": "ops", "count": 1, "by": "root"}},
	{BridgeStarted, map[string]any{"version": "1.2.0", "gap": sampleGap}},
	{BridgeStopping, map[string]any{"pending": 3}},
	{SettingsLoaded, map[string]any{"settingsHash": "5f0b1c2d"}},
	{ChainHead, map[string]any{"sink": "audit", "head": strings.Repeat("0123456789abcdef", 4)}},
	{BridgeHeartbeat, map[string]any{"version": "1.2.0", "interval": 300}},
	{ObserverSilent, map[string]any{"count": 1, "vms": []string{"vm-1"}, "sets": []string{"web"}, "since": sampleTime}},
	{ObserverBack, map[string]any{"count": 1, "vms": []string{"vm-1"}, "sets": []string{"web"}}},
}
