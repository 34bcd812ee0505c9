package sinks

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"

	"forewarn/bridge/delivery"
	"forewarn/bridge/systemtest"
	"forewarn/templates"
)

func emailAccepts(t *testing.T) (string, func() []string) {
	b := &mailbox{}
	return plainMail(t, b) + "to: [ops@example.com]\n", func() []string {
		ids := []string{}
		for _, m := range b.all() {
			id, _, _ := strings.Cut(strings.TrimPrefix(readMail(t, m.raw).Get("Message-ID"), "<"), ".")
			ids = append(ids, id)
		}
		return ids
	}
}

func emailHangs(t *testing.T) map[string]hung {
	all := map[string]hung{}
	for _, at := range []string{"greeting", "EHLO", "MAIL", "RCPT", "DATA", "."} {
		answers := map[string]string{"greeting": "220 hi"}
		answers[at] = "hang"
		addr, began := smtpScript(t, answers)
		host, port, _ := net.SplitHostPort(addr)
		all["at "+at] = hung{"{host: " + host + ", port: " + port +
			", from: a@example.com, to: [b@example.com], tls: {mode: none}}", began}
	}
	return all
}

func emailFails(t *testing.T) map[string]string {
	all := map[string]string{}
	for class, reply := range map[string]string{again: "451 later", blocked: "530 5.7.0 log in", rejected: "554 no"} {
		addr, _ := smtpScript(t, map[string]string{"greeting": "220 hi", "RCPT": reply})
		host, port, _ := net.SplitHostPort(addr)
		all[class] = "{host: " + host + ", port: " + port + ", from: a@example.com, to: [b@example.com], tls: {mode: none}}"
	}
	return all
}

func emailSecrets(t *testing.T) []secretPlace {
	ca := newAuthority(t)
	cert := ca.issue(t, "127.0.0.1", time.Hour)
	to := "to: [ops@example.com]\nusername: azure\n"
	const secret = "s3cr3t/of+the=mail"
	says := func(code int, with string) error {
		return &smtp.SMTPError{Code: code, EnhancedCode: smtp.EnhancedCodeNotSet, Message: "you said " + with}
	}
	plain := base64.StdEncoding.EncodeToString([]byte("\x00azure\x00" + secret))
	echo := serveMail(t, &mailbox{mechanisms: []string{"PLAIN"}}, "starttls", ca, cert)
	echoes := serveMail(t, &mailbox{mechanisms: []string{"XOAUTH2"}}, "implicit", ca, cert)
	known := base64.StdEncoding.EncodeToString([]byte("\x00azure\x00" + mailPassword))
	repeats := serveMail(t,
		&mailbox{mechanisms: []string{"PLAIN"},
			refuse: map[string]error{"ops@example.com": says(550, known+" and "+mailPassword)}},
		"starttls", ca, cert)
	printed := writeFile(t, "token", secret+"\nand its s3cond line\n")
	gone := "host: 127.0.0.1\nport: 1\nfrom: a@example.com\n"
	return []secretPlace{
		{"password", echo + to + "password: " + secret, []string{secret, plain}, nil},
		{"password_file", echo + to + "password_file: " + writeFile(t, "p", secret+"\n"), []string{secret, plain}, nil},
		{"password_env", echo + to + "password_env: PASSWORD", []string{secret}, map[string]string{"PASSWORD": secret}},
		{"token", echoes + to + "auth: xoauth2\npassword: " + secret, []string{secret}, nil},
		{"token_command", echoes + to + "token_command: [cat, " + printed + "]", []string{secret, "s3cond"}, nil},
		{"token_command that fails", echoes + to + "token_command: [cat, " + printed + ", /no/such/file]",
			[]string{secret, "s3cond"}, nil},
		{"unreachable", gone + to + "password: " + secret, []string{secret}, nil},
		{"said back", repeats + to + "password: '" + mailPassword + "'", []string{mailPassword, known}, nil},
		{"wrong auth", gone + to + "auth: cram-md5\npassword: " + secret, []string{secret}, nil},
		{"wrong mode", "host: h\nfrom: a@example.com\ntls: {mode: none}\n" + to + "password: " + secret, []string{secret},
			nil},
	}
}

// The mails about an Azure event are one thread: each its own Message-ID, the same reference, and what filters and
// absence notes want to know. Subject, text and HTML say what happened.
func TestMailsAboutAnEventAreOneThread(t *testing.T) {
	b := &mailbox{}
	s := mustOpen(t, "email", plainMail(t, b)+"to: [ops@example.com, 'Night Shift <night@example.com>']\n", testHost(t))
	for _, d := range deliveries(t)[:4] {
		if answer, err := s.Deliver(t.Context(), []delivery.Delivery{d}); err != nil || answer.Receipt != nil {
			t.Fatalf("Deliver = %+v, %v; want nothing to remember", answer, err)
		}
	}
	ids := map[string]bool{}
	for i, m := range b.all() {
		l := readMail(t, m.raw)
		urgent := map[bool][2]string{true: {"high", "1"}}[deliveries(t)[i].Event.Extensions()["severitynumber"] == int32(17)]
		if got := [2]string{l.Get("Importance"), l.Get("X-Priority")}; got != urgent {
			t.Errorf("mail %d has Importance and X-Priority %q, want %q", i, got, urgent)
		}
		ids[l.Get("Message-ID")] = true
		if m.from != "azure@example.com" || !slices.Equal(m.to, []string{"ops@example.com", "night@example.com"}) {
			t.Errorf("mail %d goes from %s to %v", i, m.from, m.to)
		}
		want := "<" + deliveries(t)[0].Event.Subject() + "."
		if ref := l.Get("References"); !strings.HasPrefix(ref, want) || ref != l.Get("In-Reply-To") ||
			!strings.HasSuffix(ref, "@example.com>") {
			t.Errorf("mail %d refers to %q and replies to %q, want %s… both times", i, ref, l.Get("In-Reply-To"), want)
		}
		for header, want := range map[string]string{
			"From": `"Azure" <azure@example.com>`, "To": `<ops@example.com>, "Night Shift" <night@example.com>`,
			"Auto-Submitted": "auto-generated", "X-Auto-Response-Suppress": "All", "List-Id": "forewarn <.forewarn.example.com>",
			"User-Agent": "", "X-Mailer": "", "X-MSMail-Priority": "", "Priority": "", // by which filters know spam
			"X-Forewarn-Event": deliveries(t)[0].Event.Subject(), "X-Forewarn-Type": deliveries(t)[i].Event.Type(),
		} {
			if got := l.Get(header); got != want {
				t.Errorf("mail %d has %s: %q, want %q", i, header, got, want)
			}
		}
		if _, err := l.Date(); err != nil {
			t.Errorf("mail %d has no date: %v", i, err)
		}
		if l.subject == "" || l.text == "" || !strings.Contains(l.html, "<html") {
			t.Errorf("mail %d says %q, %q, %q", i, l.subject, l.text, l.html)
		}
	}
	if len(ids) != 4 {
		t.Errorf("%d different Message-IDs, want 4", len(ids))
	}
}

// Two VMs that an event hits say different things of it, also with the same settings. Their mails are two, in one thread,
// because mail servers drop the second of two with the same Message-ID.
func TestTwoVMsMailsAboutAnEventAreTwo(t *testing.T) {
	b := &mailbox{}
	s := mustOpen(t, "email", plainMail(t, b)+"to: [ops@example.com]\n", testHost(t))
	for _, vm := range []string{"vm-0", "vm-1"} {
		d := deliveries(t)[0]
		d.Event = d.Event.Clone()
		d.Event.SetExtension("observer", vm)
		for range 2 {
			if _, err := s.Deliver(t.Context(), []delivery.Delivery{d}); err != nil {
				t.Fatal(err)
			}
		}
	}
	ids, threads := map[string]int{}, map[string]int{}
	for _, m := range b.all() {
		l := readMail(t, m.raw)
		ids[l.Get("Message-ID")]++
		threads[l.Get("References")]++
	}
	if len(ids) != 2 || len(threads) != 1 || slices.Max(slices.Collect(maps.Values(ids))) != 2 {
		t.Errorf("the Message-IDs are %v and the threads %v, want two mails, each twice, of one thread", ids, threads)
	}
}

// A recipient who is busy is tried again alone. One who is refused for good rejects the delivery only if all are, and
// is named in the answer if not; where we have to log in first, all waits for somebody to act.
func TestWhatRefusedRecipientsMean(t *testing.T) {
	login := &smtp.SMTPError{Code: 530, EnhancedCode: smtp.EnhancedCode{5, 7, 0}, Message: "log in first"}
	const a, b, c = "a@example.com", "b@example.com", "c@example.com"
	const all = a + " " + b + " " + c
	for _, tt := range []struct {
		claim  string
		refuse map[string]error
		want   string
		names  []string // in the error, or in the status
		then   string   // who get the mail at the next attempt
	}{
		{"all take it", nil, accepted, nil, ""},
		{"one is busy", map[string]error{b: busy}, again, []string{b, "busy"}, b},
		{"one is unknown", map[string]error{b: unknown}, accepted, []string{b, "no such user"}, ""},
		{"one is shut", map[string]error{b: shut}, accepted, []string{b, "not from outside"}, ""},
		{"one is busy and one unknown", map[string]error{a: unknown, b: busy}, again, []string{a, b}, a + " " + b},
		{"two are unknown", map[string]error{a: unknown, b: shut}, accepted, []string{a, b}, ""},
		{"all are unknown or shut", map[string]error{a: unknown, b: shut, c: shut}, rejected, []string{a, b, c}, all},
		{"all are unknown or busy", map[string]error{a: unknown, b: unknown, c: busy}, again, []string{a, b, c}, all},
		{"we have to log in", map[string]error{a: login, b: login, c: unknown}, blocked, []string{a, b, "log in first"}, all},
	} {
		box := &mailbox{refuse: tt.refuse}
		s := mustOpen(t, "email", plainMail(t, box)+"to: [a@example.com, b@example.com, c@example.com]\n", testHost(t))
		d := deliveries(t)[:1]
		answer, err := s.Deliver(t.Context(), d)
		if classOf(err) != tt.want {
			t.Errorf("%s: %v, want it %s", tt.claim, err, tt.want)
		}
		for _, name := range tt.names {
			if said := fmt.Sprint(answer.Status, err); !strings.Contains(said, name) {
				t.Errorf("%s: %q does not name %s", tt.claim, said, name)
			}
		}
		if tt.want == accepted {
			continue
		}
		box.refuse = nil
		d[0].Progress = answer.Progress
		before := len(box.all())
		if _, err := s.Deliver(t.Context(), d); err != nil {
			t.Errorf("%s, again: %v", tt.claim, err)
		}
		if got := who(box.all()[before:]); got != tt.then {
			t.Errorf("%s: then %s get it, want %s", tt.claim, got, tt.then)
		}
	}
}

// What is refused for good as a whole, when others have the mail already, is refused to those who are left.
func TestMailThatSomeHaveIsNotRejected(t *testing.T) {
	for at, box := range map[string]*mailbox{
		"the dot": {atDot: &smtp.SMTPError{Code: 554, EnhancedCode: smtp.NoEnhancedCode, Message: "no more"}},
		"RCPT":    {refuse: map[string]error{"b@example.com": unknown}},
	} {
		s := mustOpen(t, "email", plainMail(t, box)+"to: [a@example.com, b@example.com]\n", testHost(t))
		d := deliveries(t)[:1]
		d[0].Progress = []byte(`["a@example.com"]`)
		answer, err := s.Deliver(t.Context(), d)
		if err != nil || !strings.Contains(answer.Status, "refused: b@example.com: 55") || len(box.all()) > 0 {
			t.Errorf("at %s: %+v, %v, %d mails; want it accepted, with the name of b", at, answer, err, len(box.all()))
		}
	}
}

// What the server says to the whole mail has a class of its own.
func TestMailThatIsRefusedAtItsEnd(t *testing.T) {
	for code, want := range map[int]string{451: again, 554: rejected, 552: rejected} {
		b := &mailbox{atDot: &smtp.SMTPError{Code: code, EnhancedCode: smtp.NoEnhancedCode, Message: "said the server"}}
		s := mustOpen(t, "email", plainMail(t, b)+"to: [a@example.com]\n", testHost(t))
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != want ||
			!strings.Contains(err.Error(), "said the server") {
			t.Errorf("%d: %v, want it %s with the server's words", code, err, want)
		}
	}
}

// It logs in by every mechanism, over both kinds of TLS, and says how; with a wrong password it is blocked. In clear it
// never does.
func TestMailLogsIn(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	ca := newAuthority(t)
	cert := ca.issue(t, "127.0.0.1", time.Hour)
	all := []string{"LOGIN", "PLAIN", "SCRAM-SHA-256", "XOAUTH2"}
	for _, mode := range []string{"starttls", "implicit"} {
		for _, tt := range []struct {
			offered []string
			auth    string
			by      string // "" for none
		}{
			{all, "", "SCRAM-SHA-256"}, {[]string{"LOGIN", "PLAIN"}, "auto", "PLAIN"}, {[]string{"LOGIN"}, "", "LOGIN"},
			{all, "plain", "PLAIN"}, {all, "login", "LOGIN"}, {all, "scram-sha-256", "SCRAM-SHA-256"},
			{all, "xoauth2", "XOAUTH2"},
			{[]string{"XOAUTH2"}, "", ""}, {[]string{"PLAIN"}, "login", ""}, {nil, "", ""},
		} {
			b := &mailbox{mechanisms: tt.offered}
			settings := serveMail(t, b, mode, ca, cert) + "to: [a@example.com]\nusername: azure\n"
			if tt.auth != "" {
				settings += "auth: " + tt.auth + "\n"
			}
			s := mustOpen(t, "email", settings+"password: '"+mailPassword+"'\n", testHost(t))
			_, err := s.Deliver(t.Context(), deliveries(t)[:1])
			want := accepted
			if tt.by == "" {
				want = blocked
			}
			if classOf(err) != want {
				t.Errorf("%s, %s of %v: %v, want it %s", mode, tt.auth, tt.offered, err, want)
			}
			if tt.by == "" {
				continue
			}
			if by := mailUser + " by " + tt.by; len(b.users) != 1 || b.users[0] != by || len(b.all()) != 1 {
				t.Errorf("%s, %s of %v: logged in %v, %d mails; want %s and one mail", mode, tt.auth, tt.offered, b.users,
					len(b.all()), by)
			}
			answer, err := s.(delivery.Connecter).Connect(t.Context())
			if err != nil || !strings.Contains(answer, "TLS 1.3, logged in as azure by "+tt.by) {
				t.Errorf("Connect = %q, %v", answer, err)
			}
			s = mustOpen(t, "email", settings+"password: wrong\n", testHost(t))
			if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != blocked ||
				strings.Contains(err.Error(), "wrong") {
				t.Errorf("%s, %s, with a wrong password: %v, want it %s", mode, tt.by, err, blocked)
			}
		}
	}
}

// A server cannot make it hash a password for hours, which no timeout would end.
func TestMailServerCannotAskForAnyWork(t *testing.T) {
	ca := newAuthority(t)
	b := &mailbox{mechanisms: []string{"SCRAM-SHA-256"}, rounds: math.MaxInt32}
	s := mustOpen(t, "email", serveMail(t, b, "implicit", ca, ca.issue(t, "127.0.0.1", time.Hour))+
		"to: [a@example.com]\nusername: azure\npassword: '"+mailPassword+"'\n", testHost(t))
	_, err := s.Deliver(t.Context(), deliveries(t)[:1])
	if classOf(err) != blocked || !strings.Contains(err.Error(), "SCRAM-SHA-256: the server asks for 2147483647 rounds") {
		t.Errorf("Deliver = %v, want it %s because of the rounds", err, blocked)
	}
}

// What a server refuses before it was told of a mail says nothing about the mail, which is kept.
func TestRefusalBeforeAMailBlocks(t *testing.T) {
	for _, tt := range []struct{ at, reply, want string }{
		{"greeting", "554 not you", blocked}, {"EHLO", "554 not you", blocked}, {"MAIL", "554 not you", rejected},
		{"MAIL", "550 5.7.1 not you", blocked}, {"MAIL", "550 15.7.1 not you", rejected},
	} {
		answers := map[string]string{"greeting": "220 hi", "HELO": "554 not you", tt.at: tt.reply}
		addr, _ := smtpScript(t, answers)
		host, port, _ := net.SplitHostPort(addr)
		s := mustOpen(t, "email",
			"{host: "+host+", port: "+port+", from: a@example.com, to: [b@example.com], tls: {mode: none}}", testHost(t))
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if classOf(err) != tt.want || !strings.Contains(err.Error(), "not you") {
			t.Errorf("%s at %s: %v, want it %s with the server's words", tt.reply, tt.at, err, tt.want)
		}
	}
}

// A certificate that is out of date, of somebody else or of an unknown authority blocks, however TLS begins.
func TestMailServersCertificateIsVerified(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	for _, mode := range []string{"starttls", "implicit"} {
		for claim, cert := range map[string]tls.Certificate{
			"out of date": ca.issue(t, "127.0.0.1", -time.Hour), "of another host": ca.issue(t, "mail.example.com", time.Hour),
			"of an unknown authority": other.issue(t, "127.0.0.1", time.Hour),
		} {
			b := &mailbox{}
			s := mustOpen(t, "email", serveMail(t, b, mode, ca, cert)+"to: [a@example.com]\n", testHost(t))
			if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != blocked || len(b.all()) > 0 {
				t.Errorf("%s, %s: %v and %d mails, want it %s", mode, claim, err, len(b.all()), blocked)
			}
		}
	}
}

// Whatever an event's text holds, it cannot add a header, an address or a part, and it comes out as text.
func TestHostileTextStaysTextInMail(t *testing.T) {
	for _, text := range []string{
		"a\r\nBcc: thief@example.com\r\n\r\n<script>", "--boundary\n.\nQUIT", "<b>&\"'</b>", "\u202eevil",
		strings.Repeat("long ", 20000),
		"bad \xff\xfe utf-8", "=?utf-8?q?=41?=", "日本語のホスト",
	} {
		b := &mailbox{}
		s := mustOpen(t, "email", plainMail(t, b)+"to: [a@example.com]\n", testHost(t))
		d := deliveries(t)[:1]
		ce := d[0].Event.Clone()
		ce.SetExtension("azeventtype", templates.Cut(templates.Line(strings.ToValidUTF8(text, "?")), 300))
		data := map[string]any{"change": "scheduled",
			"event":     map[string]any{"Resources": []string{text}, "EventType": text, "Description": text},
			"whileAway": false, "observer": map[string]any{"name": text, "resourceId": "/subscriptions/" + text}}
		if err := ce.SetData("application/json", data); err != nil {
			t.Fatal(err)
		}
		d[0].Event = ce
		if _, err := s.Deliver(t.Context(), d); err != nil {
			t.Errorf("%.30q: %v", text, err)
			continue
		}
		m := b.all()[0]
		l := readMail(t, m.raw)
		if !slices.Equal(m.to, []string{"a@example.com"}) || l.Get("Bcc") != "" || strings.Contains(l.html, "<script>") ||
			strings.Contains(l.html, "<b>&\"") {
			t.Errorf("%.30q: to %v, Bcc %q, html %.200q", text, m.to, l.Get("Bcc"), l.html)
		}
		if strings.ContainsAny(l.subject, "\r\n\u202e\ufffd") || len([]rune(l.subject)) > maxHeadline {
			t.Errorf("%.30q: the subject is %q", text, l.subject)
		}
		for line := range bytes.Lines(m.raw) {
			if len(line) > 1000 {
				t.Errorf("%.30q: a line of %d bytes, of which RFC 5321 allows 1000", text, len(line))
			}
		}
	}
}

// Many events of a group are one mail of no thread, the same at every attempt.
func TestAGroupIsOneMail(t *testing.T) {
	b := &mailbox{}
	s := mustOpen(t, "email", plainMail(t, b)+"to: [a@example.com]\n", testHost(t))
	all := deliveries(t)
	batch := []delivery.Delivery{all[0], all[4]}
	for range 2 {
		if _, err := s.Deliver(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Deliver(t.Context(), all[:1]); err != nil {
		t.Fatal(err)
	}
	mails := b.all()
	first, second, single := readMail(t, mails[0].raw), readMail(t, mails[1].raw), readMail(t, mails[2].raw)
	if id := first.Get("Message-ID"); id != second.Get("Message-ID") || id == single.Get("Message-ID") ||
		first.Get("References") != "" {
		t.Errorf("the group is %s, again %s, one of it alone %s; it refers to %q", id, second.Get("Message-ID"),
			single.Get("Message-ID"), first.Get("References"))
	}
}

// A server on port 25 that does not answer is explained, because Azure is the reason as a rule.
func TestPort25IsExplained(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for port, explained := range map[string]bool{"25": true, "587": false} {
		s := mustOpen(t, "email",
			"{host: 127.0.0.1, port: "+port+", from: a@example.com, to: [b@example.com], tls: {mode: none}}",
			testHost(t)).(*email)
		err := s.server.failure(ctx, new(redactor), context.DeadlineExceeded)
		if got := strings.Contains(err.Error(), "use a relay on port 587"); got != explained {
			t.Errorf("port %s: %v", port, err)
		}
	}
}

// What cannot work is refused with the key, and what was expected.
func TestEmailSettingsAreChecked(t *testing.T) {
	good := "host: h\nfrom: a@example.com\nto: [b@example.com]\n"
	for _, tt := range []struct{ settings, key, reason string }{
		{"from: a@example.com", "host", "name of a mail server"},
		{"host: 'smtp.example.com:2525'\nfrom: a@example.com\nto: [b@example.com]", "host", "alone, and port: 2525 beside it"},
		{"host: '[::1]:25'\nfrom: a@example.com\nto: [b@example.com]", "host", "alone, and port: 25 beside it"},
		{"host: smtps://smtp.example.com\nfrom: a@example.com\nto: [b@example.com]", "host", "only the name of the mail server"},
		{"host: h\nto: [b@example.com]", "from", "missing"},
		{"host: h\nfrom: nobody\nto: [b@example.com]", "from", "is not an address"},
		{"host: h\nfrom: a@example.com", "to", "missing"},
		{"host: h\nfrom: a@example.com\nto: [b@example.com, c]", "to.1", "is not an address"},
		{"host: h\nfrom: a@example.com\nto: [b@example.com, B@example.com]", "to.1", "stands twice"},
		{"host: h\nfrom: a@example.com\nto: [\"ü@example.com\"]", "to.0", "ASCII"},
		{good + "password: x", "username", "who logs in"},
		{good + "username: u", "password", "missing"},
		{good + "username: u\npassword: x\npassword_env: P", "password_env", "given too"},
		{good + "username: u\npassword: x\ntls: {mode: none}", "tls.mode", "in clear"},
		{good + "username: u\npassword: x\ntoken_command: [t]", "token_command", "password is given too"},
		{good + "username: u\nauth: plain\ntoken_command: [t]", "token_command", "expected auth: xoauth2"},
		{good + "tls: {mode: none, server_name: x}", "tls.mode", "no certificates"},
		{good + "tls: {ca_file: /no/such}", "tls.ca_file", systemtest.NoSuchPath.Error()},
		{good + "helo: 'a b'", "helo", "not a host name"},
		{good + "subject: '{{'", "subject", "subject:1"},
		{good + "subject: ' '", "subject", "empty"},
		{good + "html: '{{template \"nothing\"}}'", "html", "nothing"},
		{good + "subject: '{{template \"nothing\"}}'\nhtml: fine", "subject", "nothing"}, // not the last one given
		{good + "text: a\ntext_file: b", "text_file", "given too"},
	} {
		wrongKey(t, "email", tt.settings, tt.key, tt.reason)
	}
}

// A host without a full name says its address.
func TestHostsWithoutANameSayTheirAddress(t *testing.T) {
	for addr, want := range map[string]string{"10.0.0.4:40000": "[10.0.0.4]", "[fe80::1%eth0]:40000": "[IPv6:fe80::1]"} {
		if got := addressLiteral(fixedAddr(addr)); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
	for name, want := range map[string]string{"vm-1.example.com": "vm-1.example.com", "vm-1": "",
		"localhost.localdomain": "", "": ""} {
		h := testHost(t)
		h.Hostname = name
		if got := mustOpen(t, "email", "{host: h, from: a@example.com, to: [b@example.com]}",
			h).(*email).server.helo; got != want {
			t.Errorf("the host %q says %q, want %q", name, got, want)
		}
	}
}

type fixedAddr string

func (a fixedAddr) Network() string { return "tcp" }
func (a fixedAddr) String() string  { return string(a) }

// The whole mail is as its golden file shows.
func TestEmailRender(t *testing.T) {
	h := testHost(t)
	h.Name = "ops-mail"
	s := mustOpen(t, "email", "{host: h, from: 'Azure <azure@example.com>', to: [ops@example.com]}", h).(*email)
	s.now = func() time.Time { return time.Date(2022, 4, 11, 22, 13, 0, 0, time.UTC) }
	text, err := s.Render(deliveries(t)[0])
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "email-render.golden", text)
}
