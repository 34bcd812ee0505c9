package bridge_test

import (
	"slices"
	"testing"
)

// shrink leaves out of a plan what it fails without: it drops steps, many at a time and then one by one, and routes, as
// long as one of the same promises is not kept.
func shrink(t *testing.T, p plan, v variant, found []finding) plan {
	t.Helper()
	left := 200 // simulations
	fails := func(p plan) bool {
		for range 2 { // jitter and goroutines are not in the plan, so it may fail only now and then
			left--
			for _, f := range play(t, p, v, quiet()) {
				if slices.ContainsFunc(found, func(was finding) bool { return was.promise == f.promise }) {
					return true
				}
			}
		}
		return false
	}
	for n := max(1, len(p.steps)/2); left > 0; n /= 2 {
		for i := 0; i < len(p.steps) && left > 0; {
			smaller := p
			smaller.steps = slices.Delete(slices.Clone(p.steps), i, min(i+n, len(p.steps)))
			if fails(smaller) {
				p = smaller
			} else {
				i += n
			}
		}
		if n <= 1 {
			break
		}
	}
	return p
}
