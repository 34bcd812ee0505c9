// Package systemtest has what the tests of several packages need to know of where they run: the words in which the
// system reports errors, and how much they are to take of it.
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
