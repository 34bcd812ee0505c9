package bridge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"forewarn/bridge/imds"
)

// The timing of the poll loop.
const (
	DefaultInterval = time.Second
	firstPatience   = 150 * time.Second // for the first answer: Azure may take two minutes to switch events on,
	switchedOff     = 24 * time.Hour    // which it switches off when nobody asks for so long
	patience        = 10 * time.Second  // for later ones
	slowRetry       = 30 * time.Second  // after an answer that will be the same until somebody acts
	longestRetry    = time.Minute       // whatever the endpoint asks for: a Spot VM has half a minute's notice
	fullPoll        = time.Minute       // how often a poll is unconditional whatever the ETag
	gapAbove        = 10 * time.Second  // between valid answers
	awayAbove       = time.Minute       // without a valid answer; what is found then was found late
	slowFirst       = 10 * time.Second  // without an answer: say why that may be
)

// pollBackoff are the waits after failed polls, with jitter; the last one stays.
var pollBackoff = []time.Duration{1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second}

// watch polls until ctx is done.
func (b *Bridge) watch(ctx context.Context) {
	w := watcher{Bridge: b}
	slow := time.AfterFunc(slowFirst, func() {
		b.Log.Info("no answer yet: the first one can take Azure two minutes", "endpoint", b.Client.Endpoint())
	})
	defer slow.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		wait := w.poll(ctx)
		b.turned(&b.imds.turned)
		b.Turned()
		slow.Stop() // whatever the first poll brought is known now, and logged if it was an error
		select {
		case <-time.After(wait - time.Since(began)):
		case <-ctx.Done():
		}
	}
}

// A watcher is the state of the poll loop, and belongs to its goroutine.
type watcher struct {
	*Bridge

	waited   bool      // for the observer's name
	last     time.Time // the last valid answer since the start
	full     time.Time // the last unconditional poll
	empty    bool      // the last answer was empty
	failures int
	problems map[string]bool // of the last document

	body    [sha256.Size]byte // of the last document
	buffer  bytes.Buffer      // of answers
	number  string            // its incarnation
	version string            // the api-version it was asked with
	done    bool              // what it changes is committed, and nothing else was read since
	clean   bool              // it was wholly understood
	etag    string            // its own, if it is done and clean; for the next poll
}

// poll asks once and draws the conclusions. It returns the time to the next poll, from the beginning of this one.
func (w *watcher) poll(ctx context.Context) time.Duration {
	limit := patience
	if w.last.IsZero() && w.lastAnswer().since(time.Now()) > switchedOff {
		limit = firstPatience
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
	if w.done && w.clean {
		known = imds.Seen{Sum: w.body, Version: w.version, Incarnation: w.number, Buffer: &w.buffer}
	}
	p := w.Client.PollUnless(polling, etag, known)
	if ctx.Err() != nil {
		return 0
	}
	w.Meter.Polled(p.Class)
	now := time.Now()
	w.notePause()
	if etag == "" && p.Err == nil {
		w.full = now
	}
	wasEmpty := w.empty
	w.empty = p.Class == imds.PollEmpty
	switch {
	case p.Err != nil:
		w.etag = ""
		return w.failed(p)
	case w.empty && !wasEmpty:
		w.etag = "" // it counts when the next one says so too
		return w.Interval
	case w.last.IsZero() && !w.waited:
		w.waited = true
		if w.awaitName(ctx) > w.Interval {
			return 0 // asked again, because the answer is old now
		}
	}
	w.answered(p, now)
	return w.Interval
}

// noAnswer is the error of a poll that took so long.
type noAnswer time.Duration

func (d noAnswer) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(d)) }

// failed notes a failed poll, which changes nothing else.
func (w *watcher) failed(p imds.Poll) time.Duration {
	w.failures++
	w.mu.Lock()
	news := w.imds.lastErr != p.Err.Error()
	w.imds.lastErr = p.Err.Error()
	w.mu.Unlock()
	if news {
		hint := "trying again"
		if w.last.IsZero() {
			hint = EndpointHint(w.Client.Endpoint())
		}
		w.Log.Warn("the endpoint gave no valid answer; what is known stays", "endpoint", w.Client.Endpoint(), "err", p.Err,
			"hint", hint)
	}
	if p.Class == imds.PollSettings {
		return slowRetry
	}
	d := pollBackoff[min(w.failures, len(pollBackoff))-1]
	return max(w.jitter(d), min(p.RetryAfter, longestRetry))
}

// EndpointHint is what to look at when an endpoint gave no valid answer yet.
func EndpointHint(endpoint string) string {
	if endpoint == imds.DefaultEndpoint {
		return "is this an Azure VM? To see what forewarn does elsewhere: forewarn demo"
	}
	return "this is not Azure's own endpoint, " + imds.DefaultEndpoint + ": is its address right, and does it run? See imds.endpoint in the settings"
}

// answered takes a valid answer.
func (w *watcher) answered(p imds.Poll, now time.Time) {
	first := w.last.IsZero()
	w.last = now
	w.mu.Lock()
	unavailable := w.imds.told
	w.imds = imdsState{lastAnswer: now, turned: w.imds.turned, problems: w.imds.problems, full: w.imds.full}
	w.mu.Unlock()
	if w.failures > 0 {
		w.Log.Info("the endpoint answers again", "after", w.failures)
		w.failures = 0
	}

	before := w.lastAnswer()
	next := lastAnswer{At: now, Incarnation: before.Incarnation}
	if p.Class == imds.PollDocument {
		next.Incarnation = p.Document.Incarnation
	}
	w.noteAnswer(next, !before.At.IsZero() && w.Booted.After(before.At))
	if first {
		w.tellStarted(before.At, now)
	}
	if unavailable {
		w.tellRecovered(before.At, now)
	}
	if p.Class != imds.PollUnchanged {
		w.document(p, moment{now: now, before: before.At, away: first || before.since(now) > awayAbove})
	}
}

// document takes what a valid answer holds.
func (w *watcher) document(p imds.Poll, m moment) {
	etag := p.ETag // the rest of the answer need not stay until it is on disk
	if !p.Seen && (p.Sum != w.body || !w.done) {
		if p.Sum != w.body && p.Document.Incarnation == w.number && p.Document.APIVersion == w.version && w.number != "" &&
			len(p.Body) > 0 {
			w.Log.Warn("the document changed under one incarnation", "incarnation", w.number)
		}
		w.report(p.Document.Problems)
		w.body, w.number, w.version = p.Sum, p.Document.Incarnation, p.Document.APIVersion
		w.clean = p.Class == imds.PollDocument && len(p.Document.Problems) == 0
		w.done = w.handle(p.Document, m)
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
			w.Log.Warn("the document holds something that cannot be understood", "problem", p)
		}
		seen[p] = true
	}
	w.problems = seen
	w.mu.Lock()
	w.imds.problems = problems
	w.mu.Unlock()
}
