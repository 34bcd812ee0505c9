package control

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"forewarn/bridge"
	"forewarn/bridge/outbox"
	"forewarn/bridge/relay"
	"forewarn/cmd/forewarn/internal/wording"
)

// Rows is a list that may be cut to the number of rows asked for.
type Rows[T any] struct {
	More int `json:"more"` // number of rows left out
	Rows []T `json:"rows"`
}

// A ListedDelivery is a delivery with the VMs that its Azure event names.
type ListedDelivery struct {
	outbox.Delivery
	Resources []string `json:"resources,omitempty"`
}

// A ShownDelivery is a delivery with its CloudEvent.
type ShownDelivery struct {
	outbox.Delivery
	CloudEvent json.RawMessage `json:"cloudEvent"`
}

// list returns at most n of the selected deliveries. Only a list of at most wording.ShownRows has Resources, because
// they have to be read from the CloudEvents on disk.
func list(o *outbox.Outbox, sel outbox.Selection, n int) Rows[ListedDelivery] {
	deliveries, more := o.Page(sel, n)
	listed := Rows[ListedDelivery]{More: more, Rows: []ListedDelivery{}}
	for _, d := range deliveries {
		e := ListedDelivery{Delivery: d}
		if len(deliveries) <= wording.ShownRows {
			var ce struct {
				Data struct{ Event struct{ Resources []string } }
			}
			if _, body, err := o.Show(d.Key); err == nil { // an error means that it was delivered meanwhile
				_ = json.Unmarshal(body, &ce)
				e.Resources = ce.Data.Event.Resources
			}
		}
		listed.Rows = append(listed.Rows, e)
	}
	return listed
}

// show returns a delivery with its CloudEvent, or ErrUnknownKey.
func show(o *outbox.Outbox, key string) (ShownDelivery, error) {
	d, body, err := o.Show(key)
	if errors.Is(err, outbox.ErrUnknownKey) {
		err = ErrUnknownKey
	}
	return ShownDelivery{d, body}, err
}

// withHint adds to the error for an unknown key how to list the keys.
func withHint(err error) error {
	if errors.Is(err, outbox.ErrUnknownKey) || errors.Is(err, relay.ErrUnknownKey) {
		return fmt.Errorf("%w; forewarn outbox list shows the keys", err)
	}
	return err
}

// history returns the newest n events of the period.
func history(o *outbox.Outbox, period bridge.Period, n int) (Rows[bridge.EventHistory], error) {
	histories, err := bridge.History(o, period)
	older := max(0, len(histories)-n)
	return Rows[bridge.EventHistory]{More: older, Rows: histories[older:]}, err
}

// A Mutation is a request to replay or drop deliveries.
type Mutation struct {
	Keys []string `json:"keys"`
	All  bool     `json:"all"`  // all dead letters, instead of keys; see keysOfAll
	Sink string   `json:"sink"` // with All: only those of this sink
	To   string   `json:"to"`   // replay: the sink that gets them; "" for their own
	By   string   `json:"by"`   // the user, for the record
}

// addKeys fills in the keys that All stands for: of all dead letters or, to replay them, of those about which the sink that
// gets them still begins something. One of an event that is over is sent only to who names its key.
func (m *Mutation) addKeys(o *outbox.Outbox, replay bool) {
	if !m.All {
		return
	}
	for _, e := range o.List(outbox.Selection{Route: m.Sink, State: outbox.StateDead}) {
		if !replay || !o.Over(e, cmp.Or(m.To, e.Route)) {
			m.Keys = append(m.Keys, e.Key)
		}
	}
}

// checkSinks refuses names of unknown sinks. It ignores empty names.
func checkSinks(known []string, named ...string) error {
	known = slices.Compact(slices.Sorted(slices.Values(known)))
	for _, name := range named {
		switch {
		case name == "" || slices.Contains(known, name):
		case len(known) == 0:
			return fmt.Errorf("no sink is called %q; there are none", name)
		default:
			return fmt.Errorf("no sink is called %q; %s", name, wording.Suggestion(name, known))
		}
	}
	return nil
}
