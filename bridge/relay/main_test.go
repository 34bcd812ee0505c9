package relay_test

import (
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// TestMain runs the tests on one processor unless the environment sets GOMAXPROCS, and lets garbage wait, as those of
// the package bridge. It lets more tests run at a time than there are processors, because those that aren't in a bubble
// mostly wait; -parallel beats it.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
		debug.SetGCPercent(400)
	}
	m.Run()
}
