package delivery

import (
	"context"
	"errors"
	"net"
	"time"
)

// A Meter is told what happens, so that it can be counted. Many goroutines call it at once, so its methods return at
// once.
type Meter interface {
	// Attempted is called for each attempt that is over, with how long it took.
	Attempted(sink string, took time.Duration)
	// Accepted is called for each delivery that was accepted, with how long that took from when it was due.
	Accepted(sink string, lag time.Duration)
	// Superseded is called with how many deliveries were never made because a newer one stood for them.
	Superseded(sink string, n int)
	// Failed is called for each delivery that is to be tried again, with one of the Failed constants.
	Failed(sink, reason string)
}

// Why a delivery is to be tried again. That is all that a sink's error tells for sure; its words are in the State.
const (
	FailedBlocked     = "blocked"      // somebody must act: credentials, address, certificate
	FailedRateLimited = "rate_limited" // the destination named a time to come back
	FailedTimeout     = "timeout"      // no answer in time
	FailedAgain       = "again"        // anything else
)

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

// measure tells the meter of an attempt. Dead letters are counted by the queue's owner.
func (w *Worker) measure(r result) {
	w.Meter.Attempted(w.Route, r.took)
	rejected := errors.Is(r.err, ErrRejected)
	for _, i := range r.batch {
		switch {
		case r.err == nil:
			w.Meter.Accepted(w.Route, max(0, r.began.Add(r.took).Sub(i.Since())))
		case rejected && len(r.batch) > 1: // taken apart
			w.Meter.Failed(w.Route, FailedAgain)
		case !rejected && len(r.lost) == 0:
			w.Meter.Failed(w.Route, failure(r.err))
		}
	}
	if r.err == nil {
		w.Meter.Superseded(w.Route, len(r.superseded))
	}
}

// noMeter counts nothing.
type noMeter struct{}

func (noMeter) Attempted(string, time.Duration) {}
func (noMeter) Accepted(string, time.Duration)  {}
func (noMeter) Superseded(string, int)          {}
func (noMeter) Failed(string, string)           {}
