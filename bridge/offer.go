package bridge

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// address adds those of the routes whose filter accepts the change as recipients, unless they wait for their lead. It
// records in op which get the event, and which wait. ce is the change's CloudEvent.
func (s situation) address(
	c *commit, a *outbox.Addition, routes []Route, ce event.Event, change imds.Change, op *openEvent,
) {
	var fields map[string]any
	for _, r := range routes {
		if r.Filter.needsFields() && fields == nil {
			fields = cloudevent.Fields(ce)
		}
		if !s.subscribe(c, r, change, fields, op) {
			continue
		}
		wanted, _ := r.Filter.MatchChange(change, s.self())
		if !wanted {
			continue
		}
		waits := r.LeadTime(change.Kind, change.Event.NotBefore).After(s.now)
		op.setWaiting(r.Name, waits)
		if !waits {
			a.To = append(a.To, r.Name)
		}
	}
}

// orphansOf returns the orphans that get the event, and what comes of its approval, unless they wait for their lead. What
// they don't ask for is known when they return: see withdrawUnwanted.
func (s situation) orphansOf(op *openEvent) (names []string) {
	for _, name := range s.orphans {
		if slices.Contains(op.Routes, name) && !slices.Contains(op.Waiting, name) {
			names = append(names, name)
		}
	}
	return names
}

// subscribe reports whether a route gets the event: if its filter has decided so before, or does so now, which is recorded
// in op, or if it was alerted and starts nothing.
func (s situation) subscribe(c *commit, r Route, change imds.Change, fields map[string]any, op *openEvent) bool {
	if slices.Contains(op.Routes, r.Name) {
		return true
	}
	wanted, _, err := r.Filter.MatchEvent(change, fields, s.self())
	if err != nil {
		c.log(slog.LevelWarn, "filter failed; the event passes", "sink", r.Name, "event", change.Event.ID, "err", err)
	}
	if !wanted {
		return slices.Contains(op.Alerted, r.Name) && !r.Terms.Starts()
	}
	if s.self() == "" && !imds.SameWord(r.Filter.Only.VMs, "all") {
		c.log(slog.LevelWarn, "VM name unknown; the event passes", "sink", r.Name, "event", change.Event.ID, "hint", nameHint)
	}
	op.Routes = append(op.Routes, r.Name)
	return true
}

// offer adds to the commit the latest change of an open event for those of the routes whose filter takes it, unless they
// wait for their lead, and what came of its approval since. The routes are new, have returned, or have waited for a lead
// that has come; one that has waited, and whose filter doesn't take the latest change, gets the announcement. op is the
// event's state, which offer changes.
func (s situation) offer(c *commit, op *openEvent, routes []Route) {
	announcement := *cmp.Or(op.Announcement, &op.latest) // when nobody waits any longer, op has none
	a, ce := again(op.event, op.latest)
	s.address(c, &a, routes, ce, cloudevent.ChangeOf(ce), op)
	c.Add = append(c.Add, a)
	first, _ := again(op.event, announcement)
	for _, r := range s.due(op, routes) {
		op.setWaiting(r.Name, false)
		first.To = append(first.To, r.Name)
	}
	if len(first.To) > 0 {
		c.Add = append(c.Add, first)
	}
	s.offerAnswer(c, op, routes)
}

// offerAnswer adds what came of the approval of an event since its latest change, for routes that are offered that
// change: the change may say that a rule will approve it.
func (s situation) offerAnswer(c *commit, op *openEvent, routes []Route) {
	if op.Answer == nil {
		return
	}
	a, _ := again(op.event, *op.Answer)
	a.To = s.audience(routes, imds.Change{Kind: imds.Approved, Event: op.event}, op, false)
	c.Add = append(c.Add, a)
}

// releaseAnswer adds what came of an approval for the routes that were to get it after a change, when their lead has come,
// and now don't get that change.
func (s situation) releaseAnswer(c *commit, op *openEvent) {
	waiting := routesThat(func(r Route) bool { return slices.Contains(op.Waiting, r.Name) }, s.routes)
	released := *op // the routes still wait for their lead
	released.Waiting = nil
	s.offerAnswer(c, &released, waiting)
}

// given reports whether a route was given the latest change of an event, also as a fallback.
func (b *Bridge) given(route string, op *openEvent) bool {
	return b.outbox.Delivery(route, op.latest.Seq).State != ""
}

// alert subscribes the routes that are told of trouble to what comes of the approval of an event from now on, because Azure
// refused it, or no rule approves what was promised. It subscribes those whose filter leaves the event out to its changes,
// of which they get the latest: who hears that an event isn't started early must hear when it begins after all, and that it
// is over. What starts something gets no event that its filter leaves out.
func (b *Bridge) alert(c *commit, s situation, op *openEvent) {
	var joining []Route
	for _, r := range s.routes {
		if !r.Terms.Bridge.Hears(cloudevent.SinkBlocked) || slices.Contains(op.Alerted, r.Name) {
			continue
		}
		if !slices.Contains(op.Routes, r.Name) && !r.Terms.Starts() && !b.given(r.Name, op) {
			joining = append(joining, r)
		}
		op.Alerted = append(op.Alerted, r.Name)
	}
	if len(joining) == 0 || b.events.get(op.event.ID) == nil { // no document has shown the event yet, or it is over
		return
	}
	a, ce := again(op.event, op.latest)
	s.address(c, &a, joining, ce, cloudevent.ChangeOf(ce), op)
	c.Add = append(c.Add, a)
}

// audience returns those of the routes that get the CloudEvent about an approval now: one that waits for its lead gets it
// then, after the change. over means that the event is over, which only those that are told all need to hear of still:
// people have read that it is, and must not read after it that it may begin.
func (s situation) audience(routes []Route, change imds.Change, op *openEvent, over bool) (to []string) {
	for _, r := range routes {
		hears := slices.Contains(op.Alerted, r.Name) || slices.Contains(op.Routes, r.Name) && r.Hears(change, s.self())
		switch {
		case over && r.Terms.Late != delivery.LateSend, slices.Contains(op.Waiting, r.Name):
		case hears:
			to = append(to, r.Name)
		}
	}
	return to
}

// due returns those of the routes that wait for a lead which has come.
func (s situation) due(op *openEvent, routes []Route) []Route {
	return routesThat(func(r Route) bool {
		return slices.Contains(op.Waiting, r.Name) && !r.LeadTime(imds.Scheduled, op.event.NotBefore).After(s.now)
	}, routes)
}

// LeadTime returns when a change may be told to a route with a lead; zero for at once.
func (r Route) LeadTime(kind imds.ChangeKind, notBefore time.Time) time.Time {
	if r.Terms.Lead <= 0 || !kind.Announces() {
		return time.Time{}
	}
	return notBefore.Add(-r.Terms.Lead)
}

// Hears reports whether a route that gets the event also gets approvals and reminders of it. A route that acts does
// only if its filter names them.
func (r Route) Hears(c imds.Change, self string) bool {
	if r.Terms.Acts && len(r.Filter.Only.Changes) == 0 {
		return false
	}
	matched, _ := r.Filter.MatchChange(c, self)
	return matched
}

// offerTo returns the commit that replaces the routes in the outbox. A new or returning route is offered every open event
// whose latest change it does not have yet. joined means that a late file was taken up, which doesn't know the routes that
// came since the start: what they get of an event since then stays so. The caller holds deciding.
func (b *Bridge) offerTo(routes []Route, joined bool) (c commit) {
	c.Routes, c.Values = inOutbox(routes), map[string][]byte{}
	now := time.Now()
	var added, back []string
	b.outbox.Update(now, func(tx *outbox.Tx) { added, back = tx.NewRoutes(c.Routes) })
	for _, name := range added { // what was told of an earlier route of that name says nothing about this one
		if b.reported(valueBlocked + name) {
			c.Values[valueBlocked+name] = []byte(troubleBefore)
		}
	}
	b.withdrawUnwanted(routesThat(func(r Route) bool { return slices.Contains(back, r.Name) }, routes), now)
	isAdded := func(route string) bool { return slices.Contains(added, route) }
	s := b.situation(observation{now: now})
	for _, op := range b.events.all() {
		missed := routesThat(func(r Route) bool {
			returned, gets := slices.Contains(back, r.Name), joined && op.gets(r.Name)
			return isAdded(r.Name) && !gets || returned && !b.given(r.Name, op)
		}, routes)
		if len(missed) > 0 {
			next := c.change(op)
			next.forget(func(route string) bool { return isAdded(route) && !joined })
			s.offer(&c, next, missed)
		}
	}
	return c
}

// inOutbox returns the routes as the outbox knows them.
func inOutbox(routes []Route) []outbox.Route {
	all := make([]outbox.Route, 0, len(routes)) // not nil, which would change nothing: see outbox.Batch
	for _, r := range routes {
		all = append(all, outbox.Route{
			Name: r.Name, Fallback: r.Terms.Fallback.Sink, Late: r.Terms.Late, People: r.Terms.People,
		})
	}
	return all
}

// withdrawUnwanted takes back what became pending about events for returning routes while they were gone, and that they
// don't ask for. No change among it is the first of its event.
func (b *Bridge) withdrawUnwanted(back []Route, now time.Time) {
	stats := b.outbox.Stats()
	var unwanted []outbox.Delivery
	for _, r := range back {
		for _, d := range b.outbox.List(outbox.Selection{Route: r.Name, State: outbox.StatePending}) {
			cameMeanwhile := d.PendingSince.After(stats[r.Name].Gone) && !d.Replayed
			if cameMeanwhile && !b.asksFor(r, d) {
				unwanted = append(unwanted, d)
			}
		}
	}
	b.outbox.Update(now, func(tx *outbox.Tx) {
		for _, d := range unwanted {
			tx.Withdraw(d)
		}
	})
}

// asksFor reports whether a route's settings ask for a pending delivery. Its filter decides about a change by Azure, none of
// which is the first of its event here. It asks for what came of an approval if it hears of approvals, or was told of
// trouble with this one. It asks for everything else.
func (b *Bridge) asksFor(r Route, d outbox.Delivery) bool {
	change := imds.Change{
		Kind:     imds.ChangeKind(d.Change),
		Event:    imds.Event{Type: d.AzureType, Resources: d.VMs},
		Previous: &imds.Event{},
	}
	self := b.self().Name
	switch {
	case change.Kind.OfAzure():
		wanted, _ := r.Filter.MatchChange(change, self)
		return wanted
	case change.Kind == imds.Approved:
		op := b.events.get(d.Group)
		return r.Hears(change, self) || op != nil && slices.Contains(op.Alerted, r.Name)
	}
	return true
}
