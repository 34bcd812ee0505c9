package sinks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
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

// Dial connects to one of the servers with the current credentials, or returns why none of them accepts it. The error
// has a class and shows no secret. If ctx ends first, Dial returns at once and leaves nothing behind; afterwards ctx
// has no effect. nats.go then reconnects by itself, to any of the servers. While there is no connection, publishing
// fails at once, and nothing is sent later. Once a server has refused the credentials twice, nats.go closes the
// connection for good; the next Dial reads them anew.
//
// Each message from a server is limited to 4 MiB before nats.go reads it, but the number of messages is not limited.
func (n *NATS) Dial(ctx context.Context) (*nats.Conn, error) {
	s, err := n.dial(ctx, 0)
	if err != nil {
		return nil, err
	}
	return s.conn, nil
}

// A natsSession is a connection with the credentials of one moment, which nats.go makes again when it is lost.
type natsSession struct {
	conn   *nats.Conn
	js     jetstream.JetStream
	api    string // prefix of JetStream's subjects
	access natsAccess
	log    *slog.Logger
	stop   context.CancelFunc // ends dialing
	closed chan struct{}      // holds one when nats.go has given up and makes no more calls

	warnedHeartbeats *natsConn // the connection for which a warning about heartbeats was logged
	provided         *natsConn // the connection over which the stream was provided; the next server may have lost it

	described   *natsDescription // of the stream that was looked at last; nil if it has to be looked at again
	describedBy *natsConn        // the connection over which it was

	mu         sync.Mutex
	server     string                  // that was dialed last
	link       *natsConn               // to it, nil if there is none
	lastErr    error                   // its last -ERR, after which it may end the connection
	deaf       bool                    // it lets nobody hear answers over this connection
	blind      bool                    // this user may not look at the stream: see mayLook
	reasons    map[string]error        // why there is no connection, by server; cleared when work begins
	cancelWork context.CancelCauseFunc // ends the last work that was begun; nil for none
	cancelLook context.CancelCauseFunc // ends the look at the stream that was begun; nil for none
}

// dial is Dial with a bound on what a server may send unasked; 0 for none.
func (n *NATS) dial(ctx context.Context, quota int64) (*natsSession, error) {
	err := n.sources().load(ctx, n.host)
	if err != nil {
		return nil, err
	}
	a, err := n.read()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	life, stop := context.WithCancel(context.Background())
	s := &natsSession{
		access: a, log: n.host.Log, stop: stop, closed: make(chan struct{}, 1), reasons: make(map[string]error),
	}
	o := nats.GetDefaultOptions()
	o.Name, o.InboxPrefix = strings.TrimSpace(n.host.Agent+" "+n.host.Name), n.inbox
	for _, u := range a.servers {
		o.Servers = append(o.Servers, u.String())
	}
	o.IgnoreDiscoveredServers = true // anybody on the way could announce one; the settings list the servers
	o.SkipHostLookup = true
	o.MaxReconnect, o.ReconnectBufSize, o.ReconnectJitter = -1, -1, natsJitter
	o.Timeout, o.FlusherTimeout, o.PingInterval = natsDial, natsDial, natsPing
	o.CustomDialer = natsDialer(func(network, address string) (net.Conn, error) {
		s.hangUp(errGivenUp) // nats.go may have left the last connection open
		s.setLink(address, nil)
		conn, err := a.connect(life, network, address)
		if err != nil {
			s.report(nil, err, true)
			return nil, err
		}
		conn.quota, conn.report = quota, s.report
		s.setLink(address, conn)
		if life.Err() != nil { // hangUp may not have seen it
			conn.Close()
		}
		return conn, nil
	})
	o.AsyncErrorCB = func(*nats.Conn, *nats.Subscription, error) {} // report gets it too; nats.go would print it
	o.ClosedCB = func(*nats.Conn) { s.closed <- struct{}{} }
	if err := a.login(&o); err != nil {
		stop()
		return nil, err
	}
	keep := context.AfterFunc(ctx, func() { stop(); s.hangUp(ctx.Err()) })
	s.conn, err = o.Connect()
	switch kept := keep(); {
	case kept && err == nil:
		return s, nil
	case err == nil:
		s.end()
	}
	stop()
	if ended(ctx) {
		return nil, noAnswer(ctx, s.server)
	}
	err = s.connectError(err)
	n.sources().refuse(n.host, err)
	return nil, err
}

type natsDialer func(network, address string) (net.Conn, error)

func (d natsDialer) Dial(network, address string) (net.Conn, error) { return d(network, address) }

// setLink records the server that is dialed, and then the connection to it.
func (s *natsSession) setLink(server string, link *natsConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server, s.link, s.lastErr, s.deaf = server, link, nil, false
}

// report records an -ERR on a connection or, with final, why it has ended or was not made.
func (s *natsSession) report(link *natsConn, err error, final bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if link != s.link { // an older one
		return
	}
	if s.log.Enabled(context.Background(), slog.LevelDebug) { // a server may send many
		s.log.Debug("nats", "server", s.server, "err", s.access.redact.line(err.Error(), maxShown))
	}
	// The server answers nothing else.
	denied := errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, nats.ErrMaxPayload)
	s.deaf = s.deaf || isAboutSubscription(err)
	switch {
	case final:
		err = cmp.Or(s.lastErr, err)
		s.reasons[s.server], s.link = err, nil
	case !denied:
		s.lastErr = err
	}
	if denied && s.cancelLook != nil && strings.Contains(err.Error(), ".API.STREAM.INFO.") {
		s.blind = true
		s.cancelLook(errBlind)
		return
	}
	if s.cancelWork != nil && (final || denied) {
		s.cancelWork(err)
	}
}

// errBlind means that the user may not look at the stream.
var errBlind = errors.New("this user may not look at the stream")

// beginLook begins a look at the stream that cancel ends if it isn't allowed. It returns false if that is known already.
func (s *natsSession) beginLook(cancel context.CancelCauseFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blind {
		return false
	}
	s.cancelLook = cancel
	return true
}

// mayLook lets the next look be asked for: the user may be allowed to by now. Before that nobody asks again, over whatever
// connection, because a server logs each request that it refuses.
func (s *natsSession) mayLook() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blind = false
}

func (s *natsSession) endLook() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelLook = nil
}

// do calls f with the connection, if there is one, and ends f at once when ctx ends or the connection is lost. Its
// errors have a class and show no secret.
func (s *natsSession) do(ctx context.Context, f func(context.Context) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server, ok := s.beginWork(cancel)
	if !ok {
		return s.connectError(nats.ErrDisconnected)
	}
	stop := context.AfterFunc(ctx, func() { s.hangUp(errNoAnswer) })
	defer stop()
	err := f(inner)
	if err == nil {
		return nil
	}
	if ended(ctx) {
		s.hangUp(errNoAnswer) // before anybody uses it again
	} else if cause := context.Cause(inner); cause != nil {
		err = explainDenied(cause)
	}
	return failure(ctx, s.access.redact, server, classOfNATS(err), err)
}

// isAboutSubscription reports whether a server refused a subscription. The only one is that to the answers, and nats.go
// makes it once for each connection.
func isAboutSubscription(err error) bool {
	return strings.HasPrefix(strings.ToLower(err.Error()), "permissions violation for subscription")
}

// explainDenied says what a user may not do, where the server only names a subject.
func explainDenied(err error) error {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return err
	}
	if isAboutSubscription(err) {
		return fmt.Errorf("this user may not hear the answers; set inbox_prefix to one that it may subscribe to: %w", err)
	}
	what := "publish there"
	for _, api := range []struct{ subject, what string }{
		{".API.STREAM.NAMES", "look for the stream"},
		{".API.STREAM.INFO.", "look for the stream"},
		{".API.STREAM.CREATE.", "create the stream"},
		{".API.STREAM.UPDATE.", "update the stream"},
		{".API.STREAM.MSG.GET.", "look whether the stream has this message"},
		{".API.DIRECT.GET.", "look whether the stream has this message"},
	} {
		if strings.Contains(err.Error(), api.subject) {
			what = api.what
		}
	}
	return fmt.Errorf("this user may not %s: %w", what, err)
}

// beginWork begins work that cancel ends if the connection is lost. It returns false if there is no connection.
func (s *natsSession) beginWork(cancel context.CancelCauseFunc) (server string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil || !s.link.loggedIn.Load() {
		return "", false
	}
	clear(s.reasons)
	s.cancelWork = cancel
	s.link.resetQuota()
	return s.server, true
}

// connectError returns why there is no connection to any server: blocked if each server blocks. err counts if nothing
// else is known.
func (s *natsSession) connectError(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var texts []string
	class := delivery.ErrBlocked
	for _, u := range s.access.servers {
		why := s.reasons[u.Host]
		if why == nil || !errors.Is(classOfNATS(why), delivery.ErrBlocked) {
			class = nil
		}
		if why != nil {
			texts = append(texts, whyAt(s.access.redact, u.Host, why))
		}
	}
	if len(texts) == 0 {
		texts = []string{s.access.redact.line(err.Error(), maxShown)}
	}
	return withClass(class, strings.Join(texts, "; "))
}

// currentLink returns the connection, nil if there is none.
func (s *natsSession) currentLink() *natsConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link
}

var (
	errNoAnswer = errors.New("no connection: the last one gave no answer, and the next is being made")
	errGivenUp  = errors.New("connection given up: the server did not let the client in, or left a PING unanswered")
)

// hangUp ends the connection, if there is one. nats.go makes another.
func (s *natsSession) hangUp(why error) {
	if link := s.currentLink(); link != nil {
		link.end(why)
	}
}

// gaveUp reports whether nats.go has given the session up. Asking nats.go itself would wait for a lock that it
// holds while it dials.
func (s *natsSession) gaveUp() bool { return len(s.closed) > 0 }

// isDeaf reports whether no answer can be heard over this connection, however long it lasts. A new one is of use once
// the user is allowed to.
func (s *natsSession) isDeaf() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deaf
}

// end closes everything and returns when nothing of it runs any more.
func (s *natsSession) end() {
	s.stop()
	s.hangUp(errGivenUp) // so that nothing waits for a write
	s.conn.Close()
	<-s.closed
}

// A natsServerError is the text of an -ERR.
type natsServerError string

func (e natsServerError) Error() string { return string(e) }

// Is reports whether err is nats.go's error for it. What is too large a server says in other words.
func (e natsServerError) Is(err error) bool {
	return strings.HasPrefix("nats: "+strings.ToLower(string(e)), err.Error()) ||
		err == nats.ErrMaxPayload && strings.EqualFold(string(e), "maximum payload violation")
}

// natsRefusals are errors that last until somebody acts. For some the server has other words than nats.go.
var natsRefusals = []error{
	nats.ErrAuthorization, nats.ErrAuthRevoked, nats.ErrAuthExpired, nats.ErrAccountAuthExpired,
	nats.ErrPermissionViolation,
	errors.New("nats: " + nats.AUTHENTICATION_EXPIRED_ERR), errors.New("nats: " + nats.ACCOUNT_AUTHENTICATION_EXPIRED_ERR),
	errors.New("nats: " + nats.AUTHENTICATION_REVOKED_ERR),
	nats.ErrSecureConnWanted, nats.ErrSecureConnRequired, nats.ErrNkeysNotSupported, nats.ErrHeadersNotSupported,
	jetstream.ErrNoStreamResponse, jetstream.ErrStreamNotFound,
	jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount,
}

// natsCodes are the classes of a stream's answers for which a retry is no help.
var natsCodes = map[jetstream.ErrorCode]error{
	jetstream.JSErrCodeStreamMessageExceedsMaximum: delivery.ErrRejected,
	10097: delivery.ErrRejected, // header too large
	10109: delivery.ErrBlocked,  // sealed
}

// classOfNATS returns the class of an error: delivery.ErrRejected, delivery.ErrBlocked, or nil if a retry can help, as
// with a full stream or a missing leader.
func classOfNATS(err error) error {
	if e, ok := errors.AsType[*classError](err); ok {
		return e.class
	}
	if slices.ContainsFunc(natsRefusals, func(refusal error) bool { return errors.Is(err, refusal) }) {
		return delivery.ErrBlocked
	}
	if errors.Is(err, nats.ErrMaxPayload) {
		return delivery.ErrRejected
	}
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		return natsCodes[e.ErrorCode]
	}
	return classOfFailure(err)
}
