package sinks

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/templates"
)

// classOfStatus returns the class of an HTTP status other than 2xx: delivery.ErrRejected, delivery.ErrBlocked, or nil
// if a retry can help.
func classOfStatus(status int) error {
	switch {
	case oneOf(status, 408, 425, 429), status >= 500, status < 300:
		return nil
	case status <= 399, oneOf(status, 401, 403, 404, 405, 407, 410):
		return delivery.ErrBlocked
	}
	return delivery.ErrRejected
}

// classOfFailure returns the class of a request that got no answer: delivery.ErrBlocked if the name of the host does
// not exist or one side does not accept the other's certificate, else nil, because a retry can help.
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

// lastingAlerts are the TLS alerts that a retry does not help against: the other side accepts no connection of this
// kind, from this client, or under this name (RFC 8446, section 6.2).
var lastingAlerts = []uint64{
	40,                         // handshake_failure: what older servers send when a certificate is missing
	42, 43, 44, 45, 46, 48, 49, // bad, unsupported, revoked, expired, unknown certificate; unknown_ca; access_denied
	70, 71, // protocol_version, insufficient_security
	112, 116, // unrecognized_name, certificate_required
}

// alertOf returns the number of the TLS alert that the other side sent; ok is false if err is about none. Package tls
// does not export the alert's type, so the number is read by reflection.
func alertOf(err error) (alert uint64, ok bool) {
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

// A classError is an error whose class is known: delivery.ErrRejected, delivery.ErrBlocked, or nil if a retry can help.
// Its text does not name the class.
type classError struct {
	class error
	text  string
}

func (e *classError) Error() string { return e.text }
func (e *classError) Unwrap() error { return e.class }

// withClass returns an error that wraps class, or only has the text if class is nil. It wraps no other error, because
// the text of that one may repeat a secret.
func withClass(class error, text string) error {
	if class == nil {
		return errors.New(text)
	}
	return fmt.Errorf("%w: %s", class, text)
}

// failure returns the error, without secrets, of an attempt that got no answer from an address: the end of ctx if ctx
// has ended, else err with its class.
func failure(ctx context.Context, redact *redactor, from string, class, err error) error {
	if ended(ctx) {
		return noAnswer(ctx, from)
	}
	return withClass(class, whyAt(redact, from, err))
}

// whyAt returns the text, without secrets, of an error at an address.
func whyAt(redact *redactor, from string, err error) string {
	if errors.Is(err, connectionRefused) {
		return "nothing listens at " + listenerOf(from, err) + " (connection refused)"
	}
	if isOfNobody(err) {
		return from + ": " + templates.Line(cut(err.Error(), maxShown))
	}
	return from + ": " + redact.line(err.Error(), maxShown)
}

// listenerOf names what refused a connection on the way to from, which is an origin or a host and port.
func listenerOf(from string, err error) string {
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "proxyconnect" {
		return "the proxy for " + from
	}
	u, err := url.Parse(from)
	if err != nil || u.Host == "" {
		return from
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), usualPorts[u.Scheme]))
}

// usualPorts are the ports of URLs without one, by scheme.
var usualPorts = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}

// isVisible reports whether a text consists of visible ASCII characters, without spaces.
func isVisible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// oneOf reports whether v is one of the values.
func oneOf[T comparable](v T, values ...T) bool { return slices.Contains(values, v) }

// withLimit returns ctx, with a timeout of limit if it has no deadline of its own.
func withLimit(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// noAnswer returns the error for a ctx that ended before there was an answer.
func noAnswer(ctx context.Context, from string) error {
	return fmt.Errorf("no answer from %s: %w", from, context.Cause(ctx))
}

// ended reports whether an operation failed because ctx ended. A connection with the same deadline can time out a
// moment before ctx does; ended then waits for ctx.
func ended(ctx context.Context) bool {
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}
