package outbox

import (
	"encoding/json"
	"fmt"
	"time"

	"forewarn/bridge/delivery"
)

// A Delivery is one CloudEvent for one route: pending, or a dead letter. Commands print its JSON; the file holds it
// without what the key contains. Next is the time of the next attempt.
type Delivery struct {
	Key   string `json:"key,omitempty"`  // route/sequence number
	Route string `json:"sink,omitempty"` // has no slash
	delivery.Item
	State       string    `json:"state,omitempty"` // StatePending or StateDead
	Reason      string    `json:"reason,omitempty"`
	Bytes       int       `json:"bytes,omitempty"` // of the CloudEvent
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	Muted       time.Time `json:"mutedUntil,omitzero"`
	// Mute is the one that holds it back, or the last one that it waited for; nil for none.
	Mute      *delivery.Mute `json:"-"`
	DeadSince time.Time      `json:"deadSince,omitzero"`
	// Unreported means that the owner is still to report the dead letter. Only the file has it.
	Unreported bool `json:"unreported,omitempty"`
}

// Seq returns the sequence number of the CloudEvent.
func (d Delivery) Seq() uint64 {
	_, seq, _ := splitKey(d.Key)
	return seq
}

// The states of a delivery.
const (
	StatePending    = "pending"
	StateDead       = "dead"
	StateAccepted   = "accepted"   // settled: the destination has it
	StateSuperseded = "superseded" // settled: a newer one replaced it
	StateDropped    = "dropped"    // settled: a user dropped it
)

// An Outcome is the state of a delivery; State is "" if it was never pending.
type Outcome struct {
	State string
	At    time.Time // when it ended; zero while it is pending
}

// A storedGroup is an open group as the file stores it. Its CloudEvent is with all others.
type storedGroup struct {
	Group
	Message delivery.Message `json:"message"` // its latest change
}

// A settlement is a settled delivery as the file stores it.
type settlement struct {
	Result
	ID    string `json:"id"`
	Group string `json:"event,omitempty"`
}

// record returns the delivery as commands print it.
func (e *entry) record() Delivery {
	d := Delivery{
		Key: e.key(), Route: e.route.name, Item: e.Item, State: e.state(), Bytes: e.message.bytes, LastAttempt: e.lastAttempt,
	}
	if e.death != nil {
		d.Reason, d.DeadSince = e.death.reason, e.death.at
	} else {
		d.Mute = e.mute()
	}
	if d.Mute.Active() {
		d.Muted = d.Mute.Until
	}
	return d
}

// encode returns the delivery as the file stores it.
func (e *entry) encode() []byte {
	d := Delivery{Item: e.Item, Bytes: e.message.bytes, LastAttempt: e.lastAttempt}
	if e.death != nil {
		d.Reason, d.DeadSince, d.Unreported = e.death.reason, e.death.at, e.death.unreported
	}
	return encode(&d)
}

// entryOf returns the entry of a stored delivery.
func entryOf(d Delivery, m *message, r *route, dead bool) *entry {
	e := &entry{Item: d.Item, message: m, route: r, lastAttempt: d.LastAttempt}
	e.Message = &m.Message
	if d.Attempts == 0 {
		e.Next = time.Time{}
	}
	if dead {
		e.death = &death{d.Reason, d.DeadSince, d.Unreported}
	}
	return e
}

// encode returns a record as the file stores it; nil for a deleted one. Every record of the outbox can be encoded.
func encode(v any) []byte {
	switch v := v.(type) {
	case nil:
		return nil
	case []byte:
		return v
	case *entry:
		return v.encode()
	}
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err))
	}
	return data
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
