package bridge_test

import (
	"slices"
	"testing"
	"time"
)

// shrink leaves out of a plan what it fails without: it drops steps, many at a time and then one by one, and routes, as
// long as one of the same promises is not kept, for a minute. It gives what was found last too.
func shrink(t *testing.T, p plan, v variant, found []finding) (plan, []finding) {
	t.Helper()
	promise, enough := found[0].promise, time.Now().Add(time.Minute)
	fails := func(p plan) bool {
		for range 2 { // jitter and goroutines are not in the plan, so it may fail only now and then
			now := play(t, p, v, quiet())
			if slices.ContainsFunc(now, func(f finding) bool { return f.promise == promise }) {
				found = now
				return true
			}
		}
		return false
	}
	for n := max(1, len(p.steps)/2); time.Now().Before(enough); n /= 2 {
		for i := 0; i < len(p.steps) && time.Now().Before(enough); {
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
	return p, found
}
