package bridge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// People who read of an event must know whether it starts by itself before its time. So the CloudEvent of a change says
// which rules will approve it, and when none does after all, another one says that.

// RuleName names a rule for people: by its name in the settings, else by its number, counted from 1.
func RuleName(number int, r Rule) string {
	if r.Name != "" {
		return fmt.Sprintf("rule %q", r.Name)
	}
	return fmt.Sprintf("rule %d", number)
}

// promises returns the rules that will approve an event, once the sinks that they name have accepted the change that ce
// is about and their wait is over. to are those who get it. Every doubt means that it is not promised.
func (s changeContext) promises(c imds.Change, ce event.Event, to []outbox.Recipient) (rules []cloudevent.Rule) {
	e := c.Event
	if c.Kind == imds.Vanished || !s.durable || e.Contradicted || len(s.rules) == 0 {
		return nil
	}
	gets := func(sink string) bool {
		return slices.ContainsFunc(to, func(r outbox.Recipient) bool { return r.Route == sink })
	}
	for _, f := range Forecasts(s.rules, e, cloudevent.Fields(ce), s.approver, gets) {
		if f.Approves {
			rules = append(rules, cloudevent.Rule{Name: f.Rule, After: f.After, Wait: f.Wait.Seconds()})
		}
	}
	return rules
}

// failingFor is how long what a promise needs may fail before people are told: a sink that it waits for, Azure's document
// or its answer. A drain that isn't done may well ask to be run again a few times.
const failingFor = time.Minute

// keepPromise looks after what people were told of an event that is not approved now: if no rule will approve it, or if
// what the rules need has failed for long, those who were told that it starts by itself are told why it does not. all is
// what the rules say.
func (b *Bridge) keepPromise(e imds.Event, op openEvent, all ruling) {
	if len(op.Promised) == 0 {
		return
	}
	now := time.Now()
	sink, failure := b.failedSink(op, all.final)
	switch {
	case all.final, b.Outbox.Durable() != nil:
	case sink != "" && now.Sub(op.Said) >= failingFor:
	case b.stuckFor(e.ID, op, all.onCourse, now) < failingFor:
		return
	}
	rule := op.Promised[0].Name
	a := cloudevent.Approval{Result: cloudevent.ResultWithheld, By: rule, Sink: sink, Error: failure}
	if sink == "" {
		a.Error = cmp.Or(strings.TrimPrefix(all.why, rule+": "), rule+" was removed from the settings")
	}
	b.withhold(e, op, a)
}

// failedSink returns a sink that failed, and why, if each of the promised rules waits for one that did; else "". With
// final, one that is tried again is not the reason.
func (b *Bridge) failedSink(op openEvent, final bool) (sink, why string) {
	failed := func(route string) bool { return b.failure(route, op.Latest, final) != "" }
	for _, r := range op.Promised {
		i := slices.IndexFunc(r.After, failed)
		if i < 0 {
			return "", ""
		}
		sink = cmp.Or(sink, r.After[i])
	}
	return sink, b.failure(sink, op.Latest, final)
}

// failure returns why a sink did not accept a change; "" if it did, or may yet.
func (b *Bridge) failure(sink string, seq uint64, final bool) string {
	said := b.Outbox.Failure(sink, seq)
	switch state := b.Outbox.Outcome(sink, seq).State; {
	case state == outbox.StateDropped:
		return "somebody dropped what it was to do"
	case said == "", state == outbox.StatePending && final:
		return ""
	case state == outbox.StatePending:
		return said + "; it is tried again"
	}
	return said
}

// withhold puts on record that the rules don't approve an event that they were to approve. It does nothing if the event
// has changed since it was seen as op, or if that is on record.
func (b *Bridge) withhold(e imds.Event, op openEvent, a cloudevent.Approval) {
	b.deciding.Lock()
	at := time.Now()
	_, now, open := b.events.get(e.ID)
	if !open || len(now.Promised) == 0 || now.Latest != op.Latest {
		b.deciding.Unlock()
		return
	}
	a.Decided, a.After = at.UTC(), at.Sub(now.Announced).Round(100*time.Millisecond).Seconds()
	now.Promised = nil
	c := commit{open: map[string]*openEvent{e.ID: &now}, Batch: outbox.Batch{Marks: map[string]outbox.Mark{}}}
	b.changeContext(observation{now: at}).addApproval(&c, e, now, a)
	wait := b.commit(c, at)
	b.deciding.Unlock()
	_ = wait() // the outbox logs its errors
}
