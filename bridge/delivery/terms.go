package delivery

import "time"

// Terms are the rules for delivering to a route. Each kind of sink has its own defaults, which settings override; the
// tags are for the settings.
type Terms struct {
	// Timeout is for one attempt; 0 for none.
	Timeout time.Duration `yaml:"timeout" min:"1ms" doc:"time limit of one attempt"`
	// MaxAge: an older delivery that was tried becomes a dead letter, reason expired; 0 for never.
	MaxAge time.Duration `yaml:"max_age" doc:"age at which a pending delivery becomes a dead letter; 0 is never"`
	Late   Late          `yaml:"late" oneof:"send latest drop" doc:"what happens to a change if a newer one waits"`
	Batch  int           // largest batch for Deliver; 0 counts as 1
	// Parallel is the number of concurrent calls of Deliver, each with other groups; 0 counts as 1.
	Parallel int
	// Durable writes each result to disk before the next attempt, for a sink that must not repeat deliveries after a
	// crash.
	Durable  bool
	Fallback Fallback `yaml:"fallback" doc:"another sink that gets what this one can't deliver"`
	// DigestAbove keeps a wave of events from filling a channel: when more deliveries of one Azure type and change than
	// this may be made, they become one batch. It needs LateLatest; 0 combines nothing.
	DigestAbove int
	// Repeat says what was said last of each open event once more this often, for a destination that forgets when it
	// restarts: see Told; 0 for never.
	Repeat time.Duration
}

// A Late decides about a late delivery: a change while a newer one of the same group is pending too, or a scheduled
// whose NotBefore has passed. It also decides what the end of an event settles: see Late.OverAtEnd.
type Late string

// The values of the setting late.
const (
	LateSend   Late = "send"   // deliver every change, in order
	LateLatest Late = "latest" // deliver only the latest, with Delivery.Missed; older ones are settled as superseded
	LateDrop   Late = "drop"   // older ones become dead letters, reason late
)

// EventOver is the answer that the history keeps of a delivery that the end of its event settled.
const EventOver = "the event is over"

// OverAtEnd reports whether the end of an event settles what is still pending about it, other than that end itself: a
// route with LateDrop begins nothing about an event that is over, and one with LateLatest must not be told of one as if
// it were to come. toldOfEnd is whether the route gets the end.
func (l Late) OverAtEnd(toldOfEnd bool) bool { return l == LateDrop || l == LateLatest && !toldOfEnd }

// A Fallback names the route that gets the deliveries that another route could not make. Deliveries that a route got
// as a fallback do not fall back again.
type Fallback struct {
	Sink  string        `yaml:"sink" doc:"name of the other sink"` // "" for none
	After time.Duration `yaml:"after" default:"1m" doc:"how long this sink may try first"`
}
