package page

import "time"

// The longest times that results are cached.
const (
	statusAge = 250 * time.Millisecond
	pageAge   = 500 * time.Millisecond
)

// cached caches the result of compute for age, and computes it once for concurrent callers. They must not change it.
// After that it is forgotten: the page may be 200 KiB long, and hours may pass until somebody looks at it again.
func cached[T any](age time.Duration, compute func() T) func() T {
	var value T
	var computed time.Time
	turn := make(chan struct{}, 1) // a lock
	return func() T {
		turn <- struct{}{}
		defer func() { <-turn }()
		if computed.IsZero() || time.Since(computed) >= age {
			value = compute()
			computed = time.Now()
			time.AfterFunc(age, func() {
				turn <- struct{}{}
				defer func() { <-turn }()
				if time.Since(computed) >= age {
					var none T
					value, computed = none, time.Time{}
				}
			})
		}
		return value
	}
}
