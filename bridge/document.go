package bridge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// An observation is a valid answer, and the time since the one before.
type observation struct {
	now      time.Time
	before   time.Time     // the last valid answer; zero if there was none
	since    time.Duration // the time from that to now, see lastAnswer.age
	away     bool          // the bridge was down or without an answer for long
	rebooted bool          // the observer rebooted since
}

// A situation is all that decides, besides what happened, how it is said and who is told. It is gathered before, so that
// what decides reads nothing else.
type situation struct {
	observation
	common   cloudevent.Circumstances // of all CloudEvents
	booted   time.Time
	routes   []Route
	orphans  []string // routes that are gone from the settings, and keep their backlog
	rules    []Rule
	byHand   []string // the events that somebody is approving by hand
	mutes    []*delivery.Mute
	approver string                 // this VM, for rules; "" while that is not confirmed
	durable  bool                   // what is committed is on disk
	partial  bool                   // of the document: a part of it can't be read
	marks    map[string]outbox.Mark // of ids that were used before
}

// situation gathers what decides about these events. The caller holds deciding.
func (b *Bridge) situation(o observation, events ...imds.Event) situation {
	approver, durable, mutes := b.approverName(), b.outbox.Durable() == nil, b.outbox.Mutes()
	var orphans []string
	for name, s := range b.outbox.Stats() {
		if !s.Gone.IsZero() {
			orphans = append(orphans, name)
		}
	}
	slices.Sort(orphans)
	marks := map[string]outbox.Mark{}
	for _, e := range events {
		for _, id := range []string{e.ID, approvedID(e)} {
			marks[id] = b.outbox.Mark(e.ID, id)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	observer := b.observer
	observer.OSType = cmp.Or(observer.OSType, imds.ThisOS)
	return situation{
		observation: o, routes: b.routes, orphans: orphans, booted: b.options.Booted, rules: b.rules, mutes: mutes,
		byHand: slices.Collect(maps.Keys(b.byHand)), approver: approver, durable: durable, marks: marks,
		common: cloudevent.Circumstances{
			Observer: observer, Host: b.options.Host, Source: b.options.Source, Time: o.now,
		},
	}
}

// approvedID returns the id that all CloudEvents about the approval of an event begin with.
func approvedID(e imds.Event) string {
	return cloudevent.ChangeID(imds.Change{Kind: imds.Approved, Event: e})
}

// self returns the observer's name.
func (s situation) self() string { return s.common.Observer.Name }

// take takes in a valid answer: all that changes because of it is one batch. doc is nil if it brought no new document. take
// returns false unless all changes are on disk.
func (b *Bridge) take(doc *imds.Document, a lastAnswer, o observation) bool {
	whole, changed := true, false
	wait := b.update(func() (c commit) {
		known := b.events.all()
		var changes []imds.Change
		if doc != nil {
			changes, whole = b.differences(&c, known, *doc)
		}
		noteWatched(&c, known, doc, changes, o)
		if len(changes) > 0 {
			changed = true
			s := b.situationOf(o, changes)
			s.common.Incarnation, s.partial = doc.Incarnation, doc.Partial
			whole = s.decide(&c, known, changes) && whole
		}
		b.noteAnswer(&c, a, o)
		return c
	})
	if !changed {
		wait = b.outbox.Durable
	}
	return wait() == nil && whole
}

// differences returns the changes from the known events to a document. whole is false if some are left out because too many
// events are open, which is logged once.
func (b *Bridge) differences(c *commit, known []*openEvent, doc imds.Document) (changes []imds.Change, whole bool) {
	var events []imds.Event
	for _, op := range known {
		events = append(events, op.event)
	}
	found := imds.Diff(events, doc)
	changes = fitChanges(events, found)
	full := len(changes) < len(found)
	b.mu.Lock()
	defer b.mu.Unlock()
	if full && !b.imds.full {
		c.log(slog.LevelError, leftOut)
	}
	b.imds.full = full
	return changes, !full
}

// situationOf gathers what decides about changes. The caller holds deciding.
func (b *Bridge) situationOf(o observation, changes []imds.Change) situation {
	var events []imds.Event
	for _, change := range changes {
		events = append(events, change.Event)
	}
	s := b.situation(o, events...)
	for _, change := range changes {
		id := cloudevent.ChangeID(change)
		s.marks[id] = b.outbox.Mark(change.Event.ID, id)
	}
	return s
}

// noteAnswer adds the answer to the commit, once a minute and with what else changes: a crash before then must not hide a
// gap. The caller holds deciding.
func (b *Bridge) noteAnswer(c *commit, a lastAnswer, o observation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = a
	if len(c.open) > 0 || o.since > gapAbove || a.At.Sub(b.touched) >= touchEvery {
		b.touched = a.At
		c.Values = map[string][]byte{valueAnswer: imds.CompactJSON(a)}
	}
}

// noteWatched records with the known events the time since the last answer, and with those that a document doesn't change what
// it says of them.
func noteWatched(c *commit, known []*openEvent, doc *imds.Document, changes []imds.Change, o observation) {
	changed := map[string]bool{}
	for _, change := range changes {
		changed[change.Event.ID] = true
	}
	listed := map[string]*imds.Event{}
	if doc != nil {
		for i := range doc.Events {
			listed[doc.Events[i].ID] = &doc.Events[i]
		}
	}
	for _, op := range known {
		next := *op
		next.unwatched(o.since, o.rebooted)
		if doc != nil && !changed[op.event.ID] {
			next.listed(listed[op.event.ID], doc.Partial, o)
		}
		if next.Gap != op.Gap || next.Rebooted != op.Rebooted || next.lastListed != op.lastListed {
			c.setOpen(op.event.ID, next.clone())
		}
	}
}

// decide adds to a commit what changes of a document make of it: CloudEvents, who gets them, and the new states of the
// events. It returns false if one was left out.
func (s situation) decide(c *commit, known []*openEvent, changes []imds.Change) (whole bool) {
	byID := make(map[string]*openEvent, len(known))
	for _, op := range known {
		byID[op.event.ID] = op
	}
	whole = true
	for _, change := range changes {
		op := s.newState(change.Event)
		if was := byID[change.Event.ID]; was != nil {
			op = c.change(was).clone()
		}
		if err := s.tell(c, change, op); err != nil {
			c.log(slog.LevelError, "cannot create the CloudEvent of a change", "event", change.Event.ID, "change", change.Kind,
				"err", err)
			whole = false
		}
	}
	return whole
}

// newState returns the state of an event that is new. Somebody may have approved it by hand before the first poll that saw
// it. If Azure was asked to start it before it came back, nobody knows what came of that meanwhile: that is a gap.
func (s situation) newState(e imds.Event) *openEvent {
	approvals := s.marks[approvedID(e)]
	op := &openEvent{Occurrence: s.marks[e.ID].Times + 1, Announced: s.now, Gap: approvals.Note != ""}
	var asked cloudevent.Asked
	err := json.Unmarshal([]byte(approvals.Note), &asked)
	if err != nil || !asked.Time.After(s.marks[e.ID].At) { // nobody has asked for it, or that was before it came back
		return op
	}
	op.Asked = &asked
	if asked.Answered {
		op.Approval = &decision{By: asked.By, Decided: asked.Time, Result: cloudevent.ResultApproved}
	}
	return op
}

// tell says one change as a CloudEvent, decides which routes get it, and adds it to the commit. op is the state of the
// event before, which tell changes.
func (s situation) tell(c *commit, change imds.Change, op *openEvent) error {
	e := change.Event
	if e.Status == imds.StatusStarted && op.Begun.IsZero() {
		op.Begun = s.now
	}
	if op.Answer != nil && len(op.Waiting) > 0 {
		s.releaseAnswer(c, op)
	}
	if !change.Kind.Announces() {
		op.Waiting, op.Announcement = nil, nil
	}
	id := cloudevent.ChangeID(change)
	times := max(op.Occurrence, s.marks[id].Times+1)
	in := s.circumstances(op)
	in.Repeat = times - 1
	in.WhileAway, in.NotEarlierThan = s.unseen(op)
	if change.Kind == imds.Vanished {
		s.endUnsent(c, op)
		in.End = s.end(change, op)
	}
	ce, err := cloudevent.Wrap(change, in)
	if err != nil {
		return err
	}
	a := about(e, change.Kind)
	a.Replaced = change.Replaced
	waited := len(op.Waiting) > 0
	s.address(c, &a, s.routes, ce, change, op)
	a.To = append(a.To, s.orphansOf(op)...)
	if change.Kind == imds.Updated && waited && len(op.Waiting) > 0 && op.Announcement == nil {
		announcement := op.latest
		op.Announcement = &announcement
	}
	in.Rules = s.promises(change, ce, a, op)
	if len(in.Rules) > 0 || e.Status != imds.StatusScheduled {
		op.promise(in.Rules)
	} else {
		op.Unsaid = true
	}
	if len(in.Rules) > 0 {
		ce, err = cloudevent.Wrap(change, in)
		if err != nil {
			return err
		}
	}
	c.log(slog.LevelInfo, "azure event", facts(change, ce, a, op)...)
	c.add(ce, a)
	c.mark(e, id, times, s.now)
	c.mark(e, e.ID, op.Occurrence, s.now)
	if change.Kind == imds.Vanished {
		c.setOpen(e.ID, nil)
		return nil
	}
	op.Event, op.event, op.LatestAt, op.lastListed = e.Raw, e, s.now, time.Time{}
	op.Rebooted = op.Rebooted && !op.notBegun(e, s.now)
	c.setOpen(e.ID, op)
	return nil
}

// unseen reports whether a change of the event came while nobody watched it, and since when.
func (s situation) unseen(op *openEvent) (away bool, notEarlierThan time.Time) {
	switch {
	case !op.lastListed.IsZero():
		return true, op.lastListed
	case s.away:
		return true, s.before
	}
	return false, time.Time{}
}

// endUnsent puts on record that the event was over before its approval was sent, or answered.
func (s situation) endUnsent(c *commit, op *openEvent) {
	if op.Approval.unsent() {
		a := op.Approval.givenUp("the event is no longer listed")
		s.addApproval(c, op.event, op, op.Approval.record(a, op, s.now), nil, true)
	}
}

// facts returns what the log says of a change.
func facts(change imds.Change, ce event.Event, a outbox.Addition, op *openEvent) []any {
	e := change.Event
	all := []any{
		"change", change.Kind, "event", e.ID, "type", e.Type, "resources",
		imds.Printable(strings.Join(e.Resources, ","), 1<<10),
		"id", ce.ID(), "to", strings.Join(a.To, ","),
	}
	if len(op.Waiting) > 0 {
		all = append(all, "later", strings.Join(op.Waiting, ","))
	}
	if !e.NotBefore.IsZero() {
		all = append(all, "notBefore", e.NotBefore)
	}
	return all
}

// circumstances returns what all CloudEvents about an event have in common now. op is the state of the event.
func (s situation) circumstances(op *openEvent) cloudevent.Circumstances {
	in := s.common
	in.Announced, in.Begun, in.Asked = op.Announced, op.Begun, op.asked()
	return in
}

// end returns what is known for sure about the end of an event.
func (s situation) end(c imds.Change, op *openEvent) cloudevent.End {
	e := c.Event
	x := cloudevent.End{Outcome: cloudevent.OutcomeUnknown, LongestPause: op.LongestPause}
	if s.booted.After(op.Announced) {
		x.Back = s.booted
	}
	asked := op.asked() != nil || slices.Contains(s.byHand, e.ID)
	switch {
	case !op.Begun.IsZero(), op.Rebooted && e.Affects(s.self()):
		x.Outcome = cloudevent.OutcomeCompleted
	case c.Replaced: // it may continue under the other id
	case e.Status == imds.StatusScheduled && s.now.Before(e.NotBefore) && !op.Gap && !asked &&
		e.Type != "Preempt" && e.Type != "Terminate":
		x.Outcome = cloudevent.OutcomeCanceled
	}
	return x
}

// maxOpenBytes bounds the JSON of all open events together. Any single document is smaller.
const maxOpenBytes = 16 << 20

// leftOut is the log message and problem while changes are left out.
var leftOut = fmt.Sprintf("changes left out: %d events, or %d MiB of them, are open already",
	imds.MaxEvents, maxOpenBytes>>20)

// fitChanges returns the changes for which there is room beside the known events. Without a bound, documents that make
// nothing vanish could open events without end.
func fitChanges(known []imds.Event, changes []imds.Change) (fit []imds.Change) {
	n, bytes := len(known), 0
	for _, e := range known {
		bytes += len(e.Raw)
	}
	for _, c := range changes {
		if c.Kind == imds.Vanished {
			n, bytes = n-1, bytes-len(c.Event.Raw)
		}
	}
	for _, c := range changes {
		if c.Kind != imds.Vanished {
			more, longer := 1, len(c.Event.Raw)
			if c.Previous != nil {
				more, longer = 0, longer-len(c.Previous.Raw)
			}
			if n+more > imds.MaxEvents || bytes+longer > maxOpenBytes {
				continue
			}
			n, bytes = n+more, bytes+longer
		}
		fit = append(fit, c)
	}
	return fit
}
