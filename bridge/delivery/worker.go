package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// cutPatience is what an attempt that was cut off has to return.
const cutPatience = time.Second

// Config is what a Worker is made of.
type Config struct {
	Route   string // its name
	Sink    Sink
	Terms   Terms
	Queue   Queue
	Secrets []string // files with the route's credentials: when one changes, what waits is tried again at once
	Log     *slog.Logger
	Meter   Meter          // nil counts nothing
	Random  func() float64 // below 1, for jitter; nil is that of math/rand
	// Trouble is called when the route becomes blocked, with the reason, and with nil whenever it accepts.
	Trouble func(why error)
}

// A Worker delivers what is pending for one route. It belongs to the goroutine of Run, but for State.
type Worker struct {
	Config
	*schedule

	failures int    // attempts since the last acceptance, but for those whose trouble is their own
	lastErr  string // of what waits, or was given up last; "" after an acceptance when nothing else waits
	secrets  secrets

	mu    sync.Mutex
	state State
}

// State is how a route is doing.
type State struct {
	Blocked bool
	Refused bool      // since the last acceptance the destination gave an ErrBlocked answer
	Failing bool      // something waits because an attempt failed
	Error   string    // of that attempt, or of what was given up last
	Next    time.Time // of the next attempt; zero while one is under way, or when nothing is pending
	Since   time.Time // when the oldest attempt under way began; zero when there is none
}

// NewWorker makes a Worker. It does nothing before Run.
func NewWorker(c Config) *Worker {
	if c.Meter == nil {
		c.Meter = noMeter{}
	}
	if c.Trouble == nil {
		c.Trouble = func(error) {}
	}
	c.Log = c.Log.With("sink", c.Route)
	w := &Worker{Config: c, schedule: newSchedule(c.Terms), secrets: secrets{files: c.Secrets}}
	if c.Random != nil {
		w.random = c.Random
	}
	return w
}

// State is how the route is doing. It may be called from any goroutine.
func (w *Worker) State() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// Run delivers until stop is closed; then it finishes what is under way, makes the first attempts that are due, and
// returns. When leave is closed, because another worker takes over, it only finishes what is under way. When ctx is
// done, it returns as soon as what is under way does, which is at once. It is called once.
func (w *Worker) Run(ctx context.Context, stop, leave <-chan struct{}) {
	done := make(chan result, max(1, w.Terms.Parallel))
	timer := time.NewTimer(0)
	defer timer.Stop()
	leaving := false
	for {
		now := time.Now()
		w.update(now)
		var wake time.Time
		if leaving = leaving || closed(leave); leaving {
			leave = nil
		} else {
			wake = w.attempts(ctx, now, done)
		}
		if (w.stopping || leaving) && len(w.underWay) == 0 {
			return
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(time.Until(w.secrets.wake(wake, now)))
		}
		select {
		case <-w.Queue.Changed():
		case <-timer.C:
		case r := <-done:
			w.settle(r, time.Now())
		case <-stop:
			stop = nil
			w.stop(time.Now())
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

// update takes in what changed: in the queue, by the time, in the secret files.
func (w *Worker) update(now time.Time) {
	changes := w.Queue.Changes()
	for _, seq := range changes.Gone {
		w.remove(seq, now)
	}
	for _, i := range changes.Pending {
		w.put(i, now)
	}
	late, fallback := w.overdue(now)
	if len(late)+len(fallback) > 0 {
		w.Queue.Report(Report{Now: now, Dead: late, Reason: ReasonLate, FellBack: fallback})
	}
	if w.secrets.changed(now) {
		w.Log.Info("secret file changed, trying again at once")
		w.restart(now)
	}
}

// attempts begins every attempt that may be made now. It returns when there may be more to do, zero when that depends
// on something else than time.
func (w *Worker) attempts(ctx context.Context, now time.Time, done chan<- result) time.Time {
	for {
		a, wake := w.attempt(now)
		if len(a.batch) == 0 {
			w.mu.Lock()
			w.state = State{
				Blocked: w.blocked, Refused: w.refusals > 0, Failing: w.failing > 0, Error: w.lastErr, Next: wake, Since: w.since(),
			}
			w.mu.Unlock()
			return wake
		}
		go func() { done <- w.deliver(ctx, a) }()
	}
}

// cutOff waits for attempts that were cut off, so that those that were accepted are known to be. A sink that does not
// return though it must is not waited for.
func (w *Worker) cutOff(done <-chan result) {
	patience := time.After(cutPatience)
	for len(w.underWay) > 0 {
		select {
		case r := <-done:
			w.settle(r, time.Now())
		case <-patience:
			w.Log.Error("sink does not return though its attempt is over; this is a bug in forewarn")
			return
		}
	}
}

// A result is an attempt that was made.
type result struct {
	attempt
	lost   []*Item // of the batch, whose CloudEvents can't be read; then nothing was sent
	answer Answer
	err    error
	took   time.Duration
}

// errNoAnswer is the cause of an attempt that ends because its time is over.
var errNoAnswer = errors.New("no answer")

// deliver makes the attempt. It touches nothing of the worker that changes.
func (w *Worker) deliver(ctx context.Context, a attempt) (r result) {
	r = result{attempt: a}
	if w.Terms.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.Terms.Timeout, fmt.Errorf("%w within %v", errNoAnswer, w.Terms.Timeout))
		defer cancel()
	}
	defer func() {
		r.took = time.Since(a.began)
		if p := recover(); p != nil {
			r.err = fmt.Errorf("the sink panicked: %v", p)
			w.Log.Error("sink panicked; this is a bug in forewarn", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	batch := make([]Delivery, len(a.batch))
	for n, i := range a.batch {
		ce, receipt, err := w.Queue.Read(i)
		if err != nil {
			if r.err = err; errors.Is(err, ErrLost) {
				r.lost = append(r.lost, i)
			}
			continue
		}
		batch[n] = Delivery{
			Event: ce, NotBefore: i.NotBefore, Attempt: i.Attempts + 1, Receipt: receipt, Progress: i.Progress,
			Instead: i.Instead,
		}
	}
	if r.err != nil {
		return r
	}
	addMissed(batch, a)
	r.answer, r.err = w.Sink.Deliver(ctx, batch)
	cause := context.Cause(ctx)
	definite := errors.Is(r.err, ErrRejected) || errors.Is(r.err, ErrBlocked) || errors.Is(r.err, cause)
	if r.err != nil && cause != nil && !definite {
		r.err = fmt.Errorf("%w (%w)", cause, r.err)
	}
	return r
}

// addMissed tells each delivery of the older changes that it stands for.
func addMissed(batch []Delivery, a attempt) {
	if len(a.superseded) == 0 {
		return
	}
	at := make(map[string]int, len(a.batch))
	for n, i := range a.batch {
		at[i.Group] = n
	}
	for _, i := range a.superseded {
		d := &batch[at[i.Group]]
		d.Missed = append(d.Missed, Missed{Change: i.Change, Time: i.Pending})
	}
}

// settle draws the conclusions from an attempt.
func (w *Worker) settle(r result, now time.Time) {
	w.measure(r)
	switch {
	case r.err == nil:
		w.accepted(r, now)
	case len(r.lost) > 0:
		w.discard(r.attempt, r.lost, now)
		w.Queue.Report(Report{Now: now, Dead: r.lost, Reason: ReasonLost, Error: r.err.Error()})
	case errors.Is(r.err, ErrRejected):
		w.rejected(r, now)
	default:
		w.refused(r, now)
	}
}

func (w *Worker) accepted(r result, now time.Time) {
	w.accept(r.attempt, now)
	r.answer.Progress = nil
	w.Queue.Report(Report{
		Now: now, Accepted: r.batch, Superseded: r.superseded, Answer: r.answer, Durable: w.Terms.Durable,
	})
	for _, i := range r.batch {
		w.Log.Debug("delivered", "id", i.ID, "status", r.answer.Status, "took", r.took)
	}
	if w.failures > 0 {
		w.Log.Info("sink recovered", "after", w.failures)
	}
	w.failures = 0
	if w.failing == 0 {
		w.lastErr = ""
	}
	w.Trouble(nil)
}

// rejected makes dead letters of what the destination will never take. A batch is taken apart first, because one of its
// members is to blame, unless it made progress.
func (w *Worker) rejected(r result, now time.Time) {
	report := Report{Now: now, Answer: r.answer, Error: r.err.Error(), Reason: ReasonRejected}
	report.Answer.Progress = nil
	if len(r.batch) > 1 && r.batch[0].Batch == 0 && r.answer.Progress == nil {
		w.end(r.attempt, nil, now)
		w.single = len(r.batch)
		report.Failed = r.batch
		w.Queue.Report(report)
		return
	}
	w.discard(r.attempt, r.all(), now)
	report.Dead = r.all()
	w.Queue.Report(report)
	if w.failing == 0 {
		w.lastErr = r.err.Error()
	}
}

// refused keeps what may be tried again, and gives up what is too old for that.
func (w *Worker) refused(r result, now time.Time) {
	old := w.expired(r, now)
	wish, _ := errors.AsType[*RetryAfter](r.err)
	blocked, shared := w.refuse(r.attempt, old, errors.Is(r.err, ErrBlocked), wish, now)
	if shared {
		w.failures++
	}
	report := Report{
		Now: now, Answer: r.answer, Error: r.err.Error(), Next: later(w.planned(r.lanes[0]), w.floor),
		Dead: old, Reason: ReasonExpired,
		Failed: slices.DeleteFunc(slices.Clone(r.batch), func(i *Item) bool { return slices.Contains(old, i) }),
	}
	if r.answer.Progress != nil {
		report.Batch = r.batch[0].Seq
	}
	if r.batch[0].Batch != 0 {
		report.Batch = r.batch[0].Batch
	}
	w.Queue.Report(report)

	level := slog.LevelDebug
	if w.lastErr != r.err.Error() {
		w.lastErr, level = r.err.Error(), slog.LevelWarn
	}
	w.Log.Log(context.Background(), level, "delivery failed, trying again", "id", r.batch[0].ID, "err", r.err,
		"next", report.Next.UTC())
	if blocked {
		w.Log.Error("sink blocked: nothing is lost, but somebody must act", "err", r.err)
		w.Trouble(r.err)
	}
}

// expired are the items of an attempt that are too old to be tried again. When a delivery stood for others, these go
// with it.
func (w *Worker) expired(r result, now time.Time) []*Item {
	if w.Terms.MaxAge <= 0 {
		return nil
	}
	old := slices.DeleteFunc(slices.Clone(r.batch), func(i *Item) bool { return now.Sub(i.Since()) <= w.Terms.MaxAge })
	groups := map[string]bool{}
	for _, i := range old {
		groups[i.Group] = true
	}
	for _, i := range r.superseded {
		if groups[i.Group] {
			old = append(old, i)
		}
	}
	return old
}
