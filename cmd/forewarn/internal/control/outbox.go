package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"forewarn/bridge"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/wording"
)

// Rows are the answer to a question for a list: all of it, or as much as was asked for.
type Rows[T any] struct {
	More int `json:"more"` // that were left out
	Rows []T `json:"rows"`
}

// A ListedDelivery is a delivery, and the machines that its Azure event is about, which only its CloudEvent says.
type ListedDelivery struct {
	outbox.Delivery
	Resources []string `json:"resources,omitempty"`
}

// A ShownDelivery is a delivery with its CloudEvent.
type ShownDelivery struct {
	outbox.Delivery
	CloudEvent json.RawMessage `json:"cloudEvent"`
}

// list lists deliveries: of all of them what the outbox has in memory, of at most n also what their CloudEvents say.
func list(o *outbox.Outbox, sel outbox.Selection, n int) Rows[ListedDelivery] {
	deliveries, more := o.First(sel, n)
	listed := Rows[ListedDelivery]{More: more, Rows: []ListedDelivery{}}
	for _, d := range deliveries {
		e := ListedDelivery{Delivery: d}
		if len(deliveries) <= wording.ShownRows {
			var ce struct {
				Data struct{ Event struct{ Resources []string } }
			}
			if _, body, err := o.Show(d.Key); err == nil { // it may be gone by now
				_ = json.Unmarshal(body, &ce)
				e.Resources = ce.Data.Event.Resources
			}
		}
		listed.Rows = append(listed.Rows, e)
	}
	return listed
}

// show shows a delivery, ErrUnknownKey if there is none.
func show(o *outbox.Outbox, key string) (ShownDelivery, error) {
	d, body, err := o.Show(key)
	if errors.Is(err, outbox.ErrUnknownKey) {
		err = ErrUnknownKey
	}
	return ShownDelivery{d, body}, err
}

// history reads the newest n lives.
func history(o *outbox.Outbox, period bridge.Period, n int) (Rows[bridge.Life], error) {
	lives, err := bridge.History(o, period)
	older := max(0, len(lives)-n)
	return Rows[bridge.Life]{More: older, Rows: lives[older:]}, err
}

// A Mutation is what replay and drop ask for. All stands for all dead letters, of one sink if it is named.
type Mutation struct {
	Keys []string `json:"keys"`
	All  bool     `json:"all"`
	Sink string   `json:"sink"`
	To   string   `json:"to"`
	By   string   `json:"by"`
}

// find fills in the keys that --all stands for.
func (m *Mutation) find(o *outbox.Outbox) {
	if m.All {
		for _, e := range o.List(outbox.Selection{Route: m.Sink, State: outbox.StateDead}) {
			m.Keys = append(m.Keys, e.Key)
		}
	}
}

// checkSinks refuses a name that is none of the known sinks. An empty name is no name.
func checkSinks(known []string, named ...string) error {
	known = slices.Compact(slices.Sorted(slices.Values(known)))
	for _, name := range named {
		switch {
		case name == "" || slices.Contains(known, name):
		case len(known) == 0:
			return fmt.Errorf("no sink is called %q; there are none", name)
		default:
			return fmt.Errorf("no sink is called %q; there are %s", name, inWords(known))
		}
	}
	return nil
}

// inWords is a list in words.
func inWords(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}
