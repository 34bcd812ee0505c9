package bridge

import (
	"cmp"
	"log/slog"
	"sync"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/trouble"
	"forewarn/bridge/outbox"
)

// When trouble is reported.
const (
	unwritableAfter = 10 * time.Second // a failure of the disk that is over sooner is told to nobody
	writableAfter   = time.Minute      // a disk that works for less has not recovered: small writes may find room
	unwritableEvery = 10 * time.Minute // shortest time from such an end to the next report

	noAnswerFor    = 5 * time.Minute  // without a valid answer the endpoint counts as unavailable
	noFirstFor     = 10 * time.Minute // the same before the very first one
	housekeepEvery = time.Second
)

// describeAll describes deliveries of a sink that were given up or dropped together: how many there are, and the first
// of them.
func describeAll(sink string, list []outbox.Delivery) map[string]any {
	var named []map[string]any
	for _, d := range list[:min(len(list), trouble.ListedDead)] {
		named = append(named, trouble.DescribeDead(d.Key, cmp.Or(d.Reason, outbox.StateDropped), d.Item))
	}
	return map[string]any{"sink": sink, "count": len(list), "deliveries": named}
}

// gap is a time between two valid answers.
type gap struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
}

// reportBridge commits a CloudEvent about the bridge for the routes that get this type, except the route concerned.
func (b *Bridge) reportBridge(typ string, data map[string]any, about string) {
	b.reportWith(commit{}, typ, data, about)
}

// reportWith commits such a CloudEvent together with what else changes.
func (b *Bridge) reportWith(c commit, typ string, data map[string]any, about string) {
	wait := b.update(func() commit {
		b.reporter().add(&c, typ, data, about)
		return c
	})
	_ = wait() // the outbox logs its errors
}

// A reporter makes CloudEvents about the bridge. It takes no lock of the bridge, so that it can be used within a change of
// the outbox.
type reporter struct {
	routes []Route
	self   imds.Observer
	next   func() time.Time // see stamps
}

func (b *Bridge) reporter() reporter {
	self := b.self()
	b.mu.Lock()
	defer b.mu.Unlock()
	return reporter{b.routes, self, b.stamps.next}
}

// stamps are the times of CloudEvents about the bridge. No two are equal.
type stamps struct {
	mu   sync.Mutex
	last time.Time
}

// next returns the present time, or a later one.
func (s *stamps) next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !now.After(s.last) {
		now = s.last.Add(1)
	}
	s.last = now
	return now
}

// add adds a CloudEvent to a commit, for the routes that get this type, except the route concerned.
func (r reporter) add(c *commit, typ string, data map[string]any, about string) {
	var to []string
	for _, route := range r.routes {
		if route.Name != about && route.Terms.Bridge.Hears(typ) {
			to = append(to, route.Name)
		}
	}
	ce, err := cloudevent.WrapBridge(typ, data, r.self, r.next())
	if err != nil {
		c.log(slog.LevelError, "cannot create a CloudEvent about the bridge", "type", typ, "err", err)
		return
	}
	c.add(ce, outbox.Addition{Message: delivery.Message{About: about}, To: to})
}

// trouble reports that a route is blocked, or accepts again if why is nil. It does nothing if that is reported already,
// be it by an earlier run.
func (b *Bridge) trouble(route string, why error) {
	if b.isNews(route, why) {
		_ = b.reportTrouble(route, why)() // the outbox logs its errors
	}
}

// reportTrouble decides on such a report once more, because another goroutine may have been faster.
func (b *Bridge) reportTrouble(route string, why error) (wait func() error) {
	return b.update(func() (c commit) {
		b.mu.Lock()
		w := b.workers[route]
		b.mu.Unlock()
		st := b.outbox.Stats()[route]
		if w == nil || !b.isNews(route, why) ||
			// It was removed meanwhile, or only events about the bridge are pending: those never cause another.
			why != nil && (!st.Gone.IsZero() || !w.State().OfGroup) {
			return c
		}
		data := map[string]any{"sink": route, "kind": w.kind, "pending": st.Pending}
		typ := cloudevent.SinkRecovered
		if why != nil {
			typ, data["since"], data["error"] = cloudevent.SinkBlocked, w.State().Oldest, why.Error()
			if urgent := b.mostUrgent(route); urgent != nil {
				data["urgent"] = urgent
			}
		}
		c = reporting(valueBlocked+route, why != nil)
		b.reporter().add(&c, typ, data, route)
		return c
	})
}

// mostUrgent describes the open event that is due next of those whose latest change is pending for a route; nil for
// none.
func (b *Bridge) mostUrgent(route string) map[string]any {
	var next *imds.Event
	for _, op := range b.events.all() {
		pending := b.outbox.Delivery(route, op.latest.Seq).State == outbox.StatePending
		if pending && (next == nil || sooner(op.event, *next)) {
			next = &op.event
		}
	}
	if next == nil {
		return nil
	}
	vms := append([]string{}, next.Resources[:min(len(next.Resources), trouble.ListedDead)]...)
	about := map[string]any{"event": next.ID, "type": next.Type, "vms": vms}
	if !next.NotBefore.IsZero() {
		about["notBefore"] = next.NotBefore
	}
	return about
}

// sooner reports whether e is due before other. One that has begun, or whose time is unknown, comes before those with a
// time.
func sooner(e, other imds.Event) bool { return e.NotBefore.Before(other.NotBefore) }

// What is stored of trouble that is reported. That of a route that was removed is reported again if the one that
// returns under its name has some, and its end is in any case.
const (
	troubleReported = "reported"
	troubleBefore   = "before"
)

// isNews reports whether it is still to be reported that a route is blocked, or accepts again if why is nil.
func (b *Bridge) isNews(route string, why error) bool {
	told := b.outbox.Value(valueBlocked + route)
	if why == nil {
		return told != nil
	}
	return string(told) != troubleReported
}

// reporting begins the commit that reports trouble, or its end.
func reporting(name string, trouble bool) commit {
	c := commit{Batch: outbox.Batch{Values: map[string][]byte{name: nil}}}
	if trouble {
		c.Values[name] = []byte(troubleReported)
	}
	return c
}

// reported returns whether trouble of that name is reported, and its end is not.
func (b *Bridge) reported(name string) bool { return b.outbox.Value(name) != nil }

// deadLettered logs and counts new dead letters; the outbox calls it.
func (b *Bridge) deadLettered(dead []outbox.Delivery) {
	for _, d := range dead {
		b.log.Error("delivery became a dead letter", "key", d.Key, "sink", d.Route, "id", d.ID, "reason", d.Reason,
			"err", d.Error)
		b.meter.Failed(d.Route, d.Reason)
	}
}

// reportDead reports the dead letters that are due, also those of an earlier run: the first one of a route at once,
// further ones together, while after the last report. It begins with the workers: before, the outbox may be another
// VM's.
func (b *Bridge) reportDead(now time.Time, while time.Duration) {
	var due []string
	stats := b.outbox.Stats()
	b.mu.Lock()
	for route, st := range stats {
		if b.delivering && st.Unreported > 0 && now.Sub(b.lastDead[route]) >= while {
			due, b.lastDead[route] = append(due, route), now
		}
	}
	b.mu.Unlock()
	for _, route := range due {
		b.reportDeadOf(route)
	}
}

// reportDeadOf reports the unreported dead letters of a route.
func (b *Bridge) reportDeadOf(route string) {
	report := b.reporter()
	var c commit
	wait := b.outbox.Update(time.Now(), func(tx *outbox.Tx) {
		letters := tx.Unreported(route)
		if len(letters) == 0 {
			return // replayed or dropped meanwhile
		}
		for _, d := range letters {
			tx.SetReported(d)
		}
		report.add(&c, cloudevent.DeliveryDeadLettered, describeAll(route, letters), route)
		b.apply(tx, c)
	})
	b.committed(c)
	_ = wait() // the outbox logs its errors
}

// housekeep does the periodic work.
func (b *Bridge) housekeep() {
	b.recordTurn(&b.lastHousekeeping)
	now := time.Now()
	b.endMutes()
	b.reportSilent(now)
	b.logNeeds(now)
	b.tellDue(now)
	b.sendHeartbeats(now)
	b.reportHeads(now, headEvery)
	b.reportDead(now, trouble.DeadReportEvery)
	b.reportUnavailable(now)
	b.reportDisk(now)
	b.tidy(now)
}

// tidy lets the outbox drop what is too old. It waits until the first valid answer, so that it doesn't delay that.
func (b *Bridge) tidy(now time.Time) {
	b.mu.Lock()
	answered := !b.imds.lastAnswer.IsZero()
	b.mu.Unlock()
	if answered {
		b.outbox.Maintain(now)
	}
}

// reportSilent reports routes that have accepted nothing for long while deliveries are pending for them.
func (b *Bridge) reportSilent(now time.Time) {
	b.mu.Lock()
	began := b.began
	b.mu.Unlock()
	for route, st := range b.outbox.Stats() {
		b.mu.Lock()
		c := b.workers[route]
		b.mu.Unlock()
		if c == nil || !st.Gone.IsZero() {
			continue
		}
		w := c.State()
		if !w.OfGroup || now.Sub(later(later(w.Oldest, st.Accepted), began)) < trouble.SilentAfter {
			continue
		}
		if why := trouble.WhySilent(w, c.timeout, now, b.zone()); why != nil {
			b.trouble(route, why)
		}
	}
}

// A disk outage begins when the outbox can't be written, and ends when it was written again for writableAfter. Only
// housekeep uses it, and only memory has it: there is nothing else to write it to.
type diskOutage struct {
	since  time.Time // zero for none
	worked time.Time // since when the outbox is written again; zero while it isn't
	told   bool
	ended  time.Time // when the end of the last one was told
}

// reportDisk reports that the outbox can't be written, once for each outage, and that it can again. Such a report is a
// delivery from memory like every other one meanwhile. As the report of an end may be what fills the disk, the next
// outage is not told soon after it.
func (b *Bridge) reportDisk(now time.Time) {
	b.mu.Lock()
	delivering := b.delivering // before, the outbox may be another VM's
	b.mu.Unlock()
	d, err := &b.disk, b.outbox.Durable()
	switch {
	case err != nil:
		d.worked = time.Time{}
		if d.since.IsZero() {
			d.since = now
		}
		if !d.told && delivering && now.Sub(d.since) >= unwritableAfter && now.Sub(d.ended) >= unwritableEvery {
			d.told = true
			b.reportBridge(cloudevent.OutboxUnwritable, map[string]any{"file": b.outbox.Path(), "since": d.since.UTC(),
				"pending": b.outbox.Totals().Pending, "error": err.Error()}, "")
		}
	case d.since.IsZero():
	case !d.told:
		d.since = time.Time{}
	case d.worked.IsZero():
		d.worked = now
	case now.Sub(d.worked) >= writableAfter:
		b.reportBridge(cloudevent.OutboxWritable, map[string]any{"file": b.outbox.Path(),
			"gap": gap{d.since.UTC(), d.worked.UTC()}}, "")
		*d = diskOutage{ended: now}
	}
}

// reportUnavailable reports that the endpoint has given no valid answer for long.
func (b *Bridge) reportUnavailable(now time.Time) {
	limit := noAnswerFor
	if b.lastAnswer().At.IsZero() {
		limit = noFirstFor
	}
	b.mu.Lock()
	since := later(b.began, b.imds.lastAnswer)
	news := !b.imds.reported && now.Sub(since) >= limit
	b.imds.reported = b.imds.reported || news
	lastErr := b.imds.lastErr
	b.mu.Unlock()
	if !news {
		return
	}
	if lastErr == "" {
		lastErr = "no answer"
	}
	b.log.Error("no valid answer from the endpoint for long: changes may go unnoticed",
		"endpoint", b.client.Endpoint(), "since", since.UTC(), "err", lastErr)
	if b.reported(valueUnavailable) {
		return // by an earlier run
	}
	b.reportWith(reporting(valueUnavailable, true), cloudevent.IMDSUnavailable, map[string]any{
		"endpoint": b.client.Endpoint(), "since": since.UTC(), "error": lastErr}, "")
}

// reportRecovered reports that the endpoint answers again, with the gap.
func (b *Bridge) reportRecovered(before, now time.Time) {
	b.mu.Lock()
	if before.IsZero() {
		before = b.began
	}
	b.mu.Unlock()
	b.reportWith(reporting(valueUnavailable, false), cloudevent.IMDSRecovered, map[string]any{
		"endpoint": b.client.Endpoint(), "gap": gap{before.UTC(), now.UTC()}}, "")
}

// reportStarted reports the start of the bridge, with the gap since the last run.
func (b *Bridge) reportStarted(before, now time.Time) {
	b.mu.Lock()
	data := map[string]any{"version": b.options.Version, "settingsHash": b.settings.Hash, "apiVersion": b.client.APIVersion()}
	b.mu.Unlock()
	if !b.options.Booted.IsZero() {
		data["bootTime"] = b.options.Booted.UTC()
	}
	if !before.IsZero() {
		data["gap"] = gap{before.UTC(), now.UTC()}
	}
	b.reportBridge(cloudevent.BridgeStarted, data, "")
}
