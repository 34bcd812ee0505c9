package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"forewarn/cmd/forewarn/internal/wording"
)

// listenAgain are the waits between attempts to listen on an address that is taken; the last one stays.
var listenAgain = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second}

// A listener serves HTTP on an address as soon as it can: what it serves is never worth as much as watching.
type listener struct {
	key     string // of the settings
	address string // "" for none
	handler http.Handler
	log     *slog.Logger

	mu      sync.Mutex
	problem error // why it does not listen, nil while it does
}

// start listens at once, or else tries again until the function it returns is called, which also ends the serving.
func (l *listener) start() (stop func()) {
	if l.address == "" {
		return func() {}
	}
	if end, err := l.listen(); err == nil {
		return end
	} else {
		l.log.Warn("an address cannot be listened on; trying again", "key", l.key, "address", l.address, "err", wording.Reason(err),
			"hint", `stop what uses it, or set another address ("" for none)`)
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for tries := 0; ; tries++ {
			select {
			case <-time.After(listenAgain[min(tries, len(listenAgain)-1)]):
			case <-quit:
				return
			}
			if end, err := l.listen(); err == nil {
				l.log.Info("an address is listened on now", "key", l.key, "address", l.address, "after", tries+1)
				<-quit
				end()
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// listen tries once, and serves until the function it returns is called.
func (l *listener) listen() (stop func(), err error) {
	on, err := net.Listen("tcp", l.address)
	l.mu.Lock()
	l.problem = err
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return serve(on, l.handler, l.log), nil
}

// warnings say which of the listeners do not listen.
func warnings(all []*listener) (list []string) {
	for _, l := range all {
		l.mu.Lock()
		if l.problem != nil {
			list = append(list, fmt.Sprintf("%s: %s cannot be listened on, trying again: %v",
				l.key, l.address, wording.Reason(l.problem)))
		}
		l.mu.Unlock()
	}
	return list
}
