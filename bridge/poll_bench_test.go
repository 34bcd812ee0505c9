package bridge

import (
	"log/slog"
	"testing"

	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// A poll that finds nothing new: answered with 304, and with the same document again. It includes the request over
// loopback to the emulated service and that service's own work.
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
			br := New(Options{Client: imds.NewClient(azure.URL, imds.DefaultAPIVersion, log, nil), Outbox: box, Log: log})
			close(br.identified)
			w := watcher{Bridge: br}
			w.poll(b.Context())
			b.ResetTimer()
			for range b.N {
				if !tt.etag {
					w.full = w.full.Add(-2 * fullPoll)
				}
				w.poll(b.Context())
			}
			if w.failures > 0 {
				b.Fatal("a poll failed")
			}
		})
	}
}
