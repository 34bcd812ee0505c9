package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// A Sink takes CloudEvents to one destination.
//
// Deliver makes one attempt to hand over the whole batch and returns when every delivery of it is accepted, when
// one is not, or when ctx is done; it must not go on in the background after that. A batch is accepted whole or not
// at all, holds at most Terms.Batch deliveries, oldest first, or those of a Terms.Group, nearest first, and is never empty. Deliver never retries: order,
// schedule, deadline and memory belong to the bridge, which calls it from one goroutine at a time, or from
// Terms.Parallel.
//
// The error says what becomes of the batch:
//
//   - nil: accepted, settled for good.
//   - wraps ErrRejected: the destination will never take this CloudEvent, as it is; it becomes a dead letter.
//   - wraps ErrBlocked: nothing will be taken until somebody acts (credentials, address, certificate); all is kept.
//   - anything else: try again later. A *RetryAfter anywhere in the chain carries the destination's own wish.
//
// The Answer counts beside an error too: its receipt is stored, for every Azure event of the batch, and comes back with
// the next attempt. Errors and
// answers never hold credentials.
type Sink interface {
	Deliver(ctx context.Context, batch []Delivery) (Answer, error)
}

// A Delivery is one CloudEvent owed to one route, as a sink sees it.
type Delivery struct {
	Event   event.Event // fixed when it was committed; shared, not to be changed
	Instead *Instead    // which route could not tell it, and why, when this one is its fallback; else nil
	// NotBefore is that of the Azure event as far as it is known now: with Terms.Lead it may have moved since the
	// CloudEvent was committed. Zero when it has none.
	NotBefore time.Time
	Attempt   int      // 1 for the first, counted across restarts
	Receipt   []byte   // the newest receipt this sink returned for the same Azure event, nil if none
	Missed    []Missed // older changes of the same Azure event that this one stands for; only with LateLatest
}

// Missed is a change that was never told because a newer one overtook it.
type Missed struct {
	Change string    // scheduled, updated, started
	Time   time.Time // when the bridge observed it, UTC
}

// Answer is what a destination said.
type Answer struct {
	Status  string // for people, such as "204 No Content"; at most a line
	ID      string // the destination's own id of what it stored, "" if it gave none
	Receipt []byte // what the sink wants back with the next delivery of the same Azure event; nil keeps the last one
}

// The classes of failure that end or stop deliveries; test for them with errors.Is.
var (
	ErrRejected = errors.New("rejected")
	ErrBlocked  = errors.New("blocked")
)

// RetryAfter is an error with the destination's own wish about when to come back. The bridge takes it as the
// earliest time, at most an hour away.
type RetryAfter struct {
	After time.Duration
	Err   error
}

func (e *RetryAfter) Error() string { return fmt.Sprintf("%v (asks for %v)", e.Err, e.After) }
func (e *RetryAfter) Unwrap() error { return e.Err }

// Late says what a route does with a change that a newer one of the same Azure event has overtaken, or with a
// scheduled whose NotBefore has passed.
type Late string

// The values of the setting late.
const (
	LateSend   Late = "send"   // every change is delivered, in order
	LateLatest Late = "latest" // only the newest, with Delivery.Missed; the older are settled as superseded
	LateDrop   Late = "drop"   // the overtaken become dead letters, reason late
)

// Terms are the rules under which deliveries to a route are made. Each kind of sink states its own; the settings
// override them.
type Terms struct {
	Timeout time.Duration // of one attempt
	MaxAge  time.Duration // older deliveries that were tried become dead letters, reason expired; 0 = never
	Late    Late
	Bridge  Level // which CloudEvents about the bridge it hears
	Batch   int   // the most deliveries one call of Deliver takes; 0 counts as 1

	// Parallel is how many calls of Deliver may be under way, each about another Azure event; 0 counts as 1.
	Parallel int
	// Sync puts each settled delivery on the disk before the next attempt, for a sink that must not repeat even the few
	// that a crash else could.
	Sync bool
	// Acts says that a delivery does something rather than tells of it. Such a route hears of approvals and reminders
	// only when its filter names them.
	Acts      bool
	Remind    []time.Duration // how long before NotBefore an event is told of again; none for never
	Lead      time.Duration   // how long before NotBefore scheduled and updated are due; 0 for at once
	Fallback  Fallback        // who is told what this route cannot tell
	Heartbeat time.Duration   // how often a sign of life is sent; 0 for never
	// Group makes one batch of the deliveries about many Azure events. It takes Late to be LateLatest.
	Group Group
}

// A Group says when what is owed about many Azure events is handed over as one batch, so that a wave of them does not
// fill a channel. When more than Above events of one type and change wait, they become one batch. When more than Above
// came within Within, the next ones wait until Within has passed since the first of those, and become one batch then; but
// what is due in less than two minutes never waits. The zero Group makes none.
type Group struct {
	Above  int
	Within time.Duration
}

// A Route is a named sink with its filter and terms. The name is what deliveries belong to: a route that returns
// under its name takes up its backlog.
type Route struct {
	Name   string // [A-Za-z0-9._-]+, unique
	Kind   string // as in the settings file: webhook, file
	Sink   Sink
	Filter Filter
	Terms  Terms

	// Secrets are the files that hold the route's credentials. When one changes, a blocked or waiting route is
	// tried again at once.
	Secrets []string
}

// A Renderer is a Sink that can show what a delivery would make leave. Render touches no destination; secrets stand in
// it as [secret].
type Renderer interface {
	Render(d Delivery) (string, error)
}

// A Connecter is a Sink that can reach its destination, and show its credentials there, without sending anything. The
// answer is a line for people; the errors are those of Deliver.
type Connecter interface {
	Connect(ctx context.Context) (answer string, err error)
}
