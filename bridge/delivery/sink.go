package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// A Sink takes CloudEvents to one destination.
//
// Deliver makes one attempt to hand over the whole batch. It returns when every delivery of it is accepted, when one is
// not, or when ctx is done, and does nothing in the background after that. The batch is never empty, is ordered oldest
// first, and holds at most Terms.Batch deliveries; under Terms.Digest it holds one delivery each of many groups, the
// nearest NotBefore first. Deliver never retries: order, schedule, deadline and memory are the Worker's. It is called
// from one goroutine at a time, or from Terms.Parallel, each with other groups.
//
// The error says what becomes of the batch, which is accepted whole or not at all:
//
//   - nil: accepted, and settled for good.
//   - wraps ErrRejected: the destination will never take this CloudEvent. It becomes a dead letter.
//   - wraps ErrBlocked: the destination takes nothing until somebody acts. The backlog is kept.
//   - anything else: try again. A *RetryAfter anywhere in the chain carries the destination's own wish.
//
// The Answer counts beside an error too: its receipt and progress are kept and come back with the next attempt. Neither
// errors nor answers hold credentials.
type Sink interface {
	Deliver(ctx context.Context, batch []Delivery) (Answer, error)
}

// A Delivery is one CloudEvent for one route, as a sink sees it.
type Delivery struct {
	// Event was fixed when it was committed. It is shared, so a sink must not change it.
	Event event.Event
	// NotBefore is that of the Azure event as far as it is known now: under Terms.Lead it may have moved since the
	// CloudEvent was committed. Zero when it has none.
	NotBefore time.Time
	// Attempt is 1 for the first, counted across restarts.
	Attempt int
	// Receipt is the newest one that this sink returned for the same group, nil if none.
	Receipt []byte
	// Progress is what this sink returned last for this very batch, nil if nothing. It stands in every delivery of it.
	Progress []byte
	// Missed are older changes of the same group that this one stands for. Only with LateLatest.
	Missed []Missed
	// Instead is set when this route is the fallback of another.
	Instead *Instead
}

// Missed is a change that was never delivered because a newer one stands for it.
type Missed struct {
	Change string    // scheduled, updated, started
	Time   time.Time // when it was observed, UTC
}

// Instead says which route could not deliver this, and why.
type Instead struct {
	Sink string `json:"sink"`
	Why  string `json:"why"`
}

// Answer is what a destination said.
type Answer struct {
	Status string // for people, such as "204 No Content"; one line
	ID     string // the destination's own id of what it stored, "" if it gave none
	// Receipt is what the sink wants back with later deliveries of the same group, such as the id of a message it can
	// update. nil keeps the last one. A batch's receipt is kept for each of its groups.
	Receipt []byte
	// Progress is what the sink wants back with the next attempt at this batch, such as the recipients who have it
	// already. It counts only beside an error: acceptance ends it. From then on the batch is repeated with the same
	// members. nil keeps the last one.
	Progress []byte
}

// The classes of failure that end or stop deliveries. Test for them with errors.Is.
var (
	ErrRejected = errors.New("rejected")
	ErrBlocked  = errors.New("blocked")
)

// RetryAfter is an error with the destination's own wish when to come back. The Worker takes it as the earliest time,
// at most an hour away.
type RetryAfter struct {
	After time.Duration
	Err   error
}

func (e *RetryAfter) Error() string { return fmt.Sprintf("%v (asks for %v)", e.Err, e.After) }
func (e *RetryAfter) Unwrap() error { return e.Err }

// A Renderer is a Sink that can show what a delivery would send. Render touches no destination. Secrets stand in it as
// [secret].
type Renderer interface {
	Render(d Delivery) (string, error)
}

// A Connecter is a Sink that can reach its destination, and show its credentials there, without sending anything. The
// answer is a line for people. The errors are those of Deliver.
type Connecter interface {
	Connect(ctx context.Context) (answer string, err error)
}
