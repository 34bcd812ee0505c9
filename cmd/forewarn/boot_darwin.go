package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime returns when this machine booted.
func bootTime() (time.Time, error) {
	t, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		return time.Time{}, err
	}
	return time.Unix(t.Unix()).UTC(), nil
}
