// Package trouble says what bridges and relays report as trouble, and how: sinks that accept nothing, deliveries that
// are overdue, and those that are given up.
package trouble

import (
	"errors"
	"fmt"
	"time"

	"forewarn/bridge/clock"
	"forewarn/bridge/delivery"
)

const (
	SilentAfter     = 5 * time.Minute // a route that accepted nothing for this long counts as blocked
	DeadReportEvery = time.Minute     // shortest interval of reports about the dead letters of one route
	ListedDead      = 20              // deliveries named in one CloudEvent

	overdueAfter = time.Minute // how long a delivery about an urgent event may wait after its first attempt
)

// Overdue reports since when a delivery waits, which is about an urgent event, was attempted and has waited for too
// long. What a mute holds back is not overdue; once that ends, what could be made before the mute has waited all along.
func Overdue(i *delivery.Item, mute *delivery.Mute, now time.Time) (since time.Time, overdue bool) {
	since = i.Since(mute)
	if mute != nil && i.PendingSince.Before(mute.Since) {
		since = i.PendingSince
	}
	return since, i.Attempts > 0 && !mute.Active() && now.Sub(since) > overdueAfter
}

// WhySilent returns why a route accepts nothing; nil if it is only busy. timeout is that of its attempts, 0 for none; zone
// is that of the people who read it.
func WhySilent(st delivery.State, timeout time.Duration, now time.Time, zone *time.Location) error {
	switch {
	case st.Retrying:
		return errors.New(st.Error)
	case timeout > 0 && !st.Since.IsZero() && now.After(st.Since.Add(timeout+time.Second)):
		return fmt.Errorf("the attempt of %s does not end", clock.Time(st.Since, now, zone))
	}
	return nil
}

// DescribeDead describes a delivery that was given up or dropped, for a CloudEvent.
func DescribeDead(key, reason string, i delivery.Item) map[string]any {
	one := map[string]any{"key": key, "id": i.ID, "type": i.Type, "attempts": i.Attempts, "reason": reason}
	if i.Group != "" {
		one["event"] = i.Group
	}
	if i.Error != "" {
		one["error"] = i.Error
	}
	return one
}
