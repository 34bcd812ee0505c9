package service

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is the time of the clock by which systemd orders what it is told.
func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // which every Linux has
	return time.Duration(t.Nano())
}
