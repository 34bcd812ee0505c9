package delivery_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
)

// memory is a Queue without a disk. It may be used by several goroutines.
type memory struct {
	mu       sync.Mutex
	wake     chan struct{}
	pending  map[uint64]*delivery.Item
	changes  delivery.Changes
	mutes    []*delivery.Mute
	receipts map[string][]byte
	asked    int              // calls of Changes
	unread   map[uint64]error // why an item can't be read, by its number; that of all by 0

	accepted, superseded, dead, fellBack []*delivery.Item
	reports                              []delivery.Report
}

func newMemory() *memory {
	return &memory{
		wake: make(chan struct{}, 1), pending: map[uint64]*delivery.Item{}, receipts: map[string][]byte{},
		unread: map[uint64]error{},
	}
}

// add makes items pending, or replaces them. Those without a Pending time are pending from now on.
func (m *memory) add(items ...delivery.Item) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range items {
		if i.PendingSince.IsZero() {
			i.PendingSince = time.Now()
		}
		if i.ID == "" {
			i.ID = fmt.Sprintf("%s-%d", i.Group, i.Seq)
		}
		m.put(&i)
	}
	m.signal()
}

func (m *memory) put(i *delivery.Item) {
	m.pending[i.Seq] = i
	m.changes.Pending = append(m.changes.Pending, i)
}

func (m *memory) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// mute replaces the mutes.
func (m *memory) mute(mutes ...*delivery.Mute) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mutes = mutes
	m.signal()
}

// remove removes pending items, as a drop by hand does.
func (m *memory) remove(seqs ...uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, seq := range seqs {
		delete(m.pending, seq)
		m.changes.Gone = append(m.changes.Gone, seq)
		m.changes.Pending = slices.DeleteFunc(m.changes.Pending, func(i *delivery.Item) bool { return i.Seq == seq })
	}
	m.signal()
}

// reopen makes the next worker find all pending items.
func (m *memory) reopen() {
	m.mu.Lock()
	defer m.mu.Unlock()
	bySeq := func(a, b *delivery.Item) int { return cmp.Compare(a.Seq, b.Seq) }
	m.changes = delivery.Changes{Pending: slices.SortedFunc(maps.Values(m.pending), bySeq)}
}

func (m *memory) Changed() <-chan struct{} { return m.wake }

func (m *memory) Changes() delivery.Changes {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.changes
	c.Mutes = m.mutes
	m.changes = delivery.Changes{}
	m.asked++
	return c
}

// looks returns how often the changes were asked for.
func (m *memory) looks() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

func (m *memory) Read(i *delivery.Item) (delivery.Delivery, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ce := event.New()
	ce.SetID(i.ID)
	return delivery.Delivery{Event: ce, Receipt: m.receipts[i.Group]}, cmp.Or(m.unread[i.Seq], m.unread[0])
}

// misread makes reads fail: of the item with this number, of all with 0. With nil they succeed again.
func (m *memory) misread(seq uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unread[seq] = err
}

func (m *memory) Report(r delivery.Report) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reports = append(m.reports, r)
	for _, i := range slices.Concat(r.Accepted, r.Superseded, r.Dead) {
		delete(m.pending, i.Seq)
	}
	m.accepted, m.superseded = append(m.accepted, r.Accepted...), append(m.superseded, r.Superseded...)
	m.dead, m.fellBack = append(m.dead, r.Dead...), append(m.fellBack, r.FellBack...)
	for _, i := range slices.Concat(r.Accepted, r.Failed, r.Dead) {
		if r.Answer.Receipt != nil && i.Group != "" {
			m.receipts[i.Group] = r.Answer.Receipt
		}
	}
	for _, i := range r.Failed {
		m.change(i, func(i *delivery.Item) {
			i.Attempts, i.Next, i.Error, i.Batch = i.Attempts+1, r.Next, r.Error, cmp.Or(r.Batch, i.Batch)
			if r.Answer.Progress != nil {
				i.Progress = r.Answer.Progress
			}
		})
	}
	for _, i := range r.FellBack {
		m.change(i, func(i *delivery.Item) { i.FellBack = true })
	}
	if len(m.changes.Pending) > 0 {
		m.signal()
	}
}

func (m *memory) change(i *delivery.Item, f func(*delivery.Item)) {
	if now := m.pending[i.Seq]; now != nil {
		changed := *now
		f(&changed)
		m.put(&changed)
	}
}

// ids returns the ids of one of its lists, in order.
func (m *memory) ids(items *[]*delivery.Item) (list []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range *items {
		list = append(list, i.ID)
	}
	return list
}

func (m *memory) lastReport() delivery.Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reports[len(m.reports)-1]
}
