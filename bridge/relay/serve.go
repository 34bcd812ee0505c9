package relay

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/internal/streams"
)

// A service is how this relay serves the routes of one name: that of the settings in force, once those before have
// ended. Relay.mu guards it.
type service struct {
	from      time.Time     // where the sink begins if it is new to the stream; zero for now
	ended     chan struct{} // closed when the latest of them has ended
	holder    holder        // of its lease
	queue     *queue        // nil while this relay doesn't serve it
	worker    *delivery.Worker
	since     time.Time // when this relay began to serve it
	err       error     // why no relay serves it; nil if one does
	handOver  func()    // gives up the lease, so that another relay gets it; nil while this relay doesn't serve it
	restsTill time.Time // until then other relays go first, because the sink has failed here
	left      int       // pending deliveries when the last session ended; 0 during one
	readErr   error     // why the stream couldn't be read when this relay last stopped serving it; nil if it could
}

// A serving is how a route is served over one connection, until a reload.
type serving struct {
	session context.Context // done when the connection ends
	st      *storage
	s       *service
	route   bridge.Route
}

// keepServing serves a route from when before is closed until ctx is done, and closes ended.
func (r *Relay) keepServing(ctx context.Context, v serving, before, ended chan struct{}) {
	defer close(ended)
	<-before
	for ctx.Err() == nil {
		if err := r.serve(ctx, v); err != nil {
			r.notServed(ctx, v.s, v.route.Name, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v.s.holder, v.s.err = holder{}, nil
}

// serve waits for the route's lease, and delivers as long as it holds it, or until ctx is done or another relay gets
// the route. ctx is done when the session is, or after a reload.
func (r *Relay) serve(ctx context.Context, v serving) error {
	s, route := v.s, v.route
	l := &lease{kv: v.st.leases, key: leaseKey(route.Name), me: r.self, wall: r.Wall}
	seen := func(h holder) {
		r.locked(func() {
			s.holder = h
			if h.Relay != "" && h.ID != r.self.ID {
				s.err = nil
			}
		})
	}
	rests := func() (rests bool) {
		r.locked(func() { rests = time.Now().Before(s.restsTill) })
		return rests
	}
	if err := l.take(ctx, rests, seen); err != nil {
		return fmt.Errorf("lease: %w", streams.Plain(err))
	}
	holding, handOver := context.WithCancel(ctx)
	defer handOver()
	err := r.deliver(holding, handOver, v, l)
	switch {
	case holding.Err() == nil:
		return err
	case ctx.Err() == nil:
		r.Log.Warn("this sink fails here, so another relay may try", "sink", route.Name, "relay", r.Name)
	}
	return nil
}

// deliver delivers to a route until ctx is done; then it finishes what is under way, as long as that may take, but
// within stopTimeout after the session. It returns an error if it must end earlier, as when the lease is lost. In any
// case it releases the lease.
func (r *Relay) deliver(ctx context.Context, handOver func(), v serving, l *lease) error {
	st, s, route := v.st, v.s, v.route
	log := r.Log.With("sink", route.Name)
	held, endLease := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endLease(nil)
	defer l.hold(ctx, endLease)()

	q := &queue{
		route: route, js: st.js, stream: st.stream, bucket: st.records, dead: st.dead, log: log, meter: r.Meter,
		ctx: held, lease: l, endLease: endLease, notify: r.notifySinks, from: s.from,
		openEvents: r.fleet.OpenGroups, lastSoon: r.fleet.LastSoon, shown: r.Shown,
	}
	q.init()
	q.room.most = cmp.Or(r.MaxUnsettled, defaultUnsettled)
	r.locked(func() {
		q.room.maxBodies = maxBodies / max(1, len(r.Routes))
		q.pos.err = s.readErr // it ends when something is read, not with a reload
	})
	opening := context.AfterFunc(ctx, func() { endLease(nil) }) // nothing is under way yet
	err := q.open()
	if !opening() {
		return nil
	}
	if err != nil {
		return err
	}
	log.Info("this relay serves the sink", "relay", r.Name)
	w := delivery.NewWorker(delivery.Config{
		Route: route.Name, Sink: route.Sink, Terms: route.Terms.Terms, Queue: q, Secrets: route.Secrets,
		Log: r.Log, Meter: r.Meter, Random: r.Random,
		Trouble: func(why error) { r.reportTrouble(q, why) },
		Told:    q.told,
	})
	r.locked(func() {
		s.queue, s.worker, s.since, s.err, s.handOver = q, w, time.Now(), nil, handOver
		q.setMutes(r.mutes)
	})
	var reading sync.WaitGroup
	reading.Go(q.run)

	session, ended := context.WithCancel(v.session)
	defer ended()
	defer context.AfterFunc(ctx, func() {
		_ = streams.Sleep(session, cmp.Or(route.Terms.Timeout, math.MaxInt64)) // which a sink may not heed
		_ = streams.Sleep(held, stopTimeout)
		endLease(nil)
	})()
	w.Run(held, nil, ctx.Done())
	why := context.Cause(held)
	endLease(nil)
	r.locked(func() {
		s.queue, s.worker, s.handOver = nil, nil, nil
		s.readErr = q.readErr()
		if session.Err() != nil {
			s.left = q.status().pending
		}
	})
	reading.Wait()
	if why != nil && ctx.Err() == nil {
		log.Warn("this relay serves the sink no more", "err", why)
	}
	return why
}

// notServed records why no relay serves a route, logs it if that is new, and waits a little.
func (r *Relay) notServed(ctx context.Context, s *service, sink string, err error) {
	if ctx.Err() != nil {
		return
	}
	err = r.Shown(err)
	isNew := false
	r.locked(func() { isNew, s.err = s.err == nil || s.err.Error() != err.Error(), err })
	if isNew {
		r.Log.Warn("this sink is not served, trying again", "sink", sink, "err", err)
	}
	_ = streams.Sleep(ctx, readRetry)
}

func (r *Relay) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}
