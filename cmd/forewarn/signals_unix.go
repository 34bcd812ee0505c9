//go:build !windows

package main

import (
	"os"
	"syscall"
)

// hangup are the signals that reload the settings.
var hangup = []os.Signal{syscall.SIGHUP}
