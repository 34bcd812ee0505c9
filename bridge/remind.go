package bridge

import (
	"slices"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// remindAtLeast is the longest interval between checks for due reminders.
const remindAtLeast = time.Minute

// remindAgain is the time after a change of an event in which a route that was told of it gets no reminder.
const remindAgain = 10 * time.Minute

// remind sends the reminders that are due, once for each lead of a route. It looks at the events only when the next
// reminder is due or something has changed, and after a start not before the first poll: an event may be over by now.
func (b *Bridge) remind(now time.Time) {
	b.mu.Lock()
	polled := !b.imds.lastTurn.IsZero()
	b.mu.Unlock()
	b.deciding.Lock()
	defer b.deciding.Unlock()
	if !polled || b.nextReminder.After(now) {
		return
	}
	s := b.changeContext(observation{now: now})
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

// nextLead returns when the next reminder of the event may be due, at most at.
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

// dueLeads returns the leads for which a reminder of the event is due: for each route, the shortest lead that has been
// reached; the same one may be due for several. subscribed names the routes that get the event.
func dueLeads(routes []Route, subscribed []string, e imds.Event, now time.Time) (leads []time.Duration) {
	left := e.NotBefore.Sub(now)
	if e.Status != imds.StatusScheduled || left <= 0 {
		return nil
	}
	for _, r := range routes {
		if lead := dueLead(r, left); lead > 0 && slices.Contains(subscribed, r.Name) {
			leads = append(leads, lead)
		}
	}
	return leads
}

// dueLead returns the shortest lead of the route that is at least left; 0 for none. A route that is told of events only
// some time ahead is not reminded of them earlier.
func dueLead(r Route, left time.Duration) (due time.Duration) {
	for _, lead := range r.Terms.Remind {
		if lead >= left && (due == 0 || lead < due) && (r.Terms.Lead == 0 || lead <= r.Terms.Lead) {
			due = lead
		}
	}
	return due
}

// reminder returns the commit of one reminder; due is false if it was sent before. A route that was told of a change
// just now gets none, and what nobody gets is only recorded as sent. A change in the future is one of before the clock
// was set back.
func (s changeContext) reminder(e imds.Event, op openEvent, lead time.Duration) (c commit, due bool) {
	change := imds.Change{Kind: imds.Reminder, Event: e, Lead: lead}
	id := cloudevent.ChangeID(change)
	if s.mark(e.ID, id).Times > 0 {
		return commit{}, false
	}
	c.Marks = map[string]outbox.Mark{id: {Times: 1, Group: e.ID, At: s.now}}
	d := s.now.Sub(op.LatestAt)
	justNow := 0 <= d && d <= remindAgain
	in := s.circumstances(op)
	rules, asked := s.standing(e.ID)
	if asked { // people were told what the rules said then
		in.Rules = rules
	}
	ce, err := cloudevent.Wrap(change, in)
	if err != nil {
		s.log.Error("cannot create the CloudEvent of a reminder", "event", e.ID, "err", err)
		return commit{}, false
	}
	a := about(e, imds.Reminder)
	for _, r := range s.routes {
		if dueLead(r, e.NotBefore.Sub(s.now)) == lead && slices.Contains(op.Routes, r.Name) &&
			r.Hears(change, s.observer.Name) && !(justNow && s.gets(r.Name, op.Latest)) {
			a.To = append(a.To, outbox.Recipient{Route: r.Name})
		}
	}
	if len(a.To) > 0 {
		s.log.Info("reminder due", "event", e.ID, "lead", cloudevent.LeadText(lead), "id", id,
			"to", recipients(a))
		c.add(ce, a)
		if len(in.Rules) > 0 {
			op.promise(in.Rules)
			c.open = map[string]*openEvent{e.ID: &op}
		}
	}
	return c, true
}
