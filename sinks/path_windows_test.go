package sinks

import (
	"os"
	"path/filepath"
	"testing"
)

// Windows finds a program without its .exe, so that it can be told from its arguments then, too.
func TestAProgramWithoutItsExtensionMayHaveSpaces(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "Program Files")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "drain - copy.exe"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{"drain - copy": false, "drain - copy now": true, "drain - copy /now": true} {
		if err := (Program{filepath.Join(dir, text)}).check("command"); (err != nil) != want {
			t.Errorf("%q gives %v, want an error: %v", text, err, want)
		}
	}
}
