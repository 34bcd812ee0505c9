package bridge

import (
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// A Meter is told what happens, as it happens, so that it can be counted; what is so at the moment, Status tells. It is
// told by many goroutines at once, some of which hold locks, so its methods must return at once and ask nothing.
type Meter interface {
	// Polled is told of each answer of the endpoint, or of none.
	Polled(imds.PollClass)
	// Committed is told of each CloudEvent that is made, by its type.
	Committed(ceType string)
	// Meter also has Failed called for each dead letter, with its reason.
	delivery.Meter
	// Forgot is told how many records were dropped for want of room, or of age: ForgotDeadLetter, ForgotHistory.
	Forgot(what string, n int)
}

// FailureReasons are all that a Meter is told: why a delivery is to be tried again, and why one was given up.
var FailureReasons = []string{
	delivery.FailedBlocked, delivery.FailedRateLimited, delivery.FailedTimeout, delivery.FailedAgain,
	delivery.ReasonRejected, delivery.ReasonExpired, delivery.ReasonLate, delivery.ReasonOverflow, delivery.ReasonRemoved,
	delivery.ReasonLost,
}

// What a Meter is told was forgotten.
const (
	ForgotDeadLetter = outbox.ForgotDeadLetter
	ForgotHistory    = outbox.ForgotHistory
)

// noMeter counts nothing.
type noMeter struct{}

func (noMeter) Polled(imds.PollClass)           {}
func (noMeter) Committed(string)                {}
func (noMeter) Attempted(string, time.Duration) {}
func (noMeter) Accepted(string, time.Duration)  {}
func (noMeter) Superseded(string, int)          {}
func (noMeter) Failed(string, string)           {}
func (noMeter) Forgot(string, int)              {}
