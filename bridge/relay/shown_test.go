package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"forewarn/bridge/relay"
)

// What the servers say is shown nowhere as it is: they may repeat the credentials.
func TestErrorsOfTheServersAreShownAsTheyMayBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		r := relay.New(relay.Options{
			Name: "relay-1", Stream: "FOREWARN", Log: slog.New(slog.NewTextHandler(&log, nil)).With("part", "relay"),
			Connect: func(context.Context) (*nats.Conn, error) { return nil, errors.New("no such token: s3cr3t") },
			Shown:   func(error) error { return errors.New("not shown") },
		})
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		_ = r.Run(ctx)
		status := r.Status()
		if text := log.String() + strings.Join(status.Reasons, " ") + status.Outbox.Error; strings.Contains(text, "s3cr3t") ||
			!strings.Contains(text, "not shown") {
			t.Errorf("it says %s", text)
		}
	})
}
