package main_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// An arrow says which packages of the module one of them may import; its tests may import those of inTests too.
type arrow struct {
	may, inTests []string
}

// arrows has a row for each package of the module. One without a row is refused: a new one is argued for here.
var arrows = map[string]arrow{
	"bridge": {
		may: []string{"bridge/clock", "bridge/cloudevent", "bridge/delivery", "bridge/imds", "bridge/internal/trouble",
			"bridge/mutes", "bridge/outbox"},
		inTests: []string{"bridge/imdstest", "bridge/systemtest"},
	},
	"bridge/cloudevent":       {may: []string{"bridge/imds"}, inTests: []string{"bridge/delivery", "bridge/systemtest"}},
	"bridge/cloudevent/chain": {},
	"bridge/clock":            {},
	"bridge/mutes":            {may: []string{"bridge/cloudevent", "bridge/delivery", "bridge/imds"}},
	"bridge/internal/trouble": {may: []string{"bridge/clock", "bridge/delivery"}},
	"bridge/delivery":         {},
	"bridge/outbox":           {may: []string{"bridge/delivery"}, inTests: []string{"bridge/systemtest"}},
	"bridge/discovery":        {may: []string{"bridge/imds"}, inTests: []string{"bridge/imdstest"}},
	"bridge/imds":             {inTests: []string{"bridge/imdstest", "bridge/systemtest"}},
	"bridge/systemtest":       {},
	measure:                   {inTests: []string{"bridge/delivery", "bridge/imdstest", "bridge/outbox"}},
	measure + "/bare":         {}, // what it compares forewarn with
	"bridge/imdstest": {inTests: []string{"bridge", "bridge/cloudevent", "bridge/delivery", "bridge/imds",
		"bridge/outbox", "bridge/systemtest"}},
	"bridge/internal/streams": {may: []string{"bridge/cloudevent", "bridge/delivery", "bridge/imds"}},
	"bridge/fleet": {may: []string{"bridge", "bridge/cloudevent", "bridge/imds", "bridge/internal/streams"},
		inTests: []string{"bridge/systemtest"}},
	"bridge/relay": {may: []string{"bridge", "bridge/clock", "bridge/cloudevent", "bridge/delivery", "bridge/fleet",
		"bridge/imds", "bridge/internal/streams", "bridge/internal/trouble", "bridge/mutes", "templates"},
		inTests: []string{"bridge/imdstest", "bridge/systemtest", "sinks"}}, // its simulation has bridges that publish
	"sinks": {
		may:     []string{"bridge/cloudevent", "bridge/cloudevent/chain", "bridge/delivery", "bridge/imds", "templates"},
		inTests: []string{"bridge", "bridge/imdstest", "bridge/outbox", "bridge/systemtest"},
	},
	"templates": {inTests: []string{"bridge/cloudevent", "bridge/imds", "bridge/systemtest"}},
	"cmd/forewarn": {may: []string{
		"bridge", "bridge/clock", "bridge/cloudevent", "bridge/cloudevent/chain", "bridge/delivery", "bridge/discovery",
		"bridge/imds", "bridge/imdstest", "bridge/mutes", "bridge/outbox", "bridge/relay", "sinks", "templates",
		"cmd/forewarn/internal/control", "cmd/forewarn/internal/fleet", "cmd/forewarn/internal/page",
		"cmd/forewarn/internal/service", "cmd/forewarn/internal/settings", "cmd/forewarn/internal/wording", "examples",
	}, inTests: []string{"bridge/systemtest", "cmd/forewarn/internal/statustest"}},
	"cmd/forewarn/internal/control": {may: []string{
		"bridge", "bridge/cloudevent", "bridge/outbox", "bridge/relay", "cmd/forewarn/internal/service",
		"cmd/forewarn/internal/settings", "cmd/forewarn/internal/wording",
	}, inTests: []string{"bridge/delivery", "bridge/imds"}},
	"cmd/forewarn/internal/fleet": {may: []string{"bridge", "bridge/imds"}},
	"cmd/forewarn/internal/page": {
		may: []string{
			"bridge", "bridge/clock", "bridge/cloudevent", "bridge/delivery", "bridge/imds", "bridge/outbox",
			"bridge/relay", "sinks", "templates", "cmd/forewarn/internal/fleet", "cmd/forewarn/internal/wording",
		},
		inTests: []string{"bridge/imdstest", "cmd/forewarn/internal/statustest"},
	},
	"cmd/forewarn/internal/service":    {may: []string{"bridge", "cmd/forewarn/internal/wording"}},
	"cmd/forewarn/internal/statustest": {may: []string{"bridge", "bridge/imds"}},
	"cmd/forewarn/internal/settings": {may: []string{
		"bridge", "bridge/cloudevent", "bridge/delivery", "bridge/imds", "sinks", "templates",
		"cmd/forewarn/internal/wording",
	}},
	"cmd/forewarn/internal/wording": {may: []string{
		"bridge", "bridge/clock", "bridge/cloudevent", "bridge/delivery", "bridge/imds", "templates",
	}},
	"examples": {},
}

// Packages import only what the layout allows: delivery and templates import none of our packages, outbox imports
// delivery, bridge imports no sink, and only cmd imports all.
func TestPackagesImportOnlyWhatTheLayoutAllows(t *testing.T) {
	for _, f := range sources(t) {
		if f.in("examples") {
			continue // what operators copy stands on its own; see below
		}
		from, ok := arrows[f.pkg]
		if !ok {
			t.Errorf("%s: package %s is not in the layout; give it a row in layout_test.go", f.name, f.pkg)
			continue
		}
		for _, spec := range f.syntax.Imports {
			own, ok := ownPackage(spec)
			if !ok || slices.Contains(from.may, own) {
				continue
			}
			if f.test && (own == f.pkg || slices.Contains(from.inTests, own)) {
				continue
			}
			t.Errorf("%s: %s imports %s, the layout allows it %s",
				f.at(spec), f.pkg, own, list(from.may, "nothing of ours"))
		}
	}
}

// The code in examples builds without forewarn's packages.
func TestExamplesDoNotImportForewarn(t *testing.T) {
	for _, f := range sources(t) {
		if !f.in("examples") || f.test {
			continue
		}
		for _, spec := range f.syntax.Imports {
			if own, ok := ownPackage(spec); ok {
				t.Errorf("%s: an example imports %s; it must build where it is copied to", f.at(spec), own)
			}
		}
	}
}

// Only the NATS sink, the relay with its fleet and what reads streams for both, and tests that start a server import NATS.
func TestOnlySinksAndRelayImportNATS(t *testing.T) {
	for _, f := range sources(t) {
		knows := f.in("sinks") || f.in("bridge/relay") || f.in("bridge/fleet") || f.in("bridge/internal/streams")
		if knows || f.in("examples") || f.test && f.in("cmd") || f.in(measure) {
			continue
		}
		for _, spec := range f.syntax.Imports {
			if strings.HasPrefix(importPath(spec), "github.com/nats-io/") {
				t.Errorf("%s: %s imports %s; only sinks, bridge/relay and bridge/fleet know NATS", f.at(spec), f.pkg, importPath(spec))
			}
		}
	}
}

// Only the command ends the process, reads the environment or serves HTTP; the emulated metadata service may serve too.
func TestOnlyCommandExitsReadsEnvironmentAndServes(t *testing.T) {
	exits := []string{"os.Exit", "log.Fatal", "log.Fatalf", "log.Fatalln"}
	environment := []string{"os.Getenv", "os.LookupEnv", "os.Environ", "os.ExpandEnv", "syscall.Getenv", "syscall.Environ"}
	// Serve is a method of http.Server: whoever does not name the type cannot call it.
	serves := []string{"net/http.ListenAndServe", "net/http.ListenAndServeTLS", "net/http.Serve", "net/http.ServeTLS",
		"net/http.Server", "net/http/httptest.NewServer", "net/http/httptest.NewTLSServer",
		"net/http/httptest.NewUnstartedServer"}
	for _, f := range sources(t) {
		if f.test || f.in("cmd") || f.in("examples") {
			continue
		}
		refused := slices.Clone(exits)
		if !f.in("bridge/systemtest") { // tests ask it
			refused = append(refused, environment...)
		}
		if !f.in("bridge/imdstest") {
			refused = append(refused, serves...)
		}
		f.eachUse(func(n ast.Node, name string) {
			if slices.Contains(refused, name) {
				t.Errorf("%s: %s uses %s; only cmd exits, reads the environment or serves HTTP", f.at(n), f.pkg, name)
			}
		})
	}
}

// Nobody uses the default HTTP client: it follows redirects and the environment's proxy, never times out, and can be
// changed by anybody.
func TestNobodyUsesTheDefaultHTTPClient(t *testing.T) {
	refused := []string{"net/http.Get", "net/http.Head", "net/http.Post", "net/http.PostForm",
		"net/http.DefaultClient", "net/http.DefaultTransport"}
	for _, f := range sources(t) {
		if f.test || f.in("examples") {
			continue
		}
		f.eachUse(func(n ast.Node, name string) {
			if slices.Contains(refused, name) {
				t.Errorf("%s: %s uses %s; make a client of its own", f.at(n), f.pkg, name)
			}
		})
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if ok && f.named(literal.Type) == "net/http.Client" && !setsField(literal, "Transport") {
				t.Errorf("%s: http.Client without a Transport uses the default one", f.at(n))
			}
			return true
		})
	}
}

// No package has a func init, so importing one has no effect.
func TestNoPackageHasInit(t *testing.T) {
	for _, f := range sources(t) {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: func init in %s; build the value where it is used", f.at(fn), f.pkg)
			}
		}
	}
}

// The top level of the repository is fixed.
func TestTopLevelHoldsTheAllowedNames(t *testing.T) {
	required := []string{".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "bridge", "cmd",
		"go.mod", "go.sum", "sinks", "templates"}
	optional := []string{".git", "SECURITY.md", "examples"}

	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
		if !slices.Contains(required, e.Name()) && !slices.Contains(optional, e.Name()) && !ignored(t, e.Name()) {
			t.Errorf("the top level holds %s, want only %s", e.Name(), list(slices.Concat(required, optional[1:]), ""))
		}
	}
	for _, want := range required {
		if !slices.Contains(got, want) {
			t.Errorf("the top level lacks %s", want)
		}
	}
}

// root is the top of the repository, seen from this package.
const root = "../.."

// module is the path that our own imports begin with: that of go.mod.
var module = sync.OnceValue(func() string {
	text, _ := os.ReadFile(filepath.Join(root, "go.mod")) // without it nothing here was built
	first, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimPrefix(first, "module ")
})

// measure is a program for developers: it starts forewarn, is all that forewarn talks to, and measures it. It may do
// what tests may.
const measure = "bridge/internal/measure"

// A source is one Go file of the repository.
type source struct {
	name   string // from the top of the repository, with slashes
	pkg    string // its folder, named likewise
	test   bool
	set    *token.FileSet
	syntax *ast.File
	locals map[string]string // the name a file knows an import by → its path
}

// sources returns every Go file of the repository.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// parsed parses every Go file of the repository for every platform, except in folders that the go command skips.
var parsed = sync.OnceValues(func() (all []source, err error) {
	set := token.NewFileSet()
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			skipped := d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_")
			if name != "." && skipped {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		syntax, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			return err
		}
		f := source{
			name:   name,
			pkg:    path.Dir(name),
			test:   strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, measure+"/"),
			set:    set,
			syntax: syntax,
			locals: map[string]string{},
		}
		for _, spec := range syntax.Imports {
			local := path.Base(importPath(spec))
			if spec.Name != nil {
				local = spec.Name.Name
			}
			if local == "." {
				return fmt.Errorf("%s: a dot import hides what is used from where", f.at(spec))
			}
			f.locals[local] = importPath(spec)
		}
		all = append(all, f)
		return nil
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no Go file under %s", root)
	}
	return all, err
})

// in tells whether the file lies in folder or below it.
func (s source) in(folder string) bool {
	return s.pkg == folder || strings.HasPrefix(s.pkg, folder+"/")
}

// at says where n is, as file:line.
func (s source) at(n ast.Node) string {
	return s.name + ":" + strconv.Itoa(s.set.Position(n.Pos()).Line)
}

// eachUse calls f with everything the file uses from another package, named by import path: "net/http.Get".
func (s source) eachUse(f func(n ast.Node, name string)) {
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok {
			if name := s.named(e); name != "" {
				f(n, name)
			}
		}
		return true
	})
}

// named is what e names in another package, or "" when it is anything else, such as a field of a variable.
func (s source) named(e ast.Expr) string {
	selector, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	// The parser resolves what a file declares itself; the name of an import stays unresolved.
	x, ok := selector.X.(*ast.Ident)
	if !ok || x.Obj != nil || s.locals[x.Name] == "" {
		return ""
	}
	return s.locals[x.Name] + "." + selector.Sel.Name
}

func importPath(spec *ast.ImportSpec) string {
	p, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
	return p
}

// ownPackage is the package of this module that spec imports, named from the top of the repository.
func ownPackage(spec *ast.ImportSpec) (string, bool) {
	return strings.CutPrefix(importPath(spec), module()+"/")
}

func setsField(literal *ast.CompositeLit, field string) bool {
	return slices.ContainsFunc(literal.Elts, func(e ast.Expr) bool {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return false
		}
		key, ok := pair.Key.(*ast.Ident)
		return ok && key.Name == field
	})
}

// ignored tells whether .gitignore names a file at the top level: what was built here is not part of the layout.
func ignored(t *testing.T, name string) bool {
	t.Helper()
	patterns, err := os.ReadFile(filepath.Join(root, ".gitignore"))
	if err != nil {
		t.Fatal(err)
	}
	for pattern := range strings.Lines(string(patterns)) {
		if ok, err := path.Match(strings.Trim(pattern, "/\n"), name); ok && err == nil {
			return true
		}
	}
	return false
}

func list(names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	return strings.Join(names, ", ")
}

// The two ways in which times are written for people: for the command and the page, and in messages. Every other layout
// is one that programs read. check looks for a time in a message, and the lines of the demo are those of a log.
var writeTimes = []string{
	"bridge/clock/clock.go", "templates/funcs.go", "cmd/forewarn/check_notes.go",
}

// One function writes a time for people, in their zone: nothing else formats a time of day, or fixes the zone of one.
func TestTimesForPeopleAreWrittenInOnePlace(t *testing.T) {
	clocks := []string{
		"ANSIC", "UnixDate", "RubyDate", "RFC822", "RFC822Z", "RFC850", "RFC1123", "RFC1123Z", "Kitchen", "Stamp",
		"StampMilli", "StampMicro", "StampNano", "DateTime", "TimeOnly",
	}
	forPeople := func(layout ast.Expr) bool {
		switch layout := layout.(type) {
		case *ast.BasicLit:
			text := strings.Trim(layout.Value, "`\"")
			return strings.Contains(text, ":04") && !strings.Contains(text, "T15:04") && !strings.HasSuffix(text, " GMT")
		case *ast.SelectorExpr:
			return isName(layout.X, "time") && slices.Contains(clocks, layout.Sel.Name)
		}
		return false
	}
	clock := module() + "/bridge/clock"
	found := 0
	for _, f := range sources(t) {
		if f.test || f.in("examples") || f.in(measure) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			name := f.named(call.Fun)
			last, isSelector := call.Args[len(call.Args)-1].(*ast.SelectorExpr)
			switch {
			case calledName(call) == "Format" && slices.ContainsFunc(call.Args, forPeople):
				if found++; !slices.Contains(writeTimes, f.name) {
					t.Errorf("%s: a time is formatted here; expected clock.Time or clock.Due", f.at(call))
				}
			case (name == clock+".Time" || name == clock+".Due") && isSelector && isName(last.X, "time"):
				t.Errorf("%s: the zone is always %s; expected that of the settings", f.at(call), last.Sel.Name)
			}
			return true
		})
	}
	if found < len(writeTimes) {
		t.Errorf("%d times are formatted, so this test sees too little", found)
	}
}

// isName reports whether an expression is this identifier.
func isName(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// calledName returns the name of the function or method that is called, without what it belongs to.
func calledName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}
