package main

import (
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(\w+ \*testing\.[TFB]\)`)
	testName     = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	testVariable = regexp.MustCompile(`\b(FOREWARN_\w+)=`)
	ciFile       = regexp.MustCompile(`\.ci/[\w./-]*\w`)
	goWord       = regexp.MustCompile(`(?:^|\s)go `)
)

// A goCommand is a go command in a document, up to the next one in the same line.
type goCommand struct {
	text     string
	packages []string          // folders from the top of the repository; with /... at the end, all below too
	patterns map[string]string // what -run, -bench and -fuzz say
}

// goCommandsIn are the go commands in a line. What follows the package of go run belongs to the program.
func goCommandsIn(line string) (all []goCommand) {
	dir := "."
	for _, text := range goWord.Split(line, -1)[1:] {
		words := strings.Fields(text)
		if len(words) > 2 && words[0] == "-C" {
			dir, words = path.Join(dir, words[1]), words[2:]
		}
		c := goCommand{text: "go " + text, patterns: map[string]string{}}
		for i, word := range words {
			switch {
			case strings.HasPrefix(word, "./"):
				c.packages = append(c.packages, path.Join(dir, word))
			case i > 0 && slices.Contains([]string{"-run", "-bench", "-fuzz"}, words[i-1]):
				pattern, _, _ := strings.Cut(strings.Trim(word, "'"), "/") // what follows names subtests
				c.patterns[words[i-1]] = pattern
			}
			if words[0] == "run" && len(c.packages) == 1 {
				break
			}
		}
		all = append(all, c)
	}
	return all
}

// Each test that a document names exists. So does each package in its go commands, with tests for -run, -bench and
// -fuzz to choose, each variable that its commands set for tests, and each file of .ci.
func TestTheDocumentsNameTestsAndPackagesThatExist(t *testing.T) {
	tests, source := goFiles(t)
	everyTest := slices.Concat(slices.Collect(maps.Values(tests))...)
	n := 0
	for _, name := range allDocuments(t) {
		text := manualText(t, name)
		for _, file := range ciFile.FindAllString(text, -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(file))); err != nil {
				t.Errorf("%s names %s: %v", name, file, err)
			}
		}
		for _, m := range testVariable.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(source, `"`+m[1]+`"`) {
				t.Errorf("%s sets %s, which nothing reads", name, m[1])
			}
		}
		for _, line := range codeIn(text) {
			line, _, _ = strings.Cut(line, " #")
			for _, c := range goCommandsIn(line) {
				n++
				for _, problem := range c.problems(t, tests) {
					t.Errorf("%s: %s: %s", name, c.text, problem)
				}
				if len(c.patterns) > 0 { // which need not be whole names
					text = strings.ReplaceAll(text, c.text, "")
				}
			}
		}
		for _, test := range testName.FindAllString(text, -1) {
			if n++; !slices.Contains(everyTest, test) {
				t.Errorf("%s names %s, and there is no such test", name, test)
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d commands and names were found", n)
	}
}

// problems are what the command names and the repository lacks. A word in capitals is the reader's to fill in.
func (c goCommand) problems(t *testing.T, tests map[string][]string) (problems []string) {
	t.Helper()
	var chosenFrom []string
	for _, p := range c.packages {
		if p == strings.ToUpper(p) {
			continue
		}
		folder, below := strings.CutSuffix(p, "/...")
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(folder), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 0 && !below {
			problems = append(problems, "there is no package "+p)
		}
		for in, names := range tests {
			if in == folder || below && (folder == "." || strings.HasPrefix(in, folder+"/")) {
				chosenFrom = append(chosenFrom, names...)
			}
		}
	}
	for flag, prefix := range map[string]string{"-run": "Test", "-bench": "Benchmark", "-fuzz": "Fuzz"} {
		pattern, given := c.patterns[flag]
		if !given || flag == "-run" && len(c.patterns) > 1 { // -run keeps tests out of a benchmark
			continue
		}
		matches := regexp.MustCompile(pattern).MatchString
		if !slices.ContainsFunc(chosenFrom, func(test string) bool { return strings.HasPrefix(test, prefix) && matches(test) }) {
			problems = append(problems, flag+" chooses nothing")
		}
	}
	return problems
}

// goFiles reads every Go file of the repository: the names of tests by folder, and all of the source.
func goFiles(t *testing.T) (tests map[string][]string, source string) {
	t.Helper()
	tests = map[string][]string{}
	var all strings.Builder
	eachFile(t, ".go", func(name string) {
		text := manualText(t, name)
		all.WriteString(text)
		for _, m := range testFunction.FindAllStringSubmatch(text, -1) {
			tests[path.Dir(name)] = append(tests[path.Dir(name)], m[1])
		}
	})
	return tests, all.String()
}

// allDocuments are all documents of the repository.
func allDocuments(t *testing.T) (names []string) {
	t.Helper()
	eachFile(t, ".md", func(name string) { names = append(names, name) })
	return names
}

// eachFile calls f with each file of the repository whose name ends so, named from the top with slashes.
func eachFile(t *testing.T, ending string, f func(name string)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == ".git" || name == "dist"):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, ending):
			f(name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
