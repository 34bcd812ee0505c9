package page

import "time"

// How old what is shown may be.
const (
	statusAge = 250 * time.Millisecond
	pageAge   = 500 * time.Millisecond
)

// shared gives what compute gives: computed once for all who ask at the same time, and again when it is older than age.
// The value must not be changed.
func shared[T any](age time.Duration, compute func() T) func() T {
	var value T
	var computed time.Time
	turn := make(chan struct{}, 1) // whoever has put something in computes; the others wait
	return func() T {
		turn <- struct{}{}
		defer func() { <-turn }()
		if computed.IsZero() || time.Since(computed) >= age {
			value = compute()
			computed = time.Now()
		}
		return value
	}
}
