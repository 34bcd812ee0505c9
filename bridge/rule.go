package bridge

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// A Rule decides which events are approved, so that Azure starts them before their notice ends. A Filter passes what it
// does not know; for a Rule every doubt means no, because an approval can't be taken back.
type Rule struct {
	// Name is what people call it; "" for its number.
	Name string
	// Filter selects the events. Only types in Only.Types are approved, and of those only TypesValues. Only.VMs is self or
	// leader. Changes is ignored. A missing field, and a When that fails, mean no.
	Filter Filter
	// After names the routes that must have accepted the event's latest change. A route whose filter refused that change
	// keeps the rule from approving.
	After []string
	// Wait is counted from the last of these acceptances, or from the change if After is empty. If there was no rule then,
	// it is counted from when there is one.
	Wait time.Duration
	// Others allows events that also name other VMs, whose sinks this observer does not see.
	Others bool
}

// A ruling is the decision of a rule about an event at one time.
type ruling struct {
	approve bool
	final   bool      // the decision holds until the event changes
	why     string    // the reason for no, or for not yet
	until   time.Time // when the wait is over that is the reason; else zero

	onCourse bool // it waits for a sink or a time, as it was to

	notApplicable bool // the rule is for other events, so the reason is not reported
}

func no(format string, args ...any) ruling {
	return ruling{final: true, why: fmt.Sprintf(format, args...)}
}

func notApplicable(format string, args ...any) ruling {
	r := no(format, args...)
	r.notApplicable = true
	return r
}

// reason returns the reason for no, or for not yet, for people in a zone.
func (r ruling) reason(now time.Time, zone *time.Location) string {
	if r.until.IsZero() {
		return r.why
	}
	return "waits until " + ClockTime(r.until, now, zone)
}

func notYet(format string, args ...any) ruling { return ruling{why: fmt.Sprintf(format, args...)} }

// An acceptance is the state of a delivery that a Rule waits for.
type acceptance struct {
	state string    // as in the outbox; "" if the route did not get the change
	since time.Time // when the acceptance was first seen, by the monotonic clock
}

// accepted reports whether the route has the change. A reminder of the same change may have superseded it.
func (a acceptance) accepted() bool {
	return a.state == outbox.StateAccepted || a.state == outbox.StateSuperseded
}

// rule applies the rule to an event. delivered returns the state of a route's delivery of the event's latest change,
// which was observed at observed. All times have the monotonic clock, which does not jump.
func (r Rule) rule(e imds.Event, fields map[string]any, self string, delivered func(route string) acceptance,
	observed, now time.Time) ruling {
	if verdict := r.picks(e, fields, self); !verdict.approve {
		return verdict
	}
	from := observed
	for _, route := range r.After {
		a := delivered(route)
		switch {
		case a.state == "":
			return no("%s did not get the latest change", route)
		case a.state == outbox.StatePending:
			return ruling{onCourse: true, why: "waits for " + route}
		case !a.accepted():
			return no("%s did not accept the latest change", route)
		}
		from = later(from, a.since)
	}
	if now.Sub(from) < r.Wait {
		return ruling{onCourse: true, until: from.Add(r.Wait)}
	}
	return ruling{approve: true}
}

// A Forecast is what a rule would decide about an event if every sink accepted its deliveries.
type Forecast struct {
	Rule     string // its name, see RuleName
	Approves bool
	After    []string // the sinks that it waits for
	Wait     time.Duration
	Why      string // the reason if it does not approve
}

// Forecasts returns what each rule would decide about an event on the VM self. fields are the fields of the CloudEvent
// of its latest change, and gets reports whether a sink gets that change. It approves nothing.
func Forecasts(rules []Rule, e imds.Event, fields map[string]any, self string, gets func(sink string) bool) []Forecast {
	var all []Forecast
	now := time.Now()
	accepts := func(sink string) acceptance {
		if gets(sink) {
			return acceptance{outbox.StateAccepted, now}
		}
		return acceptance{}
	}
	for i, r := range rules {
		verdict := r.rule(e, fields, self, accepts, now, now.Add(r.Wait)) // as if its wait were over
		all = append(all, Forecast{Rule: RuleName(i+1, r), Approves: verdict.approve, After: r.After, Wait: r.Wait, Why: verdict.why})
	}
	return all
}

// picks decides whether the rule applies to the event at all.
func (r Rule) picks(e imds.Event, fields map[string]any, self string) ruling {
	only, except := r.Filter.Only, r.Filter.Except
	others := slices.DeleteFunc(slices.Clone(e.Resources), func(vm string) bool { return imds.SameVM(vm, self) })
	if e.Doubt != "" { // before anything is compared with it, also by when
		return no("%s", e.Doubt)
	}
	switch { // first the events that the rule is not for
	case !has(only.Types, e.Type) || !has(TypesValues, e.Type):
		return notApplicable("only.types: it is a %s", e.Type)
	case len(only.Sources) > 0 && e.Source != "" && !has(only.Sources, e.Source):
		return notApplicable("only.sources: it comes from %q", e.Source)
	case self != "" && len(e.Resources) > 0 && !e.Affects(self):
		return notApplicable("it does not name this VM")
	case r.excepts(except, e, self) && (has(SourcesValues, e.Source) || len(except.Sources) == 0):
		return notApplicable("except")
	}
	if r.Filter.When != nil {
		switch ok, err := r.Filter.When.holds(fields); {
		case err != nil:
			return no("when fails: %v", err)
		case !ok:
			return notApplicable("when")
		}
	}
	switch { // then every doubt
	case e.Status != imds.StatusScheduled:
		return no("it is not Scheduled but %q", e.Status)
	case self == "":
		return notYet("the name of this VM is not confirmed yet")
	case len(e.Resources) == 0:
		return no("Azure names no VM")
	case imds.SameWord(only.VMs, "leader") && !e.LedBy(self):
		return no("only.vms: it does not name this VM first")
	case len(others) > 0 && !r.Others:
		return no("it also names %s, and the rule has no others: true", strings.Join(others[:min(3, len(others))], ", "))
	case len(only.Sources) > 0 && e.Source == "":
		return no("only.sources: Azure does not say whether it comes from %s", strings.Join(only.Sources, " or "))
	case r.excepts(except, e, self):
		return no("except: Azure does not say whether it comes from %s", strings.Join(except.Sources, " or "))
	}
	return ruling{approve: true}
}

// excepts reports whether except matches the event, or may match it.
func (r Rule) excepts(except Match, e imds.Event, self string) bool {
	if except.VMs == "" && len(except.Types) == 0 && len(except.Sources) == 0 {
		return false
	}
	return (len(except.Types) == 0 || has(except.Types, e.Type)) &&
		(len(except.Sources) == 0 || !has(SourcesValues, e.Source) || has(except.Sources, e.Source)) &&
		(!imds.SameWord(except.VMs, "leader") || e.LedBy(self))
}

// usable returns an error that names a condition which a rule doesn't know. Ignoring it would approve more than was meant.
func (r Rule) usable() error {
	for key, m := range map[string]Match{"only": r.Filter.Only, "except": r.Filter.Except} {
		switch {
		case m.VMs != "" && !has([]string{"self", "leader"}, m.VMs):
			return fmt.Errorf("%s.vms is %q; expected self or leader", key, m.VMs)
		case len(m.Names)+len(m.Groups) > 0:
			return fmt.Errorf("%s: a rule knows no names and no groups", key)
		}
	}
	return nil
}
