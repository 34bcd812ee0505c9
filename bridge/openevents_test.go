package bridge

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"forewarn/bridge/imds"
)

// However many new events documents list that make nothing vanish, at most 10,000 are open, and their texts are bounded
// too. What ends makes room.
func TestOpenEventsAreBounded(t *testing.T) {
	event := func(i int) imds.Event { return imds.Event{ID: fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)} }
	var known []imds.Event
	for i := range imds.MaxEvents {
		known = append(known, event(i))
	}
	first := imds.Change{Kind: imds.Scheduled, Event: event(imds.MaxEvents)}
	second := imds.Change{Kind: imds.Scheduled, Event: event(imds.MaxEvents + 1)}
	ended := imds.Change{Kind: imds.Vanished, Event: known[0]}
	for _, tt := range []struct{ changes, want []imds.Change }{
		{[]imds.Change{first}, nil},
		{[]imds.Change{first, second, ended}, []imds.Change{first, ended}},
	} {
		got := fitChanges(known, tt.changes)
		if !slices.EqualFunc(got, tt.want, func(a, b imds.Change) bool { return a.Kind == b.Kind && a.Event.ID == b.Event.ID }) {
			t.Errorf("of %d changes %d are taken, want %d", len(tt.changes), len(got), len(tt.want))
		}
	}
}

// So is their JSON: what is known counts, what ends makes room, and a change counts for what it is longer.
func TestTheTextOfOpenEventsIsBounded(t *testing.T) {
	event := func(id string, size int) imds.Event { return imds.Event{ID: id, Raw: make([]byte, size)} }
	const half = maxOpenBytes / 2
	known := []imds.Event{event("a", half), event("b", half-100)}
	scheduled := func(id string, size int) imds.Change {
		return imds.Change{Kind: imds.Scheduled, Event: event(id, size)}
	}
	updated := func(size int) imds.Change {
		return imds.Change{Kind: imds.Updated, Event: event("a", size), Previous: &known[0]}
	}
	for _, tt := range []struct {
		claim   string
		changes []imds.Change
		want    int
	}{
		{"what fits to the byte", []imds.Change{scheduled("c", 100)}, 1},
		{"one byte more", []imds.Change{scheduled("c", 101)}, 0},
		{"one beside another", []imds.Change{scheduled("c", 60), scheduled("d", 60), scheduled("e", 40)}, 2},
		{"a change of the same length", []imds.Change{updated(half)}, 1},
		{"a change that is longer by what is left", []imds.Change{updated(half + 100)}, 1},
		{"a change that is longer by more", []imds.Change{updated(half + 101)}, 0},
		{"a long one while a long one ends", []imds.Change{{Kind: imds.Vanished, Event: known[0]}, scheduled("c", half+100)}, 2},
		{"a longer one while a long one ends", []imds.Change{{Kind: imds.Vanished, Event: known[0]}, scheduled("c", half+101)}, 1},
	} {
		if got := fitChanges(known, tt.changes); len(got) != tt.want {
			t.Errorf("%s: %d are taken, want %d", tt.claim, len(got), tt.want)
		}
	}
}

// What changes no open event leaves their order as it is: it is not sorted anew, as with thousands of them that takes long.
func TestACommitThatChangesNoEventKeepsTheirOrder(t *testing.T) {
	var o openEvents
	o.load(map[string]*openEvent{"B": {event: imds.Event{ID: "B"}}, "A": {event: imds.Event{ID: "A"}}})
	before := o.all()
	groups := o.set(nil)
	if after := o.all(); len(groups) != 0 || len(after) != 2 || &after[0] != &before[0] {
		t.Errorf("%d groups are to be stored, and %d events were sorted anew", len(groups), len(after))
	}
	o.set(map[string]*openEvent{"A": nil})
	if after := o.all(); len(after) != 1 || after[0].event.ID != "B" {
		t.Errorf("after one ended %d are open, want B", len(after))
	}
}

// A time without valid answers is a gap above ten seconds, and when the clock was set back in it. A gap stays one.
func TestMoreThanTenSecondsWithoutAnAnswerAreAGap(t *testing.T) {
	for d, want := range map[time.Duration]bool{10 * time.Second: false, 10*time.Second + 1: true, -1: true, 0: false} {
		op := openEvent{}
		op.unwatched(d, false)
		if op.Gap != want {
			t.Errorf("%v: it is a gap: %t, want %t", d, op.Gap, want)
		}
		op.Gap = true
		op.unwatched(d, false)
		if !op.Gap || op.Rebooted {
			t.Errorf("%v after a gap: the gap is over, or the machine has restarted", d)
		}
		op.unwatched(d, true)
		op.unwatched(d, false)
		if !op.Rebooted {
			t.Errorf("%v after a restart of the machine: it is not kept", d)
		}
	}
}
