package cloudevent_test

import (
	"fmt"
	"log"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// A change as a CloudEvent, with an id that is the same wherever and whenever the change is seen.
func ExampleWrap() {
	e, err := imds.UnmarshalEvent([]byte(`{"EventId":"602d9444-d2cd-49c7-8624-8643e7171297","EventStatus":"Scheduled",
		"EventType":"Reboot","Resources":["vm-0"],"NotBefore":"Sat, 21 Nov 2026 04:10:00 GMT","EventSource":"Platform"}`))
	if err != nil {
		log.Fatal(err)
	}
	ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: e}, cloudevent.Circumstances{
		Observer: imds.Observer{Name: "vm-0"},
		Time:     time.Date(2026, 11, 21, 3, 55, 0, 0, time.UTC),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ce.ID())
	fmt.Println(ce.Type())
	fields := cloudevent.Fields(ce)
	fmt.Println(fields["severitytext"], fields["azeventtype"], fields["azeventstatus"])
	// Output:
	// 602D9444-D2CD-49C7-8624-8643E7171297-scheduled
	// dev.forewarn.scheduledevent.scheduled
	// ERROR Reboot Scheduled
}
