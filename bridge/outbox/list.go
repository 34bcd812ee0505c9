package outbox

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/delivery"
)

// ErrUnknownKey is wrapped by the error about a key that the outbox doesn't have.
var ErrUnknownKey = errors.New("no such delivery")

// A Selection selects deliveries; empty fields select all.
type Selection struct {
	Route, State string
	Group        string // also its beginning, in any case
}

// List returns the selected deliveries: pending ones before dead letters, each in order.
func (o *Outbox) List(s Selection) []Delivery { return deliveries(o.selected(s)) }

// First returns the first n of List, and the number of the others.
func (o *Outbox) First(s Selection, n int) (first []Delivery, more int) {
	all := o.selected(s)
	return deliveries(all[:min(n, len(all))]), max(0, len(all)-n)
}

// Last returns the last n of List, and the number of the others.
func (o *Outbox) Last(s Selection, n int) (last []Delivery, more int) {
	all := o.selected(s)
	more = max(0, len(all)-n)
	return deliveries(all[more:]), more
}

// selected returns the deliveries that s picks, in the order of List.
func (o *Outbox) selected(s Selection) (all []*entry) {
	o.mu.Lock()
	for name, r := range o.routes {
		for _, of := range []map[uint64]*entry{r.pending, r.dead} {
			for _, e := range of {
				if (s.Route == "" || s.Route == name) && (s.State == "" || s.State == e.state()) &&
					len(e.Group) >= len(s.Group) && strings.EqualFold(e.Group[:len(s.Group)], s.Group) {
					all = append(all, e)
				}
			}
		}
	}
	o.mu.Unlock()
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Or(-strings.Compare(a.state(), b.state()), bySeq(a, b)) })
	return all
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
	body, err := o.Body(e.Seq)
	return e.record(), body, err
}

// find returns the dead letter with the key or, if there is none, the pending delivery; nil if there is neither.
func (m *memory) find(key string) *entry {
	name, seq, err := splitKey(key)
	r := m.routes[name]
	if err != nil || r == nil {
		return nil
	}
	return cmp.Or(r.dead[seq], r.pending[seq])
}

// Replay makes dead letters pending again, for their own route or for the route named to. If a key is not that of a
// dead letter, or a route is not in the settings, nothing is changed.
func (o *Outbox) Replay(keys []string, to string) ([]Delivery, error) {
	return o.changeByKey(keys, func(c *change, letters []*entry) (replayed []Delivery, err error) {
		for _, d := range letters {
			if d.death == nil {
				return nil, fmt.Errorf("%s: is still pending and will be tried again by itself", d.key())
			}
			name := cmp.Or(to, d.route.name)
			if r := c.routes[name]; r == nil || !r.configured || !r.removed.IsZero() {
				return nil, fmt.Errorf("%s: the settings that forewarn last ran with have no sink %s; name another with --to",
					d.key(), name)
			}
		}
		for _, d := range letters {
			replayed = append(replayed, c.replay(d, cmp.Or(to, d.route.name)))
		}
		return replayed, nil
	})
}

// replay makes a dead letter pending for a route. Its age counts from now, or it would expire at once.
func (c *change) replay(d *entry, to string) Delivery {
	e := &entry{message: d.message, route: c.route(to), Item: delivery.Item{
		NotBefore: d.NotBefore, Pending: c.now.UTC(), Replayed: true,
	}}
	if e.route == d.route { // another route starts from the beginning
		e.Progress, e.Batch, e.Instead, e.FellBack = d.Progress, d.Batch, d.Instead, d.FellBack
	}
	c.addPending(e)
	c.deleteDead(d)
	return e.route.pending[d.Seq].record()
}

// Drop removes deliveries for good, pending ones or dead letters. If a key is unknown, nothing is changed. The history
// records by, the name of the user.
func (o *Outbox) Drop(keys []string, by string) ([]Delivery, error) {
	return o.changeByKey(keys, func(c *change, all []*entry) (dropped []Delivery, err error) {
		for _, e := range all {
			dropped = append(dropped, e.record())
			if c.record(e.message, e.route.name, StateDropped, "by "+by, delivery.Answer{}, e.Attempts); e.death != nil {
				c.deleteDead(e)
			} else {
				c.remove(e)
			}
		}
		return dropped, nil
	})
}

// changeByKey changes the deliveries with the keys, each once. If a key is unknown or f fails, it returns that error.
func (o *Outbox) changeByKey(
	keys []string, f func(*change, []*entry) ([]Delivery, error),
) (done []Delivery, err error) {
	var wrong error
	err = o.submit(time.Now(), func(c *change) {
		var all []*entry
		seen := map[*entry]bool{}
		for _, key := range keys {
			e := c.find(key)
			if e == nil {
				wrong = fmt.Errorf("%s: %w", key, ErrUnknownKey)
				return
			}
			if !seen[e] {
				seen[e], all = true, append(all, e)
			}
		}
		done, wrong = f(c, all)
	})()
	if wrong != nil {
		return nil, wrong
	}
	return done, err
}
