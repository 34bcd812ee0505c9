package sinks

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// A mailbox is a real mail server that keeps what it takes, and refuses what it is told to.
type mailbox struct {
	mechanisms []string
	atDot      error
	slow       time.Duration // from the end of a mail to the answer
	rounds     int           // of SCRAM; 4096 when 0

	mu       sync.Mutex
	password string           // that lets one in; mailPassword when empty
	refuse   map[string]error // by recipient
	mails    []received
	users    []string // who logged in, by which mechanism
}

// received is a mail as it came.
type received struct {
	from string
	to   []string
	raw  []byte
}

const mailUser, mailPassword = "azure", "correct horse/battery+staple"

func (b *mailbox) NewSession(*smtp.Conn) (smtp.Session, error) { return &mailSession{box: b}, nil }

type mailSession struct {
	box  *mailbox
	mail received
}

func (s *mailSession) Reset()        { s.mail = received{} }
func (s *mailSession) Logout() error { return nil }

func (s *mailSession) Mail(from string, _ *smtp.MailOptions) error {
	s.mail.from = from
	return nil
}

func (s *mailSession) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	if err := s.box.refuse[to]; err != nil {
		return err
	}
	s.mail.to = append(s.mail.to, to)
	return nil
}

func (s *mailSession) Data(r io.Reader) (err error) {
	if s.mail.raw, err = io.ReadAll(r); err != nil {
		return err
	}
	if s.box.atDot != nil {
		return s.box.atDot
	}
	s.box.mu.Lock()
	s.box.mails = append(s.box.mails, s.mail)
	s.box.mu.Unlock()
	time.Sleep(s.box.slow)
	return nil
}

func (s *mailSession) AuthMechanisms() []string { return s.box.mechanisms }

func (s *mailSession) Auth(mechanism string) (sasl.Server, error) {
	ok := func(user, secret string) error {
		s.box.mu.Lock()
		defer s.box.mu.Unlock()
		if user != mailUser || secret != cmp.Or(s.box.password, mailPassword) {
			return smtp.ErrAuthFailed
		}
		s.box.users = append(s.box.users, user+" by "+mechanism)
		return nil
	}
	switch mechanism {
	case "PLAIN":
		return sasl.NewPlainServer(func(_, user, password string) error { return ok(user, password) }), nil
	case "LOGIN":
		return &dialogue{steps: []func(in []byte) ([]byte, error){
			func([]byte) ([]byte, error) { return []byte("Username:"), nil },
			func([]byte) ([]byte, error) { return []byte("Password:"), nil },
			nil,
		}, end: func(said [][]byte) error { return ok(string(said[1]), string(said[2])) }}, nil
	case "XOAUTH2":
		return &dialogue{steps: []func(in []byte) ([]byte, error){nil}, end: func(said [][]byte) error {
			user, rest, _ := strings.Cut(strings.TrimPrefix(string(said[0]), "user="), "\x01auth=Bearer ")
			return ok(user, strings.TrimSuffix(rest, "\x01\x01"))
		}}, nil
	case "SCRAM-SHA-256":
		return &scram{ok: ok, rounds: cmp.Or(s.box.rounds, 4096)}, nil
	}
	return nil, smtp.ErrAuthUnknownMechanism
}

// A dialogue is a mechanism that asks and listens in turn; the last step, which is nil, ends it.
type dialogue struct {
	steps []func(in []byte) ([]byte, error)
	said  [][]byte
	end   func(said [][]byte) error
}

func (d *dialogue) Next(in []byte) ([]byte, bool, error) {
	d.said = append(d.said, in)
	step := d.steps[len(d.said)-1]
	if step == nil {
		return nil, true, d.end(d.said)
	}
	out, err := step(in)
	return out, false, err
}

// scram is the server's side of RFC 7677.
type scram struct {
	ok                func(user, secret string) error
	rounds            int
	user, first, mine string
	done              bool
}

func (s *scram) Next(in []byte) ([]byte, bool, error) {
	const salt = "salt of the test"
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	switch {
	case s.done:
		return nil, true, nil
	case s.first == "" && len(in) == 0:
		return []byte{}, false, nil
	case s.first == "":
		s.first = strings.TrimPrefix(string(in), "n,,")
		user, nonce, _ := strings.Cut(strings.TrimPrefix(s.first, "n="), ",r=")
		s.user = user
		s.mine = fmt.Sprintf("r=%sserver,s=%s,i=%d", nonce, base64.StdEncoding.EncodeToString([]byte(salt)), s.rounds)
		return []byte(s.mine), false, nil
	}
	without, proof, _ := strings.Cut(string(in), ",p=")
	salted, err := pbkdf2.Key(sha256.New, mailPassword, []byte(salt), s.rounds, sha256.Size)
	if err != nil {
		return nil, true, err
	}
	all := s.first + "," + s.mine + "," + without
	key := mac(salted, "Client Key")
	stored := sha256.Sum256(key)
	signature := mac(stored[:], all)
	for i := range key {
		key[i] ^= signature[i]
	}
	if base64.StdEncoding.EncodeToString(key) != proof {
		return nil, true, smtp.ErrAuthFailed
	}
	s.done = true
	if err := s.ok(s.user, mailPassword); err != nil {
		return nil, true, err
	}
	return []byte("v=" + base64.StdEncoding.EncodeToString(mac(mac(salted, "Server Key"), all))), false, nil
}

// serveMail starts the server; mode is as in the settings. It gives the settings of its address and TLS.
func serveMail(t *testing.T, b *mailbox, mode string, ca authority, cert tls.Certificate) string {
	t.Helper()
	srv := smtp.NewServer(b)
	srv.Domain, srv.ErrorLog = "mail.test", log.New(io.Discard, "", 0)
	config := &tls.Config{Certificates: []tls.Certificate{cert}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	settings := "host: 127.0.0.1\nport: " + port + "\nfrom: Azure <azure@example.com>\n"
	switch mode {
	case "starttls":
		srv.TLSConfig = config
		settings += "tls: {ca_file: " + ca.file + "}\n"
	case "implicit":
		l = tls.NewListener(l, config)
		settings += "tls: {mode: implicit, ca_file: " + ca.file + "}\n"
	case "none":
		settings += "tls: {mode: none}\n"
	}
	ended := make(chan struct{})
	go func() { defer close(ended); srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); l.Close(); <-ended }) // Serve may not have come to know of l
	return settings
}

// plainMail returns a server without TLS, for what has nothing to do with it.
func plainMail(t *testing.T, b *mailbox) string {
	return serveMail(t, b, "none", authority{}, tls.Certificate{})
}

func (b *mailbox) all() []received {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.mails)
}

// allow takes mail for recipients from now on.
func (b *mailbox) allow(recipients map[string]error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for address := range recipients {
		delete(b.refuse, address)
	}
}

// letter is a mail as a reader takes it apart.
type letter struct {
	mail.Header
	subject, text, html string
}

func readMail(t *testing.T, raw []byte) letter {
	t.Helper()
	m, err := mail.ReadMessage(bytes.NewReader(raw))
	if err != nil {
		t.Fatalf("%v:\n%s", err, raw)
	}
	l := letter{Header: m.Header}
	if l.subject, err = new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject")); err != nil {
		t.Errorf("Subject: %v", err)
	}
	kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/alternative" {
		t.Fatalf("Content-Type is %q, %v; want multipart/alternative", kind, err)
	}
	var kinds []string
	for parts := multipart.NewReader(m.Body, params["boundary"]); ; {
		p, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if encoding := p.Header.Get("Content-Transfer-Encoding"); encoding != "quoted-printable" {
			t.Errorf("a part is encoded as %q", encoding)
		}
		body, err := io.ReadAll(quotedprintable.NewReader(p))
		if err != nil {
			t.Fatal(err)
		}
		kind, params, _ := mime.ParseMediaType(p.Header.Get("Content-Type"))
		if !strings.EqualFold(params["charset"], "utf-8") {
			t.Errorf("a part has the charset %q", params["charset"])
		}
		kinds = append(kinds, kind)
		if text := strings.ReplaceAll(string(body), "\r\n", "\n"); kind == "text/html" {
			l.html = text
		} else {
			l.text = text
		}
	}
	if !slices.Equal(kinds, []string{"text/plain", "text/html"}) {
		t.Errorf("the parts are %v, want the text first and HTML last", kinds)
	}
	return l
}
