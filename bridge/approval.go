package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// approveEvery is the interval at which the rules are evaluated.
const approveEvery = time.Second

// approve evaluates the rules, and sends the approvals that they decide. After a start, and after a late file, it waits for
// the first valid answer: an event may be over by now.
func (b *Bridge) approve(ctx context.Context) {
	b.recordTurn(&b.lastApproving)
	b.mu.Lock()
	rules, current := len(b.rules) > 0, b.current
	b.mu.Unlock()
	if !current {
		return
	}
	b.reviews.forget(func(id string) bool { return b.events.get(id) != nil }, rules)
	for _, op := range b.events.all() {
		if rules || op.Approval.unsent() || len(op.Promised) > 0 {
			b.approveEvent(ctx, op.event.ID)
			b.recordTurn(&b.lastApproving)
		}
	}
}

// approveEvent takes the next step towards the approval of one event, if there is one. It reads the present state of
// the event and the rules, because the event before may have taken long.
func (b *Bridge) approveEvent(ctx context.Context, id string) {
	op := b.events.get(id)
	rules, byHand := b.approvers(id)
	if op == nil || byHand { // if the approval by hand fails, the rules get their turn
		return
	}
	e, d, now := op.event, op.Approval, time.Now()
	switch {
	case d.unsent() && d.Seq != op.latest.Seq:
		b.endApproval(e, op, *d, d.givenUp("the event changed"))
		return
	case !d.unsent() && (e.Status != imds.StatusScheduled || d.settles(op.latest.Seq)):
		b.noteRuling(id, "", false) // nothing left to decide here
		b.reviews.setPossible(id, op.latest.Seq, nil)
		return
	}
	all := b.verdicts(rules, op, now)
	b.reviews.setPossible(id, op.latest.Seq, all.possible())
	if d.unsent() && d.waits(now) && all.best() > never {
		why := b.reviews.get(id).why
		if why != "" && b.outbox.Durable() == nil { // else the next attempt finds out why
			b.keepPromise(op, all, why)
		}
		return
	}
	rule := all.approving()
	if rule == 0 || !d.unsent() { // else what kept the last attempt from being made stays, until one is made
		why := ""
		if rule == 0 {
			why = all.why(op.Promised, now, b.zone())
		}
		b.noteRuling(id, why, why != "" && all.best() >= undecided)
	}
	switch {
	case rule == 0 && d.unsent() && all.best() == never:
		b.endApproval(e, op, *d, d.givenUp("the rules no longer approve it"))
	case rule == 0:
		b.keepPromise(op, all, "")
	case !d.unsent():
		decided := decision{Seq: op.latest.Seq, Rule: rule, Decided: now.UTC(), By: RuleName(rule, rules[rule-1])}
		if !b.keepDecision(id, decided) {
			return
		}
		b.log.Info("approving event", "event", id, "by", decided.By)
		b.sendApproval(ctx, op, decided)
	default:
		again := *d
		again.Rule, again.By = rule, RuleName(rule, rules[rule-1]) // a reload may have renumbered or renamed it
		b.sendApproval(ctx, op, again)
	}
}

// approvers returns the rules, and whether somebody approves the event by hand now.
func (b *Bridge) approvers(id string) (rules []Rule, byHand bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rules, b.byHand[id] > 0
}

// verdicts applies the rules to the present state of an event.
func (b *Bridge) verdicts(rules []Rule, op *openEvent, now time.Time) (all verdicts) {
	var fields map[string]any
	if slices.ContainsFunc(rules, func(r Rule) bool { return r.When != nil }) {
		fields = cloudevent.Fields(op.latest.decode())
	}
	id, approver := op.event.ID, b.approverName()
	delivered := func(route string) acceptance { return b.acceptance(op, route, now) }
	for _, r := range rules {
		for _, route := range r.After { // its wait begins now, whatever else the rule still waits for
			delivered(route)
		}
	}
	doubt := b.reviews.get(id).doubt
	err := b.outbox.Durable()
	if err != nil {
		doubt = fmt.Sprintf("the outbox is not durable: %v", err)
	}
	all = judge(rules, op.event, fields, approver, delivered, b.reviews.firstSeen(id, op.latest.Seq, "", now), now)
	observer, _ := fields["observer"].(string)
	for i, v := range all {
		switch {
		case v.outlook == never:
		case v.When != nil && !imds.SameWord(observer, approver): // what it says of this VM is not known to be true
			all[i].ruling = no("the name of this VM was not known when the event was seen (when)")
		case doubt != "":
			all[i].ruling = notYet("%s", doubt)
		}
	}
	return all
}

// acceptance returns the state of a route's delivery of the latest change of an event.
func (b *Bridge) acceptance(op *openEvent, route string, now time.Time) acceptance {
	d := b.outbox.Delivery(route, op.latest.Seq)
	a := acceptance{state: d.State}
	switch {
	case !slices.Contains(op.Routes, route), d.FallbackFor != nil && !b.takes(route, op): // its filter leaves this out
		a = acceptance{}
	case d.State == outbox.StatePending:
		a = pendingFor(time.Time{}, d.Mute)
		a.failure = d.Error
	case d.State == outbox.StateDead:
		a.failure = cmp.Or(d.Error, d.Reason)
	case a.accepted():
		a.at = b.reviews.firstSeen(op.event.ID, op.latest.Seq, route, now)
	case slices.Contains(op.Waiting, route) && b.takes(route, op): // else it gets the announcement
		latest, _ := again(op.event, op.latest)
		b.mu.Lock()
		routes := b.routes
		b.mu.Unlock()
		a = planned(route, latest, op.Waiting, routes, b.outbox.Mutes())
	}
	if !a.accepted() {
		b.reviews.forgetAcceptance(op.event.ID, op.latest.Seq, route)
	}
	return a
}

// takes reports whether a route that gets the event takes its latest change, by its filter.
func (b *Bridge) takes(route string, op *openEvent) bool {
	change, self := cloudevent.ChangeOf(op.latest.decode()), b.self().Name
	b.mu.Lock()
	defer b.mu.Unlock()
	return takesChange(b.routes, route, change, self)
}

// Forecasts returns what rules, which need not be those of the Bridge, would decide about an event now. It approves
// nothing. For an event that is not open it returns nil.
func (b *Bridge) Forecasts(rules []Rule, id string) []Forecast {
	op := b.events.get(id)
	if op == nil {
		return nil
	}
	gets := func(sink string) (time.Time, bool) {
		a := b.acceptance(op, sink, time.Now())
		return a.at, a.state == outbox.StatePending || a.accepted()
	}
	return Forecasts(rules, op.event, cloudevent.Fields(op.latest.decode()), b.approverName(), gets, time.Now())
}

// noteRuling records why an event is not approved, and whether that may pass, for the status, and logs it if it is new.
func (b *Bridge) noteRuling(id, why string, notYet bool) {
	switch {
	case !b.reviews.setRuling(id, why, notYet), why == "":
	case notYet:
		b.log.Info("event not approved yet", "event", id, "why", why)
	default:
		b.log.Info("event not approved", "event", id, "why", why)
	}
}

// lookHolds is how long a look at the document counts as one right before an approval: the write between them may be slow.
const lookHolds = time.Second

// errDecideAnew says that an approval isn't sent now, because the event or the rules are no longer what they were when it was
// decided, or that can't be recorded: the next turn decides again.
var errDecideAnew = errors.New("the approval is to be decided anew")

// sendApproval makes an attempt to send an approval, and records what came of it.
func (b *Bridge) sendApproval(ctx context.Context, op *openEvent, d decision) {
	e := op.event
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, noAnswer(answerTimeout))
	defer cancel()
	problem := "approval not sent; trying again"
	doc, err := b.prepareAttempt(ctx, op, d)
	if err == nil {
		problem = "approval sent, but not answered; trying again"
		d.Attempts++
		var answer cloudevent.Approval
		answer, err = b.askAzure(ctx, doc, e)
		if err == nil {
			b.endApproval(e, op, d, answer)
			return
		}
	}
	if errors.Is(err, errDecideAnew) {
		return
	}
	d.Failures++
	wait := pollBackoff[min(d.Failures, len(pollBackoff))-1]
	d.Next = time.Now().Add(b.jitter(wait)).UTC()
	said := "the approval can't be sent"
	if d.Attempts > 0 {
		said = "Azure hasn't answered the approval"
	}
	b.reviews.setRuling(e.ID, fmt.Sprintf("%s (attempts: %d): %v; it is tried again", said, d.Failures, err), true)
	b.log.Warn(problem, "event", e.ID, "err", err, "next", d.Next)
	b.keepDecision(e.ID, d)
}

// prepareAttempt returns the document by which an approval may be sent now. It reads it right before, and evaluates the rules
// again, because reading may take long. The attempt is recorded on disk before it is made, so that a crash cannot hide it,
// and taken back if it isn't made after all: because the event or the rules have changed while it was written, or it can't be.
func (b *Bridge) prepareAttempt(ctx context.Context, op *openEvent, d decision) (imds.Document, error) {
	doc, err := b.lastLook(ctx, op.event, d)
	if err != nil {
		return doc, err
	}
	looked, tried := time.Now(), d
	tried.Attempts++
	switch {
	case !b.keepDecision(op.event.ID, tried):
		err = errDecideAnew
	case time.Since(looked) > lookHolds:
		doc, err = b.lastLook(ctx, op.event, d)
	}
	if err == nil && !b.stands(b.events.get(op.event.ID), tried) {
		err = errDecideAnew
	}
	if err != nil {
		b.takeBack(op.event.ID, d)
	}
	return doc, err
}

// lastLook reads the document right before an approval. If that leaves a doubt, which the poll loop will see too, the
// approval waits or becomes moot.
func (b *Bridge) lastLook(ctx context.Context, e imds.Event, d decision) (imds.Document, error) {
	doc, err := b.client.Document(ctx)
	if err != nil {
		return doc, err
	}
	doubt := doubtOf(e, doc)
	if doubt != "" {
		b.noteDoubt(e.ID, doubt)
		b.noteRuling(e.ID, d.By+": "+doubt, true)
		err = errDecideAnew
	}
	return doc, err
}

// takeBack puts on record that an attempt to send a decision was not made after all.
func (b *Bridge) takeBack(id string, d decision) {
	b.update(func() (c commit) {
		op := b.events.get(id)
		if op == nil || !op.Approval.unsent() || op.Approval.Seq != d.Seq {
			return c
		}
		c.change(op).Approval = &d
		return c
	})
}

// askAzure asks Azure to approve the event, and returns its answer. After an error Azure may have taken the approval.
func (b *Bridge) askAzure(ctx context.Context, doc imds.Document, e imds.Event) (cloudevent.Approval, error) {
	status, err := b.client.Approve(ctx, doc, e)
	if refused, ok := errors.AsType[*imds.RefusedError](err); ok {
		return cloudevent.Approval{Result: cloudevent.ResultRefused, Status: refused.Status, Error: err.Error()}, nil
	}
	return cloudevent.Approval{Result: cloudevent.ResultApproved, Status: status}, err
}

// keepDecision writes a decision to disk, if it still stands. It returns false if not, or if the disk can't be written.
func (b *Bridge) keepDecision(id string, d decision) bool {
	return b.keep(id, func(op *openEvent) bool {
		if !b.stands(op, d) {
			return false
		}
		op.Approval = &d
		return true
	})
}

// stands reports whether a decision still holds: the event is open and has not changed, the rules decide so, and nobody
// approves or has approved it by hand.
func (b *Bridge) stands(op *openEvent, d decision) bool {
	if op == nil || op.latest.Seq != d.Seq || op.Approval.settles(d.Seq) {
		return false
	}
	rules, byHand := b.approvers(op.event.ID)
	return !byHand && b.verdicts(rules, op, time.Now()).approving() == d.Rule
}

// keep changes the state of an open event and writes it to disk. It returns false if change returns false, the event is
// over, or the disk can't be written.
func (b *Bridge) keep(id string, change func(*openEvent) bool) bool {
	changed := false
	wait := b.update(func() (c commit) {
		op := b.events.get(id)
		if op == nil {
			return c
		}
		next := op.clone()
		changed = change(next)
		if changed {
			c.setOpen(id, next)
		}
		return c
	})
	if !changed {
		return false
	}
	if err := wait(); err != nil {
		b.log.Error("approval waits until the outbox can be written", "event", id, "err", err)
		return false
	}
	return true
}

// endApproval records the result of an approval, and sends a CloudEvent about it. It returns the recorded approval. op is
// the state of the event, or what is known of one that isn't open. After an approval by hand that failed, the decision of a
// rule still stands.
func (b *Bridge) endApproval(e imds.Event, op *openEvent, d decision, a cloudevent.Approval) cloudevent.Approval {
	wait := b.update(func() (c commit) {
		now := time.Now()
		a = d.record(a, op, now)
		current := b.events.get(e.ID)
		givenUp := a.Result == cloudevent.ResultMoot || a.Result == cloudevent.ResultUnanswered
		if d.Rule != 0 && givenUp && (current == nil || !current.Approval.unsent()) {
			return c // the event vanished meanwhile, which has recorded that
		}
		s := b.situation(observation{now: now}, e)
		over := current == nil && op.event.ID != ""
		switch {
		case over:
			op = op.clone() // others read it
		case current == nil: // no document has shown it yet
			op = s.newState(e) // which knows who has asked before
		default:
			if current.event.Status == imds.StatusStarted { // since the approval was decided
				e = current.event
			}
			op = c.change(current)
			if d.Rule == 0 {
				d.Seq = op.latest.Seq // Azure was asked about the event as it is now
			}
		}
		op.decided(d, a, now)
		rules := b.reviews.get(e.ID).rules(op)
		if d.Rule != 0 { // this one and those beside it have had their turn
			rules = nil
		}
		if a.Result == cloudevent.ResultRefused {
			b.alert(&c, s, op)
			if stand := standingOf(rules); len(stand) > 0 { // people read of them now
				op.promise(stand)
			}
		}
		s.addApproval(&c, e, op, a, rules, over)
		return c
	})
	_ = wait() // the outbox logs its errors
	return a
}

// addApproval adds the CloudEvent about the result of an approval to the commit. The routes of the event get it, and those
// that were alerted. rules are those that may approve the event all the same. over means that the event is over.
func (s situation) addApproval(
	c *commit, e imds.Event, op *openEvent, a cloudevent.Approval, rules []cloudevent.Rule, over bool,
) {
	change := imds.Change{Kind: imds.Approved, Event: e}
	id := approvedID(e)
	in := s.circumstances(op)
	// The number begins with the time: a crash of what runs from memory forgets which numbers were used.
	times := max(s.marks[id].Times+1, int(s.now.UnixMilli()))
	in.Repeat, in.Approval = times-1, &a
	switch a.Result {
	case cloudevent.ResultWithheld, cloudevent.ResultRefused, cloudevent.ResultPromised:
		in.Rules = ownRules(rules)
	}
	ce, err := cloudevent.Wrap(change, in)
	if err != nil {
		c.log(slog.LevelError, "cannot create the CloudEvent of an approval", "event", e.ID, "err", err)
		return
	}
	message := about(e, imds.Approved)
	message.To = s.audience(s.routes, change, op, over)
	if !over {
		message.To = append(message.To, s.orphansOf(op)...)
	}
	c.log(slog.LevelInfo, "azure event", "change", imds.Approved, "event", e.ID, "type", e.Type, "result", a.Result,
		"by", a.By, "status", a.Status, "err", a.Error, "id", ce.ID(), "to", strings.Join(message.To, ","))
	c.add(ce, message)
	c.mark(e, id, times, s.now)
	asked := op.asked()
	if asked != nil { // a document may show the event only later, or once more
		mark := c.Marks[id]
		mark.Note = string(imds.CompactJSON(asked))
		c.Marks[id] = mark
	}
}
