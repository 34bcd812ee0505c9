package templates

import (
	"sync"
	"weak"
)

// A forgetful makes a value when it is asked for one, and keeps it until the garbage collector runs. Parsed templates
// are used a few times in months, and take more memory than all else that waits with them.
type forgetful[T any] struct {
	make func() (T, error)

	mu   sync.Mutex
	kept weak.Pointer[T]
}

// get is the value, made anew if it was forgotten. Nothing of it is kept when it cannot be made.
func (f *forgetful[T]) get() (*T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.kept.Value(); v != nil {
		return v, nil
	}
	v, err := f.make()
	if err != nil {
		return nil, err
	}
	f.kept = weak.Make(&v)
	return &v, nil
}
