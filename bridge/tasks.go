package bridge

import (
	"context"
	"errors"
	"sync"
)

// errStopping is the cause of the contexts of aborted tasks.
var errStopping = errors.New("forewarn is stopping")

// tasks are the activities that must end before a Bridge closes its outbox: workers and approvals by hand.
type tasks struct {
	wg  sync.WaitGroup
	all context.Context // done after cut
	cut func()          // cancels the contexts of all tasks, also of later ones
}

func newTasks() *tasks {
	all, cancel := context.WithCancelCause(context.Background())
	return &tasks{all: all, cut: func() { cancel(errStopping) }}
}

// begin adds a task. Its context is done when parent is, after cut, and after end, which must be called.
func (t *tasks) begin(parent context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(parent)
	unlink := context.AfterFunc(t.all, func() { cancel(errStopping) })
	t.wg.Add(1)
	return ctx, sync.OnceFunc(func() {
		unlink()
		cancel(nil)
		t.wg.Done()
	})
}

// wait returns when every task has ended.
func (t *tasks) wait() { t.wg.Wait() }
