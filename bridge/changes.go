package bridge

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// An observation is when a document was seen, and when the last valid answer before it was.
type observation struct {
	now    time.Time
	before time.Time // the last valid answer; zero if there was none
	away   bool      // the bridge was down or without an answer for long
}

// A changeContext is everything besides a change itself that decides about its CloudEvent and deliveries.
type changeContext struct {
	observation
	observer    imds.Observer
	host        string
	source      string
	incarnation string
	routes      []Route
	booted      time.Time
	rules       []Rule
	mutes       []*delivery.Mute
	approver    string                             // this VM, for rules; "" while that is not confirmed
	durable     bool                               // what is committed is on disk
	current     bool                               // Azure has answered since the start
	mark        func(event, id string) outbox.Mark // how often an id was used
	standing    func(event string) (rules []cloudevent.Rule, asked bool)
	gets        func(route string, latest uint64) bool // whether the route was given the latest change of an open event
	log         *slog.Logger
}

// changeContext returns the current context for changes of this observation. The caller holds deciding.
func (b *Bridge) changeContext(o observation) changeContext {
	approver, durable, mutes := b.approverName(), b.outbox.Durable() == nil, b.outbox.Mutes()
	b.mu.Lock()
	defer b.mu.Unlock()
	observer := b.observer
	observer.OSType = cmp.Or(observer.OSType, imds.ThisOS)
	return changeContext{
		observation: o, observer: observer, host: b.options.Host, source: b.options.Source, routes: b.routes, booted: b.options.Booted,
		rules: b.rules, standing: b.standingRules, mutes: mutes, approver: approver, durable: durable, current: b.current,
		mark: b.outbox.Mark, log: b.deciding.log,
		gets: func(route string, latest uint64) bool { return b.outbox.Delivery(route, latest).State != "" },
	}
}

// handle commits the changes of a document. It returns false unless all of them are on disk.
func (b *Bridge) handle(doc imds.Document, o observation) bool {
	wait, all := b.commitChanges(doc, o)
	return wait() == nil && all
}

// commitChanges hands the changes of a document to the outbox. all is false if some were left out.
func (b *Bridge) commitChanges(doc imds.Document, o observation) (wait func() error, all bool) {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	known, states := b.events.all()
	b.store(outbox.Batch{Groups: b.events.listed(doc, o)}, o.now)
	found := imds.Diff(known, doc)
	changes := fitChanges(known, found)
	full := len(changes) < len(found)
	b.noteLeftOut(full)
	if len(changes) == 0 {
		return b.outbox.Durable, !full
	}
	s := b.changeContext(o)
	s.incarnation = doc.Incarnation
	c := commit{open: map[string]*openEvent{}, Batch: outbox.Batch{Marks: map[string]outbox.Mark{}}}
	all = !full
	var logged [][]any
	for _, change := range changes {
		facts, err := s.add(&c, change, states[change.Event.ID])
		if err != nil {
			b.deciding.log.Error("cannot create the CloudEvent of a change", "event", change.Event.ID, "change", change.Kind,
				"err", err)
			all = false
			continue
		}
		logged = append(logged, facts)
	}
	for _, facts := range logged {
		b.deciding.log.Info("azure event", facts...)
	}
	return b.commit(c, time.Now()), all
}

// noteLeftOut records whether changes are left out because too many events are open, and logs it once. The caller holds
// deciding.
func (b *Bridge) noteLeftOut(full bool) {
	b.mu.Lock()
	news := full && !b.imds.full
	b.imds.full = full
	b.mu.Unlock()
	if news {
		b.deciding.log.Error(leftOut)
	}
}

// add turns one change into a CloudEvent, decides which routes get it, and adds it to the commit. op is the state of
// the event; the zero value for a new one. facts are for the log, once the commit is made.
func (s changeContext) add(c *commit, change imds.Change, op openEvent) (facts []any, err error) {
	e := change.Event
	if op.Event == nil { // new
		// Somebody may have approved it by hand before the first poll that saw it.
		approved := s.mark(e.ID, cloudevent.ChangeID(imds.Change{Kind: imds.Approved, Event: e})).Times > 0
		op = openEvent{Occurrence: s.mark(e.ID, e.ID).Times + 1, Announced: s.now, Approved: approved}
	}
	if e.Status == imds.StatusStarted && op.Begun.IsZero() {
		op.Begun = s.now
	}
	if op.Answer != nil && len(op.Waiting) > 0 {
		s.releaseAnswer(c, op)
	}
	if !change.Kind.Announces() {
		op.Waiting, op.Announcement = nil, nil
	}
	base := cloudevent.ChangeID(change)
	times := max(op.Occurrence, s.mark(e.ID, base).Times+1)
	in := s.circumstances(op)
	in.Rules = nil // those of the change before
	in.WhileAway, in.Repeat = s.away, times-1
	if s.away {
		in.NotEarlierThan = s.before
	}
	if !op.lastListed.IsZero() {
		in.WhileAway, in.NotEarlierThan = true, op.lastListed
	}
	if change.Kind == imds.Vanished {
		if op.Approval.unsent() {
			a := op.Approval.givenUp("the event is no longer listed")
			s.addApproval(c, e, op, op.Approval.record(a, op, s.now))
		}
		in.End = end(change, op, s.observer.Name, s.booted, s.now)
	}
	ce, err := cloudevent.Wrap(change, in)
	if err != nil {
		return nil, err
	}
	a := about(e, change.Kind)
	a.Replaced = change.Replaced
	s.address(&a, s.routes, ce, change, &op)
	if change.Kind == imds.Updated && len(op.Waiting) > 0 && op.Announcement == nil {
		op.Announcement = &kept{op.Latest, op.cloudEvent}
	}
	in.Rules = s.promises(change, ce, a, op)
	if len(in.Rules) > 0 || e.Status != imds.StatusScheduled {
		op.promise(in.Rules)
	}
	if len(in.Rules) > 0 {
		ce, err = cloudevent.Wrap(change, in)
		if err != nil {
			return nil, err
		}
	}
	facts = []any{
		"change", change.Kind, "event", e.ID, "type", e.Type, "resources",
		imds.Printable(strings.Join(e.Resources, ","), 1<<10),
		"id", ce.ID(), "to", strings.Join(a.To, ","),
	}
	if len(op.Waiting) > 0 {
		facts = append(facts, "later", strings.Join(op.Waiting, ","))
	}
	if !e.NotBefore.IsZero() {
		facts = append(facts, "notBefore", e.NotBefore)
	}
	c.add(ce, a)
	c.Marks[base] = outbox.Mark{Times: times, Group: e.ID, At: s.now}
	c.Marks[e.ID] = outbox.Mark{Times: op.Occurrence, Group: e.ID, At: s.now}
	if change.Kind == imds.Vanished {
		c.open[e.ID] = nil
		return facts, nil
	}
	op.Event, op.event, op.LatestAt, op.lastListed = e.Raw, e, s.now, time.Time{}
	op.Rebooted = op.Rebooted && !op.notBegun(e, s.now)
	c.open[e.ID] = &op
	return facts, nil
}

// circumstances returns what all CloudEvents about an event have in common now. op is the state of the event.
func (s changeContext) circumstances(op openEvent) cloudevent.Circumstances {
	in := cloudevent.Circumstances{
		Observer: s.observer, Host: s.host, Source: s.source, Time: s.now, Incarnation: s.incarnation,
		Announced: op.Announced, Begun: op.Begun,
	}
	if !op.NotYet {
		in.Rules = op.Promised
	}
	return in
}

// address adds those of the routes whose filter accepts the change as recipients, unless they wait for their lead. It
// records in op which want the event, and which wait. ce is the change's CloudEvent.
func (s changeContext) address(a *outbox.Addition, routes []Route, ce event.Event, change imds.Change, op *openEvent) {
	var fields map[string]any
	for _, r := range routes {
		if r.Filter.needsFields() && fields == nil {
			fields = cloudevent.Fields(ce)
		}
		if !s.decide(r, change, fields, op) {
			continue
		}
		wanted, _ := r.Filter.MatchChange(change, s.observer.Name)
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

// decide reports whether a route wants the event: if its filter has decided so before, or does so now, which is recorded
// in op.
func (s changeContext) decide(r Route, change imds.Change, fields map[string]any, op *openEvent) bool {
	if slices.Contains(op.Routes, r.Name) {
		return true
	}
	wanted, _, err := r.Filter.MatchEvent(change, fields, s.observer.Name)
	if err != nil {
		s.log.Warn("filter failed; the event passes", "sink", r.Name, "event", change.Event.ID, "err", err)
	}
	if !wanted {
		return false
	}
	if s.observer.Name == "" && !imds.SameWord(r.Filter.Only.VMs, "all") {
		s.log.Warn("VM name unknown; the event passes", "sink", r.Name, "event", change.Event.ID, "hint", nameHint)
	}
	op.Routes = append(op.Routes, r.Name)
	return true
}

// end returns what is known for sure about the end of an event.
func end(c imds.Change, op openEvent, self string, booted, now time.Time) cloudevent.End {
	e := c.Event
	x := cloudevent.End{Outcome: cloudevent.OutcomeUnknown, LongestPause: op.LongestPause}
	if booted.After(op.Announced) {
		x.Back = booted
	}
	switch {
	case !op.Begun.IsZero(), op.Rebooted && e.Affects(self):
		x.Outcome = cloudevent.OutcomeCompleted
	case c.Replaced: // it may continue under the other id
	case e.Status == imds.StatusScheduled && now.Before(e.NotBefore) && !op.Gap && !op.Approved && e.Type != "Preempt" &&
		e.Type != "Terminate":
		x.Outcome = cloudevent.OutcomeCanceled
	}
	return x
}

// setRoutes replaces the routes in the outbox. A new or returning route gets the latest change of every open event that it
// does not have yet, and what came of its approval since. wait returns when all of it is on disk. The caller holds
// deciding.
func (b *Bridge) setRoutes(routes []Route, now time.Time) (wait func() error) {
	configured := []outbox.Route{}
	for _, r := range routes {
		configured = append(configured, outbox.Route{
			Name: r.Name, Fallback: r.Terms.Fallback.Sink, Late: r.Terms.Late, People: r.Terms.People,
		})
	}
	s := b.changeContext(observation{now: now})
	return b.outbox.Update(now, func(tx *outbox.Tx) {
		added, back := tx.NewRoutes(configured)
		missed := func(r Route, seq uint64) bool {
			return slices.Contains(added, r.Name) || slices.Contains(back, r.Name) && tx.Delivery(r.Name, seq).State == ""
		}
		c := commit{open: map[string]*openEvent{}, Batch: outbox.Batch{Routes: configured, Values: map[string][]byte{}}}
		for _, name := range added { // what was told of an earlier route of that name says nothing about this one
			if tx.Value(valueBlocked+name) != nil {
				c.Values[valueBlocked+name] = []byte(troubleBefore)
			}
		}
		b.offer(&c, s, routes, added, missed)
		b.apply(tx, c)
	})
}

// offer adds to the commit the latest change of every open event, for those of the routes that missed it. What an
// earlier route with the name of an added one got does not count for that.
func (b *Bridge) offer(c *commit, s changeContext, routes []Route, added []string, missed func(Route, uint64) bool) {
	events, states := b.events.all()
	isAdded := func(route string) bool { return slices.Contains(added, route) }
	for _, e := range events {
		op := states[e.ID]
		op.forget(isAdded)
		who := routesThat(func(r Route) bool { return missed(r, op.Latest) }, routes)
		if len(who) > 0 {
			s.offerEvent(c, e, &op, who)
		}
	}
}

// offerEvent adds to the commit the latest change of an open event for those of the routes whose filter takes it,
// unless they wait for their lead, and what came of its approval since. A route that has waited for its lead, and whose
// filter doesn't take the latest change, gets the announcement.
func (s changeContext) offerEvent(c *commit, e imds.Event, op *openEvent, who []Route) {
	latest := kept{op.Latest, op.cloudEvent}
	announcement := *cmp.Or(op.Announcement, &latest)
	a, ce := again(e, latest)
	s.address(&a, who, ce, cloudevent.ChangeOf(ce), op)
	c.Add = append(c.Add, a)
	first, _ := again(e, announcement)
	for _, r := range s.due(e, *op, who) {
		op.setWaiting(r.Name, false)
		first.To = append(first.To, r.Name)
	}
	if len(first.To) > 0 {
		c.Add = append(c.Add, first)
	}
	c.open[e.ID] = op
	s.offerAnswer(c, e, *op, who)
}

// due returns those of the routes that wait for a lead which has come. What acts also waits for Azure's first answer
// after a start: the event may be over.
func (s changeContext) due(e imds.Event, op openEvent, routes []Route) []Route {
	return routesThat(func(r Route) bool {
		may := s.current || r.Terms.Late != delivery.LateDrop
		return may && slices.Contains(op.Waiting, r.Name) && !r.LeadTime(imds.Scheduled, e.NotBefore).After(s.now)
	}, routes)
}

// LeadTime returns when a change may be told to a route with a lead; zero for at once.
func (r Route) LeadTime(kind imds.ChangeKind, notBefore time.Time) time.Time {
	if r.Terms.Lead <= 0 || !kind.Announces() {
		return time.Time{}
	}
	return notBefore.Add(-r.Terms.Lead)
}
