package bridge

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// A ToldApproval is what the CloudEvents about an event have told of its approval. Others than its VMs know no more. The
// zero value is of an event of which nothing was told.
type ToldApproval struct {
	asked *cloudevent.Asked

	// Since the latest change.
	change    string // id of its CloudEvent
	notBefore time.Time
	approved  bool       // Azure took an approval: no rule is left to approve it
	vms       []toldByVM // in the order in which they told something
	last      int        // of vms: whose result is told if no rule stands
}

// A toldByVM is what one VM told.
type toldByVM struct {
	vm     string
	since  time.Time           // when it saw the latest change; zero if it has not told of that
	rules  []cloudevent.Rule   // that will approve it, or will if a sink that failed and is tried again succeeds
	result cloudevent.Approval // the last one; zero if there is none
}

// maxTold is how many VMs are kept, how many rules of those that a CloudEvent names, and how many sinks of each. So many
// rules are shown.
const maxTold = 20

// Note takes in a CloudEvent about the event. It ignores a copy of the latest change by a VM that has told something since,
// what comes of an approval after NotBefore has moved, and what came of one that a rule had decided before the change.
func (t *ToldApproval) Note(ce event.Event) {
	var d cloudevent.Data
	if json.Unmarshal(ce.Data(), &d) != nil {
		return
	}
	kind := imds.ChangeKind(strings.TrimPrefix(ce.Type(), cloudevent.EventPrefix))
	i := slices.IndexFunc(t.vms, func(v toldByVM) bool { return v.vm == d.Observer.Name })
	isCopy := kind.OfAzure() && ce.ID() == t.change
	if isCopy && i >= 0 {
		return
	}
	var result cloudevent.Approval
	if d.Approval != nil {
		result = *d.Approval
	}
	switch {
	case !isCopy:
		t.noteAsked(kind, d.Asked, result)
	case t.asked == nil: // somebody asked before that VM had seen the event
		t.asked = d.Asked
	}
	byUser := !t.isRule(result.By)
	switch {
	case isCopy:
	case kind.OfAzure():
		*t, i = ToldApproval{asked: t.asked, change: ce.ID(), notBefore: d.NotBefore}, -1
	case !d.NotBefore.Equal(t.notBefore):
		return
	case result.Result == cloudevent.ResultUnanswered && byUser: // the rules stand
		return
	case !byUser && i >= 0 && result.Decided.Before(t.vms[i].since): // a rule decided it before the change
		return
	}
	t.approved = t.approved || result.Result == cloudevent.ResultApproved
	if i < 0 {
		if len(t.vms) == maxTold {
			return
		}
		i, t.vms = len(t.vms), append(t.vms, toldByVM{vm: d.Observer.Name})
	}
	if kind.OfAzure() {
		t.vms[i].since = ce.Time()
	}
	t.vms[i].note(d.Rules, result)
	// What a user of one VM is refused says nothing of the rules of another.
	if result.Result != "" && (result.Result != cloudevent.ResultRefused || !byUser || t.vms[t.last].result.Result == "") {
		t.last = i
	}
}

// note takes in the rules that the VM tells now, and what came of an approval, if that is told too.
func (v *toldByVM) note(rules []cloudevent.Rule, result cloudevent.Approval) {
	before := v.rules
	v.rules = nil
	for _, r := range rules[:min(len(rules), maxTold)] {
		r.After = slices.Clone(r.After[:min(len(r.After), maxTold)])
		v.rules = append(v.rules, r)
	}
	if result.Result != "" { // a reminder tells of rules only
		v.result = result
	}
	if result.NotYet && result.Sink != "" && len(v.rules) == 0 {
		v.rules = triedAgain(before, result)
	}
}

// triedAgain returns, of the rules that were told, those that still approve the event if the sink that failed succeeds.
func triedAgain(rules []cloudevent.Rule, withheld cloudevent.Approval) (possible []cloudevent.Rule) {
	for _, r := range rules {
		if slices.Contains(r.After, withheld.Sink) {
			r.Again = withheld.Sink
			possible = append(possible, r)
		}
	}
	if len(possible) == 0 { // nobody told of any
		possible = []cloudevent.Rule{{Name: withheld.By, After: []string{withheld.Sink}, Again: withheld.Sink}}
	}
	return possible
}

// noteAsked takes in who has asked Azure to start the event. A VM that knows of nobody says nothing about what another
// has asked for; but what it says of its own answer holds.
func (t *ToldApproval) noteAsked(kind imds.ChangeKind, asked *cloudevent.Asked, result cloudevent.Approval) {
	refused := result.Result == cloudevent.ResultRefused && t.asked != nil && t.asked.By == result.By
	if asked != nil || refused || kind == imds.Vanished {
		t.asked = asked
	}
}

// isRule reports whether one of the rules that a VM told has the name.
func (t *ToldApproval) isRule(name string) bool {
	return slices.ContainsFunc(t.vms, func(v toldByVM) bool {
		return slices.ContainsFunc(v.rules, func(r cloudevent.Rule) bool { return r.Name == name })
	})
}

// Tell puts it into the status of the event, in the words of the VM's own status.
func (t *ToldApproval) Tell(s *EventStatus) {
	s.Asked = t.asked
	var reasons []string
	for _, v := range t.vms {
		for _, r := range v.rules {
			i := slices.IndexFunc(s.Rules, func(other cloudevent.Rule) bool { return alike(r, other) })
			switch {
			case !t.stands(r):
			case i >= 0: // either approves it
				if r.From.Before(s.Rules[i].From) {
					s.Rules[i].From = r.From
				}
			case len(s.Rules) < maxTold:
				s.Rules, reasons = append(s.Rules, r), append(reasons, v.why(r))
			}
		}
	}
	if s.Known.Status == imds.StatusStarted {
		return // nothing is left to approve
	}
	if len(reasons) > 0 {
		s.Approval = strings.Join(reasons, "; ")
		s.NotYet = slices.ContainsFunc(s.Rules, func(r cloudevent.Rule) bool { return r.VM == "" })
		return
	}
	if len(t.vms) == 0 {
		return
	}
	last := t.vms[t.last]
	switch r := last.result; r.Result {
	case cloudevent.ResultRefused:
		s.Approval = refusedBy(r.By)
	case cloudevent.ResultWithheld, cloudevent.ResultMoot:
		s.Approval, s.NotYet = withheldBecause(r), r.NotYet
	}
	if s.Approval != "" && last.vm != "" && len(s.Known.Resources) > 1 { // rules of the other VMs may approve it
		s.Approval = "on " + imds.Printable(last.vm, 60) + ": " + s.Approval
	}
}

// stands reports whether a rule that a VM told may still approve the event. Of one that is left to another VM, what that
// has told says more.
func (t *ToldApproval) stands(r cloudevent.Rule) bool {
	leftToOneThatTold := r.VM != "" && slices.ContainsFunc(t.vms, func(v toldByVM) bool { return imds.SameVM(r.VM, v.vm) })
	return !t.approved && !leftToOneThatTold
}

// alike reports whether two rules differ at most in when they can approve.
func alike(a, b cloudevent.Rule) bool {
	return a.Name == b.Name && a.Wait == b.Wait && a.Again == b.Again && a.VM == b.VM && slices.Equal(a.After, b.After)
}

// why says what one of its rules waits for.
func (v toldByVM) why(r cloudevent.Rule) string {
	why := r.Name + ": " + awaits(r)
	if r.Again != "" && r.Again == v.result.Sink && v.result.Error != "" {
		why += ": " + delivery.WithoutClass(v.result.Error)
	}
	return why
}

// refusedBy says that Azure refused what a rule or a user asked for.
func refusedBy(by string) string { return by + ": Azure refused the approval" }

// withheldBecause says why a rule doesn't approve, with its name.
func withheldBecause(a cloudevent.Approval) string {
	switch {
	case a.Sink != "":
		return a.By + ": " + failedFor(a.Sink, a.Error, !a.NotYet)
	case strings.HasPrefix(a.Error, a.By): // it names the rule already
		return a.Error
	}
	return a.By + ": " + a.Error
}

// failedFor says why a sink failed, for good or not.
func failedFor(sink, why string, final bool) string {
	text := fmt.Sprintf("sink %q failed", sink)
	if !final {
		text += " and is tried again"
	}
	if why != "" {
		text += ": " + delivery.WithoutClass(why)
	}
	return text
}

// awaits says what a rule waits for that will approve an event.
func awaits(r cloudevent.Rule) string {
	wait := delivery.Readable(time.Duration(r.Wait * float64(time.Second)))
	var sinks []string
	for _, name := range r.After {
		sinks = append(sinks, fmt.Sprintf("sink %q", name))
	}
	switch {
	case r.VM != "":
		return leftTo(r.VM)
	case r.Again != "":
		return failedFor(r.Again, "", false)
	case len(sinks) == 0 && r.Wait == 0:
		return "it approves at once"
	case len(sinks) == 0:
		return "it waits " + wait
	case r.Wait == 0:
		return waitsFor(sinks...)
	}
	return waitsFor(sinks...) + ", then " + wait
}

// waitsFor says that a rule waits for sinks.
func waitsFor(sinks ...string) string { return "it waits for " + strings.Join(sinks, " and ") }

// leftTo says that a rule leaves an event to its first VM.
func leftTo(vm string) string {
	return fmt.Sprintf("it is left to %s, which Azure names first (only.vms)", imds.Printable(vm, 60))
}
