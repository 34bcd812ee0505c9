package bridge

import (
	"slices"
	"strings"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// lookAtLeast is the longest interval between looks at what is due.
const lookAtLeast = time.Minute

// remindAgain is the time after a change of an event in which a route that was told of it gets no reminder.
const remindAgain = 10 * time.Minute

// tellDue tells what is due because of the time that is left: events to routes whose lead has come, and reminders, once
// for each time of a route. It looks at the events only when the next is due or something has changed, and after a
// start not before the first poll: an event may be over by now.
func (b *Bridge) tellDue(now time.Time) {
	b.mu.Lock()
	polled := !b.imds.lastTurn.IsZero()
	b.mu.Unlock()
	b.deciding.Lock()
	defer b.deciding.Unlock()
	if !polled || b.nextDue.After(now) {
		return
	}
	s := b.changeContext(observation{now: now})
	events, states := b.events.all()
	c := s.dueEvents(events, states)
	if len(c.Add) > 0 {
		b.commit(c, now)
	}
	next := now.Add(lookAtLeast)
	for _, e := range events {
		op := states[e.ID]
		for _, lead := range dueLeads(s.routes, op.Routes, e, now) {
			if c, due := s.reminder(e, op, lead); due {
				b.commit(c, now)
			}
		}
		next = nextLead(s.routes, e, now, next)
	}
	b.nextDue = next
	if !s.current {
		b.nextDue = now
	}
}

// dueEvents returns the commit that gives open events to the routes whose lead has come, and updates their states.
func (s changeContext) dueEvents(events []imds.Event, states map[string]openEvent) commit {
	c := commit{open: map[string]*openEvent{}}
	for _, e := range events {
		op := states[e.ID]
		due := s.due(e, op, s.routes)
		if len(due) == 0 {
			continue
		}
		given := routesThat(func(r Route) bool { return s.gets(r.Name, op.Latest) }, due) // somebody replayed it to them
		for _, r := range given {
			op.setWaiting(r.Name, false)
		}
		s.offerEvent(&c, e, &op, s.due(e, op, due))
		s.offerAnswer(&c, e, op, given)
		states[e.ID] = op
		for _, r := range due {
			s.log.Info("lead has come", "event", e.ID, "sink", r.Name)
		}
	}
	return c
}

// nextLead returns when the next lead or reminder of the event may be due, at most at.
func nextLead(routes []Route, e imds.Event, now, at time.Time) time.Time {
	for _, r := range routes {
		for _, lead := range append([]time.Duration{r.Terms.Lead}, r.Terms.Remind...) {
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
			a.To = append(a.To, r.Name)
		}
	}
	if len(a.To) > 0 {
		s.log.Info("reminder due", "event", e.ID, "lead", cloudevent.LeadText(lead), "id", id,
			"to", strings.Join(a.To, ","))
		c.add(ce, a)
		if len(in.Rules) > 0 {
			op.promise(in.Rules)
			c.open = map[string]*openEvent{e.ID: &op}
		}
	}
	return c, true
}
