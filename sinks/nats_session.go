package sinks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
)

const (
	natsDial = 3 * time.Second  // for each server, so that one attempt gets to the third of a list
	natsPing = 30 * time.Second // two that are not answered end a connection
)

// A natsSession is one connection to a server, from connecting to its end. It never connects again by itself and keeps
// nothing to send later: the bridge repeats what was not accepted, at its own pace, and each attempt that finds no
// connection makes one.
type natsSession struct {
	conn   *nats.Conn
	raw    *natsConn
	js     jetstream.JetStream
	access natsAccess
	server *url.URL
	log    *slog.Logger
	closed chan struct{} // nats.go makes no call any more
	ready  bool          // the stream was looked after

	mu   sync.Mutex
	fail context.CancelCauseFunc // ends what is under way, nil when nothing is
}

// dialNATS connects to one of the servers, in random order, or says why none of them would have it: that is blocked
// only if it is so at each. When ctx ends it returns at once and leaves nothing behind.
func dialNATS(ctx context.Context, dial Dialer, first bool, name string, servers []*url.URL, a natsAccess, log *slog.Logger) (*natsSession, error) {
	servers = slices.Clone(servers)
	rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	var texts []string
	blocked := true
	for _, server := range servers {
		s := &natsSession{access: a, server: server, log: log, closed: make(chan struct{})}
		err := s.dial(ctx, dial, first, name)
		if err == nil {
			return s, nil
		}
		if ended := context.Cause(ctx); ended != nil {
			return nil, fmt.Errorf("no answer from %s: %w", a.veil.over(server.Host), ended)
		}
		blocked = blocked && errors.Is(classOfNATS(err), bridge.ErrBlocked)
		texts = append(texts, a.veil.line(server.Host+": "+err.Error(), false, 300))
	}
	var class error
	if blocked {
		class = bridge.ErrBlocked
	}
	return nil, say(class, strings.Join(texts, "; "))
}

func (s *natsSession) dial(ctx context.Context, dial Dialer, first bool, name string) error {
	o := nats.GetDefaultOptions()
	o.Servers, o.Name = []string{s.server.String()}, name
	o.AllowReconnect, o.SkipHostLookup = false, true
	o.Timeout, o.FlusherTimeout, o.PingInterval = natsDial, natsDial, natsPing
	o.IgnoreDiscoveredServers = true // anybody on the way could tell of one; the settings list the servers
	s.access.login(&o)
	o.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) { s.trouble(err) }
	o.DisconnectedErrCB = func(conn *nats.Conn, _ error) {
		if err := conn.LastError(); err != nil {
			s.trouble(err)
		}
	}
	o.ClosedCB = func(*nats.Conn) { close(s.closed) }
	link := natsLink{dial: dial, config: s.access.tls, secure: s.access.secure, first: first}
	var refused error // nats.go forgets why a connection was refused
	var keep []func() bool
	o.CustomDialer = natsDialer(func(network, address string) (net.Conn, error) {
		conn, err := link.connect(ctx, network, address)
		if err != nil {
			refused = err
			return nil, err
		}
		s.raw = conn
		keep = append(keep, context.AfterFunc(ctx, func() { conn.Close() }))
		return conn, nil
	})
	var err error
	s.conn, err = o.Connect()
	for _, stop := range keep {
		stop()
	}
	if err != nil {
		if errors.Is(err, nats.ErrNoServers) && refused != nil {
			return refused
		}
		return err
	}
	if s.js, err = jetstream.New(s.conn); err != nil {
		s.end()
	}
	return err
}

type natsDialer func(network, address string) (net.Conn, error)

// Dial makes a connection.
func (d natsDialer) Dial(network, address string) (net.Conn, error) { return d(network, address) }

// trouble hears what the server says out of turn. A refusal ends what is under way, which else would wait for an answer
// that does not come.
func (s *natsSession) trouble(err error) {
	s.log.Debug("nats", "server", s.access.veil.over(s.server.Host), "err", s.access.veil.line(err.Error(), false, 500))
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		s.fail(err)
	}
}

// during does something with the connection, which ends at once when ctx does; the connection is then lost too.
func (s *natsSession) during(ctx context.Context, do func(context.Context) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.setFail(cancel)
	defer s.setFail(nil)
	stop := context.AfterFunc(inner, func() { s.raw.Close() })
	defer stop()
	s.raw.renew()
	err := do(inner)
	cause := context.Cause(inner)
	switch {
	case err == nil, cause == nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return cause
}

func (s *natsSession) setFail(fail context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// alive says whether the connection can be used, as far as one knows.
func (s *natsSession) alive() bool { return s.conn.IsConnected() }

// end closes the connection and returns when nothing of it runs that could say something.
func (s *natsSession) end() {
	s.raw.Close() // so that nothing waits until it can be written
	s.conn.Close()
	<-s.closed
}

// A natsVerdict is an answer whose class is known from what was asked.
type natsVerdict struct {
	class error // bridge.ErrRejected, bridge.ErrBlocked, or nil for try again
	text  string
}

func (e *natsVerdict) Error() string { return e.text }

// natsRefusals are errors that last until somebody acts. For some the server and nats.go have different words.
var natsRefusals = []error{
	nats.ErrAuthorization, nats.ErrAuthRevoked, nats.ErrAuthExpired, nats.ErrAccountAuthExpired, nats.ErrPermissionViolation,
	errors.New("nats: " + nats.AUTHENTICATION_EXPIRED_ERR), errors.New("nats: " + nats.ACCOUNT_AUTHENTICATION_EXPIRED_ERR),
	errors.New("nats: " + nats.AUTHENTICATION_REVOKED_ERR),
	nats.ErrSecureConnWanted, nats.ErrSecureConnRequired, nats.ErrNkeysNotSupported, nats.ErrHeadersNotSupported,
	jetstream.ErrNoStreamResponse, jetstream.ErrStreamNotFound,
	jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount,
}

// What a stream answers beside what package jetstream has a name for.
const (
	natsHeaderTooLarge = 10097
	natsSealed         = 10109
)

// classOfNATS says what an error means: bridge.ErrRejected, bridge.ErrBlocked, or nil for try again. A full stream,
// missing servers and missing leaders may mend.
func classOfNATS(err error) error {
	if e, ok := errors.AsType[*natsVerdict](err); ok {
		return e.class
	}
	for _, refusal := range natsRefusals {
		if errors.Is(err, refusal) {
			return bridge.ErrBlocked
		}
	}
	if errors.Is(err, nats.ErrMaxPayload) {
		return bridge.ErrRejected
	}
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		switch e.ErrorCode {
		case jetstream.JSErrCodeStreamMessageExceedsMaximum, natsHeaderTooLarge:
			return bridge.ErrRejected
		case natsSealed:
			return bridge.ErrBlocked
		}
		return nil
	}
	return classOfFailure(err)
}
