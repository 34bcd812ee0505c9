package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/sinks"
)

// The time from the moment at which the endpoint has answered a changed document to the moment at which the webhook's
// receiver has the request, with the commit to disk between: all over loopback, with the outbox in the temporary
// directory. p50-ms and p99-ms are over the changes of the run; ns/op includes the wait for the next poll.
func BenchmarkDocumentToWebhook(b *testing.B) {
	azure := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}})
	var mu sync.Mutex
	var answered time.Time // the last answer that had a body
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		azure.Metadata().ServeHTTP(w, r)
		_ = http.NewResponseController(w).Flush()
		mu.Lock()
		answered = time.Now()
		mu.Unlock()
	}))
	b.Cleanup(front.Close)
	hook, err := newReceiver()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(hook.close)

	box, err := outbox.Open(b.TempDir(), outbox.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	kind := sinks.Kinds()["webhook"]
	l := settings.Loader{Kinds: sinks.Kinds(), Host: sinks.Host{Getenv: func(string) string { return "" }, Agent: "bench"},
		Defaults: linuxDefaults}
	s, err := l.Parse("bench.yaml", fmt.Appendf(nil, "sinks: [{name: hook, webhook: {url: %q}}]", hook.url))
	if err != nil {
		b.Fatal(err)
	}
	s.Routes[0].Terms.Timeout = kind.Terms.Timeout
	bridged, err := bridge.New(bridge.Options{
		Client: imds.NewClient(front.URL, imds.DefaultAPIVersion, slog.New(slog.DiscardHandler), nil),
		Outbox: box, Routes: s.Routes, Interval: 5 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- bridged.Run(ctx) }()

	var took []time.Duration
	b.ResetTimer()
	for i := range b.N {
		id := eventID(fmt.Sprint(i))
		azure.Schedule(imdstest.Event{ID: id, Type: "Freeze"})
		at := hook.wait(b, id+"-scheduled")
		mu.Lock()
		if d := at.Sub(answered); d > 0 { // else the next poll has come between
			took = append(took, d)
		}
		mu.Unlock()
		azure.End(id)
		hook.wait(b, id+"-vanished")
	}
	b.StopTimer()
	stop()
	if err := <-done; err != nil {
		b.Error(err)
	}
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	at := func(q float64) float64 {
		return float64(took[int(q*float64(len(took)-1))].Microseconds()) / 1000
	}
	b.ReportMetric(at(0.50), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
}

// wait waits until the receiver has accepted the id, and says when that was.
func (r *receiver) wait(b *testing.B, id string) time.Time {
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Microsecond) {
		r.mu.Lock()
		at, ok := r.at[id]
		r.mu.Unlock()
		if ok {
			return at
		}
		if time.Now().After(deadline) {
			b.Fatalf("the receiver never heard %s", id)
		}
	}
}
