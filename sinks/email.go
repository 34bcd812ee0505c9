package sinks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	gomail "github.com/wneessen/go-mail"

	"forewarn/bridge/delivery"
	"forewarn/templates"
)

// emailSettings are the keys of email. Secrets have four keys; see Value.
type emailSettings struct {
	Host           string   `yaml:"host" required:"" doc:"mail server"`
	Port           int      `yaml:"port" min:"1" max:"65535" doc:"port (default: 587; with tls.mode implicit 465, with none 25)"`
	From           string   `yaml:"from" required:"" doc:"sender: an address, or a name and an address"`
	To             []string `yaml:"to" required:"" doc:"recipients"`
	TLS            emailTLS `yaml:"tls" doc:"certificates"`
	Auth           string   `yaml:"auth" default:"auto" oneof:"auto scram-sha-256 plain login xoauth2" doc:"how to log in"`
	Username       string   `yaml:"username" doc:"user name"`
	Password       Secret   `yaml:"password" doc:"password; with xoauth2 the token"`
	PasswordFile   Path     `yaml:"password_file"`
	PasswordEnv    string   `yaml:"password_env"`
	PasswordVault  string   `yaml:"password_vault"`
	TokenCommand   Program  `yaml:"token_command" doc:"program and arguments that print a token, for xoauth2"`
	Helo           string   `yaml:"helo" doc:"name that this host gives itself (default: its full name, else its address)"`
	Subject        string   `yaml:"subject" doc:"subject line"`
	SubjectFile    Path     `yaml:"subject_file"`
	Text           string   `yaml:"text" doc:"plain text part"`
	TextFile       Path     `yaml:"text_file"`
	HTML           string   `yaml:"html" doc:"HTML part"`
	HTMLFile       Path     `yaml:"html_file"`
	RunbookURL     string   `yaml:"runbook_url" doc:"link to a runbook"`
	RunbookURLFile Path     `yaml:"runbook_url_file"`
}

type emailTLS struct {
	Mode       string `yaml:"mode" default:"starttls" oneof:"starttls implicit none" doc:"how the connection is encrypted: starttls (required, never skipped), implicit (TLS from the start) or none"`
	CAFile     Path   `yaml:"ca_file" doc:"CA bundle (default: the system's)"`
	ServerName string `yaml:"server_name" doc:"name that the server's certificate must have (default: host)"`
}

// mailTimeout is the time that sending a mail may take. A server may need minutes to accept one (RFC 5321, section
// 4.5.3.2.6), and a client that does not wait sends it twice.
const mailTimeout = 2 * time.Minute

// emailTerms: people want the state as it is now. The command that prints a token has a timeout of its own.
var emailTerms = delivery.Terms{
	Timeout: mailTimeout + tokenTimeout, MaxAge: week, Late: delivery.LateLatest, Batch: 1, DigestAbove: peopleGroup,
}

const (
	maxHeadline = 200       // characters of a subject; a phone shows fewer
	maxMailPart = 256 << 10 // bytes of the text or HTML part
	maxRefusals = 1000      // bytes of what is shown about recipients that are refused
)

// An email sends each change as a mail to all recipients, in one thread per Azure event. A mail has the same Message-ID
// on each attempt, so that mail programs can drop a copy.
type email struct {
	Host
	server  mailServer
	from    mail.Address
	to      []mail.Address
	subject *templates.Template
	text    *templates.Template
	html    *templates.Template
	runbook runbook
	now     func() time.Time
}

func openEmail(s emailSettings, h Host) (Opened, error) {
	m := &email{Host: h, server: mailServer{Host: h}, now: time.Now}
	var wrong KeyErrors
	wrong.add(m.openServer(s, h), m.openAddresses(s), m.openLogin(s), m.openTexts(s))
	if err := wrong.err(); err != nil {
		return Opened{}, err
	}
	secrets := sources{m.server.password}
	opened := Opened{Sink: m, Secrets: append(m.server.tls.files(), secrets.files()...), Keep: secrets.keep(h)}
	opened.note(m.server.mode == "none", "tls.mode is none: mail can be read and changed on its way")
	return opened, nil
}

func (m *email) openServer(s emailSettings, h Host) error {
	to := &m.server
	var wrong KeyErrors
	wrong.add(checkMailHost(s.Host))
	to.mode = cmp.Or(s.TLS.Mode, "starttls")
	usual := map[string]int{"starttls": 587, "implicit": 465, "none": 25}[to.mode]
	to.addr = net.JoinHostPort(s.Host, strconv.Itoa(cmp.Or(s.Port, usual)))
	to.tls = TLSSettings{CAFile: s.TLS.CAFile, ServerName: s.TLS.ServerName}
	wrong.when(to.mode == "none" && to.tls != TLSSettings{}, "tls.mode",
		"none uses no certificates; expected starttls or implicit, or no other key of tls")
	_, err := to.tls.load(h)
	wrong.add(err)
	to.helo = s.Helo
	if to.helo == "" && strings.Contains(h.Hostname, ".") && !strings.HasPrefix(h.Hostname, "localhost") &&
		isHelo(h.Hostname) {
		to.helo = h.Hostname
	}
	wrong.when(!isHelo(to.helo), "helo", "%q is not a host name; expected one such as vm-1.example.com", to.helo)
	return wrong.err()
}

// checkMailHost refuses what is not the name or the address of a mail server.
func checkMailHost(host string) error {
	want := says("expected the name of a mail server, such as smtp.example.com")
	_, port, err := net.SplitHostPort(host)
	switch {
	case host != "" && (!strings.ContainsAny(host, " /:@") || net.ParseIP(host) != nil):
		return nil
	case strings.Contains(host, "://"):
		want = says("is a URL; expected only the name of the mail server; tls.mode and port say how it is reached")
	case err == nil && port != "" && strings.Trim(port, "0123456789") == "":
		want = says("holds a port; expected the name of the mail server alone, and port: %s beside it", port)
	}
	return &KeyError{"host", want}
}

// isHelo reports whether s can be sent as the name of a host or an address literal. "" is allowed.
func isHelo(s string) bool { return isVisible(s) && len(s) <= 255 }

func (m *email) openAddresses(s emailSettings) error {
	var wrong KeyErrors
	wrong.when(s.From == "", "from", "missing; expected an address such as azure@example.com")
	if s.From != "" {
		var err error
		m.from, err = address(s.From)
		wrong.when(err != nil, "from", "%w", err)
	}
	wrong.when(len(s.To) == 0, "to", "missing; expected a list of addresses, such as [ops@example.com]")
	for i, text := range s.To {
		key := "to." + strconv.Itoa(i)
		to, err := address(text)
		wrong.when(err != nil, key, "%w", err)
		same := func(other mail.Address) bool { return strings.EqualFold(other.Address, to.Address) }
		wrong.when(err == nil && slices.ContainsFunc(m.to, same), key, "%s stands twice", to.Address)
		m.to = append(m.to, to)
	}
	return wrong.err()
}

// address parses an address as in a mail's header. It refuses addresses that many servers do not accept.
func address(text string) (mail.Address, error) {
	a, err := mail.ParseAddress(text)
	if err != nil {
		return mail.Address{}, fmt.Errorf("%q is not an address; expected one such as ops@example.com", text)
	}
	if !isVisible(a.Address) || strings.ContainsAny(a.Address, `<>"`) {
		return mail.Address{}, fmt.Errorf("%q has an address that many servers do not take; expected ASCII only", text)
	}
	return *a, nil
}

func (m *email) openLogin(s emailSettings) error {
	to := &m.server
	to.auth, to.username, to.command = cmp.Or(s.Auth, "auto"), s.Username, s.TokenCommand
	to.password = keyedSource("password", s.Password, s.PasswordFile, s.PasswordEnv, s.PasswordVault)
	if len(to.command) > 0 && to.auth == "auto" {
		to.auth = "xoauth2"
	}
	var wrong KeyErrors
	err := to.password.check()
	wrong.add(err)
	password, command := to.password.given(), len(to.command) > 0
	wrong.add(s.TokenCommand.check("token_command"))
	wrong.when(command && password, "token_command", "password is given too; expected only one of them")
	wrong.when(command && to.auth != "xoauth2", "token_command",
		"prints a token, and %s needs a password; expected auth: xoauth2", to.auth)
	if to.username == "" {
		wrong.when(password || command || s.Auth != "", "username", "missing; expected who logs in")
		return wrong.err()
	}
	wrong.when(strings.ContainsFunc(to.username, func(r rune) bool { return r < ' ' || r == 0x7F }), "username",
		"holds a control character")
	wrong.when(!password && !command, "password",
		"missing; expected password, password_file, password_env or password_vault, or with xoauth2 token_command")
	wrong.when(to.mode == "none", "tls.mode",
		"none would send the password in clear; expected starttls or implicit, or no username")
	redact := to.redactor()
	if password && err == nil {
		secret, err := to.password.read(to.Host)
		wrong.add(exceptUnread(err))
		redact.hideLogin(to.username, secret)
	}
	return wrong.err()
}

// openTexts parses the templates, and tries those of the settings on samples.
func (m *email) openTexts(s emailSettings) error {
	trySubject := func(f map[string]any) error { _, err := m.subjectOf(f); return err }
	return openTemplates(nil,
		templateKey{"subject", s.Subject, s.SubjectFile, templates.EmailSubject, templates.Parse, trySubject, &m.subject},
		templateKey{"text", s.Text, s.TextFile, templates.EmailText, templates.Parse, nil, &m.text},
		templateKey{"html", s.HTML, s.HTMLFile, templates.EmailHTML, templates.ParseHTML, nil, &m.html},
		m.runbook.key(s.RunbookURL, s.RunbookURLFile),
	)
}

// Deliver sends one mail to the recipients who do not have it yet. It is accepted once every recipient has it, except
// those whom the server refuses for good, and rejected if the server refuses all of them. The progress is the list of
// addresses that have it.
//
// A short pause is one mail, unless something changes. The receipt says what was told.
func (m *email) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	f := m.fields(batch, m.now())
	if isPromisedSilence(batch[0], f) {
		return delivery.Answer{Status: "no mail: a short pause is one mail"}, nil
	}
	message, err := m.compose(batch)
	if err != nil {
		return delivery.Answer{}, fmt.Errorf("%w: %w", delivery.ErrRejected, err)
	}
	var answer, accepted delivery.Answer
	if pause := notePause(batch, f); pause != nil {
		accepted.Receipt, _ = json.Marshal(pause) // it always can be
	}
	var have, to []string
	if batch[0].Progress != nil {
		_ = json.Unmarshal(batch[0].Progress, &have) // if it is unreadable, there is none
	}
	for _, a := range m.to {
		if !slices.Contains(have, a.Address) {
			to = append(to, a.Address)
		}
	}
	if len(to) == 0 { // the settings have changed
		accepted.Status = "250 all have it"
		return accepted, nil
	}
	redact := m.server.redactor()
	for _, a := range slices.Concat(m.to, []mail.Address{m.from}) {
		_, domain, _ := strings.Cut(a.Address, "@")
		redact.showHosts(domain)
	}
	s, err := m.server.connect(ctx, redact)
	if err != nil {
		return answer, err
	}
	defer s.quit()
	refused, reply, err := s.send(ctx, m.from.Address, to, message)
	if errors.Is(classOfMail(err), delivery.ErrRejected) { // what is said to the whole mail is said to each recipient
		refused, err = slices.Repeat([]error{err}, len(to)), nil
	}
	if err != nil {
		return answer, m.server.failure(ctx, redact, err)
	}
	now, names, class := outcome(to, refused, redact)
	have = append(have, now...)
	if len(have) > 0 {
		answer.Progress, _ = json.Marshal(have) // texts always can be
	}
	if names != "" && (class == nil || len(have) == 0) {
		return answer, withClass(class, m.server.addr+": "+names)
	}
	accepted.Progress = answer.Progress
	accepted.Status = strings.TrimSpace("250 " + redact.line(reply, maxShown))
	if names != "" {
		accepted.Status += "; refused: " + names
		m.Log.Warn("recipients refused for good; the others got the mail",
			"sink", m.Name, "id", batch[0].Event.ID(), "refused", names)
	}
	return accepted, nil
}

// outcome returns the recipients who have the mail, and names the refused ones with the reasons. class is the mildest
// class of the refusals: nil if a retry may help one of them, else delivery.ErrBlocked if somebody can fix one, else
// delivery.ErrRejected.
func outcome(to []string, refused []error, redact *redactor) (have []string, names string, class error) {
	var all []string
	var classes []error
	for i, why := range refused {
		if why == nil {
			have = append(have, to[i])
			continue
		}
		all, classes = append(all, to[i]+": "+shownReply(redact, why)), append(classes, classOfMail(why))
	}
	for _, class := range []error{nil, delivery.ErrBlocked, delivery.ErrRejected} {
		if slices.Contains(classes, class) {
			return have, cut(strings.Join(all, "; "), maxRefusals), class
		}
	}
	return have, "", nil
}

// Connect connects and logs in, and sends no mail.
func (m *email) Connect(ctx context.Context) (string, error) { return m.server.check(ctx) }

// Render returns the mail that Deliver would send.
func (m *email) Render(d delivery.Delivery) (string, error) {
	message, err := m.compose([]delivery.Delivery{d})
	return strings.ReplaceAll(string(message), "\r\n", "\n"), err
}

// compose returns the mail. It is the same on each attempt, except for what depends on the current time.
func (m *email) compose(batch []delivery.Delivery) ([]byte, error) {
	f := m.fields(batch, m.now())
	promiseSilence(batch, f)
	m.runbook.put(f, m.Log)
	parts, err := m.parts(f)
	if err != nil {
		return nil, err
	}
	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent(), gomail.WithEncoding(gomail.EncodingQP),
		gomail.WithCharset(gomail.CharsetUTF8))
	id := m.messageID(batch)
	sum := sha256.Sum256([]byte(id + parts.text + parts.html))
	msg.SetBoundary("forewarn-" + hex.EncodeToString(sum[:16])) // which no part can hold, as it is made of them
	msg.FromMailAddress(&m.from)
	for _, to := range m.to {
		msg.AddToMailAddress(&to)
	}
	ce := batch[0].Event
	msg.Subject(parts.subject)
	msg.SetDateWithValue(m.now())
	msg.SetMessageIDWithValue(id)
	if isAzure(batch) && len(batch) == 1 {
		// All mails about an Azure event refer to one id, so that their order does not matter. No mail has it.
		thread := "<" + token(ce.Subject()) + "." + m.scope("") + ">"
		msg.SetGenHeader("In-Reply-To", thread)
		msg.SetGenHeader("References", thread)
		msg.SetGenHeader("X-Forewarn-Event", token(ce.Subject()))
	}
	msg.SetGenHeader("X-Forewarn-Type", templates.Cut(templates.Line(ce.Type()), 100))
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: no out-of-office reply
	msg.SetGenHeader("X-Auto-Response-Suppress", "All")  // the same for Exchange
	msg.SetGenHeader("List-Id", "forewarn <"+strings.ToLower(token(m.Name))+".forewarn."+m.domain()+">")
	if severity(f) >= 17 && f["test"] != true {
		// Not SetImportance: some headers that it adds look like spam to filters.
		msg.SetGenHeader("Importance", "high")
		msg.SetGenHeader("X-Priority", "1")
	}
	msg.SetBodyString(gomail.TypeTextPlain, parts.text)
	msg.AddAlternativeString(gomail.TypeTextHTML, parts.html)
	var b bytes.Buffer
	if _, err := msg.WriteTo(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

type mailText struct{ subject, text, html string }

func (m *email) parts(f map[string]any) (t mailText, err error) {
	t.subject, err = m.subjectOf(f)
	if err == nil {
		t.text, err = execute(m.text, f)
	}
	if err == nil {
		t.html, err = execute(m.html, f)
	}
	t.text, t.html = boundPart(t.text), boundPart(t.html)
	return t, err
}

func (m *email) subjectOf(f map[string]any) (string, error) {
	subject, err := execute(m.subject, f)
	if err != nil {
		return "", err
	}
	subject = templates.Cut(templates.Line(subject), maxHeadline)
	if subject == "" {
		return "", errors.New("the subject is empty")
	}
	return subject, nil
}

// boundPart returns s as valid UTF-8 without NUL bytes, cut to maxMailPart bytes.
func boundPart(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\ufffd")
	if len(s) <= maxMailPart {
		return s
	}
	return strings.ToValidUTF8(s[:maxMailPart], "") + "\n…\n"
}

// messageID returns the Message-ID, which depends only on the sink and on the ids and origins of the batch's CloudEvents, in
// any order: on a later attempt it may be another one. What two VMs say of one event are two messages.
func (m *email) messageID(batch []delivery.Delivery) string {
	origins := ""
	for _, of := range sorted(batch, originOf) {
		origins += "\x00" + of
	}
	return token(batchID(batch)) + "." + m.scope(origins)
}

// originOf says which forewarn made a CloudEvent: cloudevents_source may be the same on all VMs.
func originOf(ce event.Event) string {
	observer, _ := ce.Extensions()["observer"].(string)
	return ce.Source() + "\x00" + observer
}

// scope returns the part of a Message-ID that differs between sinks, and between origins.
func (m *email) scope(origin string) string {
	sum := sha256.Sum256([]byte(m.Name + "\x00" + m.from.Address + origin))
	return hex.EncodeToString(sum[:4]) + "@" + m.domain()
}

func (m *email) domain() string {
	_, domain, _ := strings.Cut(m.from.Address, "@")
	return domain
}

// token returns at most 200 bytes of s, with a dash for everything but letters and digits, for the ids in a mail.
func token(s string) string {
	return strings.Map(func(r rune) rune {
		if inToken(r) && r != '_' {
			return r
		}
		return '-'
	}, s[:min(len(s), 200)])
}
