package bridge_test

import (
	"context"
	"slices"
	"testing"
	"time"
)

// shrink leaves out of a plan what it fails without: it drops steps, many at a time and then one by one, and then routes,
// as long as the same promise is not kept, for a minute. It gives what was found last too.
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
	for i := 0; i < len(p.routes) && len(p.routes) > 1 && time.Now().Before(enough); {
		smaller := p
		smaller.routes = slices.Delete(slices.Clone(p.routes), i, i+1)
		if fails(smaller) {
			p = smaller
		} else {
			i++
		}
	}
	return p, found
}

// What a finding does not need is left out of its story: steps, and routes.
func TestAFindingIsShrunk(t *testing.T) {
	t.Parallel()
	webhookTwice := variant{deliver: func(d destination, ctx context.Context, batch []handed) verdict {
		if d.name == "webhook" {
			d.take(ctx, batch)
		}
		return d.take(ctx, batch)
	}}
	p := planWith([]step{
		{at(time.Minute), restyle{}},
		{at(2 * time.Minute), list{event: reboot}},
		{at(3 * time.Minute), list{event: freeze}},
		{at(4 * time.Minute), reset{}},
	})
	p, found := shrink(t, p, webhookTwice, play(t, p, webhookTwice, quiet()))
	if len(found) == 0 || len(p.steps) != 1 || len(p.routes) != 1 || p.routes[0].name != "webhook" {
		t.Errorf("of the story this is left, with the findings %v:\n%v", found, p)
	}
}
