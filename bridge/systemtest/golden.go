package systemtest

import (
	"bytes"
	"os"
	"testing"
)

// WantGolden fails the test if the golden file at path has something else than got. With update it writes the file anew
// instead.
func WantGolden(t *testing.T, update bool, path string, got []byte) {
	t.Helper()
	if update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; with -update it is written anew. Got\n%s", path, got)
	}
}
