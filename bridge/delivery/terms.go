package delivery

import "time"

// Terms are the rules under which a Worker delivers to a route. Each kind of sink has its own, and settings override
// them.
type Terms struct {
	Timeout time.Duration // of one attempt; 0 = none
	MaxAge  time.Duration // an older delivery that was tried becomes a dead letter, reason expired; 0 = never
	Late    Late
	Batch   int // the most deliveries in one call of Deliver; 0 counts as 1
	// Parallel is how many calls of Deliver may be under way, each with other groups; 0 counts as 1.
	Parallel int
	// Durable has each result on disk before the next attempt, for a sink that must not repeat even the few deliveries
	// that a crash could otherwise repeat.
	Durable  bool
	Fallback Fallback
	// Digest makes one batch of the deliveries of many groups. It needs LateLatest.
	Digest Digest
}

// Late says what a route does with a change when a newer one of the same group is pending too, or with a scheduled
// whose NotBefore has passed.
type Late string

// The values of the setting late.
const (
	LateSend   Late = "send"   // deliver every change, in order
	LateLatest Late = "latest" // deliver only the newest, with Delivery.Missed; the older are settled as superseded
	LateDrop   Late = "drop"   // make dead letters of the older ones, reason late
)

// A Fallback is the route that takes over what another could not deliver. What a route got as a fallback doesn't fall
// back again, so there are no chains.
type Fallback struct {
	Sink  string        // its name; "" = none
	After time.Duration // how long the route itself may try
}

// A Digest keeps a wave of events from filling a channel. When more than Above deliveries of one Azure type and change
// wait, they become one batch. When more than Above came within Within, the next ones wait until Within has passed
// since the first of those, and become one batch then; but what begins in less than two minutes never waits. The zero
// Digest makes none.
type Digest struct {
	Above  int
	Within time.Duration
}
