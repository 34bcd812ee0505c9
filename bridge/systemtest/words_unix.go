//go:build !windows

// Package systemtest has what the tests of several packages need to know of where they run: the words in which the
// system reports errors, and how much they are to take of it.
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
