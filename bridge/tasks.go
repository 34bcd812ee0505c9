package bridge

import (
	"context"
	"errors"
	"sync"
)

// errStopping is why a task was cut off.
var errStopping = errors.New("forewarn is stopping")

// tasks are what has to end before a Bridge closes its outbox: the workers, and approvals by hand. The zero value has
// none.
type tasks struct {
	wg      sync.WaitGroup
	mu      sync.Mutex
	last    int
	cancels map[int]context.CancelCauseFunc
	over    bool
}

// begin adds a task. Its context ends with parent, when the tasks are cut off, and when end is called, which it must
// be.
func (t *tasks) begin(parent context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(parent)
	t.wg.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		cancel(errStopping)
	}
	if t.cancels == nil {
		t.cancels = map[int]context.CancelCauseFunc{}
	}
	t.last++
	task := t.last
	t.cancels[task] = cancel
	return ctx, sync.OnceFunc(func() {
		t.mu.Lock()
		delete(t.cancels, task)
		t.mu.Unlock()
		cancel(nil)
		t.wg.Done()
	})
}

// cut ends the contexts of all tasks, and of those that begin later.
func (t *tasks) cut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	for _, cancel := range t.cancels {
		cancel(errStopping)
	}
}

// wait returns when every task has ended.
func (t *tasks) wait() { t.wg.Wait() }
