package bridge

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
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
	observer    Observer
	host        string
	source      string
	incarnation string
	routes      []Route
	unnamed     bool      // filters have waited long enough for the observer's name
	heldUntil   time.Time // they wait until then
	booted      time.Time
	told        func(id string) told
	log         *slog.Logger
}

// scene is what there is to know at the moment.
func (b *Bridge) scene(m moment) scene {
	b.mu.Lock()
	defer b.mu.Unlock()
	return scene{
		moment: m, observer: b.observer, host: b.Host, source: b.Source, routes: b.routes, booted: b.Booted,
		unnamed: b.unnamed(time.Now()), heldUntil: b.began.Add(nameForFilters),
		told: b.Outbox.told, log: b.Log,
	}
}

// handle commits what a document changes. It returns false when that is not all on disk.
func (b *Bridge) handle(doc Document, m moment) bool {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	known, states := b.Outbox.known()
	all := Diff(known, doc)
	changes := fitting(known, all)
	full := len(changes) < len(all)
	b.noRoom(full)
	if len(changes) == 0 {
		return !full && b.Outbox.Durable() == nil
	}
	s := b.scene(m)
	s.incarnation = doc.Incarnation
	c := Commit{Open: map[string]*Open{}, Told: map[string]told{}}
	whole := !full
	for _, change := range changes {
		if err := s.add(&c, change, states[change.Event.ID]); err != nil {
			b.Log.Error("a change cannot be told", "event", change.Event.ID, "change", change.Kind, "err", err)
			whole = false
		}
	}
	return b.Outbox.Commit(c, time.Now()) == nil && whole
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

// add says one change as a CloudEvent, decides who is owed it, and puts both into the commit. op is what is remembered
// of the event, its zero value for a new one.
func (s scene) add(c *Commit, change Change, op Open) error {
	e := change.Event
	if op.Event == nil { // new
		approved := s.told(ChangeID(Change{Kind: Approved, Event: e})).Times > 0 // somebody by hand was faster than the poll
		op = Open{Life: s.told(e.ID).Times + 1, First: s.now, Approved: approved}
	}
	if e.Status == statusStarted && op.Started.IsZero() {
		op.Started = s.now
	}
	base := ChangeID(change)
	times := max(op.Life, s.told(base).Times+1)
	in := Circumstances{
		Observer: s.observer, Host: s.host, Source: s.source, Time: s.now, Incarnation: s.incarnation,
		WhileAway: s.away, Repeat: times - 1,
	}
	if s.away {
		in.NotEarlierThan = s.before
	}
	if change.Kind == Vanished && op.Approval.owed() {
		s.addApproval(c, e, op, Approval{
			Result: ResultMoot, By: op.Approval.by(), Decided: op.Approval.Decided, Attempts: op.Approval.Attempts,
			After: s.now.Sub(op.First).Round(100 * time.Millisecond).Seconds(), Error: "the event is no longer listed",
		})
	}
	if change.Kind == Vanished {
		in.End = end(change, op, s.observer.Name, s.booted, s.now)
	}
	ce, err := Wrap(change, in)
	if err != nil {
		return err
	}
	owed := Owed{CloudEvent: ce, Event: e.ID, Change: change.Kind, NotBefore: e.NotBefore, HeldUntil: s.heldUntil}
	var fields map[string]any
	for _, r := range s.routes {
		if r.Filter.When != nil && fields == nil {
			fields = Fields(ce)
		}
		s.decide(r, change, fields, &op, &owed)
	}
	attrs := []any{"change", change.Kind, "event", e.ID, "type", e.Type, "resources", attribute(strings.Join(e.Resources, ",")), "id", ce.ID(), "owedTo", strings.Join(owed.To, ",")}
	if !e.NotBefore.IsZero() {
		attrs = append(attrs, "notBefore", e.NotBefore)
	}
	s.log.Info("azure event", attrs...)
	c.Owed = append(c.Owed, owed)
	c.Told[base] = told{Times: times, Event: e.ID, At: s.now}
	c.Told[e.ID] = told{Times: op.Life, Event: e.ID, At: s.now}
	if change.Kind == Vanished {
		c.Open[e.ID] = nil
		return nil
	}
	op.Event, op.event, op.Said = e.Raw, e, s.now
	c.Open[e.ID] = &op
	return nil
}

// decide asks a route's filter, and notes in op and owed what it said.
func (s scene) decide(r Route, change Change, fields map[string]any, op *Open, owed *Owed) {
	wanted, _ := r.Filter.Change(change, s.observer.Name)
	if due := r.dueFor(change, s.now); wanted && !due.IsZero() {
		if owed.Due == nil {
			owed.Due = make(map[string]time.Time)
		}
		owed.Due[r.Name] = due
	}
	switch {
	case slices.Contains(op.Routes, r.Name):
		if wanted {
			owed.To = append(owed.To, r.Name)
		}
		return
	case slices.Contains(op.Undecided, r.Name):
		if wanted {
			owed.Undecided = append(owed.Undecided, r.Name)
		}
		return
	}
	unnamed := s.unnamed || change.Event.Type == "Preempt"
	verdict, _, err := r.Filter.Event(change, fields, s.observer.Name, unnamed)
	if err != nil {
		s.log.Warn("a filter failed, so the event passes", "sink", r.Name, "event", change.Event.ID, "err", err)
	}
	switch verdict {
	case Accepted:
		if s.observer.Name == "" && !strings.EqualFold(r.Filter.Only.VMs, "all") {
			s.log.Warn("this VM's name is not known, so the event passes", "sink", r.Name, "event", change.Event.ID, "hint", nameHint)
		}
		op.Routes = append(op.Routes, r.Name)
		if wanted {
			owed.To = append(owed.To, r.Name)
		}
	case Undecided:
		op.Undecided = append(op.Undecided, r.Name)
		if wanted {
			owed.Undecided = append(owed.Undecided, r.Name)
		}
	}
}

// end is what can honestly be said about the end of an event.
func end(c Change, op Open, self string, booted, now time.Time) End {
	e := c.Event
	x := End{Outcome: OutcomeUnknown, LongestPause: op.Pause}
	if booted.After(op.First) {
		x.Back = booted
	}
	switch {
	case !op.Started.IsZero(), op.Rebooted && e.Affects(self):
		x.Outcome = OutcomeCompleted
	case c.Replaced: // it may go on under the other id
	case e.Status == statusScheduled && now.Before(e.NotBefore) && !op.Gap && !op.Approved && e.Type != "Preempt" && e.Type != "Terminate":
		x.Outcome = OutcomeCanceled
	}
	return x
}

// setRoutes tells the outbox which routes there are. One that is new, or returns, is owed the newest change of every open
// event, unless it was owed it already. deciding is held.
func (b *Bridge) setRoutes(routes []Route, now time.Time) {
	added, back := b.Outbox.setRoutes(names(routes), now)
	missed := func(r Route, seq uint64) bool {
		return slices.Contains(added, r.Name) ||
			slices.Contains(back, r.Name) && b.Outbox.acceptance(r.Name, seq).state == neverOwed
	}
	if len(added)+len(back) == 0 {
		return
	}
	events, states := b.Outbox.known()
	c := Commit{Open: map[string]*Open{}}
	s := b.scene(moment{now: now})
	for _, e := range events {
		op := states[e.ID]
		ce, err := b.Outbox.cloudEvent(op.Latest)
		if err != nil {
			b.Log.Warn("a new sink will not hear of an event that is open", "event", e.ID, "err", err)
			continue
		}
		change := changeOf(ce)
		owed := Owed{CloudEvent: ce, Event: e.ID, Change: change.Kind, NotBefore: e.NotBefore, HeldUntil: s.heldUntil, Again: op.Latest}
		for _, r := range routes {
			if missed(r, op.Latest) {
				s.decide(r, change, Fields(ce), &op, &owed)
			}
		}
		c.Open[e.ID] = &op
		c.Owed = append(c.Owed, owed)
	}
	if len(c.Owed) > 0 {
		_ = b.Outbox.Commit(c, now) // the store says when it cannot write
	}
}

// decideHeld decides the filters that waited for the observer's name, if it is known or the wait is over. It is called
// every second, so it waits for nobody who decides right now.
func (b *Bridge) decideHeld(now time.Time) {
	if !b.deciding.TryLock() {
		return
	}
	defer b.deciding.Unlock()
	b.mu.Lock()
	self, routes, unnamed := b.observer.Name, b.routes, b.unnamed(now)
	b.mu.Unlock()
	for _, group := range b.Outbox.held() {
		first := group[0]
		over := unnamed || now.After(first.Held)
		if self == "" && !over {
			continue
		}
		from := first.seq
		if i := slices.IndexFunc(routes, func(r Route) bool { return r.Name == first.Sink }); i >= 0 {
			from = b.firstAccepted(routes[i], group, self)
		}
		if self == "" {
			b.Log.Warn("this VM's name is not known, so the event passes", "sink", first.Sink, "event", first.Event, "hint", nameHint)
		}
		b.Outbox.decide(first.Sink, first.Event, from)
	}
}

// firstAccepted is the sequence number of the first change that the route's filter accepts, 0 if it accepts none. A
// missing name counts as a match, and so does a change that cannot be read.
func (b *Bridge) firstAccepted(r Route, changes []Entry, self string) uint64 {
	for _, e := range changes {
		ce, err := b.Outbox.cloudEvent(e.seq)
		if err != nil {
			return e.seq
		}
		if verdict, _, _ := r.Filter.Event(changeOf(ce), Fields(ce), self, true); verdict != Refused {
			return e.seq
		}
	}
	return 0
}

// changeOf reads a change back from its CloudEvent.
func changeOf(ce event.Event) Change {
	c := Change{Kind: ChangeKind(strings.TrimPrefix(ce.Type(), EventPrefix))}
	var d Data
	if json.Unmarshal(ce.Data(), &d) != nil {
		return c
	}
	c.Event, _ = UnmarshalEvent(d.Event)
	c.Fields = d.Changed
	if len(bytes.TrimSpace(d.Previous)) > 0 {
		if previous, err := UnmarshalEvent(d.Previous); err == nil {
			c.Previous = &previous
		}
	}
	return c
}
