package bridge

import (
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// overdueAfter is how long a delivery about an urgent event may wait after its first attempt.
const overdueAfter = time.Minute

// Overdue reports whether a delivery, which is about an urgent event, was attempted and has waited for too long. What a
// mute holds back is not overdue.
func Overdue(i *delivery.Item, now time.Time) bool {
	return i.Attempts > 0 && !i.Mute.Active() && now.Sub(i.Since()) > overdueAfter
}

// isUrgent reports whether the event has begun, or may begin within delivery.UrgentNotice.
func isUrgent(e imds.Event, now time.Time) bool {
	return e.Status == imds.StatusStarted || e.NotBefore.Sub(now) < delivery.UrgentNotice
}

// isSoon reports whether one of the events may begin soon, and has not.
func isSoon(events []imds.Event, now time.Time) bool {
	return slices.ContainsFunc(events, func(e imds.Event) bool {
		return e.Status != imds.StatusStarted && isUrgent(e, now)
	})
}

// overdue returns since when the oldest overdue delivery of each route waits.
func (b *Bridge) overdue(events []imds.Event, now time.Time) map[string]time.Time {
	since := map[string]time.Time{}
	for _, e := range events {
		if !isUrgent(e, now) {
			continue
		}
		for _, d := range b.Outbox.Pending(e.ID) {
			if was := since[d.Route]; Overdue(&d.Item, now) && (was.IsZero() || d.Since().Before(was)) {
				since[d.Route] = d.Since()
			}
		}
	}
	return since
}

// NeedsSomebody reports whether somebody must act: the sink is blocked, something urgent is overdue, or it has accepted
// nothing for so long that other sinks report it.
func (k SinkStatus) NeedsSomebody(now time.Time) bool {
	pending := time.Duration(k.OldestPendingSeconds * float64(time.Second))
	return k.State == SinkIsBlocked || !k.OverdueSince.IsZero() ||
		k.State == SinkRetrying && min(pending, now.Sub(k.LastAccepted)) >= SilentFor
}

// Reasons returns why the sink makes the bridge or the relay not ready: it refuses deliveries while an event is due soon,
// or something urgent is overdue. Times are those of the zone.
func (k SinkStatus) Reasons(soon bool, zone *time.Location) []string {
	switch {
	case soon && k.State == SinkIsBlocked:
		return []string{k.refusal()}
	case !k.OverdueSince.IsZero():
		return []string{fmt.Sprintf("something urgent has waited for the sink %s since %s: %s", k.Name,
			ClockTime(k.OverdueSince, k.OverdueSince, zone), k.LastError)}
	}
	return nil
}

// A NeedLog logs once when a sink needs somebody, and once when it no longer does. The zero value knows of none.
type NeedLog struct{ since map[string]time.Time }

// Note takes in how the sinks are now.
func (n *NeedLog) Note(log *slog.Logger, sinks []SinkStatus, now time.Time) {
	before := n.since
	n.since = map[string]time.Time{}
	for _, k := range sinks {
		if !k.NeedsSomebody(now) {
			continue
		}
		n.since[k.Name] = now
		if was, known := before[k.Name]; known {
			n.since[k.Name] = was
			continue
		}
		log.Error("sink needs somebody; its deliveries are kept", "sink", k.Name, "kind", k.Kind, "pending", k.Pending,
			"err", k.LastError)
	}
	for name, since := range before {
		if _, still := n.since[name]; !still {
			log.Info("sink no longer needs somebody", "sink", name, "after", now.Sub(since).Round(time.Second))
		}
	}
}

// logNeeds logs which sinks begin or end to need somebody.
func (b *Bridge) logNeeds(now time.Time) {
	b.needs.Note(b.Log, b.sinks(b.events.list(), now), now)
}

// sinks returns the status of all routes, in the order of their names.
func (b *Bridge) sinks(events []imds.Event, now time.Time) []SinkStatus {
	all := []SinkStatus{}
	stats, mutes := b.Outbox.Stats(now), b.Mutes()
	overdue, soon := b.overdue(events, now), isSoon(events, now)
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
			k.MutedUntil = MutedUntil(mutes, name, k.People)
			if k.State != SinkOrphaned {
				k.OverdueSince = overdue[name].UTC()
			}
			all = append(all, k)
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}
