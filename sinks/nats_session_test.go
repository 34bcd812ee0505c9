package sinks

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// A connection that is lost comes back by itself. Until then an attempt fails at once, says why, and leaves nothing
// behind that is sent later.
func TestNATSReconnectsByItself(t *testing.T) {
	natsBubble(t, func(t *testing.T) {
		srv, stream := natsInMemory(t)
		wire := &natsWire{}
		wire.becomes(srv.InProcessConn)
		h := testHost(t)
		h.Dial = wire.dial
		s := mustOpen(t, "nats", "{url: 'nats://127.0.0.1', token: s3cr3t-token}", h)
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Fatal(err)
		}
		wire.becomes(func() (net.Conn, error) { return nil, errors.New("no route to host") })
		wire.end()
		synctest.Wait()
		for range 2 {
			before := time.Now()
			_, err := s.Deliver(t.Context(), deliveries(t)[1:2])
			if classOf(err) != again || time.Since(before) > 0 {
				t.Errorf("without a server: %v after %v, want it to be tried again at once", err, time.Since(before))
			}
			time.Sleep(time.Minute)
		}
		_, err := s.Deliver(t.Context(), deliveries(t)[1:2])
		if err == nil || !strings.Contains(err.Error(), "no route to host") {
			t.Errorf("without a server: %v, want the reason", err)
		}
		wire.becomes(srv.InProcessConn)
		time.Sleep(natsJitter + nats.DefaultReconnectWait)
		synctest.Wait()
		if got := srv.NumClients(); got != 2 { // and the test's own
			t.Errorf("%d clients are connected, want 2", got)
		}
		if got, want := natsIDs(t, stream), natsPending(t, 1); !slices.Equal(got, want) {
			t.Errorf("the stream holds %q, want %q", got, want)
		}
		if _, err := s.Deliver(t.Context(), deliveries(t)[1:2]); err != nil {
			t.Errorf("Deliver = %v", err)
		}
		if got, want := natsIDs(t, stream), natsPending(t, 2); !slices.Equal(got, want) {
			t.Errorf("the stream holds %q, want %q", got, want)
		}
	})
}

// A connection that is lost while an answer is awaited ends the attempt, with the reason.
func TestNATSLostConnectionEndsTheAttempt(t *testing.T) {
	natsBubble(t, func(t *testing.T) {
		wire := &natsWire{talk: natsHostile["hangs up for an answer"]}
		h := testHost(t)
		h.Dial = wire.dial
		s := mustOpen(t, "nats", "url: 'nats://127.0.0.1'", h)
		before := time.Now()
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != again || time.Since(before) > 0 {
			t.Errorf("Deliver = %v after %v, want it to be tried again at once", err, time.Since(before))
		}
		closeSink(s)
	})
}

// After an attempt that got no answer, the next one fails at once and says so, until there is another connection.
func TestNATSSilentConnectionIsNotUsedAgain(t *testing.T) {
	natsBubble(t, func(t *testing.T) {
		wire := &natsWire{talk: natsHostile["PING for an answer"]}
		h := testHost(t)
		h.Dial = wire.dial
		s := mustOpen(t, "nats", "url: 'nats://127.0.0.1'", h)
		for _, want := range []string{"no answer from 127.0.0.1:4222", "the last one gave no answer"} {
			ctx, cancel := context.WithTimeout(t.Context(), natsTerms.Timeout)
			if _, err := s.Deliver(ctx, deliveries(t)[:1]); classOf(err) != again || !strings.Contains(err.Error(), want) {
				t.Errorf("Deliver = %v, want it to be tried again, and %q", err, want)
			}
			cancel()
		}
		closeSink(s)
	})
}

// A connection of one's own has the login of the settings, may hear as much as it asks for, returns to a server that
// was gone, and is closed for good when its credentials are refused.
func TestNATSDial(t *testing.T) {
	t.Parallel()
	port, password := -1, "hunter2"
	start := func() *server.Server {
		srv := natsServe(t, func(o *server.Options) { o.Port, o.Username, o.Password = port, "azure", password })
		port = srv.Addr().(*net.TCPAddr).Port
		return srv
	}
	srv := start()
	file := writeFile(t, "password", "hunter2")
	settings := NATSSettings{URL: []Value{{Text: NewSecret(srv.ClientURL())}}, Username: "azure", PasswordFile: Path(file)}
	n, err := NewNATS(settings, testHost(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := n.Secrets(); !slices.Equal(got, []string{file}) {
		t.Errorf("Secrets are %q, want the password's file", got)
	}
	conn, err := n.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	heard, err := conn.SubscribeSync("much")
	if err != nil {
		t.Fatal(err)
	}
	const much = 2 * natsQuota / (100 << 10)
	for range much {
		if err := conn.Publish("much", make([]byte, 100<<10)); err != nil {
			t.Fatal(err)
		}
	}
	for range much {
		if _, err := heard.NextMsg(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	for _, now := range []struct {
		password string
		status   nats.Status
	}{{"hunter2", nats.CONNECTED}, {"hunter3", nats.CLOSED}} {
		changed := conn.StatusChanged(now.status)
		natsStop(srv)
		password = now.password
		srv = start()
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatalf("with the password %s it is %s, want %s", now.password, conn.Status(), now.status)
		}
	}
	_, err = n.Dial(t.Context())
	for tries := 1; classOf(err) == again && tries < 5; tries++ { // a reset on Windows may overtake the refusal
		_, err = n.Dial(t.Context())
	}
	if classOf(err) != blocked {
		t.Errorf("with a wrong password: %v, want it blocked", err)
	}
	if err := os.WriteFile(file, []byte("hunter3"), 0o600); err != nil {
		t.Fatal(err)
	}
	conn, err = n.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// Whoever reads a stream gets messages that are as large as a server takes by default, and larger ones.
func TestNATSDialReadsLargeMessages(t *testing.T) {
	srv := natsServe(t, func(o *server.Options) { o.MaxPayload = 4 << 20 })
	servers, err := NewNATS(NATSSettings{URL: []Value{{Text: NewSecret(srv.ClientURL())}}}, testHost(t))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := servers.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sub, err := conn.SubscribeSync("large")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Publish("large", make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	if msg, err := sub.NextMsg(time.Minute); err != nil || len(msg.Data) != 3<<20 {
		t.Errorf("NextMsg = %v", err)
	}
}
