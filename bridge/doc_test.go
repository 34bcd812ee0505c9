package bridge_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that the package comment names as holding a promise is there.
func TestThePromisesAreHeldByTestsThatExist(t *testing.T) {
	comment, err := os.ReadFile("doc.go")
	must(t, err)
	var all strings.Builder
	for _, dir := range []string{"", "cloudevent/", "delivery/", "imds/", "outbox/"} {
		files, err := filepath.Glob(dir + "*_test.go")
		must(t, err)
		for _, f := range files {
			text, err := os.ReadFile(f)
			must(t, err)
			all.Write(text)
		}
	}
	names := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(comment), -1)
	if len(names) < 10 {
		t.Fatalf("the package comment names %d tests", len(names))
	}
	for _, name := range names {
		if !strings.Contains(all.String(), "\nfunc "+name+"(t *testing.T)") {
			t.Errorf("there is no %s", name)
		}
	}
}
