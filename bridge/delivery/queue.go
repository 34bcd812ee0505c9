package delivery

import (
	"errors"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// A Queue is what is pending for one route. A Worker is its only reader; anybody may add to it.
//
// Whatever backs it may fail: a Queue then works from memory as long as it can, and says so elsewhere. Its methods are
// called from one goroutine, but for Read, which attempts call at the same time.
type Queue interface {
	// Changed has a value whenever Changes has something new.
	Changed() <-chan struct{}
	// Changes says what happened since the last call. The first call gives all that is pending.
	Changes() Changes
	// Read gives an item's CloudEvent and the newest receipt for its group. The error wraps ErrLost when the CloudEvent
	// can never be read again.
	Read(i *Item) (ce event.Event, receipt []byte, err error)
	// Report takes what became of an attempt, or of waiting, as one change of state. Items that are no longer pending
	// don't count, but for those that were accepted. It may return before the report is durable, but never lets a Worker
	// be more than 32 deliveries or 50 ms ahead of the disk. With r.Durable it returns when the report is durable.
	Report(r Report)
}

// Changes are what became pending, or changed while it was, and what no longer is. What the Worker itself reported as
// accepted, superseded or dead need not be in Gone.
type Changes struct {
	Pending []*Item  // in order; one with a known Seq replaces the one before
	Gone    []uint64 // sequence numbers
}

// A Message is what all deliveries of one CloudEvent have in common. It never changes.
type Message struct {
	Seq       uint64 `json:"-"`                   // its place in the order of the queue
	ID        string `json:"id"`                  // of the CloudEvent
	Type      string `json:"type"`                // of the CloudEvent
	Group     string `json:"event"`               // the Azure event's id; "" when it is about the bridge
	Change    string `json:"change,omitempty"`    // scheduled, updated, started, vanished, reminder, approved; or ""
	AzureType string `json:"azureType,omitempty"` // such as Reboot
	Transient bool   `json:"transient,omitempty"` // leaves no history, and never falls back: a heartbeat
	About     string `json:"about,omitempty"`     // the route whose trouble it tells; that one never gets it as a fallback
	// Replaced is of a vanished: another event took the place of this one, so it comes before what tells of that.
	Replaced bool `json:"replaced,omitempty"`
}

// An Item is one pending delivery. It never changes: a Queue replaces it.
type Item struct {
	*Message
	Pending   time.Time `json:"owed"`               // since when; its age and max_age count from here
	NotBefore time.Time `json:"notBefore,omitzero"` // of the Azure event; zero when it has none
	Due       time.Time `json:"due,omitzero"`       // no attempt before this, nor of a later item of its group
	Attempts  int       `json:"attempts"`           // made so far
	Next      time.Time `json:"next,omitzero"`      // of the next one, zero if it was never tried
	Error     string    `json:"error,omitempty"`    // of the last attempt
	Progress  []byte    `json:"progress,omitempty"` // what the sink returned last
	// Batch is the batch that made progress: all items with this number are repeated together; 0 = none.
	Batch    uint64   `json:"batch,omitempty"`
	Instead  *Instead `json:"instead,omitempty"`  // set when it came here as a fallback
	FellBack bool     `json:"fellBack,omitempty"` // the fallback has it too
}

// Since is when the delivery could first be made: its age counts from then.
func (i *Item) Since() time.Time { return later(i.Pending, i.Due) }

// A Report is what became of some items.
type Report struct {
	Now        time.Time
	Accepted   []*Item
	Superseded []*Item // older ones that an accepted one stood for
	Failed     []*Item // to be tried again at Next
	Dead       []*Item // given up, for Reason
	FellBack   []*Item // to be delivered by the route's fallback too

	Answer  Answer    // of the attempt; a receipt is kept for the groups of Accepted, Failed and Dead, progress for Failed
	Batch   uint64    // of Failed, once they made progress: see Item.Batch
	Error   string    // of Failed and Dead; "" leaves that of their last attempt
	Next    time.Time // of Failed
	Reason  string    // of Dead
	Durable bool      // see Queue.Report
}

// Why a delivery becomes a dead letter.
const (
	ReasonRejected = "rejected" // the destination will not take it
	ReasonExpired  = "expired"  // older than max_age
	ReasonLate     = "late"     // a newer one is pending, and the route drops such
	ReasonOverflow = "overflow" // the outbox was full
	ReasonRemoved  = "removed"  // the route is gone from the settings
	ReasonLost     = "lost"     // its CloudEvent can no longer be read
)

// ErrLost says that a CloudEvent can never be read again.
var ErrLost = errors.New("lost")
