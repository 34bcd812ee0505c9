package bridge

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
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

// promises returns the rules that will approve an event before it may begin, once the sinks that they name have
// accepted the change that ce and a are about and their wait is over. Every doubt means that it is not promised.
func (s situation) promises(c imds.Change, ce event.Event, a outbox.Addition, op *openEvent) []cloudevent.Rule {
	e := c.Event
	due := !e.NotBefore.IsZero() && !s.now.Before(e.NotBefore)
	approved := op.latest.Seq == 0 && op.Approval != nil // before it was seen
	doubt := !s.durable || s.partial || e.Contradicted
	if c.Kind == imds.Vanished || approved || doubt || due || isEviction(e) || len(s.rules) == 0 {
		return nil
	}
	describe(&a.Message, ce)
	delivered := func(sink string) acceptance {
		if !slices.Contains(op.Routes, sink) || !takesChange(s.routes, sink, c, s.self()) { // as in Bridge.acceptance
			return acceptance{}
		}
		return planned(sink, a, op.Waiting, s.routes, s.mutes)
	}
	return judge(s.rules, e, cloudevent.Fields(ce), s.approver, delivered, s.now, s.now).standing()
}

// isEviction reports whether the event is the eviction of a Spot VM. Half a minute ahead nobody has to know whether a rule
// lets it begin sooner.
func isEviction(e imds.Event) bool { return imds.SameWord(e.Type, "Preempt") }

// planned returns what a rule knows of a delivery that is about to be added, or that will be when the lead of its route
// has come, which is one of those that wait.
func planned(sink string, a outbox.Addition, waiting []string, routes []Route, mutes []*delivery.Mute) acceptance {
	i := slices.IndexFunc(routes, func(r Route) bool { return r.Name == sink })
	waits := slices.Contains(waiting, sink)
	if i < 0 || !waits && !slices.Contains(a.To, sink) {
		return acceptance{}
	}
	var lead time.Time
	if waits {
		lead = routes[i].LeadTime(imds.Scheduled, a.NotBefore)
	}
	forRoute := delivery.MutesFor(mutes, sink, routes[i].Terms.People)
	return pendingFor(lead, delivery.MuteOf(forRoute, &delivery.Item{Message: &a.Message}))
}

// pendingFor returns what a rule knows of a delivery that is pending, from a time on, and until any mute is over.
func pendingFor(from time.Time, mute *delivery.Mute) acceptance {
	a := acceptance{state: outbox.StatePending, at: from}
	if mute.Active() && mute.Until.After(from) {
		a.at, a.muted = mute.Until, true
	}
	return a
}

// verdicts are what the rules say about an event, in their order.
type verdicts []verdict

// that returns the verdicts for which is holds.
func (all verdicts) that(is func(verdict) bool) (found verdicts) {
	for _, v := range all {
		if is(v) {
			found = append(found, v)
		}
	}
	return found
}

// stands reports whether the rule approves the event, or will before it may begin.
func (v verdict) stands() bool { return v.outlook >= onCourse }

// standing returns the rules that stand, here or on the VM to which they leave the event.
func (all verdicts) standing() (rules []cloudevent.Rule) {
	for _, r := range all.possible() {
		if r.Again == "" {
			rules = append(rules, r)
		}
	}
	return rules
}

// possible returns the rules that stand, and those that will if a sink that failed and is tried again succeeds.
func (all verdicts) possible() (rules []cloudevent.Rule) {
	for _, v := range all {
		again := ""
		if v.outlook > never {
			again = v.sink
		}
		if v.stands() || v.leader != "" || again != "" {
			rules = append(rules, cloudevent.Rule{Name: v.name, After: v.After, Wait: v.Wait.Seconds(),
				From: v.from.Round(time.Second).UTC(), Again: again, VM: v.leader})
		}
	}
	return rules
}

// ownRules returns the rules without those of other VMs. Once an event is announced, their VM may have told more about
// them than this one can know.
func ownRules(rules []cloudevent.Rule) (own []cloudevent.Rule) {
	return slices.DeleteFunc(slices.Clone(rules), func(r cloudevent.Rule) bool { return r.VM != "" })
}

// standingOf returns the rules of this VM that don't depend on a sink that failed.
func standingOf(rules []cloudevent.Rule) []cloudevent.Rule {
	return slices.DeleteFunc(ownRules(rules), func(r cloudevent.Rule) bool { return r.Again != "" })
}

// approving returns the number of the first rule that approves, counted from 1; 0 for none.
func (all verdicts) approving() int {
	return 1 + slices.IndexFunc(all, func(v verdict) bool { return v.outlook == approves })
}

// best returns the best outlook of them.
func (all verdicts) best() (o outlook) {
	for _, v := range all {
		o = max(o, v.outlook)
	}
	return o
}

// named returns why the rule doesn't approve, with its name.
func (v verdict) named(now time.Time, zone *time.Location) string {
	if v.notFor != "" {
		return v.name + " is not for " + v.notFor
	}
	return v.name + ": " + v.reason(now, zone)
}

// why returns why no rule approves; "" if none is for the event, or was promised to approve it.
func (all verdicts) why(promised []cloudevent.Rule, now time.Time, zone *time.Location) string {
	var reasons []string
	for _, v := range all {
		isPromised := slices.ContainsFunc(promised, func(p cloudevent.Rule) bool { return p.Name == v.name })
		if isPromised || v.notFor == "" {
			reasons = append(reasons, v.named(now, zone))
		}
	}
	return strings.Join(reasons, "; ")
}

// successors returns the verdicts of what the rules that people were told of are by now, under the names that they were
// told.
func (all verdicts) successors(promised []cloudevent.Rule) (found verdicts) {
	for _, p := range promised {
		v := all.successor(p)
		v.name = p.Name
		found = append(found, v)
	}
	return found
}

// successor returns the verdict of what a promised rule is by now: that of the rule that waits for the same sinks, whatever
// it is called, else of the one of its given name, else that the settings no longer have it.
func (all verdicts) successor(p cloudevent.Rule) verdict {
	hasName := func(v verdict) bool { return v.name == p.Name }
	for _, is := range []func(verdict) bool{
		func(v verdict) bool { return hasName(v) && slices.Equal(v.After, p.After) },
		func(v verdict) bool { return v.notFor == "" && slices.Equal(v.After, p.After) },
		func(v verdict) bool { return hasName(v) && v.Rule.Name != "" },
	} {
		i := slices.IndexFunc(all, is)
		if i >= 0 {
			return all[i]
		}
	}
	r := no("%s was removed from the settings", p.Name)
	if slices.ContainsFunc(all, hasName) { // another one has its number
		r = no("%s was changed in the settings", p.Name)
	}
	r.gone = true
	return verdict{ruling: r}
}

// withheld returns the record that the rule doesn't approve the event, or not yet.
func (v verdict) withheld(now time.Time, zone *time.Location) cloudevent.Approval {
	a := cloudevent.Approval{Result: cloudevent.ResultWithheld, By: v.name, NotYet: v.outlook > never}
	switch {
	case v.sink != "":
		a.Sink, a.Error = v.sink, v.failure
	case v.notFor != "":
		a.Error = v.named(now, zone)
	default:
		a.Error = v.reason(now, zone)
	}
	return a
}

// withheld returns the record that these rules don't approve the event, or not yet, for the reason of the first. If others
// have reasons of their own, it names all.
func (all verdicts) withheld(now time.Time, zone *time.Location) cloudevent.Approval {
	a := all[0].withheld(now, zone)
	reasons := []string{withheldBecause(a)}
	for _, v := range all[1:] {
		other := v.withheld(now, zone)
		if other.Sink != a.Sink || other.Error != a.Error {
			reasons = append(reasons, withheldBecause(other))
		}
	}
	if len(reasons) > 1 {
		a.Sink, a.Error = "", strings.Join(reasons, "; ")
	}
	return a
}

// failingFor is how long what a promise needs may be off course before people are told: the disk, a sink that failed and is
// tried again, a mute, Azure's document or its answer. A drain that isn't done may well ask to be run again a few times.
const failingFor = time.Minute

// keepPromise looks after what people were told of an event that is not approved now. They are told if a rule that they
// were told of is no longer in the settings, or if none of this VM's rules will approve the event: at once when that is for
// good, otherwise once after failingFor, as something that may still pass. If they were told of none, or the latest change
// named none, and one has been on course for failingFor, they are told that. stuck is why an approval that the rules have
// made has no answer; "" if they have made none.
func (b *Bridge) keepPromise(op *openEvent, all verdicts, stuck string) {
	now, standing := time.Now(), ownRules(all.standing())
	if stuck != "" {
		standing = nil
	}
	since := b.reviews.steadyFor(op.event.ID, op.latest.Seq, len(standing) > 0, now)
	unannounced := len(op.Promised) == 0 || op.Unsaid
	if unannounced && len(standing) > 0 && since >= failingFor && op.asked() == nil && !isEviction(op.event) {
		b.retell(op, cloudevent.Approval{Result: cloudevent.ResultPromised, By: standing[0].Name}, standing)
		return
	}
	if len(op.Promised) == 0 {
		return
	}
	notYet := len(standing) == 0 && all.best() >= undecided
	if notYet && (op.NotYet || since < failingFor) {
		return
	}
	untrue := all.successors(op.Promised)
	if len(standing) > 0 {
		untrue = untrue.that(func(v verdict) bool { return v.gone })
	}
	if len(untrue) == 0 {
		return
	}
	if notYet && untrue.best() < undecided { // then what may pass keeps another rule, of which people know nothing
		untrue = append(untrue, all.that(func(v verdict) bool { return v.outlook >= undecided })...)
	}
	a := untrue.withheld(now, b.zone())
	a.NotYet = notYet
	if stuck != "" {
		a.Sink, a.Error = "", stuck
	}
	b.retell(op, a, standing)
}

// retell puts on record what else than was told the rules do about an event, and which ones stand. It does nothing if the
// event has changed since it was seen as op, or if that is on record.
func (b *Bridge) retell(op *openEvent, a cloudevent.Approval, standing []cloudevent.Rule) {
	wait := b.update(func() (c commit) {
		now, current := time.Now(), b.events.get(op.event.ID)
		if current == nil || len(current.Promised) != len(op.Promised) || current.latest.Seq != op.latest.Seq {
			return c
		}
		next := c.change(current)
		a.Decided, a.After = now.UTC(), next.openFor(now)
		if a.NotYet {
			next.NotYet, next.Unsaid = true, false
		} else {
			next.promise(standing)
		}
		s := b.situation(observation{now: now}, op.event)
		if a.Result == cloudevent.ResultWithheld {
			b.alert(&c, s, next)
		}
		s.addApproval(&c, op.event, next, a, standing, false)
		return c
	})
	_ = wait() // the outbox logs its errors
}
