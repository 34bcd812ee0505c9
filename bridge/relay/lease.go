package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/internal/streams"
)

// The times of a lease. Its holder stops sending 2 s before another relay may take it over. Their clocks need not
// agree: the holder counts from before it asked for a renewal, the other from when it first saw that one.
const (
	renewEvery     = 2 * time.Second
	leaseValid     = 5 * time.Second        // after the last renewal
	takeOverAfter  = 7 * time.Second        // without a renewal, another may take it
	readLeaseEvery = 500 * time.Millisecond // at a lease that another holds
	restAfter      = time.Minute            // of failures, a relay gives a sink up for another relay
	restFor        = 5 * time.Minute        // and lets others go first
	othersGoFirst  = 10 * time.Second       // by so much
)

// A holder is the value of a lease in the bucket.
type holder struct {
	Relay string `json:"relay"` // name of the holder, for people; "" if the lease is free
	ID    string `json:"id"`    // new at each start
}

// A lease is the right to deliver to one sink. One relay at a time holds it.
type lease struct {
	kv   jetstream.KeyValue
	key  string
	me   holder
	wall func() time.Time // see Options.Wall

	mu                    sync.Mutex
	rev                   uint64
	validUntil, wallUntil time.Time // it is held until then, by the monotonic clock and by the wall clock
}

// errLeaseExpired means that the lease is no longer held.
var errLeaseExpired = errors.New("the lease could not be renewed in time")

func leaseKey(sink string) string { return "lease." + streams.Token(sink) }

// take waits until the lease is free, and takes it. While rests reports true, other relays may go first. seen is called
// with the holder each time that the lease was read or taken.
func (l *lease) take(ctx context.Context, rests func() bool, seen func(holder)) error {
	var rev uint64
	var seenAt, freeSince time.Time // when this revision was first seen, and since when nobody holds it
	lost := false                   // the server lost it, or a later revision of it, and its holder may not know that yet
	for {
		began := time.Now()
		now, by, err := l.read(ctx)
		if err != nil {
			return err
		}
		seen(by)
		if now != rev || seenAt.IsZero() {
			lost = now < rev
			rev, seenAt = now, time.Now()
		}
		free := by.Relay == "" && !lost || by.ID == l.me.ID || began.Sub(seenAt) >= takeOverAfter
		switch {
		case !free:
			freeSince = time.Time{}
		case freeSince.IsZero():
			freeSince = began
		}
		if free && (!rests() || began.Sub(freeSince) >= othersGoFirst) {
			l.rev = rev
			err := l.renew(ctx)
			if err == nil && l.valid() {
				seen(l.me)
				return nil
			}
			if err != nil && !errors.Is(err, streams.ErrOvertaken) {
				return err
			}
		}
		if err := streams.Sleep(ctx, readLeaseEvery); err != nil {
			return err
		}
	}
}

// read returns the holder of the lease, and the revision of the bucket. Nobody holds a lease that is unreadable.
func (l *lease) read(ctx context.Context) (rev uint64, by holder, err error) {
	rev, err = streams.Bucket{KV: l.kv}.Get(ctx, l.key, &by)
	if errors.Is(err, streams.ErrUnreadable) {
		err = nil
	}
	return rev, by, err
}

// renew writes the lease again. It is then held for leaseValid, counted from before the request. If the answer to an
// earlier renewal was lost, renew writes over that one: others may have seen it long ago. If the server lost the lease,
// renew writes a new one.
func (l *lease) renew(ctx context.Context) error {
	began, wallBegan := time.Now(), l.wall()
	body, err := json.Marshal(l.me)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	l.mu.Lock()
	rev := l.rev
	l.mu.Unlock()
	next, err := streams.WriteRevision(ctx, l.kv, l.key, body, rev)
	if streams.IsConflict(err) {
		now, by, readErr := l.read(ctx)
		if readErr != nil {
			return readErr
		}
		if now != 0 && by.ID != l.me.ID {
			return fmt.Errorf("%w: %s holds it", streams.ErrOvertaken, by.Relay)
		}
		next, err = streams.WriteRevision(ctx, l.kv, l.key, body, now)
		if streams.IsConflict(err) {
			return fmt.Errorf("%w: it took the lease just now", streams.ErrOvertaken)
		}
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rev, l.validUntil, l.wallUntil = next, began.Add(leaseValid), wallBegan.Add(leaseValid)
	return nil
}

// valid reports whether the lease is held, by both of the machine's clocks: the monotonic one may stand still while a VM
// is frozen, and the other may be set back.
func (l *lease) valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.validUntil) && l.wall().Before(l.wallUntil)
}

func (l *lease) expiry() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.validUntil
}

// hold renews the lease until the function that it returns is called, which releases the lease. By then nothing may be
// sent any more. If the lease is lost before, hold calls lost with the reason.
func (l *lease) hold(ctx context.Context, lost context.CancelCauseFunc) (release func()) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewing sync.WaitGroup
	renewing.Go(func() { l.keepRenewing(ctx, lost) })
	return func() {
		stop()
		renewing.Wait() // a renewal under way could take the lease back
		l.release(ctx)
	}
}

// keepRenewing renews the lease until ctx is done. If the lease expires before it can be renewed, or another relay has
// it, keepRenewing calls lost with the reason.
func (l *lease) keepRenewing(ctx context.Context, lost context.CancelCauseFunc) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	due := tick.C // nil while a renewal is under way: the next one waits for its end
	expired := time.NewTimer(time.Until(l.expiry()))
	defer expired.Stop()
	renewed := make(chan error, 1)
	var lastErr error // of the latest renewal that was answered
	for {
		select {
		case <-ctx.Done():
			if due == nil {
				<-renewed
			}
			return
		case <-due:
			due = nil
			go func() { renewed <- l.renew(ctx) }()
		case err := <-renewed:
			due = tick.C
			if errors.Is(err, streams.ErrOvertaken) {
				lost(err)
				continue
			}
			lastErr = streams.Plain(err)
			expired.Reset(time.Until(l.expiry()))
		case <-expired.C:
			if l.valid() {
				expired.Reset(time.Until(l.expiry()))
				continue
			}
			if lastErr == nil {
				lastErr = errors.New("no answer")
			}
			lost(fmt.Errorf("%w: %w", errLeaseExpired, lastErr))
		}
	}
}

// release gives up the lease, so that another relay needn't wait until it expires.
func (l *lease) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewEvery)
	defer cancel()
	body, _ := json.Marshal(holder{})
	l.mu.Lock()
	rev := l.rev
	l.validUntil = time.Time{}
	l.mu.Unlock()
	_, _ = l.kv.Update(ctx, l.key, body, rev) // if that fails, the lease expires
}
