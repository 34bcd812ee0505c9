package sinks

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// sampleTypes are what samples are about; the last is of a kind that nobody knows yet.
var sampleTypes = []string{"Reboot", "Redeploy", "Freeze", "Preempt", "Terminate", `Some "New" Type`}

// sampleText holds what breaks a text that is put together without care.
const sampleText = "Say \"hello\"\n\\ & <wait>"

// sampleTime is when samples are seen.
var sampleTime = time.Date(2022, 4, 11, 22, 12, 0, 0, time.UTC)

// sampleEndpoint is asked by the samples about the bridge, sampleGap is when it gave no answer.
const sampleEndpoint = "http://169.254.169.254"

var sampleGap = map[string]any{"from": sampleTime.Add(-time.Hour), "to": sampleTime}

// tryOut calls render with the fields of samples: every change, every type, what is about the bridge, a group, a late
// one, a test, and ones that lack all that may be missing. It gives the first error, with what it was about. It takes a
// few milliseconds of each start, so it is for the templates of the settings; the embedded ones are tried by tests.
func tryOut(render func(fields map[string]any) error) error { return tryOn(false, render) }

// tryOn is tryOut, and with all on every change of every type from every source.
func tryOn(all bool, render func(fields map[string]any) error) error {
	events, err := samples(all)
	if err != nil {
		return err
	}
	try := func(f map[string]any) error {
		if err := render(f); err != nil {
			return fmt.Errorf("with a sample CloudEvent of type %s: %w", f["type"], err)
		}
		return nil
	}
	for i, ce := range events {
		d, now := delivery.Delivery{Event: ce, Attempt: 1}, sampleTime
		if i%3 == 2 {
			d.Attempt, now = 3, sampleTime.Add(time.Hour)
			d.Missed = []delivery.Missed{{Change: "scheduled", Time: sampleTime}, {Change: "updated", Time: sampleTime}}
		}
		if err := try(fields([]delivery.Delivery{d}, time.UTC, now)); err != nil {
			return err
		}
	}
	group := make([]delivery.Delivery, 0, 6)
	for _, ce := range events[:6] {
		group = append(group, delivery.Delivery{Event: ce, Attempt: 1})
	}
	return try(fields(group, time.UTC, sampleTime))
}

// samples are the CloudEvents to try templates on: with all each change of each type from each source, else each change
// of one type and each type once or twice.
func samples(all bool) ([]event.Event, error) {
	observer := imds.Observer{
		Name: "vm-0", VMID: "13f56399-bd52-4150-9748-7190aae1ff21", Location: "westeurope", ResourceGroup: "prod",
		ResourceID: "/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/prod/providers/" +
			"Microsoft.Compute/virtualMachines/vm-0",
	}
	var events []event.Event
	var failed error
	add := func(ce event.Event, err error) {
		events = append(events, ce)
		if err != nil && failed == nil {
			failed = fmt.Errorf("sample: %w", err)
		}
	}
	wrap := func(c imds.Change, in cloudevent.Circumstances) {
		in.Time, in.Incarnation = sampleTime, "1"
		add(cloudevent.Wrap(c, in))
	}
	life := func(typ, source string, from, to int) {
		was := sampleEvent(typ, source, "Scheduled", 15*time.Minute, -1, "vm-0", "vm-1")
		moved := sampleEvent(typ, source, "Scheduled", 30*time.Minute, 9, "vm-0")
		begun := sampleEvent(typ, source, "Started", 0, 9, "vm-0", "vm-1", "vm-2", "vm-3")
		seen := cloudevent.Circumstances{Observer: observer}
		other := cloudevent.Circumstances{Observer: imds.Observer{Name: "vm-9"}, WhileAway: true}
		over, cancelled := seen, seen
		over.End = cloudevent.End{Outcome: cloudevent.OutcomeCompleted, Back: sampleTime, LongestPause: 7200 * time.Millisecond}
		cancelled.End.Outcome = cloudevent.OutcomeCanceled
		gone := cloudevent.Circumstances{Observer: observer, WhileAway: true, NotEarlierThan: sampleTime.Add(-time.Hour)}
		gone.End.Outcome = cloudevent.OutcomeUnknown
		changed := []string{"DurationInSeconds", "NotBefore", "Resources"}
		for _, c := range []struct {
			change imds.Change
			in     cloudevent.Circumstances
		}{
			{imds.Change{Kind: imds.Scheduled, Event: was}, seen},
			{imds.Change{Kind: imds.Started, Event: begun}, other},
			{imds.Change{Kind: imds.Updated, Event: moved, Previous: &was, Fields: changed}, seen},
			{imds.Change{Kind: imds.Started, Event: begun, Previous: &moved}, seen},
			{imds.Change{Kind: imds.Vanished, Event: begun}, over},
			{imds.Change{Kind: imds.Vanished, Event: was}, cancelled},
			{imds.Change{Kind: imds.Vanished, Event: was}, gone},
		}[from:to] {
			wrap(c.change, c.in)
		}
	}
	life("Reboot", "Platform", 0, 7)
	for i, typ := range sampleTypes[1:] {
		for _, source := range []string{"Platform", "User", ""} {
			if all {
				life(typ, source, 0, 7)
			}
		}
		life(typ, []string{"Platform", "User", ""}[i%3], 0, 2)
	}
	bare, err := imds.UnmarshalEvent([]byte(`{"EventId":"00000000-0000-0000-0000-000000000001"}`))
	if err != nil {
		return nil, err
	}
	for _, kind := range []imds.ChangeKind{imds.Scheduled, imds.Updated, imds.Started, imds.Vanished} {
		wrap(imds.Change{Kind: kind, Event: bare}, cloudevent.Circumstances{Host: "vm-0"})
	}
	for _, name := range cloudevent.SampleNames {
		if !all && name != "user-reboot" {
			continue
		}
		s, _ := cloudevent.NewSample(name, "vm-0", sampleTime)
		add(s.Test(observer, sampleTime))
	}
	for _, about := range sampleTroubles {
		add(cloudevent.WrapBridge(about.typ, about.data, observer, sampleTime))
		if all || about.typ == cloudevent.SinkBlocked {
			add(cloudevent.WrapBridge(about.typ, nil, imds.Observer{}, sampleTime))
		}
	}
	return events, failed
}

// sampleTroubles are what is said about the bridge.
var sampleTroubles = []struct {
	typ  string
	data map[string]any
}{
	{cloudevent.SinkBlocked, map[string]any{
		"sink": "ops", "kind": "slack", "pending": 14, "since": sampleTime, "error": "blocked: invalid_auth",
	}},
	{cloudevent.SinkRecovered, map[string]any{"sink": "ops", "kind": "slack", "pending": 0}},
	{cloudevent.IMDSUnavailable, map[string]any{"endpoint": sampleEndpoint, "since": sampleTime, "error": sampleText}},
	{cloudevent.IMDSRecovered, map[string]any{"endpoint": sampleEndpoint, "gap": sampleGap}},
	{cloudevent.DeliveryDeadLettered, map[string]any{
		"sink": "ops", "count": 1, "deliveries": []any{map[string]any{"reason": "rejected", "error": "422"}},
	}},
	{cloudevent.DeliveryDropped, map[string]any{"sink": "ops", "key": "ops/1", "id": "x", "by": "root"}},
	{cloudevent.BridgeStarted, map[string]any{"version": "1.2.0", "gap": sampleGap}},
	{cloudevent.BridgeStopping, map[string]any{"pending": 3}},
	{cloudevent.SettingsLoaded, map[string]any{"settingsHash": "5f0b1c2d"}},
	{cloudevent.BridgeHeartbeat, nil},
}

// sampleEvent is an event as Azure sends it, due after notice, or without a time when that is 0.
func sampleEvent(typ, source, status string, notice time.Duration, length int, vms ...string) imds.Event {
	notBefore := ""
	if notice > 0 {
		notBefore = sampleTime.Add(notice).Format("Mon, 02 Jan 2006 15:04:05 GMT")
	}
	raw, err := json.Marshal(map[string]any{
		"EventId": "602d9444-d2cd-49c7-8624-8643e7171297", "EventStatus": status, "EventType": typ,
		"ResourceType": "VirtualMachine", "Resources": vms, "NotBefore": notBefore, "Description": sampleText,
		"EventSource": source, "DurationInSeconds": length,
	})
	if err != nil {
		panic(err) // texts and numbers only
	}
	e, err := imds.UnmarshalEvent(raw)
	if err != nil {
		panic(err)
	}
	return e
}
