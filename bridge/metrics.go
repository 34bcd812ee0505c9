package bridge

import (
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// A Meter counts what happens; Status has the present state. Its methods are called concurrently, some with locks
// held, so they must return at once and must not call the Bridge.
type Meter interface {
	// Polled counts a poll by its class, also one without an answer.
	Polled(imds.PollClass)
	// Committed counts a CloudEvent by its type.
	Committed(ceType string)
	// The bridge also calls Failed for each dead letter, with its reason.
	delivery.Meter
	// Forgot counts records that were dropped because of size or age: see outbox.Callbacks.
	Forgot(what string, n int)
}

// FailureReasons lists all reasons of Meter.Failed: why a delivery is retried, and why it became a dead letter.
var FailureReasons = []string{
	delivery.FailedBlocked, delivery.FailedRateLimited, delivery.FailedTimeout, delivery.FailedAgain,
	delivery.ReasonRejected, delivery.ReasonExpired, delivery.ReasonLate, delivery.ReasonOverflow, delivery.ReasonRemoved,
	delivery.ReasonLost, delivery.ReasonSubject,
}

// NoMeter is a Meter that counts nothing.
type NoMeter struct{ delivery.NoMeter }

func (NoMeter) Polled(imds.PollClass) {}
func (NoMeter) Committed(string)      {}
func (NoMeter) Forgot(string, int)    {}
