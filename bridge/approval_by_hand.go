package bridge

import (
	"context"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// ApproveNow approves the event with that id for a user, whatever the rules say. shown is the Digest of the event as
// the user saw it; an event that differs is not approved. by names the user, for the record. The Bridge need not run;
// the CloudEvent about the result then waits in the outbox.
func (b *Bridge) ApproveNow(ctx context.Context, id, shown, by string) cloudevent.Approval {
	d := decision{Decided: time.Now().UTC(), By: by}
	notSent := func(result, why string) cloudevent.Approval {
		return cloudevent.Approval{Result: result, By: by, Decided: d.Decided, Error: why}
	}
	ctx, undo, ok := b.attend(ctx, id)
	if !ok {
		return notSent(cloudevent.ResultRefused, errStopping.Error())
	}
	defer undo()
	doc, e, result, why := b.confirm(ctx, id, shown)
	if why != "" {
		return notSent(result, why)
	}
	looked := time.Now()
	op := b.events.get(id)
	if op == nil {
		op = &openEvent{Announced: d.Decided}
	}
	d.Attempts = 1
	// A full disk must not keep people from approving, so the result is ignored.
	b.keep(id, func(op *openEvent) bool { return op.ask(d) })
	if time.Since(looked) > lookHolds {
		doc, e, result, why = b.confirm(ctx, id, shown)
	}
	if why != "" {
		b.keep(id, func(op *openEvent) bool { return op.unask(d) })
		return notSent(result, why)
	}
	answer, err := b.askAzure(ctx, doc, e)
	if err != nil {
		answer = cloudevent.Approval{Result: cloudevent.ResultUnanswered, Error: err.Error()}
	}
	return b.endApproval(e, op, d, answer)
}

// confirm reads the document and returns the event in it, if that is as its user saw it; else the result, and why.
func (b *Bridge) confirm(ctx context.Context, id, shown string) (doc imds.Document, e imds.Event, result, why string) {
	doc, err := b.client.Document(ctx)
	if err != nil {
		return doc, e, cloudevent.ResultRefused, err.Error()
	}
	e, err = doc.Confirm(id, shown)
	switch {
	case e.Status == imds.StatusStarted:
		return doc, e, cloudevent.ResultMoot, "it has started already"
	case err != nil:
		return doc, e, cloudevent.ResultMoot, err.Error()
	}
	return doc, e, "", ""
}

// attend registers an approval by hand: until undo is called, the rules leave the event alone, and the outbox stays
// open for the record. ctx ends when a stop waits for it too long. ok is false if the Bridge is stopping.
func (b *Bridge) attend(parent context.Context, id string) (ctx context.Context, undo func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopping {
		return parent, nil, false
	}
	ctx, end := b.running.begin(parent)
	b.byHand[id]++
	return ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.byHand[id]--
		if b.byHand[id] == 0 {
			delete(b.byHand, id)
		}
		end()
	}, true
}
