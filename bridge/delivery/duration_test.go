package delivery_test

import (
	"testing"
	"time"

	"forewarn/bridge/delivery"
)

// Durations in messages read as they are written in settings.
func TestDurationsAreReadable(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                       "0s",
		150 * time.Millisecond:  "150ms",
		1234 * time.Millisecond: "1.2s",
		30 * time.Second:        "30s",
		2 * time.Minute:         "2m",
		150 * time.Second:       "2m30s",
		59*time.Minute + 59*time.Second + 700*time.Millisecond: "1h",
		10 * time.Hour:         "10h",
		90 * time.Minute:       "1h30m",
		24 * time.Hour:         "24h",
		36 * time.Hour:         "36h",
		30 * 24 * time.Hour:    "30d",
		60*time.Hour + 1500000: "2d12h",
	} {
		if got := delivery.Readable(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}
