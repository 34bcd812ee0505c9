package sinks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge/delivery"
)

// classOfStatus says what an HTTP status other than 2xx means: delivery.ErrRejected, delivery.ErrBlocked, or nil for
// try again.
func classOfStatus(status int) error {
	switch {
	case oneOf(status, 408, 425, 429), status >= 500, status < 300:
		return nil
	case status <= 399, oneOf(status, 401, 403, 404, 405, 407, 410):
		return delivery.ErrBlocked
	}
	return delivery.ErrRejected
}

// classOfFailure says what it means that there was no answer: delivery.ErrBlocked for a name that does not exist and
// for certificates that one side does not accept, else nil for try again.
func classOfFailure(err error) error {
	if errors.Is(err, delivery.ErrBlocked) {
		return delivery.ErrBlocked
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
		return delivery.ErrBlocked
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return delivery.ErrBlocked
	}
	if alert, ok := alertOf(err); ok && slices.Contains(lastingAlerts, alert) {
		return delivery.ErrBlocked
	}
	return nil
}

// lastingAlerts are the TLS alerts by which the other side says that it accepts no connection of this kind, from this
// client, under this name (RFC 8446, section 6.2).
var lastingAlerts = []uint64{
	40,                         // handshake_failure: what older servers say when a certificate is missing
	42, 43, 44, 45, 46, 48, 49, // bad, unsupported, revoked, expired, unknown certificate; unknown_ca; access_denied
	70, 71, // protocol_version, insufficient_security
	112, 116, // unrecognized_name, certificate_required
}

// alertOf is the TLS alert that the other side sent. Package tls keeps its type to itself, but not its number.
func alertOf(err error) (uint64, bool) {
	e, ok := errors.AsType[*net.OpError](err)
	for ok && e.Op != "remote error" {
		e, ok = errors.AsType[*net.OpError](e.Err)
	}
	if !ok {
		return 0, false
	}
	v := reflect.ValueOf(e.Err)
	if v.Kind() != reflect.Uint8 {
		return 0, false
	}
	return v.Uint(), true
}

// maxRetryAfter is more than anybody waits; it keeps large numbers from overflowing.
const maxRetryAfter = 365 * 24 * time.Hour

// retryAfter reads a Retry-After, in seconds or as a date, for an answer sent at a time. What cannot be read, and what
// is not in the future, is no wish.
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

// sentAt is when an answer was sent by the destination's clock, so that ours need not be right.
func sentAt(h http.Header) time.Time {
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		return at
	}
	return time.Now()
}

func oneOf[T comparable](v T, values ...T) bool { return slices.Contains(values, v) }

// noAnswer is the error that ctx ended before there was an answer.
func noAnswer(ctx context.Context, from string) error {
	return fmt.Errorf("no answer from %s: %w", from, context.Cause(ctx))
}

// ended reports whether ctx is why something failed. Its deadline is also that of a connection, whose clock may strike
// first.
func ended(ctx context.Context) bool {
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}
