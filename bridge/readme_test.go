package bridge_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// README explains every file of the heart, and no file that isn't there.
func TestREADMEExplainsEveryFile(t *testing.T) {
	_, tables, _ := strings.Cut(manual(t), "\n## How it is built\n")
	sections := strings.Split(tables, "\n## ")[1:]
	for i, dir := range []string{"imds", "discovery", "cloudevent", ".", "delivery", "outbox", "relay", "fleet", "internal/streams"} {
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

// README begins with a picture of how an event travels, of functions that are there.
func TestREADMEBeginsWithFunctionsThatExist(t *testing.T) {
	_, rest, _ := strings.Cut(manual(t), "\n```\n")
	picture, _, _ := strings.Cut(rest, "```")
	names := regexp.MustCompile(`(?m)^  [a-z]+ +([A-Za-z.]+) `).FindAllStringSubmatch(picture, -1)
	if len(names) < 8 || len(names) > 15 {
		t.Errorf("the picture names %d functions, want 8 to 15", len(names))
	}
	allExist(t, names)
}

// README names the functions that an event passes through, at most 30, and none that isn't there.
func TestREADMENamesTheFunctionsThatAnEventPassesThrough(t *testing.T) {
	_, rest, _ := strings.Cut(manual(t), "\n| step | functions |\n")
	table, _, _ := strings.Cut(rest, "\n\n") // the table ends at the first empty line
	names := regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(table, -1)
	if len(names) == 0 || len(names) > 30 {
		t.Errorf("%d functions are named, want 1 to 30", len(names))
	}
	allExist(t, names)
}

// manual is the text of README.
func manual(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// allExist fails for each name, which a match has second, of a function, method or interface that the heart lacks.
func allExist(t *testing.T, names [][]string) {
	t.Helper()
	var source []byte
	for _, dir := range []string{".", "imds", "cloudevent", "delivery", "outbox"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			code, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			source = append(source, code...)
		}
	}
	for _, name := range names {
		of, method, isMethod := strings.Cut(name[1], ".")
		pattern := `(?m)^func ` + of + `\(`
		if isMethod {
			pattern = `(?m)^func \(\w+ \*?` + of + `\) ` + method + `\(|^type ` + of + ` interface`
		}
		if !regexp.MustCompile(pattern).Match(source) {
			t.Errorf("there is no %s", name[1])
		}
	}
}
