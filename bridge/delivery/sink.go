package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// A Sink delivers CloudEvents to one destination.
//
// Deliver makes one attempt to deliver the whole batch. It returns when every delivery is accepted, when one is not, or
// when ctx is done, and leaves nothing running in the background. The batch is never empty, is ordered oldest first,
// and holds at most Terms.Batch deliveries; a digest (Terms.DigestAbove) holds one delivery each of many groups, the
// nearest NotBefore first. Deliver never retries: order, schedule, deadline and storage are the Worker's. At most
// Terms.Parallel goroutines call it at a time, each with other groups.
//
// The error decides about the batch, which is accepted whole or not at all:
//
//   - nil: accepted.
//   - wraps ErrRejected: the destination will never accept this. A single delivery, or a batch that made progress,
//     becomes dead letters. Any other batch is attempted again, one delivery at a time.
//   - wraps ErrBlocked: the destination will accept nothing until somebody acts. The deliveries stay pending.
//   - wraps a *NotYet: the sink put it off, and has asked its destination nothing. That is no failure.
//   - anything else: try again. A *RetryAfter in the chain carries the destination's wish.
//
// The Answer counts beside an error too: its receipt and progress are stored and returned with the next attempt.
// Neither errors nor answers may contain credentials.
type Sink interface {
	Deliver(ctx context.Context, batch []Delivery) (Answer, error)
}

// A Delivery is one CloudEvent for one route, as a sink sees it.
type Delivery struct {
	// Event is shared, so a sink must not change it.
	Event event.Event
	// NotBefore is the Azure event's when the delivery became pending: under a lead it may have moved since the CloudEvent
	// was committed. Zero if the event has none.
	NotBefore time.Time
	// EventOver means that the event is over by now, though this is not its end: nothing that acts is to begin because of
	// it.
	EventOver bool
	// Attempt is 1 for the first attempt, and counts across restarts.
	Attempt int
	// Receipt is the latest one that this sink returned for the same group; nil if none.
	Receipt []byte
	// Progress is what this sink last returned for the same batch; nil if none. Every delivery of the batch has it.
	Progress []byte
	// Missed lists older changes of the same group that this one replaces; only with LateLatest.
	Missed []Missed
	// FallbackFor is set if this route is the fallback of another.
	FallbackFor *FallbackFor
	// Mute is the one that it waited for; nil for none.
	Mute *Mute
	// Repeated means that the destination has accepted it before: see Terms.Repeat. Then it has no receipt.
	Repeated bool
}

// A Missed is a change that was never delivered, because a newer one replaces it.
type Missed struct {
	Change string    // as in Message.Change
	Time   time.Time // when it became pending, UTC
}

// A FallbackFor names the route that could not deliver this, and why.
type FallbackFor struct {
	Sink  string `json:"sink"`
	Error string `json:"error"`
}

// An Answer is the answer of a destination.
type Answer struct {
	Status string // one line for people, such as "204 No Content"
	ID     string // the destination's id of what it stored; "" if it gave none
	// Receipt is returned with later deliveries of the same group, such as the id of a message to update. nil keeps the
	// previous one. The receipt of a batch is stored for each of its groups.
	Receipt []byte
	// Progress is returned with the next attempt of this batch, such as the recipients who have it already. It counts
	// only beside an error. From then on the batch is repeated with the same members, but for those that a newer change
	// of their event has replaced, and in parts if the route's sink takes fewer after a reload. nil keeps the previous
	// one.
	Progress []byte
}

// The classes of failure that end or stop deliveries. Test for them with errors.Is.
var (
	ErrRejected = errors.New("rejected")
	ErrBlocked  = errors.New("blocked")
)

// WithoutClass returns the text of an error without its class. People read the class in other words, beside the text.
func WithoutClass(text string) string {
	for _, class := range []error{ErrRejected, ErrBlocked} {
		text = strings.TrimPrefix(text, class.Error()+": ")
	}
	return text
}

// A RetryAfter is an error with the destination's wish for the next attempt. The Worker does not try earlier, but
// waits at most an hour.
type RetryAfter struct {
	After time.Duration
	Err   error
}

func (e *RetryAfter) Error() string { return fmt.Sprintf("%v (asks for %s)", e.Err, Readable(e.After)) }
func (e *RetryAfter) Unwrap() error { return e.Err }

// A NotYet is the error of a sink that puts a batch off until a time. It counts as no attempt, and delays no other group.
type NotYet struct{ Until time.Time }

func (e *NotYet) Error() string { return "not before " + e.Until.UTC().Format(time.RFC3339) }

// A Renderer is a Sink that can show what a delivery would send. Render does no I/O with the destination, and replaces
// secrets by [secret].
type Renderer interface {
	Render(d Delivery) (string, error)
}

// A Chained is a Sink that keeps a log in which each entry has the hash of the one before. Head returns the hash of the
// last entry of this run, "" if there is none. It does no I/O, and may be called at any time.
type Chained interface {
	Head() string
}

// A Connecter is a Sink that can connect to its destination and sign in without sending anything. The answer is a line
// for people; beside an error it says that the destination was reached, and refuses. The errors are those of Deliver.
type Connecter interface {
	Connect(ctx context.Context) (answer string, err error)
}
