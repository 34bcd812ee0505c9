package outbox

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"forewarn/bridge/delivery"
)

// Bounds limit the outbox. Above them the oldest pending deliveries become dead letters, and the oldest
// dead letters and history are dropped, never silently. A zero field means its default.
type Bounds struct {
	Pending      int // deliveries; 100,000
	PendingBytes int // of CloudEvents, counted once a delivery; 256 MiB
	InMemory     int // deliveries, and as many dead letters, while the disk fails; no bound while it is only slow; 1,000
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

// enforceBounds makes dead letters of deliveries above the bounds: the oldest of the route with the most. While the
// disk fails, deliveries that are only in memory have a smaller bound.
func (tx *Tx) enforceBounds(b Bounds, failing bool) {
	for tx.pending.n > b.Pending || tx.pending.bytes > b.PendingBytes {
		most := slices.MaxFunc(slices.Collect(maps.Values(tx.routes)), func(a, b *route) int {
			return cmp.Or(len(a.pending)-len(b.pending), strings.Compare(b.name, a.name))
		})
		tx.giveUp(most.pending[0], delivery.ReasonOverflow, "")
	}
	if failing {
		list := tx.unstored(false)
		for _, e := range list[:max(0, len(list)-b.InMemory)] {
			tx.giveUpOutdated(e)
			tx.giveUp(e, delivery.ReasonOverflow, "")
		}
	}
	var letters []*entry
	for tx.dead.n > b.Dead || tx.dead.bytes > b.DeadBytes {
		if letters == nil {
			letters = tx.letters()
		}
		tx.remove(letters[0])
		letters = letters[1:]
		tx.deadDropped++
	}
	if failing {
		letters = tx.unstored(true)
		for _, d := range letters[:max(0, len(letters)-b.InMemory)] {
			tx.remove(d)
			tx.deadDropped++
		}
	}
}

// giveUpOutdated makes dead letters of what is older of a delivery that is given up because it is only in memory, where
// only the newest change counts: an older one on disk would be told as if it still held.
func (tx *Tx) giveUpOutdated(e *entry) {
	if !e.route.newestCounts() || e.Group == "" {
		return
	}
	at, _ := e.route.pending.index(e.Seq)
	for _, older := range slices.Clone(e.route.pending[:at]) {
		if older.Group == e.Group {
			tx.giveUp(older, delivery.ReasonOverflow, "")
		}
	}
}
