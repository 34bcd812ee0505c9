package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"forewarn/bridge/delivery"
)

// keepEvery is the time between two looks at whether a secret in Key Vault has to be read again.
const keepEvery = time.Minute

// A secretKeeper reads secrets in Key Vault before a sink needs them: at the start, after a reload, and again when they
// are old. When an event comes, the vault may be out of reach.
type secretKeeper struct {
	stop func() // ends the reads of the last settings; nil before the first

	mu       sync.Mutex
	problems map[int]string // why secrets are not in memory, by the number of their reader
}

// keep calls each of read now and every minute until ctx is done, in place of those of an earlier call. It is called from
// one goroutine at a time.
func (k *secretKeeper) keep(ctx context.Context, read []func(context.Context) error) {
	if k.stop != nil {
		k.stop()
	}
	ctx, cancel := context.WithCancel(ctx)
	k.mu.Lock()
	k.problems = make(map[int]string)
	k.mu.Unlock()
	var all sync.WaitGroup
	for i, one := range read {
		all.Go(func() {
			for {
				k.note(i, one(ctx))
				select {
				case <-time.After(keepEvery):
				case <-ctx.Done():
					return
				}
			}
		})
	}
	k.stop = func() { cancel(); all.Wait() }
}

// note stores why secrets can't be read; nil if they can.
func (k *secretKeeper) note(reader int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.problems, reader)
	if err != nil {
		k.problems[reader] = delivery.WithoutClass(err.Error())
	}
}

// warnings names the secrets that are missing, for the status.
func (k *secretKeeper) warnings() (list []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, i := range slices.Sorted(maps.Keys(k.problems)) {
		list = append(list, "secret not read from Key Vault: "+k.problems[i])
	}
	return slices.Compact(list)
}
