package delivery

import (
	"fmt"
	"strings"
	"time"
)

// Readable formats a duration for people as settings write it: 2m rather than 2m0s, 30d rather than 720h0m0s. From a
// minute on it is rounded to seconds, from a second on to tenths.
func Readable(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	}
	days := ""
	if d >= 2*day {
		days, d = fmt.Sprintf("%dd", d/day), d%day
		if d == 0 {
			return days
		}
	}
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return days + s
}
