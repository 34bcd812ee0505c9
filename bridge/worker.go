package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

const (
	secretsEvery = 2 * time.Second // how often secret files are looked at while something waits
	cutPatience  = time.Second     // for an attempt that was cut off to return
)

// A worker makes the deliveries of one route. All of it belongs to the goroutine of run, but for the status.
type worker struct {
	schedule
	route  Route
	outbox *Outbox
	log    *slog.Logger
	meter  Meter
	// trouble is told when the route becomes blocked (with why), and when it accepts (nil).
	trouble func(route string, why error)

	failed  int       // attempts since the last acceptance, but for those whose trouble is their own
	lastErr string    // of what waits, or was given up last; "" after an acceptance when nothing else waits
	secrets string    // how the secret files looked
	looked  time.Time // at them

	mu     sync.Mutex
	status workerStatus
}

// workerStatus is what others may see of a worker.
type workerStatus struct {
	blocked bool
	failing bool      // something waits because it was refused
	refused bool      // by an answer that only somebody can change, since the last acceptance
	lastErr string    // why
	nextTry time.Time // zero while an attempt is under way
	since   time.Time // the oldest attempt under way
}

// result is an attempt that was made.
type result struct {
	attempt
	answer Answer
	err    error
	began  time.Time
	took   time.Duration
}

func newWorker(r Route, o *Outbox, log *slog.Logger, meter Meter, trouble func(string, error)) *worker {
	return &worker{
		schedule: schedule{terms: r.Terms, owed: o.owed, lanes: map[string]*lane{}},
		route:    r, outbox: o, log: log.With("sink", r.Name), meter: meter, trouble: trouble,
	}
}

// run delivers until stop is closed; then it finishes what is under way, makes the first attempts that are due, and
// returns. When leave is closed, because another worker takes over, it only finishes what is under way. When ctx is done,
// it returns as soon as what is under way does, which is at once.
func (w *worker) run(ctx context.Context, stop, leave <-chan struct{}) {
	more := w.outbox.attach(w.route.Name)
	done := make(chan result, max(1, w.terms.Parallel))
	timer := time.NewTimer(0)
	defer timer.Stop()
	stopping, leaving := false, false
	for {
		if closed(leave) {
			leaving, leave = true, nil
		}
		now := time.Now()
		for _, e := range w.outbox.take(w.route.Name) {
			w.add(e, now)
		}
		if late := w.overtaken(now); len(late) > 0 {
			w.outbox.giveUp(late, ReasonLate, nil)
		}
		w.lookAtSecrets(now)
		var wake time.Time
		if !leaving {
			wake = w.attempts(ctx, now, stopping, done)
		}
		if (stopping || leaving) && w.under == 0 {
			return
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
			w.settle(r, time.Now())
		case <-stop:
			stopping, stop = true, nil
		case <-leave:
		case <-ctx.Done():
			w.cutOff(done)
			return
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// attempts begins every attempt that may be made now. It returns the time of the next one, zero when that depends on
// something else than time.
func (w *worker) attempts(ctx context.Context, now time.Time, stopping bool, done chan<- result) time.Time {
	for {
		a, wake := w.next(now, stopping)
		if len(a.batch) == 0 {
			w.mu.Lock()
			w.status = workerStatus{
				blocked: w.blocked, failing: w.failing(), refused: w.refusals > 0,
				lastErr: w.lastErr, nextTry: wake, since: w.since(),
			}
			w.mu.Unlock()
			return wake
		}
		go func() { done <- w.deliver(ctx, a) }()
	}
}

// cutOff waits for attempts that were cut off, so that those that were accepted are known to be. A sink that does not
// return though it must is not waited for.
func (w *worker) cutOff(done <-chan result) {
	patience := time.After(cutPatience)
	for w.under > 0 {
		select {
		case r := <-done:
			w.settle(r, time.Now())
		case <-patience:
			w.log.Error("a sink does not return though its attempt is over; this is a bug of forewarn")
			return
		}
	}
}

// deliver makes the attempt. It touches nothing of the worker that changes.
func (w *worker) deliver(ctx context.Context, a attempt) (r result) {
	r = result{attempt: a, began: time.Now()}
	if w.terms.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.terms.Timeout, fmt.Errorf("%w within %v", errNoAnswer, w.terms.Timeout))
		defer cancel()
	}
	defer func() {
		r.took = time.Since(r.began)
		if p := recover(); p != nil {
			r.err = fmt.Errorf("the sink panicked: %v", p)
			w.log.Error("a sink panicked; this is a bug of forewarn", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	batch := make([]Delivery, len(a.batch))
	for i, e := range a.batch {
		ce, err := w.outbox.cloudEvent(e.seq)
		if err != nil {
			r.err = err
			if errors.Is(err, errLost) { // and the others are not
				r.batch, r.superseded = a.batch[i:i+1], nil
			}
			return r
		}
		batch[i] = Delivery{Event: ce, Attempt: e.Attempts + 1, Receipt: w.outbox.receipt(e), Instead: e.Instead, NotBefore: e.NotBefore}
	}
	for _, e := range a.superseded {
		i := slices.IndexFunc(a.batch, func(newer *Entry) bool { return newer.Event == e.Event })
		batch[i].Missed = append(batch[i].Missed, Missed{Change: string(e.Change), Time: e.Owed})
	}
	r.answer, r.err = w.route.Sink.Deliver(ctx, batch)
	if cause := context.Cause(ctx); r.err != nil && cause != nil && !errors.Is(r.err, cause) && !errors.Is(r.err, ErrRejected) && !errors.Is(r.err, ErrBlocked) {
		r.err = fmt.Errorf("%w (%w)", cause, r.err)
	}
	return r
}

// settle draws the conclusions from an attempt.
func (w *worker) settle(r result, now time.Time) {
	w.end(r.attempt)
	w.measure(r)
	switch {
	case r.err == nil:
		w.outbox.settle(r.batch, r.superseded, r.answer, now, w.terms.Sync)
		r.drop(r.all())
		w.accept(r, now)
	case errors.Is(r.err, errLost):
		w.outbox.giveUp(r.all(), ReasonLost, r.err)
		r.drop(r.all())
	case errors.Is(r.err, ErrRejected):
		w.outbox.failed(r.batch, r.err, r.answer.Receipt, now, time.Time{})
		if len(r.batch) > 1 {
			w.single = len(r.batch) // one of them is to blame
			break
		}
		w.outbox.giveUp(r.all(), ReasonRejected, r.err)
		r.drop(r.all())
		if !w.failing() {
			w.lastErr = r.err.Error()
		}
	default:
		w.refused(r, now)
	}
}

// accept notes that the route works.
func (w *worker) accept(r result, now time.Time) {
	w.accepted(r.attempt, now)
	for _, e := range r.batch {
		w.log.Debug("delivered", "id", e.ID, "status", r.answer.Status, "took", now.Sub(r.began))
	}
	if w.failed > 0 {
		w.log.Info("sink recovered", "after", w.failed)
	}
	w.failed = 0
	if !w.failing() {
		w.lastErr = ""
	}
	w.trouble(w.route.Name, nil)
}

// refused notes an attempt that may be repeated, and gives up what is too old for that.
func (w *worker) refused(r result, now time.Time) {
	var wish *RetryAfter
	errors.As(r.err, &wish)
	becameBlocked, shared := w.refuse(r.attempt, errors.Is(r.err, ErrBlocked), wish, now)
	if shared {
		w.failed++
	}
	next := w.due(r.lanes[0])
	w.outbox.failed(r.batch, r.err, r.answer.Receipt, now, next)

	level := slog.LevelDebug
	if w.lastErr != r.err.Error() {
		w.lastErr, level = r.err.Error(), slog.LevelWarn
	}
	w.log.Log(context.Background(), level, "delivery failed, will be tried again", "id", r.batch[0].ID, "err", r.err, "next", next.UTC())
	if old := w.expired(r, now); len(old) > 0 {
		w.outbox.giveUp(old, ReasonExpired, r.err)
		r.drop(old)
	}
	if becameBlocked {
		w.log.Error("sink blocked: nothing is lost, but somebody must act", "err", r.err)
		w.trouble(w.route.Name, r.err)
	}
}

// expired are the entries of an attempt that are too old to be tried again. What a delivery stood for goes with it.
func (w *worker) expired(r result, now time.Time) []*Entry {
	if w.terms.MaxAge <= 0 {
		return nil
	}
	old := slices.DeleteFunc(slices.Clone(r.batch), func(e *Entry) bool { return now.Sub(e.Owed) <= w.terms.MaxAge })
	if len(old) > 0 {
		old = append(old, r.superseded...)
	}
	return old
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
		w.anew(now)
	}
	w.secrets = seen
}

// snapshot is the worker's state for others.
func (w *worker) snapshot() workerStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}
