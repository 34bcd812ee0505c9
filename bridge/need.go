package bridge

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"forewarn/bridge/clock"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/trouble"
	"forewarn/bridge/mutes"
	"forewarn/bridge/outbox"
)

// isUrgent reports whether the event has begun, or may begin within delivery.UrgentNotice.
func isUrgent(e imds.Event, now time.Time) bool {
	return e.Status == imds.StatusStarted || e.NotBefore.Sub(now) < delivery.UrgentNotice
}

// isSoon reports whether one of the events may begin soon, and has not.
func isSoon(open []*openEvent, now time.Time) bool {
	return slices.ContainsFunc(open, func(op *openEvent) bool {
		return op.event.Status != imds.StatusStarted && isUrgent(op.event, now)
	})
}

// overdue returns since when the oldest overdue delivery of each route waits.
func (b *Bridge) overdue(open []*openEvent, now time.Time) map[string]time.Time {
	since := map[string]time.Time{}
	for _, op := range open {
		if !isUrgent(op.event, now) {
			continue
		}
		for _, d := range b.outbox.Pending(op.event.ID) {
			was := since[d.Route]
			waits, overdue := trouble.Overdue(&d.Item, d.Mute, now)
			if overdue && (was.IsZero() || waits.Before(was)) {
				since[d.Route] = waits
			}
		}
	}
	return since
}

// NeedsSomebody reports whether somebody must act: the sink is blocked, something urgent is overdue, or it has accepted
// nothing for so long that other sinks report it. It stays so until the sink accepts something or nothing waits for it.
func (k SinkStatus) NeedsSomebody(now time.Time) bool {
	pending := time.Duration(k.OldestPendingSeconds * float64(time.Second))
	return !k.NeededSince.IsZero() || k.State == SinkIsBlocked || !k.OverdueSince.IsZero() ||
		k.State == SinkRetrying && min(pending, now.Sub(k.LastAccepted)) >= trouble.SilentAfter
}

// Reasons returns why the sink makes the bridge or the relay not ready: it refuses deliveries while an event is due soon,
// or something urgent is overdue. Times are those of the zone.
func (k SinkStatus) Reasons(soon bool, zone *time.Location) []string {
	switch {
	case soon && k.State == SinkIsBlocked:
		return []string{k.refusal()}
	case !k.OverdueSince.IsZero():
		return []string{fmt.Sprintf("something urgent has waited for the sink %s since %s: %s", k.Name,
			clock.Time(k.OverdueSince, k.OverdueSince, zone), delivery.WithoutClass(k.LastError))}
	}
	return nil
}

// A NeedLog logs once when a sink needs somebody, and once when it no longer does. The zero value knows of none. It is
// safe for concurrent use.
type NeedLog struct {
	mu    sync.Mutex
	needs map[string]need // by the name of the sink
}

// A need is that of one sink, with the last state and error that tell why.
type need struct {
	since      time.Time
	state, err string
}

// Note takes in how the sinks are now, after Keep.
func (n *NeedLog) Note(log *slog.Logger, sinks []SinkStatus, now time.Time) {
	begun, ended := n.take(sinks, now)
	for _, k := range begun {
		log.Error("sink needs somebody; its deliveries are kept", "sink", k.Name, "kind", k.Kind, "pending", k.Pending,
			"err", k.LastError)
	}
	for name, was := range ended {
		log.Info("sink no longer needs somebody", "sink", name, "after", now.Sub(was.since).Round(time.Second))
	}
}

// take takes in how the sinks are now, and returns those that begin to need somebody and the needs that have ended.
func (n *NeedLog) take(sinks []SinkStatus, now time.Time) (begun []SinkStatus, ended map[string]need) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ended = n.needs
	n.needs = map[string]need{}
	for _, k := range sinks {
		if !k.NeedsSomebody(now) {
			continue
		}
		was, known := ended[k.Name]
		if !known {
			was.since = now
			begun = append(begun, k)
		}
		delete(ended, k.Name)
		n.needs[k.Name] = need{was.since, k.State, k.LastError}
	}
	return begun, ended
}

// Keep keeps in the status that the sink needs somebody, and why, until it accepts something or nothing waits for it.
// A mute makes it wait, but mends nothing.
func (n *NeedLog) Keep(k *SinkStatus) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was, known := n.needs[k.Name]
	served := k.State != SinkOrphaned && k.State != SinkStandby
	waits := k.Muted > 0 || !k.OldestPending.IsZero()
	if !known || !served || !waits || k.LastAccepted.After(was.since) {
		return
	}
	k.NeededSince = was.since.UTC()
	if k.State == SinkOK {
		k.State = was.state
	}
	k.LastError = cmp.Or(k.LastError, was.err)
}

// logNeeds logs which sinks begin or end to need somebody.
func (b *Bridge) logNeeds(now time.Time) {
	b.needs.Note(b.log, b.sinks(b.events.all(), now), now)
}

// sinks returns the status of all routes, in the order of their names.
func (b *Bridge) sinks(open []*openEvent, now time.Time) []SinkStatus {
	all := []SinkStatus{}
	stats, active := b.outbox.Stats(), b.Mutes()
	overdue, soon := b.overdue(open, now), isSoon(open, now)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.routes { // also those that the outbox does not have yet
		if _, ok := stats[r.Name]; !ok {
			stats[r.Name] = outbox.Stats{}
		}
	}
	for name, st := range stats {
		if st.Gone.IsZero() || st.Pending+st.Dead > 0 {
			k := b.sinkStatus(name, st, soon, now)
			k.MutedUntil = mutes.Until(active, name, k.People)
			if k.State != SinkOrphaned {
				k.OverdueSince = overdue[name].UTC()
			}
			b.needs.Keep(&k)
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(x, y SinkStatus) int { return strings.Compare(x.Name, y.Name) })
	return all
}
