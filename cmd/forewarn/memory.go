package main

import (
	"runtime"
	"runtime/debug"
	"time"
)

// tidyEvery is how often forewarn gives back the memory that it does not use. Polling leaves so little garbage that the
// collector alone would let 4 MiB of it gather first, as much as all that forewarn needs.
const tidyEvery = 30 * time.Second

// oneProcessor keeps the program to one processor, unless GOMAXPROCS says otherwise: it waits more than it computes, and
// the runtime keeps memory for each.
func oneProcessor(getenv func(string) string) {
	if getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}

// giveBack gives back to the system what memory the program does not use at the moment.
func giveBack() {
	debug.FreeOSMemory()
	releaseFiles()
}
