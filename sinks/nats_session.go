package sinks

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
)

const (
	natsDial   = 3 * time.Second  // for each server, so that one attempt gets to the third of a list
	natsPing   = 30 * time.Second // two that are not answered end a connection
	natsJitter = time.Second      // so that a thousand machines do not return in one moment
)

// A natsSession is a connection that nats.go keeps up, and makes anew when it is lost, with the credentials of one
// moment. It keeps nothing to send later: what finds no connection fails at once, and the bridge repeats it.
type natsSession struct {
	conn   *nats.Conn
	js     jetstream.JetStream
	access natsAccess
	log    *slog.Logger
	stop   context.CancelFunc // ends dialing
	closed chan struct{}      // nats.go has given up, and makes no call any more

	provided *natsConn // since when the stream was looked after; the server behind the next one may have lost it

	mu     sync.Mutex
	link   *natsConn
	server string                  // that was dialed last
	lost   error                   // why there is no connection, nil while there is one
	fail   context.CancelCauseFunc // ends what is under way, nil when nothing is
}

// dial connects to one of the servers, in random order, or says why none of them would have it: that is blocked only if
// it is so at each. When ctx ends it returns at once and leaves nothing behind.
func (n *natsSink) dial(ctx context.Context, a natsAccess) (*natsSession, error) {
	var texts []string
	blocked := true
	for _, i := range rand.Perm(len(a.servers)) {
		server := a.servers[i]
		s, err := n.dialServer(ctx, a, server)
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, noAnswer(ctx, a.veil.over(server.Host))
		}
		blocked = blocked && errors.Is(classOfNATS(err), delivery.ErrBlocked)
		texts = append(texts, a.veil.line(server.Host+": "+err.Error(), false, 300))
	}
	var class error
	if blocked {
		class = delivery.ErrBlocked
	}
	return nil, say(class, strings.Join(texts, "; "))
}

// dialServer connects to a server. Once it has, nats.go may return to any of the servers.
func (n *natsSink) dialServer(ctx context.Context, a natsAccess, server *url.URL) (*natsSession, error) {
	life, stop := context.WithCancel(context.Background())
	s := &natsSession{access: a, log: n.log, server: server.Host, stop: stop, closed: make(chan struct{})}
	o := n.options(life, s)
	o.Servers = []string{server.String()}
	if err := a.login(&o); err != nil {
		stop()
		return nil, err
	}

	keep := context.AfterFunc(ctx, func() { stop(); s.hangUp() })
	var err error
	s.conn, err = o.Connect()
	if !keep() && err == nil {
		s.end()
		return nil, ctx.Err()
	}
	if err != nil {
		stop()
		_, _, lost := s.current() // nats.go forgets why a connection was refused
		return nil, cmp.Or(lost, err)
	}
	if n.domain == "" {
		s.js, err = jetstream.New(s.conn)
	} else {
		s.js, err = jetstream.NewWithDomain(s.conn, n.domain)
	}
	var all []string
	for _, u := range a.servers {
		all = append(all, u.String())
	}
	if err = cmp.Or(err, s.conn.SetServerPool(all)); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// options are those of a session whose connections are made until life ends.
func (n *natsSink) options(life context.Context, s *natsSession) nats.Options {
	o := nats.GetDefaultOptions()
	o.Name, o.InboxPrefix = n.name, n.inbox
	o.IgnoreDiscoveredServers = true // anybody on the way could tell of one; the settings list the servers
	o.SkipHostLookup = true
	o.MaxReconnect, o.ReconnectBufSize, o.ReconnectJitter = -1, -1, natsJitter
	o.Timeout, o.FlusherTimeout, o.PingInterval = natsDial, natsDial, natsPing
	link := natsLink{dial: n.link, config: s.access.tls, secure: s.access.secure, first: n.credentials.first}
	o.CustomDialer = natsDialer(func(network, address string) (net.Conn, error) {
		conn, err := link.connect(life, network, address)
		s.dialed(conn, address, err)
		if err != nil {
			return nil, err
		}
		if life.Err() != nil { // hangUp may not have seen it
			conn.Close()
		}
		return conn, nil
	})
	o.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) { s.trouble(err) }
	o.DisconnectedErrCB = func(conn *nats.Conn, err error) {
		if err == nil { // nats.go has closed it, and keeps the reason
			err = cmp.Or(conn.LastError(), nats.ErrConnectionClosed)
		}
		s.down(err)
	}
	o.ReconnectErrCB = func(_ *nats.Conn, err error) { s.note(err) }
	o.ReconnectedCB = func(*nats.Conn) { s.up() }
	o.ClosedCB = func(*nats.Conn) { close(s.closed) }
	return o
}

type natsDialer func(network, address string) (net.Conn, error)

// Dial makes a connection.
func (d natsDialer) Dial(network, address string) (net.Conn, error) { return d(network, address) }

// dialed takes over a connection, on which nats.go logs in next, or why there is none.
func (s *natsSession) dialed(link *natsConn, server string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = server
	if err != nil {
		s.lost = err
		return
	}
	s.link = link
}

// trouble hears what the server says out of turn, and why it refuses a new connection.
func (s *natsSession) trouble(err error) {
	s.note(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		s.lost = err
	}
	if s.fail != nil && errors.Is(err, nats.ErrPermissionViolation) {
		s.fail(err) // the server answers nothing else
	}
}

// down hears that the connection is lost, and ends what waits for an answer on it.
func (s *natsSession) down(err error) {
	s.note(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil { // else the reason is known
		s.lost = err
	}
	if s.fail != nil {
		s.fail(err)
	}
}

// up hears that there is a connection again.
func (s *natsSession) up() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = nil
}

// note is for whoever looks for it: the log says at Debug what happens to the connection.
func (s *natsSession) note(err error) {
	if !s.log.Enabled(context.Background(), slog.LevelDebug) { // a server may say much
		return
	}
	_, server, _ := s.current()
	s.log.Debug("nats", "server", s.access.veil.over(server), "err", s.access.veil.line(err.Error(), false, 500))
}

// current is the newest connection and its server, and why it was lost, if it was.
func (s *natsSession) current() (link *natsConn, server string, lost error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link, s.server, s.lost
}

// gone says that nats.go does not connect any more, as after a server has refused the credentials twice.
func (s *natsSession) gone() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// during does something with the connection. It ends at once when ctx does, and when the connection is lost.
func (s *natsSession) during(ctx context.Context, do func(context.Context) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.begin(cancel)
	defer s.begin(nil)
	stop := context.AfterFunc(ctx, s.hangUp)
	defer stop()
	err := do(inner)
	cause := context.Cause(inner)
	switch {
	case err == nil, cause == nil:
		return err
	case ctx.Err() != nil:
		s.hangUp() // before anybody uses it again
		return ctx.Err()
	}
	return cause
}

func (s *natsSession) begin(fail context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail = fail; fail != nil {
		s.link.renew()
	}
}

var errHungUp = errors.New("no connection: the last one gave no answer, and the next is being made")

// hangUp ends a connection that gives no answer. nats.go makes another.
func (s *natsSession) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil {
		return
	}
	s.link.Close()
	if s.lost == nil {
		s.lost = errHungUp
	}
}

// end closes everything and returns when nothing of it runs that could say something.
func (s *natsSession) end() {
	s.stop()
	s.hangUp() // so that nothing waits until it can be written
	s.conn.Close()
	<-s.closed
}

// A natsVerdict is an answer whose class is known from what was asked.
type natsVerdict struct {
	class error // delivery.ErrRejected, delivery.ErrBlocked, or nil for try again
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

// classOfNATS says what an error means: delivery.ErrRejected, delivery.ErrBlocked, or nil for try again. A full stream,
// missing servers and missing leaders may mend.
func classOfNATS(err error) error {
	if e, ok := errors.AsType[*natsVerdict](err); ok {
		return e.class
	}
	for _, refusal := range natsRefusals {
		if errors.Is(err, refusal) {
			return delivery.ErrBlocked
		}
	}
	if errors.Is(err, nats.ErrMaxPayload) {
		return delivery.ErrRejected
	}
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		switch e.ErrorCode {
		case jetstream.JSErrCodeStreamMessageExceedsMaximum, natsHeaderTooLarge:
			return delivery.ErrRejected
		case natsSealed:
			return delivery.ErrBlocked
		}
		return nil
	}
	return classOfFailure(err)
}
