package delivery

import (
	"testing"
	"time"
)

var toB = Fallback{Sink: "b", After: 2 * time.Minute}

// A change falls back at its time, whether it can be late or not, and is dropped only once it is late.
func TestFallingBackDoesNotMakeAChangeLate(t *testing.T) {
	p := newPlan(t, Terms{Late: LateDrop, Fallback: toB})
	p.owe("A", scheduled, 5*time.Minute)
	p.owe("B", updated, far)
	p.fails("A-scheduled", "B-updated")
	p.later(2 * time.Minute)
	p.fallsBack("A-scheduled B-updated")
	p.later(3 * time.Minute)
	p.drops("A-scheduled")
}

// When a change falls back, the newer changes of its event do too: the fallback must not tell what is known to be out
// of date. What comes later falls back at its own time, and other events keep theirs.
func TestChangesFallBackWithAnOlderOneOfTheirEvent(t *testing.T) {
	p := newPlan(t, Terms{Fallback: toB})
	p.announce("A")
	p.later(time.Minute)
	p.owe("A", updated, far)
	p.announce("B")
	p.later(time.Minute)
	p.fallsBack("A-scheduled A-updated")
	p.owe("A", started, 0)
	p.later(time.Minute)
	p.fallsBack("B-scheduled")
	p.later(time.Minute)
	p.fallsBack("A-started")
}

// Messages about forewarn itself each fall back at their own time: they are about different things.
func TestMessagesAboutForewarnFallBackEachAtItsTime(t *testing.T) {
	p := newPlan(t, Terms{Fallback: toB})
	p.owe("", "one", 0)
	p.later(time.Minute)
	p.owe("", "another", 0)
	p.later(time.Minute)
	p.fallsBack("-one")
	p.later(time.Minute)
	p.fallsBack("-another")
}
