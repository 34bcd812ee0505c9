package systemtest

import (
	"flag"
	"os"
	"testing"
)

// Whole reports whether tests do all they can: at the gate, which sets FOREWARN_SCALE, and where -run names them. By
// itself go test ./... does what two cores do in one to two minutes.
func Whole() bool {
	return os.Getenv("FOREWARN_SCALE") != "" || flag.Lookup("test.run").Value.String() != ""
}

// Every returns n at the gate, which tries every nth of many cases of one kind, and 1 where all are tried: with
// FOREWARN_SCALE=large, which .ci/full sets, and where -run names the test.
func Every(n int) int {
	if os.Getenv("FOREWARN_SCALE") == "large" || flag.Lookup("test.run").Value.String() != "" {
		return 1
	}
	return n
}

// LeftToGate skips a test that takes long, unless the tests are to do all they can.
func LeftToGate(t *testing.T) {
	t.Helper()
	if !Whole() {
		t.Skip("takes long; -run with its name runs it, and FOREWARN_SCALE=small all such tests, as the gate does")
	}
}

// Alone skips a test if it is run with -short, which is for the race detector: under that it takes many times as long,
// and its goroutines hardly meet, or only as those of other tests do.
func Alone(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the race detector would see nothing in it that other tests do not show, so -short leaves it out")
	}
}
