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
	rules     []cloudevent.Rule   // that will approve it, or will if a sink that failed and is tried again succeeds
	result    cloudevent.Approval // the last one; zero if there is none
	vm        string              // that told the result and the rules; "" without either
}

// maxTold is how many rules are kept of those that a CloudEvent names, and how many sinks of each.
const maxTold = 20

// Note takes in a CloudEvent about the event. It ignores another VM's copy of the latest change, and what comes of an
// approval after NotBefore has moved.
func (t *ToldApproval) Note(ce event.Event) {
	var d cloudevent.Data
	if json.Unmarshal(ce.Data(), &d) != nil {
		return
	}
	kind := imds.ChangeKind(strings.TrimPrefix(ce.Type(), cloudevent.EventPrefix))
	if kind.OfAzure() && ce.ID() == t.change {
		return
	}
	var result cloudevent.Approval
	if d.Approval != nil {
		result = *d.Approval
	}
	t.noteAsked(kind, d.Asked, result)
	switch {
	case kind.OfAzure():
		t.change, t.notBefore = ce.ID(), d.NotBefore
	case !d.NotBefore.Equal(t.notBefore):
		return
	case result.Result == cloudevent.ResultUnanswered && !isRule(result.By, t.rules): // what a user asks for; the rules stand
		return
	case t.vm != "" && t.vm != d.Observer.Name && (kind == imds.Reminder || result.Result == cloudevent.ResultRefused):
		return // it knows nothing of the rules of another VM
	}
	before := t.rules
	t.rules = nil
	for _, r := range d.Rules[:min(len(d.Rules), maxTold)] {
		r.After = slices.Clone(r.After[:min(len(r.After), maxTold)])
		t.rules = append(t.rules, r)
	}
	if kind != imds.Reminder { // which tells of rules only
		t.result = result
	}
	t.vm = ""
	if t.result.Result != "" || len(t.rules) > 0 {
		t.vm = d.Observer.Name
	}
	if result.NotYet && result.Sink != "" && len(t.rules) == 0 {
		t.rules = triedAgain(before, result)
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

// isRule reports whether one of the rules has the name.
func isRule(name string, rules []cloudevent.Rule) bool {
	return slices.ContainsFunc(rules, func(r cloudevent.Rule) bool { return r.Name == name })
}

// Tell puts it into the status of the event, in the words of the VM's own status.
func (t *ToldApproval) Tell(s *EventStatus) {
	s.Asked, s.Rules = t.asked, t.rules
	if s.Known.Status == imds.StatusStarted {
		return // nothing is left to approve
	}
	r := t.result
	switch r.Result {
	case cloudevent.ResultRefused:
		s.Approval = refusedBy(r.By)
	case cloudevent.ResultWithheld, cloudevent.ResultMoot:
		s.Approval, s.NotYet = withheldBecause(r), r.NotYet
	}
	if s.Approval != "" && t.vm != "" && len(s.Known.Resources) > 1 { // rules of the other VMs may approve it
		s.Approval = "on " + imds.Printable(t.vm, 60) + ": " + s.Approval
	}
	var reasons []string
	for _, rule := range t.rules {
		why := rule.Name + ": " + awaits(rule)
		if rule.Again != "" && rule.Again == r.Sink && r.Error != "" {
			why += ": " + delivery.WithoutClass(r.Error)
		}
		reasons = append(reasons, why)
		s.NotYet = s.NotYet || rule.VM == ""
	}
	if len(reasons) > 0 {
		s.Approval = strings.Join(reasons, "; ")
	}
}

// refusedBy says that Azure refused what a rule or a user asked for.
func refusedBy(by string) string { return by + ": Azure refused the approval" }

// withheldBecause says why a rule doesn't approve, with its name.
func withheldBecause(a cloudevent.Approval) string {
	switch {
	case a.Sink != "":
		return sinkFailed(a.By, a.Sink, a.Error, !a.NotYet)
	case strings.HasPrefix(a.Error, a.By): // it names the rule already
		return a.Error
	}
	return a.By + ": " + a.Error
}

// sinkFailed says that a sink which a rule waits for failed, for good or not.
func sinkFailed(rule, sink, why string, final bool) string {
	return rule + ": " + failedFor(sink, why, final)
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
		return waitsFor(fmt.Sprintf("sink %q", r.Again)) + ", which failed and is tried again"
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
