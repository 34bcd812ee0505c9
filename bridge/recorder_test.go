package bridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// A recorder is a sink that remembers what it was told and answers as it is told to.
type recorder struct {
	mu     sync.Mutex
	heard  []heard // accepted
	tries  []heard
	calls  [][]string                    // the ids of each batch
	answer func(delivery.Delivery) error // nil accepts
	reply  delivery.Answer
}

type heard struct {
	delivery.Delivery
	at time.Time
}

func (e *recorder) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	e.mu.Lock()
	answer := e.answer
	var ids []string
	for _, d := range batch {
		e.tries = append(e.tries, heard{d, time.Now()})
		ids = append(ids, d.Event.ID())
	}
	e.calls = append(e.calls, ids)
	reply := e.reply
	e.mu.Unlock()
	for _, d := range batch {
		if answer == nil {
			break
		}
		if err := answer(d); err != nil {
			if errors.Is(err, errHang) {
				<-ctx.Done()
				return reply, ctx.Err()
			}
			return reply, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range batch {
		e.heard = append(e.heard, heard{d, time.Now()})
	}
	return reply, nil
}

// errHang makes a recorder hang until its attempt ends; errDown is a destination that does not answer.
var (
	errHang     = errors.New("hang")
	errSinkDown = errors.New("connection refused")
)

func (e *recorder) say(answer func(delivery.Delivery) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

func always(err error) func(delivery.Delivery) error {
	return func(delivery.Delivery) error { return err }
}

// ids returns those of what was accepted, in order.
func (e *recorder) ids() []string { return idsOf(e.accepted()) }

func (e *recorder) accepted() []heard {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.heard)
}

func (e *recorder) tried() []heard {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.tries)
}

// idsOf returns the ids of what was heard; of an approval's without its number.
func idsOf(list []heard) []string {
	ids := []string{}
	for _, h := range list {
		id, _, _ := strings.Cut(h.Event.ID(), "-approved-")
		if id != h.Event.ID() {
			id += "-approved"
		}
		ids = append(ids, id)
	}
	return ids
}

// answering is a recorder that accepts nothing.
func answering(err error) *recorder { return &recorder{answer: always(err)} }

// last decodes what was accepted last, which must be about an Azure event.
func (e *recorder) last(t *testing.T) cloudevent.Data {
	t.Helper()
	all := e.accepted()
	if len(all) == 0 {
		t.Fatal("nothing was accepted")
	}
	return dataIn(t, all[len(all)-1].Event)
}

// wantEnd fails the test unless what was accepted last is the end of an event with that outcome, and returns it.
func (e *recorder) wantEnd(t *testing.T, outcome cloudevent.Outcome) cloudevent.Data {
	t.Helper()
	d := e.last(t)
	if d.Change != imds.Vanished || d.Outcome != outcome {
		t.Errorf("told last is %s, outcome %s; want %s, %s", d.Change, d.Outcome, imds.Vanished, outcome)
	}
	return d
}

// delay returns how long after a moment the first one was accepted, to a tenth of a second; -1 if none was.
func (e *recorder) delay(since time.Time) time.Duration {
	all := e.accepted()
	if len(all) == 0 {
		return -1
	}
	return all[0].at.Sub(since).Round(100 * time.Millisecond)
}

// types returns the types of what was accepted, without their prefix.
func (e *recorder) types() []string {
	list := []string{}
	for _, h := range e.accepted() {
		list = append(list, strings.TrimPrefix(strings.TrimPrefix(h.Event.Type(), cloudevent.EventPrefix), cloudevent.BridgePrefix))
	}
	return list
}

// all routes everything about all VMs to the recorder.
func (e *recorder) all(name string) bridge.Route {
	return bridge.Route{
		Name: name, Kind: "recorder", Sink: e, Filter: bridge.Filter{Only: bridge.Only{VMs: "all"}},
		Terms: bridge.Terms{Terms: delivery.Terms{Timeout: 10 * time.Second, Late: delivery.LateSend}},
	}
}

// self routes what names this VM to the recorder.
func (e *recorder) self(name string) bridge.Route {
	r := e.all(name)
	r.Filter.Only.VMs = ""
	return r
}

// leader routes what names this VM first to the recorder.
func (e *recorder) leader(name string) bridge.Route {
	r := e.all(name)
	r.Filter.Only.VMs = "leader"
	return r
}

// dataIn decodes what a CloudEvent holds about an Azure event.
func dataIn(t *testing.T, ce event.Event) (d cloudevent.Data) {
	t.Helper()
	must(t, json.Unmarshal(ce.Data(), &d))
	return d
}

// wantSays fails the test unless a CloudEvent about the bridge says this, and returns all that it says.
func wantSays(t *testing.T, h heard, want map[string]any) map[string]any {
	t.Helper()
	data := tellingOf(t, h.Event)
	for name, value := range want {
		if !reflect.DeepEqual(data[name], value) {
			t.Errorf("%s says %v for %s, want %v", h.Event.Type(), data[name], name, value)
		}
	}
	return data
}

// tellingOf decodes what a CloudEvent holds about the bridge.
func tellingOf(t *testing.T, ce event.Event) (data map[string]any) {
	t.Helper()
	must(t, json.Unmarshal(ce.Data(), &data))
	return data
}

// slowSink takes its time, and comes back when its attempt is over.
type slowSink struct {
	delivery.Sink
	takes time.Duration
}

func (s slowSink) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return delivery.Answer{}, ctx.Err()
	}
	return s.Sink.Deliver(ctx, batch)
}

// stubborn delivers only when it is told to stop.
type stubborn struct{ delivery.Sink }

func (s stubborn) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	<-ctx.Done()
	return s.Sink.Deliver(context.WithoutCancel(ctx), batch)
}

// deaf does not return when its attempt is over, though every sink must.
type deaf struct{ release chan struct{} }

func (d deaf) Deliver(context.Context, []delivery.Delivery) (delivery.Answer, error) {
	<-d.release
	return delivery.Answer{}, errors.New("released")
}

type closing struct {
	delivery.Sink
	closed *atomic.Int32
}

func (c closing) Close() error { c.closed.Add(1); return nil }

// killable puts the routes' sinks out of reach when the bridge is killed.
func (r *running) killable(routes []bridge.Route) []bridge.Route {
	routes = slices.Clone(routes)
	for i := range routes {
		routes[i].Sink = killable{routes[i].Sink, r}
	}
	return routes
}

type killable struct {
	delivery.Sink
	r *running
}

func (m killable) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	m.r.mu.Lock()
	killed := m.r.killed
	m.r.mu.Unlock()
	if killed {
		return delivery.Answer{}, errors.New("killed")
	}
	return m.Sink.Deliver(ctx, batch)
}

func (m killable) Head() string {
	if c, ok := m.Sink.(delivery.Chained); ok {
		return c.Head()
	}
	return ""
}

func (m killable) Close() error {
	if c, ok := m.Sink.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
