package bridge

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// moment is when a document was seen, and how that lies to the last valid answer.
type moment struct {
	now    time.Time
	before time.Time // the last valid answer; zero if there never was one
	away   bool      // nobody watched for long before it
}

// scene is all that turning changes into deliveries depends on, beside the change.
type scene struct {
	moment
	observer    imds.Observer
	host        string
	source      string
	incarnation string
	routes      []Route
	unnamed     bool      // filters have waited long enough for the observer's name
	heldUntil   time.Time // they wait until then
	booted      time.Time
	mark        func(event, id string) outbox.Mark // how often an id was used
	log         *slog.Logger
}

// scene is what there is to know at the moment.
func (b *Bridge) scene(m moment) scene {
	b.mu.Lock()
	defer b.mu.Unlock()
	return scene{
		moment: m, observer: b.observer, host: b.Host, source: b.Source, routes: b.routes, booted: b.Booted,
		unnamed: b.unnamed(time.Now()), heldUntil: b.began.Add(nameForFilters + heldGrace),
		mark: b.Outbox.Mark, log: b.Log,
	}
}

// handle commits what a document changes. It returns false when that is not all on disk.
func (b *Bridge) handle(doc imds.Document, m moment) bool {
	wait, all := b.tellChanges(doc, m)
	return wait() == nil && all
}

// tellChanges hands over what a document changes. all says that each change could be told.
func (b *Bridge) tellChanges(doc imds.Document, m moment) (wait func() error, all bool) {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	known, states := b.events.all()
	b.events.listed(doc.Events)
	found := imds.Diff(known, doc)
	changes := fitting(known, found)
	full := len(changes) < len(found)
	b.noRoom(full)
	if len(changes) == 0 {
		return b.Outbox.Durable, !full
	}
	s := b.scene(m)
	s.incarnation = doc.Incarnation
	c := commit{open: map[string]*openEvent{}, Batch: outbox.Batch{Marks: map[string]outbox.Mark{}}}
	all = !full
	for _, change := range changes {
		if err := s.add(&c, change, states[change.Event.ID]); err != nil {
			b.Log.Error("a change can't be told", "event", change.Event.ID, "change", change.Kind, "err", err)
			all = false
		}
	}
	return b.commit(c, time.Now()), all
}

// noRoom notes whether changes are left out for want of room, and says so when that is news.
func (b *Bridge) noRoom(full bool) {
	b.mu.Lock()
	news := full && !b.imds.full
	b.imds.full = full
	b.mu.Unlock()
	if news {
		b.Log.Error(leftOut)
	}
}

// add says one change as a CloudEvent, decides which routes get it, and puts both into the commit. op is what is
// remembered of the event, its zero value for a new one.
func (s scene) add(c *commit, change imds.Change, op openEvent) error {
	e := change.Event
	if op.Event == nil { // new
		// by hand somebody was faster than the poll
		approved := s.mark(e.ID, cloudevent.ChangeID(imds.Change{Kind: imds.Approved, Event: e})).Times > 0
		op = openEvent{Life: s.mark(e.ID, e.ID).Times + 1, First: s.now, Approved: approved}
	}
	if e.Status == imds.StatusStarted && op.Started.IsZero() {
		op.Started = s.now
	}
	base := cloudevent.ChangeID(change)
	times := max(op.Life, s.mark(e.ID, base).Times+1)
	in := s.circumstances(op)
	in.WhileAway, in.Repeat = s.away, times-1
	if s.away {
		in.NotEarlierThan = s.before
	}
	if !op.lost.IsZero() {
		in.WhileAway, in.NotEarlierThan = true, op.lost
	}
	if change.Kind == imds.Vanished {
		if op.Approval.owed() {
			s.addApproval(c, e, op, mootApproval(op, s.now, "the event is no longer listed"))
		}
		in.End = end(change, op, s.observer.Name, s.booted, s.now)
	}
	ce, err := cloudevent.Wrap(change, in)
	if err != nil {
		return err
	}
	a := about(e, change.Kind)
	a.Replaced = change.Replaced
	s.address(&a, s.routes, ce, change, &op)
	attrs := []any{
		"change", change.Kind, "event", e.ID, "type", e.Type, "resources",
		imds.Printable(strings.Join(e.Resources, ","), 1<<10),
		"id", ce.ID(), "to", told(a),
	}
	if !e.NotBefore.IsZero() {
		attrs = append(attrs, "notBefore", e.NotBefore)
	}
	s.log.Info("azure event", attrs...)
	c.say(ce, a)
	c.Marks[base] = outbox.Mark{Times: times, Group: e.ID, At: s.now}
	c.Marks[e.ID] = outbox.Mark{Times: op.Life, Group: e.ID, At: s.now}
	if change.Kind == imds.Vanished {
		c.open[e.ID] = nil
		return nil
	}
	op.Event, op.event, op.Said, op.lost = e.Raw, e, s.now, time.Time{}
	c.open[e.ID] = &op
	return nil
}

// circumstances are what every CloudEvent about an event says now. op is what is remembered of it.
func (s scene) circumstances(op openEvent) cloudevent.Circumstances {
	return cloudevent.Circumstances{
		Observer: s.observer, Host: s.host, Source: s.source, Time: s.now, Incarnation: s.incarnation,
		Announced: op.First, Begun: op.Started,
	}
}

// address adds those of the routes that get a CloudEvent about the change, and notes in op what their filters say.
func (s scene) address(a *outbox.Addition, routes []Route, ce event.Event, change imds.Change, op *openEvent) {
	var fields map[string]any
	for _, r := range routes {
		if r.Filter.When != nil && fields == nil {
			fields = cloudevent.Fields(ce)
		}
		verdict := s.decide(r, change, fields, op)
		wanted, _ := r.Filter.Change(change, s.observer.Name)
		switch {
		case !wanted:
		case verdict == Accepted:
			a.To = append(a.To, outbox.Recipient{Route: r.Name, Due: r.Due(change, s.now)})
		case verdict == Undecided:
			a.To = append(a.To, outbox.Recipient{Route: r.Name, Due: s.heldUntil, Held: true})
		}
	}
}

// decide asks a route's filter, unless it has decided, and notes in op what it said.
func (s scene) decide(r Route, change imds.Change, fields map[string]any, op *openEvent) Verdict {
	switch waits := slices.Contains(op.Undecided, r.Name); {
	case slices.Contains(op.Routes, r.Name):
		return Accepted
	case waits && !s.unnamed && s.observer.Name == "":
		return Undecided
	case waits: // until now, and it got what it waited for
		op.Undecided = slices.DeleteFunc(op.Undecided, func(name string) bool { return name == r.Name })
		op.Routes = append(op.Routes, r.Name)
		return Accepted
	}
	unnamed := s.unnamed || change.Event.Type == "Preempt"
	verdict, _, err := r.Filter.Event(change, fields, s.observer.Name, unnamed)
	if err != nil {
		s.log.Warn("a filter failed, so the event passes", "sink", r.Name, "event", change.Event.ID, "err", err)
	}
	switch verdict {
	case Accepted:
		if s.observer.Name == "" && !strings.EqualFold(r.Filter.Only.VMs, "all") {
			s.log.Warn("this VM's name is not known, so the event passes", "sink", r.Name, "event", change.Event.ID, "hint",
				nameHint)
		}
		op.Routes = append(op.Routes, r.Name)
	case Undecided:
		op.Undecided = append(op.Undecided, r.Name)
	}
	return verdict
}

// end is what can honestly be said about the end of an event.
func end(c imds.Change, op openEvent, self string, booted, now time.Time) cloudevent.End {
	e := c.Event
	x := cloudevent.End{Outcome: cloudevent.OutcomeUnknown, LongestPause: op.Pause}
	if booted.After(op.First) {
		x.Back = booted
	}
	switch {
	case !op.Started.IsZero(), op.Rebooted && e.Affects(self):
		x.Outcome = cloudevent.OutcomeCompleted
	case c.Replaced: // it may go on under the other id
	case e.Status == imds.StatusScheduled && now.Before(e.NotBefore) && !op.Gap && !op.Approved && e.Type != "Preempt" &&
		e.Type != "Terminate":
		x.Outcome = cloudevent.OutcomeCanceled
	}
	return x
}

// setRoutes has those routes from now on, with their rules and settings. A route that is new, or returns, gets the
// newest change of every open event, unless it was pending for it already. It returns when that is handed over.
func (b *Bridge) setRoutes(routes []Route, now time.Time, use func()) (wait func() error) {
	there := []outbox.Route{}
	for _, r := range routes {
		there = append(there, outbox.Route{Name: r.Name, Fallback: r.Terms.Fallback.Sink})
	}
	need := func() []uint64 {
		if added, back := b.Outbox.NewRoutes(there); len(added)+len(back) == 0 {
			return nil
		}
		return b.events.latest()
	}
	b.decide(need, func(read cloudEvents) {
		use()
		added, back := b.Outbox.NewRoutes(there)
		missed := func(r Route, seq uint64) bool {
			return slices.Contains(added, r.Name) ||
				slices.Contains(back, r.Name) && b.Outbox.Outcome(r.Name, seq).State == ""
		}
		c := commit{open: map[string]*openEvent{}, Batch: outbox.Batch{Routes: there}}
		s := b.scene(moment{now: now})
		events, states := b.events.all()
		for _, e := range events {
			op := states[e.ID]
			ce := read[op.Latest]
			if ce == nil {
				continue
			}
			change := ChangeOf(*ce)
			a := about(e, change.Kind)
			a.Seq = op.Latest
			who := slices.DeleteFunc(slices.Clone(routes), func(r Route) bool { return !missed(r, op.Latest) })
			s.address(&a, who, *ce, change, &op)
			c.open[e.ID] = &op
			c.say(*ce, a)
		}
		wait = b.commit(c, now)
	})
	return wait
}

// decideHeld decides the filters that waited for the observer's name, if it is known or the wait is over.
func (b *Bridge) decideHeld(now time.Time) {
	b.mu.Lock()
	self, routes, over := b.observer.Name, b.routes, b.unnamed(now)
	b.mu.Unlock()
	if self == "" && !over || len(b.Outbox.Held()) == 0 {
		return
	}
	need := func() (seqs []uint64) {
		for _, held := range b.Outbox.Held() {
			for _, d := range held {
				seqs = append(seqs, d.Seq())
			}
		}
		return seqs
	}
	b.decide(need, func(read cloudEvents) {
		c := commit{open: map[string]*openEvent{}}
		for _, held := range b.Outbox.Held() {
			b.decideHeldGroup(&c, held, read, routes, self, now)
		}
		b.commit(c, now)
	})
}

// decideHeldGroup decides whether a route gets the changes of an event that waited for the observer's name: those from
// the first that its filter accepts.
func (b *Bridge) decideHeldGroup(
	c *commit, held []outbox.Delivery, read cloudEvents, routes []Route, self string, now time.Time,
) {
	route, id := held[0].Route, held[0].Group
	from, lead := 0, time.Duration(0)
	if i := slices.IndexFunc(routes, func(r Route) bool { return r.Name == route }); i >= 0 {
		from, lead = firstAccepted(routes[i], held, read, self), routes[i].Terms.Lead
	}
	if self == "" {
		b.Log.Warn("this VM's name is not known, so the event passes", "sink", route, "event", id, "hint", nameHint)
	}
	for _, d := range held[:from] {
		c.Remove = append(c.Remove, outbox.Ref{Route: route, Seq: d.Seq()})
	}
	e, state, open := b.events.get(id)
	decided := slices.Clone(held[from:])
	for n := range decided {
		d := &decided[n]
		d.Held, d.Due = time.Time{}, leadTime(lead, imds.ChangeKind(d.Change), d.NotBefore, now)
	}
	for n, d := range decided {
		newer := asItIs(e, open)
		if last := decided[len(decided)-1]; n < len(decided)-1 {
			newer = about(imds.Event{}, imds.ChangeKind(last.Change))
			newer.To = []outbox.Recipient{{Route: route, Due: last.Due}}
		}
		superseded, moved := overtaken([]outbox.Delivery{d}, newer, now)
		if len(superseded)+len(moved) == 0 {
			moved = []outbox.Move{{Ref: outbox.Ref{Route: route, Seq: d.Seq()}, NotBefore: d.NotBefore, Due: d.Due}}
		}
		c.Supersede, c.Move = append(c.Supersede, superseded...), append(c.Move, moved...)
	}
	op := c.open[id]
	if op == nil {
		if !open {
			return
		}
		op = &state
		c.open[id] = op
	}
	op.Undecided = slices.DeleteFunc(op.Undecided, func(name string) bool { return name == route })
	if from < len(held) {
		op.Routes = append(op.Routes, route)
	}
}

// asItIs stands for the changes of an event up to now, which an older one gives way to or moves with.
func asItIs(e imds.Event, open bool) outbox.Addition {
	switch {
	case !open:
		return about(e, imds.Vanished)
	case e.Status == imds.StatusStarted:
		return about(e, imds.Started)
	}
	return about(e, imds.Updated)
}

// firstAccepted is the index of the first change that the route's filter accepts, their number if it accepts none. A
// missing name counts as a match, and so does a change that can't be read.
func firstAccepted(r Route, changes []outbox.Delivery, read cloudEvents, self string) int {
	for n, d := range changes {
		ce := read[d.Seq()]
		if ce == nil {
			return n
		}
		if verdict, _, _ := r.Filter.Event(ChangeOf(*ce), cloudevent.Fields(*ce), self, true); verdict != Refused {
			return n
		}
	}
	return len(changes)
}

// Due is when a change is due at a route with a lead: that long before the event begins; zero for at once.
func (r Route) Due(c imds.Change, now time.Time) time.Time {
	return leadTime(r.Terms.Lead, c.Kind, c.Event.NotBefore, now)
}

func leadTime(lead time.Duration, kind imds.ChangeKind, notBefore, now time.Time) time.Time {
	if lead <= 0 || kind != imds.Scheduled && kind != imds.Updated {
		return time.Time{}
	}
	if due := notBefore.Add(-lead); due.After(now) {
		return due
	}
	return time.Time{}
}

// ChangeOf reads a change back from its CloudEvent.
func ChangeOf(ce event.Event) imds.Change {
	c := imds.Change{Kind: imds.ChangeKind(strings.TrimPrefix(ce.Type(), cloudevent.EventPrefix))}
	var d cloudevent.Data
	if json.Unmarshal(ce.Data(), &d) != nil {
		return c
	}
	c.Event, _ = imds.UnmarshalEvent(d.Event)
	c.Fields = d.Changed
	if len(bytes.TrimSpace(d.Previous)) > 0 {
		if previous, err := imds.UnmarshalEvent(d.Previous); err == nil {
			c.Previous = &previous
		}
	}
	return c
}
