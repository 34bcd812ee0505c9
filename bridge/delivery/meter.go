package delivery

import (
	"context"
	"errors"
	"net"
	"time"
)

// A Meter counts what happens. Many goroutines call it concurrently, so its methods must return at once.
type Meter interface {
	// Attempted counts an attempt and its duration.
	Attempted(sink string, took time.Duration)
	// Accepted counts an accepted delivery and the time since it was due.
	Accepted(sink string, lag time.Duration)
	// Superseded counts deliveries that an accepted newer one of their group replaced. What became obsolete without one isn't
	// counted.
	Superseded(sink string, n int)
	// Failed counts a delivery that will be tried again, by one of the Failed constants.
	Failed(sink, reason string)
}

// Why a delivery will be tried again. The text of the error is in State.
const (
	FailedBlocked     = "blocked"      // somebody must act: credentials, address, certificate
	FailedRateLimited = "rate_limited" // the destination named a time to come back
	FailedTimeout     = "timeout"      // no answer in time
	FailedAgain       = "again"        // anything else
)

// failure returns the Failed constant for an error.
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

// measure counts an attempt, if one was made, and the deliveries that are tried again. The owner of the queue counts dead
// letters.
func (w *Worker) measure(r result) {
	if !r.unsent {
		w.Meter.Attempted(w.Route, r.took)
	}
	rejected := errors.Is(r.err, ErrRejected)
	for _, i := range r.batch {
		switch {
		case errors.Is(r.err, ErrSettled): // nothing is left to try
		case r.err == nil:
			w.Meter.Accepted(w.Route, max(0, r.began.Add(r.took).Sub(w.since(i))))
		case rejected && r.comesApart():
			w.Meter.Failed(w.Route, FailedAgain)
		case !rejected && len(r.lost) == 0:
			w.Meter.Failed(w.Route, failure(r.err))
		}
	}
	if r.err == nil {
		w.Meter.Superseded(w.Route, len(r.superseded))
	}
}

// NoMeter is a Meter that counts nothing.
type NoMeter struct{}

func (NoMeter) Attempted(string, time.Duration) {}
func (NoMeter) Accepted(string, time.Duration)  {}
func (NoMeter) Superseded(string, int)          {}
func (NoMeter) Failed(string, string)           {}
