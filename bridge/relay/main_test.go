package relay_test

import (
	"flag"
	"testing"
)

// TestMain lets more tests run at a time than there are processors, because those that aren't in a bubble mostly wait.
// -parallel beats it.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	m.Run()
}
