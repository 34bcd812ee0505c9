package imdstest_test

import (
	"fmt"
	"io"
	"net/http"

	"forewarn/bridge/imdstest"
)

// A reboot is scheduled and begins, as the VM sees it.
func Example() {
	azure := imdstest.New(imdstest.Options{})
	client := http.Client{Transport: azure.RoundTripper()}
	see := func() {
		r, err := http.NewRequest("GET", "http://169.254.169.254/metadata/scheduledevents?api-version=2017-08-01", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		r.Header.Set("Metadata", "true")
		resp, err := client.Do(r)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		fmt.Println(string(body), err)
	}

	see()
	e := azure.Schedule(imdstest.Event{ID: "602D9444-D2CD-49C7-8624-8643E7171297", Type: "Reboot"})
	azure.Start(e.ID)
	see()
	// Output:
	// {"DocumentIncarnation":1,"Events":[]} <nil>
	// {"DocumentIncarnation":3,"Events":[{"EventId":"602D9444-D2CD-49C7-8624-8643E7171297","EventStatus":"Started","EventType":"Reboot","ResourceType":"VirtualMachine","Resources":["vm_0"],"NotBefore":""}]} <nil>
}
