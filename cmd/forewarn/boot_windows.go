package main

import (
	"time"

	"golang.org/x/sys/windows"
)

// bootTime is when this machine booted.
func bootTime() (time.Time, error) {
	return time.Now().Add(-windows.DurationSinceBoot()).Round(time.Second).UTC(), nil
}
