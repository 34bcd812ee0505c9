package bridge

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/clock"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// A Rule decides which events are approved, so that Azure starts them before their notice ends. A Filter passes what it
// does not know; for a Rule every doubt means no, because an approval can't be taken back.
type Rule struct {
	// Name is what people call it; "" for its number.
	Name string
	// Only selects the events: only types in Only.Types are approved, and of those only TypesValues. Except and When narrow
	// that. A missing field that one of them looks at, and a When that fails, mean no.
	Only, Except Match
	When         *When
	// After names the routes that must have accepted the event's latest change. A route whose filter refused that change
	// keeps the rule from approving.
	After []string
	// Wait is counted from the last of these acceptances, or from the change if After is empty, but not from before the
	// rule was there. After a restart, and after a reload that changes the rule, it is counted anew.
	Wait time.Duration
	// Others allows events that also name other VMs, whose sinks this observer does not see.
	Others bool

	since time.Time // when a reload brought it, by the monotonic clock; zero if it was there at the start
}

// timed returns the rules that a reload brings, with the time since which each is there. One that does the same as one
// before is that one, whatever its name and its place.
func timed(rules, before []Rule, now time.Time) []Rule {
	all := slices.Clone(rules)
	for i, r := range all {
		all[i].since = now
		known := slices.IndexFunc(before, r.doesAs)
		if known >= 0 {
			all[i].since = before[known].since
		}
	}
	return all
}

// doesAs reports whether two rules decide alike.
func (r Rule) doesAs(other Rule) bool {
	bare := func(r Rule) Rule {
		r.Name, r.When, r.since = "", nil, time.Time{}
		return r
	}
	return r.When.text() == other.When.text() && reflect.DeepEqual(bare(r), bare(other))
}

// A Match is a set of conditions of a Rule. Values ignore the case of ASCII letters.
type Match struct {
	VMs     string   `yaml:"vms" oneof:"own vms" doc:"self: events that name this VM; leader: events that name it first"`
	Types   []string `yaml:"types" oneof:"types" doc:"Azure's event types"`
	Sources []string `yaml:"sources" oneof:"sources" doc:"who asked for it: Platform (Azure) or User"`
}

// An outlook says whether a rule approves an event. They are from the worst to the best.
type outlook int

const (
	never     outlook = iota // until the event changes
	tooLong                  // not before the event should have begun: its wait lasts, and what it waits for can't shorten that
	undecided                // not yet; what keeps it from that may pass in time
	onCourse                 // before the event may begin, if the sinks that it waits for accept at once
	approves                 // now
)

// A ruling is the decision of a rule about an event at one time.
type ruling struct {
	outlook
	why     string    // the reason for no, or for not yet; it ends in "until" if there is a time
	until   time.Time // the time of the reason; zero for none
	sink    string    // the sink that failed, if that is the reason
	failure string    // what it said

	notFor string // what the rule is not for, such as "a Redeploy", if that is the reason; else ""
	leader string // the VM that the event names first, if the rule leaves the event to it; else ""
	gone   bool   // the settings no longer have the rule, which why names

	from time.Time // see cloudevent.Rule
}

func no(format string, args ...any) ruling {
	return ruling{outlook: never, why: fmt.Sprintf(format, args...)}
}

// notFor returns the ruling of a rule that is for other events than what: it is only reported if people were told of it.
func notFor(what, format string, args ...any) ruling {
	r := no(format, args...)
	r.notFor = what
	return r
}

func notYet(format string, args ...any) ruling {
	return ruling{outlook: undecided, why: fmt.Sprintf(format, args...)}
}

// reason returns the reason for no, or for not yet, for people in a zone.
func (r ruling) reason(now time.Time, zone *time.Location) string {
	if r.until.IsZero() {
		return r.why
	}
	return r.why + " " + clock.Time(r.until, now, zone)
}

// An acceptance is what a Rule knows of a delivery that it waits for.
type acceptance struct {
	state string // as in the outbox; "" if the route did not get the change
	// at is when the acceptance was first seen, by the monotonic clock; while the delivery is pending, when its due
	// time or its mute lets it be attempted. Zero means at once.
	at      time.Time
	muted   bool   // at is the end of a mute
	failure string // what the destination said last, or why it is a dead letter; "" if nothing is wrong
}

// accepted reports whether the route has the change. A reminder of the same change may have superseded it.
func (a acceptance) accepted() bool {
	return a.state == outbox.StateAccepted || a.state == outbox.StateSuperseded
}

// missing returns what it means for a rule that the route has not accepted the change.
func (a acceptance) missing(route string) ruling {
	sink := fmt.Sprintf("sink %q", route)
	failed := ruling{outlook: never, sink: route, failure: a.failure}
	switch {
	case a.state == "":
		return no("%s did not get the latest change", sink)
	case a.state == outbox.StatePending && a.muted:
		return ruling{outlook: onCourse, why: sink + " is muted until", until: a.at}
	case a.state == outbox.StatePending && a.failure == "":
		return ruling{outlook: onCourse, why: waitsFor(sink)}
	case a.state == outbox.StatePending:
		failed.outlook = undecided
	case a.state == outbox.StateDropped:
		failed.failure = "somebody dropped what it was to do"
	}
	failed.why = failedFor(route, failed.failure, failed.outlook == never)
	return failed
}

// rule applies the rule to an event. delivered returns the state of a route's delivery of the event's latest change,
// which was observed at observed. All times have the monotonic clock, which does not jump.
func (r Rule) rule(e imds.Event, fields map[string]any, self string, delivered func(route string) acceptance,
	observed, now time.Time) ruling {
	matched := r.matchEvent(e, fields, self)
	if matched.outlook < approves {
		return matched
	}
	from, waits, muted, gets := later(observed, r.since), matched, ruling{}, time.Time{}
	for _, route := range r.After {
		a := delivered(route)
		from = later(from, a.at)
		if a.accepted() {
			continue
		}
		if now.Before(e.NotBefore) { // at the earliest it accepts now; what is due may begin at any time
			from = later(from, now)
		}
		if a.at.After(now) {
			gets = later(gets, a.at)
		}
		missing := a.missing(route)
		if missing.outlook == never {
			return missing
		}
		if waits.outlook == approves || missing.outlook < onCourse {
			waits = missing
		}
		if a.muted && a.at.After(muted.until) {
			muted = missing
		}
	}
	ready := from.Add(r.Wait)
	waits.from = gets
	if len(r.After) == 0 {
		waits.from = ready
	}
	switch {
	case waits.outlook == approves && !now.Before(ready):
		return waits
	case !e.NotBefore.IsZero() && !ready.Before(e.NotBefore):
		late := r.tooLate(waits, muted, ready)
		if !now.Before(e.NotBefore) {
			late.outlook = undecided // what is due already it may still approve
		}
		return late
	case waits.outlook == approves:
		return ruling{outlook: onCourse, why: "it waits until", until: ready, from: waits.from}
	}
	return waits
}

// tooLate returns the ruling while the rule can't approve before the event may begin: not before ready, because of what
// it waits for, a mute, or its own wait.
func (r Rule) tooLate(waits, muted ruling, ready time.Time) ruling {
	switch {
	case waits.sink != "":
	case !muted.until.IsZero():
		waits = muted
	case r.Wait > 0 && waits.outlook == approves:
		return ruling{outlook: tooLong, why: fmt.Sprintf("the wait of %s lasts until", delivery.Readable(r.Wait)), until: ready}
	case r.Wait > 0:
		return ruling{outlook: tooLong, why: fmt.Sprintf("%s, and the wait of %s after that is too long", waits.why,
			delivery.Readable(r.Wait))}
	}
	waits.outlook = undecided
	return waits
}

// A verdict is the ruling of one of the rules.
type verdict struct {
	name string // see RuleName
	Rule
	ruling
}

// judge applies the rules to an event, see Rule.rule. What is approved, what people are told of it, and what check
// and a dry run print are all made of its verdicts, which have the order of the rules.
func judge(rules []Rule, e imds.Event, fields map[string]any, self string, delivered func(route string) acceptance,
	observed, now time.Time) (all verdicts) {
	for i, r := range rules {
		all = append(all, verdict{RuleName(i+1, r), r, r.rule(e, fields, self, delivered, observed, now)})
	}
	return all
}

// A Forecast is what a rule would decide about an event if every sink accepted its deliveries at once.
type Forecast struct {
	Rule     string   // its name, see RuleName
	Approves bool     // before the event may begin
	After    []string // the sinks that it waits for
	Wait     time.Duration
	Why      string // the reason if it does not approve
}

// Forecasts returns what each rule would decide about an event that the VM self sees at now. fields are the fields of the
// CloudEvent of its latest change. gets reports whether a sink gets that change, and when at the earliest; zero for at
// once. It approves nothing.
func Forecasts(rules []Rule, e imds.Event, fields map[string]any, self string,
	gets func(sink string) (at time.Time, ok bool), now time.Time) (all []Forecast) {
	delivered := func(sink string) acceptance {
		at, ok := gets(sink)
		if !ok {
			return acceptance{}
		}
		return acceptance{state: outbox.StatePending, at: at}
	}
	for _, v := range judge(rules, e, fields, self, delivered, now, now) {
		f := Forecast{Rule: v.name, Approves: v.stands(), After: v.After, Wait: v.Wait}
		switch {
		case f.Approves:
		case v.until.IsZero() && v.outlook != tooLong:
			f.Why = v.why
		default: // a sample has no time of its own
			f.Why = "its wait is longer than the notice"
		}
		all = append(all, f)
	}
	return all
}

// PromisedRules returns the rules that approve, as the CloudEvent of an event names them.
func PromisedRules(forecasts []Forecast) (rules []cloudevent.Rule) {
	for _, f := range forecasts {
		if f.Approves {
			rules = append(rules, cloudevent.Rule{Name: f.Rule, After: f.After, Wait: f.Wait.Seconds()})
		}
	}
	return rules
}

// matchEvent decides whether the rule applies to the event at all.
func (r Rule) matchEvent(e imds.Event, fields map[string]any, self string) ruling {
	only, except := r.Only, r.Except
	others := slices.DeleteFunc(slices.Clone(e.Resources), func(vm string) bool { return imds.SameVM(vm, self) })
	if e.Doubt != "" { // before anything is compared with it, also by when
		return no("%s", e.Doubt)
	}
	switch { // first the events that the rule is not for
	case !containsWord(only.Types, e.Type) || !containsWord(TypesValues, e.Type):
		return notFor(typeWords(e.Type), "only.types: it is a %s", e.Type)
	case len(only.Sources) > 0 && e.Source != "" && !containsWord(only.Sources, e.Source):
		return notFor(sourceWords(e.Source), "only.sources: it comes from %q", e.Source)
	case self != "" && len(e.Resources) > 0 && !e.Affects(self):
		return notFor("events of other VMs", "it does not name this VM")
	case except.mayMatchEvent(e, self) && (containsWord(SourcesValues, e.Source) || len(except.Sources) == 0):
		return notFor("this event (except)", "except")
	}
	unsaid := r.When.unsaid(e)
	if r.When != nil && len(unsaid) == 0 {
		switch ok, err := r.When.evaluate(fields); {
		case err != nil:
			return no("when fails: %v", err)
		case !ok:
			return notFor("this event (when)", "when")
		}
	}
	switch { // then every doubt
	case e.Unclear != "":
		return no("%s", e.Unclear)
	case e.Status != imds.StatusScheduled:
		return no("it is not Scheduled but %q", e.Status)
	case self == "":
		return notYet("the name of this VM is not confirmed yet")
	case len(e.Resources) == 0:
		return no("Azure names no VM")
	case len(others) > 0 && !r.Others:
		return no("it also names %s, and the rule has no others: true", strings.Join(others[:min(3, len(others))], ", "))
	case len(only.Sources) > 0 && e.Source == "":
		return no("Azure does not say whether it comes from %s (only.sources)", strings.Join(only.Sources, " or "))
	case len(unsaid) > 0:
		return no("Azure does not say %s (when)", strings.Join(unsaid, ", "))
	case except.mayMatchEvent(e, self):
		return no("Azure does not say whether it comes from %s (except)", strings.Join(except.Sources, " or "))
	case imds.SameWord(only.VMs, "leader") && !e.LedBy(self):
		r := no("%s", leftTo(e.Resources[0]))
		r.leader = e.Resources[0]
		return r
	}
	return ruling{outlook: approves}
}

// typeWords says for people what has a type: "a Redeploy".
func typeWords(eventType string) string {
	if containsWord(TypesValues, eventType) {
		return "a " + eventType
	}
	return "an event of type " + imds.Printable(eventType, 60)
}

// sourceWords says for people what comes from a source: "what a user asks for".
func sourceWords(source string) string {
	switch {
	case imds.SameWord(source, "User"):
		return "what a user asks for"
	case imds.SameWord(source, "Platform"):
		return "Azure's own maintenance"
	}
	return fmt.Sprintf("what comes from %q", source)
}

// mayMatchEvent reports whether there are conditions, and none is known not to hold.
func (m Match) mayMatchEvent(e imds.Event, self string) bool {
	if m.VMs == "" && len(m.Types) == 0 && len(m.Sources) == 0 {
		return false
	}
	return (len(m.Types) == 0 || containsWord(m.Types, e.Type)) &&
		(len(m.Sources) == 0 || !containsWord(SourcesValues, e.Source) || containsWord(m.Sources, e.Source)) &&
		(!imds.SameWord(m.VMs, "leader") || e.LedBy(self))
}

// usable returns an error that names a value which can't be one of that condition. Ignoring it would refuse every event.
func (r Rule) usable() error {
	for key, vms := range map[string]string{"only.vms": r.Only.VMs, "except.vms": r.Except.VMs} {
		if vms != "" && !containsWord(OwnVMsValues, vms) {
			return fmt.Errorf("%s is %q; expected self or leader", key, vms)
		}
	}
	return cmp.Or(
		knownWords("except.types", r.Except.Types, TypesValues),
		knownWords("only.sources", r.Only.Sources, SourcesValues),
		knownWords("except.sources", r.Except.Sources, SourcesValues),
	)
}
