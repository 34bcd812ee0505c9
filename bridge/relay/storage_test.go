package relay

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"
)

// Between the end of a connection and the report of it, nobody knows why there is none. Whoever asks gets an error.
func TestAConnectionThatHasJustEndedIsAnError(t *testing.T) {
	t.Parallel()
	r := New(Options{Log: slog.New(slog.DiscardHandler)})
	r.setDown(nil)
	r.setStorage(nil)
	if _, _, err := r.newCloudEvent("type", nil); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("got %v, want %v", err, nats.ErrConnectionClosed)
	}
}
