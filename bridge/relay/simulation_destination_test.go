package relay_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"forewarn/bridge/delivery"
)

// An attempt is one call of a destination.
type attempt struct {
	sink       string
	machine    *machine
	n          int // in the order in which they ended
	start, end time.Duration
	batch      []handed
	taken      int    // how many the destination has taken
	how        string // accepted, or the trouble
	ended      bool   // false if the machine died before
	settled    bool   // the relay was told that all of the batch is accepted

	newReceipt, newProgress string // that the relay was given to keep
}

// sinkTrouble makes a destination fail for a while.
type sinkTrouble struct {
	sink  string
	how   string
	end   time.Duration
	share int // of the deliveries, in percent
}

// A destination is where a route's deliveries go, as one machine reaches it.
type destination struct {
	w    *world
	m    *machine
	name string
}

// How long a message, or its answer, is on its way; a slow destination's answer; what one asks for that asks to wait.
const (
	onTheWay   = 20 * time.Millisecond
	slowness   = 3 * time.Second
	retryAfter = 90 * time.Second
)

// cutOff is how a machine fares that can't reach a destination.
const cutOff = "is cut off"

var (
	errDown = errors.New("connection refused")
	errDead = errors.New("this machine is dead")
)

func (d destination) Deliver(ctx context.Context, batch []delivery.Delivery) (answer delivery.Answer, err error) {
	w := d.w
	if d.m.dead() {
		return answer, errDead
	}
	if batch[0].Repeated {
		return answer, d.repeat(batch[0])
	}
	a := &attempt{sink: d.name, machine: d.m, start: now(), how: "accepted"}
	for _, one := range batch {
		a.batch = append(a.batch, handedOf(one))
	}
	w.mu.Lock()
	w.attempts = append(w.attempts, a)
	if t := w.troubles[d.name]; t.end > now() && chance(w.seed, t.share, d.name, a.batch[0].id, a.batch[0].attempt) {
		a.how = t.how
	}
	if d.m.cutOff == d.name && d.m.cutOffTill > now() {
		a.how = cutOff
	}
	w.mu.Unlock()
	taken, answer, err := d.take(ctx, a)

	w.mu.Lock()
	defer w.mu.Unlock()
	a.taken, a.end = taken, now()
	if d.m.dead() {
		return delivery.Answer{}, errDead
	}
	for _, x := range w.attempts {
		a.n = max(a.n, x.n+1)
	}
	a.ended, a.settled = true, err == nil
	a.newReceipt, a.newProgress = string(answer.Receipt), string(answer.Progress)
	if a.settled && w.fuse > 0 {
		if w.fuse--; w.fuse == 0 {
			burns := w.burns
			w.all.Go(func() { time.Sleep(burns); w.kill(d.m) })
		}
	}
	if a.how == "panics" {
		panic("a destination that panics")
	}
	return answer, err
}

// repeat takes what a relay repeats. It may fail, which changes nothing.
func (d destination) repeat(one delivery.Delivery) error {
	d.w.mu.Lock()
	d.w.repeated = append(d.w.repeated, repeated{sink: d.name, at: now(), handed: handedOf(one)})
	fails := chance(d.w.seed, 20, d.name, one.Event.ID(), len(d.w.repeated))
	d.w.mu.Unlock()
	time.Sleep(50 * time.Millisecond)
	if fails {
		return errRefused
	}
	return nil
}

// take takes a batch as the destination does at the moment, and says how many of it.
func (d destination) take(ctx context.Context, a *attempt) (taken int, answer delivery.Answer, err error) {
	after := func(wait time.Duration) bool {
		select {
		case <-time.After(wait):
			return true
		case <-ctx.Done():
			return false
		case <-d.m.died:
			return false
		}
	}
	if !after(onTheWay) {
		return 0, answer, cmp.Or(ctx.Err(), errDead)
	}
	all := len(a.batch)
	switch a.how {
	case "is slow":
		if !after(slowness) {
			return 0, answer, cmp.Or(ctx.Err(), errDead)
		}
		fallthrough
	case "accepted":
		if !after(onTheWay) {
			return all, answer, cmp.Or(ctx.Err(), errDead)
		}
		return all, delivery.Answer{Receipt: []byte(a.batch[all-1].id)}, nil
	case "hangs":
		after(time.Hour)
		return 0, answer, cmp.Or(ctx.Err(), errDead)
	case "is blocked":
		return 0, answer, fmt.Errorf("%w: 401", delivery.ErrBlocked)
	case "rejects":
		return 0, answer, fmt.Errorf("%w: 422", delivery.ErrRejected)
	case "asks to wait":
		return 0, answer, &delivery.RetryAfter{After: retryAfter, Err: errors.New("503")}
	case "loses the answer":
		return all, answer, errDown
	case "takes half":
		return all / 2, answer, errDown
	case "makes progress": // as far as it comes each time
		done := fmt.Appendf(nil, "%d of %s", a.batch[0].attempt, a.batch[0].id)
		return 0, delivery.Answer{Progress: done, Receipt: done}, errDown
	}
	return 0, answer, errDown // is down, panics
}

// chance is the same for the same things in the same simulation.
func chance(seed uint64, percent int, things ...any) bool {
	h := fnv.New64a()
	fmt.Fprint(h, seed, things)
	return int(h.Sum64()%100) < percent
}
