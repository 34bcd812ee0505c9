package outbox

import (
	"cmp"

	"forewarn/bridge/delivery"
)

// Bounds are how much the outbox holds. Over them the oldest goes, never silently. A zero field has its default.
type Bounds struct {
	Pending      int // deliveries; 100,000
	PendingBytes int // of CloudEvents, counted once a delivery; 256 MiB
	InMemory     int // deliveries, and dead letters, that are only in memory while the disk fails; 1,000
	Dead         int // letters; 10,000
	DeadBytes    int // 64 MiB
	History      int // CloudEvents, and settled deliveries; 100,000
	HistoryBytes int // of each of the two; 128 MiB
}

func (b Bounds) orDefaults() Bounds {
	return Bounds{
		Pending: cmp.Or(b.Pending, 100_000), PendingBytes: cmp.Or(b.PendingBytes, 256<<20),
		InMemory: cmp.Or(b.InMemory, 1_000),
		Dead:     cmp.Or(b.Dead, 10_000), DeadBytes: cmp.Or(b.DeadBytes, 64<<20),
		History: cmp.Or(b.History, 100_000), HistoryBytes: cmp.Or(b.HistoryBytes, 128<<20),
	}
}

// bound gives up what is too much: the oldest of the route with most. While the disk fails there is less room, for what
// is only in memory.
func (c *change) bound(failing bool) {
	b := c.bounds
	for c.pending.n > b.Pending || c.pending.bytes > b.PendingBytes {
		c.giveUp(c.fullest(func(r *route) int { return len(r.pending) }).oldest(), delivery.ReasonOverflow, "", false)
	}
	for failing && c.unstored > b.InMemory {
		e, _ := c.fullest(func(r *route) int { return r.volatile }).unstored.first()
		c.giveUp(e, delivery.ReasonOverflow, "", false)
	}
	for c.deadSize.n > b.Dead || c.deadSize.bytes > b.DeadBytes {
		d, _ := c.deadBySeq.first()
		c.forgetDead(d)
		c.lost++
	}
	for failing && c.deadUnstored > b.InMemory {
		d, _ := c.deadUnstoredBySeq.first()
		c.forgetDead(d)
		c.lost++
	}
}

// fullest is the route with most, as count counts; by name among equals.
func (m *memory) fullest(count func(*route) int) *route {
	var most *route
	for _, r := range m.routes {
		if n := count(r); most == nil || n > count(most) || n == count(most) && r.name < most.name {
			most = r
		}
	}
	return most
}

// oldest is the pending delivery that could have been delivered for longest.
func (r *route) oldest() *entry {
	a, okA := r.ofGroups.first()
	b, okB := r.others.first()
	if okA && (!okB || !b.since().Before(a.since())) {
		return a
	}
	return b
}
