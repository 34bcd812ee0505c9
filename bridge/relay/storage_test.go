package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
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

// A server that is too old is refused with both versions.
func TestAServerThatIsTooOldIsRefused(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"2.8.4": "the NATS server has version 2.8.4; a relay needs 2.9 or later", "1.4.1": "1.4.1", "2.9.0": "", "2.15.2": "",
		"3.0.0-RC.1": "", "": "",
	} {
		err := tooOld(version)
		if got := fmt.Sprint(err); (err != nil) != (want != "") || !strings.Contains(got, want) {
			t.Errorf("of version %q it says %v, want %q", version, err, want)
		}
	}
}
