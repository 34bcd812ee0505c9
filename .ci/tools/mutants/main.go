// Mutants says how much of a package its tests hold: it makes one small mistake at a time in the code, runs the tests,
// and lists the mistakes that no test noticed.
//
//	go -C .ci/tools run ./mutants [-n 200] [-seed 1] [-only FILE:LINE] [-again OUTPUT] [-last REGEXP] [-least 95]
//		PACKAGE... [-- FLAGS]
//
// Packages are directories. A mistake in one is first tried on that package's own tests, then on those of the others in
// the order in which they are named, and at the end on the tests that -last names, which take long. FLAGS are those of
// go test. The mistakes are a sample, as many of each file as it has a share of all; another seed makes another sample.
// With -least it fails when fewer percent are noticed. Nothing in the work tree is touched: go test gets each changed
// file as an overlay.
//
// What is changed: a condition is negated, or loses one of its sides; a comparison is made with the equal case or
// without it, or turned round; a statement is left out; a number is one more, a truth its opposite.
//
// Mistakes that make no difference are in equivalent.txt, each with the reason. They are not tried.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"math/rand/v2"
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
	line     int
	function string // in which it is, "" for none
	from, to int    // the bytes that are replaced …
	by       string
	what     string
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", m.file, m.line, m.function, m.what)
}

// name stands for the mutant in equivalent.txt: it has no line, because those move.
func (m mutant) name() string { return fmt.Sprintf("%s: %s: %s", m.file, m.function, m.what) }

// took is how long the tests of each package take.
var took = map[string]time.Duration{}

//go:embed equivalent.txt
var equivalent string

// withoutEquivalent leaves out the mutants that make no difference. stale are those on the list that there are not.
func withoutEquivalent(all []mutant, packages []string) (rest []mutant, stale []string) {
	listed := map[string]bool{}
	for line := range strings.Lines(equivalent) {
		file, _, _ := strings.Cut(line, ":")
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "\t") || !slices.Contains(packages, filepath.Dir(file)) {
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

func main() {
	n := flag.Int("n", 200, "how many mistakes are tried")
	seed := flag.Uint64("seed", 1, "of the sample")
	only := flag.String("only", "", "the beginning of FILE:LINE: no others")
	again := flag.String("again", "", "what an earlier run printed: only those that survived then")
	at := flag.String("at", "../..", "the root of the module")
	last := flag.String("last", "", "tests that are tried when no other notices a mistake")
	least := flag.Float64("least", 0, "how many percent must be noticed")
	parallel := flag.Int("p", 2, "how many at once")
	flag.Parse()
	packages, flags := flag.Args(), []string(nil)
	if i := slices.Index(packages, "--"); i >= 0 {
		packages, flags = packages[:i], packages[i+1:]
	}
	if err := os.Chdir(*at); err != nil {
		fail(err)
	}
	var all []mutant
	for i, p := range packages {
		packages[i] = filepath.Clean(p)
		found, err := mutantsOf(p)
		if err != nil {
			fail(err)
		}
		all = append(all, found...)
	}
	all, stale := withoutEquivalent(all, packages)
	if len(stale) > 0 {
		fail(fmt.Errorf("equivalent.txt lists what cannot be done any more:\n%s", strings.Join(stale, "\n")))
	}
	earlier, err := os.ReadFile(*again)
	if err != nil && *again != "" {
		fail(err)
	}
	all = slices.DeleteFunc(all, func(m mutant) bool {
		is := *again == "" || strings.Contains(string(earlier), fmt.Sprintf("%s  %v\n", survived, m))
		return !is || !strings.HasPrefix(m.String(), *only)
	})
	for _, p := range packages { // without a mistake they pass
		began := time.Now()
		args := slices.Concat([]string{"test", "-vet=off", "-count=1"}, flags, []string{"./" + p})
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			fail(fmt.Errorf("the tests of %s fail as it is: %w\n%s", p, err, out))
		}
		took[p] = time.Since(began)
	}
	chosen := sample(all, *n, rand.New(rand.NewPCG(*seed, 0)))
	fmt.Printf("%d of %d mistakes, seed %d\n", len(chosen), len(all), *seed)

	work := make(chan mutant)
	var mu sync.Mutex
	count := map[string]int{}
	var workers sync.WaitGroup
	for range *parallel {
		workers.Go(func() {
			for m := range work {
				result := try(m, packages, *last, flags)
				mu.Lock()
				count[result]++
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
	tried := count[noticed] + count[survived]
	score := 100 * float64(count[noticed]) / float64(max(tried, 1))
	fmt.Printf("%d noticed, %d survived: %.1f %%; %d could not be compiled\n", count[noticed], count[survived], score,
		count[impossible])
	if score < *least || count[broken] > 0 {
		fail(fmt.Errorf("%.1f %% are noticed, want %.1f", score, *least))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "mutants:", err)
	os.Exit(1)
}

// What becomes of a mutant.
const (
	noticed    = "noticed"
	survived   = "survived"
	impossible = "impossible" // to compile
	broken     = "broken"     // go test could not be run
)

// try runs the tests on a mutant.
func try(m mutant, packages []string, last string, flags []string) string {
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
	own := filepath.Dir(m.file)
	others := slices.DeleteFunc(slices.Clone(packages), func(p string) bool { return p == own })
	order := append([]string{own}, others...)
	if result := test(overlay, order, append([]string{"-skip", last}, flags...)); result != survived || last == "" {
		return result
	}
	return test(overlay, order, append([]string{"-run", last}, flags...))
}

// test says what the tests of the packages make of an overlay. One that makes them take ten times as long as they do is
// noticed.
func test(overlay string, packages, flags []string) string {
	for _, p := range packages {
		args := []string{"test", "-overlay", overlay, "-vet=off", "-count=1", "-failfast",
			"-timeout", (10*took[p] + 10*time.Second).String()}
		out, err := exec.Command("go", slices.Concat(args, flags, []string{"./" + p})...).CombinedOutput()
		switch {
		case err == nil:
		case bytes.Contains(out, []byte("[build failed]")), bytes.Contains(out, []byte("[setup failed]")):
			return impossible
		default:
			return noticed
		}
	}
	return survived
}

// sample picks n of all, of each file as many as its share, but one at least.
func sample(all []mutant, n int, r *rand.Rand) (chosen []mutant) {
	files := map[string][]mutant{}
	var names []string
	for _, m := range all {
		if files[m.file] == nil {
			names = append(names, m.file)
		}
		files[m.file] = append(files[m.file], m)
	}
	for _, name := range names {
		list := files[name]
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
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
	f.found = append(f.found, mutant{f.file, at.Line, function, at.Offset, f.set.Position(n.End()).Offset, by, what})
}

// otherwise is what a comparison is turned into.
var otherwise = map[token.Token][]string{
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
	token.EQL: {"!="}, token.NEQ: {"=="},
}

func (f *mutator) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		f.function, f.end = n.Name.Name, n.End()
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
