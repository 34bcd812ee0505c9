// Mutants says how much of a package its tests hold: it makes one small mistake at a time in the code, runs the tests,
// and lists the mistakes that no test noticed.
//
//	go -C .ci/tools run ./mutants [-n 120] [-seed 1] [-only FILE:LINE] [-keep FILE] [-last REGEXP] [-least 95] PACKAGE...
//
// FILE:LINE may end anywhere: -only bridge/imds/ makes mistakes in that package alone, and tries them on all tests.
//
// Packages are directories. Each has a sample of its own, of n mistakes, as many of each file as it has a share of all;
// another seed makes another sample. A mistake is tried on those of the package's own tests that run its line, then on
// those of the other packages that depend on it, the quickest first, until one fails. The tests that -last names are run
// apart from the others of their package. Tests that take three times as long as they do, and five seconds, have noticed the mistake.
//
// With -keep, what became of each mistake is added to FILE, and what was noticed before is not tried again as long as
// its file has not changed; so a run that was ended goes on where it was. With -least it fails when of one package
// fewer percent are noticed. Nothing in the work tree is touched: go test gets each changed file as an overlay.
//
// What is changed: a condition is negated, or loses one of its sides; a comparison is made with the equal case or
// without it, or turned round; a statement is left out; a number is one more, a truth its opposite.
//
// Mistakes that make no difference are in equivalent.txt, each with the reason. They are not tried.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A mutant is a file with one mistake.
type mutant struct {
	file     string
	at       position
	function string // in which it is, "" for none, and its lines
	first    int
	last     int
	from, to int // the bytes that are replaced …
	by       string
	what     string
	key      string // the same only for the same mistake in the same text
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", m.file, m.at.line, m.function, m.what)
}

// name stands for the mutant in equivalent.txt: it has no line, because those move.
func (m mutant) name() string { return fmt.Sprintf("%s: %s: %s", m.file, m.function, m.what) }

// What becomes of a mutant.
const (
	noticed    = "noticed"
	hung       = "hung" // noticed too, because it took too long
	survived   = "survived"
	impossible = "impossible" // to compile
	broken     = "broken"     // go test could not be run
)

func main() {
	n := flag.Int("n", 120, "how many mistakes of each package are tried")
	seed := flag.Uint64("seed", 1, "of the samples")
	only := flag.String("only", "", "the beginning of FILE:LINE: no others")
	keep := flag.String("keep", "", "a file to which results are added, and from which those of an earlier run are taken")
	at := flag.String("at", "../..", "the root of the module")
	last := flag.String("last", "", "tests that are run apart from the others of their package")
	least := flag.Float64("least", 0, "how many percent must be noticed of each package")
	parallel := flag.Int("p", 2, "how many at once")
	flag.Parse()
	packages := flag.Args()
	for i, p := range packages {
		packages[i] = filepath.Clean(p)
	}
	if *keep != "" {
		path, err := filepath.Abs(*keep)
		if err != nil {
			fail(err)
		}
		*keep = path
	}
	if err := os.Chdir(*at); err != nil {
		fail(err)
	}
	results, err := open(*keep)
	if err != nil {
		fail(err)
	}
	var trials []trial
	var few []string
	for _, p := range packages {
		all, err := mutantsOf(p)
		if err != nil {
			fail(err)
		}
		all, stale := withoutEquivalent(all, p)
		if len(stale) > 0 {
			fail(fmt.Errorf("equivalent.txt lists what cannot be done any more:\n%s", strings.Join(stale, "\n")))
		}
		all = slices.DeleteFunc(all, func(m mutant) bool { return !strings.HasPrefix(m.String(), *only) })
		if len(all) == 0 {
			continue
		}
		if trials == nil {
			trials, err = trialsOf(packages, *last)
			if err != nil {
				fail(err)
			}
		}
		chosen := sample(all, *n, *seed)
		fmt.Printf("%s: %d of %d mistakes, seed %d\n", p, len(chosen), len(all), *seed)
		count := tryAll(chosen, inOrder(trials, p), results, *parallel)
		found := count[noticed] + count[hung]
		score := 100 * float64(found) / float64(max(found+count[survived], 1))
		fmt.Printf("%s: %d noticed, %d of them by a test that hung, %d survived: %.1f %%; %d could not be compiled\n",
			p, found, count[hung], count[survived], score, count[impossible])
		if score < *least || count[broken] > 0 {
			few = append(few, fmt.Sprintf("of %s %.1f %% are noticed, want %.1f", p, score, *least))
		}
	}
	if len(few) > 0 {
		fail(errors.New(strings.Join(few, "\n")))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "mutants:", err)
	os.Exit(1)
}

// tryAll tries mutants, and counts what became of them.
func tryAll(chosen []mutant, trials []trial, results *results, parallel int) map[string]int {
	count := map[string]int{}
	var mu sync.Mutex
	work := make(chan mutant)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for m := range work {
				result := results.earlier[m.key]
				if result == "" || result == survived || result == broken {
					result = try(m, trials)
				}
				mu.Lock()
				count[result]++
				results.note(m, result)
				if result == survived || result == broken {
					fmt.Printf("%s  %v\n", result, m)
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range chosen {
		work <- m
	}
	close(work)
	workers.Wait()
	return count
}

// A trial is a run of some tests of a package.
type trial struct {
	dir  string // of the package
	args []string
	last bool // these are the tests that -last names
	deps []string
	took time.Duration

	tests []test   // its tests, the quickest first, where it is known what each runs
	names []string // those that args has, in a part of a trial
}

// trialsOf gives the trials of all packages. Without a mistake they pass.
func trialsOf(packages []string, last string) (all []trial, err error) {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for _, p := range packages {
		out, err := exec.Command("go", "list", "-deps", "-test", "-f", "{{.Dir}}", "./"+p).Output()
		if err != nil {
			return nil, fmt.Errorf("what %s depends on: %w", p, err)
		}
		deps := strings.Fields(string(out))
		binary := filepath.Join(dir, "test")
		if out, err := compile(binary, p); err != nil {
			return nil, fmt.Errorf("the tests of %s cannot be compiled: %w\n%s", p, err, out)
		}
		tests, err := testsOf(p, last)
		if err != nil {
			return nil, err
		}
		add := func(last bool, args ...string) error {
			t := trial{dir: p, args: args, last: last, deps: deps, took: 15 * time.Minute}
			if !last {
				t.tests = tests
			}
			began := time.Now()
			if _, out := t.run(binary); !bytes.HasSuffix(bytes.TrimSpace(out), []byte("PASS")) {
				return fmt.Errorf("the tests of %s fail as it is:\n%s", p, out)
			}
			t.took = time.Since(began)
			all = append(all, t)
			return nil
		}
		if last == "" {
			err = add(false)
		} else if err = add(false, "-test.skip", last); err == nil {
			err = add(true, "-test.run", last)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// inOrder gives the trials for mistakes in a package: its own tests first, then the quickest of what depends on it.
func inOrder(all []trial, p string) []trial {
	path, err := filepath.Abs(p)
	if err != nil {
		fail(err)
	}
	list := slices.DeleteFunc(slices.Clone(all), func(t trial) bool { return !slices.Contains(t.deps, path) })
	slices.SortStableFunc(list, func(a, b trial) int {
		if own := a.dir == p && !a.last; own != (b.dir == p && !b.last) {
			return map[bool]int{true: -1, false: 1}[own]
		}
		return cmp.Compare(a.took, b.took)
	})
	return list
}

// compile makes the binary of a package's tests. It has nothing for a debugger.
func compile(binary, p string, flags ...string) (out []byte, err error) {
	args := slices.Concat([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary}, flags, []string{"./" + p})
	return exec.Command("go", args...).CombinedOutput()
}

// run runs the tests of a trial that a binary holds. A mistake may make them take all the memory there is, so they get
// no more than 4 GB where that can be set.
func (t trial) run(binary string) (result string, out []byte) {
	limit := 3*t.took + 5*time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit+10*time.Second)
	defer cancel()
	args := []string{"-c", `ulimit -d 4194304 2>/dev/null; exec "$0" "$@"`, binary, "-test.failfast"}
	command := exec.CommandContext(ctx, "sh", slices.Concat(args, []string{"-test.timeout", limit.String()}, t.args)...)
	command.Dir, command.WaitDelay = t.dir, time.Second
	switch out, err := command.CombinedOutput(); {
	case err == nil:
		return survived, out
	case ctx.Err() != nil, bytes.Contains(out, []byte("panic: test timed out after")):
		return hung, out
	default:
		return noticed, out
	}
}

// try runs the tests on a mutant.
func try(m mutant, trials []trial) string {
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return broken
	}
	defer os.RemoveAll(dir)
	text, err := os.ReadFile(m.file)
	if err != nil {
		return broken
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	path, err := filepath.Abs(m.file)
	if err != nil {
		return broken
	}
	listed, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return broken
	}
	text = slices.Concat(text[:m.from], []byte(m.by), text[m.to:])
	if os.WriteFile(changed, text, 0o600) != nil || os.WriteFile(overlay, listed, 0o600) != nil {
		return broken
	}
	compiled := map[string]bool{}
	for _, t := range trials {
		binary := filepath.Join(dir, strings.ReplaceAll(t.dir, "/", "-"))
		if !compiled[binary] {
			if _, err := compile(binary, t.dir, "-overlay", overlay); err != nil {
				return impossible
			}
			compiled[binary] = true
		}
		for _, part := range t.against(m) {
			if result, _ := part.run(binary); result != survived {
				return result
			}
		}
	}
	return survived
}

// results are what became of mutants, in this run and in earlier ones.
type results struct {
	earlier map[string]string
	file    io.Writer
}

// open opens the file with the results of earlier runs, if it has a name.
func open(name string) (*results, error) {
	r := &results{earlier: map[string]string{}, file: io.Discard}
	if name == "" {
		return r, nil
	}
	text, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 {
			r.earlier[words[1]] = words[0]
		}
	}
	r.file, err = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return r, err
}

// note keeps a result, unless it is known already.
func (r *results) note(m mutant, result string) {
	if r.earlier[m.key] != result {
		fmt.Fprintf(r.file, "%s %s %v\n", result, m.key, m)
	}
}

//go:embed equivalent.txt
var equivalent string

// withoutEquivalent leaves out the mutants of a package that make no difference. stale are those on the list that there
// are not.
func withoutEquivalent(all []mutant, p string) (rest []mutant, stale []string) {
	listed := map[string]bool{}
	for line := range strings.Lines(equivalent) {
		file, _, _ := strings.Cut(line, ":")
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "\t") || filepath.Dir(file) != p {
			continue
		}
		if name := strings.TrimSpace(line); name != "" {
			listed[name] = false
		}
	}
	for _, m := range all {
		if _, is := listed[m.name()]; is {
			listed[m.name()] = true
		} else {
			rest = append(rest, m)
		}
	}
	for name, found := range listed {
		if !found {
			stale = append(stale, name)
		}
	}
	slices.Sort(stale)
	return rest, stale
}

// sample picks n of all, of each file as many as its share, but one at least. What is picked of a file changes little
// when the file does, or when some turn out to make no difference: each mutant has its place in the order of a seed.
func sample(all []mutant, n int, seed uint64) (chosen []mutant) {
	files := map[string][]mutant{}
	places := map[string][32]byte{} // by key
	times := map[string]int{}       // the same mistake may be made twice in a function
	var names []string
	for _, m := range all {
		if files[m.file] == nil {
			names = append(names, m.file)
		}
		files[m.file] = append(files[m.file], m)
		times[m.name()]++
		places[m.key] = sha256.Sum256(fmt.Appendf(nil, "%d %d %s", seed, times[m.name()], m.name()))
	}
	for _, name := range names {
		list := files[name]
		slices.SortStableFunc(list, func(a, b mutant) int {
			x, y := places[a.key], places[b.key]
			return bytes.Compare(x[:], y[:])
		})
		share := (n*len(list) + len(all)/2) / len(all)
		chosen = append(chosen, list[:min(max(share, 1), len(list))]...)
	}
	return chosen
}

// mutantsOf gives all mutants of the package in a directory.
func mutantsOf(dir string) (all []mutant, err error) {
	p, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	for _, name := range p.GoFiles {
		file := filepath.Join(dir, name)
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, file, text, 0)
		if err != nil {
			return nil, err
		}
		f := &mutator{set: set, text: text, file: file}
		ast.Inspect(tree, f.visit)
		all = append(all, f.found...)
	}
	return all, nil
}

// A mutator finds the mutants of one file.
type mutator struct {
	set      *token.FileSet
	text     []byte
	file     string
	function string // in which it is
	begin    token.Pos
	end      token.Pos
	found    []mutant
}

func (f *mutator) of(n ast.Node) string {
	return string(f.text[f.set.Position(n.Pos()).Offset:f.set.Position(n.End()).Offset])
}

// replace adds the mutant in which a node reads otherwise.
func (f *mutator) replace(n ast.Node, by string) {
	at := f.set.Position(n.Pos())
	line := strings.Join(strings.Fields(f.of(n)), " ")
	what := line + "  →  " + by
	if by == "" {
		what = "left out: " + line
	}
	function := f.function
	if n.Pos() > f.end {
		function = ""
	}
	from, to := at.Offset, f.set.Position(n.End()).Offset
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d %s", f.text, from, to, by))
	first, last := f.set.Position(f.begin).Line, f.set.Position(f.end).Line
	f.found = append(f.found, mutant{f.file, position{at.Line, at.Column}, function, first, last, from, to, by, what,
		fmt.Sprintf("%x", sum[:8])})
}

// otherwise is what a comparison is turned into.
var otherwise = map[token.Token][]string{
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
	token.EQL: {"!="}, token.NEQ: {"=="},
}

func (f *mutator) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		f.function, f.begin, f.end = n.Name.Name, n.Pos(), n.End()
	case *ast.GenDecl:
		return n.Tok == token.CONST || n.Tok == token.VAR
	case *ast.IfStmt:
		f.replace(n.Cond, "!("+f.of(n.Cond)+")")
	case *ast.SwitchStmt:
		if n.Tag == nil {
			for _, clause := range n.Body.List {
				for _, cond := range clause.(*ast.CaseClause).List {
					f.replace(cond, "!("+f.of(cond)+")")
				}
			}
		}
	case *ast.BinaryExpr:
		for _, op := range otherwise[n.Op] {
			f.replace(n, f.of(n.X)+" "+op+" "+f.of(n.Y))
		}
		if n.Op == token.LAND || n.Op == token.LOR {
			f.replace(n, f.of(n.X))
			f.replace(n, f.of(n.Y))
		}
	case *ast.BlockStmt:
		f.statements(n.List)
	case *ast.CaseClause:
		f.statements(n.Body)
	case *ast.CommClause:
		f.statements(n.Body)
	case *ast.BasicLit:
		if i, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, 64); n.Kind == token.INT && err == nil {
			f.replace(n, strconv.FormatInt(i+1, 10))
		}
	case *ast.Ident:
		if opposite := map[string]string{"true": "false", "false": "true"}[n.Name]; opposite != "" {
			f.replace(n, opposite)
		}
	}
	return true
}

// statements leaves out those that can be left out. What is said to people alone is not looked at.
func (f *mutator) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.DeferStmt, *ast.BranchStmt:
		case *ast.ReturnStmt:
			if len(s.Results) > 0 {
				continue
			}
		default:
			continue
		}
		if text := f.of(s); !strings.Contains(text, ".Log.") && !strings.Contains(text, ".log.") {
			f.replace(s, "")
		}
	}
}
