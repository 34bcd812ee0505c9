package bridge

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// takeOver takes over an outbox's file that becomes readable only now, as a start does with that of the run before. It
// waits until it is known whether the file is this machine's, and then until a document has shown which of its events are
// over, before it delivers what is pending in it.
func (b *Bridge) takeOver(ctx context.Context) {
	select {
	case <-b.outbox.Returned():
		b.awaitName(ctx, nameForBacklog)
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return // the outbox takes it over when it is closed
	}
	b.log.Info("the outbox's file can be read now", "file", b.outbox.Path())
	b.reloading.Lock()
	routes := b.join()
	b.update(func() commit { return b.offerTo(routes, true) })
	b.reloading.Unlock()
	b.awaitPoll(ctx)
	b.outbox.ShowJoined()
	b.deliver(ctx)
}

// join merges what a late file holds with what is known already, which is newer. That is one change, so a crash can't
// lose what only one of them knew. It returns the routes in force. No worker starts before the next poll.
func (b *Bridge) join() (routes []Route) {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	b.mu.Lock()
	routes = b.routes
	b.delivering, b.current, b.polled = false, false, make(chan struct{})
	b.mu.Unlock()
	var was stored
	var c commit
	b.outbox.Update(time.Now(), func(tx *outbox.Tx) {
		file := tx.Join()
		tx.HoldActing(everyGroup)
		was = decodeStored(func(name string) []byte { return file.Values[name] }, file.Groups)
		added, _ := tx.NewRoutes(inOutbox(routes))
		for _, op := range was.events { // what was told of an earlier route of that name says nothing about this one
			op.forget(func(route string) bool { return slices.Contains(added, route) })
		}
		c = b.events.join(was.events, was.answer.At, b.options.Booted)
		b.apply(tx, c)
	})
	b.mu.Lock()
	if b.answer.At.IsZero() {
		b.answer = was.answer
	}
	if b.observer == (imds.Observer{}) {
		b.observer = was.observer
	}
	b.mu.Unlock()
	b.reread.Store(true)
	for _, err := range was.unreadable {
		c.log(slog.LevelError, cannotRead, "err", err)
	}
	b.committed(c)
	return routes
}

// join merges the events of a late file with those of this run, and returns the commit of what changes. until is the last
// valid answer in the file. booted is when the observer did.
func (o *openEvents) join(file map[string]*openEvent, until, booted time.Time) (c commit) {
	rebooted := !until.IsZero() && booted.After(until)
	for id, was := range file {
		op := o.get(id)
		switch {
		case op == nil:
			was.unwatched(elapsed(until, time.Now()), rebooted)
			was.lastListed = until
			c.setOpen(id, was)
		case op.Occurrence == 1: // else the occurrence in the file ended meanwhile, and the event came back
			op = c.change(op)
			op.unwatched(elapsed(until, op.Announced), was.Rebooted || rebooted)
			op.merge(was)
		}
	}
	return c
}

// merge adds what was known of an event before it was taken for new.
func (op *openEvent) merge(was *openEvent) {
	if !was.Begun.IsZero() {
		op.Begun = was.Begun
	}
	op.Announced, op.Occurrence = was.Announced, max(op.Occurrence, was.Occurrence)
	op.LongestPause = max(op.LongestPause, was.LongestPause)
	asked := was.asked()
	if op.Asked == nil || asked != nil && asked.Answered && !op.Asked.Answered { // that Azure has taken one stays said
		op.Asked = asked
	}
	if op.Approval == nil && was.Approval.settles(was.latest.Seq) && string(op.Event) == string(was.Event) {
		d := *was.Approval
		d.Seq = op.latest.Seq
		op.Approval = &d
	}
	op.Gap = op.Gap || was.Gap
	if op.Unsaid { // what was told while the file was away
		op.Promised, op.NotYet = was.Promised, was.NotYet
	}
	op.Routes, op.Alerted = union(op.Routes, was.Routes), union(op.Alerted, was.Alerted)
}

// union returns what is in a or b, that of a first.
func union(a, b []string) []string {
	return slices.Concat(a, slices.DeleteFunc(slices.Clone(b), func(s string) bool { return slices.Contains(a, s) }))
}
