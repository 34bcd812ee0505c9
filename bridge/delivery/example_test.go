package delivery_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
)

// A list is the smallest Queue: what is pending at the start, in memory.
type list struct {
	pending []*delivery.Item
	changed chan struct{}
}

func (l *list) Changed() <-chan struct{} { return l.changed }

func (l *list) Changes() (c delivery.Changes) {
	c.Pending, l.pending = l.pending, nil
	return c
}

func (l *list) Read(i *delivery.Item) (delivery.Delivery, error) {
	ce := event.New()
	ce.SetID(i.ID)
	return delivery.Delivery{Event: ce}, nil
}

func (l *list) Report(r delivery.Report) {
	for _, i := range r.Accepted {
		fmt.Println(i.ID, "accepted:", r.Answer.Status)
	}
	for _, i := range r.Dead {
		fmt.Println(i.ID, "is a dead letter:", r.Reason)
	}
}

// A Worker makes the attempts that are due, in order, and reports the results to its Queue.
func ExampleWorker() {
	sink := sinkFunc(func(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
		if batch[0].Event.ID() == "two" {
			return delivery.Answer{}, fmt.Errorf("%w: too large", delivery.ErrRejected)
		}
		return delivery.Answer{Status: "204 No Content"}, nil
	})
	queue := &list{}
	for n, id := range []string{"one", "two", "three"} {
		m := delivery.Message{Seq: uint64(n + 1), ID: id, Group: "g"}
		queue.pending = append(queue.pending, &delivery.Item{Message: &m})
	}
	w := delivery.NewWorker(delivery.Config{
		Route: "hook", Sink: sink, Queue: queue, Log: slog.New(slog.DiscardHandler),
	})
	stop := make(chan struct{})
	close(stop) // it delivers what is due, and returns
	w.Run(context.Background(), stop, nil)
	// Output:
	// one accepted: 204 No Content
	// two is a dead letter: rejected
	// three accepted: 204 No Content
}
