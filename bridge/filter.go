package bridge

import (
	"slices"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/vm"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
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
	VMs     string   `yaml:"vms" doc:"self: events that name this VM; leader: that name it first; all: every event"`
	Types   []string `yaml:"types" doc:"Azure's event types"`
	Sources []string `yaml:"sources" doc:"who asked for it: Platform (Azure) or User"`
	Changes []string `yaml:"changes" doc:"which changes; first is whichever comes first"`
}

// The values that a Match knows.
var (
	VMsValues     = []string{"self", "leader", "all"}
	TypesValues   = []string{"Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"}
	SourcesValues = []string{"Platform", "User"}
	ChangesValues = []string{"scheduled", "updated", "started", "vanished", "first", "approved", "reminder"}
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

// Hears says whether a route on this level gets a CloudEvent of the type about the bridge.
func (l Level) Hears(typ string) bool {
	switch typ {
	case cloudevent.SinkBlocked, cloudevent.SinkRecovered, cloudevent.IMDSUnavailable, cloudevent.IMDSRecovered,
		cloudevent.DeliveryDeadLettered:
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
	return cloudevent.Fields(event.New())
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

// Event asks whether the route wants the Azure event of the change. fields are those of the change's CloudEvent, self
// is the observer's name ("" if not known); unnamed says that waiting for a name is over, and a missing one counts as a
// match. When it refuses, key names the settings key that did, such as only.types. An error is that of a When which
// failed; it counts as true, because better twice than never.
func (f Filter) Event(c imds.Change, fields map[string]any, self string, unnamed bool) (
	v Verdict, key string, err error) {
	e := c.Event
	vms := f.Only.VMs
	if vms == "" {
		vms = "self"
	}
	v = hits(vms, e, self, unnamed)
	switch {
	case v == Refused:
		return Refused, "only.vms", nil
	case !passes(f.Only.Types, e.Type, TypesValues):
		return Refused, "only.types", nil
	case !passes(f.Only.Sources, e.Source, SourcesValues):
		return Refused, "only.sources", nil
	}
	if f.When != nil {
		ok, failed := f.When.holds(fields)
		if failed == nil && !ok {
			return Refused, "when", nil
		}
		err = failed
	}
	if len(f.Except.Changes) == 0 {
		switch f.Except.matches(e, self, unnamed) {
		case Accepted:
			return Refused, "except", err
		case Undecided:
			v = Undecided
		}
	}
	return v, "", err
}

// Change asks whether the route wants this very change of an event that it wants. When it does not, key names the
// settings key.
func (f Filter) Change(c imds.Change, self string) (ok bool, key string) {
	x := f.Except
	switch {
	case len(f.Only.Changes) > 0 && !wants(f.Only.Changes, c):
		return false, "only.changes"
	case len(x.Changes) > 0 && wants(x.Changes, c) && (x.VMs+strings.Join(slices.Concat(x.Types, x.Sources), "") == "" ||
		x.matches(c.Event, self, true) == Accepted):
		return false, "except.changes"
	}
	return true, ""
}

// matches says whether everything that m asks of an event, beside changes, is known to hold.
func (m Match) matches(e imds.Event, self string, unnamed bool) Verdict {
	switch {
	case m.VMs == "" && len(m.Types) == 0 && len(m.Sources) == 0,
		len(m.Types) > 0 && !has(m.Types, e.Type),
		len(m.Sources) > 0 && !has(m.Sources, e.Source):
		return Refused
	case m.VMs == "", strings.EqualFold(m.VMs, "all"):
		return Accepted
	case len(e.Resources) == 0, self == "" && unnamed:
		return Refused
	}
	return hits(m.VMs, e, self, unnamed)
}

// passes says whether values allow v. What Azure did not send, and what nobody knows, passes.
func passes(values []string, v string, known []string) bool {
	return len(values) == 0 || v == "" || !has(known, v) || has(values, v)
}

// hits says whether the event hits what vms asks for.
func hits(vms string, e imds.Event, self string, unnamed bool) Verdict {
	switch {
	case strings.EqualFold(vms, "all"):
		return Accepted
	case len(e.Resources) == 0: // Azure did not say whom it hits
		return Accepted
	case self == "" && unnamed:
		return Accepted
	case self == "":
		return Undecided
	case strings.EqualFold(vms, "leader") && e.LedBy(self), strings.EqualFold(vms, "self") && e.Affects(self):
		return Accepted
	}
	return Refused
}

// wants says whether changes names the change.
func wants(changes []string, c imds.Change) bool {
	return has(changes, string(c.Kind)) || has(changes, "first") && c.Previous == nil && c.Kind != imds.Vanished
}

func has(values []string, v string) bool {
	return slices.ContainsFunc(values, func(s string) bool { return strings.EqualFold(s, v) })
}
