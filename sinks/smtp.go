package sinks

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/textproto"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/wneessen/go-mail/smtp"

	"forewarn/bridge/delivery"
)

const (
	tokenTimeout    = 30 * time.Second // for token_command
	loginTimeout    = 30 * time.Second // from connecting until the login is complete
	quitTimeout     = time.Second      // for the answer to QUIT
	maxConversation = 1 << 20          // bytes read from a server, those of TLS included
	// maxRounds limits the iterations of SCRAM's hash to about a second of work. Servers ask for thousands.
	maxRounds  = 1 << 21
	maxPrinted = 64 << 10 // bytes of a token command's output
)

// A mailServer is an SMTP server, and how to log in there.
type mailServer struct {
	Host
	addr     string // host and port
	mode     string // starttls, implicit or none
	tls      TLSSettings
	helo     string // "" for the address of the connection
	auth     string
	username string
	password source
	command  []string // that prints the token

	token atomic.Pointer[string] // that the command printed last; nil when the server has refused it
}

// connect begins a conversation and logs in. A token of token_command is used until the server refuses it; then connect
// runs the command again and tries the new token once. Its errors have a class and show no secret.
func (m *mailServer) connect(ctx context.Context, redact *redactor) (*emailSession, error) {
	for {
		secret, kept, err := m.secret(ctx, redact)
		if err != nil {
			return nil, err
		}
		s, err := m.login(ctx, redact, secret)
		sources{m.password}.refuse(m.Host, err)
		if len(m.command) == 0 || !errors.Is(err, delivery.ErrBlocked) {
			return s, err
		}
		m.token.Store(nil)
		if !kept {
			return nil, err
		}
	}
}

// login connects, starts TLS and logs in, within loginTimeout: a server that does not answer gets less time than one
// that has received the mail.
func (m *mailServer) login(ctx context.Context, redact *redactor, secret string) (*emailSession, error) {
	var config *tls.Config
	if m.mode != "none" {
		var err error
		config, err = m.tls.load(m.Host)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
		}
	}
	hello, cancel := context.WithTimeoutCause(ctx, loginTimeout, fmt.Errorf("no answer within %v", loginTimeout))
	defer cancel()
	s, err := startEmail(hello, m.dialer(connectTime), m.addr, m.helo, config, m.mode == "implicit")
	if err == nil && m.username != "" {
		err = s.login(hello, m.auth, m.username, secret)
	}
	if err == nil && !s.extendTo(ctx) {
		err = hello.Err()
	}
	if err != nil {
		if s != nil {
			s.close()
		}
		return nil, m.failure(hello, redact, blockedBeforeMail(err))
	}
	return s, nil
}

// secret returns the password or token, which redact then knows. kept reports whether the token was printed for an
// earlier conversation.
func (m *mailServer) secret(ctx context.Context, redact *redactor) (secret string, kept bool, err error) {
	switch {
	case m.username == "":
		return "", false, nil
	case len(m.command) > 0:
		token := m.token.Load()
		kept = token != nil
		if kept {
			secret = *token
		} else if secret, err = runTokenCommand(ctx, m.Host, m.command); err != nil {
			return "", false, err
		}
		m.token.Store(&secret)
	default:
		err = sources{m.password}.load(ctx, m.Host)
		if err != nil {
			return "", false, err
		}
		secret, err = m.password.read(m.Host)
		if err != nil {
			return "", false, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
		}
	}
	redact.hideLogin(m.username, secret)
	return secret, kept, nil
}

// redactor returns a redactor for the texts of one conversation.
func (m *mailServer) redactor() *redactor {
	redact := m.Host.redactor()
	redact.hideKeys(strings.Join(m.command, " "))
	redact.showHosts(m.addr, m.helo, m.tls.ServerName)
	return redact
}

// check connects and logs in, and returns what it reached, for people.
func (m *mailServer) check(ctx context.Context) (string, error) {
	redact := m.redactor()
	s, err := m.connect(ctx, redact)
	if err != nil {
		return "", err
	}
	defer s.quit()
	answer := "reached " + m.addr
	if state, ok := s.client.TLSConnectionState(); ok {
		answer += " with " + tls.VersionName(state.Version)
	}
	if m.username != "" {
		answer += ", logged in as " + m.username + " by " + s.mechanism
	}
	return answer, nil
}

// failure returns the error of a conversation with its class, without secrets.
func (m *mailServer) failure(ctx context.Context, redact *redactor, err error) error {
	if ended(ctx) {
		return noAnswer(ctx, m.addr+m.hint(err))
	}
	class, err := classOfMail(err), fmt.Errorf("%w%s", err, m.hint(err))
	if shown := shownReply(redact, err); strings.HasSuffix(shown, notShown) {
		err = errors.New(shown)
	}
	return failure(ctx, redact, m.addr, class, err)
}

// replyCode matches what an error says before the words of a server's reply: what was done, and the reply's code.
var replyCode = regexp.MustCompile(`^[^"]*?\b[245][0-9]{2}\b`)

// shownReply returns an error of a conversation in the form that may be shown. Of a reply that repeats a secret that is
// its code.
func shownReply(redact *redactor, err error) string {
	text := redact.line(err.Error(), maxShown)
	if text != notShown {
		return text
	}
	begin := replyCode.FindString(err.Error())
	if begin == "" || redact.line(begin, maxShown) == notShown {
		return text
	}
	return begin + " " + notShown
}

// hint returns the usual reason for a timeout on Azure, "" if it does not apply.
func (m *mailServer) hint(err error) string {
	_, port, _ := net.SplitHostPort(m.addr)
	late, ok := errors.AsType[net.Error](err)
	if port != "25" || !errors.Is(err, context.Canceled) && !(ok && late.Timeout()) {
		return ""
	}
	return " (Azure lets most subscriptions send no mail on port 25; use a relay on port 587 or 465)"
}

// runTokenCommand returns the first line that a command prints, without white space around it. The command has the
// environment of every program, which holds no secrets of other sinks. Errors show nothing of the output, because it may
// hold a secret.
func runTokenCommand(ctx context.Context, h Host, command []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	own, _ := findAccount("") // has no error
	env := baseVariables(own, h.Getenv)
	path, err := findProgram(command[0], env)
	out := output{max: 2 * maxPrinted}
	if err == nil {
		c := &exec.Cmd{Path: path, Args: command, Env: environ(env), Stdout: &out, WaitDelay: outputWait,
			SysProcAttr: processAttributes(own)}
		_, err = runGroup(ctx, c, runTerms{}) // an agent that it leaves behind is no failure
	}
	if errors.Is(err, exec.ErrWaitDelay) { // it succeeded, and left something behind that holds its output
		err = nil
	}
	token, _, _ := strings.Cut(string(out.kept[:min(len(out.kept), maxPrinted)]), "\n")
	token = strings.TrimSpace(token)
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return "", fmt.Errorf("%w: token_command: %w", delivery.ErrBlocked, err)
	case ctx.Err() != nil:
		return "", fmt.Errorf("token_command: %w", context.Cause(ctx))
	case err != nil:
		return "", fmt.Errorf("token_command: %w; run it by hand, as forewarn's user, to see why", err)
	case token == "":
		return "", errors.New("token_command: it printed no token")
	}
	return token, nil
}

// classOfMail returns the class of a failed conversation. For an SMTP reply that is nil to retry (RFC 5321, section
// 4.2.1), delivery.ErrBlocked if the client has to log in otherwise (RFC 4954, section 6), else delivery.ErrRejected.
func classOfMail(err error) error {
	e, ok := errors.AsType[*textproto.Error](err)
	switch {
	case !ok, errors.Is(err, delivery.ErrBlocked):
		return classOfFailure(err)
	case e.Code < 500 || e.Code > 599:
		return nil
	case oneOf(e.Code, 530, 534, 535, 538):
		return delivery.ErrBlocked
	}
	return delivery.ErrRejected
}

// isReply reports whether an error is a reply of the server.
func isReply(err error) bool {
	_, ok := errors.AsType[*textproto.Error](err)
	return ok
}

// securityStatus is the beginning of a reply with an enhanced status code 5.7.Z (RFC 3463).
var securityStatus = regexp.MustCompile(`^5\.7\.[0-9]{1,3}(\s|$)`)

// blockedBeforeMail returns err, an error from before a mail begins, so that it does not reject the CloudEvent: what
// the server refuses there is not about the mail, and blocks.
func blockedBeforeMail(err error) error {
	if errors.Is(classOfMail(err), delivery.ErrRejected) {
		return &classError{delivery.ErrBlocked, err.Error()}
	}
	return err
}

// senderRefusal returns the server's refusal of the sender. One for reasons of policy blocks instead of rejecting the
// mail. At a recipient that would be wrong: there it may be about that recipient alone.
func senderRefusal(err error) error {
	if e, ok := errors.AsType[*textproto.Error](err); ok && securityStatus.MatchString(e.Msg) {
		return blockedBeforeMail(err)
	}
	return err
}

// An emailSession is one conversation with an SMTP server. The end of its context interrupts it at any point.
type emailSession struct {
	client    *smtp.Client
	conn      net.Conn
	stop      func() bool // detaches it from its context; false if that has ended already
	host      string      // of the server
	mechanism string      // by which it logged in
}

// startEmail connects, says EHLO and starts TLS, unless config is nil. Without a helo it uses the address of this end
// of the connection.
func startEmail(ctx context.Context, dial Dialer, addr, helo string, config *tls.Config,
	implicit bool) (*emailSession, error) {
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn = &boundedConn{Conn: conn, left: maxConversation}
	// A deadline in the past ends every read and write, those of TLS too.
	s := &emailSession{conn: conn, stop: context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })}
	if err := s.greet(ctx, addr, helo, config, implicit); err != nil {
		s.close()
		return nil, s.cause(ctx, err)
	}
	return s, nil
}

// A boundedConn is a connection of which at most left bytes are read, because a server can send an endless reply.
type boundedConn struct {
	net.Conn
	left int
}

func (c *boundedConn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, fmt.Errorf("the server says more than %d KiB", maxConversation>>10)
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// extendTo attaches the conversation to ctx instead of its context. It returns false if that has ended already.
func (s *emailSession) extendTo(ctx context.Context) bool {
	lives := s.stop()
	s.stop = context.AfterFunc(ctx, func() { s.conn.SetDeadline(time.Unix(1, 0)) })
	return lives
}

func (s *emailSession) greet(ctx context.Context, addr, helo string, config *tls.Config, implicit bool) error {
	var err error
	s.host, _, _ = net.SplitHostPort(addr)
	if helo == "" {
		helo = addressLiteral(s.conn.LocalAddr())
	}
	if implicit {
		secured, err := handshake(ctx, s.conn, config, s.host)
		if err != nil {
			return err
		}
		s.conn = secured
	}
	s.client, err = smtp.NewClient(s.conn, s.host)
	if err != nil {
		return err
	}
	s.client.SkipSMTPUTF8(true)
	if err := s.client.Hello(helo); err != nil || config == nil || implicit {
		return err
	}
	if ok, _ := s.client.Extension("STARTTLS"); !ok {
		return &classError{delivery.ErrBlocked, "the server offers no STARTTLS, which tls.mode starttls requires; " +
			"set tls: {mode: implicit} for port 465, or none for a server without login"}
	}
	config.ServerName = cmp.Or(config.ServerName, s.host)
	return s.client.StartTLS(config)
}

// addressLiteral returns an address in the form of RFC 5321, section 4.1.3, for a host without a name.
func addressLiteral(a net.Addr) string {
	host, _, _ := net.SplitHostPort(a.String())
	host, _, _ = strings.Cut(host, "%")
	if strings.Contains(host, ":") {
		return "[IPv6:" + host + "]"
	}
	return "[" + host + "]"
}

// mechanisms are the login mechanisms that auto chooses from, the best first.
var mechanisms = []string{"SCRAM-SHA-256", "PLAIN", "LOGIN"}

// login logs in by the mechanism in the settings or, with auto, by the best one that the server offers.
func (s *emailSession) login(ctx context.Context, auth, username, secret string) error {
	_, line := s.client.Extension("AUTH")
	offered := strings.Fields(strings.ToUpper(line))
	wanted := mechanisms
	if auth != "auto" {
		wanted = []string{strings.ToUpper(auth)}
	}
	i := slices.IndexFunc(wanted, func(name string) bool { return slices.Contains(offered, name) })
	if i < 0 {
		return &classError{delivery.ErrBlocked, fmt.Sprintf("the server offers no %s to log in by, only %s",
			strings.Join(wanted, ", "), strings.Join(offered, ", "))}
	}
	s.mechanism = wanted[i]
	err := s.client.Auth(map[string]smtp.Auth{
		"SCRAM-SHA-256": boundedScram{smtp.ScramSHA256Auth(username, secret)},
		"PLAIN":         smtp.PlainAuth("", username, secret, s.host, false),
		"LOGIN":         smtp.LoginAuth(username, secret, s.host, false),
		"XOAUTH2":       smtp.XOAuth2Auth(username, secret),
	}[s.mechanism])
	if err == nil {
		return nil
	}
	if reply, ok := errors.AsType[*textproto.Error](err); ok && reply.Code/100 == 3 {
		return &classError{delivery.ErrBlocked, "logging in by " + s.mechanism + ": the server went on asking"}
	}
	return fmt.Errorf("logging in by %s: %w", s.mechanism, s.cause(ctx, err))
}

// boundedScram is SCRAM with a bound on the work that a server can ask for, which no context interrupts.
type boundedScram struct{ smtp.Auth }

func (a boundedScram) Next(said []byte, more bool) ([]byte, error) {
	for field := range strings.SplitSeq(string(said), ",") {
		rounds, ok := strings.CutPrefix(field, "i=")
		if n, err := strconv.Atoi(rounds); ok && err == nil && n > maxRounds {
			return nil, &classError{delivery.ErrBlocked,
				fmt.Sprintf("the server asks for %d rounds of its hash, and at most %d are made", n, maxRounds)}
		}
	}
	return a.Auth.Next(said, more)
}

// errAtDot is the error for a mail that was sent completely, but whose final reply was lost.
var errAtDot = errors.New("the connection was lost after the end of the mail; it may have been taken, and is sent " +
	"again with the same Message-ID")

// send sends one mail. refused holds nil or the server's refusal for each recipient. If err is nil, the server has
// accepted the mail for all recipients that it did not refuse, and reply is its final reply.
func (s *emailSession) send(ctx context.Context, from string, to []string, mail []byte) (refused []error, reply string,
	err error) {
	if err := s.client.Mail("<" + from + ">"); err != nil {
		return nil, "", senderRefusal(s.cause(ctx, err))
	}
	refused = make([]error, len(to))
	for i, address := range to {
		refused[i] = s.client.Rcpt("<" + address + ">")
		if refused[i] != nil && !isReply(refused[i]) {
			return nil, "", s.cause(ctx, refused[i])
		}
	}
	if !slices.Contains(refused, nil) {
		return refused, "", nil
	}
	w, err := s.client.Data()
	if err == nil {
		_, err = w.Write(mail)
	}
	if err != nil { // the dot was not sent: nothing is taken
		return nil, "", s.cause(ctx, err)
	}
	if err = w.Close(); err != nil {
		if !isReply(err) {
			err = fmt.Errorf("%w: %w", errAtDot, s.cause(ctx, err))
		}
		return nil, "", err
	}
	if d, ok := w.(*smtp.DataCloser); ok {
		reply = d.ServerResponse()
	}
	return refused, reply, nil
}

// cause returns the cause of ctx's end if ctx has ended, else err.
func (s *emailSession) cause(ctx context.Context, err error) error {
	if ended(ctx) {
		return context.Cause(ctx)
	}
	return err
}

// quit says QUIT and closes the connection. It does not wait for an answer if the context is done.
func (s *emailSession) quit() {
	if s.stop() {
		s.conn.SetDeadline(time.Now().Add(quitTimeout))
		_ = s.client.Quit()
	}
	s.close()
}

func (s *emailSession) close() {
	s.stop()
	s.conn.Close()
}
