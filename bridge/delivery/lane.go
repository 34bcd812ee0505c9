package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// What an Item's Change may be, as far as the order of deliveries depends on it.
const (
	scheduled = "scheduled"
	started   = "started"
	vanished  = "vanished"
	reminder  = "reminder"
	approved  = "approved"
)

// A lane holds the pending items of one group, in order. Lanes don't wait for each other. Items about the bridge have a
// lane of their own, with group ""; on a relay there is one for each bridge.
type lane struct {
	key      string // see laneKey
	group    string
	items    []*Item   // by Seq
	arrived  int       // how many of them, from the first, may be attempted
	muted    int       // how many a mute holds back, with all that come after the first of these
	since    time.Time // when the first due item could first be made
	busy     bool      // an attempt is under way
	urgent   bool      // it has a new item that is urgent
	next     time.Time // time of the next attempt while the destination is up
	failures int32     // in a row
	tried    time.Time // when the last attempt began
	deadline time.Time // when its next item becomes late or falls back

	// It is attempted on its own, one item at a time: it failed before the destination accepted others, so that a further
	// failure is its own, or a batch with it was rejected.
	isolated bool

	// Its slots in the heaps of the schedule.
	inWaiting, inReady, inAges, inDeadlines int32
}

// A wave is what the deliveries of a digest have in common.
type wave struct{ azureType, change string }

func (i *Item) wave() wave { return wave{i.AzureType, i.Change} }

// supersedes reports whether the item carries the current state of the event, so that older items of its group are out
// of date. What somebody replayed does not: it may be older than they are.
func (i *Item) supersedes() bool { return i.Change != reminder && i.Change != approved && !i.Replayed }

// urgent reports whether a new delivery is attempted ahead of the schedule.
func (i *Item) urgent(now time.Time) bool {
	begins := i.begins()
	return i.Group != "" && (begins.IsZero() || begins.Sub(now) < UrgentNotice)
}

// begins returns the start of the event; zero if it has started or the time is unknown. The end of an event that
// another one replaced is as urgent as a start: the other may have started, and its message comes right after.
func (i *Item) begins() time.Time {
	if i.Replaced || i.Change == started {
		return time.Time{}
	}
	return i.NotBefore
}

// laneKey returns the key of the item's lane. A message about the bridge that is partly delivered has a lane of its own:
// whoever refuses it must not keep the next ones from the others. So have heartbeats, which no mute may hold back: not
// even one of what came before them.
func laneKey(i *Item) string {
	switch {
	case i.Group != "":
		return i.Group
	case i.Batch != 0:
		return fmt.Sprintf("\x01%d", i.Batch)
	case i.Transient:
		return "\x02"
	case len(i.VMs) > 0:
		return "\x00" + i.VMs[0]
	}
	return ""
}

// put adds the item, or replaces the one with its number, which it returns.
func (l *lane) put(i *Item) (was *Item) {
	at, found := l.find(i.Seq)
	if !found {
		l.items = slices.Insert(l.items, at, i)
		l.arrived = min(l.arrived, at)
		return nil
	}
	was, l.items[at] = l.items[at], i
	return was
}

func (l *lane) find(seq uint64) (at int, found bool) {
	return slices.BinarySearchFunc(l.items, seq, func(i *Item, seq uint64) int { return cmp.Compare(i.Seq, seq) })
}

// remove removes an item and returns it, nil if it is not there.
func (l *lane) remove(seq uint64) *Item {
	at, found := l.find(seq)
	if !found {
		return nil
	}
	i := l.items[at]
	if at == 0 { // the usual case, which must not move the others
		l.items[0] = nil
		l.items = l.items[1:]
	} else {
		l.items = slices.Delete(l.items, at, at+1)
	}
	if at < l.arrived {
		l.arrived--
	}
	return i
}

// due returns the items that may be attempted now.
func (l *lane) due() []*Item { return l.items[:l.arrived] }

// newest returns the last item that may be attempted, and that nobody replayed if there is such a one. There must be an
// item.
func (l *lane) newest() *Item { return l.items[l.newestAt()] }

// newestAt returns the index of newest, -1 if no item may be attempted.
func (l *lane) newestAt() int {
	n := l.arrived - 1
	for n >= 0 && l.items[n].Replayed { // on a relay it comes after newer ones
		n--
	}
	if n < 0 {
		return l.arrived - 1
	}
	return n
}

// rank sorts open groups, and those that another event replaced, before ended ones, and messages about the bridge last.
func (i *Item) rank() int {
	switch {
	case i.Group == "":
		return 2
	case i.Ends() && !i.Replaced:
		return 1
	}
	return 0
}

// compare orders items by which matters most: by rank, then what begins first, and of these the end of an event before
// the one that replaced it.
func (i *Item) compare(other *Item) int {
	return cmp.Or(i.rank()-other.rank(), i.begins().Compare(other.begins()), first(i.Replaced, other.Replaced))
}

// before orders lanes by which is attempted first. What is new and urgent goes before what failed, so that at a
// destination that hangs two lanes can't alternate and keep out the others. Lanes that matter alike take turns, by
// which could go first: one with many items doesn't keep the others waiting.
func before(a, b *lane) int {
	return cmp.Or(first(a.presses(), b.presses()), a.newest().compare(b.newest()), a.next.Compare(b.next),
		cmp.Compare(a.items[0].Seq, b.items[0].Seq))
}

// first orders what is so before what isn't.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// presses reports whether the lane has something new and urgent about an event that is not over.
func (l *lane) presses() bool { return l.urgent && l.newest().rank() == 0 }

// lastState returns the index of the newest due item that carries the current state of the event: of the first due item
// if none does, and -1 if no item is due.
func (l *lane) lastState() int {
	n := l.arrived - 1
	for n > 0 && !l.items[n].supersedes() {
		n--
	}
	return n
}

// partialBatch returns the number of the partly delivered batch that the lane belongs to and that must be repeated
// first; 0 for none. With LateLatest a newer change of the event takes its place.
func (l *lane) partialBatch(late Late) uint64 {
	switch due := l.due(); {
	case len(due) == 0:
		return 0
	case late == LateLatest && l.group != "":
		return l.newest().Batch
	default:
		return due[0].Batch
	}
}

// split returns the due items that make up a batch, or the lane's share of one, and the older items that they replace.
// part is the batch that made progress, or 0.
func (l *lane) split(late Late, part uint64) (batch, superseded []*Item) {
	due := l.due()
	if late == LateLatest && l.group != "" {
		n := l.newestAt()
		if n < 0 || due[n].Batch != part {
			return nil, nil
		}
		return due[n : n+1], due[:n]
	}
	n := 0
	for n < len(due) && due[n].Batch == part {
		n++
	}
	return due[:n], nil
}
