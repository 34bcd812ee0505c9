package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// An embedded is a bridge inside another program, with an emulated Azure.
type embedded struct {
	*bridge.Bridge
	box    *outbox.Outbox
	client *imds.Client
	azure  *imdstest.Server
	end    func() // stops the bridge, and waits until all is on disk
}

// embed runs a bridge with one route.
func embed(route bridge.Route) embedded {
	dir, err := os.MkdirTemp("", "forewarn")
	if err != nil {
		log.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	box, err := outbox.Open(dir, outbox.Options{Log: quiet})
	if err != nil {
		log.Fatal(err)
	}
	// An approved event begins too late to be heard of.
	azure := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}, ApproveDelay: time.Hour})
	client := imds.NewClient(imds.DefaultEndpoint, imds.DefaultAPIVersion, quiet, azure.RoundTripper())
	b, err := bridge.New(bridge.Options{
		Client: client, Outbox: box, Routes: []bridge.Route{route}, Log: quiet, Interval: 100 * time.Millisecond,
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	return embedded{b, box, client, azure, func() {
		stop()
		if err := errors.Join(<-done, os.RemoveAll(dir)); err != nil {
			log.Fatal(err)
		}
	}}
}

// pager is a route to a printer.
func pager(name string) bridge.Route {
	return bridge.Route{Name: name, Sink: printer{func() {}}, Terms: bridge.Terms{
		Terms: delivery.Terms{Timeout: 10 * time.Second, Batch: 1},
	}}
}

// until waits for something that is sure to happen.
func until(happened func() bool) {
	for !happened() {
		time.Sleep(10 * time.Millisecond)
	}
}

// delivered reports whether the route has made at least so many deliveries.
func (e embedded) delivered(route string, n int) func() bool {
	return func() bool {
		for _, s := range e.Status().Sinks {
			if s.Name == route {
				return s.Delivered >= n
			}
		}
		return false
	}
}

// A destination that is added hears of what is open.
func ExampleBridge_Reload() {
	b := embed(pager("night"))
	defer b.end()
	b.azure.Schedule(imdstest.Event{Type: "Reboot"})
	until(b.delivered("night", 1))

	routes := []bridge.Route{pager("night"), pager("day")}
	if err := b.Reload(context.Background(), routes, nil, bridge.SettingsInfo{}); err != nil {
		log.Fatal(err)
	}
	until(b.delivered("day", 1))
	// Output:
	// dev.forewarn.scheduledevent.scheduled
	// dev.forewarn.scheduledevent.scheduled
}

// How things are, as status.json has it.
func ExampleBridge_Status() {
	b := embed(pager("night"))
	defer b.end()
	b.azure.Schedule(imdstest.Event{Type: "Freeze"})
	until(b.delivered("night", 1))

	status := b.Status()
	fmt.Println("ready:", status.Ready)
	for _, e := range status.Events {
		fmt.Println(e.Known.Type, e.Known.Status)
	}
	for _, s := range status.Sinks {
		fmt.Println(s.Name, s.State, s.Delivered, "delivered,", s.Pending, "pending")
	}
	// Output:
	// dev.forewarn.scheduledevent.scheduled
	// ready: true
	// Freeze Scheduled
	// night ok 1 delivered, 0 pending
}

// During maintenance that everybody knows of, what comes is kept and delivered afterwards.
func ExampleBridge_Mute() {
	b := embed(pager("night"))
	defer b.end()
	mute, err := b.Mute(delivery.Mute{Sink: "night", Reason: "patch day", By: "jane"}, time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	b.azure.Schedule(imdstest.Event{Type: "Reboot"})
	until(func() bool { return b.Status().Sinks[0].Muted == 1 })
	fmt.Println("muted, 1 pending")

	if _, err := b.Unmute([]string{mute.ID}, false, "jane"); err != nil {
		log.Fatal(err)
	}
	until(b.delivered("night", 1))
	// Output:
	// muted, 1 pending
	// dev.forewarn.scheduledevent.scheduled
}

// A wall is a sink that refuses everything for good until it is open.
type wall struct {
	printer
	open *atomic.Bool
}

func (w wall) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	if !w.open.Load() {
		return delivery.Answer{}, fmt.Errorf("%w: 410 Gone", delivery.ErrRejected)
	}
	return w.printer.Deliver(ctx, batch)
}

// What a destination has refused for good is kept, and is delivered when somebody asks for it.
func ExampleBridge_Replay() {
	route, open := pager("night"), new(atomic.Bool)
	route.Sink = wall{printer{func() {}}, open}
	b := embed(route)
	defer b.end()
	b.azure.Schedule(imdstest.Event{Type: "Reboot"})
	until(func() bool { return b.Status().Sinks[0].DeadLetters == 1 })

	letters := b.box.List(outbox.Selection{State: outbox.StateDead})
	fmt.Println(letters[0].Change, letters[0].Reason, letters[0].Error)
	open.Store(true)
	if _, err := b.Replay([]string{letters[0].Key}, "", "jane"); err != nil {
		log.Fatal(err)
	}
	until(b.delivered("night", 1))
	// Output:
	// scheduled rejected rejected: 410 Gone
	// dev.forewarn.scheduledevent.scheduled
}

// An operator approves an event, as it was shown to them.
func ExampleBridge_ApproveNow() {
	b := embed(pager("night"))
	defer b.end()
	b.azure.Schedule(imdstest.Event{Type: "Reboot"})
	until(b.delivered("night", 1))

	doc, err := b.client.Document(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	shown := doc.Events[0]
	answer := b.ApproveNow(context.Background(), shown.ID, shown.Digest(), "jane")
	until(b.delivered("night", 2))
	fmt.Println(answer.Result, answer.Status)
	// Output:
	// dev.forewarn.scheduledevent.scheduled
	// dev.forewarn.scheduledevent.approved
	// approved 200 OK
}

// The life of an event, and who was told, from the outbox.
func ExampleHistory() {
	b := embed(pager("night"))
	defer b.end()
	b.azure.Schedule(imdstest.Event{ID: "AAAAAAAA-0000-4000-8000-000000000001", Type: "Reboot"})
	until(b.delivered("night", 1))
	b.azure.Start("AAAAAAAA-0000-4000-8000-000000000001")
	until(b.delivered("night", 2))

	lives, err := bridge.History(b.box, bridge.Period{})
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range lives[0].Changes {
		fmt.Println(lives[0].Type, c.Change, c.Deliveries[0].Route, c.Deliveries[0].State)
	}
	// Output:
	// dev.forewarn.scheduledevent.scheduled
	// dev.forewarn.scheduledevent.started
	// Reboot scheduled night accepted
	// Reboot started night accepted
}
