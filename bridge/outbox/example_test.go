package outbox_test

import (
	"fmt"
	"log"
	"os"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A CloudEvent is pending for its recipients from the change that adds it until each has reported it, across restarts.
func ExampleOutbox() {
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	box, err := outbox.Open(dir, outbox.Options{})
	if err != nil {
		log.Fatal(err)
	}
	now := time.Now()
	onDisk := box.Update(now, func(tx *outbox.Tx) {
		tx.Apply(outbox.Batch{
			Routes: []outbox.Route{{Name: "mail"}, {Name: "hook"}},
			Add: []outbox.Addition{{
				Message: delivery.Message{Seq: tx.Reserve(), ID: "one", Type: "com.example.created"},
				Body:    []byte(`{"specversion":"1.0","id":"one","source":"/example","type":"com.example.created"}`),
				To:      []string{"mail", "hook"},
			}},
		})
	})
	if err := onDisk(); err != nil {
		log.Fatal(err)
	}
	if err := box.Close(); err != nil {
		log.Fatal(err)
	}

	if box, err = outbox.Open(dir, outbox.Options{}); err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	hook := box.Queue("hook")
	for _, item := range hook.Changes().Pending {
		d, err := hook.Read(item)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("delivering", d.Event.ID())
		hook.Report(delivery.Report{Now: now, Accepted: []*delivery.Item{item}})
	}
	for _, d := range box.List(outbox.Selection{}) {
		fmt.Println(d.ID, "is", d.State, "for", d.Route)
	}
	// Output:
	// delivering one
	// one is pending for mail
}
