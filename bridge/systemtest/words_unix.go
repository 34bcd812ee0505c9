//go:build !windows

// Package systemtest is for tests: the words in which this system reports errors, how much of its time the tests may take,
// and what tests of several packages share: a log, golden files and a small disk.
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
