package main

import (
	"time"

	"golang.org/x/sys/windows"
)

// bootTime returns when this machine booted.
func bootTime() (time.Time, error) {
	return time.Now().Add(-windows.DurationSinceBoot()).Round(time.Second).UTC(), nil
}
