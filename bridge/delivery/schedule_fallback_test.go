package delivery

import (
	"slices"
	"testing"
	"time"
)

// A route with LateDrop doesn't drop an item when it falls back, only once the item is late.
func TestFallingBackDoesNotMakeAnItemLate(t *testing.T) {
	p := newPlan(Terms{Late: LateDrop, Fallback: Fallback{Sink: "b", After: 2 * time.Minute}})
	p.owe("A", scheduled, 5*time.Minute)
	p.fails(false, 0)
	p.later(2 * time.Minute)
	if late, fallback := p.takeOverdue(p.now); len(late) != 0 || len(fallback) != 1 {
		t.Errorf("after two minutes %d are late and %d fall back, want 0 and 1", len(late), len(fallback))
	}
	p.later(3 * time.Minute)
	if late, fallback := p.takeOverdue(p.now); len(late) != 1 || len(fallback) != 0 {
		t.Errorf("after its time %d are late and %d fall back, want 1 and 0", len(late), len(fallback))
	}
}

// On a route with LateDrop, items that can never be late still fall back.
func TestItemsThatAreNeverLateFallBack(t *testing.T) {
	p := newPlan(Terms{Late: LateDrop, Fallback: Fallback{Sink: "b", After: 2 * time.Minute}})
	p.owe("A", updated, far)
	p.fails(false, 0)
	p.later(2 * time.Minute)
	if late, fallback := p.takeOverdue(p.now); len(late) != 0 || len(fallback) != 1 {
		t.Errorf("after two minutes %d are late and %d fall back, want 0 and 1", len(late), len(fallback))
	}
}

// When a change falls back, the newer changes of its event do too: the fallback must not tell what is known to be out of
// date. What comes later falls back at its own time, and other events keep theirs.
func TestChangesFallBackWithAnOlderOneOfTheirEvent(t *testing.T) {
	p := newPlan(Terms{Fallback: Fallback{Sink: "b", After: 2 * time.Minute}})
	first := p.owe("A", scheduled, far)
	p.later(time.Minute)
	second := p.owe("A", updated, far)
	other := p.owe("B", scheduled, far)
	p.later(time.Minute)
	wantFallback := func(want ...*Item) {
		t.Helper()
		if _, fallback := p.takeOverdue(p.now); !slices.Equal(fallback, want) {
			t.Errorf("%d fall back, want %d", len(fallback), len(want))
		}
	}
	wantFallback(first, second)
	third := p.owe("A", updated, far)
	p.later(time.Minute)
	wantFallback(other)
	p.later(time.Minute)
	wantFallback(third)
}

// Messages about forewarn itself each fall back at their own time: they are about different things.
func TestMessagesAboutForewarnFallBackEachAtItsTime(t *testing.T) {
	p := newPlan(Terms{Fallback: Fallback{Sink: "b", After: 2 * time.Minute}})
	first := p.owe("", "sink.blocked", 0)
	p.later(time.Minute)
	second := p.owe("", "sink.blocked", 0)
	for _, want := range []*Item{first, second} {
		p.later(time.Minute)
		if _, fallback := p.takeOverdue(p.now); !slices.Equal(fallback, []*Item{want}) {
			t.Errorf("%v fall back, want %s", fallback, want.ID)
		}
	}
}
