package control

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/outbox"
	"forewarn/bridge/relay"
)

// What the servers of a relay say may repeat its credentials, so its commands get it only in the form that may be shown.
func TestCommandsOnARelayGetOnlyWhatMayBeShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := relay.New(relay.Options{
			Routes: []bridge.Route{{Name: "ops"}},
			Shown:  func(error) error { return errors.New("in the form that may be shown") },
		})
		c := overPipes(t, true, RelayHandler(r, nil))
		mute := MuteRequest{For: time.Hour}
		mute.Sink = "ops"
		for name, call := range map[string]func() error{
			"list":   func() error { _, err := c.List(t.Context(), outbox.Selection{State: outbox.StateDead}, 1); return err },
			"show":   func() error { _, err := c.Show(t.Context(), "ops/1"); return err },
			"replay": func() error { _, err := c.Replay(t.Context(), Mutation{Keys: []string{"ops/1"}}); return err },
			"drop":   func() error { _, err := c.Drop(t.Context(), Mutation{All: true}); return err },
			"past":   func() error { _, err := c.ReplayPast(t.Context(), relay.ReplayRequest{Sink: "ops"}); return err },
			"mute":   func() error { _, err := c.Mute(t.Context(), mute); return err },
			"unmute": func() error { _, err := c.Unmute(t.Context(), UnmuteRequest{All: true}); return err },
		} {
			if err := call(); err == nil || !strings.Contains(err.Error(), "in the form that may be shown") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
