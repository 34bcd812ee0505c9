package sinks

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// near is a Slack sink whose workspace is reached without a network, so that a story can last an hour.
type near struct {
	*slackSink
	to   *workspace
	down atomic.Bool
}

func (n *near) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	a, err := n.open(func(req *http.Request, _ *redactor) (response, error) {
		if n.down.Load() {
			return response{}, errors.New("connection refused")
		}
		answer := httptest.NewRecorder()
		n.to.ServeHTTP(answer, req)
		return response{answer.Code, answer.Header(), answer.Body.String(), false}, nil
	})
	if err != nil {
		return delivery.Answer{}, err
	}
	return n.deliver(ctx, a, batch)
}

// After an hour without Slack, people get one message about each event: the state now, when it was announced, and that
// it comes late. No message says what is no longer so.
func TestAnHourWithoutSlackEndsInOneMessageAnEvent(t *testing.T) {
	systemtest.Alone(t)
	synctest.Test(t, func(t *testing.T) {
		w := &workspace{fail: map[string][]slackNo{}, forms: map[string]url.Values{}, url: "http://slack.test"}
		sink := &near{slackSink: openSlackSink(t,
			"token: "+slackToken+"\nchannel: '#ops'\ninsecure: true\napi_url: "+w.url+"/api\n"), to: w}
		sink.down.Store(true)

		azure := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}})
		log := testHost(t).Log
		box, err := outbox.Open(t.TempDir(), outbox.Options{Log: log})
		if err != nil {
			t.Fatal(err)
		}
		b, err := bridge.New(bridge.Options{
			Client: imds.NewClient("http://azure.test", imds.DefaultAPIVersion, log, azure.RoundTripper()), Outbox: box,
			Log: log,
			Routes: []bridge.Route{{Name: "chat", Kind: "slack", Sink: sink,
				Terms:  bridge.Terms{Terms: slackTerms, Bridge: bridge.LevelTrouble},
				Filter: bridge.Filter{Only: bridge.Only{VMs: "all"}}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		pause := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		pause(2 * time.Second)
		for _, e := range []imdstest.Event{
			{ID: "AAAAAAAA-0000-4000-8000-000000000001", Type: "Reboot", NotBefore: time.Now().Add(15 * time.Minute)},
			{ID: "BBBBBBBB-0000-4000-8000-000000000002", Type: "Redeploy", NotBefore: time.Now().Add(3 * time.Hour)},
			{ID: "CCCCCCCC-0000-4000-8000-000000000003", Type: "Freeze", NotBefore: time.Now().Add(10 * time.Minute)},
		} {
			azure.Schedule(e)
		}
		pause(15 * time.Minute)
		azure.Start("AAAAAAAA-0000-4000-8000-000000000001")
		azure.Start("CCCCCCCC-0000-4000-8000-000000000003")
		pause(5 * time.Minute)
		azure.End("AAAAAAAA-0000-4000-8000-000000000001")
		pause(40 * time.Minute)
		sink.down.Store(false)
		pause(6 * time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}

		if got := strings.Count(strings.Join(w.asked(), "\n"), "chat.postMessage true"); got != 3 || len(w.messages) != 3 {
			t.Fatalf("%d messages were posted, %d stand in the channel:\n%s\nwant one for each of the three events", got,
				len(w.messages), w.story())
		}
		for _, event := range []struct{ is, missed string }{
			{"vm-0: reboot is over", "announced"},
			{"vm-0 will move to another host", ""},
			{"vm-0: pause has begun", "announced"},
		} {
			found := false
			for _, m := range w.messages {
				text := m.text + unescape(t, m.blocks)
				found = found || strings.Contains(text, event.is) && strings.Contains(text, "late") &&
					strings.Contains(strings.ToLower(text), event.missed)
			}
			if !found {
				t.Errorf("no message says %q, late, and %q; the channel holds\n%s", event.is, event.missed, w.story())
			}
		}
	})
}
