package relay

import (
	"context"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// trouble is told by a worker that its route is blocked (why), or that it accepts (nil). The other routes hear it as
// their level says.
func (r *Relay) trouble(ctx context.Context, route bridge.Route, why error) {
	r.mu.Lock()
	told := r.troubled[route.Name]
	r.troubled[route.Name] = why != nil
	r.mu.Unlock()
	if told == (why != nil) {
		return
	}
	data := map[string]any{"sink": route.Name, "kind": route.Kind}
	typ := cloudevent.SinkRecovered
	if why != nil {
		typ, data["error"] = cloudevent.SinkBlocked, why.Error()
	}
	go r.tell(ctx, typ, data, route.Name) // the worker must not wait for it
}

// tell publishes a CloudEvent about this relay for each route that hears such, except the one concerned.
func (r *Relay) tell(ctx context.Context, typ string, data map[string]any, except string) {
	ce, js, err := r.about(typ, data)
	if err != nil {
		r.Log.Warn("nobody could be told about this relay", "type", typ, "err", err)
		return
	}
	r.mu.Lock()
	routes := r.Routes
	r.mu.Unlock()
	for _, route := range routes {
		if route.Name == except || !route.Terms.Bridge.Hears(typ) {
			continue
		}
		if err := address(ctx, js, route.Name, ce, nil, ce.ID()+"-"+route.Name); err != nil {
			r.Log.Warn("a sink could not be told about this relay", "sink", route.Name, "type", typ, "err", err)
		}
	}
}

// about is a CloudEvent about this relay, and where it can be published.
func (r *Relay) about(typ string, data map[string]any) (event.Event, jetstream.JetStream, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !now.After(r.stamp) {
		now = r.stamp.Add(1) // no two have the same time
	}
	r.stamp = now
	if r.js == nil {
		return event.Event{}, nil, r.down
	}
	ce, err := cloudevent.WrapBridge(typ, data, imds.Observer{Name: r.Name}, now)
	return ce, r.js, err
}
