package bridge

import (
	"time"

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

// noMeter counts nothing.
type noMeter struct{}

func (noMeter) Polled(imds.PollClass)           {}
func (noMeter) Committed(string)                {}
func (noMeter) Attempted(string, time.Duration) {}
func (noMeter) Accepted(string, time.Duration)  {}
func (noMeter) Superseded(string, int)          {}
func (noMeter) Failed(string, string)           {}
func (noMeter) Forgot(string, int)              {}
