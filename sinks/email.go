package sinks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/mail"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/templates"
)

// emailSettings are the keys of mail. What is secret has three forms; see Value.
type emailSettings struct {
	Host         string   `yaml:"host" doc:"mail server"`
	Port         int      `yaml:"port" doc:"port (default: 587; with tls.mode implicit 465, with none 25)"`
	From         string   `yaml:"from" doc:"sender: an address, or a name and an address"`
	To           []string `yaml:"to" doc:"recipients"`
	TLS          emailTLS `yaml:"tls" doc:"certificates"`
	Auth         string   `yaml:"auth" default:"auto" doc:"how to log in: auto, scram-sha-256, plain, login or xoauth2"`
	Username     string   `yaml:"username" doc:"user name"`
	Password     Secret   `yaml:"password" doc:"password; with xoauth2 the token"`
	PasswordFile string   `yaml:"password_file"`
	PasswordEnv  string   `yaml:"password_env"`
	TokenCommand []string `yaml:"token_command" doc:"program and arguments that print a token, for xoauth2"`
	Helo         string   `yaml:"helo" doc:"name that this host gives itself (default: its full name, else its address)"`
	Subject      string   `yaml:"subject" doc:"subject line"`
	SubjectFile  string   `yaml:"subject_file"`
	Text         string   `yaml:"text" doc:"plain text part"`
	TextFile     string   `yaml:"text_file"`
	HTML         string   `yaml:"html" doc:"HTML part"`
	HTMLFile     string   `yaml:"html_file"`
}

type emailTLS struct {
	Mode       string `yaml:"mode" default:"starttls" doc:"starttls (required, never just tried), implicit or none"`
	CAFile     string `yaml:"ca_file" doc:"CA bundle (default: the system's)"`
	ServerName string `yaml:"server_name" doc:"name that the server's certificate must have (default: host)"`
}

// emailTerms: mail is for people, who want the state as it is now, and to be reminded of it.
var emailTerms = bridge.Terms{
	Terms:  delivery.Terms{Timeout: 10 * time.Second, MaxAge: week, Late: delivery.LateLatest, Batch: 1, Digest: peopleGroup},
	Bridge: bridge.LevelTrouble, Remind: peopleRemind,
}

const tokenPatience = 10 * time.Second // for token_command

// email sends each change as a mail to every recipient, in one thread an Azure event. A mail has the same Message-ID
// whenever it is sent, so that a reader that gets one twice can tell.
type email struct {
	name     string // of the sink
	addr     string // host and port of the server
	dial     Dialer
	tls      tlsSettings
	mode     string // starttls, implicit or none
	from     mail.Address
	to       []mail.Address
	auth     string
	username string
	password source
	command  []string // that prints the token
	helo     string   // "" for the address of the connection
	subject  *templates.Template
	text     *templates.Template
	html     *templates.Template
	zone     *time.Location
	getenv   func(string) string
	log      *slog.Logger
	now      func() time.Time
}

func openEmail(decode func(any) error, h Host) (Opened, error) {
	var s emailSettings
	if err := decode(&s); err != nil {
		return Opened{}, err
	}
	m := &email{name: h.Name, zone: h.Zone, getenv: h.Getenv, log: h.Log, now: time.Now, dial: h.dialer(0)}
	for _, open := range []func(emailSettings, Host) error{m.openServer, m.openAddresses, m.openAuth, m.openTexts} {
		if err := open(s, h); err != nil {
			return Opened{}, err
		}
	}
	opened := Opened{Sink: m, Secrets: m.tls.files()}
	if m.password.File != "" {
		opened.Secrets = append(opened.Secrets, m.password.File)
	}
	if m.mode == "none" {
		opened.Notes = append(opened.Notes, "tls.mode is none: mail can be read and changed on its way")
	}
	return opened, nil
}

// openServer takes which server to talk to, and how.
func (m *email) openServer(s emailSettings, h Host) error {
	if s.Host == "" || strings.ContainsAny(s.Host, " /:@") && net.ParseIP(s.Host) == nil {
		return &KeyError{"host", errors.New("expected the name of a mail server, such as smtp.example.com")}
	}
	ports := map[string]int{"": 587, "starttls": 587, "implicit": 465, "none": 25}
	port, ok := ports[s.TLS.Mode]
	if !ok {
		return &KeyError{"tls.mode", fmt.Errorf("%q is unknown; expected starttls, implicit or none", s.TLS.Mode)}
	}
	if m.mode = s.TLS.Mode; m.mode == "" {
		m.mode = "starttls"
	}
	if s.Port != 0 {
		port = s.Port
	}
	if port < 1 || port > 65535 {
		return &KeyError{"port", errors.New("expected a number from 1 to 65535")}
	}
	m.addr = net.JoinHostPort(s.Host, strconv.Itoa(port))
	m.tls = tlsSettings{CAFile: s.TLS.CAFile, ServerName: s.TLS.ServerName}
	if m.mode == "none" && m.tls != (tlsSettings{}) {
		return &KeyError{"tls.mode", errors.New("none uses no certificates; expected starttls or implicit, or no other key of tls")}
	}
	if _, err := m.tls.load(); err != nil {
		return err
	}
	m.helo = s.Helo
	if m.helo == "" && strings.Contains(h.Hostname, ".") && !strings.HasPrefix(h.Hostname, "localhost") && isHelo(h.Hostname) {
		m.helo = h.Hostname
	}
	if m.helo != "" && !isHelo(m.helo) {
		return &KeyError{"helo", fmt.Errorf("%q is no name of a host; expected one such as vm-1.example.com", m.helo)}
	}
	return nil
}

// isHelo says whether a server takes s for the name of a host, or for an address literal.
func isHelo(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7F }) && len(s) <= 255
}

// openAddresses takes who writes and to whom.
func (m *email) openAddresses(s emailSettings, _ Host) error {
	if s.From == "" {
		return &KeyError{"from", errors.New("missing; expected an address such as azure@example.com")}
	}
	from, err := address(s.From)
	if err != nil {
		return &KeyError{"from", err}
	}
	m.from = from
	if len(s.To) == 0 {
		return &KeyError{"to", errors.New("missing; expected a list of addresses, such as [ops@example.com]")}
	}
	for i, text := range s.To {
		key := "to." + strconv.Itoa(i)
		to, err := address(text)
		if err != nil {
			return &KeyError{key, err}
		}
		if slices.ContainsFunc(m.to, func(other mail.Address) bool { return strings.EqualFold(other.Address, to.Address) }) {
			return &KeyError{key, fmt.Errorf("%s stands twice", to.Address)}
		}
		m.to = append(m.to, to)
	}
	return nil
}

// address reads an address as the header of a mail has it. Only such are taken as every server knows.
func address(text string) (mail.Address, error) {
	a, err := mail.ParseAddress(text)
	if err != nil {
		return mail.Address{}, fmt.Errorf("%q is no address; expected one such as ops@example.com", text)
	}
	if strings.ContainsFunc(a.Address, func(r rune) bool { return r <= ' ' || r >= 0x7F || r == '<' || r == '>' || r == '"' }) {
		return mail.Address{}, fmt.Errorf("%q has an address that many servers do not take; expected letters, digits and signs of ASCII", text)
	}
	return *a, nil
}

// openAuth takes how to log in.
func (m *email) openAuth(s emailSettings, _ Host) error {
	m.auth, m.username, m.command = s.Auth, s.Username, s.TokenCommand
	m.password = spelled("password", s.Password, s.PasswordFile, s.PasswordEnv)
	if err := m.password.check(); err != nil {
		return err
	}
	if m.auth == "" {
		m.auth = "auto"
	}
	if len(m.command) > 0 && m.auth == "auto" {
		m.auth = "xoauth2"
	}
	switch {
	case !oneOf(m.auth, "auto", "plain", "login", "scram-sha-256", "xoauth2"):
		return &KeyError{"auth", fmt.Errorf("%q is unknown; expected auto, plain, login, scram-sha-256 or xoauth2", s.Auth)}
	case len(m.command) > 0 && m.password.given():
		return &KeyError{"token_command", errors.New("password is given too; expected only one of them")}
	case len(m.command) > 0 && m.auth != "xoauth2":
		return &KeyError{"token_command", fmt.Errorf("prints a token, and %s needs a password; expected auth: xoauth2", m.auth)}
	case m.username == "" && (m.password.given() || len(m.command) > 0 || s.Auth != ""):
		return &KeyError{"username", errors.New("missing; expected who logs in")}
	case m.username == "":
		return nil
	case strings.ContainsFunc(m.username, func(r rune) bool { return r < ' ' || r == 0x7F }):
		return &KeyError{"username", errors.New("holds a control character")}
	case !m.password.given() && len(m.command) == 0:
		return &KeyError{"password", errors.New("missing; expected password, password_file or password_env, or with xoauth2 token_command")}
	case m.mode == "none":
		return &KeyError{"tls.mode", errors.New("none would send the password in clear; expected starttls or implicit, or no username")}
	case len(m.command) > 0:
		return nil
	}
	_, err := m.password.read(m.getenv)
	return err
}

// openTexts parses the templates, and tries those of the settings on samples.
func (m *email) openTexts(s emailSettings, _ Host) error {
	for _, k := range []templateKey{
		{"subject", s.Subject, s.SubjectFile, templates.EmailSubject, templates.Parse, m.trySubject, &m.subject},
		{"text", s.Text, s.TextFile, templates.EmailText, templates.Parse, m.tryText, &m.text},
		{"html", s.HTML, s.HTMLFile, templates.EmailHTML, templates.ParseHTML, m.tryHTML, &m.html},
	} {
		if err := k.open(nil); err != nil {
			return err
		}
	}
	return nil
}

func (m *email) trySubject(f map[string]any) error {
	_, err := m.subjectOf(f)
	return err
}

func (m *email) tryText(f map[string]any) error { return m.text.Execute(io.Discard, f) }

func (m *email) tryHTML(f map[string]any) error { return m.html.Execute(io.Discard, f) }

// mustJSON is v as JSON. It holds only texts, so there is no error.
func mustJSON(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// Deliver sends one mail to those who do not have it yet. It is accepted when everybody has it but those whom the
// server refuses for good, and rejected when it refuses all. The progress is the list of addresses that have the mail.
func (m *email) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	if err := ctx.Err(); err != nil {
		return delivery.Answer{}, err
	}
	message, err := m.compose(batch, m.messageID(batch))
	if err != nil {
		return delivery.Answer{}, fmt.Errorf("%w: %w", delivery.ErrRejected, err)
	}
	var answer delivery.Answer
	var have, to []string
	if batch[0].Progress != nil {
		_ = json.Unmarshal(batch[0].Progress, &have) // what cannot be read is no progress
	}
	for _, a := range m.to {
		if !slices.Contains(have, a.Address) {
			to = append(to, a.Address)
		}
	}
	if len(to) == 0 { // the settings have changed
		answer.Status = "250 all have it"
		return answer, nil
	}
	v := new(veil)
	s, err := m.connect(ctx, v)
	if err != nil {
		return answer, err
	}
	defer s.quit()
	refused, reply, err := s.send(ctx, m.from.Address, to, message)
	if errors.Is(classOfMail(err), delivery.ErrRejected) { // what is said to the whole mail is said to each recipient
		refused, err = slices.Repeat([]error{err}, len(to)), nil
	}
	if err != nil {
		return answer, m.failure(ctx, v, err)
	}
	for i, why := range refused {
		if why == nil {
			have = append(have, to[i])
		}
	}
	if len(have) > 0 {
		answer.Progress = mustJSON(have)
	}
	names, class := refusals(to, refused)
	if names != "" && (class == nil || len(have) == 0) {
		return answer, say(class, v.line(m.addr+": "+names, false, 1000))
	}
	answer.Status = v.line(strings.TrimSpace("250 "+reply), false, 200)
	if names != "" {
		names = v.line(names, false, 1000)
		answer.Status += "; refused: " + names
		m.log.Warn("some recipients are refused for good; the others have the mail",
			"sink", m.name, "id", batch[0].Event.ID(), "refused", names)
	}
	return answer, nil
}

// refusals say who is refused and why, and what that means for the delivery if nobody has the mail: nil for try again
// while one of them may still get it, else delivery.ErrBlocked if somebody can put one right, else
// delivery.ErrRejected. names is empty when nobody is refused.
func refusals(to []string, refused []error) (names string, class error) {
	var all []string
	var later, blocked bool
	for i, why := range refused {
		if why == nil {
			continue
		}
		all = append(all, to[i]+": "+why.Error())
		switch classOfMail(why) {
		case nil:
			later = true
		case delivery.ErrBlocked:
			blocked = true
		}
	}
	names = strings.Join(all, "; ")
	switch {
	case later, names == "":
		return names, nil
	case blocked:
		return names, delivery.ErrBlocked
	}
	return names, delivery.ErrRejected
}

// failure is an error of a conversation, fit to be shown.
func (m *email) failure(ctx context.Context, v *veil, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("no answer from %s%s: %w", m.addr, m.hint(err), context.Cause(ctx))
	}
	return say(classOfMail(err), v.line(m.addr+": "+bare(err)+m.hint(err), false, 500))
}

// bare is the text of an error without the class that it wraps.
func bare(err error) string { return strings.TrimPrefix(err.Error(), delivery.ErrBlocked.Error()+": ") }

// hint explains what an administrator of Azure meets first.
func (m *email) hint(err error) string {
	var timeout net.Error
	if _, port, _ := net.SplitHostPort(m.addr); port != "25" ||
		!errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) && !(errors.As(err, &timeout) && timeout.Timeout()) {
		return ""
	}
	return " (Azure lets most subscriptions send no mail on port 25; use a relay on port 587 or 465)"
}

// connect begins a conversation, and logs in.
func (m *email) connect(ctx context.Context, v *veil) (*emailSession, error) {
	secret, err := m.secret(ctx, v)
	if err != nil {
		return nil, err
	}
	if m.mode == "none" {
		s, err := startEmail(ctx, m.dial, m.addr, m.helo, nil, false)
		if err != nil {
			return nil, m.failure(ctx, v, aboutUs(err))
		}
		return s, nil
	}
	config, err := m.tls.load()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	s, err := startEmail(ctx, m.dial, m.addr, m.helo, config, m.mode == "implicit")
	if err == nil && m.username != "" {
		if err = s.login(ctx, m.auth, m.username, secret); err != nil {
			s.close()
		}
	}
	if err != nil {
		return nil, m.failure(ctx, v, aboutUs(err))
	}
	return s, nil
}

// secret is the password or token as it is now, which the veil covers from then on.
func (m *email) secret(ctx context.Context, v *veil) (secret string, err error) {
	switch {
	case m.username == "":
		return "", nil
	case len(m.command) > 0:
		if secret, err = tokenOf(ctx, m.command); err != nil {
			return "", err
		}
	default:
		if secret, err = m.password.read(m.getenv); err != nil {
			return "", fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
		}
	}
	v.hide(secret, "\x00"+m.username+"\x00"+secret, "user="+m.username+"\x01auth=Bearer "+secret+"\x01\x01")
	return secret, nil
}

// tokenOf runs a command that prints a token. What else it prints is not shown, because it may hold another.
func tokenOf(ctx context.Context, command []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, tokenPatience)
	defer cancel()
	c := exec.Command(command[0], command[1:]...)
	c.SysProcAttr, c.WaitDelay = processAttributes(account{}), outputWait
	var out bytes.Buffer
	c.Stdout = &bounded{&out, 64 << 10}
	err := runUntil(ctx, c)
	token, _, _ := strings.Cut(out.String(), "\n")
	token = strings.TrimSpace(token)
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return "", fmt.Errorf("%w: token_command: %w", delivery.ErrBlocked, err)
	case ctx.Err() != nil:
		return "", fmt.Errorf("token_command: %w", ctx.Err())
	case err != nil:
		return "", fmt.Errorf("token_command: %w", err)
	case token == "":
		return "", errors.New("token_command: it printed no token")
	}
	return token, nil
}

// runUntil runs a command to its end, which the end of ctx brings about for all of its process group.
func runUntil(ctx context.Context, c *exec.Cmd) error {
	runtime.LockOSThread() // with which the command would die
	defer runtime.UnlockOSThread()
	if err := c.Start(); err != nil {
		return err
	}
	f := newFamily(c.Process)
	defer f.close()
	defer context.AfterFunc(ctx, f.kill)()
	return c.Wait()
}

// bounded takes only so many bytes, and no others, without an error.
type bounded struct {
	b    *bytes.Buffer
	left int
}

func (w *bounded) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.b.Write(p[:n])
	w.left -= n
	return len(p), nil
}

// Connect talks to the server up to the point where a mail would begin.
func (m *email) Connect(ctx context.Context) (string, error) {
	v := new(veil)
	s, err := m.connect(ctx, v)
	if err != nil {
		return "", err
	}
	defer s.quit()
	answer := "reached " + m.addr
	if version := s.tlsVersion(); version != "" {
		answer += " with " + version
	}
	if m.username != "" {
		answer += ", logged in as " + m.username + " by " + s.mechanism
	}
	return v.line(answer, false, 300), nil
}

// Render shows the mail as it would leave.
func (m *email) Render(d delivery.Delivery) (string, error) {
	batch := []delivery.Delivery{d}
	message, err := m.compose(batch, m.messageID(batch))
	return strings.ReplaceAll(string(message), "\r\n", "\n"), err
}

// messageID is the same for the same message at every attempt: of the CloudEvent, or of all of a group, and the sink.
func (m *email) messageID(batch []delivery.Delivery) string {
	id := token(batch[0].Event.ID())
	if len(batch) > 1 {
		h := sha256.New()
		for _, d := range batch {
			h.Write([]byte(d.Event.ID() + "\n"))
		}
		id = "group-" + hex.EncodeToString(h.Sum(nil)[:12])
	}
	return id + "." + m.scope()
}

// threadID is what all mails about an Azure event refer to, whichever came first: no mail has it.
func (m *email) threadID(eventID string) string { return token(eventID) + "." + m.scope() }

// scope tells the mails of one sink from those of others.
func (m *email) scope() string {
	sum := sha256.Sum256([]byte(m.name + "\x00" + m.from.Address))
	return hex.EncodeToString(sum[:4]) + "@" + m.domain()
}

func (m *email) domain() string {
	_, domain, _ := strings.Cut(m.from.Address, "@")
	return domain
}
