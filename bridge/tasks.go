package bridge

import (
	"context"
	"errors"
	"sync"
)

// errStopping is the cause of the contexts of aborted tasks.
var errStopping = errors.New("forewarn is stopping")

// tasks are the activities that must end before a Bridge closes its outbox: workers and approvals by hand. The zero
// value is ready to use.
type tasks struct {
	wg      sync.WaitGroup
	mu      sync.Mutex
	last    int
	cancels map[int]context.CancelCauseFunc
	over    bool
}

// begin adds a task. Its context is done when parent is, after cut, and after end, which must be called.
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

// cut cancels the contexts of all tasks, also of later ones.
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
