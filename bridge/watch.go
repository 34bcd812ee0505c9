package bridge

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"forewarn/bridge/imds"
)

// Timing of the poll loop.
const (
	defaultInterval    = time.Second
	firstAnswerTimeout = 150 * time.Second // for the first answer: Azure can take two minutes to switch events on
	switchedOff        = 24 * time.Hour    // time without a poll after which Azure switches events off
	answerTimeout      = 10 * time.Second  // for later answers
	slowRetry          = 30 * time.Second  // after an answer that stays the same until somebody acts
	longestRetry       = time.Minute       // bound of Retry-After: a Spot VM has half a minute's notice
	fullPoll           = time.Minute       // interval of unconditional polls
	gapAbove           = 10 * time.Second  // longer times between valid answers are a gap
	awayAbove          = time.Minute       // changes found after longer times were missed meanwhile (whileAway)
	slowFirst          = 10 * time.Second  // time without a first answer after which a hint is logged
)

// pollBackoff are the waits after failed polls, before jitter; the last one repeats.
var pollBackoff = []time.Duration{1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second}

// watch polls until ctx is done.
func (b *Bridge) watch(ctx context.Context) {
	w := watcher{Bridge: b}
	slow := time.AfterFunc(slowFirst, func() {
		b.log.Info("no answer yet; Azure's first answer can take two minutes", "endpoint", b.client.Endpoint())
	})
	defer slow.Stop()
	var handled chan struct{} // the last that was closed
	for ctx.Err() == nil {
		began, polled := time.Now(), b.awaitedPoll()
		wait := w.poll(ctx)
		if wait > 0 { // else the document is asked for again at once
			b.recordTurn(&b.imds.lastTurn)
			if polled != handled {
				close(polled)
				handled = polled
			}
		}
		b.options.Turned()
		slow.Stop() // the first poll has ended, and has logged its error
		select {
		case <-time.After(wait - time.Since(began)):
		case <-ctx.Done():
		}
	}
}

// A watcher is the state of the poll loop. Only its goroutine uses it.
type watcher struct {
	*Bridge

	waited   bool      // has waited for the observer's name
	last     time.Time // the last valid answer since the start
	full     time.Time // the last unconditional poll
	empty    bool      // the last answer was empty
	failures int
	problems map[string]bool // of the last document

	buffer bytes.Buffer // of answers
	seen   imds.Seen    // the last document
	done   bool         // its changes are committed
	clean  bool         // it was wholly understood
	etag   string       // its ETag if done and clean, for the next poll
}

// poll polls once and handles the result. It returns the time from the start of this poll to the next.
func (w *watcher) poll(ctx context.Context) time.Duration {
	limit := answerTimeout
	if w.last.IsZero() && w.lastAnswer().age(time.Now()) > switchedOff {
		limit = firstAnswerTimeout
	}
	if w.reread.Swap(false) {
		w.done, w.etag = false, ""
	}
	etag := w.etag
	if time.Since(w.full) >= fullPoll {
		etag = ""
	}
	polling, cancel := context.WithTimeoutCause(ctx, limit, noAnswer(limit))
	defer cancel()
	known := imds.Seen{Buffer: &w.buffer}
	if w.done {
		known = w.seen
	}
	p := w.client.PollUnless(polling, etag, known)
	if ctx.Err() != nil {
		return 0
	}
	w.meter.Polled(p.Class)
	now := time.Now()
	w.notePause()
	if etag == "" {
		w.full = now
	}
	wasEmpty := w.empty
	w.empty = p.Class == imds.PollEmpty
	switch {
	case p.Err != nil:
		w.etag = ""
		return w.failed(p)
	case w.empty && !wasEmpty:
		w.etag = "" // an empty answer counts once the next one is empty too
		return w.options.Interval
	case !w.waited:
		w.waited = true
		if w.awaitName(ctx, w.nameLimit()) > w.options.Interval {
			return 0 // the answer is too old by now: ask again
		}
	}
	w.reached(now)
	if w.awaitsName(now) && mayWait(p.Document.Events, now) {
		return w.options.Interval // this answer doesn't count; the next one brings all of it again
	}
	w.answered(ctx, p, now)
	return w.options.Interval
}

// mayWait reports whether none of the events is a Preempt, has begun, or may begin soon.
func mayWait(events []imds.Event, now time.Time) bool {
	return !slices.ContainsFunc(events, func(e imds.Event) bool { return e.Type == "Preempt" || isUrgent(e, now) })
}

// noAnswer is the error of a poll that timed out after this duration.
type noAnswer time.Duration

func (d noAnswer) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(d)) }

// failed records a failed poll, and returns the time to the next one.
func (w *watcher) failed(p imds.Poll) time.Duration {
	w.failures++
	w.mu.Lock()
	news := w.imds.lastErr != p.Err.Error()
	w.imds.lastErr = p.Err.Error()
	w.mu.Unlock()
	if news {
		hint := "trying again"
		if w.last.IsZero() {
			hint = imds.EndpointHint(w.client.Endpoint())
		}
		w.log.Warn("no valid answer from the endpoint; known events stay", "endpoint", w.client.Endpoint(), "err", p.Err,
			"hint", hint)
	}
	if p.Class == imds.PollSettings {
		return slowRetry
	}
	d := pollBackoff[min(w.failures, len(pollBackoff))-1]
	return max(w.jitter(d), min(p.RetryAfter, longestRetry))
}

// reached records that the endpoint has given a valid answer.
func (w *watcher) reached(now time.Time) {
	w.mu.Lock()
	w.imds = imdsState{lastAnswer: now, lastTurn: w.imds.lastTurn, problems: w.imds.problems, full: w.imds.full}
	w.mu.Unlock()
	if w.failures > 0 {
		w.log.Info("endpoint answers again", "after", w.failures)
		w.failures = 0
	}
}

// answered handles a valid answer.
func (w *watcher) answered(ctx context.Context, p imds.Poll, now time.Time) {
	first, before := w.last.IsZero(), w.lastAnswer()
	w.last = now
	o := observation{now: now, before: before.At, since: before.age(now)}
	o.away = first || o.since > awayAbove
	o.rebooted = !before.At.IsZero() && w.options.Booted.After(before.At)
	if first {
		w.reportStarted(before.At, now)
	}
	if w.reported(valueUnavailable) {
		w.reportRecovered(before.At, now)
	}
	w.document(p, before, o)
	if ctx.Err() == nil {
		w.beginActing()
	}
}

// document takes in a valid answer, and its document if that is a new one.
func (w *watcher) document(p imds.Poll, before lastAnswer, o observation) {
	etag, number := p.ETag, before.Incarnation // copied, so that the answer can be freed while take waits for the disk
	if p.Class == imds.PollDocument {
		number = p.Document.Incarnation
	}
	a := lastAnswer{At: o.now, Incarnation: number}
	if p.Class == imds.PollUnchanged {
		w.take(nil, a, o)
		return
	}
	if p.Seen || p.Sum == w.seen.Sum && w.done {
		w.take(nil, a, o)
	} else {
		number, version := p.Document.Incarnation, p.Document.APIVersion
		if p.Sum != w.seen.Sum && number == w.seen.Incarnation && version == w.seen.Version && number != "" {
			w.log.Warn("the document changed but its incarnation did not", "incarnation", number)
		}
		w.report(p.Document.Problems)
		w.seen = imds.Seen{Class: p.Class, Sum: p.Sum, Version: version, Incarnation: number, Buffer: &w.buffer}
		w.clean = p.Class == imds.PollDocument && len(p.Document.Problems) == 0
		w.done = w.take(&p.Document, a, o)
		w.noteDoubts(p.Document)
	}
	w.etag = ""
	if w.done && w.clean {
		w.etag = etag
	}
}

// report logs the problems of a document that the one before did not have.
func (w *watcher) report(problems []string) {
	seen := make(map[string]bool, len(problems))
	for _, p := range problems {
		if !w.problems[p] {
			w.log.Warn("part of the document cannot be read", "problem", p)
		}
		seen[p] = true
	}
	w.problems = seen
	w.mu.Lock()
	w.imds.problems = problems
	w.mu.Unlock()
}
