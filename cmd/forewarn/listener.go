package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"forewarn/cmd/forewarn/internal/wording"
)

// listenBackoff are the waits between attempts to listen on an address that is taken; the last one repeats.
var listenBackoff = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second}

// A listener serves HTTP on an address. If the address is taken, it tries again in the background, because watching the
// VM is more important than the page.
type listener struct {
	key     string // in the settings
	address string // "" for none
	handler http.Handler
	log     *slog.Logger

	mu      sync.Mutex // guards problem
	problem error      // why it does not listen; nil while it does
}

// start listens, at once or in the background, until stop is called.
func (l *listener) start() (stop func()) {
	if l.address == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	if end, err := l.listen(ctx); err == nil {
		return func() {
			cancel()
			end()
		}
	} else {
		l.log.Warn("cannot listen on address; trying again", "key", l.key, "address", l.address, "err", wording.Reason(err),
			"hint", `stop the program that uses it, or set another address ("" for none)`)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tries := 0; ; tries++ {
			select {
			case <-time.After(listenBackoff[min(tries, len(listenBackoff)-1)]):
			case <-ctx.Done():
				return
			}
			if end, err := l.listen(ctx); err == nil {
				l.log.Info("listening on address now", "key", l.key, "address", l.address, "after", tries+1)
				<-ctx.Done()
				end()
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// listenPatience is how long the name of an address may take to be resolved: nothing is watched before.
const listenPatience = 2 * time.Second

// listen tries once to listen, and serves until stop is called. It gives up when ctx ends.
func (l *listener) listen(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, listenPatience)
	defer cancel()
	on, err := new(net.ListenConfig).Listen(ctx, "tcp", l.address)
	l.mu.Lock()
	l.problem = err
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return serve(on, l.handler, l.log), nil
}

// warnings describes the listeners that cannot listen, for the status.
func warnings(all []*listener) (list []string) {
	for _, l := range all {
		l.mu.Lock()
		if l.problem != nil {
			list = append(list, fmt.Sprintf("%s: cannot listen on %s, trying again: %v",
				l.key, l.address, wording.Reason(l.problem)))
		}
		l.mu.Unlock()
	}
	return list
}
