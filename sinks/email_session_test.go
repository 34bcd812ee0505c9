package sinks

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"strings"
	"testing"
	"time"
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
		{550, "5.7.1 relaying denied", blocked},
		{550, "5.1.1 no such user", rejected},
		{550, "15.7.1 is no enhanced code", rejected},
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
	addr, _ := smtpScript(t, map[string]string{"greeting": "220 hi", "RCPT TO:<b@": "550 5.1.1 no", "RCPT TO:<c@": "452 full"})
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
	for name, reply := range map[string]string{"one line": "220 hi\r\n250-", "many lines": "220 hi\r\n" + strings.Repeat("250-more\r\n", 100)} {
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
