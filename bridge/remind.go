package bridge

import (
	"slices"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// remindAtLeast is how often the open events are looked at, at least.
const remindAtLeast = time.Minute

// remindAgain is how long after another message about an event a reminder would say nothing new.
const remindAgain = 10 * time.Minute

// remind tells the routes that want it how long is left before an event, once for each of their leads. It looks at the
// events only when the next reminder is due, or something changed.
func (b *Bridge) remind(now time.Time) {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	if b.nextReminder.After(now) {
		return
	}
	s := b.scene(moment{now: now})
	next := now.Add(remindAtLeast)
	if slices.ContainsFunc(s.routes, func(r Route) bool { return len(r.Terms.Remind) > 0 }) {
		events, states := b.events.all()
		for _, e := range events {
			op := states[e.ID]
			for _, lead := range dueLeads(s.routes, op.Routes, e, now) {
				if c, due := s.reminder(e, op, lead); due {
					b.commit(c, now)
				}
			}
			next = nextLead(s.routes, e, now, next)
		}
	}
	b.nextReminder = next
}

// nextLead is when the next reminder of the event may be due, if that comes before the time at.
func nextLead(routes []Route, e imds.Event, now, at time.Time) time.Time {
	for _, r := range routes {
		for _, lead := range r.Terms.Remind {
			if due := e.NotBefore.Add(-lead); due.After(now) && due.Before(at) {
				at = due
			}
		}
	}
	return at
}

// dueLeads are those for which a reminder of the event is due: of each route the shortest whose time has come.
func dueLeads(routes []Route, owed []string, e imds.Event, now time.Time) (leads []time.Duration) {
	left := e.NotBefore.Sub(now)
	if e.Status != imds.StatusScheduled || left <= 0 {
		return nil
	}
	for _, r := range routes {
		if lead := dueLead(r, left); lead > 0 && slices.Contains(owed, r.Name) && !slices.Contains(leads, lead) {
			leads = append(leads, lead)
		}
	}
	return leads
}

// dueLead is the shortest of the route's leads whose time has come when so much is left; 0 if none has.
func dueLead(r Route, left time.Duration) (due time.Duration) {
	for _, lead := range r.Terms.Remind {
		if lead >= left && (due == 0 || lead < due) {
			due = lead
		}
	}
	return due
}

// reminder is the commit of one reminder; due is false when it was told before. One that would come close to another
// message is taken for told.
func (s scene) reminder(e imds.Event, op openEvent, lead time.Duration) (c commit, due bool) {
	change := imds.Change{Kind: imds.Reminder, Event: e, Lead: lead}
	id := cloudevent.ChangeID(change)
	if s.mark(e.ID, id).Times > 0 {
		return commit{}, false
	}
	c.Marks = map[string]outbox.Mark{id: {Times: 1, Group: e.ID, At: s.now}}
	if s.now.Sub(op.Said) <= remindAgain {
		return c, true
	}
	ce, err := cloudevent.Wrap(change, s.circumstances(op))
	if err != nil {
		s.log.Error("a reminder can't be told", "event", e.ID, "err", err)
		return commit{}, false
	}
	a := about(e, imds.Reminder)
	for _, r := range s.routes {
		if dueLead(r, e.NotBefore.Sub(s.now)) == lead && slices.Contains(op.Routes, r.Name) &&
			r.Hears(change, s.observer.Name) {
			a.To = append(a.To, outbox.Recipient{Route: r.Name})
		}
	}
	if len(a.To) > 0 {
		s.log.Info("a reminder is due", "event", e.ID, "lead", cloudevent.LeadText(lead), "id", id,
			"to", told(a))
		op.Said = s.now
		c.open = map[string]*openEvent{e.ID: &op}
		c.say(ce, a)
	}
	return c, true
}
