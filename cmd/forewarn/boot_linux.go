package main

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"
)

// bootTime returns when this machine booted; inside a container, when its host did.
func bootTime() (time.Time, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(stat)) {
		if s, ok := strings.CutPrefix(line, "btime "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
			return time.Unix(n, 0).UTC(), err
		}
	}
	return time.Time{}, errors.New("/proc/stat has no btime")
}
