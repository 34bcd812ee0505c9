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
	wg      sync.WaitGroup
	aborted chan struct{} // closed by cut
	cut     func()        // cancels the contexts of all tasks, also of later ones
}

func newTasks() *tasks {
	aborted := make(chan struct{})
	return &tasks{aborted: aborted, cut: sync.OnceFunc(func() { close(aborted) })}
}

// begin adds a task. Its context is done when parent is, after cut, and after end, which must be called.
func (t *tasks) begin(parent context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(parent)
	t.wg.Add(1)
	go func() {
		select {
		case <-t.aborted:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	return ctx, sync.OnceFunc(func() {
		cancel(nil)
		t.wg.Done()
	})
}

// wait returns when every task has ended.
func (t *tasks) wait() { t.wg.Wait() }
