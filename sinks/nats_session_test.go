package sinks

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// A connection that is lost comes back by itself. Until then an attempt fails at once, says why, and leaves nothing behind
// that is sent later.
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
		if got, want := natsIDs(t, stream), natsOwed(t, 1); !slices.Equal(got, want) {
			t.Errorf("the stream holds %q, want %q", got, want)
		}
		if _, err := s.Deliver(t.Context(), deliveries(t)[1:2]); err != nil {
			t.Errorf("Deliver = %v", err)
		}
		if got, want := natsIDs(t, stream), natsOwed(t, 2); !slices.Equal(got, want) {
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
