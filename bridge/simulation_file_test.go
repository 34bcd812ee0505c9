package bridge_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"forewarn/bridge/outbox"
)

// A file is the outbox's storage in memory, with the disk of the simulation before it. What a crash leaves of it is a
// copy: buckets of keys and values.
type file struct {
	disk *disk

	mu         sync.Mutex
	open       bool
	buckets    buckets
	saved      buckets // see damage
	damaged    bool    // the next write notices that
	unreadable bool
	fresh      bool // it was begun in place of another
}

var errDamaged = fmt.Errorf("%w: somebody did that", outbox.ErrDamaged)

type buckets map[string]map[string][]byte

// newFile returns the file that an earlier program left, nil if there is none.
func newFile(left buckets) *file { return &file{buckets: left.clone()} }

func (b buckets) clone() buckets {
	c := buckets{}
	for name, keys := range b {
		c[name] = maps.Clone(keys)
	}
	return c
}

// content returns a copy of all that is in the file.
func (f *file) content() any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.buckets.clone()
}

func (f *file) Open() (opened bool, err error) {
	first, err := f.disk.there()
	if err != nil {
		return false, err
	}
	if first {
		if err := f.disk.reads(); err != nil { // who opens it reads it
			return false, err
		}
		time.Sleep(30 * time.Millisecond) // not when a poll is made too, so that it is clear which came first
		f.disk.w.loaded()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if first && f.disk.w.variant.blank {
		f.buckets = buckets{}
	}
	opened, f.open = !f.open, true
	return opened, nil
}

func (f *file) Write(all []outbox.Write) error {
	return f.disk.transaction([]int{len(all)}, func(n int) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.damaged {
			return errDamaged
		}
		writes := all
		if n == 0 && f.disk.w.variant.splits {
			writes = all[:len(all)/2]
		} else if n == 0 {
			writes = nil
		}
		if f.fresh && f.disk.w.variant.empty {
			writes = nil
		}
		f.fresh = false
		for _, w := range f.disk.w.variant.writesOf(writes) {
			if f.buckets[w.Bucket] == nil {
				f.buckets[w.Bucket] = map[string][]byte{}
			}
			if w.Value == nil {
				delete(f.buckets[w.Bucket], w.Key)
			} else {
				f.buckets[w.Bucket][w.Key] = slices.Clone(w.Value)
			}
		}
		return nil
	})
}

func (f *file) Read(bucket, key string) ([]byte, error) {
	if _, err := f.disk.there(); err != nil {
		return nil, err
	}
	if bucket == "events" && f.disk.opened.Load() {
		if err := f.disk.reads(); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unreadable {
		return nil, errDamaged
	}
	return slices.Clone(f.buckets[bucket][key]), nil
}

func (f *file) Walk(bucket, from string, visit func(key string, value []byte) error) error {
	if _, err := f.disk.there(); err != nil {
		return err
	}
	f.mu.Lock()
	keys, unreadable := maps.Clone(f.buckets[bucket]), f.unreadable
	f.mu.Unlock()
	if unreadable {
		return errDamaged
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key < from {
			continue
		}
		if err := visit(key, keys[key]); err != nil {
			return err
		}
	}
	return nil
}

func (f *file) SetAside(string, error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open, f.buckets, f.damaged, f.unreadable, f.fresh = false, buckets{}, false, false, true
	return nil
}

func (f *file) Compact() error { return nil }
func (f *file) Size() int64    { return 0 }

func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open = false
	return nil
}
