package bridge

import (
	"context"
	"errors"
	"net"
	"time"
)

// A Meter is told what happens, as it happens, so that it can be counted; what is so at the moment, Status tells. It is
// told by many goroutines at once, some of which hold locks, so its methods must return at once and ask nothing.
type Meter interface {
	// Polled is told of each answer of the endpoint, or of none.
	Polled(PollClass)
	// Committed is told of each CloudEvent that is made, by its type.
	Committed(ceType string)
	// Attempted is told of each attempt that is over, and how long it took.
	Attempted(sink string, took time.Duration)
	// Accepted is told of each delivery that was accepted, and how long that took from when it was due.
	Accepted(sink string, lag time.Duration)
	// Superseded is told how many deliveries were never made because the newer one that was accepted stood for them.
	Superseded(sink string, n int)
	// Failed is told of each delivery that an attempt left to be tried again, and of each that was given up.
	Failed(sink, reason string)
	// Forgot is told how many records were dropped for want of room, or of age: ForgotDeadLetter, ForgotHistory.
	Forgot(what string, n int)
}

// CloudEventTypes are the types of all CloudEvents that a bridge makes.
var CloudEventTypes = []string{
	EventPrefix + string(Scheduled), EventPrefix + string(Updated), EventPrefix + string(Started), EventPrefix + string(Vanished),
	EventPrefix + string(Reminder), EventPrefix + string(Approved),
	BridgeStarted, BridgeStopping, BridgeHeartbeat, IMDSUnavailable, IMDSRecovered, SinkBlocked, SinkRecovered,
	DeliveryDeadLettered, DeliveryDropped, SettingsLoaded,
}

// Why a delivery is to be tried again. That is all a sink's error tells for sure; its words are in the status.
const (
	FailedBlocked     = "blocked"      // somebody must act: credentials, address, certificate
	FailedRateLimited = "rate_limited" // the destination named a time to come back
	FailedTimeout     = "timeout"      // no answer in time
	FailedAgain       = "again"        // anything else
)

// FailureReasons are all that a Meter is told: why a delivery is to be tried again, and why one was given up.
var FailureReasons = []string{
	FailedBlocked, FailedRateLimited, FailedTimeout, FailedAgain,
	ReasonRejected, ReasonExpired, ReasonLate, ReasonOverflow, ReasonRemoved, ReasonLost,
}

// What a Meter is told was forgotten.
const (
	ForgotDeadLetter = "dead_letter"
	ForgotHistory    = "history"
)

// errNoAnswer is the cause of an attempt that ends because its time is over.
var errNoAnswer = errors.New("no answer")

// failure is why a delivery is to be tried again after the error.
func failure(err error) string {
	wish, isWish := errors.AsType[*RetryAfter](err)
	slow, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, ErrBlocked):
		return FailedBlocked
	case isWish && wish.After > 0:
		return FailedRateLimited
	case errors.Is(err, errNoAnswer), errors.Is(err, context.DeadlineExceeded), isNet && slow.Timeout():
		return FailedTimeout
	}
	return FailedAgain
}

// measure tells the meter of an attempt. Of what was given up, the outbox tells.
func (w *worker) measure(r result) {
	w.meter.Attempted(w.route.Name, r.took)
	gaveUp := errors.Is(r.err, errLost) || errors.Is(r.err, ErrRejected) && len(r.batch) == 1
	for _, e := range r.batch {
		switch {
		case r.err == nil:
			w.meter.Accepted(w.route.Name, max(0, r.began.Add(r.took).Sub(e.Owed)))
		case errors.Is(r.err, ErrRejected) && !gaveUp: // one by one
			w.meter.Failed(w.route.Name, FailedAgain)
		case !gaveUp:
			w.meter.Failed(w.route.Name, failure(r.err))
		}
	}
	if r.err == nil {
		w.meter.Superseded(w.route.Name, len(r.superseded))
	}
}

// noMeter counts nothing.
type noMeter struct{}

func (noMeter) Polled(PollClass)                {}
func (noMeter) Committed(string)                {}
func (noMeter) Attempted(string, time.Duration) {}
func (noMeter) Accepted(string, time.Duration)  {}
func (noMeter) Superseded(string, int)          {}
func (noMeter) Failed(string, string)           {}
func (noMeter) Forgot(string, int)              {}
