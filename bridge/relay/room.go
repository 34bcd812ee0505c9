package relay

import (
	"cmp"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// A room is how much of a sink may be unsettled in memory. Each set has its share of it, so that whoever publishes much
// for one set takes no room from the others.
type room struct {
	most       int              // deliveries that may be unsettled, as unitsOf counts them
	pending    int              // those that are pending
	maxBodies  int              // bytes of CloudEvents in memory
	bodies     int              // those that are
	sets       map[string]share // of what is pending, by cloudevent.Place.String
	fullSince  time.Time        // when the bound was reached; zero if there is room
	overflowed int              // deliveries that were given up for others since then
	overflowOf string           // the last set that had more than its share then; "" for none
	freed      chan struct{}    // wakes the reader
}

// A share is what of one set is pending.
type share struct {
	pending int // deliveries, as unitsOf counts them
	bodies  int // bytes of their CloudEvents in memory
}

// ofSet is the share of a set: one in so many.
const ofSet = 4

// crowded returns the set that has most pending if that is more than its share; else "".
func (r *room) crowded() (set string) {
	most := r.most / ofSet
	for name, s := range r.sets {
		if s.pending > most {
			set, most = name, s.pending
		}
	}
	return set
}

// unitsOf returns for how many deliveries one counts: one more for each 2 KiB that it keeps in memory besides its
// CloudEvent. Those are mostly the names of VMs, which a mute needs.
func unitsOf(m *delivery.Message) int {
	const unit, perName = 2 << 10, 32
	bytes := len(m.ID) + len(m.Type) + len(m.Group) + len(m.AzureType)
	for _, vm := range m.VMs {
		bytes += len(vm) + perName
	}
	return 1 + bytes/unit
}

// unitsUsed returns how many deliveries aren't settled for good, as unitsOf counts them. mu is held.
func (q *queue) unitsUsed() int { return q.room.pending + len(q.records.unsaved) }

// count counts what becomes pending, or ceases to be: n is 1 or -1. mu is held.
func (q *queue) count(e *pendingItem, n int) {
	n *= unitsOf(e.item.Message)
	q.room.pending += n
	s := q.room.sets[e.set]
	s.pending += n
	q.room.sets[e.set] = s
	if s == (share{}) {
		delete(q.room.sets, e.set)
	}
}

// keepBody keeps the CloudEvent of a delivery in memory, if there is room, or a set has more there than the delivery's
// own: then that makes room. It is read again otherwise. mu is held.
func (q *queue) keepBody(e *pendingItem, ce *event.Event) {
	if over := q.room.bodies + e.bytes - q.room.maxBodies; over > 0 {
		set, most := e.set, q.room.sets[e.set].bodies+e.bytes
		for name, s := range q.room.sets {
			if s.bodies > most {
				set, most = name, s.bodies
			}
		}
		if set == e.set {
			return
		}
		for other := range q.pendingOf(set) {
			if over > 0 && other.ce != nil {
				over -= other.bytes
				q.dropBody(other)
			}
		}
	}
	e.ce = ce
	q.countBody(e, e.bytes)
}

// dropBody lets the CloudEvent of a delivery go. mu is held.
func (q *queue) dropBody(e *pendingItem) {
	if e.ce != nil {
		e.ce = nil
		q.countBody(e, -e.bytes)
	}
}

func (q *queue) countBody(e *pendingItem, bytes int) {
	q.room.bodies += bytes
	s := q.room.sets[e.set]
	s.bodies += bytes
	q.room.sets[e.set] = s
}

// overflowsFirst says which set has more than its share, after what is given up; "" for none.
func (r *room) overflowsFirst() string {
	if r.overflowOf == "" {
		return ""
	}
	return "; first those of " + slashed(r.overflowOf) + ", which has more than its share"
}

// slashed returns a set for people, as <subscription>/<group>/<set>.
func slashed(set string) string { return strings.ReplaceAll(set, ".", "/") }

// readable returns how many messages to ask for: those for which there is room, and at least one, so that the next is known.
func (q *queue) readable() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(1, min(streams.ReadAhead, q.room.most-q.unitsUsed()))
}

// makeRoom waits until there is room for one more delivery. As long as the sink accepts nothing, it gives up another for
// it instead, so that nothing urgent waits behind a bound. So it does for what urgentBehind says, and at once in a group
// that has as many as its record may hold.
func (q *queue) makeRoom(g *group) error {
	for {
		now := time.Now()
		if e := q.expendableOf(g, now); e != nil {
			if err := q.giveUp(e); err != nil {
				return err
			}
		}
		since := q.fullFor(now)
		if since.IsZero() {
			return nil
		}
		q.mu.Lock()
		crowded := q.room.crowded()
		q.mu.Unlock()
		if now.Sub(since) >= roomPatience || q.urgentBehind(crowded, now) {
			q.mu.Lock()
			e := q.takeExpendable(q.pendingOf(crowded), now)
			q.mu.Unlock()
			if e != nil {
				err := q.giveUp(e)
				if err == nil {
					q.noteOverflow(crowded)
					err = q.save([]*group{e.group}) // until then it counts as unsettled
				}
				if err != nil {
					return err
				}
				continue
			}
		}
		select {
		case <-q.room.freed:
		case <-time.After(max(readRetry, roomPatience-now.Sub(since))):
		case <-q.ctx.Done():
			return q.ctx.Err()
		}
	}
}

// urgentBehind reports whether for a few seconds an announced event of another set than the crowded one, which begins soon,
// has been in the stream beyond what is read: by what the fleet knows, which it is asked once a second. A sink that works
// makes room for it by itself in that time, or is too slow. The set "" is none.
func (q *queue) urgentBehind(crowded string, now time.Time) bool {
	if crowded == "" {
		return false
	}
	asked := now.Sub(q.urgentAsked)
	if asked > 2*roomPatience { // there was room meanwhile
		q.urgentSince = time.Time{}
	}
	if asked >= readRetry {
		filter := q.route.Filter
		filter.When = nil // which needs the CloudEvent
		q.urgentAsked = now
		q.urgentTo = q.lastSoon(now.Add(delivery.UrgentNotice), func(set string, e imds.Event) bool {
			wanted, _, _ := filter.MatchEvent(imds.Change{Kind: imds.Scheduled, Event: e}, nil, "")
			return wanted && set != crowded
		})
	}
	switch {
	case q.pos.last >= q.urgentTo:
		q.urgentSince = time.Time{}
		return false
	case q.urgentSince.IsZero():
		q.urgentSince = now
	}
	return now.Sub(q.urgentSince) >= urgentPatience
}

// fullFor returns since when the bound is reached and the sink has accepted nothing; zero if there is room. What is pending
// is delivered then, although the stream isn't read to its end.
func (q *queue) fullFor(now time.Time) (since time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.unitsUsed() < q.room.most {
		return time.Time{}
	}
	if q.room.fullSince.IsZero() {
		q.room.fullSince = now
		q.endCatchUp()
	}
	return later(q.room.fullSince, q.tally.lastAccepted)
}

// noteRoom notes that fewer deliveries are unsettled. The bound counts as reached until the sink has accepted something, or
// a tenth of it is free; the latter once something was given up, as that makes room only for what comes. mu is held.
func (q *queue) noteRoom() {
	free, gaveUp := q.room.most-q.unitsUsed(), q.room.overflowed > 0
	full := gaveUp || !q.room.fullSince.IsZero()
	accepted := !gaveUp && q.tally.lastAccepted.After(q.room.fullSince)
	if full && free > 0 && (accepted || free > q.room.most/10) {
		if gaveUp {
			q.log.Info("there is room again", "deadLetters", q.room.overflowed)
		}
		q.room.fullSince, q.room.overflowed, q.room.overflowOf = time.Time{}, 0, ""
	}
	wake(q.room.freed)
}

// expendableOf takes from the Worker which delivery of a group to give up, because its record may hold no more; nil for
// none.
func (q *queue) expendableOf(g *group, now time.Time) *pendingItem {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(g.pending) < maxWaiting {
		return nil
	}
	return q.takeExpendable(func(yield func(*pendingItem) bool) {
		for _, seq := range g.pending {
			if !yield(q.pending[seq]) {
				return
			}
		}
	}, now)
}

// pendingOf returns what is pending of a set; of all with "". mu is held.
func (q *queue) pendingOf(set string) iter.Seq[*pendingItem] {
	return func(yield func(*pendingItem) bool) {
		for _, e := range q.pending {
			if (set == "" || e.set == set) && !yield(e) {
				return
			}
		}
	}
}

// takeExpendable takes from the Worker which of some pending deliveries to give up, so that no attempt of it begins any
// more: what the fallback has, then the oldest that isn't urgent, then the oldest; nil if all are being attempted. An older
// change of the same event goes first, as urgent as it is: it is out of date. mu is held.
func (q *queue) takeExpendable(pending iter.Seq[*pendingItem], now time.Time) (least *pendingItem) {
	rank := func(e *pendingItem) int {
		switch {
		case e.item.FellBack:
			return 0
		case !urgent(e.item, now):
			return 1
		}
		return 2
	}
	for e := range pending {
		if e.begun {
			continue
		}
		if least == nil || cmp.Or(rank(e)-rank(least), cmp.Compare(e.item.Seq, least.item.Seq)) < 0 {
			least = e
		}
	}
	if least == nil {
		return nil
	}
	if !least.item.FellBack {
		for _, seq := range least.group.pending {
			older := q.pending[seq]
			if seq < least.item.Seq && !older.begun {
				least = older
			}
		}
	}
	q.setOffered(least, false)
	return least
}

// urgent reports whether a delivery is about an event that begins soon or has begun.
func urgent(i *delivery.Item, now time.Time) bool {
	return i.Group != "" && !i.Ends() && i.NotBefore.Sub(now) < delivery.UrgentNotice
}

// giveUp settles a delivery for which there is no room: as superseded if the fallback has it, else as a dead letter. The
// Worker gets it again if that can't be kept.
func (q *queue) giveUp(e *pendingItem) error {
	now := time.Now().UTC()
	res := result{At: now, State: resultSuperseded, Answer: "the fallback has it"}
	if !e.item.FellBack {
		res = result{At: now, State: resultDead, Answer: delivery.ReasonOverflow, Attempts: e.item.Attempts,
			Error: imds.CutText(e.item.Error, 200)}
		u := &transfer{item: e.item, dead: true, report: delivery.Report{Now: now, Reason: delivery.ReasonOverflow}}
		if err := q.storeDeadLetter(u, e.item.Error); err != nil {
			q.mu.Lock()
			q.setOffered(e, true)
			q.mu.Unlock()
			return fmt.Errorf("keep a dead letter: %w", err)
		}
		q.meter.Failed(q.route.Name, delivery.ReasonOverflow)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending[e.item.Seq] == e {
		q.settle(e, res)
	}
	return nil
}

// noteOverflow counts what was given up because of the bound, and logs the first of it, and of a set that has more than
// its share.
func (q *queue) noteOverflow(crowded string) {
	q.mu.Lock()
	q.room.overflowed++
	first := q.room.overflowed == 1
	firstOf := crowded != "" && crowded != q.room.overflowOf
	if firstOf {
		q.room.overflowOf = crowded
	}
	q.mu.Unlock()
	if firstOf {
		q.log.Warn("a set has more than its share of what is unsettled, so its oldest is given up first", "set",
			slashed(crowded))
	}
	if first {
		q.log.Error("too much is unsettled, so the oldest that isn't urgent becomes a dead letter for each that comes",
			"unsettled", q.room.most)
	}
}
