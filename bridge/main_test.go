package bridge

import (
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// TestMain runs the tests on one processor unless the environment sets GOMAXPROCS, and lets garbage wait. Most of them
// run in bubbles, in which a second processor only hands goroutines to and fro; the race detector breaks down when two
// of them run the timers of one bubble (golang/go#78156). Benchmarks have all there is.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
		debug.SetGCPercent(400)
	}
	m.Run()
}
