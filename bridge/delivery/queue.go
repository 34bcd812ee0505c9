package delivery

import (
	"errors"
	"time"
)

// A Queue holds the pending deliveries of one route. A Worker is its only reader; others may add to it at any time.
//
// If its storage fails, a Queue continues from memory as long as it can, so that only Read can fail. Only one goroutine
// calls its methods, except Read, which concurrent attempts call.
type Queue interface {
	// Changed receives whenever Changes has something new.
	Changed() <-chan struct{}
	// Changes returns what has changed since the last call. The first call returns all pending deliveries.
	Changes() Changes
	// Read returns what the queue knows of an item: Event, Receipt and EventOver. Without an error, an attempt begins,
	// and counts even if the item is settled before its result is reported. The error wraps ErrLost if the
	// CloudEvent can never be read again, and ErrSettled if the item is no longer pending: then no attempt is made, so
	// that none begins after the end of its event is known. It must not wait for long.
	Read(i *Item) (Delivery, error)
	// Report applies the results of an attempt, or of waiting, as one change of state. It ignores items that are no
	// longer pending, except accepted ones. It may return before the report is durable, but keeps a Worker at most 32
	// deliveries or 50 ms ahead of the disk. With r.Durable it returns when the report is durable.
	Report(r Report)
}

// Changes holds the deliveries that became pending or changed, and those that are no longer pending, of which one may
// become pending again. Gone need not contain what the Worker itself reported as accepted, superseded or dead.
type Changes struct {
	Mutes   []*Mute  // all that are for the route, see MutesFor; never changed, only replaced
	Pending []*Item  // in order; an item replaces an earlier one with the same Seq
	Gone    []uint64 // sequence numbers
}

// A Message holds what all deliveries of one CloudEvent have in common. It is immutable.
type Message struct {
	Seq       uint64   `json:"-"`                   // the sequence number, which orders the queue
	ID        string   `json:"id"`                  // of the CloudEvent
	Type      string   `json:"type"`                // of the CloudEvent
	Group     string   `json:"event"`               // the id of the Azure event; "" for one about the bridge
	Change    string   `json:"change,omitempty"`    // scheduled, updated, started, vanished, reminder, approved; or ""
	AzureType string   `json:"azureType,omitempty"` // such as Reboot
	Transient bool     `json:"transient,omitempty"` // leaves no history, never falls back, and replaces the last: a heartbeat
	About     string   `json:"about,omitempty"`     // the route whose trouble it reports, never its fallback
	VMs       []string `json:"vms,omitempty"`       // the machines that it is about, for mutes
	// Replaced means that another event took the place of this vanished one. Its end is delivered before that event.
	Replaced bool `json:"replaced,omitempty"`
}

// Ends reports whether the message says that its event is over.
func (m *Message) Ends() bool { return m.Change == vanished }

// Reminds reports whether the message reminds of an event.
func (m *Message) Reminds() bool { return m.Change == reminder }

// An Item is one pending delivery. It is immutable: a Queue replaces it.
type Item struct {
	*Message
	PendingSince time.Time `json:"pendingSince"`       // when it became pending
	NotBefore    time.Time `json:"notBefore,omitzero"` // of the Azure event; zero if it has none
	Attempts     int       `json:"attempts"`           // number of attempts so far
	Next         time.Time `json:"next,omitzero"`      // time of the next attempt; zero before the first
	Error        string    `json:"error,omitempty"`    // of the last attempt
	Progress     []byte    `json:"progress,omitempty"` // of the last attempt
	// Batch identifies a batch that made progress; all its items are repeated together. 0 for none.
	Batch       uint64       `json:"batch,omitempty"`
	FallbackFor *FallbackFor `json:"fallbackFor,omitempty"` // set if this route is the fallback
	FellBack    bool         `json:"fellBack,omitempty"`    // the fallback has it too
	// Replayed means that somebody asked for it. It is never late, and takes the place of no item that nobody asked for.
	Replayed   bool   `json:"replayed,omitempty"`
	ReplayedBy string `json:"replayedBy,omitempty"` // the user who asked for it
}

// Since returns when the delivery could first be made. Its age, for max_age, counts from then. m is what MuteOf returns
// for it.
func (i *Item) Since(m *Mute) time.Time {
	if m == nil || m.Active() {
		return i.PendingSince
	}
	return later(i.PendingSince, m.Ended.UTC())
}

// A Report holds the results for some items.
type Report struct {
	Now        time.Time
	Accepted   []*Item
	Superseded []*Item // older items that an accepted one replaces
	Failed     []*Item // to be tried again at Next
	Dead       []*Item // become dead letters, for Reason
	Untried    []*Item // no attempt was made of them after all, or, of those in Dead, of a newer one that replaces them
	FellBack   []*Item // to be delivered by the route's fallback too

	Answer  Answer    // of the attempt; its receipt applies to Accepted, Failed and Dead, its progress to Failed and Dead
	Batch   uint64    // for Failed and Dead items that made progress: see Item.Batch
	Error   string    // for Failed and Dead items, "" keeps that of their last attempt; for FellBack ones that have none
	Next    time.Time // for Failed items
	Reason  string    // for Dead items
	Durable bool      // see Queue.Report
}

// Why a delivery becomes a dead letter.
const (
	ReasonRejected = "rejected" // the destination will not take it
	ReasonExpired  = "expired"  // older than max_age
	ReasonLate     = "late"     // a newer change is pending, or its time has passed, and the route has LateDrop
	ReasonOverflow = "overflow" // the outbox was full
	ReasonRemoved  = "removed"  // the route is gone from the settings
	ReasonLost     = "lost"     // its CloudEvent can no longer be read
	ReasonSubject  = "subject"  // of a relay: it came on the subject of another set or VM
)

// What Queue.Read reports. Test for them with errors.Is.
var (
	ErrLost    = errors.New("lost")              // the CloudEvent can never be read again
	ErrSettled = errors.New("no longer pending") // something else settled the item
)
