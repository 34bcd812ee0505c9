package bridge_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// A sink that prints. It makes one attempt and returns; order, repeats and memory are the bridge's.
type printer struct{ done func() }

func (p printer) Deliver(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	for _, d := range batch {
		fmt.Println(d.Event.Type())
	}
	p.done()
	return delivery.Answer{}, nil
}

// A program of one's own that watches a VM. The emulated service stands in for Azure's; with the endpoint's own client it
// is the same.
func Example() {
	dir, err := os.MkdirTemp("", "forewarn")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	quiet := slog.New(slog.DiscardHandler)
	box, err := outbox.Open(filepath.Join(dir, "state"), outbox.Options{Log: quiet})
	if err != nil {
		log.Fatal(err)
	}
	azure := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}})
	azure.Schedule(imdstest.Event{Type: "Reboot"})

	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	b, err := bridge.New(bridge.Options{
		Client: imds.NewClient(imds.DefaultEndpoint, imds.DefaultAPIVersion, quiet, azure.RoundTripper()),
		Outbox: box,
		Routes: []bridge.Route{{
			Name: "console", Kind: "printer", Sink: printer{stop},
			Filter: bridge.Filter{Only: bridge.Only{VMs: "self"}},
			Terms:  bridge.Terms{Terms: delivery.Terms{Timeout: 10 * time.Second, Batch: 1}},
		}},
		Log: quiet,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := b.Run(ctx); err != nil { // until ctx is done; what is not delivered by then is kept
		log.Fatal(err)
	}
	// Output: dev.forewarn.scheduledevent.scheduled
}

// cloudEventOf returns a typical change of that name, as a CloudEvent that the VM vm-0 makes at that minute of an hour.
func cloudEventOf(name string, minute int) (imds.Change, event.Event) {
	now := time.Date(2026, 11, 1, 12, minute, 0, 0, time.UTC)
	sample, _ := cloudevent.NewSample(name, "vm-0", now)
	ce, err := cloudevent.Wrap(sample.Change, cloudevent.Circumstances{
		Observer: imds.Observer{Name: "vm-0"}, Source: "urn:forewarn:vm-0", Time: now, End: sample.End,
	})
	if err != nil {
		log.Fatal(err)
	}
	return sample.Change, ce
}

// Which events a destination would hear of.
func ExampleFilter() {
	urgent, err := bridge.ParseWhen("severity >= 17 and notice < 1800")
	if err != nil {
		log.Fatal(err) // it names the place, and what was meant
	}
	filter := bridge.Filter{Only: bridge.Only{VMs: "self", Types: []string{"Reboot", "Freeze"}}, When: urgent}
	for _, name := range []string{"reboot", "redeploy", "freeze"} {
		change, ce := cloudEventOf(name, 0)
		passes, key, err := filter.MatchEvent(change, cloudevent.Fields(ce), "vm-0")
		fmt.Printf("%s: %v %s %v\n", name, passes, key, err)
	}
	// Output:
	// reboot: true  <nil>
	// redeploy: false only.types <nil>
	// freeze: false when <nil>
}

// What rules of approval would decide, if every sink took what it gets. Nothing is approved.
func ExampleForecasts() {
	rules := []bridge.Rule{{
		Only:  bridge.Match{VMs: "self", Types: []string{"Reboot"}, Sources: []string{"User"}},
		After: []string{"drain"}, Wait: 30 * time.Second,
	}}
	for _, name := range []string{"user-reboot", "reboot"} {
		change, ce := cloudEventOf(name, 0)
		everySink := func(string) (time.Time, bool) { return time.Time{}, true } // at once
		now := change.Event.NotBefore.Add(-15 * time.Minute)
		for _, f := range bridge.Forecasts(rules, change.Event, cloudevent.Fields(ce), "vm-0", everySink, now) {
			fmt.Printf("%s: %s: %v %q\n", name, f.Rule, f.Approves, f.Why)
		}
	}
	// Output:
	// user-reboot: rule 1: true ""
	// reboot: rule 1: false "only.sources: it comes from \"Platform\""
}

// The life of an event, put together from CloudEvents that a file or a stream has kept.
func ExampleHistoryBuilder() {
	var lives bridge.HistoryBuilder
	for minute, name := range map[int]string{2: "canceled", 0: "reboot"} { // in any order
		_, ce := cloudEventOf(name, minute)
		lives.Add(ce, []bridge.HistoryDelivery{{Route: "ops-mail", State: "accepted"}})
	}
	for _, life := range lives.Histories(bridge.Period{VM: "vm-0"}) {
		fmt.Println(life.Type, life.Outcome)
		for _, c := range life.Changes {
			fmt.Println(" ", c.Change, c.Deliveries[0].Route)
		}
	}
	// Output:
	// Reboot canceled
	//   scheduled ops-mail
	//   vanished ops-mail
}
