package bridge_test

import (
	"encoding/json"
	"errors"
	"sync"
	"time"

	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// A disk is the outbox's storage, which fails and hangs as a test wants.
type faultyDisk struct {
	outbox.Storage
	writing sync.Mutex // held while the file is written
	mu      sync.Mutex
	err     error         // of every write
	gate    chan struct{} // that every write waits for; nil for nothing
	reads   chan struct{} // that every read of a CloudEvent waits for; nil for nothing
	unread  error         // of every read of one value
	step    time.Duration // by which the clock was stepped: everything on record looks so much older
	wrote   func()        // is called after each write; nil for nothing
	counts  diskCounts
}

// diskCounts says what a disk was asked to do.
type diskCounts struct{ writes, walks, compactions int }

func (d *faultyDisk) counted() diskCounts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

func (d *faultyDisk) Compact() error {
	d.mu.Lock()
	d.counts.compactions++
	d.mu.Unlock()
	return d.Storage.Compact()
}

// stamped are the times on record, by bucket.
var stamped = map[string][][]string{"events": {{"time"}}, "settled": {{"at"}},
	"groups": {{"state", "announced"}, {"state", "latestAt"}, {"state", "approval", "decided"}, {"state", "approval", "next"},
		{"cloudEvent", "time"}}}

// older returns a record as it looks after the clock was stepped.
func (d *faultyDisk) older(bucket string, value []byte) []byte {
	d.mu.Lock()
	step := d.step
	d.mu.Unlock()
	if step == 0 || stamped[bucket] == nil {
		return value
	}
	var fields map[string]any
	if err := json.Unmarshal(value, &fields); err != nil {
		return value
	}
	for _, path := range stamped[bucket] {
		in, last := fields, len(path)-1
		for _, name := range path[:last] {
			in, _ = in[name].(map[string]any)
		}
		text, _ := in[path[last]].(string)
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			in[path[last]] = at.Add(-step)
		}
	}
	return imds.CompactJSON(fields)
}

func (d *faultyDisk) Read(bucket, key string) ([]byte, error) {
	d.mu.Lock()
	gate, err := d.reads, d.unread
	d.mu.Unlock()
	if gate != nil && bucket == "events" {
		<-gate
	}
	if err != nil {
		return nil, err
	}
	value, err := d.Storage.Read(bucket, key)
	return d.older(bucket, value), err
}

func (d *faultyDisk) Walk(bucket, from string, f func(key string, value []byte) error) error {
	d.mu.Lock()
	d.counts.walks++
	d.mu.Unlock()
	return d.Storage.Walk(bucket, from, func(key string, value []byte) error { return f(key, d.older(bucket, value)) })
}

// step is what a step of the clock by d looks like: only time that is counted by the monotonic clock stays as it is.
func (s *stage) step(d time.Duration) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	s.disk.step = d
}

func (d *faultyDisk) Write(writes []outbox.Write) error {
	d.mu.Lock()
	gate, err := d.gate, d.err
	d.counts.writes++
	d.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if err != nil {
		return err
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	err = d.Storage.Write(writes)
	if d.wrote != nil {
		d.wrote()
	}
	return err
}

// fail makes every write fail, until it is called with nil.
func (d *faultyDisk) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// block makes every write hang until release is called.
func (d *faultyDisk) block() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.gate = gate
	return func() { close(gate) }
}

// blockReads makes every read of a CloudEvent hang until release is called.
func (d *faultyDisk) blockReads() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.reads = gate
	return func() { close(gate) }
}

// hang makes every write, and every read of a CloudEvent, hang until release is called.
func (d *faultyDisk) hang() (release func()) {
	writes, reads := d.block(), d.blockReads()
	return func() {
		reads()
		writes()
	}
}

// misread makes every read of one value fail, until it is called with nil.
func (d *faultyDisk) misread(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unread = err
}

var errFull = errors.New("no space left on device")

// diskRetry is how often the outbox tries a disk that failed, diskPatience how long it waits for one that hangs.
const (
	diskRetry    = 5 * time.Second
	diskPatience = 5 * time.Second
)
