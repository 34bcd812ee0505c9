package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// How fast one sink gets what the stream holds: from a relay, and from a consumer that is as plain as can be. Both put on
// record what was told, because only that tells copies apart and outlives the consumer; a relay also what is to be told.
//
//	go test ./bridge/relay -run - -bench Reading -benchtime 2000x
func BenchmarkReading(b *testing.B) {
	for _, way := range []struct {
		name string
		read func(b *testing.B, conn func() *nats.Conn, heard func(id string) bool)
	}{
		{"relay", readByRelay}, {"durable, one at a time", readByConsumer(1)}, {"durable, 64 at a time", readByConsumer(64)},
	} {
		b.Run(way.name, func(b *testing.B) {
			s, err := server.NewServer(&server.Options{
				Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: b.TempDir(),
			})
			if err != nil {
				b.Fatal(err)
			}
			s.Start()
			defer func() { s.Shutdown(); s.WaitForShutdown() }()
			if !s.ReadyForConnections(patience) {
				b.Fatal("the server takes no connections")
			}
			connect := func() *nats.Conn {
				conn, err := nats.Connect(s.ClientURL())
				if err != nil {
					b.Fatal(err)
				}
				return conn
			}
			conn := connect()
			defer conn.Close()
			plan, err := relay.NewPlan(b.Context(), conn, "", "FOREWARN", relay.Retention{})
			if err == nil {
				err = plan.Do(b.Context())
			}
			if err != nil {
				b.Fatal(err)
			}
			js, err := jetstream.New(conn)
			if err != nil {
				b.Fatal(err)
			}
			for n := range b.N {
				ce, err := changeSaid(imds.Change{Kind: imds.Scheduled, Event: eventNo(n).event(imds.StatusScheduled)},
					"vm-1")(time.Now())
				if err != nil {
					b.Fatal(err)
				}
				body, _ := ce.MarshalJSON()
				h := nats.Header{"Content-Type": {"application/cloudevents+json"}}
				if _, err := js.PublishMsgAsync(&nats.Msg{Subject: ownSubject(ce), Header: h, Data: body}); err != nil {
					b.Fatal(err)
				}
			}
			<-js.PublishAsyncComplete()
			done, left := make(chan struct{}), b.N
			b.ResetTimer()
			go way.read(b, connect, func(string) bool {
				if left--; left == 0 {
					close(done)
				}
				return left > 0
			})
			<-done
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// readByRelay is a relay with one sink.
func readByRelay(b *testing.B, connect func() *nats.Conn, heard func(string) bool) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	over := make(chan struct{})
	r := relay.New(relay.Options{
		Connect: func(context.Context) (*nats.Conn, error) { return connect(), nil }, Stream: "FOREWARN", Name: "relay-1",
		Log: slog.New(slog.DiscardHandler), From: time.Now().Add(-time.Hour),
		Routes: []bridge.Route{route("hook", deliver(func(batch []delivery.Delivery) error {
			if !heard(batch[0].Event.ID()) {
				close(over)
			}
			return nil
		}))},
	})
	go func() { <-over; cancel() }()
	_ = r.Run(ctx)
}

// readByConsumer returns a durable consumer with so many messages on their way at most. Of each it puts on record that
// it was told, and acknowledges it.
func readByConsumer(pending int) func(*testing.B, func() *nats.Conn, func(string) bool) {
	return func(b *testing.B, connect func() *nats.Conn, heard func(string) bool) {
		conn := connect()
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			b.Error(err)
			return
		}
		kv, err := js.KeyValue(b.Context(), "FOREWARN_records")
		if err != nil {
			b.Error(err)
			return
		}
		consumer, err := js.CreateConsumer(b.Context(), "FOREWARN", jetstream.ConsumerConfig{
			Durable: "hook", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: pending,
		})
		if err != nil {
			b.Error(err)
			return
		}
		messages, err := consumer.Messages()
		if err != nil {
			b.Error(err)
			return
		}
		defer messages.Stop()
		for {
			msg, err := messages.Next()
			if err != nil {
				b.Error(err)
				return
			}
			var ce struct{ ID, Subject string }
			if err = json.Unmarshal(msg.Data(), &ce); err == nil { // the record of the Azure event: was it told before?
				_, err = kv.Get(b.Context(), "record.hook."+ce.Subject+"._.web.vm-1")
			}
			if !errors.Is(err, jetstream.ErrKeyNotFound) {
				b.Error(err)
				return
			}
			more := heard(ce.ID)
			if _, err = kv.Put(b.Context(), "record.hook."+ce.Subject+"._.web.vm-1", []byte(ce.ID)); err == nil {
				err = msg.DoubleAck(b.Context())
			}
			if err != nil {
				b.Error(err)
				return
			}
			if !more {
				return
			}
		}
	}
}
