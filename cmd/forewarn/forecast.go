package main

import (
	"fmt"
	"strings"
	"time"

	"forewarn/bridge"
)

// forecastText says which rules would approve an event and after what, or else why none would.
func forecastText(forecasts []bridge.Forecast) string {
	var approving, refusing []string
	for _, f := range forecasts {
		if f.Approves {
			approving = append(approving, fmt.Sprintf("rule %d %s", f.Rule, afterText(f)))
		} else {
			refusing = append(refusing, fmt.Sprintf("rule %d: %s", f.Rule, f.Why))
		}
	}
	if len(approving) > 0 {
		return strings.Join(approving, "; ")
	}
	return "no: " + strings.Join(refusing, "; ")
}

// afterText says what a rule waits for.
func afterText(f bridge.Forecast) string {
	what := strings.Join(f.After, ", ")
	switch {
	case what == "" && f.Wait == 0:
		return "at once"
	case what == "":
		return "after " + shortDuration(f.Wait)
	case f.Wait == 0:
		return "after " + what
	}
	return "after " + what + " and " + shortDuration(f.Wait)
}

// shortDuration is a duration as settings have it: 5m rather than 5m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}
