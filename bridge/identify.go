package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"forewarn/bridge/imds"
)

// How long things wait until it is known which VM this is.
const (
	nameForFirst   = 3 * time.Second  // the first document
	nameForBacklog = 10 * time.Second // the same, where the outbox may turn out to be another VM's
	nameForFilters = time.Minute      // filters,
	nameRefused    = 3 * time.Second  // unless so long it is said that there is none
	heldGrace      = 10 * time.Second // what a filter has to decide after that, before its deliveries go undecided
)

// setObserver merges what was learnt with what is set. mu is held, or nobody else knows b.
func (b *Bridge) setObserver(o imds.Observer) {
	if o != (imds.Observer{}) {
		b.observer = o
	}
	if b.VMName != "" {
		b.observer.Name = b.VMName
	}
}

// self is the observer as CloudEvents about the bridge name it.
func (b *Bridge) self() imds.Observer {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.observer
	if o.Name == "" {
		o.Name = b.Host
	}
	return o
}

// observerName is this VM's name in events, "" while it is not known.
func (b *Bridge) observerName() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.observer.Name
}

// identify asks who this VM is until it is known.
func (b *Bridge) identify(ctx context.Context) {
	answered := sync.OnceFunc(func() { close(b.identified) })
	var refused time.Time // since when there is said to be no answer
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		o, err := b.askInstance(ctx)
		if err == nil {
			b.learn(o)
			answered()
			return
		}
		var answer *imds.AnswerError
		if errors.As(err, &answer) && (answer.Final() || answer.Lasting()) {
			answered() // it may be another VM's backlog that waits, so what is over in a moment is waited for
		}
		if answer == nil || !answer.Lasting() {
			refused = time.Time{}
		} else if refused.IsZero() {
			refused = time.Now()
		}
		b.unidentified(err, answer != nil && answer.Final() || !refused.IsZero() && time.Since(refused) >= nameRefused)
		b.Log.Debug("instance metadata does not say who this VM is", "err", err)
		select {
		case <-time.After(b.jitter(wait)):
		case <-b.identity:
			wait = time.Second / 2
		case <-ctx.Done():
			return
		}
	}
}

// unidentified notes why it is not known which VM this is, and whether there is no use in waiting for that.
func (b *Bridge) unidentified(err error, useless bool) {
	b.mu.Lock()
	news := useless && !b.nameless.useless
	b.nameless = nameless{err.Error(), b.nameless.useless || useless}
	unnamed := b.observer.Name == ""
	b.mu.Unlock()
	if news && unnamed {
		b.Log.Warn("instance metadata does not say which VM this is, so sinks hear of every VM's events",
			"err", err, "hint", nameHint)
		b.decideHeld(time.Now())
	}
}

// nameHint is what helps while this VM's name is not known.
const nameHint = "set imds.vm_name"

// nameless is why this VM's name was not learnt.
type nameless struct {
	err     string // "" before the first answer
	useless bool   // to wait for it
}

// unnamed says that filters no longer wait for this VM's name. mu is held.
func (b *Bridge) unnamed(now time.Time) bool {
	return b.nameless.useless || now.Sub(b.began) > nameForFilters
}

// nameWarning says what it means that this VM's name is not known; "" while that is nothing to speak of. mu is held.
func (b *Bridge) nameWarning(now time.Time) string {
	switch {
	case b.observer.Name != "" || b.nameless.err == "":
		return ""
	case b.unnamed(now):
		return "this VM's name is not known, so sinks hear of every VM's events; " + nameHint + ": " + b.nameless.err
	}
	return "waiting for this VM's name until " + b.began.Add(nameForFilters).UTC().Format(time.TimeOnly) +
		" UTC; until then sinks that are told of its events only hear nothing; " + nameHint + ": " + b.nameless.err
}

// approverName is this VM's name as rules of approval go by it: the one that is set, or that instance metadata gave in
// this run; "" while there is none. The one on the disk may be another machine's, of which this was given a copy.
func (b *Bridge) approverName() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.VMName == "" && !b.learned {
		return ""
	}
	return b.observer.Name
}

func (b *Bridge) askInstance(ctx context.Context) (imds.Observer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	return b.Client.Instance(ctx)
}

// awaitName waits until instance metadata has said who this VM is, but not for ever: it may be out of reach just when
// what is owed matters. It returns how long that took.
func (b *Bridge) awaitName(ctx context.Context) time.Duration {
	began := time.Now()
	limit := nameForFirst
	if b.Outbox.Owner() != "" && b.events.count()+b.Outbox.Totals().Pending > 0 {
		limit = nameForBacklog
	}
	select {
	case b.identity <- struct{}{}:
	default:
	}
	select {
	case <-b.identified:
	case <-ctx.Done():
	case <-b.over:
	case <-time.After(limit):
		b.Log.Warn("instance metadata does not answer; going on without knowing for sure which VM this is")
	}
	return time.Since(began)
}

// learn takes what instance metadata says.
func (b *Bridge) learn(o imds.Observer) {
	b.deciding.Lock()
	fresh, err := b.Outbox.Own(o.VMID)
	if fresh { // what was known was another VM's
		b.events.clear()
		b.reread.Store(true)
	}
	b.deciding.Unlock()
	if err != nil {
		b.Log.Debug("the outbox could not be made this VM's own", "err", err)
	}
	b.mu.Lock()
	if fresh {
		b.answer = lastAnswer{}
	}
	before := b.observer
	b.learned = true
	b.setObserver(o)
	now := b.observer
	b.mu.Unlock()
	if now != before || fresh {
		b.Log.Info("this VM", "name", now.Name, "vmId", now.VMID, "scaleSet", now.ScaleSet, "location", now.Location)
		wait := b.keepValue(valueObserver, imds.CompactJSON(now))
		_ = wait() // the outbox says when it can't write
	}
	b.decideHeld(time.Now())
}
