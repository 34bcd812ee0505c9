package bridge

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// README explains every file of the heart, and no file that isn't there.
func TestREADMEExplainsEveryFile(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, _ := strings.Cut(string(text), "\n## How it is built\n")
	sections := strings.Split(tables, "\n## ")[1:]
	for i, dir := range []string{"imds", "discovery", "cloudevent", ".", "delivery", "outbox", "relay"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		explained := sections[i]
		for _, f := range files {
			name := filepath.Base(f)
			switch {
			case strings.HasSuffix(name, "_test.go"), name == "doc.go":
				continue
			case !strings.Contains(explained, "`"+name+"`"):
				t.Errorf("%s is not explained", f)
			}
			explained = strings.ReplaceAll(explained, "`"+name+"`", "")
		}
		if _, rest, more := strings.Cut(explained, ".go`"); more {
			t.Errorf("a file of %s is explained that isn't there, before %.40q", dir, rest)
		}
	}
}
