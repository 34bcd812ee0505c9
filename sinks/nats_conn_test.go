package sinks

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Over TLS the sink learns of a server's limit by breaking it. What is too large then is rejected, as without TLS, and
// not tried again for ever.
func TestNATSMessageTooLargeOverTLS(t *testing.T) {
	ca := newAuthority(t)
	srv := natsServe(t, func(o *server.Options) {
		cert := ca.issue(t, "127.0.0.1", time.Hour)
		o.MaxPayload, o.TLSTimeout = 1000, 5
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	})
	at := strings.TrimPrefix(strings.TrimPrefix(srv.ClientURL(), "nats://"), "tls://")
	for _, core := range []string{"true", "false"} {
		s := mustOpen(t, "nats", "{url: 'tls://"+at+"', core: "+core+", tls: {ca_file: "+ca.file+"}}", testHost(t))
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != rejected {
			t.Errorf("core %s: Deliver = %v, want it rejected", core, err)
		}
	}
}

// What was said before TLS is from anybody on the way: it neither leads the sink to another server, which would collect
// its credentials, nor decides what is delivered.
func TestNATSBelievesNothingBeforeTLS(t *testing.T) {
	ca := newAuthority(t)
	var heard bytes.Buffer
	collector := func(conn net.Conn) {
		cert := ca.issue(t, "collector.example.com", time.Hour)
		fmt.Fprintf(conn, natsInfo, `,"tls_required":true`)
		r := bufio.NewReader(tls.Server(conn,
			&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}))
		io.Copy(&heard, r)
	}
	srv := natsServe(t, func(o *server.Options) {
		cert := ca.issue(t, "nats.example.com", time.Hour)
		o.Username, o.Password, o.TLSTimeout = "azure", "hunter2", 5
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	})
	at := strings.TrimPrefix(strings.TrimPrefix(srv.ClientURL(), "nats://"), "tls://")
	_, js := natsClient(t, "tls://"+at, nats.UserInfo("azure", "hunter2"), nats.Secure(&tls.Config{
		RootCAs: ca.pool(), ServerName: "nats.example.com",
	}))
	natsStream(t, js, nil)

	var mu sync.Mutex
	var dialed []string
	down := false
	h := testHost(t)
	h.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dialed = append(dialed, address)
		switch {
		case address != "nats.example.com:4222":
			here, there := net.Pipe()
			go collector(there)
			return here, nil
		case down:
			return nil, os.ErrDeadlineExceeded
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, at)
		if err != nil {
			return nil, err
		}
		return onTheWay(conn, `INFO {"headers":true,"max_payload":1,"tls_required":true,`+
			`"connect_urls":["collector.example.com:4222"]}`), nil
	}
	const login = "username: azure, password: hunter2"
	s := mustOpen(t, "nats", "{url: 'tls://nats.example.com', "+login+", tls: {ca_file: "+ca.file+"}}", h)
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Errorf("Deliver = %v, want it stored in spite of the max_payload of the man on the way", err)
	}
	mu.Lock()
	down = true
	mu.Unlock()
	natsStop(srv)
	for range 3 {
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err == nil {
			t.Error("without a server: Deliver was accepted")
		}
	}
	closeSink(s)
	mu.Lock()
	defer mu.Unlock()
	for _, address := range dialed {
		if address != "nats.example.com:4222" {
			t.Errorf("the sink went to %s, of which only the man on the way had told", address)
		}
	}
	if heard.Len() > 0 {
		t.Errorf("the collector heard %d bytes", heard.Len())
	}
}

// onTheWay returns a connection on which somebody has put another INFO in place of the server's.
func onTheWay(conn net.Conn, info string) net.Conn {
	r := bufio.NewReader(conn)
	r.ReadString('\n')
	return &hijacked{conn, io.MultiReader(strings.NewReader(info+"\r\n"), r)}
}

type hijacked struct {
	net.Conn
	r io.Reader
}

func (h *hijacked) Read(p []byte) (int, error) { return h.r.Read(p) }

// A sink that wants TLS says nothing to a server that offers none.
func TestNATSSaysNothingWithoutTLS(t *testing.T) {
	for name, settings := range map[string]string{
		"by the URL":         "url: 'tls://nats.example.com'",
		"by tls":             "url: 'nats://nats.example.com', tls: {server_name: nats.example.com}",
		"by handshake_first": "url: 'nats://nats.example.com', tls: {handshake_first: true}",
	} {
		t.Run(name, func(t *testing.T) {
			var heard bytes.Buffer
			ended := make(chan struct{})
			h := testHost(t)
			h.Dial = func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				go func() {
					defer close(ended)
					go fmt.Fprintf(there, natsInfo, "")
					io.Copy(&heard, there)
				}()
				return here, nil
			}
			s := mustOpen(t, "nats", "{"+settings+", username: azure, password: hunter2}", h)
			ctx, cancel := context.WithTimeout(t.Context(), natsDial)
			defer cancel()
			if _, err := s.Deliver(ctx, deliveries(t)[:1]); err == nil {
				t.Error("Deliver was accepted")
			}
			<-ended
			if bytes.Contains(heard.Bytes(), []byte("hunter2")) || bytes.Contains(heard.Bytes(), []byte("CONNECT")) {
				t.Errorf("the server heard %q", heard.Bytes())
			}
		})
	}
}

// A server that begins with TLS and says nothing before is reached with handshake_first.
func TestNATSHandshakeFirst(t *testing.T) {
	ca := newAuthority(t)
	srv := natsServe(t, func(o *server.Options) {
		o.Username, o.Password, o.TLSTimeout, o.TLSHandshakeFirst = "azure", "hunter2", 5, true
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", time.Hour)},
			MinVersion: tls.VersionTLS12}
	})
	at := strings.TrimPrefix(strings.TrimPrefix(srv.ClientURL(), "nats://"), "tls://")
	_, js := natsClient(t, "tls://"+at, nats.UserInfo("azure", "hunter2"), nats.TLSHandshakeFirst(),
		nats.Secure(&tls.Config{RootCAs: ca.pool()}))
	natsStream(t, js, nil)
	for _, scheme := range []string{"tls", "nats"} {
		s := mustOpen(t, "nats", fmt.Sprintf("{url: '%s://%s', username: azure, password: hunter2, "+
			"tls: {ca_file: %s, handshake_first: true}}", scheme, at, ca.file), testHost(t))
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Errorf("%s: Deliver = %v", scheme, err)
		}
	}
}

// The error about a server that says nothing names the key that one with handshake_first needs.
func TestNATSSilenceNamesHandshakeFirst(t *testing.T) {
	natsBubble(t, func(t *testing.T) {
		wire := &natsWire{talk: natsHostile["silence"]}
		h := testHost(t)
		h.Dial = wire.dial
		s := mustOpen(t, "nats", "url: 'tls://nats.example.com'", h)
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if classOf(err) != again || !strings.Contains(err.Error(), "handshake_first: true") {
			t.Errorf("Deliver = %v, want it to be tried again, and the key", err)
		}
	})
}

// What a server may say is read to the last byte, and what comes after it; one byte more ends the connection.
func TestNATSReadsWhatItAllows(t *testing.T) {
	headed := func(size int) string {
		return fmt.Sprintf("HMSG a b 1 %d %d\r\n%s\r\n", size, size+1, strings.Repeat("x", size+1))
	}
	for name, tt := range map[string]struct {
		say string
		ok  bool
	}{
		"the longest line":        {"-ERR " + strings.Repeat("x", natsMaxLine-7) + "\r\n", true},
		"a longer line":           {"-ERR " + strings.Repeat("x", natsMaxLine-6) + "\r\n", false},
		"the longest message":     {natsMessage("a", "1", strings.Repeat("x", natsMaxMessage)), true},
		"a longer message":        {natsMessage("a", "1", strings.Repeat("x", natsMaxMessage+1)), false},
		"the longest header":      {headed(natsMaxHeader), true},
		"a longer header":         {headed(natsMaxHeader + 1), false},
		"an empty message":        {"MSG a 1 0\r\n\r\n", true},
		"lines and messages":      {"PING\r\n+OK\r\nMSG a 1 2\r\n\r\n\r\nPONG\r\nINFO {\"max_payload\":1}\r\n", true},
		"a message with no end":   {"MSG a 1 2\r\nabcPING\r\n", false},
		"a number that is no one": {"MSG a 1 0x5\r\nhello\r\n", false},
		"lower case":              {"ping\r\n", false},
	} {
		said, want := tt.say, tt.say+"PING\r\n"
		here, there := net.Pipe()
		go func() {
			io.WriteString(there, said+"PING\r\n")
			there.Close()
		}()
		got, err := io.ReadAll(newNATSConn(here, here))
		if tt.ok && (err != nil || string(got) != want) || !tt.ok && (err == nil || len(got) > len(want)-len("PING\r\n")) {
			t.Errorf("%s: read %d bytes of %d, %v", name, len(got), len(want), err)
		}
	}
}

// A connection that ends within a message ends for that reason, not for a later one.
func TestNATSConnectionThatEndsWithinAMessageSaysSo(t *testing.T) {
	here, there := net.Pipe()
	conn := newNATSConn(here, here)
	var why error
	conn.report = func(_ *natsConn, err error, _ bool) { why = err }
	go func() {
		io.WriteString(there, "MSG a 1 100\r\nhello")
		there.Close()
	}()
	if _, err := io.ReadAll(conn); err != nil {
		t.Fatal(err)
	}
	if conn.Close(); !errors.Is(why, io.EOF) {
		t.Errorf("it ended with %v, want %v", why, io.EOF)
	}
}

// Whatever a server says, nats.go survives it behind a bounded connection.
func FuzzNATSServer(f *testing.F) {
	for _, said := range []string{
		"PING\r\n", "+OK\r\nPONG\r\n", "INFO {}\r\n", "-ERR 'x'\r\n", "MSG _INBOX.x 1 5\r\nhello\r\n",
		"MSG a 1 9223372036854775000\r\n", "HMSG a 1 9223372036854775000 9223372036854775000\r\n",
		"HMSG a 1 12 17\r\nNATS/1.0\r\n\r\nhello\r\n", "MSG a\t1 5\r\nhello\r\n", "MSG a 1 5\r5\r\nhello\r\n",
	} {
		f.Add(said)
	}
	f.Fuzz(func(t *testing.T, said string) {
		h := testHost(t)
		h.Dial = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go natsLet(func(conn net.Conn, r *bufio.Reader) {
				go drain(r)
				io.WriteString(conn, said)
				conn.Close()
			})(there, bufio.NewReader(there))
			return here, nil
		}
		s := mustOpen(t, "nats", "url: 'nats://nats.example.com'", h)
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err == nil {
			t.Errorf("Deliver was accepted")
		}
	})
}
