package bridge_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"forewarn/bridge"
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
	b := bridge.New(bridge.Options{
		Client: imds.NewClient(imds.DefaultEndpoint, imds.DefaultAPIVersion, quiet, azure.RoundTripper()),
		Outbox: box,
		Routes: []bridge.Route{{
			Name: "console", Kind: "printer", Sink: printer{stop},
			Filter: bridge.Filter{Only: bridge.Match{VMs: "self"}},
			Terms:  bridge.Terms{Terms: delivery.Terms{Timeout: 10 * time.Second, Batch: 1}},
		}},
		Log: quiet,
	})
	if err := b.Run(ctx); err != nil { // until ctx is done; what is not delivered by then is kept
		log.Fatal(err)
	}
	// Output: dev.forewarn.scheduledevent.scheduled
}
