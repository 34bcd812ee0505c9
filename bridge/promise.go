package bridge

import (
	"cmp"
	"fmt"
	"slices"
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
		return slices.ContainsFunc(to, func(r outbox.Recipient) bool { return r.Route == sink && !r.Held })
	}
	for _, f := range Forecasts(s.rules, e, cloudevent.Fields(ce), s.approver, gets) {
		if f.Approves {
			rules = append(rules, cloudevent.Rule{Name: f.Rule, After: f.After, Wait: f.Wait.Seconds()})
		}
	}
	return rules
}

// withhold tells those who were told that rules would approve the event that none does, and why. It does nothing if that
// was not promised, or if the event has changed since it was seen as op.
func (b *Bridge) withhold(e imds.Event, op openEvent, why string) {
	b.deciding.Lock()
	_, now, open := b.events.get(e.ID)
	if !open || len(now.Promised) == 0 || now.Latest != op.Latest {
		b.deciding.Unlock()
		return
	}
	at := time.Now()
	a := cloudevent.Approval{Result: cloudevent.ResultWithheld, By: now.Promised[0].Name, Decided: at.UTC(),
		Error: cmp.Or(why, "the settings no longer have such a rule")}
	if sink, failure := b.failedSink(now); sink != "" {
		a.Sink, a.Error = sink, failure
	}
	a.After = at.Sub(now.First).Round(100 * time.Millisecond).Seconds()
	now.Promised = nil
	c := commit{open: map[string]*openEvent{e.ID: &now}, Batch: outbox.Batch{Marks: map[string]outbox.Mark{}}}
	b.changeContext(observation{now: at}).addApproval(&c, e, now, a)
	wait := b.commit(c, at)
	b.deciding.Unlock()
	_ = wait() // the outbox logs its errors
}

// failedSink returns the first sink that a promised rule waits for in vain, and why it did not accept the event's latest
// change; "" if there is none.
func (b *Bridge) failedSink(op openEvent) (sink, why string) {
	for _, r := range op.Promised {
		for _, route := range r.After {
			if o := b.Outbox.Outcome(route, op.Latest); o.State == outbox.StateDead || o.State == outbox.StateDropped {
				return route, b.Outbox.WhyDead(route, op.Latest)
			}
		}
	}
	return "", ""
}
