package bridge

import (
	"slices"
	"time"
)

// dueFor is when a change is due at a route with a lead: that long before the event begins; zero for at once.
func (r Route) dueFor(c Change, now time.Time) time.Time {
	if r.Terms.Lead <= 0 || c.Kind != Scheduled && c.Kind != Updated {
		return time.Time{}
	}
	if due := c.Event.NotBefore.Add(-r.Terms.Lead); due.After(now) {
		return due
	}
	return time.Time{}
}

// overtake brings what waits for its time, and reminders that are still owed, in line with a newer change of their event.
// Reminders are out of date. What waits goes with the change when its route is owed that too, and when the event began
// or ended; else it moves with NotBefore. mu is held.
func (o *Outbox) overtake(owed Owed, now time.Time) {
	if owed.Event == "" || owed.Again != 0 || !owed.Change.azures() {
		return
	}
	for name, sh := range o.shelves {
		for _, e := range sh.entries {
			switch {
			case e.Event != owed.Event || e.Change != Reminder && e.Due.IsZero():
			case e.Change == Reminder, owed.Change == Started, owed.Change == Vanished, slices.Contains(owed.To, name):
				o.remove(e)
				o.store.write(bucketSettled, seqKey(e.seq)+"/"+name, compactJSON(Settled{
					At: now.UTC(), How: settledSuperseded, ID: e.ID, Event: e.Event, Attempts: e.Attempts,
				}))
			default:
				e.Due = e.Due.Add(owed.NotBefore.Sub(e.NotBefore))
				e.NotBefore, e.Next = owed.NotBefore, e.Due
				o.store.write(bucketPending, e.Key, compactJSON(e))
			}
		}
	}
}

// release lets the workers have what waited for its time. Its age counts from now.
func (o *Outbox) release(now time.Time) {
	o.mu.Lock()
	changed := false
	for _, sh := range o.shelves {
		for _, e := range sh.entries {
			if e.Due.IsZero() || e.Due.After(now) {
				continue
			}
			e.Due, e.Next, e.Owed = time.Time{}, time.Time{}, now.UTC()
			o.store.write(bucketPending, e.Key, compactJSON(e))
			sh.offer(e)
			changed = true
		}
	}
	o.mu.Unlock()
	if changed {
		o.syncIf(false)
	}
}
