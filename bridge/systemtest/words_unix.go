//go:build !windows

// Package systemtest has the words in which the system that the tests run on reports errors.
package systemtest

import "syscall"

// What the system says.
const (
	StatCall     = "stat" // what os.Stat calls
	NoSuchFile   = syscall.ENOENT
	NoSuchPath   = syscall.ENOENT // a directory on the way is missing
	Refused      = syscall.ECONNREFUSED
	AddressInUse = syscall.EADDRINUSE
)
