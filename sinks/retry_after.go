package sinks

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge/delivery"
)

// maxRetryAfter bounds what a destination may ask for, so that a large number does not overflow.
const maxRetryAfter = 365 * 24 * time.Hour

// retryAfter reads the value of a Retry-After header (RFC 9110, section 10.2.3): seconds, or a date, which it compares
// with sent, the time of the answer. It returns false for a value that it cannot read or that is not in the future.
func retryAfter(value string, sent time.Time) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(maxRetryAfter/time.Second) {
			return maxRetryAfter, true
		}
		return time.Duration(seconds) * time.Second, seconds > 0
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	after := min(at.Sub(sent), maxRetryAfter)
	return max(after, 0), after > 0
}

// later returns err with the Retry-After of a response, if it has one.
func (r response) later(err error) error {
	if after, ok := retryAfter(r.header.Get("Retry-After"), sentAt(r.header)); ok {
		return &delivery.RetryAfter{After: after, Err: err}
	}
	return err
}

// sentAt returns the Date of an answer: the destination's clock, so that this VM's clock need not be right.
func sentAt(h http.Header) time.Time {
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		return at
	}
	return time.Now()
}
