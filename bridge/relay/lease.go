package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
)

// The times of a lease. Whoever holds one stops 2 s before another may take it, and their clocks need not agree: the
// holder counts from before it asked for a renewal, the other from when it saw one.
const (
	renewEvery = 2 * time.Second
	leaseValid = 5 * time.Second        // after the last renewal
	leaseOver  = 7 * time.Second        // without a renewal, another may take it
	lookEvery  = 500 * time.Millisecond // at a lease that another holds
	yieldEach  = 100 * time.Millisecond // for each lease held, so that relays share the work
	yieldMost  = 500 * time.Millisecond
	handOver   = 2 * time.Second // for another relay to take a lease that was given up for it
)

// A holder is what stands in a lease.
type holder struct {
	Relay string    `json:"relay"` // its name, for people; "" when nobody holds the lease
	ID    string    `json:"id"`    // of this run of it
	Since time.Time `json:"since"`
}

// A lease is the right to deliver to one sink.
type lease struct {
	kv  jetstream.KeyValue
	key string
	me  holder

	mu    sync.Mutex
	rev   uint64
	until time.Time // it is held until then, by this machine's clock
}

// errLeaseLost is why a lease's time is over.
var errLeaseLost = errors.New("the lease could not be renewed in time")

// takeLease waits until the sink's lease is free, and takes it. yield is how long to let others go first, missed is
// called when they did; seen is told who holds the lease.
func takeLease(
	ctx context.Context, kv jetstream.KeyValue, sink string, me holder, yield func() time.Duration, missed func(),
	seen func(holder),
) (*lease, error) {
	l := &lease{kv: kv, key: "lease." + token(sink), me: me}
	var rev uint64
	var since time.Time // rev was seen
	for {
		began := time.Now()
		now, by, err := l.look(ctx)
		if err != nil {
			return nil, err
		}
		seen(by)
		if now != rev || since.IsZero() {
			rev, since = now, began
		}
		free := by.Relay == "" || by.ID == me.ID || began.Sub(since) >= leaseOver
		if free {
			l.rev = rev
			l.me.Since = time.Now().UTC()
			err := sleep(ctx, yield())
			if err == nil {
				err = l.renew(ctx)
			}
			if err == nil && l.valid() {
				seen(l.me)
				return l, nil
			}
			missed()
			if err != nil && !errors.Is(err, errOvertaken) {
				return nil, err
			}
		}
		if err := sleep(ctx, lookEvery); err != nil {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// look says who holds the lease, and the revision that says so.
func (l *lease) look(ctx context.Context) (rev uint64, by holder, err error) {
	rev, err = bucket{l.kv}.get(ctx, l.key, &by)
	if errors.Is(err, errUnreadable) {
		err = nil // it is nobody's
	}
	return rev, by, err
}

// renew writes the lease anew. From before it asks, the lease is held for leaseValid.
func (l *lease) renew(ctx context.Context) error {
	began := time.Now()
	body, err := json.Marshal(l.me)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	l.mu.Lock()
	rev := l.rev
	l.mu.Unlock()
	next, err := writeRevision(ctx, l.kv, l.key, body, rev)
	switch {
	case err != nil && isConflict(err):
		// The answer to an earlier try may have been lost.
		now, by, lookErr := l.look(ctx)
		if lookErr != nil {
			return lookErr
		}
		if by.ID != l.me.ID {
			return fmt.Errorf("%w: %s holds it", errOvertaken, by.Relay)
		}
		next, began = now, time.Time{}
	case err != nil:
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rev = next
	if !began.IsZero() {
		l.until = began.Add(leaseValid)
	}
	return nil
}

// valid says whether the lease is held.
func (l *lease) valid() bool { return time.Until(l.heldUntil()) > 0 }

func (l *lease) heldUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

// keep renews the lease until ctx is done, and cancels with the reason when it can't be any more.
func (l *lease) keep(ctx context.Context, lost context.CancelCauseFunc) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	over := time.NewTimer(time.Until(l.heldUntil()))
	defer over.Stop()
	renewed := make(chan error, 1)
	busy := false
	var last error
	for {
		select {
		case <-ctx.Done():
			if busy {
				<-renewed
			}
			return
		case <-tick.C:
			if !busy {
				busy = true
				go func() { renewed <- l.renew(ctx) }()
			}
		case err := <-renewed:
			busy = false
			if errors.Is(err, errOvertaken) {
				lost(err)
				continue
			}
			last = err
			over.Reset(time.Until(l.heldUntil()))
		case <-over.C:
			if left := time.Until(l.heldUntil()); left > 0 {
				over.Reset(left)
				continue
			}
			if last == nil {
				last = errors.New("no answer")
			}
			lost(fmt.Errorf("%w: %w", errLeaseLost, last))
		}
	}
}

// release gives the lease up, so that another relay needn't wait. Nothing may be sent any more, and keep must have
// returned: a renewal under way could take the lease back.
func (l *lease) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewEvery)
	defer cancel()
	body, _ := json.Marshal(holder{})
	l.mu.Lock()
	rev := l.rev
	l.until = time.Time{}
	l.mu.Unlock()
	_, _ = l.kv.Update(ctx, l.key, body, rev) // else it runs out by itself
}

// A leased sink delivers only while its lease is held.
type leased struct {
	delivery.Sink
	lease *lease
}

func (s leased) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	if !s.lease.valid() {
		return delivery.Answer{}, errLeaseLost
	}
	return s.Sink.Deliver(ctx, batch)
}
