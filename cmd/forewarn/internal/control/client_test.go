package control

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// Commands get the same answers from a running forewarn as from its file if none runs. Only a running one has a
// status.
func TestClientFallsBackToTheOutboxFile(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	at := Location{State: t.TempDir()}
	c := Client{Location: at, Sinks: []string{"ops"}, Log: log}
	var nobody *UnavailableError
	if _, err := c.List(t.Context(), outbox.Selection{}, 1); !errors.As(err, &nobody) || nobody.Busy {
		t.Errorf("without a forewarn and a file: %v, want that nobody can be asked", err)
	}

	box, err := outbox.Open(at.State, outbox.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	message := delivery.Message{ID: "A-scheduled", Type: "t", Group: "A", Change: "scheduled"}
	const body = `{"specversion":"1.0","id":"A-scheduled","source":"x","type":"t","data":{"event":{"Resources":["vm_0"]}}}`
	pending := outbox.Addition{Message: message, Body: []byte(body), To: []string{"ops"}}
	key := apply(t, box, outbox.Batch{Routes: []outbox.Route{{Name: "ops"}}, Add: []outbox.Addition{pending}})
	if _, err := c.List(t.Context(), outbox.Selection{}, 1); !errors.As(err, &nobody) || !nobody.Busy {
		t.Errorf("while somebody holds the file and does not answer: %v, want that it is worth another try", err)
	}

	answers := func() (all []any) {
		list, err := c.List(t.Context(), outbox.Selection{Route: "ops"}, math.MaxInt)
		if err != nil || len(list.Rows) != 1 || list.Rows[0].Key != key || !slices.Equal(list.Rows[0].Resources,
			[]string{"vm_0"}) {
			t.Errorf("the list is %+v, %v; want the delivery %s about vm_0", list, err, key)
		}
		none, err := c.List(t.Context(), outbox.Selection{}, 0)
		if err != nil || len(none.Rows) != 0 || none.More != 1 {
			t.Errorf("the list of none is %+v, %v; want one left out", none, err)
		}
		shown, err := c.Show(t.Context(), key)
		if err != nil || shown.ID != message.ID || !strings.Contains(string(shown.CloudEvent), `"vm_0"`) {
			t.Errorf("shown is %+v, %v; want %s", shown, err, message.ID)
		}
		if _, err := c.Show(t.Context(), "ops/1"); !errors.Is(err, ErrUnknownKey) {
			t.Errorf("an unknown key gives %v, want %v", err, ErrUnknownKey)
		}
		histories, err := c.History(t.Context(), bridge.Period{}, math.MaxInt)
		if err != nil {
			t.Errorf("history: %v", err)
		}
		_, unknown := c.Drop(t.Context(), Mutation{All: true, Sink: "opps"})
		if unknown == nil || !strings.Contains(unknown.Error(), `no sink is called "opps"`) {
			t.Errorf("an unknown sink gives %v", unknown)
		}
		return []any{len(list.Rows), none.More, shown.ID, len(histories.Rows), fmt.Sprint(unknown)}
	}
	l, err := Listen(at.Sockets()[0], log)
	if err != nil {
		t.Fatal(err)
	}
	azure := imds.NewClient("http://azure.test", imds.DefaultAPIVersion, log, nil)
	running, err := bridge.New(bridge.Options{Client: azure, Outbox: box, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: Handler(running, box, nil)}
	go server.Serve(l)
	if status, err := c.Status(t.Context()); err != nil || status.Outbox.Pending != 1 {
		t.Errorf("the status is %+v, %v; want one pending", status.Outbox, err)
	}
	live := answers()
	relays := c
	relays.Relay, relays.Control = true, at.Sockets()[0]
	if _, err := relays.Drop(t.Context(), Mutation{Keys: []string{key}}); err == nil || !strings.Contains(err.Error(), "not a relay") {
		t.Errorf("with the settings of a relay: %v, want that this is none", err)
	}
	server.Close()
	if err := box.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Status(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("the status of one that has ended: %v, want %v", err, ErrNotRunning)
	}
	if fromFile := answers(); !reflect.DeepEqual(fromFile, live) {
		t.Errorf("the file answers %q, the running forewarn %q", fromFile, live)
	}
	if _, err := relays.Drop(t.Context(), Mutation{Keys: []string{key}}); !errors.Is(err, ErrNotRunning) {
		t.Errorf("with the settings of a relay and nobody there: %v, want %v", err, ErrNotRunning)
	}
	dropped, err := c.Drop(t.Context(), Mutation{Keys: []string{key}, By: "root"})
	if err != nil || len(dropped) != 1 || dropped[0].Key != key {
		t.Errorf("dropped are %+v, %v; want %s", dropped, err, key)
	}
	if list, err := c.List(t.Context(), outbox.Selection{}, math.MaxInt); err != nil || len(list.Rows) != 0 {
		t.Errorf("after the drop the list is %+v, %v", list, err)
	}
}

// serveOutbox serves the control socket of a bridge with that outbox, and closes both at the end of the test.
func serveOutbox(t *testing.T, at Location, box *outbox.Outbox) *http.Server {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	l, err := Listen(at.Sockets()[0], log)
	if err != nil {
		t.Fatal(err)
	}
	azure := imds.NewClient("http://azure.test", imds.DefaultAPIVersion, log, nil)
	b, err := bridge.New(bridge.Options{Client: azure, Outbox: box, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: Handler(b, box, nil)}
	go server.Serve(l)
	t.Cleanup(func() { server.Close(); box.Close() })
	return server
}

// Who replayed a dead letter is kept, whether a forewarn runs or not.
func TestWhoReplayedIsKept(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, runs := range []bool{true, false} {
		at := Location{State: t.TempDir()}
		c := Client{Location: at, Log: log}
		box, err := outbox.Open(at.State, outbox.Options{Log: log})
		if err != nil {
			t.Fatal(err)
		}
		message := delivery.Message{ID: "A-scheduled", Type: "t", Group: "A"}
		key := apply(t, box, outbox.Batch{Routes: []outbox.Route{{Name: "ops"}}, Add: []outbox.Addition{
			{Message: message, Body: []byte(`{"id":"A-scheduled"}`), To: []string{"ops"}}}})
		q := box.Queue("ops")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected, Durable: true})
		if runs {
			serveOutbox(t, at, box)
		} else if err := box.Close(); err != nil {
			t.Fatal(err)
		}
		replayed, err := c.Replay(t.Context(), Mutation{Keys: []string{key}, By: "root"})
		if err != nil || len(replayed) != 1 || replayed[0].ReplayedBy != "root" {
			t.Errorf("runs: %v: replayed are %+v, %v; want one, replayed by root", runs, replayed, err)
		}
		shown, err := c.Show(t.Context(), key)
		if err != nil || shown.State != outbox.StatePending || shown.ReplayedBy != "root" {
			t.Errorf("runs: %v: %s is shown, by %q, %v; want it pending, replayed by root", runs, shown.State, shown.ReplayedBy, err)
		}
	}
}

// What is about an event that is over is replayed with all to a sink that doesn't act. While no forewarn runs, nobody
// knows which sinks act, so it is left. What names its key is replayed.
func TestWhatIsOverIsReplayedOnlyWhereNothingActs(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, tt := range []struct {
		claim string
		late  delivery.Late
		runs  bool
		want  int
	}{
		{"one runs, and the sink tells somebody", delivery.LateSend, true, 1},
		{"one runs, and the sink acts", delivery.LateDrop, true, 0},
		{"none runs, and the sink told somebody", delivery.LateSend, false, 0},
		{"none runs, and the sink acted", delivery.LateDrop, false, 0},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			at := Location{State: t.TempDir()}
			c := Client{Location: at, Log: log}
			box, err := outbox.Open(at.State, outbox.Options{Log: log})
			if err != nil {
				t.Fatal(err)
			}
			message := delivery.Message{ID: "A-scheduled", Type: "t", Group: "A"}
			key := apply(t, box, outbox.Batch{Routes: []outbox.Route{{Name: "ops", Late: tt.late}}, Add: []outbox.Addition{
				{Message: message, Body: []byte(`{"id":"A-scheduled"}`), To: []string{"ops"}}}})
			q := box.Queue("ops")
			q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected, Durable: true})
			if tt.runs {
				serveOutbox(t, at, box)
			} else if err := box.Close(); err != nil {
				t.Fatal(err)
			}
			all, err := c.Replay(t.Context(), Mutation{All: true})
			if err != nil || len(all) != tt.want {
				t.Errorf("with all, replayed are %+v, %v; want %d", all, err, tt.want)
			}
			if tt.want == 1 {
				return
			}
			named, err := c.Replay(t.Context(), Mutation{Keys: []string{key}})
			if err != nil || len(named) != 1 || named[0].Key != key {
				t.Errorf("with its key, replayed are %+v, %v; want it", named, err)
			}
		})
	}
}

// apply makes a batch with one CloudEvent for ops a change of its own, and returns the key of its delivery.
func apply(t *testing.T, box *outbox.Outbox, batch outbox.Batch) (key string) {
	t.Helper()
	if err := box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(batch) })(); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("ops/%016d", batch.Add[0].Seq)
}

// A follower that reads too slowly is told so, and not that forewarn has ended.
func TestAFollowerThatReadsTooSlowlyIsTold(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	at := Location{State: t.TempDir()}
	box, err := outbox.Open(at.State, outbox.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	server := serveOutbox(t, at, box)

	body := fmt.Appendf(nil, `{"id":"A","data":%q}`, strings.Repeat("x", 4<<10))
	behind := make(chan struct{})
	heard := 0
	c := Client{Location: at}
	err = c.Follow(t.Context(), func() {
		go func() {
			defer close(behind)
			for range 2000 {
				added := outbox.Addition{Message: delivery.Message{ID: "A", Type: "t"}, Body: body}
				box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(outbox.Batch{Add: []outbox.Addition{added}}) })
			}
		}()
	}, func([]byte) error {
		<-behind
		heard++
		return nil
	})
	if !errors.Is(err, ErrTooSlow) || heard == 0 || heard == 2000 {
		t.Errorf("Follow = %v after %d of 2000 CloudEvents, want %v", err, heard, ErrTooSlow)
	}
	server.Close()
	if err := c.Follow(t.Context(), func() {}, func([]byte) error { return nil }); errors.Is(err, ErrTooSlow) {
		t.Errorf("of a forewarn that ended Follow = %v", err)
	}
}

// A forewarn that does not answer is distinguished from one that does not run.
func TestStatusOfAHangingForewarn(t *testing.T) {
	at := Location{State: t.TempDir()}
	l, err := Listen(at.Sockets()[0], slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	c := Client{Location: at}
	ask := func() error { _, err := c.Status(t.Context()); return err }
	want := "a forewarn listens on " + l.Addr().String() + " but does not answer: "
	if err := ask(); err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrNotRunning) {
		t.Errorf("of one that hangs: %v, want %q", err, want)
	}
	l.Close()
	if err := ask(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("of one that is not there: %v", err)
	}
}

// A command that the running forewarn is too old for is told that, and not that a delivery is missing.
func TestAnOlderForewarnIsNamedAsTheReason(t *testing.T) {
	at := Location{State: t.TempDir()}
	l, err := Listen(at.Sockets()[0], slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NewServeMux()}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	c := Client{Location: at}
	_, err = c.Unmute(t.Context(), UnmuteRequest{})
	if err == nil || errors.Is(err, ErrUnknownKey) || !strings.Contains(err.Error(), "older than this command") {
		t.Errorf("unmute: %v, want that the running forewarn is older", err)
	}
}
