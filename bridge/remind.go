package bridge

import (
	"slices"
	"strings"
	"time"
)

// remindAgain is how long after another message about an event a reminder would say nothing new.
const remindAgain = 10 * time.Minute

// remind tells the routes that want it how long is left before an event, once for each of their leads.
func (b *Bridge) remind(now time.Time) {
	if !b.deciding.TryLock() { // it is called every second, so it waits for nobody
		return
	}
	defer b.deciding.Unlock()
	events, states := b.Outbox.known()
	s := b.scene(moment{now: now})
	for _, e := range events {
		op := states[e.ID]
		for _, lead := range dueLeads(s.routes, op.Routes, e, now) {
			s.remind(b.Outbox, e, op, lead)
		}
	}
}

// dueLeads are those for which a reminder of the event is due: of each route the shortest whose time has come.
func dueLeads(routes []Route, owed []string, e Event, now time.Time) (leads []time.Duration) {
	left := e.NotBefore.Sub(now)
	if e.Status != statusScheduled || left <= 0 {
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

// remind commits one reminder, unless it was told before. One that would come close to another message is taken for told.
func (s scene) remind(o *Outbox, e Event, op Open, lead time.Duration) {
	change := Change{Kind: Reminder, Event: e, Lead: lead}
	id := ChangeID(change)
	if s.told(id).Times > 0 {
		return
	}
	c := Commit{Told: map[string]told{id: {Times: 1, Event: e.ID, At: s.now}}, Open: map[string]*Open{}}
	if s.now.Sub(op.Said) > remindAgain {
		ce, err := Wrap(change, Circumstances{Observer: s.observer, Host: s.host, Source: s.source, Time: s.now})
		if err != nil {
			s.log.Error("a reminder cannot be told", "event", e.ID, "err", err)
			return
		}
		owed := Owed{CloudEvent: ce, Event: e.ID, Change: Reminder, NotBefore: e.NotBefore}
		for _, r := range s.routes {
			if dueLead(r, e.NotBefore.Sub(s.now)) == lead && slices.Contains(op.Routes, r.Name) && r.hears(change, s.observer.Name) {
				owed.To = append(owed.To, r.Name)
			}
		}
		if len(owed.To) > 0 {
			s.log.Info("a reminder is due", "event", e.ID, "lead", leadText(lead), "id", id, "owedTo", strings.Join(owed.To, ","))
			op.Said = s.now
			c.Open[e.ID] = &op
			c.Owed = append(c.Owed, owed)
		}
	}
	_ = o.Commit(c, s.now) // the store says when it cannot write
}
