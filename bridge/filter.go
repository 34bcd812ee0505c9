package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/vm"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// A Filter decides which CloudEvents a route gets. It is evaluated when a change is committed, and again for a route that
// waited for its lead, is new or comes back.
//
// All but Changes decides once per Azure event: from the first change it accepts, the route gets all later ones. Changes,
// and an Except that has Changes, decide about each change.
type Filter struct {
	Only   Only
	Except Except
	When   *When
}

// Only is a set of conditions that must all hold. Empty conditions hold; VMs is self then. Values ignore the case of ASCII
// letters. What Azure did not send, and a value that is not known, hold.
type Only struct {
	VMs     string   `yaml:"vms" oneof:"vms" doc:"self: events that name this VM; leader: events that name it first; all: all events"`
	Types   []string `yaml:"types" oneof:"types" doc:"Azure's event types"`
	Sources []string `yaml:"sources" oneof:"sources" doc:"who asked for it: Platform (Azure) or User"`
	Changes []string `yaml:"changes" oneof:"changes" doc:"which changes; first is the first change of each event"`
	Names   []string `yaml:"names" form:"pattern" doc:"patterns of the VMs' names, such as vm-db-*; one VM of the event is enough"`
	Groups  []string `yaml:"groups" form:"pattern" doc:"patterns of resource groups, such as rg-prod-*"`
	// Severity is the lowest that holds.
	Severity string `yaml:"severity" oneof:"severities" doc:"at least this severity: INFO, WARN or ERROR"`
}

// Except is a set of conditions. What meets all that are given is left out. What Azure did not send meets none.
type Except struct {
	VMs     string   `yaml:"vms" oneof:"own vms" doc:"self: events that name this VM; leader: events that name it first"`
	Types   []string `yaml:"types" oneof:"types" doc:"Azure's event types"`
	Sources []string `yaml:"sources" oneof:"sources" doc:"who asked for it: Platform (Azure) or User"`
	Changes []string `yaml:"changes" oneof:"changes" doc:"which changes; first is the first change of each event"`
}

// The valid values of these conditions.
var (
	VMsValues     = []string{"self", "leader", "all"}
	OwnVMsValues  = []string{"self", "leader"} // of Except and of a Match
	TypesValues   = imds.Types
	SourcesValues = imds.Sources
	// SeverityValues are from low to high.
	SeverityValues = []string{"INFO", "WARN", "ERROR"}
	ChangesValues  = []string{"scheduled", "updated", "started", "vanished", "first", "approved", "reminder"}
)

// A Level selects the CloudEvents about the bridge that a route gets.
type Level string

// The levels. Trouble means that a destination, the endpoint or a VM can't be reached, or the outbox be written, or can
// again, or that a delivery became a dead letter.
const (
	LevelNone    Level = "none"
	LevelTrouble Level = "trouble"
	LevelAll     Level = "all"
)

// Hears reports whether a route on this level gets CloudEvents about the bridge of type typ.
func (l Level) Hears(typ string) bool {
	switch typ {
	case cloudevent.SinkBlocked, cloudevent.SinkRecovered, cloudevent.IMDSUnavailable, cloudevent.IMDSRecovered,
		cloudevent.OutboxUnwritable, cloudevent.OutboxWritable,
		cloudevent.DeliveryDeadLettered, cloudevent.ObserverSilent, cloudevent.ObserverBack:
		return l != LevelNone && l != ""
	}
	return l == LevelAll
}

// A When is a compiled condition over cloudevent.Fields.
type When struct {
	program *vm.Program
	fields  []string // Azure's that it looks at, sorted
}

// ParseWhen compiles the expression src (expr-lang.org) into a condition over the names of cloudevent.Fields, and INFO,
// WARN and ERROR, which are numbers of severities.
func ParseWhen(src string) (*When, error) {
	p, err := expr.Compile(src, expr.Env(whenEnv()), expr.AsBool(), expr.Patch(severityNames{}))
	if err != nil {
		return nil, err
	}
	root, used := p.Node(), usedFields{}
	ast.Walk(&root, used)
	return &When{p, slices.Sorted(maps.Keys(used))}, nil
}

// The fields of Azure's that the severity follows from, and that are somewhere in data.
var (
	severityFields = []string{"EventType", "EventSource", "DurationInSeconds"}
	dataFields     = []string{
		"EventType", "ResourceType", "Resources", "NotBefore", "Description", "EventSource", "DurationInSeconds",
	}
)

// azureFields are the fields of Azure's that the names of an expression follow from. EventId and EventStatus aren't among
// them: without these no rule approves anything.
var azureFields = map[string][]string{
	"azeventtype": {"EventType"}, "azeventsource": {"EventSource"},
	"azduration": {"DurationInSeconds"}, "duration": {"DurationInSeconds"},
	"aznotbefore": {"NotBefore"}, "notice": {"NotBefore"},
	"azresources": {"Resources"}, "resources": {"Resources"}, "azself": {"Resources"},
	"severity": severityFields, "severitynumber": severityFields, "severitytext": severityFields,
	"data": dataFields, "$env": dataFields, // $env is all names
}

// usedFields is the set of Azure's fields that an expression looks at.
type usedFields map[string]bool

func (used usedFields) Visit(node *ast.Node) {
	name, is := (*node).(*ast.IdentifierNode)
	if !is {
		return
	}
	for _, field := range azureFields[name.Value] {
		used[field] = true
	}
}

// unsaid returns Azure's fields that the condition looks at and that the event lacks. For them its fields have values that
// stand for unknown ones.
func (w *When) unsaid(e imds.Event) []string {
	if w == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(w.fields), func(field string) bool { return !e.Lacks(field) })
}

// text returns the expression; "" without one.
func (w *When) text() string {
	if w == nil {
		return ""
	}
	return w.program.Source().String()
}

// severityNames replaces the names of severities in an expression by their numbers.
type severityNames struct{}

func (severityNames) Visit(node *ast.Node) {
	name, is := (*node).(*ast.IdentifierNode)
	if !is {
		return
	}
	number, known := severityNumbers[name.Value]
	if known {
		ast.Patch(node, &ast.IntegerNode{Value: number})
	}
}

// whenEnv returns the names and types that an expression may use. The names inside data are not checked.
func whenEnv() map[string]any {
	return cloudevent.Fields(event.New())
}

func (w *When) evaluate(fields map[string]any) (bool, error) {
	v, err := expr.Run(w.program, fields)
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n") // the rest repeats the expression
		return false, errors.New(first)
	}
	return v.(bool), nil
}

// MatchEvent decides whether the route wants the Azure event of the change. fields are the fields of its CloudEvent. self
// is the observer's name; without one, "", every vms passes. If the route doesn't want the event, key names the key of the
// settings that refuses, such as only.types. err is the error of a When that failed; the event passes then. In both cases
// a message too many is better than one too few.
func (f Filter) MatchEvent(c imds.Change, fields map[string]any, self string) (ok bool, key string, err error) {
	e := c.Event
	vms := f.Only.VMs
	if vms == "" {
		vms = "self"
	}
	switch {
	case self != "" && !matchVMs(vms, e, self):
		return false, "only.vms", nil
	case !allowsValue(f.Only.Types, e.Type, TypesValues):
		return false, "only.types", nil
	case !allowsValue(f.Only.Sources, e.Source, SourcesValues):
		return false, "only.sources", nil
	case len(f.Only.Names) > 0 && len(e.Resources) > 0 && !matchPattern(f.Only.Names, e.Resources...):
		return false, "only.names", nil
	case len(f.Only.Groups) > 0 && groupOf(fields) != "" && !matchPattern(f.Only.Groups, groupOf(fields)):
		return false, "only.groups", nil
	case f.Only.Severity != "" && !isAtLeast(fields["severity"], f.Only.Severity):
		return false, "only.severity", nil
	}
	if f.When != nil {
		holds, failed := f.When.evaluate(fields)
		if failed == nil && !holds {
			return false, "when", nil
		}
		err = failed
	}
	if len(f.Except.Changes) == 0 && f.Except.matchEvent(e, self) {
		return false, "except", err
	}
	return true, "", err
}

// MatchChange decides whether the route wants this change of an event that it wants. If not, key names the key of the
// settings that refuses.
func (f Filter) MatchChange(c imds.Change, self string) (ok bool, key string) {
	x := f.Except
	switch {
	case len(f.Only.Changes) > 0 && !namesChange(f.Only.Changes, c):
		return false, "only.changes"
	case len(x.Changes) > 0 && namesChange(x.Changes, c) && (x.ofAllEvents() || x.matchEvent(c.Event, self)):
		return false, "except.changes"
	}
	return true, ""
}

// ofAllEvents reports whether there is no condition about the event.
func (x Except) ofAllEvents() bool { return x.VMs == "" && len(x.Types) == 0 && len(x.Sources) == 0 }

// matchEvent reports whether there are conditions about the event, and all are known to hold.
func (x Except) matchEvent(e imds.Event, self string) bool {
	return !x.ofAllEvents() &&
		(len(x.Types) == 0 || containsWord(x.Types, e.Type)) &&
		(len(x.Sources) == 0 || containsWord(x.Sources, e.Source)) &&
		(x.VMs == "" || self != "" && len(e.Resources) > 0 && matchVMs(x.VMs, e, self))
}

// allowsValue reports whether values allow v. Missing and unknown values are allowed.
func allowsValue(values []string, v string, known []string) bool {
	return len(values) == 0 || !containsWord(known, v) || containsWord(values, v)
}

// needsFields reports whether MatchEvent looks at the fields of the CloudEvent.
func (f Filter) needsFields() bool {
	return f.When != nil || len(f.Only.Groups) > 0 || f.Only.Severity != ""
}

// isAtLeast reports whether a severity number is that of the word, or higher. One that isn't known is.
func isAtLeast(severity any, word string) bool {
	number, known := severity.(int)
	return !known || number >= severityNumbers[imds.Upper(word)]
}

// severityNumbers are the lowest numbers of the severities in CloudEvents.
var severityNumbers = map[string]int{"INFO": 9, "WARN": 13, "ERROR": 17}

// groupOf returns the resource group that the observer is in, "" if that is not known.
func groupOf(fields map[string]any) string {
	data, _ := fields["data"].(map[string]any)
	observer, _ := data["observer"].(map[string]any)
	group, _ := observer["resourceGroup"].(string)
	return group
}

// matchPattern reports whether one of the texts matches one of the patterns, whatever their case.
func matchPattern(patterns []string, texts ...string) bool {
	for _, pattern := range patterns {
		for _, text := range texts {
			if ok, _ := path.Match(imds.Upper(pattern), imds.Upper(text)); ok {
				return true
			}
		}
	}
	return false
}

// matchVMs reports whether the event matches the condition vms. One of which Azure names no VM matches all of them.
func matchVMs(vms string, e imds.Event, self string) bool {
	return imds.SameWord(vms, "all") || len(e.Resources) == 0 ||
		imds.SameWord(vms, "leader") && e.LedBy(self) || imds.SameWord(vms, "self") && e.Affects(self)
}

// namesChange reports whether changes names the change.
func namesChange(changes []string, c imds.Change) bool {
	first := c.Kind.OfAzure() && c.Previous == nil && c.Kind != imds.Vanished
	return containsWord(changes, string(c.Kind)) || first && containsWord(changes, "first")
}

func containsWord(words []string, w string) bool {
	return slices.ContainsFunc(words, func(s string) bool { return imds.SameWord(s, w) })
}

// usable returns an error that names a value which can't be one of that condition. A route that ignored it would get
// something else than was meant, or nothing.
func (f Filter) usable() error {
	switch {
	case f.Only.VMs != "" && !containsWord(VMsValues, f.Only.VMs):
		return fmt.Errorf("only.vms is %q; expected self, leader or all", f.Only.VMs)
	case f.Only.Severity != "" && !containsWord(SeverityValues, f.Only.Severity):
		return fmt.Errorf("only.severity is %q; expected INFO, WARN or ERROR", f.Only.Severity)
	case f.Except.VMs != "" && !containsWord(OwnVMsValues, f.Except.VMs):
		return fmt.Errorf("except.vms is %q; expected self or leader", f.Except.VMs)
	}
	return cmp.Or(
		knownWords("only.types", f.Only.Types, TypesValues), knownWords("except.types", f.Except.Types, TypesValues),
		knownWords("only.sources", f.Only.Sources, SourcesValues),
		knownWords("except.sources", f.Except.Sources, SourcesValues),
		knownWords("only.changes", f.Only.Changes, ChangesValues),
		knownWords("except.changes", f.Except.Changes, ChangesValues),
		wellFormed("only.names", f.Only.Names), wellFormed("only.groups", f.Only.Groups),
	)
}

// knownWords returns an error that names the first of a condition's words that is none of its values.
func knownWords(key string, words, values []string) error {
	for _, w := range words {
		if !containsWord(values, w) {
			return fmt.Errorf("%s has %q; expected %s", key, w, strings.Join(values, ", "))
		}
	}
	return nil
}

// wellFormed returns an error that names the first of a condition's patterns that matches nothing.
func wellFormed(key string, patterns []string) error {
	for _, pattern := range patterns {
		_, err := path.Match(pattern, "")
		if err != nil || pattern == "" {
			return fmt.Errorf("%s has %q; expected a pattern such as vm-db-*", key, pattern)
		}
	}
	return nil
}
