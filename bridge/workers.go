package bridge

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// pollForBacklog is how long a backlog waits for the first poll after a start.
const pollForBacklog = 5 * time.Second

// routeWorker is the worker of a route, with functions to end it. They may be called repeatedly.
type routeWorker struct {
	kind       string                          // of its route
	timeout    time.Duration                   // of one attempt
	generation int                             // of the settings with its route
	worker     atomic.Pointer[delivery.Worker] // the one before until that has ended; nil at first
	stop       func()                          // lets it end because the program stops
	leave      func()                          // lets it end because another worker takes over, and aborts an attempt that exceeds its timeout
	done       chan struct{}
}

// State returns the state of the route.
func (c *routeWorker) State() delivery.State {
	w := c.worker.Load()
	if w == nil {
		return delivery.State{}
	}
	return w.State()
}

// startWorkers starts the workers. With a backlog it waits first until it is known whether the outbox belongs to this VM,
// and which of its events are over: nothing must be begun about those.
func (b *Bridge) startWorkers(ctx context.Context) {
	if b.hasBacklog() {
		b.awaitName(ctx, b.nameLimit())
		b.awaitPoll(ctx)
	}
	b.deliver(ctx)
}

// hasBacklog reports whether the outbox holds what there may be to tell: open events, which a lead or a reload may offer
// to a route, deliveries, or dead letters to report.
func (b *Bridge) hasBacklog() bool {
	all := b.outbox.Totals()
	return len(b.outbox.Groups())+all.Pending+all.Unreported > 0
}

// deliver starts the workers.
func (b *Bridge) deliver(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	b.delivering = true
	for _, r := range b.routes {
		b.startWorker(r)
	}
}

// awaitPoll waits a limited time until the first poll of this run, or since join, is handled, whether it failed or not. An
// endpoint that hangs must not hold back what may be urgent.
func (b *Bridge) awaitPoll(ctx context.Context) {
	select {
	case <-b.awaitedPoll():
	case <-ctx.Done():
	case <-b.watchEnded:
	case <-time.After(pollForBacklog):
	}
}

func (b *Bridge) awaitedPoll() chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.polled
}

// startWorker starts the worker of a route, which makes no attempt before the previous one of that name has ended. It
// does nothing if the route has one. The caller holds mu.
func (b *Bridge) startWorker(r Route) {
	was := b.workers[r.Name]
	if was != nil && was.generation == b.generation {
		return
	}
	ctx, end := b.running.begin(context.Background())
	ctx, cut := context.WithCancel(ctx)
	stop, leave := make(chan struct{}), make(chan struct{})
	c := &routeWorker{
		kind: r.Kind, timeout: r.Terms.Timeout, generation: b.generation, done: make(chan struct{}),
		stop: sync.OnceFunc(func() { close(stop) }),
		leave: sync.OnceFunc(func() {
			close(leave)
			if r.Terms.Timeout > 0 { // an attempt without one is waited for
				time.AfterFunc(r.Terms.Timeout+stopTimeout, cut)
			}
		}),
	}
	var before <-chan struct{}
	if was != nil {
		before = was.done
		c.worker.Store(was.worker.Load())
	}
	b.workers[r.Name] = c
	go func() {
		defer end()
		defer close(c.done)
		if before != nil {
			<-before
		}
		if ctx.Err() == nil {
			b.work(ctx, r, c, stop, leave)
		}
		if closer, ok := r.Sink.(io.Closer); ok {
			if err := closer.Close(); err != nil {
				b.log.Debug("cannot close sink", "err", err)
			}
		}
		b.forget(r.Name, c)
	}()
}

// work delivers to a route until it is to end: see delivery.Worker.Run.
func (b *Bridge) work(ctx context.Context, r Route, c *routeWorker, stop, leave <-chan struct{}) {
	w := delivery.NewWorker(delivery.Config{
		Route: r.Name, Sink: r.Sink, Terms: r.Terms.Terms, Queue: b.outbox.Queue(r.Name), Secrets: r.Secrets,
		Log: b.log, Meter: b.meter, Random: b.options.Random,
		Trouble: func(why error) { b.trouble(r.Name, why) },
		Told:    func() []delivery.Told { return b.told(r.Name) },
	})
	c.worker.Store(w)
	w.Run(ctx, stop, leave)
}

// told returns the open events. Nothing is certainly open before the first valid answer.
func (b *Bridge) told(route string) (told []delivery.Told) {
	b.mu.Lock()
	current := b.current
	b.mu.Unlock()
	if !current {
		return nil
	}
	for _, op := range b.events.all() {
		id := op.event.ID
		told = append(told, delivery.Told{Group: id, Read: func() (delivery.Delivery, bool) { return b.saidLast(route, id) }})
	}
	return told
}

// saidLast returns what was said last of an event, if the event is open: what came of its approval since the latest change,
// if the route gets the event and has accepted that, or else that change, if it has accepted it. The change may say that a
// rule will approve the event, which is no longer so.
func (b *Bridge) saidLast(route, id string) (d delivery.Delivery, ok bool) {
	op := b.events.get(id)
	if op == nil {
		return d, false
	}
	d.NotBefore = op.event.NotBefore
	hasChange := b.outbox.Delivery(route, op.latest.Seq).State == outbox.StateAccepted // also as a fallback
	if op.Answer != nil && (hasChange || op.gets(route)) {
		accepted, err := b.outbox.Accepted(route, op.Answer.Seq)
		switch {
		case err != nil:
			b.log.Debug("not repeated: cannot read what was accepted", "sink", route, "event", id, "err", err)
			return d, false
		case accepted:
			d.Event = op.Answer.decode()
			return d, true
		}
	}
	d.Event = op.latest.decode()
	return d, hasChange
}

// forget drops a worker that has ended, if its route was removed.
func (b *Bridge) forget(route string, c *routeWorker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	isThere := slices.ContainsFunc(b.routes, func(r Route) bool { return r.Name == route })
	if !isThere && b.workers[route] == c {
		delete(b.workers, route)
	}
}
