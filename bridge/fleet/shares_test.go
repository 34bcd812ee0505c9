package fleet

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// The bytes that count for the bounds are about those that events take in memory, however many VMs they name.
func TestTheBytesOfEventsAreThoseInMemory(t *testing.T) {
	for _, names := range []int{1, 10, 100, 1000} {
		const events = 100
		var all []streams.Raw
		for n := range events {
			all = append(all, announcement(t, n, names))
		}
		f := New(Options{Log: slog.New(slog.DiscardHandler)})
		before := heapInUse()
		for _, r := range all {
			f.add(r)
		}
		took := (int(heapInUse()) - int(before)) / events
		runtime.KeepAlive(all)
		counted := f.bytes / len(f.events)
		if counted < took*3/4 || counted > took*2 {
			t.Errorf("an event that names %d VMs counts as %d bytes, and takes %d", names, counted, took)
		}
	}
}

// When a relay watches as many VMs as it may, one of another set takes the place of one of a set that has more than Azure
// allows, so that whoever speaks for some sets keeps no others out. Sets as large as may be keep their VMs.
func TestASetWithTooManyVMsKeepsNoOtherOut(t *testing.T) {
	t.Parallel()
	for of, kept := range map[int]bool{maxVMsOfSet: false, azureVMsOfSet: true} {
		f := New(Options{})
		for n := range MaxVMs {
			set := fmt.Sprint("set-", n/of)
			if !f.addVM(set, fmt.Sprint(set, ".", n), &vm{lastHeard: time.Unix(int64(n), 0)}) {
				t.Fatalf("VM %d isn't watched", n)
			}
		}
		const others = 3
		for n := range others {
			if f.addVM("db", fmt.Sprint("db.", n), &vm{}) == kept {
				t.Errorf("beside sets of %d another VM is watched: %v", of, !kept)
			}
		}
		if n := len(f.vms); n != MaxVMs {
			t.Errorf("%d VMs are watched", n)
		}
		if n := len(f.Warnings()); n != 1 {
			t.Errorf("beside sets of %d it warns %q", of, f.Warnings())
		}
		if _, empty := f.sets["db"]; empty == kept {
			t.Errorf("beside sets of %d there is a set db: %v", of, empty)
		}
	}
}

// announcement is a message about an event that names so many VMs.
func announcement(t *testing.T, n, names int) streams.Raw {
	t.Helper()
	var resources []string
	for i := range names {
		resources = append(resources, fmt.Sprintf("\"web_%d\"", i))
	}
	document, err := imds.DecodeDocument(fmt.Appendf(nil, `{"DocumentIncarnation":1,"Events":[{"EventId":"00000000-0000-4000-8000-%012d",`+
		`"EventType":"Reboot","ResourceType":"VirtualMachine","Resources":[%s],"EventStatus":"Scheduled","NotBefore":%q,`+
		`"EventSource":"Platform"}]}`, n, strings.Join(resources, ","), time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)))
	if err != nil {
		t.Fatal(err)
	}
	ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: document.Events[0]}, cloudevent.Circumstances{
		Observer: imds.Observer{Name: "web_0", ScaleSet: "web", ResourceGroup: "rg-prod"}, Time: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	body, err := ce.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return streams.Raw{Seq: uint64(n + 1), Stored: time.Now(), Subject: "forewarn.events." + cloudevent.PlaceOf(ce).String() + ".test",
		Header: nats.Header{"Content-Type": {"application/cloudevents+json"}}, Data: body}
}

func heapInUse() uint64 {
	for range 3 { // what pools keep goes with the second
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
