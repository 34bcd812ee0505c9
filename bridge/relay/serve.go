package relay

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
)

// A service is one route, as this relay serves it.
type service struct {
	route    bridge.Route
	holder   holder // of its lease
	queue    *queue // nil while another relay serves it
	worker   *delivery.Worker
	err      error  // why it isn't served; nil when it is, or another serves it
	handOver func() // lets another relay serve it
}

// yield is how long this relay lets others go first, who hold fewer leases. It counts as holding the lease from now on.
func (r *Relay) yield() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held++
	return min(maxYield, time.Duration(r.held-1)*yieldPerLease)
}

// serve waits for the route's lease, and delivers while it is held and ctx isn't done.
func (r *Relay) serve(session context.Context, p places, route bridge.Route) {
	ctx := session
	note := func(f func(*service)) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if s := r.serving[route.Name]; s != nil {
			f(s)
		}
	}
	failed := func(err error) {
		if ctx.Err() != nil {
			return
		}
		news := false
		note(func(s *service) { news, s.err = s.err == nil || s.err.Error() != err.Error(), err })
		if news {
			r.Log.Warn("this sink is not served, trying again", "sink", route.Name, "err", err)
		}
		_ = sleep(ctx, readRetry)
	}
	l, err := takeLease(ctx, p.leases, route.Name, r.me, r.yield, func() { r.count(-1) }, func(h holder) {
		note(func(s *service) { s.holder, s.err = h, nil })
	})
	if err != nil {
		failed(fmt.Errorf("lease: %w", err))
		return
	}
	defer r.count(-1)
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	// From here on ctx only says that it is time to stop: what is under way is finished first.
	term, lost := context.WithCancelCause(context.WithoutCancel(ctx))
	defer lost(nil)

	var keepers sync.WaitGroup
	keeping, done := context.WithCancel(context.WithoutCancel(ctx))
	defer done()
	keepers.Go(func() { l.keepRenewing(keeping, lost) })
	release := func() {
		done()
		keepers.Wait()
		l.release(ctx)
	}

	q := &queue{
		route: route, js: p.js, stream: p.stream, bucket: p.records, dead: p.dead, log: r.Log.With("sink", route.Name),
		meter:    r.Meter,
		endLease: lost, ctx: term, from: r.From, maxUnsettled: cmp.Or(r.MaxUnsettled, defaultUnsettled),
	}
	if err := q.open(); err != nil {
		release()
		failed(err)
		return
	}
	log := r.Log.With("sink", route.Name)
	log.Info("this relay serves the sink", "relay", r.Name)
	w := delivery.NewWorker(delivery.Config{
		Route: route.Name, Sink: leasedSink{route.Sink, l}, Terms: route.Terms.Terms, Queue: q, Secrets: route.Secrets,
		Log: r.Log, Meter: r.Meter, Random: r.Random,
		Trouble: func(why error) { r.trouble(term, route, why) },
	})
	note(func(s *service) {
		s.queue, s.worker, s.err, s.handOver = q, w, nil, leave
		q.setMutes(r.mutes)
	})
	var reading sync.WaitGroup
	reading.Go(q.run)

	defer context.AfterFunc(ctx, func() { time.AfterFunc(stopPatience, func() { lost(nil) }) })()
	w.Run(term, nil, ctx.Done())
	why := context.Cause(term)
	lost(nil)
	note(func(s *service) { s.queue, s.worker, s.handOver = nil, nil, nil })
	reading.Wait()
	release()
	switch {
	case ctx.Err() == nil && why != nil:
		log.Warn("this relay serves the sink no more", "err", why)
		failed(why)
	case session.Err() == nil:
		log.Info("another relay, which serves fewer sinks, gets this one", "relay", r.Name)
		_ = sleep(session, handOverPause)
	}
}

func (r *Relay) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held += n
}
