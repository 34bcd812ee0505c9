package bridge_test

import (
	"go/ast"
	"go/parser"
	"go/token"
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
		must(t, err)
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
	wantWithin(t, "functions in the picture", len(names), 8, 15)
	allExist(t, names)
}

// README names the functions that an event passes through, at most 30, and none that isn't there.
func TestREADMENamesTheFunctionsThatAnEventPassesThrough(t *testing.T) {
	_, rest, _ := strings.Cut(manual(t), "\n| step | functions |\n")
	table, _, _ := strings.Cut(rest, "\n\n") // the table ends at the first empty line
	names := regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(table, -1)
	wantWithin(t, "functions in the table", len(names), 1, 30)
	allExist(t, names)
}

// manual is the text of README.
func manual(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	must(t, err)
	return string(text)
}

// allExist fails for each name, which a match has second, of a function, method or interface that the heart lacks.
func allExist(t *testing.T, names [][]string) {
	t.Helper()
	source := sourceOf(t, ".", "imds", "cloudevent", "delivery", "outbox")
	for _, name := range names {
		of, method, isMethod := strings.Cut(name[1], ".")
		pattern := `(?m)^func ` + of + `\(`
		if isMethod {
			pattern = `(?m)^func \(\w+ \*?` + of + `\) ` + method + `\(|^type ` + of + ` interface`
		}
		if !regexp.MustCompile(pattern).MatchString(source) {
			t.Errorf("there is no %s", name[1])
		}
	}
}

// sourceOf is the text of all Go files in directories.
func sourceOf(t *testing.T, dirs ...string) string {
	t.Helper()
	var source strings.Builder
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		must(t, err)
		for _, f := range files {
			code, err := os.ReadFile(f)
			must(t, err)
			source.Write(code)
		}
	}
	return source.String()
}

// The programs in the package comments are Go, of names that are there.
func TestTheProgramsInThePackageCommentsAreOfNamesThatAreThere(t *testing.T) {
	for file, calls := range map[string]int{"doc.go": 8, "delivery/doc.go": 3, "outbox/outbox.go": 5} {
		text, err := os.ReadFile(file)
		must(t, err)
		_, use, _ := strings.Cut(string(text), "\n// # Use\n")
		use, _, _ = strings.Cut(use, "\n// # ")
		var program strings.Builder
		for _, m := range regexp.MustCompile(`(?m)^//\t(.*)$`).FindAllStringSubmatch(use, -1) {
			program.WriteString(m[1] + "\n")
		}
		code, err := parser.ParseFile(token.NewFileSet(), file, "package p\nfunc _() {\n"+program.String()+"}", 0)
		must(t, err)
		n := 0
		ast.Inspect(code, func(node ast.Node) bool {
			selector, ok := node.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, ok := selector.X.(*ast.Ident)
			if !ok {
				return true
			}
			dir, known := map[string]string{"bridge": ".", "imds": "imds", "delivery": "delivery", "outbox": "outbox"}[of.Name]
			if known {
				n++
				if name := selector.Sel.Name; !strings.Contains(sourceOf(t, dir), " "+name) {
					t.Errorf("%s: there is no %s.%s", file, of.Name, name)
				}
			}
			return true
		})
		wantWithin(t, "names in the program in "+file, n, calls, 100)
	}
}

// Every test that the package comment names as holding a promise is there.
func TestThePromisesAreHeldByTestsThatExist(t *testing.T) {
	comment, err := os.ReadFile("doc.go")
	must(t, err)
	source := sourceOf(t, ".", "cloudevent", "delivery", "imds", "outbox")
	names := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(comment), -1)
	wantWithin(t, "tests that it names", len(names), 10, 100)
	for _, name := range names {
		if !strings.Contains(source, "\nfunc "+name+"(t *testing.T)") {
			t.Errorf("there is no %s", name)
		}
	}
}
