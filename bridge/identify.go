package bridge

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"forewarn/bridge/clock"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// Timeouts for the identity of this VM.
const (
	nameForFirst   = 3 * time.Second  // before the first document is handled
	nameForBacklog = 10 * time.Second // the same, if the outbox may belong to another VM
	nameForFilters = time.Minute      // before filters decide without a name
	nameRefused    = 3 * time.Second  // after this long of lasting refusals, nobody waits any longer
)

// setObserver sets the observer; VMName overrides its name. The caller holds mu, or b is not shared yet.
func (b *Bridge) setObserver(o imds.Observer) {
	if o != (imds.Observer{}) {
		b.observer = o
	}
	if b.options.VMName != "" {
		b.observer.Name = b.options.VMName
	}
}

// self returns the observer for CloudEvents about the bridge, which always has a name and an OSType.
func (b *Bridge) self() imds.Observer {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.observer
	if o.Name == "" {
		o.Name = b.options.Host
	}
	o.OSType = cmp.Or(o.OSType, imds.ThisOS)
	return o
}

// identify asks instance metadata for the identity of this VM until it answers or ctx is done.
func (b *Bridge) identify(ctx context.Context) {
	settle := sync.OnceFunc(b.settleIdentity)
	var refused time.Time // start of the current run of lasting refusals; zero if there is none
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		o, err := b.askInstance(ctx)
		if err == nil {
			b.learn(o)
			settle()
			return
		}
		b.mu.Lock()
		b.whyUnnamed = err.Error()
		b.mu.Unlock()
		var answer *imds.AnswerError
		if !errors.As(err, &answer) || !answer.Lasting() {
			refused = time.Time{}
		} else if refused.IsZero() {
			refused = time.Now()
		}
		if answer != nil && answer.Final() || !refused.IsZero() && time.Since(refused) >= nameRefused {
			settle()
		}
		b.log.Debug("instance metadata gave no identity", "err", err)
		select {
		case <-time.After(b.jitter(wait)):
		case <-b.identity:
			wait = time.Second / 2
		case <-ctx.Done():
			return
		}
	}
}

// settleIdentity ends all waiting for the identity of this VM: it is known, or won't be soon.
func (b *Bridge) settleIdentity() {
	close(b.identified)
	b.mu.Lock()
	name, why := b.observer.Name, b.whyUnnamed
	b.mu.Unlock()
	if name == "" {
		b.log.Warn("VM name unknown; sinks get the events of every VM", "err", why, "hint", nameHint)
	}
}

const (
	nameHint   = "set imds.vm_name" // the remedy for an unknown VM name
	onlyUrgent = "sinks are told only of what begins within 15 minutes"
)

// awaitsName reports whether it is too early to decide about the first document of an installation, because this VM's
// name is unknown and may come soon. Later starts have the name that was stored.
func (b *Bridge) awaitsName(now time.Time) bool {
	select {
	case <-b.identified:
		return false
	default:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.observer.Name == "" && b.answer.At.IsZero() && now.Sub(b.began) <= nameForFilters
}

// nameWarning describes the consequences of an unknown VM name, for the status; "" for none.
func (b *Bridge) nameWarning(now time.Time) string {
	waits := b.awaitsName(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	why := nameHint + ": " + b.whyUnnamed
	switch {
	case b.observer.Name != "" || now.Sub(b.began) < nameForFirst:
		return ""
	case waits:
		return "waiting for the VM name until " + clock.Time(b.began.Add(nameForFilters), now, b.settings.Location()) +
			"; until then " + onlyUrgent + "; " + why
	}
	return "VM name unknown; sinks get the events of every VM; " + why
}

// approverName returns this VM's name for rules of approval: the configured one, or the one that instance metadata
// gave in this run; "" if there is none. It does not use the stored name, which may be another VM's if the disk was
// cloned.
func (b *Bridge) approverName() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.options.VMName == "" && !b.learned {
		return ""
	}
	return b.observer.Name
}

func (b *Bridge) askInstance(ctx context.Context) (imds.Observer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, noAnswer(answerTimeout))
	defer cancel()
	return b.client.Instance(ctx)
}

// nameLimit returns how long a start waits for the identity of this VM: longer if there is a backlog that may be another
// VM's.
func (b *Bridge) nameLimit() time.Duration {
	if b.outbox.Owner() != "" && b.hasBacklog() {
		return nameForBacklog
	}
	return nameForFirst
}

// awaitName waits a limited time for the identity of this VM, and returns how long that took. Instance metadata may be
// unavailable just when pending deliveries matter, so it does not wait longer.
func (b *Bridge) awaitName(ctx context.Context, limit time.Duration) time.Duration {
	began := time.Now()
	select {
	case b.identity <- struct{}{}:
	default:
	}
	select {
	case <-b.identified:
	case <-ctx.Done():
	case <-b.watchEnded:
	case <-time.After(limit):
		b.logUnconfirmed()
	}
	return time.Since(began)
}

// logUnconfirmed logs that the start continues though instance metadata has not confirmed the name of this VM.
func (b *Bridge) logUnconfirmed() {
	waits := b.awaitsName(time.Now())
	b.mu.Lock()
	until, why := b.began.Add(nameForFilters).UTC(), b.whyUnnamed
	b.mu.Unlock()
	if waits {
		b.log.Warn("waiting for the VM name; until then "+onlyUrgent, "until", until, "err", why, "hint", nameHint)
		return
	}
	b.log.Warn("instance metadata does not answer; continuing without a confirmed VM name")
}

// learn sets the identity that instance metadata gave. If the outbox belongs to another VM, it starts with an empty
// one.
func (b *Bridge) learn(o imds.Observer) {
	b.deciding.Lock()
	var fresh bool
	b.outbox.Update(time.Now(), func(tx *outbox.Tx) { fresh = tx.Own(o.VMID) })
	if fresh { // the state was another VM's
		b.events.load(map[string]*openEvent{})
		b.reread.Store(true)
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
	b.deciding.Unlock()
	if now != before || fresh {
		b.log.Info("this VM", "name", now.Name, "vmId", now.VMID, "scaleSet", now.ScaleSet, "location", now.Location)
		wait := b.keepValue(valueObserver, imds.CompactJSON(now))
		_ = wait() // the outbox logs its errors
	}
}
