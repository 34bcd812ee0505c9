package relay

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/clock"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/trouble"
	"forewarn/bridge/mutes"
)

// Status returns how the relay, its sinks and the fleet are.
func (r *Relay) Status() bridge.Status {
	now := time.Now()
	events, vms, more := r.fleet.OpenEvents(now), r.fleet.VMs(), r.fleet.Warnings() // which takes a while
	watchErr := r.fleet.WatchErr()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := bridge.Status{
		Version: r.Version, StartedAt: r.started.UTC(), Reasons: []string{},
		Warnings: slices.Concat(r.Warnings(), r.storageNotes, r.otherSettings()),
		Events:   events, Sinks: []bridge.SinkStatus{}, Settings: r.Settings,
		Relay:  &bridge.RelayStatus{Name: r.Name, Stream: r.Stream, Relays: []bridge.RelayPeer{}},
		Outbox: bridge.OutboxStatus{Durable: r.down == nil}, Mutes: mutes.Active(r.mutes),
	}
	s.Relay.VMs = vms
	for _, p := range r.peers {
		s.Relay.Relays = append(s.Relay.Relays, bridge.RelayPeer{Name: p.Name, Version: p.Version, Hash: p.Hash,
			LastSeen: p.LastSeen})
	}
	if watchErr != nil && r.down == nil {
		s.Warnings = append(s.Warnings, "nobody can be told which VMs fall silent: "+r.Shown(watchErr).Error())
	}
	s.Warnings = append(s.Warnings, more...)
	if r.deadFull {
		s.Warnings = append(s.Warnings, deadFull)
	}
	if r.down != nil {
		s.Outbox.Error = r.down.Error()
	}
	sinks, reasons := r.sinkStatuses(now)
	s.Sinks, s.Reasons = sinks, append(s.Reasons, reasons...)
	for _, k := range sinks {
		s.Outbox.Pending += k.Pending
	}
	for _, route := range r.Routes {
		if n := r.deletedUnread(route); n > 0 {
			messages := "1 message"
			if n > 1 {
				messages = fmt.Sprint(n, " messages")
			}
			s.Warnings = append(s.Warnings, fmt.Sprintf("the stream has deleted %s that the sink %s may not have got; "+
				"raise its max_age or max_bytes", messages, route.Name))
		}
	}
	for _, n := range r.deadCounts {
		s.Outbox.DeadLetters += n
	}
	s.Ready = len(s.Reasons) == 0
	return s
}

// Reasons returns why the relay isn't ready: Status.Reasons. It doesn't look at the fleet, which may take longer than a
// health check waits.
func (r *Relay) Reasons() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, reasons := r.sinkStatuses(time.Now())
	return reasons
}

// sinkStatuses returns the statuses of all sinks, and why the relay isn't ready. mu is held.
func (r *Relay) sinkStatuses(now time.Time) (sinks []bridge.SinkStatus, reasons []string) {
	sinks = []bridge.SinkStatus{}
	if r.down != nil {
		reasons = append(reasons, delivery.WithoutClass(r.down.Error()))
	}
	for _, route := range r.Routes {
		k, why := r.sinkStatus(route, now)
		sinks, reasons = append(sinks, k), append(reasons, why...)
	}
	sort.SliceStable(sinks, func(i, j int) bool { return sinks[i].Name < sinks[j].Name })
	return sinks, reasons
}

// Left returns how many deliveries of each sink were pending when this relay stopped. Another relay, or the next start,
// delivers them.
func (r *Relay) Left() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := make(map[string]int)
	for name, s := range r.services {
		left[name] = s.left
	}
	return left
}

// Alive returns an error if the housekeeping has hung for a minute.
func (r *Relay) Alive() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down == nil && time.Since(r.lastTurn) > time.Minute {
		return fmt.Errorf("the relay hangs since %s", clock.Time(r.lastTurn, time.Now(), r.Settings.Location()))
	}
	return nil
}

// Sinks returns the names of the routes.
func (r *Relay) Sinks() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, route := range r.Routes {
		names = append(names, route.Name)
	}
	return names
}

// deletedUnread returns how many messages the stream's limits deleted that the sink may not have got, if this relay
// serves it. mu is held.
func (r *Relay) deletedUnread(route bridge.Route) uint64 {
	s := r.services[route.Name]
	if s == nil || s.queue == nil {
		return 0
	}
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return s.queue.pos.deleted
}

// urgentWithin is how soon an event begins whose pending delivery keeps the relay from being ready, if the sink refuses
// it.
const urgentWithin = 15 * time.Minute

// sinkStatus returns the status of one route, and why the route keeps the relay from being ready. mu is held.
func (r *Relay) sinkStatus(route bridge.Route, now time.Time) (k bridge.SinkStatus, reasons []string) {
	people := route.Terms.People
	k = bridge.SinkStatus{
		Name: route.Name, Kind: route.Kind, People: people, State: bridge.SinkStandby, DeadLetters: r.deadCounts[route.Name],
		MutedUntil: mutes.Until(mutes.Active(r.mutes), route.Name, people),
	}
	s := r.services[route.Name]
	if s == nil {
		return k, nil
	}
	k.Relay = s.holder.Relay
	switch {
	case s.err != nil:
		k.LastError = s.err.Error()
		reasons = append(reasons, fmt.Sprintf("the sink %s is not served: %s", route.Name, delivery.WithoutClass(k.LastError)))
	case s.queue == nil && (k.Relay == "" || s.holder.ID == r.self.ID) && r.down == nil:
		reasons = append(reasons, fmt.Sprintf("the sink %s is not served yet", route.Name))
	}
	if s.queue == nil {
		return k, reasons
	}
	q := s.queue.status()
	k.State, k.Pending, k.Delivered, k.LastAccepted = bridge.SinkOK, q.pending, q.delivered, q.accepted
	k.Muted = q.muted
	if !q.oldest.IsZero() {
		k.OldestPending = q.oldest
		k.OldestPendingSeconds = max(0, now.Sub(q.oldest).Round(time.Millisecond).Seconds())
	}
	w := s.worker.State()
	k.LastError = w.Error
	switch {
	case w.Blocked, w.Refused && w.Retrying && q.urgent:
		k.State = bridge.SinkIsBlocked
	case w.Retrying:
		k.State = bridge.SinkRetrying
	}
	switch {
	case !q.lead.IsZero():
		k.NextAttempt, k.WaitsFor = q.lead.UTC(), delivery.WaitsForLead
	case q.pending > 0:
		k.NextAttempt, k.WaitsFor = w.Next.UTC(), w.Waits
	}
	k.OverdueSince = q.overdue.UTC()
	r.needs.Keep(&k)
	reasons = append(reasons, k.Reasons(q.urgent, r.Settings.Location())...)
	for _, why := range q.problems {
		reasons = append(reasons, r.Shown(errors.New("the sink "+route.Name+": "+why)).Error())
	}
	return k, reasons
}

// queueStatus is the state of a queue.
type queueStatus struct {
	pending, delivered int
	muted              int // of the pending
	accepted, oldest   time.Time
	lead               time.Time // when the first lead comes, if all that is pending waits for one; else zero
	urgent             bool      // the event of something pending begins soon
	overdue            time.Time // since when the oldest urgent one waits that is overdue; zero for none
	problems           []string  // why it isn't as it should be
}

func (q *queue) status() queueStatus {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	s := queueStatus{pending: len(q.pending), delivered: q.tally.accepted, accepted: q.tally.lastAccepted}
	for _, e := range q.pending {
		mute := q.muteOf(e)
		if mute.Active() {
			s.muted++
			continue
		}
		since := e.item.Since(mute)
		if s.oldest.IsZero() || since.Before(s.oldest) {
			s.oldest = since
		}
		urgent := e.item.Group != "" && e.item.NotBefore.Sub(now) < urgentWithin
		s.urgent = s.urgent || urgent
		waits, overdue := trouble.Overdue(e.item, mute, now)
		if urgent && e.item.Change != string(imds.Vanished) && overdue &&
			(s.overdue.IsZero() || waits.Before(s.overdue)) {
			s.overdue = waits
		}
	}
	if s.oldest.After(now) {
		s.oldest, s.lead = time.Time{}, s.oldest
	}
	for _, w := range []struct {
		so  bool
		why string
	}{
		{q.room.overflowed > 0, fmt.Sprintf("%d deliveries are unsettled, so the oldest that isn't urgent becomes a dead letter "+
			"for each that comes: %d so far%s", q.room.most, q.room.overflowed, q.room.overflowsFirst())},
		{!q.room.fullSince.IsZero() && q.room.overflowed == 0, fmt.Sprintf("%d deliveries are unsettled", q.room.most)},
		{q.pos.err != nil, fmt.Sprintf("the stream can't be read on: %v", q.pos.err)},
		{q.records.err != nil, fmt.Sprintf("what was delivered can't be recorded: %v", q.records.err)},
		{len(q.transfers.errs) > 0, q.transferProblem()},
	} {
		if w.so {
			s.problems = append(s.problems, w.why)
		}
	}
	return s
}
