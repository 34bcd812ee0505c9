package sinks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// BenchmarkDelivery is how fast a backlog of 5,000 changes is committed and delivered, beside the least that can do it:
// the same commits, and a loop that does nothing but post each, or append and sync them in batches as large. ratio is
// the time of that over ours.
func BenchmarkDelivery(b *testing.B) {
	var posted http.Client
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer hook.Close()
	for _, bench := range []struct {
		kind, settings string // in which %s is a new file
		bare           func(batch [][]byte, path string) error
	}{
		{"webhook", "{url: '" + hook.URL + "'}", func(batch [][]byte, _ string) error {
			resp, err := posted.Post(hook.URL, "application/cloudevents+json", bytes.NewReader(batch[0]))
			if err == nil {
				err = resp.Body.Close()
			}
			return err
		}},
		{"file", "{path: %s}", func(batch [][]byte, path string) error {
			f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			defer f.Close()
			if _, err := f.Write(append(bytes.Join(batch, []byte("\n")), '\n')); err != nil {
				return err
			}
			return f.Sync()
		}},
	} {
		b.Run(bench.kind, func(b *testing.B) {
			var ours, bare time.Duration
			for b.Loop() {
				settings := bench.settings
				if bench.kind == "file" {
					settings = fmt.Sprintf(settings, filepath.Join(b.TempDir(), "ours.jsonl"))
				}
				host := Host{Getenv: os.Getenv, Log: slog.New(slog.DiscardHandler), Agent: "bench"}
				opened, err := open(bench.kind, settings, host)
				if err != nil {
					b.Fatal(err)
				}
				terms := Kinds()[bench.kind].Terms
				ours += backlog(b, func(box *outbox.Outbox, _ map[uint64][]byte) {
					ctx, stop := context.WithCancel(b.Context())
					defer stop()
					w := delivery.NewWorker(delivery.Config{Route: "a", Sink: opened.Sink, Terms: terms, Queue: box.Queue("a"),
						Log: slog.New(slog.DiscardHandler), Trouble: func(error) {
							if box.Totals().Pending == 0 {
								stop()
							}
						}})
					w.Run(ctx, nil, nil)
				})
				closeSink(opened.Sink)
				path := filepath.Join(b.TempDir(), "bare.jsonl")
				bare += backlog(b, func(box *outbox.Outbox, bodies map[uint64][]byte) {
					bareLoop(b, box.Queue("a"), bodies, terms.Batch, path, bench.bare)
				})
			}
			b.ReportMetric(bare.Seconds()/ours.Seconds(), "ratio")
			b.ReportMetric(float64(b.N*benchBacklog)/ours.Seconds(), "deliveries/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

const benchBacklog = 5000

// backlog returns how long it takes to commit a backlog, and to deliver it in some way.
func backlog(b *testing.B, deliver func(box *outbox.Outbox, bodies map[uint64][]byte)) time.Duration {
	b.Helper()
	box, err := outbox.Open(b.TempDir(), outbox.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer box.Close()
	bodies := map[uint64][]byte{}
	batch := outbox.Batch{Routes: []outbox.Route{{Name: "a"}}}
	for n := range benchBacklog {
		ce := event.New()
		ce.SetID(fmt.Sprintf("%08d-0000-4000-8000-000000000000-scheduled", n))
		ce.SetType("dev.forewarn.scheduledevent.scheduled")
		ce.SetSource("urn:bench")
		if err := ce.SetData("application/json", map[string]string{"filler": strings.Repeat("x", 900)}); err != nil {
			b.Fatal(err)
		}
		a := outbox.Addition{To: []string{"a"}}
		a.ID, a.Type, a.Group, a.Change = ce.ID(), ce.Type(), ce.ID()[:36], "scheduled"
		if a.Body, err = json.Marshal(ce); err != nil {
			b.Fatal(err)
		}
		batch.Add = append(batch.Add, a)
	}
	began := time.Now()
	if err := box.Update(began, func(tx *outbox.Tx) { tx.Apply(batch) })(); err != nil {
		b.Fatal(err)
	}
	for _, a := range batch.Add {
		bodies[a.Seq] = a.Body
	}
	deliver(box, bodies)
	took := time.Since(began)
	if n := box.Totals().Pending; n > 0 {
		b.Fatalf("%d are left", n)
	}
	return took
}

// bareLoop hands over all that is pending in batches, and commits the end of every 32 deliveries, or of each batch.
func bareLoop(
	b *testing.B, q delivery.Queue, bodies map[uint64][]byte, size int, path string, send func([][]byte, string) error,
) {
	b.Helper()
	var done []*delivery.Item
	pending := q.Changes().Pending
	for len(pending) > 0 {
		items := pending[:min(size, len(pending))]
		pending = pending[len(items):]
		var batch [][]byte
		for _, i := range items {
			batch = append(batch, bodies[i.Seq])
		}
		if err := send(batch, path); err != nil {
			b.Fatal(err)
		}
		if done = append(done, items...); len(done) >= 32 || len(pending) == 0 {
			q.Report(delivery.Report{Now: time.Now(), Accepted: done, Durable: true})
			done = nil
		}
	}
}
