package main

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// A test is one of a package's, with what it runs of the package.
type test struct {
	name  string
	took  time.Duration
	files map[string][]block // by the name without its folder
}

// A block is a run of statements in a file, between two positions.
type block struct {
	first, last position
	ran         bool
}

// A position is a line and a column of a file, both counted from 1.
type position struct{ line, column int }

func (p position) compare(other position) int {
	return cmp.Or(cmp.Compare(p.line, other.line), cmp.Compare(p.column, other.column))
}

// testsOf runs the tests of a package one by one, but for those whose names skip matches, and notes what each runs.
func testsOf(p, skip string) ([]test, error) {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "test")
	if out, err := compile(binary, p, "-cover", "-coverpkg=./"+p); err != nil {
		return nil, fmt.Errorf("the tests of %s cannot be compiled for coverage: %w\n%s", p, err, out)
	}
	list := exec.Command(binary, "-test.list", "^(Test|Fuzz|Example)")
	list.Dir = p
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("which tests %s has: %w", p, err)
	}
	skipped, err := regexp.Compile(cmp.Or(skip, "^$"))
	if err != nil {
		return nil, fmt.Errorf("-last: %w", err)
	}
	names := slices.DeleteFunc(strings.Fields(string(out)), skipped.MatchString)
	tests := make([]test, len(names))
	errs := make([]error, len(names))
	turn := make(chan int)
	var runners sync.WaitGroup
	for range 2 {
		runners.Go(func() {
			for i := range turn {
				tests[i], errs[i] = runAlone(binary, p, names[i], filepath.Join(dir, names[i]))
			}
		})
	}
	for i := range names {
		turn <- i
	}
	close(turn)
	runners.Wait()
	slices.SortFunc(tests, func(a, b test) int { return cmp.Compare(a.took, b.took) })
	return tests, cmp.Or(errs...)
}

func runAlone(binary, p, name, profile string) (test, error) {
	began := time.Now()
	run := exec.Command(binary, "-test.run", "^"+name+"$", "-test.coverprofile", profile)
	run.Dir = p
	if out, err := run.CombinedOutput(); err != nil {
		return test{}, fmt.Errorf("%s alone: %w\n%s", name, err, out)
	}
	t := test{name: name, took: time.Since(began), files: map[string][]block{}}
	file, err := os.Open(profile)
	if err != nil {
		return test{}, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		at, rest, _ := strings.Cut(lines.Text(), ":")
		var b block
		var statements, times int
		if n, _ := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &b.first.line, &b.first.column, &b.last.line, &b.last.column, &statements,
			&times); n < 6 {
			continue // the head of the file
		}
		b.ran = times > 0
		t.files[path.Base(at)] = append(t.files[path.Base(at)], b)
	}
	return t, nil
}

// runs reports whether a test comes by a mutant. Conditions of a switch belong to no block: there it is enough that the
// test runs some of the function.
func (t test) runs(m mutant) bool {
	inBlock, function := false, false
	for _, b := range t.files[filepath.Base(m.file)] {
		if b.first.compare(m.at) <= 0 && m.at.compare(b.last) <= 0 {
			if b.ran {
				return true
			}
			inBlock = true
		}
		function = function || b.ran && m.first <= b.first.line && b.last.line <= m.last
	}
	return !inBlock && function
}

// against gives the parts of a trial that can notice a mutant: of the package's own tests those that run its line, the
// quick ones before the others.
func (t trial) against(m mutant) []trial {
	if t.dir != filepath.Dir(m.file) || t.tests == nil || m.function == "" {
		return []trial{t}
	}
	var parts []trial
	quick := time.Second
	for _, one := range t.tests {
		if !one.runs(m) {
			continue
		}
		if len(parts) == 0 || len(parts) == 1 && parts[0].took+one.took > quick {
			parts = append(parts, trial{dir: t.dir, deps: t.deps})
		}
		part := &parts[len(parts)-1]
		part.took += one.took
		part.names = append(part.names, one.name)
	}
	for i, part := range parts {
		parts[i].args = []string{"-test.run", "^(" + strings.Join(part.names, "|") + ")$"}
	}
	return parts
}
