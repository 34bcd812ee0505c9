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
		at := findNode(root, key.path).GetToken().Position
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
			return sc, keyErrorf(nil, "a scenario has no aliases")
		}
	}
	var value any
	if err := yaml.NodeToValue(root, &value); err != nil {
		return sc, keyErrorf(nil, "%v", err)
	}
	data, err := json.Marshal(value)
	if err != nil {
		return sc, keyErrorf(nil, "%v", err)
	}
	if err := decode(data, &sc); err != nil {
		return sc, err
	}
	for i := range sc.Steps {
		step := []string{"steps", strconv.Itoa(i)}
		if at := append(step, "at"); findNode(root, at) == findNode(root, step) {
			return sc, keyErrorf(at, "missing, expected a duration such as 30s or 15m")
		}
	}
	return sc, sc.check()
}

// findNode returns the node at a path, or the last node on the way there.
func findNode(n ast.Node, path []string) ast.Node {
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

// check returns a keyError for the first VM name or step that is not valid.
func (sc Scenario) check() error {
	if len(sc.Steps) == 0 {
		return keyErrorf([]string{"steps"}, "expected at least one")
	}
	if err := sc.checkVMs(); err != nil {
		return err
	}
	open := make(map[string]bool) // by label
	var previous time.Duration
	for i, step := range sc.Steps {
		path := []string{"steps", strconv.Itoa(i)}
		if err := step.checkTime(path, previous); err != nil {
			return err
		}
		previous = step.At
		if n := step.countActions(); n != 1 {
			return keyErrorf(path, "expected one of schedule, update, start, end, fault, reset, got %d", n)
		}
		if err := step.checkEvent(path, open); err != nil {
			return err
		}
		if err := step.checkFault(path, sc.VMs); err != nil {
			return err
		}
		step.updateOpen(open)
	}
	return nil
}

// checkVMs checks that each name of a VM can stand in a path and occurs once.
func (sc Scenario) checkVMs() error {
	for i, name := range sc.VMs {
		path := []string{"vms", strconv.Itoa(i)}
		if name == "" || strings.ContainsAny(name, "/?#") {
			return keyErrorf(path, "expected a name that can stand in a path, got %q", name)
		}
		if slices.ContainsFunc(sc.VMs[:i], func(other string) bool { return strings.EqualFold(other, name) }) {
			return keyErrorf(path, "%s is there already; names ignore case", name)
		}
	}
	return nil
}

// checkTime checks that the step at the path is not before the previous one.
func (step Step) checkTime(path []string, previous time.Duration) error {
	if step.At < previous {
		return keyErrorf(append(path, "at"), "%v is before the step above it, at %v", step.At, previous)
	}
	return nil
}

// checkEvent checks that the step at the path schedules a new event, or names one that is open.
func (step Step) checkEvent(path []string, open map[string]bool) error {
	const notOpen = "event %q is not scheduled yet"
	switch {
	case step.Schedule != nil && step.Schedule.Event == "":
		return keyErrorf(append(path, "schedule", "event"), "missing, expected a label")
	case step.Schedule != nil && open[step.Schedule.Event]:
		return keyErrorf(append(path, "schedule", "event"), "event %s is scheduled already", step.Schedule.Event)
	case step.Update != nil && step.Update.ID != "":
		return keyErrorf(append(path, "update", "id"), "an event keeps its id")
	case step.Update != nil && !open[step.Update.Event]:
		return keyErrorf(append(path, "update", "event"), notOpen, step.Update.Event)
	case step.Start != "" && !open[step.Start]:
		return keyErrorf(append(path, "start"), notOpen, step.Start)
	case step.End != "" && !open[step.End]:
		return keyErrorf(append(path, "end"), notOpen, step.End)
	}
	return nil
}

// checkFault checks the fault of the step at the path, if it has one. It may be of one VM, which is among vms.
func (step Step) checkFault(path, vms []string) error {
	if step.Fault == nil {
		return nil
	}
	same := func(vm string) bool { return strings.EqualFold(vm, step.Fault.VM) }
	if step.Fault.VM != "" && len(vms) > 0 && !slices.ContainsFunc(vms, same) {
		return keyErrorf(append(path, "fault", "vm"), "expected one of %s, got %q", strings.Join(vms, ", "), step.Fault.VM)
	}
	var key *keyError
	if errors.As(step.Fault.check(), &key) {
		return keyErrorf(append(append(path, "fault"), key.path...), "%s", key.text)
	}
	return nil
}

// updateOpen records in open, by label, which events are in the document after the step.
func (step Step) updateOpen(open map[string]bool) {
	switch {
	case step.Schedule != nil:
		open[step.Schedule.Event] = true
	case step.End != "":
		open[step.End] = false
	case step.Reset:
		clear(open)
	}
}

// countActions returns how many actions the step has; a valid one has one.
func (step Step) countActions() (n int) {
	for _, set := range []bool{
		step.Schedule != nil, step.Update != nil, step.Start != "", step.End != "", step.Fault != nil, step.Reset,
	} {
		if set {
			n++
		}
	}
	return n
}
