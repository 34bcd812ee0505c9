package outbox

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"forewarn/bridge/delivery"
)

// ErrUnknownKey is wrapped by the error about a key that the outbox doesn't have.
var ErrUnknownKey = errors.New("no such delivery")

// A Selection selects deliveries; empty fields select all.
type Selection struct {
	Route, State string
	Group        string // also its beginning, in any case
	Last         bool   // Page begins at the end
}

// List returns the selected deliveries: pending ones before dead letters, each in order.
func (o *Outbox) List(s Selection) []Delivery { return deliveries(o.selected(s)) }

// Page returns the first n of List, or the last n, and the number of the others.
func (o *Outbox) Page(s Selection, n int) (page []Delivery, more int) {
	all := o.selected(s)
	more = max(0, len(all)-n)
	if s.Last {
		return deliveries(all[more:]), more
	}
	return deliveries(all[:len(all)-more]), more
}

// selected returns the deliveries that s picks, in the order of List.
func (o *Outbox) selected(s Selection) (all []*entry) {
	o.mu.Lock()
	for name, r := range o.routes {
		for _, of := range []ordered{r.pending, r.dead} {
			for _, e := range of {
				if (s.Route == "" || s.Route == name) && (s.State == "" || s.State == e.State) &&
					len(e.Group) >= len(s.Group) && strings.EqualFold(e.Group[:len(s.Group)], s.Group) {
					all = append(all, e)
				}
			}
		}
	}
	o.mu.Unlock()
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Or(-strings.Compare(a.State, b.State), bySeq(a, b)) })
	return all
}

// Over reports whether a route should begin nothing about a delivery, because its event is over: see
// delivery.Late.OverAtEnd. While no settings are known, as when no bridge runs, any route may be one that acts.
func (o *Outbox) Over(d Delivery, route string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, g := o.routes[route], o.groups[d.Group]
	open := g != nil && g.latest != nil
	acts := !o.isSetUp || r != nil && r.late == delivery.LateDrop
	return d.Group != "" && !open && !d.Ends() && acts
}

// Show returns one delivery and the JSON of its CloudEvent. The error wraps ErrUnknownKey if there is no such key; any
// other error is about the CloudEvent, and the delivery is returned with it.
func (o *Outbox) Show(key string) (Delivery, json.RawMessage, error) {
	o.mu.Lock()
	e := o.find(key)
	o.mu.Unlock()
	if e == nil {
		return Delivery{}, nil, fmt.Errorf("%s: %w", key, ErrUnknownKey)
	}
	body, err := o.cloudEvent(e.Seq)
	return e.record(), body, err
}

// find returns the dead letter with the key or, if there is none, the pending delivery; nil if there is neither.
func (m *memory) find(key string) *entry {
	name, seq, err := splitKey(key)
	r := m.routes[name]
	if err != nil || r == nil {
		return nil
	}
	return cmp.Or(r.dead.find(seq), r.pending.find(seq))
}

// Replay makes dead letters pending again, for their own route or for the route named to. If a key is not that of a
// dead letter, or a route is not in the settings, nothing is changed. The deliveries and the history record by, the name
// of the user.
func (tx *Tx) Replay(keys []string, to, by string) (replayed []Delivery, err error) {
	letters, err := tx.findAll(keys)
	if err == nil {
		err = tx.mayReplay(letters, to)
	}
	if err != nil {
		return nil, err
	}
	for _, d := range letters {
		replayed = append(replayed, tx.replay(d, cmp.Or(to, d.Route), by))
	}
	return replayed, nil
}

// mayReplay returns an error unless all deliveries are dead letters, and their routes are in the settings.
func (m *memory) mayReplay(letters []*entry, to string) error {
	for _, d := range letters {
		if d.State == StatePending {
			return fmt.Errorf("%s: is still pending and will be tried again by itself", d.key())
		}
		name := cmp.Or(to, d.Route)
		r := m.routes[name]
		if r == nil || !r.configured || !r.removed.IsZero() {
			return fmt.Errorf("%s: the settings that forewarn last ran with have no sink %s; name another with --to",
				d.key(), name)
		}
	}
	return nil
}

// replay makes a dead letter pending for a route. Its age counts from now, or it would expire at once.
func (tx *Tx) replay(d *entry, to, by string) Delivery {
	i := delivery.Item{NotBefore: d.NotBefore, PendingSince: tx.now.UTC(), Replayed: true, ReplayedBy: by}
	if to == d.Route { // another route starts from the beginning
		i.Progress, i.Batch, i.FallbackFor, i.FellBack = d.Progress, d.Batch, d.FallbackFor, d.FellBack
	}
	r := tx.route(to)
	tx.addPending(d.message, r, i)
	tx.remove(d)
	return r.pending.find(d.Seq).record()
}

// Drop removes deliveries for good, pending ones or dead letters. If a key is unknown, nothing is changed. The history
// records by, the name of the user. With the end of an event goes what is pending about it, where the route's Late asks for
// that.
func (tx *Tx) Drop(keys []string, by string) ([]Delivery, error) {
	all, err := tx.findAll(keys)
	if err != nil {
		return nil, err
	}
	dropped := deliveries(all)
	for _, e := range all {
		tx.drop(e, by)
	}
	for _, e := range all {
		if e.Ends() { // which would have replaced what is still pending
			tx.settleOver(e.route)
		}
	}
	return dropped, nil
}

// drop removes a delivery, pending or dead.
func (tx *Tx) drop(e *entry, by string) {
	tx.record(e.message, &e.Item, Result{Route: e.Route, State: StateDropped, Answer: "by " + by, Attempts: e.Attempts})
	tx.remove(e)
}

// findAll returns the deliveries with the keys, each once. It fails if a key is unknown.
func (m *memory) findAll(keys []string) (all []*entry, err error) {
	seen := map[*entry]bool{}
	for _, key := range keys {
		e := m.find(key)
		if e == nil {
			return nil, fmt.Errorf("%s: %w", key, ErrUnknownKey)
		}
		if !seen[e] {
			seen[e], all = true, append(all, e)
		}
	}
	return all, nil
}
