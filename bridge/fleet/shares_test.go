package fleet

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
	"forewarn/bridge/systemtest"
)

// The bytes that count for the bounds are about those that events take in memory, however many VMs they name.
func TestTheBytesOfEventsAreThoseInMemory(t *testing.T) {
	for _, names := range []int{1, 10, 100, 1000} {
		const events = 100
		var all []streams.Raw
		for n := range events {
			all = append(all, announcement(t, "web", n, names))
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
		for n := range maxVMs {
			set := fmt.Sprint("set-", n/of)
			if !f.addVM(set, fmt.Sprint(set, ".", n), &vm{lastHeard: time.Now(), interval: time.Hour}) {
				t.Fatalf("VM %d isn't watched", n)
			}
		}
		const others = 3
		for n := range others {
			if f.addVM("db", fmt.Sprint("db.", n), &vm{}) == kept {
				t.Errorf("beside sets of %d another VM is watched: %v", of, !kept)
			}
		}
		if n := len(f.vms); n != maxVMs {
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

// That something is left out is said as long as it matters. VMs that are gone make room, and nobody misses them.
func TestWarningsEndWhenNothingIsLeftOutAnyMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := New(Options{Log: slog.New(slog.DiscardHandler)})
		added := 0
		add := func(v vm) {
			added++
			time.Sleep(time.Nanosecond)
			v.lastHeard = time.Now()
			f.addVM("spot", fmt.Sprint("spot.", added), &v)
		}
		warns := func(when string, want int) {
			t.Helper()
			if got := f.Warnings(); len(got) != want {
				t.Errorf("%s it warns %q, want %d warnings", when, got, want)
			}
		}
		beating, stopped := vm{interval: time.Minute}, vm{interval: time.Minute, lastStop: time.Now()}
		for range maxVMsOfSet {
			add(beating)
		}
		time.Sleep(time.Hour)
		for range maxVMsOfSet {
			add(stopped)
		}
		for range maxVMsOfSet {
			add(beating)
		}
		warns("of VMs that took the place of others that are gone", 0)
		add(beating)
		warns("of one more that is there than may be", 1)
		time.Sleep(ForgetVM - time.Second)
		warns("within a day", 1)
		time.Sleep(time.Second)
		warns("a day later", 0)

		raw := announcement(t, "web", 0, 1)
		body := raw.Data
		for n := range maxEventsOfSet + 1 {
			raw.Seq = uint64(1 + n)
			raw.Data = bytes.ReplaceAll(body, []byte("-8000-000000000000"), fmt.Appendf(nil, "-8000-%012d", n))
			f.add(raw)
		}
		warns("of events", 1)
		time.Sleep(period - time.Second)
		warns("while one that is left out may be open", 1)
		time.Sleep(time.Second)
		warns("after that", 0)
	})
}

// A set that tells of large events fills its share of bytes only, and all sets together have theirs, of bytes and of events:
// those that have most lose their oldest, and one that tells little loses nothing.
func TestTheEventsInMemoryAreBounded(t *testing.T) {
	systemtest.LeftToGate(t)
	for what, c := range map[string]struct {
		sets, events, names int // of each set, and of each event
		most, mostBytes     int
	}{
		"bytes of a set":  {sets: 1, events: 200, names: 1000, most: 200, mostBytes: 16 << 20},
		"bytes of all":    {sets: 8, events: 150, names: 1000, most: 8 * 150, mostBytes: 96 << 20},
		"events of all":   {sets: 7, events: 1999, names: 1, most: 12_000, mostBytes: 96 << 20},
		"events of a set": {sets: 1, events: 2500, names: 1, most: 2000, mostBytes: 16 << 20},
	} {
		t.Run(what, func(t *testing.T) {
			f := New(Options{Log: slog.New(slog.DiscardHandler)})
			f.add(announcement(t, "db", 1, 1))
			for set := range c.sets {
				raw := announcement(t, fmt.Sprint("web-", set), 0, c.names)
				body := raw.Data
				for n := range c.events {
					raw.Seq = uint64(2 + set*c.events + n)
					raw.Data = bytes.ReplaceAll(body, []byte("-8000-000000000000"), fmt.Appendf(nil, "-8000-%012d", raw.Seq))
					f.add(raw)
				}
			}
			added := c.sets*c.events + 1
			if n := len(f.events); n > c.most+1 || f.bytes > c.mostBytes {
				t.Errorf("of %d events it has %d with %d bytes, want at most %d with %d", added, n, f.bytes, c.most, c.mostBytes)
			}
			if n := len(f.events); n < c.most/2 || n == added {
				t.Errorf("of %d events it has %d; want most of what it may have, and to reach the bound", added, n)
			}
			if f.sets["_.rg-prod.db"] == nil || len(f.sets["_.rg-prod.db"].events) != 1 {
				t.Error("the event of db is forgotten")
			}
			if len(f.Warnings()) == 0 {
				t.Error("nothing warns of it")
			}
		})
	}
}

// Of the events that are over, sets that tell of many lose their oldest, and one that tells of few loses none.
func TestASetPushesOutNoEndedEventOfAnother(t *testing.T) {
	systemtest.LeftToGate(t)
	f := New(Options{Log: slog.New(slog.DiscardHandler)})
	ended := func(set string, n int) {
		raw := announcement(t, set, n, 1)
		raw.Data = bytes.ReplaceAll(raw.Data, []byte("scheduledevent.scheduled"), []byte("scheduledevent.vanished"))
		f.add(raw)
	}
	ended("db", 0)
	for n := range 2*maxEndedEvents + 10 {
		ended(fmt.Sprint("web-", n%3), 1+n)
	}
	if n := len(f.setNamed("_.rg-prod.db").events); n != 1 || f.ended > maxEndedEvents+10 || f.ended < maxEndedEvents {
		t.Errorf("of db it has %d events, and of all %d that are over; want 1, and about %d", n, f.ended, maxEndedEvents)
	}
}

// announcement is a message of a set about an event that names so many VMs.
func announcement(t *testing.T, set string, n, names int) streams.Raw {
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
		Observer: imds.Observer{Name: "web_0", ScaleSet: set, ResourceGroup: "rg-prod"}, Time: time.Now(),
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
