package sinks

import (
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
)

// sampleEvents are one Azure event as it is scheduled, moved and begun, and one of a kind that nobody knows yet and of
// which Azure says next to nothing. The description holds what breaks a text that is put together without care.
var sampleEvents = []string{
	`{"EventId":"602d9444-d2cd-49c7-8624-8643e7171297","EventStatus":"Scheduled","EventType":"Reboot","ResourceType":"VirtualMachine",` +
		`"Resources":["vm-0","vm-1"],"NotBefore":"Mon, 11 Apr 2022 22:26:58 GMT","Description":"Say \"hello\"\n\\ & <wait>","EventSource":"Platform","DurationInSeconds":-1}`,
	`{"EventId":"602d9444-d2cd-49c7-8624-8643e7171297","EventStatus":"Scheduled","EventType":"Reboot","ResourceType":"VirtualMachine",` +
		`"Resources":["vm-0"],"NotBefore":"Mon, 11 Apr 2022 22:41:58 GMT","Description":"Say \"hello\"\n\\ & <wait>","EventSource":"Platform","DurationInSeconds":9}`,
	`{"EventId":"602d9444-d2cd-49c7-8624-8643e7171297","EventStatus":"Started","EventType":"Reboot","ResourceType":"VirtualMachine",` +
		`"Resources":["vm-0"],"NotBefore":"","Description":"Say \"hello\"\n\\ & <wait>","EventSource":"Platform","DurationInSeconds":9}`,
	`{"EventId":"00000000-0000-0000-0000-000000000001","EventStatus":"Paused \"?\"","EventType":"Some \"New\" Type"}`,
}

// samples are CloudEvents of every change, to try templates on.
func samples() ([]event.Event, error) {
	var azure []bridge.Event
	for _, raw := range sampleEvents {
		e, err := bridge.UnmarshalEvent([]byte(raw))
		if err != nil {
			return nil, err
		}
		azure = append(azure, e)
	}
	observer := bridge.Observer{Name: "vm-0", VMID: "13f56399-bd52-4150-9748-7190aae1ff21", Location: "westeurope"}
	var events []event.Event
	for _, c := range []bridge.Change{
		{Kind: bridge.Scheduled, Event: azure[0]},
		{Kind: bridge.Updated, Event: azure[1], Previous: &azure[0], Fields: []string{"DurationInSeconds", "NotBefore", "Resources"}},
		{Kind: bridge.Started, Event: azure[2], Previous: &azure[1], Fields: []string{"EventStatus", "NotBefore"}},
		{Kind: bridge.Vanished, Event: azure[2]},
		{Kind: bridge.Scheduled, Event: azure[3]},
		{Kind: bridge.Vanished, Event: azure[3]},
	} {
		in := bridge.Circumstances{Observer: observer, Time: time.Date(2022, 4, 11, 22, 12, 0, 0, time.UTC), Incarnation: "1"}
		if c.Kind == bridge.Vanished {
			in.End.Outcome = bridge.OutcomeUnknown
		}
		ce, err := bridge.Wrap(c, in)
		if err != nil {
			return nil, fmt.Errorf("sample: %w", err)
		}
		events = append(events, ce)
	}
	return events, nil
}
