package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/bridge/relay"
)

// A bubbleListener is a listener in a bubble, whose connections are pipes.
type bubbleListener chan net.Conn

func (p bubbleListener) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (p bubbleListener) Close() error   { return nil }
func (p bubbleListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// overPipes returns a client of a server with that handler, whose own deadlines are as short as those of the program's.
func overPipes(t *testing.T, isRelay bool, h http.Handler) *Client {
	t.Helper()
	l := make(bubbleListener)
	server := &http.Server{Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}
	ended := make(chan struct{})
	go func() { defer close(ended); server.Serve(l) }()
	t.Cleanup(func() { close(l); server.Close(); <-ended })
	return &Client{
		Location: Location{State: t.TempDir(), Relay: isRelay},
		dial: func(context.Context, string) (net.Conn, error) {
			mine, its := net.Pipe()
			l <- its
			return mine, nil
		},
	}
}

// calls returns those of a client, by their names.
func calls(ctx context.Context, c *Client) map[string]func() error {
	return map[string]func() error{
		"status":  func() error { _, err := c.Status(ctx); return err },
		"list":    func() error { _, err := c.List(ctx, outbox.Selection{}, 1); return err },
		"show":    func() error { _, err := c.Show(ctx, "ops/1"); return err },
		"history": func() error { _, err := c.History(ctx, bridge.Period{}, 1); return err },
		"replay":  func() error { _, err := c.Replay(ctx, Mutation{All: true}); return err },
		"drop":    func() error { _, err := c.Drop(ctx, Mutation{All: true}); return err },
		"past":    func() error { _, err := c.ReplayPast(ctx, relay.ReplayRequest{}); return err },
		"mute":    func() error { _, err := c.Mute(ctx, MuteRequest{}); return err },
		"unmute":  func() error { _, err := c.Unmute(ctx, UnmuteRequest{}); return err },
		"approve": func() error { _, err := c.Approve(ctx, "A", "", ""); return err },
	}
}

// Whatever the running forewarn does within the time limit of a call, its client hears the answer; what is given up at
// the limit, it hears too. Only one that says nothing at all "does not answer".
func TestNoAnswerIsLostToADeadline(t *testing.T) {
	for _, isRelay := range []bool{false, true} {
		for name := range calls(t.Context(), &Client{}) {
			t.Run(fmt.Sprintf("%s, relay %v", name, isRelay), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					work := func(w http.ResponseWriter, r *http.Request) {
						time.Sleep(timeLimit(r.URL.Path, isRelay) - time.Nanosecond)
						if r.Context().Err() != nil {
							t.Errorf("given up after %v, before the limit", timeLimit(r.URL.Path, isRelay))
						}
						answer := "{}"
						if r.URL.Path == "/outbox/replay" || r.URL.Path == "/outbox/drop" || r.URL.Path == "/unmute" {
							answer = "[]"
						}
						fmt.Fprint(w, answer)
					}
					c := overPipes(t, isRelay, inTime(isRelay, http.HandlerFunc(work)))
					if err := calls(t.Context(), c)[name](); err != nil {
						t.Errorf("what ends just before the limit: %v", err)
					}
					c = overPipes(t, isRelay, inTime(isRelay, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						<-r.Context().Done()
						http.Error(w, "3 of 5 done, then: "+r.Context().Err().Error(), http.StatusConflict)
					})))
					if err := calls(t.Context(), c)[name](); err == nil || !strings.Contains(err.Error(), "3 of 5 done") {
						t.Errorf("what is given up at the limit: %v, want the reason", err)
					}
					c = overPipes(t, isRelay, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-t.Context().Done() }))
					if err := calls(t.Context(), c)[name](); !errors.Is(err, ErrSilent) {
						t.Errorf("of one that hangs: %v, want %v", err, ErrSilent)
					}
				})
			})
		}
	}
}

// A tail goes on for as long as its command, and however many there are, the other commands are answered.
func TestTailsKeepNoOtherCommandOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		box, err := outbox.Open(t.TempDir(), outbox.Options{Log: log})
		if err != nil {
			t.Fatal(err)
		}
		defer box.Close()
		azure := imds.NewClient("http://azure.test", imds.DefaultAPIVersion, log, nil)
		b, err := bridge.New(bridge.Options{Client: azure, Outbox: box, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		c := overPipes(t, false, Handler(b, box, nil))
		heard := make(chan string)
		ctx, stop := context.WithCancel(t.Context())
		for range maxFollowers {
			go func() {
				_ = c.Follow(ctx, func() {}, func(line []byte) error { heard <- string(line); return nil })
			}()
		}
		synctest.Wait()
		err = c.Follow(ctx, func() {}, func([]byte) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "16 commands follow this forewarn; end one of them first") {
			t.Errorf("one tail too many: %v", err)
		}
		if _, err := c.Status(t.Context()); err != nil {
			t.Errorf("the status beside all these: %v", err)
		}
		time.Sleep(time.Hour)
		added := outbox.Addition{Message: delivery.Message{ID: "A", Type: "t"}, Body: []byte(`{"id":"A"}`)}
		box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(outbox.Batch{Add: []outbox.Addition{added}}) })
		for range maxFollowers {
			if line := <-heard; line != "{\"id\":\"A\"}\n" {
				t.Errorf("after an hour a tail hears %q", line)
			}
		}
		stop()
		synctest.Wait()
		again, end := context.WithCancel(t.Context())
		if err := c.Follow(again, end, func([]byte) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("a tail after the others have ended: %v", err)
		}
	})
}

// A command that is refused keeps no connection: the server has few.
func TestARefusedCommandKeepsNoConnection(t *testing.T) {
	busy, leave := make(chan bool), make(chan bool)
	h := atMost(1, "one is enough", func(http.ResponseWriter, *http.Request) { busy <- true; <-leave })
	srv := httptest.NewServer(h)
	defer srv.Close()
	defer close(leave)
	go func() {
		if answer, err := srv.Client().Get(srv.URL); err == nil {
			answer.Body.Close()
		}
	}()
	<-busy
	answer, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusServiceUnavailable || !answer.Close {
		t.Errorf("one too many is answered %s, and its connection stays: %v", answer.Status, !answer.Close)
	}
}
