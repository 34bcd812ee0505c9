//go:build !windows

package main

import (
	"os"
	"syscall"
)

// hangup are the signals that mean: read the settings again.
var hangup = []os.Signal{syscall.SIGHUP}
