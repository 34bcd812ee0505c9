package bridge

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/imds"
)

// A Rule says which events are approved, so that Azure need not wait out their notice. Unlike a Filter, which lets pass
// what it does not know, it takes every doubt for a no: approving is the one thing that cannot be taken back.
type Rule struct {
	// Filter picks the events. Only the types that Only.Types names are approved, so none without it; a type that is
	// not one of TypesValues never is. VMs are self or leader; Changes are not asked. What Azure did not send and a When
	// that fails are a no.
	Filter Filter
	// After are the routes that must have been owed the event's newest change and have accepted it.
	After []string
	// Wait is the time from the last of those acceptances, or from the change when After is empty.
	Wait time.Duration
	// Others says that an event may be approved though it also names VMs whose sinks this observer does not see.
	Others bool
}

// A ruling is what a rule says about an event at a moment.
type ruling struct {
	approve bool
	final   bool   // no, until the event changes
	why     string // not, or not yet

	notForIt bool // the rule is for other events, so that nobody needs to hear why it does not approve this one
}

func no(format string, args ...any) ruling {
	return ruling{final: true, why: fmt.Sprintf(format, args...)}
}

func notForIt(format string, args ...any) ruling {
	r := no(format, args...)
	r.notForIt = true
	return r
}

func notYet(format string, args ...any) ruling { return ruling{why: fmt.Sprintf(format, args...)} }

// acceptance is what became of a delivery that a Rule waits for.
type acceptance struct {
	state acceptState
	since time.Time // it is known to be accepted, by the monotonic clock
}

type acceptState int

const (
	neverTold acceptState = iota
	stillPending
	wasAccepted
	wasGivenUp
)

// rule applies the rule to an event. told gives what became of telling a route of its newest change, which was observed
// at a time. All times are of the monotonic clock, which nobody can step.
func (r Rule) rule(e imds.Event, fields map[string]any, self string, told func(route string) acceptance,
	observed, now time.Time) ruling {
	if verdict := r.picks(e, fields, self); !verdict.approve {
		return verdict
	}
	from := observed
	for _, route := range r.After {
		switch a := told(route); a.state {
		case neverTold:
			return no("%s was not told of the event as it is now", route)
		case wasGivenUp:
			return no("%s did not take what it was told", route)
		case stillPending:
			return notYet("waits for %s", route)
		default:
			from = later(from, a.since)
		}
	}
	if now.Sub(from) < r.Wait {
		return notYet("waits until %s", ClockTime(from.Add(r.Wait), now, time.UTC))
	}
	return ruling{approve: true}
}

// A Forecast is what a rule would decide about an event if every sink accepted what it is told of it.
type Forecast struct {
	Rule     int // counted from 1
	Approves bool
	After    []string // the sinks that it waits for
	Wait     time.Duration
	Why      string // it does not approve
}

// Foresee says what each of the rules would decide about an event on the VM self. fields are those of the CloudEvent of
// its newest change, and told says whether a sink is told of that. It approves nothing.
func Foresee(rules []Rule, e imds.Event, fields map[string]any, self string, told func(sink string) bool) []Forecast {
	var all []Forecast
	now := time.Now()
	accepts := func(sink string) acceptance {
		if told(sink) {
			return acceptance{wasAccepted, now}
		}
		return acceptance{state: neverTold}
	}
	for i, r := range rules {
		verdict := r.rule(e, fields, self, accepts, now, now.Add(r.Wait)) // its wait is over then
		all = append(all, Forecast{Rule: i + 1, Approves: verdict.approve, After: r.After, Wait: r.Wait, Why: verdict.why})
	}
	return all
}

// picks says whether the event is one for the rule at all.
func (r Rule) picks(e imds.Event, fields map[string]any, self string) ruling {
	only, except := r.Filter.Only, r.Filter.Except
	others := slices.DeleteFunc(slices.Clone(e.Resources), func(vm string) bool { return imds.SameVM(vm, self) })
	switch { // first what the rule is for
	case !has(only.Types, e.Type) || !has(TypesValues, e.Type):
		return notForIt("only.types: it is a %s", e.Type)
	case len(only.Sources) > 0 && e.Source != "" && !has(only.Sources, e.Source):
		return notForIt("only.sources: it comes from %q", e.Source)
	case self != "" && len(e.Resources) > 0 && !e.Affects(self):
		return notForIt("it does not hit this VM")
	case r.excepts(except, e, self) && (e.Source != "" || len(except.Sources) == 0):
		return notForIt("except")
	}
	if r.Filter.When != nil {
		switch ok, err := r.Filter.When.holds(fields); {
		case err != nil:
			return no("when fails: %v", err)
		case !ok:
			return notForIt("when")
		}
	}
	switch { // and then every doubt
	case e.Status != imds.StatusScheduled:
		return no("it is not Scheduled but %q", e.Status)
	case self == "":
		return notYet("the name of this VM is not known for sure")
	case len(e.Resources) == 0:
		return no("Azure does not say whom it hits")
	case strings.EqualFold(only.VMs, "leader") && !e.LedBy(self):
		return no("only.vms: this VM is not the first in it")
	case len(others) > 0 && !r.Others:
		return no("it also hits %s, and the rule has no others: true", strings.Join(others[:min(3, len(others))], ", "))
	case len(only.Sources) > 0 && e.Source == "":
		return no("only.sources: Azure does not say whether it comes from %s", strings.Join(only.Sources, " or "))
	case r.excepts(except, e, self):
		return no("except: Azure does not say whether it comes from %s", strings.Join(except.Sources, " or "))
	}
	return ruling{approve: true}
}

// excepts says whether the event is, or may be, one that except names.
func (r Rule) excepts(except Match, e imds.Event, self string) bool {
	if except.VMs == "" && len(except.Types) == 0 && len(except.Sources) == 0 {
		return false
	}
	return (len(except.Types) == 0 || has(except.Types, e.Type)) &&
		(len(except.Sources) == 0 || e.Source == "" || has(except.Sources, e.Source)) &&
		(!strings.EqualFold(except.VMs, "leader") || e.LedBy(self))
}
