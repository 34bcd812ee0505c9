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

// A Selection picks deliveries; empty fields pick all.
type Selection struct {
	Route, State string
	Group        string // also its beginning, in any case
}

// List gives the selected deliveries, pending before dead, each in order.
func (o *Outbox) List(s Selection) []Delivery { return deliveriesOf(o.selected(s)) }

// First gives the first n of List, and how many more there are.
func (o *Outbox) First(s Selection, n int) (first []Delivery, more int) {
	all := o.selected(s)
	more = max(0, len(all)-n)
	return deliveriesOf(all[:len(all)-more]), more
}

// Last gives the last n of List, and how many more there are.
func (o *Outbox) Last(s Selection, n int) (last []Delivery, more int) {
	all := o.selected(s)
	more = max(0, len(all)-n)
	return deliveriesOf(all[more:]), more
}

// A listed delivery is pending or dead, and neither changes.
type listed struct {
	route   string
	seq     uint64
	pending *entry
	dead    *deadLetter
}

// selected are the deliveries that s picks, in the order of List.
func (o *Outbox) selected(s Selection) []*listed {
	picks := func(route, group string) bool {
		return (s.Route == "" || s.Route == route) &&
			len(group) >= len(s.Group) && strings.EqualFold(group[:len(s.Group)], s.Group)
	}
	var list []*listed
	o.mu.Lock()
	for name, r := range o.routes {
		for _, e := range r.pending {
			if s.State != StateDead && picks(name, e.group) {
				list = append(list, &listed{name, e.seq, e, nil})
			}
		}
	}
	for _, d := range o.dead {
		if s.State != StatePending && picks(d.Route, d.Group) {
			list = append(list, &listed{d.Route, d.seq, nil, d})
		}
	}
	o.mu.Unlock()
	slices.SortFunc(list, func(a, b *listed) int {
		if a, b := a.dead != nil, b.dead != nil; a != b {
			return map[bool]int{true: 1, false: -1}[a]
		}
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.route, b.route))
	})
	return list
}

func deliveriesOf(list []*listed) []Delivery {
	all := make([]Delivery, len(list))
	for i, l := range list {
		if l.dead != nil {
			all[i] = l.dead.Delivery
		} else {
			all[i] = l.pending.record()
		}
	}
	return all
}

// Show gives one delivery and its CloudEvent in the JSON format. The error wraps ErrUnknownKey when there is no such
// key; with any other error, which is about the CloudEvent, the delivery is given all the same.
func (o *Outbox) Show(key string) (Delivery, json.RawMessage, error) {
	o.mu.Lock()
	e, dead := o.find(key)
	var d Delivery
	switch {
	case e != nil:
		d = e.record()
	case dead != nil:
		d = dead.Delivery
	default:
		o.mu.Unlock()
		return Delivery{}, nil, fmt.Errorf("%s: %w", key, ErrUnknownKey)
	}
	o.mu.Unlock()
	body, err := o.Body(d.Seq())
	return d, body, err
}

// find is the dead letter with the key or, if there is none, the pending delivery.
func (m *memory) find(key string) (*entry, *deadLetter) {
	if d := m.dead[key]; d != nil {
		return nil, d
	}
	name, seq, err := splitKey(key)
	if err != nil {
		return nil, nil
	}
	return m.entry(Ref{name, seq}), nil
}

// Replay makes dead letters pending again, for their own route or for the one named to, which must be there. All keys
// must be those of dead letters, or nothing is done.
func (o *Outbox) Replay(keys []string, to string) ([]Delivery, error) {
	var replayed []Delivery
	var bad error
	err := o.apply(time.Now(), func(c *change) {
		letters := make([]*deadLetter, 0, len(keys))
		for _, key := range unique(keys) {
			e, d := c.find(key)
			switch {
			case d != nil:
				letters = append(letters, d)
				continue
			case e == nil:
				bad = fmt.Errorf("%s: %w", key, ErrUnknownKey)
			default:
				bad = fmt.Errorf("%s: is still pending and will be tried again by itself", key)
			}
			return
		}
		if r := c.routes[to]; to != "" && (r == nil || !r.known || !r.gone.IsZero()) {
			bad = fmt.Errorf("the settings that forewarn last ran with have no sink %s", to)
			return
		}
		for _, d := range letters {
			replayed = append(replayed, c.replay(d, cmp.Or(to, d.Route)))
		}
	})
	if bad != nil {
		return nil, bad
	}
	return replayed, err
}

// replay makes a dead letter pending for a route. Its age counts from now, or it would expire at once.
func (c *change) replay(d *deadLetter, to string) Delivery {
	e := &entry{message: d.message, route: c.route(to), item: delivery.Item{
		NotBefore: d.NotBefore, Pending: c.now.UTC(),
	}}
	if to == d.Route { // this is the route's own
		e.item.Progress, e.item.Batch, e.item.Instead, e.item.FellBack = d.Progress, d.Batch, d.Instead, d.FellBack
	}
	if !c.pend(e) {
		e = e.route.pending[d.seq]
	}
	c.forgetDead(d)
	return e.record()
}

// Drop gives deliveries up for good, dead letters or pending ones. All keys must be there, or nothing is done. by, who
// wanted it, stays on record in the history.
func (o *Outbox) Drop(keys []string, by string) ([]Delivery, error) {
	var dropped []Delivery
	var bad error
	err := o.apply(time.Now(), func(c *change) {
		for _, key := range keys {
			if e, d := c.find(key); e == nil && d == nil {
				bad = fmt.Errorf("%s: %w", key, ErrUnknownKey)
				return
			}
		}
		for _, key := range unique(keys) {
			dropped = append(dropped, c.drop(key, by))
		}
	})
	if bad != nil {
		return nil, bad
	}
	return dropped, err
}

func (c *change) drop(key, by string) Delivery {
	e, letter := c.find(key)
	if letter != nil {
		c.record(letter.message, letter.Route, StateDropped, "by "+by, delivery.Answer{}, letter.Attempts)
		c.forgetDead(letter)
		return letter.Delivery
	}
	d := e.record()
	c.settle(e, StateDropped, "by "+by, delivery.Answer{}, e.item.Attempts)
	return d
}

// unique are the keys, each once.
func unique(keys []string) []string {
	seen := make(map[string]bool, len(keys))
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		again := seen[key]
		seen[key] = true
		return again
	})
}
