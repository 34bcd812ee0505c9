package outbox_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"forewarn/bridge/outbox"
)

var (
	errFull   = errors.New("no space left on device")
	errIO     = errors.New("input/output error")
	errDamage = fmt.Errorf("%w: a page has no end", outbox.ErrDamaged)
)

// A disk is a Storage that fails and hangs on demand, and records every batch. Many outboxes may be opened on it, one
// after the other: what was written is there again.
//
// Its calls have names: "open", "read", "walk", "write", "compact" and "close". A "record" is one of a walk, and
// "written" comes after a write.
type disk struct {
	outbox.Storage // has what was written

	mu      sync.Mutex
	before  map[string]func() error // by the name of a call
	calls   map[string]int          // how many there were
	batches [][]outbox.Write        // of all transactions, in order
	aside   []string                // why it was set aside
}

func newDisk() *disk { return diskOn(&memory{}) }

func diskOn(s outbox.Storage) *disk {
	return &disk{Storage: s, before: map[string]func() error{}, calls: map[string]int{}}
}

// diskOf returns a disk that holds what the transactions wrote.
func diskOf(batches [][]outbox.Write) *disk {
	d := newDisk()
	for _, writes := range batches {
		_ = d.Write(writes)
	}
	return d
}

// on has f called before each call of that name. If f fails, the call does nothing and fails with that error.
func (d *disk) on(call string, f func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before[call] = f
}

func (d *disk) fails(call string, err error) {
	d.on(call, func() error { return err })
}

func (d *disk) failsOnce(call string, err error) {
	d.on(call, func() error {
		d.on(call, nil)
		return err
	})
}

func (d *disk) takes(call string, long time.Duration) {
	d.on(call, func() error {
		time.Sleep(long)
		return nil
	})
}

// hangs makes every call of these names wait until release is called.
func (d *disk) hangs(calls ...string) (release func()) {
	hang := make(chan struct{})
	for _, call := range calls {
		d.on(call, func() error {
			<-hang
			return nil
		})
	}
	return func() { close(hang) }
}

// works makes all calls work from now on, but for those that hang.
func (d *disk) works() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.before)
}

func (d *disk) begin(call string) error {
	d.mu.Lock()
	f := d.before[call]
	d.calls[call]++
	d.mu.Unlock()
	if f == nil {
		return nil
	}
	return f()
}

// called returns how many calls of that name there were.
func (d *disk) called(call string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[call]
}

// recorded returns the batches written so far.
func (d *disk) recorded() [][]outbox.Write {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.batches)
}

// setAside returns why it was set aside, each time.
func (d *disk) setAside() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.aside)
}

// count returns the number of records in a bucket.
func (d *disk) count(bucket string) (n int) {
	_ = d.Storage.Walk(bucket, "", func(string, []byte) error {
		n++
		return nil
	})
	return n
}

// loses removes the records of a bucket that have the text in them.
func (d *disk) loses(bucket, text string) {
	var lost []outbox.Write
	_ = d.Storage.Walk(bucket, "", func(key string, value []byte) error {
		if strings.Contains(string(value), text) {
			lost = append(lost, outbox.Write{Bucket: bucket, Key: key})
		}
		return nil
	})
	_ = d.Storage.Write(lost)
}

func (d *disk) Open() (bool, error) {
	if err := d.begin("open"); err != nil {
		return false, err
	}
	return d.Storage.Open()
}

func (d *disk) Write(writes []outbox.Write) error {
	if err := d.begin("write"); err != nil {
		return err
	}
	if err := d.Storage.Write(writes); err != nil {
		return err
	}
	d.mu.Lock()
	d.batches = append(d.batches, writes)
	d.mu.Unlock()
	return d.begin("written")
}

func (d *disk) Read(bucket, key string) ([]byte, error) {
	if err := d.begin("read"); err != nil {
		return nil, err
	}
	return d.Storage.Read(bucket, key)
}

func (d *disk) Walk(bucket, from string, f func(key string, value []byte) error) error {
	if err := d.begin("walk"); err != nil {
		return err
	}
	return d.Storage.Walk(bucket, from, func(key string, value []byte) error {
		if err := d.begin("record"); err != nil {
			return err
		}
		return f(key, value)
	})
}

func (d *disk) SetAside(why string, cause error) error {
	d.mu.Lock()
	d.aside = append(d.aside, why)
	d.mu.Unlock()
	return d.Storage.SetAside(why, cause)
}

func (d *disk) Compact() error {
	if err := d.begin("compact"); err != nil {
		return err
	}
	return d.Storage.Compact()
}

func (d *disk) Close() error {
	return errors.Join(d.Storage.Close(), d.begin("close"))
}

// A memory is a Storage without a file.
type memory struct {
	mu   sync.Mutex
	open bool
	data map[string]map[string][]byte // by bucket and key
}

func (m *memory) Open() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	opened := !m.open
	m.open = true
	return opened, nil
}

func (m *memory) Write(writes []outbox.Write) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		m.data = map[string]map[string][]byte{}
	}
	for _, w := range writes {
		if m.data[w.Bucket] == nil {
			m.data[w.Bucket] = map[string][]byte{}
		}
		m.data[w.Bucket][w.Key] = w.Value
		if w.Value == nil {
			delete(m.data[w.Bucket], w.Key)
		}
	}
	return nil
}

func (m *memory) Read(bucket, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.data[bucket][key], nil
}

func (m *memory) Walk(bucket, from string, f func(key string, value []byte) error) error {
	m.mu.Lock()
	b := maps.Clone(m.data[bucket])
	m.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(b)) {
		if key < from {
			continue
		}
		if err := f(key, b[key]); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) SetAside(string, error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data, m.open = nil, false
	return nil
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = false
	return nil
}

func (m *memory) Compact() error { return nil }

func (m *memory) Size() int64 { return 0 }
