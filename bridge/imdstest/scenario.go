package imdstest

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// A Scenario is a script for a Server, written as YAML.
type Scenario struct {
	Name string `json:"name"`
	// VMs are the machines in it. If the Server has names of its own, its VMs stand for these, in order.
	VMs []string `json:"vms"`
	// ApproveDelay replaces that of the Server, unless it is 0.
	ApproveDelay time.Duration `json:"approve_delay"`
	Steps        []Step        `json:"steps"`
}

// A Step is one thing that happens. Its time counts from the beginning of the scenario.
type Step struct {
	At       time.Duration `json:"at"`
	Schedule *Change       `json:"schedule"`
	Update   *Change       `json:"update"`
	Start    string        `json:"start"` // the label of an event
	End      string        `json:"end"`   // the same
	Fault    *Fault        `json:"fault"`
	Reset    bool          `json:"reset"`
}

// A Change is a new event, or changes to one. Missing fields are filled in, or stay as they are.
type Change struct {
	Event       string         `json:"event"` // its label in the scenario
	ID          string         `json:"id"`    // its EventId, only in schedule; else the UUIDv5 of scenario and label
	Type        string         `json:"type"`
	Status      string         `json:"status"`
	Resources   []string       `json:"resources"`
	Notice      *time.Duration `json:"notice"` // from now to NotBefore
	Source      string         `json:"source"`
	Description *string        `json:"description"`
	Duration    *int           `json:"duration"` // seconds
}

//go:embed scenarios/*.yaml
var builtins embed.FS

// Names returns the names of the scenarios that come with the package.
func Names() []string {
	files, err := builtins.ReadDir("scenarios")
	if err != nil {
		panic(err) // it is embedded
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	return names
}

// Builtin returns the scenario of that name that comes with the package.
func Builtin(name string) (Scenario, error) {
	data, err := builtins.ReadFile("scenarios/" + name + ".yaml")
	if err != nil {
		return Scenario{}, fmt.Errorf("no scenario %q, there are %s", name, strings.Join(Names(), ", "))
	}
	return ParseScenario(name+".yaml", data)
}

// ParseScenario reads a scenario file. It is strict: an error has the file's name, line and column, and what was
// expected there. A scenario without a name gets that of its file.
func ParseScenario(name string, data []byte) (Scenario, error) {
	fail := func(line, column int, text string) (Scenario, error) {
		return Scenario{}, fmt.Errorf("%s:%d:%d: %s", name, line, column, text)
	}
	file, err := parser.ParseBytes(data, 0)
	if broken := yaml.Error(nil); errors.As(err, &broken) && broken.GetToken() != nil {
		at := broken.GetToken().Position
		return fail(at.Line, at.Column, broken.GetMessage())
	} else if err != nil {
		return fail(1, 1, err.Error())
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return fail(1, 1, "expected one YAML document with name and steps")
	}
	root := file.Docs[0].Body

	sc, err := decodeScenario(root)
	if err != nil {
		var key *keyError
		errors.As(err, &key)
		at := find(root, key.path).GetToken().Position
		return fail(at.Line, at.Column, err.Error())
	}
	if sc.Name == "" {
		sc.Name = strings.TrimSuffix(path.Base(name), path.Ext(name))
	}
	return sc, nil
}

// decodeScenario decodes a scenario. Its errors are keyErrors.
func decodeScenario(root ast.Node) (sc Scenario, err error) {
	for _, kind := range []ast.NodeType{ast.AliasType, ast.MergeKeyType} {
		if len(ast.Filter(kind, root)) > 0 {
			return sc, wrong(nil, "a scenario has no aliases")
		}
	}
	var value any
	if err := yaml.NodeToValue(root, &value); err != nil {
		return sc, wrong(nil, "%v", err)
	}
	data, err := json.Marshal(value)
	if err != nil {
		return sc, wrong(nil, "%v", err)
	}
	if err := decode(data, &sc); err != nil {
		return sc, err
	}
	for i := range sc.Steps {
		step := []string{"steps", strconv.Itoa(i)}
		if at := append(step, "at"); find(root, at) == find(root, step) {
			return sc, wrong(at, "missing, expected a duration such as 30s or 15m")
		}
	}
	return sc, sc.check()
}

// find returns the node at a path, or the last node on the way there.
func find(n ast.Node, path []string) ast.Node {
	for _, key := range path {
		switch at := n.(type) {
		case *ast.MappingNode:
			i := slices.IndexFunc(at.Values, func(v *ast.MappingValueNode) bool { return v.Key.GetToken().Value == key })
			if i < 0 {
				return n
			}
			n = at.Values[i].Value
		case *ast.SequenceNode:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(at.Values) {
				return n
			}
			n = at.Values[i]
		default:
			return n
		}
	}
	return n
}

// check returns a keyError for the first step that makes no sense in its place.
func (sc Scenario) check() error {
	if len(sc.Steps) == 0 {
		return wrong([]string{"steps"}, "expected at least one")
	}
	for i, name := range sc.VMs {
		at := []string{"vms", strconv.Itoa(i)}
		if name == "" || strings.ContainsAny(name, "/?#") {
			return wrong(at, "expected a name that can stand in a path, got %q", name)
		}
		if slices.ContainsFunc(sc.VMs[:i], func(other string) bool { return strings.EqualFold(other, name) }) {
			return wrong(at, "%s is there already; names ignore case", name)
		}
	}
	open := make(map[string]bool) // by label
	var before time.Duration
	for i, step := range sc.Steps {
		at := func(keys ...string) []string { return append([]string{"steps", strconv.Itoa(i)}, keys...) }
		if step.At < before {
			return wrong(at("at"), "%v is before the step above it, at %v", step.At, before)
		}
		before = step.At
		if n := step.actions(); n != 1 {
			return wrong(at(), "expected one of schedule, update, start, end, fault, reset, got %d", n)
		}
		switch {
		case step.Schedule != nil:
			label := step.Schedule.Event
			if label == "" {
				return wrong(at("schedule", "event"), "missing, expected a label")
			}
			if open[label] {
				return wrong(at("schedule", "event"), "event %s is scheduled already", label)
			}
			open[label] = true
		case step.Update != nil && step.Update.ID != "":
			return wrong(at("update", "id"), "an event keeps its id")
		case step.Update != nil && !open[step.Update.Event]:
			return wrong(at("update", "event"), "event %q is not scheduled before", step.Update.Event)
		case step.Start != "" && !open[step.Start]:
			return wrong(at("start"), "event %q is not scheduled before", step.Start)
		case step.End != "" && !open[step.End]:
			return wrong(at("end"), "event %q is not scheduled before", step.End)
		case step.End != "":
			open[step.End] = false
		case step.Fault != nil:
			var key *keyError
			if errors.As(step.Fault.check(), &key) {
				return wrong(at(append([]string{"fault"}, key.path...)...), "%s", key.text)
			}
		case step.Reset:
			clear(open)
		}
	}
	return nil
}

// actions counts what the step does.
func (step Step) actions() (n int) {
	for _, given := range []bool{
		step.Schedule != nil, step.Update != nil, step.Start != "", step.End != "", step.Fault != nil, step.Reset,
	} {
		if given {
			n++
		}
	}
	return n
}
