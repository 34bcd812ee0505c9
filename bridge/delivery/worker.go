package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

const (
	cutPatience = time.Second // how long a canceled attempt may take to return
	maxSleep    = time.Minute // so that a step of the clock, by which items become due, is noticed
)

// A Config configures a Worker.
type Config struct {
	Route   string // name of the route
	Sink    Sink
	Terms   Terms
	Queue   Queue
	Secrets []string       // files with credentials; when one changes, the worker tries again at once
	Log     *slog.Logger   // nil to log nothing
	Meter   Meter          // nil to count nothing
	Random  func() float64 // in [0,1), for jitter; nil for that of math/rand
	// Trouble is called with the reason after each failed attempt while the route is blocked, each time,
	// because something worth telling may have become pending since. It is called with nil whenever the route accepts.
	Trouble func(why error)
	// Told returns what the route repeats every Terms.Repeat; nil for nothing. It must be safe for concurrent use.
	Told func() []Told
}

// A Worker delivers what is pending for one route. All methods but State, deliver and call belong to the goroutine of
// Run.
type Worker struct {
	Config
	*schedule

	failures int    // failed attempts since the last acceptance, without those that count only for their lane
	lastErr  string // of the deliveries that failed and are pending
	deadErr  string // of the last dead letter since an acceptance
	secrets  secrets
	repeats  repeats

	mu    sync.Mutex
	state State
}

// A State is the state of a route.
type State struct {
	Blocked  bool
	Refused  bool      // there was an ErrBlocked answer since the last acceptance
	Retrying bool      // deliveries wait because an attempt failed
	Error    string    // of that attempt, or of the last dead letter since an acceptance
	Next     time.Time // of the next attempt; zero while one is under way or nothing is pending
	Waits    Reason    // why that isn't now
	Since    time.Time // when the oldest attempt under way began; zero for none

	Muted   int       // number of deliveries that a mute holds back
	Oldest  time.Time // since when the oldest other delivery waits: of those about a group, or else of all; zero for none
	OfGroup bool      // that one is about a group
}

// NewWorker returns a Worker. It starts nothing before Run.
func NewWorker(c Config) *Worker {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Meter == nil {
		c.Meter = NoMeter{}
	}
	if c.Trouble == nil {
		c.Trouble = func(error) {}
	}
	if c.Terms.Late != LateLatest {
		c.Terms.DigestAbove = 0
	}
	c.Log = c.Log.With("sink", c.Route)
	w := &Worker{Config: c, schedule: newSchedule(c.Terms), secrets: secrets{files: c.Secrets}}
	w.repeats = repeats{every: c.Terms.Repeat, told: c.Told}
	if c.Random != nil {
		w.random = c.Random
	}
	return w
}

// State returns the state of the route. It is safe for concurrent use.
func (w *Worker) State() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// Run delivers until stop is closed; then it finishes attempts under way, makes the first attempts that are due, and
// returns. When leave is closed, because another worker takes over once this one has ended, it only finishes attempts
// under way, and lets what is pending fall back meanwhile. When ctx is done, attempts under way are canceled, and Run
// returns as soon as they do. It must be called once.
func (w *Worker) Run(ctx context.Context, stop, leave <-chan struct{}) {
	done := make(chan result, max(1, w.Terms.Parallel))
	timer := time.NewTimer(math.MaxInt64) // never, until it is set
	defer timer.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		if closed(leave) {
			leave, w.leaving = nil, true
		}
		w.update(now)
		wake := w.attempts(ctx, now, done)
		if (w.stopping || w.leaving) && !w.working() {
			return
		}
		if !wake.IsZero() {
			timer.Reset(min(time.Until(w.secrets.wake(wake, now)), maxSleep))
		}
		select {
		case <-w.Queue.Changed():
		case <-timer.C:
		case r := <-done:
			r.cut = ctx.Err() != nil
			w.settle(r, time.Now())
		case <-stop:
			stop = nil
			w.stop(time.Now())
		case <-leave:
		case <-ctx.Done():
		}
	}
	w.cutOff(done)
}

// working reports whether the sink is at work.
func (w *Worker) working() bool { return len(w.underWay) > 0 || w.repeats.active }

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// update applies changes of the queue, of the time, and of the secret files.
func (w *Worker) update(now time.Time) {
	changes := w.Queue.Changes()
	w.setMutes(changes.Mutes, now)
	for _, seq := range changes.Gone {
		w.remove(seq, now)
	}
	for _, i := range changes.Pending {
		w.put(i, now)
		w.repeats.drop(i.Group)
	}
	late, fallback := w.takeOverdue(now)
	if len(fallback) > 0 {
		w.Queue.Report(Report{Now: now, FellBack: fallback, Error: w.lastErr})
	}
	if len(late) > 0 {
		var muted []*Item // they waited for a mute, so the next change replaces them, unless they became late since
		late = slices.DeleteFunc(late, func(i *Item) bool {
			at := w.lateAt(i)
			replaced := w.waited(i) && (at.IsZero() || at.After(now))
			if replaced {
				muted = append(muted, i)
			}
			return replaced
		})
		w.Queue.Report(Report{Now: now, Dead: late, Superseded: muted, Reason: ReasonLate})
	}
	if w.secrets.changed(now) {
		w.Log.Info("secret file changed; trying again at once")
		w.restart(now)
	}
}

// attempts starts every attempt that may be made now. It returns when there may be more to do; zero if that depends on
// something other than time.
func (w *Worker) attempts(ctx context.Context, now time.Time, done chan<- result) time.Time {
	for {
		var a attempt
		if !w.repeats.active {
			a = w.attempt(now)
		}
		if len(a.batch) == 0 {
			w.repeat(ctx, now, done)
			next, why, deadline := w.wake(now)
			if w.repeats.active {
				next = time.Time{}
			}
			wake := earlier(earlier(next, deadline), w.repeats.next)
			if len(w.underWay) > 0 {
				next = time.Time{}
			}
			if w.retrying == 0 {
				w.lastErr = ""
			}
			state := State{
				Blocked: w.health == blocked, Refused: w.refusals > 0, Retrying: w.retrying > 0,
				Error: cmp.Or(w.lastErr, w.deadErr), Next: next, Waits: why, Since: w.oldestBegan(), Muted: w.muted,
			}
			if l := w.ages.top(); l != nil {
				state.Oldest, state.OfGroup = l.since, l.group != ""
			}
			w.mu.Lock()
			w.state = state
			w.mu.Unlock()
			return wake
		}
		go func() { done <- w.deliver(ctx, a) }()
	}
}

// cutOff waits for canceled attempts, to record those that were still accepted. It waits at most cutPatience, because a
// sink may ignore its context.
func (w *Worker) cutOff(done <-chan result) {
	patience := time.After(cutPatience)
	for w.working() {
		select {
		case r := <-done:
			r.cut = true
			w.settle(r, time.Now())
		case <-patience:
			w.Log.Error("sink does not return after its context is done; this is a bug in forewarn")
			return
		}
	}
}

// A result is a finished attempt.
type result struct {
	attempt
	repeated bool    // it is a repeat, and all else is without meaning but err
	cut      bool    // it was canceled, so its error says nothing about the destination
	unsent   bool    // a CloudEvent could not be read, so nothing was sent
	lost     []*Item // items of the batch whose CloudEvents are gone
	answer   Answer
	err      error
	took     time.Duration
}

// errNoAnswer is the cause of an attempt that timed out.
var errNoAnswer = errors.New("no answer")

// deliver makes the attempt. It runs in its own goroutine, and uses only immutable fields of the worker.
func (w *Worker) deliver(ctx context.Context, a attempt) (r result) {
	r = result{attempt: a}
	batch := make([]Delivery, len(a.batch))
	for n, i := range a.batch {
		d, err := w.Queue.Read(i)
		if errors.Is(err, ErrSettled) {
			return result{attempt: a, unsent: true, err: err}
		}
		if err != nil {
			r.err = err
			if errors.Is(err, ErrLost) {
				r.lost = append(r.lost, i)
			}
			continue
		}
		d.NotBefore, d.Attempt, d.Progress = i.NotBefore, i.Attempts+1, i.Progress
		d.FallbackFor = i.FallbackFor
		mute := MuteOf(a.mutes, i)
		if !mute.Active() { // one that began as the attempt did holds back only what comes after it
			d.Mute = mute
		}
		batch[n] = d
	}
	if r.err != nil {
		r.unsent = true
		return r
	}
	addMissed(batch, a)
	w.call(ctx, &r, batch)
	return r
}

// call has the sink deliver a batch, within the time for one attempt.
func (w *Worker) call(ctx context.Context, r *result, batch []Delivery) {
	if w.Terms.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.Terms.Timeout,
			fmt.Errorf("%w within %s", errNoAnswer, Readable(w.Terms.Timeout)))
		defer cancel()
	}
	defer func() {
		r.took = time.Since(r.began)
		if p := recover(); p != nil {
			r.err = fmt.Errorf("the sink panicked: %v", p)
			w.Log.Error("sink panicked; this is a bug in forewarn", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	r.answer, r.err = w.Sink.Deliver(ctx, batch)
	cause := context.Cause(ctx)
	definite := errors.Is(r.err, ErrRejected) || errors.Is(r.err, ErrBlocked) || errors.Is(r.err, cause)
	if r.err != nil && cause != nil && !definite {
		r.err = fmt.Errorf("%w (%w)", cause, r.err)
	}
}

// addMissed adds to each delivery the older changes that it replaces.
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
		d.Missed = append(d.Missed, Missed{Change: i.Change, Time: i.PendingSince})
	}
}

// settle handles the result of an attempt.
func (w *Worker) settle(r result, now time.Time) {
	if r.repeated {
		w.repeats.active = false
		w.Log.Debug("repeated", "status", r.answer.Status, "err", r.err)
		return
	}
	notYet, putOff := errors.AsType[*NotYet](r.err)
	if putOff || r.unsent {
		w.Queue.Report(Report{Now: now, Untried: r.batch})
	}
	if putOff {
		w.postpone(r.attempt, notYet.Until, now)
		return
	}
	w.measure(r)
	switch {
	case r.err == nil:
		w.handleAccepted(r, now)
	case errors.Is(r.err, ErrSettled):
		w.end(r.attempt, nil, now) // update removes it, and what else is in the batch is attempted again
	case len(r.lost) > 0:
		w.discard(r.attempt, r.lost, now)
		w.deadErr = r.err.Error()
		w.report(Report{Now: now, Dead: r.lost, Reason: ReasonLost, Error: w.deadErr})
	case errors.Is(r.err, ErrRejected):
		w.handleRejected(r, now)
	default:
		w.handleFailed(r, now)
	}
}

// report passes the results of an attempt to the queue.
func (w *Worker) report(r Report) {
	r.Durable = w.Terms.Durable
	w.Queue.Report(r)
}

func (w *Worker) handleAccepted(r result, now time.Time) {
	w.accept(r.attempt, now)
	w.report(Report{Now: now, Accepted: r.batch, Superseded: r.superseded, Answer: r.answer})
	for _, i := range r.batch {
		w.Log.Debug("delivered", "id", i.ID, "status", r.answer.Status, "took", r.took)
	}
	if w.failures > 0 {
		w.Log.Info("sink recovered", "after", w.failures)
	}
	w.failures, w.deadErr = 0, ""
	w.Trouble(nil)
}

// comesApart reports whether the deliveries of a batch that was rejected, or could not be read, are tried one by one,
// because only one of them may be the cause. Those of a batch that made progress stay together.
func (r result) comesApart() bool {
	return len(r.batch) > 1 && r.batch[0].Batch == 0 && r.answer.Progress == nil
}

// batchNumber returns the number of a batch that made progress, 0 for one that made none now.
func (r result) batchNumber() uint64 {
	if r.answer.Progress == nil {
		return 0
	}
	return cmp.Or(r.batch[0].Batch, r.batch[0].Seq)
}

// handleRejected makes dead letters of a rejected batch, unless it comes apart.
func (w *Worker) handleRejected(r result, now time.Time) {
	report := Report{Now: now, Answer: r.answer, Batch: r.batchNumber(), Error: r.err.Error(), Reason: ReasonRejected}
	if r.comesApart() {
		w.takeApart(r.attempt, now)
		report.Failed = r.batch
		w.report(report)
		return
	}
	w.discard(r.attempt, r.all(), now)
	report.Dead, report.Untried = r.all(), r.superseded
	w.report(report)
	w.deadErr = report.Error
}

// handleFailed plans another attempt after a failure that may pass, and makes dead letters of items too old for one.
func (w *Worker) handleFailed(r result, now time.Time) {
	v := verdict{ofLane: r.unsent || r.answer.Progress != nil, blocked: errors.Is(r.err, ErrBlocked)}
	v.wish, _ = errors.AsType[*RetryAfter](r.err)
	switch {
	case r.unsent && r.comesApart():
		w.takeApart(r.attempt, now) // those that can be read get through
		return
	case r.unsent:
		w.planRetry(r.attempt, nil, v, now)
		w.logFailure(r, w.nextOf(r.lanes, now))
		return
	}
	old := w.expired(r, now)
	was := w.health
	if w.planRetry(r.attempt, old, v, now) {
		w.failures++
	}
	report := Report{
		Now: now, Answer: r.answer, Batch: r.batchNumber(), Error: r.err.Error(), Next: w.nextOf(r.lanes, now),
		Dead: old, Untried: r.superseded, Reason: ReasonExpired,
		Failed: slices.DeleteFunc(slices.Clone(r.batch), func(i *Item) bool { return slices.Contains(old, i) }),
	}
	if r.cut {
		report.Error = ""
	}
	if len(old) > 0 {
		w.deadErr = report.Error
	}
	w.report(report)
	if slices.ContainsFunc(r.batch, func(i *Item) bool { return w.index[i.Seq] != nil }) {
		w.logFailure(r, report.Next)
	} else if len(old) == 0 {
		w.Log.Warn("delivery failed, and is not tried again: it is no longer pending", "id", r.batch[0].ID, "err", r.err)
	}
	if w.health != blocked {
		return
	}
	if was != blocked {
		w.Log.Warn("sink blocked; it is asked once a minute", "err", r.err)
	}
	w.Trouble(r.err)
}

// logFailure logs why an attempt failed, as a warning if that is news.
func (w *Worker) logFailure(r result, next time.Time) {
	level := slog.LevelDebug
	if w.lastErr != r.err.Error() {
		w.lastErr, level = r.err.Error(), slog.LevelWarn
	}
	w.Log.Log(context.Background(), level, "delivery failed; trying again", "id", r.batch[0].ID, "err", r.err,
		"next", next.UTC())
}

// expired returns the items of an attempt that are too old for another one, with the older items that they replace. One
// that was canceled counts as none.
func (w *Worker) expired(r result, now time.Time) []*Item {
	if w.Terms.MaxAge <= 0 || r.cut {
		return nil
	}
	old := slices.DeleteFunc(slices.Clone(r.batch), func(i *Item) bool { return now.Sub(w.since(i)) <= w.Terms.MaxAge })
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
