package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// The rules of the delivery loop.
const (
	urgentNotice  = 15 * time.Minute // less notice than this beats the schedule
	urgentEvery   = 5 * time.Second  // but not more often
	blockedAfter  = 3                // blocked answers …
	blockedOver   = 30 * time.Second // … over at least this
	probeEvery    = time.Minute      // while blocked
	maxRetryAfter = time.Hour
	secretsEvery  = 2 * time.Second // how often secret files are looked at while something waits
)

// retryAfter are the waits after the first, second, … attempt that failed; the last one stays.
var retryAfter = []time.Duration{
	1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 30 * time.Second,
	60 * time.Second, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute,
}

// backoff is the wait after so many failures, with full jitter: a random part of it.
func backoff(failures int, random float64) time.Duration {
	d := retryAfter[min(failures, len(retryAfter))-1]
	return time.Duration(random * float64(d))
}

// A lane is what is owed to a route about one Azure event, oldest first; what is about the bridge has a lane of its
// own. Lanes do not wait for each other.
type lane struct {
	event    string
	owed     []*Entry
	due      time.Time // of the next attempt
	failures int       // since the times began
	urgent   uint64    // newest entry that beats the schedule; 0 when none does
	tried    time.Time // the last attempt
}

// A worker makes the deliveries of one route, one at a time.
type worker struct {
	route  Route
	outbox *Outbox
	log    *slog.Logger
	// trouble is told when the route becomes blocked (with why), and when it accepts again after it failed (nil).
	trouble func(route string, why error)

	lanes    map[string]*lane
	floor    time.Time // a Retry-After ends
	refusals int       // blocked answers since the last acceptance
	refused  time.Time // the first of them
	blocked  bool
	probe    time.Time // the next one, while blocked
	override time.Time // the last attempt that beat the schedule
	single   int       // deliveries to make one by one, because a batch of them was rejected
	secrets  string    // how the secret files looked
	looked   time.Time // at them

	mu     sync.Mutex
	status workerStatus
}

// workerStatus is what others may see of a worker.
type workerStatus struct {
	blocked  bool
	failing  int // attempts that failed since the last acceptance
	lastErr  string
	nextTry  time.Time
	attempts int
}

// attempt is one call of Deliver: a batch, and for late: latest the entries that its only delivery stands for.
type attempt struct {
	batch      []*Entry
	superseded []*Entry
}

type result struct {
	attempt
	answer Answer
	err    error
	began  time.Time
}

func newWorker(r Route, o *Outbox, log *slog.Logger, trouble func(string, error)) *worker {
	return &worker{route: r, outbox: o, log: log.With("sink", r.Name), trouble: trouble, lanes: map[string]*lane{}}
}

// run delivers until stop is closed; then it finishes what is under way, makes the first attempts that are due, and
// returns. It returns at once when ctx is done.
func (w *worker) run(ctx context.Context, stop <-chan struct{}) {
	more := w.outbox.attach(w.route.Name)
	done := make(chan result)
	timer := time.NewTimer(0)
	defer timer.Stop()
	busy, stopping := false, false
	for {
		now := time.Now()
		w.take(now)
		w.lookAtSecrets(now)
		var wake time.Time
		if !busy {
			var a attempt
			a, wake = w.next(now, stopping)
			if len(a.batch) > 0 {
				busy = true
				go func() {
					r := w.deliver(ctx, a)
					select {
					case done <- r:
					case <-ctx.Done():
					}
				}()
			} else if stopping {
				return
			}
		}
		timer.Stop()
		if !wake.IsZero() {
			if len(w.route.Secrets) > 0 {
				wake = earlier(wake, now.Add(secretsEvery))
			}
			timer.Reset(time.Until(wake))
		}
		select {
		case <-more:
		case <-timer.C:
		case r := <-done:
			busy = false
			w.settle(r, time.Now())
		case <-stop:
			stopping, stop = true, nil
		case <-ctx.Done():
			return
		}
	}
}

// take puts what came to be owed into its lanes.
func (w *worker) take(now time.Time) {
	for _, e := range w.outbox.take(w.route.Name) {
		l := w.lanes[e.Event]
		if l == nil {
			l = &lane{event: e.Event, due: now}
			w.lanes[e.Event] = l
		}
		l.owed = append(l.owed, e)
		if e.Event != "" && (e.NotBefore.IsZero() || e.NotBefore.Sub(now) < urgentNotice) {
			l.urgent = e.seq
		}
	}
}

// next picks what to attempt now; if nothing, it says when to ask again (zero: when something changes).
func (w *worker) next(now time.Time, stopping bool) (attempt, time.Time) {
	var ready []*lane
	var wake time.Time
	for event, l := range w.lanes {
		for len(l.owed) > 0 && !w.outbox.owed(l.owed[0]) {
			l.owed = l.owed[1:]
		}
		w.dropLate(l, now)
		if len(l.owed) == 0 {
			delete(w.lanes, event)
			continue
		}
		if stopping && (w.blocked || l.failures > 0) {
			continue
		}
		if at := w.due(l); !at.After(now) {
			ready = append(ready, l)
		} else {
			wake = earlier(wake, at)
		}
	}
	w.mu.Lock()
	w.status.nextTry = wake
	w.mu.Unlock()
	if len(ready) == 0 {
		return attempt{}, wake
	}
	slices.SortFunc(ready, func(a, b *lane) int {
		if w.blocked && (a.urgent == 0 || b.urgent == 0) {
			return cmp.Or(cmp.Compare(b2i(a.urgent == 0), b2i(b.urgent == 0)), a.tried.Compare(b.tried), cmp.Compare(a.owed[0].seq, b.owed[0].seq))
		}
		return cmp.Or(a.nearest().Compare(b.nearest()), cmp.Compare(a.owed[0].seq, b.owed[0].seq))
	})
	if w.blocked {
		if ready[0].urgent == 0 {
			w.probe = now.Add(probeEvery)
		}
		ready = ready[:1]
	}
	if l := ready[0]; l.urgent != 0 && (w.blocked || l.due.After(now)) {
		w.override = now
	}
	return w.pick(ready), time.Time{}
}

// due is when the lane's first delivery may be tried.
func (w *worker) due(l *lane) time.Time {
	at := l.due
	override := w.override.Add(urgentEvery)
	switch {
	case l.urgent != 0 && (w.blocked || at.After(override)):
		at = override
	case w.blocked:
		at = w.probe
	}
	return later(at, w.floor)
}

// nearest is when the first of the lane's deliveries begins to matter; zero is now.
func (l *lane) nearest() time.Time {
	if l.event == "" {
		return time.Unix(1<<40, 0) // what is about the bridge comes last
	}
	return l.owed[len(l.owed)-1].NotBefore
}

// dropLate gives up what the route does not want any more because something newer is owed, or its time has passed.
func (w *worker) dropLate(l *lane, now time.Time) {
	if w.route.Terms.Late != LateDrop || l.event == "" || len(l.owed) == 0 {
		return
	}
	n := len(l.owed) - 1
	if e := l.owed[n]; e.Change == Scheduled && !e.NotBefore.IsZero() && now.After(e.NotBefore) {
		n++
	}
	if n > 0 {
		w.outbox.giveUp(l.owed[:n], ReasonLate, nil)
		l.owed = l.owed[n:]
	}
}

// pick makes an attempt of the ready lanes, the first of which matters most.
func (w *worker) pick(ready []*lane) attempt {
	limit := max(1, w.route.Terms.Batch)
	if w.single > 0 || w.blocked {
		limit = 1
	}
	first := ready[0]
	if w.route.Terms.Late == LateLatest && first.event != "" {
		n := len(first.owed) - 1
		return attempt{batch: first.owed[n:], superseded: first.owed[:n]}
	}
	var batch []*Entry
	for _, l := range ready {
		for _, e := range l.owed {
			if len(batch) < limit && w.outbox.owed(e) {
				batch = append(batch, e)
			}
		}
	}
	slices.SortFunc(batch, func(a, b *Entry) int { return cmp.Compare(a.seq, b.seq) })
	return attempt{batch: batch}
}

// deliver makes the attempt. It touches nothing of the worker that changes.
func (w *worker) deliver(ctx context.Context, a attempt) (r result) {
	r = result{attempt: a, began: time.Now()}
	if w.route.Terms.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.route.Terms.Timeout, fmt.Errorf("no answer within %v", w.route.Terms.Timeout))
		defer cancel()
	}
	defer func() {
		if p := recover(); p != nil {
			r.err = fmt.Errorf("the sink panicked: %v", p)
			w.log.Error("a sink panicked; this is a bug of forewarn", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	batch := make([]Delivery, len(a.batch))
	for i, e := range a.batch {
		ce, err := w.outbox.cloudEvent(e.seq)
		if err != nil {
			r.err = fmt.Errorf("%w: %w", errLost, err)
			return r
		}
		batch[i] = Delivery{Event: ce, Attempt: e.Attempts + 1, Receipt: w.outbox.receipt(e)}
	}
	for _, e := range a.superseded {
		batch[0].Missed = append(batch[0].Missed, Missed{Change: string(e.Change), Time: e.Owed})
	}
	r.answer, r.err = w.route.Sink.Deliver(ctx, batch)
	if r.err != nil && ctx.Err() != nil && !errors.Is(r.err, ErrRejected) && !errors.Is(r.err, ErrBlocked) {
		r.err = fmt.Errorf("%w (%w)", context.Cause(ctx), r.err)
	}
	return r
}

// errLost says that a CloudEvent cannot be read from the outbox.
var errLost = errors.New("lost")

// settle draws the conclusions from an attempt.
func (w *worker) settle(r result, now time.Time) {
	all := slices.Concat(r.superseded, r.batch)
	var lanes []*lane
	for _, e := range all {
		if l := w.lanes[e.Event]; l != nil && !slices.Contains(lanes, l) {
			l.tried = now
			lanes = append(lanes, l)
		}
	}
	w.single = max(0, w.single-1)
	switch {
	case r.err == nil:
		w.outbox.settle(r.batch, r.superseded, r.answer, now)
		w.remove(lanes, all)
		w.accepted(lanes, now)
		for _, e := range r.batch {
			w.log.Debug("delivered", "id", e.ID, "status", r.answer.Status, "took", now.Sub(r.began))
		}
	case errors.Is(r.err, ErrRejected) && len(r.batch) > 1:
		w.single = len(r.batch) // one of them is to blame
	case errors.Is(r.err, ErrRejected), errors.Is(r.err, errLost):
		reason := ReasonRejected
		if errors.Is(r.err, errLost) {
			reason = ReasonLost
		}
		w.outbox.giveUp(all, reason, r.err)
		w.remove(lanes, all)
	default:
		w.refuse(r, lanes, now)
	}
	w.mu.Lock()
	w.status.attempts++
	w.mu.Unlock()
}

// remove takes entries out of their lanes.
func (w *worker) remove(lanes []*lane, entries []*Entry) {
	done := make(map[*Entry]bool, len(entries))
	for _, e := range entries {
		done[e] = true
	}
	for _, l := range lanes {
		l.owed = slices.DeleteFunc(slices.Clone(l.owed), func(e *Entry) bool { return done[e] })
		l.failures = 0
		if len(l.owed) == 0 || l.owed[0].seq > l.urgent {
			l.urgent = 0
		}
	}
}

// accepted begins the times of the route anew: it works.
func (w *worker) accepted(lanes []*lane, now time.Time) {
	w.refusals, w.floor = 0, time.Time{}
	w.mu.Lock()
	failing := w.status.failing
	w.status = workerStatus{attempts: w.status.attempts}
	w.mu.Unlock()
	w.blocked = false
	for _, l := range lanes {
		l.due = now
	}
	if failing == 0 {
		return
	}
	w.log.Info("sink recovered", "after", failing)
	for _, l := range w.lanes {
		l.due = now
	}
	w.trouble(w.route.Name, nil)
}

// refuse plans the next attempt after one that failed but may be repeated.
func (w *worker) refuse(r result, lanes []*lane, now time.Time) {
	for _, l := range lanes {
		l.failures++
		l.urgent = 0
		l.due = now.Add(backoff(l.failures, rand.Float64()))
	}
	var wish *RetryAfter
	if errors.As(r.err, &wish) {
		w.floor = now.Add(min(wish.After, maxRetryAfter))
	}
	becameBlocked := false
	if errors.Is(r.err, ErrBlocked) {
		if w.refusals++; w.refusals == 1 {
			w.refused = now
		}
		if !w.blocked && w.refusals >= blockedAfter && now.Sub(w.refused) >= blockedOver {
			w.blocked, becameBlocked = true, true
			w.probe = now.Add(probeEvery)
		}
	}
	due := later(w.due(lanes[0]), w.floor)
	w.outbox.failed(r.batch, r.err, r.answer.Receipt, now, due)
	if w.route.Terms.MaxAge > 0 {
		var old []*Entry
		for _, e := range r.batch {
			if now.Sub(e.Owed) > w.route.Terms.MaxAge {
				old = append(old, e)
			}
		}
		w.outbox.giveUp(old, ReasonExpired, r.err)
		w.remove(lanes, old)
	}

	w.mu.Lock()
	w.status.failing++
	news := w.status.failing == 1 || w.status.lastErr != r.err.Error()
	w.status.lastErr, w.status.blocked = r.err.Error(), w.blocked
	w.mu.Unlock()
	level := slog.LevelDebug
	if news {
		level = slog.LevelWarn
	}
	w.log.Log(context.Background(), level, "delivery failed, will be tried again", "id", r.batch[0].ID, "err", r.err, "next", due.UTC())
	if becameBlocked {
		w.log.Error("sink blocked: nothing is lost, but somebody must act", "err", r.err)
		w.trouble(w.route.Name, r.err)
	}
}

// lookAtSecrets begins the times anew when a secret file changed while something waits.
func (w *worker) lookAtSecrets(now time.Time) {
	if len(w.route.Secrets) == 0 || now.Sub(w.looked) < secretsEvery {
		return
	}
	w.looked = now
	var seen string
	for _, path := range w.route.Secrets {
		if info, err := os.Stat(path); err == nil {
			seen += fmt.Sprint(info.ModTime().UnixNano(), info.Size(), ";")
		} else {
			seen += "none;"
		}
	}
	if w.secrets != "" && seen != w.secrets {
		w.log.Info("a secret file changed, trying again at once")
		w.refusals, w.probe = 0, now
		for _, l := range w.lanes {
			l.due, l.failures = now, 0
		}
	}
	w.secrets = seen
}

// snapshot is the worker's state for others.
func (w *worker) snapshot() workerStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// earlier and later compare times of which a zero one counts as not set.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
