package imds_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// Two documents, one second apart: what changed between them?
func ExampleDiff() {
	before, err := imds.DecodeDocument([]byte(`{"DocumentIncarnation":7,"Events":[
		{"EventId":"602D9444-D2CD-49C7-8624-8643E7171297","EventStatus":"Scheduled","EventType":"Reboot","Resources":["vm-0"]}]}`))
	if err != nil {
		log.Fatal(err)
	}
	now, err := imds.DecodeDocument([]byte(`{"DocumentIncarnation":8,"Events":[
		{"EventId":"602D9444-D2CD-49C7-8624-8643E7171297","EventStatus":"Started","EventType":"Reboot","Resources":["vm-0"]}]}`))
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range imds.Diff(before.Events, now) {
		fmt.Println(c.Event.Type, c.Kind, c.Fields)
	}
	for _, c := range imds.Diff(now.Events, imds.Document{}) {
		fmt.Println(c.Event.Type, c.Kind)
	}
	// Output:
	// Reboot started [EventStatus]
	// Reboot vanished
}

// A client that asks once. The emulated service stands in for Azure's.
func ExampleClient_Poll() {
	service := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}})
	service.Schedule(imdstest.Event{Type: "Reboot"})
	client := imds.NewClient(imds.DefaultEndpoint, imds.DefaultAPIVersion, slog.Default(), service.RoundTripper())
	p := client.Poll(context.Background(), "")
	if p.Err != nil {
		log.Fatal(p.Err)
	}
	for _, e := range p.Document.Events {
		fmt.Println(e.Type, e.Status, e.Resources)
	}
	// Output: Reboot Scheduled [vm-0]
}
