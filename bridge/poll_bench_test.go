package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"testing"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// A poll that finds nothing new: answered with 304, and with the same document again. It includes the request over
// loopback to the emulated service and that service's own work. own-allocs/op is what it allocates beyond the same
// request with net/http alone.
func BenchmarkUnchangedPoll(b *testing.B) {
	for _, tt := range []struct {
		name string
		etag bool
	}{{"304", true}, {"200", false}} {
		b.Run(tt.name, func(b *testing.B) {
			azure := imdstest.Serve(b, imdstest.Options{})
			azure.Schedule(imdstest.Event{Type: "Reboot"})
			log := slog.New(slog.DiscardHandler)
			box, err := outbox.Open(b.TempDir(), outbox.Options{Log: log})
			if err != nil {
				b.Fatal(err)
			}
			defer box.Close()
			br, err := New(Options{Client: imds.NewClient(azure.URL, imds.DefaultAPIVersion, log, nil), Outbox: box, Log: log})
			if err != nil {
				b.Fatal(err)
			}
			close(br.identified)
			w := watcher{Bridge: br}
			w.poll(b.Context())
			bare := http.Client{Transport: &http.Transport{DisableCompression: true}}
			defer bare.CloseIdleConnections()
			for range 10 { // connections, and what is made once
				w.poll(b.Context())
				barePoll(b, &bare, azure.URL, w.etag, tt.etag)
			}
			b.ReportAllocs()
			before := mallocs()
			b.ResetTimer()
			for range b.N {
				if !tt.etag {
					w.full = w.full.Add(-2 * fullPoll)
				}
				w.poll(b.Context())
			}
			b.StopTimer()
			ours := mallocs() - before
			if w.failures > 0 {
				b.Fatal("a poll failed")
			}
			before = mallocs()
			for range b.N {
				barePoll(b, &bare, azure.URL, w.etag, tt.etag)
			}
			b.ReportMetric(float64(ours)/float64(b.N)-float64(mallocs()-before)/float64(b.N), "own-allocs/op")
		})
	}
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// barePoll makes the same request with net/http alone, within a time too.
func barePoll(b *testing.B, c *http.Client, endpoint, etag string, conditional bool) {
	ctx, cancel := context.WithTimeoutCause(b.Context(), time.Minute, errors.New("no answer"))
	defer cancel()
	u := endpoint + "/metadata/scheduledevents?api-version=" + imds.DefaultAPIVersion
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Metadata", "true")
	if conditional {
		req.Header["If-None-Match"] = []string{etag}
	}
	resp, err := c.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
}

// A message about the bridge costs no more when many others are pending.
func BenchmarkMessageAboutTheBridge(b *testing.B) {
	for _, pending := range []int{0, 50_000} {
		b.Run(fmt.Sprintf("pending-%d", pending), func(b *testing.B) {
			log := slog.New(slog.DiscardHandler)
			box, err := outbox.Open(b.TempDir(), outbox.Options{Log: log})
			if err != nil {
				b.Fatal(err)
			}
			defer box.Close()
			down := Route{Name: "down", Sink: unheard{}, Terms: Terms{Bridge: LevelAll}}
			br, err := New(Options{Client: imds.NewClient("http://azure.test", imds.DefaultAPIVersion, log, nil),
				Outbox: box, Log: log, Routes: []Route{down}})
			if err != nil {
				b.Fatal(err)
			}
			all := outbox.Batch{Routes: []outbox.Route{{Name: "down"}}}
			for range pending {
				all.Add = append(all.Add, outbox.Addition{
					Message: delivery.Message{ID: "id", Type: cloudevent.SinkBlocked},
					Body:    []byte("{}"), To: []string{"down"},
				})
			}
			if err := box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(all) })(); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for range b.N {
				br.update(func() (c commit) {
					br.reporter().add(&c, cloudevent.SinkRecovered, nil, "")
					return c
				})
			}
		})
	}
}

// unheard is a sink that takes nothing.
type unheard struct{}

func (unheard) Deliver(context.Context, []delivery.Delivery) (delivery.Answer, error) {
	return delivery.Answer{}, errors.New("down")
}
