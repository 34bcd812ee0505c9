package outbox_test

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"forewarn/bridge/outbox"
)

// A disk is a Storage in memory that records every batch, and that fails and hangs on demand. Many outboxes may be
// opened on it, one after the other: what was written is there again.
type disk struct {
	mu      sync.Mutex
	data    map[string]map[string][]byte
	batches [][]outbox.Write // of all transactions, in order
	writes  int              // transactions
	open    bool
	fail    error         // of every write, while it isn't nil
	lose    bool          // writes are applied and fail
	failIn  int           // the n-th write from now on fails; it is applied if lose is set, which ends then
	hang    chan struct{} // writes wait until it is closed
	misses  chan struct{} // reads too
	missing int           // reads that wait
	takes   time.Duration // each write
	walks   time.Duration // each record of a walk takes
	aside   []string      // why it was set aside
	opens   int           // how often it was asked to open

	failClose, failCompact error
}

var errFull = errors.New("no space left on device")

// diskOf returns a disk that holds what the transactions wrote.
func diskOf(batches [][]outbox.Write) *disk {
	d := &disk{data: map[string]map[string][]byte{}}
	for _, writes := range batches {
		d.apply(writes)
	}
	return d
}

func (d *disk) apply(writes []outbox.Write) {
	for _, w := range writes {
		b := d.data[w.Bucket]
		if b == nil {
			b = map[string][]byte{}
			d.data[w.Bucket] = b
		}
		if w.Value == nil {
			delete(b, w.Key)
		} else {
			b[w.Key] = slices.Clone(w.Value)
		}
	}
	d.batches = append(d.batches, writes)
}

// set changes how the disk behaves.
func (d *disk) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// hangReads makes every read wait until release is called.
func (d *disk) hangReads() (release func()) {
	hang := make(chan struct{})
	d.set(func() { d.misses = hang })
	return func() {
		d.set(func() { d.misses = nil })
		close(hang)
	}
}

// recorded returns the batches written so far.
func (d *disk) recorded() [][]outbox.Write {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.batches)
}

// transactions returns the number of transactions so far.
func (d *disk) transactions() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.writes
}

func (d *disk) Open() (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	opened := !d.open
	d.open = true
	d.opens++
	return opened, nil
}

func (d *disk) Write(writes []outbox.Write) error {
	d.mu.Lock()
	hang, takes := d.hang, d.takes
	d.mu.Unlock()
	if hang != nil {
		<-hang
	}
	time.Sleep(takes)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writes++
	if d.failIn > 0 {
		d.failIn--
		failed := d.failIn == 0
		if !failed || d.lose {
			d.apply(writes)
		}
		if failed {
			d.lose = false
			return errFull
		}
		return nil
	}
	switch {
	case d.lose:
		d.apply(writes)
		return errors.New("no answer")
	case d.fail != nil:
		return d.fail
	}
	d.apply(writes)
	return nil
}

func (d *disk) Read(bucket, key string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if misses := d.misses; misses != nil {
		d.missing++
		d.mu.Unlock()
		<-misses
		d.mu.Lock()
		d.missing--
	}
	return slices.Clone(d.data[bucket][key]), nil
}

func (d *disk) Walk(bucket, from string, f func(key string, value []byte) error) error {
	d.mu.Lock()
	b, walks := maps.Clone(d.data[bucket]), d.walks
	d.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(b)) {
		if key >= from {
			time.Sleep(walks)
			if err := f(key, b[key]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *disk) SetAside(why string, _ error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.aside = append(d.aside, why)
	d.data, d.open = map[string]map[string][]byte{}, false
	return nil
}

func (d *disk) Compact() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failCompact
}

func (d *disk) Size() int64 { return 0 }

func (d *disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = false
	return d.failClose
}

// count returns the number of keys in a bucket.
func (d *disk) count(bucket string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.data[bucket])
}

var _ outbox.Storage = (*disk)(nil)
