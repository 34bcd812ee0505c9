package outbox

import (
	"cmp"
	"slices"
	"strings"

	"forewarn/bridge/delivery"
)

// keepMutes is how many ended mutes are kept, those that ended last. Deliveries that waited for one count their age from
// its end.
const keepMutes = 100

// Mutes returns all mutes, the oldest first, also those that ended lately.
func (o *Outbox) Mutes() []*delivery.Mute {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.mutes)
}

// setMute adds a mute, or replaces the one with its ID. The caller then calls assignMutes.
func (m *memory) setMute(to delivery.Mute) {
	m.mutes = slices.DeleteFunc(m.mutes, func(was *delivery.Mute) bool { return was.ID == to.ID })
	m.mutes = append(m.mutes, &to)
	slices.SortFunc(m.mutes, func(a, b *delivery.Mute) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.ID, b.ID))
	})
}

// setMutes applies Batch.Mutes.
func (tx *Tx) setMutes(list []delivery.Mute) {
	if len(list) == 0 {
		return
	}
	for _, m := range list {
		if !m.Active() && m.LastSeq == 0 {
			m.LastSeq = tx.last
		}
		muteTable.set(tx, m.ID, m)
		tx.newMutes[m.ID] = true
	}
	tx.dropMutes()
	tx.assignMutes()
}

// dropMutes keeps the mutes that ended last. When they began doesn't matter: deliveries may have waited for a long one.
func (tx *Tx) dropMutes() {
	ended := slices.DeleteFunc(slices.Clone(tx.mutes), (*delivery.Mute).Active)
	slices.SortStableFunc(ended, func(a, b *delivery.Mute) int { return b.Ended.Compare(a.Ended) })
	for _, m := range ended[min(keepMutes, len(ended)):] {
		tx.mutes = slices.DeleteFunc(tx.mutes, func(other *delivery.Mute) bool { return other == m })
		delete(tx.newMutes, m.ID)
		tx.write(bucketMutes, m.ID, nil)
	}
}

// assignMutes gives each route its mutes. It costs nothing for each delivery: who needs the mute of one asks for it.
func (m *memory) assignMutes() {
	for _, r := range m.routes {
		m.assignMutesOf(r)
	}
}

// assignMutesOf does what assignMutes does, for one route.
func (m *memory) assignMutesOf(r *route) {
	mutes := delivery.MutesFor(m.mutes, r.name, r.people)
	r.mutes.Store(&mutes)
	if r.reader != nil {
		wake(r.reader.changed)
	}
}

// mute returns the mute that holds the delivery back, or the last one that it waited for; nil for none.
func (e *entry) mute() *delivery.Mute { return delivery.MuteOf(e.route.activeMutes(), &e.Item) }

// activeMutes returns the mutes of the route. It needs no lock.
func (r *route) activeMutes() []*delivery.Mute {
	mutes := r.mutes.Load()
	if mutes == nil {
		return nil
	}
	return *mutes
}
