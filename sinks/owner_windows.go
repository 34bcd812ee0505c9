package sinks

import "os"

// giveToOwner does nothing: on Windows a file has the access list of its directory.
func giveToOwner(*os.File, string) error { return nil }
