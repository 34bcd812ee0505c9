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

// A service is one route as this relay serves it. Relay.mu guards all but the route.
type service struct {
	route    bridge.Route
	holder   holder // of its lease
	queue    *queue // nil while this relay doesn't serve it
	worker   *delivery.Worker
	since    time.Time // when this relay began to serve it
	err      error     // why no relay serves it; nil if one does
	handOver func()    // gives up the lease, so that another relay gets it; nil while this relay doesn't serve it
}

// serve waits for the route's lease, and delivers as long as it holds it, or until ctx is done or another relay gets
// the route.
func (r *Relay) serve(ctx context.Context, st *storage, s *service) {
	l, err := takeLease(ctx, st.leases, s.route.Name, r.self, r.yieldTime, func() { r.addLeases(-1) }, func(h holder) {
		r.locked(func() { s.holder, s.err = h, nil })
	})
	if err != nil {
		r.notServed(ctx, s, fmt.Errorf("lease: %w", err))
		return
	}
	defer r.addLeases(-1)
	serving, handOver := context.WithCancel(ctx)
	defer handOver()
	err = r.deliver(serving, handOver, st, s, l)
	switch {
	case serving.Err() == nil && err != nil:
		r.notServed(ctx, s, err)
	case ctx.Err() == nil:
		r.Log.Info("another relay, which serves fewer sinks, gets this one", "sink", s.route.Name, "relay", r.Name)
		_ = sleep(ctx, handOverPause)
	}
}

// deliver delivers to a route until ctx is done; then it finishes what is under way, within stopTimeout. It returns an
// error if it must end earlier, as when the lease is lost. In any case it releases the lease.
func (r *Relay) deliver(ctx context.Context, handOver func(), st *storage, s *service, l *lease) error {
	route, log := s.route, r.Log.With("sink", s.route.Name)
	held, endLease := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endLease(nil)
	defer l.hold(ctx, endLease)()

	q := &queue{
		route: route, js: st.js, stream: st.stream, bucket: st.records, dead: st.dead, log: log, meter: r.Meter,
		ctx: held, endLease: endLease, from: r.From, maxUnsettled: cmp.Or(r.MaxUnsettled, defaultUnsettled),
	}
	if err := q.open(); err != nil {
		return err
	}
	log.Info("this relay serves the sink", "relay", r.Name)
	w := delivery.NewWorker(delivery.Config{
		Route: route.Name, Sink: leasedSink{route.Sink, l}, Terms: route.Terms.Terms, Queue: q, Secrets: route.Secrets,
		Log: r.Log, Meter: r.Meter, Random: r.Random,
		Trouble: func(why error) { r.reportTrouble(held, route, why) },
	})
	r.locked(func() {
		s.queue, s.worker, s.since, s.err, s.handOver = q, w, time.Now(), nil, handOver
		q.setMutes(r.mutes)
	})
	var reading sync.WaitGroup
	reading.Go(q.run)

	defer context.AfterFunc(ctx, func() { time.AfterFunc(stopTimeout, func() { endLease(nil) }) })()
	w.Run(held, nil, ctx.Done())
	why := context.Cause(held)
	endLease(nil)
	r.locked(func() { s.queue, s.worker, s.handOver = nil, nil, nil })
	reading.Wait()
	if why != nil && ctx.Err() == nil {
		log.Warn("this relay serves the sink no more", "err", why)
	}
	return why
}

// notServed records why no relay serves a route, logs it if that is new, and waits a little.
func (r *Relay) notServed(ctx context.Context, s *service, err error) {
	if ctx.Err() != nil {
		return
	}
	isNew := false
	r.locked(func() { isNew, s.err = s.err == nil || s.err.Error() != err.Error(), err })
	if isNew {
		r.Log.Warn("this sink is not served, trying again", "sink", s.route.Name, "err", err)
	}
	_ = sleep(ctx, readRetry)
}

func (r *Relay) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// yieldTime returns how long this relay waits before it takes a free lease, so that relays with fewer leases go first.
// From now on the lease counts as held.
func (r *Relay) yieldTime() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leases++
	return min(maxYield, time.Duration(r.leases-1)*yieldPerLease)
}

func (r *Relay) addLeases(n int) { r.locked(func() { r.leases += n }) }
