//go:build !linux

package service

import "time"

// monotonic is of use to systemd only, which other systems have not.
func monotonic() time.Duration { return 0 }
