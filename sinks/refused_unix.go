//go:build !windows

package sinks

import "syscall"

// connectionRefused is the system's error when nothing listens at an address.
const connectionRefused = syscall.ECONNREFUSED
