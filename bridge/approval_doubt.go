package bridge

import (
	"errors"
	"strings"

	"forewarn/bridge/imds"
)

// noteDoubts records which open events the newest document does not confirm as they are known. Not every difference is a
// change that is told, such as a field that Azure no longer sends, but no event with one is approved.
func (b *Bridge) noteDoubts(doc imds.Document) {
	listed := make(map[string]imds.Event, len(doc.Events))
	for _, e := range doc.Events {
		listed[e.ID] = e
	}
	for _, op := range b.events.all() {
		e, why := op.event, ""
		now, there := listed[e.ID]
		if !there || doc.Partial || now.Contradicted || now.Doubt != "" || string(now.Raw) != string(e.Raw) { // rare
			one := imds.Document{Partial: doc.Partial}
			if there {
				one.Events = []imds.Event{now}
			}
			why = doubtOf(e, one)
		}
		b.reviews.setDoubt(e.ID, why)
	}
}

// noteDoubt records what a later document than that of the last poll says against an event. It counts until the next poll,
// which reads its document whatever its ETag.
func (b *Bridge) noteDoubt(id, why string) {
	b.reviews.setDoubt(id, why)
	b.reread.Store(true)
}

// doubtOf returns why an event must not be approved as it is known, by what the document says of it; "" if nothing
// speaks against it.
func doubtOf(known imds.Event, doc imds.Document) string {
	now, err := doc.Confirm(known.ID, known.Digest())
	switch {
	case err == nil:
		return ""
	case errors.Is(err, imds.ErrChanged):
		return "Azure's newest document differs in " + imds.Printable(strings.Join(imds.DifferingFields(known, now), ", "), 200)
	}
	return err.Error()
}
