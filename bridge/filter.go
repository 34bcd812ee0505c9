package bridge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/vm"
)

// A Filter decides which CloudEvents a route is owed. It is asked when a change is committed and never again.
//
// What it asks of the Azure event (VMs, Types, Sources, When) is decided once: from the first change that is
// accepted, the route is owed all later ones. Only Changes is asked of each change.
type Filter struct {
	Only, Except Match
	When         *When
}

// Match is a set of conditions that all must hold; an empty one always does. Values ignore case.
type Match struct {
	VMs     string   `yaml:"vms"`     // self, leader or all; "" is self in Only and nothing in Except
	Types   []string `yaml:"types"`   // of Azure's event types
	Sources []string `yaml:"sources"` // Platform, User
	Changes []string `yaml:"changes"` // scheduled, updated, started, vanished, first
}

// The values that a Match knows.
var (
	VMsValues     = []string{"self", "leader", "all"}
	TypesValues   = []string{"Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"}
	SourcesValues = []string{"Platform", "User"}
	ChangesValues = []string{"scheduled", "updated", "started", "vanished", "first"}
)

// Level says which CloudEvents about the bridge a route hears.
type Level string

// The levels. Trouble is what an administrator must know: a destination or the endpoint is out of reach or back, a
// delivery was given up.
const (
	LevelNone    Level = "none"
	LevelTrouble Level = "trouble"
	LevelAll     Level = "all"
)

// hears says whether a route on this level gets a CloudEvent of the type about the bridge.
func (l Level) hears(typ string) bool {
	switch typ {
	case SinkBlocked, SinkRecovered, IMDSUnavailable, IMDSRecovered, DeliveryDeadLettered:
		return l != LevelNone && l != ""
	}
	return l == LevelAll
}

// When is a compiled condition over Fields.
type When struct{ program *vm.Program }

// ParseWhen compiles the expression src (expr-lang.org) to a condition over the names of Fields.
func ParseWhen(src string) (*When, error) {
	p, err := expr.Compile(src, expr.Env(whenEnv()), expr.AsBool())
	if err != nil {
		return nil, err
	}
	return &When{p}, nil
}

// whenEnv gives the names and types that an expression may use. Inside data nothing is known beforehand.
func whenEnv() map[string]any {
	return Fields(event.New())
}

func (w *When) holds(fields map[string]any) (bool, error) {
	v, err := expr.Run(w.program, fields)
	if err != nil {
		return false, err
	}
	return v.(bool), nil
}

// Verdict is what a Filter says.
type Verdict int

// The verdicts. Undecided means that it depends on the observer's name, which is not known yet.
const (
	Refused Verdict = iota
	Accepted
	Undecided
)

// Decision is the answer of a Filter for one change.
type Decision struct {
	Event  Verdict // for the Azure event as a whole
	Change bool    // whether this very change is among those the route wants
	Key    string  // the settings key that refused, such as "only.types"; "" otherwise
	Err    error   // a When that failed; the event is accepted, better twice than never
}

// Decide asks the filter about a change, whose CloudEvent has the fields. self is the observer's name, "" if not
// known. unnamed says that a missing name must count as a match, because waiting for it is over.
func (f Filter) Decide(c Change, fields map[string]any, self string, unnamed bool) Decision {
	d := Decision{Event: Accepted, Change: true}
	refuse := func(key string) {
		d.Event, d.Key = Refused, key
	}
	vms := f.Only.VMs
	if vms == "" {
		vms = "self"
	}
	e := c.Event
	switch only := hits(vms, e, self); {
	case only == Refused:
		refuse("only.vms")
		return d
	case only == Undecided && !unnamed:
		d.Event = Undecided
	}
	for _, m := range []struct {
		key    string
		values []string
		value  string
		known  []string
	}{
		{"types", f.Only.Types, e.Type, TypesValues},
		{"sources", f.Only.Sources, e.Source, SourcesValues},
	} {
		if len(m.values) > 0 && m.value != "" && has(m.known, m.value) && !has(m.values, m.value) {
			refuse("only." + m.key)
			return d
		}
	}
	if f.When != nil {
		ok, err := f.When.holds(fields)
		if err != nil {
			d.Err = fmt.Errorf("when: %w", err)
		} else if !ok {
			refuse("when")
			return d
		}
	}
	if x := f.Except; x.VMs != "" || len(x.Types) > 0 || len(x.Sources) > 0 || len(x.Changes) > 0 {
		// Left out only if everything that is asked for is known to match.
		match := (len(x.Types) == 0 || has(x.Types, e.Type)) && (len(x.Sources) == 0 || has(x.Sources, e.Source))
		if match && x.VMs != "" {
			if hit := hits(x.VMs, e, self); hit == Undecided && !unnamed {
				d.Event = Undecided
			} else if hit != Accepted || len(e.Resources) == 0 {
				match = false
			}
		}
		switch {
		case match && len(x.Changes) > 0:
			d.Change = !wants(x.Changes, c)
		case match && d.Event == Accepted:
			refuse("except")
			return d
		}
	}
	if !d.Change {
		d.Key = "except.changes"
	}
	if len(f.Only.Changes) > 0 && !wants(f.Only.Changes, c) {
		d.Change, d.Key = false, "only.changes"
	}
	return d
}

// hits says whether the event hits what vms asks for.
func hits(vms string, e Event, self string) Verdict {
	switch {
	case strings.EqualFold(vms, "all"):
		return Accepted
	case self == "":
		return Undecided
	case strings.EqualFold(vms, "leader") && e.LedBy(self), strings.EqualFold(vms, "self") && e.Affects(self):
		return Accepted
	case len(e.Resources) == 0: // Azure did not say whom it hits: better twice than never
		return Accepted
	}
	return Refused
}

// wants says whether changes names the change.
func wants(changes []string, c Change) bool {
	return has(changes, string(c.Kind)) || has(changes, "first") && c.Previous == nil && c.Kind != Vanished
}

func has(values []string, v string) bool {
	return slices.ContainsFunc(values, func(s string) bool { return strings.EqualFold(s, v) })
}
