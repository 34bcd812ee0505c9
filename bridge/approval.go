package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// approveEvery is how often the rules are asked.
const approveEvery = time.Second

// decision is an approval that is owed: kept with the event until it is sent or moot. One by hand is not owed, because
// whoever asked waits for the answer; it is kept once it is done.
type decision struct {
	Seq      uint64    `json:"seq"`  // of the change that it was decided about
	Rule     int       `json:"rule"` // counted from 1; 0 by hand
	Decided  time.Time `json:"decided"`
	Attempts int       `json:"attempts"`
	Next     time.Time `json:"next,omitzero"`
	Done     bool      `json:"done,omitempty"`

	// How it ended, once it is done.
	Result string    `json:"result,omitempty"`
	By     string    `json:"by,omitempty"`
	Ended  time.Time `json:"ended,omitzero"`
}

// owed says whether the approval is still to be sent.
func (d *decision) owed() bool { return d != nil && !d.Done }

// by names the rule that decided.
func (d *decision) by() string { return fmt.Sprintf("rule %d", d.Rule) }

// approve asks the rules, and sends what they decide, until ctx is done.
func (b *Bridge) approve(ctx context.Context) {
	tick := time.NewTicker(approveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		b.turned(&b.approving)
		b.mu.Lock()
		rules := len(b.rules) > 0
		maps.DeleteFunc(b.rulings, func(id, _ string) bool { return !rules || !b.events.open(id) })
		maps.DeleteFunc(b.waits, func(id string, _ wait) bool { return !b.events.open(id) })
		b.mu.Unlock()
		for _, id := range b.events.toApprove(rules) {
			b.approveEvent(ctx, id)
			b.turned(&b.approving)
		}
	}
}

// approveEvent takes the next step towards the approval of one event, if there is any. It goes by what is known and
// wanted now: Azure may have been long about the event before it.
func (b *Bridge) approveEvent(ctx context.Context, id string) {
	e, op, open := b.events.get(id)
	rules, byHand := b.approvers(id)
	if !open || byHand { // if that does not succeed, it comes to the rules after all
		return
	}
	d, now := op.Approval, time.Now()
	switch {
	case d.owed() && (d.Seq != op.Latest || e.Status != imds.StatusScheduled):
		b.endApproval(e, op, *d, d.by(), cloudevent.Approval{Result: cloudevent.ResultMoot, Error: "the event changed"})
		return
	case !d.owed() && (len(rules) == 0 || e.Status != imds.StatusScheduled || d != nil && d.Seq == op.Latest):
		b.noteRuling(id, "", true) // there is nothing left to decide
		return
	case d.owed() && now.Before(d.Next):
		return
	}
	var ce *event.Event
	if asksWhen(rules) {
		ce = b.cloudEvent(op.Latest)
	}
	rule, why, final := b.ruling(rules, e, op, ce, now)
	b.keepWaited(id, now)
	b.noteRuling(id, why, final)
	switch {
	case rule == 0 && d.owed() && b.Outbox.Durable() == nil:
		b.endApproval(e, op, *d, d.by(), cloudevent.Approval{Result: cloudevent.ResultMoot,
			Error: "the rule is gone, or does not want it any more"})
	case rule == 0:
	case !d.owed():
		decided := decision{Seq: op.Latest, Rule: rule, Decided: now.UTC()}
		if !b.keepDecision(e, decided) {
			return
		}
		b.Log.Info("an event will be approved", "event", id, "rule", rule)
		b.sendApproval(ctx, e, op, decided)
	default:
		again := *d
		again.Rule = rule // a reload may have moved it
		b.sendApproval(ctx, e, op, again)
	}
}

// approvers are who may approve the event now: the rules, unless somebody does by hand.
func (b *Bridge) approvers(id string) (rules []Rule, byHand bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rules, b.byHand[id] > 0
}

// asksWhen says whether one of the rules looks at the CloudEvent of an event's newest change. Events are asked about
// every second, so it is read only then.
func asksWhen(rules []Rule) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.Filter.When != nil })
}

// ruling is the number of the first rule that approves, counted from 1, or 0 and why none does, "" if none is for the
// event; final says that none will, as long as the event stays as it is. ce is the CloudEvent of its newest change if a
// rule looks at it, nil also if it can't be read.
func (b *Bridge) ruling(
	rules []Rule, e imds.Event, op openEvent, ce *event.Event, now time.Time,
) (rule int, why string, final bool) {
	if err := b.Outbox.Durable(); err != nil {
		return 0, "the outbox is not durable: " + err.Error(), false
	}
	var reasons []string
	final = true
	for i, r := range rules {
		said := b.says(r, e, op, ce, now)
		if said.approve {
			return i + 1, "", true
		}
		final = final && said.final
		if said.notForIt {
			continue
		}
		reasons = append(reasons, fmt.Sprintf("rule %d: %s", i+1, said.why))
	}
	return 0, strings.Join(reasons, "; "), final
}

// says is what a rule says about an event as it is now.
func (b *Bridge) says(r Rule, e imds.Event, op openEvent, ce *event.Event, now time.Time) ruling {
	var fields map[string]any
	if r.Filter.When != nil {
		if ce == nil {
			return no("its CloudEvent can't be read")
		}
		fields = cloudevent.Fields(*ce)
	}
	told := func(route string) acceptance {
		a := b.acceptance(route, op.Latest)
		if a.state == wasAccepted {
			a.since = b.since(e.ID, op, route, now)
		}
		return a
	}
	return r.rule(e, fields, b.approverName(), told, b.since(e.ID, op, "", now), now)
}

// Foresee says what the rules, which need not be those of the Bridge, would decide about an open event as it is now.
// It approves nothing. Of an event that is not open it says nothing.
func (b *Bridge) Foresee(rules []Rule, id string) ([]Forecast, error) {
	e, op, open := b.events.get(id)
	if !open {
		return nil, nil
	}
	ce := b.cloudEvent(op.Latest)
	if ce == nil {
		return nil, errors.New("its CloudEvent can't be read")
	}
	told := func(sink string) bool {
		s := b.acceptance(sink, op.Latest).state
		return s == stillPending || s == wasAccepted
	}
	return Foresee(rules, e, cloudevent.Fields(*ce), b.approverName(), told), nil
}

// noteRuling keeps why an event is not approved, for status, and logs it when it is news.
func (b *Bridge) noteRuling(id, why string, final bool) {
	b.mu.Lock()
	news := b.rulings[id] != why
	b.rulings[id] = why
	b.mu.Unlock()
	switch {
	case !news || why == "":
	case final:
		b.Log.Info("an event is not approved", "event", id, "why", why)
	default:
		b.Log.Info("an event is not approved yet", "event", id, "why", why)
	}
}

// sendApproval sends what was decided, after another look at the document, and at the rules, because that look may take
// long. The attempt is on disk before it is made, so that nobody takes the event for one that was never approved.
func (b *Bridge) sendApproval(ctx context.Context, e imds.Event, op openEvent, d decision) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	doc, err := b.Client.Document(ctx)
	if err == nil {
		if changedSince(e, doc) != "" {
			return // the poll loop finds it too, and this ends then
		}
		d.Attempts++
		if !b.keepDecision(e, d) {
			return // the next turn finds out what that means
		}
		var status string
		status, err = b.Client.Approve(ctx, doc, e)
		var refused *imds.RefusedError
		switch {
		case err == nil:
			b.endApproval(e, op, d, d.by(), cloudevent.Approval{Result: cloudevent.ResultApproved, Status: status})
			return
		case errors.As(err, &refused):
			b.endApproval(e, op, d, d.by(), cloudevent.Approval{Result: cloudevent.ResultRefused, Status: refused.Status,
				Error: err.Error()})
			return
		}
	}
	wait := pollBackoff[min(d.Attempts+1, len(pollBackoff))-1]
	d.Next = time.Now().Add(b.jitter(wait)).UTC()
	b.Log.Warn("an approval could not be sent, will be tried again", "event", e.ID, "err", err, "next", d.Next)
	b.keepDecision(e, d)
}

// changedSince says how the document differs from the event as it was decided about; "" if it does not.
func changedSince(e imds.Event, doc imds.Document) string {
	i := slices.IndexFunc(doc.Events, func(other imds.Event) bool { return other.ID == e.ID })
	switch {
	case i < 0:
		return "it is not listed any more"
	case doc.Events[i].Status != imds.StatusScheduled:
		return "it is " + doc.Events[i].Status
	case len(imds.Diff([]imds.Event{e}, imds.Document{Events: doc.Events[i : i+1], APIVersion: doc.APIVersion})) > 0:
		return "it changed"
	}
	return ""
}

// keepDecision puts a decision on disk, if the event is as it was, the rules still decide so, and nobody approves it
// by hand or did so meanwhile. It returns false if not, or if the disk does not take it.
func (b *Bridge) keepDecision(e imds.Event, d decision) bool {
	return b.keep(e.ID, func(op *openEvent, ce *event.Event) bool {
		rules, byHand := b.approvers(e.ID)
		if was := op.Approval; op.Latest != d.Seq || byHand || was != nil && was.Done && was.Seq == d.Seq {
			return false
		}
		if rule, _, _ := b.ruling(rules, e, *op, ce, time.Now()); rule != d.Rule {
			return false
		}
		op.Approval, op.Approved = &d, op.Approved || d.Attempts > 0
		return true
	})
}

// keep puts what change makes of an open event on disk, if change wants it. It returns false if not, if the event is
// over, or if the disk does not take it. change is given the CloudEvent of the newest change too, nil if no rule looks at
// it or it can't be read.
func (b *Bridge) keep(id string, change func(*openEvent, *event.Event) bool) bool {
	var wait func() error
	need := func() []uint64 {
		_, op, ok := b.events.get(id)
		if rules, _ := b.approvers(id); !ok || !asksWhen(rules) {
			return nil
		}
		return []uint64{op.Latest}
	}
	b.decide(need, func(read cloudEvents) {
		if _, op, ok := b.events.get(id); ok && change(&op, read[op.Latest]) {
			wait = b.commit(commit{open: map[string]*openEvent{id: &op}}, time.Now())
		}
	})
	if wait == nil {
		return false
	}
	if err := wait(); err != nil {
		b.Log.Error("an approval waits for the disk", "event", id, "err", err)
		return false
	}
	return true
}

// endApproval records how an approval ended, and tells of it. It returns what is on record. One by hand that did not
// succeed leaves to the rules what they decided.
func (b *Bridge) endApproval(e imds.Event, op openEvent, d decision, by string, a cloudevent.Approval,
) cloudevent.Approval {
	a, wait := b.submitApproval(e, op, d, by, a)
	_ = wait() // the outbox says when it can't write
	return a
}

func (b *Bridge) submitApproval(e imds.Event, op openEvent, d decision, by string, a cloudevent.Approval,
) (cloudevent.Approval, func() error) {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	now := time.Now()
	a.By, a.Decided, a.Attempts, a.After = by, d.Decided, d.Attempts,
		now.Sub(op.First).Round(100*time.Millisecond).Seconds()
	c := commit{open: map[string]*openEvent{}, Batch: outbox.Batch{Marks: map[string]outbox.Mark{}}}
	_, current, ok := b.events.get(e.ID)
	if d.Rule != 0 && a.Result == cloudevent.ResultMoot && !(ok && current.Approval.owed()) {
		return a, func() error { return nil } // the event vanished meanwhile, and that has said so
	}
	if ok {
		op = current
		if d.Rule == 0 {
			d.Seq = op.Latest // Azure was asked about the event as it is now
		}
		if d.Rule != 0 || a.Result == cloudevent.ResultApproved || a.Result == cloudevent.ResultMoot {
			d.Done, d.Result, d.By, d.Ended = true, a.Result, by, now.UTC()
			op.Approval = &d
		}
		op.Said, op.Approved = now, op.Approved || d.Attempts > 0
		c.open[e.ID] = &op
	}
	b.scene(moment{now: now}).addApproval(&c, e, op, a)
	return a, b.commit(c, now)
}

// mootApproval is on record of an approval that was decided by a rule and never sent.
func mootApproval(op openEvent, now time.Time, why string) cloudevent.Approval {
	return cloudevent.Approval{
		Result: cloudevent.ResultMoot, By: op.Approval.by(), Decided: op.Approval.Decided, Attempts: op.Approval.Attempts,
		Error: why,
		After: now.Sub(op.First).Round(100 * time.Millisecond).Seconds(),
	}
}

// ApproveNow approves the event with that id because somebody wants it to begin now, whatever the rules. shown is the
// Digest of the event as that person saw it: an event that differs is not approved. by is who; it goes on record. The
// Bridge need not run: what came of it then waits in the outbox.
func (b *Bridge) ApproveNow(ctx context.Context, id, shown, by string) cloudevent.Approval {
	d := decision{Decided: time.Now().UTC()}
	ctx, undo, ok := b.attend(ctx, id)
	if !ok {
		return cloudevent.Approval{Result: cloudevent.ResultRefused, By: by, Decided: d.Decided, Error: errStopping.Error()}
	}
	defer undo()
	doc, err := b.Client.Document(ctx)
	if err != nil {
		return cloudevent.Approval{Result: cloudevent.ResultRefused, By: by, Decided: d.Decided, Error: err.Error()}
	}
	i := slices.IndexFunc(doc.Events, func(e imds.Event) bool { return e.ID == id })
	switch {
	case i < 0:
		return cloudevent.Approval{Result: cloudevent.ResultMoot, By: by, Decided: d.Decided,
			Error: "it is not listed any more"}
	case doc.Events[i].Status == imds.StatusStarted:
		return cloudevent.Approval{Result: cloudevent.ResultMoot, By: by, Decided: d.Decided, Error: "it has begun already"}
	case doc.Events[i].Digest() != shown:
		return cloudevent.Approval{Result: cloudevent.ResultMoot, By: by, Decided: d.Decided,
			Error: "it is not as it was shown any more"}
	}
	e := doc.Events[i]
	_, op, known := b.events.get(id)
	if !known {
		op.First = d.Decided
	}
	d.Attempts = 1
	// A disk that is full does not keep people from approving.
	b.keep(id, func(op *openEvent, _ *event.Event) bool { op.Approved = true; return true })
	a := cloudevent.Approval{Result: cloudevent.ResultApproved}
	a.Status, err = b.Client.Approve(ctx, doc, e)
	var refused *imds.RefusedError
	switch {
	case errors.As(err, &refused):
		a.Result, a.Status, a.Error = cloudevent.ResultRefused, refused.Status, err.Error()
	case err != nil:
		a.Result, a.Error = cloudevent.ResultUnanswered, err.Error()
	}
	return b.endApproval(e, op, d, by, a)
}

// attend keeps the rules from an event that somebody approves by hand, until it is undone. The outbox stays open until
// then, so that it takes the record; ctx ends when that would take too long. A Bridge that is stopping attends to
// nobody.
func (b *Bridge) attend(parent context.Context, id string) (ctx context.Context, undo func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopping {
		return parent, nil, false
	}
	ctx, end := b.running.begin(parent)
	b.byHand[id]++
	return ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.byHand[id]--; b.byHand[id] == 0 {
			delete(b.byHand, id)
		}
		end()
	}, true
}

// addApproval says how an approval ended as a CloudEvent, and puts it into the commit. It is owed to the routes that
// are owed the event; one that Azure refused also to those that hear of trouble.
func (s scene) addApproval(c *commit, e imds.Event, op openEvent, a cloudevent.Approval) {
	change := imds.Change{Kind: imds.Approved, Event: e}
	base := cloudevent.ChangeID(change)
	times := s.mark(e.ID, base).Times + 1
	in := s.circumstances(op)
	in.Repeat, in.Approval = times-1, &a
	ce, err := cloudevent.Wrap(change, in)
	if err != nil {
		s.log.Error("an approval cannot be told", "event", e.ID, "err", err)
		return
	}
	said := about(e, imds.Approved)
	for _, r := range s.routes {
		owesEvent := slices.Contains(op.Routes, r.Name) && r.Hears(change, s.observer.Name)
		if owesEvent || a.Result == cloudevent.ResultRefused && r.Terms.Bridge.Hears(cloudevent.SinkBlocked) {
			said.To = append(said.To, outbox.Recipient{Route: r.Name})
		}
	}
	s.log.Info("azure event", "change", imds.Approved, "event", e.ID, "type", e.Type, "result", a.Result, "by", a.By,
		"status", a.Status,
		"err", a.Error, "id", ce.ID(), "to", told(said))
	c.say(ce, said)
	c.Marks[base] = outbox.Mark{Times: times, Group: e.ID, At: s.now}
}

// Hears says whether the route, which is owed the event, wants what is said about it beside its own changes. One that
// acts does only when its filter names it.
func (r Route) Hears(c imds.Change, self string) bool {
	if r.Terms.Acts && len(r.Filter.Only.Changes) == 0 {
		return false
	}
	ok, _ := r.Filter.Change(c, self)
	return ok
}

// acceptance is what became of telling a route of a change.
func (b *Bridge) acceptance(route string, seq uint64) acceptance {
	switch o := b.Outbox.Outcome(route, seq); o.State {
	case "":
		return acceptance{state: neverTold}
	case outbox.StatePending:
		return acceptance{state: stillPending}
	case outbox.StateAccepted, outbox.StateSuperseded: // by a reminder of the same
		return acceptance{state: wasAccepted}
	}
	return acceptance{state: wasGivenUp}
}
