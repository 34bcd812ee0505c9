package relay_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/goccy/go-yaml"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/sinks"
)

// Every VM of a set tells a change, and only the VM that is hit knows that a rule of its settings starts the event early.
// People hear that from the relay although another VM sees the change a moment sooner, and hear of the event all the
// same if the VM that is hit says nothing.
func TestPeopleHearWhichRuleStartsAnEvent(t *testing.T) {
	drained := []cloudevent.Rule{{Name: "drain first", After: []string{"drain"}}}
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		var told []event.Event
		sink.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			told = append(told, batch[0].Event)
			return delivery.Answer{}, nil
		})
		_, stop := s.run(route("hook", sink))
		defer stop()
		for n, hitIsAlive := range []bool{true, false} {
			a := eventNo(n) // which hits vm-0 or vm-1
			var all sync.WaitGroup
			all.Go(func() { s.deliver(a.announced(t, "vm-2", nil)) })
			time.Sleep(4900 * time.Millisecond) // polls are at most 5 s apart
			if hitIsAlive {
				all.Go(func() { s.deliver(a.announced(t, a.vm, drained)) })
			}
			all.Wait()
			pause(time.Second)
		}
		if len(told) != 2 {
			t.Fatalf("%d CloudEvents were told, want one of each event", len(told))
		}
		began := time.Now()
		s.deliver(eventNo(2).evicted(t, "vm-2"))
		if took := time.Since(began); took > time.Second {
			t.Errorf("an eviction, which has no rules, was told after %v", took)
		}
		for i, observer := range []string{"vm-0", "vm-2"} {
			f := cloudevent.Fields(told[i])
			data, _ := f["data"].(map[string]any)
			_, byRule := data["rules"]
			if f["observer"] != observer || byRule != (i == 0) {
				t.Errorf("event %d was told as %v saw it, with rules: %v; want %s, %v", i, f["observer"], byRule, observer, i == 0)
			}
		}
	})
}

// announced returns the announcement of an event by a VM whose rules will approve it.
func (a azure) announced(t *testing.T, observer string, rules []cloudevent.Rule) event.Event {
	t.Helper()
	ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: a.event(imds.StatusScheduled)}, cloudevent.Circumstances{
		Observer: imds.Observer{Name: observer, ResourceGroup: "web"}, Time: time.Now(), Rules: rules,
	})
	if err != nil {
		t.Fatal(err)
	}
	return ce
}

// evicted returns the announcement of an eviction by another VM.
func (a azure) evicted(t *testing.T, observer string) event.Event {
	t.Helper()
	e := a.event(imds.StatusScheduled)
	e.Type = "Preempt"
	ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: e}, cloudevent.Circumstances{
		Observer: imds.Observer{Name: observer, ResourceGroup: "web"}, Time: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return ce
}

// deliver publishes a CloudEvent by a nats sink of its own.
func (s *stage) deliver(ce event.Event) { s.deliverAs(delivery.Delivery{Event: ce, Attempt: 1}) }

func (s *stage) deliverAs(d delivery.Delivery) {
	wire := &cable{server: s.server}
	opened, err := sinks.Kinds()["nats"].Open(func(to any) error {
		return yaml.Unmarshal([]byte("{url: ['nats://127.0.0.1']}"), to)
	}, sinks.Host{
		Name: "stream", Log: slog.New(slog.DiscardHandler), Getenv: func(string) string { return "" },
		Dial: func(context.Context, string, string) (net.Conn, error) { return wire.InProcessConn() },
	})
	if err != nil {
		s.Error(err)
		return
	}
	defer opened.Sink.(io.Closer).Close()
	ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
	defer cancel()
	_, err = opened.Sink.Deliver(ctx, []delivery.Delivery{d})
	notYet, ok := errors.AsType[*delivery.NotYet](err)
	if ok {
		time.Sleep(time.Until(notYet.Until))
		_, err = opened.Sink.Deliver(ctx, []delivery.Delivery{d})
	}
	if err != nil {
		s.Error(err)
	}
}
