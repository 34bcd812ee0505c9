package bridge

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// remindAgain is the time after a change of an event in which a route that was told of it gets no reminder.
const remindAgain = 10 * time.Minute

// tellDue tells what is due because of the time that is left: events to routes whose lead has come, and reminders, once
// for each time of a route. After a start, and after a late file, it waits for the first poll: an event may be over by now.
func (b *Bridge) tellDue(now time.Time) {
	select {
	case <-b.awaitedPoll():
	default:
		return
	}
	b.update(func() (c commit) {
		s := b.situation(observation{now: now})
		for _, op := range b.events.all() {
			var offered []Route
			due := s.due(op, s.routes)
			if len(due) > 0 {
				op = c.change(op)
				offered = b.offerDue(&c, s, op, due)
			}
			for _, lead := range dueLeads(s.routes, op.Routes, op.event, now) {
				b.remind(&c, s, op, lead, offered)
			}
		}
		return c
	})
}

// offerDue offers an event to routes whose lead has come, and returns them. One that was given its latest change already, by
// a replay, gets only what came of its approval since, and is not among them.
func (b *Bridge) offerDue(c *commit, s situation, op *openEvent, due []Route) (offered []Route) {
	var given []Route
	for _, r := range due {
		if b.given(r.Name, op) {
			given = append(given, r)
			op.setWaiting(r.Name, false)
		} else {
			offered = append(offered, r)
		}
		c.log(slog.LevelInfo, "lead has come", "event", op.event.ID, "sink", r.Name)
	}
	s.offer(c, op, offered)
	s.offerAnswer(c, op, given)
	return offered
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

// remind adds one reminder to the commit, unless it was sent before. A route that is offered the event in the same commit gets
// none. Neither does one that was told of a change just now, which the note of the reminder's mark says. If that was by a clock
// that was set back since, it gets the reminder now.
func (b *Bridge) remind(c *commit, s situation, op *openEvent, lead time.Duration, offered []Route) {
	e := op.event
	change := imds.Change{Kind: imds.Reminder, Event: e, Lead: lead}
	id := cloudevent.ChangeID(change)
	was := b.outbox.Mark(e.ID, id)
	anew := was.Note != "" && op.setBack(was.At, s.now)
	if was.Times > 0 && !anew || c.Marks[id].Times > 0 {
		return
	}
	in := s.circumstances(op)
	in.Rules = b.reviews.get(e.ID).rules(op) // people were told what the rules said then
	ce, err := cloudevent.Wrap(change, in)
	if err != nil {
		c.log(slog.LevelError, "cannot create the CloudEvent of a reminder", "event", e.ID, "err", err)
		return
	}
	d := s.now.Sub(op.LatestAt)
	justNow := 0 <= d && d <= remindAgain // one in the future is of before the clock was set back
	a := about(e, imds.Reminder)
	var leftOut []string
	for _, r := range s.routes {
		isOffered := slices.ContainsFunc(offered, func(o Route) bool { return o.Name == r.Name })
		told := justNow && (isOffered || b.given(r.Name, op))
		switch {
		case dueLead(r, e.NotBefore.Sub(s.now)) != lead, !slices.Contains(op.Routes, r.Name), !r.Hears(change, s.self()),
			anew && !slices.Contains(strings.Split(was.Note, ","), r.Name):
		case told:
			leftOut = append(leftOut, r.Name)
		case isOffered: // it needs no reminder, whatever the clock says later
		default:
			a.To = append(a.To, r.Name)
		}
	}
	c.mark(e, id, 1, s.now)
	mark := c.Marks[id]
	mark.Note = strings.Join(leftOut, ",")
	c.Marks[id] = mark
	if len(a.To) == 0 {
		return
	}
	c.log(slog.LevelInfo, "reminder due", "event", e.ID, "lead", cloudevent.LeadText(lead), "id", id,
		"to", strings.Join(a.To, ","))
	c.add(ce, a)
	stand := standingOf(in.Rules)
	if len(stand) > 0 {
		c.change(op).promise(stand)
	}
}

// setBack reports whether the clock was certainly set back after a reminder was left out: that is because of a change at
// most remindAgain before.
func (op *openEvent) setBack(leftOut, now time.Time) bool {
	latest := op.LatestAt.Round(0) // by the clock, which alone can be compared after a restart
	if latest.After(now) {
		latest = now.Round(0)
	}
	return leftOut.Round(0).Sub(latest) > remindAgain
}
