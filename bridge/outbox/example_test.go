package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A flaky destination refuses the first attempt.
type flaky struct {
	tries int
	done  func()
}

func (f *flaky) Deliver(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	f.tries++
	if f.tries == 1 {
		return delivery.Answer{}, errors.New("no route to host")
	}
	fmt.Println(batch[0].Event.ID(), "accepted at attempt", batch[0].Attempt)
	f.done()
	return delivery.Answer{Status: "204 No Content"}, nil
}

// A program of one's own that delivers CloudEvents, whatever they are about: it adds them to an outbox, and a worker
// delivers them, across failures and restarts.
func Example() {
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	box, err := outbox.Open(dir, outbox.Options{})
	if err != nil {
		log.Fatal(err)
	}
	onDisk := box.Update(time.Now(), func(tx *outbox.Tx) {
		tx.Apply(outbox.Batch{
			Routes: []outbox.Route{{Name: "ops"}},
			Add: []outbox.Addition{{
				Message: delivery.Message{ID: "one", Type: "com.example.created"},
				Body:    []byte(`{"specversion":"1.0","id":"one","source":"/example","type":"com.example.created"}`),
				To:      []string{"ops"},
			}},
		})
	})
	if err := onDisk(); err != nil {
		log.Fatal(err) // it is in memory only
	}
	if err := box.Close(); err != nil {
		log.Fatal(err) // what is pending could not be written
	}

	box, err = outbox.Open(dir, outbox.Options{}) // after a restart
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	for _, d := range box.List(outbox.Selection{}) {
		fmt.Println(d.ID, "is", d.State, "for", d.Route)
	}
	stop := make(chan struct{})
	worker := delivery.NewWorker(delivery.Config{
		Route: "ops",
		Sink:  &flaky{done: func() { close(stop) }},
		Terms: delivery.Terms{Timeout: 10 * time.Second, MaxAge: 24 * time.Hour},
		Queue: box.Queue("ops"),
		Log:   slog.New(slog.DiscardHandler),
	})
	worker.Run(context.Background(), stop, nil) // until stop is closed
	fmt.Println("pending:", len(box.List(outbox.Selection{State: outbox.StatePending})))
	// Output:
	// one is pending for ops
	// one accepted at attempt 2
	// pending: 0
}
