package bridge

import (
	"sync"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// What tests of the package see of its inside: times that they wait for, and what can't be brought about from outside.

const (
	StopTimeout     = stopTimeout
	TouchEvery      = touchEvery
	NameForBacklog  = nameForBacklog
	NameForFilters  = nameForFilters
	NoFirstFor      = noFirstFor
	FailingFor      = failingFor
	FullPoll        = fullPoll
	LongestRest     = longestRest
	DefaultInterval = defaultInterval
	ValueAnswer     = valueAnswer
)

// LeftOut is what is said while changes are left out.
var LeftOut = leftOut

// Take takes in a document as a poll does.
func (b *Bridge) Take(doc *imds.Document) bool {
	return b.take(doc, lastAnswer{At: time.Now()}, observation{now: time.Now()})
}

// Options returns what New was given.
func (b *Bridge) Options() Options { return b.options }

// Endpoint returns the endpoint that is polled.
func (b *Bridge) Endpoint() string { return b.client.Endpoint() }

// AnsweredAt returns when the last valid answer came.
func (b *Bridge) AnsweredAt() time.Time { return b.lastAnswer().At }

// StandStill makes the machine look as if it had stood still for so long.
func (b *Bridge) StandStill(d time.Duration) {
	b.pauses.mu.Lock()
	defer b.pauses.mu.Unlock()
	b.pauses.last = b.pauses.last.Add(-d)
}

// Locks returns the locks under which nothing may be logged.
func (b *Bridge) Locks() []*sync.Mutex { return []*sync.Mutex{&b.deciding, &b.mu} }

// Rested makes the loops of that name look as if they had last come round at this time.
func (b *Bridge) Rested(loop string, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch loop {
	case "housekeeping":
		b.lastHousekeeping = at
	case "approval loop":
		b.lastApproving = at
	}
}

// RoutesInForce returns the routes.
func (b *Bridge) RoutesInForce() []Route {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.routes
}

// Evaluate evaluates a condition.
func (w *When) Evaluate(fields map[string]any) (bool, error) { return w.evaluate(fields) }

// MarshalEvent encodes a CloudEvent as the outbox keeps it.
var MarshalEvent = marshalEvent

// With returns a route with other terms.
func (r Route) With(change func(*Terms)) Route {
	change(&r.Terms)
	return r
}

// To returns a route to another sink.
func (r Route) To(sink delivery.Sink) Route {
	r.Sink = sink
	return r
}

// OnlyTypes returns a route that takes events of these types only.
func (r Route) OnlyTypes(types ...string) Route {
	r.Filter.Only.Types = types
	return r
}

// OnlyChanges returns a route that takes these changes only.
func (r Route) OnlyChanges(changes ...string) Route {
	r.Filter.Only.Changes = changes
	return r
}

// OnlyWhen returns a route that takes what meets a condition, which must be valid.
func (r Route) OnlyWhen(condition string) Route {
	var err error
	r.Filter.When, err = ParseWhen(condition)
	if err != nil {
		panic(err)
	}
	return r
}
