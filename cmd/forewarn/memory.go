package main

import (
	"runtime"
	"runtime/debug"
	"time"
)

// When forewarn gives back the memory that it does not use: once the start is over, which needs the most, and from then
// on every so often. Polling leaves so little garbage that the collector alone would let 4 MiB of it gather first, as
// much as all that forewarn needs.
const (
	tidyFirst = 10 * time.Second
	tidyEvery = time.Minute
)

// maxProcessors is how many processors forewarn uses at once, unless GOMAXPROCS says more. It waits more than it
// computes, and the runtime keeps memory for each.
const maxProcessors = 2

// fewProcessors holds the program to maxProcessors.
func fewProcessors(getenv func(string) string) {
	if getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), maxProcessors))
	}
}

// giveBack gives back to the system what memory the program does not use at the moment.
func giveBack() {
	debug.FreeOSMemory()
	releaseFiles()
}
