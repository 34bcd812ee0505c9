package sinks

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"strings"
	"testing"
	"time"
	"unicode"
)

// A reply is temporary, or is about the mail, or is about the client: then somebody has to do something first.
func TestClassOfMailReply(t *testing.T) {
	for _, tt := range []struct {
		code int
		msg  string
		want string
	}{
		{421, "4.3.2 going down", again},
		{452, "4.2.2 full", again},
		{454, "4.7.0 temporary authentication failure", again},
		{530, "5.7.0 authentication required", blocked},
		{534, "too weak", blocked},
		{535, "5.7.8 bad credentials", blocked},
		{550, "5.7.1 not from outside", rejected},
		{550, "5.1.1 no such user", rejected},
		{554, "no", rejected},
	} {
		err := fmt.Errorf("at RCPT: %w", &textproto.Error{Code: tt.code, Msg: tt.msg})
		if class := classOfMail(err); class != nil {
			err = class
		}
		if got := classOf(err); got != tt.want {
			t.Errorf("%d %s: %s, want %s", tt.code, tt.msg, got, tt.want)
		}
	}
}

// smtpScript serves one conversation: it answers each line by the longest key that begins it, hangs up at "drop", and
// says nothing more at "hang", which closes the channel. The end of a mail is the key ".".
func smtpScript(t *testing.T, answers map[string]string) (addr string, hung <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		in := bufio.NewScanner(conn)
		for line, data := "greeting", false; ; line = in.Text() {
			answer, key := "250 ok", ""
			for k, a := range answers {
				if strings.HasPrefix(line, k) && len(k) > len(key) {
					answer, key = a, k
				}
			}
			switch {
			case data && line != ".":
			case answer == "drop":
				return
			case answer == "hang":
				close(began)
				in.Scan() // until the client goes
				return
			default:
				data = line == "DATA"
				if data && key == "" {
					answer = "354 go on"
				}
				fmt.Fprintf(conn, "%s\r\n", answer)
			}
			if !in.Scan() {
				return
			}
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	return l.Addr().String(), began
}

func converse(ctx context.Context, addr string, to ...string) ([]error, error) {
	s, err := startEmail(ctx, Host{}.dialer(0), addr, "[127.0.0.1]", nil, false)
	if err != nil {
		return nil, err
	}
	defer s.close()
	refused, _, err := s.send(ctx, "azure@example.com", to, []byte("Subject: x\r\n\r\nx\r\n"))
	return refused, err
}

// Each recipient has a fate of its own.
func TestMailRecipientsAreRefusedOneByOne(t *testing.T) {
	addr, _ := smtpScript(t,
		map[string]string{"greeting": "220 hi", "RCPT TO:<b@": "550 5.1.1 no", "RCPT TO:<c@": "452 full"})
	refused, err := converse(t.Context(), addr, "a@example.com", "b@example.com", "c@example.com")
	if err != nil || len(refused) != 3 {
		t.Fatalf("send = %v, %v", refused, err)
	}
	if refused[0] != nil || classOfMail(refused[1]) == nil || refused[2] == nil || classOfMail(refused[2]) != nil {
		t.Errorf("send = %v, want a taken, b rejected, c to be tried again", refused)
	}
}

// A connection that is lost at the end of a mail leaves open whether it was taken; a reply there does not.
func TestEndOfMail(t *testing.T) {
	for answer, ambiguous := range map[string]bool{"drop": true, "451 later": false, "554 no": false} {
		addr, _ := smtpScript(t, map[string]string{"greeting": "220 hi", ".": answer})
		_, err := converse(t.Context(), addr, "a@example.com")
		if err == nil || errors.Is(err, errAtDot) != ambiguous {
			t.Errorf("%s: send = %v, want ambiguous %t", answer, err, ambiguous)
		}
	}
}

// A server that falls silent, wherever it does, holds a conversation no longer than its context lasts.
func TestSilentMailServerEndsWithContext(t *testing.T) {
	for _, at := range []string{"greeting", "EHLO", "MAIL", "RCPT", "DATA", "."} {
		answers := map[string]string{"greeting": "220 hi"}
		answers[at] = "hang"
		addr, hung := smtpScript(t, answers)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		go func() { <-hung; cancel() }()
		if _, err := converse(ctx, addr, "a@example.com"); !errors.Is(err, context.Canceled) {
			t.Errorf("at %s: %v, want %v", at, err, context.Canceled)
		}
		cancel()
	}
}

// A server that offers no TLS where it is required is not talked to in clear.
func TestMailWithoutSTARTTLSIsBlocked(t *testing.T) {
	addr, _ := smtpScript(t, map[string]string{"greeting": "220 hi", "STARTTLS": "220 go on"})
	s, err := startEmail(t.Context(), Host{}.dialer(0), addr, "[127.0.0.1]", &tls.Config{}, false)
	if err == nil {
		s.close()
	}
	if got := classOf(err); got != blocked {
		t.Errorf("startEmail = %v, want it %s", err, blocked)
	}
}

// A server that falls silent at the end is not waited for once the context is done.
func TestQuitDoesNotOutliveTheContext(t *testing.T) {
	addr, hung := smtpScript(t, map[string]string{"greeting": "220 hi", "QUIT": "hang"})
	ctx, cancel := context.WithCancel(t.Context())
	s, err := startEmail(ctx, Host{}.dialer(0), addr, "[127.0.0.1]", nil, false)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	s.conn.Read(make([]byte, 1)) // returns when the end has reached the connection
	s.quit()
	select {
	case <-hung:
		t.Error("it took leave and waited for the answer")
	default:
	}
}

// A reply without an end is not read to its end.
func TestMailServerIsHeardOnlySoFar(t *testing.T) {
	for name, reply := range map[string]string{"one line": "220 hi\r\n250-",
		"many lines": "220 hi\r\n" + strings.Repeat("250-more\r\n", 100)} {
		said := &endless{text: reply}
		dial := func(context.Context, string, string) (net.Conn, error) { return said, nil }
		s, err := startEmail(t.Context(), dial, "mail.example.com:25", "[127.0.0.1]", nil, false)
		if err == nil {
			s.close()
			t.Fatalf("%s: it was taken for a reply", name)
		}
		if !strings.Contains(err.Error(), "more than 1024 KiB") || said.read > 2<<20 || !said.closed {
			t.Errorf("%s: %v after %d bytes, closed %t; want an end after 1 MiB", name, err, said.read, said.closed)
		}
	}
}

// endless is a server that says a text, repeats what is behind its first line for ever, and does not listen.
type endless struct {
	net.Conn
	text   string
	read   int
	closed bool
}

func (c *endless) Read(p []byte) (int, error) {
	head := strings.IndexByte(c.text, '\n') + 1
	for i := range p {
		at := c.read + i
		if at >= len(c.text) {
			at = head + (at-head)%(len(c.text)-head)
		}
		p[i] = c.text[at]
	}
	c.read += len(p)
	return len(p), nil
}

func (c *endless) Write(p []byte) (int, error) { return len(p), nil }
func (c *endless) Close() error                { c.closed = true; return nil }
func (c *endless) SetDeadline(time.Time) error { return nil }
func (c *endless) LocalAddr() net.Addr         { return fixedAddr("127.0.0.1:25") }

// said is a connection to a server that says all that it ever will at once, and does not listen.
type said struct {
	net.Conn
	*strings.Reader
	closed bool
}

func (c *said) Read(p []byte) (int, error)  { return c.Reader.Read(p) }
func (c *said) Write(p []byte) (int, error) { return len(p), nil }
func (c *said) Close() error                { c.closed = true; return nil }
func (c *said) SetDeadline(time.Time) error { return nil }
func (c *said) LocalAddr() net.Addr         { return fixedAddr("127.0.0.1:25") }

// Whatever a mail server replies, the conversation ends and its connection with it, the mail counts as taken only when
// the server said so, nothing is rejected before there was a mail, and what is said about it is one line without a
// secret.
func FuzzSMTPReplies(f *testing.F) {
	const secret = "s3cr3t-passw0rd"
	plain := base64.StdEncoding.EncodeToString([]byte("\x00azure\x00" + secret))
	const all = "220 hi\r\n250-me\r\n250 AUTH PLAIN LOGIN XOAUTH2 SCRAM-SHA-256\r\n"
	const taken = "250 ok\r\n250 ok\r\n550 5.1.1 no\r\n354 go on\r\n250 queued as 7\r\n221 bye\r\n"
	for _, replies := range []string{
		"", "220", "220 hi\r\n502 what\r\n250 me\r\n" + taken, "554 no service\r\n", "220-\r\n220\x00\r\n",
		all + "235 2.7.0 in\r\n" + taken, all + "535 5.7.8 no: " + plain + "\r\n", all + "334 !\r\n334 \r\n334 \r\n",
		all + "334 \r\n334 VXNlcm5hbWU6\r\n235 in\r\n" + taken, all + "334 cj14LHM9LGk9OTk5OTk5OTk5OQ==\r\n",
		all + "334 eyJzdGF0dXMiOiI0MDEifQ==\r\n535 no " + secret + "\r\n", all + "235 in\r\n550 5.7.60 " + secret + "\r\n",
		all + "235 in\r\n250 ok\r\n452 full\r\n550-5.1.1 no\r\n550 " + plain + "\r\n",
		all + "235 in\r\n250 ok\r\n250 ok\r\n250 ok\r\n354 go on\r\n",
		all + "235 in\r\n250 ok\r\n250 ok\r\n250 ok\r\n354 go on\r\n250 " + secret + "\r\n",
		"-01 a\r\n99999999999 b\r\n250\n250 \n",
	} {
		for auth := range uint8(5) {
			f.Add(auth, replies)
		}
	}
	opened, err := open("email",
		"{host: localhost, port: 25, from: a@example.com, to: [b@example.com, c@example.com], username: azure, password: "+
			secret+"}", Host{})
	if err != nil {
		f.Fatal(err)
	}
	m := &opened.Sink.(*email).server
	f.Fuzz(func(t *testing.T, auth uint8, replies string) {
		redact := new(redactor)
		if _, _, err := m.secret(t.Context(), redact); err != nil {
			t.Fatal(err)
		}
		conn := &said{Reader: strings.NewReader(replies)}
		dial := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
		s, err := startEmail(t.Context(), dial, m.addr, "vm.example.com", nil, false)
		if err == nil {
			if by := []string{"auto", "plain", "login", "scram-sha-256", "xoauth2"}; int(auth) < len(by) { // else nobody logs in
				err = s.login(t.Context(), by[auth], m.username, secret)
			}
			if err != nil {
				s.close()
			}
		}
		var reply string
		if err != nil {
			err = m.failure(t.Context(), redact, blockedBeforeMail(err))
			if classOf(err) == rejected {
				t.Errorf("%q, before a mail: %v", replies, err)
			}
		} else {
			to := []string{"b@example.com", "c@example.com"}
			var refused []error
			refused, reply, err = s.send(t.Context(), "a@example.com", to, []byte("Subject: x\r\n\r\nx\r\n"))
			s.quit()
			if _, names, class := outcome(to, refused, redact); names != "" {
				err = withClass(class, names)
			} else if err != nil {
				err = m.failure(t.Context(), redact, err)
			}
			if err == nil && (!strings.Contains(replies, "354") || !strings.Contains(replies, "250")) {
				t.Errorf("%q was taken for a yes", replies)
			}
			reply = "250 " + redact.line(reply, maxShown)
		}
		text := fmt.Sprintf("%s\n%v", reply, err)
		if reply, why, _ := strings.Cut(text, "\n"); len(text) > 1500 || strings.ContainsFunc(reply+why, unicode.IsControl) {
			t.Errorf("%q: said %q", replies, text)
		}
		for _, hidden := range []string{secret, plain} {
			if strings.Contains(strings.ToLower(text), strings.ToLower(hidden)) {
				t.Errorf("%q: %s is in %q", replies, hidden, text)
			}
		}
		if !conn.closed {
			t.Errorf("%q: the connection is left open", replies)
		}
	})
}
