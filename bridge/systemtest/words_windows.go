// Package systemtest is for tests: the words in which this system reports errors, how much of its time the tests may take,
// and what tests of several packages share: a log, golden files and a small disk.
package systemtest

import "golang.org/x/sys/windows"

// What the system says.
const (
	StatCall     = "GetFileAttributesEx" // what os.Stat calls
	NoSuchFile   = windows.ERROR_FILE_NOT_FOUND
	NoSuchPath   = windows.ERROR_PATH_NOT_FOUND // a directory on the way is missing
	Refused      = windows.WSAECONNREFUSED
	AddressInUse = windows.WSAEADDRINUSE
)
