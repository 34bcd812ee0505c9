package clock_test

import (
	"testing"
	"time"

	"forewarn/bridge/clock"
)

// A time for people is that of their zone, with the date if it is another day there than now. Where
// it decides something, UTC follows.
func TestATimeForPeopleIsThatOfTheirZone(t *testing.T) {
	tokyo := time.FixedZone("JST", 9*60*60)
	now := time.Date(2026, 11, 25, 14, 0, 0, 0, time.UTC) // 23:00 in Tokyo
	london := time.FixedZone("GMT", 0)
	for _, tt := range []struct {
		after time.Duration
		zone  *time.Location
		want  string
		due   string // what follows in a time that decides something
	}{
		{30 * time.Minute, time.UTC, "14:30:00 UTC", ""},
		{30 * time.Minute, tokyo, "23:30:00 JST", " (14:30:00 UTC)"},
		{30 * time.Minute, london, "14:30:00 GMT", " (14:30:00 UTC)"},
		{2 * time.Hour, time.UTC, "16:00:00 UTC", ""},
		{2 * time.Hour, tokyo, "Thu 26 Nov, 01:00:00 JST", " (Wed 16:00:00 UTC)"},
		{365 * 24 * time.Hour, tokyo, "25 Nov 2027, 23:00:00 JST", " (14:00:00 UTC)"},
	} {
		if got := clock.Time(now.Add(tt.after), now, tt.zone); got != tt.want {
			t.Errorf("%v from %v in %v it is %q, want %q", tt.after, now, tt.zone, got, tt.want)
		}
		if got := clock.Due(now.Add(tt.after), now, tt.zone); got != tt.want+tt.due {
			t.Errorf("%v from %v in %v what is due is at %q, want %q", tt.after, now, tt.zone, got, tt.want+tt.due)
		}
	}
}
